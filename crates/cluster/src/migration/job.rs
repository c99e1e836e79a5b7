//! One migration job: what GETSLOTMIGRATIONS and the log say about it.

use super::{Context, Peer, RangeList};
use crate::NodeId;
use std::fmt;

/// The name of a job: 40 bytes that the source chooses at random.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobName([u8; JobName::LEN]);

/// Which side of the migration this node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The slots are to leave this node.
    Export,
    /// The slots are to come to this node, or to its primary.
    Import,
}

/// Where a job stands. Which states an export and an import pass through is in the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named as in GETSLOTMIGRATIONS")]
pub enum State {
    ImportWaitingForAck,
    ImportReceivingSnapshot,
    ImportWaitingForPaused,
    ImportFailoverRequested,
    ImportFailoverGranted,
    ImportCleaningUp,
    ImportOccurringOnPrimary,
    ExportConnecting,
    ExportSendingAuth,
    ExportReadingAuthReply,
    ExportSendingEstablish,
    ExportReadingEstablishReply,
    ExportWaitingToSnapshot,
    ExportSnapshotting,
    ExportReplicating,
    ExportWaitingToPause,
    ExportFailoverPaused,
    ExportFailoverGranted,
    Success,
    Cancelled,
    Failed,
}

/// A migration job. See [`Jobs`](super::Jobs).
#[derive(Clone, Debug)]
pub struct Job {
    pub(super) name: JobName,
    pub(super) direction: Direction,
    pub(super) state: State,
    pub(super) ranges: RangeList,
    pub(super) source: Option<NodeId>,
    pub(super) target: Option<NodeId>,
    pub(super) created_s: u64,
    pub(super) updated_s: u64,
    pub(super) acknowledged_s: u64,
    /// Import: when its client sent something last.
    pub(super) heard_s: u64,
    pub(super) next_ack_ms: u64,
    pub(super) message: Option<String>,
    pub(super) description: String,
    /// Export: when to send ESTABLISH again, in Unix milliseconds.
    pub(super) establish_again_ms: Option<u64>,
    /// Export: when the pause of writes ends at the latest, on the monotonic clock.
    pub(super) pause_end_ms: Option<u64>,
    /// Export: when the target was allowed to take over, on the monotonic clock.
    pub(super) granted_ms: u64,
    /// Export: how it ends when the target may not take over any more.
    pub(super) ending: Option<(State, Option<String>)>,
    /// Import: when it has asked for the slots, in Unix milliseconds and on the monotonic clock.
    pub(super) requested_ms: Option<(u64, u64)>,
    /// The state after [`State::ImportCleaningUp`].
    pub(super) after_cleanup: State,
    /// The number of the deletion of its keys.
    pub(super) cleanup: u64,
    /// Import: this node only records what happens on its primary.
    pub(super) tracking_only: bool,
    /// Import: the slots are being claimed.
    pub(super) claiming: bool,
    /// Import: since when it waits for replicas, in Unix seconds.
    pub(super) awaits_replicas_since_s: Option<u64>,
    /// Export: bytes that are left to send.
    pub(super) remaining_bytes: u64,
}

impl JobName {
    /// Bytes of a name.
    pub const LEN: usize = 40;

    /// The name made of these bytes, if there are 40.
    pub fn new(bytes: &[u8]) -> Option<JobName> {
        bytes.try_into().ok().map(JobName)
    }

    /// The hexadecimal name of 20 random bytes.
    pub fn from_random(random: [u8; JobName::LEN / 2]) -> JobName {
        JobName(*NodeId::from_random(random).as_bytes())
    }

    /// The name as bytes.
    pub fn as_bytes(&self) -> &[u8; JobName::LEN] {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Direction {
    /// As in GETSLOTMIGRATIONS.
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Export => "EXPORT",
            Direction::Import => "IMPORT",
        }
    }
}

