//! Outgoing TCP connections.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How to connect.
#[derive(Clone, Copy, Default)]
pub struct Route<'a> {
    /// The address or host to bind to if possible; otherwise the kernel selects the source address.
    pub source: Option<&'a str>,
    /// Whether to use Multipath TCP. If the peer does not, the connection is one of TCP.
    pub is_multipath: bool,
}

/// Connects to an address within `timeout`.
pub fn connect(address: SocketAddr, route: Route<'_>, timeout: Duration) -> io::Result<TcpStream> {
    let bound = route.source.and_then(|source| bind_source(source, address, route));
    if let Some(socket) = bound
        && socket.connect_timeout(&address.into(), timeout).is_ok()
    {
        return Ok(socket.into());
    }
    let socket = open(address, route)?;
    socket.connect_timeout(&address.into(), timeout)?;
    Ok(socket.into())
}

fn open(address: SocketAddr, route: Route<'_>) -> io::Result<Socket> {
    let protocol = if route.is_multipath { Protocol::MPTCP } else { Protocol::TCP };
    Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))
}

/// A socket bound to the first usable address of `source` in the address family of `address`.
fn bind_source(source: &str, address: SocketAddr, route: Route<'_>) -> Option<Socket> {
    let sources = (source, 0).to_socket_addrs().ok()?;
    sources.filter(|source| source.is_ipv4() == address.is_ipv4()).find_map(|source| {
        let socket = open(address, route).ok()?;
        socket.bind(&source.into()).ok()?;
        Some(socket)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::net::TcpListener;

    #[test]
    fn a_multipath_connection_reaches_every_listener() {
        let is_supported = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).is_ok();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        for source in [None, Some("127.0.0.1")] {
            let connected = connect(address, Route { source, is_multipath: true }, Duration::from_secs(10));
            assert_eq!(connected.is_ok(), is_supported);
            let Ok(stream) = connected else { return };
            assert_eq!(SockRef::from(&stream).protocol().expect("a protocol"), Some(Protocol::MPTCP));
        }
    }

    #[test]
    fn a_connection_binds_its_source_address_if_possible() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let from = |source| {
            let stream =
                connect(address, Route { source, ..Route::default() }, Duration::from_secs(10)).expect("connects");
            let (accepted, peer) = listener.accept().expect("accepts");
            drop((stream, accepted));
            peer.ip().to_string()
        };
        assert_eq!(from(None), "127.0.0.1");
        if TcpListener::bind("127.0.0.2:0").is_ok() {
            assert_eq!(from(Some("127.0.0.2")), "127.0.0.2");
        }
        // An address of another network, an address of another family, and none.
        assert_eq!(from(Some("192.0.2.1")), "127.0.0.1");
        assert_eq!(from(Some("::1")), "127.0.0.1");
        assert_eq!(from(Some("")), "127.0.0.1");
    }
}
