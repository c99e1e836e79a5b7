//! PSYNC and SYNC: a replica requests synchronisation.

use crate::server::HasServer;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_config::tables::replication::REPL_DISKLESS_SYNC;
use kvick_core::clients::ClientFlags;
use kvick_durability::persistence::format::Parts;
use kvick_engine::feed::Feed;
use kvick_engine::session::{Session, SessionHandler};
use kvick_replication::failover::State;
use kvick_replication::replicas::{Replica, Stage};
use kvick_replication::synchronise;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_runtime::logging;
use kvick_store::log::{Audience, Follower};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const FLAGS: &[Flags] = &[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::NO_MULTI, Flags::NOSCRIPT];
const CATEGORIES: &[Categories] = &[Categories::ADMIN, Categories::DANGEROUS, Categories::SLOW];

/// PSYNC replicationid offset
pub const PSYNC: Command<SessionHandler> = Command::new(
    Spec::new("psync", -3)
        .flags(&[Flags::FROM_REPLICA])
        .flags(FLAGS)
        .acl(CATEGORIES)
        .lock(LockRule::Global)
        .doc(Group::Server, "2.8.0", "", "Internal command that requests a partial or full synchronization.")
        .args(&[Arg::string("replicationid"), Arg::integer("offset")]),
    psync,
);

/// SYNC
pub const SYNC: Command<SessionHandler> = Command::new(
    Spec::new("sync", 1).flags(&[Flags::FROM_REPLICA]).flags(FLAGS).acl(CATEGORIES).lock(LockRule::Global).doc(
        Group::Server,
        "1.0.0",
        "",
        "Internal command that requests a full synchronization.",
    ),
    psync,
);

fn psync(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let upstream = &cx.server.replication.upstream;
    if cx.client.feed.is_some() || cx.client.info.flags().intersects(ClientFlags::REPLICA | ClientFlags::MONITOR) {
        return Ok(());
    }
    if args.get(3).is_some_and(|word| word.eq_ignore_ascii_case(b"failover")) {
        take_over(cx, &args[1])?;
    }
    if cx.server.replication.failover.state() != State::None {
        return Err(Error::text("NOMASTERLINK Can't SYNC while failing over"));
    }
    if upstream.is_replica() && !upstream.is_connected() {
        return Err(Error::text("NOMASTERLINK Can't SYNC while not connected with my master"));
    }
    if cx.server().cluster().is_some_and(|cluster| !cluster.has_data_for_replicas()) {
        return Err(Error::text("NOMASTERLINK Can't SYNC while waiting for a replica to take over"));
    }
    let info = &cx.client.info;
    let replica = cx.client.replica.get_or_insert_with(|| Arc::new(Replica::new(info.clone()))).clone();
    logging::notice(format_args!("Replica {} asks for synchronization", replica.name()));
    replica.last_ack_ms.store(cx.now_ms, Ordering::Relaxed);
    replica.is_pre_psync.store(args.len() == 1, Ordering::Relaxed);
    if let Some(next) = args.get(2)
        && parse_i64(next).is_none()
    {
        logging::warning(format_args!("Replica {} asks for synchronization but with a wrong offset", replica.name()));
        return Err(Error::NOT_INTEGER);
    }
    if *replica.requested_parts.lock() != Parts::ALL && !replica.supports_eof.load(Ordering::Relaxed) {
        // The dump would replace the server's own file.
        return Err(Error::text("ERR Filtered replica requires EOF capability"));
    }
    let continued = if args.len() >= 3 { continue_partial(cx, &replica, args) } else { None };
    if continued.is_none() && args.len() >= 3 && supports_dual_channel(cx, &replica) {
        cx.reply.simple("DUALCHANNELSYNC");
        return Ok(());
    }
    // From here on the connection is a replica's.
    cx.client.check_every_request();
    cx.client.feed = Some(Box::new(match continued {
        Some(follower) => Feed::of_log(replica, follower),
        None => {
            synchronise::keep_backlog(cx.server);
            cx.server.replication.counts.full.fetch_add(1, Ordering::Relaxed);
            replica.set_stage(Stage::Waiting);
            synchronise::register_for_full_sync(cx.server, &replica);
            Feed::waiting(replica)
        }
    }));
    Ok(())
}

