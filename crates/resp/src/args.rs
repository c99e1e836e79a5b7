//! The arguments of a request, borrowed ([`Args`]) and owned ([`OwnedArgs`]).
//!
//! A request's arguments are in the connection's input, or, if that is not possible (a large argument received into a
//! separate buffer, an unescaped inline argument), in one of the request's owned buffers. A [`Span`] gives the
//! location; it fits in two words and does not borrow, so spans of a whole batch of requests share one reused vector.

use crate::shared::{SHARED_MIN, SharedBytes};
use std::fmt;
use std::ops::Index;

/// Number of low bits of [`Span::start`] that are the offset;
/// the bits above are the number of the buffer, 0 for the input.
const OFFSET_BITS: u32 = 40;
const OFFSET_MASK: usize = (1 << OFFSET_BITS) - 1;

/// Maximum length of arguments and inputs that spans can address: 1 TiB.
pub(crate) const SPAN_MAX: usize = OFFSET_MASK;

/// The location of one argument of a request.
///
/// Spans are made by [`Parser::parse`](crate::Parser::parse) and read through [`Args`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The offset of the first byte in the input; for an argument in an owned buffer, the offset
    /// in that buffer, plus the buffer's number, counted from 1, in the bits above the lowest 40.
    pub start: usize,
    /// The number of bytes.
    pub len: usize,
}

impl Span {
    /// A span of owned buffer `index`.
    pub(crate) fn owned(index: usize, start: usize, len: usize) -> Self {
        debug_assert!(index < usize::MAX >> OFFSET_BITS && start <= OFFSET_MASK);
        Span { start: ((index + 1) << OFFSET_BITS) | start, len }
    }

    /// The owned buffer that contains the argument; `None` if it is in the input.
    #[inline]
    fn buffer(self) -> Option<usize> {
        (self.start >> OFFSET_BITS).checked_sub(1)
    }

    /// The buffer that contains exactly this argument, if it is large.
    #[cold]
    fn shared(self, big: &[SharedBytes]) -> Option<&SharedBytes> {
        let buffer = big.get(self.buffer()?)?;
        let is_whole = self.start & OFFSET_MASK == 0 && buffer.len() == self.len;
        (is_whole && self.len >= SHARED_MIN).then_some(buffer)
    }

    /// This span after its input moved by `input` bytes and its owned buffers by `buffers` indices.
    pub(crate) fn shifted(self, input: usize, buffers: usize) -> Self {
        let by = if self.buffer().is_some() { buffers << OFFSET_BITS } else { input };
        Span { start: self.start + by, len: self.len }
    }
}

/// The arguments of one request, borrowed; `args[0]` is the command's name. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    input: &'a [u8],
    spans: &'a [Span],
    big: &'a [SharedBytes],
}

impl<'a> Args<'a> {
    /// The arguments that `spans` locate in `input` and in the owned buffers `big`;
    /// all three as [`Parser::parse`](crate::Parser::parse) received and left them.
    ///
    /// A span outside the buffers reads as empty.
    #[inline]
    pub fn new(input: &'a [u8], spans: &'a [Span], big: &'a [SharedBytes]) -> Self {
        Args { input, spans, big }
    }

