//! Active defragmentation: decides when it runs and how much CPU time it may use.
//!
//! A worker periodically measures how much memory in the allocator's slabs is free ([`Defrag::tick`]). When it exceeds
//! the configured thresholds, a round begins: every worker walks its share of the keyspace ([`kvick_store::defrag`]) in
//! slices of `active-defrag-cycle-us`. The CPU percentage is interpolated between `active-defrag-cycle-min` and `-max`
//! as the waste lies between the thresholds. When all workers have finished, the waste is measured again, and the next
//! round begins unless it is well below the thresholds. A round that moved almost nothing is followed by a pause,
//! because the remaining waste is not the keyspace's.

use crate::services::Services;
use kvick_config::tables::memory as settings;
use kvick_runtime::memory::SlabFragmentation;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Length of the pause after a round that moved almost nothing.
const FUTILE_PAUSE: Duration = Duration::from_secs(10);
/// A round is futile if it moved less than one part in this many of what it examined.
const FUTILE_SHARE: u64 = 1000;

/// Shared state of active defragmentation; see the module's documentation.
#[derive(Default)]
pub struct Defrag {
    /// CPU percentage per worker; 0 while no round is in progress.
    percent: AtomicU32,
    /// Number of the current round.
    round: AtomicU64,
    /// Workers that have finished their share of the round.
    finished: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When the current run started.
    since: Option<Instant>,
    /// Duration of earlier runs.
    total: Duration,
    /// End of the pause.
    paused_until: Option<Instant>,
    /// The configured percentages at the last tick.
    cycle: Range,
    /// Totals when the round began.
    at_begin: Totals,
}

impl Defrag {
    /// CPU percentage per worker; 0 while defragmentation is not running.
    pub fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
    }

    /// Number of the current round.
    pub fn round(&self) -> u64 {
        self.round.load(Ordering::Acquire)
    }

    /// Number of workers that have finished their share of the round.
    pub fn finished(&self) -> usize {
        self.finished.load(Ordering::Acquire)
    }

    fn begin_round(&self) {
        self.finished.store(0, Ordering::Relaxed);
        self.round.fetch_add(1, Ordering::Release);
    }

    /// Begins a round at this CPU percentage, whatever the waste.
    pub fn begin_round_at(&self, percent: u32) {
        self.begin_round();
        self.percent.store(percent, Ordering::Release);
    }

    /// Counts a worker that has finished its share of a round.
    pub fn finish_share(&self, round: u64) {
        if round == self.round() {
            self.finished.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Duration of the current run, and of all runs.
    pub fn times(&self) -> (Duration, Duration) {
        let state = self.state.lock();
        let now = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        (now, state.total + now)
    }

    /// Resets the statistics.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.total = Duration::ZERO;
        state.since = state.since.map(|_| Instant::now());
    }

    /// Decides whether defragmentation runs, and at which percentage. One thread calls it several times per second.
    pub fn tick(&self, server: &'static Services) {
        let values = server.config.values();
        if !values.read(settings::ACTIVEDEFRAG) {
            return self.stop();
        }
        let runs = self.percent() > 0;
        let cycle = Range {
            low: values.read(settings::ACTIVE_DEFRAG_CYCLE_MIN),
            high: values.read(settings::ACTIVE_DEFRAG_CYCLE_MAX),
        };
        let mut state = self.state.lock();
        let is_changed = std::mem::replace(&mut state.cycle, cycle) != cycle;
        let is_over = runs && self.finished() >= server.active_workers();
        if is_over {
            let Totals { moved, kept } = Totals::of(server).since(state.at_begin);
            if moved * FUTILE_SHARE < moved + kept {
                state.paused_until = Some(Instant::now() + FUTILE_PAUSE);
            }
        }
        if state.paused_until.is_some_and(|until| Instant::now() < until) {
            drop(state);
            return self.stop();
        }
        let waste = SlabFragmentation::measure();
        let lower = values.read(settings::ACTIVE_DEFRAG_THRESHOLD_LOWER);
        // Hysteresis: a run continues until the waste is well below the level at which it would start.
        let margin = if runs { 0.75 } else { 1.0 };
        let is_wasteful = waste.percent >= f64::from(lower) * margin
            && waste.bytes as f64 >= values.read(settings::ACTIVE_DEFRAG_IGNORE_BYTES) as f64 * margin;
        if (!runs || is_over) && !is_wasteful {
            drop(state);
            return self.stop();
        }
        let thresholds = Range { low: lower, high: values.read(settings::ACTIVE_DEFRAG_THRESHOLD_UPPER) };
        let wanted = percentage(waste.percent, thresholds, cycle);
        let percent = if is_changed { wanted } else { wanted.max(self.percent()) };
        if !runs || is_over {
            state.at_begin = Totals::of(server);
            state.since.get_or_insert_with(Instant::now);
            self.begin_round();
        }
        self.percent.store(percent, Ordering::Release);
    }

    fn stop(&self) {
        if self.percent.swap(0, Ordering::Relaxed) > 0 {
            let mut state = self.state.lock();
            let ran = state.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            state.total += ran;
        }
    }
}

/// Allocations that defragmentation has moved and kept, of all workers.
#[derive(Clone, Copy, Default)]
struct Totals {
    moved: u64,
    kept: u64,
}

impl Totals {
    fn of(server: &Services) -> Self {
        let mut totals = Totals::default();
        for stats in &server.stats {
            totals.moved += stats.defrag_moved.get();
            totals.kept += stats.defrag_kept.get();
        }
        totals
    }

    fn since(self, earlier: Totals) -> Totals {
        Totals { moved: self.moved.saturating_sub(earlier.moved), kept: self.kept.saturating_sub(earlier.kept) }
    }
}

/// Two percentages that are configured together.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Range {
    low: u32,
    high: u32,
}

/// The CPU percentage for a given waste: it lies in `cycle` as the waste lies between the thresholds.
fn percentage(waste: f64, thresholds: Range, cycle: Range) -> u32 {
    let width = thresholds.high.saturating_sub(thresholds.low).max(1);
    let share = (waste - f64::from(thresholds.low)) / f64::from(width);
    let Range { low, high } = cycle;
    let wanted = f64::from(low) + (f64::from(high) - f64::from(low)) * share.clamp(0.0, 1.0);
    // The bounds may be reversed; both are from 1 to 99.
    wanted.clamp(f64::from(low.min(high)), f64::from(high.max(low))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percentage(waste: f64, (low, high): (u32, u32), cycle: (u32, u32)) -> u32 {
        super::percentage(waste, Range { low, high }, Range { low: cycle.0, high: cycle.1 })
    }

    #[test]
    fn the_share_of_time_lies_between_the_bounds_as_the_waste_between_the_thresholds() {
        assert_eq!(percentage(10.0, (10, 100), (1, 25)), 1);
        assert_eq!(percentage(55.0, (10, 100), (1, 25)), 13);
        assert_eq!(percentage(100.0, (10, 100), (1, 25)), 25);
        assert_eq!(percentage(900.0, (10, 100), (1, 25)), 25);
        assert_eq!(percentage(0.0, (10, 10), (40, 60)), 40);
        assert_eq!(percentage(50.0, (10, 100), (60, 40)), 51);
    }
}
