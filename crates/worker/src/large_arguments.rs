//! Reads large arguments directly into the buffers that the store keeps.
//!
//! A buffer grows with what has arrived, in this process or in the socket, and never with what a client announces.

use super::Worker;
use super::input::{Read, outcome};
use kvick_resp::Limits;

/// Maximum bytes read behind a large argument, and at once from a connection that sends such arguments.
pub(super) const READ_BEHIND_BIG: usize = 1024;
/// Maximum bytes per turn read directly into large arguments.
const BIG_READ: usize = 1024 * 1024;

impl Worker {
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
            let is_full = self.is_batch_full() || total >= BIG_READ || connection.unparsed;
            if !more || is_full || !connection.parser.is_receiving() {
                return if more || connection.unparsed { Read::More(total) } else { Read::Drained(total) };
            }
        }
    }
}
