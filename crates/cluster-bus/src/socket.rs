//! The socket of a link: TCP, plain or with TLS, non-blocking.

use kvick_net::tls::Materials;
use kvick_net::tls::duplex::Duplex;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, TcpKeepalive, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The socket of a link.
pub enum BusSocket {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<Duplex>),
}

impl BusSocket {
    /// Wraps an accepted connection; with TLS if there are materials.
    pub fn accepted(stream: TcpStream, materials: Option<&Materials>) -> io::Result<Self> {
        prepare(&stream);
        Ok(match materials {
            None => BusSocket::Plain(stream),
            Some(materials) => BusSocket::Tls(Box::new(Duplex::accept(stream, materials)?)),
        })
    }

    /// Begins a connection to `peer`, from the address `source` if the kernel permits it. With TLS if there are
    /// materials.
    pub fn connect(peer: SocketAddr, source: Option<IpAddr>, materials: Option<&Materials>) -> io::Result<Self> {
        let socket = RawSocket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
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
            None => BusSocket::Plain(stream),
            Some(materials) => BusSocket::Tls(Box::new(Duplex::connect(stream, peer.ip(), materials)?)),
        })
    }

    fn stream(&self) -> &TcpStream {
        match self {
            BusSocket::Plain(stream) => stream,
            BusSocket::Tls(duplex) => duplex.socket(),
        }
    }

    /// The outcome of the connection that was begun, with the address of the peer: `None` while it is being made.
    pub fn connected(&self) -> Option<io::Result<SocketAddr>> {
        match self.stream().take_error() {
            Ok(Some(error)) | Err(error) => return Some(Err(error)),
            Ok(None) => {}
        }
        match self.stream().peer_addr() {
            Ok(peer) => Some(Ok(peer)),
            Err(error) if error.kind() == ErrorKind::NotConnected => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// The address of this end.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.stream().local_addr().ok().map(|address| address.ip().to_canonical())
    }

    /// Registers the socket for edge-triggered events of both directions.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let stream = match self {
            BusSocket::Plain(stream) => stream,
            BusSocket::Tls(duplex) => duplex.socket_mut(),
        };
        registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Reads available bytes; 0 at the end, `WouldBlock` if there are none.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            BusSocket::Plain(stream) => stream.read(into),
            BusSocket::Tls(duplex) => duplex.read(into),
        }
    }

    /// Writes as many bytes as the socket accepts; `WouldBlock` if none.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            BusSocket::Plain(stream) => stream.write(bytes),
            BusSocket::Tls(duplex) => duplex.write(bytes),
        }
    }

    /// Sends bytes that the encryption holds back.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            BusSocket::Plain(_) => Ok(()),
            BusSocket::Tls(duplex) => duplex.flush(),
        }
    }
}

/// Sets options that make a link prompt, and detect a dead peer. A socket without them works.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}
