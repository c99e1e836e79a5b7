//! The values that requests carry: how long, and of what bytes.
//!
//! Values are pieces of one block of random bytes that is made once, so a value costs a copy and no random numbers.

use crate::config::{Keyspace, ValueKind, ValueLength};
use fastrand::Rng;

/// The longest value.
pub const VALUE_MAX: usize = 64 << 20;
/// The block that values are pieces of has at least this many bytes more than the longest value.
const BLOCK_SPARE: usize = 64 << 10;
/// Compressible values repeat in units of so many bytes.
const UNIT: usize = 64;

/// Makes the values of one keyspace.
#[derive(Clone, Debug)]
pub struct Values {
    lengths: Lengths,
    kind: ValueKind,
    block: Vec<u8>,
}

impl Values {
    /// By the settings of a keyspace.
    pub fn new(keyspace: &Keyspace, seed: u64) -> Values {
        let lengths = Lengths::new(&keyspace.vlen);
        let mut random = Rng::with_seed(seed);
        let mut block = vec![b'x'; lengths.longest() + BLOCK_SPARE];
        let random_part = (UNIT as f64 / keyspace.compression_ratio.max(1.0)).ceil() as usize;
        for unit in block.chunks_mut(UNIT) {
            let random_part = random_part.min(unit.len());
            random.fill(&mut unit[..random_part]);
        }
        Values { lengths, kind: keyspace.vkind, block }
    }

    /// Appends a value as an argument: its length, its bytes and the line ends.
    #[inline]
    pub fn write_argument(&self, out: &mut Vec<u8>, random: &mut Rng) {
        let mut digits = itoa::Buffer::new();
        let value = match self.kind {
            ValueKind::Bytes => {
                let length = self.lengths.draw(random);
                let start = random.usize(0..=self.block.len() - length);
                &self.block[start..start + length]
            }
            ValueKind::I64 => digits.format(random.u32(..)).as_bytes(),
        };
        write_argument(value, out);
    }
}

/// Appends an argument.
#[inline]
pub fn write_argument(bytes: &[u8], out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    out.push(b'$');
    out.extend_from_slice(digits.format(bytes.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

#[derive(Clone, Debug)]
enum Lengths {
    Fixed(usize),
    Uniform(usize, usize),
    Lognormal {
        median: f64,
        sigma: f64,
        max: usize,
    },
    /// Sizes with the sums of the weights up to each.
    Histogram(Vec<(usize, f64)>),
}

impl Lengths {
    fn new(configured: &ValueLength) -> Lengths {
        match configured {
            ValueLength::Fixed(length) => Lengths::Fixed(*length),
            ValueLength::Uniform { min, max } => Lengths::Uniform(*min.min(max), *max.max(min)),
            ValueLength::Lognormal { median, sigma, max } => {
                Lengths::Lognormal { median: *median as f64, sigma: *sigma, max: *max }
            }
            ValueLength::Histogram { sizes } => {
                let mut sum = 0.0;
                let sums = sizes.iter().map(|[size, weight]| {
                    sum += weight;
                    (*size as usize, sum)
                });
                Lengths::Histogram(sums.collect())
            }
        }
    }

    fn longest(&self) -> usize {
        match self {
            Lengths::Fixed(length) => *length,
            Lengths::Uniform(_, max) | Lengths::Lognormal { max, .. } => *max,
            Lengths::Histogram(sums) => sums.iter().map(|(size, _)| *size).max().unwrap_or(0),
        }
    }

    #[inline]
    fn draw(&self, random: &mut Rng) -> usize {
        match self {
            Lengths::Fixed(length) => *length,
            Lengths::Uniform(min, max) => random.usize(min..=max),
            Lengths::Lognormal { median, sigma, max } => {
                // The polar form of Box and Muller needs a pair of numbers; one of the pair is enough here.
                let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * random.f64()).cos();
                ((median * (sigma * normal).exp()) as usize).min(*max)
            }
            Lengths::Histogram(sums) => {
                let total = sums.last().map_or(0.0, |(_, sum)| *sum);
                let point = random.f64() * total;
                let at = sums.partition_point(|(_, sum)| *sum <= point).min(sums.len().saturating_sub(1));
                sums.get(at).map_or(0, |(size, _)| *size)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Values {
        Values::new(&toml::from_str(text).expect("a keyspace"), 1)
    }

    fn lengths(text: &str) -> Vec<usize> {
        let (values, mut random) = (values(text), Rng::with_seed(2));
        (0..20_000)
            .map(|_| {
                let mut out = Vec::new();
                values.write_argument(&mut out, &mut random);
                let end = out.iter().position(|byte| *byte == b'\n').expect("a header");
                let length: usize = std::str::from_utf8(&out[1..end - 1]).expect("digits").parse().expect("a length");
                assert_eq!(out.len(), end + 1 + length + 2);
                length
            })
            .collect()
    }

    #[test]
    fn lengths_follow_their_distributions() {
        assert!(lengths("vlen = 7").iter().all(|length| *length == 7));
        let uniform = lengths("vlen = { min = 3, max = 6 }");
        assert!((3..=6).all(|length| uniform.contains(&length)) && uniform.iter().all(|l| (3..=6).contains(l)));
        let mut lognormal = lengths("vlen = { median = 1000, sigma = 1.0, max = 20000 }");
        lognormal.sort();
        assert!((950..1050).contains(&lognormal[10_000]), "{}", lognormal[10_000]);
        // One standard deviation above the median: e times the median.
        assert!((2550..2900).contains(&lognormal[16_827]), "{}", lognormal[16_827]);
        assert!(lognormal.iter().all(|length| *length <= 20_000));
        let histogram = lengths("vlen = { sizes = [[10, 3], [500, 1]] }");
        let short = histogram.iter().filter(|length| **length == 10).count();
        assert!((14_600..15_400).contains(&short), "{short}");
        assert!(histogram.iter().all(|length| matches!(length, 10 | 500)));
    }

    #[test]
    fn numbers_are_numbers() {
        let mut out = Vec::new();
        values("vkind = 'i64'").write_argument(&mut out, &mut Rng::with_seed(1));
        let text = String::from_utf8(out).expect("digits");
        assert!(text.lines().nth(1).expect("a value").parse::<i64>().is_ok(), "{text}");
    }

    #[test]
    fn compressible_values_are_partly_constant() {
        let values = values("compression_ratio = 4.0\nvlen = 6400");
        let constant = values.block.iter().filter(|byte| **byte == b'x').count() as f64;
        assert!((0.7..0.8).contains(&(constant / values.block.len() as f64)));
    }
}
