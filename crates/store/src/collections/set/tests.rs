//! Tests of sets: the conditions of conversion, and all encodings against a model.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const LIMITS: Limits = Limits { intset_entries: 20, listpack_entries: 12, listpack_value: 16 };

fn text(member: Str<'_>) -> Vec<u8> {
    member.bytes(&mut IntBuf::default()).to_vec()
}

fn listed(set: &Set) -> BTreeSet<Vec<u8>> {
    let all: Vec<_> = set.iter().map(text).collect();
    let different: BTreeSet<_> = all.iter().cloned().collect();
    assert_eq!((all.len(), set.len()), (different.len(), different.len()));
    different
}

fn of(members: &[&str], limits: &Limits) -> Set {
    let mut set = Set::for_first(members[0].as_bytes(), members.len(), limits);
    members.iter().for_each(|member| assert!(set.insert(member.as_bytes(), limits), "{member}"));
    set
}

fn random() -> impl FnMut() -> u64 {
    let mut state = 7u64;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state ^ state >> 31
    }
}

#[test]
fn first_member_and_size_hint_determine_encoding() {
    let form = |member: &str, coming| Set::for_first(member.as_bytes(), coming, &LIMITS).encoding();
    assert_eq!((form("1", 20), form("1", 21)), ("intset", "hashtable"));
    assert_eq!((form("a", 12), form("a", 13)), ("listpack", "hashtable"));
    assert_eq!((form("01", 1), form("-5", 1), form("9223372036854775808", 1)), ("listpack", "intset", "listpack"));
}

#[test]
fn each_encoding_respects_its_limit() {
    let numbers: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    let words: Vec<String> = (0..30).map(|n| format!("w{n}")).collect();
    let form_of = |members: &[String], count: usize| {
        let mut set = Set::for_first(members[0].as_bytes(), 1, &LIMITS);
        members[..count].iter().for_each(|member| assert!(set.insert(member.as_bytes(), &LIMITS)));
        set.encoding()
    };
    assert_eq!((form_of(&numbers, 20), form_of(&numbers, 21)), ("intset", "hashtable"));
    assert_eq!((form_of(&words, 12), form_of(&words, 13)), ("listpack", "hashtable"));
    let long = "x".repeat(16);
    assert_eq!(of(&[&long], &LIMITS).encoding(), "listpack");
    assert_eq!(of(&[&(long + "x")], &LIMITS).encoding(), "hashtable");
}

#[test]
fn adding_a_string_converts_intset_to_listpack_if_it_fits() {
    let with_word = |count: i64, step: i64, word: &str| {
        let mut set = Set::of_integers();
        (0..count).for_each(|n| assert!(set.insert((n * step).to_string().as_bytes(), &LIMITS)));
        assert!(set.insert(word.as_bytes(), &LIMITS));
        assert_eq!(set.len() as i64, count + 1);
        set.encoding()
    };
    assert_eq!((with_word(11, 1, "w"), with_word(12, 1, "w")), ("listpack", "hashtable"));
    assert_eq!((with_word(2, 1, "a word of seventeen"), with_word(0, 1, "w")), ("hashtable", "listpack"));
    assert_eq!((with_word(2, 1 << 48, "w"), with_word(2, -(1 << 55), "w")), ("listpack", "hashtable"));
}

#[test]
fn size_hint_above_the_limit_creates_a_table() {
    let mut set = of(&["1"], &LIMITS);
    set.expect(20, &LIMITS);
    assert_eq!(set.encoding(), "intset");
    set.expect(21, &LIMITS);
    assert_eq!(set.encoding(), "hashtable");
    let mut set = of(&["w"], &LIMITS);
    set.expect(13, &LIMITS);
    assert_eq!((set.encoding(), set.contains(b"w")), ("hashtable", true));
}

#[test]
fn only_integer_sets_convert_back_to_intset() {
    let mut set = of(&["1", "w"], &LIMITS);
    set.narrow(&LIMITS);
    assert_eq!(set.encoding(), "listpack");
    assert!(set.remove(b"w"));
    set.narrow(&LIMITS);
    assert_eq!(set.encoding(), "intset");
    let mut set = Set::table();
    (0..21).for_each(|n: i32| assert!(set.insert(n.to_string().as_bytes(), &LIMITS)));
    set.narrow(&LIMITS);
    assert_eq!(set.encoding(), "hashtable");
    assert!(set.remove(b"3"));
    set.narrow(&LIMITS);
    assert_eq!((set.encoding(), set.len(), set.contains(b"3")), ("intset", 20, false));
}

