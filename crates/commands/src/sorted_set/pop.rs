//! Popping members from either end: ZPOPMIN, ZPOPMAX, ZMPOP, and the blocking BZPOPMIN, BZPOPMAX, BZMPOP.
//!
//! All pop from the first of their keys that exists. Commands with several keys are propagated as ZPOPMIN or ZPOPMAX of
//! the key that was popped from.

use std::ops::Range;

use kvick_resp::format::parse_i64;
use kvick_resp::{Args, Version};
use kvick_store::{Collection, EventClass, IntBuf, Key, Kind, SortedSet, Str};

use super::{remove_if_empty, reply_member};
use crate::context::{Block, Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use crate::timeout;

/// The description of ZPOPMIN and ZPOPMAX.
const fn pop_spec(name: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, -2)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(const { &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE])] })
        .doc(
            Group::SortedSet,
            "5.0.0",
            "O(log(N)*M), N being the size of the sorted set and M the number of members taken.",
            summary,
        )
        .args(const { &[Arg::key("key"), Arg::integer("count").optional()] })
}

/// The description of BZPOPMIN and BZPOPMAX.
const fn blocking_pop_spec(name: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, -3)
        .flags(&[Flags::WRITE, Flags::FAST, Flags::BLOCKING])
        .acl(&[Categories::SORTEDSET])
        .keys(const { &[KeySpec::range(1, -2, 1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE])] })
        .doc(Group::SortedSet, "5.0.0", "O(log(N)), N being the size of the sorted set.", summary)
        .history(&[("6.0.0", "The timeout may have a fraction.")])
        .args(const { &[Arg::key("key").multiple(), Arg::double("timeout")] })
}

/// `ZPOPMIN key [count]`
pub const ZPOPMIN: Command<Handler> =
    Command::new(pop_spec("zpopmin", "Takes the members with the lowest scores out of a sorted set."), zpopmin);

fn zpopmin(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    pop_from_one(cx, args, End::Min)
}

/// `ZPOPMAX key [count]`
pub const ZPOPMAX: Command<Handler> =
    Command::new(pop_spec("zpopmax", "Takes the members with the highest scores out of a sorted set."), zpopmax);

fn zpopmax(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    pop_from_one(cx, args, End::Max)
}

/// ZMPOP numkeys key [key ...] (MIN | MAX) [COUNT count]
pub const ZMPOP: Command<Handler> = Command::new(
    Spec::new("zmpop", -4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::counted(1, 1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE])])
        .doc(
            Group::SortedSet,
            "7.0.0",
            "O(K) + O(M*log(N)), K being the number of keys, N the size of the sorted set and M the number of members \
             taken.",
            "Takes members with the lowest or highest scores out of the first sorted set that is not empty.",
        )
        .args(&[
            Arg::integer("numkeys"),
            Arg::key("key").multiple(),
            Arg::one_of("where", &[Arg::word("min", "MIN"), Arg::word("max", "MAX")]),
            Arg::integer("count").token("COUNT").optional(),
        ]),
    zmpop,
);

fn zmpop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let Choice { keys, end, count } = Choice::parse(args, 1)?;
    if !pop_from_first(cx, args, keys, end, Some(count))? {
        cx.reply.null_array();
    }
    Ok(())
}

/// BZPOPMIN key [key ...] timeout
pub const BZPOPMIN: Command<Handler> = Command::new(
    blocking_pop_spec(
        "bzpopmin",
        "Takes the member with the lowest score out of the first sorted set that is not empty, and waits for one if \
         there is none.",
    ),
    bzpopmin,
);

fn bzpopmin(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    pop_one_or_wait(cx, args, End::Min)
}

/// BZPOPMAX key [key ...] timeout
pub const BZPOPMAX: Command<Handler> = Command::new(
    blocking_pop_spec(
        "bzpopmax",
        "Takes the member with the highest score out of the first sorted set that is not empty, and waits for one if \
         there is none.",
    ),
    bzpopmax,
);

fn bzpopmax(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    pop_one_or_wait(cx, args, End::Max)
}

