//! Claims of slots: how a message that lists the slots of its sender changes their owners.
//!
//! A claim wins if its epoch is above that of the present owner, or if nobody claims the slot. A node whose last slot
//! was claimed by another one becomes its replica. Slots are compared in words of 64, so that a claim that changes
//! little costs little.

use super::mutation::Mutation;
use super::settle::Todo;
use super::{Action, Cluster, Facts, NodeKey, log};
use crate::Epoch;
use crate::bus::MessageType;
use crate::slots::{SLOT_COUNT, Slots, SlotsRef};

/// Words of 64 slots in a set.
const WORDS: u16 = SLOT_COUNT / 64;

/// Ranges of slots that a log line shows at most.
const RANGES_SHOWN: usize = 16;

/// Slots that another node has handed over to this one.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    slots: Slots,
    /// The epoch with which this node took the last of them over.
    epoch: Epoch,
    /// How long it defends them, on the monotonic clock.
    until_ms: u64,
}

/// What a message says about the node that it is from, or about.
#[derive(Clone, Copy)]
pub(super) struct Says<'a> {
    pub(super) config_epoch: Epoch,
    /// The current epoch, as the node knew it; 0 if the message is of another node.
    pub(super) current_epoch: Epoch,
    pub(super) slots: SlotsRef<'a>,
}

/// What a claim has changed so far.
struct Claim {
    /// The node that the claim is of.
    node: NodeKey,
    epoch: Epoch,
    is_same_shard: bool,
    /// This node, or its primary if it is a replica.
    my_primary: Option<NodeKey>,
    /// Slots that this node allowed the node to take over.
    granted: Slots,
    /// See [`Cluster::is_old`].
    is_old: bool,
    /// Slots that the node has won. It becomes their owner at the end.
    won: Slots,
    /// Slots that this node's shard lost.
    lost: usize,
    /// Slots that this node lost, while it has keys in them.
    dirty: Slots,
    /// Adjacent slots that went from one other shard to the node, for the log.
    moved: Option<MovedRange>,
}

#[derive(Clone, Copy)]
struct MovedRange {
    first: u16,
    last: u16,
    source: NodeKey,
}

impl Cluster {
    /// Remembers that a node has handed slots over to this one, which has just taken a new epoch.
    pub(super) fn note_taken(&mut self, source: NodeKey, slots: SlotsRef<'_>, until_ms: u64) {
        if source != self.myself {
            let epoch = self.my_epoch();
            let taken = self.taken.entry(source).or_default();
            taken.slots.insert_all(slots);
            (taken.epoch, taken.until_ms) = (epoch, until_ms);
        }
    }

    /// Before the slots in a message of a node are compared with those that it has. `None` if it is no primary now.
    ///
    /// Epochs that are taken without a vote are only above those that this node knows of. The former owner of a slot
    /// can have a higher one: its messages may be slower than the hand-over, which takes another way. Without this,
    /// such a message would take the slot from this node, which would delete its keys, while the former owner, which
    /// has let the slot go, has deleted its own. So what it says about the slot does not count until its current epoch
    /// shows that it has heard of the takeover, and this node takes an epoch above its.
    ///
    /// It does so only for half of the node timeout. If it was cut off for longer, its replica may have replaced it,
    /// and a higher epoch would take all slots from that one. Slots of an atomic migration it defends only as long as
    /// the source holds writes.
    pub(super) fn defend_taken_slots(&mut self, node: NodeKey, says: Option<Says<'_>>, facts: &Facts<'_>) {
        if self.taken.is_empty() {
            return;
        }
        let now_ms = facts.ms();
        self.taken.retain(|_, taken| now_ms <= taken.until_ms);
        let granted = says.as_ref().map(|says| self.granted_slots(node, says, facts));
        let Some(mut taken) = self.taken.remove(&node) else { return };
        let (Some(says), Some(granted), true) = (says, granted, self.me().is_primary()) else { return };
        let is_mine = |slot: &u16| self.owner(*slot) == Some(self.myself) && !granted.contains(*slot);
        taken.slots = taken.slots.iter().filter(is_mine).collect();
        let is_disputed = |slot: u16| says.slots.contains(slot) && !self.migrating.contains_key(&slot);
        if taken.slots.iter().any(is_disputed) && says.config_epoch >= self.my_epoch() {
            // Not the next one, which the other node may take at this moment because its epoch is that of a third one.
            self.current_epoch = self.current_epoch.max(says.config_epoch).saturating_add(1);
            taken.epoch = self.take_next_epoch();
            log!(self, Notice, "New configEpoch set to {}, above that of node {}", taken.epoch, self.label(node));
            self.ask_for_claim(node, facts);
        }
        let has_let_go = says.current_epoch >= taken.epoch && !taken.slots.view().intersects(says.slots);
        if !has_let_go && !taken.slots.is_empty() {
            self.taken.insert(node, taken);
        }
    }

