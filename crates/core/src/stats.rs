//! The counters of the workers. Each worker writes only its own counters; INFO adds them up.
//!
//! CONFIG RESETSTAT does not write counters that a worker may be writing. It records a baseline from which [`Totals`]
//! are counted, and zeroes the per-command counters under the global lock, while no command runs.

use kvick_runtime::histogram::Histogram;
use kvick_store::{Counter, Counters};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Distinct error codes that are counted separately. Further codes are counted as [`OVERFLOW_CODE`], since scripts can
/// invent codes without limit.
const ERROR_CODES_MAX: usize = 128;
/// The code under which errors beyond the limit are counted.
const OVERFLOW_CODE: &[u8] = b"ERRORSTATS_OVERFLOW";
/// An error text whose first word is longer than this has no code.
const CODE_LEN_MAX: usize = 30;

/// The server's own error codes, which are always counted separately.
const SERVER_CODES: [&[u8]; 33] = [
    b"ASK",
    b"BUSY",
    b"BUSYGROUP",
    b"BUSYKEY",
    b"CLUSTERDOWN",
    b"CROSSSLOT",
    b"DENIED",
    b"ERR",
    b"EXECABORT",
    b"INPROG",
    b"INVALIDOBJ",
    b"IOERR",
    b"LOADING",
    b"MASTERDOWN",
    b"MISCONF",
    b"MOVED",
    b"NOADDR",
    b"NOAUTH",
    b"NOGOODSLAVE",
    b"NOGROUP",
    b"NOMASTERLINK",
    b"NOPERM",
    b"NOPROTO",
    b"NOREPLICAS",
    b"NOSCRIPT",
    b"NOTBUSY",
    b"OOM",
    b"READONLY",
    b"REDIRECT",
    b"TRYAGAIN",
    b"UNBLOCKED",
    b"WRONGPASS",
    b"WRONGTYPE",
];

/// One worker's counters.
pub struct WorkerStats {
    /// Lookups and expiries.
    pub keyspace: Counters,
    /// Per-command counters, by the command's index in the table.
    pub commands: Box<[CommandStats]>,
    /// Changes made to the keyspace, for deciding when to save; never reset.
    pub dirty: Counter,
    /// Connections accepted.
    pub connections: Counter,
    /// Bytes received.
    pub bytes_in: Counter,
    /// Bytes sent.
    pub bytes_out: Counter,
    /// Requests executed.
    pub requests: Counter,
    /// Requests that were sent to other nodes for clients.
    pub forwarded: Counter,
    /// How often such a request was sent again: after a redirection, or because a link was lost.
    pub forwarded_again: Counter,
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
    /// Microseconds spent in periodic work.
    pub timers_us: Counter,
    /// Microseconds spent looking for keys to expire.
    pub expire_us: Counter,
    /// Allocations that active defragmentation moved.
    pub defrag_moved: Counter,
    /// Allocations that active defragmentation examined and did not move.
    pub defrag_kept: Counter,
    /// Keys of which active defragmentation moved an allocation.
    pub defrag_keys_moved: Counter,
    /// Keys of which active defragmentation moved no allocation.
    pub defrag_keys_kept: Counter,
    /// Batches whose keys were prefetched.
    pub prefetched_batches: Counter,
    /// Keys prefetched.
    pub prefetched_keys: Counter,
    /// Connections closed because they exceeded a hard or soft output buffer limit.
    pub output_limit_disconnections: Counter,
    /// Connections closed because they exceeded the query buffer limit.
    pub input_limit_disconnections: Counter,
    /// Passes of active expiry that ran out of time.
    pub expire_cap_reached: Counter,
    /// Microseconds of the longest turn.
    turn_us_max: Counter,
    /// Most requests in one turn.
    turn_requests_max: Counter,
    /// Error replies by code.
    error_codes: Mutex<BTreeMap<Box<[u8]>, u64>>,
}

/// One command's counters.
#[derive(Default)]
pub struct CommandStats {
    /// Number of executions.
    pub calls: Counter,
    /// Total duration in ticks, see [`kvick_runtime::clock`].
    pub ticks: Counter,
    /// Number of calls that were rejected before execution.
    pub rejected: Counter,
    /// Number of executions that replied with an error.
    pub failed: Counter,
    /// Durations in ticks, recorded while `latency-tracking` is on.
    pub durations: Histogram,
}

impl CommandStats {
    fn reset(&self) {
        [&self.calls, &self.ticks, &self.rejected, &self.failed].into_iter().for_each(Counter::reset);
        self.durations.reset();
    }
}

