//! Replies that wait for the append-only file: `appendfsync always` promises that nobody hears of a change that may yet
//! be lost.
//!
//! With it, a turn that ends while the log holds what the disk does not keeps its replies, all of them: also one that
//! only read may have seen what another worker's turn has just written. The next turns are executed meanwhile, and
//! theirs wait behind, so that each connection gets its replies in order. When the thread that writes the file has come
//! far enough, it wakes the worker. How much may wait is bounded: then the worker reads no more requests.
//!
//! Without it, replies wait in the same way for a thread that was idle until it has written, which takes no longer than
//! being woken does.

use super::Worker;
use super::output::Run;
use std::collections::VecDeque;

/// Bytes of replies that may wait.
const HELD_MAX: usize = 64 * 1024 * 1024;
/// Emptied buffers that are kept, and the bytes that each may have.
const SPARE_MAX: usize = 16;
const SPARE_BYTES: usize = 256 * 1024;

/// See the module's documentation.
#[derive(Default)]
pub struct AwaitingFsync {
    turns: VecDeque<Turn>,
    bytes: usize,
    spare: Vec<(Vec<Run>, Vec<u8>)>,
}

struct Turn {
    /// The offset of the log up to which the disk must have it.
    until: u64,
    runs: Vec<Run>,
    replies: Vec<u8>,
}

impl AwaitingFsync {
    /// Whether so much waits that no more is to be made.
    pub fn is_full(&self) -> bool {
        self.bytes > HELD_MAX
    }
}

impl Worker {
    /// Whether there are replies that wait.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        !self.awaiting_fsync.turns.is_empty()
    }

    /// Keeps the batch's replies if they have to wait; whether they do.
    pub(super) fn hold_replies(&mut self) -> bool {
        let offset = self.server.keyspace.log.offset();
        if self.awaiting_fsync.turns.is_empty() && self.server.aof.is_released(offset) {
            return false;
        }
        self.server.aof.count_held(self.runs.len());
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
        self.server.aof.hold_for(self.number);
        // The disk may have come far enough before it was known that somebody waits.
        self.release_synced();
        true
    }

    /// Writes the replies that need not wait any longer.
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
            // Runs of one connection may stand apart.
            self.reached += 1;
            self.write_out();
            let (mut runs, mut replies) =
                (std::mem::replace(&mut self.runs, present.0), std::mem::replace(&mut self.replies, present.1));
            if self.awaiting_fsync.spare.len() < SPARE_MAX && replies.capacity() <= SPARE_BYTES {
                runs.clear();
                replies.clear();
                self.awaiting_fsync.spare.push((runs, replies));
            }
        }
        if !self.awaiting_fsync.turns.is_empty() {
            self.server.aof.hold_for(self.number);
        }
    }

    /// Forgets what waits for a connection that ends: its token may be another's soon.
    pub(super) fn forget_awaiting(&mut self, token: usize) {
        for turn in &mut self.awaiting_fsync.turns {
            turn.runs.retain(|run| run.token != token);
        }
    }
}
