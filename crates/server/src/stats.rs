//! What the workers count. Each worker has counters of its own, written by it alone; INFO adds them up.

use kvick_store::{Counter, Counters};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Distinct error codes that are counted; beyond them a client is inventing codes.
const ERROR_CODES_MAX: usize = 128;

/// One worker's counters.
pub struct WorkerStats {
    /// Lookups and expiries.
    pub keyspace: Counters,
    /// By the command's place in the table.
    pub commands: Box<[CommandStats]>,
    /// Connections accepted.
    pub connections: Counter,
    /// Bytes received.
    pub bytes_in: Counter,
    /// Bytes sent.
    pub bytes_out: Counter,
    /// Requests executed.
    pub requests: Counter,
    /// Calls of `read`.
    pub reads: Counter,
    /// Calls of `write`.
    pub writes: Counter,
    /// Error replies.
    pub errors: Counter,
    /// Turns of the event loop.
    pub turns: Counter,
    /// Microseconds spent in turns, waiting excluded.
    pub busy_us: Counter,
    /// Connections closed because of their output, hard or soft limit.
    pub output_limit_disconnections: Counter,
    /// Connections closed because of their input.
    pub input_limit_disconnections: Counter,
    /// Passes of active expiry that ran out of time.
    pub expire_cap_reached: Counter,
    /// Error replies by code.
    error_codes: Mutex<BTreeMap<Box<[u8]>, u64>>,
}

/// One command's counters.
#[derive(Default)]
pub struct CommandStats {
    /// Times it ran.
    pub calls: Counter,
    /// Ticks it took in all, see [`crate::clock`].
    pub ticks: Counter,
    /// Times it was refused before it ran.
    pub rejected: Counter,
    /// Times it answered an error.
    pub failed: Counter,
}

impl WorkerStats {
    /// Counters for a table of `commands` commands.
    pub fn new(commands: usize) -> Self {
        WorkerStats {
            keyspace: Counters::default(),
            commands: (0..commands).map(|_| CommandStats::default()).collect(),
            connections: Counter::default(),
            bytes_in: Counter::default(),
            bytes_out: Counter::default(),
            requests: Counter::default(),
            reads: Counter::default(),
            writes: Counter::default(),
            errors: Counter::default(),
            turns: Counter::default(),
            busy_us: Counter::default(),
            output_limit_disconnections: Counter::default(),
            input_limit_disconnections: Counter::default(),
            expire_cap_reached: Counter::default(),
            error_codes: Mutex::default(),
        }
    }

    /// An error reply was made: its text begins with its code.
    pub fn count_error(&self, text: &[u8]) {
        self.errors.add(1);
        let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        let mut codes = self.error_codes.lock();
        if let Some(count) = codes.get_mut(code) {
            *count += 1;
        } else if codes.len() < ERROR_CODES_MAX {
            codes.insert(code.into(), 1);
        }
    }

    /// Error replies by code.
    pub fn error_codes(&self) -> BTreeMap<Box<[u8]>, u64> {
        self.error_codes.lock().clone()
    }

    /// Begins anew, for CONFIG RESETSTAT.
    pub fn reset(&self) {
        let keyspace = &self.keyspace;
        for command in &self.commands {
            [&command.calls, &command.ticks, &command.rejected, &command.failed].into_iter().for_each(Counter::reset);
        }
        [
            &keyspace.hits,
            &keyspace.misses,
            &keyspace.expired,
            &self.connections,
            &self.bytes_in,
            &self.bytes_out,
            &self.requests,
            &self.reads,
            &self.writes,
            &self.errors,
            &self.output_limit_disconnections,
            &self.input_limit_disconnections,
            &self.expire_cap_reached,
        ]
        .into_iter()
        .for_each(Counter::reset);
        self.error_codes.lock().clear();
    }
}
