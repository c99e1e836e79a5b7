//! Reads large arguments directly into the buffers that the store keeps.
//!
//! A buffer grows with what has arrived, in this process or in the socket, and never with what a client announces.
//!
//! A connection that has sent two requests with large last arguments, equal in length and with as many bytes before
//! them, probably sends such a request again. The next read then puts that argument where it would be kept: one call
//! and no copy. If another request arrives, its bytes are put together in the shared buffer, as if they had been read
//! there.

use super::Worker;
use super::input::{Read, outcome};
use kvick_resp::{BIG_ARG, Limits, parse_apart};

/// Maximum bytes read behind a large argument, and at once from a connection that sends such arguments.
pub(super) const READ_BEHIND_BIG: usize = 1024;
/// Maximum bytes per turn read directly into one large argument.
const BIG_READ: usize = 1024 * 1024;
/// Bytes per turn read directly into large arguments after which no further one begins while other connections wait:
/// neither these nor the first replies to a pipeline of large arguments should wait for all of it.
const BIG_READS: usize = 64 * 1024;
/// Bytes of large arguments after which a batch takes no further connection.
const BIG_BATCH: usize = 512 * 1024;
/// Maximum length in bytes of an argument that is expected. The shared buffer has room for it.
const EXPECTED_MAX: usize = 64 * 1024;
/// Marks the form of two requests in [`large_head`](super::connection::Connection::large_head).
const TWICE: u8 = 0x80;

/// The form of a request that ends with a large argument.
#[derive(Clone, Copy)]
pub(super) struct Form {
    /// Number of bytes before the argument.
    head: usize,
    /// Length of the argument.
    len: usize,
}

impl Worker {
    /// Whether the batch has so many bytes in large arguments that its clients should get their replies before more is
    /// read from others.
    #[inline]
    pub(super) fn has_large_arguments(&self) -> bool {
        self.batch.big.iter().map(|argument| argument.len()).sum::<usize>() >= BIG_BATCH
    }

    /// Notes the form of the batch's last request, which the connection has sent.
    #[cold]
    pub(super) fn note_form(&mut self, token: usize) {
        let (connection, batch) = (&mut self.connections[token], &self.batch);
        let Some(request) = batch.requests.last() else { return };
        let args = batch.args(request, &self.shared);
        let len = args.len().checked_sub(1).and_then(|last| args.get(last)).map_or(0, <[u8]>::len);
        let head = args.bytes_before_large().filter(|head| *head < usize::from(TWICE));
        let form = match head {
            Some(head) if (BIG_ARG..=EXPECTED_MAX).contains(&len) => (head as u8, len as u32),
            _ => (0, 0),
        };
        let is_known = form.0 > 0 && (connection.large_head & !TWICE, connection.large_len) == form;
        (connection.large_head, connection.large_len) = form;
        if is_known {
            connection.large_head |= TWICE;
            connection.sends_big = true;
        }
    }

    /// The form of the request that the connection probably sends next.
    #[inline]
    pub(super) fn expected_form(&self, token: usize, limits: &Limits) -> Option<Form> {
        let connection = &self.connections[token];
        if !connection.sends_big || connection.large_head & TWICE == 0 {
            return None;
        }
        let form = Form { head: usize::from(connection.large_head & !TWICE), len: connection.large_len as usize };
        let has_input = connection.unparsed || !connection.pending.is_empty() || connection.parser.is_partial();
        let has_room = form.head + form.len + READ_BEHIND_BIG <= self.shared.len() - self.shared_used;
        let is_plain = limits.authenticated && !limits.replicated && !connection.socket.is_tls();
        (is_plain && !has_input && has_room).then_some(form)
    }

