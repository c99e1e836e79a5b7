//! One worker's search for big keys: see [`kvick_store::big_keys`].
//!
//! A worker continues its walk when its timers are due, for a time that is short for the clients that wait meanwhile
//! and small compared to the interval of the timers. After each round it pauses.

use super::Worker;
use kvick_core::big_keys::Found;
use kvick_runtime::clock::Ticks;
use kvick_store::Share;
use kvick_store::big_keys::Walk;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum duration of a step. It ends after the keys visited under the last lock.
const STEP_MAX: Duration = Duration::from_micros(100);
/// All workers together use at most one part in this many of one core: 0.5 percent.
const SHARE_OF_CORE: u32 = 200;

/// One worker's search.
#[derive(Default)]
pub struct BigKeySearch {
    walk: Walk,
    found: Found,
    /// Keys visited in this round.
    keys: u64,
    /// When the next round begins; `None` within a round.
    next_round: Option<Instant>,
}

/// The duration of a step if timers are due once per `period`.
fn step_duration(period: Duration, workers: usize) -> Duration {
    (period / SHARE_OF_CORE / workers.max(1) as u32).min(STEP_MAX)
}

impl Worker {
    /// Continues the search for big keys, if it is enabled.
    pub(super) fn search_big_keys(&mut self, period: Duration) {
        let settings = self.engine.runtime_config.big_keys;
        let search = &mut self.timers.big_keys;
        let is_active = self.number < self.server.active_workers();
        if !settings.enabled || !is_active {
            if search.found.us > 0 {
                *search = BigKeySearch::default();
                self.server.big_keys.publish(self.number, Found::default());
            }
            return;
        }
        if search.next_round.is_some_and(|at| Instant::now() < at) {
            return;
        }
        if !self.engine.enter() {
            self.engine.leave();
            return;
        }
        search.next_round = None;
        let began = Ticks::now();
        let share = Share { worker: self.number, workers: self.server.active_workers() };
        let deadline = Instant::now() + step_duration(period, share.workers);
        let progress = search.walk.run(self.server.keyspace, share, self.engine.now_ms, deadline);
        self.engine.leave();
        search.keys += progress.keys;
        // Rounding up shows that the search has begun.
        search.found.us += Ticks::now().us_since(began).max(1);
        if progress.is_changed {
            search.found.lists = Arc::new(search.walk.lists().clone());
        }
        if progress.is_round_over {
            search.found.rounds += 1;
            search.found.keys = std::mem::take(&mut search.keys);
            search.next_round = Some(Instant::now() + settings.pause);
        }
        self.server.big_keys.publish(self.number, search.found.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_short_and_take_a_small_share_of_a_core() {
        let step_us = |hz, workers| step_duration(Duration::from_secs(1) / hz, workers).as_micros();
        assert_eq!([step_us(10, 1), step_us(10, 4), step_us(10, 10)], [100, 100, 50]);
        assert_eq!([step_us(100, 1), step_us(500, 1), step_us(1, 1)], [50, 10, 100]);
    }
}
