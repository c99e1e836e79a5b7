//! Which key a request uses, and how a key is written.
//!
//! A key is a number below the size of its keyspace. [`Choice`] draws numbers by the configured distribution, each in
//! constant time; [`Names`] writes the key of a number.

use crate::config::{Distribution, Keyspace};
use fastrand::Rng;

/// Draws keys of one keyspace.
#[derive(Clone, Debug)]
pub struct Choice {
    count: u64,
    kind: Kind,
    /// Time after which other keys are hot, in nanoseconds; 0 for never.
    shift_ns: u64,
    /// How many keys on the hot ones move then.
    shift_keys: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    Zipf(Zipf),
    Hot { keys: u64, share: f64 },
    Sequential { next: u64, step: u64 },
}

impl Choice {
    /// For thread `thread` of `threads`, which divide a sequence among themselves.
    pub fn new(keyspace: &Keyspace, thread: usize, threads: usize) -> Choice {
        let count = keyspace.nkeys.max(1);
        let hot_keys = (count as f64 * keyspace.hot_keys) as u64;
        let kind = match keyspace.distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::Zipf => Kind::Zipf(Zipf::new(count, keyspace.zipf_exponent)),
            Distribution::Hot => Kind::Hot { keys: hot_keys.clamp(1, count), share: keyspace.hot_share },
            Distribution::Sequential => Kind::Sequential { next: thread as u64 % count, step: threads as u64 },
        };
        let shift_ns = keyspace.hot_shift.as_ref().map_or(0, |shift| shift.0.as_nanos() as u64);
        Choice { count, kind, shift_ns, shift_keys: hot_keys.clamp(1, count) }
    }

    /// All keys in turn, whatever the distribution is.
    pub fn sequential(count: u64, thread: usize, threads: usize) -> Choice {
        let kind = Kind::Sequential { next: thread as u64, step: threads as u64 };
        Choice { count: count.max(1), kind, shift_ns: 0, shift_keys: 1 }
    }

    /// The number of keys.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next key, at a time since the start.
    #[inline]
    pub fn draw(&mut self, now_ns: u64, random: &mut Rng) -> u64 {
        let key = match &mut self.kind {
            Kind::Uniform => return random.u64(0..self.count),
            Kind::Sequential { next, step } => {
                let key = *next % self.count;
                *next = next.wrapping_add(*step);
                return key;
            }
            Kind::Zipf(zipf) => zipf.draw(random) - 1,
            Kind::Hot { keys, share } => {
                if random.f64() < *share {
                    random.u64(0..*keys)
                } else if *keys < self.count {
                    random.u64(*keys..self.count)
                } else {
                    random.u64(0..self.count)
                }
            }
        };
        if self.shift_ns == 0 {
            return key;
        }
        let moved = (now_ns / self.shift_ns).wrapping_mul(self.shift_keys) % self.count;
        (key + moved) % self.count
    }
}

/// Zipf's law by rejection-inversion (W. Hörmann, G. Derflinger, "Rejection-inversion to generate variates from
/// monotone discrete distributions", 1996): the probability of rank `k` is proportional to `k` to the power of minus
/// the exponent. Takes constant time and no table, for any exponent above 0.
#[derive(Clone, Debug)]
pub struct Zipf {
    exponent: f64,
    integral_first: f64,
    integral_last: f64,
    cut: f64,
    count: f64,
}

impl Zipf {
    /// For ranks from 1 to `count`.
    pub fn new(count: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { exponent, integral_first: 0.0, integral_last: 0.0, cut: 0.0, count: count as f64 };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(count as f64 + 0.5);
        zipf.cut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// Draws a rank.
    pub fn draw(&self, random: &mut Rng) -> u64 {
        loop {
            let area = self.integral_last + random.f64() * (self.integral_first - self.integral_last);
            let exact = self.inverse(area);
            let rank = exact.round().clamp(1.0, self.count);
            if rank - exact <= self.cut || area >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }

    fn density(&self, rank: f64) -> f64 {
        (-self.exponent * rank.ln()).exp()
    }

    /// The integral of the density from 1, in a form that is stable also near an exponent of 1.
    fn integral(&self, rank: f64) -> f64 {
        let log = rank.ln();
        let power = (1.0 - self.exponent) * log;
        log * if power.abs() > 1e-8 { power.exp_m1() / power } else { 1.0 + power / 2.0 }
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = (area * (1.0 - self.exponent)).max(-1.0);
        (area * if power.abs() > 1e-8 { power.ln_1p() / power } else { 1.0 - power / 2.0 }).exp()
    }
}

/// How keys of a keyspace are written: a prefix and the number, padded with zeros to the length of keys.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: Vec<u8>,
    digits: usize,
    /// Neighbouring keys with the same hash tag, and so in the same slot; 0 for no tags.
    tag_group: u64,
    tag_digits: usize,
}

impl Names {
    /// For keys of `klen` bytes; longer ones if the prefix and the largest number need more.
    pub fn new(prefix: &str, klen: usize, count: u64, tag_group: u64) -> Names {
        let digits_of = |number: u64| number.max(1).ilog10() as usize + 1;
        let tag_digits = count.checked_div(tag_group).map_or(0, digits_of);
        let used = prefix.len() + if tag_group > 0 { tag_digits + 2 } else { 0 };
        let digits = klen.saturating_sub(used).max(digits_of(count.saturating_sub(1)));
        Names { prefix: prefix.as_bytes().to_vec(), digits, tag_group, tag_digits }
    }

