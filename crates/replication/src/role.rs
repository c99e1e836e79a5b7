//! Changes between primary and replica. The caller holds the global lock.

use super::replicas::{Replica, Stage};
use super::synchronise;
use super::upstream::Target;
use crate::ReplicatedCore;
use kvick_config::Values;
use kvick_config::shapes::Primary;
use kvick_config::tables::replication::{
    MIN_REPLICAS_MAX_LAG, MIN_REPLICAS_TO_WRITE, REPL_BACKLOG_SIZE, REPL_BACKLOG_TTL, REPL_PING_REPLICA_PERIOD,
    REPL_TIMEOUT, REPLICA_READ_ONLY, REPLICAOF,
};
use kvick_core::admission::Reasons;
use kvick_core::message::Message;
use kvick_core::oom_score;
use kvick_core::stats::WorkerStats;
use kvick_runtime::clock;
use kvick_runtime::logging;
use kvick_store::Locked;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The error for waiting clients when the role changes.
pub const ROLE_CHANGED_ERROR: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

impl ReplicatedCore {
    /// Becomes a replica of this primary.
    pub fn become_replica(&self, target: Target, global: &mut Locked, stats: &WorkerStats) {
        self.set_primary(target);
        self.unblock_clients(global, stats);
    }

    /// The same, but clients that wait for a key keep waiting: the server may remain the primary, or the cluster
    /// redirects them.
    pub fn set_primary(&self, target: Target) {
        let replication = &self.replication;
        if !replication.upstream.is_replica() {
            logging::notice(format_args!(
                "Before turning into a replica, using my own primary parameters to synthesize a cached primary: I may \
                 be able to synchronize with the new primary with just a partial transfer."
            ));
        }
        self.config.put(REPLICAOF, Some(Primary { host: target.host.as_bytes().into(), port: target.port }));
        self.keyspace.log.set_repeats(true);
        self.admission.set(Reasons::REPLICA, true);
        self.adjust_oom_score();
        // Replicas stay attached: the new primary may continue the history that they know.
        replication.upstream.follow(Some(target));
        self.update_writable_replica_keys(!self.config.read(REPLICA_READ_ONLY));
    }

    /// The data was loaded from a dump at this position in a history. A replica continues from there; a primary accepts
    /// replicas that followed it before its restart.
    pub fn resume_history_from_dump(&self, id: &str, offset: u64, database: usize) {
        let (replication, log) = (&self.replication, &self.keyspace.log);
        let _global = self.keyspace.lock_global();
        log.reset(offset);
        log.keep_backlog(self.config.read(REPL_BACKLOG_SIZE));
        replication.has_backlog.store(true, Ordering::SeqCst);
        replication.upstream.database.store(database, Ordering::Relaxed);
        let mut history = replication.history.lock();
        history.adopt(id);
        if self.config.read(REPLICAOF).is_none() {
            history.shift_id(offset);
        }
    }

    /// Becomes a primary with the present data.
    pub fn become_primary(&self) {
        let replication = &self.replication;
        replication.upstream.follow(None);
        self.update_writable_replica_keys(false);
        self.config.put(REPLICAOF, None);
        let (log, mut history) = (&self.keyspace.log, replication.history.lock());
        history.shift_id(log.offset());
        logging::notice(format_args!(
            "Setting secondary replication ID to {}, valid up to offset: {}. New replication ID is {}",
            history.previous_id(),
            history.previous_end(),
            history.id
        ));
        drop(history);
        log.set_repeats(false);
        if !replication.has_backlog.swap(true, Ordering::SeqCst) {
            log.keep_backlog(self.config.read(REPL_BACKLOG_SIZE));
        }
        self.admission.set(Reasons::REPLICA, false);
        self.adjust_oom_score();
        // The ID of the history has changed, so they must reconnect.
        self.disconnect_replicas();
    }

    /// Adjusts the score for the kernel's out-of-memory killer, which may differ for replicas. Errors are logged.
    fn adjust_oom_score(&self) {
        let _ = oom_score::apply(&self.config.values());
    }

    /// Disconnects all replicas, so that they reconnect.
    pub fn disconnect_replicas(&self) {
        for replica in self.replication.replicas.all() {
            replica.client.doomed.store(true, Ordering::SeqCst);
            self.send(replica.client.worker(), Message::Close(replica.client.clone()));
        }
    }

    /// Ends the waits of clients because the role changed.
    pub(crate) fn unblock_clients(&self, global: &mut Locked, stats: &WorkerStats) {
        self.aof.unblock_waiting_clients(self, ROLE_CHANGED_ERROR);
        self.unblock(global, stats);
    }

