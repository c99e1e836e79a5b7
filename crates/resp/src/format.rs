//! Formatting and parsing of numbers, compatible with Valkey.

use crate::grisu::Decimal;

/// Whole doubles up to this magnitude, half of the range of an `i64`, are printed as integers.
const INTEGER_MAX: f64 = (i64::MAX / 2) as f64;

/// Appends `n` in decimal.
#[inline]
pub fn format_i64(n: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Appends `n` in decimal.
#[inline]
pub fn format_u64(n: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Appends `n` with the digits and the layout of Valkey's replies, which read
/// back as `n`: `3`, `0.1`, `1e+20`, `1.5e-7`, `-0`, `inf`, `-inf`, `nan`.
pub fn format_double(n: f64, out: &mut Vec<u8>) {
    if n.is_nan() {
        out.extend_from_slice(b"nan");
    } else if n.is_infinite() {
        out.extend_from_slice(if n < 0.0 { b"-inf" } else { b"inf" });
    } else if n == 0.0 {
        out.extend_from_slice(if n.is_sign_negative() { b"-0" } else { b"0" });
    } else if let Some(n) = whole_double(n) {
        format_i64(n, out);
    } else {
        format_decimal(n, out);
    }
}

/// Like [`format_double`], but large integers too are in scientific notation if they end with many zeros: `1e+16`.
pub fn format_double_shortest(n: f64, out: &mut Vec<u8>) {
    if n.is_finite() && n != 0.0 { format_decimal(n, out) } else { format_double(n, out) }
}

/// `n` as an integer, if it prints as one. Excludes zero, which may be `-0`.
#[inline]
pub(crate) fn whole_double(n: f64) -> Option<i64> {
    let whole = n.abs() <= INTEGER_MAX && n as i64 as f64 == n && n != 0.0;
    whole.then_some(n as i64)
}

/// Formats the digits of a finite nonzero `n`: in plain notation
/// if that takes few zeros, otherwise in scientific notation.
fn format_decimal(n: f64, out: &mut Vec<u8>) {
    let decimal = Decimal::new(n.abs());
    let (digits, exponent) = (decimal.digits(), decimal.exponent);
    if n < 0.0 {
        out.push(b'-');
    }
    let len = digits.len() as i32;
    let scientific = len + exponent - 1;
    if exponent >= 0 && scientific < len + 7 {
        out.extend_from_slice(digits);
        out.extend(std::iter::repeat_n(b'0', exponent as usize));
    } else if exponent < 0 && (exponent > -7 || scientific.abs() < 4) {
        let whole = usize::try_from(len + exponent).unwrap_or(0);
        if whole == 0 {
            out.extend_from_slice(b"0.");
            out.extend(std::iter::repeat_n(b'0', (-exponent - len) as usize));
        } else {
            out.extend_from_slice(&digits[..whole]);
            out.push(b'.');
        }
        out.extend_from_slice(&digits[whole..]);
    } else {
        out.push(digits[0]);
        if digits.len() > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        out.extend_from_slice(if scientific < 0 { b"e-" } else { b"e+" });
        format_u64(u64::from(scientific.unsigned_abs()), out);
    }
}

/// Parses a canonical `i64`: accepts exactly what [`format_i64`] prints. No blanks, no `+`, no leading zeros, no `-0`.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [digit @ b'0'..=b'9'] => Some(i64::from(digit - b'0')),
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(parse_canonical(digits)?),
        digits => i64::try_from(parse_canonical(digits)?).ok(),
    }
}

/// Parses a canonical `u64`: accepts exactly what [`format_u64`] prints.
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    if text == b"0" { Some(0) } else { parse_canonical(text) }
}

/// Parses a nonzero number without leading zeros.
#[inline]
fn parse_canonical(digits: &[u8]) -> Option<u64> {
    let (b'1'..=b'9', 1..=20) = (*digits.first()?, digits.len()) else {
        return None;
    };
    // Nineteen digits always fit.
    let (sure, last) = digits.split_at(digits.len().min(19));
    let mut number = 0;
    for byte in sure {
        number = number * 10 + u64::from(digit(*byte)?);
    }
    match last {
        [byte] => number.checked_mul(10)?.checked_add(u64::from(digit(*byte)?)),
        _ => Some(number),
    }
}

#[inline]
fn digit(byte: u8) -> Option<u8> {
    let digit = byte.wrapping_sub(b'0');
    (digit < 10).then_some(digit)
}

