//! Software implementation of C's `long double` on x86-64, for floating-point counters.
//!
//! The results of INCRBYFLOAT and HINCRBYFLOAT are defined by the x87 unit: a 64-bit significand, a 15-bit exponent,
//! and rounding half to even. Rust has no such type, and clients see the resulting digits, so the three operations that
//! these commands need are implemented exactly: [`LongDouble::parse`] returns the result of `strtold`,
//! [`LongDouble::checked_add`] that of the addition, and [`LongDouble::format`] the output of `%.17Lf` without trailing
//! zeros.
//!
//! All operations use one function, [`LongDouble::round`], which rounds an exact (or exactly truncated) binary value
//! once. Numbers of up to 19 digits, and values below 2^128, use 128-bit integers without allocation. Longer ones use
//! [`Natural`], a small arbitrary-precision integer whose size is bounded by [`TEXT_LEN_MAX`].

use std::cmp::Ordering;

use smallvec::SmallVec;

/// Longer texts are not numbers, as in Valkey (where `MAX_LONG_DOUBLE_CHARS` includes the terminating NUL byte).
pub const TEXT_LEN_MAX: usize = 5 * 1024 - 1;

/// A formatted number: allocated only beyond about 63 digits; 4951 bytes for the largest numbers.
pub type Text = SmallVec<[u8; 64]>;

/// The exponent of the last bit of subnormal numbers and of the smallest normal numbers.
const EXPONENT_MIN: i32 = -16445;
/// The exponent of the last bit of the largest finite numbers.
const EXPONENT_MAX: i32 = 16320;
/// Number of decimals in formatted numbers.
const FRACTION_DIGITS: u32 = 17;
/// The largest power of ten in a `u64`.
const TEN_POWER_MAX: u32 = 19;

/// An 80-bit extended-precision number: finite or infinite, never NaN.
///
/// Its value is `significand * 2^exponent`, negated if `negative` is set. The top bit of the significand is set unless
/// the exponent is the smallest one. Zero has no sign, since the sign is never printed. The exponent of infinity is
/// above `EXPONENT_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    negative: bool,
    significand: u64,
    exponent: i32,
}

impl From<i64> for LongDouble {
    fn from(value: i64) -> Self {
        Self::round(value < 0, value.unsigned_abs().into(), 0, false)
    }
}

impl LongDouble {
    /// Zero.
    pub const ZERO: LongDouble = LongDouble { negative: false, significand: 0, exponent: EXPONENT_MIN };

    const fn infinity(negative: bool) -> Self {
        LongDouble { negative, significand: 1 << 63, exponent: EXPONENT_MAX + 1 }
    }

    /// Whether the number is not an infinity.
    pub const fn is_finite(self) -> bool {
        self.exponent <= EXPONENT_MAX
    }

