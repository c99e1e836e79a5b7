//! The request parser and its fast path.
//!
//! [`Parser::parse`] first tries [`whole`]: a well-formed request of an authenticated client, all of it in the input.
//! It reads lengths digit by digit and looks at nothing else but the line ends, whose places it knows. Where it stops
//! (the input ends, a length is long or malformed, the request is inline) the careful path in [`crate::partial`] goes
//! on from the same argument; it knows every rule and can be left and resumed.

use std::mem::MaybeUninit;

use crate::args::Span;
use crate::error::ProtocolError;
use crate::partial::{Partial, Step};
use crate::receiving::Receiving;

/// What a connection may send.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest argument in bytes (`proto-max-bulk-len`).
    pub bulk_len_max: u64,
    /// Whether the client has authenticated or need not; otherwise a request may have 10 arguments of 16 KiB.
    pub authenticated: bool,
    /// The memory that input may take until it is executed, in bytes (`client-query-buffer-limit`). The caller checks
    /// it with [`query_buffer_exceeded`](Self::query_buffer_exceeded).
    pub query_buffer_max: usize,
    /// Whether this is a replication link: no inline requests but empty lines, no limit to an argument's length, and
    /// no [`Parsed::Big`], for the stream is passed on as it came.
    pub replicated: bool,
}

impl Limits {
    /// The most arguments in a request before authentication.
    pub const UNAUTHENTICATED_ARGS_MAX: usize = 10;
    /// The longest argument in bytes before authentication.
    pub const UNAUTHENTICATED_BULK_MAX: usize = 16 * 1024;
    /// The most unexecuted input in bytes before authentication.
    pub const UNAUTHENTICATED_QUERY_BUFFER_MAX: usize = 1024 * 1024;

    /// Whether a connection that holds `bytes` of unexecuted input, [`Parser::buffered`] included, is to be closed.
    pub fn query_buffer_exceeded(&self, bytes: usize) -> bool {
        bytes > self.query_buffer_max || (!self.authenticated && bytes > Self::UNAUTHENTICATED_QUERY_BUFFER_MAX)
    }
}

impl Default for Limits {
    /// An authenticated client under the default configuration.
    fn default() -> Self {
        Limits {
            bulk_len_max: 512 * 1024 * 1024,
            authenticated: true,
            query_buffer_max: 1024 * 1024 * 1024,
            replicated: false,
        }
    }
}

/// What [`Parser::parse`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// One request: its spans were appended, and the position stands behind it.
    Request,
    /// The rest of the input is the beginning of a request (or nothing). The caller keeps it, from the position on,
    /// appends what it reads next and parses again.
    Incomplete,
    /// An argument of at least [`BIG_ARG`](crate::BIG_ARG) bytes has begun that is not whole in the input. All of the
    /// input was consumed, and the parser is missing `needs` more bytes, the line end included. The caller reads them
    /// through [`Parser::spare`] and [`Parser::filled`], or hands them to `parse` as input, which copies them.
    Big {
        /// The number of bytes missing.
        needs: usize,
    },
    /// The input breaks the protocol; the connection cannot go on.
    Error(ProtocolError),
}

/// Finds the requests of one connection. Costs a word of memory while no request is under way.
#[derive(Default)]
pub struct Parser {
    partial: Option<Box<Partial>>,
}

impl Parser {
    /// A parser at the beginning of a request.
    pub const fn new() -> Self {
        Parser { partial: None }
    }

    /// Parses the next request in `input`, from `*pos` on.
    ///
    /// When it is [`Parsed::Request`], `*pos` is moved behind it and a span for each argument was appended to `spans`,
    /// relative to `input` and to `big`, to which the request's owned buffers were appended. So a batch of requests
    /// from one input shares `spans` and `big`, and [`Args::new`](crate::Args::new) takes the part of `spans` that a
    /// request added. Otherwise nothing was appended to `spans`. Empty requests are skipped.
    ///
    /// After [`Parsed::Incomplete`] the next call's input must continue, from its `*pos` on, the bytes that followed
    /// `*pos` in this one. What was parsed of them is not looked at again.
    #[inline(always)]
    pub fn parse(
        &mut self,
        input: &[u8],
        pos: &mut usize,
        spans: &mut Vec<Span>,
        big: &mut Vec<Vec<u8>>,
        limits: &Limits,
    ) -> Parsed {
        let stopped = if self.partial.is_none() && limits.authenticated {
            match whole(input, *pos, spans, limits.bulk_len_max) {
                Ok(end) => {
                    *pos = end;
                    return Parsed::Request;
                }
                Err(_) if *pos >= input.len() => return Parsed::Incomplete,
                Err(stopped) => stopped,
            }
        } else {
            Stopped { at: *pos, args: 0, left: 0 }
        };
        self.parse_carefully(stopped, input, pos, Found { spans, big }, limits)
    }

    /// Whether a request is under way.
    pub fn is_partial(&self) -> bool {
        self.partial.is_some()
    }

