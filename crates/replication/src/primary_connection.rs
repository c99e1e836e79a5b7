//! A connection to a primary, as the thread that follows it uses it: blocking, with the time that may pass in silence.

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

/// Bytes read at once.
pub const READ: usize = 256 * 1024;
/// How often a wait looks whether it has become too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why a link ended.
#[derive(Debug)]
pub enum LinkError {
    /// The connection: what was being done, and why that failed.
    Io(&'static str, io::Error),
    /// The primary said something that makes no sense, or that it will not.
    Refused(String),
    /// There is another primary to follow, or none.
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
    /// Shared with what tells the primary, while a dump is loaded, that this server is there.
    channel: Arc<Mutex<Channel>>,
    /// What was read and not used, from `at` on.
    buffer: Vec<u8>,
    at: usize,
    /// The server that has it.
    pub core: &'static ReplicatedCore,
    /// What the log is told when it does not come.
    pub awaited: &'static str,
}

/// Tells the primary from time to time that this server is there: see [`PrimaryConnection::sign`].
pub struct SignOfLife {
    channel: Arc<Mutex<Channel>>,
    told: Instant,
}

impl SignOfLife {
    /// How often it is given.
    const EVERY: Duration = Duration::from_secs(1);

    /// Gives it if it is due.
    pub fn give(&mut self) {
        if self.told.elapsed() >= Self::EVERY {
            self.told = Instant::now();
            // A primary that is gone will be noticed when something is read.
            let _ = self.channel.lock().write_all(b"\n");
        }
    }
}

impl PrimaryConnection {
    /// A connection that was made.
    pub fn new(core: &'static ReplicatedCore, channel: Channel, awaited: &'static str) -> PrimaryConnection {
        PrimaryConnection { core, channel: Arc::new(Mutex::new(channel)), buffer: Vec::new(), at: 0, awaited }
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

    /// What tells the primary that this server is there.
    pub fn sign(&self) -> SignOfLife {
        SignOfLife { channel: self.channel.clone(), told: Instant::now() }
    }

    /// Takes out what was read and not used.
    pub fn take_unused(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.drain(..std::mem::take(&mut self.at));
        buffer
    }

    /// Puts in what was read: it is used next.
    pub fn put_back(&mut self, bytes: Vec<u8>) {
        (self.buffer, self.at) = (bytes, 0);
    }

    /// Reads some more behind what is in a buffer, waiting no longer than `wait`; 0 when nothing came.
    pub fn read_behind(&mut self, buffer: &mut Vec<u8>, wait: Duration) -> Result<usize, LinkError> {
        let failed = |error| LinkError::Io("Reading from primary", error);
        let mut channel = self.channel.lock();
        channel.socket().set_read_timeout(Some(wait.max(Duration::from_millis(1)))).map_err(failed)?;
        let before = buffer.len();
        buffer.resize(before + READ, 0);
        let read = channel.read(&mut buffer[before..]);
        buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(LinkError::Refused("Connection with primary lost.".into())),
            Ok(n) => {
                self.core.replication.upstream.heard_ms.store(clock::unix_ms(), Ordering::Relaxed);
                self.core.replication.counts.bytes_in.fetch_add(n as u64, Ordering::Relaxed);
                Ok(n)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads until there is something in the buffer.
    fn fill(&mut self) -> Result<(), LinkError> {
        let mut buffer = self.take_unused();
        let began = Instant::now();
        let read = loop {
            // The setting may change meanwhile.
            let left = self.timeout().saturating_sub(began.elapsed());
            match self.read_behind(&mut buffer, left.min(LOOK_EVERY)) {
                Ok(0) if left > LOOK_EVERY => {}
                read => break read,
            }
        };
        self.buffer = buffer;
        if read? == 0 { Err(LinkError::Refused(self.awaited.into())) } else { Ok(()) }
    }

    /// The connection, for its options and addresses.
    pub fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock()
    }

    /// The same, to be interrupted by others.
    pub fn socket(&self) -> Option<TcpStream> {
        self.channel.lock().socket().try_clone().ok()
    }

    /// How long the primary may be silent.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.core.config.read(REPL_TIMEOUT).into())
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> Result<Vec<u8>, LinkError> {
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

    /// The next line that is not empty: empty ones say that the primary is still there.
    pub fn answer(&mut self) -> Result<Vec<u8>, LinkError> {
        loop {
            let line = self.line()?;
            if !line.is_empty() {
                return Ok(line);
            }
        }
    }

    /// The next bytes, at least one and at most `max`.
    pub fn some(&mut self, max: usize) -> Result<&[u8], LinkError> {
        if self.at == self.buffer.len() {
            self.fill()?;
        }
        let start = self.at;
        self.at = self.buffer.len().min(start + max);
        Ok(&self.buffer[start..self.at])
    }
}

/// What the primary said, for the log.
pub fn shown(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 256;
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]).into_owned()
}
