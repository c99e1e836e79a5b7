//! ZRANGE, the older commands that are special cases of it, and ZRANGESTORE.
//!
//! The arguments are parsed into a [`Request`]. It determines the ranks of the elements in the sorted set
//! ([`Request::ranks`]), which are returned or stored.

use std::ops::Range;

use kvick_resp::Args;
use kvick_store::collections::sorted_set::Cut;
use kvick_store::{Collection, IntBuf, SortedSet};

use super::{bounds, integer, ranks_between, reply_element, reply_list, store_result};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// `ZRANGE key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`
pub const ZRANGE: Command<Handler> = Command::new(
    Spec::new("zrange", -4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "1.2.0",
            "O(log(N)+M), N being the size of the sorted set and M the number of members returned.",
            "Lists the members of a sorted set in a range of ranks, scores or members.",
        )
        .history(&[("6.2.0", "Added `REV`, `BYSCORE`, `BYLEX` and `LIMIT`.")])
        .args(&[
            Arg::key("key"),
            Arg::string("start"),
            Arg::string("stop"),
            Arg::one_of("sortby", &[Arg::word("byscore", "BYSCORE"), Arg::word("bylex", "BYLEX")])
                .optional()
                .since("6.2.0"),
            Arg::word("rev", "REV").optional().since("6.2.0"),
            Arg::block("limit", &[Arg::integer("offset"), Arg::integer("count")])
                .token("LIMIT")
                .optional()
                .since("6.2.0"),
            Arg::word("withscores", "WITHSCORES").optional(),
        ]),
    zrange,
);

fn zrange(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, Form::default())
}

/// `ZREVRANGE key start stop [WITHSCORES]`
pub const ZREVRANGE: Command<Handler> = Command::new(
    Spec::new("zrevrange", -4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "1.2.0",
            "O(log(N)+M), N being the size of the sorted set and M the number of members returned.",
            "Lists the members of a sorted set in a range of ranks, from the highest score down.",
        )
        .args(&[
            Arg::key("key"),
            Arg::integer("start"),
            Arg::integer("stop"),
            Arg::word("withscores", "WITHSCORES").optional(),
        ]),
    zrevrange,
);

fn zrevrange(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, Form { by: Some(By::Rank), reverse: Some(true) })
}

/// `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`
pub const ZRANGEBYSCORE: Command<Handler> = Command::new(
    Spec::new("zrangebyscore", -4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "1.0.5",
            "O(log(N)+M), N being the size of the sorted set and M the number of members returned.",
            "Lists the members of a sorted set whose scores are in a range.",
        )
        .history(&[("2.0.0", "Added `WITHSCORES`.")])
        .args(&[
            Arg::key("key"),
            Arg::double("min"),
            Arg::double("max"),
            Arg::word("withscores", "WITHSCORES").optional().since("2.0.0"),
            Arg::block("limit", &[Arg::integer("offset"), Arg::integer("count")]).token("LIMIT").optional(),
        ]),
    zrangebyscore,
);

fn zrangebyscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, Form { by: Some(By::Score), reverse: Some(false) })
}

/// `ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]`
pub const ZREVRANGEBYSCORE: Command<Handler> = Command::new(
    Spec::new("zrevrangebyscore", -4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "2.2.0",
            "O(log(N)+M), N being the size of the sorted set and M the number of members returned.",
            "Lists the members of a sorted set whose scores are in a range, from the highest one down.",
        )
        .history(&[("2.1.6", "Ends may be exclusive.")])
        .args(&[
            Arg::key("key"),
            Arg::double("max"),
            Arg::double("min"),
            Arg::word("withscores", "WITHSCORES").optional(),
            Arg::block("limit", &[Arg::integer("offset"), Arg::integer("count")]).token("LIMIT").optional(),
        ]),
    zrevrangebyscore,
);

fn zrevrangebyscore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, Form { by: Some(By::Score), reverse: Some(true) })
}

/// ZRANGEBYLEX key min max [LIMIT offset count]
pub const ZRANGEBYLEX: Command<Handler> = Command::new(
    Spec::new("zrangebylex", -4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "2.8.9",
            "O(log(N)+M), N being the size of the sorted set and M the number of members returned.",
            "Lists the members of a sorted set in a range of members.",
        )
        .args(&[
            Arg::key("key"),
            Arg::string("min"),
            Arg::string("max"),
            Arg::block("limit", &[Arg::integer("offset"), Arg::integer("count")]).token("LIMIT").optional(),
        ]),
    zrangebylex,
);

