//! The thread of the bus: waits for sockets and timers, and carries out the actions of the state machine.

use crate::link::{Link, LinkError};
use crate::nodes_file::SaveFailed;
use crate::resolver::{Resolved, Resolver};
use crate::saver::FailureLog;
use crate::{Bus, Host, Thread};
use kvick_cluster::state::{Accepted, Action, LinkId};
use kvick_net::peer::PeerSocket;
use kvick_net::tls::{Materials, Tls};
use kvick_runtime::logging;
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// The token of wake-ups by other threads.
pub const WAKER: Token = Token(0);
/// The token of the first listening socket.
const LISTENERS: usize = 1;
/// The token of link 0: listening sockets have those below it.
const LINKS: usize = 64;

/// The time between two ticks of the state machine.
const TICK: Duration = Duration::from_millis(100);
/// The time between two checks whether a worker still hangs.
const HANG_CHECK: Duration = Duration::from_millis(10);
/// The time between two checks whether a replica that is to take over has caught up.
const OFFSET_CHECK: Duration = Duration::from_millis(1);
/// Connections accepted per event.
const ACCEPTED_AT_ONCE: usize = 1000;
/// Links that may be open: at least twice the nodes of the largest cluster, and strangers.
const LINKS_MAX: usize = 16_384;
/// Frames that a link keeps while its host name is being resolved. Further ones are lost, as on a broken link.
const UNRESOLVED_FRAMES_MAX: usize = 256;
/// The share of the node timeout for which a worker may hang until this node stops answering.
const HANG_DIVISOR: u64 = 2;

/// See the module's documentation.
pub struct EventLoop {
    bus: &'static Bus,
    host: &'static dyn Host,
    poll: Poll,
    listeners: Vec<TcpListener>,
    source: Option<IpAddr>,
    tls: Option<&'static Tls>,
    links: HashMap<LinkId, Link>,
    /// Links that wait for the address of their host name.
    unresolved: HashMap<LinkId, Unresolved>,
    resolver: Resolver,
    /// Links that may have more to read than was read in this turn.
    unread: HashSet<LinkId>,
    /// Links with something to send that has not been tried.
    unsent: HashSet<LinkId>,
    /// Links that have sent or received since the last tick, and those that are gone or have frames left.
    used: HashSet<LinkId>,
    buffer: Vec<u8>,
    /// The progress of a save that the next actions wait for.
    saving: Option<Arc<AtomicU8>>,
    failures: FailureLog,
    next_tick: Instant,
}

/// A link whose host name is being resolved.
struct Unresolved {
    /// The known address, for a name that has none.
    ip: String,
    port: u16,
    /// Frames to be sent.
    frames: Vec<Arc<[u8]>>,
}

/// States of a save.
const SAVING: u8 = 0;
const SAVED: u8 = 1;
const FAILED: u8 = 2;

impl EventLoop {
    pub fn new(bus: &'static Bus, host: &'static dyn Host, thread: Thread) -> io::Result<Self> {
        let Thread { poll, mut listeners, source, tls } = thread;
        for (number, listener) in listeners.iter_mut().enumerate().take(LINKS - LISTENERS) {
            poll.registry().register(listener, Token(LISTENERS + number), Interest::READABLE)?;
        }
        Ok(EventLoop {
            bus,
            host,
            poll,
            listeners,
            source,
            tls,
            links: HashMap::new(),
            unresolved: HashMap::new(),
            resolver: Resolver::new(bus),
            unread: HashSet::new(),
            unsent: HashSet::new(),
            used: HashSet::new(),
            buffer: Vec::new(),
            saving: None,
            failures: FailureLog::default(),
            next_tick: Instant::now(),
        })
    }

