//! One connection: its socket, the input that is not yet executed, and the output that is not yet written.
//!
//! While nothing is under way a connection holds no buffers: input is read into the worker's, and replies are written
//! from the worker's. Only what cannot be finished in a turn is kept here.

use crate::session::Client;
use kvick_config::shapes::OutputLimit;
use kvick_core::runtime_config::RuntimeConfig;
use kvick_net::socket::Socket;
use kvick_resp::{OwnedArgs, Parser, ProtocolError};
use kvick_store::Waiter;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Output is kept in blocks of this size, or larger ones for larger replies.
const BLOCK: usize = 16 * 1024;
/// Blocks handed to the kernel at once.
const BLOCKS_PER_WRITE: usize = 64;
/// A buffer of more bytes than these is not kept when the input in it is done with.
const INPUT_KEPT_MAX: usize = 64 * 1024;

/// A connection of a worker.
pub struct Connection {
    /// Its socket.
    pub socket: Socket,
    /// What commands see and change.
    pub client: Client,
    /// Finds its requests.
    pub parser: Parser,
    /// Input from the beginning of an incomplete request on, or that may not be executed yet.
    pub pending: Vec<u8>,
    /// Requests that were parsed but have to wait: the connection was stopped, or had its share of the turn.
    pub deferred: VecDeque<Deferred>,
    /// Output that the socket did not take yet.
    pub output: Output,
    /// Since when the output has been above the soft limit.
    pub above_soft_since: Option<Instant>,
    /// The worker's count of writes when it last got a message.
    pub reached_in: u64,
    /// The place of the run that it got then among all runs.
    pub last_run: usize,
    /// Messages with lower numbers that are for it, it has got.
    pub heard_to: u64,
    /// True while its client or its input is elsewhere: it is neither read nor closed.
    pub away: bool,
    /// True while it waits its turn to be read.
    pub queued: bool,
    /// Its request that waits for a key, if any.
    pub waiter: Option<Arc<Waiter>>,
    /// True while its requests may not be executed: it waits for something, is paused, or has yet to shake hands.
    pub stopped: bool,
    /// True while `pending` holds requests that are whole.
    pub unparsed: bool,
    /// True when the poll told that the other end sends no more, which is not told again.
    pub read_closed: bool,
    /// True when the socket may take more than was written.
    pub unwritten: bool,
    /// Stretches of replies that wait for the disk.
    pub awaiting_fsync: usize,
}

/// A request that waits.
pub enum Deferred {
    /// Its arguments.
    Request(OwnedArgs),
    /// It breaks the protocol.
    Broken(ProtocolError),
}

impl Deferred {
    /// Bytes that it takes.
    fn memory(&self) -> usize {
        match self {
            Deferred::Request(args) => args.memory(),
            Deferred::Broken(_) => 0,
        }
    }
}

impl Connection {
    /// A new connection.
    pub fn new(socket: Socket, client: Client) -> Self {
        let stopped = socket.is_handshaking();
        Connection {
            socket,
            client,
            parser: Parser::new(),
            pending: Vec::new(),
            deferred: VecDeque::new(),
            output: Output::default(),
            above_soft_since: None,
            reached_in: u64::MAX,
            last_run: 0,
            heard_to: 0,
            away: false,
            queued: false,
            waiter: None,
            stopped,
            unparsed: false,
            read_closed: false,
            unwritten: false,
            awaiting_fsync: 0,
        }
    }

    /// How much output may wait for it.
    pub fn output_limit(&self, runtime_config: &RuntimeConfig) -> OutputLimit {
        let limits = &runtime_config.output_limits;
        match self.client.subscriptions.is_some() {
            _ if self.client.feed.is_some() => limits.replica,
            true => limits.pubsub,
            false => limits.normal,
        }
    }

    /// Bytes that wait to be sent to it.
    pub fn waiting(&self) -> u64 {
        self.output.len() as u64 + self.client.feed.as_ref().map_or(0, |feed| feed.lag())
    }

    /// Whether idleness is a reason to close it. Subscribers, monitors and those who wait are silent by nature.
    pub fn may_time_out(&self) -> bool {
        (!self.stopped || self.socket.is_handshaking())
            && self.client.subscriptions.is_none()
            && self.client.feed.is_none()
            && !self.client.is_monitor()
    }

    /// Makes room for input behind what is held: half of `size` bytes at least, in a buffer of at least `size` bytes.
    pub fn reserve_input(held: &mut Vec<u8>, size: usize) {
        if held.capacity() - held.len() < size / 2 {
            held.reserve(size.saturating_sub(held.len()).max(size / 2));
        }
    }

    /// Keeps a buffer that input was held in for the next time that some must be, unless it is large.
    pub fn keep_input(&mut self, mut held: Vec<u8>, parsed: usize) {
        held.drain(..parsed);
        if !held.is_empty() || held.capacity() <= INPUT_KEPT_MAX {
            self.pending = held;
        }
        self.publish_input();
    }

    /// Gives back the memory that no input is held in.
    pub fn shrink_input(&mut self) {
        if self.pending.capacity() > self.pending.len() {
            self.pending.shrink_to_fit();
            self.publish_input();
        }
    }

    /// Lets others know how much input is held, and in how much memory.
    pub fn publish_input(&self) {
        let info = &self.client.info;
        let deferred = self.deferred_memory();
        info.input.store(self.pending.len() + self.parser.received() + deferred, Ordering::Relaxed);
        info.input_memory.store(self.pending.capacity() + self.parser.buffered() + deferred, Ordering::Relaxed);
    }

