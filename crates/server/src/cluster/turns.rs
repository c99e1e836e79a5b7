//! Whether workers hang: a node that cannot serve clients must not answer other nodes, so that it is failed over.
//!
//! A worker that executes a long script serves other clients meanwhile, which counts as turns of its loop.

use kvick_core::Core;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A worker is never said to hang for a shorter time, in milliseconds: idle workers make a turn per tick.
const HANG_MIN_MS: u64 = 2000;

/// The workers' turns as last observed.
pub struct Turns {
    workers: Mutex<Vec<Observed>>,
    /// For how long the worker that hangs longest has been in one turn, in milliseconds.
    longest_ms: AtomicU64,
}

struct Observed {
    turns: u64,
    since: Instant,
}

impl Turns {
    /// Nothing observed, for this number of workers.
    pub fn new(workers: usize) -> Self {
        let since = Instant::now();
        let workers = (0..workers).map(|_| Observed { turns: 0, since }).collect();
        Turns { workers: Mutex::new(workers), longest_ms: AtomicU64::new(0) }
    }

    /// Observes the workers.
    pub fn observe(&self, core: &Core) {
        let (now, mut longest_ms) = (Instant::now(), 0);
        for (worker, (observed, stats)) in self.workers.lock().iter_mut().zip(&core.stats).enumerate() {
            if !core.has_started(worker) {
                continue;
            }
            let turns = stats.turns.get();
            if turns != observed.turns {
                *observed = Observed { turns, since: now };
            }
            longest_ms = longest_ms.max((now - observed.since).as_millis() as u64);
        }
        self.longest_ms.store(longest_ms, Ordering::Relaxed);
    }

    /// Whether a worker has been in one turn for at least this time, in milliseconds, and for two seconds.
    pub fn hangs_for_ms(&self, ms: u64) -> bool {
        self.longest_ms.load(Ordering::Relaxed) >= ms.max(HANG_MIN_MS)
    }
}
