//! The configuration of a run: one TOML file with the sections and names of rpc-perf where the meaning is the same.
//!
//! Unknown keys are errors. [`Config::check`] finds settings that contradict each other, and says what to change. All
//! durations are strings with a unit, such as `"200ms"` or `"15m"`.

mod duration;
#[cfg(test)]
mod tests;

pub use duration::Span;

use crate::values::VALUE_MAX;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Everything about a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Length of the run, and other things that concern all of it.
    pub general: General,
    /// Files with results.
    pub metrics: Metrics,
    /// The servers.
    pub target: Target,
    /// Threads and connections.
    pub client: Client,
    /// Encrypted connections, if present.
    pub tls: Option<Tls>,
    /// What is requested, and when.
    pub workload: Workload,
    /// One run for each value of a setting.
    pub sweep: Sweep,
    /// Search for the highest rate that meets an objective.
    pub search: Search,
    /// Acknowledged writes, read back after the run.
    pub check: Option<Check>,
}

/// Length of the run.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct General {
    /// Must be `resp`.
    pub protocol: String,
    /// Seconds per interval of the report.
    pub interval: u64,
    /// Number of intervals.
    pub duration: u64,
    /// Time before the first interval; what is sent in it is not part of the result.
    pub warmup: Span,
    /// Time at the end in which outstanding replies are still awaited.
    pub drain: Span,
    /// Seed of all random numbers. Without it, each run differs.
    pub initial_seed: Option<u64>,
}

impl Default for General {
    fn default() -> General {
        General {
            protocol: "resp".to_owned(),
            interval: 1,
            duration: 10,
            warmup: Span::from_ms(0),
            drain: Span::from_ms(1000),
            initial_seed: None,
        }
    }
}

/// Files with results. Extensions are added to `output`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Path without extension: writes `.json`, `.csv`, `.hlog` and `.svg`.
    pub output: Option<PathBuf>,
}

/// How the endpoints belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// Independent servers; connections and requests are spread evenly.
    #[default]
    Single,
    /// A cluster; requests go to the owner of their key's slot.
    Cluster,
    /// The first endpoint is the primary and gets the writes; reads go to the others.
    Replicated,
}

/// The servers.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Target {
    /// `host:port` or `unix:///path`.
    pub endpoints: Vec<String>,
    /// How they belong together.
    pub topology: Topology,
    /// In a cluster, sends reads to replicas.
    pub read_replicas: bool,
}

impl Default for Target {
    fn default() -> Target {
        let endpoints = vec!["127.0.0.1:6379".to_owned()];
        Target { endpoints, topology: Topology::Single, read_replicas: false }
    }
}

/// Threads and connections.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Client {
    /// Threads that send requests.
    pub threads: usize,
    /// Processes, each with that many threads.
    pub processes: usize,
    /// Connections to each endpoint, of all threads and processes together.
    pub poolsize: usize,
    /// Requests that a connection may have outstanding (rpc-perf's `concurrency`).
    #[serde(alias = "concurrency")]
    pub pipeline: usize,
    /// Arrivals that may wait for a connection, per thread; more are dropped and counted.
    pub queue: usize,
    /// Shortest time between two turns of sending: larger values save processor time at high rates, and delay requests
    /// by at most this time.
    pub send_granularity: Span,
    /// Time for connecting, in milliseconds.
    pub connect_timeout: u64,
    /// Time after which a connection without a reply is closed, in milliseconds.
    pub request_timeout: u64,
    /// 2 or 3.
    pub resp: u8,
    /// User; without it, and with a password, the default user.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Database.
    pub database: u32,
}

impl Default for Client {
    fn default() -> Client {
        Client {
            threads: 1,
            processes: 1,
            poolsize: 50,
            pipeline: 1,
            queue: 100_000,
            send_granularity: Span::from_us(100),
            connect_timeout: 10_000,
            request_timeout: 10_000,
            resp: 2,
            username: None,
            password: None,
            database: 0,
        }
    }
}

