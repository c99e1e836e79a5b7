//! Estimates the number of elements from a histogram of register values.
//!
//! Implements the improved estimator of Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog sketches"
//! (2017, arXiv:1702.01284), algorithm 6. The operations and their order are fixed, so that every server computes the
//! same result.

use super::dense::{Histogram, INDEX_BITS, REGISTERS};

/// The highest register value that hashing can produce is this plus one.
const PATTERN_BITS: usize = 64 - INDEX_BITS as usize;
/// 1 / (2 ln 2), the limit of the bias correction for many registers.
const ALPHA: f64 = 0.721_347_520_444_481_7;

/// The estimated number of distinct elements.
///
/// Registers above the highest possible value, which occur only in forged sketches, are ignored. If the estimate does
/// not fit a signed 64-bit integer, which also requires a forged sketch, the result is 2^63.
pub fn cardinality(histogram: &Histogram) -> u64 {
    let registers = REGISTERS as f64;
    let share = |count: f64| count / registers;
    let mut z = registers * tau(share(registers - f64::from(histogram[PATTERN_BITS + 1])));
    for count in histogram[1..=PATTERN_BITS].iter().rev() {
        z = 0.5 * (z + f64::from(*count));
    }
    z += registers * sigma(share(f64::from(histogram[0])));
    let estimate = (ALPHA * registers * registers / z).round();
    if estimate < i64::MAX as f64 { estimate as u64 } else { 1 << 63 }
}

/// x + the sum over k >= 1 of x^(2^k) * 2^(k-1); infinite for x = 1.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// (1 - x - the sum over k >= 1 of (1 - x^(2^-k))^2 * 2^-k) / 3.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hyperloglog::dense::{PACKED_LEN, histogram, raise};
    use crate::hyperloglog::hash::Mark;

    #[test]
    fn estimates_match_the_reference() {
        // The results of PFCOUNT in Valkey 9.1 after adding the decimal numbers from 0 on.
        let known = [(0, 0), (10, 10), (100, 100), (1000, 1001), (10_000, 9987), (100_000, 99_565)];
        let (mut packed, mut added) = ([0; PACKED_LEN], 0);
        for (elements, estimate) in known {
            for number in added..elements {
                raise(&mut packed, Mark::of(number.to_string().as_bytes()));
            }
            added = elements;
            assert_eq!(cardinality(&histogram(&packed)), estimate, "after {elements} elements");
        }
    }

    #[test]
    fn forged_registers_give_an_estimate() {
        for value in 0..64 {
            for others in 0..64 {
                let mut histogram = [0; 64];
                histogram[value] += 1;
                histogram[others] += REGISTERS as u32 - 1;
                assert!(cardinality(&histogram) <= 1 << 63);
            }
        }
        let mut impossible = [0; 64];
        impossible[63] = REGISTERS as u32;
        assert_eq!(cardinality(&impossible), 1 << 63);
    }
}
