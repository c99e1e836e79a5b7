//! A connection with another node for an event loop: non-blocking, plain or with TLS.

use crate::tls::Materials;
use crate::tls::duplex::Duplex;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Time after which TCP probes a silent peer, and the time between probes.
const KEEPALIVE: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(10)];

/// See the module's documentation.
pub enum PeerSocket {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS. The certificate of a peer must come from a trusted authority.
    Tls(Box<Duplex>),
}

impl PeerSocket {
    /// Wraps an accepted connection; with TLS if there are materials.
    ///
    /// # Errors
    /// If the materials are not valid.
    pub fn accepted(stream: TcpStream, materials: Option<&Materials>) -> io::Result<Self> {
        prepare(&stream);
        Ok(match materials {
            None => PeerSocket::Plain(stream),
            Some(materials) => PeerSocket::Tls(Box::new(Duplex::accept(stream, materials)?)),
        })
    }

    /// Begins to connect, from the address `source` if the kernel permits it. With TLS if there are materials.
    ///
    /// # Errors
    /// If there is no socket or no route, or the materials are not valid.
    pub fn connect(peer: SocketAddr, source: Option<IpAddr>, materials: Option<&Materials>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        if let Some(source) = source.filter(|source| source.is_ipv4() == peer.is_ipv4()) {
            // The kernel chooses the source address otherwise.
            let _ = socket.bind(&SocketAddr::new(source, 0).into());
        }
        match socket.connect(&peer.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            result => result?,
        }
        let stream = TcpStream::from_std(socket.into());
        prepare(&stream);
        Ok(match materials {
            None => PeerSocket::Plain(stream),
            Some(materials) => PeerSocket::Tls(Box::new(Duplex::connect(stream, peer.ip(), materials)?)),
        })
    }

    fn stream(&self) -> &TcpStream {
        match self {
            PeerSocket::Plain(stream) => stream,
            PeerSocket::Tls(duplex) => duplex.socket(),
        }
    }

    /// The outcome of the connection that was begun, with the address of the peer: `None` while it is being made. Asked
    /// after an event.
    pub fn connected(&self) -> Option<io::Result<SocketAddr>> {
        match self.stream().take_error() {
            Ok(Some(error)) | Err(error) => return Some(Err(error)),
            Ok(None) => {}
        }
        match self.stream().peer_addr() {
            Err(error) if error.kind() == ErrorKind::NotConnected => None,
            peer => Some(peer),
        }
    }

    /// The address of this end.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.stream().local_addr().ok().map(|address| address.ip().to_canonical())
    }

    /// Registers it with a poll for edge-triggered events of both directions.
    ///
    /// # Errors
    /// If the poll refuses it.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let stream = match self {
            PeerSocket::Plain(stream) => stream,
            PeerSocket::Tls(duplex) => duplex.socket_mut(),
        };
        registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Reads available bytes. 0 means that the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is available.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            PeerSocket::Plain(stream) => stream.read(into),
            PeerSocket::Tls(duplex) => duplex.read(into),
        }
    }

    /// Appends available bytes to `buffer`, at most `max`. 0 means that the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is available.
    pub fn read_to(&mut self, buffer: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        match self {
            PeerSocket::Plain(stream) => {
                buffer.reserve(max);
                let spare = rustix::buffer::spare_capacity(buffer);
                Ok(rustix::net::recv(stream, spare, rustix::net::RecvFlags::empty())?.0)
            }
            PeerSocket::Tls(duplex) => {
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
            PeerSocket::Plain(stream) => stream.write(bytes),
            PeerSocket::Tls(duplex) => duplex.write(bytes),
        }
    }

    /// Sends encrypted bytes that wait.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            PeerSocket::Plain(_) => Ok(()),
            PeerSocket::Tls(duplex) => duplex.flush(),
        }
    }
}

/// Sets options that make a connection prompt, and detect a dead peer. A socket without them works.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE[0]).with_interval(KEEPALIVE[1]);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}
