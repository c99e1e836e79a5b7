//! COMMANDLOG, and SLOWLOG, the older name of one of its logs.

use super::help;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, Spec};
use kvick_core::commandlog::{Entry, Kind};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[COMMANDLOG, SLOWLOG];

/// Default number of entries of SLOWLOG GET.
const SLOWLOG_COUNT: usize = 10;

/// The flags of all subcommands but HELP.
const ADMIN: &[Flags] = &[Flags::ADMIN, Flags::LOADING, Flags::STALE];
const OPEN: &[Flags] = &[Flags::LOADING, Flags::STALE];
const GET_TIPS: &[&str] = &["request_policy:all_nodes", "nondeterministic_output"];
const LEN_TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"];
const RESET_TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];
const KINDS: &[Arg] =
    &[Arg::word("slow", "SLOW"), Arg::word("large-request", "LARGE-REQUEST"), Arg::word("large-reply", "LARGE-REPLY")];

/// COMMANDLOG
pub const COMMANDLOG: Command<SessionHandler> = Command::container(
    Spec::new("commandlog", -2).doc(
        Group::Server,
        "8.1.0",
        "Depends on subcommand.",
        "A container for command log commands.",
    ),
    &[
        Command::new(
            Spec::new("get", 4)
                .flags(ADMIN)
                .doc(
                    Group::Server,
                    "8.1.0",
                    "O(N) where N is the number of entries returned",
                    "Returns the entries of a command log.",
                )
                .tips(GET_TIPS)
                .args(&[Arg::integer("count"), Arg::one_of("type", KINDS)]),
            get,
        ),
        Command::new(
            Spec::new("len", 3)
                .flags(ADMIN)
                .doc(Group::Server, "8.1.0", "O(1)", "Returns the number of entries of a command log.")
                .tips(LEN_TIPS)
                .args(&[Arg::one_of("type", KINDS)]),
            len,
        ),
        Command::new(
            Spec::new("reset", 3)
                .flags(ADMIN)
                .doc(
                    Group::Server,
                    "8.1.0",
                    "O(N) where N is the number of entries in the commandlog",
                    "Clears a command log.",
                )
                .tips(RESET_TIPS)
                .args(&[Arg::one_of("type", KINDS)]),
            reset,
        ),
        Command::new(
            Spec::new("help", 2).flags(OPEN).doc(Group::Server, "8.1.0", "O(1)", "Returns help about the subcommands."),
            commandlog_help,
        ),
    ],
);

/// SLOWLOG
pub const SLOWLOG: Command<SessionHandler> = Command::container(
    Spec::new("slowlog", -2).doc(
        Group::Server,
        "2.2.12",
        "Depends on subcommand.",
        "A container for slow log commands.",
    ),
    &[
        Command::new(
            Spec::new("get", -2)
                .flags(ADMIN)
                .doc(
                    Group::Server,
                    "2.2.12",
                    "O(N) where N is the number of entries returned",
                    "Returns the latest entries of the slow log.",
                )
                .history(&[("4.0.0", "Added the client's address and name to the reply.")])
                .tips(GET_TIPS)
                .args(&[Arg::integer("count").optional()]),
            slowlog_get,
        ),
        Command::new(
            Spec::new("len", 2)
                .flags(ADMIN)
                .doc(Group::Server, "2.2.12", "O(1)", "Returns the number of entries of the slow log.")
                .tips(LEN_TIPS),
            slowlog_len,
        ),
        Command::new(
            Spec::new("reset", 2)
                .flags(ADMIN)
                .doc(
                    Group::Server,
                    "2.2.12",
                    "O(N) where N is the number of entries in the slowlog",
                    "Clears the slow log.",
                )
                .tips(RESET_TIPS),
            slowlog_reset,
        ),
        Command::new(
            Spec::new("help", 2).flags(OPEN).doc(Group::Server, "6.2.0", "O(1)", "Returns help about the subcommands."),
            slowlog_help,
        ),
    ],
);

fn get(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let count = count(&args[2])?;
    let kind = kind(&args[3])?;
    reply_entries(cx, kind, count);
    Ok(())
}

fn len(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let kind = kind(&args[2])?;
    cx.reply.uint(cx.server.commandlog.len(kind) as u64);
    Ok(())
}

fn reset(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.server.commandlog.reset(kind(&args[2])?);
    cx.reply.ok();
    Ok(())
}

fn slowlog_get(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let count = match args.len() {
        2 => SLOWLOG_COUNT,
        3 => count(&args[2])?,
        _ => return Err(Error::bad_subcommand("SLOWLOG", &args[1])),
    };
    reply_entries(cx, Kind::Slow, count);
    Ok(())
}

fn slowlog_len(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.uint(cx.server.commandlog.len(Kind::Slow) as u64);
    Ok(())
}

fn slowlog_reset(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.server.commandlog.reset(Kind::Slow);
    cx.reply.ok();
    Ok(())
}

fn reply_entries(cx: &mut Session<'_>, kind: Kind, count: usize) {
    let entries = cx.server.commandlog.latest(kind, count);
    cx.reply.array(entries.len());
    for Entry { id, time, value, args, peer, name } in entries {
        cx.reply.array(6);
        [id, time, value].into_iter().for_each(|number| cx.reply.int(number));
        cx.reply.array(args.len());
        args.iter().for_each(|arg| cx.reply.bulk(arg));
        cx.reply.bulk(peer.as_bytes());
        cx.reply.bulk(&name);
    }
}

/// Parses the number of entries: -1 means all.
fn count(text: &[u8]) -> Result<usize, Error> {
    match parse_i64(text) {
        Some(-1) => Ok(usize::MAX),
        Some(count) if count >= 0 => Ok(count as usize),
        _ => Err(Error::text("ERR count should be greater than or equal to -1")),
    }
}

fn kind(text: &[u8]) -> Result<Kind, Error> {
    match text.to_ascii_lowercase().as_slice() {
        b"slow" => Ok(Kind::Slow),
        b"large-request" => Ok(Kind::LargeRequest),
        b"large-reply" => Ok(Kind::LargeReply),
        _ => Err(Error::text("ERR type should be one of the following: slow, large-request, large-reply")),
    }
}

fn commandlog_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    const LINES: &[&str] = &[
        "GET <count> <type>",
        "    Show the latest <count> entries of a log, all of them for -1. <type> is one of",
        "    slow, large-request and large-reply. An entry consists of its ID, the time,",
        "    the microseconds or bytes, the arguments, the client's address and its name.",
        "LEN <type>",
        "    Show how many entries a log has.",
        "RESET <type>",
        "    Clear a log.",
    ];
    help::reply(cx, "COMMANDLOG", LINES);
    Ok(())
}

fn slowlog_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    const LINES: &[&str] = &[
        "GET [<count>]",
        "    Show the latest <count> entries (default: 10), all of them for -1. An entry is",
        "    composed of its ID, the time, the microseconds, the arguments, the client's",
        "    address and its name.",
        "LEN",
        "    Show how many entries there are.",
        "RESET",
        "    Clear the log.",
    ];
    help::reply(cx, "SLOWLOG", LINES);
    Ok(())
}