/// BZMPOP timeout numkeys key [key ...] (MIN | MAX) [COUNT count]
pub const BZMPOP: Command<Handler> = Command::new(
    Spec::new("bzmpop", -5)
        .flags(&[Flags::WRITE, Flags::BLOCKING])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::counted(2, 1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE])])
        .doc(
            Group::SortedSet,
            "7.0.0",
            "O(K) + O(M*log(N)), K being the number of keys, N the size of the sorted set and M the number of members \
             taken.",
            "Takes members with the lowest or highest scores out of the first sorted set that is not empty, and waits \
             for one if there is none.",
        )
        .args(&[
            Arg::double("timeout"),
            Arg::integer("numkeys"),
            Arg::key("key").multiple(),
            Arg::one_of("where", &[Arg::word("min", "MIN"), Arg::word("max", "MAX")]),
            Arg::integer("count").token("COUNT").optional(),
        ]),
    bzmpop,
);

fn bzmpop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let Choice { keys, end, count } = Choice::parse(args, 2)?;
    pop_or_wait(cx, args, 1, keys, end, Some(count))
}

/// The end to pop from.
#[derive(Clone, Copy)]
enum End {
    Min,
    Max,
}

impl End {
    fn event(self) -> &'static str {
        match self {
            End::Min => "zpopmin",
            End::Max => "zpopmax",
        }
    }

    fn command(self) -> &'static [u8] {
        match self {
            End::Min => b"ZPOPMIN",
            End::Max => b"ZPOPMAX",
        }
    }
}

/// The arguments of ZMPOP and BZMPOP: keys, end, and number of elements.
struct Choice {
    keys: Range<usize>,
    end: End,
    count: usize,
}

impl Choice {
    /// Parses the arguments from the number of keys at index `at` on.
    fn parse(args: Args<'_>, at: usize) -> Result<Choice, Error> {
        const NO_KEYS: Error = Error::text("ERR numkeys should be greater than 0");
        const NO_COUNT: Error = Error::text("ERR count should be greater than 0");
        let positive = |index| args.get(index).and_then(parse_i64).filter(|number| *number > 0).map(|n| n as usize);
        let first = at + 1;
        let end_at = first.saturating_add(positive(at).ok_or(NO_KEYS)?);
        let end = match args.get(end_at) {
            Some(word) if word.eq_ignore_ascii_case(b"min") => End::Min,
            Some(word) if word.eq_ignore_ascii_case(b"max") => End::Max,
            _ => return Err(Error::SYNTAX),
        };
        let count = match (args.get(end_at + 1), args.len() - end_at) {
            (None, _) => 1,
            (Some(word), 3..) if word.eq_ignore_ascii_case(b"count") => positive(end_at + 2).ok_or(NO_COUNT)?,
            _ => return Err(Error::SYNTAX),
        };
        if args.len() > end_at + 3 {
            return Err(Error::SYNTAX);
        }
        Ok(Choice { keys: first..end_at, end, count })
    }
}

/// The form of the reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Members and scores alternately.
    Flat,
    /// Pairs.
    Pairs,
    /// The key, then a member and its score.
    KeyAndOne,
    /// The key and pairs.
    KeyAndPairs,
}

fn pop_from_one(cx: &mut Context<'_>, args: Args<'_>, end: End) -> Result<(), Error> {
    const NEGATIVE: Error = Error::text("ERR value is out of range, must be positive");
    let count = match args.len() {
        2 => None,
        3 => Some(parse_i64(&args[2]).and_then(|count| usize::try_from(count).ok()).ok_or(NEGATIVE)?),
        _ => return Err(Error::SYNTAX),
    };
    let shape = if count.is_some() && cx.reply.version() == Version::Resp3 { Shape::Pairs } else { Shape::Flat };
    let key = cx.key(args, 1);
    let taken = if count == Some(0) {
        let wrong = cx.db.get_for_write(key).is_some_and(|entry| entry.kind() != Kind::SortedSet);
        if wrong { Err(Error::WRONG_TYPE) } else { Ok(None) }
    } else {
        pop(cx, key, end, count.unwrap_or(1), shape)
    };
    if taken?.is_none() {
        cx.reply.array(0);
    }
    Ok(())
}

