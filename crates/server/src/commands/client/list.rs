//! CLIENT LIST and CLIENT INFO: a line of `field=value` pairs for each connection.
//!
//! The fields and their order are the reference's. A connection here has no reply buffer of its own (replies go from
//! the worker's buffer to the socket, and the rest into blocks), so `rbs`, `rbp` and `obl` are 0. Arguments are used
//! where they were read, so `argv-mem` is 0 unless the request waits for a key.

use super::arguments;
use super::filter::{Filter, known};
use kvick_commands::context::Error;
use kvick_commands::spec::{Categories, Command, Flags, Group, Spec};
use kvick_core::clients::line::describe;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

/// CLIENT INFO
pub const INFO: Command<SessionHandler> = Command::new(
    Spec::new("info", 2)
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "6.2.0", "O(1)", "Returns information about the connection.")
        .tips(&["nondeterministic_output"]),
    info,
);

fn info(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.client.publish();
    let mut text = Vec::new();
    describe(&cx.client.info, cx.server.catalogue, cx.now_ms, &mut text);
    cx.reply.verbatim(&text, "txt");
    Ok(())
}

/// CLIENT LIST [option value ...]
pub const LIST: Command<SessionHandler> = Command::new(
    Spec::new("list", -2)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "2.4.0", "O(N), N being the connections", "Lists open connections.")
        .tips(&["nondeterministic_output"])
        .history(&[
            ("2.8.12", "The field `id`."),
            ("5.0.0", "The filter `TYPE`."),
            ("6.0.0", "The field `user`."),
            ("6.2.0", "The fields `argv-mem`, `tot-mem`, `laddr` and `redir`, and the filter `ID`."),
            ("7.0.0", "The fields `resp`, `multi-mem`, `rbs` and `rbp`."),
            ("7.0.3", "The field `ssub`."),
            ("8.0.0", "The type `primary`, for `master`, which is still understood."),
            ("8.1.0", "The filters USER, ADDR, LADDR, SKIPME and MAXAGE."),
            ("9.0.0", "The filters NAME, IDLE, FLAGS, LIB-NAME, LIB-VER, DB, CAPA and IP, and negations."),
        ])
        .args(arguments::LIST),
    list,
);

fn list(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() == 3 {
        return Err(Error::SYNTAX);
    }
    let filter = Filter::parse(args.slice_from(2), false, known(cx.server))?;
    cx.client.publish();
    let mut text = Vec::new();
    for client in cx.server.clients.all() {
        if filter.matches(&client, cx.client.info.id, cx.now_ms) {
            describe(&client, cx.server.catalogue, cx.now_ms, &mut text);
        }
    }
    cx.reply.verbatim(&text, "txt");
    Ok(())
}