/// Whether a replica needs a full sync and should request its dump over a separate connection.
fn supports_dual_channel(cx: &Session<'_>, replica: &Replica) -> bool {
    if !replica.supports_dual_channel.load(Ordering::Relaxed) {
        return false;
    }
    if !cx.server.config.read(REPL_DISKLESS_SYNC) {
        logging::notice(format_args!("Dual channel capability ignored: repl-diskless-sync disabled"));
        return false;
    }
    logging::notice(format_args!(
        "Dual channel replication: Replica {} is capable of dual channel synchronization, and partial sync isn't \
         possible. Full sync will continue with dedicated RDB channel.",
        replica.name()
    ));
    true
}

/// The primary hands over to this replica, which has caught up.
fn take_over(cx: &Session<'_>, id: &[u8]) -> Result<(), Error> {
    let server = cx.server;
    logging::notice(format_args!("Failover request received for replid {}.", String::from_utf8_lossy(id)));
    if !server.replication.upstream.is_replica() {
        return Err(Error::text("ERR PSYNC FAILOVER can't be sent to a master."));
    }
    if !server.replication.history.lock().id.as_bytes().eq_ignore_ascii_case(id) {
        return Err(Error::text("ERR PSYNC FAILOVER replid must match my replid."));
    }
    server.become_primary();
    let requester = cx.client.info.described(server.config.read(HIDE_USER_DATA_FROM_LOG));
    logging::notice(format_args!("PRIMARY MODE enabled (failover request from '{requester}')"));
    Ok(())
}

/// Partial sync: the replica continues from its offset if it shares this server's history and the log from there on is
/// still in the backlog.
fn continue_partial(cx: &mut Session<'_>, replica: &Replica, args: Args<'_>) -> Option<Follower> {
    let replication = &cx.server.replication;
    let (id, next) = (args.get(1)?, parse_i64(args.get(2)?)?);
    if id == b"?" {
        return None;
    }
    let found = (|| {
        let end = u64::try_from(next).ok()?.checked_sub(1)?;
        let history = replication.history.lock().clone();
        if !replication.has_backlog.load(Ordering::SeqCst) || !history.shares(id, end) {
            logging::notice(format_args!(
                "Partial resynchronization not accepted: Replication ID mismatch (Replica asked for '{}', my \
                 replication IDs are '{}' and '{}')",
                String::from_utf8_lossy(id),
                history.id,
                history.previous_id()
            ));
            return None;
        }
        let follower = cx.server.keyspace.log.follow_from(end, Audience::All);
        if follower.is_none() {
            logging::notice(format_args!(
                "Unable to partial resync with replica {} for lack of backlog (Replica request was: {}:{next}).",
                replica.name(),
                String::from_utf8_lossy(id)
            ));
        }
        follower
    })();
    let Some(follower) = found else {
        replication.counts.partial_refused.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    replication.counts.partial.fetch_add(1, Ordering::Relaxed);
    let channel = replication.replicas.dump_channel(replica.dump_channel.load(Ordering::Relaxed));
    // The replica itself retains the log from now on.
    let has_channel = channel.is_some_and(|channel| channel.pin.lock().take().is_some());
    replica.set_stage(if has_channel { Stage::BgTransfer } else { Stage::Online });
    logging::notice(format_args!(
        "Partial resynchronization request from {} accepted. Sending {} bytes of backlog starting from offset {next}.",
        replica.name(),
        follower.lag()
    ));
    if replica.supports_psync2.load(Ordering::Relaxed) {
        cx.reply.simple(format!("CONTINUE {}", replication.history.lock().id));
    } else {
        cx.reply.simple("CONTINUE");
    }
    Some(follower)
}
