//! The configuration file of `kvick-operator local`.
//!
//! The file is read again when it changes, so that limits can be changed while the operator runs. What belongs to the
//! start of a server (directory, program, ports, directives) applies to servers that start from then on.

use kvick_planner::Policy;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The whole file.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// Where the servers' directories are; relative to the file.
    pub directory: PathBuf,
    /// The server program. Without a `/` it is looked for beside the operator, then in `PATH`.
    pub program: PathBuf,
    /// Address that servers listen on.
    pub address: String,
    /// First port to try. A server also needs the port that is 10,000 higher.
    pub first_port: u16,
    /// Time between two observations, in milliseconds.
    pub interval_ms: u64,
    /// Password of the default user, if the servers require one.
    pub password: Option<String>,
    /// Bounds of what the planner may do.
    pub limits: Limits,
    /// When the planner does it.
    pub planner: Tuning,
    /// Further directives of servers.
    pub server: BTreeMap<String, Directive>,
}

/// Bounds of what the planner may do.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Limits {
    /// Least and greatest number of shards.
    pub shards_min: u32,
    /// See `shards_min`.
    pub shards_max: u32,
    /// Replicas of each shard.
    pub replicas: u32,
    /// More replicas of a shard whose load is one slot with many reads.
    pub read_replicas_max: u32,
    /// Least and greatest number of workers of a server.
    pub workers_min: u32,
    /// See `workers_min`.
    pub workers_max: u32,
    /// `maxmemory` of each server, such as `512mb`; 0 is no limit.
    pub memory_max: Size,
}

/// When the planner acts.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Tuning {
    /// Busy fraction for which capacity is planned.
    pub busy_target: f64,
    /// Busy fraction at which capacity is added.
    pub busy_grow: f64,
    /// Busy fraction that fewer shards may have.
    pub busy_shrink: f64,
    /// Fraction of the memory for which capacity is planned.
    pub memory_target: f64,
    /// Seconds for which fewer shards must have been enough.
    pub quiet_s: u64,
    /// Bytes of one migration.
    pub migration_max: Size,
}

/// A number of bytes, also with a unit: `100`, `"64kb"`, `"512mb"`, `"4gb"`, in powers of 1024.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(try_from = "toml::Value")]
pub struct Size(pub u64);

impl TryFrom<toml::Value> for Size {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Size, String> {
        let text = match value {
            toml::Value::Integer(bytes) => bytes.to_string(),
            toml::Value::String(text) => text.to_ascii_lowercase(),
            _ => return Err("a size is a number or a string".to_owned()),
        };
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "" | "b" => 1,
            "k" | "kb" => 1 << 10,
            "m" | "mb" => 1 << 20,
            "g" | "gb" => 1 << 30,
            unit => return Err(format!("'{unit}' is not a unit of sizes (expected kb, mb or gb)")),
        };
        let number: u64 = digits.parse().map_err(|_| format!("'{text}' is not a size"))?;
        number.checked_mul(unit).map(Size).ok_or(format!("'{text}' is too large"))
    }
}

/// The value of a directive.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "toml::Value")]
pub struct Directive(pub String);

