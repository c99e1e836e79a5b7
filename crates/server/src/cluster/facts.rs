//! What the state machine is told about this server.

use super::ClusterNode;
use kvick_cluster::state::{Action, Facts, Now, SlotJobs};
use kvick_cluster_bus::Host;
use kvick_replication::upstream::LinkStage;
use kvick_runtime::clock;
use std::sync::atomic::Ordering;

impl Host for ClusterNode {
    fn with_facts(&self, now: Now, use_facts: &mut dyn FnMut(&Facts<'_>)) {
        let (server, keyspace) = (self.server, self.server.keyspace);
        let upstream = &server.replication.upstream;
        let heard_ms = if upstream.is_connected() { &upstream.last_io_ms } else { &upstream.down_since_ms };
        let data_age_ms = (clock::unix_ms() - heard_ms.load(Ordering::Relaxed)).max(0) as u64;
        let keys_in_slot = |slot| (0..keyspace.databases()).map(|db| keyspace.slot_len(db, slot) as u64).sum();
        // A replica whose data is being replaced has none that others could use.
        let is_synced = !upstream.is_replica() || upstream.is_connected();
        if is_synced {
            self.awaits_full_sync.store(false, Ordering::Relaxed);
        }
        let is_replacing = upstream.stage() == LinkStage::Receiving || self.awaits_full_sync.load(Ordering::Relaxed);
        let has_data = is_synced || !is_replacing;
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
                granted: jobs.granted.view(),
            },
        });
    }

    fn before_tick(&self) {
        self.note_keys();
        self.turns.observe(self.server);
    }

    fn hangs_for_ms(&self, ms: u64) -> bool {
        self.turns.hangs_for_ms(ms)
    }

    fn must_exit(&self) {
        kvick_runtime::logging::stop();
        std::process::exit(1);
    }

    fn perform(&self, change: Action) {
        self.queue.lock().changes.push_back(change);
        self.queued.notify_one();
    }
}

impl ClusterNode {
    /// Notes whether there are keys. Counts all partitions, so it is not done for each message.
    pub(super) fn note_keys(&self) {
        let keyspace = self.server.keyspace;
        let has_keys = (0..keyspace.databases()).any(|db| !keyspace.is_empty(db));
        self.had_keys.store(has_keys, Ordering::Relaxed);
    }
}
