//! The request parser and its fast path.
//!
//! [`Parser::parse`] first tries [`whole`], which accepts a well-formed request of an authenticated client that is
//! completely in the input. It reads lengths digit by digit, and checks only the line ends, whose positions it can
//! compute. Where it stops (the input ends, a length is long or malformed, the request is inline) the slow path in
//! [`crate::partial`] continues from the same argument; it implements all rules and can be suspended and resumed.

use std::mem::MaybeUninit;

use crate::args::Span;
use crate::error::ProtocolError;
use crate::partial::{Partial, Step};
use crate::receiving::Receiving;
use crate::shared::SharedBytes;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of an argument, in bytes (`proto-max-bulk-len`).
    pub bulk_len_max: u64,
    /// Whether the client is authenticated or needs no authentication;
    /// otherwise a request may have at most 10 arguments of at most 16 KiB.
    pub authenticated: bool,
    /// Maximum memory of unexecuted input, in bytes (`client-query-buffer-limit`). The
    /// caller checks it with [`query_buffer_exceeded`](Self::query_buffer_exceeded).
    pub query_buffer_max: usize,
    /// Whether this is a replication link: no inline requests except empty lines, no limit on
    /// the length of arguments, and no [`Parsed::Big`], since the stream is forwarded unchanged.
    pub replicated: bool,
}

impl Limits {
    /// Maximum number of arguments in a request before authentication.
    pub const UNAUTHENTICATED_ARGS_MAX: usize = 10;
    /// Maximum length of an argument before authentication, in bytes.
    pub const UNAUTHENTICATED_BULK_MAX: usize = 16 * 1024;
    /// Maximum size of unexecuted input before authentication, in bytes.
    pub const UNAUTHENTICATED_QUERY_BUFFER_MAX: usize = 1024 * 1024;

    /// Whether a connection with `bytes` of unexecuted input, including [`Parser::buffered`], must be closed.
    pub fn query_buffer_exceeded(&self, bytes: usize) -> bool {
        bytes > self.query_buffer_max || (!self.authenticated && bytes > Self::UNAUTHENTICATED_QUERY_BUFFER_MAX)
    }
}

impl Default for Limits {
    /// The limits of an authenticated client under the default configuration.
    fn default() -> Self {
        Limits {
            bulk_len_max: 512 * 1024 * 1024,
            authenticated: true,
            query_buffer_max: 1024 * 1024 * 1024,
            replicated: false,
        }
    }
}

/// The result of [`Parser::parse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// A request: its spans were appended, and the position is after it.
    Request,
    /// The rest of the input is empty or the beginning of a request. The caller
    /// keeps it, from the position on, appends what it reads next, and parses again.
    Incomplete,
    /// The input ends within an argument of at least [`BIG_ARG`](crate::BIG_ARG) bytes. All of the input was
    /// consumed, and `needs` more bytes are missing, including the line end. The caller reads them through
    /// [`Parser::spare`] and [`Parser::filled`], and passes the line end to `parse`; or it passes all of them to
    /// `parse` as input, which copies them.
    Big {
        /// The number of bytes missing.
        needs: usize,
    },
    /// The input violates the protocol; the connection must be closed.
    Error(ProtocolError),
}

/// Finds the requests of one connection. Takes one word of memory while no request is in progress.
#[derive(Default)]
pub struct Parser {
    partial: Option<Box<Partial>>,
}

impl Parser {
    /// A parser at the start of a request.
    pub const fn new() -> Self {
        Parser { partial: None }
    }

    /// Parses the next request in `input`, from `*pos` on.
    ///
    /// For [`Parsed::Request`], `*pos` is moved after it, and a span for each argument is appended to `spans`. The
    /// spans are relative to `input` and to `big`, to which the request's owned buffers are appended. A batch of
    /// requests from one input therefore shares `spans` and `big`, and [`Args::new`](crate::Args::new) takes the
    /// part of `spans` that a request added. Otherwise nothing is appended to `spans`. Empty requests are skipped.
    ///
    /// After [`Parsed::Incomplete`], the next call's input must continue, from its `*pos` on,
    /// the bytes after `*pos` in this one. Bytes that were already parsed are not parsed again.
    #[inline(always)]
    pub fn parse(
        &mut self,
        input: &[u8],
        pos: &mut usize,
        spans: &mut Vec<Span>,
        big: &mut Vec<SharedBytes>,
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

    /// Whether a request is in progress.
    pub fn is_partial(&self) -> bool {
        self.partial.is_some()
    }

    /// The memory used by the request in progress, in bytes.
    pub fn buffered(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.memory())
    }