    /// The number of arguments, including the command's name.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no arguments.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `i`, or `None` past the last one.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        self.spans.get(i).map(|span| self.bytes(*span))
    }

    /// The arguments in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone + use<'a> {
        let args = *self;
        self.spans.iter().map(move |span| args.bytes(*span))
    }

    /// The arguments from `i` on; none if there are fewer.
    #[inline]
    pub fn slice_from(&self, i: usize) -> Args<'a> {
        Args { spans: self.spans.get(i..).unwrap_or_default(), ..*self }
    }

    /// A cheap upper bound for the total size of the arguments: the size of the data they were parsed from.
    #[inline]
    pub fn bytes_max(&self) -> usize {
        self.input.len() + if self.big.is_empty() { 0 } else { self.bytes_len() }
    }

    /// Whether any argument was received into its own buffer.
    #[inline]
    pub fn has_shared(&self) -> bool {
        !self.big.is_empty() && (0..self.len()).any(|i| self.shared(i).is_some())
    }

    /// The total size of the arguments, in bytes.
    pub fn bytes_len(&self) -> usize {
        self.spans.iter().map(|span| span.len).sum()
    }

    /// Argument `i` for a caller that keeps it, if it was received into its own buffer.
    #[inline]
    pub fn shared(&self, i: usize) -> Option<&'a SharedBytes> {
        if self.big.is_empty() { None } else { self.spans.get(i)?.shared(self.big) }
    }

    /// The number of bytes of the request before its last argument, if only that is large.
    pub fn bytes_before_large(&self) -> Option<usize> {
        let (last, others) = self.spans.split_last().filter(|(last, _)| last.len >= SHARED_MIN)?;
        let first = others.first()?;
        if last.buffer().is_none() {
            let start = first.start.checked_sub(header_len(self.len()) + header_len(first.len))?;
            return last.start.checked_sub(start);
        }
        // The parser keeps what precedes a large argument in one buffer.
        let place = first.buffer()?;
        let is_kept_together = others.iter().all(|span| span.buffer() == Some(place));
        if is_kept_together { self.big.get(place).map(|head| head.len()) } else { None }
    }

    /// The request in RESP, if it was received in exactly this form: completely in the input. It then need not be
    /// encoded again.
    #[inline]
    pub fn encoded(&self) -> Option<&'a [u8]> {
        let (first, others) = self.spans.split_first()?;
        let start = first.start.checked_sub(header_len(self.len()) + header_len(first.len))?;
        let at = header_end(self.input, start, b'*', self.len())?;
        if header_end(self.input, at, b'$', first.len)? != first.start {
            return None;
        }
        // The parser refuses lines in other forms, and between the words of an inline request is no `$`. So the place
        // of a header identifies it.
        let mut end = first.start + first.len;
        for span in others {
            let header = end + LINE_END.len();
            if span.start != header + header_len(span.len) || self.input.get(header) != Some(&b'$') {
                return None;
            }
            end = span.start + span.len;
        }
        self.input.get(start..end + LINE_END.len()).filter(|bytes| bytes.ends_with(LINE_END))
    }

    /// Whether it is an inline request of several words, as received.
    pub fn is_inline(&self) -> bool {
        let [first, second, ..] = self.spans else { return false };
        let end = first.start.saturating_add(first.len);
        let is_in_input = first.buffer().is_none() && second.buffer().is_none();
        is_in_input && end < second.start && self.input.get(end).is_some_and(|byte| matches!(byte, b' ' | b'\t'))
    }

    #[inline]
    fn bytes(&self, span: Span) -> &'a [u8] {
        match span.buffer() {
            None => self.input.get(span.start..span.start + span.len).unwrap_or_default(),
            Some(place) => self.owned_bytes(place, span),
        }
    }

    #[cold]
    fn owned_bytes(&self, place: usize, span: Span) -> &'a [u8] {
        let start = span.start & OFFSET_MASK;
        self.big.get(place).and_then(|buffer| buffer.get(start..start + span.len)).unwrap_or_default()
    }
}

/// Ends every line of the protocol.
const LINE_END: &[u8] = b"\r\n";

/// Length of the header line for a length.
#[inline]
fn header_len(length: usize) -> usize {
    let digits = match length {
        0..10 => 1,
        10..100 => 2,
        _ => length.ilog10() as usize + 1,
    };
    1 + digits + LINE_END.len()
}

