//! Numbers as text, the way Valkey prints and reads them.

use zmij::Buffer;

/// The longest text of an `f64`: sign, 17 digits, point, `e-308`.
const DOUBLE_LEN_MAX: usize = 32;

/// Doubles up to this magnitude are printed as integers when they are whole: half of what an `i64` can hold.
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

/// Appends `n` with the fewest digits that read back as `n`, laid out like Valkey's replies: `3`, `0.1`, `1e+20`,
/// `1.5e-7`, `-0`, `inf`, `-inf`, `nan`.
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
        format_fraction(n, out);
    }
}

/// The integer that `n` is and prints as. Not zero, which may be `-0`.
#[inline]
pub(crate) fn whole_double(n: f64) -> Option<i64> {
    let whole = n.abs() <= INTEGER_MAX && n as i64 as f64 == n && n != 0.0;
    whole.then_some(n as i64)
}

/// Lays out the digits of a finite `n` that is not zero: plain while that takes few zeros, otherwise scientific.
fn format_fraction(n: f64, out: &mut Vec<u8>) {
    let mut buffer = Buffer::new();
    let text = buffer.format_finite(n).as_bytes();
    let point = text
        .iter()
        .position(|byte| *byte == b'.')
        .unwrap_or(text.len());
    let few_decimals = text.len() - point <= 7 || (1e-3..1e4).contains(&n.abs());
    if few_decimals && point < text.len() && !text.contains(&b'e') {
        // Laid out already as it is to be.
        out.extend_from_slice(text);
        return;
    }
    let mut digits = [0; DOUBLE_LEN_MAX];
    let (digits, exponent) = decimal(text.strip_prefix(b"-").unwrap_or(text), &mut digits);
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

/// Takes a positive number's text apart: its digits without zeros at either end, and the power of ten of the last one.
fn decimal<'a>(text: &[u8], digits: &'a mut [u8; DOUBLE_LEN_MAX]) -> (&'a [u8], i32) {
    let mantissa = text
        .iter()
        .position(|byte| *byte == b'e')
        .unwrap_or(text.len());
    let mut exponent = text.get(mantissa + 1..).map_or(0, signed);
    let (mut len, mut point) = (0, false);
    for &byte in &text[..mantissa] {
        match byte {
            b'.' => point = true,
            _ => {
                exponent -= i32::from(point);
                if len > 0 || byte != b'0' {
                    digits[len] = byte;
                    len += 1;
                }
            }
        }
    }
    while len > 1 && digits[len - 1] == b'0' {
        len -= 1;
        exponent += 1;
    }
    (&digits[..len], exponent)
}

/// The value of a short number with an optional sign.
fn signed(text: &[u8]) -> i32 {
    let value = text
        .iter()
        .filter(|byte| byte.is_ascii_digit())
        .fold(0, |n, byte| n * 10 + i32::from(byte - b'0'));
    if text.starts_with(b"-") {
        -value
    } else {
        value
    }
}

/// Reads a canonical `i64`: what [`format_i64`] prints, and nothing else. No blanks, no `+`, no leading zeros, no `-0`.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [digit @ b'0'..=b'9'] => Some(i64::from(digit - b'0')),
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(parse_canonical(digits)?),
        digits => i64::try_from(parse_canonical(digits)?).ok(),
    }
}

/// Reads a canonical `u64`: what [`format_u64`] prints, and nothing else.
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    if text == b"0" {
        Some(0)
    } else {
        parse_canonical(text)
    }
}

/// Reads a number without leading zeros that is not zero.
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
        [byte] => number
            .checked_mul(10)?
            .checked_add(u64::from(digit(*byte)?)),
        _ => Some(number),
    }
}

#[inline]
fn digit(byte: u8) -> Option<u8> {
    let digit = byte.wrapping_sub(b'0');
    (digit < 10).then_some(digit)
}

/// Reads a double: decimal, with an optional sign and exponent, or `inf` or `infinity` in any case. No blanks, no
/// hexadecimal, no NaN, and nothing that is too large or too small for a double.
pub fn parse_double(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let sane = match number {
        n if n.is_nan() => false,
        n if n.is_infinite() => text.iter().any(|byte| byte.eq_ignore_ascii_case(&b'i')),
        0.0 => {
            let mantissa = text
                .iter()
                .take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'));
            !mantissa.into_iter().any(|byte| matches!(byte, b'1'..=b'9'))
        }
        _ => true,
    };
    sane.then_some(number)
}
