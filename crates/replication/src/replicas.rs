//! The replicas attached to this server.

use super::upstream::Target;
use kvick_core::clients::ClientInfo;
use kvick_durability::persistence::format::Parts;
use kvick_runtime::clock;
use kvick_store::log::Follower;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The stage of a replica's synchronisation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Stage {
    /// It has sent REPLCONF only.
    Handshake,
    /// It waits for a snapshot to begin.
    Waiting,
    /// It waits for a snapshot that is being written to disk.
    Saving,
    /// It receives a dump.
    Receiving,
    /// It receives the log and buffers it until it has loaded a dump from another connection.
    BgTransfer,
    /// It follows the log.
    Online,
}

impl Stage {
    const ALL: [Stage; 6] =
        [Stage::Handshake, Stage::Waiting, Stage::Saving, Stage::Receiving, Stage::BgTransfer, Stage::Online];

    /// The name in INFO.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Handshake => "handshake",
            Stage::Waiting | Stage::Saving => "wait_bgsave",
            Stage::Receiving => "send_bulk",
            Stage::BgTransfer => "bg_transfer",
            Stage::Online => "online",
        }
    }
}

/// A replica. Its connection's worker writes this; any thread may read it.
pub struct Replica {
    /// Its connection.
    pub client: Arc<ClientInfo>,
    stage: AtomicU8,
    /// The listening port that it has announced; 0 if none.
    pub port: AtomicU16,
    /// The address that it has announced.
    pub announced: Mutex<String>,
    /// Whether it accepts a dump of unknown length.
    pub supports_eof: AtomicBool,
    /// Whether it accepts a dump over a separate connection.
    pub supports_dual_channel: AtomicBool,
    /// Whether this connection requests a dump only, without the log.
    pub is_dump_only: AtomicBool,
    /// The parts of the data set that it requests.
    pub requested_parts: Mutex<Parts>,
    /// Whether this connection carries only the dump, for a replica that receives the log over another one.
    pub is_dump_channel: AtomicBool,
    /// The ID of the client that is this replica's dump channel; 0 for none.
    pub dump_channel: AtomicU64,
    /// Retains the log from the dump's offset on until the replica requests it over its other connection.
    pub pin: Mutex<Option<Follower>>,
    /// When a dump without a log was completely sent, as Unix time in ms; 0 before that.
    pub dump_sent_ms: AtomicI64,
    /// When writes to it began to block, as Unix time in ms; 0 if they do not.
    pub write_blocked_since_ms: AtomicI64,
    /// Whether it used SYNC, without replication IDs.
    pub is_pre_psync: AtomicBool,
    /// Whether it can continue with another replication ID.
    pub supports_psync2: AtomicBool,
    /// Its program version, as a number; 0 if unknown.
    pub version: AtomicU32,
    /// Its node in the cluster, as it has announced.
    pub node_id: Mutex<Option<Box<[u8]>>>,
    /// The last acknowledged applied offset.
    pub applied: AtomicU64,
    /// The last acknowledged synced offset.
    pub synced: AtomicU64,
    /// When it last acknowledged, as Unix time in ms.
    pub last_ack_ms: AtomicI64,
}

impl Replica {
    /// A client that introduces itself as a replica.
    pub fn new(client: Arc<ClientInfo>) -> Self {
        Replica {
            client,
            stage: AtomicU8::new(Stage::Handshake as u8),
            port: AtomicU16::new(0),
            announced: Mutex::default(),
            supports_eof: AtomicBool::new(false),
            supports_dual_channel: AtomicBool::new(false),
            is_dump_only: AtomicBool::new(false),
            requested_parts: Mutex::new(Parts::ALL),
            is_dump_channel: AtomicBool::new(false),
            dump_channel: AtomicU64::new(0),
            pin: Mutex::default(),
            dump_sent_ms: AtomicI64::new(0),
            write_blocked_since_ms: AtomicI64::new(0),
            is_pre_psync: AtomicBool::new(false),
            supports_psync2: AtomicBool::new(false),
            version: AtomicU32::new(0),
            node_id: Mutex::default(),
            applied: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            last_ack_ms: AtomicI64::new(clock::unix_ms()),
        }
    }

    /// The present stage.
    pub fn stage(&self) -> Stage {
        Stage::ALL[self.stage.load(Ordering::Acquire) as usize]
    }

    /// Sets the stage.
    pub fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// The kind of replica in INFO.
    pub fn kind(&self) -> &'static str {
        if self.is_dump_channel.load(Ordering::Relaxed) {
            "rdb-channel"
        } else if self.stage() == Stage::BgTransfer {
            "main-channel"
        } else {
            "replica"
        }
    }

    /// The address at which it can be reached.
    pub fn address(&self) -> String {
        let announced = self.announced.lock();
        if !announced.is_empty() {
            return announced.clone();
        }
        let peer = &self.client.peer;
        peer.rsplit_once(':').map_or(peer.as_str(), |(address, _)| address).trim_matches(['[', ']']).into()
    }

    /// Whether it can be reached at this address.
    pub fn is_at(&self, target: &Target) -> bool {
        self.port.load(Ordering::Relaxed) == target.port && self.address() == target.host
    }

    /// Its address and port, for the log.
    pub fn name(&self) -> String {
        match self.port.load(Ordering::Relaxed) {
            0 => format!("client id #{}", self.client.id),
            port => format!("{}:{port}", self.address()),
        }
    }

    /// Milliseconds since its last acknowledgement.
    pub fn since_ack_ms(&self, now_ms: i64) -> i64 {
        now_ms - self.last_ack_ms.load(Ordering::Relaxed)
    }
}

