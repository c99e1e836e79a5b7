//! Keys of slots that this node has handed over in an atomic migration. They are hidden at once, but deleted only when
//! the nodes that may have to know the new owner know it.
//!
//! Only the two primaries know of the hand-over at first. If a partition made their replicas replace them at this
//! moment, no shard would claim the slots, and their keys would be in none of them. So this node keeps them until it
//! has told the voters, a majority of them at least, and the replicas of both shards, as far as these are reachable.

use super::{Action, Cluster, Facts, NodeKey};
use crate::bus::MessageType;
use crate::flags::NodeFlags;
use crate::slots::Slots;
use std::collections::BTreeMap;

/// What a node knows of a hand-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knows {
    Nothing,
    /// It was told, but has not answered since.
    Told,
    /// It was told, and pinged after that.
    Pinged,
    Everything,
}

/// Slots that went to one node.
#[derive(Clone, Default, Debug)]
pub(super) struct HandedOver {
    slots: Slots,
    /// What each node knows that must be told.
    nodes: BTreeMap<NodeKey, Knows>,
}

impl Cluster {
    /// Hides the keys in slots that another node has taken over, and tells others of that before they are deleted.
    pub(super) fn keep_handed_over(&mut self, target: NodeKey, slots: Slots, facts: &Facts<'_>) {
        self.out.push(Action::HideKeys { slots: Box::new(slots.clone()), hidden: true });
        let handed = self.handed_over.entry(target).or_default();
        handed.slots.insert_all(slots.view());
        handed.nodes.clear();
        self.check_handed_over(facts);
    }

    /// Whether a node must know that slots went to a target.
    fn is_concerned(&self, key: NodeKey, target: NodeKey) -> bool {
        let node = &self.nodes[key];
        let is_replica = node.replica_of.is_some_and(|primary| primary == self.myself || primary == target);
        key != self.myself && key != target && (node.votes() || is_replica)
    }

    /// Tells a node, if it answers, what it does not know yet. An earlier PING must have been answered, so that the
    /// next PONG is the answer to this one.
    fn tell_handed_over(&mut self, key: NodeKey, facts: &Facts<'_>) {
        let link = self.nodes.get(key).and_then(|node| node.link);
        let Some(link) = link.filter(|id| self.links.get(id).is_some_and(|link| link.connected)) else { return };
        if self.nodes.ping_sent(key).is_some() {
            return;
        }
        let mut targets = Vec::new();
        let mut pings = false;
        for (target, handed) in &mut self.handed_over {
            match handed.nodes.get_mut(&key) {
                Some(knows @ Knows::Nothing) => {
                    *knows = Knows::Told;
                    targets.push(*target);
                }
                Some(knows @ Knows::Told) => {
                    *knows = Knows::Pinged;
                    pings = true;
                }
                _ => {}
            }
        }
        if pings || !targets.is_empty() {
            // The slots that this node does not claim any more come first: they may have the epoch of the new owner.
            self.send_ping(link, MessageType::Ping, facts);
            targets.into_iter().for_each(|target| self.send_update(key, target, facts));
        }
    }

    /// A node has answered a PING.
    pub(super) fn note_told(&mut self, key: NodeKey, facts: &Facts<'_>) {
        if self.handed_over.is_empty() {
            return;
        }
        for handed in self.handed_over.values_mut() {
            if let Some(knows @ Knows::Pinged) = handed.nodes.get_mut(&key) {
                *knows = Knows::Everything;
            }
        }
        self.tell_handed_over(key, facts);
        self.finish_handed_over();
    }

    /// What was sent to a node may be lost.
    pub(super) fn forget_told(&mut self, key: NodeKey) {
        for handed in self.handed_over.values_mut() {
            if let Some(knows @ (Knows::Told | Knows::Pinged)) = handed.nodes.get_mut(&key) {
                *knows = Knows::Nothing;
            }
        }
    }

    /// Tells nodes that could not be told before, and those that have got slots or become replicas since. Deletes keys
    /// whose time has come.
    pub(super) fn check_handed_over(&mut self, facts: &Facts<'_>) {
        if self.handed_over.is_empty() {
            return;
        }
        let mut handed_over = std::mem::take(&mut self.handed_over);
        for (target, handed) in &mut handed_over {
            for key in self.nodes.keys().into_iter().filter(|key| self.is_concerned(*key, *target)) {
                handed.nodes.entry(key).or_insert(Knows::Nothing);
            }
        }
        self.handed_over = handed_over;
        let keys: Vec<NodeKey> = self.handed_over.values().flat_map(|handed| handed.nodes.keys().copied()).collect();
        keys.into_iter().for_each(|key| self.tell_handed_over(key, facts));
        self.finish_handed_over();
    }

    /// Deletes all these keys now.
    pub(super) fn forget_handed_over(&mut self) {
        for (_, handed) in std::mem::take(&mut self.handed_over) {
            self.delete_dirty(handed.slots);
        }
    }

    /// A slot is about to come back key by key. The keys that it had were deleted.
    pub(super) fn forget_handed_over_slot(&mut self, slot: u16) {
        for handed in self.handed_over.values_mut() {
            handed.slots.remove(slot);
        }
    }

    fn finish_handed_over(&mut self) {
        let is_done = |target: &NodeKey, handed: &HandedOver| {
            self.me().is_replica() || self.nodes.get(*target).is_none() || self.is_widely_known(*target, handed)
        };
        let done: Vec<NodeKey> =
            self.handed_over.iter().filter(|(target, handed)| is_done(target, handed)).map(|(key, _)| *key).collect();
        for target in done {
            self.show_returned_slots();
            let Some(HandedOver { slots, .. }) = self.handed_over.remove(&target) else { continue };
            if slots.is_empty() {
                continue;
            }
            if self.me().is_replica() {
                // Its primary has these keys too, and decides.
                self.out.push(Action::HideKeys { slots: Box::new(slots), hidden: false });
                continue;
            }
            self.delete_dirty(slots);
            // Their owner has not changed just now, but the keys are deleted when the topology is published.
            self.change_topology();
        }
    }

    /// Whether all concerned nodes know of a hand-over, except those that are suspected, and a majority of the voters.
    fn is_widely_known(&self, target: NodeKey, handed: &HandedOver) -> bool {
        let knows = |key: &NodeKey| handed.nodes.get(key) == Some(&Knows::Everything);
        let is_missing = |key: &NodeKey| {
            let is_suspected = self.nodes[*key].is(NodeFlags::PFAIL | NodeFlags::FAIL);
            self.is_concerned(*key, target) && !is_suspected && !knows(key)
        };
        if self.nodes.keys().iter().any(is_missing) {
            return false;
        }
        let voters = self.nodes.iter().filter(|(key, node)| {
            let knows = *key == self.myself || *key == target || knows(key);
            node.votes() && knows
        });
        voters.count() >= self.quorum()
    }

    /// Shows keys whose slots have come back to this shard. Call it before others learn of that.
    pub(super) fn show_returned_slots(&mut self) {
        let owner = self.me().replica_of.unwrap_or(self.myself);
        let owned = &self.nodes[owner].slots;
        for handed in self.handed_over.values_mut().filter(|handed| handed.slots.view().intersects(owned.view())) {
            let back = handed.slots.common_with(owned.view());
            handed.slots.remove_all(back.view());
            self.out.push(Action::HideKeys { slots: Box::new(back), hidden: false });
        }
    }
}