    /// The number nearest to a text such as `3.0e-5`, `0x1.8p3` or `-inf`.
    ///
    /// `None` if the whole text is not a number (spaces are not skipped), is NaN, or overflows to infinity or
    /// underflows to zero.
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() > TEXT_LEN_MAX {
            return None;
        }
        let (negative, digits) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        match digits {
            [b'0', b'x' | b'X', hex @ ..] => parse_hexadecimal(negative, hex),
            [b'i' | b'I', ..] => {
                let infinite = digits.eq_ignore_ascii_case(b"inf") || digits.eq_ignore_ascii_case(b"infinity");
                infinite.then_some(Self::infinity(negative))
            }
            _ => parse_decimal(negative, digits),
        }
    }

    /// The rounded sum; `None` if it is infinite or not a number.
    pub fn checked_add(self, other: LongDouble) -> Option<LongDouble> {
        if !self.is_finite() || !other.is_finite() {
            return None;
        }
        let (large, small) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        // 62 bits below the significand of the larger number, and one above for the carry. Of the lower bits of the
        // smaller number, only whether they are all zero matters, so its last bit represents them.
        const GUARD: u32 = 62;
        let a = (large.significand as u128) << GUARD;
        let b = (small.significand as u128) << GUARD;
        let b = match (large.exponent - small.exponent) as u32 {
            0 => b,
            distance @ 1..128 => (b >> distance) | (b << (128 - distance) != 0) as u128,
            _ => (b != 0) as u128,
        };
        let (negative, bits) = if large.negative == small.negative {
            (large.negative, a + b)
        } else if a >= b {
            (large.negative, a - b)
        } else {
            (small.negative, b - a)
        };
        let sum = Self::round(negative, bits, large.exponent - GUARD as i32, false);
        sum.is_finite().then_some(sum)
    }

    /// The rounded product, rounded up to an integer. `None` if that is too large; values below the range become the
    /// smallest integer.
    pub fn times_up(self, factor: u32) -> Option<i64> {
        let product = Self::round(self.negative, self.significand as u128 * factor as u128, self.exponent, false);
        let whole = match product.exponent {
            _ if product.significand == 0 => 0,
            0 => product.significand,
            1.. => u64::MAX,
            exponent => {
                let places = exponent.unsigned_abs();
                let whole = product.significand.checked_shr(places).unwrap_or(0);
                let cut = whole.checked_shl(places).unwrap_or(0) != product.significand;
                whole + u64::from(cut && !product.negative)
            }
        };
        if product.negative { Some(0i64.saturating_sub_unsigned(whole)) } else { i64::try_from(whole).ok() }
    }

    /// The number in decimal notation with 17 decimals, rounded half to even, without trailing zeros (and without a
    /// trailing point or the sign of zero).
    pub fn format(self) -> Text {
        let mut text = Text::new();
        if self.negative {
            text.push(b'-');
        }
        if !self.is_finite() {
            text.extend_from_slice(b"inf");
            return text;
        }
        let significand = self.significand as u128;
        match self.exponent {
            65.. => {
                let mut whole = Natural::from(self.significand);
                whole.shift_left(self.exponent as u32);
                whole.print(&mut text);
            }
            0..=64 => print_u128(significand << self.exponent, &mut text),
            exponent => {
                let (whole, fraction) = split_at_point(self.significand, exponent.unsigned_abs());
                print_u128(whole, &mut text);
                print_fraction(fraction, &mut text);
                if text.as_slice() == b"-0" {
                    text.remove(0);
                }
            }
        }
        text
    }

    /// The number nearest to `bits * 2^exponent`, ties to even; infinity beyond the largest number.
    ///
    /// If `sticky` is set, the exact value is above that by less than one unit of `bits`; `bits` then has at least 66
    /// significant bits, so that the halfway point can be recognized.
    fn round(negative: bool, bits: u128, exponent: i32, sticky: bool) -> LongDouble {
        debug_assert!(!sticky || bits >> 65 != 0);
        if bits == 0 {
            return Self::ZERO;
        }
        let surplus = 128 - bits.leading_zeros() as i32 - 64;
        let cut = surplus.max(EXPONENT_MIN - exponent);
        let mut exponent = exponent + cut;
        let mut significand = match cut {
            ..=0 => bits << -cut,
            1..=128 => {
                let kept = bits.checked_shr(cut as u32).unwrap_or(0);
                let rest = bits << (128 - cut);
                const HALF: u128 = 1 << 127;
                let up = rest > HALF || rest == HALF && (sticky || kept & 1 == 1);
                kept + up as u128
            }
            _ => 0,
        };
        if significand >> 64 != 0 {
            significand >>= 1;
            exponent += 1;
        }
        match significand {
            0 => Self::ZERO,
            _ if exponent > EXPONENT_MAX => Self::infinity(negative),
            _ => LongDouble { negative, significand: significand as u64, exponent },
        }
    }

    /// The number nearest to `numerator / denominator`, both positive.
    fn quotient(negative: bool, mut numerator: Natural, mut denominator: Natural) -> LongDouble {
        let shift = numerator.bit_len() as i32 - denominator.bit_len() as i32;
        if shift >= 0 {
            denominator.shift_left(shift as u32);
        } else {
            numerator.shift_left(shift.unsigned_abs());
        }
        // Both have the same length now, so one of the first two bits of the quotient is set, and the last has weight
        // 2^-66.
        const STEPS: i32 = 67;
        let mut bits = 0u128;
        for _ in 0..STEPS {
            bits <<= 1;
            if numerator.compare(&denominator) != Ordering::Less {
                numerator.subtract(&denominator);
                bits |= 1;
            }
            numerator.shift_left(1);
        }
        Self::round(negative, bits, shift - (STEPS - 1), !numerator.is_zero())
    }
}