fn count_good(all: &[Arc<Replica>], lag_s: u32, now_ms: i64) -> usize {
    let is_good = |replica: &&Arc<Replica>| {
        replica.stage() == Stage::Online && replica.since_ack_ms(now_ms) <= i64::from(lag_s) * 1000
    };
    all.iter().filter(is_good).count()
}

/// The attached replicas: those that have requested a synchronisation.
#[derive(Default)]
pub struct Replicas {
    all: RwLock<Vec<Arc<Replica>>>,
    /// Closed dump channels whose replicas have not requested the log yet.
    orphans: Mutex<Vec<Arc<Replica>>>,
    count: AtomicUsize,
    /// Unix time in ms since when no replica has been attached; 0 if one is, or none ever was.
    no_replicas_since_ms: AtomicI64,
}

impl Replicas {
    /// The number of replicas.
    #[inline]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All replicas, in the order of their arrival.
    pub fn all(&self) -> Vec<Arc<Replica>> {
        self.all.read().clone()
    }

    /// Attaches a replica.
    pub fn attach(&self, replica: Arc<Replica>) {
        let mut all = self.all.write();
        if !all.iter().any(|known| Arc::ptr_eq(known, &replica)) {
            all.push(replica);
        }
        self.count.store(all.len(), Ordering::Relaxed);
        self.no_replicas_since_ms.store(0, Ordering::Relaxed);
    }

    /// Detaches a replica. Returns whether it was attached.
    pub fn detach(&self, replica: &Arc<Replica>) -> bool {
        let mut all = self.all.write();
        let before = all.len();
        all.retain(|known| !Arc::ptr_eq(known, replica));
        self.count.store(all.len(), Ordering::Relaxed);
        if all.is_empty() && before > 0 {
            self.no_replicas_since_ms.store(clock::unix_ms(), Ordering::Relaxed);
        }
        before > all.len()
    }

    /// Whether a replica is attached.
    pub fn is_attached(&self, replica: &Arc<Replica>) -> bool {
        self.all.read().iter().any(|known| Arc::ptr_eq(known, replica))
    }

    /// Keeps a closed dump channel, for the replica that will request the log.
    pub fn add_orphan(&self, channel: Arc<Replica>) {
        self.orphans.lock().push(channel);
    }

    /// Stops retaining the log for dump channels whose dump was sent before a Unix time in ms. Returns those channels.
    pub fn unpin(&self, before_ms: i64) -> Vec<Arc<Replica>> {
        let mut orphans = self.orphans.lock();
        orphans.retain(|channel| channel.pin.lock().is_some());
        let attached = self.all.read();
        let is_late = |channel: &&Arc<Replica>| {
            let sent_ms = channel.dump_sent_ms.load(Ordering::Relaxed);
            sent_ms != 0 && sent_ms < before_ms
        };
        let late = attached.iter().chain(orphans.iter()).filter(is_late);
        late.filter(|channel| channel.pin.lock().take().is_some()).cloned().collect()
    }

    /// The dump channel with this client ID, if the log is still retained for it.
    pub fn dump_channel(&self, client: u64) -> Option<Arc<Replica>> {
        let matches = |channel: &&Arc<Replica>| channel.client.id == client && channel.pin.lock().is_some();
        let attached = self.all.read().iter().find(matches).cloned();
        attached.or_else(|| self.orphans.lock().iter().find(matches).cloned())
    }

    /// The number of dump channels for which the log is retained.
    pub fn pinned(&self) -> usize {
        let pinned = |channel: &&Arc<Replica>| channel.pin.lock().is_some();
        let orphans = self.orphans.lock();
        self.all.read().iter().filter(pinned).count() + orphans.iter().filter(pinned).count()
    }

    /// Milliseconds since the last replica was detached, if there were any.
    pub fn no_replicas_for_ms(&self, now_ms: i64) -> Option<i64> {
        let since = self.no_replicas_since_ms.load(Ordering::Relaxed);
        (since != 0).then(|| now_ms - since)
    }

    /// The number of online replicas that acknowledged within `lag_s` seconds.
    pub fn count_good(&self, lag_s: u32, now_ms: i64) -> usize {
        count_good(&self.all.read(), lag_s, now_ms)
    }

    /// Acts on that number under a lock, so that the last action uses the last count.
    pub fn with_good_count(&self, lag_s: u32, now_ms: i64, act: impl FnOnce(usize)) {
        let all = self.all.write();
        act(count_good(&all, lag_s, now_ms));
    }

    /// The number of replicas that have applied the log up to an offset, or have it in a file with `synced`.
    pub fn count_acked(&self, offset: u64, synced: bool) -> usize {
        let place = |replica: &Replica| if synced { &replica.synced } else { &replica.applied }.load(Ordering::Acquire);
        let all = self.all.read();
        all.iter().filter(|replica| replica.stage() == Stage::Online && place(replica) >= offset).count()
    }
}
