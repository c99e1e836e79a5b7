//! When requests arrive, as a pure function of time.
//!
//! A [`Profile`] is a rate that changes piecewise linearly. Its integral gives the number of arrivals that are due at
//! any time, and the inverse of the integral the time of each arrival. An [`Arrivals`] walks through that inverse:
//! constant arrivals are at whole numbers of it, Poisson arrivals at sums of exponentially distributed numbers. So all
//! kinds of load (constant, ramps, steps, doublings) share one implementation, and several threads divide one schedule
//! without a shared counter: thread `i` of `n` takes the arrivals `i`, `i + n`, `i + 2n`, ...

use crate::config::Arrival;
use fastrand::Rng;

const NANOS: f64 = 1e9;

/// A span of time in which the rate changes linearly.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Segment {
    start_s: f64,
    duration_s: f64,
    rate_start: f64,
    rate_end: f64,
    /// Arrivals before it.
    arrivals_before: f64,
}

impl Segment {
    fn arrivals(&self) -> f64 {
        (self.rate_start + self.rate_end) / 2.0 * self.duration_s
    }

    /// Arrivals in the first `elapsed_s` of it.
    fn arrivals_until(&self, elapsed_s: f64) -> f64 {
        let slope = (self.rate_end - self.rate_start) / self.duration_s;
        elapsed_s * (self.rate_start + slope * elapsed_s / 2.0)
    }

    /// The time since its start at which so many arrivals have come. This form of the solution of the quadratic
    /// equation is exact also for a slope of zero.
    fn time_of(&self, arrivals: f64) -> f64 {
        let slope = (self.rate_end - self.rate_start) / self.duration_s;
        let root = (self.rate_start * self.rate_start + 2.0 * slope * arrivals).max(0.0).sqrt();
        2.0 * arrivals / (self.rate_start + root)
    }
}

/// A rate over time, in requests per second. It ends after its last segment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    segments: Vec<Segment>,
}

impl Profile {
    /// A constant rate.
    pub fn constant(rate: f64, duration_s: f64) -> Profile {
        let mut profile = Profile::default();
        profile.push(rate, rate, duration_s);
        profile
    }

    /// Appends a segment. Segments without a duration are left out.
    pub fn push(&mut self, rate_start: f64, rate_end: f64, duration_s: f64) {
        if duration_s > 0.0 {
            let arrivals_before = self.segments.last().map_or(0.0, |last| last.arrivals_before + last.arrivals());
            self.segments.push(Segment {
                start_s: self.duration_s(),
                duration_s,
                rate_start: rate_start.max(0.0),
                rate_end: rate_end.max(0.0),
                arrivals_before,
            });
        }
    }

    /// Its length in seconds.
    pub fn duration_s(&self) -> f64 {
        self.segments.last().map_or(0.0, |last| last.start_s + last.duration_s)
    }

    /// The number of arrivals before a time: the integral of the rate.
    pub fn arrivals_until(&self, time_s: f64) -> f64 {
        let at = self.segments.partition_point(|segment| segment.start_s <= time_s);
        let Some(segment) = at.checked_sub(1).map(|at| &self.segments[at]) else { return 0.0 };
        segment.arrivals_before + segment.arrivals_until((time_s - segment.start_s).min(segment.duration_s))
    }

    /// The rate at a time.
    pub fn rate_at(&self, time_s: f64) -> f64 {
        let at = self.segments.partition_point(|segment| segment.start_s <= time_s);
        let Some(segment) = at.checked_sub(1).map(|at| &self.segments[at]) else { return 0.0 };
        let part = (time_s - segment.start_s) / segment.duration_s;
        if part > 1.0 { 0.0 } else { segment.rate_start + (segment.rate_end - segment.rate_start) * part }
    }
}

/// The arrivals of one thread, in order.
#[derive(Clone, Debug)]
pub struct Arrivals {
    profile: Profile,
    kind: Arrival,
    random: Rng,
    segment: usize,
    /// The value of the integral at the next arrival.
    next: f64,
    /// The number of threads that divide the schedule.
    threads: f64,
}

