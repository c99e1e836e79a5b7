//! Outgoing connections, plain or with TLS, for blocking threads.
//!
//! The caller makes the TCP connection and sets its read and write timeouts, which also apply to the handshake.

use super::Materials;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;

/// Bytes of ciphertext per read. The library itself requests less than a record.
const READ: usize = 64 * 1024;

/// A connection to another server.
pub enum Channel {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<StreamOwned<ClientConnection, Buffered>>),
}

/// A socket with a large read buffer.
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
    /// Performs the client's side of the handshake over `stream`, which is connected to `host`, with the client
    /// certificate. The peer's certificate must come from a trusted authority.
    pub fn encrypted(stream: TcpStream, host: &str, materials: &Materials) -> io::Result<Self> {
        let name = match ServerName::try_from(host.to_owned()) {
            Ok(name) => name,
            // Some host names are invalid as certificate names. The name is not verified; it is sent as SNI if valid.
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
