//! One connection: its socket, input not yet executed, and output not yet written.
//!
//! An idle connection holds no buffers: input is read into the worker's buffer, and replies are written from the
//! worker's buffer. Only data that cannot be finished in a turn is stored here.

use super::forwarding::Forwarded;
use super::sending::{Segment, write_segments};
use kvick_config::shapes::OutputLimit;
use kvick_core::runtime_config::RuntimeConfig;
use kvick_engine::session::Client;
use kvick_net::page_pipe::PagePipe;
use kvick_net::socket::Socket;
use kvick_resp::{OwnedArgs, Parser, ProtocolError, SharedBytes};
use kvick_store::Waiter;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Size of an output block in bytes; larger replies take larger blocks.
const BLOCK: usize = 16 * 1024;
/// Size of an output block behind a shared string, in bytes.
const BLOCK_BEHIND_SHARED: usize = 64;
/// Input buffers larger than this are freed once their input is consumed.
const INPUT_KEPT_MAX: usize = 64 * 1024;
/// An upper bound of what a TCP packet carries, in bytes.
const PACKET_MAX: usize = 64 * 1024;

/// A connection of a worker.
pub struct Connection {
    /// Its socket.
    pub socket: Socket,
    /// State that commands read and change.
    pub client: Client,
    /// Parses its requests.
    pub parser: Parser,
    /// Input from the start of an incomplete request on, or input that may not be executed yet.
    pub pending: Vec<u8>,
    /// Parsed requests that wait because the connection was stopped or used its share of the turn.
    pub deferred: VecDeque<Deferred>,
    /// Output not yet taken by the socket.
    pub output: Output,
    /// When the output exceeded the soft limit.
    pub above_soft_since: Option<Instant>,
    /// The worker's count of writes when this connection last received a message.
    pub reached_in: u64,
    /// Index of the run that it then received.
    pub last_run: u32,
    /// The length of the last argument of a request, if that was large. See [`super::large_arguments`].
    pub large_len: u32,
    /// The number of bytes before that argument. The highest bit is set after two requests of the same form.
    pub large_head: u8,
    /// Number up to which it has received messages.
    pub heard_to: u64,
    /// True while its client or its input is moved out: it is neither read nor closed.
    pub away: bool,
    /// True while it is in the queue of connections to read.
    pub queued: bool,
    /// Its blocked request, if any.
    pub waiter: Option<Arc<Waiter>>,
    /// True while its requests may not be executed: it is blocked, paused, or in the TLS handshake.
    pub stopped: bool,
    /// True while `pending` holds complete requests.
    pub unparsed: bool,
    /// True if the input last read ended within a large argument, or had one of the expected form.
    pub sends_big: bool,
    /// True after the poll reported that the peer sends no more, which it reports only once.
    pub read_closed: bool,
    /// True when the socket may take more output than was written.
    pub unwritten: bool,
    /// Number of reply runs awaiting fsync.
    pub awaiting_fsync: usize,
    /// Its requests at other nodes, if it has sent any there.
    pub forwarded: Option<Box<Forwarded>>,
    /// Its number of commands when the load of connections was last compared.
    pub counted: u64,
}

/// A deferred request.
pub enum Deferred {
    /// Its arguments.
    Request(OwnedArgs),
    /// It violates the protocol.
    Broken(ProtocolError),
}

