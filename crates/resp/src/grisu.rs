//! The decimal digits of a double, by the Grisu2 algorithm of Florian Loitsch, "Printing Floating-Point Numbers Quickly
//! and Accurately with Integers" (PLDI 2010).
//!
//! The digits always read back as the same double. In rare cases newer algorithms find
//! fewer or closer ones; Valkey uses Grisu2, and replies must be textually identical.
//!
//! All arithmetic is on 64-bit significands that share one exponent. The number and the boundaries of its rounding
//! interval are scaled by a cached power of ten, so that their binary exponent is between [`EXPONENT_MIN`] and
//! [`EXPONENT_MAX`]: the integer part then fits 32 bits, and digits are computed by division and multiplication by ten.

/// The implicit bit of a normal double's fraction.
const HIDDEN_BIT: u64 = 1 << 52;
/// The binary exponent of a double's lowest fraction bit when the stored exponent is 0.
const EXPONENT_BIAS: i32 = 1075;

/// Bounds of the scaled binary exponent; adjacent cached powers differ by less than this range.
const EXPONENT_MIN: i32 = -60;
const EXPONENT_MAX: i32 = -32;

/// Maximum number of digits.
pub(crate) const DIGITS_MAX: usize = 18;

/// A decimal number: `digits[..len]` (without leading zeros) times ten to the `exponent`.
pub(crate) struct Decimal {
    digits: [u8; DIGITS_MAX],
    len: usize,
    /// The power of ten of the last digit.
    pub(crate) exponent: i32,
}

impl Decimal {
    /// The digits of a finite positive number.
    pub(crate) fn new(n: f64) -> Self {
        let bits = n.to_bits();
        let (fraction, exponent) = (bits & (HIDDEN_BIT - 1), (bits >> 52 & 0x7ff) as i32);
        let (significand, exponent) = match exponent {
            0 => (fraction, 1 - EXPONENT_BIAS),
            _ => (fraction | HIDDEN_BIT, exponent - EXPONENT_BIAS),
        };
        let shift = significand.leading_zeros();
        let (value, exponent) = (significand << shift, exponent - shift as i32);
        // Halfway to the neighbours; the lower neighbour of a power of two is nearer.
        let half = 1 << (shift - 1);
        let lower = value - if significand == HIDDEN_BIT { half / 2 } else { half };

        let (power, ten) = cached_power(exponent);
        let scaled = exponent + power.exponent + 64;
        debug_assert!((EXPONENT_MIN..=EXPONENT_MAX).contains(&scaled));
        let upper = power.times(value + half) - 1;
        let mut decimal = Decimal { digits: [0; DIGITS_MAX], len: 0, exponent: -ten };
        decimal.generate(upper, upper - power.times(lower) - 1, upper - power.times(value), -scaled as u32);
        decimal
    }

    /// The digits, as characters.
    pub(crate) fn digits(&self) -> &[u8] {
        &self.digits[..self.len]
    }

    /// Writes digits of `upper` until the remainder is less than `delta`, the width
    /// of the interval, then adjusts the last digit towards the value, which is
    /// `distance` below `upper`. All three have `point` bits after the binary point.
    fn generate(&mut self, upper: u64, delta: u64, distance: u64, point: u32) {
        let one = 1u64 << point;
        let (mut whole, mut rest) = (upper >> point, upper & (one - 1));
        let mut unit = 1_000_000_000;
        for power in (0..10).rev() {
            self.push(whole / unit);
            whole %= unit;
            let left = (whole << point) + rest;
            if left <= delta {
                self.exponent += power;
                return self.approach(delta, left, unit << point, distance);
            }
            unit /= 10;
        }
        let (mut delta, mut distance) = (delta, distance);
        loop {
            // The interval is at least one part in 2^53 wide, so this ends within seventeen digits.
            (rest, delta, distance) = (rest * 10, delta.wrapping_mul(10), distance.wrapping_mul(10));
            self.push(rest >> point);
            rest &= one - 1;
            self.exponent -= 1;
            if rest < delta {
                return self.approach(delta, rest, one, distance);
            }
        }
    }

    fn push(&mut self, digit: u64) {
        if (digit > 0 || self.len > 0) && self.len < DIGITS_MAX {
            self.digits[self.len] = b'0' + digit as u8;
            self.len += 1;
        }
    }

    /// Decrements the last digit, worth `unit`, while the result
    /// stays within the interval and gets closer to the value.
    fn approach(&mut self, delta: u64, mut left: u64, unit: u64, distance: u64) {
        while left < distance
            && delta - left >= unit
            && (left + unit < distance || distance - left > left + unit - distance)
        {
            self.digits[self.len - 1] -= 1;
            left += unit;
        }
    }
}

/// A power of ten, rounded: `significand` times two to the `exponent`.
#[derive(Clone, Copy)]
struct Power {
    significand: u64,
    exponent: i32,
}

