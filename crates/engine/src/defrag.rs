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
use kvick_runtime::memory::{SlabFragmentation, Slabs};
use kvick_scripting::Scripting;
use kvick_store::defrag::{Mover, Walk, Work};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Length of the pause after a round that moved almost nothing.
const REST: Duration = Duration::from_secs(10);
/// A round is futile if it moved less than one part in this many of what it examined.
const IN_VAIN_SHARE: u64 = 1000;
/// Script texts examined per lock acquisition.
const SCRIPTS_PER_LOCK: usize = 256;
/// Minimum length of a slice in microseconds.
const CYCLE_US_MIN: u64 = 50;
/// A delayed worker extends its slice to at most this multiple.
const STRETCHES_MAX: u64 = 4;

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
    rests_until: Option<Instant>,
    /// The configured percentages at the last tick.
    bounds: (u32, u32),
    /// Moved and kept totals when the round began.
    at_begin: (u64, u64),
}

impl Defrag {
    /// CPU percentage per worker; 0 while defragmentation is not running.
    pub fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
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
        let bounds = (values.read(settings::ACTIVE_DEFRAG_CYCLE_MIN), values.read(settings::ACTIVE_DEFRAG_CYCLE_MAX));
        let mut state = self.state.lock();
        let is_changed = std::mem::replace(&mut state.bounds, bounds) != bounds;
        let is_over = runs && self.finished.load(Ordering::Acquire) >= server.workers();
        if is_over {
            let (moved, kept) = progress(server);
            let (moved, kept) = (moved - state.at_begin.0.min(moved), kept - state.at_begin.1.min(kept));
            if moved * IN_VAIN_SHARE < moved + kept {
                state.rests_until = Some(Instant::now() + REST);
            }
        }
        if state.rests_until.is_some_and(|until| Instant::now() < until) {
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
        let upper = values.read(settings::ACTIVE_DEFRAG_THRESHOLD_UPPER);
        let wanted = percentage(waste.percent, (lower, upper), bounds);
        let percent = if is_changed { wanted } else { wanted.max(self.percent()) };
        if !runs || is_over {
            state.at_begin = progress(server);
            state.since.get_or_insert_with(Instant::now);
            self.finished.store(0, Ordering::Relaxed);
            self.round.fetch_add(1, Ordering::Release);
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

/// Moved and kept totals of all workers.
fn progress(server: &Services) -> (u64, u64) {
    server.stats.iter().fold((0, 0), |sum, stats| (sum.0 + stats.defrag_moved.get(), sum.1 + stats.defrag_kept.get()))
}

/// The CPU percentage for a given waste, interpolated between the thresholds.
fn percentage(waste: f64, (lower, upper): (u32, u32), (min, max): (u32, u32)) -> u32 {
    let share = (waste - f64::from(lower)) / f64::from(upper.saturating_sub(lower).max(1));
    let wanted = f64::from(min) + (f64::from(max) - f64::from(min)) * share.clamp(0.0, 1.0);
    // The bounds may be reversed; both are from 1 to 99.
    wanted.clamp(f64::from(min.min(max)), f64::from(max.max(min))) as u32
}

/// One worker's state of defragmentation.
#[derive(Default)]
pub struct Worker {
    /// The worker's round, and whether it has finished its share.
    round: u64,
    is_done: bool,
    /// The position in its share.
    pub walk: Walk,
    /// The first worker's position in the script texts, which follow its share; `None` when it has finished them.
    pub scripts_from: Option<usize>,
    /// The allocator's slabs as of the last measurement.
    pub slabs: Slabs,
    looked_at: Option<Instant>,
    /// When the next slice begins.
    next: Option<Instant>,
}

impl Worker {
    /// Interval at which a worker measures slab usage.
    const LOOK_EVERY: Duration = Duration::from_millis(100);

    /// Time until the next slice; `None` while there is nothing to do.
    pub fn wait(&self, defrag: &Defrag) -> Option<Duration> {
        if defrag.percent() == 0 || self.round == defrag.round.load(Ordering::Acquire) && self.is_done {
            return None;
        }
        Some(self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now())))
    }

    /// Deadline of the slice that begins now; `None` if none is due.
    pub fn begin(&mut self, defrag: &Defrag, cycle_us: u64) -> Option<Instant> {
        if !self.wait(defrag)?.is_zero() {
            return None;
        }
        let round = defrag.round.load(Ordering::Acquire);
        if self.round != round {
            (self.round, self.is_done, self.walk, self.looked_at) = (round, false, Walk::default(), None);
            self.scripts_from = Some(0);
        }
        let now = Instant::now();
        if self.looked_at.is_none_or(|at| now.duration_since(at) > Self::LOOK_EVERY) {
            self.slabs.look();
            self.looked_at = Some(now);
        }
        let cycle_us = cycle_us.max(CYCLE_US_MIN);
        let late_us = self.next.map_or(0, |next| now.saturating_duration_since(next).as_micros() as u64);
        let owed_us = late_us * u64::from(defrag.percent()) / 100;
        Some(now + Duration::from_micros((cycle_us + owed_us).min(STRETCHES_MAX * cycle_us)))
    }

    /// Continues with the script texts until the deadline. Returns whether all are done.
    pub fn go_through_scripts(&mut self, scripting: &Scripting, deadline: Instant, work: &mut Work) -> bool {
        while let Some(from) = self.scripts_from {
            let mut mover = Mover::new(&mut self.slabs, SCRIPTS_PER_LOCK, 0);
            self.scripts_from = scripting.scripts.lock().relocate(from, &mut mover);
            work.moved += mover.moved();
            work.kept += mover.kept();
            if Instant::now() >= deadline {
                break;
            }
        }
        self.scripts_from.is_none()
    }

    /// Records a slice that started at `began`, and whether it finished the worker's share.
    pub fn end(&mut self, defrag: &Defrag, began: Instant, is_done: bool) {
        let percent = defrag.percent().clamp(1, 99);
        let took = began.elapsed();
        self.next = (!is_done).then(|| Instant::now() + took * (100 - percent) / percent);
        let has_ended = is_done && !std::mem::replace(&mut self.is_done, is_done);
        if has_ended && self.round == defrag.round.load(Ordering::Acquire) {
            defrag.finished.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_time_lies_between_the_bounds_as_the_waste_between_the_thresholds() {
        assert_eq!(percentage(10.0, (10, 100), (1, 25)), 1);
        assert_eq!(percentage(55.0, (10, 100), (1, 25)), 13);
        assert_eq!(percentage(100.0, (10, 100), (1, 25)), 25);
        assert_eq!(percentage(900.0, (10, 100), (1, 25)), 25);
        assert_eq!(percentage(0.0, (10, 10), (40, 60)), 40);
        assert_eq!(percentage(50.0, (10, 100), (60, 40)), 51);
    }

    #[test]
    fn a_worker_rests_between_stretches_and_reports_once() {
        let (defrag, mut worker) = (Defrag::default(), Worker::default());
        assert!(worker.wait(&defrag).is_none(), "it does not run");
        defrag.percent.store(1, Ordering::Relaxed);
        defrag.round.store(1, Ordering::Relaxed);
        assert!(worker.begin(&defrag, 500).is_some_and(|until| until > Instant::now()));
        worker.end(&defrag, Instant::now() - Duration::from_millis(500), false);
        assert!(worker.wait(&defrag).is_some_and(|wait| wait > Duration::from_secs(40)));
        assert!(worker.begin(&defrag, 500).is_none());
        worker.end(&defrag, Instant::now(), true);
        worker.end(&defrag, Instant::now(), true);
        assert_eq!(defrag.finished.load(Ordering::Relaxed), 1);
        assert!(worker.wait(&defrag).is_none());
        defrag.round.store(2, Ordering::Relaxed);
        assert!(worker.begin(&defrag, 500).is_some());
    }
}