    /// The length of all keys.
    pub fn len(&self) -> usize {
        self.prefix.len() + self.digits + if self.tag_group > 0 { self.tag_digits + 2 } else { 0 }
    }

    /// The key at a distance from another, of `count`: with the same hash tag, if keys have one.
    pub fn neighbour(&self, key: u64, distance: u64, count: u64) -> u64 {
        let Some(group) = key.checked_div(self.tag_group) else { return (key + distance) % count };
        let first = group * self.tag_group;
        // The last group may be smaller.
        let size = self.tag_group.min(count - first);
        first + (key - first + distance) % size
    }

    /// Whether keys are empty; they are not.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the key of a number.
    #[inline]
    pub fn write(&self, key: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        if let Some(group) = key.checked_div(self.tag_group) {
            out.push(b'{');
            write_digits(group, self.tag_digits, out);
            out.push(b'}');
        }
        write_digits(key, self.digits, out);
    }
}

fn write_digits(number: u64, width: usize, out: &mut Vec<u8>) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number).as_bytes();
    out.resize(out.len() + width.saturating_sub(digits.len()), b'0');
    out.extend_from_slice(digits);
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use proptest::prelude::*;

    fn keyspace(text: &str) -> Keyspace {
        toml::from_str(text).expect("a keyspace")
    }

    #[test]
    fn zipf_frequencies_follow_the_exact_law() {
        for (count, exponent) in [(10_u64, 0.5), (100, 0.99), (1000, 1.0), (1000, 1.3), (50, 3.0), (1, 1.0)] {
            let zipf = Zipf::new(count, exponent);
            let mut random = Rng::with_seed(3);
            const DRAWS: usize = 200_000;
            let mut seen = vec![0_u32; count as usize + 1];
            (0..DRAWS).for_each(|_| seen[zipf.draw(&mut random) as usize] += 1);
            let weights: f64 = (1..=count).map(|rank| (rank as f64).powf(-exponent)).sum();
            for rank in 1..=count {
                let expected = (rank as f64).powf(-exponent) / weights * DRAWS as f64;
                let deviation = (f64::from(seen[rank as usize]) - expected).abs();
                assert!(deviation < 6.0 * expected.sqrt() + 3.0, "rank {rank} of {count}, exponent {exponent}");
            }
        }
    }

    proptest! {
        #[test]
        fn keys_are_below_their_number(
            count in 1_u64..1_000_000_000_000, exponent in 0.1..3.0, now in any::<u64>(), seed in any::<u64>(),
        ) {
            let mut random = Rng::with_seed(seed);
            for text in ["'uniform'", "'hot'\nhot_shift = '1s'", "'sequential'", "'zipf'\nhot_shift = '1ms'"] {
                let text = format!("nkeys = {count}\nzipf_exponent = {exponent}\ndistribution = {text}");
                let mut choice = Choice::new(&keyspace(&text), 1, 2);
                for _ in 0..20 {
                    prop_assert!(choice.draw(now, &mut random) < count);
                }
            }
        }

        #[test]
        fn names_are_unique_and_equally_long(count in 1_u64..2000, klen in 0_usize..30, group in 0_u64..9) {
            let names = Names::new("k:", klen, count, group);
            let mut all = std::collections::HashSet::new();
            for key in 0..count {
                let mut name = Vec::new();
                names.write(key, &mut name);
                prop_assert_eq!(name.len(), names.len());
                all.insert(name);
            }
            prop_assert_eq!(all.len() as u64, count);
        }
    }

    #[test]
    fn hot_keys_get_their_share_and_move() {
        let mut choice = Choice::new(
            &keyspace("nkeys = 1000\ndistribution = 'hot'\nhot_keys = 0.01\nhot_share = 0.9\nhot_shift = '1s'"),
            0,
            1,
        );
        let mut random = Rng::with_seed(5);
        for (now, first) in [(0, 0), (3_500_000_000, 30)] {
            let hot = (0..10_000).filter(|_| (first..first + 10).contains(&choice.draw(now, &mut random))).count();
            assert!((8_800..9_200).contains(&hot), "{hot} of 10000");
        }
    }

    #[test]
    fn threads_divide_a_sequence() {
        let mut random = Rng::with_seed(1);
        let mut drawn: Vec<u64> = (0..3)
            .flat_map(|thread| {
                let mut choice = Choice::sequential(9, thread, 3);
                (0..3).map(|_| choice.draw(0, &mut random)).collect::<Vec<_>>()
            })
            .collect();
        drawn.sort();
        assert_eq!(drawn, (0..9).collect::<Vec<_>>());
    }
}
