//! Elections: a replica asks the voters to replace its failed primary, and voters answer.
//!
//! A replica waits for a delay that grows with its rank among its siblings, by replication offset, and with the rank
//! of its shard among those that lost their primary, so that elections do not disturb each other. The best replica
//! does not wait if all siblings agree that the primary has failed: their offsets are final then.

use super::mutation::Mutation;
use super::settle::Todo;
use super::{Cluster, Facts, NodeKey, log};
use crate::Epoch;
use crate::bus::{Header, MessageFlags};
use crate::flags::NodeFlags;
use crate::slots::SlotsRef;
use std::collections::BTreeSet;

/// Shortest time for an election.
const ELECTION_TIMEOUT_MIN_MS: u64 = 2_000;

/// Longest unit of the delay before an election.
const DELAY_UNIT_MAX_MS: u64 = 500;

/// Additional delay of a replica without data, which may not know its siblings yet.
const NEW_REPLICA_DELAY_MS: i64 = 500;

/// The same obstacle is logged this often.
const LOG_INTERVAL_MS: u64 = 1_000;

/// The election that this replica has scheduled or started last.
#[derive(Clone, Debug, Default)]
pub(super) struct Election {
    /// When it starts or has started, on the monotonic clock. `None` if a new one may be scheduled at once.
    pub(super) start_ms: Option<i64>,
    /// Nodes that have voted for this one.
    pub(super) voters: BTreeSet<NodeKey>,
    /// Whether votes were requested.
    pub(super) requested: bool,
    /// Its epoch.
    pub(super) epoch: Epoch,
    /// The rank of this replica among its siblings.
    rank: usize,
    /// The rank of its shard among those without primary.
    shard_rank: usize,
    /// What was last logged as an obstacle, and when.
    obstacle: Option<Obstacle>,
    logged_ms: u64,
}

/// Why an election does not start, or is not won.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Obstacle {
    DataAge,
    Delay,
    Expired,
    Votes,
}

impl Cluster {
    /// Does what is due for replacing the primary: schedules an election, starts it, or finishes it.
    pub(super) fn check_election(&mut self, facts: &Facts<'_>) {
        self.todo -= Todo::FAILOVER;
        if self.settings.module_no_failover {
            return;
        }
        let is_manual = self.manual.deadline_ms.is_some() && self.manual.can_start;
        let primary = if self.me().is_replica() { self.me().replica_of } else { None };
        let is_allowed =
            |primary: NodeKey| is_manual || (self.nodes[primary].is_failed() && !self.settings.replica_no_failover);
        if !primary.is_some_and(is_allowed) {
            self.election.obstacle = None;
            return;
        }
        if !is_manual && self.is_data_too_old(facts) {
            self.log_obstacle(Obstacle::DataAge, facts.ms());
            return;
        }

        let now_ms = facts.ms() as i64;
        let timeout_ms = self.settings.node_timeout_ms.saturating_mul(2).max(ELECTION_TIMEOUT_MIN_MS) as i64;
        let mut age_ms = self.election.start_ms.map_or(i64::MAX, |start_ms| now_ms - start_ms);
        if age_ms > timeout_ms.saturating_mul(2) {
            let start_ms = self.schedule_election(facts);
            if now_ms < start_ms {
                return;
            }
            age_ms = 0;
        }
        if !self.election.requested && self.manual.deadline_ms.is_none() && self.election.start_ms != Some(now_ms) {
            self.adjust_schedule(facts);
        }
        if self.election.start_ms.is_some_and(|start_ms| now_ms < start_ms) {
            self.log_obstacle(Obstacle::Delay, facts.ms());
        } else if age_ms > timeout_ms {
            self.log_obstacle(Obstacle::Expired, facts.ms());
        } else if !self.election.requested {
            self.start_election(facts);
        } else if self.election.voters.len() >= self.quorum()
            || (self.breaks(Mutation::NoMajority) && !self.election.voters.is_empty())
        {
            self.win_election(facts);
        } else {
            self.log_obstacle(Obstacle::Votes, facts.ms());
        }
    }

    /// Whether the link to the primary was lost so long ago that the data is not good enough.
    fn is_data_too_old(&self, facts: &Facts<'_>) -> bool {
        let settings = &self.settings;
        let mut age_ms = facts.data_age_ms;
        if age_ms > settings.node_timeout_ms {
            // The time until the failure was noticed does not count.
            age_ms -= settings.node_timeout_ms;
        }
        let allowed_ms = settings.node_timeout_ms.saturating_mul(settings.replica_validity_factor);
        settings.replica_validity_factor != 0 && age_ms > settings.repl_ping_period_ms.saturating_add(allowed_ms)
    }

