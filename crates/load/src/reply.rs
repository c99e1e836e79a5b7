//! Reads replies of RESP2 and RESP3 from a stream, in whatever pieces they arrive.
//!
//! [`Reader`] skips over a reply of any shape: it counts the elements that are still missing, so nesting needs neither
//! recursion nor a stack, and it allocates nothing for what it skips. It keeps only what a load generator needs: the
//! kind of the reply, the text of an error, and, on request, the bytes of the whole reply for [`Value::parse`].
//!
//! Streamed strings and aggregates (`$?`, `*?`) are a protocol error: no server of this family sends them.

use memchr::memchr;
use std::fmt::{self, Display, Formatter};

/// Longest header line of a reply: a type, a length of at most 20 digits, and its end.
const HEADER_MAX: usize = 32;
/// Bytes of an error's text that are kept.
const ERROR_MAX: usize = 512;
/// Bytes of a reply that are kept on request.
const CAPTURE_MAX: usize = 16 << 20;
/// Elements that a reply may have.
const ELEMENTS_MAX: u64 = 1 << 32;
/// Depth of a parsed value.
const DEPTH_MAX: usize = 32;

/// What a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A status, a number, a string, a boolean.
    Scalar,
    /// Nothing: the key or element does not exist.
    Null,
    /// An array, map or set with at least one element.
    Aggregate,
    /// An array, map or set without elements.
    Empty,
    /// An error; [`Reader::error`] has its text.
    Error,
    /// A message that is not a reply (RESP3).
    Push,
}

/// Bytes that are not a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub &'static str);

impl Display for ProtocolError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "the server sent what is not a reply: {}", self.0)
    }
}

impl std::error::Error for ProtocolError {}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The header line of an element.
    Header,
    /// A line whose content is skipped; kept if it is the error of the whole reply.
    Line { is_error: bool },
    /// The content of a string, with its line end.
    Skip { left: u64 },
}

/// Finds the ends of replies in a stream of bytes.
#[derive(Debug)]
pub struct Reader {
    state: State,
    /// Elements that the reply still lacks.
    pending: u64,
    /// The kind of the reply, once its first element is known.
    kind: Option<Kind>,
    header: [u8; HEADER_MAX],
    header_len: usize,
    error: Vec<u8>,
    /// Whether a part of the reply was read.
    has_begun: bool,
    is_capturing: bool,
    captured: Vec<u8>,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader {
            state: State::Header,
            pending: 1,
            kind: None,
            header: [0; HEADER_MAX],
            header_len: 0,
            error: Vec::new(),
            has_begun: false,
            is_capturing: false,
            captured: Vec::new(),
        }
    }
}

impl Reader {
    /// Keeps the bytes of the replies that begin from now on, until switched off. Must be called between two replies.
    pub fn capture(&mut self, is_on: bool) {
        self.is_capturing = is_on;
    }

    /// Whether replies are kept.
    pub fn is_capturing(&self) -> bool {
        self.is_capturing
    }

    /// The bytes of the last reply, if it was captured and not too large.
    pub fn captured(&self) -> &[u8] {
        &self.captured
    }

    /// The text of the last error, without its sign and line end, cut if it is long.
    pub fn error(&self) -> &[u8] {
        &self.error
    }

