//! Tests of the hash table against a model, of scans during changes, and of random choice.

use super::segment::used;
use super::*;
use crate::hash::KeyHasher;
use std::collections::{HashMap, HashSet};

/// Elements are boxed numbers; their hash is that of the number.
struct Numbers {
    table: Table,
    hasher: KeyHasher,
}

impl Numbers {
    fn new() -> Self {
        Numbers { table: Table::new(), hasher: KeyHasher::with_secret(7, 11) }
    }
    fn hash(&self, n: u64) -> u64 {
        self.hasher.hash(&n.to_le_bytes())
    }
    fn find(&self, n: u64) -> Option<Place> {
        self.table.find(self.hash(n), |p| value(p) == n)
    }
    fn insert(&mut self, n: u64) {
        let hasher = self.hasher;
        let pointer = NonNull::from(Box::leak(Box::new(n))).cast();
        self.table.insert(self.hash(n), pointer, n.is_multiple_of(3), |p| hasher.hash(&value(p).to_le_bytes()));
    }
    fn remove(&mut self, n: u64) -> bool {
        let Some(place) = self.find(n) else { return false };
        free(self.table.remove(place));
        true
    }
    fn check(&self) {
        let mut seen = 0;
        let mut flagged = 0;
        for segment in &self.table.segments {
            let mut count = 0;
            for (at, bucket) in segment.all_buckets().iter().enumerate() {
                let n = used(bucket);
                assert!(bucket.0[n..].iter().all(|w| *w == 0), "buckets are packed");
                count += n as u32;
                for word in &bucket.0[..n] {
                    flagged += (word & FLAG) as usize;
                    let mut from = segment.home(tag_in(*word));
                    while from != at {
                        assert!(is_full(segment.bucket(from)), "passed on over a bucket with room");
                        from = segment.after(from);
                    }
                }
            }
            assert_eq!(count, segment.count);
            seen += count as usize;
        }
        assert_eq!(seen, self.table.len());
        assert_eq!(flagged, self.table.flagged());
    }
}

#[test]
fn relocation_visits_each_element_once_during_changes() {
    let count = if cfg!(miri) { 4000 } else { 32_000 };
    for round in 0..4 {
        let mut numbers = Numbers::new();
        (0..count).for_each(|n| numbers.insert(n));
        // Segments that have just split are left about half full, near to joining.
        let goes = |n: &u64| round >= 2 && n % 9 < 5;
        (0..count).filter(goes).for_each(|n| _ = numbers.remove(n));
        let (mut seen, mut next, mut from) = (Vec::new(), count, 0);
        numbers.table.unmark();
        while numbers.table.mark_next(&mut from, |pointer| seen.push(value(pointer))) {
            // Removing most elements joins segments, adding splits them.
            for n in (0..count).filter(|n| round < 2 && n % 61 == from as u64 % 61) {
                numbers.table.mark_around(numbers.hash(n), |pointer| seen.push(value(pointer)));
                if round % 2 == 0 {
                    numbers.remove(n);
                } else {
                    numbers.table.mark_around(numbers.hash(next), |pointer| seen.push(value(pointer)));
                    numbers.insert(next);
                    next += 1;
                }
            }
            // Only elements of one segment are removed, and its sibling has not been visited yet.
            let few: Vec<u64> = seen.iter().rev().take(900).copied().filter(|n| n % 50 > 0).collect();
            few.into_iter().filter(|_| round >= 2).for_each(|n| _ = numbers.remove(n));
        }
        assert!(numbers.table.is_marked());
        numbers.check();
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..count).filter(|n| !goes(n))), "round {round}");
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        self.table.for_each(free);
    }
}

fn value(pointer: Pointer) -> u64 {
    // SAFETY: every element of these tests is a boxed number.
    unsafe { *pointer.cast::<u64>().as_ref() }
}

fn free(pointer: Pointer) {
    // SAFETY: boxed in `insert`, and removed from the table just now.
    drop(unsafe { Box::from_raw(pointer.cast::<u64>().as_ptr()) });
}

const MANY: u64 = if cfg!(miri) { 1500 } else { 100_000 };

#[test]
fn finds_exactly_the_inserted_elements() {
    let mut numbers = Numbers::new();
    for n in 0..MANY {
        numbers.insert(n);
    }
    numbers.check();
    assert!((0..MANY).all(|n| numbers.find(n).is_some()));
    assert!((MANY..2 * MANY).all(|n| numbers.find(n).is_none()));
}

#[test]
fn emptied_table_releases_memory() {
    let mut numbers = Numbers::new();
    (0..MANY).for_each(|n| numbers.insert(n));
    let full = numbers.table.memory();
    for n in 0..MANY - 10 {
        assert!(numbers.remove(n));
    }
    numbers.check();
    assert!(numbers.table.memory() * 20 < full, "{} of {full}", numbers.table.memory());
    assert!((MANY - 10..MANY).all(|n| numbers.find(n).is_some()));
    (MANY - 10..MANY).for_each(|n| assert!(numbers.remove(n)));
    assert!(numbers.table.memory() < 200);
}

#[test]
fn stays_dense_at_every_size() {
    let mut numbers = Numbers::new();
    for n in 0..MANY {
        numbers.insert(n);
        if n > 20_000 && n % 1000 == 0 {
            let load = numbers.table.len() as f64 / numbers.table.capacity() as f64;
            assert!((0.68..0.91).contains(&load), "load {load} at {n}");
        }
    }
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed ^ (*seed >> 29)
}

