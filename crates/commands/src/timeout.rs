//! Timeout arguments of blocking commands.

use crate::context::Error;
use crate::string::long_double::LongDouble;
use kvick_resp::format::parse_i64;

const OUT_OF_RANGE: Error = Error::text("ERR timeout is out of range");

/// The Unix time in ms at which a wait that starts at `now_ms` ends; `None` for no timeout, given as zero. If
/// `unit_seconds` is set, the argument is a number of seconds, rounded up to a millisecond; otherwise it is an integer
/// of milliseconds.
///
/// # Errors
/// If the argument is not a number, is negative, or the end is out of range.
pub fn until_ms(word: &[u8], unit_seconds: bool, now_ms: i64) -> Result<Option<i64>, Error> {
    let wait_ms = if unit_seconds {
        let seconds = LongDouble::parse(word).ok_or(Error::text("ERR timeout is not a float or out of range"))?;
        seconds.times_up(1000).ok_or(OUT_OF_RANGE)?
    } else {
        parse_i64(word).ok_or(Error::text("ERR timeout is not an integer or out of range"))?
    };
    match wait_ms {
        ..0 => Err(Error::text("ERR timeout is negative")),
        0 => Ok(None),
        _ => now_ms.checked_add(wait_ms).map(Some).ok_or(OUT_OF_RANGE),
    }
}

/// Whether a wait that ends at `until_ms` has ended. Both times are rounded down, so a wait that ended within the
/// millisecond `until_ms` could be too short.
#[inline]
pub fn is_over(until_ms: i64, now_ms: i64) -> bool {
    until_ms < now_ms
}

/// Milliseconds until the wait has ended: at least 1, so that a thread that sleeps for this time does not spin.
#[inline]
pub fn left_ms(until_ms: i64, now_ms: i64) -> i64 {
    until_ms.saturating_sub(now_ms).saturating_add(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::{is_over, left_ms, until_ms};

    #[test]
    fn a_wait_is_over_when_its_last_millisecond_is() {
        for (until_ms, over, left) in [(9, true, 1), (10, false, 1), (11, false, 2), (i64::MAX, false, i64::MAX - 9)] {
            assert_eq!((is_over(until_ms, 10), left_ms(until_ms, 10)), (over, left), "{until_ms}");
        }
    }

    fn seconds(word: &str) -> Result<Option<i64>, String> {
        until_ms(word.as_bytes(), true, 1_000_000).map_err(|error| error.to_string())
    }

    #[test]
    fn seconds_may_have_a_fraction_and_are_rounded_up() {
        for (word, wait) in [("1", 1000), ("0.1", 100), ("0.001", 1), ("0.0001", 1), ("1.0005", 1001), ("0x10", 16_000)]
        {
            assert_eq!(seconds(word), Ok(Some(1_000_000 + wait)), "{word}");
        }
        assert_eq!(seconds("1e-4000"), Ok(Some(1_000_001)));
        assert_eq!(seconds("9223372036853.775"), Ok(Some(9_223_372_037_853_775)));
    }

    #[test]
    fn zero_timeout_blocks_forever() {
        for word in ["0", "0.0", "-0", "-0.0005", "0x0"] {
            assert_eq!(seconds(word), Ok(None), "{word}");
        }
        assert_eq!(until_ms(b"0", false, 5), Ok(None));
    }

    #[test]
    fn invalid_times_are_rejected_with_a_reason() {
        for (word, text) in [
            ("", "not a float or out of range"),
            ("x", "not a float or out of range"),
            ("nan", "not a float or out of range"),
            ("1e5000", "not a float or out of range"),
            (" 1", "not a float or out of range"),
            ("-1", "negative"),
            ("-0.002", "negative"),
            ("-inf", "negative"),
            ("-1e300", "negative"),
            ("inf", "out of range"),
            ("1e300", "out of range"),
            ("9223372036854776", "out of range"),
            ("0x7FFFFFFFFFFFFFFF", "out of range"),
            ("9223372036854775", "out of range"),
        ] {
            assert_eq!(seconds(word), Err(format!("ERR timeout is {text}")), "{word}");
        }
        let text = |word: &str| until_ms(word.as_bytes(), false, 1).map_err(|error| error.to_string());
        assert_eq!(text("1.5"), Err("ERR timeout is not an integer or out of range".into()));
        assert_eq!(text("-1"), Err("ERR timeout is negative".into()));
        assert_eq!(text("9223372036854775807"), Err("ERR timeout is out of range".into()));
        assert_eq!(text("7"), Ok(Some(8)));
    }
}
