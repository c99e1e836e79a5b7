//! Formats and parses numbers like C's `%.14g` and `strtod`.

use std::io::Write;

/// Appends a finite number with `precision` significant digits, without trailing zeros in the fraction, and with an
/// exponent if it is below -4 or at least the precision.
pub(crate) fn write_number(n: f64, precision: usize, text: &mut Vec<u8>) {
    if n as i32 as f64 == n && (n != 0.0 || n.is_sign_positive()) && (n as i32).unsigned_abs() < 10_u32.pow(9) {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(n as i32);
        if digits.len() <= precision {
            return text.extend_from_slice(digits.as_bytes());
        }
    }
    // One digit, the point, the other digits, and an exponent of at most three digits.
    let mut scientific = [0; 32];
    let mut rest = &mut scientific[..];
    if write!(rest, "{:.*e}", precision - 1, n.abs()).is_err() {
        unreachable!("14 digits and an exponent fit");
    }
    let left = rest.len();
    let scientific = &scientific[..32 - left];
    let split = memchr::memchr(b'e', scientific).unwrap_or(scientific.len());
    let exponent = str::from_utf8(&scientific[split + 1..]).ok().and_then(|text| text.parse::<i32>().ok()).unwrap_or(0);

    let mut digits = [b'0'; 16];
    let mut len = 0;
    for digit in scientific[..split].iter().filter(|byte| byte.is_ascii_digit()) {
        digits[len] = *digit;
        len += 1;
    }
    let significant = digits[..len].iter().rposition(|digit| *digit != b'0').map_or(1, |last| last + 1);
    let digits = &digits[..significant];

    if n.is_sign_negative() {
        text.push(b'-');
    }
    if exponent < -4 || exponent >= precision as i32 {
        write_fixed(digits, 0, text);
        let sign = if exponent < 0 { '-' } else { '+' };
        if write!(text, "e{sign}{:02}", exponent.unsigned_abs()).is_err() {
            unreachable!("vectors take whatever is written to them");
        }
    } else {
        write_fixed(digits, exponent, text);
    }
}

/// Writes digits, the first of which has the weight 10^`exponent`.
fn write_fixed(digits: &[u8], exponent: i32, text: &mut Vec<u8>) {
    match usize::try_from(exponent + 1) {
        Ok(whole @ 1..) => {
            for i in 0..whole.max(digits.len()) {
                if i == whole {
                    text.push(b'.');
                }
                text.push(digits.get(i).copied().unwrap_or(b'0'));
            }
        }
        _ => {
            text.extend_from_slice(b"0.");
            text.extend(std::iter::repeat_n(b'0', (-exponent - 1) as usize));
            text.extend_from_slice(digits);
        }
    }
}

/// Parses the number at the start of `text`, which may be hexadecimal, infinite or NaN; returns it with its length.
/// `None` if there is no number.
pub(super) fn read_number(text: &[u8]) -> Option<(f64, usize)> {
    let negative = text.first() == Some(&b'-');
    let sign = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let unsigned = &text[sign..];
    let (n, len) = match unsigned.first()? {
        b'0' if unsigned.get(1).is_some_and(|byte| byte | 0x20 == b'x') => read_hexadecimal(unsigned),
        b'0'..=b'9' | b'.' => read_decimal(unsigned)?,
        _ => read_name(unsigned)?,
    };
    Some((if negative { -n } else { n }, sign + len))
}

fn read_decimal(text: &[u8]) -> Option<(f64, usize)> {
    let digits =
        |from: usize| text.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(0);
    let mut end = whole;
    if text.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    }
    if text.get(end).is_some_and(|byte| byte | 0x20 == b'e') {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'-' | b'+')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    Some((str::from_utf8(&text[..end]).ok()?.parse().ok()?, end))
}