fn zrangebylex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, Form { by: Some(By::Member), reverse: Some(false) })
}

/// ZREVRANGEBYLEX key max min [LIMIT offset count]
pub const ZREVRANGEBYLEX: Command<Handler> = Command::new(
    Spec::new("zrevrangebylex", -4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "2.8.9",
            "O(log(N)+M), N being the size of the sorted set and M the number of members returned.",
            "Lists the members of a sorted set in a range of members, from the last one back.",
        )
        .args(&[
            Arg::key("key"),
            Arg::string("max"),
            Arg::string("min"),
            Arg::block("limit", &[Arg::integer("offset"), Arg::integer("count")]).token("LIMIT").optional(),
        ]),
    zrevrangebylex,
);

fn zrevrangebylex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, Form { by: Some(By::Member), reverse: Some(true) })
}

/// `ZRANGESTORE dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]`
pub const ZRANGESTORE: Command<Handler> = Command::new(
    Spec::new("zrangestore", -5)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::OW, KeyFlags::UPDATE]), KeySpec::at(2, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "6.2.0",
            "O(log(N)+M), N being the size of the sorted set and M the number of members stored.",
            "Stores the members of a sorted set in a range of ranks, scores or members.",
        )
        .args(&[
            Arg::key("dst"),
            Arg::key("src").key_spec(1),
            Arg::string("min"),
            Arg::string("max"),
            Arg::one_of("sortby", &[Arg::word("byscore", "BYSCORE"), Arg::word("bylex", "BYLEX")]).optional(),
            Arg::word("rev", "REV").optional(),
            Arg::block("limit", &[Arg::integer("offset"), Arg::integer("count")]).token("LIMIT").optional(),
        ]),
    zrangestore,
);

fn zrangestore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = Request::parse(args.slice_from(2), Form::default(), true)?;
    let source = cx.key(args, 2);
    let limits = cx.settings.encoding.sorted_set;
    let mut result = SortedSet::new();
    if let Some(set) = cx.db.read::<SortedSet>(source)? {
        let ranks = request.ranks(set);
        if matches!(request.bounds, Bounds::Ranks(..)) {
            result.expect(ranks.len(), 0, limits);
        }
        for (member, score) in set.range(ranks) {
            result.insert(member.bytes(&mut IntBuf::default()), score, limits);
        }
    }
    let len = store_result(cx, cx.key(args, 1), result, "zrangestore", 1);
    cx.reply.uint(len as u64);
    Ok(())
}

/// The properties that the command name implies; `None` if options determine them.
#[derive(Clone, Copy, Default)]
struct Form {
    by: Option<By>,
    reverse: Option<bool>,
}

/// The kind of the bounds of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Member,
}

/// The bounds of a range.
enum Bounds<'a> {
    Ranks(i64, i64),
    Cuts(Range<Cut<'a>>),
}

/// The parsed arguments.
struct Request<'a> {
    bounds: Bounds<'a>,
    reverse: bool,
    with_scores: bool,
    /// Number of elements of the range to skip.
    offset: i64,
    /// Maximum number of elements; negative means no limit.
    limit: i64,
}