impl Arrivals {
    /// The share of thread `thread` of `threads`.
    pub fn new(profile: Profile, kind: Arrival, thread: usize, threads: usize, seed: u64) -> Arrivals {
        let mut arrivals = Arrivals {
            profile,
            kind,
            random: Rng::with_seed(seed ^ 0x5eed_a441 ^ ((thread as u64) << 32)),
            segment: 0,
            next: thread as f64,
            threads: threads as f64,
        };
        if kind == Arrival::Poisson {
            arrivals.next = 0.0;
            arrivals.step();
        }
        arrivals
    }

    /// The time of the next arrival in nanoseconds since the start; `None` after the last one.
    #[inline]
    pub fn peek(&mut self) -> Option<u64> {
        loop {
            let segment = self.profile.segments.get(self.segment)?;
            let within = self.next - segment.arrivals_before;
            if within < segment.arrivals() {
                return Some(((segment.start_s + segment.time_of(within)) * NANOS) as u64);
            }
            self.segment += 1;
        }
    }

    /// Goes on to the arrival after the one that [`Self::peek`] shows.
    #[inline]
    pub fn step(&mut self) {
        self.next += match self.kind {
            Arrival::Constant => self.threads,
            // The logarithm of a number in (0, 1].
            Arrival::Poisson => -(1.0 - self.random.f64()).ln() * self.threads,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn profile() -> impl Strategy<Value = Profile> {
        proptest::collection::vec((0.0..2000.0, 0.0..2000.0, 0.001..3.0), 1..6).prop_map(|segments| {
            let mut profile = Profile::default();
            segments.into_iter().for_each(|(start, end, duration)| profile.push(start, end, duration));
            profile
        })
    }

    fn times(profile: &Profile, kind: Arrival, thread: usize, threads: usize, seed: u64) -> Vec<u64> {
        let mut arrivals = Arrivals::new(profile.clone(), kind, thread, threads, seed);
        std::iter::from_fn(|| arrivals.peek().inspect(|_| arrivals.step())).collect()
    }

    proptest! {
        #[test]
        fn constant_arrivals_are_the_integral_of_the_rate(
            profile in profile(), part in 0.0..1.0, threads in 1_usize..5,
        ) {
            let mut all: Vec<u64> =
                (0..threads).flat_map(|thread| times(&profile, Arrival::Constant, thread, threads, 1)).collect();
            all.sort();
            let time_s = profile.duration_s() * part;
            let before = all.iter().filter(|time| (**time as f64) < time_s * NANOS).count() as f64;
            prop_assert!((before - profile.arrivals_until(time_s)).abs() <= 1.01, "{before}");
        }

        #[test]
        fn arrivals_of_a_thread_are_in_order(profile in profile(), seed in any::<u64>()) {
            for kind in [Arrival::Constant, Arrival::Poisson] {
                let times = times(&profile, kind, 0, 2, seed);
                prop_assert!(times.is_sorted());
                prop_assert!(times.iter().all(|time| *time as f64 <= profile.duration_s() * NANOS));
            }
        }

        #[test]
        fn poisson_arrivals_have_the_mean_of_the_profile(seed in any::<u64>()) {
            let mut profile = Profile::constant(4000.0, 2.0);
            profile.push(4000.0, 8000.0, 2.0);
            let count: usize = (0..3).map(|thread| times(&profile, Arrival::Poisson, thread, 3, seed).len()).sum();
            // Six standard deviations.
            prop_assert!((count as f64 - 20_000.0).abs() < 6.0 * 20_000_f64.sqrt(), "{count}");
        }
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let times = times(&Profile::constant(1000.0, 100.0), Arrival::Poisson, 0, 1, 7);
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
        for (limit_ms, share) in [(0.1, 0.0952), (1.0, 0.6321), (3.0, 0.9502)] {
            let found = gaps.iter().filter(|gap| **gap < limit_ms).count() as f64 / gaps.len() as f64;
            assert!((found - share).abs() < 0.01, "{found} of the gaps are below {limit_ms} ms");
        }
    }

    #[test]
    fn rates_of_a_profile() {
        let mut profile = Profile::constant(10.0, 1.0);
        profile.push(10.0, 30.0, 2.0);
        assert_eq!([0.5, 2.0, 3.5].map(|time| profile.rate_at(time)), [10.0, 20.0, 0.0]);
    }
}