/// Pops `count` elements, by default one, from the first key that exists; returns whether one did.
fn pop_from_first(
    cx: &mut Context<'_>,
    args: Args<'_>,
    keys: Range<usize>,
    end: End,
    count: Option<usize>,
) -> Result<bool, Error> {
    let shape = if count.is_some() { Shape::KeyAndPairs } else { Shape::KeyAndOne };
    for index in keys {
        let key = cx.key(args, index);
        let Some(taken) = pop(cx, key, end, count.unwrap_or(1), shape)? else { continue };
        let effects = cx.db.effects();
        if effects.has_readers() {
            let mut digits = IntBuf::default();
            let words = [end.command(), key.bytes, Str::Int(taken as i64).bytes(&mut digits)];
            effects.propagate(if count.is_some() { &words } else { &words[..2] });
        }
        return Ok(true);
    }
    Ok(false)
}

/// Pops one element from the first key that exists, as BZPOPMIN and BZPOPMAX do: the timeout follows the keys.
fn pop_one_or_wait(cx: &mut Context<'_>, args: Args<'_>, end: End) -> Result<(), Error> {
    let last = args.len() - 1;
    pop_or_wait(cx, args, last, 1..last, end, None)
}

/// Like [`pop_from_first`], but blocks if none of the keys exists and blocking is allowed.
fn pop_or_wait(
    cx: &mut Context<'_>,
    args: Args<'_>,
    timeout_at: usize,
    keys: Range<usize>,
    end: End,
    count: Option<usize>,
) -> Result<(), Error> {
    let until_ms = timeout::until_ms(&args[timeout_at], true, cx.db.now_ms())?;
    if pop_from_first(cx, args, keys.clone(), end, count)? {
        return Ok(());
    }
    if cx.may_block {
        let keys = keys.collect();
        cx.block =
            Some(Block { keys, kind: Kind::SortedSet, wakes_on_deletion: false, group: 0, until_ms, rewritten: None });
    } else {
        cx.reply.null_array();
    }
    Ok(())
}

/// Pops up to `count` elements, which must not be 0, and replies with them. Returns their number, or `None` if the key
/// does not exist.
fn pop(cx: &mut Context<'_>, key: Key<'_>, end: End, count: usize, shape: Shape) -> Result<Option<usize>, Error> {
    let Some(set) = cx.db.write::<SortedSet>(key)? else { return Ok(None) };
    let (len, reply) = (set.len(), &mut cx.reply);
    let taken = count.min(len);
    match shape {
        Shape::Flat => reply.array(2 * taken),
        Shape::Pairs => reply.array(taken),
        Shape::KeyAndOne => {
            reply.array(3);
            reply.bulk(key.bytes);
        }
        Shape::KeyAndPairs => {
            reply.array(2);
            reply.bulk(key.bytes);
            reply.array(taken);
        }
    }
    let ranks = match end {
        End::Min => 0..taken,
        End::Max => len - taken..len,
    };
    let entries = match end {
        End::Min => set.range(ranks.clone()),
        End::Max => set.range_rev(ranks.clone()),
    };
    for (member, score) in entries {
        if matches!(shape, Shape::Pairs | Shape::KeyAndPairs) {
            reply.array(2);
        }
        reply_member(reply, member);
        reply.double(score);
    }
    set.remove_range(ranks);
    let effects = cx.db.effects();
    effects.changed(taken as u64);
    effects.notify(EventClass::SORTED_SET, end.event(), key.bytes);
    remove_if_empty(cx, key, len - taken);
    Ok(Some(taken))
}

#[cfg(test)]
mod tests {
    use crate::sorted_set::COMMANDS;
    use crate::string;
    use crate::testing::Bench;
    use kvick_resp::Version;

    #[test]
    fn elements_are_popped_from_either_end() {
        let mut bench = Bench::new(&[COMMANDS]);
        for entries in [0, 128] {
            bench.settings.encoding.sorted_set.entries = entries;
            bench.run("ZADD z 1 a 2 b 3 c 4 d 5 e");
            assert_eq!(bench.run("ZPOPMIN z"), "*2 $1 a $1 1");
            assert_eq!(bench.run("ZPOPMAX z 2"), "*4 $1 e $1 5 $1 d $1 4");
            assert_eq!(bench.run("ZPOPMIN z 0"), "*0");
            assert!(bench.events().is_empty());
            assert_eq!(bench.run("ZPOPMIN z 9"), "*4 $1 b $1 2 $1 c $1 3");
            assert_eq!(bench.events(), ["zpopmin", "del"]);
            assert_eq!(bench.run("ZPOPMAX z"), "*0");
        }
        for count in ["-1", "x"] {
            assert_eq!(bench.run(&format!("ZPOPMIN z {count}")), "-ERR value is out of range, must be positive");
        }

        assert_eq!(bench.run("ZPOPMIN z 1 2"), "-ERR syntax error");
    }

