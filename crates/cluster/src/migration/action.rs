//! What the jobs ask their surroundings to do.

use super::{JobName, Message, RangeList};
use crate::NodeId;

/// The importance of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Worth recording.
    Notice,
    /// Something went wrong.
    Warning,
}

/// Something to be done, in the order in which the jobs return it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Write a log line.
    Log(Level, String),

    // Of an export.
    /// Connect to the target. Answered by [`Jobs::connected`](super::Jobs::connected) or
    /// [`Jobs::connect_failed`](super::Jobs::connect_failed).
    Connect {
        /// The job.
        job: JobName,
        /// The target.
        node: NodeId,
        /// Its IP address.
        address: String,
        /// Its port.
        port: u16,
    },
    /// Send AUTH to the target, and answer with [`Jobs::authenticated`](super::Jobs::authenticated).
    Authenticate {
        /// The job.
        job: JobName,
    },
    /// Send this request to the target, and answer with [`Jobs::established`](super::Jobs::established).
    Establish {
        /// The job.
        job: JobName,
        /// ESTABLISH in RESP.
        request: Vec<u8>,
    },
    /// Begin a snapshot of the slots as soon as possible, answer with
    /// [`Jobs::snapshot_started`](super::Jobs::snapshot_started), and send the snapshot, SNAPSHOT-EOF, and then all
    /// later writes to the slots.
    StartSnapshot {
        /// The job.
        job: JobName,
        /// Its slots.
        slots: RangeList,
    },
    /// Send a message to the other side, after all that was sent before.
    Send {
        /// The job.
        job: JobName,
        /// The message.
        message: Message,
    },
    /// Hold back writes of clients to the slots, and send PAUSED after all writes that were before.
    PauseWrites {
        /// The job.
        job: JobName,
        /// Its slots.
        slots: RangeList,
    },
    /// Send FAILOVER-GRANTED, and nothing after it.
    GrantFailover {
        /// The job.
        job: JobName,
    },
    /// The target may not take over any more, although it was allowed to: take an epoch above that of a late claim,
    /// unless this node is no primary. Writes resume after that.
    WithdrawGrant {
        /// The job.
        job: JobName,
    },
    /// Let writes to the slots proceed, or be redirected if the slots have moved.
    ResumeWrites {
        /// The job.
        job: JobName,
        /// Its slots.
        slots: RangeList,
    },

    // Of an import.
    /// Hide the keys of the slots from clients, eviction and expiry, or show them.
    SetImporting {
        /// The slots.
        slots: RangeList,
        /// Whether to hide them.
        importing: bool,
    },
    /// Answer with [`Jobs::replicated`](super::Jobs::replicated) when so many replicas have acknowledged all commands
    /// that this node has executed so far.
    AwaitReplicas {
        /// The job.
        job: JobName,
        /// How many replicas.
        replicas: u64,
    },
    /// If [`Jobs::may_claim`](super::Jobs::may_claim), make this node the owner of the slots with a new epoch, tell all
    /// nodes, and answer with [`Jobs::claimed`](super::Jobs::claimed).
    Claim {
        /// The job.
        job: JobName,
        /// Its slots.
        slots: RangeList,
    },
    /// Delete the keys of those slots that this node does not own, replicate the deletions, and answer with
    /// [`Jobs::cleaned`](super::Jobs::cleaned).
    DeleteKeys {
        /// The job.
        job: JobName,
        /// The number of this deletion.
        number: u64,
        /// Its slots.
        slots: RangeList,
    },
    /// Append this request to the write log, for replicas and the append-only file.
    Propagate {
        /// The request's words.
        words: Vec<Vec<u8>>,
    },

    // Of both.
    /// Close the job's connection, if it has one. No event follows.
    Disconnect {
        /// The job.
        job: JobName,
    },
}