    /// The memory held for the request under way, in bytes.
    pub fn buffered(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.memory())
    }

    /// The bytes that have arrived of a big argument that is under way.
    pub fn received(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.received())
    }

    /// Where to read the next bytes of a big argument, after [`Parsed::Big`]: never empty while bytes are missing,
    /// never longer than what is missing. The memory grows with what arrived. Empty when no big argument is under way.
    pub fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        self.receiving().map_or(&mut [], Receiving::spare)
    }

    /// Takes note that `n` bytes were read into [`spare`](Self::spare), and returns how many are still missing. When
    /// none is, [`parse`](Self::parse) goes on with the request, even if there is no more input.
    ///
    /// # Panics
    ///
    /// If `n` is more than `spare` offered.
    ///
    /// # Safety
    ///
    /// The first `n` bytes that the last call of [`spare`](Self::spare) returned must have been initialised, and
    /// nothing else called on the parser since.
    pub unsafe fn filled(&mut self, n: usize) -> usize {
        // SAFETY: the caller's promise is the one that the callee asks for.
        self.receiving().map_or(0, |receiving| unsafe { receiving.filled(n) })
    }

    fn receiving(&mut self) -> Option<&mut Receiving> {
        self.partial.as_mut()?.receiving()
    }

    #[cold]
    #[inline(never)]
    fn parse_carefully(
        &mut self,
        stopped: Stopped,
        input: &[u8],
        pos: &mut usize,
        mut found: Found<'_>,
        limits: &Limits,
    ) -> Parsed {
        let mut partial = match self.partial.take() {
            Some(partial) => *partial,
            None => Partial::new(*pos, stopped, found.spans),
        };
        loop {
            match partial.advance(input, pos, &mut found, limits) {
                Step::Request => return Parsed::Request,
                Step::Skipped => partial = Partial::default(),
                Step::Error(error) => return Parsed::Error(error),
                Step::Incomplete => {
                    self.partial = partial.has_progress().then(|| Box::new(partial));
                    return Parsed::Incomplete;
                }
                Step::Big { needs } => {
                    self.partial = Some(Box::new(partial));
                    return Parsed::Big { needs };
                }
            }
        }
    }
}

/// Where the requests of a batch are collected.
pub(crate) struct Found<'a> {
    pub(crate) spans: &'a mut Vec<Span>,
    pub(crate) big: &'a mut Vec<Vec<u8>>,
}

/// Where [`whole`] gave up.
pub(crate) struct Stopped {
    /// The offset in the input of the line that it did not read.
    pub(crate) at: usize,
    /// How many arguments it found, the last so many spans.
    pub(crate) args: usize,
    /// How many arguments remain; 0 when the request's first line was not read.
    pub(crate) left: usize,
}

/// Spans that are reserved at once for a request that says it has so many arguments.
const RESERVE_MAX: usize = 64;

/// Parses the request at `start` if it is all there and nothing about it is unusual; returns where it ends.
#[inline(always)]
fn whole(input: &[u8], start: usize, spans: &mut Vec<Span>, bulk_len_max: u64) -> Result<usize, Stopped> {
    let (count, mut at) = length_line(input, start, b'*');
    if at == NO_LINE || count == 0 {
        return Err(Stopped { at: start, args: 0, left: 0 });
    }
    spans.reserve(count.min(RESERVE_MAX));
    for args in 0..count {
        let Some((span, next)) = argument(input, at, bulk_len_max) else {
            return Err(Stopped { at, args, left: count - args });
        };
        spans.push(span);
        at = next;
    }
    Ok(at)
}

/// The argument whose length stands at `at`, if it is all there and nothing about it is unusual, and where the next
/// begins.
#[inline(always)]
pub(crate) fn argument(input: &[u8], at: usize, bulk_len_max: u64) -> Option<(Span, usize)> {
    let (len, body) = length_line(input, at, b'$');
    let end = body + len;
    let is_ended = input.get(end..).and_then(|rest| rest.first_chunk()) == Some(b"\r\n");
    let is_plain = body != NO_LINE && is_ended && len as u64 <= bulk_len_max;
    is_plain.then_some((Span { start: body, len }, end + 2))
}

/// Where the line behind one ends that is none.
const NO_LINE: usize = 0;

/// Reads the line at `at` that consists of `kind` and a canonical number below 10^9: the number, and where the next
/// line begins. One or two digits are looked for in one word; what has more, or stands close to the input's end, is
/// read byte by byte.
#[inline(always)]
fn length_line(input: &[u8], at: usize, kind: u8) -> (usize, usize) {
    if let Some(line) = input.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*line);
        // Taken from the word, so that it is loaded at once.
        let digit = |at: u32| ((word >> (8 * at)) as u8).wrapping_sub(b'0');
        let (first, second) = (digit(1), digit(2));
        if word & 0xffff_00ff == u64::from_le_bytes([kind, 0, b'\r', b'\n', 0, 0, 0, 0]) && first < 10 {
            return (usize::from(first), at + 4);
        }
        let two_digits = word & 0xff_ff00_00ff == u64::from_le_bytes([kind, 0, 0, b'\r', b'\n', 0, 0, 0]);
        if two_digits && first.wrapping_sub(1) < 9 && second < 10 {
            return (usize::from(first) * 10 + usize::from(second), at + 5);
        }
    }
    any_length_line(input, at, kind)
}

/// As [`length_line`], for up to nine digits.
#[inline(never)]
fn any_length_line(input: &[u8], at: usize, kind: u8) -> (usize, usize) {
    const NONE: (usize, usize) = (0, NO_LINE);
    let Some([first, line @ ..]) = input.get(at..) else { return NONE };
    let digits = line.iter().take(10).take_while(|byte| byte.is_ascii_digit()).count();
    let is_canonical = (1..=9).contains(&digits) && (digits == 1 || line[0] != b'0');
    if *first != kind || !is_canonical || line.get(digits..digits + 2) != Some(b"\r\n") {
        return NONE;
    }
    let number = line[..digits].iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    (number, at + digits + 3)
}
