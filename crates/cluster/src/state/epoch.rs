//! Config epochs without an election, and the resolution of collisions: if two primaries have the same epoch, the one
//! with the lower node ID takes a new one.

use super::settle::Todo;
use super::{Cluster, NodeKey, log};
use crate::Epoch;

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

    /// Another primary has the config epoch of this one. The node with the lower name takes a new one.
    pub(super) fn resolve_collision(&mut self, other: NodeKey) {
        let (node, me) = (&self.nodes[other], self.me());
        let collides = node.config_epoch == me.config_epoch && node.is_primary() && me.is_primary();
        if !collides || node.id <= me.id {
            return;
        }
        let epoch = self.take_next_epoch();
        log!(self, Notice, "configEpoch collision with node {}. configEpoch set to {epoch}", self.label(other));
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