/// The digits of a number without its exponent: `whole[.fraction]`.
struct Digits<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
}

impl<'a> Digits<'a> {
    /// Splits the leading digits off `text`; `None` if there are none.
    fn take(text: &'a [u8], is_digit: fn(&u8) -> bool) -> Option<(Digits<'a>, &'a [u8])> {
        let span = |text: &'a [u8]| text.split_at(text.iter().take_while(|byte| is_digit(byte)).count());
        let (whole, rest) = span(text);
        let (fraction, rest) = match rest {
            [b'.', behind @ ..] => span(behind),
            _ => (&[][..], rest),
        };
        let any = !whole.is_empty() || !fraction.is_empty();
        any.then_some((Digits { whole, fraction }, rest))
    }

    /// All digits starting at the first nonzero one.
    fn significant(&self) -> impl Iterator<Item = u8> + Clone + use<'a> {
        self.whole.iter().chain(self.fraction).copied().skip_while(|&digit| digit == b'0')
    }
}

/// Parses the signed exponent after `letter` (in lower case); 0 if the text is empty, `None` if anything else follows.
/// Large exponents saturate far beyond the range of any text.
fn parse_exponent(text: &[u8], letter: u8) -> Option<i32> {
    const LIMIT: i32 = 1_000_000;
    let (negative, digits) = match text {
        [] => return Some(0),
        [first, rest @ ..] if first.eq_ignore_ascii_case(&letter) => match rest {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] => (false, digits),
            _ => (false, rest),
        },
        _ => return None,
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let size = digits.iter().fold(0, |sum, digit| (sum * 10 + (digit - b'0') as i32).min(LIMIT));
    Some(if negative { -size } else { size })
}

/// The number if it is in range: neither infinite nor an underflow to zero.
fn in_range(number: LongDouble) -> Option<LongDouble> {
    (number.is_finite() && number.significand != 0).then_some(number)
}

fn parse_decimal(negative: bool, text: &[u8]) -> Option<LongDouble> {
    let (digits, rest) = Digits::take(text, u8::is_ascii_digit)?;
    let scale = parse_exponent(rest, b'e')? - digits.fraction.len() as i32;
    let count = digits.significant().count();
    if count == 0 {
        return Some(LongDouble::ZERO);
    }
    let power = scale.unsigned_abs();
    if count <= TEN_POWER_MAX as usize && power <= TEN_POWER_MAX {
        let number = digits.significant().fold(0, |sum, digit| sum * 10 + (digit - b'0') as u64);
        let power = 10u64.pow(power);
        return Some(if scale >= 0 {
            LongDouble::round(negative, number as u128 * power as u128, 0, false)
        } else {
            divide(negative, number, power)
        });
    }
    // The largest number has 4933 digits, and the smallest is written with 4950 zeros after the point.
    let magnitude = count as i32 + scale;
    if !(-4960..=4940).contains(&magnitude) {
        return None;
    }
    let mut numerator = Natural::from(0);
    for digit in digits.significant() {
        numerator.multiply_add(10, (digit - b'0') as u64);
    }
    let mut denominator = Natural::from(1);
    if scale >= 0 { &mut numerator } else { &mut denominator }.multiply_by_ten_power(power);
    in_range(LongDouble::quotient(negative, numerator, denominator))
}

/// The number nearest to `numerator / denominator`, both positive.
fn divide(negative: bool, numerator: u64, denominator: u64) -> LongDouble {
    let (up, down) = (numerator.leading_zeros(), denominator.leading_zeros());
    let dividend = ((numerator << up) as u128) << 64;
    let divisor = (denominator << down) as u128;
    // With both normalized, the quotient has 64 or 65 bits; two more bits are needed for the halfway point.
    let (high, rest) = (dividend / divisor, (dividend % divisor) << 2);
    let bits = (high << 2) | (rest / divisor);
    LongDouble::round(negative, bits, down as i32 - up as i32 - 66, rest % divisor != 0)
}

