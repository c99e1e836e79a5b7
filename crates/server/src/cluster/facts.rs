//! What the state machine is told about this server.

use super::{ClusterNode, FULL_SYNC_QUEUED};
use kvick_cluster::state::{Action, Facts, Now, SlotJobs};
use kvick_cluster_bus::Host;
use kvick_replication::upstream::LinkStage;
use kvick_runtime::clock;
use std::sync::atomic::Ordering;

impl Host for ClusterNode {
    fn with_facts(&self, now: Now, use_facts: &mut dyn FnMut(&Facts<'_>)) {
        let (server, keyspace) = (self.server, self.server.keyspace);
        let upstream = &server.replication.upstream;
        let keys_in_slot = |slot| (0..keyspace.databases()).map(|db| keyspace.slot_len(db, slot) as u64).sum();
        // A replica whose data is being replaced has none that others could use.
        let is_receiving = upstream.is_replica() && upstream.stage() == LinkStage::Receiving;
        let awaits_full_sync = upstream.synced_generation() < self.full_sync_generation.load(Ordering::SeqCst);
        let has_data = !is_receiving && !awaits_full_sync;
        let heard_ms = if upstream.is_connected() { &upstream.last_io_ms } else { &upstream.down_since_ms };
        let data_age_ms = match has_data {
            true => (clock::unix_ms() - heard_ms.load(Ordering::Relaxed)).max(0) as u64,
            false => u64::MAX,
        };
        let jobs = server.slot_migration.slot_sets();
        use_facts(&Facts {
            now,
            replication_offset: if has_data { keyspace.log.offset() } else { 0 },
            data_age_ms,
            has_keys: self.had_keys.load(Ordering::Relaxed),
            keys_in_slot: &keys_in_slot,
            jobs: SlotJobs {
                importing: jobs.importing.view(),
                exporting: jobs.exporting.view(),
                granted: &jobs.granted,
            },
        });
    }

    fn before_tick(&self) {
        self.turns.observe(self.server);
    }

    fn hangs_for_ms(&self, ms: u64) -> bool {
        self.turns.hangs_for_ms(ms)
    }

    fn must_exit(&self) {
        kvick_runtime::logging::stop();
        std::process::exit(1);
    }

    fn perform(&self, changes: Vec<Action>) {
        if changes.iter().any(|change| matches!(change, Action::ReplicateFrom { full_sync: true, .. })) {
            self.full_sync_generation.store(FULL_SYNC_QUEUED, Ordering::SeqCst);
        }
        // The thread that makes them takes all that are queued, under one global lock.
        self.queue.lock().changes.extend(changes);
        self.queued.notify_one();
    }
}

impl ClusterNode {
    /// Notes whether there are keys. Counts all partitions if there are none, so it is done for commands only.
    pub(super) fn note_keys(&self) {
        let keyspace = self.server.keyspace;
        let has_keys = (0..keyspace.databases()).any(|db| !keyspace.is_empty(db));
        self.had_keys.store(has_keys, Ordering::Relaxed);
    }
}