    /// Lets others know how much output waits, and in how much memory.
    pub fn publish_output(&self) {
        let (info, held) = (&self.client.info, self.socket.held_output());
        info.output.store(self.output.len() + held, Ordering::Relaxed);
        info.output_blocks.store(self.output.blocks() + usize::from(held > 0), Ordering::Relaxed);
        info.output_memory.store(self.output.memory() + held, Ordering::Relaxed);
    }

    /// True when all that was written has left.
    pub fn has_written_all(&self) -> bool {
        self.output.is_empty() && self.awaiting_fsync == 0 && self.socket.held_output() == 0
    }

    /// Bytes that input which is not executed takes, spare room excluded.
    pub fn buffered_input(&self) -> usize {
        self.pending.len() + self.parser.buffered() + self.deferred_memory()
    }

    fn deferred_memory(&self) -> usize {
        self.deferred.iter().map(Deferred::memory).sum()
    }
}

/// Output waiting to be written.
#[derive(Default)]
pub struct Output {
    blocks: VecDeque<Vec<u8>>,
    /// Bytes of the first block that are written already.
    written: usize,
    /// Bytes waiting.
    len: usize,
    /// Bytes allocated for blocks.
    allocated: usize,
}

impl Output {
    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Blocks waiting.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes allocated.
    pub fn memory(&self) -> usize {
        self.allocated + self.blocks.capacity() * size_of::<Vec<u8>>()
    }

    /// Adds output behind what waits.
    pub fn push(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        if bytes.is_empty() {
            return;
        }
        if let Some(last) = self.blocks.back_mut()
            && last.len() + bytes.len() <= last.capacity()
        {
            return last.extend_from_slice(bytes);
        }
        let mut block = Vec::with_capacity(bytes.len().max(BLOCK));
        block.extend_from_slice(bytes);
        self.allocated += block.capacity();
        self.blocks.push_back(block);
    }

    /// Makes output of a block whose first `written` bytes are no output; nothing may be waiting.
    pub fn adopt(&mut self, block: Vec<u8>, written: usize) {
        debug_assert!(self.is_empty() && written < block.len());
        self.len = block.len() - written;
        self.written = written;
        self.allocated = block.capacity();
        self.blocks.push_back(block);
    }

    /// Writes as much as the socket takes, but no more than `max` bytes; the bytes written.
    pub fn flush(&mut self, socket: &mut Socket, max: usize) -> io::Result<usize> {
        let mut total = 0;
        while !self.is_empty() && total < max {
            let mut slices = [IoSlice::new(&[]); BLOCKS_PER_WRITE];
            let (mut blocks, mut left) = (0, max - total);
            for (slice, block) in slices.iter_mut().zip(&self.blocks) {
                let block = &block[if blocks == 0 { self.written } else { 0 }..];
                *slice = IoSlice::new(&block[..block.len().min(left)]);
                left -= slice.len();
                blocks += 1;
                if left == 0 {
                    break;
                }
            }
            match socket.write_vectored(&slices[..blocks]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    total += n;
                    self.advance(n);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    fn advance(&mut self, mut n: usize) {
        self.len -= n;
        while let Some(first) = self.blocks.front() {
            let left = first.len() - self.written;
            if n < left {
                self.written += n;
                return;
            }
            n -= left;
            self.written = 0;
            self.allocated -= first.capacity();
            self.blocks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::net::UnixStream;
    use std::io::Read;

    #[test]
    fn an_input_buffer_stays_until_its_connection_is_idle_but_not_a_large_one() {
        let (socket, _other) = UnixStream::pair().expect("pair");
        let mut connection = Connection::new(Socket::Unix(socket), Client::detached());
        let memory = |connection: &Connection| {
            let info = &connection.client.info;
            (info.input.load(Ordering::Relaxed), info.input_memory.load(Ordering::Relaxed))
        };
        let mut held = b"GET".to_vec();
        Connection::reserve_input(&mut held, 1000);
        assert_eq!(held.capacity(), 1000);
        connection.keep_input(held, 3);
        assert_eq!(memory(&connection), (0, 1000));
        connection.shrink_input();
        assert_eq!(memory(&connection), (0, 0));
        for (parsed, kept) in [(INPUT_KEPT_MAX + 1, 0), (INPUT_KEPT_MAX, INPUT_KEPT_MAX + 1)] {
            connection.keep_input(vec![0; INPUT_KEPT_MAX + 1], parsed);
            assert_eq!(memory(&connection), (INPUT_KEPT_MAX + 1 - parsed, kept));
        }
        connection.shrink_input();
        assert_eq!(memory(&connection), (1, 1));
    }

    #[test]
    fn output_keeps_its_order_through_partial_writes() {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let mut output = Output::default();
        bytes.chunks(7_001).for_each(|chunk| output.push(chunk));
        let (mut socket, mut got, mut buffer) = (Socket::Unix(ours), Vec::new(), vec![0; 65536]);
        while got.len() < bytes.len() {
            let waiting = output.len();
            let written = output.flush(&mut socket, 100_000).expect("open");
            assert_eq!(output.len(), waiting - written);
            while let Ok(n) = theirs.read(&mut buffer) {
                got.extend_from_slice(&buffer[..n]);
            }
        }
        assert!(got == bytes && output.is_empty() && output.blocks() == 0);
    }
}
