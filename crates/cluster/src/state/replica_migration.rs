//! Replica migration: a replica of a primary with several moves to a primary that lost its last one.

use super::facts::elapsed;
use super::pulse::Time;
use super::settle::Todo;
use super::{Cluster, Facts, NodeKey, log};
use crate::bus::ClusterState;
use crate::flags::NodeFlags;

/// How long a primary must be without working replica. During a failover it is for a moment.
const ORPHANED_MS: u64 = 5_000;

/// What a replica has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ReplicaCounts {
    /// Primaries with slots that have no working replica any more.
    pub(super) orphaned: usize,
    /// Most working replicas of a primary.
    pub(super) most: usize,
    /// Working replicas of the own primary.
    pub(super) own: usize,
}

/// Counted once for many ticks: at this `Table::revision`, or never if that is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    revision: u64,
    counts: ReplicaCounts,
}

impl ReplicaCounts {
    /// Whether this replica may be the one to move.
    pub(super) fn suggest_migration(&self) -> bool {
        self.orphaned > 0 && self.most >= 2 && self.own == self.most
    }
}

impl Cluster {
    fn count_replicas(&self) -> ReplicaCounts {
        let mut counts = ReplicaCounts::default();
        let hidden = NodeFlags::MYSELF | NodeFlags::NO_ADDRESS | NodeFlags::HANDSHAKE | NodeFlags::FAIL;
        for (key, node) in self.nodes.iter().filter(|(_, node)| node.is_primary() && !node.is(hidden)) {
            let working = self.working_replicas(key);
            counts.orphaned += usize::from(working == 0 && node.slot_count > 0 && node.is(NodeFlags::MIGRATE_TO));
            counts.most = counts.most.max(working);
            if self.me().replica_of == Some(key) {
                counts.own = working;
            }
        }
        counts
    }

    /// Becomes the replica of an orphaned primary, if this is the replica to move: of all primaries with most working
    /// replicas the one with the lowest name.
    pub(super) fn migrate_if_needed(&mut self, facts: &Facts<'_>) {
        if self.replica_counts.revision != self.nodes.revision() {
            self.replica_counts = Counted { revision: self.nodes.revision(), counts: self.count_replicas() };
        }
        let counts = self.replica_counts.counts;
        debug_assert_eq!(counts, self.count_replicas(), "nothing has changed");
        if !counts.suggest_migration() || self.state() != ClusterState::Ok {
            return;
        }
        let Some(primary) = self.me().replica_of else { return };
        let failing = NodeFlags::FAIL | NodeFlags::PFAIL;
        let working = self.nodes[primary].replicas.iter().filter(|replica| !self.nodes[**replica].is(failing)).count();
        if working <= self.settings.migration_barrier as usize {
            return;
        }
        let mut target: Option<NodeKey> = None;
        let mut candidate = self.me().id;
        for key in self.nodes.keys() {
            let node = &self.nodes[key];
            let working = if node.is_primary() { self.working_replicas(key) } else { 0 };
            let is_orphaned = !node.is_replica() && !node.is_failed() && node.is(NodeFlags::MIGRATE_TO) && working == 0;
            if working == counts.most {
                let lowest = node.replicas.iter().map(|replica| self.nodes[*replica].id).min();
                candidate = candidate.min(lowest.unwrap_or(candidate));
            }
            if is_orphaned && node.slot_count > 0 && target.is_none() {
                target = Some(key);
            }
            let node = self.nodes.quiet_mut(key);
            if is_orphaned {
                node.orphaned_since = Some(node.orphaned_since.get().unwrap_or(facts.ms())).into();
            } else {
                node.orphaned_since = Time::NEVER;
            }
        }
        let Some(target) = target.filter(|_| candidate == self.me().id && !self.settings.module_no_failover) else {
            return;
        };
        if self.nodes[target]
            .orphaned_since
            .get()
            .is_some_and(|since_ms| elapsed(facts.ms(), Some(since_ms)) > ORPHANED_MS)
        {
            log!(
                self,
                Notice,
                "Migrating to orphaned primary {} in shard {}",
                self.label(target),
                self.nodes[target].shard_id
            );
            // Another shard has another history.
            self.set_primary(target, true, true);
            self.todo(Todo::SAVE | Todo::SYNC | Todo::BROADCAST);
        }
    }
}