impl Power {
    /// The upper half of the product with `significand`, rounded.
    fn times(self, significand: u64) -> u64 {
        ((u128::from(self.significand) * u128::from(significand) + (1 << 63)) >> 64) as u64
    }
}

/// The cached powers are those of ten to the -348, -340 and so on, up to 340.
const TEN_MIN: i32 = -348;
const TEN_STEP: i32 = 8;
const POWERS_LEN: usize = 87;
static POWERS: [Power; POWERS_LEN] = powers();

/// The smallest cached power that scales the binary `exponent` to at least [`EXPONENT_MIN`], and its decimal exponent.
fn cached_power(exponent: i32) -> (Power, i32) {
    let wanted = EXPONENT_MIN - 64 - exponent;
    // An initial estimate that is never too high: log10(2) is slightly above 78913 / 2^18.
    let ten = (((wanted + 63) * 78_913) >> 18) - 1;
    let mut i = ((ten - TEN_MIN) / TEN_STEP).clamp(0, POWERS_LEN as i32 - 1) as usize;
    while POWERS[i].exponent < wanted && i + 1 < POWERS_LEN {
        i += 1;
    }
    (POWERS[i], TEN_MIN + TEN_STEP * i as i32)
}

/// Computes the cached powers with 128-bit significands, in steps of 10^8 up from 10^4 and down
/// from 10^-4; the error of the steps is far below the precision of the 64 bits that are kept.
const fn powers() -> [Power; POWERS_LEN] {
    const STEP: u128 = 10u128.pow(TEN_STEP as u32);
    let mut powers = [Power { significand: 0, exponent: 0 }; POWERS_LEN];
    let middle = ((4 - TEN_MIN) / TEN_STEP) as usize;

    let (mut significand, mut exponent) = normal(10_000, 0);
    let mut i = middle;
    while i < POWERS_LEN {
        powers[i] = rounded(significand, exponent);
        let low = (significand & u64::MAX as u128) * STEP;
        let high = (significand >> 64) * STEP + (low >> 64);
        let excess = 64 - high.leading_zeros();
        significand = (high << (64 - excess)) | ((low & u64::MAX as u128) >> excess);
        exponent += excess as i32;
        i += 1;
    }

    // 2^127 / 10^4, extended by the next 13 bits from the remainder.
    let (quotient, remainder) = ((1u128 << 127) / 10_000, (1u128 << 127) % 10_000);
    (significand, exponent) = normal((quotient << 13) + (remainder << 13) / 10_000, -127 - 13);
    i = middle;
    while i > 0 {
        i -= 1;
        powers[i] = rounded(significand, exponent);
        let divided = ((significand / STEP) << 26) + ((significand % STEP) << 26) / STEP;
        (significand, exponent) = normal(divided, exponent - 26);
    }
    powers
}

/// Shifts the significand left until its highest bit is set.
const fn normal(significand: u128, exponent: i32) -> (u128, i32) {
    let shift = significand.leading_zeros();
    (significand << shift, exponent - shift as i32)
}

const fn rounded(significand: u128, exponent: i32) -> Power {
    Power { significand: ((significand + (1 << 63)) >> 64) as u64, exponent: exponent + 64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_powers_are_rounded_powers_of_ten() {
        for (i, power) in POWERS.iter().enumerate() {
            let ten = TEN_MIN + TEN_STEP * i as i32;
            assert!(power.significand >> 63 == 1);
            let expected: f64 = format!("1e{ten}").parse().unwrap();
            if expected.is_normal() {
                // In two steps, since the factor alone may be out of a double's range.
                let half = power.exponent / 2;
                let scaled = power.significand as f64 * 2f64.powi(half) * 2f64.powi(power.exponent - half);
                assert_eq!(scaled, expected, "10^{ten}");
            }
        }
        let exact = &POWERS[((4 - TEN_MIN) / TEN_STEP) as usize];
        assert_eq!((exact.significand, exact.exponent), (10_000 << 50, -50));
    }

    #[test]
    fn every_exponent_finds_its_power() {
        for exponent in 0..2046u64 {
            for fraction in [0, 1, HIDDEN_BIT - 1] {
                let n = f64::from_bits((exponent << 52 | fraction).max(1));
                let decimal = Decimal::new(n);
                let digits = std::str::from_utf8(decimal.digits()).unwrap();
                assert_eq!(format!("{digits}e{}", decimal.exponent).parse(), Ok(n));
            }
        }
    }

    #[test]
    fn digits_equal_grisu2_also_when_not_shortest() {
        let digits = |n: f64| String::from_utf8(Decimal::new(n).digits().to_vec()).unwrap();
        assert_eq!(digits(8.5068e21), "8506800000000001");
        assert_eq!(digits(9.1492e21), "9149199999999999");
        assert_eq!(digits(4.673e21), "46729999999999997");
    }
}
