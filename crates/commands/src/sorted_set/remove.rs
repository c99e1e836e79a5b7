//! ZREM and the ZREMRANGE commands.

use std::ops::Range;

use kvick_resp::Args;
use kvick_store::{Collection, EventClass, SortedSet};

use super::{bounds, integer, ranks_between, remove_if_empty};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// ZREM key member [member ...]
pub const ZREM: Command<Handler> = Command::new(
    Spec::new("zrem", -3)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::DELETE])])
        .doc(
            Group::SortedSet,
            "1.2.0",
            "O(M*log(N)), N being the size of the sorted set and M the number of members removed.",
            "Removes members from a sorted set.",
        )
        .history(&[("2.4.0", "Takes several members.")])
        .args(&[Arg::key("key"), Arg::string("member").multiple()]),
    zrem,
);

fn zrem(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let Some(set) = cx.db.write::<SortedSet>(key)? else {
        cx.reply.uint(0);
        return Ok(());
    };
    let removed = args.slice_from(2).iter().filter(|member| set.remove(member)).count();
    let left = set.len();
    finish(cx, args, "zrem", removed, left)
}

/// ZREMRANGEBYRANK key start stop
pub const ZREMRANGEBYRANK: Command<Handler> = Command::new(
    Spec::new("zremrangebyrank", 4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::DELETE])])
        .doc(
            Group::SortedSet,
            "2.0.0",
            "O(log(N)+M), N being the size of the sorted set and M the number of members removed.",
            "Removes the members of a sorted set in a range of ranks.",
        )
        .args(&[Arg::key("key"), Arg::integer("start"), Arg::integer("stop")]),
    zremrangebyrank,
);

fn zremrangebyrank(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (start, stop) = (integer(args, 2)?, integer(args, 3)?);
    remove_range(cx, args, "zremrangebyrank", |set| ranks_between(start, stop, set.len()))
}

/// ZREMRANGEBYSCORE key min max
pub const ZREMRANGEBYSCORE: Command<Handler> = Command::new(
    Spec::new("zremrangebyscore", 4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::DELETE])])
        .doc(
            Group::SortedSet,
            "1.2.0",
            "O(log(N)+M), N being the size of the sorted set and M the number of members removed.",
            "Removes the members of a sorted set whose scores are in a range.",
        )
        .args(&[Arg::key("key"), Arg::double("min"), Arg::double("max")]),
    zremrangebyscore,
);

fn zremrangebyscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let cuts = bounds::scores(&args[2], &args[3])?;
    remove_range(cx, args, "zremrangebyscore", |set| set.ranks(&cuts.start, &cuts.end))
}

/// ZREMRANGEBYLEX key min max
pub const ZREMRANGEBYLEX: Command<Handler> = Command::new(
    Spec::new("zremrangebylex", 4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::DELETE])])
        .doc(
            Group::SortedSet,
            "2.8.9",
            "O(log(N)+M), N being the size of the sorted set and M the number of members removed.",
            "Removes the members of a sorted set in a range of members.",
        )
        .args(&[Arg::key("key"), Arg::string("min"), Arg::string("max")]),
    zremrangebylex,
);

fn zremrangebylex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let cuts = bounds::members(&args[2], &args[3])?;
    remove_range(cx, args, "zremrangebylex", |set| set.ranks(&cuts.start, &cuts.end))
}

fn remove_range(
    cx: &mut Context<'_>,
    args: Args<'_>,
    event: &'static str,
    ranks: impl FnOnce(&SortedSet) -> Range<usize>,
) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let Some(set) = cx.db.write::<SortedSet>(key)? else {
        cx.reply.uint(0);
        return Ok(());
    };
    let ranks = ranks(set);
    let removed = ranks.len();
    set.remove_range(ranks);
    let left = set.len();
    finish(cx, args, event, removed, left)
}

/// Records and replies with the number of removed members.
fn finish(cx: &mut Context<'_>, args: Args<'_>, event: &'static str, removed: usize, left: usize) -> Result<(), Error> {
    if removed > 0 {
        let key = cx.key(args, 1);
        let effects = cx.db.effects();
        effects.changed(removed as u64);
        effects.notify(EventClass::SORTED_SET, event, key.bytes);
        remove_if_empty(cx, key, left);
    }
    cx.reply.uint(removed as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::sorted_set::COMMANDS;
    use crate::testing::Bench;

    #[test]
    fn members_are_ordered_by_name() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("ZADD z 1 a 2 b 3 c");
        assert_eq!(bench.run("ZREM z b x b"), ":1");
        assert_eq!(bench.events(), ["zrem"]);
        assert_eq!(bench.run("ZREM z x"), ":0");
        assert_eq!(bench.run("ZREM z a c c"), ":2");
        assert_eq!(bench.events(), ["zrem", "del"]);
        assert_eq!(bench.run("ZREM z a"), ":0");
        assert_eq!(bench.propagated(), ["ZADD z 1 a 2 b 3 c", "ZREM z b x b", "ZREM z a c c"]);
    }

    #[test]
    fn ranges_by_rank_score_and_member() {
        let mut bench = Bench::new(&[COMMANDS]);
        for entries in [0, 128] {
            bench.settings.encoding.sorted_set.entries = entries;
            bench.run("ZADD z 1 a 2 b 3 c 4 d 5 e 6 f 7 g");
            assert_eq!(bench.run("ZREMRANGEBYRANK z -2 -1"), ":2");
            assert_eq!(bench.run("ZREMRANGEBYSCORE z (1 2"), ":1");
            assert_eq!(bench.run("ZREMRANGEBYSCORE z 9 10"), ":0");
            assert_eq!(bench.run("ZREMRANGEBYRANK z 5 10"), ":0");
            assert_eq!(bench.run("ZRANGE z 0 -1"), "*4 $1 a $1 c $1 d $1 e");
            assert_eq!(bench.run("ZREMRANGEBYLEX z [b (d"), ":1");
            assert_eq!(bench.run("ZREMRANGEBYLEX z - +"), ":3");
            assert_eq!(bench.events(), ["zremrangebylex", "del"]);
            assert_eq!(bench.run("ZREMRANGEBYLEX z - +"), ":0");
        }
        assert_eq!(bench.run("ZREMRANGEBYLEX z a +"), "-ERR min or max not valid string range item");
        assert_eq!(bench.run("ZREMRANGEBYSCORE z a 1"), "-ERR min or max is not a float");
        assert_eq!(bench.run("ZREMRANGEBYRANK z a 1"), "-ERR value is not an integer or out of range");
    }
}
