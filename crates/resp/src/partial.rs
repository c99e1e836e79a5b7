//! The slow path of the parser: a request that is inline, unusual, malformed or incomplete.
//!
//! A [`Partial`] is advanced over the input and suspended at its end. Its offsets are relative to the start of the
//! request, because earlier input is dropped between reads; they become spans of the caller's input when the request
//! is complete. **Invariant**: `at` is the start of the next unread line or, while `bulk` is known, argument.
//!
//! When a big argument begins, the bytes of the request so far move into an owned buffer and the argument
//! into a separate one, so that the caller's input is free; the rest of the request is then relative to
//! the following input. The first `settled` spans refer to owned buffers, the others to the input.

use memchr::{memchr, memchr2};

use crate::args::{SPAN_MAX, Span};
use crate::error::ProtocolError;
use crate::format::parse_i64;
use crate::inline;
use crate::parser::{Found, Limits, Stopped};
use crate::receiving::Receiving;
use crate::shared::{SHARED_MIN, SharedBytes};

/// The length in bytes from which an argument that is not completely in the input is received into a separate buffer.
pub const BIG_ARG: usize = SHARED_MIN;

/// Maximum length of the beginning of a line: an inline request or a length. As in Valkey, a line that is longer is
/// accepted if its end arrives together with the rest.
const LINE_MAX: usize = 64 * 1024;

/// The result of [`Partial::advance`].
pub(crate) enum Step {
    /// The request is complete and delivered.
    Request,
    /// The request was empty; the next one begins at the position.
    Skipped,
    /// The input ended within a line or a short argument.
    Incomplete,
    /// The input ended within a big argument.
    Big { needs: usize },
    /// The request is malformed.
    Error(ProtocolError),
}

/// A request in progress.
#[derive(Default)]
pub(crate) struct Partial {
    /// Where to continue, relative to the start of the request.
    at: usize,
    /// Number of bytes of the line at `at` that were already searched for its end.
    scanned: usize,
    /// Number of missing arguments; 0 until the first line was read.
    left: usize,
    /// The length of the argument at `at`, once its length line was read.
    bulk: Option<usize>,
    spans: Vec<Span>,
    settled: usize,
    owned: Vec<SharedBytes>,
    /// Total number of bytes in `owned`.
    owned_len: usize,
    receiving: Option<Receiving>,
}

impl Partial {
    /// Takes over the request at `pos` where the fast path stopped, with the spans that it found.
    pub(crate) fn new(pos: usize, stopped: Stopped, spans: &mut Vec<Span>) -> Self {
        let found = spans.drain(spans.len() - stopped.args..);
        let spans = found.map(|span| Span { start: span.start - pos, len: span.len }).collect();
        Partial { at: stopped.at - pos, left: stopped.left, spans, ..Partial::default() }
    }

    /// Whether progress would be lost if the request were parsed again from its start.
    pub(crate) fn has_progress(&self) -> bool {
        self.left > 0 || self.scanned > 0
    }

