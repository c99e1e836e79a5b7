//! Replication, for both roles.
//!
//! Both roles use the same [write log](kvick_store::log). A primary sends the log's bytes to its replicas unchanged; a
//! replica appends the received bytes to its own log, under the locks of the keys that they change. So a server's log
//! is a position in a [history] of changes in either role, and offsets count the same bytes everywhere.
//!
//! - [`failover`]: a primary hands over to a replica.
//! - [`history`]: replication IDs.
//! - [`replicas`]: the attached replicas and their progress.
//! - [`transfer`]: the bytes of a dump on their way to replicas.
//! - [`role`]: changing between primary and replica.
//! - [`synchronise`]: full sync on the primary: takes the snapshots and keeps the backlog.
//! - [`disk_backed`]: full sync by way of a file.
//! - [`upstream`]: a replica's view of its primary, and which primary to follow.
//! - [`link`]: the thread that follows a primary: connects, synchronises, applies.
//! - [`full_sync`]: full sync on the replica.
//! - [`dual_channel`]: full sync with a separate connection for the dump.
//! - [`pause_after_fork`]: DEBUG PAUSE-AFTER-FORK on a primary.
//! - [`primary_connection`]: connections to the primary.
//! - `reply`: the replies of peers.
//! - [`apply`]: the interface for executing a primary's commands.
//!
//! A replica's connection belongs to a worker, as any other. The worker sends the dump and then the log directly from
//! the shared buffers: see `worker/feeding.rs` in `kvick-engine`.

pub mod apply;
pub mod disk_backed;
pub mod dual_channel;
pub mod failover;
pub mod full_sync;
pub mod history;
pub mod link;
pub mod migration;
pub mod pause_after_fork;
pub mod primary_connection;
pub mod replicas;
mod replicated_core;
mod reply;
pub mod role;
pub mod slot_migration;
pub mod synchronise;
pub mod transfer;
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

/// How long, in ms, the log is retained for a replica that has received its dump over a separate connection.
const ORPHAN_TTL_MS: i64 = 60_000;

/// A server's replication state.
pub struct Replication {
    /// The history of the server's data.
    pub history: Mutex<History>,
    /// The replicas that are attached.
    pub replicas: Replicas,
    /// The server's own primary, if any.
    pub upstream: Upstream,
    /// FAILOVER.
    pub failover: Failover,
    /// Pending full syncs.
    pub pending_full_syncs: PendingFullSyncs,
    /// Keys to which clients of a writable replica gave a time to live.
    pub writable_replica_keys: WritableReplicaKeys,
    /// Whether the log keeps a backlog.
    pub has_backlog: AtomicBool,
    /// The number of replicas per worker.
    feeds: Box<[AtomicUsize]>,
    /// When replicas were last pinged, as Unix time in ms.
    pub pinged_ms: AtomicI64,
    /// Counters for INFO.
    pub counts: Counts,
    /// How long, in ms, the log is retained for a replica that has received its dump, until it requests the log.
    pub orphan_ttl_ms: AtomicI64,
    /// Whether the process stops itself (until continued) during a dual-channel sync: a replica before it requests the
    /// log, a primary after it has sent a dump. See [`pause_after_fork`].
    pub pauses_after_fork: AtomicBool,
}

/// Synchronisations of replicas, and bytes transferred.
#[derive(Default)]
pub struct Counts {
    /// Full syncs.
    pub full: AtomicU64,
    /// Partial syncs.
    pub partial: AtomicU64,
    /// Refused partial syncs: the offset was too old, or the history different.
    pub partial_refused: AtomicU64,
    /// Bytes received from the primary.
    pub bytes_in: AtomicU64,
    /// Bytes sent to replicas.
    pub bytes_out: AtomicU64,
    /// Commands of the primary that failed on this server.
    pub unexpected_errors: AtomicU64,
    /// Bytes received by imports of slots.
    pub slot_bytes_in: AtomicU64,
    /// Bytes sent by exports of slots.
    pub slot_bytes_out: AtomicU64,
}

impl Counts {
    /// Resets the counters.
    pub fn reset(&self) {
        let Counts {
            full,
            partial,
            partial_refused,
            bytes_in,
            bytes_out,
            unexpected_errors,
            slot_bytes_in,
            slot_bytes_out,
        } = self;
        [full, partial, partial_refused, bytes_in, bytes_out, unexpected_errors, slot_bytes_in, slot_bytes_out]
            .iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

impl Replication {
    /// For a server with this number of workers.
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
            orphan_ttl_ms: AtomicI64::new(ORPHAN_TTL_MS),
            pauses_after_fork: AtomicBool::new(false),
        }
    }

    /// Wakes the workers that have replicas, except one: there is data to send.
    pub fn wake_feeders(&self, core: &Core, except: Option<usize>) {
        for (worker, feeds) in self.feeds.iter().enumerate() {
            if Some(worker) != except && feeds.load(Ordering::Relaxed) > 0 {
                core.wake(worker);
            }
        }
    }

    /// Sets a worker's number of replicas.
    pub fn set_feeds(&self, worker: usize, count: usize) {
        self.feeds[worker].store(count, Ordering::Relaxed);
    }
}
