//! Whole databases: DBSIZE, FLUSHDB, FLUSHALL, SWAPDB.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;

use super::existing_database;
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec, is_database};
use smallvec::smallvec;

/// DBSIZE
pub const DBSIZE: Command<Handler> = Command::new(
    Spec::new("dbsize", 1)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"])
        .doc(Group::Server, "1.0.0", "O(1)", "Counts the keys in the database."),
    dbsize,
);

fn dbsize(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Error> {
    cx.reply.uint(cx.db.len() as u64);
    Ok(())
}

const FLUSH_TYPE: &[Arg] = &[Arg::one_of(
    "flush-type",
    &[Arg::word("async", "ASYNC").since("4.0.0"), Arg::word("sync", "SYNC").since("6.2.0")],
)
.optional()];

/// The common parts of FLUSHDB and FLUSHALL.
const fn flushing(name: &'static str, complexity: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, -1)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::KEYSPACE, Categories::DANGEROUS])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .lock(LockRule::Global)
        .doc(Group::Server, "1.0.0", complexity, summary)
        .history(&[("4.0.0", "Added `ASYNC`."), ("6.2.0", "Added `SYNC`.")])
        .args(FLUSH_TYPE)
}

/// FLUSHDB [ASYNC | SYNC]
pub const FLUSHDB: Command<Handler> = Command::new(
    flushing("flushdb", "O(N), N being the number of keys in the database.", "Deletes all keys of the database."),
    |cx, args| {
        let number = cx.db.number();
        flush(cx, args, number..number + 1)
    },
);

/// FLUSHALL [ASYNC | SYNC]
pub const FLUSHALL: Command<Handler> = Command::new(
    flushing("flushall", "O(N), N being the number of keys in all databases.", "Deletes all keys of all databases.")
        .flags(&[Flags::FLUSHES])
        .flags(&[Flags::ALL_DBS]),
    |cx, args| {
        let all = 0..cx.db.keyspace().databases();
        flush(cx, args, all)
    },
);

/// Empties databases. Propagated even if they were empty, since those of replicas may not be.
fn flush(cx: &mut Context<'_>, args: Args<'_>, numbers: std::ops::Range<usize>) -> Result<(), Error> {
    let lazy = match args.get(1) {
        _ if args.len() > 2 => return Err(Error::SYNTAX),
        None => cx.settings.lazy_user_flush,
        Some(word) if word.eq_ignore_ascii_case(b"async") => true,
        Some(word) if word.eq_ignore_ascii_case(b"sync") => false,
        Some(_) => return Err(Error::SYNTAX),
    };
    for number in numbers {
        let removed = cx.db.flush(number, lazy);
        cx.db.effects().changed(removed as u64);
    }
    cx.db.effects().propagate_always();
    cx.reply.ok();
    Ok(())
}

/// SWAPDB index1 index2
pub const SWAPDB: Command<Handler> = Command::new(
    Spec::new("swapdb", 3)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::KEYSPACE, Categories::DANGEROUS])
        .databases(|args, count| {
            let named = |at: usize| args.get(at).is_some_and(|number| is_database(number, count));
            (named(1) && named(2)).then(|| smallvec![1, 2])
        })
        .lock(LockRule::Global)
        .doc(
            Group::Server,
            "4.0.0",
            "O(N), N being the number of clients that watch keys of the two databases or are blocked on them.",
            "Exchanges two databases.",
        )
        .args(&[Arg::integer("index1"), Arg::integer("index2")]),
    swapdb,
);