    /// Slots in a claim that this node allowed its sender to take over. If a message claims only some of the slots of a
    /// migration, it was sent before.
    fn granted_slots(&self, node: NodeKey, says: &Says<'_>, facts: &Facts<'_>) -> Slots {
        let mut granted = Slots::EMPTY;
        let is_old = self.is_old(node, says);
        for (target, slots) in facts.jobs.granted.iter().filter(|_| !is_old) {
            let is_of_target = self.nodes.find(target).is_some_and(|target| self.same_shard(target, node));
            if is_of_target && slots.iter().all(|slot| says.slots.contains(slot)) {
                granted.insert_all(slots.view());
            }
        }
        granted
    }

    /// Whether a message was sent by a node that had not heard that it has handed slots over to this one.
    fn is_old(&self, node: NodeKey, says: &Says<'_>) -> bool {
        self.taken.get(&node).is_some_and(|taken| says.current_epoch < taken.epoch)
    }

    /// Whether what a node says about a slot was sent before it handed the slot over to this node.
    fn is_stale(&self, claim: &Claim, slot: u16) -> bool {
        !claim.granted.contains(slot) && self.taken.get(&claim.node).is_some_and(|taken| taken.slots.contains(slot))
    }

    /// Asks a node for its slots, since its answer ends [`Cluster::defend_taken_slots`].
    pub(super) fn ask_for_claim(&mut self, node: NodeKey, facts: &Facts<'_>) {
        if let Some(link) = self.nodes.get(node).and_then(|node| node.link) {
            self.send_ping(link, MessageType::Ping, facts);
        }
    }

    /// Takes over the claim of a node, and changes the role of this node if it has lost all slots by that.
    pub(super) fn process_claim(&mut self, node: NodeKey, says: Says<'_>, facts: &Facts<'_>) {
        let (epoch, slots) = (says.config_epoch, says.slots);
        if node == self.myself {
            log!(self, Notice, "Discarding UPDATE message about myself.");
            return;
        }
        let me = self.me();
        let mut claim = Claim {
            node,
            epoch,
            is_same_shard: self.same_shard(node, self.myself),
            my_primary: if me.is_primary() { Some(self.myself) } else { me.replica_of },
            granted: self.granted_slots(node, &says, facts),
            is_old: self.is_old(node, &says),
            won: Slots::EMPTY,
            lost: 0,
            dirty: Slots::EMPTY,
            moved: None,
        };
        let open: Slots = self.migrating.keys().chain(self.importing.keys()).copied().collect();
        for index in 0..WORDS {
            let claimed = slots.word(index);
            let owned = self.nodes[node].slots.view().word(index);
            let doubtful = self.unclaimed.view().word(index) & claimed & owned;
            let mut changed = (claimed ^ owned) | doubtful | (open.view().word(index) & !claimed);
            while changed != 0 {
                let bit = changed.trailing_zeros() as u16;
                changed &= changed - 1;
                let slot = index * 64 + bit;
                if claimed >> bit & 1 == 1 {
                    self.claim_slot(&mut claim, slot, facts);
                } else {
                    self.disclaim_slot(&claim, slot);
                }
            }
        }
        if let Some(range) = claim.moved {
            self.log_moved_range(range, node);
        }
        self.reassign(claim.won.view(), node);
        // A module without redirections cares for data and roles itself.
        if !self.settings.module_no_redirection {
            self.follow_claim(&claim, slots.len(), facts);
        }
    }

