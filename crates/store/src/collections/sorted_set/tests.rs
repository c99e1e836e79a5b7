//! Tests of sorted sets: both encodings against a model.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const LIMITS: Limits = Limits { entries: 20, value: 16 };
const SMALL_ONLY: Limits = Limits { entries: usize::MAX, value: usize::MAX };

#[derive(Default)]
struct Both {
    set: SortedSet,
    model: HashMap<Vec<u8>, f64>,
}

/// The items of [`Entries`], owned.
fn owned((member, score): (Str<'_>, f64)) -> (Vec<u8>, f64) {
    (member.bytes(&mut IntBuf::default()).to_vec(), score)
}

impl Both {
    fn sorted(&self) -> Vec<(Vec<u8>, f64)> {
        let mut all: Vec<_> = self.model.iter().map(|(member, score)| (member.clone(), *score)).collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        all
    }

    fn insert(&mut self, member: &[u8], score: f64, limits: Limits) {
        let change = self.set.insert(member, score, limits);
        let expected = match self.model.insert(member.to_vec(), score) {
            None => Change::Added,
            Some(old) if old == score => Change::None,
            Some(_) => Change::Updated,
        };
        assert_eq!(change, expected);
    }

    fn remove_range(&mut self, ranks: Range<usize>) {
        let all = self.sorted();
        self.set.remove_range(ranks.clone());
        for (member, _) in all.iter().take(ranks.end).skip(ranks.start) {
            self.model.remove(member);
        }
    }

    fn check(&self) {
        self.set.check();
        let all = self.sorted();
        assert_eq!(self.set.iter().map(owned).collect::<Vec<_>>(), all);
        let (start, end) = (all.len() / 3, all.len() / 3 * 2 + 1);
        let part: Vec<_> = all.iter().take(end).skip(start).cloned().collect();
        assert_eq!(self.set.range(start..end).map(owned).collect::<Vec<_>>(), part);
        let back: Vec<_> = self.set.range_rev(start..end).map(owned).collect();
        assert_eq!(back.into_iter().rev().collect::<Vec<_>>(), part);
        for (rank, (member, score)) in all.iter().enumerate().step_by(all.len() / 20 + 1) {
            assert_eq!(self.set.rank(member), Some((rank, *score)));
            assert_eq!(self.set.score(member), Some(*score));
        }
        assert_eq!((self.set.rank(b"never there"), self.set.score(b"never there")), (None, None));
    }

    fn check_scores_between(&self, low: f64, high: f64) {
        for (behind_low, behind_high) in [(false, false), (false, true), (true, false), (true, true)] {
            let (from, to) =
                (Cut::Score { score: low, behind: behind_low }, Cut::Score { score: high, behind: behind_high });
            let listed: Vec<_> = self.set.range(self.set.ranks(&from, &to)).map(owned).collect();
            let above = |score: f64| if behind_low { score > low } else { score >= low };
            let below = |score: f64| if behind_high { score <= high } else { score < high };
            let mut expected = self.sorted();
            expected.retain(|(_, score)| above(*score) && below(*score));
            assert_eq!(listed, expected);
        }
    }
}

fn member(n: u32) -> Vec<u8> {
    match n % 4 {
        0 => n.to_string().into_bytes(),
        1 => format!("-{n}").into_bytes(),
        2 => format!("member:{n}").into_bytes(),
        _ => vec![b'x', n as u8, (n >> 8) as u8],
    }
}

fn score(n: i32) -> f64 {
    match n % 5 {
        0 => f64::from(n) / 7.0,
        1 if n % 50 == 1 => f64::INFINITY,
        1 if n % 50 == 11 => f64::NEG_INFINITY,
        2 => f64::from(n) * 1e300,
        _ => f64::from(n % 40),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, i32),
    InsertLong(u32),
    InsertMany(u32, u32),
    Remove(u32),
    RemoveRange(usize, usize),
    Between(i32, i32),
    Clone,
    Scan,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..400u32, -500..500i32).prop_map(|(member, score)| Step::Insert(member, score)),
        1 => (0..400u32).prop_map(Step::InsertLong),
        1 => (0..400u32, 0..400u32).prop_map(|(from, count)| Step::InsertMany(from, count)),
        12 => (0..400u32).prop_map(Step::Remove),
        2 => (0..100usize, 0..60usize).prop_map(|(rank, count)| Step::RemoveRange(rank, count)),
        3 => (-50..50i32, -50..50i32).prop_map(|(low, high)| Step::Between(low, high)),
        1 => Just(Step::Clone),
        1 => Just(Step::Scan),
    ]
}

