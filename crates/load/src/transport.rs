//! Sockets: TCP or Unix, with or without TLS, that never block.

use crate::config::{ConfigError, Tls};
use crate::stamps;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// Over the network.
    Tcp(SocketAddr),
    /// On this machine.
    Unix(PathBuf),
}

impl Address {
    /// Resolves `host:port` or `unix:///path`.
    pub fn resolve(endpoint: &str) -> io::Result<Address> {
        if let Some(path) = endpoint.strip_prefix("unix://") {
            return Ok(Address::Unix(path.into()));
        }
        let endpoint = endpoint.strip_prefix("redis://").unwrap_or(endpoint);
        let found = endpoint.to_socket_addrs()?.next();
        found.map(Address::Tcp).ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("{endpoint}: no address")))
    }
}

/// How connections are encrypted.
#[derive(Clone)]
pub struct TlsSettings {
    config: Arc<ClientConfig>,
    server_name: Option<String>,
}

impl TlsSettings {
    /// Reads certificates and keys.
    pub fn new(tls: &Tls) -> Result<TlsSettings, ConfigError> {
        let read = |what: &str, path: &PathBuf| std::fs::read(path).map_err(|error| fail(what, &error));
        let path = tls.ca_file.as_ref().ok_or_else(|| fail("ca_file", &"name the certificates of authorities"))?;
        let identity = match (&tls.certificate, &tls.private_key) {
            (Some(certificate), Some(key)) => Some((read("certificate", certificate)?, read("private_key", key)?)),
            (None, None) => None,
            _ => return Err(fail("certificate", &"certificate and private_key need each other")),
        };
        let identity = identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
        let settings = TlsSettings::from_pem(&read("ca_file", path)?, identity)?;
        Ok(TlsSettings { server_name: tls.server_name.clone(), ..settings })
    }

    /// Takes the text of certificates of authorities, and of the client's certificate and key.
    pub fn from_pem(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<TlsSettings, ConfigError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authorities) {
            let certificate = certificate.map_err(|error| fail("ca_file", &error))?;
            roots.add(certificate).map_err(|error| fail("ca_file", &error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| fail("ca_file", &error))?.with_root_certificates(roots);
        let config = match identity {
            Some((certificate, key)) => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
                let chain = chain.map_err(|error| fail("certificate", &error))?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| fail("private_key", &error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| fail("certificate", &error))?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(TlsSettings { config: Arc::new(config), server_name: None })
    }

    /// The same for clients of other protocols.
    pub fn client_config(&self) -> ClientConfig {
        (*self.config).clone()
    }

    /// The same settings for a server with this name in its certificate.
    pub fn with_server_name(&self, name: &str) -> TlsSettings {
        TlsSettings { config: Arc::clone(&self.config), server_name: Some(name.to_owned()) }
    }

    fn connect(&self, endpoint: &str) -> io::Result<Box<ClientConnection>> {
        let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let mut session = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        // What is sent during the handshake waits in the session.
        session.set_buffer_limit(None);
        Ok(Box::new(session))
    }
}

fn fail(what: &str, error: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("tls.{what}: {error}"))
}

/// A socket.
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

impl Socket {
    /// Reads.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket) => socket.read(buffer),
        }
    }

    /// The source of its events.
    pub fn source(&mut self) -> &mut dyn Source {
        match self {
            Socket::Tcp(socket) => socket,
            Socket::Unix(socket) => socket,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Socket::read(self, buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A socket with its encryption, if any.
pub struct Transport {
    /// The socket.
    pub socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Transport {
    /// Begins to connect.
    pub fn connect(address: &Address, endpoint: &str, tls: Option<&TlsSettings>) -> io::Result<Transport> {
        let socket = match address {
            Address::Tcp(address) => {
                let socket = TcpStream::connect(*address)?;
                // Fails on some systems while the connection is not established; then small requests are still sent.
                let _ = socket.set_nodelay(true);
                Socket::Tcp(socket)
            }
            Address::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
        };
        Ok(Transport { socket, tls: tls.map(|tls| tls.connect(endpoint)).transpose()? })
    }

    /// Whether the connection is established; an error if it failed.
    pub fn is_connected(&self) -> io::Result<bool> {
        let Socket::Tcp(socket) = &self.socket else { return Ok(true) };
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        match socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::NotConnected) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a short read means that no more bytes have arrived.
    pub fn short_read_is_last(&self) -> bool {
        self.tls.is_none()
    }

    /// Reads what has arrived; `WouldBlock` if nothing has.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(io::Error::other)?;
            // A handshake has to be answered.
            while tls.wants_write() {
                match tls.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Lets [`Self::read_stamped`] return times. False if it cannot: over Unix sockets, with TLS, and on other systems
    /// than Linux.
    pub fn note_arrivals(&self) -> bool {
        match &self.socket {
            Socket::Tcp(socket) => self.tls.is_none() && stamps::enable(socket.as_fd()).is_ok(),
            Socket::Unix(_) => false,
        }
    }

    /// Reads like [`Self::read`], and returns the time since the epoch at which the bytes arrived, if it is known.
    pub fn read_stamped(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Option<Duration>)> {
        match &self.socket {
            Socket::Tcp(socket) if self.tls.is_none() && stamps::ARE_SUPPORTED => stamps::read(socket.as_fd(), buffer),
            _ => Ok((self.read(buffer)?, None)),
        }
    }

    /// Writes; `WouldBlock` if nothing can be written.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        let taken = if bytes.is_empty() { 0 } else { tls.writer().write(bytes)? };
        while tls.wants_write() {
            match tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Waits until the socket is ready for one of these events. May return earlier, after a signal.
    ///
    /// # Errors
    /// `TimedOut` from the deadline on.
    pub fn wait(&self, events: PollFlags, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, events)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether encrypted bytes wait for the socket.
    pub fn has_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }
}
