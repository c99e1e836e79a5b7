//! Tests of hashes: encodings, expiring fields, and random operations against a model.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

const LIMITS: Limits = Limits { fields: 12, bytes: 20 };
/// With these limits there are hashes in several blocks.
const WIDE_LIMITS: Limits = Limits { fields: 100, bytes: 100 };
const NOW_MS: i64 = 1_000_000;

fn clock() -> FieldClock {
    FieldClock::new(NOW_MS, true, true)
}

fn text(value: Str<'_>) -> Vec<u8> {
    value.bytes(&mut IntBuf::default()).to_vec()
}

/// The stored fields, including expired ones.
fn contents(hash: &Hash) -> BTreeMap<Vec<u8>, (Vec<u8>, Option<i64>)> {
    hash.iter().map(|field| (text(field.name), (text(field.value), field.expiry))).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Set(u16, usize, Expiry),
    SetLong(u16),
    Remove(u16),
    ExpireAt(u16, i64, bool),
    Persist(u16),
    Sweep(usize),
    Clone,
    SetMany(u16),
}

fn name(number: u16) -> Vec<u8> {
    // Some look like integers, which listpacks encode differently.
    if number.is_multiple_of(3) { number.to_string().into_bytes() } else { format!("field:{number}").into_bytes() }
}

fn time() -> impl Strategy<Value = i64> {
    prop_oneof![NOW_MS - 100..NOW_MS + 100, 0..2 * NOW_MS, Just(i64::MAX), Just(0)]
}

fn step() -> impl Strategy<Value = Step> {
    let expiry = prop_oneof![4 => Just(Expiry::None), 2 => Just(Expiry::Keep), 1 => time().prop_map(Expiry::At)];
    let number = prop_oneof![4 => 0..20u16, 1 => 0..400u16];
    let set = (number.clone(), 0..40usize, expiry).prop_map(|(number, len, expiry)| Step::Set(number, len, expiry));
    prop_oneof![
        20 => set,
        2 => number.clone().prop_map(Step::SetLong),
        20 => number.clone().prop_map(Step::Remove),
        6 => (number.clone(), time(), any::<bool>()).prop_map(|(number, at, allow)| Step::ExpireAt(number, at, allow)),
        4 => number.clone().prop_map(Step::Persist),
        2 => (1..20usize).prop_map(Step::Sweep),
        1 => Just(Step::Clone),
        1 => (0..300u16).prop_map(Step::SetMany),
    ]
}

/// A map with the behaviour of a hash.
#[derive(Default)]
struct Model {
    fields: HashMap<Vec<u8>, (Vec<u8>, Option<i64>)>,
}

impl Model {
    fn visible(&self, name: &[u8]) -> Option<Option<i64>> {
        let (_, expiry) = self.fields.get(name)?;
        (!expiry.is_some_and(|at| at < NOW_MS)).then_some(*expiry)
    }

    fn set(&mut self, name: Vec<u8>, value: Vec<u8>, expiry: Expiry) -> Stored {
        let before = self.fields.get(&name).map(|(_, expiry)| *expiry);
        let due = before.flatten().is_some_and(|at| at <= NOW_MS);
        let after = match expiry {
            Expiry::None => None,
            Expiry::At(at) => Some(at),
            Expiry::Keep => before.flatten().filter(|_| !due),
        };
        self.fields.insert(name, (value, after));
        match before {
            None => Stored::Added,
            Some(_) if due => Stored::Revived,
            Some(_) => Stored::Replaced,
        }
    }