fn run(steps: Vec<Step>, limits: Limits) {
    let mut both = Both::default();
    let mut was_large = false;
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Insert(n, s) => both.insert(&member(n), score(s), limits),
            Step::InsertLong(n) => both.insert(format!("a rather long member {n}").as_bytes(), 1.0, limits),
            Step::InsertMany(from, count) => {
                (from..from + count).for_each(|n| both.insert(&member(n), score(n as i32 * 7), limits));
            }
            Step::Remove(n) => {
                assert_eq!(both.set.remove(&member(n)), both.model.remove(&member(n)).is_some());
            }
            Step::RemoveRange(rank, count) => both.remove_range(rank..rank + count),
            Step::Between(low, high) => both.check_scores_between(f64::from(low), f64::from(high)),
            Step::Clone => {
                let encoding = both.set.encoding();
                both.set = both.set.clone();
                assert_eq!(both.set.encoding(), encoding);
            }
            Step::Scan => {
                let (mut seen, mut cursor) = (HashMap::new(), 0);
                loop {
                    cursor = both.set.scan(cursor, 5, |member, score| {
                        let (member, score) = owned((member, score));
                        seen.insert(member, score);
                    });
                    if cursor == 0 {
                        break;
                    }
                }
                assert_eq!(seen, both.model);
            }
        }
        let fits = both.model.len() <= limits.entries && both.model.keys().all(|m| m.len() <= limits.value);
        was_large |= !fits;
        assert_eq!(both.set.encoding(), if was_large { "skiplist" } else { "listpack" });
        assert_eq!(both.set.len(), both.model.len());
        if number % 8 == 0 {
            both.check();
        }
    }
    both.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 40 }, ..ProptestConfig::default() })]

    #[test]
    fn sorted_set_behaves_as_ordered_map_across_conversion(steps in prop::collection::vec(step(), 1..200)) {
        run(steps, LIMITS);
    }

    #[test]
    fn small_sorted_set_behaves_as_ordered_map(steps in prop::collection::vec(step(), 1..100)) {
        run(steps, SMALL_ONLY);
    }

    #[test]
    fn builder_equals_individual_insertions(pairs in prop::collection::vec((0..60u32, -500..500i32), 0..60)) {
        let (mut builder, mut model) = (Builder::new(), SortedSet::new());
        for (n, s) in pairs {
            builder.update(&member(n), |_| score(s));
            model.insert(&member(n), score(s), LIMITS);
            if n % 7 == 0 {
                builder.remove(&member(n + 1));
                model.remove(&member(n + 1));
            }
        }
        let small = model.len() <= LIMITS.entries;
        let built = builder.build(LIMITS);
        built.check();
        prop_assert!(built.iter().map(owned).eq(model.iter().map(owned)));
        prop_assert_eq!(built.encoding(), if small { "listpack" } else { "skiplist" });
    }

    #[test]
    fn ranges_by_member_are_those_of_the_members(
        members in prop::collection::btree_set("[a-c]{0,4}", 0..60),
        low in "[a-c]{0,4}",
        high in "[a-c]{0,4}",
        behind in any::<(bool, bool)>(),
    ) {
        for limits in [LIMITS, SMALL_ONLY] {
            let mut set = SortedSet::new();
            members.iter().for_each(|member| assert_eq!(set.insert(member.as_bytes(), 3.0, limits), Change::Added));
            let from = Cut::Member { member: low.as_bytes(), behind: behind.0 };
            let to = Cut::Member { member: high.as_bytes(), behind: behind.1 };
            let within = |member: &&String| {
                (if behind.0 { **member > low } else { **member >= low })
                    && (if behind.1 { **member <= high } else { **member < high })
            };
            let expected: Vec<_> = members.iter().filter(within).map(|m| (m.clone().into_bytes(), 3.0)).collect();
            prop_assert_eq!(set.range(set.ranks(&from, &to)).map(owned).collect::<Vec<_>>(), expected);
            prop_assert_eq!(set.ranks(&Cut::Start, &Cut::End), 0..members.len());
            prop_assert_eq!(set.ranks(&Cut::End, &Cut::Start).len(), 0);
        }
    }
}

#[test]
fn small_sets_store_scores_as_integers_or_shortest_text() {
    let mut set = SortedSet::new();
    for (number, score) in [-0.0, 1.0, 0.1, 1e17, 5e18, f64::INFINITY].into_iter().enumerate() {
        set.insert(number.to_string().as_bytes(), score, SMALL_ONLY);
    }
    let scores: Vec<_> = set.listpack().expect("small").iter().skip(1).step_by(2).collect();
    let expected = [
        Str::Int(0),
        Str::Bytes(b"0.1"),
        Str::Int(1),
        Str::Int(100_000_000_000_000_000),
        Str::Bytes(b"5e+18"),
        Str::Bytes(b"inf"),
    ];
    assert_eq!(scores, expected);
    assert_eq!(set.score(b"4"), Some(5e18));
}

#[test]
fn loaded_listpacks_are_validated() {
    let listpack = |words: &[&str]| {
        let mut listpack = Listpack::new();
        words.iter().for_each(|word| listpack.push_back(word.as_bytes()));
        SortedSet::from_listpack(listpack)
    };
    assert!(listpack(&["b", "-inf", "a", "1", "b2", "1", "c", "1.5"]).is_ok_and(|set| set.len() == 4));
    for wrong in [
        &["a"][..],
        &["a", "x"],
        &["a", "nan"],
        &["a", "2", "b", "1"],
        &["b", "1", "a", "1"],
        &["a", "1", "a", "1"],
        &["a", "1", "a", "2"],
        &["a", "1", "b"],
    ] {
        assert!(listpack(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn large_sets_use_little_memory() {
    let mut set = SortedSet::new();
    let count = if cfg!(miri) { 500 } else { 40_000u64 };
    for n in 0..count {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        set.insert(format!("member:{n:012}").as_bytes(), mixed as f64, LIMITS);
    }
    let each = set.memory(0) as f64 / count as f64;
    assert!(each < 56.0 || cfg!(miri), "{each}");
    assert!(set.free_effort() > count as usize);
}
