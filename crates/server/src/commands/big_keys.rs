//! MEMORY BIGKEYS: the largest keys, as found by the search in the background (`bigkeys-scan`).

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, Spec};
use kvick_core::big_keys::BigKey;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::Kind;
use kvick_store::big_keys::Order;
use kvick_store::slot::slot;

/// Default number of keys.
const COUNT: usize = 16;

/// All kinds.
pub const KINDS: [Kind; Kind::NAMES.len()] =
    [Kind::String, Kind::List, Kind::Set, Kind::SortedSet, Kind::Hash, Kind::Stream];

/// MEMORY BIGKEYS
pub const BIGKEYS: Command<SessionHandler> = Command::new(
    Spec::new("bigkeys", -2)
        .flags(&[Flags::ADMIN])
        .doc(
            Group::Server,
            "9.2.0",
            "O(N), N being the number of workers",
            "Returns the largest keys that the search in the background has found.",
        )
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
        .args(&[
            Arg::one_of("order", &[Arg::word("bytes", "BYTES"), Arg::word("elements", "ELEMENTS")])
                .token("BY")
                .optional(),
            Arg::string("type").token("TYPE").optional(),
            Arg::integer("count").token("COUNT").optional(),
        ]),
    big_keys,
);

#[derive(PartialEq, Eq, Debug)]
struct Options {
    order: Order,
    kind: Option<Kind>,
    count: usize,
}

impl Options {
    fn parse(words: Args<'_>) -> Result<Options, Error> {
        let mut options = Options { order: Order::Bytes, kind: None, count: COUNT };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or(Error::SYNTAX)?;
            if word.eq_ignore_ascii_case(b"by") {
                options.order = match value.to_ascii_lowercase().as_slice() {
                    b"bytes" => Order::Bytes,
                    b"elements" => Order::Elements,
                    _ => return Err(Error::text("ERR BY must be BYTES or ELEMENTS")),
                };
            } else if word.eq_ignore_ascii_case(b"type") {
                options.kind = Some(Kind::from_name(value).ok_or(Error::text("ERR unknown type name"))?);
            } else if word.eq_ignore_ascii_case(b"count") {
                let count = parse_i64(value).ok_or(Error::NOT_INTEGER)?;
                let count = usize::try_from(count).ok().filter(|count| *count > 0);
                options.count = count.ok_or(Error::text("ERR COUNT must be greater than 0"))?;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        Ok(options)
    }
}

/// MEMORY BIGKEYS [BY BYTES | ELEMENTS] [TYPE type] [COUNT count]
fn big_keys(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let Options { order, kind, count } = Options::parse(args.slice_from(2))?;
    let kinds = kind.as_ref().map_or(&KINDS[..], std::slice::from_ref);
    let (server, now_ms) = (cx.server, cx.now_ms);
    let mut found = server.big_keys.found();
    found.truncate(server.active_workers());
    let keys = server.big_keys.largest(server.keyspace, now_ms, kinds, order, count);
    let reply = &mut cx.reply;
    reply.map(4);
    for (name, number) in [
        ("rounds", found.iter().map(|found| found.rounds).min().unwrap_or(0)),
        ("round-keys", found.iter().map(|found| found.keys).sum()),
        ("search-usec", found.iter().map(|found| found.us).sum()),
    ] {
        reply.bulk(name.as_bytes());
        reply.uint(number);
    }
    reply.bulk(b"keys");
    reply.array(keys.len());
    for BigKey { name, db, size } in &keys {
        let slot = server.routing.as_ref().map(|_| slot(name));
        reply.map(5 + usize::from(slot.is_some()));
        reply.bulk(b"key");
        reply.bulk(name);
        reply.bulk(b"db");
        reply.uint(*db as u64);
        if let Some(slot) = slot {
            reply.bulk(b"slot");
            reply.uint(slot.into());
        }
        reply.bulk(b"type");
        reply.bulk(size.kind.name().as_bytes());
        reply.bulk(b"bytes");
        reply.uint(size.bytes as u64);
        reply.bulk(b"elements");
        reply.uint(size.elements as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    #[test]
    fn options_are_checked() {
        let parse = |line: &str| {
            let words = OwnedArgs::new(line.split_whitespace());
            Options::parse(words.args()).map_err(|error| error.to_string())
        };
        assert_eq!(parse(""), Ok(Options { order: Order::Bytes, kind: None, count: COUNT }));
        let zsets = Options { order: Order::Elements, kind: Some(Kind::SortedSet), count: 3 };
        assert_eq!(parse("COUNT 3 by elements TYPE zset"), Ok(zsets));
        for (line, error) in [
            ("by", "ERR syntax error"),
            ("other 1", "ERR syntax error"),
            ("by qps", "ERR BY must be BYTES or ELEMENTS"),
            ("type tree", "ERR unknown type name"),
            ("count -1", "ERR COUNT must be greater than 0"),
            ("count x", "ERR value is not an integer or out of range"),
        ] {
            assert_eq!(parse(line), Err(error.into()), "{line}");
        }
    }

    #[test]
    fn all_kinds_are_searched() {
        assert_eq!(KINDS.map(|kind| kind.name()), Kind::NAMES.map(|(_, name)| name));
    }
}