impl<'a> Request<'a> {
    /// Parses the arguments from the key on. WITHSCORES is invalid if the result is stored.
    fn parse(args: Args<'a>, form: Form, stored: bool) -> Result<Request<'a>, Error> {
        const LIMIT_BY_RANK: Error =
            Error::text("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX");
        const SCORES_BY_MEMBER: Error =
            Error::text("ERR syntax error, WITHSCORES not supported in combination with BYLEX");
        let Form { mut by, mut reverse } = form;
        let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
        let mut index = 3;
        while let Some(word) = args.get(index) {
            let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
            index += 1;
            if !stored && is(b"withscores") {
                with_scores = true;
            } else if is(b"limit") && index + 1 < args.len() {
                (offset, limit) = (integer(args, index)?, integer(args, index + 1)?);
                index += 2;
            } else if reverse.is_none() && is(b"rev") {
                reverse = Some(true);
            } else if by.is_none() && is(b"bylex") {
                by = Some(By::Member);
            } else if by.is_none() && is(b"byscore") {
                by = Some(By::Score);
            } else {
                return Err(Error::SYNTAX);
            }
        }
        let (by, reverse) = (by.unwrap_or(By::Rank), reverse.unwrap_or_default());
        if limit != -1 && by == By::Rank {
            return Err(LIMIT_BY_RANK);
        }
        if with_scores && by == By::Member {
            return Err(SCORES_BY_MEMBER);
        }
        let bounds = Self::parse_bounds(args, by, reverse)?;
        Ok(Request { bounds, reverse, with_scores, offset, limit })
    }

    fn parse_bounds(args: Args<'a>, by: By, reverse: bool) -> Result<Bounds<'a>, Error> {
        let argument = |index| args.get(index).unwrap_or_default();
        let (min, max) = if reverse { (argument(2), argument(1)) } else { (argument(1), argument(2)) };
        match by {
            By::Rank => Ok(Bounds::Ranks(integer(args, 1)?, integer(args, 2)?)),
            By::Score => bounds::scores(min, max).map(Bounds::Cuts),
            By::Member => bounds::members(min, max).map(Bounds::Cuts),
        }
    }

    /// The ranks of the selected elements, counted from the lowest score.
    fn ranks(&self, set: &SortedSet) -> Range<usize> {
        match &self.bounds {
            Bounds::Ranks(start, stop) => {
                let (len, ranks) = (set.len(), ranks_between(*start, *stop, set.len()));
                if self.reverse && !ranks.is_empty() { len - ranks.end..len - ranks.start } else { ranks }
            }
            Bounds::Cuts(cuts) => self.limited(set.ranks(&cuts.start, &cuts.end), set.listpack().is_some()),
        }
    }

    /// Applies offset and limit to a range. As in Valkey, a negative offset selects nothing in a small sorted set, and
    /// is counted from the far end in a large one.
    fn limited(&self, ranks: Range<usize>, is_small: bool) -> Range<usize> {
        let len = ranks.len();
        let skipped = match usize::try_from(self.offset) {
            Ok(offset) => offset.min(len),
            Err(_) if is_small => len,
            Err(_) => {
                usize::try_from(self.offset.unsigned_abs()).ok().and_then(|back| len.checked_sub(back)).unwrap_or(len)
            }
        };
        let taken = usize::try_from(self.limit).unwrap_or(usize::MAX).min(len - skipped);
        if self.reverse {
            ranks.end - skipped - taken..ranks.end - skipped
        } else {
            ranks.start + skipped..ranks.start + skipped + taken
        }
    }
}

/// Replies with the selected elements.
fn list(cx: &mut Context<'_>, args: Args<'_>, form: Form) -> Result<(), Error> {
    let request = Request::parse(args.slice_from(1), form, false)?;
    let key = cx.key(args, 1);
    let Some(set) = cx.db.read::<SortedSet>(key)? else {
        cx.reply.array(0);
        return Ok(());
    };
    let ranks = request.ranks(set);
    reply_list(&mut cx.reply, ranks.len(), request.with_scores);
    let entries = if request.reverse { set.range_rev(ranks) } else { set.range(ranks) };
    for entry in entries {
        reply_element(&mut cx.reply, entry, request.with_scores);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::sorted_set::COMMANDS;
    use crate::testing::Bench;
    use kvick_resp::Version;

    /// A bench with the same elements in a small and a large sorted set.
    fn bench() -> Bench {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("ZADD small 1 a 2 b 3 c 4 d");
        bench.settings.encoding.sorted_set.entries = 0;
        bench.run("ZADD large 1 a 2 b 3 c 4 d");
        bench.settings.encoding.sorted_set.entries = 128;
        bench
    }

    fn members(bench: &mut Bench, command: &str) -> String {
        let mut both = ["small", "large"].map(|key| bench.run(&command.replace('z', key).replacen("small", key, 1)));
        for reply in &mut both {
            *reply = reply.split(' ').filter(|word| !word.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ");
        }
        assert_eq!(both[0], both[1], "{command}");
        both[0].clone()
    }

    #[test]
    fn ranges_by_rank_score_and_member_in_both_directions() {
        let mut bench = bench();
        for (command, expected) in [
            ("ZRANGE z 0 -1", "a b c d"),
            ("ZRANGE z 1 2", "b c"),
            ("ZRANGE z -2 100", "c d"),
            ("ZRANGE z 2 1", ""),
            ("ZRANGE z 0 -1 REV", "d c b a"),
            ("ZREVRANGE z 0 1", "d c"),
            ("ZREVRANGE z -1 -1 WITHSCORES", "a 1"),
            ("ZRANGE z (1 3 BYSCORE", "b c"),
            ("ZRANGE z 3 (1 BYSCORE REV WITHSCORES", "c 3 b 2"),
            ("ZRANGEBYSCORE z -inf +inf LIMIT 1 2", "b c"),
            ("ZREVRANGEBYSCORE z +inf -inf LIMIT 1 2", "c b"),
            ("ZRANGEBYSCORE z 1 4 LIMIT 4 1", ""),
            ("ZRANGEBYSCORE z 1 4 LIMIT 3 -5", "d"),
            ("ZRANGEBYSCORE z 1 4 LIMIT 0 0", ""),
            ("ZRANGEBYSCORE z 4 1", ""),
            ("ZRANGE z [b (d BYLEX", "b c"),
            ("ZRANGE z + [c BYLEX REV", "d c"),
            ("ZRANGEBYLEX z - + LIMIT 1 1", "b"),
            ("ZREVRANGEBYLEX z + - LIMIT 1 2", "c b"),
        ] {
            assert_eq!(members(&mut bench, command), expected, "{command}");
        }
        assert_eq!(bench.run("ZRANGE none 0 -1"), "*0");
        bench.version = Version::Resp3;
        assert_eq!(bench.run("ZRANGE small 0 1 WITHSCORES"), "*2 *2 $1 a ,1 *2 $1 b ,2");
    }

    #[test]
    fn negative_offsets_match_the_reference() {
        let mut bench = bench();
        assert_eq!(bench.run("ZRANGEBYSCORE small 1 4 LIMIT -1 5"), "*0");
        assert_eq!(bench.run("ZRANGEBYSCORE large 1 4 LIMIT -1 5"), "*1 $1 d");
        assert_eq!(bench.run("ZREVRANGEBYSCORE large 4 1 LIMIT -2 5"), "*2 $1 b $1 a");
        assert_eq!(bench.run("ZRANGEBYSCORE large 1 4 LIMIT -9223372036854775808 5"), "*0");
    }

    #[test]
    fn conflicting_options_are_rejected() {
        let mut bench = bench();
        for (command, error) in [
            (
                "ZRANGE z 0 1 LIMIT 0 1",
                "syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ),
            ("ZRANGE z - + BYLEX WITHSCORES", "syntax error, WITHSCORES not supported in combination with BYLEX"),
            ("ZRANGE z 0 1 BYSCORE BYLEX", "syntax error"),
            ("ZREVRANGE z 0 1 REV", "syntax error"),
            ("ZRANGEBYSCORE z 0 1 LIMIT 1", "syntax error"),
            ("ZRANGEBYSCORE z 0 1 LIMIT 1 x", "value is not an integer or out of range"),
            ("ZRANGE z a 1", "value is not an integer or out of range"),
            ("ZRANGE z a 1 BYSCORE", "min or max is not a float"),
            ("ZRANGE z a 1 BYLEX", "min or max not valid string range item"),
            ("ZRANGESTORE d z 0 1 WITHSCORES", "syntax error"),
        ] {
            assert_eq!(bench.run(command), format!("-ERR {error}"), "{command}");
        }
    }

    #[test]
    fn range_can_be_stored() {
        let mut bench = bench();
        assert_eq!(bench.run("ZRANGESTORE d large 1 2 REV"), ":2");
        assert_eq!(bench.events(), ["new", "zrangestore"]);
        assert_eq!(bench.run("ZRANGE d 0 -1 WITHSCORES"), "*4 $1 b $1 2 $1 c $1 3");
        assert_eq!(bench.run("ZRANGESTORE d small 3 (1 BYSCORE REV LIMIT 0 1"), ":1");
        assert_eq!(bench.run("ZRANGESTORE d none 0 -1"), ":0");
        assert_eq!(bench.events(), ["del"]);
        assert_eq!(bench.run("ZRANGESTORE d none 0 -1"), ":0");
        assert_eq!(bench.propagated().len(), 5);
    }
}
