//! A summary of a stream of key accesses in fixed memory: the keys with the greatest sums of one metric.
//!
//! This is the Space-Saving algorithm with weights (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent
//! and Top-k Elements in Data Streams", 2005): a key that is not tracked takes the place of the tracked key with the
//! smallest sum and inherits that sum as its possible error. With `capacity` places and a total weight of `W`:
//!
//! - the true sum of a tracked key is between what was observed since it took its place and that plus the inherited
//!   sum;
//! - a key that is not tracked has a sum of at most [`Summary::floor`], which is at most `W / capacity`.
//!
//! The places are parallel arrays without order, because a scan of a few hundred words is faster than the upkeep of a
//! hash table and a heap. Keys are found by a scan of tags, parts of their hashes, which the compiler turns into vector
//! instructions; the smallest sum by a scan of the minima of blocks of places. A place keeps the memory of its key's
//! name when it changes hands.

use kvick_store::Key;

/// Longer keys are not tracked, so that the memory of a summary is bounded.
pub const KEY_BYTES_MAX: usize = 1024;

/// Places per block: a power of two.
const BLOCK: usize = 16;

/// What keys are compared by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// Number of accesses.
    Accesses,
    /// Execution time of commands.
    Cpu,
    /// Bytes of requests and replies.
    Bytes,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Metric; 3] = [Metric::Accesses, Metric::Cpu, Metric::Bytes];
}

/// What a command used for one key, or several commands together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Number of accesses.
    pub accesses: u64,
    /// Execution time in ticks of the clock.
    pub ticks: u64,
    /// Bytes of requests and replies.
    pub bytes: u64,
}

impl Usage {
    /// The value of a metric.
    pub fn of(&self, metric: Metric) -> u64 {
        match metric {
            Metric::Accesses => self.accesses,
            Metric::Cpu => self.ticks,
            Metric::Bytes => self.bytes,
        }
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Usage) {
        self.accesses = self.accesses.saturating_add(other.accesses);
        self.ticks = self.ticks.saturating_add(other.ticks);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// The database of a key, and how often it was emptied before: keys of before and after are different ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Home {
    /// Number of the database.
    pub db: u32,
    /// Its [number of flushes](kvick_store::Keyspace::flushes).
    pub flushes: u32,
}

/// A tracked key.
#[derive(Debug)]
pub struct Place {
    /// The key's name.
    pub key: Vec<u8>,
    /// Where it is.
    pub home: Home,
    /// What was observed since it took this place.
    pub observed: Usage,
    /// The sum of its predecessor: what may have been observed before.
    pub inherited: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Summary {
    metric: Metric,
    capacity: usize,
    /// Parts of the hashes, in whole blocks.
    tags: Vec<[u32; BLOCK]>,
    /// The smallest sum of each block.
    minima: Vec<u64>,
    hashes: Vec<u64>,
    /// Inherited and observed sums together.
    sums: Vec<u64>,
    places: Vec<Place>,
    /// Number of places in use.
    len: usize,
}

/// The part of a hash that the scan compares. The lowest bits are the slot in cluster mode.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

impl Summary {
    /// A summary of the keys with the greatest sums of `metric`, with so many places.
    pub fn new(metric: Metric, capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Summary {
            metric,
            capacity,
            tags: Vec::new(),
            minima: Vec::new(),
            hashes: Vec::new(),
            sums: Vec::new(),
            places: Vec::new(),
            len: 0,
        }
    }

    /// Adds an access. Does nothing if it has no weight, or the key is longer than [`KEY_BYTES_MAX`].
    pub fn add(&mut self, key: Key<'_>, home: Home, usage: Usage) {
        let weight = usage.of(self.metric);
        if weight == 0 || key.bytes.len() > KEY_BYTES_MAX {
            return;
        }
        if let Some(found) = self.find(key, home) {
            self.places[found].observed.add(&usage);
            self.set_sum(found, self.sums[found].saturating_add(weight));
            return;
        }
        let (at, inherited) = self.vacate();
        self.hashes[at] = key.hash;
        self.tags[at / BLOCK][at % BLOCK] = tag(key.hash);
        self.set_sum(at, inherited.saturating_add(weight));
        let place = &mut self.places[at];
        place.key.clear();
        place.key.extend_from_slice(key.bytes);
        (place.home, place.observed, place.inherited) = (home, usage, inherited);
    }

    fn find(&self, key: Key<'_>, home: Home) -> Option<usize> {
        let wanted = tag(key.hash);
        let is_same = |at: &usize| {
            *at < self.len
                && self.hashes[*at] == key.hash
                && self.places[*at].home == home
                && self.places[*at].key == key.bytes
        };
        let blocks = self.tags.iter().enumerate();
        // Without an early exit, all tags of a block are compared at once.
        let found = blocks.filter(|(_, tags)| tags.iter().fold(false, |found, tag| found | (*tag == wanted)));
        found.flat_map(|(block, _)| block * BLOCK..(block + 1) * BLOCK).find(is_same)
    }

    fn set_sum(&mut self, at: usize, sum: u64) {
        let (block, before) = (at / BLOCK, std::mem::replace(&mut self.sums[at], sum));
        if before <= self.minima[block] {
            let end = ((block + 1) * BLOCK).min(self.len);
            self.minima[block] = self.sums[block * BLOCK..end].iter().copied().min().unwrap_or(0);
        }
    }