/// Parses a number like `0x1.8p3`. `0x` without digits is the number 0 before the x.
fn read_hexadecimal(text: &[u8]) -> (f64, usize) {
    let (mut mantissa, mut exponent, mut digits, mut point) = (0_u64, 0_i32, 0, None);
    let mut end = 2;
    while let Some(byte) = text.get(end) {
        match (*byte as char).to_digit(16) {
            Some(digit) => {
                digits += 1;
                if mantissa >> 59 == 0 {
                    mantissa = mantissa << 4 | u64::from(digit);
                    exponent -= if point.is_some() { 4 } else { 0 };
                } else {
                    // The digit is too low to be stored, but affects the rounding.
                    mantissa |= u64::from(digit != 0);
                    exponent = exponent.saturating_add(if point.is_some() { 0 } else { 4 });
                }
            }
            None if *byte == b'.' && point.is_none() => point = Some(end),
            None => break,
        }
        end += 1;
    }
    if digits == 0 {
        return (0.0, 1);
    }
    if text.get(end).is_some_and(|byte| byte | 0x20 == b'p') {
        let negative = text.get(end + 1) == Some(&b'-');
        let start = end + 1 + usize::from(matches!(text.get(end + 1), Some(b'-' | b'+')));
        let power = text.get(start..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit());
        let (len, value) = power.fold((0, 0_i32), |(len, value), digit| {
            (len + 1, value.saturating_mul(10).saturating_add(i32::from(digit - b'0')))
        });
        if len > 0 {
            exponent = exponent.saturating_add(if negative { -value } else { value });
            end = start + len;
        }
    }
    (scale(mantissa as f64, exponent), end)
}

/// `n` times 2^`exponent`.
fn scale(n: f64, exponent: i32) -> f64 {
    let exponent = exponent.clamp(-2200, 2200);
    // In two steps, each within the range of powers of two.
    let half = exponent / 2;
    n * 2_f64.powi(half) * 2_f64.powi(exponent - half)
}

fn read_name(text: &[u8]) -> Option<(f64, usize)> {
    let is = |name: &str| text.get(..name.len()).is_some_and(|text| text.eq_ignore_ascii_case(name.as_bytes()));
    if is("infinity") {
        Some((f64::INFINITY, 8))
    } else if is("inf") {
        Some((f64::INFINITY, 3))
    } else if is("nan") {
        let payload = text.get(4..).filter(|_| text.get(3) == Some(&b'(')).and_then(|payload| {
            let len = payload.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
            (payload.get(len) == Some(&b')')).then_some(len + 2)
        });
        Some((f64::NAN, 3 + payload.unwrap_or(0)))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(n: f64, precision: usize) -> String {
        let mut text = Vec::new();
        write_number(n, precision, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn numbers_are_written_like_printf() {
        let cases = [
            (0.0, 14, "0"),
            (-0.0, 14, "-0"),
            (1.0, 14, "1"),
            (-123456.0, 14, "-123456"),
            (0.1, 14, "0.1"),
            (1.0 / 3.0, 14, "0.33333333333333"),
            (1e14, 14, "1e+14"),
            (99_999_999_999_999.0, 14, "99999999999999"),
            (1e-4, 14, "0.0001"),
            (1e-5, 14, "1e-05"),
            (1.5e300, 14, "1.5e+300"),
            (123456.0, 3, "1.23e+05"),
            (999_999.0, 3, "1e+06"),
            (0.00012345, 3, "0.000123"),
            (100.0, 3, "100"),
            (100.0, 1, "1e+02"),
            (2_147_483_648.0, 14, "2147483648"),
            (-2_147_483_648.0, 14, "-2147483648"),
            (5e-324, 14, "4.9406564584125e-324"),
        ];
        for (n, precision, text) in cases {
            assert_eq!(written(n, precision), text);
        }
    }

    #[test]
    fn numbers_are_read_like_strtod() {
        let cases = [
            ("1,", 1.0, 1),
            ("-1.5e3]", -1500.0, 6),
            ("1e", 1.0, 1),
            ("1e+", 1.0, 1),
            ("1.", 1.0, 2),
            ("-.5", -0.5, 3),
            ("007", 7.0, 3),
            ("0x10", 16.0, 4),
            ("0x", 0.0, 1),
            ("0x1.8p3", 12.0, 7),
            ("0x1p-1075", 0.0, 9),
            ("0xffffffffffffffff", 18_446_744_073_709_551_615.0, 18),
            ("1e400", f64::INFINITY, 5),
            ("-inf", f64::NEG_INFINITY, 4),
            ("Infinity", f64::INFINITY, 8),
            ("+3", 3.0, 2),
        ];
        for (text, n, len) in cases {
            assert_eq!(read_number(text.as_bytes()), Some((n, len)), "{text}");
        }
        assert!(matches!(read_number(b"nan(12)x"), Some((n, 7)) if n.is_nan()));
        assert!(matches!(read_number(b"nan(1-"), Some((n, 3)) if n.is_nan()));
        for text in ["", "-", "+", ".", "-.", "x", "e5"] {
            assert_eq!(read_number(text.as_bytes()), None, "{text}");
        }
    }
}