/// One set in each encoding.
fn of_each_form() -> [Set; 3] {
    let wide = Limits { intset_entries: 1000, listpack_entries: 1000, listpack_value: 100 };
    let numbers: Vec<String> = (0..60).map(|n| (n * 1000).to_string()).collect();
    let words: Vec<String> = (0..60).map(|n| format!("{}{n}", if n % 2 == 0 { "w" } else { "" })).collect();
    let [numbers, words] = [&numbers, &words].map(|list| list.iter().map(String::as_str).collect::<Vec<_>>());
    let mut table = of(&words, &wide);
    table.expect(1001, &wide);
    let sets = [of(&numbers, &wide), of(&words, &wide), table];
    assert_eq!(sets.each_ref().map(|set| set.encoding()), ["intset", "listpack", "hashtable"]);
    sets
}

#[test]
fn random_members_are_uniform_in_every_encoding() {
    let mut random = random();
    for set in of_each_form() {
        let mut hits = std::collections::HashMap::<Vec<u8>, u32>::new();
        for _ in 0..300 * 60 {
            *hits.entry(text(set.random(&mut random).expect("not empty"))).or_default() += 1;
        }
        assert!(hits.len() == 60 && hits.values().all(|hits| hits.abs_diff(300) < 110), "{hits:?}");
        for count in [1, 19, 21, 59] {
            let mut hits = std::collections::HashMap::<Vec<u8>, u32>::new();
            let rounds = 300 * 60 / count;
            for _ in 0..rounds {
                let mut seen = BTreeSet::new();
                set.sample(count, &mut random, |member| assert!(seen.insert(text(member))));
                assert_eq!(seen.len(), count);
                seen.into_iter().for_each(|member| *hits.entry(member).or_default() += 1);
            }
            let mean = (rounds * count / 60) as u32;
            assert!(hits.len() == 60 && hits.values().all(|hits| hits.abs_diff(mean) < 110), "{count}: {hits:?}");
        }
        let mut seen = 0;
        set.sample(1000, &mut random, |_| seen += 1);
        assert_eq!(seen, 60);
    }
}

#[test]
fn popping_takes_every_member_once() {
    let mut random = random();
    for mut set in of_each_form() {
        let (all, mut popped) = (listed(&set), BTreeSet::new());
        while let Some(member) = set.pop(&mut random, text) {
            assert!(!set.contains(&member) && popped.insert(member));
            assert_eq!(set.len() + popped.len(), 60);
        }
        assert_eq!(popped, all);
        assert!(set.is_empty() && set.random(&mut random).is_none());
    }
}

#[test]
fn copy_keeps_the_encoding() {
    for set in of_each_form() {
        let copy = set.clone();
        assert_eq!((copy.encoding(), listed(&copy)), (set.encoding(), listed(&set)));
        assert_eq!(copy.memory(0), set.memory(0));
    }
}

#[test]
fn scan_returns_compact_encodings_at_once_and_tables_in_parts() {
    for set in of_each_form() {
        let (mut cursor, mut calls, mut seen) = (0, 0, BTreeSet::new());
        loop {
            cursor = set.scan(cursor, 5, |member| {
                seen.insert(text(member));
            });
            calls += 1;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(seen, listed(&set));
        assert_eq!(calls > 1, set.encoding() == "hashtable");
    }
}

fn members() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (-30..30i64).prop_map(|n| n.to_string().into_bytes()),
        2 => any::<i64>().prop_map(|n| n.to_string().into_bytes()),
        4 => (0..30u32).prop_map(|n| format!("word {n}").into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #[test]
    fn behaves_as_set(
        entries in 0..40usize,
        integers in any::<bool>(),
        steps in prop::collection::vec((0..5u8, members()), 1..150),
    ) {
        let limits = Limits { intset_entries: entries, listpack_entries: entries / 2, listpack_value: 12 };
        let (mut set, mut model, mut random) = (Set::default(), BTreeSet::<Vec<u8>>::new(), random());
        for (step, member) in steps {
            let member = if integers { member.len().to_string().into_bytes() } else { member };
            match step {
                0 | 1 => prop_assert_eq!(set.insert(&member, &limits), model.insert(member.clone())),
                2 => {
                    let number = parse_i64(&member);
                    let string = number.map_or(Str::Bytes(&member), Str::Int);
                    prop_assert_eq!(set.contains_str(string), model.contains(&member));
                    prop_assert_eq!(set.insert_str(string, &limits), model.insert(member.clone()));
                }
                3 => prop_assert_eq!(set.remove(&member), model.remove(&member)),
                _ => {
                    let popped = set.pop(&mut random, text);
                    prop_assert_eq!(popped.is_none(), model.is_empty());
                    prop_assert!(popped.is_none_or(|member| model.remove(&member)));
                }
            }
            prop_assert_eq!(set.contains(&member), model.contains(&member));
            match set.encoded() {
                Encoded::Intset(view) => prop_assert!(view.len() <= limits.intset_entries),
                Encoded::Listpack(view) => prop_assert!(view.len() <= limits.listpack_entries),
                Encoded::Table(_) => {}
            }
        }
        prop_assert_eq!(listed(&set), model.clone());
        prop_assert_eq!(listed(&set.clone()), model.clone());
        set.narrow(&limits);
        prop_assert_eq!(listed(&set), model);
    }
}