    /// A place for another key, and the sum of the key that it takes it from.
    fn vacate(&mut self) -> (usize, u64) {
        if self.len == self.capacity {
            let floor = self.floor();
            let block = self.minima.iter().position(|minimum| *minimum == floor).unwrap_or(0);
            let places = block * BLOCK..self.len.min((block + 1) * BLOCK);
            let at = places.clone().find(|at| self.sums[*at] == floor).unwrap_or(places.start);
            return (at, self.sums[at]);
        }
        if self.len == self.places.len() {
            self.hashes.push(0);
            self.sums.push(0);
            let home = Home { db: 0, flushes: 0 };
            self.places.push(Place { key: Vec::new(), home, observed: Usage::default(), inherited: 0 });
        }
        if self.len.is_multiple_of(BLOCK) {
            self.tags.push([0; BLOCK]);
            self.minima.push(0);
        }
        // Below all others, so that the minimum of its block is computed again.
        self.sums[self.len] = 0;
        self.len += 1;
        (self.len - 1, 0)
    }

    /// The greatest sum that a key that is not tracked may have.
    pub fn floor(&self) -> u64 {
        if self.len < self.capacity { 0 } else { self.minima.iter().copied().min().unwrap_or(0) }
    }

    /// The tracked keys and their hashes, in no particular order.
    pub fn places(&self) -> impl Iterator<Item = (u64, &Place)> {
        self.hashes.iter().copied().zip(&self.places).take(self.len)
    }

    /// Removes all keys, and keeps the memory of their names.
    pub fn clear(&mut self) {
        self.len = 0;
        self.tags.clear();
        self.minima.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot_keys::zipf::{Random, Zipf};
    use std::collections::HashMap;

    const HOME: Home = Home { db: 0, flushes: 0 };

    fn add(summary: &mut Summary, number: usize, usage: Usage) {
        let name = format!("key:{number}");
        summary.add(Key { bytes: name.as_bytes(), hash: number as u64 % 97 }, HOME, usage);
    }

    #[test]
    fn true_sums_lie_between_the_bounds() {
        for (seed, exponent) in [(1, 0.0), (2, 0.7), (3, 1.0), (4, 1.5)] {
            let (mut random, zipf) = (Random::new(seed), Zipf::new(2000, exponent));
            for metric in Metric::ALL {
                let (mut summary, mut truth) = (Summary::new(metric, 50), HashMap::<Vec<u8>, Usage>::new());
                (0..70).for_each(|number| add(&mut summary, number, Usage { accesses: 9, ticks: 9, bytes: 9 }));
                summary.clear();
                for _ in 0..20_000 {
                    let number = zipf.draw(&mut random);
                    let usage = Usage { accesses: 1, ticks: random.below(1000), bytes: random.below(100) };
                    add(&mut summary, number, usage);
                    truth.entry(format!("key:{number}").into_bytes()).or_default().add(&usage);
                }
                let total: u64 = truth.values().map(|usage| usage.of(metric)).sum();
                assert!(summary.floor() <= total / 50, "{metric:?} {exponent}");
                assert_eq!(summary.sums.iter().sum::<u64>(), total, "no weight is lost");
                assert_eq!(Some(summary.floor()), summary.sums.iter().copied().min());
                for (_, place) in summary.places() {
                    let sum = truth.remove(&place.key).unwrap_or_default().of(metric);
                    let observed = place.observed.of(metric);
                    assert!((observed..=observed + place.inherited).contains(&sum), "{metric:?} {exponent}");
                }
                assert!(truth.values().all(|usage| usage.of(metric) <= summary.floor()), "{metric:?} {exponent}");
            }
        }
    }

    #[test]
    fn the_hottest_of_many_keys_are_found() {
        let (mut random, zipf) = (Random::new(5), Zipf::new(20_000, 1.0));
        let (mut summary, mut truth) = (Summary::new(Metric::Accesses, 128), vec![0u64; 20_000]);
        for _ in 0..100_000 {
            let number = zipf.draw(&mut random);
            truth[number] += 1;
            add(&mut summary, number, Usage { accesses: 1, ..Usage::default() });
        }
        let mut hottest: Vec<usize> = (0..truth.len()).collect();
        hottest.sort_by_key(|number| std::cmp::Reverse(truth[*number]));
        let tracked: Vec<&[u8]> = summary.places().map(|(_, place)| &*place.key).collect();
        let is_found = |number: &&usize| tracked.contains(&format!("key:{number}").as_bytes());
        // Each of them has more than one access in 128.
        assert_eq!(hottest[..10].iter().filter(is_found).count(), 10);
    }

    #[test]
    fn keys_of_a_flushed_database_are_other_keys() {
        let mut summary = Summary::new(Metric::Accesses, 4);
        let (key, usage) = (Key { bytes: b"k", hash: 1 }, Usage { accesses: 1, ticks: 2, bytes: 3 });
        for home in [HOME, Home { flushes: 1, ..HOME }, Home { db: 1, ..HOME }, HOME] {
            summary.add(key, home, usage);
        }
        let found: Vec<(Home, u64)> = summary.places().map(|(_, place)| (place.home, place.observed.bytes)).collect();
        assert_eq!(found, [(HOME, 6), (Home { flushes: 1, ..HOME }, 3), (Home { db: 1, ..HOME }, 3)]);
        summary.clear();
        assert_eq!((summary.places().count(), summary.floor()), (0, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut summary = Summary::new(Metric::Bytes, 10);
        for len in 0..3 * KEY_BYTES_MAX {
            let name = vec![b'k'; len];
            summary.add(Key { bytes: &name, hash: len as u64 }, HOME, Usage { bytes: 1, ..Usage::default() });
        }
        assert_eq!(summary.places().count(), 10);
        assert!(summary.places().all(|(_, place)| place.key.capacity() <= 2 * KEY_BYTES_MAX));
        summary.add(Key { bytes: b"weightless", hash: 0 }, HOME, Usage { accesses: 1, ..Usage::default() });
        assert!(summary.places().all(|(_, place)| place.key != b"weightless"));
    }
}
