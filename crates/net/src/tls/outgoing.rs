//! Connections that the server makes itself: plain or with TLS, for threads that may wait.
//!
//! Whoever connects makes the TCP connection, with the time limits that it wants to have on each read and write, and
//! the handshake comes under them too.

use super::Materials;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;

/// Bytes of ciphertext read at once. The library asks for fewer than a record has.
const READ: usize = 64 * 1024;

/// A connection to another server.
pub enum Channel {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<StreamOwned<ClientConnection, Buffered>>),
}

/// A socket that is read in large pieces.
pub struct Buffered(BufReader<TcpStream>);

impl Read for Buffered {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Buffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

impl Channel {
    /// Shakes hands over `stream`, which leads to `host`: as the client, and with the certificate for that. The other
    /// end's certificate must come from an authority that is trusted.
    pub fn encrypted(stream: TcpStream, host: &str, materials: &Materials) -> io::Result<Self> {
        let name = match ServerName::try_from(host.to_owned()) {
            Ok(name) => name,
            // Some names of hosts are none for certificates; nothing is checked against it, but it is shown if it is
            // one.
            Err(_) => ServerName::IpAddress(stream.peer_addr()?.ip().into()),
        };
        let mut tls = ClientConnection::new(materials.connector.clone(), name).map_err(io::Error::other)?;
        let mut stream = Buffered(BufReader::with_capacity(READ, stream));
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)?;
        }
        Ok(Channel::Tls(Box::new(StreamOwned::new(tls, stream))))
    }

    /// The socket, for its options and addresses.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Channel::Plain(stream) => stream,
            Channel::Tls(stream) => stream.sock.0.get_ref(),
        }
    }
}

impl Read for Channel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Channel::Plain(stream) => stream.read(into),
            Channel::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Channel::Plain(stream) => stream.write(bytes),
            Channel::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Channel::Plain(stream) => stream.flush(),
            Channel::Tls(stream) => stream.flush(),
        }
    }
}
