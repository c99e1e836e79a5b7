//! How to reach servers: login, TLS, and a connection that can be read as a stream.

use kvick_load::client::Client;
use kvick_load::config::Client as Settings;
use kvick_load::connection::write_preparation;
use kvick_load::transport::{Address, TlsSettings, Transport};
use rustix::event::PollFlags;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// How long a server may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The same for all servers.
#[derive(Clone, Default)]
pub struct Access {
    /// User, password and limits of time.
    pub settings: Settings,
    /// How connections are encrypted, if they are.
    pub tls: Option<TlsSettings>,
}

impl Access {
    /// A connection for commands.
    ///
    /// # Errors
    /// If the server at `endpoint` (`host:port`) cannot be reached, or refuses the login.
    pub fn client(&self, endpoint: &str) -> io::Result<Client> {
        Client::connect(endpoint, &self.settings, self.tls.as_ref()).map_err(|error| at(endpoint, &error))
    }

    /// A connection for a stream, before the login; returns with it the requests of the login and their number.
    pub(crate) fn stream(&self, endpoint: &str) -> io::Result<(Stream, Vec<u8>, usize)> {
        let transport = Transport::connect(&Address::resolve(endpoint)?, endpoint, self.tls.as_ref())?;
        let stream = Stream { transport };
        let deadline = Instant::now() + Duration::from_millis(self.settings.connect_timeout);
        while !stream.transport.is_connected()? {
            stream.transport.wait(PollFlags::OUT, deadline)?;
        }
        let mut login = Vec::new();
        let replies = write_preparation(&self.settings, false, &mut login);
        Ok((stream, login, replies.into()))
    }
}

/// The same error, with the name of the server.
pub(crate) fn at(endpoint: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{endpoint}: {error}"))
}

/// A connection that blocks, for as long as the server may be silent.
pub(crate) struct Stream {
    transport: Transport,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + SILENCE_MAX;
        loop {
            match self.transport.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            let events = if self.transport.has_output() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            self.transport.wait(events, deadline)?;
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let deadline = Instant::now() + SILENCE_MAX;
        loop {
            match self.transport.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.transport.wait(PollFlags::OUT, deadline)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + SILENCE_MAX;
        while self.transport.has_output() {
            match self.transport.write(&[]) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ if self.transport.has_output() => self.transport.wait(PollFlags::OUT, deadline)?,
                _ => {}
            }
        }
        Ok(())
    }
}