    /// Unit of the delays: 500 ms, or less if the node timeout is short.
    fn delay_unit_ms(&self) -> i64 {
        (self.settings.node_timeout_ms / 30).min(DELAY_UNIT_MAX_MS) as i64
    }

    /// Schedules an election, and tells siblings the offset of this replica. Returns when it starts.
    fn schedule_election(&mut self, facts: &Facts<'_>) -> i64 {
        let now_ms = facts.ms() as i64;
        let unit_ms = self.delay_unit_ms();
        self.election.voters.clear();
        self.election.requested = false;
        let mut start_ms = now_ms;
        if self.manual.deadline_ms.is_some() {
            (self.election.rank, self.election.shard_rank) = (0, 0);
        } else {
            self.election.rank = self.rank(facts);
            self.election.shard_rank = self.shard_rank(facts.ms());
            // The random part is drawn even if it is not used, so that the numbers that follow do not depend on it.
            let random_ms = self.random.below(unit_ms as u64) as i64;
            if self.is_best_replica(facts) {
                log!(self, Notice, "This is the best ranked replica and can initiate the election immediately.");
            } else {
                start_ms += unit_ms + random_ms;
                start_ms += self.election.rank as i64 * unit_ms * 2 + self.election.shard_rank as i64 * unit_ms;
                start_ms += if facts.replication_offset == 0 { NEW_REPLICA_DELAY_MS } else { 0 };
            }
        }
        self.election.start_ms = Some(start_ms);
        log!(
            self,
            Notice,
            "Start of election delayed for {} milliseconds (rank #{}, primary rank #{}, offset {}).",
            start_ms - now_ms,
            self.election.rank,
            self.election.shard_rank,
            facts.replication_offset
        );
        self.broadcast_pong(true, facts);
        start_ms
    }

    /// Changes the start of the election if siblings turned out to be better or worse.
    fn adjust_schedule(&mut self, facts: &Facts<'_>) {
        let Some(start_ms) = self.election.start_ms else { return };
        let unit_ms = self.delay_unit_ms();
        let rank = self.rank(facts);
        let mut added_ms = 0;
        if rank != self.election.rank {
            let delay_ms = (rank as i64 - self.election.rank as i64) * unit_ms * 2;
            added_ms += delay_ms;
            self.election.rank = rank;
            log!(self, Notice, "Replica rank updated to #{rank}, added {delay_ms} milliseconds of delay.");
        }
        let shard_rank = self.shard_rank(facts.ms());
        if shard_rank != self.election.shard_rank {
            let delay_ms = (shard_rank as i64 - self.election.shard_rank as i64) * unit_ms;
            added_ms += delay_ms;
            self.election.shard_rank = shard_rank;
            log!(self, Notice, "Failed primary rank updated to #{shard_rank}, added {delay_ms} milliseconds of delay.");
        }
        self.election.start_ms = Some(start_ms + added_ms);
        if self.is_best_replica(facts) {
            self.election.start_ms = Some(facts.ms() as i64);
            log!(self, Notice, "Myself become the best ranked replica, initiate the election immediately.");
        }
    }

    /// Number of siblings that have more data than this replica, or as much and a lower name.
    fn rank(&self, facts: &Facts<'_>) -> usize {
        let Some(primary) = self.me().replica_of else { return 0 };
        let mine = (facts.replication_offset, self.me().id);
        let is_better = |key: &&NodeKey| {
            let node = &self.nodes[**key];
            let is_candidate = **key != self.myself && !node.is(NodeFlags::NO_FAILOVER);
            let offset = node.replication_offset;
            is_candidate && (offset > mine.0 || (offset == mine.0 && node.id < mine.1))
        };
        self.nodes[primary].replicas.iter().filter(is_better).count()
    }

    /// Number of shards with a lower name that lost their primary recently, and have replicas.
    fn shard_rank(&self, now_ms: u64) -> usize {
        let validity_ms = self.settings.node_timeout_ms.saturating_mul(self.settings.replica_validity_factor);
        let shard_id = self.me().shard_id;
        let competes = |node: &super::Node| {
            let is_recent = super::facts::elapsed(now_ms, node.failed_since.get()) <= validity_ms;
            node.is_failed()
                && node.votes()
                && !node.replicas.is_empty()
                && (is_recent || self.settings.replica_validity_factor == 0)
        };
        self.nodes.iter().filter(|(_, node)| competes(node) && node.shard_id < shard_id).count()
    }