impl TryFrom<toml::Value> for Directive {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Directive, String> {
        match value {
            toml::Value::String(text) => Ok(Directive(text)),
            toml::Value::Integer(number) => Ok(Directive(number.to_string())),
            toml::Value::Boolean(is_on) => Ok(Directive(if is_on { "yes" } else { "no" }.to_owned())),
            _ => Err("the value of a directive is a string, a number or a boolean".to_owned()),
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            directory: "kvick-cluster".into(),
            program: "kvick-server".into(),
            address: "127.0.0.1".into(),
            first_port: 7001,
            interval_ms: 1000,
            password: None,
            limits: Limits::default(),
            planner: Tuning::default(),
            server: BTreeMap::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        Limits {
            shards_min: 1,
            shards_max: cores,
            replicas: 0,
            read_replicas_max: 0,
            workers_min: 1,
            workers_max: 1,
            memory_max: Size(0),
        }
    }
}

impl Default for Tuning {
    fn default() -> Tuning {
        let policy = Policy::default();
        Tuning {
            busy_target: policy.busy_target,
            busy_grow: policy.busy_grow,
            busy_shrink: policy.busy_shrink,
            memory_target: policy.memory_target,
            quiet_s: policy.quiet.as_secs(),
            migration_max: Size(policy.migration_bytes_max),
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or if something in it is invalid.
    pub fn read(path: &Path) -> io::Result<Config> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let mut config = Config::parse(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))?;
        let parent = path.parent().unwrap_or(Path::new(""));
        config.directory = std::path::absolute(parent.join(&config.directory))?;
        Ok(config)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// The text of the problem.
    pub fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        let limits = &config.limits;
        let Tuning { busy_target, busy_grow, busy_shrink, memory_target, .. } = config.planner;
        let is_fraction = |value: f64| value > 0.0 && value <= 1.0;
        for (is_valid, rule) in [
            (limits.shards_min >= 1, "shards-min must be at least 1"),
            (limits.shards_max >= limits.shards_min, "shards-max must be at least shards-min"),
            (limits.workers_min >= 1, "workers-min must be at least 1"),
            (limits.workers_max >= limits.workers_min, "workers-max must be at least workers-min"),
            (config.interval_ms >= 50, "interval-ms must be at least 50"),
            (config.first_port >= 1 && config.first_port < 55_000, "first-port must be from 1 to 54999"),
            ([busy_target, busy_grow, busy_shrink, memory_target].into_iter().all(is_fraction), "fractions are 0 to 1"),
            (busy_shrink <= busy_target && busy_target <= busy_grow, "busy-shrink <= busy-target <= busy-grow"),
        ] {
            if !is_valid {
                return Err(rule.to_owned());
            }
        }
        Ok(config)
    }

    /// The settings of the planner.
    pub fn policy(&self) -> Policy {
        Policy {
            shards_min: self.limits.shards_min,
            shards_max: self.limits.shards_max,
            workers_min: self.limits.workers_min,
            replicas: self.limits.replicas,
            read_replicas_max: self.limits.read_replicas_max,
            busy_target: self.planner.busy_target,
            busy_grow: self.planner.busy_grow,
            busy_shrink: self.planner.busy_shrink,
            memory_target: self.planner.memory_target,
            quiet: Duration::from_secs(self.planner.quiet_s),
            migration_bytes_max: self.planner.migration_max.0,
            ..Policy::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let text =
            "first-port = 7101\n[limits]\nshards-max = 4\nmemory-max = \"512mb\"\n[server]\nappendonly = \"no\"\n";
        let config = Config::parse(text).expect("a configuration");
        assert_eq!((config.first_port, config.limits.shards_max), (7101, 4));
        assert_eq!(config.limits.memory_max, Size(512 << 20));
        assert_eq!(config.server["appendonly"], Directive("no".to_owned()));
        assert_eq!(config.policy().shards_max, 4);
    }

    #[test]
    fn the_documented_file_is_valid_and_names_the_defaults() {
        let text = include_str!("../../../docs/elasticity.md");
        let example = text.split("```toml").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
        let documented = Config::parse(example).expect("a configuration");
        let directive = ("cluster-node-timeout".to_owned(), Directive("5000".to_owned()));
        let limits = Limits { shards_max: 4, memory_max: Size(512 << 20), ..Limits::default() };
        let expected = Config { limits, server: BTreeMap::from([directive]), ..Config::default() };
        assert_eq!(documented, expected);
    }

    #[test]
    fn invalid_files_are_explained() {
        for (text, part) in [
            ("shards = 1", "unknown field"),
            ("[limits]\nshards-min = 5\nshards-max = 4", "shards-max"),
            ("[limits]\nmemory-max = \"4tb\"", "not a unit"),
            ("[planner]\nbusy-target = 2.0", "fractions"),
        ] {
            let error = Config::parse(text).expect_err("an error");
            assert!(error.contains(part), "{error}");
        }
    }
}
