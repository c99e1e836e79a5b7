//! Existence and deletion of keys: EXISTS, TYPE, TOUCH, DEL, UNLINK.

use kvick_resp::Args;
use kvick_store::EventClass;

use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// The tips of commands that clients may split by key over several servers.
const SUMMED_UP: &[&str] = &["request_policy:multi_shard", "response_policy:agg_sum"];
const READ_KEYS: &[KeySpec] = &[KeySpec::range(1, -1, 1, &[KeyFlags::RO])];
const DELETED_KEYS: &[KeySpec] = &[KeySpec::range(1, -1, 1, &[KeyFlags::RM, KeyFlags::DELETE])];
const SEVERAL: &[Arg] = &[Arg::key("key").multiple()];

/// DEL key [key ...]
pub const DEL: Command<Handler> = Command::new(
    Spec::new("del", -2)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::KEYSPACE])
        .tips(SUMMED_UP)
        .keys(DELETED_KEYS)
        .doc(
            Group::Generic,
            "1.0.0",
            "O(N), N being the number of keys; O(M) for a key that holds a collection of M elements.",
            "Deletes keys.",
        )
        .args(SEVERAL),
    |cx, args| {
        let lazy = cx.settings.lazy_user_del;
        delete(cx, args, lazy)
    },
);

/// UNLINK key [key ...]
pub const UNLINK: Command<Handler> = Command::new(
    Spec::new("unlink", -2)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .tips(SUMMED_UP)
        .keys(DELETED_KEYS)
        .doc(
            Group::Generic,
            "4.0.0",
            "O(1) for each key, and work in the background that grows with what the keys held.",
            "Deletes keys, and frees their values in the background.",
        )
        .args(SEVERAL),
    |cx, args| delete(cx, args, true),
);

fn delete(cx: &mut Context<'_>, args: Args<'_>, lazy: bool) -> Result<(), Error> {
    let mut deleted = 0;
    for index in 1..args.len() {
        let key = cx.key(args, index);
        if cx.db.remove(key, lazy) {
            cx.db.effects().notify(EventClass::GENERIC, "del", key.bytes);
            deleted += 1;
        }
    }
    cx.db.effects().changed(deleted);
    cx.reply.uint(deleted);
    Ok(())
}

/// EXISTS key [key ...]
pub const EXISTS: Command<Handler> = Command::new(
    Spec::new("exists", -2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .tips(SUMMED_UP)
        .keys(READ_KEYS)
        .doc(
            Group::Generic,
            "1.0.0",
            "O(N), N being the number of keys.",
            "Counts those of the given keys that exist; a key named twice counts twice.",
        )
        .history(&[("3.0.3", "Accepts several keys.")])
        .args(SEVERAL),
    exists,
);

fn exists(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut found = 0;
    for index in 1..args.len() {
        let key = cx.key(args, index);
        found += u64::from(cx.db.get_untouched(key).is_some());
    }
    cx.reply.uint(found);
    Ok(())
}

/// TYPE key
pub const TYPE: Command<Handler> = Command::new(
    Spec::new("type", 2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO])])
        .doc(Group::Generic, "1.0.0", "O(1)", "Tells what kind of value a key holds.")
        .args(&[Arg::key("key")]),
    kind,
);

fn kind(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    cx.reply.simple(cx.db.get_untouched(key).map_or("none", |entry| entry.kind().name()));
    Ok(())
}

