//! FAILOVER: hands the primary role over to a replica.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_replication::failover::{Plan, State};
use kvick_replication::replicas::Stage;
use kvick_replication::upstream::Target;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;

/// `FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]`
pub const FAILOVER: Command<SessionHandler> = Command::new(
    Spec::new("failover", -1)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::STALE])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS, Categories::SLOW])
        .lock(LockRule::Global)
        .doc(Group::Server, "6.2.0", "O(1)", "Starts a coordinated failover from this primary to a replica.")
        .args(&[
            Arg::block("target", &[Arg::string("host"), Arg::integer("port"), Arg::word("force", "FORCE").optional()])
                .token("TO")
                .optional(),
            Arg::word("abort", "ABORT").optional(),
            Arg::integer("milliseconds").token("TIMEOUT").optional(),
        ]),
    failover,
);

fn failover(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (server, replication) = (cx.server, &cx.server.replication);
    if server.routing.is_some() {
        return Err(Error::text("ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead."));
    }
    if args.len() == 2 && args[1].eq_ignore_ascii_case(b"abort") {
        if replication.failover.state() == State::None {
            return Err(Error::text("ERR No failover in progress."));
        }
        server.abort_failover("Failover manually aborted");
        cx.reply.ok();
        return Ok(());
    }
    let Options { target, timeout_ms, is_forced } = Options::parse(args)?;
    if replication.failover.state() != State::None {
        return Err(Error::text("ERR FAILOVER already in progress."));
    }
    if replication.upstream.is_replica() {
        return Err(Error::text("ERR FAILOVER is not valid when server is a replica."));
    }
    if replication.replicas.count() == 0 {
        return Err(Error::text("ERR FAILOVER requires connected replicas."));
    }
    if is_forced && (timeout_ms.is_none() || target.is_none()) {
        return Err(Error::text("ERR FAILOVER with force option requires both a timeout and target HOST and IP."));
    }
    if let Some(target) = &target {
        let found = replication.replicas.all().into_iter().find(|replica| replica.is_at(target));
        let replica = found.ok_or(Error::text("ERR FAILOVER target HOST and PORT is not a replica."))?;
        if replica.stage() != Stage::Online {
            return Err(Error::text("ERR FAILOVER target replica is not online."));
        }
    }
    let until_ms = timeout_ms.map(|timeout_ms| cx.now_ms.saturating_add(timeout_ms));
    server.begin_failover(Plan::new(target, until_ms, is_forced));
    cx.reply.ok();
    Ok(())
}

/// The parsed arguments.
#[derive(Default)]
struct Options {
    target: Option<Target>,
    timeout_ms: Option<i64>,
    is_forced: bool,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut at = 1;
        while let Some(word) = args.get(at) {
            let is = |known: &[u8]| word.eq_ignore_ascii_case(known);
            match (args.get(at + 1), args.get(at + 2)) {
                (Some(time), _) if is(b"timeout") && options.timeout_ms.is_none() => {
                    let time_ms = parse_i64(time).ok_or(Error::NOT_INTEGER)?;
                    if time_ms <= 0 {
                        return Err(Error::text("ERR FAILOVER timeout must be greater than 0"));
                    }
                    options.timeout_ms = Some(time_ms);
                    at += 2;
                }
                (Some(host), Some(port)) if is(b"to") && options.target.is_none() => {
                    let port = parse_i64(port).ok_or(Error::NOT_INTEGER)?;
                    let no_replica = Error::text("ERR FAILOVER target HOST and PORT is not a replica.");
                    let port = u16::try_from(port).map_err(|_| no_replica)?;
                    options.target = Some(Target::at(String::from_utf8_lossy(host), port));
                    at += 3;
                }
                _ if is(b"force") && !options.is_forced => {
                    options.is_forced = true;
                    at += 1;
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }
}