    /// Takes bytes from the front of `input` up to the end of the next reply, and returns its kind; `None` when it
    /// needs more bytes, having taken all of them.
    #[inline]
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Kind>, ProtocolError> {
        if !self.has_begun {
            self.captured.clear();
            // The most frequent reply.
            if let [b'+', b'O', b'K', b'\r', b'\n', rest @ ..] = *input
                && !self.is_capturing
            {
                *input = rest;
                return Ok(Some(Kind::Scalar));
            }
        }
        let before = *input;
        let found = self.advance(input);
        self.has_begun = found == Ok(None) && (self.has_begun || !before.is_empty());
        if self.is_capturing {
            let taken = &before[..before.len() - input.len()];
            let room = CAPTURE_MAX - self.captured.len();
            self.captured.extend_from_slice(&taken[..taken.len().min(room)]);
        }
        found
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Kind>, ProtocolError> {
        loop {
            match self.state {
                State::Skip { left } => {
                    let taken = (input.len() as u64).min(left);
                    *input = &input[taken as usize..];
                    if taken < left {
                        self.state = State::Skip { left: left - taken };
                        return Ok(None);
                    }
                    self.state = State::Header;
                }
                State::Line { is_error } => {
                    let end = memchr(b'\n', input);
                    let line = &input[..end.unwrap_or(input.len())];
                    if is_error {
                        let room = ERROR_MAX - self.error.len();
                        self.error.extend_from_slice(&line[..line.len().min(room)]);
                    }
                    let Some(end) = end else {
                        *input = &[];
                        return Ok(None);
                    };
                    *input = &input[end + 1..];
                    if is_error && self.error.last() == Some(&b'\r') {
                        self.error.pop();
                    }
                    self.state = State::Header;
                }
                State::Header => {
                    if !self.header(input)? {
                        return Ok(None);
                    }
                    // An element with content ends later.
                    if !matches!(self.state, State::Header) {
                        continue;
                    }
                }
            }
            if self.pending == 0 {
                self.pending = 1;
                return Ok(self.kind.take());
            }
        }
    }

    /// Reads a header; false if it is not complete. Leaves the state that the element's content needs.
    fn header(&mut self, input: &mut &[u8]) -> Result<bool, ProtocolError> {
        let Some(first) = (if self.header_len > 0 { Some(self.header[0]) } else { input.first().copied() }) else {
            return Ok(false);
        };
        if matches!(first, b'+' | b'-' | b':' | b',' | b'(' | b'#' | b'_') {
            *input = &input[1..];
            let is_error = first == b'-' && self.pending == 1 && self.kind.is_none();
            if is_error {
                self.error.clear();
            }
            self.begin(match first {
                b'-' => Kind::Error,
                b'_' => Kind::Null,
                _ => Kind::Scalar,
            });
            self.pending -= 1;
            self.state = State::Line { is_error };
            return Ok(true);
        }
        let Some(end) = memchr(b'\n', input) else {
            let len = self.header_len + input.len();
            let place = self.header.get_mut(self.header_len..len).ok_or(ProtocolError("too long a header"))?;
            place.copy_from_slice(input);
            self.header_len = len;
            *input = &[];
            return Ok(false);
        };
        let line = &input[..end];
        let (kind, length) = if self.header_len == 0 {
            parse_header(line)?
        } else {
            let len = self.header_len + end;
            let place = self.header.get_mut(self.header_len..len).ok_or(ProtocolError("too long a header"))?;
            place.copy_from_slice(line);
            self.header_len = 0;
            parse_header(&self.header[..len])?
        };
        *input = &input[end + 1..];
        self.element(kind, length)?;
        Ok(true)
    }

    fn element(&mut self, kind: u8, length: Option<u64>) -> Result<(), ProtocolError> {
        match (kind, length) {
            (_, None) => {
                self.begin(Kind::Null);
                self.pending -= 1;
            }
            (b'$' | b'=' | b'!', Some(length)) => {
                if kind == b'!' && self.pending == 1 && self.kind.is_none() {
                    self.error.clear();
                    self.error.extend_from_slice(b"ERR bulk error");
                }
                self.begin(if kind == b'!' { Kind::Error } else { Kind::Scalar });
                self.pending -= 1;
                self.state = State::Skip { left: length.saturating_add(2) };
            }
            (b'|', Some(length)) => self.expect(length.saturating_mul(2))?,
            (_, Some(length)) => {
                self.begin(match (kind, length) {
                    (b'>', _) => Kind::Push,
                    (_, 0) => Kind::Empty,
                    _ => Kind::Aggregate,
                });
                self.pending -= 1;
                self.expect(if kind == b'%' { length.saturating_mul(2) } else { length })?;
            }
        }
        Ok(())
    }

    /// Notes the kind of the reply, if this is its first element. Elements of an attribute come earlier, while more
    /// than one element is pending.
    fn begin(&mut self, kind: Kind) {
        if self.pending == 1 && self.kind.is_none() {
            self.kind = Some(kind);
        }
    }

    fn expect(&mut self, elements: u64) -> Result<(), ProtocolError> {
        self.pending = self.pending.saturating_add(elements);
        if self.pending > ELEMENTS_MAX { Err(ProtocolError("too many elements")) } else { Ok(()) }
    }
}

/// The type and length of a header without its line feed. `None` stands for -1, which means null.
fn parse_header(line: &[u8]) -> Result<(u8, Option<u64>), ProtocolError> {
    let (kind, digits) = match line {
        [kind @ (b'$' | b'*' | b'%' | b'~' | b'>' | b'|' | b'=' | b'!'), digits @ .., b'\r'] => (*kind, digits),
        [_, .., b'\r'] => return Err(ProtocolError("an unknown type")),
        _ => return Err(ProtocolError("a header without its end")),
    };
    if digits == b"-1" && matches!(kind, b'$' | b'*') {
        return Ok((kind, None));
    }
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError("an invalid length"));
    }
    Ok((kind, Some(digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))))
}