    /// Refuses writes if fewer replicas are in good state than these settings require.
    pub fn update_good_replicas(&self, values: &Values) {
        let (required, lag_s) = (values.read(MIN_REPLICAS_TO_WRITE), values.read(MIN_REPLICAS_MAX_LAG));
        let applies = required > 0 && lag_s > 0 && !self.replication.upstream.is_replica();
        self.replication.replicas.with_good_count(lag_s, clock::unix_ms(), |good| {
            self.admission.set(Reasons::FEW_REPLICAS, applies && good < required as usize);
        });
    }

    /// Periodic work, ten times a second.
    pub fn tick_replication(&'static self) {
        synchronise::tick(self);
        let (replicas, values, now_ms) = (&self.replication.replicas, self.config.values(), clock::unix_ms());
        self.update_good_replicas(&values);
        if replicas.count() > 0 && !self.replication.upstream.is_replica() {
            let every_ms = i64::from(values.read(REPL_PING_REPLICA_PERIOD)) * 1000;
            let last = self.replication.pinged_ms.load(Ordering::Relaxed);
            let is_due = now_ms - last >= every_ms || self.has_replica_of_nothing();
            if is_due && !self.pause.blocks_writes(now_ms) {
                self.replication.pinged_ms.store(now_ms, Ordering::Relaxed);
                self.keyspace.log.append_replica_only(&[b"PING"]);
                self.on_log_appended(None);
            }
        }
        self.disconnect_timed_out_replicas(now_ms);
        self.unpin_expired(now_ms);
        self.tick_failover(now_ms);
        self.drop_backlog(now_ms);
    }

    /// Whether a replica follows a log without a byte. In a cluster, an offset of 0 means that a replica has no data
    /// yet, so it would not be listed.
    fn has_replica_of_nothing(&self) -> bool {
        let is_online = |replica: &Arc<Replica>| replica.stage() == Stage::Online;
        self.keyspace.log.offset() == 0 && self.replication.replicas.all().iter().any(is_online)
    }

    /// Disconnects replicas that have been silent for too long.
    fn disconnect_timed_out_replicas(&self, now_ms: i64) {
        let timeout_ms = i64::from(self.config.read(REPL_TIMEOUT)) * 1000;
        for replica in self.replication.replicas.all() {
            // Replicas that used SYNC never acknowledge.
            let acks_expected = replica.stage() == Stage::Online && !replica.is_pre_psync.load(Ordering::Relaxed);
            let write_blocked_since_ms = replica.write_blocked_since_ms.load(Ordering::Relaxed);
            let is_stuck = write_blocked_since_ms != 0 && now_ms - write_blocked_since_ms > timeout_ms;
            let receives_dump = matches!(replica.stage(), Stage::Saving | Stage::Receiving);
            let doing = match () {
                () if acks_expected && replica.since_ack_ms(now_ms) > timeout_ms => "streaming sync",
                () if receives_dump && is_stuck => "full sync",
                () => continue,
            };
            {
                logging::warning(format_args!("Disconnecting timedout replica ({doing}): {}", replica.name()));
                replica.client.doomed.store(true, Ordering::SeqCst);
                self.send(replica.client.worker(), Message::Close(replica.client.clone()));
            }
        }
    }

    /// Stops retaining the log for replicas that have received their dump but do not request the log.
    fn unpin_expired(&self, now_ms: i64) {
        let ttl_ms = self.replication.orphan_ttl_ms.load(Ordering::Relaxed);
        for channel in self.replication.replicas.unpin(now_ms - ttl_ms) {
            logging::notice(format_args!(
                "Dual channel replication: Replica main channel failed to establish PSYNC within the grace period ({} \
                 seconds). Freeing RDB client {}.",
                ttl_ms / 1000,
                channel.client.id
            ));
            channel.client.doomed.store(true, Ordering::SeqCst);
            self.send(channel.client.worker(), Message::Close(channel.client.clone()));
        }
    }

    /// Sets the size of the backlog, if there is one.
    pub fn resize_backlog(&self, bytes: u64) {
        if self.replication.has_backlog.load(Ordering::SeqCst) {
            self.keyspace.log.keep_backlog(bytes);
        }
    }

    /// Drops the backlog if no replica has been attached for a while.
    fn drop_backlog(&self, now_ms: i64) {
        let replication = &self.replication;
        let ttl_s = self.config.read(REPL_BACKLOG_TTL) as i64;
        let is_idle = replication.replicas.no_replicas_for_ms(now_ms).is_some_and(|none_ms| none_ms / 1000 > ttl_s);
        if ttl_s == 0 || !is_idle || replication.upstream.is_replica() {
            return;
        }
        let _global = self.keyspace.lock_global();
        if replication.replicas.count() == 0 && replication.has_backlog.swap(false, Ordering::SeqCst) {
            // Later changes are not counted in offsets.
            replication.history.lock().change_id();
            self.keyspace.log.keep_backlog(0);
            logging::notice(format_args!(
                "Replication backlog freed after {ttl_s} seconds without connected replicas."
            ));
        }
    }
}
