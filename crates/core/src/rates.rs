//! Current rates per second: means over the latest samples of the workers' counters.

use crate::stats::Totals;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between samples, and samples kept.
const PERIOD: Duration = Duration::from_millis(100);
const SAMPLES: usize = 16;

/// See the module's documentation.
#[derive(Default)]
pub struct Rates {
    /// Time and counters of the last sample.
    last: Option<(Instant, Totals)>,
    samples: VecDeque<Sample>,
    /// Requests of each worker at the last sample.
    requests: Vec<u64>,
    /// Workers that executed requests between the last two samples.
    busy_workers: usize,
}

#[derive(Clone, Copy)]
struct Sample {
    seconds: f64,
    counted: Totals,
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerSecond {
    /// Requests.
    pub requests: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Turns of event loops.
    pub turns: u64,
    /// Mean microseconds of a turn.
    pub turn_us: u64,
}

impl Rates {
    /// Whether the next sample is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|(last, _)| now.duration_since(last) >= PERIOD)
    }

    /// Takes a sample of the workers' counters.
    pub fn sample(&mut self, now: Instant, workers: &[Totals]) {
        let totals: Totals = workers.iter().copied().sum();
        let requests: Vec<u64> = workers.iter().map(|worker| worker.requests).collect();
        self.busy_workers = requests.iter().zip(&self.requests).filter(|(now, before)| now > before).count();
        self.requests = requests;
        if let Some((last, before)) = self.last {
            if self.samples.len() == SAMPLES {
                self.samples.pop_front();
            }
            let seconds = now.duration_since(last).as_secs_f64();
            self.samples.push_back(Sample { seconds, counted: totals.since(&before) });
        }
        self.last = Some((now, totals));
    }

    /// Number of workers that executed requests between the last two samples.
    pub fn busy_workers(&self) -> usize {
        self.busy_workers
    }

    /// Discards the samples.
    pub fn reset(&mut self) {
        *self = Rates::default();
    }

    /// The current rates. Missing samples count as idle time.
    pub fn now(&self) -> PerSecond {
        let missing = (SAMPLES - self.samples.len()) as f64 * PERIOD.as_secs_f64();
        let seconds = missing + self.samples.iter().map(|sample| sample.seconds).sum::<f64>();
        let sum: Totals = self.samples.iter().map(|sample| sample.counted).sum();
        let rate = |count: u64| (count as f64 / seconds).round() as u64;
        PerSecond {
            requests: rate(sum.requests),
            bytes_in: rate(sum.bytes_in),
            bytes_out: rate(sum.bytes_out),
            turns: rate(sum.turns),
            turn_us: sum.busy_us.checked_div(sum.turns).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_load_shows_as_its_rate_and_drops_to_zero_afterwards() {
        let (mut rates, mut now, mut totals) = (Rates::default(), Instant::now(), Totals::default());
        let mut pass = |rates: &mut Rates, requests: u64| {
            assert!(rates.is_due(now));
            totals.requests += requests;
            totals.turns += 2;
            totals.busy_us += 30;
            rates.sample(now, &[totals, Totals::default()]);
            assert!(!rates.is_due(now));
            now += PERIOD;
        };
        (0..=SAMPLES).for_each(|_| pass(&mut rates, 50));
        assert_eq!(rates.now(), PerSecond { requests: 500, turns: 20, turn_us: 15, ..PerSecond::default() });
        (0..SAMPLES).for_each(|_| pass(&mut rates, 0));
        assert_eq!(rates.now().requests, 0);
        rates.reset();
        assert_eq!(rates.now(), PerSecond::default());
    }

    #[test]
    fn idle_workers_are_not_busy() {
        let mut rates = Rates::default();
        let sample = |requests: [u64; 3]| requests.map(|requests| Totals { requests, ..Totals::default() });
        for (requests, busy) in [([1, 2, 3], 0), ([2, 2, 4], 2), ([2, 2, 4], 0), ([2, 3, 4], 1)] {
            rates.sample(Instant::now(), &sample(requests));
            assert_eq!(rates.busy_workers(), busy);
        }
    }
}
