//! What a replica knows of its primary, and what it is told to do.
//!
//! Commands say whom to follow, under the world lock; the thread of [`link`](super::link) does it. Each wish has a
//! number, and the thread applies nothing of a primary whose wish is not the present one any more: it compares while
//! nobody can have the world.

use kvick_runtime::clock;
use parking_lot::{Condvar, Mutex};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A primary's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A name or an address.
    pub host: String,
    /// A TCP port.
    pub port: u16,
}

/// How far the link to the primary is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum LinkStage {
    /// It is to be made.
    Connect,
    /// It is being made.
    Connecting,
    /// Who is who is being told.
    Handshake,
    /// A dump is being received.
    Receiving,
    /// What the primary sends is applied.
    Connected,
}

impl LinkStage {
    const ALL: [LinkStage; 5] =
        [LinkStage::Connect, LinkStage::Connecting, LinkStage::Handshake, LinkStage::Receiving, LinkStage::Connected];

    /// As ROLE calls it.
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
    wish: Mutex<Wish>,
    changed: Condvar,
    is_replica: AtomicBool,
    number: AtomicU64,
    stage: AtomicU8,
    /// The connections to the primary, for others to interrupt.
    sockets: Mutex<Vec<TcpStream>>,
    /// Unix time in ms when the primary was heard of.
    pub heard_ms: AtomicI64,
    /// Unix time in ms since which the link is down.
    pub down_since_ms: AtomicI64,
    /// Bytes of the dump that is being received; 0 when that is not known.
    pub dump_bytes: AtomicU64,
    /// Bytes of it that have come.
    pub dump_received: AtomicU64,
    /// Bytes of the primary's log that are kept until a dump is loaded, and the most that ever were.
    pub kept_bytes: AtomicU64,
    /// See there.
    pub kept_peak: AtomicU64,
    /// Bytes of the primary's log that have come and wait for the end of a pause.
    pub unapplied: AtomicU64,
    /// The database that the primary's log works in.
    pub database: AtomicUsize,
}

#[derive(Default)]
struct Wish {
    target: Option<Target>,
}

impl Upstream {
    /// Whether the server is a replica.
    #[inline]
    pub fn is_replica(&self) -> bool {
        self.is_replica.load(Ordering::Relaxed)
    }

    /// The primary, if there is one.
    pub fn target(&self) -> Option<Target> {
        self.wish.lock().target.clone()
    }

    /// Has the server follow a primary, or none. The world is held.
    pub fn follow(&self, target: Option<Target>) {
        let mut wish = self.wish.lock();
        self.is_replica.store(target.is_some(), Ordering::Relaxed);
        wish.target = target;
        self.number.fetch_add(1, Ordering::SeqCst);
        self.set_stage(LinkStage::Connect);
        self.changed.notify_all();
        drop(wish);
        self.interrupt();
    }

    /// The number of the present wish.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Waits until there is a primary to follow; it, and the number of the wish.
    pub fn wait_for_target(&self) -> (Target, u64) {
        let mut wish = self.wish.lock();
        loop {
            if let Some(target) = &wish.target {
                return (target.clone(), self.number());
            }
            self.changed.wait(&mut wish);
        }
    }

    /// Waits, but no longer than until the wish of this number is not the present one any more.
    pub fn pause(&self, number: u64, time: Duration) {
        let until = Instant::now() + time;
        let mut wish = self.wish.lock();
        while self.number() == number && !self.changed.wait_until(&mut wish, until).timed_out() {}
    }

    /// How far the link is.
    pub fn stage(&self) -> LinkStage {
        LinkStage::ALL[self.stage.load(Ordering::Relaxed) as usize]
    }

    /// It is that far.
    pub fn set_stage(&self, stage: LinkStage) {
        let before = self.stage.swap(stage as u8, Ordering::Relaxed);
        if before == LinkStage::Connected as u8 && stage != LinkStage::Connected {
            self.down_since_ms.store(clock::unix_ms(), Ordering::Relaxed);
        }
    }

    /// Whether what the primary sends is being applied.
    pub fn is_connected(&self) -> bool {
        self.stage() == LinkStage::Connected
    }

    /// Lets others interrupt a connection.
    pub fn add_socket(&self, socket: TcpStream) {
        self.sockets.lock().push(socket);
    }

    /// The connections have ended.
    pub fn forget_sockets(&self) {
        self.sockets.lock().clear();
    }

    /// Breaks the connections.
    pub fn interrupt(&self) {
        for socket in self.sockets.lock().drain(..) {
            // One that is closed already is as good.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
