//! The replicas that are attached to this core, as everybody may see them.

use super::upstream::Target;
use kvick_core::clients::ClientInfo;
use kvick_durability::persistence::form::Parts;
use kvick_runtime::clock;
use kvick_store::log::Follower;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How far a replica's synchronisation is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Stage {
    /// It has told something of itself, no more.
    Introduced,
    /// It waits for a snapshot to begin.
    Waiting,
    /// It waits for a snapshot that is being written to disk.
    Saving,
    /// It is sent a dump.
    Receiving,
    /// It is sent the log, and keeps that until it has loaded a dump which came by another connection.
    Keeping,
    /// It follows the log.
    Online,
}

impl Stage {
    const ALL: [Stage; 6] =
        [Stage::Introduced, Stage::Waiting, Stage::Saving, Stage::Receiving, Stage::Keeping, Stage::Online];

    /// As INFO calls it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Introduced => "handshake",
            Stage::Waiting | Stage::Saving => "wait_bgsave",
            Stage::Receiving => "send_bulk",
            Stage::Keeping => "bg_transfer",
            Stage::Online => "online",
        }
    }
}

/// A replica. Its connection's worker writes this, anybody reads it.
pub struct Replica {
    /// Its connection.
    pub client: Arc<ClientInfo>,
    stage: AtomicU8,
    /// The port that it listens on, as it says; 0 if it has not.
    pub port: AtomicU16,
    /// The address that it is to be reached at, if it says so.
    pub announced: Mutex<String>,
    /// Whether a dump of unknown length may be sent to it.
    pub takes_streams: AtomicBool,
    /// Whether it takes a dump by a connection of its own.
    pub takes_two_channels: AtomicBool,
    /// Whether this is the connection for a dump alone, to be followed by nothing.
    pub wants_dump_only: AtomicBool,
    /// What its dump is to hold.
    pub wanted_parts: Mutex<Parts>,
    /// Whether this is the connection for the dump of a replica that is sent the log by another one.
    pub is_dump_channel: AtomicBool,
    /// The ID of the client that is this replica's dump channel; 0 for none.
    pub dump_channel: AtomicU64,
    /// What keeps the log from the dump's offset on until the replica asks for it by its other connection.
    pub pin: Mutex<Option<Follower>>,
    /// Unix time in ms when a dump that is followed by nothing had been sent; 0 before that.
    pub dump_sent_ms: AtomicI64,
    /// Unix time in ms since which no byte could be written to it though there were some; 0 when that is not so.
    pub stuck_since_ms: AtomicI64,
    /// Whether it came with SYNC, and knows nothing of histories.
    pub is_old: AtomicBool,
    /// Whether it can go on with another ID of the history.
    pub knows_second_id: AtomicBool,
    /// The version of its program, as a number; 0 if it has not said.
    pub version: AtomicU32,
    /// The offset that it has applied, as it said last.
    pub applied: AtomicU64,
    /// The offset that its file holds, as it said last.
    pub synced: AtomicU64,
    /// Unix time in ms when it said so.
    pub heard_ms: AtomicI64,
}

impl Replica {
    /// A client that introduces itself as a replica.
    pub fn new(client: Arc<ClientInfo>) -> Self {
        Replica {
            client,
            stage: AtomicU8::new(Stage::Introduced as u8),
            port: AtomicU16::new(0),
            announced: Mutex::default(),
            takes_streams: AtomicBool::new(false),
            takes_two_channels: AtomicBool::new(false),
            wants_dump_only: AtomicBool::new(false),
            wanted_parts: Mutex::new(Parts::ALL),
            is_dump_channel: AtomicBool::new(false),
            dump_channel: AtomicU64::new(0),
            pin: Mutex::default(),
            dump_sent_ms: AtomicI64::new(0),
            stuck_since_ms: AtomicI64::new(0),
            is_old: AtomicBool::new(false),
            knows_second_id: AtomicBool::new(false),
            version: AtomicU32::new(0),
            applied: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            heard_ms: AtomicI64::new(clock::unix_ms()),
        }
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        Stage::ALL[self.stage.load(Ordering::Acquire) as usize]
    }

