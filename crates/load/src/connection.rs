//! One connection with the requests that it has outstanding.

use crate::config::Client;
use crate::reply::{Kind, ProtocolError, Reader};
use crate::transport::{Address, TlsSettings, Transport};
use crate::values::write_argument;
use crate::workload::Plan;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// What it is.
    pub plan: Plan,
    /// When it was written, or, until then, when it got its connection.
    pub sent_ns: u64,
    /// Whether it waited for a connection.
    pub has_waited: bool,
    /// Replies that it still lacks: more than one for a transaction.
    pub replies_left: u16,
    /// Whether one of them was an error.
    pub is_error: bool,
    /// Whether the last of them was null.
    pub is_miss: bool,
    /// The target that it was redirected to.
    pub redirected_to: Option<(u32, bool)>,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not connected; the time at which to try again.
    Closed {
        /// In nanoseconds since the start.
        retry_ns: u64,
    },
    /// Connecting since a time.
    Connecting {
        /// In nanoseconds since the start.
        since_ns: u64,
    },
    /// Authenticating and selecting a database: the replies that are still missing.
    Preparing {
        /// Their number.
        replies_left: u8,
    },
    /// Takes requests.
    Ready,
}

/// What one read found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// The number of bytes.
    pub count: usize,
    /// Whether more may have arrived.
    pub may_have_more: bool,
    /// When they arrived, as time since the epoch, if the kernel noted it.
    pub arrived: Option<Duration>,
}

/// A connection.
pub struct Connection {
    /// The server that it leads to.
    pub target: usize,
    /// How far it is.
    pub state: State,
    /// The requests without a reply, the oldest first.
    pub in_flight: VecDeque<InFlight>,
    /// The parser of its replies.
    pub reader: Reader,
    /// Whether it is among those that its target lists as having room.
    pub is_listed: bool,
    /// Whether it is among those with output to write.
    pub is_dirty: bool,
    /// The newest requests in flight that were not written yet.
    pub unwritten: usize,
    /// Whether the kernel notes when replies arrive.
    pub has_stamps: bool,
    transport: Option<Transport>,
    output: Vec<u8>,
    written: usize,
    can_write: bool,
}

impl Connection {
    /// A connection to be opened.
    pub fn new(target: usize, is_capturing: bool) -> Connection {
        let mut reader = Reader::default();
        reader.capture(is_capturing);
        Connection {
            target,
            state: State::Closed { retry_ns: 0 },
            in_flight: VecDeque::new(),
            reader,
            is_listed: false,
            is_dirty: false,
            unwritten: 0,
            has_stamps: false,
            transport: None,
            output: Vec::new(),
            written: 0,
            can_write: false,
        }
    }

    /// Begins to connect. `notes_arrivals` asks for the times at which replies arrive.
    pub fn open(
        &mut self,
        (address, endpoint, tls): (&Address, &str, Option<&TlsSettings>),
        (registry, token): (&mio::Registry, usize),
        notes_arrivals: bool,
        now_ns: u64,
    ) -> io::Result<()> {
        let mut transport = Transport::connect(address, endpoint, tls)?;
        self.has_stamps = notes_arrivals && transport.note_arrivals();
        let interests = mio::Interest::READABLE | mio::Interest::WRITABLE;
        registry.register(transport.socket.source(), mio::Token(token), interests)?;
        self.transport = Some(transport);
        self.state = State::Connecting { since_ns: now_ns };
        Ok(())
    }

    /// Notes that the socket can be written; prepares the session once it is connected.
    pub fn writable(&mut self, client: &Client, reads_from_replica: bool) -> io::Result<()> {
        self.can_write = true;
        if matches!(self.state, State::Connecting { .. }) {
            let Some(transport) = &self.transport else { return Ok(()) };
            if !transport.is_connected()? {
                self.can_write = false;
                return Ok(());
            }
            let replies_left = write_preparation(client, reads_from_replica, &mut self.output);
            self.state = State::Preparing { replies_left };
            if replies_left == 0 {
                self.state = State::Ready;
            }
        }
        Ok(())
    }

    /// Where requests are appended.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether there is output that was not written.
    pub fn has_output(&self) -> bool {
        self.written < self.output.len() || self.transport.as_ref().is_some_and(Transport::has_output)
    }

    /// Writes as much output as the socket takes.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(transport) = &mut self.transport else { return Ok(()) };
        while self.can_write && (self.written < self.output.len() || transport.has_output()) {
            match transport.write(&self.output[self.written..]) {
                Ok(0) if self.written < self.output.len() => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count;
                    if self.written == self.output.len() && transport.has_output() {
                        self.can_write = false;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
        Ok(())
    }

    /// Reads once.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        let Some(transport) = &mut self.transport else { return Ok(Received::default()) };
        loop {
            let read = match self.has_stamps {
                true => transport.read_stamped(buffer),
                false => transport.read(buffer).map(|count| (count, None)),
            };
            match read {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((count, arrived)) => {
                    let may_have_more = count == buffer.len() || !transport.short_read_is_last();
                    return Ok(Received { count, may_have_more, arrived });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Received::default()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the next reply from bytes that were read.
    #[inline]
    pub fn next_reply(&mut self, input: &mut &[u8]) -> Result<Option<Kind>, ProtocolError> {
        self.reader.next(input)
    }

    /// Closes the socket, and returns the requests without a reply.
    pub fn close(&mut self, registry: &mio::Registry, retry_ns: u64) -> VecDeque<InFlight> {
        if let Some(mut transport) = self.transport.take() {
            // The socket is closed next, which deregisters it as well.
            let _ = registry.deregister(transport.socket.source());
        }
        let is_capturing = self.reader.is_capturing();
        self.reader = Reader::default();
        self.reader.capture(is_capturing);
        self.output.clear();
        (self.written, self.can_write, self.unwritten) = (0, false, 0);
        self.state = State::Closed { retry_ns };
        std::mem::take(&mut self.in_flight)
    }
}

/// Appends what a session begins with, and returns the number of replies.
pub fn write_preparation(client: &Client, reads_from_replica: bool, out: &mut Vec<u8>) -> u8 {
    let mut requests: Vec<Vec<String>> = Vec::new();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let user = client.username.as_deref().unwrap_or("default");
    match (&client.password, client.resp) {
        (Some(password), 3) => requests.push(words(&["HELLO", "3", "AUTH", user, password])),
        (None, 3) => requests.push(words(&["HELLO", "3"])),
        (Some(password), _) if client.username.is_some() => requests.push(words(&["AUTH", user, password])),
        (Some(password), _) => requests.push(words(&["AUTH", password])),
        (None, _) => {}
    }
    if client.database != 0 {
        requests.push(words(&["SELECT", &client.database.to_string()]));
    }
    if reads_from_replica {
        requests.push(words(&["READONLY"]));
    }
    for request in &requests {
        write_request(request, out);
    }
    requests.len() as u8
}

/// Appends a request.
pub fn write_request(words: &[impl AsRef<[u8]>], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    words.iter().for_each(|word| write_argument(word.as_ref(), out));
}