    pub fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        loop {
            if self.hangs() {
                std::thread::sleep(HANG_CHECK);
                self.host.before_tick();
                continue;
            }
            let timeout = match self.unread.is_empty() {
                true => self.next_tick.saturating_duration_since(Instant::now()).min(self.wait_max()),
                false => Duration::ZERO,
            };
            if let Err(error) = self.poll.poll(&mut events, Some(timeout))
                && error.kind() != ErrorKind::Interrupted
            {
                logging::warning(format_args!("Cluster bus: waiting for sockets failed: {error}"));
                std::thread::sleep(TICK);
            }
            for event in &events {
                self.handle(event);
            }
            for link in std::mem::take(&mut self.unread) {
                self.receive(link);
            }
            for resolved in self.bus.mailbox.drain() {
                self.connect_resolved(&resolved);
            }
            if Instant::now() >= self.next_tick {
                self.tick();
            } else if self.wait_max() < TICK {
                self.bus.step(&mut |_, _| {});
            }
            self.carry_out();
            if self.bus.replacement_failed.load(Ordering::SeqCst) {
                self.handle_failed_save();
            }
        }
    }

    /// Whether a worker hangs. Then this node neither sends nor answers, so that another one takes its place.
    fn hangs(&self) -> bool {
        let timeout_ms = self.bus.shared.lock().cluster.settings().node_timeout_ms;
        self.host.hangs_for_ms(timeout_ms / HANG_DIVISOR)
    }

    /// How long the thread may wait: a manual failover goes on as soon as the replica has caught up.
    fn wait_max(&self) -> Duration {
        let awaits_offset = self.bus.shared.lock().cluster.awaited_replication_offset().is_some();
        if awaits_offset { OFFSET_CHECK } else { TICK }
    }

    fn handle(&mut self, event: &Event) {
        match event.token() {
            WAKER => {}
            Token(token) if token < LINKS => self.accept(token - LISTENERS),
            Token(token) => {
                let id = LinkId((token - LINKS) as u64);
                self.check_connected(id);
                if event.is_writable() {
                    self.unsent.insert(id);
                }
                // A TLS handshake makes progress by reading.
                if event.is_readable() || event.is_error() || event.is_read_closed() {
                    self.receive(id);
                }
            }
        }
    }

    fn tick(&mut self) {
        self.next_tick = Instant::now() + TICK;
        self.host.before_tick();
        self.report_sizes();
        self.bus.step(&mut |cluster, facts| cluster.tick(facts));
    }

    /// Reports how much waits in the links. Only those are visited whose sizes may have changed: a node may have
    /// thousands of links, of which few are used between two ticks.
    fn report_sizes(&mut self) {
        let mut shared = self.bus.shared.lock();
        self.used.retain(|id| {
            let Some(link) = self.links.get(id) else {
                shared.links.remove(id);
                return false;
            };
            shared.cluster.link_send_buffer(*id, link.queued_bytes() as u64);
            match link.memory() {
                0 => shared.links.remove(id),
                memory => shared.links.insert(*id, memory),
            };
            link.queued_bytes() > 0
        });
    }

    fn materials(&self) -> io::Result<Option<Arc<Materials>>> {
        let Some(tls) = self.tls else { return Ok(None) };
        tls.materials().map(Some).ok_or_else(|| io::Error::other("TLS is not set up"))
    }

    fn accept(&mut self, number: usize) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some(listener) = self.listeners.get(number) else { return };
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    logging::verbose(format_args!("Error accepting cluster node: {error}"));
                    return;
                }
            };
            if self.links.len() >= LINKS_MAX {
                // The connection is closed by dropping it.
                continue;
            }
            let socket = match self.materials().and_then(|materials| PeerSocket::accepted(stream, materials.as_deref()))
            {
                Ok(socket) => socket,
                Err(error) => {
                    logging::verbose(format_args!("Error accepting cluster node connection: {error}"));
                    continue;
                }
            };
            logging::debug(format_args!("Accepting cluster node connection from {peer}"));
            let peer_ip = peer.ip().to_canonical().to_string();
            let local_ip = socket.local_ip().map(|ip| ip.to_string()).unwrap_or_default();
            let mut id = None;
            self.bus.step(&mut |cluster, facts| {
                let addresses = Accepted { peer_ip: &peer_ip, peer_port: peer.port(), local_ip: &local_ip };
                id = Some(cluster.link_accepted(addresses, facts));
            });
            if let Some(id) = id {
                self.add(id, Link::new(socket, false));
            }
        }
    }

    /// Adds a link and registers its socket.
    fn add(&mut self, id: LinkId, mut link: Link) {
        match link.socket.register(self.poll.registry(), Token(LINKS + id.0 as usize)) {
            Ok(()) => {
                self.links.insert(id, link);
            }
            Err(error) => self.lost(id, &LinkError::Io(error)),
        }
    }

    /// Connects to a known address, or to that of a host name as soon as it is resolved.
    fn resolve_and_connect(&mut self, id: LinkId, ip: String, port: u16, hostname: Option<String>) {
        if hostname.is_some_and(|hostname| self.resolver.query(id, hostname, ip.parse().ok())) {
            self.unresolved.insert(id, Unresolved { ip, port, frames: Vec::new() });
        } else {
            self.connect(id, &ip, port);
        }
    }

    /// Connects a link whose host name has been resolved, unless the state machine has closed it.
    fn connect_resolved(&mut self, resolved: &Resolved) {
        let id = resolved.link;
        let Some(Unresolved { ip, port, frames }) = self.unresolved.remove(&id) else { return };
        self.connect(id, &resolved.ip.map_or(ip, |ip| ip.to_string()), port);
        for frame in frames {
            self.send(id, frame);
        }
    }

    /// Queues a frame. It is sent when the present actions have been carried out and the link is connected.
    fn send(&mut self, id: LinkId, frame: Arc<[u8]>) {
        let Some(link) = self.links.get_mut(&id) else { return };
        match link.push(frame) {
            Ok(()) => {
                self.unsent.insert(id);
            }
            Err(error) => self.lost(id, &error),
        }
    }

    fn connect(&mut self, id: LinkId, ip: &str, port: u16) {
        let begun = || -> io::Result<PeerSocket> {
            let ip: IpAddr = ip.parse().map_err(io::Error::other)?;
            PeerSocket::connect(SocketAddr::new(ip, port), self.source, self.materials()?.as_deref())
        };
        match begun() {
            Ok(socket) => {
                self.add(id, Link::new(socket, true));
                self.check_connected(id);
            }
            Err(error) => {
                logging::debug(format_args!("Unable to connect to Cluster Node [{ip}]:{port} -> {error}"));
                self.lost(id, &LinkError::Io(error));
            }
        }
    }

    /// Tells the state machine when a connection that this node has begun is made, or has failed.
    fn check_connected(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id).filter(|link| link.is_connecting) else { return };
        match link.socket.connected() {
            None => {}
            Some(Ok(peer)) => {
                link.is_connecting = false;
                let local_ip = link.socket.local_ip().map(|ip| ip.to_string()).unwrap_or_default();
                let peer_ip = peer.ip().to_canonical().to_string();
                self.bus.step(&mut |cluster, facts| {
                    let addresses = Accepted { peer_ip: &peer_ip, peer_port: peer.port(), local_ip: &local_ip };
                    cluster.link_connected(id, addresses, facts);
                });
                self.unsent.insert(id);
            }
            Some(Err(error)) => self.lost(id, &LinkError::Io(error)),
        }
    }

    /// Reads what is available, and passes it to the state machine.
    fn receive(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let bus = self.bus;
        let result = link.receive(&mut self.buffer, |frame| {
            let mut exists = true;
            bus.step(&mut |cluster, facts| {
                cluster.received(id, frame, facts);
                exists = cluster.has_link(id);
            });
            exists
        });
        match result {
            Ok(true) => {
                self.unread.insert(id);
            }
            Ok(false) => {}
            Err(error) => self.lost(id, &error),
        }
        // A TLS handshake may have made the link writable.
        self.unsent.insert(id);
    }

    /// A link has ended, or could not be made.
    fn lost(&mut self, id: LinkId, error: &LinkError) {
        self.links.remove(&id);
        self.used.insert(id);
        if let LinkError::Frame(error) = error {
            logging::warning(format_args!("Bad message length or signature received from Cluster bus: {error}."));
        }
        let reason = error.to_string();
        self.bus.step(&mut |cluster, facts| {
            if cluster.has_link(id) {
                cluster.link_closed(id, &reason, facts);
            }
        });
    }

    /// Carries out the actions that the state machine has asked for, up to a save that is not finished, and sends.
    fn carry_out(&mut self) {
        while !self.is_saving() {
            let Some(action) = self.bus.shared.lock().actions.pop_front() else { break };
            match action {
                Action::Connect { link, ip, port, hostname, .. } => self.resolve_and_connect(link, ip, port, hostname),
                Action::Disconnect(link) => {
                    self.links.remove(&link);
                    self.used.insert(link);
                    self.unresolved.remove(&link);
                }
                Action::Send { link: id, frame } => {
                    if let Some(unresolved) = self.unresolved.get_mut(&id) {
                        if unresolved.frames.len() < UNRESOLVED_FRAMES_MAX {
                            unresolved.frames.push(frame);
                        }
                        continue;
                    }
                    self.send(id, frame);
                }
                Action::Save { sync } => self.save(sync),
                _ => debug_assert!(false, "the host does that"),
            }
        }
        for id in std::mem::take(&mut self.unsent) {
            self.used.insert(id);
            let Some(link) = self.links.get_mut(&id).filter(|link| !link.is_connecting) else { continue };
            if let Err(error) = link.send() {
                self.lost(id, &error);
            }
        }
    }

    /// Starts a save. The next actions wait for a durable one.
    fn save(&mut self, sync: bool) {
        let progress = Arc::new(AtomicU8::new(SAVING));
        let (bus, durable, done) = (self.bus, progress.clone(), progress.clone());
        let durable = move || {
            durable.store(SAVED, Ordering::SeqCst);
            bus.mailbox.wake();
        };
        let done = move |result: Result<(), SaveFailed>| {
            let state = if result.is_ok() { SAVED } else { FAILED };
            if done.swap(state, Ordering::SeqCst) == SAVED && result.is_err() {
                bus.replacement_failed.store(true, Ordering::SeqCst);
            }
            bus.mailbox.wake();
        };
        let (content, is_also_durable) = bus.shared.lock().take_saves(bus.now());
        bus.saver.save(content, sync || is_also_durable, durable, done);
        self.saving = Some(progress);
    }

    fn is_saving(&mut self) -> bool {
        match self.saving.as_ref().map_or(SAVED, |saving| saving.load(Ordering::SeqCst)) {
            SAVING => return true,
            FAILED => self.handle_failed_save(),
            _ => {}
        }
        self.saving = None;
        false
    }

    fn handle_failed_save(&mut self) {
        self.bus.replacement_failed.store(false, Ordering::SeqCst);
        if self.bus.tolerates_failed_saves.load(Ordering::Relaxed) {
            self.failures.log();
        } else {
            logging::warning(format_args!("Fatal: can't update cluster config file."));
            self.host.must_exit();
        }
    }
}
