//! ZADD and ZINCRBY, and the conditions for adding or updating members.

use kvick_resp::Args;
use kvick_resp::format::parse_double;
use kvick_store::collections::sorted_set::Change;
use kvick_store::{EventClass, Key, SortedSet};
use smallvec::SmallVec;

use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// `ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]`
pub const ZADD: Command<Handler> = Command::new(
    Spec::new("zadd", -4)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::UPDATE])])
        .doc(
            Group::SortedSet,
            "1.2.0",
            "O(log(N)) for each member, N being the size of the sorted set.",
            "Adds members to a sorted set or gives them other scores, creating it if there is none.",
        )
        .history(&[
            ("2.4.0", "Takes several members."),
            ("3.0.2", "Added `XX`, `NX`, `CH` and `INCR`."),
            ("6.2.0", "Added `GT` and `LT`."),
        ])
        .args(&[
            Arg::key("key"),
            Arg::one_of("condition", &[Arg::word("nx", "NX"), Arg::word("xx", "XX")]).optional().since("3.0.2"),
            Arg::one_of("comparison", &[Arg::word("gt", "GT"), Arg::word("lt", "LT")]).optional().since("6.2.0"),
            Arg::word("change", "CH").optional().since("3.0.2"),
            Arg::word("increment", "INCR").optional().since("3.0.2"),
            Arg::block("data", &[Arg::double("score"), Arg::string("member")]).multiple(),
        ]),
    zadd,
);

fn zadd(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    add_arguments(cx, args, Rule::default())
}

/// ZINCRBY key increment member
pub const ZINCRBY: Command<Handler> = Command::new(
    Spec::new("zincrby", 4)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])])
        .doc(
            Group::SortedSet,
            "1.2.0",
            "O(log(N)), N being the size of the sorted set.",
            "Adds a number to the score of a member.",
        )
        .args(&[Arg::key("key"), Arg::integer("increment"), Arg::string("member")]),
    zincrby,
);

fn zincrby(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    add_arguments(cx, args, Rule { incr: true, ..Rule::default() })
}

/// The options of ZADD.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rule {
    /// NX: only add members that do not exist.
    pub nx: bool,
    /// XX: only update members that exist.
    pub xx: bool,
    /// GT: only increase scores.
    gt: bool,
    /// LT: only decrease scores.
    lt: bool,
    /// CH: the reply also counts updated members.
    pub ch: bool,
    /// INCR: the number is added to the score, and the reply is the new score.
    incr: bool,
}

/// The effect on a member.
enum Decision {
    Set(f64),
    Leave,
    NotANumber,
}

impl Rule {
    /// Processes an option; returns false if the word is not one.
    #[inline]
    fn take(&mut self, word: &[u8]) -> bool {
        let flag = match word {
            [b'n' | b'N', b'x' | b'X'] => &mut self.nx,
            [b'x' | b'X', b'x' | b'X'] => &mut self.xx,
            [b'g' | b'G', b't' | b'T'] => &mut self.gt,
            [b'l' | b'L', b't' | b'T'] => &mut self.lt,
            [b'c' | b'C', b'h' | b'H'] => &mut self.ch,
            _ if word.eq_ignore_ascii_case(b"incr") => &mut self.incr,
            _ => return false,
        };
        *flag = true;
        true
    }

    fn check(self, pairs: usize) -> Result<(), Error> {
        const BOTH: Error = Error::text("ERR XX and NX options at the same time are not compatible");
        const SEVERAL: Error = Error::text("ERR GT, LT, and/or NX options at the same time are not compatible");
        const ONE_PAIR: Error = Error::text("ERR INCR option supports a single increment-element pair");
        if self.nx && self.xx {
            return Err(BOTH);
        }
        if (self.nx && (self.gt || self.lt)) || (self.gt && self.lt) {
            return Err(SEVERAL);
        }
        if self.incr && pairs > 1 { Err(ONE_PAIR) } else { Ok(()) }
    }

    #[inline]
    fn decide(self, old: Option<f64>, given: f64) -> Decision {
        let Some(old) = old else {
            return if self.xx { Decision::Leave } else { Decision::Set(given) };
        };
        let new = if self.incr { old + given } else { given };
        if self.nx {
            Decision::Leave
        } else if new.is_nan() {
            Decision::NotANumber
        } else if (self.lt && new >= old) || (self.gt && new <= old) {
            Decision::Leave
        } else {
            Decision::Set(new)
        }
    }
}

/// ZADD with the options and pairs from argument 2 on.
fn add_arguments(cx: &mut Context<'_>, args: Args<'_>, mut rule: Rule) -> Result<(), Error> {
    let first = 2 + args.slice_from(2).iter().take_while(|word| rule.take(word)).count();
    let pairs = args.slice_from(first);
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(Error::SYNTAX);
    }
    rule.check(pairs.len() / 2)?;
    let mut scores = SmallVec::<[f64; 4]>::new();
    for text in pairs.iter().step_by(2) {
        scores.push(parse_double(text).ok_or(Error::NOT_FLOAT)?);
    }
    let elements = scores.into_iter().zip(pairs.iter().skip(1).step_by(2));
    add(cx, cx.key(args, 1), rule, elements)
}

