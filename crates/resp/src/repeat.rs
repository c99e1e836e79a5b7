//! Recognises requests that begin like the previous one.
//!
//! The requests of a pipeline mostly use the same command with keys of the same length. Everything
//! before the key is then identical, byte for byte, and comparing it is faster than parsing it:
//! the number of arguments, the length of the command's name, the name and the key's length.

use crate::args::Span;
use crate::parser::argument;

/// Maximum length of this prefix, in words.
const WORDS: usize = 3;
/// Maximum length of this prefix, in bytes.
const HEAD_MAX: usize = 8 * WORDS;

/// The prefix of the previous request, up to its first argument.
#[derive(Clone, Copy, Default)]
pub struct Repeat {
    words: [u64; WORDS],
    /// The bits of each word that belong to the prefix.
    masks: [u64; WORDS],
    /// Length of the prefix, in bytes.
    head: usize,
    /// The location of the command's name in it.
    name: Span,
    /// Length of the first argument, in bytes.
    len: usize,
    /// Number of arguments of the request, including the name; 0 while no request is stored.
    args: usize,
}

impl Repeat {
    /// Stores the prefix of a request that was parsed at `start` in
    /// `input` and has these arguments, if it has the required form.
    #[inline]
    pub fn learn(&mut self, input: &[u8], start: usize, spans: &[Span]) {
        self.args = 0;
        let [name, first, ..] = spans else { return };
        // In an inline request, or one with a large argument, the spans are not in this order.
        let head = first.start.wrapping_sub(start);
        let lies_in_head = name.start > start && name.start.wrapping_add(name.len) < first.start;
        let Some(bytes) = input.get(start..).and_then(|rest| rest.first_chunk::<HEAD_MAX>()) else { return };
        if head > HEAD_MAX || !lies_in_head || bytes[0] != b'*' {
            return;
        }
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let bytes = head.saturating_sub(8 * at).min(8) as u32;
            self.masks[at] = u64::MAX.checked_shr(64 - 8 * bytes).unwrap_or(0);
            self.words[at] = u64::from_le_bytes(*word) & self.masks[at];
        }
        (self.head, self.len, self.args) = (head, first.len, spans.len());
        self.name = Span { start: name.start - start, len: name.len };
    }

    /// Parses the request at `start` if it is complete and begins like the stored
    /// one: appends its spans, and returns its end. Otherwise appends nothing.
    #[inline]
    pub fn parse(&self, input: &[u8], start: usize, spans: &mut Vec<Span>, bulk_len_max: u64) -> Option<usize> {
        let bytes = input.get(start..)?.first_chunk::<HEAD_MAX>()?;
        let mut other = u64::from(self.args == 0);
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            other |= (u64::from_le_bytes(*word) & self.masks[at]) ^ self.words[at];
        }
        let first = Span { start: start + self.head, len: self.len };
        let end = first.start + first.len;
        if other != 0 || input.get(end..)?.first_chunk() != Some(b"\r\n") {
            return None;
        }
        let (before, mut at) = (spans.len(), end + 2);
        spans.reserve(self.args);
        spans.push(Span { start: start + self.name.start, len: self.name.len });
        spans.push(first);
        for _ in 2..self.args {
            let Some((span, next)) = argument(input, at, bulk_len_max) else {
                spans.truncate(before);
                return None;
            };
            spans.push(span);
            at = next;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Parsed, Parser};

    fn parse_all(input: &[u8], with_repeat: bool) -> (Vec<Vec<Span>>, usize) {
        let (mut parser, mut repeat, limits) = (Parser::new(), Repeat::default(), Limits::default());
        let (mut spans, mut big, mut pos, mut found) = (Vec::new(), Vec::new(), 0, Vec::new());
        loop {
            let (start, before) = (pos, spans.len());
            let again = with_repeat.then(|| repeat.parse(input, pos, &mut spans, limits.bulk_len_max)).flatten();
            match again {
                Some(end) => pos = end,
                None => match parser.parse(input, &mut pos, &mut spans, &mut big, &limits) {
                    Parsed::Request => repeat.learn(input, start, &spans[before..]),
                    _ => return (found, pos),
                },
            }
            found.push(spans[before..].to_vec());
        }
    }

    #[test]
    fn repeat_and_parser_agree() {
        let mut input = Vec::new();
        for n in 0..300u32 {
            let (key, value) = (format!("key:{:0>1$}", n % 7, (n as usize / 40) * 3), "v".repeat(n as usize % 13));
            match n / 10 % 6 {
                0 | 1 => input.extend(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).bytes()),
                2 => input.extend(
                    format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n", key.len(), value.len()).bytes(),
                ),
                3 => input.extend(format!("*1\r\n$4\r\nPING\r\n GET {key}\r\n").bytes()),
                4 => input.extend(format!("*2\r\n$12\r\nHRANDFIELDXY\r\n${}\r\n{key}\r\n", key.len()).bytes()),
                _ => input.extend(
                    format!(
                        "*4\r\n$4\r\nHSET\r\n${}\r\n{key}\r\n$1\r\nf\r\n${}\r\n{value}\r\n",
                        key.len(),
                        value.len()
                    )
                    .bytes(),
                ),
            }
        }
        for end in (0..input.len()).step_by(3).chain([input.len()]) {
            assert_eq!(parse_all(&input[..end], true), parse_all(&input[..end], false), "the first {end} bytes");
        }
    }

    #[test]
    fn different_requests_are_not_repeats() {
        let first = b"*2\r\n$3\r\nGET\r\n$16\r\n0123456789abcdef\r\n";
        let (mut repeat, mut spans) = (Repeat::default(), Vec::new());
        assert_eq!(repeat.parse(first, 0, &mut spans, u64::MAX), None, "nothing was learnt");
        repeat.learn(first, 0, &[Span { start: 8, len: 3 }, Span { start: 18, len: 16 }]);
        assert_eq!(repeat.parse(first, 0, &mut spans, u64::MAX), Some(first.len()));
        for at in (0..18).chain(34..36) {
            let mut other = first.to_vec();
            other[at] ^= 1;
            assert_eq!(repeat.parse(&other, 0, &mut spans, u64::MAX), None, "byte {at}");
        }
        assert_eq!(repeat.parse(&first[..35], 0, &mut spans, u64::MAX), None, "cut off");
        assert_eq!(spans.len(), 2);
    }
}
