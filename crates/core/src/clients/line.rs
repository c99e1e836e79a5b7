//! A client as one line of `field=value` pairs, as CLIENT LIST shows it and ACL LOG keeps it.
//!
//! The fields and their order are Valkey's. A connection owns no reply buffer: replies go from the worker's buffer to
//! the socket, and the rest goes into output blocks, so `rbs`, `rbp` and `obl` are 0. Arguments are executed in the
//! input buffer, so `argv-mem` is 0 unless the request is blocked.

use super::{ClientFlags, ClientInfo, Names};
use kvick_commands::table::Catalogue;
use std::io::Write;
use std::sync::atomic::Ordering;

/// The letters for a client's flags, in Valkey's order; `N` when no flag is set. The last one, for clients whose
/// requests are forwarded, is not Valkey's.
pub fn flag_letters(flags: ClientFlags) -> impl Iterator<Item = u8> {
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
        (ClientFlags::SLOT_IMPORT, b'i'),
        (ClientFlags::SLOT_EXPORT, b'E'),
        (ClientFlags::FORWARD, b'f'),
    ];
    let any = letters.iter().any(|(flag, _)| flags.contains(*flag));
    letters
        .into_iter()
        .filter_map(move |(flag, letter)| flags.contains(flag).then_some(letter))
        .chain((!any).then_some(b'N'))
}

/// The letters for a client's capabilities. Only `r` is Valkey's.
pub fn capa_letters(flags: ClientFlags) -> impl Iterator<Item = u8> {
    let letters = [(ClientFlags::CAPA_REDIRECT, b'r'), (ClientFlags::CAPA_DIRECT, b'd')];
    letters.into_iter().filter_map(move |(flag, letter)| flags.contains(flag).then_some(letter))
}

/// Appends the line that describes a client.
pub fn describe(client: &ClientInfo, table: &Catalogue, now_ms: i64, out: &mut Vec<u8>) {
    let ClientInfo { id, peer, local, fd, .. } = client;
    let Names { name, lib_name, lib_ver, user } = &*client.names.lock();
    let [name, lib_name, lib_ver, user] =
        [name, lib_name, lib_ver, &user[..]].map(|name| String::from_utf8_lossy(name));
    let age = now_ms / 1000 - client.connected_ms / 1000;
    let idle = now_ms / 1000 - client.active_ms.load(Ordering::Relaxed) / 1000;
    let flags = client.shown_flags();
    let letters: String = flag_letters(flags).map(char::from).collect();
    let capa: String = capa_letters(flags).map(char::from).collect();
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
        "id={id} addr={peer} laddr={local} fd={fd} name={name} age={age} idle={idle} flags={letters} capa={capa} \
         db={db} sub={sub} psub={psub} ssub={ssub} multi={queued} watch={watched} qbuf={input} qbuf-free={input_free} \
         argv-mem={args} multi-mem={queue} rbs=0 rbp=0 obl=0 oll={blocks} omem={output} tot-mem={total} \
         events={events} cmd={command} user={user} redir={redirection} resp={protocol} lib-name={lib_name} \
         lib-ver={lib_ver} tot-net-in={bytes_in} tot-net-out={bytes_out} tot-cmds={commands}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_without_flags_is_shown_as_n() {
        let letters = |flags| flag_letters(flags).map(char::from).collect::<String>();
        assert_eq!(letters(ClientFlags::AUTHENTICATED), "N");
        assert_eq!(letters(ClientFlags::NO_TOUCH | ClientFlags::BLOCKED | ClientFlags::UNIX), "bUT");
        assert_eq!(letters(ClientFlags::all()), "OSMPxbtRBdcAUreTIiEf");
        assert!(capa_letters(ClientFlags::all()).eq(*b"rd"));
    }
}