    /// It is that far now.
    pub fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// As what it is attached, as INFO calls it.
    pub fn kind(&self) -> &'static str {
        if self.is_dump_channel.load(Ordering::Relaxed) {
            "rdb-channel"
        } else if self.stage() == Stage::Keeping {
            "main-channel"
        } else {
            "replica"
        }
    }

    /// The address to reach it at.
    pub fn address(&self) -> String {
        let announced = self.announced.lock();
        if !announced.is_empty() {
            return announced.clone();
        }
        let peer = &self.client.peer;
        peer.rsplit_once(':').map_or(peer.as_str(), |(address, _)| address).trim_matches(['[', ']']).into()
    }

    /// Whether it is to be reached at this address.
    pub fn is_at(&self, target: &Target) -> bool {
        self.port.load(Ordering::Relaxed) == target.port && self.address() == target.host
    }

    /// Its address and port, as the log names it.
    pub fn name(&self) -> String {
        match self.port.load(Ordering::Relaxed) {
            0 => format!("client id #{}", self.client.id),
            port => format!("{}:{port}", self.address()),
        }
    }

    /// Milliseconds since it was heard of.
    pub fn silent_ms(&self, now_ms: i64) -> i64 {
        now_ms - self.heard_ms.load(Ordering::Relaxed)
    }
}

fn good(all: &[Arc<Replica>], lag_s: u32, now_ms: i64) -> usize {
    let is_good = |replica: &&Arc<Replica>| {
        replica.stage() == Stage::Online && replica.silent_ms(now_ms) <= i64::from(lag_s) * 1000
    };
    all.iter().filter(is_good).count()
}

/// All that are attached: those that have asked to be synchronised.
#[derive(Default)]
pub struct Replicas {
    all: RwLock<Vec<Arc<Replica>>>,
    /// Dump channels that have done their work and are closed, while the log is yet to be asked for.
    orphans: Mutex<Vec<Arc<Replica>>>,
    count: AtomicUsize,
    /// Unix time in ms since which there has been none; 0 while there are some, or there never was one.
    none_since_ms: AtomicI64,
}

impl Replicas {
    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All, in the order in which they came.
    pub fn all(&self) -> Vec<Arc<Replica>> {
        self.all.read().clone()
    }

    /// One more.
    pub fn attach(&self, replica: Arc<Replica>) {
        let mut all = self.all.write();
        if !all.iter().any(|known| Arc::ptr_eq(known, &replica)) {
            all.push(replica);
        }
        self.count.store(all.len(), Ordering::Relaxed);
        self.none_since_ms.store(0, Ordering::Relaxed);
    }

    /// One less; whether it was attached.
    pub fn detach(&self, replica: &Arc<Replica>) -> bool {
        let mut all = self.all.write();
        let before = all.len();
        all.retain(|known| !Arc::ptr_eq(known, replica));
        self.count.store(all.len(), Ordering::Relaxed);
        if all.is_empty() && before > 0 {
            self.none_since_ms.store(clock::unix_ms(), Ordering::Relaxed);
        }
        before > all.len()
    }

    /// Keeps a dump channel that is closed, for the replica that is about to ask for the log.
    pub fn keep_orphan(&self, channel: Arc<Replica>) {
        self.orphans.lock().push(channel);
    }

    /// Keeps the log no longer for dump channels that had been sent theirs before a Unix time in ms; which these are.
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

    /// The dump channel with this client ID, if the log is still kept for it.
    pub fn dump_channel(&self, client: u64) -> Option<Arc<Replica>> {
        let fits = |channel: &&Arc<Replica>| channel.client.id == client && channel.pin.lock().is_some();
        let attached = self.all.read().iter().find(fits).cloned();
        attached.or_else(|| self.orphans.lock().iter().find(fits).cloned())
    }

    /// How many dump channels there are for which the log is kept.
    pub fn pinned(&self) -> usize {
        let pinned = |channel: &&Arc<Replica>| channel.pin.lock().is_some();
        let orphans = self.orphans.lock();
        self.all.read().iter().filter(pinned).count() + orphans.iter().filter(pinned).count()
    }

    /// Milliseconds for which there has been none, if there were some before.
    pub fn none_for_ms(&self, now_ms: i64) -> Option<i64> {
        let since = self.none_since_ms.load(Ordering::Relaxed);
        (since != 0).then(|| now_ms - since)
    }

    /// Those that are online and were heard of within `lag_s` seconds.
    pub fn good(&self, lag_s: u32, now_ms: i64) -> usize {
        good(&self.all.read(), lag_s, now_ms)
    }

    /// Acts on the number of those. Nobody else does so meanwhile: the last word is that of the last count.
    pub fn act_on_good(&self, lag_s: u32, now_ms: i64, act: impl FnOnce(usize)) {
        let all = self.all.write();
        act(good(&all, lag_s, now_ms));
    }

    /// Those that have applied everything up to an offset, or keep it in a file with `synced`.
    pub fn reached(&self, offset: u64, synced: bool) -> usize {
        let place = |replica: &Replica| if synced { &replica.synced } else { &replica.applied }.load(Ordering::Acquire);
        let all = self.all.read();
        all.iter().filter(|replica| replica.stage() == Stage::Online && place(replica) >= offset).count()
    }
}
