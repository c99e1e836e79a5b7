//! Slow commands on their way from the command log to a thread that exports them as traces.

use crate::commandlog::{Entry, Executed};
use kvick_runtime::clock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Commands that wait at most; more are counted and dropped.
const WAITING_MAX: usize = 4096;

/// A command that was slow.
#[derive(Clone, Debug)]
pub struct SlowCommand {
    /// Its entry in the log of slow commands. The value is its duration in microseconds.
    pub entry: Entry,
    /// Unix time in microseconds at which it ended.
    pub ended_us: i64,
    /// The database that it was executed in.
    pub db: usize,
    /// The error with which it ended.
    pub error: Option<Box<[u8]>>,
    /// The client's number.
    pub client: u64,
    /// The server's address that the client connected to.
    pub local: String,
    /// The client's user.
    pub user: Box<[u8]>,
    /// The name of the client's library, if it has told one.
    pub library: Box<[u8]>,
    /// The worker that executed it.
    pub worker: usize,
}

impl SlowCommand {
    /// A command that has just ended.
    pub fn new(entry: &Entry, executed: Executed<'_>) -> SlowCommand {
        let Executed { client, db, error, .. } = executed;
        let (user, library) = {
            let names = client.names.lock();
            (names.user[..].into(), names.lib_name.clone())
        };
        SlowCommand {
            entry: entry.clone(),
            ended_us: clock::unix_us(),
            db,
            error: error.map(Into::into),
            client: client.id,
            local: client.local.clone(),
            user,
            library,
            worker: client.worker(),
        }
    }
}

/// Those that nobody has taken yet, while somebody wants them.
#[derive(Default)]
pub struct SlowCommands {
    are_wanted: AtomicBool,
    waiting: Mutex<Vec<SlowCommand>>,
    dropped: AtomicU64,
}

impl SlowCommands {
    /// Whether to add any.
    pub fn are_wanted(&self) -> bool {
        self.are_wanted.load(Ordering::Relaxed)
    }

    /// Starts or stops to collect them. Those that wait remain.
    pub fn set_wanted(&self, are_wanted: bool) {
        self.are_wanted.store(are_wanted, Ordering::Relaxed);
    }

    /// Adds one, unless too many wait.
    pub fn add(&self, command: impl FnOnce() -> SlowCommand) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING_MAX {
            waiting.push(command());
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes all that wait, in the order of their log.
    pub fn take(&self) -> Vec<SlowCommand> {
        std::mem::take(&mut self.waiting.lock())
    }

    /// How many were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::ClientInfo;
    use crate::commandlog::{CommandLog, Thresholds};
    use kvick_resp::OwnedArgs;

    const SLOW: Thresholds =
        Thresholds { slow_us: 10, slow_max: 1, request_bytes: 0, request_max: 9, reply_bytes: 0, reply_max: 9 };

    #[test]
    fn entries_of_the_slow_log_are_collected_while_they_are_wanted() {
        let (log, owned) = (CommandLog::default(), OwnedArgs::new([&b"incr"[..], b"key"]));
        let client = ClientInfo::new(7, 3, -1, "127.0.0.1:1".into(), "127.0.0.1:2".into(), true, 0);
        let executed = Executed { args: owned.args(), client: &client, redacted: 0, db: 5, error: Some(b"ERR no") };
        log.record_all(11, 100, executed, &SLOW);
        log.slow.set_wanted(true);
        for us in [9, 10, 12] {
            log.record_all(us, 100, executed, &SLOW);
        }
        let taken = log.slow.take();
        let durations: Vec<(i64, i64)> = taken.iter().map(|slow| (slow.entry.id, slow.entry.value)).collect();
        assert_eq!(durations, [(1, 10), (2, 12)]);
        let SlowCommand { db, error, client, worker, local, user, .. } = &taken[0];
        assert_eq!((*db, error.as_deref(), *client, *worker), (5, Some(&b"ERR no"[..]), 7, 3));
        assert_eq!((local.as_str(), &user[..]), ("127.0.0.1:2", &b"default"[..]));
        assert!(log.slow.take().is_empty());
    }

    #[test]
    fn those_that_nobody_takes_are_dropped_and_counted() {
        let (log, owned) = (CommandLog::default(), OwnedArgs::new([b"ping"]));
        let client = ClientInfo::new(7, 0, -1, String::new(), String::new(), true, 0);
        let executed = Executed { args: owned.args(), client: &client, redacted: 0, db: 0, error: None };
        log.slow.set_wanted(true);
        (0..WAITING_MAX + 3).for_each(|_| log.record_slow(20, executed, &SLOW));
        assert_eq!((log.slow.dropped(), log.slow.take().len()), (3, WAITING_MAX));
    }
}