/// A parsed reply, for setup and checks, where speed does not matter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// A number.
    Integer(i64),
    /// A status or a string, and any other scalar as it is written.
    Text(Vec<u8>),
    /// An error with its code.
    Error(String),
    /// An array or a set, or a map as its keys and values in turn.
    Array(Vec<Value>),
}

impl Value {
    /// Parses one complete reply.
    pub fn parse(bytes: &[u8]) -> Result<Value, ProtocolError> {
        let mut rest = bytes;
        Value::parse_from(&mut rest, 0)
    }

    fn parse_from(rest: &mut &[u8], depth: usize) -> Result<Value, ProtocolError> {
        if depth > DEPTH_MAX {
            return Err(ProtocolError("too deeply nested"));
        }
        let end = memchr(b'\n', rest).filter(|end| *end >= 2).ok_or(ProtocolError("an incomplete reply"))?;
        let (line, behind) = (&rest[..end], &rest[end + 1..]);
        *rest = behind;
        let text = &line[1..line.len() - 1];
        Ok(match line[0] {
            b'+' | b',' | b'(' | b'#' => Value::Text(text.to_vec()),
            b'-' => Value::Error(String::from_utf8_lossy(text).into_owned()),
            b'_' => Value::Null,
            b':' => {
                let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
                Value::Integer(number.ok_or(ProtocolError("an invalid number"))?)
            }
            _ => match parse_header(line)? {
                (_, None) => Value::Null,
                (b'$' | b'=' | b'!', Some(length)) => {
                    let length = usize::try_from(length).map_err(|_| ProtocolError("an invalid length"))?;
                    let content = rest.get(..length).ok_or(ProtocolError("an incomplete reply"))?;
                    *rest = rest.get(length + 2..).ok_or(ProtocolError("an incomplete reply"))?;
                    Value::Text(content.to_vec())
                }
                (b'|', Some(length)) => {
                    for _ in 0..length.saturating_mul(2) {
                        Value::parse_from(rest, depth + 1)?;
                    }
                    Value::parse_from(rest, depth + 1)?
                }
                (kind, Some(length)) => {
                    let count = if kind == b'%' { length.saturating_mul(2) } else { length };
                    let elements: Result<_, _> = (0..count).map(|_| Value::parse_from(rest, depth + 1)).collect();
                    Value::Array(elements?)
                }
            },
        })
    }

    /// The elements of an array; none for anything else.
    pub fn elements(&self) -> &[Value] {
        if let Value::Array(elements) = self { elements } else { &[] }
    }

    /// The bytes of a string; none for anything else.
    pub fn bytes(&self) -> &[u8] {
        if let Value::Text(bytes) = self { bytes } else { &[] }
    }