impl Deferred {
    /// Memory that it uses, in bytes.
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
            large_len: 0,
            large_head: 0,
            heard_to: 0,
            away: false,
            queued: false,
            waiter: None,
            stopped,
            unparsed: false,
            sends_big: false,
            read_closed: false,
            unwritten: false,
            awaiting_fsync: 0,
            forwarded: None,
            counted: 0,
        }
    }

    /// The limit on its pending output.
    pub fn output_limit(&self, runtime_config: &RuntimeConfig) -> OutputLimit {
        let limits = &runtime_config.output_limits;
        match self.client.subscriptions.is_some() {
            _ if self.client.feed.is_some() => limits.replica,
            true => limits.pubsub,
            false => limits.normal,
        }
    }

    /// Bytes of pending output.
    pub fn waiting(&self) -> u64 {
        self.output.len() as u64 + self.client.feed.as_ref().map_or(0, |feed| feed.lag())
    }

    /// Whether it may be closed for being idle. Subscribers, monitors and blocked clients are exempt.
    pub fn may_time_out(&self) -> bool {
        (!self.stopped || self.socket.is_handshaking())
            && self.client.subscriptions.is_none()
            && self.client.feed.is_none()
            && !self.client.is_monitor()
    }

    /// Makes room behind buffered input: at least half of `size` bytes, in a buffer of at least `size` bytes.
    pub fn reserve_input(input: &mut Vec<u8>, size: usize) {
        if input.capacity() - input.len() < size / 2 {
            input.reserve(size.saturating_sub(input.len()).max(size / 2));
        }
    }

    /// Keeps an input buffer for reuse unless it is large.
    pub fn keep_input(&mut self, mut input: Vec<u8>, parsed: usize) {
        input.drain(..parsed);
        if !input.is_empty() || input.capacity() <= INPUT_KEPT_MAX {
            self.pending = input;
        }
        self.publish_input();
    }

    /// Frees input buffer memory that holds no input.
    pub fn shrink_input(&mut self) {
        if self.pending.capacity() > self.pending.len() {
            self.pending.shrink_to_fit();
            self.publish_input();
        }
    }

    /// Publishes the length and memory of buffered input.
    pub fn publish_input(&self) {
        let info = &self.client.info;
        let deferred = self.deferred_memory();
        info.input.store(self.pending.len() + self.parser.received() + deferred, Ordering::Relaxed);
        info.input_memory.store(self.pending.capacity() + self.parser.buffered() + deferred, Ordering::Relaxed);
    }

    /// Publishes the length and memory of pending output.
    pub fn publish_output(&self) {
        let (info, held) = (&self.client.info, self.socket.pending_output());
        info.output.store(self.output.len() + held, Ordering::Relaxed);
        info.output_blocks.store(self.output.blocks() + usize::from(held > 0), Ordering::Relaxed);
        info.output_memory.store(self.output.memory() + held, Ordering::Relaxed);
    }

    /// True when all output has been written.
    pub fn has_written_all(&self) -> bool {
        self.output.is_empty() && self.awaiting_fsync == 0 && self.socket.pending_output() == 0 && !self.awaits_others()
    }

    /// Whether other nodes have yet to answer some of its requests.
    #[inline]
    pub fn awaits_others(&self) -> bool {
        self.client.forwarding.as_ref().is_some_and(|elsewhere| elsewhere.outstanding)
    }

    /// Whether it is stopped only until other nodes have answered, or take more requests: it is not closed when its
    /// peer has sent the last request.
    pub fn is_held_back(&self) -> bool {
        self.forwarded.as_ref().is_some_and(|forwarded| forwarded.is_held_back())
    }

    /// Bytes of input not yet executed, without spare capacity.
    pub fn buffered_input(&self) -> usize {
        self.pending.len() + self.parser.buffered() + self.deferred_memory()
    }

    /// Whether the rest of a request is missing, and so short that its sender may wait for an acknowledgement.
    pub fn awaits_short_rest(&self) -> bool {
        let is_partial = !self.pending.is_empty() || self.parser.is_partial() || self.socket.ends_within_record();
        is_partial && !self.unparsed && self.parser.missing() < PACKET_MAX
    }

    fn deferred_memory(&self) -> usize {
        self.deferred.iter().map(Deferred::memory).sum()
    }
}

/// Pending output.
#[derive(Default)]
pub struct Output {
    blocks: VecDeque<Block>,
    /// Bytes of the first block that are already written.
    written: usize,
    /// Pending bytes.
    len: usize,
    /// Bytes allocated for blocks. A shared string counts as if it were copied, as in Valkey.
    allocated: usize,
}

/// A block of pending output.
enum Block {
    Bytes(Vec<u8>),
    Shared(SharedBytes),
}

