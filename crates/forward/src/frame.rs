//! Finds the end of a reply in received bytes.

use kvick_resp::format::parse_i64;

/// Maximum length of a header or simple line in bytes; errors can be long.
const LINE_MAX: usize = 64 * 1024;
/// Maximum number of elements of one aggregate.
const ELEMENTS_MAX: i64 = u32::MAX as i64;
/// Maximum length of a bulk string in bytes, as in the protocol's specification of requests, with some room.
const BULK_MAX: i64 = 4 << 30;

/// The reply violates the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Finds the end of the reply at the start of some input, in whatever pieces the input arrives. Each byte is examined
/// once.
#[derive(Debug)]
pub struct Scanner {
    /// Bytes that need no further examination; beyond the input while a bulk string is incomplete.
    at: usize,
    /// Elements of the reply that have not begun.
    left: u64,
}

impl Default for Scanner {
    /// A scanner at the start of a reply.
    fn default() -> Self {
        Scanner { at: 0, left: 1 }
    }
}

impl Scanner {
    /// The length of the reply that `input` begins with, or `None` if it is incomplete. `input` must begin with the
    /// same bytes in each call until a length is returned; then the scanner is ready for the next reply.
    ///
    /// # Errors
    /// If the input is not a reply.
    pub fn scan(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        while self.left > 0 {
            let Some(rest) = input.get(self.at..).filter(|rest| !rest.is_empty()) else { return Ok(None) };
            let Some(line_len) = rest.iter().take(LINE_MAX).position(|byte| *byte == b'\n') else {
                return if rest.len() < LINE_MAX { Ok(None) } else { Err(Malformed) };
            };
            let line = rest[..line_len].strip_suffix(b"\r").ok_or(Malformed)?;
            let (kind, text) = line.split_first().ok_or(Malformed)?;
            let (mut skipped, mut added) = (0, 0);
            match kind {
                b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
                b'$' | b'!' | b'=' => {
                    let len = length(text, BULK_MAX)?;
                    skipped = len.map_or(0, |len| len as usize + 2);
                }
                b'*' | b'~' | b'>' => added = length(text, ELEMENTS_MAX)?.unwrap_or(0),
                b'%' => added = 2 * length(text, ELEMENTS_MAX)?.unwrap_or(0),
                // The value that an attribute describes follows it.
                b'|' => added = 2 * length(text, ELEMENTS_MAX)?.unwrap_or(0) + 1,
                _ => return Err(Malformed),
            }
            self.at += line_len + 1 + skipped;
            self.left = (self.left - 1).checked_add(added).ok_or(Malformed)?;
        }
        if self.at > input.len() {
            return Ok(None);
        }
        Ok(Some(std::mem::take(self).at))
    }
}

/// A length; `None` for -1, which stands for null.
fn length(text: &[u8], max: i64) -> Result<Option<u64>, Malformed> {
    match parse_i64(text) {
        Some(-1) => Ok(None),
        Some(len) if (0..=max).contains(&len) => Ok(Some(len as u64)),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REPLIES: &[&str] = &[
        "+OK\r\n",
        "-ERR no\r\n",
        ":42\r\n",
        "$-1\r\n",
        "$0\r\n\r\n",
        "$5\r\na\r\nbc\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*2\r\n*2\r\n:1\r\n$1\r\nx\r\n+a\r\n",
        "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n",
        "~1\r\n,1.5\r\n",
        "|1\r\n+ttl\r\n:5\r\n$1\r\nv\r\n",
        "=7\r\ntxt:abc\r\n",
        "(12345678901234567890\r\n",
        ">2\r\n+message\r\n#t\r\n",
    ];

    #[test]
    fn finds_the_end_of_every_type_in_pieces_of_any_size() {
        let all = REPLIES.concat();
        for step in 1..all.len() {
            let (mut scanner, mut start, mut found) = (Scanner::default(), 0, Vec::new());
            for end in (step..all.len() + step).step_by(step) {
                let end = end.min(all.len());
                while let Some(len) = scanner.scan(&all.as_bytes()[start..end]).expect("valid") {
                    found.push(&all[start..start + len]);
                    start += len;
                }
            }
            assert_eq!(found, REPLIES, "in steps of {step}");
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for bad in ["OK\r\n", "\r\n", "$x\r\n", "$-2\r\n", "*99999999999\r\n", "+OK\n", ":\n", "$9999999999999\r\n"] {
            assert_eq!(Scanner::default().scan(bad.as_bytes()), Err(Malformed), "{bad:?}");
        }
        assert_eq!(Scanner::default().scan(&vec![b'+'; LINE_MAX]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn never_panics_and_never_claims_more_than_it_got(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some(len)) = Scanner::default().scan(&input) {
                prop_assert!(len <= input.len());
            }
        }
    }
}