/// The end of the header line of this kind and length at `at`, if there is one.
#[inline]
fn header_end(input: &[u8], at: usize, kind: u8, length: usize) -> Option<usize> {
    let rest = input.get(at..)?;
    let digit = |n: usize| b'0' + (n % 10) as u8;
    // Compared as one number: individual bytes that were just written would cause a store-forwarding stall.
    let begins_with =
        |line: [u8; 4]| rest.first_chunk().is_some_and(|first| u32::from_ne_bytes(*first) == u32::from_ne_bytes(line));
    let len = match length {
        0..10 => begins_with([kind, digit(length), b'\r', b'\n']).then_some(4),
        10..100 => {
            let is_it = begins_with([kind, digit(length / 10), digit(length), b'\r']) && rest.get(4) == Some(&b'\n');
            is_it.then_some(5)
        }
        _ => long_header_len(rest, kind, length),
    };
    len.map(|len| at + len)
}

/// The length of the header line that `rest` begins with, if it is of this kind and length.
fn long_header_len(rest: &[u8], kind: u8, length: usize) -> Option<usize> {
    let line = rest.get(..header_len(length))?;
    let (digits, end) = line[1..].split_at(line.len() - 1 - LINE_END.len());
    let is_number = digits.iter().all(u8::is_ascii_digit);
    // The line has as many digits as the length.
    let number = || digits.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    (line[0] == kind && end == LINE_END && is_number && number() == length).then_some(line.len())
}

impl Index<usize> for Args<'_> {
    type Output = [u8];

    /// # Panics
    ///
    /// If there is no argument `i`: commands check their arity first.
    #[inline]
    fn index(&self, i: usize) -> &[u8] {
        self.bytes(self.spans[i])
    }
}

impl fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|arg| arg.escape_ascii().to_string())).finish()
    }
}

/// The arguments of one request, owned: one buffer for all bytes, one for the spans. Large arguments keep the buffers
/// into which they were received.
#[derive(Clone, Default)]
pub struct OwnedArgs {
    bytes: Box<[u8]>,
    spans: Box<[Span]>,
    big: Box<[SharedBytes]>,
}

impl OwnedArgs {
    /// Copies the arguments.
    pub fn new<A: AsRef<[u8]>>(args: impl IntoIterator<Item = A>) -> Self {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for arg in args {
            let arg = arg.as_ref();
            spans.push(Span { start: bytes.len(), len: arg.len() });
            bytes.extend_from_slice(arg);
        }
        OwnedArgs { bytes: bytes.into(), spans: spans.into(), big: Box::default() }
    }

    /// The arguments, borrowed.
    #[inline]
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.spans, &self.big)
    }

    /// The heap memory in use, in bytes.
    pub fn memory(&self) -> usize {
        let big: usize = self.big.iter().map(|bytes| bytes.capacity()).sum();
        self.bytes.len() + size_of_val(&*self.spans) + size_of_val(&*self.big) + big
    }
}

impl From<Args<'_>> for OwnedArgs {
    fn from(args: Args<'_>) -> Self {
        let is_large = |i: &usize| args.shared(*i).is_some();
        let large: usize = (0..args.len()).filter(is_large).map(|i| args[i].len()).sum();
        let (mut bytes, mut big) = (Vec::with_capacity(args.bytes_len() - large), Vec::new());
        let spans = args.iter().enumerate().map(|(i, arg)| match args.shared(i) {
            Some(shared) => {
                big.push(shared.clone());
                Span::owned(big.len() - 1, 0, arg.len())
            }
            None => {
                bytes.extend_from_slice(arg);
                Span { start: bytes.len() - arg.len(), len: arg.len() }
            }
        });
        let spans = spans.collect();
        OwnedArgs { bytes: bytes.into(), spans, big: big.into() }
    }
}