/// Adds members with their scores, and replies.
pub(crate) fn add<'a>(
    cx: &mut Context<'_>,
    key: Key<'_>,
    rule: Rule,
    elements: impl ExactSizeIterator<Item = (f64, &'a [u8])> + Clone,
) -> Result<(), Error> {
    let limits = cx.settings.encoding.sorted_set;
    let set = if rule.xx { cx.db.write::<SortedSet>(key)? } else { Some(cx.db.write_or_create::<SortedSet>(key)?.0) };
    let (mut added, mut updated, mut result) = (0u64, 0u64, None);
    if let Some(set) = set {
        let longest = elements.clone().map(|(_, member)| member.len()).max().unwrap_or_default();
        set.expect(elements.len(), longest, limits);
        for (given, member) in elements {
            let mut not_a_number = false;
            let change = set.update(member, limits, |old| match rule.decide(old, given) {
                Decision::Set(score) => {
                    result = Some(score);
                    Some(score)
                }
                Decision::Leave => None,
                Decision::NotANumber => {
                    not_a_number = true;
                    None
                }
            });
            if not_a_number {
                return Err(Error::text("ERR resulting score is not a number (NaN)"));
            }
            added += u64::from(change == Change::Added);
            updated += u64::from(change == Change::Updated);
        }
    }
    if added + updated > 0 {
        let effects = cx.db.effects();
        effects.changed(added + updated);
        effects.notify(EventClass::SORTED_SET, if rule.incr { "zincr" } else { "zadd" }, key.bytes);
    }
    match result {
        Some(score) if rule.incr => cx.reply.double(score),
        None if rule.incr => cx.reply.null(),
        _ => cx.reply.uint(if rule.ch { added + updated } else { added }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::sorted_set::COMMANDS;
    use crate::testing::Bench;

    #[test]
    fn zadd_adds_and_updates() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("ZADD z 1 a 2 b"), ":2");
        assert_eq!(bench.events(), ["new", "zadd"]);
        assert_eq!(bench.run("ZADD z 3 a 3 c"), ":1");
        assert_eq!(bench.run("ZADD z ch 4 a 3 c 1 d"), ":2");
        assert_eq!(bench.run("ZADD z 4 a"), ":0");
        assert!(bench.events().is_empty());
        assert_eq!(bench.run("ZRANGE z 0 -1 WITHSCORES"), "*8 $1 d $1 1 $1 b $1 2 $1 c $1 3 $1 a $1 4");
        assert_eq!(bench.propagated(), ["ZADD z 1 a 2 b", "ZADD z 3 a 3 c", "ZADD z ch 4 a 3 c 1 d"]);
    }

    #[test]
    fn zadd_conditions_decide_what_changes() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("ZADD z XX 1 a"), ":0");
        assert_eq!(bench.run("ZCARD z"), ":0");
        bench.run("ZADD z 5 a");
        assert_eq!(bench.run("ZADD z nx ch 6 a 7 b"), ":1");
        assert_eq!(bench.run("ZADD z xx ch 6 a 7 c"), ":1");
        assert_eq!(bench.run("ZADD z GT CH 5 a 8 b"), ":1");
        assert_eq!(bench.run("ZADD z LT CH 5 a 9 b"), ":1");
        assert_eq!(bench.run("ZMSCORE z a b c"), "*3 $1 5 $1 8 $-1");
        assert_eq!(bench.run("ZADD z INCR NX 1 a"), "$-1");
        assert_eq!(bench.run("ZADD z INCR XX 1 n"), "$-1");
        assert_eq!(bench.run("ZADD z INCR GT 0 a"), "$-1");
        assert_eq!(bench.run("ZADD z INCR GT 1.5 a"), "$3 6.5");
        assert_eq!(bench.events(), ["zincr"]);
    }

    #[test]
    fn conflicting_options_are_rejected() {
        let mut bench = Bench::new(&[COMMANDS]);
        for (words, error) in [
            ("nx xx 1 a", "XX and NX options at the same time are not compatible"),
            ("nx gt 1 a", "GT, LT, and/or NX options at the same time are not compatible"),
            ("lt gt 1 a", "GT, LT, and/or NX options at the same time are not compatible"),
            ("incr 1 a 2 b", "INCR option supports a single increment-element pair"),
            ("1 a 2", "syntax error"),
            ("nx xx", "syntax error"),
            ("x a", "value is not a valid float"),
            ("nan a", "value is not a valid float"),
        ] {
            assert_eq!(bench.run(&format!("ZADD z {words}")), format!("-ERR {error}"), "{words}");
        }
        bench.run("ZADD z inf a");
        assert_eq!(bench.run("ZINCRBY z -inf a"), "-ERR resulting score is not a number (NaN)");
        assert_eq!(bench.run("ZINCRBY z 2 b"), "$1 2");
    }
}
