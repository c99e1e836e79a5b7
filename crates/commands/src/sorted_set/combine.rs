//! Union, intersection and difference of several sorted sets. A plain set counts as a sorted set whose scores are all
//! 1.
//!
//! The inputs are first looked up one by one ([`Request::parse`]), which counts hits and misses, and then viewed
//! together.

use kvick_resp::Args;
use kvick_resp::format::{parse_double, parse_i64};
use kvick_store::collections::set;
use kvick_store::collections::sorted_set::{Builder, Entries, Limits};
use kvick_store::{Collection, IntBuf, Kind, Set, SortedSet, Str};

use super::{integer, reply_element, reply_list, store_result};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// `ZUNION numkeys key [key ...] [WEIGHTS weight [WEIGHTS weight ...]] [AGGREGATE SUM | MIN | MAX] [WITHSCORES]`
pub const ZUNION: Command<Handler> = Command::new(
    Spec::new("zunion", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::counted(1, 1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "6.2.0",
            "O(N)+O(M*log(M)), N being the number of elements of all sets and M of the result.",
            "Lists the members that any of several sorted sets has.",
        )
        .args(&[
            Arg::integer("numkeys"),
            Arg::key("key").multiple(),
            Arg::integer("weight").token("WEIGHTS").optional().multiple(),
            Arg::one_of("aggregate", &[Arg::word("sum", "SUM"), Arg::word("min", "MIN"), Arg::word("max", "MAX")])
                .token("AGGREGATE")
                .optional(),
            Arg::word("withscores", "WITHSCORES").optional(),
        ]),
    zunion,
);

fn zunion(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, "zunion", Operation::Union)
}

/// `ZINTER numkeys key [key ...] [WEIGHTS weight [WEIGHTS weight ...]] [AGGREGATE SUM | MIN | MAX] [WITHSCORES]`
pub const ZINTER: Command<Handler> = Command::new(
    Spec::new("zinter", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::counted(1, 1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "6.2.0",
            "O(N*K)+O(M*log(M)) at worst, N being the size of the smallest of K sets and M that of the result.",
            "Lists the members that several sorted sets have in common.",
        )
        .args(&[
            Arg::integer("numkeys"),
            Arg::key("key").multiple(),
            Arg::integer("weight").token("WEIGHTS").optional().multiple(),
            Arg::one_of("aggregate", &[Arg::word("sum", "SUM"), Arg::word("min", "MIN"), Arg::word("max", "MAX")])
                .token("AGGREGATE")
                .optional(),
            Arg::word("withscores", "WITHSCORES").optional(),
        ]),
    zinter,
);

fn zinter(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, "zinter", Operation::Intersection)
}

/// `ZDIFF numkeys key [key ...] [WITHSCORES]`
pub const ZDIFF: Command<Handler> = Command::new(
    Spec::new("zdiff", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::counted(1, 1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "6.2.0",
            "O(L + (N-K)log(N)) at worst, L being the number of elements of all sets, N of the first and K of the \
             result.",
            "Lists the members of the first sorted set that no other one has.",
        )
        .args(&[Arg::integer("numkeys"), Arg::key("key").multiple(), Arg::word("withscores", "WITHSCORES").optional()]),
    zdiff,
);

fn zdiff(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    list(cx, args, "zdiff", Operation::Difference)
}

/// ZUNIONSTORE destination numkeys key [key ...] [WEIGHTS weight [WEIGHTS weight ...]] [AGGREGATE SUM | MIN | MAX]
pub const ZUNIONSTORE: Command<Handler> = Command::new(
    Spec::new("zunionstore", -4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::SORTEDSET])
        .keys(&[
            KeySpec::at(1, &[KeyFlags::OW, KeyFlags::UPDATE]),
            KeySpec::counted(2, 1, &[KeyFlags::RO, KeyFlags::ACCESS]),
        ])
        .doc(
            Group::SortedSet,
            "2.0.0",
            "O(N)+O(M log(M)), N being the number of elements of all sets and M of the result.",
            "Stores the members that any of several sorted sets has.",
        )
        .args(&[
            Arg::key("destination"),
            Arg::integer("numkeys"),
            Arg::key("key").key_spec(1).multiple(),
            Arg::integer("weight").token("WEIGHTS").optional().multiple(),
            Arg::one_of("aggregate", &[Arg::word("sum", "SUM"), Arg::word("min", "MIN"), Arg::word("max", "MAX")])
                .token("AGGREGATE")
                .optional(),
        ]),
    zunionstore,
);

fn zunionstore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    store(cx, args, "zunionstore", Operation::Union)
}

