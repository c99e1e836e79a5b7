//! Group commit with `appendfsync always`: how long the thread waits for further writes before it syncs.
//!
//! Clients that wait for the disk return together: when a sync releases them, they send their next writes. A sync that
//! started with the first of these would make all others wait for the following one. Two groups would form, each
//! waiting for the other's sync as well, and each sync would serve half of the clients. Therefore the thread waits
//! until nearly as many replies are withheld as before, but no longer than a sync takes, and not at all if the disk is
//! fast. If the expected writes do not arrive, it skips the wait for a growing number of syncs.

use super::Aof;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The thread does not wait for fewer replies than this.
const GROUP_MIN: u64 = 4;
/// The thread does not wait after a faster sync: another sync costs less than the wait.
const SYNC_TIME_MIN: Duration = Duration::from_micros(750);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// The polling interval of the wait.
const POLL_INTERVAL: Duration = Duration::from_micros(20);
/// After unsuccessful waits the next 2, 4, ... syncs start at once, up to this many.
const SKIPS_MAX: u32 = 256;

/// State of the group commit. Replies are counted from the start of the server.
pub(super) struct GroupCommit {
    /// Replies withheld when the last sync started.
    last: u64,
    /// Replies withheld when the bytes of the next sync were read from the log.
    next: u64,
    /// The wait ends when this many replies are withheld: the clients of the last sync have returned.
    target: u64,
    /// The wait ends at this time at the latest.
    deadline: Instant,
    /// Syncs that will start without a wait.
    skips_left: u32,
    /// The last value of `skips_left` when it was set.
    last_skips: u32,
}

impl GroupCommit {
    pub fn new() -> Self {
        GroupCommit { last: 0, next: 0, target: 0, deadline: Instant::now(), skips_left: 0, last_skips: 1 }
    }

    /// Waits for the expected clients, unless the thread has other work.
    pub fn wait(&mut self, aof: &Aof) {
        if withheld(aof) >= self.target || Instant::now() >= self.deadline {
            return;
        }
        if self.skips_left > 0 {
            self.skips_left -= 1;
            return;
        }
        while withheld(aof) < self.target {
            if !aof.orders.lock().is_empty() {
                return;
            }
            if Instant::now() >= self.deadline {
                self.last_skips = (self.last_skips * 2).min(SKIPS_MAX);
                self.skips_left = self.last_skips;
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.last_skips = 1;
    }

    /// Notes that the log's present content will be in the next sync.
    pub fn begin(&mut self, aof: &Aof) {
        self.next = withheld(aof);
    }

    /// Notes that a sync has ended and how long it took. The clients that it released, and those that arrived
    /// meanwhile, are expected for the next sync.
    pub fn end(&mut self, aof: &Aof, took: Duration) {
        let expected = withheld(aof) - std::mem::replace(&mut self.last, self.next);
        let is_worth_waiting = expected >= GROUP_MIN && took >= SYNC_TIME_MIN;
        self.target = if is_worth_waiting { self.last + expected - expected / 8 } else { 0 };
        self.deadline = Instant::now() + took.min(WAIT_MAX);
    }
}

fn withheld(aof: &Aof) -> u64 {
    aof.withheld.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_config::words::AppendFsync;

    /// Simulates a sync that `clients` clients wait for.
    fn sync(group_commit: &mut GroupCommit, aof: &Aof, clients: usize, took: Duration) {
        aof.count_withheld(clients);
        group_commit.begin(aof);
        group_commit.end(aof, took);
    }

    #[test]
    fn sync_waits_for_the_clients_released_by_the_last_one() {
        let (aof, mut group_commit) = (Aof::new(1, AppendFsync::Always), GroupCommit::new());
        sync(&mut group_commit, &aof, 50, Duration::MAX);
        group_commit.deadline += Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|_| aof.count_withheld(1)));
            group_commit.wait(&aof);
        });
        assert!(withheld(&aof) >= group_commit.target && group_commit.target == 50 + 44);
        assert_eq!(group_commit.skips_left, 0);
    }

    #[test]
    fn replies_withheld_during_a_sync_count_toward_the_target() {
        let (aof, mut group_commit) = (Aof::new(1, AppendFsync::Always), GroupCommit::new());
        aof.count_withheld(30);
        group_commit.begin(&aof);
        aof.count_withheld(30);
        group_commit.end(&aof, SYNC_TIME_MIN);
        assert_eq!(group_commit.target, 30 + 60 - 60 / 8);
    }

    #[test]
    fn failed_waits_are_followed_by_skipped_waits() {
        let (aof, mut group_commit) = (Aof::new(1, AppendFsync::Always), GroupCommit::new());
        let mut vain = Vec::new();
        for round in 0..20 {
            sync(&mut group_commit, &aof, 50, SYNC_TIME_MIN);
            let before = group_commit.skips_left;
            group_commit.wait(&aof);
            if group_commit.skips_left > before {
                vain.push(round);
            }
        }
        // If the deadline passed before the wait started, there was no wait.
        assert!(vain.len() <= 4 && vain.windows(2).all(|pair| pair[1] - pair[0] > 2), "{vain:?}");
    }

    #[test]
    fn no_wait_if_syncs_are_fast() {
        let (aof, mut group_commit) = (Aof::new(1, AppendFsync::Always), GroupCommit::new());
        sync(&mut group_commit, &aof, 50, SYNC_TIME_MIN / 2);
        assert_eq!(group_commit.target, 0);
    }

    #[test]
    fn no_wait_for_few_replies() {
        let (aof, mut group_commit) = (Aof::new(1, AppendFsync::Always), GroupCommit::new());
        sync(&mut group_commit, &aof, 3, Duration::MAX);
        assert_eq!(group_commit.target, 0);
        group_commit.wait(&aof);
        assert_eq!(group_commit.skips_left, 0);
    }
}
