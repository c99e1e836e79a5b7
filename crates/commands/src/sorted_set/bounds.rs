//! Parses the bounds of ranges by score and by member.

use std::ops::Range;

use kvick_store::collections::sorted_set::Cut;

use crate::context::Error;

/// The cuts for the scores from `min` to `max`; a bound preceded by `(` is exclusive.
pub fn scores<'a>(min: &[u8], max: &[u8]) -> Result<Range<Cut<'a>>, Error> {
    const NOT_FLOAT: Error = Error::text("ERR min or max is not a float");
    let (min, min_excluded) = score(min).ok_or(NOT_FLOAT)?;
    let (max, max_excluded) = score(max).ok_or(NOT_FLOAT)?;
    Ok(Cut::Score { score: min, behind: min_excluded }..Cut::Score { score: max, behind: !max_excluded })
}

/// Parses a score, and whether it is excluded. As in Valkey, this is more lenient than for scores to store: an empty
/// text is zero, a NUL byte ends the number, and numbers may be out of the range of a double.
fn score(text: &[u8]) -> Option<(f64, bool)> {
    let (text, excluded) = match text {
        [b'(', rest @ ..] => (rest, true),
        _ => (text, false),
    };
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let score = if text.is_empty() { 0.0 } else { std::str::from_utf8(text).ok()?.parse::<f64>().ok()? };
    (!score.is_nan()).then_some((score, excluded))
}

/// The cuts for the members from `min` to `max`: `-` and `+` are the lowest and highest bounds, `[` precedes an
/// inclusive and `(` an exclusive bound.
pub fn members<'a>(min: &'a [u8], max: &'a [u8]) -> Result<Range<Cut<'a>>, Error> {
    const NOT_VALID: Error = Error::text("ERR min or max not valid string range item");
    let min = member(min, true).ok_or(NOT_VALID)?;
    let max = member(max, false).ok_or(NOT_VALID)?;
    Ok(min..max)
}

fn member(text: &[u8], is_min: bool) -> Option<Cut<'_>> {
    match text {
        b"-" => Some(Cut::Start),
        b"+" => Some(Cut::End),
        [b'[', member @ ..] => Some(Cut::Member { member, behind: !is_min }),
        [b'(', member @ ..] => Some(Cut::Member { member, behind: is_min }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_bounds_may_be_exclusive_or_infinite() {
        let behind = |score| Cut::Score { score, behind: true };
        let before = |score| Cut::Score { score, behind: false };
        assert_eq!(scores(b"1", b"2.5"), Ok(before(1.0)..behind(2.5)));
        assert_eq!(scores(b"(1", b"(2"), Ok(behind(1.0)..before(2.0)));
        assert_eq!(scores(b"-inf", b"+INF"), Ok(before(f64::NEG_INFINITY)..behind(f64::INFINITY)));
        assert_eq!(scores(b"", b"("), Ok(before(0.0)..before(0.0)));
        assert_eq!(scores(b"1e400", b"5\0x"), Ok(before(f64::INFINITY)..behind(5.0)));
        for wrong in ["x", "nan", "((1", "1 ", " 1", "[1", "1x"] {
            assert!(scores(wrong.as_bytes(), b"1").is_err() && scores(b"1", wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lex_bounds_state_whether_they_are_inclusive() {
        let cut = |member, behind| Cut::Member { member, behind };
        assert_eq!(members(b"-", b"+"), Ok(Cut::Start..Cut::End));
        assert_eq!(members(b"+", b"-"), Ok(Cut::End..Cut::Start));
        assert_eq!(members(b"[a", b"[b"), Ok(cut(b"a", false)..cut(b"b", true)));
        assert_eq!(members(b"(a", b"("), Ok(cut(b"a", true)..cut(b"", false)));
        for wrong in ["", "a", "--", "+1", "-inf", "1"] {
            assert!(members(wrong.as_bytes(), b"+").is_err() && members(b"-", wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
