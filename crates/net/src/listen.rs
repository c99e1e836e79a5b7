//! Listening sockets, and the admission of new connections.

use crate::socket::Socket;
use crate::tls::Tls;
use crate::tls::stream::Stream;
use kvick_config::Values;
use kvick_config::tables::{cluster, metrics, network, tls};
use kvick_core::Core;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::runtime_config::RuntimeConfig;
use mio::net::{TcpListener, TcpStream, UnixListener};
use mio::{Interest, Registry, Token};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket as RawSocket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// All listening sockets. One worker accepts from them; any thread may reopen them.
#[derive(Clone, Default)]
pub struct Listeners {
    sockets: Arc<Mutex<Vec<Listener>>>,
}

struct Listener {
    kind: Kind,
    /// The index in its event tokens, once it is registered with the poll.
    number: Option<usize>,
}

enum Kind {
    Tcp(TcpListener, Transport),
    Unix(UnixListener, PathBuf),
}

/// The transport of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// RESP over plain TCP.
    Plain,
    /// RESP over TLS.
    Tls,
    /// RESP over plain TCP; requests are forwarded.
    Forward,
    /// RESP over TLS; requests are forwarded.
    ForwardTls,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 4] = [Transport::Plain, Transport::Tls, Transport::Forward, Transport::ForwardTls];

    /// The name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Plain => "tcp",
            Transport::Tls => "tls",
            Transport::Forward => "forward",
            Transport::ForwardTls => "forward-tls",
        }
    }

    /// The port that `values` give it; 0 for none.
    pub fn port(self, values: &Values) -> u16 {
        match self {
            Transport::Plain => values.read(network::PORT),
            Transport::Tls => values.read(tls::TLS_PORT),
            Transport::Forward => values.read(cluster::CLUSTER_FORWARD_PORT),
            Transport::ForwardTls => values.read(cluster::CLUSTER_FORWARD_TLS_PORT),
        }
    }

    fn is_tls(self) -> bool {
        matches!(self, Transport::Tls | Transport::ForwardTls)
    }

    fn forwards(self) -> bool {
        matches!(self, Transport::Forward | Transport::ForwardTls)
    }
}

impl Listener {
    fn transport(&self) -> Option<Transport> {
        match &self.kind {
            Kind::Tcp(_, transport) => Some(*transport),
            Kind::Unix(..) => None,
        }
    }

    fn port(&self) -> Option<u16> {
        match &self.kind {
            Kind::Tcp(socket, _) => socket.local_addr().ok().map(|address| address.port()),
            Kind::Unix(..) => None,
        }
    }
}

/// The two addresses of a connection.
pub struct Peer {
    peer: String,
    local: String,
    unix: bool,
    loopback: bool,
    /// Whether it was accepted on a port whose requests are forwarded.
    forwards: bool,
}

impl Peer {
    /// The addresses of a client that another part of this server has accepted, and passes on.
    pub fn passed_on(peer: SocketAddr, local: SocketAddr) -> Peer {
        let loopback = is_loopback(&peer.ip());
        Peer { peer: peer.to_string(), local: local.to_string(), unix: false, loopback, forwards: false }
    }
}

