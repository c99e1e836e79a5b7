//! ZRANDMEMBER.

use std::collections::HashSet;

use kvick_resp::Args;
use kvick_store::{Collection, SortedSet};

use super::{integer, reply_element, reply_list, reply_member};
use crate::context::{Context, Error, Handler};
use crate::random;
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// `ZRANDMEMBER key [count [WITHSCORES]]`
pub const ZRANDMEMBER: Command<Handler> = Command::new(
    Spec::new("zrandmember", -2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SORTEDSET])
        .tips(&["nondeterministic_output"])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::SortedSet,
            "6.2.0",
            "O(N), N being the number of members returned.",
            "Returns members of a sorted set, chosen at random.",
        )
        .args(&[
            Arg::key("key"),
            Arg::block("options", &[Arg::integer("count"), Arg::word("withscores", "WITHSCORES").optional()])
                .optional(),
        ]),
    zrandmember,
);

fn zrandmember(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const OUT_OF_RANGE: Error = Error::text("ERR value is out of range");
    const COUNT_OUT_OF_RANGE: Error =
        Error::text("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");
    let key = cx.key(args, 1);
    if args.len() == 2 {
        let set = cx.db.read::<SortedSet>(key)?;
        match set.and_then(|set| nth(set, random_below(set.len()))) {
            Some((member, _)) => reply_member(&mut cx.reply, member),
            None => cx.reply.null(),
        }
        return Ok(());
    }
    let count = integer(args, 2)?;
    if count == i64::MIN {
        return Err(COUNT_OUT_OF_RANGE);
    }
    let with_scores = match args.get(3) {
        None => false,
        Some(word) if args.len() == 4 && word.eq_ignore_ascii_case(b"withscores") => true,
        Some(_) => return Err(Error::SYNTAX),
    };
    if with_scores && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(OUT_OF_RANGE);
    }
    let end_max = cx.reply_end_max();
    match cx.db.read::<SortedSet>(key)? {
        None => cx.reply.array(0),
        Some(set) => {
            let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
            let wanted = if count > 0 { wanted.min(set.len()) } else { wanted };
            reply_list(&mut cx.reply, wanted, with_scores);
            if count > 0 {
                choose_different(set, wanted, |entry| reply_element(&mut cx.reply, entry, with_scores));
            } else {
                let draws = (0..wanted).filter_map(|_| nth(set, random_below(set.len())));
                for entry in draws {
                    reply_element(&mut cx.reply, entry, with_scores);
                    if cx.reply.position() > end_max {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

type Entry<'a> = (kvick_store::Str<'a>, f64);

/// The element with rank `rank`.
fn nth(set: &SortedSet, rank: usize) -> Option<Entry<'_>> {
    set.range(rank..rank + 1).next()
}

/// A random number below `len`, which must not be 0.
fn random_below(len: usize) -> usize {
    // The upper half of the product is uniformly distributed over 0..len.
    ((u128::from(random::next()) * len as u128) >> 64) as usize
}

/// Emits `count` distinct elements; the set has at least that many. Every subset is equally likely.
fn choose_different<'a>(set: &'a SortedSet, count: usize, mut emit: impl FnMut(Entry<'a>)) {
    /// Up to this fraction of a large set, drawing until all are distinct is faster.
    const DRAWN_PART: usize = 8;
    let len = set.len();
    if count <= len / DRAWN_PART && set.listpack().is_none() {
        let mut drawn = HashSet::with_capacity(count);
        while drawn.len() < count {
            let rank = random_below(len);
            if drawn.insert(rank) {
                nth(set, rank).into_iter().for_each(&mut emit);
            }
        }
        return;
    }
    // Knuth's selection sampling: each element is taken with the probability (still needed) / (remaining).
    let mut needed = count;
    for (passed, entry) in set.iter().enumerate() {
        if random_below(len - passed) < needed {
            emit(entry);
            needed -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sorted_set::COMMANDS;
    use crate::testing::Bench;
    use std::collections::HashMap;

    fn members(reply: &str) -> Vec<String> {
        reply.split(' ').filter(|word| !word.starts_with(['*', '$'])).map(str::to_owned).collect()
    }

    #[test]
    fn random_members_are_uniform() {
        let mut bench = Bench::new(&[COMMANDS]);
        for entries in [0, 128] {
            bench.settings.encoding.sorted_set.entries = entries;
            let pairs: String = (0..40).map(|n| format!(" {n} m{n}")).collect();
            bench.run(&format!("ZADD z{pairs}"));
            for count in ["", " 3", " 30", " -5"] {
                let mut seen = HashMap::<String, usize>::new();
                let mut drawn = 0;
                while drawn < 8000 {
                    let chosen = members(&bench.run(&format!("ZRANDMEMBER z{count}")));
                    drawn += chosen.len();
                    let before = seen.values().sum::<usize>();
                    chosen.into_iter().for_each(|member| *seen.entry(member).or_default() += 1);
                    assert!(seen.values().sum::<usize>() > before);
                }
                // Ten standard deviations from the mean of 200.
                assert!(seen.len() == 40 && seen.values().all(|n| (60..350).contains(n)), "{count}: {seen:?}");
            }
        }
    }

    #[test]
    fn sign_of_count_chooses_distinct_or_repeated() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("ZRANDMEMBER z"), "$-1");
        assert_eq!(bench.run("ZRANDMEMBER z 3"), "*0");
        for entries in [0, 128] {
            bench.settings.encoding.sorted_set.entries = entries;
            bench.run("ZADD z 1 a 2 b 3 c");
            assert_eq!(bench.run("ZRANDMEMBER z 0"), "*0");
            let mut all = members(&bench.run("ZRANDMEMBER z 10"));
            all.sort();
            assert_eq!(all, ["a", "b", "c"]);
            assert_eq!(members(&bench.run("ZRANDMEMBER z -10")).len(), 10);
            assert_eq!(members(&bench.run("ZRANDMEMBER z -10 WITHSCORES")).len(), 20);
            bench.run("ZREM z a b c");
        }
    }

    #[test]
    fn too_large_counts_are_rejected() {
        let mut bench = Bench::new(&[COMMANDS]);
        let range = "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
        assert_eq!(bench.run("ZRANDMEMBER z -9223372036854775808"), range);
        assert_eq!(bench.run("ZRANDMEMBER z 4611686018427387904 WITHSCORES"), "-ERR value is out of range");
        assert_eq!(bench.run("ZRANDMEMBER z 1 WITH"), "-ERR syntax error");
        assert_eq!(bench.run("ZRANDMEMBER z x"), "-ERR value is not an integer or out of range");
    }
}