/// Parses a double: decimal, with an optional sign and exponent, or `inf` or `infinity` in any case.
/// No blanks, no hexadecimal, no NaN, and no numbers that are too large or too small for a double.
pub fn parse_double(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let is_in_range = match number {
        n if n.is_nan() => false,
        n if n.is_infinite() => text.iter().any(|byte| byte.eq_ignore_ascii_case(&b'i')),
        0.0 => {
            let mantissa = text.iter().take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'));
            !mantissa.into_iter().any(|byte| matches!(byte, b'1'..=b'9'))
        }
        _ => true,
    };
    is_in_range.then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn double(n: f64) -> String {
        let mut out = Vec::new();
        format_double(n, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn doubles_are_formatted_like_valkey() {
        let cases = [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (-17.5, "-17.5"),
            (0.1, "0.1"),
            (3.125, "3.125"),
            (1e15, "1000000000000000"),
            (4e18, "4000000000000000000"),
            (5e18, "5e+18"),
            (-1e20, "-1e+20"),
            (1.5e300, "1.5e+300"),
            (1e100, "1e+100"),
            (1.234567890123456e20, "123456789012345600000"),
            (1.2345678901234567e30, "1.2345678901234567e+30"),
            (1e-5, "0.00001"),
            (1e-6, "0.000001"),
            (1e-7, "1e-7"),
            (1.5e-7, "1.5e-7"),
            (0.0001234567, "1.234567e-4"),
            (0.001234567, "0.001234567"),
            (1234.567890123, "1234.567890123"),
            (12345.678901234567, "1.2345678901234567e+4"),
            (1e-108, "1e-108"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (n, text) in cases {
            assert_eq!(double(n), text);
        }
    }

    #[test]
    fn only_canonical_integers_are_parsed() {
        for text in ["", "-", "+1", " 1", "1 ", "01", "-0", "00", "1.0", "0x1", "1_0", "a", "--1", "-01"] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text}");
        }
        for n in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(parse_i64(n.to_string().as_bytes()), Some(n));
        }
        for text in ["9223372036854775808", "-9223372036854775809", "18446744073709551616", "99999999999999999999999"] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!((parse_u64(b"0"), parse_u64(b"-1"), parse_u64(b"00")), (Some(0), None, None));
    }

    #[test]
    fn doubles_are_parsed_strictly() {
        let refused = [
            "", ".", " 1", "1 ", "1e", "0x10", "0x1p3", "nan", "-nan", "nan(1)", "infinit", "inf ", "1_0", "--1",
            "1e400", "-1e400", "1e-400", "2e-324", "1,5",
        ];
        for text in refused {
            assert_eq!(parse_double(text.as_bytes()), None, "{text}");
        }
        let read = [
            ("1.", 1.0),
            (".5", 0.5),
            ("-.5", -0.5),
            ("+1", 1.0),
            ("00012", 12.0),
            ("1e5", 1e5),
            ("1E+5", 1e5),
            ("3e-324", 5e-324),
            ("-0", 0.0),
            ("0e-999", 0.0),
            ("inf", f64::INFINITY),
            ("+Inf", f64::INFINITY),
            ("-INFINITY", f64::NEG_INFINITY),
        ];
        for (text, n) in read {
            assert_eq!(parse_double(text.as_bytes()), Some(n), "{text}");
        }
        assert_eq!(parse_double(b"1\xff"), None);
    }

    proptest! {
        #[test]
        fn doubles_round_trip(n in any::<f64>().prop_filter("finite", |n| n.is_finite())) {
            prop_assert_eq!(parse_double(double(n).as_bytes()).map(f64::to_bits), Some(n.to_bits()));
        }

        #[test]
        fn decimals_round_trip(digits in 1i64..1_000_000_000, power in -30i32..30) {
            let n: f64 = format!("{digits}e{power}").parse().unwrap();
            prop_assert_eq!(parse_double(double(n).as_bytes()), Some(n));
        }

        #[test]
        fn integers_round_trip(n in any::<i64>(), shift in 0..64) {
            let n = n >> shift;
            let mut out = Vec::new();
            format_i64(n, &mut out);
            prop_assert_eq!(parse_i64(&out), Some(n));
        }

        #[test]
        fn parsed_integers_are_canonical(text in "[-+ 0-9]{0,22}") {
            let canonical = text.parse::<i64>().ok().filter(|n| n.to_string() == text);
            prop_assert_eq!(parse_i64(text.as_bytes()), canonical);
        }
    }
}
