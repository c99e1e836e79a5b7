//! Either side of a TLS connection over a non-blocking socket, for the links of the cluster bus.
//!
//! `rustls` buffers both directions here: a link carries few bytes, and the thread that serves it serves both sides.
//! Connections of clients use [`stream`](super::stream), which holds no buffers while idle.

use super::Materials;
use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;

/// See the module's documentation.
pub struct Duplex {
    socket: TcpStream,
    tls: Connection,
}

impl Duplex {
    /// Wraps an accepted connection, before its handshake. The peer must present a trusted certificate.
    pub fn accept(socket: TcpStream, materials: &Materials) -> io::Result<Self> {
        let tls = ServerConnection::new(materials.bus_acceptor()?).map_err(io::Error::other)?;
        Ok(Duplex { socket, tls: tls.into() })
    }

    /// Wraps a connection to `peer` that is being made, before its handshake.
    pub fn connect(socket: TcpStream, peer: IpAddr, materials: &Materials) -> io::Result<Self> {
        let name = ServerName::IpAddress(peer.into());
        let tls = ClientConnection::new(materials.connector.clone(), name).map_err(io::Error::other)?;
        Ok(Duplex { socket, tls: tls.into() })
    }

    /// The socket, for the poll and its options.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The same, for registering it.
    pub fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Reads plain text. 0 means that the peer has closed the connection; `WouldBlock` that nothing is available.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            if self.tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            let processed = self.tls.process_new_packets();
            // Sends the next part of the handshake, or the alert that names the error.
            let flushed = self.flush();
            processed.map_err(io::Error::other)?;
            flushed?;
        }
    }

    /// Encrypts and sends as many bytes as the socket accepts. `WouldBlock` during the handshake, and while earlier
    /// bytes wait to be sent.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        if self.tls.is_handshaking() || self.tls.wants_write() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let written = self.tls.writer().write(bytes)?;
        self.flush()?;
        Ok(written)
    }

    /// Sends encrypted bytes that wait, as far as the socket accepts them.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }
}
