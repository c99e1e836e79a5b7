//! HOTKEYS: the keys that are accessed most, take most execution time, or cause most traffic.
//!
//! A worker [samples](sampler) a share of its commands and adds their keys to [summaries](summary) of its own, in memory
//! that does not depend on the number of keys. When a window ends, the summaries of all workers are replaced by empty
//! ones and merged into a [`Report`], which HOTKEYS GET shows until the next window ends.
//!
//! A worker never waits here: if another thread is replacing its summaries, the sample is lost.

pub mod report;
pub mod sampler;
pub mod summary;
#[cfg(test)]
mod zipf;

use kvick_config::Values;
use kvick_config::tables::logging;
use kvick_store::{Key, Keyspace};
use parking_lot::Mutex;
use report::Report;
use std::sync::Arc;
use std::time::{Duration, Instant};
use summary::{Home, Metric, Summary, Usage};

/// Least number of places of a summary.
const PLACES_MIN: usize = 64;
/// Places of a summary for each key that is shown: with more of them the estimates are better.
const PLACES_PER_KEY: usize = 2;

/// The settings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Settings {
    /// Number of keys shown; 0 disables the detection.
    pub top_k: u32,
    /// Percentage of commands that are sampled.
    pub sampling_percentage: u32,
    /// Minimum length of a window.
    pub window: Duration,
}

impl Settings {
    /// Reads them.
    pub fn read(values: &Values) -> Self {
        Settings {
            top_k: values.read(logging::HOTKEYS_TOP_K),
            sampling_percentage: values.read(logging::HOTKEYS_SAMPLING_PERCENTAGE),
            window: Duration::from_secs(values.read(logging::HOTKEYS_WINDOW_SECONDS).into()),
        }
    }

    /// Percentage of commands that workers sample; 0 while the detection is disabled.
    pub fn effective_percentage(&self) -> u32 {
        if self.top_k == 0 { 0 } else { self.sampling_percentage }
    }
}

/// What one worker has recorded in the current window.
struct Recording {
    samples: u64,
    summaries: [Summary; 3],
}

impl Recording {
    fn new(settings: &Settings) -> Self {
        let places = (settings.top_k as usize * PLACES_PER_KEY).max(PLACES_MIN);
        Recording { samples: 0, summaries: Metric::ALL.map(|metric| Summary::new(metric, places)) }
    }

    fn clear(&mut self) {
        self.samples = 0;
        self.summaries.iter_mut().for_each(Summary::clear);
    }
}

/// The place of one worker's recording, on cache lines of its own; `None` while the detection is disabled.
#[repr(align(128))]
#[derive(Default)]
struct OfWorker(Mutex<Option<Recording>>);

/// The current and the last window. See the module's documentation.
pub struct HotKeys {
    workers: Box<[OfWorker]>,
    windows: Mutex<Windows>,
}

struct Windows {
    settings: Settings,
    /// When the current window began.
    began: Instant,
    /// The last completed window, if any.
    report: Option<Arc<Report>>,
    /// Empty recordings, which replace those of the workers when the window ends.
    spare: Vec<Recording>,
}

impl HotKeys {
    /// For so many workers; disabled.
    pub fn new(workers: usize) -> Self {
        HotKeys {
            workers: (0..workers).map(|_| OfWorker::default()).collect(),
            windows: Mutex::new(Windows {
                settings: Settings::default(),
                began: Instant::now(),
                report: None,
                spare: Vec::new(),
            }),
        }
    }

    /// Applies settings. If they changed, the current window begins anew; the last one is kept while the detection is
    /// enabled.
    pub fn configure(&self, settings: Settings) {
        let mut windows = self.windows.lock();
        let before = std::mem::replace(&mut windows.settings, settings);
        if before == settings {
            return;
        }
        if settings.top_k == 0 {
            windows.report = None;
        }
        (windows.began, windows.spare) = (Instant::now(), Vec::new());
        for of_worker in &self.workers {
            *of_worker.0.lock() = (settings.top_k > 0).then(|| Recording::new(&settings));
        }
    }

    /// Adds a sampled access of one key by a worker.
    pub fn record(&self, worker: usize, keyspace: &Keyspace, db: usize, key: Key<'_>, usage: Usage) {
        let Some(OfWorker(recording)) = self.workers.get(worker) else { return };
        let Some(mut recording) = recording.try_lock() else { return };
        let Some(recording) = recording.as_mut() else { return };
        let home = Home { db: db as u32, flushes: keyspace.flushes(db) };
        recording.samples += usage.accesses;
        recording.summaries.iter_mut().for_each(|summary| summary.add(key, home, usage));
    }

