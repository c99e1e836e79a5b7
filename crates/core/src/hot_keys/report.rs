//! The hottest keys of a completed window, merged from the summaries of all workers.

use super::Settings;
use super::summary::{Home, Metric, Summary, Usage};
use kvick_runtime::clock;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// A hot key, with what it used among the sampled commands of the window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HotKey {
    /// Its name.
    pub key: Box<[u8]>,
    /// Its hash.
    pub hash: u64,
    /// Where it is.
    pub home: Home,
    /// What was observed while it was tracked.
    pub observed: Usage,
    /// What it may have used of the metric by which it was found beyond that.
    pub unobserved_max: u64,
}

/// Estimates per second of all commands, not only of the sampled ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rates {
    /// Accesses per second.
    pub accesses: u64,
    /// Microseconds of execution time per second.
    pub cpu_us: u64,
    /// Bytes of requests and replies per second.
    pub bytes: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The settings with which it was recorded.
    pub settings: Settings,
    /// Time that the window covers.
    pub duration: Duration,
    /// Number of sampled accesses.
    pub samples: u64,
    tops: [Vec<HotKey>; 3],
}

impl Report {
    /// Merges the summaries that the workers recorded in a window of this duration, one for each metric.
    pub(super) fn merge(settings: Settings, duration: Duration, samples: u64, all: &[&[Summary; 3]]) -> Report {
        let tops = Metric::ALL.map(|metric| {
            let summaries: Vec<&Summary> = all.iter().map(|of_worker| &of_worker[metric as usize]).collect();
            top(metric, &summaries, settings.top_k as usize)
        });
        Report { settings, duration, samples, tops }
    }

    /// The keys with the greatest sums of a metric, the greatest first.
    pub fn top(&self, metric: Metric) -> &[HotKey] {
        &self.tops[metric as usize]
    }

