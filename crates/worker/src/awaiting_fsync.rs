//! Replies awaiting fsync: `appendfsync always` guarantees that no client learns of a change that may still be lost.
//!
//! Under this policy, a turn that ends while the write log is ahead of the disk retains all its replies, including
//! those of reads, which may have seen a write of another worker's turn. The next turns are executed meanwhile, and
//! their replies queue behind, so that each connection gets its replies in order. The thread that writes the file wakes
//! the worker once it has synced far enough. The amount of retained replies is bounded: at the limit, the worker stops
//! reading requests.
//!
//! Under other policies, replies wait in the same way for an idle writer thread to write, which takes no longer than
//! waking it, and for records that are not in the tail of the append-only file.

use super::Worker;
use super::output::Run;
use kvick_resp::ReplyBuffer;
use std::collections::VecDeque;

/// Maximum bytes of replies awaiting fsync.
const RETAINED_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of empty buffers kept, and the maximum capacity of each in bytes.
const SPARE_MAX: usize = 16;
const SPARE_BYTES: usize = 256 * 1024;

/// Replies awaiting fsync; see the module's documentation.
#[derive(Default)]
pub struct AwaitingFsync {
    turns: VecDeque<Turn>,
    bytes: usize,
    spare: Vec<(Vec<Run>, ReplyBuffer)>,
}

struct Turn {
    /// Log offset that must be on disk before they are sent.
    until: u64,
    runs: Vec<Run>,
    replies: ReplyBuffer,
}

impl AwaitingFsync {
    /// Whether the limit is reached, so that no more replies may be produced.
    pub fn is_full(&self) -> bool {
        self.bytes > RETAINED_MAX
    }
}

impl Worker {
    /// Whether replies are waiting.
    #[inline]
    pub(super) fn has_retained_replies(&self) -> bool {
        !self.awaiting_fsync.turns.is_empty()
    }

    /// Retains the batch's replies if they must wait: for the log up to its present end, or at least until the replies
    /// that are retained already have been sent. Returns whether they must.
    pub(super) fn retain_replies(&mut self, awaits_log: bool) -> bool {
        let offset = match self.awaiting_fsync.turns.back() {
            Some(last) if !awaits_log => last.until,
            _ => self.server.keyspace.log.offset(),
        };
        if self.awaiting_fsync.turns.is_empty() && self.server.aof.is_released(offset) {
            return false;
        }
        self.server.aof.count_withheld(self.runs.len());
        for run in &self.runs {
            if let Some(connection) = self.connections.get_mut(run.token) {
                connection.awaiting_fsync += 1;
            }
        }
        let (runs, replies) = self.awaiting_fsync.spare.pop().unwrap_or_default();
        let turn = Turn {
            until: offset,
            runs: std::mem::replace(&mut self.runs, runs),
            replies: std::mem::replace(&mut self.replies, replies),
        };
        self.awaiting_fsync.bytes += turn.replies.len();
        self.awaiting_fsync.turns.push_back(turn);
        self.writes += 1;
        self.reached = 0;
        self.server.aof.wake_on_release(self.number);
        // The disk may have reached the offset before this worker was registered as waiting.
        self.release_synced();
        true
    }

    /// Writes the replies whose offset is on disk.
    pub(super) fn release_synced(&mut self) {
        while self.awaiting_fsync.turns.front().is_some_and(|turn| self.server.aof.is_released(turn.until))
            && let Some(turn) = self.awaiting_fsync.turns.pop_front()
        {
            let present =
                (std::mem::replace(&mut self.runs, turn.runs), std::mem::replace(&mut self.replies, turn.replies));
            self.awaiting_fsync.bytes -= self.replies.len();
            for run in &self.runs {
                if let Some(connection) = self.connections.get_mut(run.token) {
                    connection.awaiting_fsync = connection.awaiting_fsync.saturating_sub(1);
                }
            }
            // Runs of one connection may be separated by others.
            self.reached += 1;
            self.write_out();
            let (mut runs, mut replies) =
                (std::mem::replace(&mut self.runs, present.0), std::mem::replace(&mut self.replies, present.1));
            if self.awaiting_fsync.spare.len() < SPARE_MAX && replies.bytes.capacity() <= SPARE_BYTES {
                runs.clear();
                replies.clear();
                self.awaiting_fsync.spare.push((runs, replies));
            }
        }
        if !self.awaiting_fsync.turns.is_empty() {
            self.server.aof.wake_on_release(self.number);
        }
    }

    /// Drops the waiting replies of a closing connection, because its token may be reused soon.
    pub(super) fn forget_awaiting(&mut self, token: usize) {
        for turn in &mut self.awaiting_fsync.turns {
            turn.runs.retain(|run| run.token != token);
        }
    }
}
