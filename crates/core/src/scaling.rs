//! How many workers are active, and when a worker gives connections to another one. Pure: counters and time in,
//! decisions out.
//!
//! The number follows the load between `io-threads-min` and `io-threads`. It grows soon, because clients wait
//! meanwhile, but not beyond the number of cores, where more workers would only take turns. It shrinks late, because an
//! idle worker costs little.

use std::time::Duration;

/// Least time between two samples.
const SAMPLE: Duration = Duration::from_millis(100);
/// Mean busy fraction of the active workers at which their number grows, and for how many samples in a row.
const GROW_AT: f64 = 0.8;
const GROW_SAMPLES: u32 = 3;
/// Busy fraction that the remaining workers would have at most when the number shrinks.
const SHRINK_TO: f64 = 0.5;
/// For how long fewer workers must have been enough.
const SHRINK_AFTER: Duration = Duration::from_secs(10);
/// Difference of two workers' busy fractions at which connections move, and least fraction of the busier one.
const UNEVEN: f64 = 0.25;
const UNEVEN_LEAST: f64 = 0.6;
/// Time over which that difference is observed; the least time between two such moves.
const BALANCE_EVERY: Duration = Duration::from_secs(1);

/// The bounds of the number of active workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At least 1.
    pub min: usize,
    /// At least `min`.
    pub max: usize,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Make this number of workers active.
    Activate {
        /// The number.
        workers: usize,
        /// Why, as words for INFO and the log.
        reason: String,
    },
    /// Move connections that cause about a share of a worker's load to another worker.
    Shed {
        /// The busy worker.
        from: usize,
        /// The worker that gets the connections.
        to: usize,
        /// The share, above 0 and at most 1.
        share: f64,
    },
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Scaling {
    /// Time and busy microseconds of each worker at the last sample.
    sampled: Option<(Duration, Vec<u64>)>,
    /// The same at the last check for uneven load.
    balanced: Option<(Duration, Vec<u64>)>,
    /// Busy fractions between the last two samples.
    busy: Vec<f64>,
    /// Samples in a row in which more workers were needed.
    short: u32,
    /// Since when fewer workers would have been enough, and the most that were needed since.
    spare: Option<(Duration, usize)>,
}

impl Scaling {
    /// Busy fraction of a worker between the last two samples, from 0 to 1.
    pub fn busy(&self, worker: usize) -> f64 {
        self.busy.get(worker).copied().unwrap_or(0.0)
    }

    /// Observes the busy time of each worker since the start, in microseconds. `now` is the time since any fixed
    /// moment; `active` is the number of active workers, those with the lowest numbers. `cores` tells how many cores
    /// the workers may use; it is asked only if their number would grow.
    pub fn observe(
        &mut self,
        now: Duration,
        busy_us: &[u64],
        active: usize,
        bounds: Bounds,
        cores: impl FnOnce() -> usize,
    ) -> Option<Decision> {
        let Some(fractions) = fractions(&mut self.sampled, now, busy_us, SAMPLE) else {
            return self.enforce(active, bounds);
        };
        self.busy = fractions;
        let active = active.clamp(1, busy_us.len().max(1));
        let needed = self.busy.iter().take(active).sum::<f64>();
        if let Some(decision) = self.enforce(active, bounds) {
            return Some(decision);
        }
        self.grow(active, needed, bounds, cores)
            .or_else(|| self.shrink(now, active, needed, bounds))
            .or_else(|| self.balance(now, busy_us, active))
    }

    fn enforce(&self, active: usize, bounds: Bounds) -> Option<Decision> {
        let workers = active.clamp(bounds.min, bounds.max.max(bounds.min));
        let reason = format!("configured: {} to {}", bounds.min, bounds.max);
        (workers != active).then_some(Decision::Activate { workers, reason })
    }

    fn grow(&mut self, active: usize, needed: f64, bounds: Bounds, cores: impl FnOnce() -> usize) -> Option<Decision> {
        if active >= bounds.max || needed < GROW_AT * active as f64 {
            self.short = 0;
            return None;
        }
        self.short += 1;
        if self.short < GROW_SAMPLES {
            return None;
        }
        self.short = 0;
        let workers = (active + (active / 2).max(1)).min(bounds.max).min(cores());
        if workers <= active {
            return None;
        }
        self.spare = None;
        let percent = (needed / active as f64 * 100.0).round();
        Some(Decision::Activate { workers, reason: format!("load: {active} workers were {percent} percent busy") })
    }

    fn shrink(&mut self, now: Duration, active: usize, needed: f64, bounds: Bounds) -> Option<Decision> {
        let enough = ((needed / SHRINK_TO).ceil() as usize).clamp(bounds.min, bounds.max);
        if enough >= active {
            self.spare = None;
            return None;
        }
        let (since, most) = self.spare.unwrap_or((now, enough));
        let most = most.max(enough);
        self.spare = Some((since, most));
        if now.saturating_sub(since) < SHRINK_AFTER {
            return None;
        }
        self.spare = None;
        let reason = format!("load: {most} of {active} workers were enough for {} seconds", SHRINK_AFTER.as_secs());
        Some(Decision::Activate { workers: most, reason })
    }

    fn balance(&mut self, now: Duration, busy_us: &[u64], active: usize) -> Option<Decision> {
        let busy = fractions(&mut self.balanced, now, busy_us, BALANCE_EVERY)?;
        let workers = || busy.iter().copied().take(active).enumerate();
        let (from, most) = workers().max_by(|one, other| one.1.total_cmp(&other.1))?;
        let (to, least) = workers().min_by(|one, other| one.1.total_cmp(&other.1))?;
        let is_uneven = most >= UNEVEN_LEAST && most - least >= UNEVEN;
        is_uneven.then_some(Decision::Shed { from, to, share: (most - least) / 2.0 / most })
    }
}

