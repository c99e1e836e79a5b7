//! A blocking connection to a primary, with a timeout for silence.

use crate::ReplicatedCore;
use kvick_config::tables::replication::REPL_TIMEOUT;
use kvick_net::tls::outgoing::Channel;
use kvick_runtime::clock;
use kvick_store::log::encode;
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes per read.
pub const READ_SIZE: usize = 256 * 1024;
/// How often a wait checks its timeout.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Why a link ended.
#[derive(Debug)]
pub enum LinkError {
    /// An I/O error: the action, and its cause.
    Io(&'static str, io::Error),
    /// The primary refused, or sent an invalid answer.
    Refused(String),
    /// The server has switched to another primary, or to none.
    Superseded,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Io(doing, error) => write!(f, "{doing}: {error}"),
            LinkError::Refused(reason) => f.write_str(reason),
            LinkError::Superseded => f.write_str("Another primary is followed"),
        }
    }
}

/// See the module's documentation.
pub struct PrimaryConnection {
    /// Shared with [`Keepalive`], which writes to it while a dump is loaded.
    channel: Arc<Mutex<Channel>>,
    /// Bytes read; those from `at` on are unused.
    buffer: Vec<u8>,
    at: usize,
    /// The server's core.
    pub core: &'static ReplicatedCore,
    /// The error message if a read times out.
    pub timeout_error: &'static str,
}

/// Periodically tells the primary that this server is alive: see [`PrimaryConnection::keepalive`].
pub struct Keepalive {
    channel: Arc<Mutex<Channel>>,
    last_sent: Instant,
}

impl Keepalive {
    /// The interval.
    const PERIOD: Duration = Duration::from_secs(1);

    /// Sends one if it is due.
    pub fn send_if_due(&mut self) {
        if self.last_sent.elapsed() >= Self::PERIOD {
            self.last_sent = Instant::now();
            // The next read detects a closed connection.
            let _ = self.channel.lock().write_all(b"\n");
        }
    }
}

impl PrimaryConnection {
    /// Wraps an established connection.
    pub fn new(core: &'static ReplicatedCore, channel: Channel, timeout_error: &'static str) -> PrimaryConnection {
        PrimaryConnection { core, channel: Arc::new(Mutex::new(channel)), buffer: Vec::new(), at: 0, timeout_error }
    }

    /// Sends a request.
    pub fn send(&mut self, words: &[&[u8]]) -> Result<(), LinkError> {
        let mut request = Vec::new();
        encode(&mut request, words.iter().copied());
        let mut channel = self.channel.lock();
        channel
            .write_all(&request)
            .and_then(|()| channel.flush())
            .map_err(|error| LinkError::Io("Sending command to primary in replication handshake", error))
    }

    /// The sender of keepalives for this connection.
    pub fn keepalive(&self) -> Keepalive {
        Keepalive { channel: self.channel.clone(), last_sent: Instant::now() }
    }

    /// Takes the unused bytes.
    pub fn take_unused(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.drain(..std::mem::take(&mut self.at));
        buffer
    }

    /// Puts bytes back: they are read next.
    pub fn unread(&mut self, bytes: Vec<u8>) {
        (self.buffer, self.at) = (bytes, 0);
    }

    /// Reads more bytes to the end of `buffer`, for at most `wait`. Returns 0 if none arrived.
    pub fn read_append(&mut self, buffer: &mut Vec<u8>, wait: Duration) -> Result<usize, LinkError> {
        let failed = |error| LinkError::Io("Reading from primary", error);
        let mut channel = self.channel.lock();
        channel.socket().set_read_timeout(Some(wait.max(Duration::from_millis(1)))).map_err(failed)?;
        let before = buffer.len();
        buffer.resize(before + READ_SIZE, 0);
        let read = channel.read(&mut buffer[before..]);
        buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(LinkError::Refused("Connection with primary lost.".into())),
            Ok(n) => {
                self.core.replication.upstream.last_io_ms.store(clock::unix_ms(), Ordering::Relaxed);
                self.core.replication.counts.bytes_in.fetch_add(n as u64, Ordering::Relaxed);
                Ok(n)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads until the buffer is not empty.
    fn fill(&mut self) -> Result<(), LinkError> {
        let mut buffer = self.take_unused();
        let began = Instant::now();
        let read = loop {
            // The setting may change meanwhile.
            let left = self.timeout().saturating_sub(began.elapsed());
            match self.read_append(&mut buffer, left.min(POLL_INTERVAL)) {
                Ok(0) if left > POLL_INTERVAL => {}
                read => break read,
            }
        };
        self.buffer = buffer;
        if read? == 0 { Err(LinkError::Refused(self.timeout_error.into())) } else { Ok(()) }
    }

    /// Waits until at least `count` bytes can be read without waiting.
    pub fn wait_for(&mut self, count: usize) -> Result<(), LinkError> {
        while self.buffer.len() - self.at < count {
            self.fill()?;
        }
        Ok(())
    }

    /// The connection, for its options and addresses.
    pub fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock()
    }

    /// A handle to the socket, so that other threads can interrupt it.
    pub fn socket(&self) -> Option<TcpStream> {
        self.channel.lock().socket().try_clone().ok()
    }

    /// How long the primary may be silent.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.core.config.read(REPL_TIMEOUT).into())
    }

    /// The next line, without its end.
    pub fn read_line(&mut self) -> Result<Vec<u8>, LinkError> {
        const LINE_MAX: usize = 64 * 1024;
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line = unread[..end].strip_suffix(b"\r").unwrap_or(&unread[..end]).to_vec();
                self.at += end + 1;
                return Ok(line);
            }
            if unread.len() > LINE_MAX {
                return Err(LinkError::Refused("The primary sends a line without an end".into()));
            }
            self.fill()?;
        }
    }

    /// The next line that is not empty: empty lines are keepalives.
    pub fn read_reply(&mut self) -> Result<Vec<u8>, LinkError> {
        loop {
            let line = self.read_line()?;
            if !line.is_empty() {
                return Ok(line);
            }
        }
    }

    /// The next bytes, at least one and at most `max`.
    pub fn read_some(&mut self, max: usize) -> Result<&[u8], LinkError> {
        if self.at == self.buffer.len() {
            self.fill()?;
        }
        let start = self.at;
        self.at = self.buffer.len().min(start + max);
        Ok(&self.buffer[start..self.at])
    }
}

/// A primary's answer, formatted for the log.
pub fn for_log(bytes: &[u8]) -> String {
    const LOG_LEN_MAX: usize = 256;
    String::from_utf8_lossy(&bytes[..bytes.len().min(LOG_LEN_MAX)]).into_owned()
}