/// Defines [`Totals`] with one field for each of a worker's counters.
macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident: $($place:ident).+),+ $(,)?) => {
        /// Counters as plain numbers, of one worker or of several together.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals { $($(#[$doc])* pub $name: u64),+ }

        impl Totals {
            /// The current counters of a worker.
            pub fn of(stats: &WorkerStats) -> Self {
                Totals { $($name: stats.$($place).+.get()),+ }
            }

            /// The difference to an earlier reading.
            pub fn since(self, earlier: &Totals) -> Self {
                Totals { $($name: self.$name.saturating_sub(earlier.$name)),+ }
            }
        }

        impl std::iter::Sum for Totals {
            fn sum<I: Iterator<Item = Totals>>(all: I) -> Totals {
                all.fold(Totals::default(), |sum, one| Totals { $($name: sum.$name + one.$name),+ })
            }
        }
    };
}

totals! {
    /// Lookups that found a key.
    hits: keyspace.hits,
    /// Lookups that found none.
    misses: keyspace.misses,
    /// Keys deleted because they expired.
    expired: keyspace.expired,
    /// Hash fields deleted because they expired.
    expired_fields: keyspace.expired_fields,
    /// Keys deleted to free memory.
    evicted: keyspace.evicted,
    /// Connections accepted.
    connections: connections,
    /// Bytes received.
    bytes_in: bytes_in,
    /// Bytes sent.
    bytes_out: bytes_out,
    /// Requests executed.
    requests: requests,
    /// Requests that were sent to other nodes for clients.
    forwarded: forwarded,
    /// How often such a request was sent again.
    forwarded_again: forwarded_again,
    /// Calls of `read`.
    reads: reads,
    /// Calls of `write`.
    writes: writes,
    /// Error replies.
    errors: errors,
    /// Turns of the event loop.
    turns: turns,
    /// Microseconds spent in turns.
    busy_us: busy_us,
    /// Microseconds spent in periodic work.
    timers_us: timers_us,
    /// Microseconds spent looking for keys to expire.
    expire_us: expire_us,
    /// Allocations that active defragmentation moved.
    defrag_moved: defrag_moved,
    /// Allocations that active defragmentation examined and did not move.
    defrag_kept: defrag_kept,
    /// Keys of which active defragmentation moved an allocation.
    defrag_keys_moved: defrag_keys_moved,
    /// Keys of which active defragmentation moved no allocation.
    defrag_keys_kept: defrag_keys_kept,
    /// Batches whose keys were prefetched.
    prefetched_batches: prefetched_batches,
    /// Keys prefetched.
    prefetched_keys: prefetched_keys,
    /// Connections closed because they exceeded an output buffer limit.
    output_limit_disconnections: output_limit_disconnections,
    /// Connections closed because they exceeded the query buffer limit.
    input_limit_disconnections: input_limit_disconnections,
    /// Passes of active expiry that ran out of time.
    expire_cap_reached: expire_cap_reached,
}

impl WorkerStats {
    /// Counters for a table of `commands` commands.
    pub fn new(commands: usize) -> Self {
        WorkerStats {
            keyspace: Counters::default(),
            commands: (0..commands).map(|_| CommandStats::default()).collect(),
            dirty: Counter::default(),
            connections: Counter::default(),
            bytes_in: Counter::default(),
            bytes_out: Counter::default(),
            requests: Counter::default(),
            forwarded: Counter::default(),
            forwarded_again: Counter::default(),
            reads: Counter::default(),
            writes: Counter::default(),
            errors: Counter::default(),
            turns: Counter::default(),
            busy_us: Counter::default(),
            timers_us: Counter::default(),
            expire_us: Counter::default(),
            defrag_moved: Counter::default(),
            defrag_kept: Counter::default(),
            defrag_keys_moved: Counter::default(),
            defrag_keys_kept: Counter::default(),
            prefetched_batches: Counter::default(),
            prefetched_keys: Counter::default(),
            output_limit_disconnections: Counter::default(),
            input_limit_disconnections: Counter::default(),
            expire_cap_reached: Counter::default(),
            turn_us_max: Counter::default(),
            turn_requests_max: Counter::default(),
            error_codes: Mutex::default(),
        }
    }

    /// Counts a turn of the event loop that took `us` microseconds and executed `requests` requests.
    pub fn count_turn(&self, us: u64, requests: u64) {
        self.turns.add(1);
        self.busy_us.add(us);
        for (max, value) in [(&self.turn_us_max, us), (&self.turn_requests_max, requests)] {
            max.add(value.saturating_sub(max.get()));
        }
    }

