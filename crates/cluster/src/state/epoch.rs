//! Config epochs without an election, and the resolution of collisions: if two primaries have the same epoch, the one
//! with the lower node ID takes a new one.
//!
//! A primary that was replaced while it was away must not win its slots back by that, so Kvick is stricter than Valkey:
//!
//! - A primary that may have missed something resolves no collision at first. Others tell it what it has missed.
//! - Of two primaries of one shard, the one that has replaced its primary takes the new epoch. The other one waits.

use super::settle::Todo;
use super::{Cluster, NodeKey, log};
use crate::Epoch;

/// What the resolution of collisions depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Collisions {
    /// The epoch with which this node has replaced its primary, by an election or on request of an operator.
    decided: Option<Epoch>,
    /// This node may have missed something; it resolves no collision before this time of the monotonic clock.
    absent_until_ms: u64,
    /// The epoch in which another primary of its shard had the epoch of this node, and since when.
    in_shard: Option<(Epoch, u64)>,
    /// The last tick. A process that was stopped has missed some.
    tick_ms: Option<u64>,
}

impl Cluster {
    /// Gives this node a config epoch above all others, unless it has it. Returns whether it has a new one.
    ///
    /// No other node votes on it. For slots that an operator moves, and for CLUSTER FAILOVER TAKEOVER.
    pub(super) fn bump_epoch_without_consensus(&mut self) -> bool {
        let epoch = self.me().config_epoch;
        if epoch != 0 && epoch == self.highest_epoch() {
            return false;
        }
        let epoch = self.take_next_epoch();
        log!(self, Notice, "New configEpoch set to {epoch}");
        true
    }

    /// Another primary has the config epoch of this one. The node with the lower name takes a new one, with the
    /// exceptions that the module describes.
    pub(super) fn resolve_collision(&mut self, other: NodeKey, now_ms: u64) {
        let (node, me) = (&self.nodes[other], self.me());
        let epoch = me.config_epoch;
        if node.config_epoch != epoch || !node.is_primary() || !me.is_primary() {
            return;
        }
        let is_in_shard = self.same_shard(other, self.myself);
        let has_replaced_it = is_in_shard && self.collisions.decided == Some(epoch);
        let is_higher = node.id <= me.id;
        let has_slots = me.slot_count > 0;
        if !has_replaced_it && (is_higher || (has_slots && self.waits_with_collision(is_in_shard, now_ms))) {
            return;
        }
        let epoch = self.take_next_epoch();
        if has_replaced_it {
            self.collisions.decided = Some(epoch);
        }
        log!(self, Notice, "configEpoch collision with node {}. configEpoch set to {epoch}", self.label(other));
    }

    /// Whether this primary, which has the epoch of another one, must first give others time to report a replacement.
    fn waits_with_collision(&mut self, is_in_shard: bool, now_ms: u64) -> bool {
        self.note_gap(now_ms);
        if now_ms < self.collisions.absent_until_ms {
            return true;
        }
        if !is_in_shard {
            return false;
        }
        let epoch = self.my_epoch();
        let since_ms = match self.collisions.in_shard {
            Some((known, since_ms)) if known == epoch => since_ms,
            _ => now_ms,
        };
        self.collisions.in_shard = Some((epoch, since_ms));
        now_ms < since_ms.saturating_add(self.rejoin_delay_ms())
    }

    /// This node has replaced its primary.
    pub(super) fn note_decided_epoch(&mut self) {
        self.collisions.decided = Some(self.my_epoch());
    }

    /// This node may have missed what others have decided: it has just started, or was in a minority.
    pub(super) fn note_absence(&mut self, now_ms: u64) {
        self.collisions.absent_until_ms = now_ms.saturating_add(self.rejoin_delay_ms());
    }

    /// Notes an absence if ticks are missing since the last one.
    fn note_gap(&mut self, now_ms: u64) {
        let gap_ms = self.collisions.tick_ms.map_or(0, |tick_ms| now_ms.saturating_sub(tick_ms));
        if gap_ms > self.settings.node_timeout_ms / 2 {
            self.note_absence(now_ms);
        }
    }

    pub(super) fn note_tick(&mut self, now_ms: u64) {
        self.note_gap(now_ms);
        self.collisions.tick_ms = Some(now_ms);
    }

    /// The target of a slot migration was allowed to take slots over, but has not done so, and writes to them are about
    /// to resume. Takes an epoch above that of its claim if it comes later: that is one above the current epoch that
    /// the target knows.
    pub fn withdraw_grant(&mut self) {
        if self.me().is_primary() {
            self.current_epoch = self.current_epoch.saturating_add(1);
            let epoch = self.take_next_epoch();
            log!(self, Notice, "New configEpoch set to {epoch}, above that of a late claim");
        }
    }

    /// The highest epoch that any node has, or that is current.
    fn highest_epoch(&self) -> Epoch {
        self.nodes.iter().map(|(_, node)| node.config_epoch).fold(self.current_epoch, Epoch::max)
    }

    /// Gives this node a config epoch above the current one.
    pub(super) fn take_next_epoch(&mut self) -> Epoch {
        self.current_epoch = self.current_epoch.saturating_add(1);
        self.nodes[self.myself].config_epoch = self.current_epoch;
        self.todo(Todo::SAVE | Todo::SYNC | Todo::BROADCAST);
        self.current_epoch
    }
}
