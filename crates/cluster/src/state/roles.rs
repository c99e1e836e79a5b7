//! Roles: what follows when a node says that it is a primary or a replica, and changes of this node's own role.

use super::mutation::Mutation;
use super::settle::Todo;
use super::{Action, Cluster, NodeKey, log};
use crate::bus::Header;
use crate::flags::NodeFlags;

impl Cluster {
    /// Takes over the role of the sender of PING, PONG or MEET. Returns false if the message is out of date and must
    /// not be processed further.
    pub(super) fn process_role(&mut self, sender: NodeKey, header: &Header<'_>) -> bool {
        let Some(primary_id) = header.primary else {
            if self.nodes[sender].is_replica() {
                log!(
                    self,
                    Debug,
                    "node {} announces that it is a primary in shard {}",
                    self.label(sender),
                    self.nodes[sender].shard_id
                );
                self.make_primary(sender);
            }
            return true;
        };
        let primary = self.nodes.find(&primary_id).filter(|primary| *primary != sender);
        if self.nodes[sender].is_primary() {
            log!(
                self,
                Debug,
                "node {} announces that it is a replica in shard {}",
                self.label(sender),
                self.nodes[sender].shard_id
            );
            if !self.demote(sender, primary, header) {
                return false;
            }
        }
        if let Some(primary) = primary.filter(|primary| self.nodes[sender].replica_of != Some(*primary)) {
            self.set_primary_of(sender, primary);
        }
        true
    }

