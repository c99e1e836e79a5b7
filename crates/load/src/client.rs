//! A simple client that blocks, for what happens before and after a run.

use crate::config::{Client as Settings, Config};
use crate::connection::{write_preparation, write_request};
use crate::reply::{Kind, Reader, Value};
use crate::topology::SlotMap;
use crate::transport::{Address, TlsSettings, Transport};
use rustix::event::PollFlags;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// A connection that waits for each reply.
pub struct Client {
    transport: Transport,
    reader: Reader,
    input: Vec<u8>,
    limit: Duration,
}

impl Client {
    /// Connects and prepares the session.
    pub fn connect(endpoint: &str, settings: &Settings, tls: Option<&TlsSettings>) -> io::Result<Client> {
        let limit = Duration::from_millis(settings.connect_timeout);
        let transport = Transport::connect(&Address::resolve(endpoint)?, endpoint, tls)?;
        let mut client = Client { transport, reader: Reader::default(), input: Vec::new(), limit };
        client.reader.capture(true);
        let deadline = Instant::now() + limit;
        while !client.transport.is_connected()? {
            client.transport.wait(PollFlags::OUT, deadline)?;
        }
        client.limit = Duration::from_millis(settings.request_timeout);
        let mut request = Vec::new();
        let replies = write_preparation(settings, false, &mut request);
        for reply in client.send(&request, replies as usize)? {
            if let Value::Error(error) = reply {
                return Err(io::Error::other(error));
            }
        }
        Ok(client)
    }

    /// Sends a request and returns the reply.
    pub fn ask(&mut self, words: &[impl AsRef<[u8]>]) -> io::Result<Value> {
        let mut request = Vec::new();
        write_request(words, &mut request);
        self.send(&request, 1)?.pop().ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    /// Sends encoded requests and returns so many replies.
    pub fn send(&mut self, requests: &[u8], replies: usize) -> io::Result<Vec<Value>> {
        let deadline = Instant::now() + self.limit;
        let mut written = 0;
        let mut found = Vec::new();
        while found.len() < replies {
            if written < requests.len() || self.transport.has_output() {
                match self.transport.write(&requests[written..]) {
                    Ok(count) => written += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            let mut buffer = [0; 16 << 10];
            match self.transport.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_writing = written < requests.len() || self.transport.has_output();
                    let events = if is_writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                    self.transport.wait(events, deadline)?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let mut rest = &self.input[..];
            while let Some(kind) = self.reader.next(&mut rest).map_err(io::Error::other)? {
                if kind != Kind::Push {
                    found.push(Value::parse(self.reader.captured()).map_err(io::Error::other)?);
                }
            }
            self.input.clear();
        }
        Ok(found)
    }
}

/// Asks the first endpoint that answers for the slots of the cluster.
pub fn cluster_slots(config: &Config, tls: Option<&TlsSettings>) -> io::Result<SlotMap> {
    let mut problem = io::Error::other("no endpoint");
    for endpoint in &config.target.endpoints {
        let reply =
            Client::connect(endpoint, &config.client, tls).and_then(|mut client| client.ask(&["CLUSTER", "SLOTS"]));
        match reply {
            Ok(reply) => {
                let slots = SlotMap::parse(&reply, endpoint);
                if slots.covered() > 0 {
                    return Ok(slots);
                }
                problem = io::Error::other(format!("{endpoint} knows no owner of a slot: {reply:?}"));
            }
            Err(error) => problem = io::Error::new(error.kind(), format!("{endpoint}: {error}")),
        }
    }
    Err(problem)
}