    /// The memory in use, in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.spans.capacity() * size_of::<Span>()
            + self.owned.capacity() * size_of::<SharedBytes>()
            + self.owned_len
            + self.receiving.as_ref().map_or(0, Receiving::memory)
    }

    /// Number of bytes received of the big argument in progress.
    pub(crate) fn received(&self) -> usize {
        self.receiving.as_ref().map_or(0, Receiving::len)
    }

    /// Number of missing bytes of the big argument in progress, without its line end.
    pub(crate) fn missing(&self) -> usize {
        self.receiving.as_ref().map_or(0, Receiving::missing)
    }

    /// Whether more than the line end of a big argument is missing.
    pub(crate) fn is_receiving(&self) -> bool {
        self.missing() > 0
    }

    /// Whether the buffer of a big argument has less room than the argument needs.
    pub(crate) fn must_grow(&self) -> bool {
        self.receiving.as_ref().is_some_and(Receiving::must_grow)
    }

    /// The big argument in progress.
    pub(crate) fn receiving(&mut self) -> Option<&mut Receiving> {
        self.receiving.as_mut()
    }

    /// Continues the request over `input[*pos..]`, and moves `*pos` past the bytes that are no longer needed.
    pub(crate) fn advance(&mut self, input: &[u8], pos: &mut usize, found: &mut Found<'_>, limits: &Limits) -> Step {
        self.try_advance(input, pos, found, limits).unwrap_or_else(Step::Error)
    }

    fn try_advance(
        &mut self,
        input: &[u8],
        pos: &mut usize,
        found: &mut Found<'_>,
        limits: &Limits,
    ) -> Result<Step, ProtocolError> {
        if let Some(receiving) = &mut self.receiving {
            *pos += receiving.copy_from(input.get(*pos..).unwrap_or_default());
            if receiving.needs() > 0 {
                return Ok(Step::Big { needs: receiving.needs() });
            }
            self.finish_big()?;
        }
        let request = input.get(*pos..).unwrap_or_default();
        if self.left == 0 && self.spans.is_empty() {
            match request.first() {
                None => return Ok(Step::Incomplete),
                Some(b'*') => {}
                Some(_) => return self.inline(input, pos, found, limits),
            }
            match self.count_line(request, limits)? {
                None => return Ok(Step::Incomplete),
                Some(0) => {
                    *pos += self.at;
                    return Ok(Step::Skipped);
                }
                Some(count) => self.left = count,
            }
        }
        while self.left > 0 {
            let Some(len) = self.bulk_line(request, limits)? else {
                return Ok(Step::Incomplete);
            };
            if request.len().saturating_sub(self.at) < len + 2 {
                if !(BIG_ARG..=SPAN_MAX).contains(&len) || limits.replicated {
                    return Ok(Step::Incomplete);
                }
                *pos = input.len();
                return Ok(Step::Big { needs: self.begin_big(request, len) });
            }
            let end = self.at + len;
            if request[end..end + 2] != *b"\r\n" {
                return Err(ProtocolError::InvalidCrlf);
            }
            self.spans.push(Span { start: self.at, len });
            self.next_argument(end + 2);
        }
        let buffers = found.big.len();
        found.spans.extend(self.spans.iter().map(|span| span.shifted(*pos, buffers)));
        found.big.append(&mut self.owned);
        *pos += self.at;
        Ok(Step::Request)
    }

    /// Parses the request's first line: returns the number of arguments, 0 if it is empty or negative.
    fn count_line(&mut self, request: &[u8], limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let Some(len) = self.line(request, ProtocolError::BigMultibulkCount)? else {
            return Ok(None);
        };
        let count = self.length(request, len)?.ok_or(ProtocolError::InvalidMultibulkLength)?;
        if count > i64::from(i32::MAX) {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        let count = usize::try_from(count).unwrap_or(0);
        if !limits.authenticated && count > Limits::UNAUTHENTICATED_ARGS_MAX {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        self.move_to(self.at + len + 2);
        Ok(Some(count))
    }

    /// Parses the next argument's length, unless it is known.
    fn bulk_line(&mut self, request: &[u8], limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        if self.bulk.is_some() {
            return Ok(self.bulk);
        }
        let Some(len) = self.line(request, ProtocolError::BigBulkCount)? else {
            return Ok(None);
        };
        if request[self.at] != b'$' {
            return Err(ProtocolError::ExpectedDollar(request[self.at]));
        }
        let bulk = self.length(request, len)?.and_then(|bulk| u64::try_from(bulk).ok());
        let bulk = bulk.filter(|bulk| limits.replicated || *bulk <= limits.bulk_len_max);
        let bulk = bulk.ok_or(ProtocolError::InvalidBulkLength)? as usize;
        if !limits.authenticated && bulk > Limits::UNAUTHENTICATED_BULK_MAX {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        self.move_to(self.at + len + 2);
        self.bulk = Some(bulk);
        Ok(self.bulk)
    }

    /// The length of the line at `at` up to its carriage return, once that and the next byte have arrived.
    fn line(&mut self, request: &[u8], too_long: ProtocolError) -> Result<Option<usize>, ProtocolError> {
        let line = request.get(self.at..).unwrap_or_default();
        let end = self.scan(line, |unseen| memchr(b'\r', unseen), too_long)?;
        Ok(end.filter(|end| line.len() >= end + 2))
    }

    /// Searches for the line's end with `find`, in the part of the line that was not searched yet.
    fn scan(
        &mut self,
        line: &[u8],
        find: impl Fn(&[u8]) -> Option<usize>,
        too_long: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let end = find(line.get(self.scanned..).unwrap_or_default());
        self.scanned = end.map_or(line.len(), |end| self.scanned + end);
        if end.is_none() && line.len() > LINE_MAX {
            return Err(too_long);
        }
        Ok(end.map(|_| self.scanned))
    }

    /// The number in the line at `at`, whose carriage return is at `len`; `None` if it is not a number.
    fn length(&self, request: &[u8], len: usize) -> Result<Option<i64>, ProtocolError> {
        let line = &request[self.at..self.at + len + 2];
        if line[len + 1] != b'\n' {
            return Err(ProtocolError::InvalidCrlf);
        }
        Ok(parse_i64(&line[1..len]))
    }

    fn inline(
        &mut self,
        input: &[u8],
        pos: &mut usize,
        found: &mut Found<'_>,
        limits: &Limits,
    ) -> Result<Step, ProtocolError> {
        // A NUL hides the line end after it: such a line can only become too long.
        let find = |unseen: &[u8]| memchr2(b'\n', 0, unseen);
        let Some(newline) = self.scan(&input[*pos..], find, ProtocolError::BigInline)? else {
            return Ok(Step::Incomplete);
        };
        let (start, newline) = (*pos, *pos + newline);
        if input[newline] == 0 {
            return if input.len() - start > LINE_MAX { Err(ProtocolError::BigInline) } else { Ok(Step::Incomplete) };
        }
        let end = if input[start..newline].ends_with(b"\r") { newline - 1 } else { newline };
        if limits.replicated && end > start {
            return Err(ProtocolError::UnexpectedInline);
        }
        let first = found.spans.len();
        if inline::split(input, start, end, found.spans, found.big).is_err() {
            found.spans.truncate(first);
            return Err(ProtocolError::UnbalancedQuotes);
        }
        *pos = newline + 1;
        Ok(if found.spans.len() > first { Step::Request } else { Step::Skipped })
    }

    /// Begins to receive the argument of `len` bytes at `at`, of which
    /// `request` contains a part; returns how many bytes are missing.
    fn begin_big(&mut self, request: &[u8], len: usize) -> usize {
        let (head, body) = request.split_at(self.at);
        if self.settled < self.spans.len() {
            let place = self.keep(head.to_vec());
            for span in &mut self.spans[self.settled..] {
                *span = Span::owned(place, span.start, span.len);
            }
        }
        let mut receiving = Receiving::new(len);
        receiving.copy_from(body);
        self.receiving.insert(receiving).needs()
    }

    /// Adds the big argument, now complete, to the arguments of the request.
    fn finish_big(&mut self) -> Result<(), ProtocolError> {
        if let Some(receiving) = self.receiving.take() {
            let big = receiving.finish().ok_or(ProtocolError::InvalidCrlf)?;
            let len = big.len();
            let place = self.keep(big);
            self.spans.push(Span::owned(place, 0, len));
            self.settled = self.spans.len();
            self.next_argument(0);
        }
        Ok(())
    }

    fn keep(&mut self, buffer: Vec<u8>) -> usize {
        self.owned_len += buffer.capacity();
        self.owned.push(SharedBytes::new(buffer));
        self.owned.len() - 1
    }

    fn next_argument(&mut self, at: usize) {
        self.left -= 1;
        self.bulk = None;
        self.move_to(at);
    }

    fn move_to(&mut self, at: usize) {
        self.at = at;
        self.scanned = 0;
    }
}