    /// A primary has become a replica. Its slots go to the primary that has replaced it, if that is of the same shard,
    /// and otherwise to nobody. Returns false if the message is out of date.
    fn demote(&mut self, sender: NodeKey, primary: Option<NodeKey>, header: &Header<'_>) -> bool {
        match primary.filter(|primary| self.same_shard(*primary, sender)) {
            Some(primary) => {
                // A primary without slots claims nothing: its own epoch, which it keeps as a replica, proves nothing.
                let own = if self.nodes[sender].slot_count > 0 { self.epoch_of(sender) } else { 0 };
                let known = own.max(self.epoch_of(primary));
                if known > header.config_epoch {
                    log!(
                        self,
                        Notice,
                        "Ignore stale message from {} in shard {}; gossip config epoch: {}, current config epoch: \
                         {known}",
                        self.label(sender),
                        self.nodes[sender].shard_id,
                        header.config_epoch
                    );
                    return false;
                }
                if primary == self.myself {
                    // What the former primary had given up belongs to a node that has not been heard yet.
                    let given_up = self.nodes[sender].slots.common_with(self.unclaimed.view());
                    for slot in given_up.iter() {
                        self.unassign_slot(slot);
                    }
                }
                if self.nodes[primary].is_replica() {
                    self.replace_in_view(sender, primary, header);
                } else if self.nodes[sender].slot_count > 0 {
                    // The new primary is known as such, but has not claimed these slots yet. It has them with the epoch
                    // that its replica tells: with the one that is known here, a stale claim could win.
                    self.move_slots(sender, primary, header.slots);
                    let epoch = &mut self.nodes[primary].config_epoch;
                    *epoch = (*epoch).max(header.config_epoch);
                    self.current_epoch = self.current_epoch.max(header.config_epoch);
                }
            }
            None => {
                let slots = self.unassign_all_of(sender);
                log!(
                    self,
                    Notice,
                    "Node {} is no longer primary of shard {}; removed all {slots} slot(s) it used to own",
                    self.label(sender),
                    self.nodes[sender].shard_id
                );
                if let Some(primary) = primary {
                    let shard_id = self.nodes[primary].shard_id;
                    log!(self, Notice, "Node {} is now part of shard {shard_id}", self.label(sender));
                }
            }
        }
        let node = &mut self.nodes[sender];
        node.flags -= NodeFlags::PRIMARY | NodeFlags::MIGRATE_TO;
        node.flags |= NodeFlags::REPLICA;
        self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC);
        true
    }

    /// A failover in another shard, of which the former primary is the first to tell.
    fn replace_in_view(&mut self, old: NodeKey, new: NodeKey, header: &Header<'_>) {
        let epoch = header.config_epoch;
        let moved = self.move_slots(old, new, header.slots);
        self.make_primary(new);
        self.nodes[new].config_epoch = epoch;
        let shard_id = self.nodes[old].shard_id;
        if moved.slots > 0 {
            log!(
                self,
                Notice,
                "A failover occurred in shard {shard_id}; node {} lost {} slot(s) and failed over to node {} with a \
                 config epoch of {epoch}",
                self.label(old),
                moved.slots,
                self.label(new)
            );
        }
        let open = [(moved.importing, "source", "importing"), (moved.migrating, "target", "migrating")];
        for (slots, side, verb) in open.into_iter().filter(|(slots, ..)| *slots > 0) {
            log!(
                self,
                Notice,
                "A failover occurred in migration {side}. Update {verb} {side} of {slots} slot(s) to node {} in shard \
                 {shard_id}.",
                self.label(new)
            );
        }
    }

    /// A replica has another primary than known.
    fn set_primary_of(&mut self, replica: NodeKey, primary: NodeKey) {
        if let Some(before) = self.nodes[replica].replica_of {
            self.remove_replica(before, replica);
        }
        let shard_id = self.nodes[primary].shard_id;
        log!(
            self,
            Notice,
            "Node {} is now a replica of node {} in shard {shard_id}",
            self.label(replica),
            self.label(primary)
        );
        self.nodes[replica].replica_of = Some(primary);
        self.add_replica(primary, replica);
        // Before the shard of the replica changes: whether histories are shared is decided by the shards.
        self.leave_chain();
        self.update_shard(replica, shard_id);
        self.todo(Todo::SAVE);
    }

    /// A replica of a replica becomes a replica of the primary at the top.
    fn leave_chain(&mut self) {
        let Some(primary) = self.me().replica_of else { return };
        let Some(top) = self.nodes[primary].replica_of.filter(|top| *top != self.myself) else { return };
        log!(
            self,
            Notice,
            "I'm a sub-replica! Reconfiguring myself as a replica of {} from {}",
            self.nodes[top].id,
            self.nodes[primary].id
        );
        self.set_primary(top, true, !self.same_shard(top, self.myself));
        self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC | Todo::BROADCAST);
    }

    /// A node that was a replica is a primary now.
    pub(super) fn make_primary(&mut self, key: NodeKey) {
        if self.nodes[key].is_primary() {
            return;
        }
        let shard_id = self.nodes[key].shard_id;
        log!(self, Notice, "Reconfiguring node {} as primary for shard {shard_id}", self.label(key));
        let is_myself = key == self.myself;
        if let Some(before) = self.nodes[key].replica_of.take() {
            self.remove_replica(before, key);
            if !is_myself {
                self.nodes[key].flags |= NodeFlags::MIGRATE_TO;
            }
        }
        let node = &mut self.nodes[key];
        node.flags -= NodeFlags::REPLICA;
        node.flags |= NodeFlags::PRIMARY;
        self.clear_failure_of_new_primary(key);
        let node = &mut self.nodes[key];
        if is_myself {
            node.flags -= NodeFlags::PRIMARY_FAILED;
            self.replicating = false;
            self.out.push(Action::BecomePrimary);
            self.check_migrations = true;
        }
        self.todo(Todo::SAVE | Todo::STATE);
    }

    /// Makes this node, which has no slots, a replica of another one.
    pub(super) fn set_primary(&mut self, key: NodeKey, close_slots: bool, full_sync: bool) {
        debug_assert!(key != self.myself && self.me().slot_count == 0, "only a node without slots can be a replica");
        let before = self.me().replica_of;
        let me = &mut self.nodes[self.myself];
        me.flags -= NodeFlags::PRIMARY | NodeFlags::MIGRATE_TO | NodeFlags::PRIMARY_FAILED;
        me.flags |= NodeFlags::REPLICA;
        if self.breaks(Mutation::EpochGoesBack) {
            self.nodes[self.myself].config_epoch = 0;
        }
        if let Some(before) = before {
            self.remove_replica(before, self.myself);
        }
        if close_slots {
            self.close_all_slots();
        }
        self.nodes[self.myself].replica_of = Some(key);
        if self.nodes[key].is_failed() {
            self.nodes[self.myself].flags |= NodeFlags::PRIMARY_FAILED;
        }
        self.add_replica(key, self.myself);
        self.update_shard(self.myself, self.nodes[key].shard_id);
        self.replicate_from(key, full_sync, true);
        self.drop_foreign_channels();
        self.reset_manual_failover();
        self.check_migrations = true;
        self.election.start_ms = None;
        self.change_topology();
    }

    /// Shard channels are served only by the shard that owns their slot.
    fn drop_foreign_channels(&mut self) {
        let Some(primary) = self.me().replica_of else { return };
        let mut foreign = crate::slots::Slots::all();
        foreign.remove_all(self.nodes[primary].slots.view());
        self.dropped_channels.insert_all(foreign.view());
    }
}