/// Encrypted connections.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// Key of the client's certificate.
    pub private_key: Option<PathBuf>,
    /// Certificate of the client.
    pub certificate: Option<PathBuf>,
    /// Certificates of the authorities that the server's certificate is checked against.
    pub ca_file: Option<PathBuf>,
    /// Name in the server's certificate, if it is not the host of the endpoint.
    pub server_name: Option<String>,
}

/// How arrivals are distributed in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// At equal distances.
    #[default]
    Constant,
    /// Independent of each other.
    Poisson,
}

/// What is requested, and when.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Accepted for files of rpc-perf, and without effect: the threads of the client generate their requests.
    pub threads: Option<usize>,
    /// The rate. Without it, the loop is closed: each connection sends its next request after a reply.
    pub ratelimit: Option<RateLimit>,
    /// What is requested.
    pub keyspace: Vec<Keyspace>,
}

/// How the rate goes from `start` to `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ramp {
    /// By `step` each `interval`.
    #[default]
    Linear,
    /// The same rates in random order.
    Shuffled,
    /// Twice the rate each `interval`.
    Doubling,
    /// Continuously, within one `interval`.
    Smooth,
}

/// What follows the ramp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnRampCompletion {
    /// The last rate.
    #[default]
    Stable,
    /// The ramp again.
    Loop,
    /// The ramp backwards, and so on.
    Mirror,
}

/// The rate of requests, per second.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// The rate, or the first one.
    pub start: f64,
    /// The last rate of a ramp.
    pub end: Option<f64>,
    /// Difference between two steps of a ramp.
    pub step: Option<f64>,
    /// Seconds that each step takes.
    #[serde(default = "one")]
    pub interval: f64,
    /// How the rate changes.
    #[serde(default)]
    pub ramp: Ramp,
    /// What follows.
    #[serde(default)]
    pub on_ramp_completion: OnRampCompletion,
    /// How arrivals are distributed in time.
    #[serde(default)]
    pub arrivals: Arrival,
}

impl RateLimit {
    /// A constant rate.
    pub fn constant(rate: f64, arrivals: Arrival) -> RateLimit {
        let (ramp, on_ramp_completion) = Default::default();
        RateLimit { start: rate, end: None, step: None, interval: 1.0, ramp, on_ramp_completion, arrivals }
    }
}

/// Which keys are requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// All equally often.
    #[default]
    Uniform,
    /// By Zipf's law.
    Zipf,
    /// A share of the requests goes to a part of the keys.
    Hot,
    /// One after the other.
    Sequential,
}

/// What values are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueKind {
    /// Random bytes.
    #[default]
    Bytes,
    /// Integers.
    I64,
}

/// How long values are.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum ValueLength {
    /// All alike.
    Fixed(usize),
    /// Equally often from `min` to `max`.
    Uniform {
        /// Shortest.
        min: usize,
        /// Longest.
        max: usize,
    },
    /// The logarithm is normally distributed.
    Lognormal {
        /// As many are shorter as are longer.
        median: usize,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Longer ones are cut to this.
        max: usize,
    },
    /// Sizes with weights.
    Histogram {
        /// Pairs of size and weight.
        sizes: Vec<[f64; 2]>,
    },
}