fn parse_hexadecimal(negative: bool, text: &[u8]) -> Option<LongDouble> {
    let (digits, rest) = Digits::take(text, u8::is_ascii_hexdigit)?;
    let mut exponent = parse_exponent(rest, b'p')? - 4 * digits.fraction.len() as i32;
    let (mut bits, mut sticky) = (0u128, false);
    for digit in digits.significant() {
        let digit = (digit as char).to_digit(16)?;
        if bits >> 124 == 0 {
            bits = bits << 4 | digit as u128;
        } else {
            sticky |= digit != 0;
            exponent += 4;
        }
    }
    if bits == 0 { Some(LongDouble::ZERO) } else { in_range(LongDouble::round(negative, bits, exponent, sticky)) }
}

/// Whole part and fraction of `significand * 2^-places` with `places > 0`; the fraction is rounded to units of 10^-17.
fn split_at_point(significand: u64, places: u32) -> (u128, u64) {
    const UNITS: u128 = 10u128.pow(FRACTION_DIGITS);
    if places > 127 {
        return (0, 0);
    }
    let whole = significand as u128 >> places;
    let scaled = (significand as u128 - (whole << places)) * UNITS;
    let (kept, rest, half) = (scaled >> places, scaled & ((1 << places) - 1), 1 << (places - 1));
    let up = rest > half || rest == half && kept & 1 == 1;
    let fraction = kept + up as u128;
    if fraction == UNITS { (whole + 1, 0) } else { (whole, fraction as u64) }
}

fn print_u128(mut number: u128, text: &mut Text) {
    let mut buffer = [0; 39];
    let mut start = buffer.len();
    loop {
        // Division of 64-bit numbers is far cheaper, and nearly all numbers fit.
        let digit = match u64::try_from(number) {
            Ok(small) => {
                number = (small / 10) as u128;
                small % 10
            }
            Err(_) => {
                let digit = number % 10;
                number /= 10;
                digit as u64
            }
        };
        start -= 1;
        buffer[start] = b'0' + digit as u8;
        if number == 0 {
            break;
        }
    }
    text.extend_from_slice(&buffer[start..]);
}

/// Prints the point and the digits of `fraction / 10^17` up to the last nonzero one.
fn print_fraction(mut fraction: u64, text: &mut Text) {
    if fraction == 0 {
        return;
    }
    let mut buffer = [b'.'; 1 + FRACTION_DIGITS as usize];
    for place in buffer[1..].iter_mut().rev() {
        *place = b'0' + (fraction % 10) as u8;
        fraction /= 10;
    }
    let zeros = buffer.iter().rev().take_while(|&&digit| digit == b'0').count();
    text.extend_from_slice(&buffer[..buffer.len() - zeros]);
}

/// An arbitrary-precision natural number: 64-bit limbs, least significant first, without trailing zero limbs.
struct Natural(Vec<u64>);

impl From<u64> for Natural {
    fn from(value: u64) -> Self {
        let mut number = Natural(vec![value]);
        number.trim();
        number
    }
}

impl Natural {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bit_len(&self) -> u32 {
        self.0.last().map_or(0, |top| self.0.len() as u32 * 64 - top.leading_zeros())
    }

    fn compare(&self, other: &Natural) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Replaces it by `self * factor + summand`.
    fn multiply_add(&mut self, factor: u64, summand: u64) {
        let mut carry = summand as u128;
        for limb in &mut self.0 {
            carry += *limb as u128 * factor as u128;
            *limb = carry as u64;
            carry >>= 64;
        }
        if carry != 0 {
            self.0.push(carry as u64);
        }
    }

    fn multiply_by_ten_power(&mut self, mut power: u32) {
        while power > 0 {
            let step = power.min(TEN_POWER_MAX);
            self.multiply_add(10u64.pow(step), 0);
            power -= step;
        }
    }