#[test]
fn keeps_its_invariants_through_random_changes() {
    let (mut numbers, mut model, mut seed) = (Numbers::new(), HashSet::new(), 1u64);
    for round in 0..MANY * 2 {
        // The population swings between small and large, so that segments grow, split, shrink and join.
        let space = if (round / (MANY / 4)).is_multiple_of(2) { MANY / 2 } else { MANY / 50 };
        let n = random(&mut seed) % space;
        let grow = (round / (MANY / 4)).is_multiple_of(2);
        if grow && model.insert(n) {
            numbers.insert(n);
        } else if !grow {
            let n = random(&mut seed) % (MANY / 2);
            assert_eq!(numbers.remove(n), model.remove(&n));
        }
        if round % (MANY / 8) == 0 {
            numbers.check();
        }
    }
    numbers.check();
    assert_eq!(numbers.table.len(), model.len());
    assert!(model.iter().all(|n| numbers.find(*n).is_some()));
}

#[test]
fn scan_visits_all_stable_elements_across_resizes() {
    for direction in [true, false] {
        let (mut numbers, mut seen) = (Numbers::new(), HashMap::<u64, u32>::new());
        let stable = MANY / 50;
        (0..stable).for_each(|n| numbers.insert(n));
        if !direction {
            (stable..MANY).for_each(|n| numbers.insert(n));
        }
        let (mut position, mut step, mut next) = (0, 0u64, stable);
        loop {
            let after = numbers.table.scan(position, |p, _| *seen.entry(value(p)).or_default() += 1);
            let Some(after) = after else { break };
            assert!(after > position);
            position = after;
            step += 1;
            if step % 3 == 0 {
                for _ in 0..50.min(MANY - next) {
                    if direction {
                        numbers.insert(next)
                    } else {
                        assert!(numbers.remove(next))
                    }
                    next += 1;
                }
            }
        }
        assert!((0..stable).all(|n| seen.contains_key(&n)));
    }
}

#[test]
fn scan_without_changes_visits_each_element_once() {
    let mut numbers = Numbers::new();
    (0..MANY / 10).for_each(|n| numbers.insert(n));
    let (mut seen, mut position) = (HashMap::<u64, u32>::new(), Some(0));
    while let Some(at) = position {
        position = numbers.table.scan(at, |p, flag| {
            assert_eq!(flag, value(p).is_multiple_of(3));
            *seen.entry(value(p)).or_default() += 1;
        });
    }
    assert_eq!(seen.len() as u64, MANY / 10);
    assert!(seen.values().all(|times| *times == 1));
}

/// How often each of the numbers below `count` is drawn, checked to be within six standard deviations of the mean.
fn check_fairness(numbers: &Numbers, count: u64, draws_each: u32) {
    let (mut seed, mut hits) = (3u64, vec![0u32; count as usize]);
    for _ in 0..count * u64::from(draws_each) {
        let pointer = numbers.table.random(|| random(&mut seed).swap_bytes()).expect("not empty");
        hits[value(pointer) as usize] += 1;
    }
    let (mean, spread) = (f64::from(draws_each), 6.0 * f64::from(draws_each).sqrt());
    assert!(hits.iter().all(|h| (f64::from(*h) - mean).abs() < spread), "{hits:?}");
}

#[test]
fn random_elements_are_uniform() {
    let mut numbers = Numbers::new();
    assert!(numbers.table.random(|| 0).is_none());
    (0..100).for_each(|n| numbers.insert(n));
    check_fairness(&numbers, 100, if cfg!(miri) { 20 } else { 1000 });
    if !cfg!(miri) {
        (100..5000).for_each(|n| numbers.insert(n));
        check_fairness(&numbers, 5000, 100);
        // Segments that have shrunk to different sizes.
        (1000..5000).for_each(|n| assert!(numbers.remove(n)));
        check_fairness(&numbers, 1000, 500);
    }
}

#[test]
fn iteration_yields_each_element_once() {
    let mut numbers = Numbers::new();
    assert_eq!(numbers.table.iter().count(), 0);
    for count in [1, 8, 9, 100, MANY / 10] {
        (numbers.table.len() as u64..count).for_each(|n| numbers.insert(n));
        let seen: HashSet<u64> = numbers.table.iter().map(value).collect();
        assert_eq!((seen.len() as u64, numbers.table.iter().count() as u64), (count, count));
    }
}

#[test]
fn copy_has_elements_in_the_same_positions() {
    let mut numbers = Numbers::new();
    (0..MANY / 10).for_each(|n| numbers.insert(n));
    let copy = |pointer| NonNull::from(Box::leak(Box::new(value(pointer)))).cast();
    let copied = Numbers { table: numbers.table.copy_with(copy), hasher: numbers.hasher };
    copied.check();
    for n in 0..MANY / 10 {
        let place = numbers.find(n).expect("inserted");
        assert_eq!(copied.find(n), Some(place));
        assert_ne!(copied.table.get(place), numbers.table.get(place));
    }
}

#[test]
fn small_table_uses_little_memory() {
    let mut numbers = Numbers::new();
    (0..8).for_each(|n| numbers.insert(n));
    assert!(numbers.table.memory() <= 64 + size_of::<Segment>() + 4);
}

#[test]
fn tag_match_finds_slots_regardless_of_other_bits() {
    let mut seed = 1;
    let mut next = || random(&mut seed);
    for _ in 0..2_000 {
        let tags = [0, 1, 0x7fff, 0x8000, 0xffff, next() as u16];
        let words = [(); BUCKET].map(|()| (u64::from(tags[next() as usize % 6]) << 48) | next() >> 16);
        for tag in tags {
            let expected = words.iter().rev().fold(0, |bits, word| bits << 1 | u32::from(tag_in(*word) == tag));
            assert_eq!(tags_equal(&Bucket(words), tag), expected, "{words:x?}, {tag:x}");
        }
    }
}