impl fmt::Debug for OwnedArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.args().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Parsed, Parser};

    #[test]
    fn owned_arguments_equal_their_source() {
        let made = OwnedArgs::new(["SET", "", "key", "value"]);
        let args = made.args();
        assert_eq!(args.iter().collect::<Vec<_>>(), [&b"SET"[..], b"", b"key", b"value"]);
        assert_eq!((&args[3], args.len(), args.bytes_len()), (&b"value"[..], 4, 11));
        assert_eq!((args.get(4), args.is_empty(), args.shared(0)), (None, false, None));
        let copied = OwnedArgs::from(args.slice_from(2));
        assert_eq!(format!("{copied:?}"), r#"["key", "value"]"#);
        assert_eq!(copied.memory(), 8 + 2 * size_of::<Span>());
        assert!(args.slice_from(4).is_empty() && args.slice_from(9).is_empty());
    }

    #[test]
    fn input_and_owned_spans_shift_independently() {
        let (input, owned) = (Span { start: 7, len: 2 }, Span::owned(3, 5, 2));
        assert_eq!(input.shifted(100, 10), Span { start: 107, len: 2 });
        assert_eq!(owned.shifted(100, 10), Span::owned(13, 5, 2));
        assert_eq!((input.buffer(), owned.buffer()), (None, Some(3)));
    }

    /// The encoded form of each request in `input`.
    fn encoded(input: &[u8]) -> Vec<Option<String>> {
        let (mut parser, mut at, mut found) = (Parser::new(), 0, Vec::new());
        loop {
            let (mut spans, mut big) = (Vec::new(), Vec::new());
            match parser.parse(input, &mut at, &mut spans, &mut big, &Limits::default()) {
                Parsed::Request => {
                    let bytes = Args::new(input, &spans, &big).encoded();
                    found.push(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()));
                }
                _ => return found,
            }
        }
    }

    #[test]
    fn a_canonical_request_is_its_own_encoding() {
        let value = "x".repeat(1234);
        let requests = [
            "*1\r\n$4\r\nPING\r\n".to_owned(),
            "*2\r\n$3\r\nGET\r\n$0\r\n\r\n".to_owned(),
            format!("*3\r\n$3\r\nset\r\n$12\r\nkey:00000001\r\n$1234\r\n{value}\r\n"),
            format!("*12\r\n$3\r\nDEL\r\n{}", "$1\r\nk\r\n".repeat(11)),
        ];
        let input = requests.concat();
        assert_eq!(encoded(input.as_bytes()), requests.map(Some));
    }

    #[test]
    fn a_non_canonical_request_is_encoded_again() {
        let others = ["PING\r\n", "GET      key\r\n", "*1\r\n$12\r\nabcd\r\n$3\r\nab\r\nGET      key\r\n"];
        for input in others {
            let found = encoded(input.as_bytes());
            assert!(found.last().is_some_and(Option::is_none), "{input:?}: {found:?}");
        }
        for refused in ["*2\r\n$3\r\nGET\r\n$3\r_key\r\n", "*2\r\n$3\r\nGET__$3\r\nkey\r\n", "*1\r\n$04\r\nPING\r\n"] {
            assert!(encoded(refused.as_bytes()).is_empty(), "{refused:?}");
        }
        // The bytes before an inline request may look like its header.
        let input = b"*1\r\n$6\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(encoded(input)[1].as_deref(), Some("*1\r\n$4\r\nPING\r\n"));
    }

    #[test]
    fn inline_requests_have_blanks_between_words() {
        assert!(!OwnedArgs::new(["GET", " key"]).args().is_inline());
        let inline = [Span { start: 0, len: 3 }, Span { start: 4, len: 3 }];
        assert!(Args::new(b"GET key\r\n", &inline, &[]).is_inline());
        let framed = [Span { start: 0, len: 3 }, Span { start: 9, len: 3 }];
        assert!(!Args::new(b"GET\r\n$3\r\nkey\r\n", &framed, &[]).is_inline());
    }

    #[test]
    fn spans_outside_the_buffers_read_as_empty() {
        let spans = [Span { start: 3, len: 9 }, Span::owned(0, 0, 1), Span { start: 1, len: 2 }];
        let args = Args::new(b"abcd", &spans, &[]);
        assert_eq!(args.iter().collect::<Vec<_>>(), [&b""[..], b"", b"bc"]);
    }
}