    fn shift_left(&mut self, count: u32) {
        let (limbs, bits) = (count as usize / 64, count % 64);
        if bits > 0 {
            let mut carry = 0;
            for limb in &mut self.0 {
                (*limb, carry) = (*limb << bits | carry, *limb >> (64 - bits));
            }
            if carry != 0 {
                self.0.push(carry);
            }
        }
        if limbs > 0 && !self.is_zero() {
            self.0.splice(0..0, std::iter::repeat_n(0, limbs));
        }
    }

    /// Subtracts `other`, which must not be larger.
    fn subtract(&mut self, other: &Natural) {
        let mut borrow = false;
        let others = other.0.iter().copied().chain(std::iter::repeat(0));
        for (limb, other) in self.0.iter_mut().zip(others) {
            let (rest, short) = limb.overflowing_sub(other);
            let (rest, shorter) = rest.overflowing_sub(borrow as u64);
            (*limb, borrow) = (rest, short || shorter);
        }
        debug_assert!(!borrow);
        self.trim();
    }

    /// Divides it by `divisor` and returns the remainder.
    fn divide(&mut self, divisor: u64) -> u64 {
        let mut rest = 0u128;
        for limb in self.0.iter_mut().rev() {
            let dividend = rest << 64 | *limb as u128;
            *limb = (dividend / divisor as u128) as u64;
            rest = dividend % divisor as u128;
        }
        self.trim();
        rest as u64
    }