impl Block {
    fn bytes(&self) -> &[u8] {
        match self {
            Block::Bytes(bytes) => bytes,
            Block::Shared(bytes) => bytes,
        }
    }

    fn allocated(&self) -> usize {
        match self {
            Block::Bytes(bytes) => bytes.capacity(),
            Block::Shared(bytes) => bytes.len(),
        }
    }
}

impl Output {
    /// Pending bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no output is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pending blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes allocated.
    pub fn memory(&self) -> usize {
        self.allocated + self.blocks.capacity() * size_of::<Block>()
    }

    /// Appends output.
    pub fn push(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        if bytes.is_empty() {
            return;
        }
        if let Some(Block::Bytes(last)) = self.blocks.back_mut()
            && last.len() + bytes.len() <= last.capacity()
        {
            return last.extend_from_slice(bytes);
        }
        // Between shared strings there is little else.
        let size = if let Some(Block::Shared(_)) = self.blocks.back() { BLOCK_BEHIND_SHARED } else { BLOCK };
        let mut block = Vec::with_capacity(bytes.len().max(size));
        block.extend_from_slice(bytes);
        self.push_block(Block::Bytes(block));
    }

    /// Appends a shared string whose first `written` bytes are already sent; these can be more than none only if no
    /// output is pending.
    pub fn push_shared(&mut self, bytes: SharedBytes, written: usize) {
        debug_assert!(written == 0 || self.is_empty());
        self.len += bytes.len() - written;
        if written > 0 {
            self.written = written;
        }
        self.push_block(Block::Shared(bytes));
    }

    fn push_block(&mut self, block: Block) {
        self.allocated += block.allocated();
        self.blocks.push_back(block);
    }

    /// Takes a block whose first `written` bytes are already sent; no output may be pending.
    pub fn adopt(&mut self, block: Vec<u8>, written: usize) {
        debug_assert!(self.is_empty() && written < block.len());
        self.len = block.len() - written;
        self.written = written;
        self.push_block(Block::Bytes(block));
    }

    /// Pending output in order.
    fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let mut written = self.written;
        self.blocks.iter().map(move |block| {
            let segment = match block {
                Block::Bytes(bytes) => Segment::Bytes(bytes),
                Block::Shared(bytes) => Segment::Shared(bytes, 0),
            };
            segment.skip(std::mem::take(&mut written))
        })
    }

    /// Writes as much as the socket takes, up to `max` bytes. Returns the bytes written.
    pub fn flush(&mut self, socket: &mut Socket, pipe: &mut PagePipe, max: usize) -> io::Result<usize> {
        let mut total = 0;
        while !self.is_empty() && total < max {
            match write_segments(socket, pipe, self.segments(), max - total) {
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
            let left = first.bytes().len() - self.written;
            if n < left {
                self.written += n;
                return;
            }
            n -= left;
            self.written = 0;
            self.allocated -= first.allocated();
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
        let mut input = b"GET".to_vec();
        Connection::reserve_input(&mut input, 1000);
        assert_eq!(input.capacity(), 1000);
        connection.keep_input(input, 3);
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
        // The first string was sent in part.
        output.push_shared([&[7; 1_000], &bytes[..100_000]].concat().into(), 1_000);
        for (number, chunk) in bytes[100_000..].chunks(7_001).enumerate() {
            if number % 3 == 0 { output.push_shared(chunk.to_vec().into(), 0) } else { output.push(chunk) }
        }
        assert_eq!(output.len(), bytes.len());
        let (mut socket, mut got, mut buffer) = (Socket::Unix(ours), Vec::new(), vec![0; 65536]);
        while got.len() < bytes.len() {
            let waiting = output.len();
            let written = output.flush(&mut socket, &mut PagePipe::default(), 100_000).expect("open");
            assert_eq!(output.len(), waiting - written);
            while let Ok(n) = theirs.read(&mut buffer) {
                got.extend_from_slice(&buffer[..n]);
            }
        }
        assert!(got == bytes && output.is_empty() && output.blocks() == 0 && output.allocated == 0);
    }
}
