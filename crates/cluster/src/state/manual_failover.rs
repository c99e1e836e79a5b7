//! Manual failover: a replica replaces its working primary without losing a write.
//!
//! The replica asks the primary to pause its clients (MFSTART). The primary does and then, since from now on no write
//! follows the offset in its messages, marks them as paused and sends PINGs to the replica without waiting. When the
//! replica has processed the stream up to the offset in such a message, it starts an election. Its request says that
//! voters must not refuse because the primary works. FORCE omits the primary's part.
//!
//! Both give up after the same time. A replica that is elected just before that may be heard of much later, since it
//! first saves its claim. If the primary resumed writes meanwhile, they would be lost. So a primary that sees the
//! request for votes waits for the claim for twice the time.

use super::mutation::Mutation;
use super::settle::Todo;
use super::{Action, Cluster, Facts, LinkId, NodeKey, log};
use crate::bus::{Header, MessageFlags, MessageType};

/// Clients are paused for this many timeouts of a manual failover.
const PAUSE_TIMEOUTS: u64 = 2;

/// A manual failover under way.
#[derive(Clone, Debug, Default)]
pub(super) struct ManualFailover {
    /// When it is given up, on the monotonic clock. `None` if none is under way.
    pub(super) deadline_ms: Option<u64>,
    /// On the primary: the replica that replaces it.
    pub(super) replica: Option<NodeKey>,
    /// On the primary: until when writes are paused at most.
    pause_end_ms: u64,
    /// On the primary: the link over which the replica sent its request. `None` once it was told that writes are
    /// paused.
    pausing_for: Option<LinkId>,
    /// On the primary: whether the environment has paused writes.
    is_held: bool,
    /// On the primary: whether writes are paused, and the replica may know.
    pub(super) is_paused: bool,
    /// On the replica: the offset at which the primary has paused, once it is known.
    pub(super) primary_offset: Option<u64>,
    /// On the replica: whether the election may start.
    pub(super) can_start: bool,
}

impl Cluster {
    /// Ends a manual failover, whether it succeeded or not.
    pub(super) fn reset_manual_failover(&mut self) {
        if self.manual.replica.is_some() {
            self.out.push(Action::ResumeWrites);
        }
        self.manual = ManualFailover::default();
    }

    /// Gives up a manual failover that took too long.
    pub(super) fn check_manual_timeout(&mut self, now_ms: u64) {
        if self.manual.deadline_ms.is_some_and(|deadline_ms| deadline_ms < now_ms) {
            log!(self, Warning, "Manual failover timed out.");
            self.reset_manual_failover();
        }
    }

    /// Lets the election of a manual failover start.
    pub(super) fn start_manual_election(&mut self) {
        if self.election.start_ms.take().is_some() {
            // An earlier attempt must not delay this one, for which the primary has paused.
            log!(
                self,
                Warning,
                "Failover election in progress for epoch {}, but received a new manual failover. Resetting the \
                 election.",
                self.election.epoch
            );
        }
        self.manual.can_start = true;
    }

    /// Lets the election start when the stream of the paused primary is processed. Returns false if that is not so
    /// yet.
    pub(super) fn check_manual_failover(&mut self, facts: &Facts<'_>) -> bool {
        let manual = &self.manual;
        let Some(offset) = manual.primary_offset.filter(|_| manual.deadline_ms.is_some() && !manual.can_start) else {
            return true;
        };
        if offset != facts.replication_offset {
            return false;
        }
        self.start_manual_election();
        log!(self, Notice, "All primary replication stream processed, manual failover can start.");
        self.todo(Todo::FAILOVER);
        true
    }

    /// Takes the offset at which the primary has paused from its message.
    pub(super) fn note_paused_offset(&mut self, sender: NodeKey, header: &Header<'_>) {
        let is_paused = header.message_flags.contains(MessageFlags::PAUSED);
        let is_mine = self.me().is_replica() && self.me().replica_of == Some(sender);
        if self.manual.deadline_ms.is_none() || self.manual.primary_offset.is_some() || !is_paused || !is_mine {
            return;
        }
        let offset = header.replication_offset;
        self.manual.primary_offset = Some(offset);
        self.todo(Todo::MANUAL_FAILOVER);
        log!(self, Notice, "Received replication offset for paused primary manual failover: {offset}");
    }

    /// A replica asks this primary to pause.
    pub(super) fn pause_for(&mut self, replica: NodeKey, link: LinkId, facts: &Facts<'_>) {
        if self.nodes[replica].replica_of != Some(self.myself) {
            return;
        }
        self.reset_manual_failover();
        let timeout_ms = self.settings.manual_failover_timeout_ms;
        self.manual.deadline_ms = Some(facts.ms().saturating_add(timeout_ms));
        self.manual.replica = Some(replica);
        let until_ms = facts.ms().saturating_add(timeout_ms.saturating_mul(PAUSE_TIMEOUTS));
        self.manual.pause_end_ms = until_ms;
        self.out.push(Action::PauseWrites { until_ms });
        self.manual.pausing_for = Some(link);
        if self.breaks(Mutation::EarlyOffset) {
            self.writes_paused(facts);
        }
        log!(self, Notice, "Manual failover requested by replica {}.", self.label(replica));
    }

    /// A node asks for votes. If it is the replica for which this primary has paused, it may be elected from now on.
    pub(super) fn expect_claim(&mut self, candidate: NodeKey) {
        if self.manual.replica == Some(candidate) && self.manual.is_paused {
            self.manual.deadline_ms = Some(self.manual.pause_end_ms);
        }
    }

    /// Writes are paused as [`Action::PauseWrites`] has asked for: no write follows the offset of `facts`.
    pub fn writes_paused(&mut self, facts: &Facts<'_>) {
        self.manual.is_held = true;
        self.announce_pause(facts);
    }

    /// Tells the replica that writes are paused, once they are. While the target of a slot migration may claim slots of
    /// this primary, the replica waits: as the new primary it would accept writes to these slots, and lose them by the
    /// claim.
    pub(super) fn announce_pause(&mut self, facts: &Facts<'_>) {
        if !self.manual.is_held || !facts.jobs.granted.is_empty() {
            return;
        }
        if let Some(link) = self.manual.pausing_for.take() {
            self.manual.is_paused = true;
            self.send_ping(link, MessageType::Ping, facts);
        }
    }

    /// Whether a replica is about to replace this primary.
    pub fn is_failing_over(&self) -> bool {
        self.manual.replica.is_some()
    }
}
