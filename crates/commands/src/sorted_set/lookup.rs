//! Cardinality, scores, ranks, counts of ranges, and ZSCAN.

use std::ops::Range;

use kvick_resp::Args;
use kvick_resp::format::format_double;
use kvick_store::collections::sorted_set::Cut;
use kvick_store::{Collection, IntBuf, SortedSet};

use super::bounds;
use crate::context::{Context, Error, Handler};
use crate::scan_options::{Listing, ScanOptions, Scanned, parse_cursor};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// ZCARD key
pub const ZCARD: Command<Handler> = Command::new(
    Spec::new("zcard", 2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO])])
        .doc(Group::SortedSet, "1.2.0", "O(1)", "Returns the number of members of a sorted set.")
        .args(&[Arg::key("key")]),
    zcard,
);

fn zcard(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let len = cx.db.read::<SortedSet>(key)?.map_or(0, Collection::len);
    cx.reply.uint(len as u64);
    Ok(())
}

/// ZSCORE key member
pub const ZSCORE: Command<Handler> = Command::new(
    Spec::new("zscore", 3)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(Group::SortedSet, "1.2.0", "O(1)", "Returns the score of a member.")
        .args(&[Arg::key("key"), Arg::string("member")]),
    zscore,
);

fn zscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    match cx.db.read::<SortedSet>(key)?.and_then(|set| set.score(&args[2])) {
        Some(score) => cx.reply.double(score),
        None => cx.reply.null(),
    }
    Ok(())
}

/// ZMSCORE key member [member ...]
pub const ZMSCORE: Command<Handler> = Command::new(
    Spec::new("zmscore", -3)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "6.2.0",
            "O(N), N being the number of members asked for.",
            "Returns the scores of several members.",
        )
        .args(&[Arg::key("key"), Arg::string("member").multiple()]),
    zmscore,
);

fn zmscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let set = cx.db.read::<SortedSet>(key)?;
    let members = args.slice_from(2);
    cx.reply.array(members.len());
    for member in members.iter() {
        match set.and_then(|set| set.score(member)) {
            Some(score) => cx.reply.double(score),
            None => cx.reply.null(),
        }
    }
    Ok(())
}

/// `ZRANK key member [WITHSCORE]`
pub const ZRANK: Command<Handler> = Command::new(
    Spec::new("zrank", -3)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "2.0.0",
            "O(log(N)), N being the size of the sorted set.",
            "Returns the rank of a member, counted from the lowest score.",
        )
        .history(&[("7.2.0", "Added `WITHSCORE`.")])
        .args(&[Arg::key("key"), Arg::string("member"), Arg::word("withscore", "WITHSCORE").optional()]),
    zrank,
);

fn zrank(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    rank(cx, args, "zrank", |rank, _| rank)
}

/// `ZREVRANK key member [WITHSCORE]`
pub const ZREVRANK: Command<Handler> = Command::new(
    Spec::new("zrevrank", -3)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "2.0.0",
            "O(log(N)), N being the size of the sorted set.",
            "Returns the rank of a member, counted from the highest score.",
        )
        .history(&[("7.2.0", "Added `WITHSCORE`.")])
        .args(&[Arg::key("key"), Arg::string("member"), Arg::word("withscore", "WITHSCORE").optional()]),
    zrevrank,
);

fn zrevrank(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    rank(cx, args, "zrevrank", |rank, len| len - 1 - rank)
}