/// A set of keys with what is done to them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Keyspace {
    /// Share of the requests, relative to other keyspaces.
    pub weight: f64,
    /// What keys begin with. Keyspaces of different types need different prefixes.
    pub prefix: String,
    /// Length of keys.
    pub klen: usize,
    /// Number of keys.
    pub nkeys: u64,
    /// Neighbouring keys that share a hash tag, for commands with several keys in a cluster; 0 for no tags.
    pub hash_tag_keys: u64,
    /// Length of fields and members.
    pub inner_keys_klen: usize,
    /// Number of fields and members.
    pub inner_keys_nkeys: u64,
    /// Length of values.
    pub vlen: ValueLength,
    /// What values are made of.
    pub vkind: ValueKind,
    /// How far values can be compressed.
    pub compression_ratio: f64,
    /// Time to live of keys that `set` writes.
    pub ttl: Option<Span>,
    /// Which keys are requested.
    pub distribution: Distribution,
    /// Exponent of Zipf's law.
    pub zipf_exponent: f64,
    /// Part of the keys that are hot.
    pub hot_keys: f64,
    /// Share of the requests that go to them.
    pub hot_share: f64,
    /// Time after which other keys are hot; also moves the ranks of Zipf's law.
    pub hot_shift: Option<Span>,
    /// Writes every key once before the run, with this verb.
    pub preload: Option<String>,
    /// What is done.
    pub commands: Vec<Command>,
}

impl Default for Keyspace {
    fn default() -> Keyspace {
        Keyspace {
            weight: 1.0,
            prefix: "key:".to_owned(),
            klen: 16,
            nkeys: 100_000,
            hash_tag_keys: 0,
            inner_keys_klen: 8,
            inner_keys_nkeys: 1000,
            vlen: ValueLength::Fixed(64),
            vkind: ValueKind::Bytes,
            compression_ratio: 1.0,
            ttl: None,
            distribution: Distribution::Uniform,
            zipf_exponent: 0.99,
            hot_keys: 0.01,
            hot_share: 0.9,
            hot_shift: None,
            preload: None,
            commands: vec![Command::of("get", 80.0), Command::of("set", 20.0)],
        }
    }
}

/// What is done to keys, and how often.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// A name of the catalogue (`kvick-load verbs` lists it), `raw`, `multi` or `eval`.
    pub verb: String,
    /// Share of the requests of the keyspace.
    #[serde(default = "one")]
    pub weight: f64,
    /// Keys, fields or members per request.
    #[serde(default = "one_usize")]
    pub cardinality: usize,
    /// First index or lowest score of a range.
    #[serde(default)]
    pub start: i64,
    /// Last index or highest score of a range.
    #[serde(default = "last")]
    pub end: i64,
    /// Elements that a list is cut to after a push, or entries that a stream is cut to.
    pub truncate: Option<u64>,
    /// Seconds that a blocking command waits.
    #[serde(default = "one")]
    pub timeout: f64,
    /// Consumer group of stream commands.
    #[serde(default = "group")]
    pub group: String,
    /// For `raw`: the command, with `{key}`, `{value}`, `{field}`, `{number}`.
    pub command: Option<String>,
    /// For `multi`: the commands between MULTI and EXEC.
    #[serde(default)]
    pub commands: Vec<String>,
    /// For `multi`: watches the key before.
    #[serde(default)]
    pub watch: bool,
    /// For `eval`: the script.
    pub script: Option<String>,
    /// For `eval`: arguments after the key.
    #[serde(default)]
    pub args: Vec<String>,
    /// For `raw` and `eval`: changes nothing, so replicas may answer it.
    #[serde(default)]
    pub read_only: bool,
}

impl Command {
    /// A command with default settings.
    pub fn of(verb: &str, weight: f64) -> Command {
        Command {
            verb: verb.to_owned(),
            weight,
            cardinality: 1,
            start: 0,
            end: -1,
            truncate: None,
            timeout: 1.0,
            group: group(),
            command: None,
            commands: Vec::new(),
            watch: false,
            script: None,
            args: Vec::new(),
            read_only: false,
        }
    }
}

/// One run for each value.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sweep {
    /// Connections to each endpoint.
    pub connections: Vec<usize>,
    /// Rates.
    pub rates: Vec<f64>,
}

