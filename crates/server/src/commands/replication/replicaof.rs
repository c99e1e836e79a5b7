//! REPLICAOF and its old name: selects the primary to follow.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_replication::failover::State;
use kvick_replication::upstream::Target;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_runtime::logging;

const FLAGS: &[Flags] = &[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::NOSCRIPT, Flags::STALE];
const CATEGORIES: &[Categories] = &[Categories::ADMIN, Categories::DANGEROUS, Categories::SLOW];
const ARGS: &[Arg] = &[Arg::one_of(
    "args",
    &[
        Arg::block("host-port", &[Arg::string("host"), Arg::integer("port")]),
        Arg::block("no-one", &[Arg::word("no", "NO"), Arg::word("one", "ONE")]),
    ],
)];

/// REPLICAOF host port | NO ONE
pub const REPLICAOF: Command<SessionHandler> = Command::new(
    Spec::new("replicaof", 3)
        .flags(FLAGS)
        .acl(CATEGORIES)
        .lock(LockRule::Global)
        .doc(Group::Server, "5.0.0", "O(1)", "Makes the server a replica of another server, or a primary.")
        .args(ARGS),
    replicaof,
);

/// SLAVEOF host port | NO ONE
pub const SLAVEOF: Command<SessionHandler> = Command::new(
    Spec::new("slaveof", 3)
        .flags(FLAGS)
        .acl(CATEGORIES)
        .lock(LockRule::Global)
        .doc(Group::Server, "1.0.0", "O(1)", "Makes the server a replica of another server, or a primary.")
        .deprecated("5.0.0", "`REPLICAOF`")
        .args(ARGS),
    replicaof,
);

fn replicaof(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if cx.server.routing.is_some() {
        return Err(Error::text("ERR REPLICAOF not allowed in cluster mode."));
    }
    if cx.server.replication.failover.state() != State::None {
        return Err(Error::text("ERR REPLICAOF not allowed while failing over."));
    }
    let requester = cx.client.info.described(false);
    if args[1].eq_ignore_ascii_case(b"no") && args[2].eq_ignore_ascii_case(b"one") {
        if cx.server.replication.upstream.is_replica() {
            cx.server.become_primary();
            logging::notice(format_args!("PRIMARY MODE enabled (user request from '{requester}')"));
        }
        cx.reply.ok();
        return Ok(());
    }
    if cx.client.feed.is_some() {
        return Err(Error::text("ERR Command is not valid when client is a replica."));
    }
    let port = parse_i64(&args[2]).ok_or(Error::text("ERR Invalid master port"))?;
    let port = u16::try_from(port).map_err(|_| Error::text("ERR Invalid master port"))?;
    let target = Target::at(String::from_utf8_lossy(&args[1]), port);
    if cx.server.replication.upstream.target().as_ref() == Some(&target) {
        cx.reply.simple("OK Already connected to specified master");
        return Ok(());
    }
    logging::notice(format_args!(
        "REPLICAOF {}:{} enabled (user request from '{requester}')",
        target.host, target.port
    ));
    cx.server.become_replica(target, cx.locked, cx.stats);
    cx.reply.ok();
    Ok(())
}