fn rank(
    cx: &mut Context<'_>,
    args: Args<'_>,
    name: &str,
    count: impl FnOnce(usize, usize) -> usize,
) -> Result<(), Error> {
    let with_score = match args.get(3) {
        _ if args.len() > 4 => {
            return Err(Error::new(format!("ERR wrong number of arguments for '{name}' command")));
        }
        None => false,
        Some(word) if word.eq_ignore_ascii_case(b"withscore") => true,
        Some(_) => return Err(Error::SYNTAX),
    };
    let key = cx.key(args, 1);
    let set = cx.db.read::<SortedSet>(key)?;
    match set.and_then(|set| set.rank(&args[2]).map(|(rank, score)| (count(rank, set.len()), score))) {
        None if with_score => cx.reply.null_array(),
        None => cx.reply.null(),
        Some((rank, score)) if with_score => {
            cx.reply.array(2);
            cx.reply.uint(rank as u64);
            cx.reply.double(score);
        }
        Some((rank, _)) => cx.reply.uint(rank as u64),
    }
    Ok(())
}

/// ZCOUNT key min max
pub const ZCOUNT: Command<Handler> = Command::new(
    Spec::new("zcount", 4)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "2.0.0",
            "O(log(N)), N being the size of the sorted set.",
            "Counts the members of a sorted set whose scores are in a range.",
        )
        .args(&[Arg::key("key"), Arg::double("min"), Arg::double("max")]),
    zcount,
);

fn zcount(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let cuts = bounds::scores(&args[2], &args[3])?;
    count(cx, args, &cuts)
}

/// ZLEXCOUNT key min max
pub const ZLEXCOUNT: Command<Handler> = Command::new(
    Spec::new("zlexcount", 4)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "2.8.9",
            "O(log(N)), N being the size of the sorted set.",
            "Counts the members of a sorted set in a range of members.",
        )
        .args(&[Arg::key("key"), Arg::string("min"), Arg::string("max")]),
    zlexcount,
);

fn zlexcount(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let cuts = bounds::members(&args[2], &args[3])?;
    count(cx, args, &cuts)
}

fn count(cx: &mut Context<'_>, args: Args<'_>, cuts: &Range<Cut<'_>>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let count = cx.db.read::<SortedSet>(key)?.map_or(0, |set| set.ranks(&cuts.start, &cuts.end).len());
    cx.reply.uint(count as u64);
    Ok(())
}

/// `ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]`
pub const ZSCAN: Command<Handler> = Command::new(
    Spec::new("zscan", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .tips(&["nondeterministic_output"])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "2.8.0",
            "O(1) for every call, O(N) for going through a sorted set of N members until the cursor is 0 again.",
            "Lists some members of a sorted set with their scores, and where to go on.",
        )
        .history(&[("8.0.0", "Added `NOSCORES`.")])
        .args(&[
            Arg::key("key"),
            Arg::integer("cursor"),
            Arg::pattern("pattern").token("MATCH").optional(),
            Arg::integer("count").token("COUNT").optional(),
            Arg::word("noscores", "NOSCORES").optional(),
        ]),
    zscan,
);

fn zscan(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let cursor = parse_cursor(&args[2])?;
    let key = cx.key(args, 1);
    let Some(set) = cx.db.read::<SortedSet>(key)? else {
        Listing::new(&cx.reply).reply(&mut cx.reply, 0);
        return Ok(());
    };
    let options = ScanOptions::parse(args.slice_from(3), Scanned::SortedSet)?;
    let mut listing = Listing::new(&cx.reply);
    let (mut digits, mut text) = (IntBuf::default(), Vec::new());
    let is_small = set.listpack().is_some();
    let next = set.scan(cursor, options.count, |member, score| {
        let member = member.bytes(&mut digits);
        if !options.names.include(member) {
            return;
        }
        listing.add(member);
        if !options.names_only {
            text.clear();
            if is_small {
                format_double(score, &mut text)
            } else {
                format_long(score, &mut text)
            }
            listing.add(&text);
        }
    });
    listing.reply(&mut cx.reply, next);
    Ok(())
}