    /// Ends the current window if its time is over. Called periodically and before a report is shown.
    ///
    /// A window that is more than twice as long as it should be, because the server was stopped, is dropped.
    pub fn end_window_if_due(&self, now: Instant) {
        let mut windows = self.windows.lock();
        let Windows { settings, began, .. } = *windows;
        let duration = now.saturating_duration_since(began);
        if settings.top_k == 0 || duration < settings.window {
            return;
        }
        windows.began = now;
        if duration >= 2 * settings.window {
            windows.report = None;
            self.clear();
            return;
        }
        let mut replace = |of_worker: &OfWorker| {
            let empty = windows.spare.pop().unwrap_or_else(|| Recording::new(&settings));
            of_worker.0.lock().replace(empty)
        };
        let mut recordings: Vec<Recording> = self.workers.iter().filter_map(&mut replace).collect();
        let samples = recordings.iter().map(|recording| recording.samples).sum();
        let summaries: Vec<&[Summary; 3]> = recordings.iter().map(|recording| &recording.summaries).collect();
        windows.report = Some(Arc::new(Report::merge(settings, duration, samples, &summaries)));
        recordings.iter_mut().for_each(Recording::clear);
        windows.spare = recordings;
    }

    /// The last completed window, if any.
    pub fn report(&self) -> Option<Arc<Report>> {
        self.windows.lock().report.clone()
    }

    /// Forgets the last and the current window.
    pub fn reset(&self) {
        let mut windows = self.windows.lock();
        (windows.report, windows.began) = (None, Instant::now());
        self.clear();
    }

    fn clear(&self) {
        self.workers.iter().for_each(|of_worker| of_worker.0.lock().iter_mut().for_each(Recording::clear));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_store::hash::KeyHasher;

    const SETTINGS: Settings = Settings { top_k: 2, sampling_percentage: 100, window: Duration::from_secs(1) };

    fn names(hot_keys: &HotKeys) -> Option<Vec<String>> {
        let report = hot_keys.report()?;
        Some(report.top(Metric::Accesses).iter().map(|hot| String::from_utf8_lossy(&hot.key).into_owned()).collect())
    }

    fn record(hot_keys: &HotKeys, worker: usize, key: &str, accesses: u64) {
        let keyspace = Keyspace::leak(1, 1, KeyHasher::random());
        let key = Key { bytes: key.as_bytes(), hash: key.len() as u64 };
        hot_keys.record(worker, keyspace, 0, key, Usage { accesses, ticks: 1, bytes: 1 });
    }

    #[test]
    fn a_report_shows_the_last_window() {
        let (hot_keys, now) = (HotKeys::new(2), Instant::now());
        record(&hot_keys, 0, "while it is disabled", 1);
        hot_keys.configure(SETTINGS);
        record(&hot_keys, 0, "a", 5);
        record(&hot_keys, 1, "bb", 3);
        record(&hot_keys, 1, "ccc", 4);
        record(&hot_keys, 0, "bb", 3);
        record(&hot_keys, 9, "no such worker", 3);
        hot_keys.end_window_if_due(now);
        assert_eq!(names(&hot_keys), None, "the window has not ended");
        hot_keys.end_window_if_due(now + Duration::from_millis(1500));
        assert_eq!(names(&hot_keys).unwrap(), ["bb", "a"]);
        assert_eq!(hot_keys.report().unwrap().samples, 15);
        // The settings of the report stay the old ones.
        hot_keys.configure(Settings { top_k: 1, ..SETTINGS });
        assert_eq!(names(&hot_keys).unwrap(), ["bb", "a"]);
        hot_keys.end_window_if_due(Instant::now() + Duration::from_millis(1500));
        assert_eq!(names(&hot_keys).unwrap().len(), 0, "an idle window");
    }

    #[test]
    fn reset_and_long_windows_forget_everything() {
        let hot_keys = HotKeys::new(1);
        hot_keys.configure(SETTINGS);
        for forget in [HotKeys::reset as fn(&HotKeys), |hot_keys| hot_keys.configure(Settings::default())] {
            hot_keys.configure(SETTINGS);
            record(&hot_keys, 0, "a", 5);
            hot_keys.end_window_if_due(Instant::now() + Duration::from_millis(1500));
            assert_eq!(names(&hot_keys).unwrap(), ["a"]);
            record(&hot_keys, 0, "a", 5);
            forget(&hot_keys);
            assert_eq!(names(&hot_keys), None);
        }
        hot_keys.configure(SETTINGS);
        record(&hot_keys, 0, "a", 5);
        hot_keys.end_window_if_due(Instant::now() + Duration::from_secs(3));
        assert_eq!(names(&hot_keys), None);
    }
}
