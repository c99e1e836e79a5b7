//! A replica's view of its primary, and the primary to follow.
//!
//! Commands set the target under the global lock; the thread of [`link`](super::link) follows it. Each change of target
//! starts a new generation. Before it applies commands, the thread compares its generation with the current one, while
//! no other thread can hold the global lock.

use kvick_runtime::clock;
use parking_lot::{Condvar, Mutex};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A name or an address.
    pub host: String,
    /// A TCP port.
    pub port: u16,
    /// Its node ID, in a cluster. The address of a dead node may be in use by another one.
    pub node_id: Option<[u8; 40]>,
}

impl Target {
    /// Any server at this address.
    pub fn at(host: impl Into<String>, port: u16) -> Target {
        Target { host: host.into(), port, node_id: None }
    }
}

/// The stage of the link to the primary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum LinkStage {
    /// Not connected yet.
    Connect,
    /// Connecting.
    Connecting,
    /// The handshake is running.
    Handshake,
    /// A dump is being received.
    Receiving,
    /// The primary's stream is applied.
    Connected,
}

impl LinkStage {
    const ALL: [LinkStage; 5] =
        [LinkStage::Connect, LinkStage::Connecting, LinkStage::Handshake, LinkStage::Receiving, LinkStage::Connected];

    /// The name in ROLE.
    pub fn name(self) -> &'static str {
        match self {
            LinkStage::Connect => "connect",
            LinkStage::Connecting => "connecting",
            LinkStage::Handshake => "handshake",
            LinkStage::Receiving => "sync",
            LinkStage::Connected => "connected",
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Upstream {
    state: Mutex<State>,
    changed: Condvar,
    is_replica: AtomicBool,
    generation: AtomicU64,
    /// The latest generation whose data this server had.
    synced_generation: AtomicU64,
    stage: AtomicU8,
    /// The connections to the primary, which other threads can interrupt.
    sockets: Mutex<Vec<TcpStream>>,
    /// When the primary was last heard from, as Unix time in ms.
    pub last_io_ms: AtomicI64,
    /// When the link went down, as Unix time in ms; 0 if it was never up since the server became a replica.
    pub down_since_ms: AtomicI64,
    /// Size in bytes of the dump being received; 0 if unknown.
    pub dump_bytes: AtomicU64,
    /// Bytes of it received.
    pub dump_received: AtomicU64,
    /// Bytes of the primary's log buffered until a dump is loaded.
    pub buffered_bytes: AtomicU64,
    /// The peak of `buffered_bytes`.
    pub buffered_peak: AtomicU64,
    /// Bytes of the primary's log received but not applied, because of a pause.
    pub unapplied_bytes: AtomicU64,
    /// The database that the primary's log has selected.
    pub database: AtomicUsize,
}

#[derive(Default)]
struct State {
    target: Option<Target>,
}

/// The primary to follow.
pub struct Assignment {
    /// Its address.
    pub target: Target,
    /// The generation: it changes when another primary is to be followed, or none.
    pub generation: u64,
}

impl Upstream {
    /// Whether the server is a replica.
    #[inline]
    pub fn is_replica(&self) -> bool {
        self.is_replica.load(Ordering::Relaxed)
    }

    /// The primary, if any.
    pub fn target(&self) -> Option<Target> {
        self.state.lock().target.clone()
    }

    /// Follows this primary, or none. The caller holds the global lock.
    pub fn follow(&self, target: Option<Target>) {
        let mut state = self.state.lock();
        self.is_replica.store(target.is_some(), Ordering::Relaxed);
        self.set_stage(LinkStage::Connect);
        if target.is_none() {
            // A server that becomes a replica again was never connected to that primary.
            self.down_since_ms.store(0, Ordering::Relaxed);
        }
        state.target = target;
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_all();
        drop(state);
        self.interrupt();
    }

    /// The current generation.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// The latest generation whose data this server had: it applied the stream of that primary.
    pub fn synced_generation(&self) -> u64 {
        self.synced_generation.load(Ordering::SeqCst)
    }

    /// The link of a generation is connected, and the data is that of its primary.
    pub fn set_connected(&self, generation: u64) {
        self.synced_generation.fetch_max(generation, Ordering::SeqCst);
        self.set_stage(LinkStage::Connected);
    }

    /// Waits until there is a primary to follow.
    pub fn wait_for_target(&self) -> Assignment {
        let mut state = self.state.lock();
        loop {
            if let Some(target) = &state.target {
                return Assignment { target: target.clone(), generation: self.generation() };
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits for this time, or until the generation changes.
    pub fn sleep_unless_changed(&self, generation: u64, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while self.generation() == generation && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    /// The present stage.
    pub fn stage(&self) -> LinkStage {
        LinkStage::ALL[self.stage.load(Ordering::Relaxed) as usize]
    }

    /// Sets the stage.
    pub fn set_stage(&self, stage: LinkStage) {
        let before = self.stage.swap(stage as u8, Ordering::Relaxed);
        if before == LinkStage::Connected as u8 && stage != LinkStage::Connected {
            self.down_since_ms.store(clock::unix_ms(), Ordering::Relaxed);
        }
    }

    /// Whether the primary's stream is being applied.
    pub fn is_connected(&self) -> bool {
        self.stage() == LinkStage::Connected
    }

    /// Registers a connection that other threads can interrupt.
    pub fn add_socket(&self, socket: TcpStream) {
        self.sockets.lock().push(socket);
    }

    /// The connections have ended.
    pub fn forget_sockets(&self) {
        self.sockets.lock().clear();
    }

    /// Shuts the connections down.
    pub fn interrupt(&self) {
        for socket in self.sockets.lock().drain(..) {
            // It may already be closed.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