    /// Microseconds of the longest turn.
    pub fn turn_us_max(&self) -> u64 {
        self.turn_us_max.get()
    }

    /// The largest number of requests in one turn.
    pub fn turn_requests_max(&self) -> u64 {
        self.turn_requests_max.get()
    }

    /// Counts an executed command: its index in the table, its duration, and the number of changes it made.
    #[inline]
    pub fn count(&self, command: u32, ticks: u64, dirty: u64, latency_tracking: bool) {
        let stats = &self.commands[command as usize];
        stats.calls.add(1);
        stats.ticks.add(ticks);
        if latency_tracking {
            stats.durations.record(ticks);
        }
        self.requests.add(1);
        if dirty > 0 {
            self.dirty.add(dirty);
        }
    }

    /// Counts a command that replied with an error. `text` is the error, unless it has been counted already.
    #[cold]
    pub fn count_failure(&self, command: u32, text: Option<&[u8]>) {
        self.commands[command as usize].failed.add(1);
        if let Some(text) = text {
            self.count_error(text);
        }
    }

    /// Counts an error reply. Its text begins with the error code.
    #[cold]
    pub fn count_error(&self, text: &[u8]) {
        self.errors.add(1);
        let code = error_code(text);
        let mut codes = self.error_codes.lock();
        if let Some(count) = codes.get_mut(code) {
            *count += 1;
            return;
        }
        let counted_as =
            if codes.len() < ERROR_CODES_MAX || SERVER_CODES.contains(&code) { code } else { OVERFLOW_CODE };
        *codes.entry(counted_as.into()).or_default() += 1;
    }

    /// Error replies by code.
    pub fn error_codes(&self) -> BTreeMap<Box<[u8]>, u64> {
        self.error_codes.lock().clone()
    }

    /// Resets the counters that [`Totals`] do not cover. No command may be running.
    pub fn reset_commands(&self) {
        self.commands.iter().for_each(CommandStats::reset);
        self.turn_us_max.reset();
        self.turn_requests_max.reset();
        self.error_codes.lock().clear();
    }
}

/// The code of an error reply: its first word, if it is short and followed by more text. Replies contain blanks in
/// place of line ends.
fn error_code(text: &[u8]) -> &[u8] {
    let ends_word = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n');
    let code = text.iter().take(CODE_LEN_MAX + 1).position(ends_word).map(|end| &text[..end]);
    code.unwrap_or(b"ERR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_errors_are_counted_despite_many_custom_codes() {
        let stats = WorkerStats::new(0);
        for n in 0..200 {
            stats.count_error(format!("CODE{n} text").as_bytes());
        }
        ["ERR syntax error", "CODE1 again", "CODE199 again", "nocode", "ERR\r\n-ERR two lines"]
            .into_iter()
            .for_each(|text| stats.count_error(text.as_bytes()));
        let codes = stats.error_codes();
        let count = |code: &[u8]| codes.get(code).copied();
        assert_eq!(count(b"ERR"), Some(3));
        assert_eq!(count(b"CODE1"), Some(2));
        assert_eq!(count(b"CODE199"), None);
        assert_eq!(count(OVERFLOW_CODE), Some(200 - 128 + 1));
        assert_eq!(Totals::of(&stats).errors, 205);
    }

    #[test]
    fn server_codes_are_sorted_and_uppercase() {
        assert!(SERVER_CODES.is_sorted());
        assert!(SERVER_CODES.iter().all(|code| code.iter().all(u8::is_ascii_uppercase)));
    }

    #[test]
    fn totals_count_from_a_baseline() {
        let stats = WorkerStats::new(1);
        stats.bytes_in.add(10);
        let baseline = Totals::of(&stats);
        stats.bytes_in.add(5);
        stats.keyspace.hits.add(1);
        let since = Totals::of(&stats).since(&baseline);
        assert_eq!((since.bytes_in, since.hits, since.turns), (5, 1, 0));
        assert_eq!([since, since].into_iter().sum::<Totals>().bytes_in, 10);
    }

    #[test]
    fn longest_turn_is_kept_until_reset() {
        let stats = WorkerStats::new(1);
        [(5, 1), (9, 3), (2, 7)].into_iter().for_each(|(us, requests)| stats.count_turn(us, requests));
        assert_eq!((stats.turn_us_max(), stats.turn_requests_max()), (9, 7));
        stats.commands[0].durations.record(1);
        stats.reset_commands();
        assert_eq!((stats.turn_us_max(), stats.turn_requests_max()), (0, 0));
        assert_eq!(Totals::of(&stats).busy_us, 16);
    }
}
