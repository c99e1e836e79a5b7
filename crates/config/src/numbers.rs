//! Number formats of configuration files and CONFIG SET.
//!
//! Every parser requires that the whole argument is a number, and returns `None` otherwise or if the number does not
//! fit. None of them panics or wraps.

/// A plain decimal integer: an optional minus, no plus, no leading zeros, no spaces.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if text.len() == 1 => Some(0),
        [b'1'..=b'9', ..] if digits.iter().all(u8::is_ascii_digit) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// An integer as C's `strtoll` parses it: leading white space and a plus sign are allowed, and an empty text is 0.
pub fn lenient_integer(text: &[u8]) -> Option<i64> {
    lenient(text, 10)
}

/// An octal number, parsed as leniently as by [`lenient_integer`].
pub fn octal(text: &[u8]) -> Option<i64> {
    lenient(text, 8)
}

fn lenient(text: &[u8], radix: u32) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let text = std::str::from_utf8(text).ok()?;
    i64::from_str_radix(text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']), radix).ok()
}

/// An amount of memory in bytes: digits and an optional unit in any case. `k`, `m`, `g` are powers of 1000; `kb`, `mb`,
/// `gb` are powers of 1024; `b` is one byte. A unit without digits is 0, as in Valkey.
pub fn memory(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    if number.is_empty() {
        return Some(0);
    }
    std::str::from_utf8(number).ok()?.parse::<u64>().ok()?.checked_mul(factor)
}

/// Formats an amount of memory with the largest unit that divides it, so that [`memory`] parses it back.
pub fn memory_with_unit(bytes: u64) -> String {
    for (shift, unit) in [(30, "gb"), (20, "mb"), (10, "kb")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A finite or infinite decimal number without surrounding white space. NaN is refused, and minus zero becomes zero.
pub fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Formats a number with at most six decimals and no trailing zeros.
pub fn trimmed_float(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_integers_are_strict() {
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"0"), Some(0));
        for bad in ["", "-", "-0", "+1", "01", " 1", "1 ", "1a", "9223372036854775808"] {
            assert_eq!(integer(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn lenient_integers_follow_strtoll() {
        assert_eq!(lenient_integer(b""), Some(0));
        assert_eq!(lenient_integer(b" +007"), Some(7));
        assert_eq!(lenient_integer(b"7 "), None);
        assert_eq!(octal(b"0777"), Some(0o777));
        assert_eq!(octal(b"8"), None);
    }

    #[test]
    fn memory_units_are_decimal_or_binary_in_any_case() {
        let cases: [(&str, u64); 9] = [
            ("1", 1),
            ("2B", 2),
            ("1k", 1000),
            ("1KB", 1024),
            ("1m", 1_000_000),
            ("1Mb", 1 << 20),
            ("1g", 1_000_000_000),
            ("1gB", 1 << 30),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(memory(text.as_bytes()), Some(bytes), "{text}");
        }
        for bad in ["-1", "1t", "1 mb", "1kbb", "18446744073709551616", "20000000000gb"] {
            assert_eq!(memory(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn memory_is_written_with_the_largest_exact_unit() {
        for (bytes, text) in [(0, "0"), (1023, "1023"), (1024, "1kb"), (3 << 20, "3mb"), (1 << 33, "8gb")] {
            assert_eq!(memory_with_unit(bytes), text);
            assert_eq!(memory(text.as_bytes()), Some(bytes));
        }
    }

    #[test]
    fn floats_lose_their_trailing_zeros() {
        assert_eq!(trimmed_float(99.9), "99.9");
        assert_eq!(trimmed_float(50.0), "50");
        assert_eq!(trimmed_float(0.0), "0");
        assert_eq!(float(b"-0").map(trimmed_float).as_deref(), Some("-0"));
        assert_eq!(float(b"nan"), None);
        assert_eq!(float(b" 1"), None);
    }
}
