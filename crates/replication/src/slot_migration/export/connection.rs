//! The connection of an export to its target: non-blocking, with a buffer in each direction.

use crate::ReplicatedCore;
use kvick_config::Refusal;
use kvick_config::tables::network::BIND_SOURCE_ADDR;
use kvick_config::tables::replication::REPL_TIMEOUT;
use kvick_config::tables::tls::TLS_REPLICATION;
use kvick_net::tls::outgoing::Channel;
use kvick_resp::{Args, Limits, Parsed, Parser};
use kvick_runtime::dial::{self, Route};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of a read.
const READ: usize = 16 * 1024;

/// The target sends short messages only.
const INPUT_MAX: usize = 64 * 1024;

/// Unsent bytes above which nothing is taken from the write log.
const ROOM: usize = 256 * 1024;

/// Why a connection is lost.
#[derive(Debug)]
pub(super) struct Lost(pub(super) String);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn lost(doing: &str, error: &io::Error) -> Lost {
    Lost(format!("{doing} the target: {error}"))
}

pub(super) struct Connection {
    core: &'static ReplicatedCore,
    /// Memory of `output` that is counted as not to be evicted for.
    counted: usize,
    channel: Channel,
    /// Becomes readable when the driver has an order.
    woken: UnixStream,
    /// Bytes to send; those before `sent` were.
    output: Vec<u8>,
    sent: usize,
    /// When the socket took bytes last.
    progressed_at: Instant,
    /// The socket took fewer bytes than it was given.
    is_full: bool,
    input: Vec<u8>,
}

impl Connection {
    /// Connects to the target.
    pub(super) fn open(
        core: &'static ReplicatedCore,
        host: &str,
        port: u16,
        woken: UnixStream,
    ) -> Result<Connection, String> {
        Connection::try_open(core, host, port, woken).map_err(|error| describe(&error))
    }

    fn try_open(core: &'static ReplicatedCore, host: &str, port: u16, woken: UnixStream) -> io::Result<Connection> {
        let values = core.config.values();
        let timeout = Duration::from_secs(values.read(REPL_TIMEOUT).into());
        let source = values.read(BIND_SOURCE_ADDR).map(|source| String::from_utf8_lossy(&source).into_owned());
        let address = (host, port).to_socket_addrs()?.next().ok_or(ErrorKind::NotFound)?;
        let stream = dial::connect(address, Route { source: source.as_deref(), ..Route::default() }, timeout)?;
        stream.set_nodelay(true)?;
        let channel = Connection::secure(core, stream, host, timeout)?;
        channel.socket().set_nonblocking(true)?;
        Ok(Connection {
            core,
            counted: 0,
            channel,
            woken,
            output: Vec::new(),
            sent: 0,
            progressed_at: Instant::now(),
            is_full: false,
            input: Vec::new(),
        })
    }

    fn secure(core: &ReplicatedCore, stream: TcpStream, host: &str, timeout: Duration) -> io::Result<Channel> {
        if !core.config.read(TLS_REPLICATION) {
            return Ok(Channel::Plain(stream));
        }
        let materials = core.tls.materials().ok_or(io::Error::other("TLS is not set up"))?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Channel::encrypted(stream, host, &materials)
    }

    /// The target's address, this node's, and the file descriptor.
    pub(super) fn endpoints(&self) -> (String, String, i32) {
        let socket = self.channel.socket();
        let text =
            |address: io::Result<std::net::SocketAddr>| address.map_or_else(|_| String::new(), |it| it.to_string());
        (text(socket.peer_addr()), text(socket.local_addr()), socket.as_raw_fd())
    }