    /// A string as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// A number; 0 for anything else.
    pub fn integer(&self) -> i64 {
        if let Value::Integer(number) = self { *number } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Replies of every shape, with the kind that the reader must report.
    fn scalar() -> impl Strategy<Value = (Vec<u8>, Kind)> {
        let bulk = proptest::collection::vec(any::<u8>(), 0..40).prop_map(|content| {
            let header = format!("${}\r\n", content.len());
            ([header.as_bytes(), &content, b"\r\n"].concat(), Kind::Scalar)
        });
        let fixed = [
            ("+OK\r\n", Kind::Scalar),
            ("+\r\n", Kind::Scalar),
            (":-12\r\n", Kind::Scalar),
            (",1.5\r\n", Kind::Scalar),
            ("#t\r\n", Kind::Scalar),
            ("(3492890328409238509324850943850943825024385\r\n", Kind::Scalar),
            ("=8\r\ntxt:so m\r\n", Kind::Scalar),
            ("-ERR no\r\n", Kind::Error),
            ("!5\r\nERR x\r\n", Kind::Error),
            ("_\r\n", Kind::Null),
            ("$-1\r\n", Kind::Null),
            ("*-1\r\n", Kind::Null),
        ];
        let fixed = proptest::sample::select(fixed.to_vec());
        prop_oneof![bulk, fixed.prop_map(|(text, kind)| (text.as_bytes().to_vec(), kind))]
    }

    fn reply() -> impl Strategy<Value = (Vec<u8>, Kind)> {
        scalar().prop_recursive(4, 40, 6, |inner| {
            let elements = proptest::collection::vec(inner.clone(), 0..6);
            let aggregate = (elements, proptest::sample::select(vec![b'*', b'~', b'%', b'>']));
            let aggregate = aggregate.prop_map(|(elements, sign)| {
                let paired = elements.len() / 2 * 2;
                let elements = if sign == b'%' { &elements[..paired] } else { &elements[..] };
                let count = if sign == b'%' { paired / 2 } else { elements.len() };
                let mut bytes = format!("{}{count}\r\n", sign as char).into_bytes();
                elements.iter().for_each(|(element, _)| bytes.extend_from_slice(element));
                let kind = match (sign, count) {
                    (b'>', _) => Kind::Push,
                    (_, 0) => Kind::Empty,
                    _ => Kind::Aggregate,
                };
                (bytes, kind)
            });
            let attributed = (inner.clone(), inner)
                .prop_map(|(attribute, (reply, kind))| ([b"|1\r\n+key\r\n", &attribute.0[..], &reply].concat(), kind));
            prop_oneof![aggregate, attributed]
        })
    }

    proptest! {
        #[test]
        fn replies_are_found_however_they_are_split(
            replies in proptest::collection::vec(reply(), 1..5),
            cuts in proptest::collection::vec(1_usize..30, 1..20),
        ) {
            let stream: Vec<u8> = replies.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
            let mut reader = Reader::default();
            reader.capture(true);
            let (mut kinds, mut captured) = (Vec::new(), Vec::new());
            let (mut at, mut cut) = (0, cuts.iter().cycle());
            while at < stream.len() {
                let end = stream.len().min(at + cut.next().expect("an endless iterator"));
                let mut piece = &stream[at..end];
                while let Some(kind) = reader.next(&mut piece).expect("valid replies") {
                    kinds.push(kind);
                    captured.push(reader.captured().to_vec());
                }
                prop_assert!(piece.is_empty());
                at = end;
            }
            prop_assert_eq!(kinds, replies.iter().map(|(_, kind)| *kind).collect::<Vec<_>>());
            prop_assert_eq!(captured, replies.iter().map(|(bytes, _)| bytes.clone()).collect::<Vec<_>>());
        }

        #[test]
        fn the_parser_takes_what_the_reader_takes(reply in reply()) {
            let mut rest = &reply.0[..];
            Value::parse_from(&mut rest, 0).expect("a valid reply");
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_replies_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (mut reader, mut input) = (Reader::default(), &bytes[..]);
            while let Ok(Some(_)) = reader.next(&mut input) {}
            let _ = Value::parse(&bytes);
        }
    }

    #[test]
    fn errors_are_kept_and_inner_errors_are_not() {
        let mut reader = Reader::default();
        let mut input = &b"-MOVED 5 h:1\r\n*2\r\n-ERR in\r\n:1\r\n"[..];
        assert_eq!(reader.next(&mut input), Ok(Some(Kind::Error)));
        assert_eq!(reader.error(), b"MOVED 5 h:1");
        assert_eq!(reader.next(&mut input), Ok(Some(Kind::Aggregate)));
        assert_eq!(reader.error(), b"MOVED 5 h:1");
    }

    #[test]
    fn what_is_not_a_reply_is_an_error() {
        for bytes in ["SET\r\n", "$x\r\n", "$\r\n", "$-2\r\n", "*99999999999999999\r\n", "$1\n", "$?\r\n"] {
            assert!(Reader::default().next(&mut bytes.as_bytes()).is_err(), "{bytes:?}");
        }
        assert!(Reader::default().next(&mut &[b'$'; 100][..]).is_err());
    }
}
