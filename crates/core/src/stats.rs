//! What the workers count. Each worker has counters of its own, written by it alone; INFO adds them up.
//!
//! CONFIG RESETSTAT does not touch counters that a worker may be writing. [`Totals`] are counted from a baseline that it
//! sets anew; the counters of single commands are zeroed while the world is locked, when no command runs.

use kvick_runtime::histogram::Histogram;
use kvick_store::{Counter, Counters};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Distinct error codes that are counted one by one; beyond them somebody is inventing codes.
const ERROR_CODES_MAX: usize = 128;
/// Under this name the errors beyond are counted.
const OVERFLOW_CODE: &[u8] = b"ERRORSTATS_OVERFLOW";
/// An error text whose first word is longer than this has no code.
const CODE_LEN_MAX: usize = 30;

/// The server's own error codes, which are counted in any case.
const OWN_CODES: [&[u8]; 33] = [
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
    /// By the command's place in the table.
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
    /// Microseconds spent in what is done now and then.
    pub timers_us: Counter,
    /// Microseconds spent looking for keys to expire.
    pub expire_us: Counter,
    /// Allocations that active defragmentation moved.
    pub defrag_moved: Counter,
    /// Allocations that it looked at and left where they are.
    pub defrag_kept: Counter,
    /// Keys of which it moved something.
    pub defrag_keys_moved: Counter,
    /// Keys of which it moved nothing.
    pub defrag_keys_kept: Counter,
    /// Batches for which memory was asked for in advance.
    pub prefetched_batches: Counter,
    /// Keys for which it was.
    pub prefetched_keys: Counter,
    /// Connections closed because of their output, hard or soft limit.
    pub output_limit_disconnections: Counter,
    /// Connections closed because of their input.
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
    /// Times it ran.
    pub calls: Counter,
    /// Ticks it took in all, see [`kvick_runtime::clock`].
    pub ticks: Counter,
    /// Times it was refused before it ran.
    pub rejected: Counter,
    /// Times it answered an error.
    pub failed: Counter,
    /// Ticks it took each time, while `latency-tracking` is on.
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
            /// A worker's counters as they are now.
            pub fn of(stats: &WorkerStats) -> Self {
                Totals { $($name: stats.$($place).+.get()),+ }
            }

            /// What was counted since.
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
    /// Keys dropped because their time had come.
    expired: keyspace.expired,
    /// Fields of hashes dropped because their time had come.
    expired_fields: keyspace.expired_fields,
    /// Keys dropped because memory was short.
    evicted: keyspace.evicted,
    /// Connections accepted.
    connections: connections,
    /// Bytes received.
    bytes_in: bytes_in,
    /// Bytes sent.
    bytes_out: bytes_out,
    /// Requests executed.
    requests: requests,
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
    /// Microseconds spent in what is done now and then.
    timers_us: timers_us,
    /// Microseconds spent looking for keys to expire.
    expire_us: expire_us,
    /// Allocations that active defragmentation moved.
    defrag_moved: defrag_moved,
    /// Allocations that it looked at and left where they are.
    defrag_kept: defrag_kept,
    /// Keys of which it moved something.
    defrag_keys_moved: defrag_keys_moved,
    /// Keys of which it moved nothing.
    defrag_keys_kept: defrag_keys_kept,
    /// Batches for which memory was asked for in advance.
    prefetched_batches: prefetched_batches,
    /// Keys for which it was.
    prefetched_keys: prefetched_keys,
    /// Connections closed because of their output.
    output_limit_disconnections: output_limit_disconnections,
    /// Connections closed because of their input.
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

    /// A turn of the event loop took `us` and executed `requests`.
    pub fn count_turn(&self, us: u64, requests: u64) {
        self.turns.add(1);
        self.busy_us.add(us);
        for (max, value) in [(&self.turn_us_max, us), (&self.turn_requests_max, requests)] {
            max.add(value.saturating_sub(max.get()));
        }
    }

    /// Microseconds of the longest turn, and most requests in one turn.
    pub fn turn_max(&self) -> (u64, u64) {
        (self.turn_us_max.get(), self.turn_requests_max.get())
    }

    /// A command was executed: its place in the table, how long it took, and how many changes it made.
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

    /// It answered an error, whose text is given unless it was counted before.
    #[cold]
    pub fn count_failure(&self, command: u32, text: Option<&[u8]>) {
        self.commands[command as usize].failed.add(1);
        if let Some(text) = text {
            self.count_error(text);
        }
    }

    /// An error reply was made: its text begins with its code.
    #[cold]
    pub fn count_error(&self, text: &[u8]) {
        self.errors.add(1);
        let code = error_code(text);
        let mut codes = self.error_codes.lock();
        if let Some(count) = codes.get_mut(code) {
            *count += 1;
            return;
        }
        let counted_as = if codes.len() < ERROR_CODES_MAX || OWN_CODES.contains(&code) { code } else { OVERFLOW_CODE };
        *codes.entry(counted_as.into()).or_default() += 1;
    }

    /// Error replies by code.
    pub fn error_codes(&self) -> BTreeMap<Box<[u8]>, u64> {
        self.error_codes.lock().clone()
    }

    /// Begins anew with what [`Totals`] do not cover. No command may be running.
    pub fn reset_commands(&self) {
        self.commands.iter().for_each(CommandStats::reset);
        self.turn_us_max.reset();
        self.turn_requests_max.reset();
        self.error_codes.lock().clear();
    }
}

/// The code of an error reply: its first word, if it is short and more follows. Line ends are blanks in replies.
fn error_code(text: &[u8]) -> &[u8] {
    let ends_word = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n');
    let code = text.iter().take(CODE_LEN_MAX + 1).position(ends_word).map(|end| &text[..end]);
    code.unwrap_or(b"ERR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_errors_are_counted_however_many_codes_were_invented() {
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
    fn own_codes_are_sorted_words() {
        assert!(OWN_CODES.is_sorted());
        assert!(OWN_CODES.iter().all(|code| code.iter().all(u8::is_ascii_uppercase)));
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
    fn the_longest_turn_is_kept_until_the_reset() {
        let stats = WorkerStats::new(1);
        [(5, 1), (9, 3), (2, 7)].into_iter().for_each(|(us, requests)| stats.count_turn(us, requests));
        assert_eq!(stats.turn_max(), (9, 7));
        stats.commands[0].durations.record(1);
        stats.reset_commands();
        assert_eq!(stats.turn_max(), (0, 0));
        assert_eq!(Totals::of(&stats).busy_us, 16);
    }
}
