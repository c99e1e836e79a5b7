//! Requests whose last argument was received into a buffer of its own, because a request of the same form was expected.

use crate::args::Span;
use crate::parser::{Limits, NO_LINE, argument, length_line};

/// Parses the bytes of a request before its last argument, which has `len` bytes and becomes owned buffer `place`.
/// Appends the spans of all arguments, and returns whether `head` is the beginning of such a request. If it is not,
/// appends nothing.
///
/// The caller compares the line end behind the last argument.
pub fn parse_apart(head: &[u8], len: usize, place: usize, spans: &mut Vec<Span>, limits: &Limits) -> bool {
    let before = spans.len();
    let is_head = limits.authenticated && parse(head, len, spans, limits.bulk_len_max).is_some();
    if is_head {
        spans.push(Span::owned(place, 0, len));
    } else {
        spans.truncate(before);
    }
    is_head
}

fn parse(head: &[u8], len: usize, spans: &mut Vec<Span>, bulk_len_max: u64) -> Option<()> {
    let (count, mut at) = length_line(head, 0, b'*');
    if at == NO_LINE || count < 2 {
        return None;
    }
    for _ in 1..count {
        let (span, next) = argument(head, at, bulk_len_max)?;
        spans.push(span);
        at = next;
    }
    let (last, end) = length_line(head, at, b'$');
    (end == head.len() && last == len && len as u64 <= bulk_len_max).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Args, BIG_ARG, Parsed, Parser, SharedBytes};

    fn encode(words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend(*word);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    #[test]
    fn the_arguments_are_those_that_the_parser_finds() {
        let large = vec![b'v'; BIG_ARG];
        let key = [b'k'; 100];
        let requests: [&[&[u8]]; 5] = [
            &[b"SET", b"key", &large],
            &[b"SET", b"", &large],
            &[b"SET", &key, &large],
            &[b"ECHO", &large],
            &[b"HSET", b"key", b"field", b"1", b"other", &large],
        ];
        for words in requests {
            let request = encode(words);
            let head = &request[..request.len() - large.len() - 2];
            let mut spans = vec![Span::default()];
            assert!(parse_apart(head, large.len(), 0, &mut spans, &Limits::default()));
            let big = [SharedBytes::new(large.clone())];
            let args = Args::new(head, &spans[1..], &big);
            assert!(args.iter().eq(words.iter().copied()));
            assert!(args.shared(words.len() - 1).is_some());

            let (mut found, mut big, mut parser) = (Vec::new(), Vec::new(), Parser::new());
            let limits = Limits::default();
            assert_eq!(parser.parse(&request, &mut 0, &mut found, &mut big, &limits), Parsed::Request);
            assert_eq!(Args::new(&request, &found, &big).bytes_before_large(), Some(head.len()));

            // The same if the parser receives the argument into a buffer.
            let (mut found, mut big, mut parser) = (Vec::new(), Vec::new(), Parser::new());
            let parsed = parser.parse(head, &mut 0, &mut found, &mut big, &limits);
            assert_eq!(parsed, Parsed::Big { needs: large.len() + 2 });
            parser.begin_with(large[..1000].to_vec());
            let rest = &request[head.len() + 1000..];
            assert_eq!(parser.parse(rest, &mut 0, &mut found, &mut big, &limits), Parsed::Request);
            let args = Args::new(rest, &found, &big);
            assert!(args.iter().eq(words.iter().copied()));
            assert_eq!(args.bytes_before_large(), Some(head.len()));
        }
    }

    #[test]
    fn other_bytes_are_no_beginning() {
        let limits = Limits::default();
        let (len, good) = (BIG_ARG, b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$16384\r\n");
        let is_head = |bytes: &[u8], limits: &Limits| {
            let mut spans = vec![Span::default()];
            let is_head = parse_apart(bytes, len, 0, &mut spans, limits);
            assert_eq!(spans.len(), if is_head { 4 } else { 1 });
            is_head
        };
        assert!(is_head(good, &limits));
        for at in 0..good.len() {
            assert!(!is_head(&good[..at], &limits) && !is_head(&good[at + 1..], &limits), "{at}");
            for byte in [b'\r', b'\n', b'0', b'9', b'$', b'*', b'x'] {
                let mut changed = *good;
                changed[at] = byte;
                let is_word = (8..11).contains(&at) || (17..20).contains(&at);
                assert_eq!(is_head(&changed, &limits), is_word || byte == good[at], "{}", changed.escape_ascii());
            }
        }
        assert!(!is_head(&[&good[..], b"v"].concat(), &limits));
        assert!(!is_head(good, &Limits { authenticated: false, ..limits }));
        assert!(!is_head(good, &Limits { bulk_len_max: len as u64 - 1, ..limits }));
        assert!(!is_head(b"*1\r\n$16384\r\n", &limits) && !is_head(b"*0\r\n", &limits) && !is_head(b"", &limits));
    }
}
