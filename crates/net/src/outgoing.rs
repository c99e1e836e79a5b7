//! A connection to another node for a worker: non-blocking, plain or with TLS.

use crate::tls::Materials;
use crate::tls::duplex::Duplex;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Time after which TCP probes a silent peer.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// See the module's documentation.
pub enum Outgoing {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS. The peer's certificate must come from a trusted authority.
    Tls(Box<Duplex>),
}

impl Outgoing {
    /// Begins to connect. `tls` are the materials for TLS, if it is to be used.
    ///
    /// # Errors
    /// If there is no socket or no route.
    pub fn connect(address: SocketAddr, tls: Option<&Materials>) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        let options = SockRef::from(&stream);
        // A socket without these options works as well.
        let _ = options.set_tcp_nodelay(true);
        let _ = options.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE));
        Ok(match tls {
            None => Outgoing::Plain(stream),
            Some(materials) => Outgoing::Tls(Box::new(Duplex::connect(stream, address.ip(), materials)?)),
        })
    }

    fn stream(&self) -> &TcpStream {
        match self {
            Outgoing::Plain(stream) => stream,
            Outgoing::Tls(duplex) => duplex.socket(),
        }
    }

    fn stream_mut(&mut self) -> &mut TcpStream {
        match self {
            Outgoing::Plain(stream) => stream,
            Outgoing::Tls(duplex) => duplex.socket_mut(),
        }
    }

    /// Registers it with the poll for edge-triggered input and output events.
    ///
    /// # Errors
    /// If the poll refuses it.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(self.stream_mut(), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Whether the connection is made. Asked after an event.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.stream().take_error()? {
            return Err(error);
        }
        match self.stream().peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Appends available bytes to `buffer`, at most `max`. 0 means that the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is available.
    pub fn read(&mut self, buffer: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        match self {
            Outgoing::Plain(stream) => {
                buffer.reserve(max);
                Ok(rustix::net::recv(stream, rustix::buffer::spare_capacity(buffer), rustix::net::RecvFlags::empty())?
                    .0)
            }
            Outgoing::Tls(duplex) => {
                let len = buffer.len();
                buffer.resize(len + max, 0);
                let read = duplex.read(&mut buffer[len..]);
                buffer.truncate(len + read.as_ref().copied().unwrap_or(0));
                read
            }
        }
    }

    /// Writes as many bytes as the socket accepts.
    ///
    /// # Errors
    /// `WouldBlock` if it accepts none, which is also so during the TLS handshake.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Outgoing::Plain(stream) => stream.write(bytes),
            Outgoing::Tls(duplex) => duplex.write(bytes),
        }
    }

    /// Sends encrypted bytes that wait.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            Outgoing::Plain(_) => Ok(()),
            Outgoing::Tls(duplex) => duplex.flush(),
        }
    }
}