/// TOUCH key [key ...]
pub const TOUCH: Command<Handler> = Command::new(
    Spec::new("touch", -2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .tips(SUMMED_UP)
        .keys(READ_KEYS)
        .doc(
            Group::Generic,
            "3.2.1",
            "O(N), N being the number of keys.",
            "Counts those of the given keys that exist, and marks them as used just now.",
        )
        .args(SEVERAL),
    touch,
);

fn touch(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut touched = 0;
    for index in 1..args.len() {
        let key = cx.key(args, index);
        touched += u64::from(cx.db.get_touched(key).is_some());
    }
    cx.reply.uint(touched);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::{keys, string};
    use kvick_store::EventClass;

    fn bench() -> Bench {
        Bench::new(&[keys::COMMANDS, string::COMMANDS])
    }

    #[test]
    fn del_counts_the_existing_keys() {
        let mut bench = bench();
        bench.run("MSET a 1 b 2 c 3 d 4");
        assert_eq!(bench.run("DEL a n b a"), ":2");
        assert_eq!(bench.events(), ["del", "del"]);
        assert_eq!(bench.run("DEL a"), ":0");
        assert_eq!(bench.run("UNLINK c n"), ":1");
        assert_eq!(bench.run("EXISTS a b c d d"), ":2");
        assert_eq!(bench.propagated(), ["MSET a 1 b 2 c 3 d 4", "DEL a n b a", "UNLINK c n"]);
    }

    #[test]
    fn large_value_is_freed_in_the_background() {
        let mut bench = bench();
        for (command, lazy, freed) in [("DEL", false, 0), ("DEL", true, 1), ("UNLINK", false, 2)] {
            bench.settings.lazy_user_del = lazy;
            bench.run_words(&[b"SET", b"k", &vec![b'x'; 5_000_000]]);
            assert_eq!(bench.run(&format!("{command} k")), ":1");
            let lazy_free = &bench.keyspace.lazy_free;
            assert_eq!(lazy_free.pending() + lazy_free.freed(), freed, "{command} {lazy}");
        }
    }

    #[test]
    fn expired_key_is_absent_and_deleted_on_lookup() {
        let mut bench = bench();
        for (request, reply) in [("DEL k", ":0"), ("EXISTS k", ":0"), ("TYPE k", "+none"), ("TOUCH k", ":0")] {
            bench.run("SET k v PX 10");
            bench.now_ms += 11;
            bench.propagated();
            assert_eq!(bench.run("DBSIZE"), ":1");
            assert_eq!(bench.run(request), reply);
            assert_eq!(bench.events(), ["expired"]);
            assert_eq!(bench.run("DBSIZE"), ":0");
            assert_eq!(bench.propagated(), ["UNLINK k"]);
        }
        assert_eq!(bench.counters.expired.get(), 4);
        bench.settings.lazy_expire = false;
        bench.run("SET k v PX 10");
        bench.now_ms += 11;
        bench.run("EXISTS k");
        assert_eq!(bench.propagated()[1..], ["DEL k"]);
    }

    #[test]
    fn lookups_count_hits_and_fire_keymiss() {
        let mut bench = bench();
        bench.event_mask = EventClass::KEY_MISS;
        bench.run("SET k v");
        for request in ["EXISTS k n", "TOUCH k n", "MGET k n"] {
            bench.run(request);
            assert_eq!(bench.events(), ["keymiss"], "{request}");
        }
        assert_eq!(bench.run("TYPE k"), "+string");
        assert_eq!((bench.counters.hits.get(), bench.counters.misses.get()), (4, 3));
        assert_eq!(bench.run("DEL n"), ":0");
        assert!(bench.events().is_empty());
    }

    #[test]
    fn only_touch_and_reads_of_the_value_mark_a_key_as_used() {
        let mut bench = bench();
        bench.run("SET k v");
        bench.now_ms += 5000;
        for request in ["EXISTS k", "TYPE k", "TTL k", "OBJECT ENCODING k"] {
            bench.run(request);
            assert_eq!(bench.run("OBJECT IDLETIME k"), ":5", "{request}");
        }
        bench.touch = false;
        bench.run("GET k");
        assert_eq!(bench.run("OBJECT IDLETIME k"), ":5");
        assert_eq!(bench.run("TOUCH k n"), ":1");
        assert_eq!(bench.run("OBJECT IDLETIME k"), ":0");
    }
}