/// ZINTERSTORE destination numkeys key [key ...] [WEIGHTS weight [WEIGHTS weight ...]] [AGGREGATE SUM | MIN | MAX]
pub const ZINTERSTORE: Command<Handler> = Command::new(
    Spec::new("zinterstore", -4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::SORTEDSET])
        .keys(&[
            KeySpec::at(1, &[KeyFlags::OW, KeyFlags::UPDATE]),
            KeySpec::counted(2, 1, &[KeyFlags::RO, KeyFlags::ACCESS]),
        ])
        .doc(
            Group::SortedSet,
            "2.0.0",
            "O(N*K)+O(M*log(M)) at worst, N being the size of the smallest of K sets and M that of the result.",
            "Stores the members that several sorted sets have in common.",
        )
        .args(&[
            Arg::key("destination"),
            Arg::integer("numkeys"),
            Arg::key("key").key_spec(1).multiple(),
            Arg::integer("weight").token("WEIGHTS").optional().multiple(),
            Arg::one_of("aggregate", &[Arg::word("sum", "SUM"), Arg::word("min", "MIN"), Arg::word("max", "MAX")])
                .token("AGGREGATE")
                .optional(),
        ]),
    zinterstore,
);

fn zinterstore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    store(cx, args, "zinterstore", Operation::Intersection)
}

/// ZDIFFSTORE destination numkeys key [key ...]
pub const ZDIFFSTORE: Command<Handler> = Command::new(
    Spec::new("zdiffstore", -4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::SORTEDSET])
        .keys(&[
            KeySpec::at(1, &[KeyFlags::OW, KeyFlags::UPDATE]),
            KeySpec::counted(2, 1, &[KeyFlags::RO, KeyFlags::ACCESS]),
        ])
        .doc(
            Group::SortedSet,
            "6.2.0",
            "O(L + (N-K)log(N)) at worst, L being the number of elements of all sets, N of the first and K of the \
             result.",
            "Stores the members of the first sorted set that no other one has.",
        )
        .args(&[Arg::key("destination"), Arg::integer("numkeys"), Arg::key("key").key_spec(1).multiple()]),
    zdiffstore,
);

fn zdiffstore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    store(cx, args, "zdiffstore", Operation::Difference)
}

/// ZINTERCARD numkeys key [key ...] [LIMIT limit]
pub const ZINTERCARD: Command<Handler> = Command::new(
    Spec::new("zintercard", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .keys(&[KeySpec::counted(1, 1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "7.0.0",
            "O(N*K) at worst, N being the size of the smallest of K sets.",
            "Counts the members that several sorted sets have in common.",
        )
        .args(&[Arg::integer("numkeys"), Arg::key("key").multiple(), Arg::integer("limit").token("LIMIT").optional()]),
    zintercard,
);

fn zintercard(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = Request::parse(cx, args, "zintercard", 1, Operation::Cardinality)?;
    let mut common = 0;
    let inputs = request.inputs(cx, args);
    intersect(inputs, request.aggregate, |_, _| {
        common += 1;
        common != request.limit
    });
    cx.reply.uint(common as u64);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
    /// Intersection of which only the size is needed.
    Cardinality,
}

/// The aggregation of the scores of a member that several sets contain.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, score: f64, other: f64) -> f64 {
        match self {
            // The sum of infinities of opposite signs is zero.
            Aggregate::Sum => number_or_zero(score + other),
            Aggregate::Min if other < score => other,
            Aggregate::Max if other > score => other,
            Aggregate::Min | Aggregate::Max => score,
        }
    }
}

fn number_or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// The parsed arguments.
struct Request {
    /// The argument index of the first key; there are as many keys as weights.
    first: usize,
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
    /// Maximum number of common members to count; 0 means no limit.
    limit: usize,
}

impl Request {
    /// Parses the arguments from the number of keys at index `at` on, and looks the keys up.
    fn parse(
        cx: &mut Context<'_>,
        args: Args<'_>,
        name: &str,
        at: usize,
        operation: Operation,
    ) -> Result<Request, Error> {
        let first = at + 1;
        let count = match usize::try_from(integer(args, at)?) {
            Ok(count @ 1..) => count,
            _ => return Err(Error::new(format!("ERR at least 1 input key is needed for '{name}' command"))),
        };
        if count > args.len() - first {
            return Err(Error::SYNTAX);
        }
        for index in first..first + count {
            let key = cx.key(args, index);
            let kind = cx.db.get(key).map(|entry| entry.kind());
            if !matches!(kind, None | Some(Kind::SortedSet | Kind::Set)) {
                return Err(Error::WRONG_TYPE);
            }
        }
        let mut request =
            Request { first, weights: vec![1.0; count], aggregate: Aggregate::Sum, with_scores: false, limit: 0 };
        request.parse_options(args.slice_from(first + count), at == 2, operation)?;
        Ok(request)
    }

    fn parse_options(&mut self, words: Args<'_>, stored: bool, operation: Operation) -> Result<(), Error> {
        const NOT_WEIGHT: Error = Error::text("ERR weight value is not a float");
        const NEGATIVE: Error = Error::text("ERR LIMIT can't be negative");
        let combines = matches!(operation, Operation::Union | Operation::Intersection);
        let counts = operation == Operation::Cardinality;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
            if combines && words.len() >= self.weights.len() && is(b"weights") {
                for weight in &mut self.weights {
                    *weight = words.next().and_then(parse_double).ok_or(NOT_WEIGHT)?;
                }
            } else if combines && words.len() >= 1 && is(b"aggregate") {
                self.aggregate = match words.next() {
                    Some(word) if word.eq_ignore_ascii_case(b"sum") => Aggregate::Sum,
                    Some(word) if word.eq_ignore_ascii_case(b"min") => Aggregate::Min,
                    Some(word) if word.eq_ignore_ascii_case(b"max") => Aggregate::Max,
                    _ => return Err(Error::SYNTAX),
                };
            } else if !stored && !counts && is(b"withscores") {
                self.with_scores = true;
            } else if counts && words.len() >= 1 && is(b"limit") {
                let limit = words.next().and_then(parse_i64).ok_or(NEGATIVE)?;
                self.limit = usize::try_from(limit).map_err(|_| NEGATIVE)?;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        Ok(())
    }

    /// Views the inputs, which have been looked up.
    fn inputs<'a>(&self, cx: &'a Context<'_>, args: Args<'_>) -> Vec<Input<'a>> {
        let view = |index| {
            let key = cx.key(args, index);
            match cx.db.view::<SortedSet>(key) {
                Some(set) => Source::Sorted(set),
                None => cx.db.view::<Set>(key).map_or(Source::Missing, Source::Plain),
            }
        };
        let weights = self.weights.iter().copied().enumerate();
        weights.map(|(number, weight)| Input { source: view(self.first + number), weight }).collect()
    }
}