    /// Whether no replica can be better than this one, and no election of another shard goes first.
    fn is_best_replica(&self, facts: &Facts<'_>) -> bool {
        let agreed = self.me().replica_of.is_some_and(|primary| {
            self.nodes[primary].replicas.iter().all(|replica| self.nodes[*replica].is(NodeFlags::PRIMARY_FAILED))
        });
        self.manual.deadline_ms.is_none()
            && facts.replication_offset != 0
            && self.election.rank == 0
            && self.election.shard_rank == 0
            && agreed
    }

    /// Asks for votes in a new epoch.
    fn start_election(&mut self, facts: &Facts<'_>) {
        self.current_epoch = self.current_epoch.saturating_add(1);
        self.election.epoch = self.current_epoch;
        // Votes of an earlier election may have arrived since this one was scheduled.
        self.election.voters.clear();
        log!(
            self,
            Notice,
            "Starting a failover election for epoch {}, node config epoch is {}",
            self.current_epoch,
            self.my_epoch()
        );
        let force = self.manual.deadline_ms.is_some() || self.is_best_replica(facts);
        self.broadcast_vote_request(force, facts);
        self.election.requested = true;
        self.todo(Todo::SAVE | Todo::STATE | Todo::SYNC);
    }

    /// Replaces the primary, after a majority has voted for this replica.
    fn win_election(&mut self, facts: &Facts<'_>) {
        log!(self, Notice, "Failover election won: I'm the new primary.");
        let epoch = self.election.epoch;
        if self.me().config_epoch < epoch {
            self.nodes[self.myself].config_epoch = epoch;
            self.todo(Todo::SAVE | Todo::SYNC | Todo::BROADCAST);
            log!(self, Notice, "configEpoch set to {epoch} after successful failover");
        }
        self.replace_primary(facts);
    }

    /// Takes the role and the slots of the primary. This node must have a config epoch for that.
    pub(super) fn replace_primary(&mut self, facts: &Facts<'_>) {
        let Some(old) = self.me().replica_of.filter(|_| !self.me().is_primary()) else { return };
        log!(
            self,
            Notice,
            "Setting myself to primary in shard {} after failover; my old primary is {}",
            self.me().shard_id,
            self.label(old)
        );
        self.make_primary(self.myself);
        self.note_decided_epoch();
        // What the old primary has given up belongs to a node that has not been heard yet.
        let mut slots = self.nodes[old].slots.clone();
        self.left_behind = slots.common_with(self.unclaimed.view());
        slots.remove_all(self.left_behind.view());
        self.reassign(slots.view(), self.myself);
        self.update_state(facts);
        self.todo(Todo::SAVE | Todo::SYNC | Todo::BROADCAST);
        self.reset_manual_failover();
        self.verify_data(facts);
        self.election.start_ms = None;
    }

    /// A primary announces an epoch as high as that of the election under way: it cannot be won any more.
    pub(super) fn abandon_overtaken_election(&mut self, winner: NodeKey) {
        let epoch = self.nodes[winner].config_epoch;
        let is_under_way = self.election.start_ms.is_some() && self.election.requested;
        if !is_under_way || epoch < self.election.epoch {
            return;
        }
        self.election.start_ms = None;
        log!(
            self,
            Warning,
            "Failover election in progress for epoch {}, but received a claim from node {} with an equal or higher \
             epoch {epoch}. Resetting the election since we cannot win an election in the past.",
            self.election.epoch,
            self.label(winner)
        );
        self.todo(Todo::FAILOVER);
    }

    /// A node has voted for this one.
    pub(super) fn count_vote(&mut self, voter: NodeKey, epoch: Epoch) {
        if self.nodes[voter].votes() && epoch >= self.election.epoch {
            self.election.voters.insert(voter);
            self.todo(Todo::FAILOVER);
        }
    }

