//! CLIENT LIST and CLIENT INFO: a line of `field=value` pairs for each connection.
//!
//! The fields and their order are the reference's. A connection here owns no reply buffer (replies go from the worker's
//! buffer to the socket, and what does not fit there into blocks), so `rbs`, `rbp` and `obl` are 0, and arguments are
//! executed where they were read, so `argv-mem` is 0 unless the request waits for a key.

use super::arguments;
use super::filter::{Filter, known};
use crate::session::{Session, SessionHandler};
use kvick_commands::context::Error;
use kvick_commands::spec::{Categories, Command, Flags, Group, Spec};
use kvick_commands::table::Catalogue;
use kvick_core::clients::{ClientFlags, ClientInfo, Names};
use kvick_resp::Args;
use std::io::Write;
use std::sync::atomic::Ordering;

/// CLIENT INFO
pub const INFO: Command<SessionHandler> = Command::new(
    Spec::new("info", 2)
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "6.2.0", "O(1)", "Describes the connection.")
        .tips(&["nondeterministic_output"]),
    info,
);

fn info(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.client.publish();
    let mut text = Vec::new();
    describe(&cx.client.info, &cx.server.catalogue, cx.now_ms, &mut text);
    cx.reply.verbatim(&text, "txt");
    Ok(())
}

/// CLIENT LIST [option value ...]
pub const LIST: Command<SessionHandler> = Command::new(
    Spec::new("list", -2)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "2.4.0", "O(N), N being the connections", "Describes the connections.")
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
            describe(&client, &cx.server.catalogue, cx.now_ms, &mut text);
        }
    }
    cx.reply.verbatim(&text, "txt");
    Ok(())
}

/// The letters that stand for a client's state, in the reference's order; `N` when there is none.
pub(super) fn flag_letters(flags: ClientFlags) -> impl Iterator<Item = u8> {
    let letters = [
        (ClientFlags::MONITOR, b'O'),
        (ClientFlags::REPLICA, b'S'),
        (ClientFlags::PRIMARY, b'M'),
        (ClientFlags::PUBSUB, b'P'),
        (ClientFlags::MULTI, b'x'),
        (ClientFlags::BLOCKED, b'b'),
        (ClientFlags::TRACKING, b't'),
        (ClientFlags::BROKEN_REDIRECT, b'R'),
        (ClientFlags::BROADCAST, b'B'),
        (ClientFlags::DIRTY, b'd'),
        (ClientFlags::CLOSE_AFTER_REPLY, b'c'),
        (ClientFlags::CLOSE_ASAP, b'A'),
        (ClientFlags::UNIX, b'U'),
        (ClientFlags::READONLY, b'r'),
        (ClientFlags::NO_EVICT, b'e'),
        (ClientFlags::NO_TOUCH, b'T'),
        (ClientFlags::IMPORT_SOURCE, b'I'),
    ];
    let any = letters.iter().any(|(flag, _)| flags.contains(*flag));
    letters
        .into_iter()
        .filter_map(move |(flag, letter)| flags.contains(flag).then_some(letter))
        .chain((!any).then_some(b'N'))
}

/// Appends the line of a client.
pub(crate) fn describe(client: &ClientInfo, table: &Catalogue, now_ms: i64, out: &mut Vec<u8>) {
    let ClientInfo { id, peer, local, fd, .. } = client;
    let Names { name, lib_name, lib_ver, user } = &*client.names.lock();
    let [name, lib_name, lib_ver, user] =
        [name, lib_name, lib_ver, &user[..]].map(|name| String::from_utf8_lossy(name));
    let age = now_ms / 1000 - client.connected_ms / 1000;
    let idle = now_ms / 1000 - client.active_ms.load(Ordering::Relaxed) / 1000;
    let flags = client.shown_flags();
    let letters: String = flag_letters(flags).map(char::from).collect();
    let capa = if flags.contains(ClientFlags::CAPA_REDIRECT) { "r" } else { "" };
    let db = client.db.load(Ordering::Relaxed);
    let [sub, psub, ssub] = client.subscriptions.each_ref().map(|count| count.load(Ordering::Relaxed));
    let input = client.input.load(Ordering::Relaxed);
    let input_memory = client.input_memory.load(Ordering::Relaxed).max(input);
    let input_free = input_memory - input;
    let output = client.output.load(Ordering::Relaxed);
    let blocks = client.output_blocks.load(Ordering::Relaxed);
    let (args, total) = (client.arguments(), client.memory());
    let queue = client.transaction_memory.load(Ordering::Relaxed);
    let redirection = client.redirection();
    let events = if output > 0 { "rw" } else { "r" };
    let command = table.get(client.command.load(Ordering::Relaxed)).map_or("NULL", |command| &command.full_name);
    let (queued, watched) = (client.queued.load(Ordering::Relaxed), client.watched.load(Ordering::Relaxed));
    let protocol = client.protocol.load(Ordering::Relaxed);
    let bytes_in = client.bytes_in.get();
    let bytes_out = client.bytes_out.get();
    let commands = client.commands.load(Ordering::Relaxed);
    // Writing to a vector does not fail.
    let _ = writeln!(
        out,
        "id={id} addr={peer} laddr={local} fd={fd} name={name} age={age} idle={idle} flags={letters} capa={capa} db={db} \
         sub={sub} psub={psub} ssub={ssub} multi={queued} watch={watched} qbuf={input} qbuf-free={input_free} argv-mem={args} multi-mem={queue} rbs=0 rbp=0 \
         obl=0 oll={blocks} omem={output} tot-mem={total} events={events} cmd={command} user={user} redir={redirection} \
         resp={protocol} lib-name={lib_name} lib-ver={lib_ver} tot-net-in={bytes_in} tot-net-out={bytes_out} \
         tot-cmds={commands}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_without_state_has_the_letter_n() {
        let letters = |flags| flag_letters(flags).map(char::from).collect::<String>();
        assert_eq!(letters(ClientFlags::AUTHENTICATED), "N");
        assert_eq!(letters(ClientFlags::NO_TOUCH | ClientFlags::BLOCKED | ClientFlags::UNIX), "bUT");
        assert_eq!(letters(ClientFlags::all()), "OSMPxbtRBdcAUreTI");
    }
}