#[derive(Clone, Copy)]
struct Input<'a> {
    source: Source<'a>,
    weight: f64,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Missing,
    Sorted(&'a SortedSet),
    Plain(&'a Set),
}

impl<'a> Source<'a> {
    fn len(self) -> usize {
        match self {
            Source::Missing => 0,
            Source::Sorted(set) => set.len(),
            Source::Plain(set) => set.len(),
        }
    }

    /// The score of a member.
    fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            Source::Missing => None,
            Source::Sorted(set) => set.score(member),
            Source::Plain(set) => set.contains(member).then_some(1.0),
        }
    }

    fn iter(self) -> Elements<'a> {
        match self {
            Source::Missing => Elements::None,
            Source::Sorted(set) => Elements::Sorted(set.iter()),
            Source::Plain(set) => Elements::Plain(set.iter()),
        }
    }
}

enum Elements<'a> {
    None,
    Sorted(Entries<'a>),
    Plain(set::Iter<'a>),
}

impl<'a> Iterator for Elements<'a> {
    type Item = (Str<'a>, f64);

    fn next(&mut self) -> Option<(Str<'a>, f64)> {
        match self {
            Elements::None => None,
            Elements::Sorted(entries) => entries.next(),
            Elements::Plain(members) => members.next().map(|member| (member, 1.0)),
        }
    }
}

/// Visits the members that all inputs contain, with their scores, until `visit` stops it.
fn intersect(mut inputs: Vec<Input<'_>>, aggregate: Aggregate, mut visit: impl FnMut(&[u8], f64) -> bool) {
    inputs.sort_by_key(|input| input.source.len());
    let Some((smallest, others)) = inputs.split_first() else { return };
    for (member, score) in smallest.source.iter() {
        let mut digits = IntBuf::default();
        let member = member.bytes(&mut digits);
        let score = others.iter().try_fold(number_or_zero(smallest.weight * score), |score, other| {
            Some(aggregate.of(score, other.source.score(member)? * other.weight))
        });
        if score.is_some_and(|score| !visit(member, score)) {
            return;
        }
    }
}

fn unite(mut inputs: Vec<Input<'_>>, aggregate: Aggregate) -> Builder {
    let mut result = Builder::new();
    inputs.sort_by_key(|input| input.source.len());
    for input in inputs {
        for (member, score) in input.source.iter() {
            let score = number_or_zero(input.weight * score);
            result
                .update(member.bytes(&mut IntBuf::default()), |old| old.map_or(score, |old| aggregate.of(old, score)));
        }
    }
    result
}

fn subtract(inputs: &[Input<'_>]) -> Builder {
    let mut result = Builder::new();
    let Some((first, others)) = inputs.split_first() else { return result };
    // Either look up every member of the first in the others, or remove the members of the others from a copy of the
    // first. A lookup costs half as much as a removal.
    let lookups = first.source.len().saturating_mul(inputs.len()) / 2;
    let changes: usize = inputs.iter().map(|input| input.source.len()).sum();
    let by_lookup = lookups <= changes;
    for (member, score) in first.source.iter() {
        let mut digits = IntBuf::default();
        let member = member.bytes(&mut digits);
        if !by_lookup || others.iter().all(|other| other.source.score(member).is_none()) {
            result.update(member, |_| score);
        }
    }
    if !by_lookup {
        for (member, _) in others.iter().flat_map(|other| other.source.iter()) {
            result.remove(member.bytes(&mut IntBuf::default()));
        }
    }
    result
}

impl Operation {
    fn result(self, inputs: Vec<Input<'_>>, aggregate: Aggregate) -> Builder {
        match self {
            Operation::Union => unite(inputs, aggregate),
            Operation::Difference => subtract(&inputs),
            Operation::Intersection | Operation::Cardinality => {
                let mut result = Builder::new();
                intersect(inputs, aggregate, |member, score| {
                    result.update(member, |_| score);
                    true
                });
                result
            }
        }
    }
}

/// Replies with the result.
fn list(cx: &mut Context<'_>, args: Args<'_>, name: &str, operation: Operation) -> Result<(), Error> {
    let request = Request::parse(cx, args, name, 1, operation)?;
    // Scores are returned as computed. A listpack would not preserve them: it has no minus zero.
    let no_listpack = Limits { entries: 0, value: 0 };
    let result = operation.result(request.inputs(cx, args), request.aggregate).build(no_listpack);
    reply_list(&mut cx.reply, result.len(), request.with_scores);
    for entry in result.iter() {
        reply_element(&mut cx.reply, entry, request.with_scores);
    }
    Ok(())
}

/// Stores the result.
fn store(cx: &mut Context<'_>, args: Args<'_>, name: &'static str, operation: Operation) -> Result<(), Error> {
    let request = Request::parse(cx, args, name, 2, operation)?;
    let result = operation.result(request.inputs(cx, args), request.aggregate).build(cx.settings.encoding.sorted_set);
    let len = store_result(cx, cx.key(args, 1), result, name, 1);
    cx.reply.uint(len as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::sorted_set::COMMANDS;
    use crate::string;
    use crate::testing::Bench;
    use kvick_resp::Version;

    fn bench() -> Bench {
        let mut bench = Bench::new(&[COMMANDS, string::COMMANDS, crate::set::COMMANDS]);
        bench.run("ZADD a 1 x 2 y 3 z");
        bench.run("ZADD b 10 y 20 z 30 w");
        bench
    }

    #[test]
    fn sets_are_combined_and_listed() {
        let mut bench = bench();
        assert_eq!(bench.run("ZUNION 2 a b WITHSCORES"), "*8 $1 x $1 1 $1 y $2 12 $1 z $2 23 $1 w $2 30");
        assert_eq!(bench.run("ZINTER 2 a b withscores"), "*4 $1 y $2 12 $1 z $2 23");
        assert_eq!(bench.run("ZINTER 2 a b WEIGHTS 2 -1 AGGREGATE MIN WITHSCORES"), "*4 $1 z $3 -20 $1 y $3 -10");
        assert_eq!(bench.run("ZUNION 2 a b AGGREGATE max"), "*4 $1 x $1 y $1 z $1 w");
        assert_eq!(bench.run("ZDIFF 2 a b WITHSCORES"), "*2 $1 x $1 1");
        assert_eq!(bench.run("ZDIFF 2 a a"), "*0");
        assert_eq!(bench.run("ZDIFF 3 n a b"), "*0");
        assert_eq!(bench.run("ZINTER 2 a n"), "*0");
        assert_eq!(bench.run("ZINTERCARD 2 a b"), ":2");
        assert_eq!(bench.run("ZINTERCARD 2 a b LIMIT 1"), ":1");
        assert_eq!(bench.run("ZINTERCARD 2 a b LIMIT 0"), ":2");
        bench.version = Version::Resp3;
        assert_eq!(bench.run("ZINTER 2 a b WITHSCORES"), "*2 *2 $1 y ,12 *2 $1 z ,23");
    }

    #[test]
    fn stored_results_replace_the_destination() {
        let mut bench = bench();
        bench.run("SET d text");
        assert_eq!(bench.run("ZUNIONSTORE d 2 a b"), ":4");
        assert_eq!(bench.events(), ["zunionstore"]);
        assert_eq!(bench.run("ZINTERSTORE d 2 d a WEIGHTS 0 inf"), ":3");
        assert_eq!(bench.run("ZSCORE d x"), "$3 inf");
        assert_eq!(bench.run("ZDIFFSTORE d 2 d a"), ":0");
        assert_eq!(bench.events(), ["del"]);
        assert_eq!(bench.run("ZDIFFSTORE d 2 d a"), ":0");
        assert_eq!(bench.propagated().len(), 6);
    }

    #[test]
    fn plain_sets_are_combined_with_score_one() {
        let mut bench = bench();
        bench.run("SADD s x y 7");
        assert_eq!(
            bench.run("ZUNION 2 a s WEIGHTS 1 0.5 WITHSCORES"),
            "*8 $1 7 $3 0.5 $1 x $3 1.5 $1 y $3 2.5 $1 z $1 3"
        );
        assert_eq!(bench.run("ZINTERCARD 2 s a"), ":2");
        assert_eq!(bench.run("ZDIFF 2 s a"), "*1 $1 7");
        bench.run("SADD i 1 2 3");
        bench.run("ZADD n 5 2 5 03");
        assert_eq!(bench.run("ZINTER 2 i n WITHSCORES"), "*2 $1 2 $1 6");
    }

    #[test]
    fn both_difference_algorithms_agree() {
        let mut bench = Bench::new(&[COMMANDS]);
        let pairs = |range: std::ops::Range<u32>| range.map(|n| format!(" {n} m{n}")).collect::<String>();
        bench.run(&format!("ZADD a{}", pairs(0..100)));
        (0..4).for_each(|set| drop(bench.run(&format!("ZADD few{set}{}", pairs(set * 3..set * 3 + 2)))));
        bench.run(&format!("ZADD many{}", pairs(10..300)));
        assert_eq!(bench.run("ZDIFFSTORE d 5 a few0 few1 few2 few3"), ":92");
        assert_eq!(bench.run("ZDIFFSTORE e 2 d many"), ":3");
        assert_eq!(bench.run("ZRANGE e 0 -1 WITHSCORES"), "*6 $2 m2 $1 2 $2 m5 $1 5 $2 m8 $1 8");
    }

    #[test]
    fn infinities_never_produce_nan_scores() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("ZADD a inf x");
        bench.run("ZADD b -inf x");
        assert_eq!(bench.run("ZUNION 2 a b WITHSCORES"), "*2 $1 x $1 0");
        assert_eq!(bench.run("ZINTER 2 a b WEIGHTS 0 1 AGGREGATE MAX WITHSCORES"), "*2 $1 x $1 0");
        assert_eq!(bench.run("ZINTER 2 a b WEIGHTS 1 0 AGGREGATE MIN WITHSCORES"), "*2 $1 x $3 inf");
    }

    #[test]
    fn invalid_options_are_rejected() {
        let mut bench = bench();
        bench.run("SET s 1");
        for (command, error) in [
            ("ZUNION 0 a", "ERR at least 1 input key is needed for 'zunion' command"),
            ("ZDIFFSTORE d -1 a", "ERR at least 1 input key is needed for 'zdiffstore' command"),
            ("ZUNION x a", "ERR value is not an integer or out of range"),
            ("ZUNION 3 a b", "ERR syntax error"),
            ("ZUNION 9223372036854775807 a b", "ERR syntax error"),
            ("ZUNION 2 a s wrong", "WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("ZUNION 2 a b WEIGHTS 1", "ERR syntax error"),
            ("ZUNION 2 a b WEIGHTS 1 x", "ERR weight value is not a float"),
            ("ZUNION 2 a b AGGREGATE avg", "ERR syntax error"),
            ("ZUNIONSTORE d 2 a b WITHSCORES", "ERR syntax error"),
            ("ZDIFF 2 a b WEIGHTS 1 2", "ERR syntax error"),
            ("ZINTERCARD 2 a b WITHSCORES", "ERR syntax error"),
            ("ZINTERCARD 2 a b LIMIT -1", "ERR LIMIT can't be negative"),
            ("ZINTERCARD 2 a b LIMIT x", "ERR LIMIT can't be negative"),
            ("ZINTER 2 a b LIMIT 1", "ERR syntax error"),
        ] {
            assert_eq!(bench.run(command), format!("-{error}"), "{command}");
        }
    }
}
