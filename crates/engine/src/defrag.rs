//! Active defragmentation: when it runs, and how much of the processor it may take.
//!
//! A worker looks now and then how much of the allocator's small pages is free ([`Defrag::tick`]). When that is more
//! than the settings allow, a round begins: every worker walks through its share of the keyspace
//! ([`kvick_store::defrag`]), for `active-defrag-cycle-us` at a time and as often as the percentage of the processor
//! says, which lies between `active-defrag-cycle-min` and `-max` as the waste lies between the thresholds. When all
//! have come to the end, it is looked again, and the next round begins unless the waste is well below the settings by
//! then. A round in which hardly anything could be moved is followed by a rest: what is wasted then is not the
//! keyspace's.

use crate::services::Services;
use kvick_config::tables::memory as settings;
use kvick_runtime::memory::{Slabs, Waste};
use kvick_scripting::Scripting;
use kvick_store::defrag::{Mover, Walk, Work};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long nothing is moved after a round in which hardly anything could be.
const REST: Duration = Duration::from_secs(10);
/// A round was in vain when it moved less than this share of what it looked at, as a divisor.
const IN_VAIN_SHARE: u64 = 1000;
/// Texts of scripts looked at under their lock.
const SCRIPTS_PER_LOCK: usize = 256;
/// Shortest time at a stretch.
const CYCLE_US_MIN: u64 = 50;
/// A worker that comes late makes up for it with so many stretches at most.
const STRETCHES_MAX: u64 = 4;

/// See the module's documentation.
#[derive(Default)]
pub struct Defrag {
    /// Percentage of each worker's time; 0 while no round is under way.
    percent: AtomicU32,
    /// The number of the round.
    round: AtomicU64,
    /// Workers that have come to the end of their share in it.
    finished: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Since when it runs.
    since: Option<Instant>,
    /// How long it ran before.
    total: Duration,
    /// Until when it rests.
    rests_until: Option<Instant>,
    /// What the percentages were when it last looked.
    bounds: (u32, u32),
    /// What had been moved and kept when the round began.
    at_begin: (u64, u64),
}

impl Defrag {
    /// Percentage of each worker's time; 0 while it does not run.
    pub fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
    }

    /// How long it has been running this time, and in all.
    pub fn times(&self) -> (Duration, Duration) {
        let state = self.state.lock();
        let now = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        (now, state.total + now)
    }

    /// Begins to count anew.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.total = Duration::ZERO;
        state.since = state.since.map(|_| Instant::now());
    }

    /// Looks whether it should run, and how much. One thread calls it some times a second.
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
        let waste = Waste::measure();
        let lower = values.read(settings::ACTIVE_DEFRAG_THRESHOLD_LOWER);
        // Once it runs it goes on until it has some way to go before it would begin again.
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

/// What all workers have moved and kept.
fn progress(server: &Services) -> (u64, u64) {
    server.stats.iter().fold((0, 0), |sum, stats| (sum.0 + stats.defrag_moved.get(), sum.1 + stats.defrag_kept.get()))
}

/// The percentage of time for so much waste: between the bounds as it is between the thresholds.
fn percentage(waste: f64, (lower, upper): (u32, u32), (min, max): (u32, u32)) -> u32 {
    let share = (waste - f64::from(lower)) / f64::from(upper.saturating_sub(lower).max(1));
    let wanted = f64::from(min) + (f64::from(max) - f64::from(min)) * share.clamp(0.0, 1.0);
    // Bounds may be the wrong way round; both are from 1 to 99.
    wanted.clamp(f64::from(min.min(max)), f64::from(max.max(min))) as u32
}

/// What one worker has of it.
#[derive(Default)]
pub struct Worker {
    /// The round that it is in, and whether it has come to its end.
    round: u64,
    is_done: bool,
    /// Its way through its share.
    pub walk: Walk,
    /// Where the first worker goes on with the texts of scripts, behind its share; `None` when it is through.
    pub scripts_from: Option<usize>,
    /// The allocator, as it was when it was last looked at.
    pub slabs: Slabs,
    looked_at: Option<Instant>,
    /// When it is to go on.
    next: Option<Instant>,
}

impl Worker {
    /// How often a worker looks how much slabs are used.
    const LOOK_EVERY: Duration = Duration::from_millis(100);

    /// How long until it goes on; `None` while there is nothing to do.
    pub fn wait(&self, defrag: &Defrag) -> Option<Duration> {
        if defrag.percent() == 0 || self.round == defrag.round.load(Ordering::Acquire) && self.is_done {
            return None;
        }
        Some(self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now())))
    }

    /// Until when to work now; `None` when it is not time.
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

    /// Goes on with the texts of scripts until the deadline; whether it is through.
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

    /// Takes note of a stretch of work since `began`, and whether it came to the end of the worker's share.
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