impl Listeners {
    /// Opens the sockets that the settings require. Errors name the address and the cause.
    pub fn open(values: &Values) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for transport in Transport::ALL {
            sockets.extend(open_tcp(values, transport).map_err(|error| {
                kvick_runtime::logging::warning(format_args!("Warning: {error}"));
                let (port, name) = (transport.port(values), transport.name());
                io::Error::new(error.kind(), format!("Failed listening on port {port} ({name}), aborting."))
            })?);
        }
        if let Some(path) = values.read(network::UNIXSOCKET) {
            let group = values.read(network::UNIXSOCKETGROUP);
            let mode = values.read(network::UNIXSOCKETPERM);
            sockets.push(open_unix(path.as_path().to_path_buf(), mode, group.as_deref())?);
        }
        Ok(Listeners { sockets: Arc::new(Mutex::new(sockets)) })
    }

    /// Reopens the sockets of one transport with the present settings. The old sockets are closed first only if they
    /// block an address; after an error none may be left. The accepting worker must register the new sockets.
    pub fn reopen(&self, values: &Values, transport: Transport) -> io::Result<()> {
        let mut sockets = self.sockets.lock();
        let port = transport.port(values);
        let is_old = |listener: &Listener| listener.transport() == Some(transport);
        let new_listeners = open_tcp(values, transport).or_else(|error| {
            let taken_by_old = sockets.iter().any(|listener| is_old(listener) && listener.port() == Some(port));
            if error.kind() != io::ErrorKind::AddrInUse || !taken_by_old {
                return Err(error);
            }
            sockets.retain(|listener| !is_old(listener));
            open_tcp(values, transport)
        })?;
        // Closing a socket takes it out of the poll.
        sockets.retain(|listener| !is_old(listener));
        sockets.extend(new_listeners);
        Ok(())
    }

    /// Closes all of them.
    pub fn close(&self) {
        self.sockets.lock().clear();
    }

    /// A readable list of the addresses.
    pub fn describe(&self) -> Vec<String> {
        let describe = |listener: &Listener| match &listener.kind {
            Kind::Tcp(socket, _) => socket.local_addr().map_or_else(|e| e.to_string(), |address| address.to_string()),
            Kind::Unix(_, path) => path.display().to_string(),
        };
        self.sockets.lock().iter().map(describe).collect()
    }

    /// Registers new sockets with the poll: socket n has the token `first + n`.
    pub fn register(&self, registry: &Registry, first: usize) -> io::Result<()> {
        let mut sockets = self.sockets.lock();
        for at in 0..sockets.len() {
            if sockets[at].number.is_some() {
                continue;
            }
            let is_free = |number: &usize| sockets.iter().all(|listener| listener.number != Some(*number));
            let number = (0..).find(is_free).unwrap_or(0);
            match &mut sockets[at].kind {
                Kind::Tcp(socket, _) => registry.register(socket, Token(first + number), Interest::READABLE)?,
                Kind::Unix(socket, _) => registry.register(socket, Token(first + number), Interest::READABLE)?,
            }
            sockets[at].number = Some(number);
        }
        Ok(())
    }

    /// Accepts the next connection waiting on socket `number`. After an error more may be waiting, which the poll does
    /// not report again: retry later.
    pub fn accept(&self, number: usize, tls: &Tls) -> io::Result<Option<(Socket, Peer)>> {
        let sockets = self.sockets.lock();
        let Some(listener) = sockets.iter().find(|listener| listener.number == Some(number)) else { return Ok(None) };
        loop {
            let accepted = match &listener.kind {
                Kind::Tcp(socket, transport) => socket.accept().and_then(|(stream, peer)| {
                    let local = stream.local_addr().map_or_else(|_| String::new(), |address| address.to_string());
                    let (loopback, forwards) = (is_loopback(&peer.ip()), transport.forwards());
                    let peer = Peer { peer: peer.to_string(), local, unix: false, loopback, forwards };
                    let socket = match transport.is_tls() {
                        false => Socket::Tcp(stream),
                        true => Socket::Tls(Box::new(encrypted(stream, tls)?)),
                    };
                    Ok((socket, peer))
                }),
                Kind::Unix(socket, path) => socket.accept().map(|(stream, _)| {
                    let name = format!("{}:0", path.display());
                    (
                        Socket::Unix(stream),
                        Peer { peer: name.clone(), local: name, unix: true, loopback: true, forwards: false },
                    )
                }),
            };
            match accepted {
                Ok(connection) => return Ok(Some(connection)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // This connection failed; the next may be valid.
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A TLS connection with the present settings.
fn encrypted(stream: TcpStream, tls: &Tls) -> io::Result<Stream> {
    let materials = tls.materials().ok_or(io::Error::other("TLS is not set up"))?;
    Stream::accept(stream, &materials)
}

fn is_loopback(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

/// Opens the sockets of a transport. Port 0 opens none.
fn open_tcp(values: &Values, transport: Transport) -> io::Result<Vec<Listener>> {
    match transport.port(values) {
        0 => Ok(Vec::new()),
        port => open_addresses(values, &bound(values), port, |socket| Listener {
            kind: Kind::Tcp(TcpListener::from_std(socket), transport),
            number: None,
        }),
    }
}

/// Opens the sockets of the cluster bus: one per address of `bind`. Errors name the address and the cause.
pub fn open_bus(values: &Values, port: u16) -> io::Result<Vec<std::net::TcpListener>> {
    open_addresses(values, &bound(values), port, |socket| socket)
}

/// Opens the sockets of the HTTP endpoint with metrics, which are non-blocking: one per address of `metrics-bind`, or
/// else of `bind`. Errors name the address and the cause.
pub fn open_metrics(values: &Values) -> io::Result<Vec<std::net::TcpListener>> {
    let addresses = match values.read(metrics::METRICS_BIND) {
        Some(own) => own.to_string().split_whitespace().map(str::to_owned).collect(),
        None => bound(values),
    };
    open_addresses(values, &addresses, values.read(metrics::METRICS_PORT), |socket| socket)
}

/// The addresses of `bind`.
fn bound(values: &Values) -> Vec<String> {
    values.read(network::BIND).list().iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}

/// Opens a socket for each address, a "-" before which makes it optional.
fn open_addresses<T>(
    values: &Values,
    addresses: &[String],
    port: u16,
    mut wrap: impl FnMut(std::net::TcpListener) -> T,
) -> io::Result<Vec<T>> {
    let (backlog, mark) = (values.read(network::TCP_BACKLOG), values.read(network::SOCKET_MARK_ID));
    let protocol = if values.read(network::MPTCP) { Protocol::MPTCP } else { Protocol::TCP };
    let mut sockets = Vec::new();
    for text in addresses {
        let (text, optional) = text.strip_prefix('-').map_or((text.as_str(), false), |rest| (rest, true));
        match parse_address(text).and_then(|ip| open_one(SocketAddr::new(ip, port), protocol, backlog, mark)) {
            Ok(socket) => sockets.push(wrap(socket)),
            Err(error) if optional && may_be_missing(&error) => {}
            Err(error) => {
                let reason = format!("Could not create server TCP listening socket {text}:{port}: {error}");
                return Err(io::Error::new(error.kind(), reason));
            }
        }
    }
    Ok(sockets)
}

fn parse_address(text: &str) -> io::Result<IpAddr> {
    match text {
        "*" => Ok(Ipv4Addr::UNSPECIFIED.into()),
        "::*" => Ok(Ipv6Addr::UNSPECIFIED.into()),
        _ => match text.parse() {
            Ok(ip) => Ok(ip),
            // A name: resolved once, before any worker runs.
            Err(_) => std::net::ToSocketAddrs::to_socket_addrs(&(text, 0))?
                .next()
                .map(|address| address.ip())
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        },
    }
}

fn may_be_missing(error: &io::Error) -> bool {
    let missing = [libc::EADDRNOTAVAIL, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT, libc::ESOCKTNOSUPPORT];
    error.raw_os_error().is_some_and(|code| missing.contains(&code) || code == libc::EPFNOSUPPORT)
}

fn open_one(address: SocketAddr, protocol: Protocol, backlog: i32, mark: u32) -> io::Result<std::net::TcpListener> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    if mark != 0 {
        socket.set_mark(mark)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

fn open_unix(path: PathBuf, mode: u32, group: Option<&[u8]>) -> io::Result<Listener> {
    let open = || -> io::Result<UnixListener> {
        // A socket file of an earlier run would block the address.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(&path)?)?;
        socket.listen(511)?;
        if mode != 0 {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
        }
        if let Some(group) = group {
            std::os::unix::fs::chown(&path, None, Some(group_id(group)?))?;
        }
        Ok(UnixListener::from_std(std::os::fd::OwnedFd::from(socket).into()))
    };
    match open() {
        Ok(socket) => Ok(Listener { kind: Kind::Unix(socket, path), number: None }),
        Err(error) => {
            let reason = format!("Failed opening Unix socket {}: {error}", path.display());
            Err(io::Error::new(error.kind(), reason))
        }
    }
}

/// The ID of a user group.
fn group_id(name: &[u8]) -> io::Result<u32> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no such group");
    let name = std::ffi::CString::new(name).map_err(|_| missing())?;
    // SAFETY: the name is a C string; the entry, if there is one, is read at once, and nobody else asks for groups.
    let id = unsafe { libc::getgrnam(name.as_ptr()).as_ref().map(|group| group.gr_gid) };
    id.ok_or_else(missing)
}

/// An accepted connection on its way to its worker.
pub struct NewConnection {
    /// Its socket.
    pub socket: Socket,
    /// Its client, which names the worker.
    pub info: Arc<ClientInfo>,
}

/// Decides whether to accept a new connection, and which worker serves it. A refused client receives an error line.
pub fn admit(
    core: &Core,
    mut socket: Socket,
    peer: Peer,
    runtime_config: &RuntimeConfig,
    has_open_default_user: bool,
) -> Option<NewConnection> {
    if core.clients.count() >= runtime_config.maxclients {
        core.rejected_connections.fetch_add(1, Ordering::Relaxed);
        return refuse(&mut socket, b"-ERR max number of clients reached\r\n");
    }
    // TLS clients receive the error after the handshake.
    if is_refused_by_protected_mode(runtime_config, peer.loopback, has_open_default_user) && !socket.is_handshaking() {
        core.rejected_connections.fetch_add(1, Ordering::Relaxed);
        return refuse(&mut socket, PROTECTED.as_bytes());
    }
    let is_tls = matches!(socket, Socket::Tls(_));
    let stream = match &socket {
        Socket::Tcp(stream) => Some(stream),
        Socket::Tls(stream) => Some(stream.socket()),
        Socket::Unix(_) => None,
    };
    if let Some(stream) = stream {
        // A socket that does not support these options works without them.
        let _ = stream.set_nodelay(true);
        set_keepalive(&SockRef::from(stream), runtime_config.tcp_keepalive);
    }
    let id = core.clients.next_id();
    let worker = (id as usize - 1) % core.active_workers();
    let now = kvick_runtime::clock::unix_ms();
    let info = ClientInfo::new(id, worker, socket.fd(), peer.peer, peer.local, peer.loopback, now);
    info.set_flags(ClientFlags::UNIX, peer.unix);
    info.set_flags(ClientFlags::TLS, is_tls);
    info.set_flags(ClientFlags::FORWARD, core.routing.is_some() && (peer.forwards || runtime_config.forwards));
    let info = Arc::new(info);
    core.clients.add(info.clone());
    Some(NewConnection { socket, info })
}

/// Whether protected mode refuses a client. `has_open_default_user`: the default user needs no password.
pub fn is_refused_by_protected_mode(
    runtime_config: &RuntimeConfig,
    loopback: bool,
    has_open_default_user: bool,
) -> bool {
    runtime_config.protected_mode && !loopback && has_open_default_user
}

/// The error for such a client.
pub const PROTECTED: &str = "-DENIED Running in protected mode because protected mode is enabled and no password is \
    set for the default user. In this mode connections are only accepted from the loopback interface. To connect from \
    elsewhere: set a password for the default user, or from this host run 'CONFIG SET protected-mode no' (make sure \
    the server cannot be reached from the internet), or start the server with '--protected-mode no'.\r\n";

fn refuse<T>(socket: &mut Socket, line: &[u8]) -> Option<T> {
    if !socket.is_handshaking() {
        // The connection is closed in any case.
        let _ = socket.write(line);
    }
    None
}

fn set_keepalive(socket: &SockRef<'_>, idle: Duration) {
    if idle.is_zero() {
        return;
    }
    let interval = (idle / 3).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(3);
    // As above: without keepalive, a dead peer is detected later.
    let _ = socket.set_tcp_keepalive(&keepalive);
}
