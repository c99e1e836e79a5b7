//! Group commit with `appendfsync always`: how long the thread waits for further writes before it syncs.
//!
//! Clients that wait for the disk return together: when a sync releases them, they send their next writes. A sync that
//! started with the first of these would make all others wait for the following one. Two groups would form, each
//! waiting for the other's sync as well, and each sync would serve half of the clients. Therefore the thread waits
//! until nearly as many replies are held as before, but no longer than a sync takes, and not at all if the disk is
//! fast. If the expected writes do not arrive, it skips the wait for a growing number of syncs.

use super::Aof;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The thread does not wait for fewer replies than this.
const GROUP_MIN: u64 = 4;
/// The thread does not wait after a faster sync: another sync costs less than the wait.
const WORTHWHILE: Duration = Duration::from_micros(750);
/// The longest wait.
const PATIENCE_MAX: Duration = Duration::from_millis(5);
/// The polling interval of the wait.
const LOOK_EVERY: Duration = Duration::from_micros(20);
/// After unsuccessful waits the next 2, 4, ... syncs start at once, up to this many.
const LEFT_OUT_MAX: u32 = 256;

/// State of the group commit. Replies are counted from the start of the server.
pub(super) struct Gathering {
    /// Replies held when the last sync started.
    last: u64,
    /// Replies held when the bytes of the next sync were read from the log.
    next: u64,
    /// The wait ends when this many replies are held: the clients of the last sync have returned.
    goal: u64,
    /// The wait ends at this time at the latest.
    deadline: Instant,
    /// Syncs that will start without a wait.
    left_out: u32,
    /// The last value of `left_out` when it was set.
    left_out_last: u32,
}

impl Gathering {
    pub fn new() -> Self {
        Gathering { last: 0, next: 0, goal: 0, deadline: Instant::now(), left_out: 0, left_out_last: 1 }
    }

    /// Waits for the expected clients, unless the thread has other work.
    pub fn wait(&mut self, aof: &Aof) {
        if held(aof) >= self.goal || Instant::now() >= self.deadline {
            return;
        }
        if self.left_out > 0 {
            self.left_out -= 1;
            return;
        }
        while held(aof) < self.goal {
            if !aof.orders.lock().is_empty() {
                return;
            }
            if Instant::now() >= self.deadline {
                self.left_out_last = (self.left_out_last * 2).min(LEFT_OUT_MAX);
                self.left_out = self.left_out_last;
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.left_out_last = 1;
    }

    /// Notes that the log's present content will be in the next sync.
    pub fn begin(&mut self, aof: &Aof) {
        self.next = held(aof);
    }

    /// Notes that a sync has ended and how long it took. The clients that it released, and those that arrived
    /// meanwhile, are expected for the next sync.
    pub fn end(&mut self, aof: &Aof, took: Duration) {
        let there = held(aof) - std::mem::replace(&mut self.last, self.next);
        let is_worthwhile = there >= GROUP_MIN && took >= WORTHWHILE;
        self.goal = if is_worthwhile { self.last + there - there / 8 } else { 0 };
        self.deadline = Instant::now() + took.min(PATIENCE_MAX);
    }
}

fn held(aof: &Aof) -> u64 {
    aof.held.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_config::words::AppendFsync;

    /// Simulates a sync that `clients` clients wait for.
    fn sync(gathering: &mut Gathering, aof: &Aof, clients: usize, took: Duration) {
        aof.count_held(clients);
        gathering.begin(aof);
        gathering.end(aof, took);
    }

    #[test]
    fn a_sync_waits_for_those_that_the_last_one_released() {
        let (aof, mut gathering) = (Aof::new(1, AppendFsync::Always), Gathering::new());
        sync(&mut gathering, &aof, 50, Duration::MAX);
        gathering.deadline += Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|_| aof.count_held(1)));
            gathering.wait(&aof);
        });
        assert!(held(&aof) >= gathering.goal && gathering.goal == 50 + 44);
        assert_eq!(gathering.left_out, 0);
    }

    #[test]
    fn those_who_came_during_a_sync_count_as_there() {
        let (aof, mut gathering) = (Aof::new(1, AppendFsync::Always), Gathering::new());
        aof.count_held(30);
        gathering.begin(&aof);
        aof.count_held(30);
        gathering.end(&aof, WORTHWHILE);
        assert_eq!(gathering.goal, 30 + 60 - 60 / 8);
    }

    #[test]
    fn who_waits_in_vain_waits_less_often() {
        let (aof, mut gathering) = (Aof::new(1, AppendFsync::Always), Gathering::new());
        let mut vain = Vec::new();
        for round in 0..20 {
            sync(&mut gathering, &aof, 50, WORTHWHILE);
            let before = gathering.left_out;
            gathering.wait(&aof);
            if gathering.left_out > before {
                vain.push(round);
            }
        }
        // If the deadline passed before the wait started, there was no wait.
        assert!(vain.len() <= 4 && vain.windows(2).all(|pair| pair[1] - pair[0] > 2), "{vain:?}");
    }

    #[test]
    fn nobody_is_waited_for_when_syncs_are_quick() {
        let (aof, mut gathering) = (Aof::new(1, AppendFsync::Always), Gathering::new());
        sync(&mut gathering, &aof, 50, WORTHWHILE / 2);
        assert_eq!(gathering.goal, 0);
    }

    #[test]
    fn few_are_not_waited_for() {
        let (aof, mut gathering) = (Aof::new(1, AppendFsync::Always), Gathering::new());
        sync(&mut gathering, &aof, 3, Duration::MAX);
        assert_eq!(gathering.goal, 0);
        gathering.wait(&aof);
        assert_eq!(gathering.left_out, 0);
    }
}
