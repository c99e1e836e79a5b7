//! Whether the cluster is up, as this node sees it.

use super::facts::elapsed;
use super::settle::Todo;
use super::{Cluster, Facts, log};
use crate::bus::ClusterState;
use crate::flags::NodeFlags;
use crate::slots::SLOT_COUNT;

/// How long a primary that was in a minority does not serve after it has found the majority again: the node timeout
/// within these bounds.
const REJOIN_DELAY_MAX_MS: u64 = 5_000;
const REJOIN_DELAY_MIN_MS: u64 = 500;

/// How long a primary does not serve after its start, so that others can tell it that it was replaced.
const WRITABLE_DELAY_MS: u64 = 2_000;

/// Why the cluster is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailReason {
    /// A slot has no owner, or a failed one, and `cluster-require-full-coverage` is set.
    Coverage,
    /// This node sees less than half of the primaries that own slots.
    Minority,
}

/// The state of the cluster, and what it depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    pub(super) state: ClusterState,
    pub(super) reason: Option<FailReason>,
    /// Whether this node may vote: it has been up for some time.
    pub(super) may_vote: bool,
    /// Number of primaries that own slots.
    pub(super) size: usize,
    /// When the state was first computed.
    first_ms: Option<u64>,
    /// When this node was last seen in a minority.
    minority_ms: Option<u64>,
}

/// What the state of the cluster depends on, counted once for many ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Votes {
    /// `Table::revision` when it was counted; 0 if it was not.
    revision: u64,
    /// When the first lease ends.
    until_ms: u64,
    /// Number of primaries that own slots.
    voters: usize,
    /// How many of them this node sees.
    reachable: usize,
    /// Whether a failed node owns slots.
    failed_owners: bool,
}

impl Votes {
    fn counts(&self) -> (usize, usize, bool) {
        (self.voters, self.reachable, self.failed_owners)
    }
}

impl Cluster {
    /// Why the cluster is down. `None` if it is up, or was not up yet.
    pub fn fail_reason(&self) -> Option<FailReason> {
        self.health.reason
    }

    /// Computes the state of the cluster.
    pub(super) fn update_state(&mut self, facts: &Facts<'_>) {
        self.todo -= Todo::STATE;
        let now_ms = facts.ms();
        let first_ms = *self.health.first_ms.get_or_insert(now_ms);
        let is_young = now_ms.saturating_sub(first_ms) < WRITABLE_DELAY_MS;
        let is_primary = self.me().is_primary();
        if is_primary && self.state() == ClusterState::Fail && (is_young || self.waits_for_takeover()) {
            self.health.may_vote = false;
            return;
        }
        self.health.may_vote = true;

        if self.votes.revision != self.nodes.revision() || now_ms >= self.votes.until_ms {
            self.votes = self.count_votes(now_ms);
        }
        let Votes { voters, reachable, failed_owners, .. } = self.votes;
        debug_assert_eq!((voters, reachable, failed_owners), self.count_votes(now_ms).counts(), "nothing has changed");
        self.health.size = voters;
        let mut reason = None;
        if self.settings.require_full_coverage && (self.assigned < SLOT_COUNT || failed_owners) {
            reason = Some(FailReason::Coverage);
        }
        if reachable < self.quorum() {
            reason = Some(FailReason::Minority);
            self.health.minority_ms = Some(now_ms);
            self.note_absence(now_ms);
        }
        self.change_state(reason, now_ms);
    }

    /// How long a primary does not trust what it knows after it was in a minority or away.
    pub(super) fn rejoin_delay_ms(&self) -> u64 {
        self.settings.node_timeout_ms.clamp(REJOIN_DELAY_MIN_MS, REJOIN_DELAY_MAX_MS)
    }

    fn count_votes(&self, now_ms: u64) -> Votes {
        let mut votes = Votes { revision: self.nodes.revision(), until_ms: u64::MAX, ..Votes::default() };
        for (key, node) in self.nodes.iter() {
            votes.failed_owners |= node.is_failed() && node.slot_count > 0;
            if node.votes() {
                votes.voters += 1;
                if !node.is(NodeFlags::FAIL | NodeFlags::PFAIL) && self.has_lease_of(key, now_ms) {
                    votes.reachable += 1;
                    votes.until_ms = votes.until_ms.min(self.lease_end_ms(key));
                }
            }
        }
        votes
    }

    /// Changes the state to what was found, unless a primary that comes from a minority has to wait.
    fn change_state(&mut self, reason: Option<FailReason>, now_ms: u64) {
        let state = if reason.is_none() { ClusterState::Ok } else { ClusterState::Fail };
        if state != self.state() {
            let was_minority = elapsed(now_ms, self.health.minority_ms) < self.rejoin_delay_ms();
            if state == ClusterState::Ok && self.me().is_primary() && was_minority {
                return;
            }
            match state {
                ClusterState::Ok => log!(self, Notice, "Cluster state changed: ok"),
                ClusterState::Fail => log!(self, Warning, "Cluster state changed: fail"),
            }
            self.health.state = state;
            self.health.reason = None;
            self.change_topology();
        }
        if reason != self.health.reason {
            let text = match reason {
                Some(FailReason::Coverage) => {
                    "At least one hash slot is not served by any available node. Please check the \
                     'cluster-require-full-coverage' configuration."
                }
                Some(FailReason::Minority) => "I am part of a minority partition.",
                None => "",
            };
            if reason.is_some() {
                log!(self, Warning, "Cluster is currently down: {text}");
            }
            self.health.reason = reason;
        }
    }
}
