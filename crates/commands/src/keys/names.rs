//! Finding keys by name, or at random: KEYS, SCAN, RANDOMKEY.
//!
//! KEYS and RANDOMKEY access all keys and take the global lock. SCAN takes no locks in advance: the store locks one
//! partition at a time during the scan.

use kvick_resp::Args;
use kvick_store::{Db, Entry};

use crate::context::{Context, Error, Handler};
use crate::random;
use crate::scan_options::{self, Listing, Names, ScanOptions, Scanned};
use crate::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};

/// KEYS pattern
pub const KEYS: Command<Handler> = Command::new(
    Spec::new("keys", 2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::KEYSPACE, Categories::DANGEROUS])
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"])
        .lock(LockRule::Global)
        .doc(
            Group::Generic,
            "1.0.0",
            "O(N), N being the number of keys in the database, for names and patterns of limited length.",
            "Lists all keys whose names match a pattern.",
        )
        .args(&[Arg::pattern("pattern")]),
    keys,
);

fn keys(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let names = Names::matching(&args[1]);
    let end_max = cx.reply_end_max();
    let header = cx.reply.deferred();
    let mut found = 0;
    let visit = |entry: Entry<'_>| {
        if cx.reply.position() <= end_max && names.include(entry.key()) {
            cx.reply.bulk(entry.key());
            found += 1;
        }
    };
    match slot_of_names(&cx.db, names) {
        None => cx.db.for_each(visit),
        Some(slot) => cx.db.for_each_in_slot(slot, visit),
    }
    cx.reply.set_array_len(header, found);
    Ok(())
}

/// The slot of all keys that have one of these names, in cluster mode, if the pattern determines it.
fn slot_of_names(db: &Db<'_>, names: Names<'_>) -> Option<u16> {
    if db.keyspace().is_by_slot() { names.slot() } else { None }
}

/// SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]
pub const SCAN: Command<Handler> = Command::new(
    Spec::new("scan", -2)
        .flags(&[Flags::READONLY, Flags::TOUCHES_ARBITRARY_KEYS])
        .acl(&[Categories::KEYSPACE])
        .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
        .doc(
            Group::Generic,
            "2.8.0",
            "O(1) for every call, O(N) for going through a database of N keys until the cursor is 0 again.",
            "Lists some keys, and where to go on.",
        )
        .history(&[("6.0.0", "Added `TYPE`.")])
        .args(&[
            Arg::integer("cursor"),
            Arg::pattern("pattern").token("MATCH").optional(),
            Arg::integer("count").token("COUNT").optional(),
            Arg::string("type").token("TYPE").optional().since("6.0.0"),
        ]),
    scan,
);

fn scan(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let cursor = scan_options::parse_cursor(&args[1])?;
    let options = ScanOptions::parse(args.slice_from(2), Scanned::Keys)?;
    let wanted =
        |entry: &Entry<'_>| options.kind.is_none_or(|kind| entry.kind() == kind) && options.names.include(entry.key());
    let mut listing = Listing::new(&cx.reply);
    let visit = |entry: Entry<'_>| listing.add(entry.key());
    let next = match slot_of_names(&cx.db, options.names) {
        None => cx.db.scan(cursor, options.count, wanted, visit),
        Some(slot) => cx.db.scan_slots(cursor, slot..=slot, options.count, wanted, visit),
    };
    listing.reply(&mut cx.reply, next);
    Ok(())
}

/// RANDOMKEY
pub const RANDOMKEY: Command<Handler> = Command::new(
    Spec::new("randomkey", 1)
        .flags(&[Flags::READONLY, Flags::TOUCHES_ARBITRARY_KEYS])
        .acl(&[Categories::KEYSPACE])
        .tips(&["request_policy:all_shards", "response_policy:special", "nondeterministic_output"])
        .lock(LockRule::Global)
        .doc(Group::Generic, "1.0.0", "O(1)", "Returns the name of a key chosen by chance."),
    randomkey,
);

