//! Group commit with `appendfsync always`: how long the thread waits for more before it has the disk take what is
//! there.
//!
//! Clients that wait for the disk come back together: when a sync has released them, they send their next writes. A
//! sync that began with the first of these would make all others wait for the one behind it; so two groups form, each
//! waits for the other's sync as well, and a sync serves half of the clients. Therefore the thread waits until nearly
//! as many replies are held as were before, but no longer than a sync takes, and not at all on a disk that is quick.
//! Where they do not come it leaves that be for some syncs, for more each time.

use super::Aof;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Fewer replies are not waited for.
const GROUP_MIN: u64 = 4;
/// After a sync that was quicker nobody is waited for: the next one costs less than the wait.
const WORTHWHILE: Duration = Duration::from_micros(750);
/// How long they are waited for at most.
const PATIENCE_MAX: Duration = Duration::from_millis(5);
/// How often it is looked whether they have come.
const LOOK_EVERY: Duration = Duration::from_micros(20);
/// After waits in vain the next 2, 4, ... and at most so many syncs begin at once.
const LEFT_OUT_MAX: u32 = 256;

/// What is known of those who wait for the disk. Replies are counted from the start of the server on.
pub(super) struct Gathering {
    /// Replies held when the last sync began.
    last: u64,
    /// Replies held when what is to be synced next was read from the log.
    next: u64,
    /// When so many are held, those who were there have come back.
    goal: u64,
    /// When to go on without them.
    deadline: Instant,
    /// Syncs that are to begin at once.
    left_out: u32,
    /// How many that were the last time.
    left_out_last: u32,
}

impl Gathering {
    pub fn new() -> Self {
        Gathering { last: 0, next: 0, goal: 0, deadline: Instant::now(), left_out: 0, left_out_last: 1 }
    }

    /// Waits for those who are expected, unless somebody wants something else of the thread.
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

    /// What is in the log now will be in the next sync.
    pub fn begin(&mut self, aof: &Aof) {
        self.next = held(aof);
    }

    /// That has ended, and took so long: who was released by it, and who came meanwhile, is expected for the one behind
    /// it.
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

    /// A sync of what `clients` wait for.
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
        // Had the deadline passed before the wait began, that would have been no wait.
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
