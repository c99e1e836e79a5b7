//! Replies: all types of values, in RESP2 or RESP3.
//!
//! A [`Reply`] is a thin wrapper of the connection's output vector. With a [`ReplyBuffer`], it refers to large strings
//! instead of copying them. RESP3 has types that RESP2 lacks; in RESP2 they are written as the closest older type: maps
//! as arrays of twice the length, sets and pushes as arrays, doubles and big numbers as bulk strings, booleans as
//! integers.

use crate::format::{format_double, format_i64, format_u64, whole_double};
use crate::shared::SharedBytes;
use std::ops::Range;

/// The protocol version of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Version {
    /// The initial version of a connection.
    #[default]
    Resp2,
    /// The version with maps, sets, pushes and doubles, selected by `HELLO 3`.
    Resp3,
}

/// The position of a length to be filled in later. Marks must be filled in the reverse order of their creation.
#[must_use = "the reply is malformed until the length is filled in"]
#[derive(Debug)]
pub struct Mark(usize);

/// The placeholder at a mark: as long as the header of a length below 10.
const PLACEHOLDER: &[u8; 4] = b"*0\r\n";

/// Maximum length of a header: its kind, twenty digits and the line end.
const HEADER_LEN_MAX: usize = 23;

/// Replies that are not written yet: bytes, and large strings to be inserted between them.
#[derive(Default)]
pub struct ReplyBuffer {
    /// The bytes.
    pub bytes: Vec<u8>,
    shared: SharedParts,
    /// Whether large strings are copied.
    copies: bool,
}

/// A large string within replies.
#[derive(Clone, Debug)]
pub struct SharedPart {
    /// Position in the other bytes at which it is inserted: never the first or last position of a reply.
    pub at: usize,
    /// The string.
    pub bytes: SharedBytes,
}

/// Large strings within replies, in the order of their positions.
#[derive(Default)]
struct SharedParts {
    parts: Vec<SharedPart>,
    /// Total length of the strings.
    len: usize,
}

impl ReplyBuffer {
    /// An empty buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        ReplyBuffer { bytes: Vec::with_capacity(capacity), ..ReplyBuffer::default() }
    }

    /// A buffer that copies large strings too, for readers in this process. The replies are appended to `bytes`.
    pub fn contiguous(bytes: Vec<u8>) -> Self {
        ReplyBuffer { bytes, copies: true, ..ReplyBuffer::default() }
    }

    /// Appends replies.
    #[inline]
    pub fn reply(&mut self, version: Version) -> Reply<'_> {
        let shared = if self.copies { None } else { Some(&mut self.shared) };
        Reply { out: &mut self.bytes, shared, version }
    }

    /// The position of the next reply.
    #[inline]
    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    /// Total length of the replies, with shared strings.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.shared.len
    }

    /// Whether there are no replies.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Length of the replies between two positions, with shared strings.
    #[inline]
    pub fn len_of(&self, positions: Range<usize>) -> usize {
        let bytes = positions.end - positions.start;
        bytes + self.shared(positions).iter().map(|part| part.bytes.len()).sum::<usize>()
    }

    /// Length of the replies from a position on, with shared strings.
    #[inline]
    pub fn len_since(&self, position: usize) -> usize {
        self.len_of(position..self.position())
    }

    /// The shared strings between two positions.
    #[inline]
    pub fn shared(&self, positions: Range<usize>) -> &[SharedPart] {
        let parts = &self.shared.parts;
        if parts.is_empty() {
            return parts;
        }
        let first = parts.partition_point(|part| part.at <= positions.start);
        let end = parts.partition_point(|part| part.at < positions.end);
        &parts[first..end.max(first)]
    }

    /// Appends all replies of `other`, which is empty afterwards.
    pub fn append(&mut self, other: &mut ReplyBuffer) {
        let offset = self.position();
        self.bytes.append(&mut other.bytes);
        let moved = other.shared.parts.drain(..).map(|part| SharedPart { at: offset + part.at, ..part });
        self.shared.parts.extend(moved);
        self.shared.len += std::mem::take(&mut other.shared.len);
    }

    /// A copy of the replies from a position on.
    pub fn copy_from(&self, position: usize) -> Vec<u8> {
        let (mut copy, mut at) = (Vec::with_capacity(self.len_since(position)), position);
        for part in self.shared(position..self.position()) {
            copy.extend_from_slice(&self.bytes[at..part.at]);
            copy.extend_from_slice(&part.bytes);
            at = part.at;
        }
        copy.extend_from_slice(&self.bytes[at..]);
        copy
    }

    /// Drops the replies from a position on.
    #[inline]
    pub fn truncate(&mut self, position: usize) {
        self.bytes.truncate(position);
        self.shared.truncate(position);
    }

    /// Drops all replies.
    #[inline]
    pub fn clear(&mut self) {
        self.truncate(0);
    }
}