    fn expire_at(&mut self, name: &[u8], at: i64, allow: bool) -> Expired {
        if self.visible(name).is_none() {
            Expired::Missing
        } else if !allow {
            Expired::Refused
        } else if at <= NOW_MS {
            self.fields.remove(name);
            Expired::Gone
        } else if let Some((_, expiry)) = self.fields.get_mut(name) {
            *expiry = Some(at);
            Expired::Changed
        } else {
            Expired::Missing
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 150 }))]

    #[test]
    fn behaves_as_map(steps in prop::collection::vec(step(), 1..120), wide in any::<bool>()) {
        let (mut hash, mut model) = (Hash::new(), Model::default());
        let limits = if wide { WIDE_LIMITS } else { LIMITS };
        for number in (0..if wide { 60 } else { 0 }).step_by(2) {
            hash.set(&name(number), &[b'w'; 40], Expiry::None, clock(), limits);
            model.set(name(number), vec![b'w'; 40], Expiry::None);
        }
        prop_assert_eq!(matches!(hash.view(), View::Pairs(_)), wide);
        for step in steps {
            match step {
                Step::Set(number, len, expiry) => {
                    let value = if len.is_multiple_of(2) {
                        (len as i64 * 1_000_003).to_string().into_bytes()
                    } else {
                        vec![b'v'; len]
                    };
                    let stored = hash.set(&name(number), &value, expiry, clock(), limits);
                    prop_assert_eq!(stored, model.set(name(number), value, expiry));
                }
                Step::SetLong(number) => {
                    hash.set(&name(number), &[b'x'; 70_000], Expiry::None, clock(), limits);
                    model.set(name(number), vec![b'x'; 70_000], Expiry::None);
                }
                Step::SetMany(from) => (from..from + 100).for_each(|number| {
                    hash.set(&name(number), b"many", Expiry::None, clock(), limits);
                    model.set(name(number), b"many".to_vec(), Expiry::None);
                }),
                Step::Remove(number) => {
                    let there = model.visible(&name(number)).is_some() && model.fields.remove(&name(number)).is_some();
                    prop_assert_eq!(hash.remove(&name(number), clock()), there);
                }
                Step::ExpireAt(number, at, allow) => {
                    let outcome = hash.expire_at(&name(number), at, clock(), |_| allow);
                    prop_assert_eq!(outcome, model.expire_at(&name(number), at, allow));
                }
                Step::Persist(number) => {
                    let expected = match model.visible(&name(number)) {
                        None => Expired::Missing,
                        Some(None) => Expired::Refused,
                        Some(Some(_)) => Expired::Changed,
                    };
                    prop_assert_eq!(hash.persist(&name(number), clock()), expected);
                    let field = model.fields.get_mut(&name(number)).filter(|_| expected == Expired::Changed);
                    if let Some((_, expiry)) = field {
                        *expiry = None;
                    }
                }
                Step::Sweep(buckets) => {
                    let mut taken = 0;
                    let before = model.fields.len();
                    if hash.wake_ms().is_some_and(|at| at < NOW_MS) {
                        while !hash.expire(NOW_MS, buckets, |_| taken += 1) {}
                    }
                    model.fields.retain(|_, (_, expiry)| expiry.is_none_or(|at| at >= NOW_MS));
                    prop_assert_eq!(taken, before - model.fields.len());
                }
                Step::Clone => {
                    hash.set_queued_ms(hash.wake_ms());
                    hash = hash.clone();
                    prop_assert_eq!(hash.queued_ms(), None);
                }
            }
            prop_assert_eq!(hash.len(), model.fields.len());
            let volatile = model.fields.values().filter_map(|(_, expiry)| *expiry);
            prop_assert_eq!(hash.volatile(), volatile.clone().count());
            prop_assert_eq!(hash.wake_ms().is_some(), volatile.clone().count() > 0);
            let is_packed = hash.is_packed();
            prop_assert!(!is_packed || hash.len() <= limits.fields && hash.volatile() == 0);
        }
        prop_assert_eq!(contents(&hash), model.fields.clone().into_iter().collect());
        for number in 0..420 {
            let found = hash.get_with_expiry(&name(number), clock()).map(|(_, expiry)| expiry);
            prop_assert_eq!(found, model.visible(&name(number)));
        }
        let mut scanned = BTreeMap::new();
        let mut cursor = 0;
        loop {
            cursor = hash.scan(cursor, 7, FieldClock::ALL, |field| {
                scanned.insert(text(field.name), (text(field.value), field.expiry));
            });
            if cursor == 0 {
                break;
            }
        }
        prop_assert_eq!(scanned, contents(&hash));
    }
}

#[test]
fn converts_to_table_at_the_limits() {
    let add = |hash: &mut Hash, name: &[u8], value: &[u8]| hash.set(name, value, Expiry::None, clock(), LIMITS);
    let mut hash = Hash::new();
    (0..12).for_each(|number| assert_eq!(add(&mut hash, &name(number), b"v"), Stored::Added));
    assert_eq!((hash.encoding(), hash.len()), ("listpack", 12));
    assert_eq!(add(&mut hash, b"13", b"v"), Stored::Added);
    assert_eq!((hash.encoding(), hash.len()), ("hashtable", 13));
    for (name, value, encoding) in [(20, 20, "listpack"), (21, 1, "hashtable"), (1, 21, "hashtable")] {
        let mut hash = Hash::new();
        add(&mut hash, &vec![b'n'; name], &vec![b'v'; value]);
        assert_eq!(hash.encoding(), encoding);
    }
    for (pairs, encoding) in [(12, "listpack"), (13, "hashtable")] {
        let mut hash = Hash::new();
        hash.expect(vec![&b"same"[..]; 2 * pairs].into_iter(), LIMITS);
        assert_eq!(hash.encoding(), encoding);
    }
}

#[test]
fn converts_to_table_only_when_an_expiry_is_set() {
    let mut hash = Hash::new();
    hash.set(b"a", b"1", Expiry::Keep, clock(), LIMITS);
    hash.set(b"b", b"2", Expiry::None, clock(), LIMITS);
    assert_eq!(hash.expire_at(b"none", NOW_MS + 1, clock(), |_| true), Expired::Missing);
    assert_eq!(hash.expire_at(b"a", NOW_MS + 1, clock(), |present| present.is_some()), Expired::Refused);
    assert_eq!(hash.expire_at(b"b", NOW_MS, clock(), |_| true), Expired::Gone);
    assert_eq!((hash.encoding(), hash.len()), ("listpack", 1));
    assert_eq!(hash.expire_at(b"a", NOW_MS + 1, clock(), |_| true), Expired::Changed);
    assert_eq!((hash.encoding(), hash.volatile(), hash.state()), ("hashtable", 1, State::Unqueued));
    assert_eq!(hash.persist(b"a", clock()), Expired::Changed);
    assert_eq!((hash.encoding(), hash.volatile(), hash.state()), ("hashtable", 0, State::Settled));
}