    /// What a key that was found by a metric uses per second.
    ///
    /// Of that metric the key may have used more than was observed; the estimate is the middle.
    pub fn rates(&self, hot: &HotKey, by: Metric) -> Rates {
        let twice = |metric: Metric| {
            let unobserved = if metric == by { hot.unobserved_max } else { 0 };
            2 * u128::from(hot.observed.of(metric)) + u128::from(unobserved)
        };
        // Twice the sum, sampled at a percentage, over microseconds.
        let divisor = 2 * u128::from(self.settings.sampling_percentage.max(1)) * self.duration.as_micros().max(1);
        let rate = |twice: u128| {
            let scaled = (twice * 100 * 1_000_000 + divisor / 2) / divisor;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        Rates {
            accesses: rate(twice(Metric::Accesses)),
            cpu_us: clock::ticks_to_ns(rate(twice(Metric::Cpu))) / 1000,
            bytes: rate(twice(Metric::Bytes)),
        }
    }
}

/// A key in one or several summaries.
struct Merged {
    observed: Usage,
    /// The greatest possible sum in those that track it, minus their floors.
    excess: u64,
}

/// The keys with the greatest sums in several summaries. A summary that does not track a key may have observed it, but
/// no more than its floor.
fn top(metric: Metric, summaries: &[&Summary], k: usize) -> Vec<HotKey> {
    let mut merged: HashMap<(u64, Home, &[u8]), Merged> = HashMap::new();
    let mut floors = 0u64;
    for summary in summaries {
        let floor = summary.floor();
        floors = floors.saturating_add(floor);
        for (hash, place) in summary.places() {
            let found = merged.entry((hash, place.home, &place.key));
            let found = found.or_insert(Merged { observed: Usage::default(), excess: 0 });
            found.observed.add(&place.observed);
            let sum = place.observed.of(metric).saturating_add(place.inherited);
            // No sum is below the floor.
            found.excess = found.excess.saturating_add(sum.saturating_sub(floor));
        }
    }
    let hot_key = |((hash, home, key), Merged { observed, excess }): ((u64, Home, &[u8]), Merged)| {
        let unobserved_max = excess.saturating_add(floors).saturating_sub(observed.of(metric));
        HotKey { key: key.into(), hash, home, observed, unobserved_max }
    };
    let mut keys: Vec<HotKey> = merged.into_iter().map(hot_key).collect();
    let estimate = |hot: &HotKey| 2 * u128::from(hot.observed.of(metric)) + u128::from(hot.unobserved_max);
    keys.sort_by(|a, b| (Reverse(estimate(a)), &a.key, a.home.db).cmp(&(Reverse(estimate(b)), &b.key, b.home.db)));
    keys.truncate(k);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot_keys::zipf::{Random, Zipf};
    use kvick_store::Key;

    const HOME: Home = Home { db: 0, flushes: 0 };
    const SETTINGS: Settings = Settings { top_k: 10, sampling_percentage: 50, window: Duration::from_secs(1) };

    fn summaries(workers: usize, capacity: usize) -> Vec<[Summary; 3]> {
        (0..workers).map(|_| Metric::ALL.map(|metric| Summary::new(metric, capacity))).collect()
    }

    #[test]
    fn merged_bounds_contain_the_truth_and_the_hottest_keys_come_first() {
        let (mut random, zipf) = (Random::new(7), Zipf::new(5000, 1.1));
        let mut all = summaries(4, 64);
        let mut truth = vec![Usage::default(); 5000];
        for step in 0..100_000 {
            let number = zipf.draw(&mut random);
            // Few bytes and a long time for odd numbers.
            let heavy = 1 + random.below(20) * 10;
            let (ticks, bytes) = if number % 2 == 1 { (heavy, 1) } else { (1, heavy) };
            let usage = Usage { accesses: 1, ticks, bytes };
            truth[number].add(&usage);
            let name = number.to_string();
            for summary in &mut all[step % 4] {
                summary.add(Key { bytes: name.as_bytes(), hash: number as u64 }, HOME, usage);
            }
        }
        let report = Report::merge(SETTINGS, Duration::from_secs(1), 100_000, &all.iter().collect::<Vec<_>>());
        for metric in Metric::ALL {
            let number = |hot: &HotKey| std::str::from_utf8(&hot.key).unwrap().parse::<usize>().unwrap();
            let found: Vec<usize> = report.top(metric).iter().map(number).collect();
            let mut hottest: Vec<usize> = (0..truth.len()).collect();
            hottest.sort_by_key(|number| Reverse(truth[*number].of(metric)));
            assert_eq!(found.len(), 10);
            assert_eq!(found[..4], hottest[..4], "{metric:?}");
            for hot in report.top(metric) {
                let (sum, observed) = (truth[number(hot)].of(metric), hot.observed.of(metric));
                assert!((observed..=observed + hot.unobserved_max).contains(&sum), "{metric:?} {hot:?} {sum}");
            }
        }
        assert!(report.top(Metric::Cpu).iter().all(|hot| hot.key.last().is_some_and(|digit| digit % 2 == 1)));
    }

    #[test]
    fn rates_are_those_of_all_commands() {
        let mut all = summaries(2, 8);
        let usage = Usage { accesses: 1, ticks: 0, bytes: 30 };
        for summary in all.iter_mut().flatten() {
            (0..100).for_each(|_| summary.add(Key { bytes: b"k", hash: 1 }, HOME, usage));
        }
        let report = Report::merge(SETTINGS, Duration::from_millis(500), 200, &all.iter().collect::<Vec<_>>());
        let hot = &report.top(Metric::Accesses)[0];
        assert_eq!(report.rates(hot, Metric::Accesses), Rates { accesses: 800, cpu_us: 0, bytes: 24_000 });
        assert!(report.top(Metric::Cpu).is_empty());
        assert_eq!(report.top(Metric::Bytes)[0].observed.bytes, 6000);
        let doubtful = HotKey { unobserved_max: 100, ..hot.clone() };
        assert_eq!(report.rates(&doubtful, Metric::Accesses).accesses, 1000);
        assert_eq!(report.rates(&doubtful, Metric::Bytes).accesses, 800);
    }
}
