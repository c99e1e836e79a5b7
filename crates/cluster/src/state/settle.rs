//! The work that is done once after a batch of inputs, in a fixed order.

use super::{Action, Cluster, Facts};
use crate::slots::Slots;
use bitflags::bitflags;

bitflags! {
    /// What [`Cluster::settle`] has to do.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub(super) struct Todo: u8 {
        /// Check whether an election can start, or is won.
        const FAILOVER = 1 << 0;
        /// Compute the state of the cluster.
        const STATE = 1 << 1;
        /// Save the configuration.
        const SAVE = 1 << 2;
        /// Save it durably. Always together with `SAVE`.
        const SYNC = 1 << 3;
        /// Check whether a manual failover can go on.
        const MANUAL_FAILOVER = 1 << 4;
        /// Send a PONG to all nodes.
        const BROADCAST = 1 << 5;
    }
}

/// How often an election may lead to another check of the state. It does so at most twice.
const ROUNDS_MAX: usize = 4;

impl Cluster {
    /// Notes something to be done.
    pub(super) fn todo(&mut self, todo: Todo) {
        if todo.contains(Todo::SAVE) {
            self.change_topology();
        }
        self.todo |= todo;
    }

    /// Notes that a [`super::Topology`] would differ now.
    pub(super) fn change_topology(&mut self) {
        self.topology_version += 1;
        self.topology_changed = true;
    }

    /// Finishes what the inputs since the last call have started, and appends all actions. Call it after each batch of
    /// inputs, before replying to commands, and whenever the replication offset has reached
    /// [`Cluster::awaited_replication_offset`].
    pub fn settle(&mut self, facts: &Facts<'_>, actions: &mut Vec<Action>) {
        self.check_takeover(facts);
        // A manual failover that waits asks to be checked again: that is for the next call.
        let mut waits = false;
        let mut rounds = 0;
        while self.todo.intersects(Todo::STATE | Todo::FAILOVER | Todo::MANUAL_FAILOVER) && rounds < ROUNDS_MAX {
            rounds += 1;
            let todo = self.todo;
            self.todo -= Todo::STATE | Todo::FAILOVER | Todo::MANUAL_FAILOVER;
            if todo.contains(Todo::STATE) {
                self.update_state(facts);
            }
            if todo.intersects(Todo::FAILOVER | Todo::MANUAL_FAILOVER) && self.me().is_replica() {
                waits |= todo.contains(Todo::MANUAL_FAILOVER) && !self.check_manual_failover(facts);
                self.check_election(facts);
            }
        }
        let todo = self.todo;
        self.todo &= Todo::STATE | Todo::FAILOVER | Todo::MANUAL_FAILOVER;
        self.todo.set(Todo::MANUAL_FAILOVER, waits || todo.contains(Todo::MANUAL_FAILOVER));
        if todo.contains(Todo::BROADCAST) {
            self.broadcast_pong(false, facts);
        }
        self.show_returned_slots();
        actions.append(&mut self.out);
        self.report_slot_changes(actions);
        if std::mem::take(&mut self.topology_changed) {
            actions.push(Action::TopologyChanged);
        }
        if todo.contains(Todo::SAVE) {
            actions.push(Action::Save { sync: todo.contains(Todo::SYNC) });
        }
        if self.waits_for_takeover() {
            self.frames.clear();
        }
        actions.append(&mut self.frames);
    }

    fn report_slot_changes(&mut self, actions: &mut Vec<Action>) {
        if !self.dropped_channels.is_empty() {
            let slots = std::mem::replace(&mut self.dropped_channels, Slots::EMPTY);
            actions.push(Action::DropShardChannels(Box::new(slots)));
        }
        if !self.reset_stats.is_empty() {
            let slots = std::mem::replace(&mut self.reset_stats, Slots::EMPTY);
            actions.push(Action::ResetSlotStats(Box::new(slots)));
        }
        if std::mem::take(&mut self.check_migrations) {
            actions.push(Action::CheckSlotMigrations);
        }
    }
}
