//! The result of a run, as it is written to a file and read again for comparisons.

use crate::check::CheckReport;
use crate::config::Config;
use crate::metrics::{Counters, Interval, Latencies, Summary};
use crate::schedule::Profile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The result of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunResult {
    /// What distinguishes it from others in the same file.
    pub label: String,
    /// What was configured.
    pub config: Config,
    /// Length of the measurement.
    pub seconds: f64,
    /// Processor time of the load generator.
    pub cpu_s: f64,
    /// Arrivals that the schedule has in the measurement; 0 for a closed loop.
    pub planned: f64,
    /// What happened to requests.
    pub counters: Counters,
    /// Delay of sending.
    pub send_delay: Measured,
    /// The part of it that the generator causes.
    #[serde(default)]
    pub own_delay: Measured,
    /// Response times of all commands.
    pub response: Measured,
    /// Service times of all commands.
    pub service: Measured,
    /// By kind of command.
    pub commands: Vec<CommandResult>,
    /// Errors by their first word.
    pub error_texts: BTreeMap<String, u64>,
    /// Over time.
    pub intervals: Vec<IntervalResult>,
    /// Acknowledged writes, if they were checked.
    pub check: Option<CheckReport>,
}

/// A histogram with its usual figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The figures.
    pub summary: Summary,
    /// In the compressed format V2 of HdrHistogram, as base64.
    pub histogram: Latencies,
}

impl Measured {
    fn add(&mut self, other: &Latencies) {
        self.histogram.add(other);
        self.summary = self.histogram.summary();
    }
}

/// One kind of command.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CommandResult {
    pub name: String,
    pub misses: u64,
    pub errors: u64,
    pub response: Measured,
    pub service: Measured,
}

/// One interval.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct IntervalResult {
    /// Its start, in seconds since the warm-up.
    pub start_s: f64,
    /// Its length.
    pub seconds: f64,
    /// The rate that was planned in its middle; 0 for a closed loop.
    pub planned_rate: f64,
    /// What happened to requests.
    pub counters: Counters,
    /// Response times.
    pub response: Summary,
    /// Service times.
    pub service: Summary,
    /// The histogram of response times.
    pub histogram: Latencies,
}

impl RunResult {
    /// A result without measurements.
    pub fn new(label: &str, config: &Config, profile: Option<&Profile>) -> RunResult {
        let warmup_s = config.general.warmup.0.as_secs_f64();
        let seconds = config.general.interval as f64;
        let planned = profile.map_or(0.0, |profile| {
            profile.arrivals_until(warmup_s + config.duration_s()) - profile.arrivals_until(warmup_s)
        });
        let interval = |index: u64| {
            let start_s = index as f64 * seconds;
            let rate = |profile: &Profile| profile.rate_at(warmup_s + start_s + seconds / 2.0);
            IntervalResult { start_s, seconds, planned_rate: profile.map_or(0.0, rate), ..IntervalResult::default() }
        };
        let mut config = config.clone();
        // Results are passed around.
        config.client.password = config.client.password.map(|_| "(hidden)".to_owned());
        RunResult {
            label: label.to_owned(),
            intervals: (0..config.general.duration.min(1_000_000)).map(interval).collect(),
            config,
            planned,
            ..RunResult::default()
        }
    }

    /// Adds an interval.
    pub fn add(&mut self, interval: &Interval) {
        let mut sum = Interval { counters: self.counters, ..Interval::default() };
        sum.error_texts = std::mem::take(&mut self.error_texts);
        sum.add(&Interval { counters: interval.counters, ..Interval::default() });
        interval.error_texts.iter().for_each(|(text, count)| sum.note_error(text, *count));
        (self.counters, self.error_texts) = (sum.counters, sum.error_texts);
        let (response, service) = (interval.response(), interval.service());
        self.send_delay.add(&interval.send_delay);
        self.own_delay.add(&interval.own_delay);
        self.response.add(&response);
        self.service.add(&service);
        for (at, from) in interval.commands.iter().enumerate() {
            if at == self.commands.len() {
                self.commands.push(CommandResult { name: from.name.clone(), ..CommandResult::default() });
            }
            let to = &mut self.commands[at];
            to.misses += from.misses;
            to.errors += from.errors;
            to.response.add(&from.response);
            to.service.add(&from.service);
        }
        if let Some(place) = self.intervals.get_mut(interval.index as usize) {
            place.counters = interval.counters;
            (place.response, place.service) = (response.summary(), service.summary());
            place.histogram = response;
        }
    }

    /// Answered requests per second.
    pub fn throughput(&self) -> f64 {
        if self.seconds > 0.0 { self.counters.answered as f64 / self.seconds } else { 0.0 }
    }

    /// Sent requests per second.
    pub fn sent_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.counters.sent as f64 / self.seconds } else { 0.0 }
    }

    /// Processor time of the load generator per sent request, in microseconds.
    pub fn cpu_us_per_request(&self) -> f64 {
        self.cpu_s * 1e6 / self.counters.sent.max(1) as f64
    }
}

/// The contents of a file of results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResultFile {
    /// The version of the program.
    pub version: String,
    /// The runs.
    pub runs: Vec<RunResult>,
}

impl ResultFile {
    /// For these runs.
    pub fn new(runs: Vec<RunResult>) -> ResultFile {
        ResultFile { version: env!("CARGO_PKG_VERSION").to_owned(), runs }
    }

    /// Reads a file.
    pub fn read(path: &std::path::Path) -> Result<ResultFile, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: not a result of kvick-load: {error}", path.display()))
    }
}