    /// A node claims a slot.
    fn claim_slot(&mut self, claim: &mut Claim, slot: u16, facts: &Facts<'_>) {
        let owner = self.owner(slot);
        if owner == Some(claim.node) {
            self.unclaimed.remove(slot);
            return;
        }
        let claimed_owner = owner.filter(|_| !self.unclaimed.contains(slot));
        let wins = match claimed_owner {
            None => true,
            // A target that this node allowed to take over may have the same epoch. If its epoch is lower, because it
            // does not know that of this node, this node tells it, and it takes a higher one. Until then its claim must
            // not count: other nodes refuse it and would take the slots from the target, while this node deletes its
            // keys.
            Some(owner) => {
                let known = self.nodes[owner].config_epoch;
                known < claim.epoch
                    || (claim.granted.contains(slot) && known == claim.epoch)
                    || self.breaks(Mutation::OldClaims)
            }
        };
        if !wins || self.is_stale(claim, slot) {
            return;
        }
        if let Some(source) = claimed_owner.filter(|source| !self.same_shard(*source, claim.node)) {
            self.note_moved(claim, slot, source);
        }
        let was_given_up = self.unclaimed.contains(slot) || self.left_behind.remove(slot);
        let is_given_up = was_given_up && self.me().is_primary() && !self.imports(slot, facts);
        if (owner == Some(self.myself) || is_given_up) && (facts.keys_in_slot)(slot) > 0 {
            claim.dirty.insert(slot);
        }
        if facts.jobs.exporting.contains(slot) || facts.jobs.importing.contains(slot) {
            self.check_migrations = true;
        }
        if owner.is_some() && owner == claim.my_primary {
            claim.lost += 1;
        }
        self.adjust_open_slot(claim, slot);
        claim.won.insert(slot);
        self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC);
    }

    /// Adjusts the migration or import of a slot whose owner changes. Within a shard it goes on with the new primary;
    /// otherwise an operator has decided.
    fn adjust_open_slot(&mut self, claim: &Claim, slot: u16) {
        if let Some(target) = self.migrating.get(&slot).copied().filter(|_| !claim.is_same_shard) {
            log!(
                self,
                Notice,
                "Slot {slot} is no longer being migrated to node {} in shard {}.",
                self.label(target),
                self.nodes[target].shard_id
            );
            self.migrating.remove(&slot);
        }
        let Some(source) = self.importing.get(&slot).copied().filter(|source| *source != claim.node) else { return };
        if self.same_shard(claim.node, source) {
            self.importing.insert(slot, claim.node);
            self.log_new_source(slot, claim.node);
        } else {
            log!(
                self,
                Notice,
                "Slot {slot} is no longer being imported from node {} in shard {}.",
                self.label(source),
                self.nodes[source].shard_id
            );
            self.importing.remove(&slot);
        }
    }

    /// A node does not claim a slot, which it owned, or which this node migrates or imports.
    fn disclaim_slot(&mut self, claim: &Claim, slot: u16) {
        // A node takes slots over with a new epoch. A message with an older one was sent before that.
        if claim.is_old || claim.epoch < self.nodes[claim.node].config_epoch {
            return;
        }
        if self.owner(slot) == Some(claim.node) {
            // It stays bound, since clients find the new owner sooner by a redirection than by an error.
            if self.unclaimed.insert(slot) {
                self.todo(Todo::SAVE);
            }
        }
        if let Some(target) = self.migrating.get(&slot).copied().filter(|target| *target != claim.node) {
            let node = &self.nodes[target];
            let is_replaced = node.config_epoch < claim.epoch || node.is_replica();
            if is_replaced && self.same_shard(target, claim.node) {
                self.migrating.insert(slot, claim.node);
                self.log_new_target(slot, claim.node);
                self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC);
            }
        }
        if self.me().is_primary() && self.importing.get(&slot) == Some(&claim.node) {
            log!(
                self,
                Notice,
                "Slot {slot} is no longer being imported from node {} in shard {}; Clear my importing source for the \
                 slot.",
                self.label(claim.node),
                self.nodes[claim.node].shard_id
            );
            self.importing.remove(&slot);
            // The source has let go. If the end of the import was lost with the former primary, the slot would have
            // no owner.
            if self.owner(slot) != Some(self.myself) {
                self.unassign_slot(slot);
                self.assign_slot(self.myself, slot);
                self.bump_epoch_without_consensus();
                self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC);
            }
        }
    }

    /// Changes the role of this node if its shard has lost all slots, and deletes keys in lost slots.
    fn follow_claim(&mut self, claim: &Claim, claimed_count: usize, facts: &Facts<'_>) {
        let me = self.me();
        let is_idle_sibling = claim.lost == 0
            && me.replica_of != Some(claim.node)
            && claimed_count == 0
            && me.slot_count == 0
            && self.my_epoch() < claim.epoch
            && claim.is_same_shard;
        let is_empty = claim.my_primary.is_some_and(|primary| self.nodes[primary].slot_count == 0);
        let mut delete_dirty = false;
        if (claim.lost > 0 || is_idle_sibling) && is_empty {
            let shard_id = self.nodes[claim.node].shard_id;
            if self.settings.allow_replica_migration || claim.is_same_shard {
                log!(
                    self,
                    Notice,
                    "Configuration change detected. Reconfiguring myself as a replica of node {} in shard {shard_id}",
                    self.label(claim.node)
                );
                self.set_primary(claim.node, !claim.is_same_shard, !claim.is_same_shard);
                self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC | Todo::BROADCAST);
            } else if self.me().is_primary() && claimed_count >= claim.lost {
                log!(
                    self,
                    Notice,
                    "My last slot was migrated to node {} in shard {shard_id}. I am now an empty primary.",
                    self.label(claim.node)
                );
                delete_dirty = true;
            }
        } else {
            delete_dirty = true;
        }
        if !delete_dirty {
            return;
        }
        let handed_over = claim.dirty.common_with(claim.granted.view());
        let mut dirty = claim.dirty.clone();
        dirty.remove_all(handed_over.view());
        if !dirty.is_empty() {
            self.delete_dirty(dirty);
        }
        if !handed_over.is_empty() {
            self.keep_handed_over(claim.node, handed_over, facts);
        }
    }

    /// Has the keys deleted in slots that other nodes own.
    pub(super) fn delete_dirty(&mut self, slots: Slots) {
        // In one line: writers may wait for what follows.
        log!(
            self,
            Notice,
            "Deleting keys in dirty slot {} on node {} in shard {}",
            shown_ranges(slots.view()),
            self.label(self.myself),
            self.me().shard_id
        );
        self.out.push(Action::DeleteKeys(Box::new(slots)));
    }

    /// If a node claims a slot that another one owns with a higher epoch, tells it so: its view is out of date, and
    /// the new owner may not be able to reach it.
    pub(super) fn correct_stale_claim(
        &mut self,
        sender: NodeKey,
        epoch: Epoch,
        slots: SlotsRef<'_>,
        facts: &Facts<'_>,
    ) {
        for index in 0..WORDS {
            let mut foreign = slots.word(index) & !self.nodes[sender].slots.view().word(index);
            while foreign != 0 {
                let slot = index * 64 + foreign.trailing_zeros() as u16;
                foreign &= foreign - 1;
                let Some(owner) = self.owner(slot).filter(|_| !self.unclaimed.contains(slot)) else { continue };
                if self.nodes[owner].config_epoch > epoch {
                    self.report_stale_claim(sender, owner, facts);
                    return;
                }
            }
        }
    }

    /// Sends UPDATE about the owner of a slot to a node that claims the slot with a lower epoch.
    pub(super) fn report_stale_claim(&mut self, sender: NodeKey, owner: NodeKey, facts: &Facts<'_>) {
        log!(
            self,
            Verbose,
            "Node {} has old slots configuration, sending an UPDATE message about {}",
            self.label(sender),
            self.label(owner)
        );
        self.send_update(sender, owner, facts);
    }

    /// Collects slots that went to another shard into ranges, and logs each range once.
    fn note_moved(&mut self, claim: &mut Claim, slot: u16, source: NodeKey) {
        match &mut claim.moved {
            Some(range) if range.source == source && range.last + 1 == slot => range.last = slot,
            _ => {
                if let Some(range) = claim.moved {
                    self.log_moved_range(range, claim.node);
                }
                claim.moved = Some(MovedRange { first: slot, last: slot, source });
            }
        }
    }

    fn log_moved_range(&mut self, range: MovedRange, target: NodeKey) {
        let MovedRange { first, last, source } = range;
        log!(
            self,
            Notice,
            "Slot range [{first}, {last}] is migrated from node {} in shard {} to node {} in shard {}.",
            self.label(source),
            self.nodes[source].shard_id,
            self.label(target),
            self.nodes[target].shard_id
        );
    }
}

/// The first ranges of these slots, for the log.
fn shown_ranges(slots: SlotsRef<'_>) -> String {
    let shown = slots.ranges().take(RANGES_SHOWN).map(|range| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    let shown = shown.collect::<Vec<_>>().join(",");
    let others: usize = slots.ranges().skip(RANGES_SHOWN).map(|range| range.len()).sum();
    if others == 0 { shown } else { format!("{shown} and {others} other slots") }
}
