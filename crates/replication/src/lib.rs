//! Replication, on either side of it.
//!
//! Both sides work on the one [write log](kvick_store::log): a primary sends its replicas the log's bytes as they stand
//! there, and a replica appends the bytes that it gets to its own log, under the locks of what they change. So a
//! server's log is its place in a [history] of changes, whichever role it plays, and offsets count the same bytes
//! everywhere.
//!
//! - [`failover`]: a primary hands over to a replica.
//! - [`history`]: which history that is: the replication IDs.
//! - [`replicas`]: the replicas that are attached, as everybody may see them; how far each is.
//! - [`transfer`]: the bytes of a dump on their way to replicas that begin anew.
//! - [`role`]: changing sides.
//! - [`synchronise`]: takes the snapshot that these dumps are of.
//! - [`through_file`]: how they are taken when a file is to be written first.
//! - [`upstream`]: what a replica knows of its primary, and what it is told to do.
//! - [`link`]: the thread that follows a primary: connects, synchronises, applies.
//! - [`full_sync`]: how the thread takes over a dump that the primary sends.
//! - [`two_channels`]: the same by a connection for the dump alone.
//! - [`primary_connection`]: its connections.
//! - [`apply`]: how what a primary sends is executed.
//!
//! The connection of a replica belongs to a worker like any other. That worker writes the dump and then the log to it,
//! straight from where they lie: see `worker/feeding.rs`.

pub mod apply;
pub mod failover;
pub mod full_sync;
pub mod history;
pub mod link;
pub mod migration;
pub mod primary_connection;
pub mod replicas;
mod replicated_core;
pub mod role;
pub mod synchronise;
pub mod through_file;
pub mod transfer;
pub mod two_channels;
pub mod upstream;
mod view;
pub mod writable_replica_keys;

use crate::writable_replica_keys::WritableReplicaKeys;
use failover::Failover;
use history::History;
use kvick_core::Core;
use parking_lot::Mutex;
use replicas::Replicas;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use synchronise::PendingFullSyncs;
use upstream::Upstream;

pub use replicated_core::ReplicatedCore;

/// How long the log is kept for a replica that has got its dump by another connection, in ms.
const ORPHANS_LIVE_MS: i64 = 60_000;

/// What a server knows of replication.
pub struct Replication {
    /// The history that its data belong to.
    pub history: Mutex<History>,
    /// The replicas that are attached.
    pub replicas: Replicas,
    /// Its own primary, if it has one.
    pub upstream: Upstream,
    /// FAILOVER.
    pub failover: Failover,
    /// What replicas begin with.
    pub pending_full_syncs: PendingFullSyncs,
    /// Keys that clients gave a time to live though the server is a replica.
    pub writable_replica_keys: WritableReplicaKeys,
    /// Whether the log keeps a backlog.
    pub has_backlog: AtomicBool,
    /// How many replicas each worker has, by its number.
    feeds: Box<[AtomicUsize]>,
    /// Unix time in ms when replicas were pinged last.
    pub pinged_ms: AtomicI64,
    /// What INFO counts.
    pub counts: Counts,
    /// Milliseconds for which the log is kept for a replica that has got its dump, until it asks for the log.
    pub orphans_live_ms: AtomicI64,
    /// Whether the process stops, until continued, amid synchronisations by two connections: a replica when it is about
    /// to ask for the log, a primary when it has sent a dump as a whole. For tests.
    pub pauses_after_fork: AtomicBool,
}

/// How often replicas were synchronised, and how much went over the links.
#[derive(Default)]
pub struct Counts {
    /// From the beginning.
    pub full: AtomicU64,
    /// From where they were.
    pub partial: AtomicU64,
    /// Tried to be, but were too late or of another history.
    pub partial_refused: AtomicU64,
    /// Bytes that came from the primary.
    pub bytes_in: AtomicU64,
    /// Bytes that were sent to replicas.
    pub bytes_out: AtomicU64,
    /// Commands of the primary's that failed here.
    pub unexpected_errors: AtomicU64,
}

impl Counts {
    /// Counts anew.
    pub fn reset(&self) {
        let Counts { full, partial, partial_refused, bytes_in, bytes_out, unexpected_errors } = self;
        [full, partial, partial_refused, bytes_in, bytes_out, unexpected_errors]
            .iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

impl Replication {
    /// Of a server with so many workers.
    pub fn new(workers: usize) -> Self {
        Replication {
            history: Mutex::default(),
            replicas: Replicas::default(),
            upstream: Upstream::default(),
            failover: Failover::default(),
            pending_full_syncs: PendingFullSyncs::default(),
            writable_replica_keys: WritableReplicaKeys::default(),
            has_backlog: AtomicBool::new(false),
            feeds: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            pinged_ms: AtomicI64::new(kvick_runtime::clock::unix_ms()),
            counts: Counts::default(),
            orphans_live_ms: AtomicI64::new(ORPHANS_LIVE_MS),
            pauses_after_fork: AtomicBool::new(false),
        }
    }

    /// Wakes the workers that have replicas, except for one: there is something to send to them.
    pub fn wake_feeders(&self, core: &Core, except: Option<usize>) {
        for (worker, feeds) in self.feeds.iter().enumerate() {
            if Some(worker) != except && feeds.load(Ordering::Relaxed) > 0 {
                core.wake(worker);
            }
        }
    }

    /// A worker has so many replicas.
    pub fn set_feeds(&self, worker: usize, count: usize) {
        self.feeds[worker].store(count, Ordering::Relaxed);
    }
}