/// The busy fractions since the last call that returned any; `None` before this time has passed.
fn fractions(
    last: &mut Option<(Duration, Vec<u64>)>,
    now: Duration,
    busy_us: &[u64],
    at_least: Duration,
) -> Option<Vec<f64>> {
    let Some((then, before)) = last else {
        *last = Some((now, busy_us.to_vec()));
        return None;
    };
    let passed = now.checked_sub(*then).filter(|passed| *passed >= at_least)?;
    let fraction = |(worker, us): (usize, &u64)| {
        let us = us.saturating_sub(before.get(worker).copied().unwrap_or(0));
        (us as f64 / passed.as_micros() as f64).min(1.0)
    };
    let fractions = busy_us.iter().enumerate().map(fraction).collect();
    *last = Some((now, busy_us.to_vec()));
    Some(fractions)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { min: 1, max: 8 };

    /// A load in worker-seconds per second, spread evenly over the active workers, observed ten times per second.
    struct Model {
        scaling: Scaling,
        now: Duration,
        busy_us: Vec<u64>,
        active: usize,
        cores: usize,
        changes: usize,
    }

    impl Model {
        fn new(active: usize) -> Model {
            let scaling = Scaling::default();
            Model { scaling, now: Duration::from_secs(1), busy_us: vec![0; 8], active, cores: 8, changes: 0 }
        }

        fn pass(&mut self, each: impl Fn(usize, usize) -> f64) -> Option<Decision> {
            self.now += SAMPLE;
            for (worker, us) in self.busy_us.iter_mut().enumerate().take(self.active) {
                *us += (each(worker, self.active).min(1.0) * SAMPLE.as_micros() as f64) as u64;
            }
            let decision = self.scaling.observe(self.now, &self.busy_us, self.active, BOUNDS, || self.cores);
            if let Some(Decision::Activate { workers, .. }) = decision {
                self.active = workers;
                self.changes += 1;
            }
            decision
        }

        fn run(&mut self, load: f64, seconds: u64) {
            (0..seconds * 10).for_each(|_| _ = self.pass(|_, active| load / active as f64));
        }
    }

    #[test]
    fn number_follows_the_load_up_at_once_and_down_later() {
        let mut model = Model::new(1);
        model.run(0.3, 20);
        assert_eq!(model.active, 1);
        model.run(5.0, 3);
        assert!(model.active >= 6, "{}", model.active);
        model.run(0.1, 9);
        assert!(model.active >= 6, "not before it was quiet for ten seconds: {}", model.active);
        model.run(0.1, 3);
        assert_eq!(model.active, 1);
    }

    #[test]
    fn steady_load_leads_to_a_steady_number() {
        for tenths in 1..=80 {
            let mut model = Model::new(4);
            model.run(f64::from(tenths) / 10.0, 60);
            let (settled, before) = (model.active, model.changes);
            model.run(f64::from(tenths) / 10.0, 300);
            assert_eq!((model.active, model.changes), (settled, before), "load {tenths} tenths");
        }
    }

    #[test]
    fn load_that_comes_and_goes_keeps_its_workers() {
        let mut model = Model::new(1);
        model.run(3.0, 10);
        let before = model.changes;
        for _ in 0..20 {
            model.run(0.1, 5);
            model.run(3.0, 5);
        }
        assert_eq!(model.changes, before);
    }

    #[test]
    fn number_grows_up_to_the_cores() {
        let mut model = Model::new(1);
        model.cores = 3;
        model.run(8.0, 5);
        assert_eq!((model.active, model.changes), (3, 2));
        model.cores = 5;
        model.run(8.0, 5);
        assert_eq!(model.active, 5);
        // More workers than cores stay active if they were before.
        model.cores = 1;
        model.run(8.0, 60);
        assert_eq!(model.active, 5);
    }

    #[test]
    fn bounds_are_kept() {
        let mut model = Model::new(8);
        let narrow = Bounds { min: 2, max: 3 };
        let decision = model.scaling.observe(model.now, &model.busy_us, 8, narrow, || 8);
        assert!(matches!(decision, Some(Decision::Activate { workers: 3, .. })), "{decision:?}");
        let decision = model.scaling.observe(model.now, &model.busy_us, 1, narrow, || 8);
        assert!(matches!(decision, Some(Decision::Activate { workers: 2, .. })), "{decision:?}");
    }

    #[test]
    fn busy_worker_gives_half_of_the_difference_to_the_idle_one() {
        let mut model = Model::new(3);
        let sheds: Vec<Decision> =
            (0..21).filter_map(|_| model.pass(|worker, _| [0.2, 0.9, 0.5][worker % 3])).collect();
        assert_eq!(sheds.len(), 1, "once per second: {sheds:?}");
        let Decision::Shed { from: 1, to: 0, share } = sheds[0] else { panic!("{sheds:?}") };
        assert!((share - 0.35 / 0.9).abs() < 0.02, "{share}");
        let mut even = Model::new(3);
        assert!((0..100).all(|_| even.pass(|worker, _| [0.6, 0.7, 0.5][worker % 3]).is_none()));
    }

    #[test]
    fn times_that_go_back_are_ignored() {
        let mut model = Model::new(2);
        model.run(1.0, 2);
        let earlier = model.now - Duration::from_secs(1);
        assert_eq!(model.scaling.observe(earlier, &[0; 8], 2, BOUNDS, || 8), None);
    }
}
