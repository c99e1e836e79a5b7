//! IDs of stream entries: milliseconds and a sequence number, ordered as one 128-bit number.

use std::fmt;

/// Buffer for printing an ID: two numbers of twenty digits and a hyphen.
pub type IdBuf = [u8; 41];

/// Longer texts are not valid IDs.
const TEXT_LEN_MAX: usize = 127;

/// The ID of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Debug)]
pub struct Id {
    /// Unix time in milliseconds by convention; any number is valid.
    pub ms: u64,
    /// Distinguishes entries of the same millisecond.
    pub seq: u64,
}

impl Id {
    /// The lowest ID, which no entry has.
    pub const MIN: Id = Id { ms: 0, seq: 0 };
    /// The highest ID.
    pub const MAX: Id = Id { ms: u64::MAX, seq: u64::MAX };

    /// An ID of these parts.
    pub const fn new(ms: u64, seq: u64) -> Id {
        Id { ms, seq }
    }

    /// The next higher ID; `None` after the highest.
    pub fn next(self) -> Option<Id> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => Some(Id { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// The next lower ID; `None` before the lowest.
    pub fn prev(self) -> Option<Id> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => Some(Id { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// Parses `ms-seq`, or `ms` alone, whose sequence number is `seq_missing`.
    pub fn parse(text: &[u8], seq_missing: u64) -> Option<Id> {
        match Self::parse_parts(text)? {
            (ms, None) => Some(Id { ms, seq: seq_missing }),
            (ms, Some(seq)) => Some(Id { ms, seq: parse_part(seq)? }),
        }
    }

    /// Parses the ID of a new entry: like [`Id::parse`], and also
    /// accepts `ms-*`, which leaves the sequence number open (`None`).
    pub fn parse_open(text: &[u8]) -> Option<(u64, Option<u64>)> {
        match Self::parse_parts(text)? {
            (ms, None) => Some((ms, Some(0))),
            (ms, Some(b"*")) => Some((ms, None)),
            (ms, Some(seq)) => Some((ms, Some(parse_part(seq)?))),
        }
    }

    /// The milliseconds, and the text after the first hyphen.
    fn parse_parts(text: &[u8]) -> Option<(u64, Option<&[u8]>)> {
        if text.len() > TEXT_LEN_MAX {
            return None;
        }
        // The text ends at the first zero byte.
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        let mut parts = text.splitn(2, |&byte| byte == b'-');
        Some((parse_part(parts.next()?)?, parts.next()))
    }

    /// The text `ms-seq`, printed into `buffer`.
    pub fn text(self, buffer: &mut IdBuf) -> &[u8] {
        let mut printer = itoa::Buffer::new();
        let ms = printer.format(self.ms).as_bytes();
        let mut len = ms.len();
        buffer[..len].copy_from_slice(ms);
        buffer[len] = b'-';
        len += 1;
        let seq = printer.format(self.seq).as_bytes();
        buffer[len..len + seq.len()].copy_from_slice(seq);
        &buffer[..len + seq.len()]
    }

    /// Sixteen bytes that sort in the order of IDs: the format of dumps and files.
    pub fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.ms) << 64) | u128::from(self.seq)).to_be_bytes()
    }

    /// The ID of such bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Id {
        let number = u128::from_be_bytes(bytes);
        Id { ms: (number >> 64) as u64, seq: number as u64 }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// Parses one number of an ID. Besides canonical numbers, accepts everything that C's `strtoull`
/// parses completely, as clients may rely on leading zeros, except canonical negative numbers.
fn parse_part(text: &[u8]) -> Option<u64> {
    match kvick_resp::format::parse_u64(text) {
        Some(number) => Some(number),
        None if kvick_resp::format::parse_i64(text).is_some() => None,
        None => parse_lenient(text),
    }
}

#[cold]
fn parse_lenient(text: &[u8]) -> Option<u64> {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let (negative, digits) = match &text[blanks..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut number = 0u64;
    for byte in digits {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number = number.checked_mul(10)?.checked_add(digit)?;
    }
    Some(if negative { number.wrapping_neg() } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_and_previous_ids_carry_into_the_milliseconds() {
        assert_eq!(Id::new(1, u64::MAX).next(), Some(Id::new(2, 0)));
        assert_eq!(Id::new(2, 0).prev(), Some(Id::new(1, u64::MAX)));
        assert_eq!((Id::MAX.next(), Id::MIN.prev()), (None, None));
    }

    #[test]
    fn ids_parse_as_leniently_as_strtoull() {
        let cases: [(&[u8], Option<Id>); 16] = [
            (b"5", Some(Id::new(5, 7))),
            (b"5-0", Some(Id::new(5, 0))),
            (b"005-010", Some(Id::new(5, 10))),
            (b" 5-+1", Some(Id::new(5, 1))),
            (b"5\0xyz", Some(Id::new(5, 7))),
            (b"5--01", Some(Id::new(5, u64::MAX))),
            (b"18446744073709551615-18446744073709551615", Some(Id::MAX)),
            (b"18446744073709551616-1", None),
            (b"5--1", None),
            (b"-5", None),
            (b"5-", None),
            (b"", None),
            (b"5-1-1", None),
            (b"5-*", None),
            (b"x", None),
            (&[b'0'; 128], None),
        ];
        for (text, id) in cases {
            assert_eq!(Id::parse(text, 7), id, "{}", text.escape_ascii());
        }
        assert_eq!(Id::parse_open(b"5-*"), Some((5, None)));
        assert_eq!(Id::parse_open(b"5"), Some((5, Some(0))));
        assert_eq!(Id::parse_open(b"*-5"), None);
    }

    #[test]
    fn ids_round_trip_as_bytes_and_text() {
        for id in [Id::MIN, Id::new(1, 2), Id::new(u64::MAX, 0), Id::MAX] {
            assert_eq!(Id::from_bytes(id.to_bytes()), id);
            assert_eq!(Id::parse(id.text(&mut [0; 41]), 0), Some(id));
            assert_eq!(id.to_string().as_bytes(), id.text(&mut [0; 41]));
        }
        assert!(Id::new(1, 9).to_bytes() < Id::new(2, 0).to_bytes());
    }
}