    #[test]
    fn resp3_lists_pairs_when_a_count_is_given() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.version = Version::Resp3;
        bench.run("ZADD z 1 a 2 b 3 c");
        assert_eq!(bench.run("ZPOPMIN z"), "*2 $1 a ,1");
        assert_eq!(bench.run("ZPOPMIN z 1"), "*1 *2 $1 b ,2");
        assert_eq!(bench.run("ZMPOP 1 z MAX"), "*2 $1 z *1 *2 $1 c ,3");
        assert_eq!(bench.run("ZMPOP 1 z MAX"), "_");
    }

    #[test]
    fn first_non_empty_key_is_popped() {
        let mut bench = Bench::new(&[COMMANDS, string::COMMANDS]);
        bench.run("ZADD z 1 a 2 b 3 c");
        assert_eq!(bench.run("ZMPOP 2 n z max COUNT 2"), "*2 $1 z *2 *2 $1 c $1 3 *2 $1 b $1 2");
        assert_eq!(bench.run("BZPOPMIN n z 0"), "*3 $1 z $1 a $1 1");
        bench.run("ZADD z 1 a 2 b 3 c");
        assert_eq!(bench.run("BZMPOP 1 2 n z MIN COUNT 10"), "*2 $1 z *3 *2 $1 a $1 1 *2 $1 b $1 2 *2 $1 c $1 3");
        let popped = ["ZPOPMAX z 2", "ZPOPMIN z", "ZPOPMIN z 3"];
        let mut propagated = bench.propagated();
        propagated.retain(|line| !line.starts_with("ZADD"));
        assert_eq!(propagated, popped);
        bench.run("SET s 1");
        for command in ["ZMPOP 2 n s MIN", "BZPOPMAX n s 0", "ZPOPMIN s", "ZPOPMIN s 0"] {
            assert!(bench.run(command).starts_with("-WRONGTYPE"), "{command}");
        }
    }

    #[test]
    fn empty_pops_block() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("BZPOPMIN a b 0"), "+waits for SortedSet at [1, 2] until None");
        assert_eq!(bench.run("BZPOPMAX a 1.5"), "+waits for SortedSet at [1] until Some(1700000001500)");
        assert_eq!(bench.run("BZMPOP 1 2 a b MIN"), "+waits for SortedSet at [3, 4] until Some(1700000001000)");
        assert_eq!(bench.run("BZPOPMIN a -1"), "-ERR timeout is negative");
        bench.may_block = false;
        assert_eq!(bench.run("BZPOPMIN a b 0"), "*-1");
        assert!(bench.propagated().is_empty());
    }

    #[test]
    fn invalid_choices_are_rejected() {
        let mut bench = Bench::new(&[COMMANDS]);
        for (command, error) in [
            ("ZMPOP 0 z MIN", "numkeys should be greater than 0"),
            ("ZMPOP x z MIN", "numkeys should be greater than 0"),
            ("ZMPOP 9223372036854775807 z MIN", "syntax error"),
            ("ZMPOP 2 z MIN", "syntax error"),
            ("ZMPOP 1 z MID", "syntax error"),
            ("ZMPOP 1 z MIN COUNT", "syntax error"),
            ("ZMPOP 1 z MIN COUNT 0", "count should be greater than 0"),
            ("ZMPOP 1 z MIN COUNT x", "count should be greater than 0"),
            ("ZMPOP 1 z MIN COUNT 1 COUNT 2", "syntax error"),
            ("ZMPOP 1 z MIN MAX", "syntax error"),
            ("BZMPOP x 1 z MID", "syntax error"),
            ("BZMPOP x 1 z MIN", "timeout is not a float or out of range"),
        ] {
            assert_eq!(bench.run(command), format!("-ERR {error}"), "{command}");
        }
    }
}