#[test]
fn field_is_visible_through_its_expiry_millisecond() {
    let mut hash = Hash::new();
    hash.set(b"f", b"v", Expiry::At(NOW_MS), FieldClock::ALL, LIMITS);
    let at = |now_ms| FieldClock::new(now_ms, true, true);
    assert!(hash.contains(b"f", at(NOW_MS)) && !hash.contains(b"f", at(NOW_MS + 1)));
    assert!(hash.contains(b"f", FieldClock::ALL));
    let mut seed = 0u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed ^ seed >> 31
    };
    assert_eq!(hash.random(at(NOW_MS), &mut random).map(|field| field.name), Some(Str::Bytes(b"f")));
    assert_eq!(hash.random(at(NOW_MS + 1), &mut random), None);
    assert!(hash.expire(NOW_MS, 100, |_| panic!("taken too early")));
    assert!(hash.expire(NOW_MS + 1, 100, |name| assert_eq!(name, b"f")) && hash.is_empty());
}

#[test]
fn large_hash_uses_one_small_allocation_and_one_word_per_field() {
    let mut hash = Hash::new();
    for number in 0..100_000 {
        let name = format!("field:{number:012}");
        hash.set(name.as_bytes(), b"0123456789", Expiry::None, clock(), LIMITS);
    }
    let (estimated, exact) = (hash.memory(5), hash.memory(0));
    let each = exact as f64 / 100_000.0;
    assert!((40.0..44.0).contains(&each), "{each}");
    assert!(estimated.abs_diff(exact) < exact / 50);
}

#[test]
fn value_of_same_size_class_is_overwritten_in_place() {
    let mut hash = Hash::new();
    hash.set(&[b'f'; 30], b"any value", Expiry::None, clock(), LIMITS);
    let address = |hash: &Hash| {
        hash.get(&[b'f'; 30], clock()).map(|value| match value {
            Str::Bytes(bytes) => bytes.as_ptr(),
            Str::Int(_) => std::ptr::null(),
        })
    };
    let before = address(&hash);
    hash.set(&[b'f'; 30], b"other value", Expiry::None, clock(), LIMITS);
    assert_eq!(address(&hash), before);
    assert_eq!(hash.get(&[b'f'; 30], clock()), Some(Str::Bytes(b"other value")));
}

#[test]
fn futile_round_delays_the_next() {
    let mut hash = Hash::new();
    for number in 0..6400 {
        hash.set(&name(number), b"v", Expiry::At(NOW_MS + i64::from(number)), clock(), LIMITS);
    }
    assert_eq!(hash.wake_ms(), Some(NOW_MS));
    let mut taken = 0;
    while !hash.expire(NOW_MS + 5, 64, |_| taken += 1) {}
    assert_eq!((taken, hash.wake_ms()), (5, Some(NOW_MS + 5 + 100)));
    while !hash.expire(NOW_MS + 3005, 64, |_| taken += 1) {}
    assert_eq!((taken, hash.wake_ms()), (3005, Some(NOW_MS + 3005)));
}

#[test]
fn long_listpack_is_split_transparently() {
    let mut hash = Hash::new();
    let mut pack = Listpack::new();
    for number in 0..90u16 {
        let words = [format!("field:{number:012}").into_bytes(), name(number)];
        assert_eq!(hash.set(&words[0], &words[1], Expiry::None, clock(), WIDE_LIMITS), Stored::Added);
        words.iter().for_each(|word| pack.push_back(word));
        assert_eq!(matches!(hash.view(), View::Pairs(_)), pack.byte_len() > PACKED_BYTES_MAX);
        assert!(hash.with_listpack(|view| view == pack.view()).expect("a listpack"));
    }
    assert_eq!((hash.encoding(), hash.is_packed(), hash.len()), ("listpack", true, 90));
    assert!(hash.memory(0) < size_class(pack.byte_len()));
    let loaded = Hash::from_listpack(pack).expect("fields and values");
    assert!(loaded.iter().eq(hash.iter()) && matches!(loaded.view(), View::Pairs(_)));
    for number in 5..90u16 {
        assert!(hash.remove(format!("field:{number:012}").as_bytes(), clock()));
    }
    assert!(matches!(hash.view(), View::Packed(_)) && hash.iter().eq(loaded.iter().take(5)));
}

#[test]
fn loaded_listpack_with_duplicate_field_is_rejected() {
    let pack = |words: &[&[u8]]| {
        let mut pack = Listpack::new();
        words.iter().for_each(|word| pack.push_back(word));
        pack
    };
    assert!(Hash::from_listpack(pack(&[b"a", b"1", b"b", b"1"])).is_ok_and(|hash| hash.len() == 2));
    assert!(Hash::from_listpack(pack(&[b"a", b"1", b"a", b"2"])).is_err());
    assert!(Hash::from_listpack(pack(&[b"a", b"1", b"b"])).is_err());
}
