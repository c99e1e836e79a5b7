//! A check of the invariants of one state machine, for tests and the simulator.

use super::Cluster;
use crate::Epoch;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::{SLOT_COUNT, SlotsRef};

/// What one node has to say about another one, without copies.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditedNode<'a> {
    pub id: NodeId,
    pub shard_id: NodeId,
    pub flags: NodeFlags,
    pub primary: Option<NodeId>,
    /// The epoch of its slots, or of those of its primary.
    pub config_epoch: Epoch,
    pub slots: SlotsRef<'a>,
    pub ip: &'a str,
}

impl Cluster {
    /// Whether the owner of a slot has stopped claiming it: then any claim wins.
    #[doc(hidden)]
    pub fn is_unclaimed(&self, slot: u16) -> bool {
        self.unclaimed.contains(slot)
    }

    /// All known nodes.
    #[doc(hidden)]
    pub fn audited_nodes(&self) -> impl Iterator<Item = AuditedNode<'_>> {
        self.nodes.iter().map(|(key, node)| AuditedNode {
            id: node.id,
            shard_id: node.shard_id,
            flags: node.flags,
            primary: node.replica_of.map(|primary| self.nodes[primary].id),
            config_epoch: self.epoch_of(key),
            slots: node.slots.view(),
            ip: &node.ip,
        })
    }

    /// What is wrong with the state, if anything: see the invariants of the module. Costs time in proportion to nodes
    /// and slots.
    #[doc(hidden)]
    pub fn audit(&self) -> Option<String> {
        let mut assigned = 0;
        for (key, node) in self.nodes.iter() {
            let count = node.slots.len();
            if count != usize::from(node.slot_count) {
                return Some(format!("node {} counts {} slots, but has {count}", node.id, node.slot_count));
            }
            if let Some(slot) = node.slots.iter().find(|slot| self.owner(*slot) != Some(key)) {
                return Some(format!("node {} has slot {slot}, but does not own it", node.id));
            }
            if node.is_replica() && count > 0 {
                return Some(format!("replica {} owns {count} slots", node.id));
            }
            if node.config_epoch > self.current_epoch {
                return Some(format!("node {} has config epoch {} above the current", node.id, node.config_epoch));
            }
            let stray = node.replicas.iter().find(|replica| self.nodes[**replica].replica_of != Some(key));
            if let Some(stray) = stray {
                return Some(format!("{} is not a replica of {}", self.nodes[*stray].id, node.id));
            }
            assigned += count;
        }
        let suspected = self.nodes.iter().filter(|(_, node)| node.is_suspected()).map(|(key, _)| key);
        if !suspected.eq(self.nodes.suspected().iter().copied()) {
            return Some("the list of suspected nodes is wrong".to_owned());
        }
        let owned = (0..SLOT_COUNT).filter(|slot| self.owner(*slot).is_some()).count();
        if owned != assigned || owned != usize::from(self.assigned) {
            return Some(format!("{owned} slots have owners, {assigned} are owned, {} are counted", self.assigned));
        }
        None
    }
}