    /// Reads a request of this form: what precedes its large argument, and a little of what follows it, into the shared
    /// buffer, and the argument into a buffer of its own.
    #[cold]
    pub(super) fn read_expected(&mut self, token: usize, form: Form, limits: &Limits) -> Read {
        let (start, Form { head, len }) = (self.shared_used, form);
        let mut value = std::mem::take(&mut self.spare_value);
        if value.capacity() != len {
            value = Vec::with_capacity(len);
        }
        let (before, behind) = self.shared[start..start + head + READ_BEHIND_BIG].split_at_mut(head);
        let connection = &mut self.connections[token];
        let read = connection.socket.read_in_three(before, &mut value.spare_capacity_mut()[..len], behind);
        let read = outcome(&connection.socket, read, head + len + READ_BEHIND_BIG);
        let n = match read {
            Read::More(n) | Read::Drained(n) => n,
            Read::Ended => 0,
        };
        // SAFETY: the socket wrote to the value after what precedes it, and before what follows it.
        unsafe { value.set_len(n.saturating_sub(head).min(len)) };
        let (value_start, end) = (start + head, start + n - value.len());
        let first_span = self.batch.spans.len();
        let (spans, place) = (&mut self.batch.spans, self.batch.big.len());
        if value.is_empty() || !parse_apart(&self.shared[start..value_start], len, place, spans, limits) {
            return self.parse_unexpected(token, (start, value_start, end), value, read, limits);
        }
        let mut behind = value_start;
        if value.len() == len && self.shared[behind..end].starts_with(b"\r\n") {
            self.add_apart(token, (start, value_start), first_span, value, limits);
            behind += 2;
        } else {
            self.batch.spans.truncate(first_span);
            self.parse_shared(token, start, value_start, limits);
            self.connections[token].parser.begin_with(value);
        }
        let must_wait = behind < end && self.parse_shared(token, behind, end, limits);
        if must_wait { Read::More(n) } else { read }
    }

    /// Parses input that does not begin with a request of the expected form. It is in the shared buffer but for the
    /// part from its second position on, which was read into `value`.
    fn parse_unexpected(
        &mut self,
        token: usize,
        (start, value_start, end): (usize, usize, usize),
        mut value: Vec<u8>,
        read: Read,
        limits: &Limits,
    ) -> Read {
        let value_end = value_start + value.len();
        if !value.is_empty() {
            self.connections[token].large_head = 0;
            self.shared.copy_within(value_start..end, value_end);
            self.shared[value_start..value_end].copy_from_slice(&value);
            value.clear();
        }
        self.spare_value = value;
        let (Read::More(n @ 1..) | Read::Drained(n @ 1..)) = read else { return read };
        if self.parse_shared(token, start, start + n, limits) { Read::More(n) } else { read }
    }

    /// Reads the rest of a large argument of which `n` bytes of the request have arrived.
    #[cold]
    pub(super) fn read_behind(&mut self, n: usize, token: usize, limits: &Limits) -> Read {
        if !self.connections[token].parser.is_receiving() {
            return Read::More(n);
        }
        match self.read_big(token, limits) {
            // The next read returns the same.
            Read::Ended => Read::More(n),
            Read::More(more) => Read::More(n + more),
            Read::Drained(more) => Read::Drained(n + more),
        }
    }

    /// Reads directly into the buffers of large arguments, and a little of what follows each of them into the shared
    /// buffer. A client that sends such arguments one after the other needs one call and hardly a copy for each.
    pub(super) fn read_big(&mut self, token: usize, limits: &Limits) -> Read {
        let mut total = 0;
        loop {
            let connection = &mut self.connections[token];
            if connection.parser.must_grow() {
                // So that what was read need not be moved repeatedly.
                connection.parser.expect(connection.socket.available());
            }
            let (spare, start) = (connection.parser.spare(), self.shared_used);
            let room = spare.len();
            let read = connection.socket.read_scattered(spare, &mut self.shared[start..start + READ_BEHIND_BIG]);
            let (n, more) = match outcome(&connection.socket, read, room + READ_BEHIND_BIG) {
                Read::Ended if total == 0 => return Read::Ended,
                // The next read returns the same.
                Read::Ended => return Read::More(total),
                Read::More(n) => (n, true),
                Read::Drained(n) => (n, false),
            };
            total += n;
            // SAFETY: the socket wrote to the buffer that `spare` returned before it wrote to the shared buffer.
            unsafe { connection.parser.filled(n.min(room)) };
            // A request that exceeds the limit stays unparsed: `after_read` detects it and closes the connection.
            let is_whole = n > room && !limits.query_buffer_exceeded(connection.buffered_input());
            if is_whole {
                self.parse_shared(token, start, start + n - room, limits);
            }
            let connection = &self.connections[token];
            let is_fair_share = is_whole && !self.ready.is_empty() && total >= BIG_READS;
            let is_full = self.is_batch_full() || total >= BIG_READ || is_fair_share;
            if !more || is_full || connection.unparsed || !connection.parser.is_receiving() {
                return if more || connection.unparsed { Read::More(total) } else { Read::Drained(total) };
            }
        }
    }
}