/// Appends a score with 17 significant digits without trailing zeros: the format of Valkey for ZSCAN of large sorted
/// sets, and only there.
fn format_long(score: f64, out: &mut Vec<u8>) {
    const DIGITS: i32 = 17;
    let scientific = format!("{score:.16e}");
    let exponent = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    let Some(exponent) = exponent.filter(|_| score != 0.0) else {
        return format_double(score, out);
    };
    let trimmed = |text: &str| {
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text };
        text.to_owned()
    };
    let text = if (-4..DIGITS).contains(&exponent) {
        trimmed(&format!("{score:.*}", (DIGITS - 1 - exponent) as usize))
    } else {
        let mantissa = scientific.split('e').next().unwrap_or_default();
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
    };
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::format_long;
    use crate::sorted_set::COMMANDS;
    use crate::testing::Bench;

    #[test]
    fn ranks_count_from_either_end() {
        let mut bench = Bench::new(&[COMMANDS]);
        for entries in [0, 128] {
            bench.settings.encoding.sorted_set.entries = entries;
            bench.run("ZADD z 1 a 2 b 3 c");
            assert_eq!(bench.run("ZRANK z c"), ":2");
            assert_eq!(bench.run("ZREVRANK z c"), ":0");
            assert_eq!(bench.run("ZREVRANK z a WITHSCORE"), "*2 :2 $1 1");
            assert_eq!(bench.run("ZRANK z x"), "$-1");
            assert_eq!(bench.run("ZRANK z x withscore"), "*-1");
            assert_eq!(bench.run("ZRANK n x withscore"), "*-1");
            bench.run("ZREM z a b c");
        }
        assert_eq!(bench.run("ZRANK z x scores"), "-ERR syntax error");
        assert_eq!(bench.run("ZREVRANK z x a b"), "-ERR wrong number of arguments for 'zrevrank' command");
    }

    #[test]
    fn scores_and_counts() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("ZADD z 1.5 a -inf b 1e30 c");
        assert_eq!(bench.run("ZSCORE z a"), "$3 1.5");
        assert_eq!(bench.run("ZSCORE z x"), "$-1");
        assert_eq!(bench.run("ZMSCORE z c x b"), "*3 $5 1e+30 $-1 $4 -inf");
        assert_eq!(bench.run("ZMSCORE n c"), "*1 $-1");
        assert_eq!(bench.run("ZCOUNT z -inf 1.5"), ":2");
        assert_eq!(bench.run("ZCOUNT z (-inf (1.5"), ":0");
        assert_eq!(bench.run("ZCOUNT z 2 1"), ":0");
        bench.run("ZADD l 0 a 0 b 0 c");
        assert_eq!(bench.run("ZLEXCOUNT l (a [c"), ":2");
        assert_eq!(bench.run("ZLEXCOUNT l + -"), ":0");
        assert_eq!((bench.counters.hits.get(), bench.counters.misses.get()), (8, 1));
    }

    #[test]
    fn scan_lists_members_and_scores() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("ZSCAN n 0 wrong"), "*2 $1 0 *0");
        assert_eq!(bench.run("ZSCAN n x"), "-ERR invalid cursor");
        bench.run("ZADD z 1 a 0.1 b");
        assert_eq!(bench.run("ZSCAN z 0"), "*2 $1 0 *4 $1 b $3 0.1 $1 a $1 1");
        assert_eq!(bench.run("ZSCAN z 0 match b noscores"), "*2 $1 0 *1 $1 b");
        assert_eq!(bench.run("ZSCAN z 0 wrong"), "-ERR syntax error");
        bench.settings.encoding.sorted_set.entries = 0;
        bench.run("ZADD large 0.1 b");
        assert_eq!(bench.run("ZSCAN large 0"), "*2 $1 0 *2 $1 b $19 0.10000000000000001");
    }

    #[test]
    fn large_sets_reply_scores_with_seventeen_digits() {
        let cases = [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1234567.0, "-1234567"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (1.5e300, "1.5000000000000001e+300"),
            (2e300, "2.0000000000000001e+300"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (score, expected) in cases {
            let mut text = Vec::new();
            format_long(score, &mut text);
            assert_eq!(String::from_utf8_lossy(&text), expected);
        }
    }
}