fn randomkey(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Error> {
    match cx.db.random_key(random::next) {
        None => cx.reply.null(),
        Some(name) => cx.reply.bulk(&name),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::{keys, string};
    use std::collections::BTreeSet;

    fn bench() -> Bench {
        Bench::new(&[keys::COMMANDS, string::COMMANDS])
    }

    /// The elements of an array reply, without the lengths.
    fn words(reply: &str) -> BTreeSet<String> {
        reply.split(' ').skip(1).filter(|word| !word.starts_with('$')).map(str::to_owned).collect()
    }

    /// Runs a complete iteration; returns all keys found and the number of calls.
    fn scan_all(bench: &mut Bench, options: &str) -> (BTreeSet<String>, u32) {
        let (mut found, mut cursor, mut calls) = (BTreeSet::new(), "0".to_owned(), 0);
        loop {
            let reply = bench.run(format!("SCAN {cursor} {options}").trim_end());
            let (_, rest) = reply.split_once("*2 $").expect("two parts");
            let mut parts = rest.splitn(3, ' ').skip(1);
            cursor = parts.next().expect("a cursor").to_owned();
            found.extend(words(parts.next().expect("a list")));
            calls += 1;
            if cursor == "0" {
                return (found, calls);
            }
        }
    }

    #[test]
    fn keys_lists_live_matching_keys() {
        let mut bench = bench();
        assert_eq!(bench.run("KEYS *"), "*0");
        bench.run("MSET one 1 two 2 three 3");
        bench.run("SET tired 4 PX 1");
        bench.now_ms += 2;
        assert_eq!(words(&bench.run("KEYS *")), ["one", "three", "two"].map(String::from).into());
        assert_eq!(words(&bench.run("KEYS t*")), ["three", "two"].map(String::from).into());
        assert_eq!(bench.run("KEYS one"), "*1 $3 one");
        assert_eq!(bench.run("DBSIZE"), ":4");
        bench.run_words(&[b"SET", b"", b"empty"]);
        assert!(bench.run("KEYS *").contains("$0"));
    }

    #[test]
    fn complete_scan_lists_everything_incrementally() {
        let mut bench = bench();
        assert_eq!(bench.run("SCAN 0"), "*2 $1 0 *0");
        let names: BTreeSet<String> = (0..1000).map(|n| format!("key:{n}")).collect();
        names.iter().for_each(|name| assert_eq!(bench.run(&format!("SET {name} v")), "+OK"));
        let (found, calls) = scan_all(&mut bench, "");
        assert_eq!(found, names);
        assert!((40..=100).contains(&calls), "{calls}");
        assert_eq!(scan_all(&mut bench, "COUNT 5").0, names);
        assert_eq!(scan_all(&mut bench, "count 9223372036854775807"), (names.clone(), 1));
        assert_eq!(scan_all(&mut bench, "MATCH key:1??").0.len(), 100);
        assert_eq!(scan_all(&mut bench, "MATCH key:7").0, ["key:7".to_owned()].into());
        assert_eq!(scan_all(&mut bench, "TYPE list").0, BTreeSet::new());
        assert_eq!(scan_all(&mut bench, "type STRING match key:* count 10").0, names);
    }

    #[test]
    fn scan_deletes_expired_keys_it_would_have_listed() {
        let mut bench = bench();
        bench.run("MSET live 1 stay 2");
        bench.run("SET go:1 v PX 1");
        bench.run("SET go:2 v PX 1");
        bench.run("SET other v PX 1");
        bench.now_ms += 2;
        bench.propagated();
        assert_eq!(scan_all(&mut bench, "TYPE list").0, BTreeSet::new());
        assert_eq!(bench.run("DBSIZE"), ":5");
        assert_eq!(scan_all(&mut bench, "MATCH go:*").0, BTreeSet::new());
        assert_eq!(bench.run("DBSIZE"), ":3");
        assert_eq!(bench.counters.expired.get(), 2);
        // Each deletion is propagated separately, not as a transaction.
        assert_eq!(BTreeSet::from_iter(bench.propagated()), ["UNLINK go:1", "UNLINK go:2"].map(String::from).into());
        assert_eq!(scan_all(&mut bench, "").0, ["live", "stay"].map(String::from).into());
        assert_eq!(bench.run("DBSIZE"), ":2");
    }

    #[test]
    fn scan_validates_arguments() {
        let mut bench = bench();
        assert_eq!(bench.run("SCAN x MATCH"), "-ERR invalid cursor");
        assert_eq!(bench.run("SCAN 0 MATCH"), "-ERR syntax error");
        assert_eq!(bench.run("SCAN 0 COUNT 0"), "-ERR syntax error");
        assert_eq!(bench.run("SCAN 0 COUNT x"), "-ERR value is not an integer or out of range");
        assert_eq!(bench.run("SCAN 0 TYPE string1"), "-ERR unknown type name 'string1'");
        assert_eq!(bench.run("SCAN 0 NOVALUES"), "-ERR NOVALUES option can only be used in HSCAN");
        assert_eq!(bench.run("SCAN 0 noscores"), "-ERR NOSCORES option can only be used in ZSCAN");
        assert_eq!(bench.run("SCAN 0 LIMIT 1"), "-ERR syntax error");
    }

    #[test]
    fn arbitrary_cursors_are_accepted() {
        let mut bench = bench();
        bench.run("MSET a 1 b 2 c 3");
        for cursor in [1, 12345, u64::MAX / 3, u64::MAX] {
            assert!(bench.run(&format!("SCAN {cursor}")).starts_with("*2 $"));
        }
    }

    #[test]
    fn patterns_of_one_slot_look_only_there() {
        let mut bench = Bench::in_cluster(&[keys::COMMANDS, string::COMMANDS]);
        let names: BTreeSet<String> = (0..100).map(|n| format!("{{a}}{n}")).collect();
        names.iter().for_each(|name| assert_eq!(bench.run(&format!("SET {name} v")), "+OK"));
        (0..500).for_each(|n| assert_eq!(bench.run(&format!("SET other:{n} v")), "+OK"));
        assert_eq!(words(&bench.run("KEYS {a}*")), names);
        assert_eq!(words(&bench.run("KEYS {a}7")), ["{a}7".to_owned()].into());
        assert_eq!(words(&bench.run("KEYS *7")).len(), 60);
        let (found, calls) = scan_all(&mut bench, "MATCH {a}* COUNT 50");
        assert_eq!(found, names);
        assert!(calls <= 4, "{calls}");
        assert_eq!(scan_all(&mut bench, "COUNT 7").0.len(), 600);
        assert_eq!(scan_all(&mut bench, "MATCH {none}* COUNT 1"), (BTreeSet::new(), 1));
        // The slot of a cursor is in its low bits.
        let reply = bench.run("SCAN 0 MATCH {a}* COUNT 1");
        let cursor: u64 = reply.split(' ').nth(2).expect("a cursor").parse().expect("a number");
        assert_eq!(kvick_store::hash::slot_of(cursor), kvick_store::slot::slot(b"a"));
    }

    #[test]
    fn randomkey_can_return_every_live_key() {
        let mut bench = bench();
        assert_eq!(bench.run("RANDOMKEY"), "$-1");
        (0..500).for_each(|n| assert_eq!(bench.run(&format!("SET old:{n} v PX 1")), "+OK"));
        bench.run("MSET a 1 b 2");
        bench.now_ms += 2;
        let seen: BTreeSet<String> = (0..200).map(|_| bench.run("RANDOMKEY")).collect();
        assert_eq!(seen, ["$1 a", "$1 b"].map(String::from).into());
        bench.run("DEL a b");
        assert_eq!(bench.run("RANDOMKEY"), "$-1");
        assert_eq!(bench.run("DBSIZE"), ":0");
    }
}
