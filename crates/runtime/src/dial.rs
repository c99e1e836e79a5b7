//! Outgoing TCP connections.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Connects to an address within `timeout`. Binds to the address or host `source` if possible; otherwise the kernel
/// selects the source address.
pub fn connect(address: SocketAddr, source: Option<&str>, timeout: Duration) -> io::Result<TcpStream> {
    let bound = source.and_then(|source| bind_source(source, address));
    if let Some(socket) = bound
        && socket.connect_timeout(&address.into(), timeout).is_ok()
    {
        return Ok(socket.into());
    }
    TcpStream::connect_timeout(&address, timeout)
}

/// A socket bound to the first usable address of `source` in the address family of `address`.
fn bind_source(source: &str, address: SocketAddr) -> Option<Socket> {
    let sources = (source, 0).to_socket_addrs().ok()?;
    sources.filter(|source| source.is_ipv4() == address.is_ipv4()).find_map(|source| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).ok()?;
        socket.bind(&source.into()).ok()?;
        Some(socket)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_connection_binds_its_source_address_if_possible() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let from = |source| {
            let stream = connect(address, source, Duration::from_secs(10)).expect("connects");
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