/// Search for the highest rate that meets an objective.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Search {
    /// Percentile of the response time that is limited.
    pub percentile: f64,
    /// Its limit.
    pub limit: Span,
    /// First rate.
    pub start: f64,
    /// Highest rate that is tried.
    pub max: f64,
    /// Ends when the rates that pass and fail differ by less than this part.
    pub precision: f64,
    /// Time that each rate is measured, after the warm-up.
    pub step: Span,
}

impl Default for Search {
    fn default() -> Search {
        Search {
            percentile: 99.0,
            limit: Span::from_ms(1),
            start: 1000.0,
            max: 10_000_000.0,
            precision: 0.05,
            step: Span::from_ms(5000),
        }
    }
}

/// Acknowledged writes, read back after the run.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Check {
    /// What keys begin with. A thread adds its number.
    pub prefix: String,
    /// Keys of each thread.
    pub keys: u32,
    /// Time after the run in which the servers may not answer, because they fail over.
    pub settle: Span,
}

impl Default for Check {
    fn default() -> Check {
        Check { prefix: "checked:".to_owned(), keys: 100_000, settle: Span::from_ms(30_000) }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug)]
pub struct ConfigError(pub String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError(format!("cannot read {}: {error}", path.display())))?;
        Config::parse(&text).map_err(|error| ConfigError(format!("{}: {error}", path.display())))
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Finds settings without meaning, and settings that contradict each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |message: String| Err(ConfigError(message));
        if self.general.protocol != "resp" {
            return fail(format!("general.protocol is \"{}\", but must be \"resp\"", self.general.protocol));
        }
        if self.general.interval == 0 || self.general.duration == 0 {
            return fail("general.interval and general.duration must be at least 1".to_owned());
        }
        if self.general.interval.saturating_mul(self.general.duration) > 366 * 86_400 {
            return fail("general.interval times general.duration is more than a year of seconds".to_owned());
        }
        if self.target.endpoints.is_empty() {
            return fail("target.endpoints is empty: name at least one, such as \"127.0.0.1:6379\"".to_owned());
        }
        if self.target.topology == Topology::Replicated && self.target.endpoints.len() < 2 {
            return fail(
                "target.topology = \"replicated\" needs a primary and a replica in target.endpoints".to_owned(),
            );
        }
        let client = &self.client;
        for (name, value, max) in [
            ("threads", client.threads, 1024),
            ("processes", client.processes, 256),
            ("poolsize", client.poolsize, 1_000_000),
            ("pipeline", client.pipeline, 65_536),
            ("queue", client.queue, 100_000_000),
        ] {
            if value == 0 || value > max {
                return fail(format!("client.{name} is {value}, but must be from 1 to {max}"));
            }
        }
        if !matches!(client.resp, 2 | 3) {
            return fail(format!("client.resp is {}, but must be 2 or 3", client.resp));
        }
        if let Some(rate) = &self.workload.ratelimit {
            rate.check()?;
        }
        if self.check.is_none() && self.workload.keyspace.is_empty() {
            return fail("there is no [[workload.keyspace]]: describe at least one".to_owned());
        }
        if let Some(check) = &self.check
            && (check.keys as usize) < 2 * client.pipeline * client.poolsize
        {
            let least = 2 * client.pipeline * client.poolsize;
            return fail(format!("check.keys must be at least {least}, twice the requests that may be outstanding"));
        }
        if self.check.is_some() && self.target.topology == Topology::Single && self.target.endpoints.len() > 1 {
            return fail("[check] reads one endpoint or a cluster: name one in target.endpoints".to_owned());
        }
        if !self.sweep.connections.is_empty() && !self.sweep.rates.is_empty() {
            return fail("sweep.connections and sweep.rates exclude each other: remove one".to_owned());
        }
        if self.search.start < 1.0 || self.search.max < self.search.start || self.search.precision < 0.001 {
            return fail("search needs 1 <= start <= max and precision >= 0.001".to_owned());
        }
        self.workload.keyspace.iter().enumerate().try_for_each(|(index, keyspace)| {
            keyspace.check().map_err(|error| ConfigError(format!("keyspace {}: {error}", index + 1)))
        })
    }

    /// Length of the measured part.
    pub fn duration_s(&self) -> f64 {
        (self.general.interval * self.general.duration) as f64
    }
}