    /// A replica asks for a vote. A node votes once in an epoch, for a replica of a failed primary that knows of no
    /// later owner of its slots than this node.
    pub(super) fn consider_vote(&mut self, candidate: NodeKey, request: &Header<'_>, facts: &Facts<'_>) {
        self.expect_claim(candidate);
        if !self.me().votes() {
            return;
        }
        let epoch = request.current_epoch;
        let denial = match self.vote_obstacle(candidate, request) {
            Some(denial) => denial,
            None => match self.newer_owner(request.slots, request.config_epoch) {
                Some((slot, owner)) => {
                    let (theirs, ours) = (request.config_epoch, self.nodes[owner].config_epoch);
                    log!(
                        self,
                        Warning,
                        "Failover auth denied to {}: slot {slot} epoch ({ours}) > reqConfigEpoch ({theirs})",
                        self.label(candidate)
                    );
                    // With the new owner known, the replica can be elected later.
                    self.report_stale_claim(candidate, owner, facts);
                    return;
                }
                None => {
                    self.last_vote_epoch = self.current_epoch;
                    if !self.breaks(Mutation::UnsavedVote) {
                        self.todo(Todo::SAVE | Todo::SYNC);
                    }
                    self.send_vote(candidate, facts);
                    log!(
                        self,
                        Notice,
                        "Failover auth granted to {} for epoch {}",
                        self.label(candidate),
                        self.current_epoch
                    );
                    return;
                }
            },
        };
        let label = self.label(candidate);
        let current = self.current_epoch;
        match denial {
            Denial::Unsafe => {
                log!(self, Warning, "Failover auth denied to {label}: it is not safe to vote in this moment)");
            }
            Denial::OldEpoch => {
                log!(self, Warning, "Failover auth denied to {label}: reqEpoch ({epoch}) < curEpoch({current})");
            }
            Denial::Voted => {
                log!(self, Warning, "Failover auth denied to {label}: already voted for epoch {current}");
            }
            Denial::Candidate(reason) => {
                log!(self, Warning, "Failover auth denied to {label} for epoch {epoch}: {reason}");
            }
        }
    }

    /// Why this node does not vote for a candidate, apart from the slots.
    fn vote_obstacle(&self, candidate: NodeKey, request: &Header<'_>) -> Option<Denial> {
        let node = &self.nodes[candidate];
        let force = request.message_flags.contains(MessageFlags::FORCE_ACK);
        if !self.health.may_vote {
            return Some(Denial::Unsafe);
        }
        if request.current_epoch < self.current_epoch {
            return Some(Denial::OldEpoch);
        }
        if self.last_vote_epoch == self.current_epoch && !self.breaks(Mutation::DoubleVote) {
            return Some(Denial::Voted);
        }
        if node.is_primary() {
            return Some(Denial::Candidate("it is a primary node"));
        }
        match node.replica_of {
            None => Some(Denial::Candidate("I don't know its primary")),
            Some(primary) if !self.nodes[primary].is_failed() && !force => Some(Denial::Candidate("its primary is up")),
            Some(_) => None,
        }
    }

    /// A slot of a set whose owner has a higher epoch than the given one, with that owner.
    fn newer_owner(&self, slots: SlotsRef<'_>, epoch: Epoch) -> Option<(u16, NodeKey)> {
        slots.iter().find_map(|slot| {
            let owner = self.owner(slot).filter(|_| !self.unclaimed.contains(slot))?;
            (self.nodes[owner].config_epoch > epoch).then_some((slot, owner))
        })
    }

    /// Logs why no election takes place, but not the same again and again.
    fn log_obstacle(&mut self, obstacle: Obstacle, now_ms: u64) {
        let age_ms = now_ms.saturating_sub(self.election.logged_ms);
        let interval_ms = if obstacle == Obstacle::DataAge { 10 * LOG_INTERVAL_MS } else { LOG_INTERVAL_MS };
        if self.election.obstacle == Some(obstacle) && age_ms < interval_ms {
            return;
        }
        self.election.obstacle = Some(obstacle);
        self.election.logged_ms = now_ms;
        let text = match obstacle {
            Obstacle::DataAge => {
                "Disconnected from primary for longer than allowed. Please check the \
                 'cluster-replica-validity-factor' configuration option."
            }
            Obstacle::Delay => "Waiting the delay before I can start a new failover.",
            Obstacle::Expired => "Failover attempt expired.",
            Obstacle::Votes => "Waiting for votes, but majority still not reached.",
        };
        log!(self, Notice, "Currently unable to failover: {text}");
        if matches!(obstacle, Obstacle::Expired | Obstacle::Votes) {
            log!(
                self,
                Notice,
                "Needed quorum: {}. Number of votes received so far: {}",
                self.quorum(),
                self.election.voters.len()
            );
        }
    }
}

/// Why a vote is refused.
enum Denial {
    /// This node has just started.
    Unsafe,
    OldEpoch,
    Voted,
    /// Something is wrong with the candidate.
    Candidate(&'static str),
}