fn swapdb(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const INVALID_FIRST: Error = Error::text("ERR invalid first DB index");
    if cx.db.keyspace().is_by_slot() {
        return Err(Error::text("ERR SWAPDB is not allowed in cluster mode"));
    }
    const INVALID_SECOND: Error = Error::text("ERR invalid second DB index");
    let number = |text| parse_i64(text).and_then(|number| i32::try_from(number).ok());
    let first = number(&args[1]).ok_or(INVALID_FIRST)?;
    let second = number(&args[2]).ok_or(INVALID_SECOND)?;
    let (first, second) = (existing_database(&cx.db, first)?, existing_database(&cx.db, second)?);
    cx.db.swap(first, second);
    cx.db.effects().changed(1);
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::{keys, string};

    /// A bench with two keys in database 0 and one in database 1.
    fn bench() -> Bench {
        let mut bench = Bench::new(&[keys::COMMANDS, string::COMMANDS]);
        bench.run("MSET a 1 b 2");
        bench.database = 1;
        bench.run("SET c 3");
        bench.database = 0;
        bench.propagated();
        bench
    }

    fn sizes(bench: &Bench) -> [usize; 3] {
        [0, 1, 2].map(|number| bench.keyspace.len(number))
    }

    #[test]
    fn flushing_empties_one_database_or_all() {
        for how in ["", " SYNC", " async"] {
            let mut bench = bench();
            assert_eq!(bench.run(&format!("FLUSHDB{how}")), "+OK");
            assert_eq!(sizes(&bench), [0, 1, 0]);
            bench.run("SET d 4");
            assert_eq!(bench.run(&format!("FLUSHALL{how}")), "+OK");
            assert_eq!(sizes(&bench), [0, 0, 0]);
            assert_eq!(bench.run("KEYS *"), "*0");
        }
    }

    #[test]
    fn flushing_an_empty_database_is_propagated() {
        let mut bench = bench();
        bench.database = 2;
        bench.run("FLUSHDB");
        bench.run("FLUSHALL");
        bench.run("FLUSHALL ASYNC");
        assert_eq!(bench.propagated(), ["FLUSHDB", "FLUSHALL", "FLUSHALL ASYNC"]);
    }

    #[test]
    fn flush_is_lazy_by_setting_or_option() {
        let cases =
            [("FLUSHDB", true, 2), ("FLUSHDB", false, 0), ("FLUSHDB SYNC", true, 0), ("FLUSHALL ASYNC", false, 3)];
        for (request, setting, freed) in cases {
            let mut bench = bench();
            bench.settings.lazy_user_flush = setting;
            bench.run(request);
            let lazy_free = &bench.keyspace.lazy_free;
            assert_eq!(lazy_free.pending() + lazy_free.freed(), freed, "{request} {setting}");
        }
    }

    #[test]
    fn flush_takes_at_most_one_option() {
        let mut bench = bench();
        for request in ["FLUSHDB NOW", "FLUSHALL ASYNC SYNC", "FLUSHALL SYNC SYNC"] {
            assert_eq!(bench.run(request), "-ERR syntax error");
        }
        assert_eq!(sizes(&bench), [2, 1, 0]);
        assert!(bench.propagated().is_empty());
    }

    #[test]
    fn swapdb_exchanges_keys() {
        let mut bench = bench();
        assert_eq!(bench.run("SWAPDB 0 1"), "+OK");
        assert_eq!(sizes(&bench), [1, 2, 0]);
        assert_eq!(bench.run("GET c"), "$1 3");
        assert_eq!(bench.run("DBSIZE"), ":1");
        assert_eq!(bench.run("SWAPDB 2 1"), "+OK");
        assert_eq!(bench.run("SWAPDB 1 1"), "+OK");
        assert_eq!(sizes(&bench), [1, 0, 2]);
        assert_eq!(bench.propagated(), ["SWAPDB 0 1", "SWAPDB 2 1", "SWAPDB 1 1"]);
    }

    #[test]
    fn databases_are_not_swapped_in_cluster_mode() {
        let mut bench = Bench::in_cluster(&[keys::COMMANDS]);
        assert_eq!(bench.run("SWAPDB 0 1"), "-ERR SWAPDB is not allowed in cluster mode");
    }

    #[test]
    fn only_existing_databases_are_swapped() {
        let mut bench = bench();
        assert_eq!(bench.run("SWAPDB 44 55"), "-ERR DB index is out of range");
        assert_eq!(bench.run("SWAPDB 0 -1"), "-ERR DB index is out of range");
        assert_eq!(bench.run("SWAPDB 44 a"), "-ERR invalid second DB index");
        assert_eq!(bench.run("SWAPDB 0 2147483648"), "-ERR invalid second DB index");
        assert_eq!(bench.run("SWAPDB a b"), "-ERR invalid first DB index");
    }
}
