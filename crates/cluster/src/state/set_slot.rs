//! CLUSTER SETSLOT, and the open slots that replicas learn from their primary.

use super::commands::unknown_node;
use super::settle::Todo;
use super::{Cluster, CommandError, Facts, NodeKey, log};
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::{SLOT_COUNT, Slots};

/// What CLUSTER SETSLOT does with a slot. Nodes are given by their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetSlot<'a> {
    /// Keys that are missing here are asked from this node.
    Migrating(&'a [u8]),
    /// The slot is being imported from this node.
    Importing(&'a [u8]),
    /// The slot is neither migrating nor importing.
    Stable,
    /// The slot has this owner.
    Node(&'a [u8]),
}

impl Cluster {
    /// Whether CLUSTER SETSLOT is allowed now. `from_primary` says that it came on the replication link.
    ///
    /// A primary with replicas that are online replicates the command first and executes it when all of them have
    /// acknowledged it, so that the new state survives its failure: see [`Cluster::replica_count`].
    pub fn check_set_slot(
        &self,
        slot: u16,
        change: SetSlot<'_>,
        from_primary: bool,
        facts: &Facts<'_>,
    ) -> Result<(), CommandError> {
        self.set_slot_target(slot, change, from_primary, facts).map(|_| ())
    }

    /// CLUSTER SETSLOT. `slot` is below [`SLOT_COUNT`].
    pub fn set_slot(
        &mut self,
        slot: u16,
        change: SetSlot<'_>,
        from_primary: bool,
        facts: &Facts<'_>,
    ) -> Result<(), CommandError> {
        let target = self.set_slot_target(slot, change, from_primary, facts)?;
        match (change, target) {
            (SetSlot::Migrating(_), Some(node)) => {
                log!(self, Notice, "Migrating slot {slot} to node {}", self.label(node));
                self.migrating.insert(slot, node);
            }
            (SetSlot::Importing(_), Some(node)) => {
                log!(self, Notice, "Importing slot {slot} from node {}", self.label(node));
                self.importing.insert(slot, node);
                self.forget_handed_over_slot(slot);
            }
            (SetSlot::Node(_), Some(node)) => self.give_slot(slot, node, facts),
            _ => {
                log!(self, Notice, "Marking slot {slot} stable");
                self.importing.remove(&slot);
                self.migrating.remove(&slot);
            }
        }
        // Others hear of a new owner at once. If it forgot that with its power, nobody would claim the slot.
        self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC);
        Ok(())
    }

    /// The node that a change refers to, if the change is allowed.
    fn set_slot_target(
        &self,
        slot: u16,
        change: SetSlot<'_>,
        from_primary: bool,
        facts: &Facts<'_>,
    ) -> Result<Option<NodeKey>, CommandError> {
        if !from_primary && self.me().is_replica() {
            return Err(CommandError::SetSlotOnReplica);
        }
        if !facts.jobs.importing.is_empty() {
            return Err(CommandError::SlotImportInProgress);
        }
        if !facts.jobs.exporting.is_empty() {
            return Err(CommandError::SlotExportInProgress);
        }
        let is_mine = self.owner(slot) == Some(self.myself);
        let name = match change {
            SetSlot::Migrating(_) if self.me().is_primary() && !is_mine => return Err(CommandError::NotOwner(slot)),
            SetSlot::Importing(_) if is_mine => return Err(CommandError::AlreadyOwner(slot)),
            SetSlot::Stable => return Ok(None),
            SetSlot::Migrating(name) | SetSlot::Importing(name) | SetSlot::Node(name) => name,
        };
        let is_assignment = matches!(change, SetSlot::Node(_));
        let target = match self.find_by_name(name) {
            Some(target) => target,
            None if is_assignment => return Err(unknown_node(name)),
            None => return Err(CommandError::UnknownSlotNode(String::from_utf8_lossy(name).into_owned())),
        };
        if !is_assignment && target == self.myself {
            return Err(CommandError::TargetIsMyself);
        }
        if self.nodes[target].is_replica() {
            return Err(CommandError::TargetNotPrimary);
        }
        if is_assignment && is_mine && target != self.myself && (facts.keys_in_slot)(slot) > 0 {
            return Err(CommandError::SlotHasKeys(slot));
        }
        Ok(Some(target))
    }

    /// Makes a node the owner of a slot (SETSLOT NODE).
    fn give_slot(&mut self, slot: u16, node: NodeKey, facts: &Facts<'_>) {
        let shard = self.nodes[node].shard_id;
        log!(self, Notice, "Assigning slot {slot} to node {} in shard {shard}", self.label(node));
        if (facts.keys_in_slot)(slot) == 0 {
            self.migrating.remove(&slot);
        }
        let my_primary = self.primary_of(self.myself);
        let was_mine = self.owner(slot) == Some(my_primary);
        self.unassign_slot(slot);
        self.assign_slot(node, slot);
        let lost_last = was_mine && self.nodes[my_primary].slot_count == 0 && node != my_primary;
        if lost_last && self.settings.allow_replica_migration && node != self.myself {
            log!(
                self,
                Notice,
                "Lost my last slot during slot migration. Reconfiguring myself as a replica of {} in shard {shard}",
                self.label(node)
            );
            self.set_primary(node, true, true);
            self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC | Todo::BROADCAST);
        } else if lost_last && !self.settings.allow_replica_migration && self.me().is_primary() {
            log!(
                self,
                Notice,
                "My last slot was migrated to node {} in shard {shard}. I am now an empty primary.",
                self.label(node)
            );
        }
        let is_ours = node == self.myself || self.me().replica_of == Some(node);
        let source = self.importing.get(&slot).copied().filter(|_| is_ours);
        if source.is_some() {
            self.importing.remove(&slot);
        }
        if let Some(source) = source.filter(|_| node == self.myself) {
            // The slot was moved by hand: only a new epoch makes the other nodes believe it.
            let epoch = self.take_next_epoch();
            log!(self, Notice, "New configEpoch set to {epoch}");
            log!(self, Notice, "ConfigEpoch updated after importing slot {slot}");
            let until_ms = facts.ms().saturating_add(self.settings.node_timeout_ms / 2);
            self.note_taken(source, Slots::from_iter([slot]).view(), until_ms);
            self.todo(Todo::BROADCAST);
            self.ask_for_claim(source, facts);
        }
    }

    /// The open slots, as a full synchronization sends them to replicas (RDB auxiliary field `cluster-slot-states`).
    /// `None` if there are none.
    pub fn open_slots_field(&self) -> Option<String> {
        let mut field = String::new();
        for (slots, direction) in [(&self.importing, '<'), (&self.migrating, '>')] {
            for (slot, node) in slots {
                field.push_str(&format!("{slot}{direction}{},", self.nodes[*node].id));
            }
        }
        if field.is_empty() { None } else { Some(field) }
    }

    /// Takes over the open slots of the primary from such a field. Returns whether it could be read; what was read
    /// before a malformed entry stays.
    pub fn restore_open_slots(&mut self, field: &str, facts: &Facts<'_>) -> bool {
        for entry in field.split_terminator(',') {
            let Some((slot, importing, id)) = parse_open_slot(entry) else { return false };
            let node = match self.nodes.find(&id) {
                Some(node) => node,
                None => self.add_node(id, NodeFlags::empty(), facts.ms()),
            };
            let slots = if importing { &mut self.importing } else { &mut self.migrating };
            slots.insert(slot, node);
        }
        self.todo(Todo::SAVE);
        true
    }
}

/// The slot, whether it is imported, and the other node.
fn parse_open_slot(entry: &str) -> Option<(u16, bool, NodeId)> {
    let direction = entry.find(['<', '>'])?;
    let slot = entry[..direction].parse().ok().filter(|slot| *slot < SLOT_COUNT)?;
    let id = entry[direction + 1..].parse().ok()?;
    Some((slot, entry.as_bytes()[direction] == b'<', id))
}
