//! One link: received bytes that do not form a complete message yet, and the queue of messages to be sent.

use kvick_cluster::bus::{Frame, FrameError, split_frame};
use kvick_net::peer::PeerSocket;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Bytes per read.
const READ: usize = 64 * 1024;
/// Reads per turn and link, so that one peer does not delay the others.
const READS_PER_TURN: usize = 8;
/// Capacity that an idle link keeps for what it receives.
const RECEIVED_KEPT: usize = 16 * 1024;
/// Bytes that may wait to be sent, whatever the configuration: a peer that reads nothing must not fill the memory.
const QUEUE_BYTES_MAX: usize = 256 << 20;

/// See the module's documentation.
pub struct Link {
    pub socket: PeerSocket,
    /// Whether the connection, begun by this node, is still being made.
    pub is_connecting: bool,
    received: Vec<u8>,
    queue: VecDeque<Arc<[u8]>>,
    /// Bytes sent of the first message.
    sent: usize,
    queued_bytes: usize,
}

/// Why a link ends.
#[derive(Debug)]
pub enum LinkError {
    /// The peer has closed it.
    Closed,
    /// The socket failed.
    Io(io::Error),
    /// The peer sent a malformed message.
    Frame(FrameError),
    /// The queue exceeds its limit.
    QueueFull,
}

impl Link {
    /// A link over this socket.
    pub fn new(socket: PeerSocket, is_connecting: bool) -> Self {
        Link { socket, is_connecting, received: Vec::new(), queue: VecDeque::new(), sent: 0, queued_bytes: 0 }
    }

    /// Bytes that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Bytes of memory that its buffers take.
    pub fn memory(&self) -> usize {
        self.queued_bytes + self.received.capacity()
    }

    /// Reads what is available and passes each message to `handle`, which returns whether the link still exists.
    /// Returns whether more may be available.
    pub fn receive(&mut self, buffer: &mut Vec<u8>, mut handle: impl FnMut(&[u8]) -> bool) -> Result<bool, LinkError> {
        buffer.resize(READ, 0);
        for _ in 0..READS_PER_TURN {
            match self.socket.read(buffer) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(length) => self.take(&buffer[..length], &mut handle)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
        Ok(true)
    }

    /// Divides what has arrived into messages. The buffer grows with what arrives, not with what a message announces.
    fn take(&mut self, bytes: &[u8], handle: &mut impl FnMut(&[u8]) -> bool) -> Result<(), LinkError> {
        if self.received.is_empty() {
            let rest = split(bytes, handle)?;
            self.received.extend_from_slice(&bytes[bytes.len() - rest..]);
            return Ok(());
        }
        self.received.extend_from_slice(bytes);
        let rest = split(&self.received, handle)?;
        self.received.drain(..self.received.len() - rest);
        if rest == 0 {
            self.received.shrink_to(RECEIVED_KEPT);
        }
        Ok(())
    }

    /// Puts a message behind those that wait.
    pub fn push(&mut self, frame: Arc<[u8]>) -> Result<(), LinkError> {
        self.queued_bytes += frame.len();
        self.queue.push_back(frame);
        if self.queued_bytes > QUEUE_BYTES_MAX { Err(LinkError::QueueFull) } else { Ok(()) }
    }

    /// Sends queued messages until the queue is empty or the socket would block.
    pub fn send(&mut self) -> Result<(), LinkError> {
        self.socket.flush().map_err(LinkError::Io)?;
        while let Some(first) = self.queue.front() {
            match self.socket.write(&first[self.sent..]) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(written) => {
                    self.sent += written;
                    self.queued_bytes -= written;
                    if self.sent == first.len() {
                        self.queue.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
        Ok(())
    }
}

/// Passes each message to `handle`. Returns the number of bytes behind the last one.
fn split(mut rest: &[u8], handle: &mut impl FnMut(&[u8]) -> bool) -> Result<usize, LinkError> {
    while let Frame::Complete(frame) = split_frame(rest).map_err(LinkError::Frame)? {
        rest = &rest[frame.len()..];
        if !handle(frame) {
            return Err(LinkError::Closed);
        }
    }
    Ok(rest.len())
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkError::Closed => f.write_str("connection closed"),
            LinkError::Io(error) => error.fmt(f),
            LinkError::Frame(error) => error.fmt(f),
            LinkError::QueueFull => f.write_str("output buffer limit exceeded"),
        }
    }
}
