//! LATENCY: for each kind of event, the latest ones that took longer than the threshold.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Samples kept of each event.
pub const HISTORY: usize = 160;

/// One second's worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Unix time in seconds.
    pub time: i64,
    /// Milliseconds.
    pub ms: u64,
}

/// What is known of one kind of event.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Oldest first, at most [`HISTORY`].
    pub samples: std::collections::VecDeque<Sample>,
    /// The worst ever, in milliseconds.
    pub max_ms: u64,
    /// Sum of all samples ever taken, in milliseconds.
    pub sum_ms: u64,
    /// How many there were.
    pub count: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub struct LatencyMonitor {
    series: Mutex<BTreeMap<&'static str, Series>>,
}

impl LatencyMonitor {
    /// Records an event that took `ms`, if the threshold (0: none) is reached.
    pub fn record(&self, event: &'static str, ms: u64, threshold_ms: u64) {
        if threshold_ms == 0 || ms < threshold_ms {
            return;
        }
        let time = crate::clock::unix_ms() / 1000;
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

    /// All events with their samples.
    pub fn all(&self) -> BTreeMap<&'static str, Series> {
        self.series.lock().clone()
    }

    /// One event's samples.
    pub fn get(&self, event: &[u8]) -> Option<Series> {
        let all = self.series.lock();
        all.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(event)).map(|(_, series)| series.clone())
    }

    /// Forgets some events, or all when none is named; how many there were.
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