impl State {
    /// As in GETSLOTMIGRATIONS and the log.
    pub fn as_str(self) -> &'static str {
        match self {
            State::ImportWaitingForAck => "waiting-for-ack",
            State::ImportReceivingSnapshot => "receiving-snapshot",
            State::ImportWaitingForPaused => "waiting-for-paused",
            State::ImportFailoverRequested => "failover-requested",
            State::ImportFailoverGranted | State::ExportFailoverGranted => "failover-granted",
            State::ImportCleaningUp => "cleaning-up",
            State::ImportOccurringOnPrimary => "occurring-on-primary",
            State::ExportConnecting => "connecting",
            State::ExportSendingAuth => "sending-auth-command",
            State::ExportReadingAuthReply => "reading-auth-response",
            State::ExportSendingEstablish => "sending-establish-command",
            State::ExportReadingEstablishReply => "reading-establish-response",
            State::ExportWaitingToSnapshot => "waiting-to-snapshot",
            State::ExportSnapshotting => "snapshotting",
            State::ExportReplicating => "replicating",
            State::ExportWaitingToPause => "waiting-to-pause",
            State::ExportFailoverPaused => "failover-paused",
            State::Success => "success",
            State::Cancelled => "cancelled",
            State::Failed => "failed",
        }
    }

    /// Whether the job is only kept as a record.
    pub fn is_finished(self) -> bool {
        matches!(self, State::Success | State::Cancelled | State::Failed)
    }

    /// Whether the job is still trying to move the slots.
    pub fn is_in_progress(self) -> bool {
        !self.is_finished() && self != State::ImportCleaningUp
    }

    /// Whether both sides send an ACK every second. The import does not before the export has sent one, and the export
    /// not before it reads messages, nor into its snapshot.
    pub(super) fn sends_acks(self) -> bool {
        matches!(
            self,
            State::ImportReceivingSnapshot
                | State::ImportWaitingForPaused
                | State::ImportFailoverRequested
                | State::ImportFailoverGranted
                | State::ExportWaitingToSnapshot
                | State::ExportReplicating
                | State::ExportWaitingToPause
                | State::ExportFailoverPaused
        )
    }

    /// Whether an export feeds the writes to its slots to the target.
    pub fn is_feeding(self) -> bool {
        matches!(
            self,
            State::ExportSnapshotting
                | State::ExportReplicating
                | State::ExportWaitingToPause
                | State::ExportFailoverPaused
        )
    }
}

impl Job {
    pub(super) fn new(
        name: JobName,
        direction: Direction,
        state: State,
        ranges: RangeList,
        other: Option<(NodeId, Peer)>,
        context: &Context<'_>,
    ) -> Job {
        let description = describe(&name, direction, &ranges, other.as_ref());
        let now_s = context.now_s();
        let (mine, other) = (context.topology.my_id(), other.map(|(id, _)| id));
        let (source, target) = match direction {
            Direction::Export => (Some(mine), other),
            Direction::Import => (other, other.map(|_| mine)),
        };
        Job {
            name,
            direction,
            state,
            ranges,
            source,
            target,
            created_s: now_s,
            updated_s: now_s,
            acknowledged_s: now_s,
            heard_s: now_s,
            next_ack_ms: context.now_ms.saturating_add(1000),
            message: None,
            description,
            establish_again_ms: None,
            pause_end_ms: None,
            granted_ms: 0,
            ending: None,
            requested_ms: None,
            after_cleanup: State::Failed,
            cleanup: 0,
            tracking_only: false,
            claiming: false,
            awaits_replicas_since_s: None,
            remaining_bytes: 0,
        }
    }

    /// Its name.
    pub fn name(&self) -> JobName {
        self.name
    }

    /// Which side this node is.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// The slots.
    pub fn ranges(&self) -> &RangeList {
        &self.ranges
    }

    /// The old owner. Unknown for an import that only its primary runs.
    pub fn source(&self) -> Option<NodeId> {
        self.source
    }

    /// The new owner. Unknown for an import that only its primary runs.
    pub fn target(&self) -> Option<NodeId> {
        self.target
    }

    /// Whether this node only records what happens on its primary.
    pub fn is_tracking_only(&self) -> bool {
        self.tracking_only
    }

    /// When it was created, in Unix seconds.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }

    /// When its state changed last, in Unix seconds.
    pub fn updated_s(&self) -> u64 {
        self.updated_s
    }

    /// When the other side sent an ACK last, in Unix seconds.
    pub fn acknowledged_s(&self) -> u64 {
        self.acknowledged_s
    }

    /// Why it ended, if there is more to say than its state.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// What the log calls it.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Bytes that an export has left to send.
    pub fn remaining_bytes(&self) -> u64 {
        if self.state.is_in_progress() { self.remaining_bytes } else { 0 }
    }

    pub(super) fn is_export(&self) -> bool {
        self.direction == Direction::Export
    }

    pub(super) fn is_import(&self) -> bool {
        self.direction == Direction::Import
    }
}

fn describe(name: &JobName, direction: Direction, ranges: &RangeList, other: Option<&(NodeId, Peer)>) -> String {
    let (operation, side) = match direction {
        Direction::Export => ("export", "target_node"),
        Direction::Import => ("import", "source_node"),
    };
    let id = other.map_or_else(|| "unknown".to_owned(), |(id, _)| id.to_string());
    let human = match other {
        Some((_, peer)) if !peer.human_name.is_empty() => format!("{side}_human_name: {}, ", peer.human_name),
        _ => String::new(),
    };
    format!("{{name: {name}, operation: {operation}, {side}_id: {id}, {human}slots: {ranges}}}")
}
