//! Owners of slots. All changes of owners go through here, so that the table of owners, the slots of the nodes and
//! the counters agree.

use super::{Cluster, NodeKey, log};
use crate::flags::NodeFlags;
use crate::slots::SlotsRef;

/// How much [`Cluster::move_slots`] has changed.
pub(super) struct MovedSlots {
    /// Slots with a new owner.
    pub(super) slots: usize,
    /// Slots that this node imports, with a new source.
    pub(super) importing: usize,
    /// Slots that this node migrates, with a new target.
    pub(super) migrating: usize,
}

impl Cluster {
    /// The owner of a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<NodeKey> {
        self.owners.get(usize::from(slot)).copied().flatten()
    }

    /// Makes a node the owner of a slot that has none. Returns whether that was so.
    pub(super) fn assign_slot(&mut self, key: NodeKey, slot: u16) -> bool {
        match self.owners.get_mut(usize::from(slot)) {
            Some(owner @ None) => *owner = Some(key),
            _ => return false,
        }
        self.assigned += 1;
        self.unclaimed.remove(slot);
        self.reset_stats.insert(slot);
        let node = &mut self.nodes[key];
        node.slots.insert(slot);
        self.count_assigned(key, 1);
        true
    }

    /// Counts slots that a node has received.
    fn count_assigned(&mut self, key: NodeKey, slots: u16) {
        let node = &mut self.nodes[key];
        let is_first = node.slot_count == 0;
        node.slot_count += slots;
        node.slots_text.take();
        // A primary with its first slot is worth a replica, if other primaries have some.
        if is_first && self.nodes.iter().any(|(_, node)| node.is_primary() && !node.replicas.is_empty()) {
            self.nodes[key].flags |= NodeFlags::MIGRATE_TO;
        }
    }

    /// Gives slots to a node, whether they have owners or not. Clients wait for that when a slot migration ends, so
    /// runs of slots with the same owner go at once.
    pub(super) fn reassign(&mut self, slots: SlotsRef<'_>, to: NodeKey) {
        if slots.is_empty() {
            return;
        }
        for range in slots.ranges() {
            let (mut first, end) = (*range.start(), *range.end() + 1);
            while first < end {
                let owners = &mut self.owners[usize::from(first)..usize::from(end)];
                let from = owners.first().copied().flatten();
                let len = owners.iter().take_while(|owner| **owner == from).count();
                owners[..len].fill(Some(to));
                let len = len as u16;
                let run = first..=first + len - 1;
                match from {
                    Some(from) => {
                        let node = &mut self.nodes[from];
                        node.slots.remove_range(run.clone());
                        node.slot_count -= len;
                        node.slots_text.take();
                        self.dropped_channels.insert_range(run);
                    }
                    None => self.assigned += len,
                }
                first += len;
            }
        }
        self.unclaimed.remove_all(slots);
        self.reset_stats.insert_all(slots);
        self.nodes[to].slots.insert_all(slots);
        self.count_assigned(to, slots.len() as u16);
    }

    /// Takes a slot from its owner. Returns whether it had one.
    pub(super) fn unassign_slot(&mut self, slot: u16) -> bool {
        let Some(key) = self.owners.get_mut(usize::from(slot)).and_then(Option::take) else { return false };
        self.assigned -= 1;
        self.unclaimed.remove(slot);
        self.reset_stats.insert(slot);
        self.dropped_channels.insert(slot);
        let node = &mut self.nodes[key];
        node.slots.remove(slot);
        node.slot_count -= 1;
        node.slots_text.take();
        true
    }

    /// Takes all slots of a node. Returns their number.
    pub(super) fn unassign_all_of(&mut self, key: NodeKey) -> usize {
        if self.nodes[key].slot_count == 0 {
            return 0;
        }
        let slots = self.nodes[key].slots.clone();
        slots.iter().filter(|slot| self.unassign_slot(*slot)).count()
    }

    /// Gives all slots of a node to another one of its shard, which has replaced it. Open slots follow.
    ///
    /// `claimed` are the slots that the new owner has, as a replica of it says. The others may have moved to another
    /// shard before, unknown to this node, so they do not count as claimed: if they did, with the new epoch, this node
    /// would tell their real owner that it has lost them.
    pub(super) fn move_slots(&mut self, from: NodeKey, to: NodeKey, claimed: SlotsRef<'_>) -> MovedSlots {
        let slots = self.nodes[from].slots.clone();
        self.reassign(slots.view(), to);
        let mut doubtful = slots.clone();
        doubtful.remove_all(claimed);
        self.unclaimed.insert_all(doubtful.view());
        let replace = |open: &mut std::collections::BTreeMap<u16, NodeKey>| {
            let moved: Vec<u16> = open.iter().filter(|(_, node)| **node == from).map(|(slot, _)| *slot).collect();
            open.extend(moved.iter().map(|slot| (*slot, to)));
            moved
        };
        let importing = replace(&mut self.importing);
        let migrating = replace(&mut self.migrating);
        for slot in &importing {
            self.log_new_source(*slot, to);
        }
        for slot in &migrating {
            self.log_new_target(*slot, to);
        }
        MovedSlots { slots: slots.len(), importing: importing.len(), migrating: migrating.len() }
    }

    /// Ends the migration and the import of all slots.
    pub(super) fn close_all_slots(&mut self) {
        self.migrating.clear();
        self.importing.clear();
    }

    pub(super) fn log_new_source(&mut self, slot: u16, node: NodeKey) {
        log!(
            self,
            Verbose,
            "Failover occurred in migration source. Update importing source for slot {slot} to node {} in shard {}.",
            self.label(node),
            self.nodes[node].shard_id
        );
    }

    pub(super) fn log_new_target(&mut self, slot: u16, node: NodeKey) {
        log!(
            self,
            Verbose,
            "Failover occurred in migration target. Slot {slot} is now being migrated to node {} in shard {}.",
            self.label(node),
            self.nodes[node].shard_id
        );
    }
}
