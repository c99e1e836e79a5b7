//! Connections to targets, cached for ten seconds after their last use.
//!
//! Keys are seldom migrated alone, and a new connection costs a round trip and a client on the target. A socket in use
//! is not in the cache; its user puts it back after all answers have been received.

use kvick_net::tls::Materials;
use kvick_net::tls::outgoing::Channel;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Size limit of the cache.
const CACHE_SIZE_MAX: usize = 64;
/// Lifetime of an unused socket.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a target.
pub struct Socket {
    /// The connection.
    pub channel: Channel,
    /// The database selected on the target, if known.
    pub database: Option<i64>,
}

/// The unused sockets, by the target's name and port.
#[derive(Default)]
pub struct Sockets(Mutex<HashMap<Target, CachedSocket>>);

/// The name and port of a target, as the request gave them.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Target {
    host: String,
    port: String,
}

impl Target {
    fn new(host: &str, port: &str) -> Target {
        Target { host: host.to_owned(), port: port.to_owned() }
    }
}

/// A cached socket.
struct CachedSocket {
    socket: Socket,
    since: Instant,
}

impl Sockets {
    /// Takes a cached socket or connects, with TLS if `tls` has materials.
    pub fn take(&self, host: &str, port: &str, timeout: Duration, tls: Option<&Materials>) -> io::Result<Socket> {
        let cached = self.0.lock().remove(&Target::new(host, port));
        if let Some(CachedSocket { socket, .. }) = cached
            && matches!(socket.channel, Channel::Tls(_)) == tls.is_some()
        {
            set_timeouts(socket.channel.socket(), timeout)?;
            return Ok(socket);
        }
        let stream = connect(host, port, timeout)?;
        set_timeouts(&stream, timeout)?;
        let channel = match tls {
            Some(materials) => Channel::encrypted(stream, host, materials)?,
            None => Channel::Plain(stream),
        };
        Ok(Socket { channel, database: None })
    }

    /// Caches a socket.
    pub fn put(&self, host: &str, port: &str, socket: Socket) {
        let mut sockets = self.0.lock();
        if sockets.len() >= CACHE_SIZE_MAX {
            let oldest = sockets.iter().min_by_key(|(_, cached)| cached.since).map(|(target, _)| target.clone());
            oldest.map(|target| sockets.remove(&target));
        }
        sockets.insert(Target::new(host, port), CachedSocket { socket, since: Instant::now() });
    }

    /// Closes sockets that have not been used for a while.
    pub fn close_idle(&self) {
        self.0.lock().retain(|_, cached| cached.since.elapsed() <= IDLE_TIMEOUT);
    }

    /// The number of cached sockets.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// True if none is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Sets the socket's timeouts.
fn set_timeouts(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

fn connect(host: &str, port: &str, timeout: Duration) -> io::Result<TcpStream> {
    // Valkey reads an invalid port as 0, where nothing listens.
    let port: u16 = port.trim().parse().map_err(|_| io::ErrorKind::ConnectionRefused)?;
    let mut failure = io::ErrorKind::NotFound.into();
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn sockets_are_reused_and_the_oldest_is_evicted() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port().to_string();
        let (sockets, timeout) = (Sockets::default(), Duration::from_secs(5));
        let mut socket = sockets.take("127.0.0.1", &port, timeout, None).expect("a listener");
        socket.database = Some(3);
        sockets.put("127.0.0.1", &port, socket);
        let socket = sockets.take("127.0.0.1", &port, timeout, None).expect("a kept one");
        assert_eq!(socket.database, Some(3));
        assert!(sockets.is_empty());
        sockets.put("oldest", &port, socket);
        for number in 0..CACHE_SIZE_MAX {
            let socket = sockets.take("127.0.0.1", &port, timeout, None).expect("a listener");
            sockets.put(&number.to_string(), &port, socket);
        }
        assert_eq!(sockets.len(), CACHE_SIZE_MAX);
        sockets.close_idle();
        assert_eq!(sockets.len(), CACHE_SIZE_MAX);
        assert!(sockets.take("oldest", "no port", timeout, None).is_err());
    }
}