    /// Number of bytes received of a big argument in progress.
    pub fn received(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.received())
    }

    /// Number of missing bytes of a big argument in progress, without its line end.
    pub fn missing(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.missing())
    }

    /// The buffer for the next bytes of a big argument, after [`Parsed::Big`]: not empty while any are missing, and not
    /// longer than the missing part. The memory grows with the bytes received. The line end behind the argument has no
    /// place there: it is passed to [`parse`](Self::parse). Empty if no big argument is in progress.
    pub fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        self.receiving().map_or(&mut [], Receiving::spare)
    }

    /// Records that `n` bytes were read into [`spare`](Self::spare), and returns how many are still
    /// missing, including the line end.
    ///
    /// # Panics
    ///
    /// If `n` is more than `spare` offered.
    ///
    /// # Safety
    ///
    /// The first `n` bytes that the last call of [`spare`](Self::spare) returned
    /// must have been initialised, and no other method may have been called since.
    pub unsafe fn filled(&mut self, n: usize) -> usize {
        // SAFETY: the caller's promise is the one that the callee requires.
        self.receiving().map_or(0, |receiving| unsafe { receiving.filled(n) })
    }

    /// Whether the buffer of a big argument has less room than the argument needs.
    #[inline]
    pub fn must_grow(&self) -> bool {
        self.partial.as_ref().is_some_and(|partial| partial.must_grow())
    }

    /// Makes room for up to `arrived` bytes of a big argument, which the caller is about to read.
    pub fn expect(&mut self, arrived: usize) {
        if let Some(receiving) = self.receiving() {
            receiving.expect(arrived);
        }
    }

    /// Takes over a buffer that contains the beginning of the big argument in progress, of which nothing else has
    /// arrived. The store may keep this buffer as the value, so its capacity should be the length of the argument.
    ///
    /// # Panics
    ///
    /// If part of the argument has arrived otherwise, or the buffer contains more than the argument.
    pub fn begin_with(&mut self, buffer: Vec<u8>) {
        self.receiving().expect("a big argument in progress").begin_with(buffer);
    }

    /// Whether a big argument is in progress of which more than the line end is missing.
    #[inline]
    pub fn is_receiving(&self) -> bool {
        self.partial.as_ref().is_some_and(|partial| partial.is_receiving())
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

/// The collected requests of a batch.
pub(crate) struct Found<'a> {
    pub(crate) spans: &'a mut Vec<Span>,
    pub(crate) big: &'a mut Vec<SharedBytes>,
}

/// Where [`whole`] stopped.
pub(crate) struct Stopped {
    /// The offset in the input of the first line that it did not read.
    pub(crate) at: usize,
    /// Number of arguments found, which are the last spans.
    pub(crate) args: usize,
    /// Number of missing arguments; 0 if the request's first line was not read.
    pub(crate) left: usize,
}

/// Maximum number of spans that are reserved based on the stated number of arguments.
const RESERVE_MAX: usize = 64;

/// Parses the request at `start` if it is complete and has the common form; returns its end.
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

/// The argument whose length is at `at`, if it is complete and has the common form, and the start of the next.
#[inline(always)]
pub(crate) fn argument(input: &[u8], at: usize, bulk_len_max: u64) -> Option<(Span, usize)> {
    let (len, body) = length_line(input, at, b'$');
    let end = body + len;
    let is_ended = input.get(end..).and_then(|rest| rest.first_chunk()) == Some(b"\r\n");
    let is_plain = body != NO_LINE && is_ended && len as u64 <= bulk_len_max;
    is_plain.then_some((Span { start: body, len }, end + 2))
}

/// The position returned if there is no valid line.
pub(crate) const NO_LINE: usize = 0;

/// Parses the line at `at`, which consists of `kind` and a canonical number below 10^9;
/// returns the number, and the start of the next line. Numbers of one or two digits are
/// parsed in one word; longer ones, and those close to the input's end, byte by byte.
#[inline(always)]
pub(crate) fn length_line(input: &[u8], at: usize, kind: u8) -> (usize, usize) {
    if let Some(line) = input.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*line);
        // Extracted from the word, so that there is only one load.
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

/// Like [`length_line`], for up to nine digits.
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