    /// Appends bytes to be sent.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Memory of the buffers, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.output.capacity() + self.input.capacity()
    }

    /// Bytes that were not given to the socket.
    pub(super) fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// How long the target has taken nothing although bytes wait.
    pub(super) fn stalled_for(&self) -> Duration {
        if self.unsent() == 0 { Duration::ZERO } else { self.progressed_at.elapsed() }
    }

    /// Whether more may be taken from the write log.
    pub(super) fn has_room(&self) -> bool {
        self.unsent() < ROOM
    }

    /// Sends as much as the socket takes.
    pub(super) fn write(&mut self) -> Result<(), Lost> {
        self.is_full = false;
        while self.sent < self.output.len() {
            match self.channel.write(&self.output[self.sent..]) {
                Ok(0) => return Err(Lost("the target takes no more bytes".into())),
                Ok(written) => {
                    self.sent += written;
                    self.core.replication.counts.slot_bytes_out.fetch_add(written as u64, Ordering::Relaxed);
                    self.progressed_at = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_full = true;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(lost("Writing to", &error)),
            }
        }
        match self.channel.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_full = true,
            Err(error) => return Err(lost("Writing to", &error)),
            Ok(()) => {}
        }
        self.shrink();
        self.count(self.output.capacity());
        Ok(())
    }

    fn shrink(&mut self) {
        if self.sent == self.output.len() {
            self.output.clear();
            self.output.shrink_to(2 * ROOM);
            self.sent = 0;
        } else if self.sent > ROOM {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Eviction must not count what waits for the target: evicting keys would only add to it.
    fn count(&mut self, capacity: usize) {
        self.core.snapshot_bytes.fetch_add(capacity, Ordering::Relaxed);
        self.core.snapshot_bytes.fetch_sub(self.counted, Ordering::Relaxed);
        self.counted = capacity;
    }

    /// Reads what has arrived.
    pub(super) fn read(&mut self) -> Result<(), Lost> {
        let mut buffer = [0; READ];
        while self.input.len() <= INPUT_MAX {
            match self.channel.read(&mut buffer) {
                Ok(0) => return Err(Lost("the target has closed the connection".into())),
                Ok(read) => self.input.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(lost("Reading from", &error)),
            }
        }
        Ok(())
    }

    /// The next line that has arrived, without its end.
    pub(super) fn next_line(&mut self) -> Result<Option<String>, Lost> {
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else { return self.incomplete() };
        let line = self.input[..end].strip_suffix(b"\r").unwrap_or(&self.input[..end]);
        let line = String::from_utf8_lossy(line).into_owned();
        self.input.drain(..=end);
        Ok(Some(line))
    }

    /// The words of the next request that has arrived. A reply counts as a request of one word.
    pub(super) fn next_request(&mut self) -> Result<Option<Vec<Vec<u8>>>, Lost> {
        if self.input.first().is_some_and(|byte| *byte != b'*') {
            return Ok(self.next_line()?.map(|line| vec![line.into_bytes()]));
        }
        let (mut at, mut spans, mut big) = (0, Vec::new(), Vec::new());
        match Parser::new().parse(&self.input, &mut at, &mut spans, &mut big, &Limits::default()) {
            Parsed::Request => {
                let words = Args::new(&self.input, &spans, &big).iter().map(<[u8]>::to_vec).collect();
                self.input.drain(..at);
                Ok(Some(words))
            }
            Parsed::Incomplete => self.incomplete(),
            Parsed::Big { .. } | Parsed::Error(_) => Err(Lost("the target does not send requests".into())),
        }
    }

    fn incomplete<T>(&self) -> Result<Option<T>, Lost> {
        match self.input.len() > INPUT_MAX {
            true => Err(Lost("Response to establish job is larger than buffer limit".into())),
            false => Ok(None),
        }
    }

    /// Waits until the socket is ready, an order has come, or the time is over.
    pub(super) fn wait(&mut self, limit: Duration) {
        if limit.is_zero() {
            return;
        }
        let write = if self.is_full { PollFlags::OUT } else { PollFlags::empty() };
        let mut ready =
            [PollFd::new(self.channel.socket(), PollFlags::IN | write), PollFd::new(&self.woken, PollFlags::IN)];
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        // An interrupted wait is a short one.
        let _ = rustix::event::poll(&mut ready, Some(&timeout));
        let mut drained = [0; 64];
        while matches!((&self.woken).read(&mut drained), Ok(read) if read == drained.len()) {}
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.count(0);
    }
}

/// An error as other servers word it.
fn describe(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => Refusal::from(io::Error::from_raw_os_error(code)).to_string(),
        None => error.to_string(),
    }
}
