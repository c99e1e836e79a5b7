//! BGREWRITEAOF, WAIT and WAITAOF: rewrites of the append-only file, and waits for acknowledgements.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_commands::timeout::until_ms;
use kvick_durability::aof::waiting::{AOF_DISABLED_ERROR, WaitKind, WaitingClient};
use kvick_durability::aof::{State, rewrite};
use kvick_durability::persistence::snapshots::{Busy, Purpose};
use kvick_engine::session::{Acknowledged, Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_runtime::logging;
use kvick_store::{Kind, Waiter};

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[BGREWRITEAOF, WAIT, WAITAOF];

/// BGREWRITEAOF
pub const BGREWRITEAOF: Command<SessionHandler> = Command::new(
    Spec::new("bgrewriteaof", 1)
        .flags(&[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::NOSCRIPT])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS, Categories::SLOW])
        // The snapshot begins between other commands.
        .lock(LockRule::Global)
        .doc(Group::Server, "1.0.0", "O(1)", "Rewrites the append-only file in the background."),
    rewrite_now,
);

/// WAIT numreplicas timeout
pub const WAIT: Command<SessionHandler> = Command::new(
    Spec::new("wait", 3)
        .flags(&[Flags::BLOCKING])
        .acl(&[Categories::BLOCKING, Categories::CONNECTION, Categories::SLOW])
        .doc(Group::Generic, "3.0.0", "O(1)", "Waits until replicas have acknowledged the connection's writes.")
        .tips(&["request_policy:all_shards", "response_policy:agg_min"])
        .args(&[Arg::integer("numreplicas"), Arg::integer("timeout")]),
    wait_for_replicas,
);

/// WAITAOF numlocal numreplicas timeout
pub const WAITAOF: Command<SessionHandler> = Command::new(
    Spec::new("waitaof", 4)
        .flags(&[Flags::BLOCKING])
        .acl(&[Categories::BLOCKING, Categories::CONNECTION, Categories::SLOW])
        .doc(
            Group::Generic,
            "7.2.0",
            "O(1)",
            "Waits until the connection's writes are synced to disk, locally and on replicas.",
        )
        .tips(&["request_policy:all_shards", "response_policy:agg_min"])
        .args(&[Arg::integer("numlocal"), Arg::integer("numreplicas"), Arg::integer("timeout")]),
    wait,
);

fn rewrite_now(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let server = cx.server;
    let started = if cx.in_transaction { None } else { Some(rewrite::begin(server, cx.locked)) };
    match started {
        Some(Ok(())) => cx.reply.simple("Background append only file rewriting started"),
        Some(Err(Busy(Purpose::AofBase))) if !server.persistence.status().is_cancelling() => {
            return Err(Error::text("ERR Background append only file rewriting already in progress"));
        }
        _ => {
            // A snapshot cannot begin within a transaction, so it begins after it.
            rewrite::schedule_by_user(server);
            logging::notice(format_args!("Background append only file rewriting scheduled."));
            cx.reply.simple("Background append only file rewriting scheduled");
        }
    }
    Ok(())
}

/// What other nodes have acknowledged of the client's writes; nothing if its requests are not forwarded.
fn elsewhere(cx: &mut Session<'_>) -> Option<Acknowledged> {
    cx.client.forwarding.as_mut()?.acknowledged.take()
}

fn wait_for_replicas(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let elsewhere = elsewhere(cx);
    if let Some(acknowledged) = elsewhere.filter(|acknowledged| !acknowledged.here) {
        cx.reply.uint(acknowledged.replicas);
        return Ok(());
    }
    if cx.server.replication.upstream.is_replica() {
        return Err(Error::text(
            "ERR WAIT cannot be used with replica instances. Please also note that if a replica is configured to be \
             writable (which is not the default) writes to replicas are just local and are not propagated.",
        ));
    }
    let replicas = parse_i64(&args[1]).ok_or(Error::NOT_INTEGER)?;
    let replicas = u64::try_from(replicas).unwrap_or(0);
    let until_ms = until_ms(&args[2], false, cx.now_ms)?;
    let on_replicas = cx.server.replication.replicas.count_acked(cx.client.write_offset, false) as u64;
    if cx.in_transaction || on_replicas >= replicas {
        cx.reply.uint(on_replicas.min(elsewhere.unwrap_or(Acknowledged::NOTHING).replicas));
        return Ok(());
    }
    block_request(cx, WaitKind::Memory, (0, replicas), until_ms, elsewhere);
    Ok(())
}

/// Blocks the client until local disks and replicas have its writes, and requests acknowledgements from replicas.
fn block_request(
    cx: &mut Session<'_>,
    kind: WaitKind,
    (local, replicas): (u64, u64),
    until_ms: Option<i64>,
    elsewhere: Option<Acknowledged>,
) {
    // It has begun to wait when the other nodes were asked.
    let until_ms = elsewhere.map_or(until_ms, |acknowledged| acknowledged.until_ms);
    let Acknowledged { local: other_disks, replicas: other_replicas, .. } = elsewhere.unwrap_or(Acknowledged::NOTHING);
    // The client waits for no key: the thread that owns the append-only file ends the wait.
    let waiter = Waiter::new(Kind::String, false, 0, Box::new(()));
    if replicas > 0 {
        cx.server.keyspace.log.append_replica_only(&[b"REPLCONF", b"GETACK", b"*"]);
    }
    cx.server.aof.wait(WaitingClient {
        client: cx.client.info.clone(),
        ticket: waiter.ticket(),
        version: cx.client.version,
        kind,
        offset: cx.client.write_offset,
        local,
        replicas,
        until_ms,
        elsewhere: (other_disks, other_replicas),
    });
    *cx.waits = Some(waiter);
}

fn wait(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let local = match parse_i64(&args[1]).ok_or(Error::NOT_INTEGER)? {
        local @ (0 | 1) => local as u64,
        _ => return Err(Error::text("ERR value is out of range, value must between 0 and 1")),
    };
    let replicas = parse_i64(&args[2]).and_then(|replicas| u64::try_from(replicas).ok());
    let replicas = replicas.ok_or(Error::text("ERR value is out of range, must be positive"))?;
    let until_ms = until_ms(&args[3], false, cx.now_ms)?;
    let elsewhere = elsewhere(cx);
    if let Some(acknowledged) = elsewhere.filter(|acknowledged| !acknowledged.here) {
        reply(cx, acknowledged.local, acknowledged.replicas);
        return Ok(());
    }
    if cx.server.replication.upstream.is_replica() {
        return Err(Error::text(
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just \
             local and are not propagated.",
        ));
    }
    let aof = &cx.server.aof;
    if local > 0 && aof.status().state == State::Off {
        return Err(Error::text(AOF_DISABLED_ERROR));
    }
    let offset = cx.client.write_offset;
    let on_disk = u64::from(aof.is_synced(offset));
    let on_replicas = cx.server.replication.replicas.count_acked(offset, true) as u64;
    if cx.in_transaction || (on_disk >= local && on_replicas >= replicas) {
        let Acknowledged { local, replicas, .. } = elsewhere.unwrap_or(Acknowledged::NOTHING);
        reply(cx, on_disk.min(local), on_replicas.min(replicas));
        return Ok(());
    }
    block_request(cx, WaitKind::Disk, (local, replicas), until_ms, elsewhere);
    Ok(())
}

fn reply(cx: &mut Session<'_>, on_disk: u64, on_replicas: u64) {
    cx.reply.array(2);
    cx.reply.uint(on_disk);
    cx.reply.uint(on_replicas);
}