    /// Appends its decimal digits. Consumes the number.
    fn print(mut self, text: &mut Text) {
        let mut groups = Vec::with_capacity(self.0.len() + self.0.len() / 64 + 1);
        while !self.is_zero() {
            groups.push(self.divide(10u64.pow(TEN_POWER_MAX)));
        }
        print_u128(groups.pop().unwrap_or(0).into(), text);
        for mut group in groups.into_iter().rev() {
            let mut buffer = [0; TEN_POWER_MAX as usize];
            for place in buffer.iter_mut().rev() {
                *place = b'0' + (group % 10) as u8;
                group /= 10;
            }
            text.extend_from_slice(&buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let number = |text: &str| LongDouble::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text} is a number"));
        let sum = number(a).checked_add(number(b)).unwrap_or_else(|| panic!("{a} + {b} is finite"));
        String::from_utf8_lossy(&sum.format()).into_owned()
    }

    #[test]
    fn sums_match_x87_extended_precision() {
        // The output of a C program that adds with `long double` on x86-64.
        let expected = [
            ("0", "1", "1"),
            ("1", "0.25", "1.25"),
            ("17179869184", "1.5", "17179869185.5"),
            ("1", "-1.1", "-0.1"),
            ("0.1", "0.2", "0.3"),
            ("5.0e3", "2.0e2", "5200"),
            ("10.5", "0.1", "10.6"),
            ("-.5", "1.", "0.5"),
            ("9223372036854775807", "0.5", "9223372036854775807.5"),
            ("9223372036854775807", "1", "9223372036854775808"),
            ("18446744073709551615", "0.5", "18446744073709551616"),
            ("18446744073709551616", "1", "18446744073709551616"),
            ("18446744073709551616", "3", "18446744073709551620"),
            ("123456789012345678901234567890", "0", "123456789012345678899921813504"),
            ("0.333333333333333333333333333", "0", "0.33333333333333333"),
            ("0.99999999999999999999", "0", "1"),
            ("99999999999999999.99999999999999999", "0", "100000000000000000"),
            ("1e20", "1e-20", "100000000000000000000"),
            ("1e38", "1e38", "199999999999999999998625200897198653440"),
            ("0x1.8p3", "0", "12"),
            ("0x.8P-1", "-0", "0.25"),
            ("0e9999999999", "2", "2"),
        ];
        for (a, b, printed) in expected {
            assert_eq!(sum(a, b), printed, "{a} + {b}");
            assert_eq!(sum(b, a), printed, "{b} + {a}");
        }
    }

    #[test]
    fn sums_are_rounded_half_to_even() {
        let expected = [
            ("0x8000000000000000p0", "0x1p-1", "9223372036854775808"),
            ("0x8000000000000001p0", "0x1p-1", "9223372036854775810"),
            ("0x8000000000000001p0", "0x1.8p-1", "9223372036854775810"),
            ("-0x8000000000000000p0", "0x1p-1", "-9223372036854775807.5"),
            ("-0x8000000000000000p0", "0x1p-2", "-9223372036854775808"),
            ("-0x8000000000000000p0", "0x1.8p-2", "-9223372036854775807.5"),
        ];
        for (a, b, printed) in expected {
            assert_eq!(sum(a, b), printed, "{a} + {b}");
        }
    }

    #[test]
    fn digits_are_rounded_half_to_even() {
        assert_eq!(sum("0.000003814697265625", "0"), "0.00000381469726562");
        assert_eq!(sum("0.000011444091796875", "0"), "0.00001144409179688");
        assert_eq!(sum("1e-17", "0"), "0.00000000000000001");
        assert_eq!(sum("4.9e-18", "0"), "0");
    }

    #[test]
    fn zero_has_no_sign() {
        for (a, b) in [("-0", "-0"), ("2.5", "-2.5"), ("-1e20", "1e20"), ("-5e-18", "0"), ("1e4900", "-1e4900")] {
            assert_eq!(sum(a, b), "0", "{a} + {b}");
        }
    }

    #[test]
    fn largest_number_round_trips() {
        let largest = LongDouble::parse(b"1.18973149535723176502e4932").unwrap();
        let text = largest.format();
        assert_eq!(text.len(), 4933);
        assert!(text.starts_with(b"1189731495357231765021263853030970205169063322294624200440323733891737"));
        assert_eq!(LongDouble::parse(&text), Some(largest));
        assert_eq!(largest.checked_add(largest), None);
    }

    #[test]
    fn smallest_number_parses_and_underflow_is_rejected() {
        assert!(LongDouble::parse(b"0x1p-16445").is_some());
        assert!(LongDouble::parse(b"3.65e-4951").is_some());
        for text in ["0x1p-16446", "1.8e-4951", "1e-4952", "1e-99999999999"] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn infinity_parses_but_cannot_be_added() {
        for text in ["inf", "+INF", "-Infinity"] {
            let infinity = LongDouble::parse(text.as_bytes()).unwrap();
            assert!(!infinity.is_finite());
            assert_eq!(infinity.checked_add(LongDouble::from(1)), None);
            assert_eq!(LongDouble::from(1).checked_add(infinity), None);
        }
    }

    #[test]
    fn partial_numbers_are_rejected() {
        let texts = [
            "",
            " 1",
            "1 ",
            "1\0",
            "+-1",
            "1.2.3",
            ".",
            "e5",
            "1e",
            "1e+",
            "0x",
            "0x.",
            "0x1p",
            "nan",
            "infx",
            "1_0",
            "1e4933",
            "1.2e4932",
            "1e99999999999",
            "0x1p16384",
        ];
        for text in texts {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
        assert!(LongDouble::parse(&[b'0'; TEXT_LEN_MAX]).is_some());
        assert_eq!(LongDouble::parse(&[b'0'; TEXT_LEN_MAX + 1]), None);
    }

    #[test]
    fn integers_are_exact() {
        for number in [0, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(LongDouble::from(number).format().as_slice(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn equal_numbers_in_different_notation_are_equal() {
        // The short ones use 128-bit integers, the long ones arbitrary precision.
        let short = ["0.1", "123456789.000000001", "7e-19", "1234567890123456789e19", "3e19", "0.0625"];
        for short in short {
            let (digits, exponent) = short.split_once('e').unwrap_or((short, "0"));
            let point = if digits.contains('.') { "" } else { "." };
            let long = format!("{digits}{point}{}e{exponent}", "0".repeat(40));
            assert_eq!(LongDouble::parse(short.as_bytes()), LongDouble::parse(long.as_bytes()), "{short}");
        }
    }
}
