//! Failure detection (PFAIL and FAIL) and the removal of nodes.
//!
//! A node suspects another one (PFAIL) that has not answered a PING for the node timeout. When a majority of voters has
//! reported the suspicion within twice that time, a node marks it as failed (FAIL) and broadcasts that.

use super::facts::elapsed;
use super::node::Node;
use super::settle::Todo;
use super::{Cluster, Facts, NodeKey, log};
use crate::flags::NodeFlags;
use crate::node_id::NodeId;

/// Reports are valid for this many node timeouts, and a failed primary whose slots nobody took over counts as working
/// again after as many.
const TIMEOUTS: u64 = 2;

impl Cluster {
    /// Adds a node, and puts it into a shard of its own.
    pub(super) fn add_node(&mut self, id: NodeId, flags: NodeFlags, now_ms: u64) -> NodeKey {
        let shard_id = self.random.node_id();
        let key = self.nodes.insert(Node::new(id, shard_id, flags, now_ms));
        if !flags.contains(NodeFlags::HANDSHAKE) {
            self.nodes.join_shard(key);
        }
        self.text_changes += 1;
        key
    }

    /// Removes a node and all references to it. Its slots are free then.
    pub(super) fn remove_node(&mut self, key: NodeKey, facts: &Facts<'_>) {
        log!(self, Debug, "Deleting node {} from cluster view", self.label(key));
        self.importing.retain(|_, source| *source != key);
        self.migrating.retain(|_, target| *target != key);
        self.taken.remove(&key);
        self.unassign_all_of(key);
        if self.manual.replica == Some(key) {
            self.reset_manual_failover();
        }
        self.nodes.remove_reports_of(key);
        for replica in std::mem::take(&mut self.nodes[key].replicas) {
            self.nodes[replica].replica_of = None;
        }
        if let Some(primary) = self.nodes[key].replica_of {
            self.remove_replica(primary, key);
        }
        self.close_link(self.nodes[key].link, facts.ms());
        self.close_link(self.nodes[key].inbound, facts.ms());
        self.nodes.remove(key);
        self.change_topology();
    }

    /// Number of valid failure reports about a node.
    pub(super) fn failure_reports(&mut self, key: NodeKey, now_ms: u64) -> usize {
        let validity_ms = self.settings.node_timeout_ms.saturating_mul(TIMEOUTS);
        if self.nodes[key].reports.is_empty() {
            return 0;
        }
        self.nodes.quiet_mut(key).reports.count(now_ms, validity_ms)
    }

    /// Marks a node as failed.
    pub(super) fn mark_failed(&mut self, key: NodeKey, facts: &Facts<'_>) {
        self.nodes.set_suspected(key, false);
        let node = &mut self.nodes[key];
        node.flags |= NodeFlags::FAIL;
        node.failed_since = Some(facts.ms()).into();
        if self.me().is_replica() && self.me().replica_of == Some(key) {
            // Siblings learn from this flag that the offset of this node is final.
            self.nodes[self.myself].flags |= NodeFlags::PRIMARY_FAILED;
            self.todo(Todo::FAILOVER);
        }
        self.todo(Todo::SAVE | Todo::STATE);
    }

    /// Marks a suspected node as failed if a majority of voters suspects it, and tells all others.
    pub(super) fn mark_failed_if_agreed(&mut self, key: NodeKey, facts: &Facts<'_>) {
        if !self.nodes[key].is_suspected() || self.nodes[key].is_failed() {
            return;
        }
        let reports = self.failure_reports(key, facts.ms()) + usize::from(self.me().votes());
        if reports < self.quorum() {
            return;
        }
        log!(self, Notice, "Marking node {} as failing (quorum reached).", self.label(key));
        self.mark_failed(key, facts);
        self.broadcast_failure(self.nodes[key].id, facts);
    }

    /// A failed node has answered: ends its failure, unless it is a voter whose slots may be taken over yet.
    pub(super) fn clear_failure_if_allowed(&mut self, key: NodeKey, facts: &Facts<'_>) {
        let node = &self.nodes[key];
        let undo_ms = self.settings.node_timeout_ms.saturating_mul(TIMEOUTS);
        if !node.votes() {
            let role = if node.is_replica() { "replica" } else { "primary without slots" };
            log!(self, Notice, "Clear FAIL state for node {}: {role} is reachable again.", self.label(key));
        } else if elapsed(facts.ms(), node.failed_since.get()) > undo_ms {
            log!(
                self,
                Notice,
                "Clear FAIL state for node {}: is reachable again and nobody is serving its slots after some time.",
                self.label(key)
            );
        } else {
            return;
        }
        self.clear_failure(key);
    }

    /// A node has become a primary. If it was marked as failed, that was as a replica, before a majority of the voters
    /// heard it. With the mark, which stays on a voter for a while, its replicas would replace it at once, and be
    /// replaced in turn. If it has failed since, it is suspected again in the next tick.
    pub(super) fn clear_failure_of_new_primary(&mut self, key: NodeKey) {
        if self.nodes[key].is_failed() {
            log!(self, Notice, "Clear FAIL state for node {}: it has become a primary.", self.label(key));
            self.clear_failure(key);
        }
    }

    fn clear_failure(&mut self, key: NodeKey) {
        self.nodes[key].flags -= NodeFlags::FAIL;
        if self.me().replica_of == Some(key) {
            self.nodes[self.myself].flags -= NodeFlags::PRIMARY_FAILED;
        }
        self.todo(Todo::STATE | Todo::SAVE);
    }

    /// Forbids that a node is added again before a time.
    pub(super) fn blacklist_node(&mut self, id: NodeId, until_ms: u64, now_ms: u64) {
        self.clean_blacklist(now_ms);
        self.blacklist.insert(id, until_ms);
    }

    /// Whether a node must not be added.
    pub(super) fn is_blacklisted(&mut self, id: &NodeId, now_ms: u64) -> bool {
        self.clean_blacklist(now_ms);
        self.blacklist.contains_key(id)
    }

    fn clean_blacklist(&mut self, now_ms: u64) {
        self.blacklist.retain(|_, until_ms| *until_ms >= now_ms);
    }

    /// Adds a replica to the list of its primary, in the order of names.
    pub(super) fn add_replica(&mut self, primary: NodeKey, replica: NodeKey) {
        if self.nodes[primary].replicas.contains(&replica) {
            return;
        }
        let id = self.nodes[replica].id;
        let place = self.nodes[primary].replicas.partition_point(|other| self.nodes[*other].id < id);
        let node = &mut self.nodes[primary];
        node.replicas.insert(place, replica);
        node.flags |= NodeFlags::MIGRATE_TO;
    }

    /// Removes a replica from the list of its primary.
    pub(super) fn remove_replica(&mut self, primary: NodeKey, replica: NodeKey) {
        let node = &mut self.nodes[primary];
        let before = node.replicas.len();
        node.replicas.retain(|other| *other != replica);
        if before > 0 && node.replicas.is_empty() {
            node.flags -= NodeFlags::MIGRATE_TO;
        }
    }

    /// Number of replicas that have not failed.
    pub(super) fn working_replicas(&self, primary: NodeKey) -> usize {
        self.nodes[primary].replicas.iter().filter(|replica| !self.nodes[**replica].is_failed()).count()
    }
}