impl SharedParts {
    #[inline]
    fn truncate(&mut self, position: usize) {
        while let Some(last) = self.parts.last()
            && last.at >= position
        {
            self.len -= last.bytes.len();
            self.parts.pop();
        }
    }
}

/// Writes replies to a byte vector in the connection's protocol version.
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    /// Takes large strings; otherwise they are copied.
    shared: Option<&'a mut SharedParts>,
    version: Version,
}

impl<'a> Reply<'a> {
    /// Appends replies to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Reply { out, shared: None, version }
    }

    /// The protocol version.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Changes the protocol version of the following values, as `HELLO` does.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// The position in the output, without shared strings, for [`truncate`](Self::truncate).
    #[inline]
    pub fn position(&self) -> usize {
        self.out.len()
    }

    /// The length of the output so far, with shared strings.
    #[inline]
    pub fn len(&self) -> usize {
        self.out.len() + self.shared.as_ref().map_or(0, |shared| shared.len)
    }

    /// Whether the output is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Drops everything written since the output was at `position`.
    #[inline]
    pub fn truncate(&mut self, position: usize) {
        self.out.truncate(position);
        if let Some(shared) = &mut self.shared {
            shared.truncate(position);
        }
    }

    /// Everything written since the output was at `position`, except for shared strings.
    #[inline]
    pub fn since(&self, position: usize) -> &[u8] {
        self.out.get(position..).unwrap_or_default()
    }

    /// A status, as in `+PONG`. Line ends in it are replaced by blanks.
    pub fn simple(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'+', text.as_ref());
    }

    /// The status `OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// An error: `text` is all of it, the code first, as in `ERR syntax
    /// error`. Trailing line ends are removed, others are replaced by blanks.
    #[cold]
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        let len = text.iter().rposition(|byte| !is_line_end(byte)).map_or(0, |last| last + 1);
        self.line(b'-', &text[..len]);
    }

    /// An integer.
    #[inline]
    pub fn int(&mut self, n: i64) {
        match u64::try_from(n) {
            Ok(n) => self.uint(n),
            Err(_) => self.negative_int(n),
        }
    }

    fn negative_int(&mut self, n: i64) {
        self.out.push(b':');
        format_i64(n, self.out);
        self.out.extend_from_slice(b"\r\n");
    }

    /// An unsigned integer.
    #[inline]
    pub fn uint(&mut self, n: u64) {
        self.header(b':', n);
    }

    /// A bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + HEADER_LEN_MAX + 2);
        self.header(b'$', bytes.len() as u64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A large string as a bulk string: refers to it if the output takes shared strings.
    pub fn bulk_shared(&mut self, bytes: &SharedBytes) {
        self.header(b'$', bytes.len() as u64);
        self.shared_part(bytes);
        self.raw(b"\r\n");
    }

    /// A part of a reply that is neither its begin nor its end: refers to it if the output takes shared strings.
    pub(crate) fn shared_part(&mut self, bytes: &SharedBytes) {
        match &mut self.shared {
            Some(shared) => {
                shared.len += bytes.len();
                shared.parts.push(SharedPart { at: self.out.len(), bytes: bytes.clone() });
            }
            None => self.raw(bytes),
        }
    }

    /// An integer as a bulk string.
    #[inline]
    pub fn bulk_int(&mut self, n: i64) {
        self.bulk(itoa::Buffer::new().format(n).as_bytes());
    }

    /// A null: the null bulk string in RESP2.
    #[inline]
    pub fn null(&mut self) {
        self.raw(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// A null in place of an array: the null array in RESP2.
    #[inline]
    pub fn null_array(&mut self) {
        self.raw(match self.version {
            Version::Resp2 => b"*-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// The header of an array; `len` values follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as u64);
    }

    /// The header of a map; `pairs` keys and values follow.
    #[inline]
    pub fn map(&mut self, pairs: usize) {
        let (kind, len) = self.map_header(pairs);
        self.header(kind, len);
    }

    /// The header of a set; `len` values follow.
    #[inline]
    pub fn set(&mut self, len: usize) {
        self.header(self.or_array(b'~'), len as u64);
    }

    /// The header of a push, a message that is not a reply to a request; `len` values follow.
    #[inline]
    pub fn push(&mut self, len: usize) {
        self.header(self.or_array(b'>'), len as u64);
    }

    /// The header of attributes of the next reply; `pairs` keys and values follow. RESP2 has no
    /// attributes: then this writes nothing and returns `false`, and the pairs must be omitted.
    #[must_use]
    pub fn attribute(&mut self, pairs: usize) -> bool {
        let known = self.version == Version::Resp3;
        if known {
            self.header(b'|', pairs as u64);
        }
        known
    }

    /// A double.
    pub fn double(&mut self, n: f64) {
        if self.version == Version::Resp3 {
            self.out.push(b',');
            format_double(n, self.out);
        } else if let Some(n) = whole_double(n) {
            return self.bulk_int(n);
        } else {
            let at = self.out.len();
            self.raw(PLACEHOLDER);
            format_double(n, self.out);
            let len = self.out.len() - at - PLACEHOLDER.len();
            self.fill(Mark(at), b'$', len as u64);
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// A double that the caller has formatted.
    pub fn double_text(&mut self, text: &[u8]) {
        self.typed(b',', text);
    }

    /// A boolean: 1 or 0 in RESP2.
    #[inline]
    pub fn boolean(&mut self, value: bool) {
        self.raw(match (self.version, value) {
            (Version::Resp2, false) => b":0\r\n",
            (Version::Resp2, true) => b":1\r\n",
            (Version::Resp3, false) => b"#f\r\n",
            (Version::Resp3, true) => b"#t\r\n",
        });
    }

    /// An integer of any size, in decimal.
    pub fn big_number(&mut self, digits: &[u8]) {
        self.typed(b'(', digits);
    }

    /// Text to be displayed unchanged, in the three-letter `format` (`txt`, `mkd`).
    pub fn verbatim(&mut self, text: &[u8], format: &str) {
        if self.version == Version::Resp2 {
            return self.bulk(text);
        }
        let mut name = *b"   :";
        for (to, from) in name[..3].iter_mut().zip(format.bytes()) {
            *to = from;
        }
        self.out.reserve(text.len() + HEADER_LEN_MAX + 6);
        self.header(b'=', (text.len() + name.len()) as u64);
        self.out.extend_from_slice(&name);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Bytes that are already encoded.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Reserves a header whose length is not known yet. This is cheap if the length turns out
    /// to be below 10; otherwise everything written since is moved by the additional digits.
    pub fn deferred(&mut self) -> Mark {
        let mark = Mark(self.out.len());
        self.raw(PLACEHOLDER);
        mark
    }

    /// Turns the mark into the header of an array of `len` values.
    pub fn set_array_len(&mut self, mark: Mark, len: usize) {
        self.fill(mark, b'*', len as u64);
    }

    /// Turns the mark into the header of a map of `pairs` keys and values.
    pub fn set_map_len(&mut self, mark: Mark, pairs: usize) {
        let (kind, len) = self.map_header(pairs);
        self.fill(mark, kind, len);
    }

    /// Turns the mark into the header of a set of `len` values.
    pub fn set_set_len(&mut self, mark: Mark, len: usize) {
        self.fill(mark, self.or_array(b'~'), len as u64);
    }

    /// Turns the mark into the header of a push of `len` values.
    pub fn set_push_len(&mut self, mark: Mark, len: usize) {
        self.fill(mark, self.or_array(b'>'), len as u64);
    }

    fn fill(&mut self, mark: Mark, kind: u8, len: u64) {
        let Mark(at) = mark;
        debug_assert!(at + PLACEHOLDER.len() <= self.out.len());
        let end = self.out.len();
        self.header(kind, len);
        let extra = self.out.len() - end - PLACEHOLDER.len();
        let mut header = [0; HEADER_LEN_MAX];
        let header = &mut header[..PLACEHOLDER.len() + extra];
        header.copy_from_slice(&self.out[end..]);
        self.out.truncate(end + extra);
        self.out.copy_within(at + PLACEHOLDER.len()..end, at + header.len());
        self.out[at..at + header.len()].copy_from_slice(header);
        if let Some(shared) = &mut self.shared {
            shared.parts.iter_mut().rev().take_while(|part| part.at > at).for_each(|part| part.at += extra);
        }
    }

    fn or_array(&self, kind: u8) -> u8 {
        if self.version == Version::Resp3 { kind } else { b'*' }
    }

    fn map_header(&self, pairs: usize) -> (u8, u64) {
        match self.version {
            Version::Resp2 => (b'*', 2 * pairs as u64),
            Version::Resp3 => (b'%', pairs as u64),
        }
    }

    /// A value that is a separate line in RESP3 and a bulk string in RESP2.
    fn typed(&mut self, kind: u8, text: &[u8]) {
        match self.version {
            Version::Resp2 => self.bulk(text),
            Version::Resp3 => self.line(kind, text),
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(kind);
        let from = self.out.len();
        self.out.extend_from_slice(text);
        self.out[from..].iter_mut().filter(|byte| is_line_end(byte)).for_each(|byte| *byte = b' ');
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn header(&mut self, kind: u8, len: u64) {
        // Copies of a constant length are single stores.
        match len {
            0..=9 => self.raw(&[kind, ascii(len), b'\r', b'\n']),
            10..=99 => self.raw(&[kind, ascii(len / 10), ascii(len % 10), b'\r', b'\n']),
            100..=999 => {
                self.raw(&[kind, ascii(len / 100), ascii(len / 10 % 10), ascii(len % 10), b'\r', b'\n']);
            }
            _ => self.long_header(kind, len),
        }
    }

    fn long_header(&mut self, kind: u8, len: u64) {
        self.out.reserve(HEADER_LEN_MAX);
        self.out.push(kind);
        format_u64(len, self.out);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The character of a digit.
#[inline]
fn ascii(digit: u64) -> u8 {
    b'0' + digit as u8
}

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output in RESP2 and in RESP3.
    fn written(write: impl Fn(&mut Reply<'_>)) -> [String; 2] {
        [Version::Resp2, Version::Resp3].map(|version| {
            let mut out = Vec::new();
            write(&mut Reply::new(&mut out, version));
            String::from_utf8(out).unwrap()
        })
    }

    fn same(text: &str) -> [String; 2] {
        [text.to_string(), text.to_string()]
    }

    #[test]
    fn line_replies_contain_no_line_ends() {
        assert_eq!(written(|reply| reply.ok()), same("+OK\r\n"));
        assert_eq!(written(|reply| reply.simple("a\r\nb")), same("+a  b\r\n"));
        assert_eq!(written(|reply| reply.error("ERR it\r\nfailed\r\n\n")), same("-ERR it  failed\r\n"));
        assert_eq!(written(|reply| reply.error("")), same("-\r\n"));
        assert_eq!(written(|reply| reply.big_number(b"1\r\n2"))[1], "(1  2\r\n");
    }

    #[test]
    fn integers_of_every_length() {
        let lengths = (0..19).map(|power| 10i64.pow(power));
        for n in lengths.flat_map(|n| [n - 1, n, n + 1]).chain([i64::MAX, i64::MIN]) {
            for n in [n, n.wrapping_neg()] {
                let text = n.to_string();
                assert_eq!(written(|reply| reply.int(n)), same(&format!(":{n}\r\n")));
                assert_eq!(written(|reply| reply.bulk_int(n)), same(&format!("${}\r\n{text}\r\n", text.len())));
            }
        }
        assert_eq!(written(|reply| reply.uint(u64::MAX)), same(":18446744073709551615\r\n"));
    }

    #[test]
    fn bulk_strings_of_every_length() {
        for len in [0, 1, 9, 10, 99, 100, 999, 1000, 9999, 10_000, 123_456] {
            let text = "x".repeat(len);
            assert_eq!(written(|reply| reply.bulk(text.as_bytes())), same(&format!("${len}\r\n{text}\r\n")));
        }
    }

    #[test]
    fn resp3_types_are_converted_for_resp2() {
        type Write = dyn Fn(&mut Reply<'_>);
        let cases: [(&Write, _, _); 14] = [
            (&|reply| reply.null(), "$-1\r\n", "_\r\n"),
            (&|reply| reply.null_array(), "*-1\r\n", "_\r\n"),
            (&|reply| reply.array(3), "*3\r\n", "*3\r\n"),
            (&|reply| reply.map(12), "*24\r\n", "%12\r\n"),
            (&|reply| reply.set(100), "*100\r\n", "~100\r\n"),
            (&|reply| reply.push(3), "*3\r\n", ">3\r\n"),
            (&|reply| reply.boolean(true), ":1\r\n", "#t\r\n"),
            (&|reply| reply.boolean(false), ":0\r\n", "#f\r\n"),
            (&|reply| reply.double(-7.0), "$2\r\n-7\r\n", ",-7\r\n"),
            (&|reply| reply.double(0.0), "$1\r\n0\r\n", ",0\r\n"),
            (&|reply| reply.double(1.25e-100), "$9\r\n1.25e-100\r\n", ",1.25e-100\r\n"),
            (&|reply| reply.double(1.0 / 3.0), "$18\r\n0.3333333333333333\r\n", ",0.3333333333333333\r\n"),
            (&|reply| reply.big_number(b"123"), "$3\r\n123\r\n", "(123\r\n"),
            (&|reply| reply.verbatim(b"ab", "md"), "$2\r\nab\r\n", "=6\r\nmd :ab\r\n"),
        ];
        for (write, resp2, resp3) in cases {
            assert_eq!(written(write), [resp2, resp3]);
        }
        assert_eq!(written(|reply| assert_eq!(reply.attribute(1), reply.version() == Version::Resp3))[1], "|1\r\n");
    }

    #[test]
    fn deferred_lengths_nest() {
        let cases = [(1, 3), (9, 10), (10, 9), (150, 1234)];
        for (outer, inner) in cases {
            let deferred = written(|reply| {
                reply.ok();
                let array = reply.deferred();
                reply.bulk(b"first");
                let map = reply.deferred();
                (0..inner * 2).for_each(|i| reply.int(i));
                reply.set_map_len(map, inner as usize);
                reply.bulk(b"last");
                reply.set_array_len(array, outer);
                let set = reply.deferred();
                reply.set_set_len(set, 0);
                let push = reply.deferred();
                reply.set_push_len(push, 77);
            });
            let known = written(|reply| {
                reply.ok();
                reply.array(outer);
                reply.bulk(b"first");
                reply.map(inner as usize);
                (0..inner * 2).for_each(|i| reply.int(i));
                reply.bulk(b"last");
                reply.set(0);
                reply.push(77);
            });
            assert_eq!(deferred, known);
        }
    }

    #[test]
    fn replies_can_be_discarded() {
        let mut out = b"kept".to_vec();
        let mut reply = Reply::new(&mut out, Version::Resp2);
        let position = reply.position();
        reply.bulk(b"dropped");
        assert_eq!(reply.since(position), b"$7\r\ndropped\r\n");
        reply.truncate(position);
        assert_eq!(out, b"kept");
    }

    #[test]
    fn shared_strings_move_with_the_replies() {
        let (mut replies, value) = (ReplyBuffer::default(), SharedBytes::new(b"shared".to_vec()));
        let mut reply = replies.reply(Version::Resp2);
        let array = reply.deferred();
        reply.bulk_shared(&value);
        let inner = reply.deferred();
        reply.bulk_shared(&value);
        reply.set_array_len(inner, 100);
        reply.set_array_len(array, 1000);
        assert_eq!(replies.bytes, b"*1000\r\n$6\r\n\r\n*100\r\n$6\r\n\r\n");
        let positions = |replies: &ReplyBuffer| {
            replies.shared(0..replies.position()).iter().map(|part| part.at).collect::<Vec<_>>()
        };
        assert_eq!((positions(&replies), replies.len()), (vec![11, 23], 37));
        let mut all = ReplyBuffer::default();
        all.reply(Version::Resp2).ok();
        all.append(&mut replies);
        assert_eq!((positions(&all), all.len(), replies.len()), (vec![16, 28], 42, 0));
        assert_eq!((all.shared(5..18).len(), all.len_of(5..18), all.len_since(18)), (1, 19, 18));
        all.truncate(18);
        assert_eq!((positions(&all), all.len()), (vec![16], 24));
        all.clear();
        assert_eq!((all.bytes.len(), all.len()), (0, 0));
        assert!(value.clone().into_vec() == b"shared");
    }

    #[test]
    fn a_contiguous_buffer_copies_shared_strings() {
        let mut replies = ReplyBuffer::contiguous(b"+OK\r\n".to_vec());
        replies.reply(Version::Resp2).bulk_shared(&SharedBytes::new(b"abc".to_vec()));
        assert_eq!((&replies.bytes[..], replies.len()), (&b"+OK\r\n$3\r\nabc\r\n"[..], 14));
    }
}
