//! LATENCY: records, for each kind of event, the latest occurrences that took longer than the threshold.

pub mod graph;

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Samples kept per event.
pub const HISTORY: usize = 160;

/// The longest event within one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Unix time in seconds.
    pub time: i64,
    /// Milliseconds.
    pub ms: u64,
}

/// The samples of one kind of event.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Oldest first, at most [`HISTORY`].
    pub samples: std::collections::VecDeque<Sample>,
    /// The longest ever, in milliseconds.
    pub max_ms: u64,
    /// Sum of all samples ever taken, in milliseconds.
    pub sum_ms: u64,
    /// Number of all samples ever taken.
    pub count: u64,
}

/// Statistics over the samples of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Mean of the samples, in milliseconds.
    pub average_ms: u64,
    /// Mean absolute deviation from the average, in milliseconds.
    pub deviation_ms: u64,
    /// Mean time between samples, in seconds.
    pub period_s: f64,
}

impl Series {
    /// Computes the statistics. `now` is the Unix time in seconds.
    pub fn summary(&self, now: i64) -> Summary {
        let count = self.samples.len().max(1) as u64;
        let average_ms = self.samples.iter().map(|sample| sample.ms).sum::<u64>() / count;
        let distance: u64 = self.samples.iter().map(|sample| sample.ms.abs_diff(average_ms)).sum();
        let oldest = self.samples.front().map_or(now, |sample| sample.time);
        let period_s = now.saturating_sub(oldest).max(1) as f64 / count as f64;
        Summary { average_ms, deviation_ms: distance / count, period_s }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct LatencyMonitor {
    series: Mutex<BTreeMap<&'static str, Series>>,
}

impl LatencyMonitor {
    /// Records an event that took `ms` if that reaches the threshold. A threshold of 0 disables recording.
    pub fn record(&self, event: &'static str, ms: u64, threshold_ms: u64) {
        if threshold_ms == 0 || ms < threshold_ms {
            return;
        }
        let time = kvick_runtime::clock::unix_ms() / 1000;
        let mut all = self.series.lock();
        let series = all.entry(event).or_default();
        series.max_ms = series.max_ms.max(ms);
        series.sum_ms += ms;
        series.count += 1;
        match series.samples.back_mut() {
            Some(last) if last.time == time => last.ms = last.ms.max(ms),
            _ => {
                if series.samples.len() == HISTORY {
                    series.samples.pop_front();
                }
                series.samples.push_back(Sample { time, ms });
            }
        }
    }

    /// All events and their samples.
    pub fn all(&self) -> BTreeMap<&'static str, Series> {
        self.series.lock().clone()
    }

    /// One event's samples.
    pub fn get(&self, event: &[u8]) -> Option<Series> {
        let all = self.series.lock();
        all.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(event)).map(|(_, series)| series.clone())
    }

    /// Deletes the samples of some events, or of all if none is named; returns how many events were deleted.
    pub fn reset<'a>(&self, events: impl ExactSizeIterator<Item = &'a [u8]>) -> usize {
        let mut all = self.series.lock();
        let before = all.len();
        if events.len() == 0 {
            all.clear();
        } else {
            let named: Vec<&[u8]> = events.collect();
            all.retain(|name, _| !named.iter().any(|event| event.eq_ignore_ascii_case(name.as_bytes())));
        }
        before - all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_below_the_threshold_are_ignored_and_each_second_keeps_its_maximum() {
        let monitor = LatencyMonitor::default();
        [(5, 0), (5, 10), (10, 10), (30, 10), (20, 10)]
            .into_iter()
            .for_each(|(ms, least)| monitor.record("command", ms, least));
        let series = monitor.get(b"COMMAND").expect("recorded");
        assert_eq!((series.max_ms, series.sum_ms, series.count), (30, 60, 3));
        assert!(series.samples.len() <= 2 && series.samples.iter().any(|sample| sample.ms == 30));
    }

    #[test]
    fn reset_deletes_named_events_or_all() {
        let monitor = LatencyMonitor::default();
        ["command", "fast-command", "expire-cycle"].into_iter().for_each(|event| monitor.record(event, 5, 1));
        assert_eq!(monitor.reset([&b"Command"[..], b"other"].into_iter()), 1);
        assert_eq!(monitor.reset([].into_iter()), 2);
        assert!(monitor.all().is_empty());
    }

    #[test]
    fn summary_has_mean_deviation_and_period() {
        let samples = [(100, 10), (104, 30)].map(|(time, ms)| Sample { time, ms });
        let series = Series { samples: samples.into(), ..Series::default() };
        assert_eq!(series.summary(110), Summary { average_ms: 20, deviation_ms: 10, period_s: 5.0 });
    }
}