impl RateLimit {
    fn check(&self) -> Result<(), ConfigError> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let all = [Some(self.start), self.end, self.step, Some(self.interval)];
        if !all.into_iter().flatten().all(positive) {
            return Err(ConfigError("workload.ratelimit: all numbers must be above 0".to_owned()));
        }
        if self.end.is_some() && self.step.is_none() && matches!(self.ramp, Ramp::Linear | Ramp::Shuffled) {
            return Err(ConfigError("workload.ratelimit has an end but no step: add step, or a ramp".to_owned()));
        }
        if let (Some(end), Some(step)) = (self.end, self.step)
            && (end - self.start).abs() / step > 1e5
        {
            return Err(ConfigError("workload.ratelimit has more than 100,000 steps: raise step".to_owned()));
        }
        Ok(())
    }
}

impl Keyspace {
    fn check(&self) -> Result<(), ConfigError> {
        let fail = |message: &str| Err(ConfigError(message.to_owned()));
        let weight_is_valid = |weight: f64| weight.is_finite() && weight >= 0.0;
        if !weight_is_valid(self.weight) || !self.commands.iter().all(|command| weight_is_valid(command.weight)) {
            return fail("weights must be numbers from 0 on");
        }
        if self.commands.iter().map(|command| command.weight).sum::<f64>() <= 0.0 {
            return fail("no command has a weight above 0");
        }
        if self.nkeys == 0 || self.nkeys > 1 << 40 || self.inner_keys_nkeys == 0 || self.inner_keys_nkeys > 1 << 40 {
            return fail("nkeys and inner_keys_nkeys must be from 1 to 2^40");
        }
        if self.klen > 1024 || self.inner_keys_klen > 1024 || self.prefix.len() > 1024 {
            return fail("prefix, klen and inner_keys_klen are limited to 1024 bytes");
        }
        if !(0.01..=20.0).contains(&self.zipf_exponent) {
            return fail("zipf_exponent must be from 0.01 to 20");
        }
        if !(0.0..=1.0).contains(&self.hot_keys) || !(0.0..=1.0).contains(&self.hot_share) {
            return fail("hot_keys and hot_share are parts from 0 to 1");
        }
        if self.ttl.as_ref().is_some_and(|ttl| ttl.0.as_millis() == 0) {
            return fail("ttl must be at least 1ms: remove it for keys that do not expire");
        }
        let longest = match &self.vlen {
            ValueLength::Fixed(length) => *length as f64,
            ValueLength::Uniform { max, .. } => *max as f64,
            ValueLength::Lognormal { max, sigma, .. } if sigma.is_finite() && *sigma >= 0.0 => *max as f64,
            ValueLength::Lognormal { .. } => return fail("vlen: sigma must be a number from 0 on"),
            ValueLength::Histogram { sizes } => {
                if sizes.is_empty() || !sizes.iter().all(|[size, weight]| *size >= 0.0 && *weight > 0.0) {
                    return fail("vlen: sizes need pairs of a size and a weight above 0");
                }
                sizes.iter().map(|[size, _]| *size).fold(0.0, f64::max)
            }
        };
        if longest > VALUE_MAX as f64 {
            return fail("vlen: values are limited to 64 MiB");
        }
        let cardinality_is_valid = |command: &Command| (1..=100_000).contains(&command.cardinality);
        if !self.commands.iter().all(cardinality_is_valid) {
            return fail("cardinality must be from 1 to 100,000");
        }
        Ok(())
    }
}

fn one() -> f64 {
    1.0
}

fn one_usize() -> usize {
    1
}

fn last() -> i64 {
    -1
}

fn group() -> String {
    "load".to_owned()
}
