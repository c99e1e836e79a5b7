//! The command line.

use crate::commands::verbs;
use crate::compare::compare;
use crate::config::ValueLength;
use crate::config::{
    Arrival, Check, Command, Config, ConfigError, Distribution, Keyspace, RateLimit, Span, Tls, Topology,
};
use crate::pages::{self, Page};
use crate::processes;
use crate::report;
use crate::result::{ResultFile, RunResult};
use crate::run::{Observer, Silent};
use crate::search::{Bisection, objection};
use crate::view::View;
use clap::{Args, Parser, Subcommand};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Load generator for Kvick, Valkey and Redis.
///
/// Sends requests when they are due (open loop) and measures from then on, or as fast as replies come (closed loop,
/// without --rate). Everything is described in one TOML file; options override it, and suffice for simple runs.
#[derive(Debug, Parser)]
#[command(name = "kvick-load", version)]
pub struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a load and print what it measured
    Run(RunArgs),
    /// Find the highest rate that meets an objective, such as p99 below 1 ms without dropped requests
    Search {
        #[command(flatten)]
        run: RunArgs,
        /// Percentile of the response time that is limited
        #[arg(long, value_name = "PERCENT")]
        percentile: Option<f64>,
        /// Its limit, such as 1ms
        #[arg(long, value_name = "TIME")]
        limit: Option<Span>,
        /// First rate
        #[arg(long, value_name = "PER_SECOND")]
        start: Option<f64>,
        /// Highest rate
        #[arg(long, value_name = "PER_SECOND")]
        max: Option<f64>,
        /// Time that each rate is measured
        #[arg(long, value_name = "TIME")]
        step: Option<Span>,
    },
    /// Write numbered values, read them back after the run, and report acknowledged writes that are missing
    Check(RunArgs),
    /// Print two results side by side
    Compare {
        /// JSON file of the first run
        first: PathBuf,
        /// JSON file of the second run
        second: PathBuf,
    },
    /// Draw a result as SVG
    Plot {
        /// JSON file of a run
        result: PathBuf,
        /// File to write; standard output without it
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
    /// List the verbs of commands with their templates
    Verbs,
    /// Print the manual page or the completions of a shell
    Print {
        /// What to print
        #[arg(value_enum)]
        page: Page,
        /// Subcommand that the manual page is about
        subcommand: Option<String>,
    },
    #[command(name = processes::SUBCOMMAND, hide = true)]
    Process,
}

/// What overrides the configuration file.
#[derive(Debug, Default, Args)]
struct RunArgs {
    /// Configuration file
    config: Option<PathBuf>,
    /// Server as host:port or unix:///path; may be repeated
    #[arg(long, short, value_name = "ADDRESS")]
    endpoint: Vec<String>,
    /// How several servers belong together
    #[arg(long, value_parser = ["single", "cluster", "replicated"])]
    topology: Option<String>,
    /// Requests per second; without it, the loop is closed
    #[arg(long, short, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Distribution of the arrivals
    #[arg(long)]
    arrivals: Option<Arrival>,
    /// Connections to each server
    #[arg(long, short, value_name = "COUNT")]
    connections: Option<usize>,
    /// Threads of each process
    #[arg(long, short, value_name = "COUNT")]
    threads: Option<usize>,
    /// Processes
    #[arg(long, value_name = "COUNT")]
    processes: Option<usize>,
    /// Requests that a connection may have outstanding
    #[arg(long, short = 'P', value_name = "COUNT")]
    pipeline: Option<usize>,
    /// Seconds that are measured
    #[arg(long, short, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Time before the measurement, such as 2s
    #[arg(long, value_name = "TIME")]
    warmup: Option<Span>,
    /// Version of the protocol, 2 or 3
    #[arg(long, value_name = "VERSION")]
    resp: Option<u8>,
    /// Command with an optional weight, such as get:80; may be repeated. Replaces the keyspaces of the file
    #[arg(long = "command", value_name = "VERB[:WEIGHT]")]
    commands: Vec<String>,
    /// Number of keys of each keyspace
    #[arg(long, value_name = "COUNT")]
    keys: Option<u64>,
    /// Length of values
    #[arg(long, value_name = "BYTES")]
    value_size: Option<usize>,
    /// Zipf's law with this exponent for keys
    #[arg(long, value_name = "EXPONENT")]
    zipf: Option<f64>,
    /// Write every key before the run
    #[arg(long)]
    preload: bool,
    /// User
    #[arg(long)]
    username: Option<String>,
    /// Password; better in the environment variable KVICK_LOAD_PASSWORD, since others see options
    #[arg(long)]
    password: Option<String>,
    /// Encrypt connections, and check the server's certificate against these authorities
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Seed of the random numbers
    #[arg(long)]
    seed: Option<u64>,
    /// Write PATH.json, PATH.csv, PATH.hlog and PATH.svg
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Do not show the run while it lasts
    #[arg(long, short)]
    quiet: bool,
}

impl RunArgs {
    fn config(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        self.override_target(&mut config)?;
        self.override_workload(&mut config)?;
        config.check()?;
        Ok(config)
    }

    fn override_target(&self, config: &mut Config) -> Result<(), ConfigError> {
        fn set<T: Clone>(place: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                *place = value.clone();
            }
        }
        if !self.endpoint.is_empty() {
            config.target.endpoints = self.endpoint.clone();
        }
        match self.topology.as_deref() {
            Some("cluster") => config.target.topology = Topology::Cluster,
            Some("replicated") => config.target.topology = Topology::Replicated,
            Some(_) => config.target.topology = Topology::Single,
            None => {}
        }
        let client = &mut config.client;
        set(&mut client.threads, &self.threads);
        set(&mut client.processes, &self.processes);
        set(&mut client.pipeline, &self.pipeline);
        set(&mut client.resp, &self.resp);
        if let Some(connections) = self.connections {
            client.poolsize = connections;
            config.sweep.connections.clear();
        }
        client.username = self.username.clone().or(client.username.take());
        let from_environment = std::env::var("KVICK_LOAD_PASSWORD").ok();
        client.password = self.password.clone().or(from_environment).or(client.password.take());
        if let Some(ca_file) = &self.tls_ca {
            config.tls.get_or_insert_with(Tls::default).ca_file = Some(ca_file.clone());
        }
        if let Some(seconds) = self.duration {
            (config.general.duration, config.general.interval) = (seconds, 1);
        }
        set(&mut config.general.warmup, &self.warmup);
        config.general.initial_seed = self.seed.or(config.general.initial_seed);
        config.metrics.output = self.output.clone().or(config.metrics.output.take());
        Ok(())
    }

    fn override_workload(&self, config: &mut Config) -> Result<(), ConfigError> {
        let workload = &mut config.workload;
        if let Some(rate) = self.rate {
            let arrivals = workload.ratelimit.as_ref().map(|rate| rate.arrivals).unwrap_or_default();
            workload.ratelimit = Some(RateLimit::constant(rate, arrivals));
            config.sweep.rates.clear();
        }
        if let (Some(arrivals), Some(rate)) = (self.arrivals, &mut workload.ratelimit) {
            rate.arrivals = arrivals;
        }
        if !self.commands.is_empty() {
            let commands = self.commands.iter().map(|text| {
                let (verb, weight) = text.split_once(':').unwrap_or((text, "1"));
                let weight = weight.parse().map_err(|_| ConfigError(format!("\"{text}\" is not VERB:WEIGHT")))?;
                Ok(Command::of(verb, weight))
            });
            let commands = commands.collect::<Result<_, ConfigError>>()?;
            workload.keyspace = vec![Keyspace { commands, ..Keyspace::default() }];
        } else if workload.keyspace.is_empty() && config.check.is_none() {
            workload.keyspace = vec![Keyspace::default()];
        }
        for keyspace in &mut workload.keyspace {
            keyspace.nkeys = self.keys.unwrap_or(keyspace.nkeys);
            if let Some(size) = self.value_size {
                keyspace.vlen = ValueLength::Fixed(size);
            }
            if let Some(exponent) = self.zipf {
                (keyspace.distribution, keyspace.zipf_exponent) = (Distribution::Zipf, exponent);
            }
            if self.preload {
                keyspace.preload.get_or_insert_with(|| "set".to_owned());
            }
        }
        Ok(())
    }

    fn observer(&self, label: &str, config: &Config) -> Box<dyn Observer> {
        if self.quiet { Box::new(Silent) } else { Box::new(View::new(label, config.general.interval as f64)) }
    }

    /// Prints and writes results. Fails if a check found losses.
    fn finish(&self, config: &Config, runs: Vec<RunResult>) -> Result<ExitCode, String> {
        let is_good = runs.iter().all(|run| run.check.as_ref().is_none_or(|check| check.is_good()));
        let file = ResultFile::new(runs);
        if self.json {
            say(&serde_json::to_string(&file).map_err(|error| error.to_string())?)?;
        } else {
            file.runs.iter().try_for_each(|run| say(&report::text(run)))?;
        }
        if let Some(output) = &config.metrics.output {
            report::write_files(&file, output).map_err(|error| format!("{}: {error}", output.display()))?;
        }
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Prints a text and a line end. A reader that has gone, such as `head`, has what it wants.
fn say(text: &str) -> Result<(), String> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("cannot write the result: {error}")),
        _ => Ok(()),
    }
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// A flag that SIGINT and SIGTERM set, so that an interrupted run still has a report. A second signal ends the process.
fn stop_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the structure is valid when zeroed, and the handler only sets a flag.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_signal as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
    let passed_on = flag.clone();
    std::thread::spawn(move || {
        while !STOP.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        passed_on.store(true, Ordering::Relaxed);
    });
    flag
}

impl Cli {
    /// Does what the command line says.
    pub fn execute(self) -> Result<ExitCode, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        match self.action {
            Action::Run(args) => {
                let config = args.config().map_err(|error| text(&error))?;
                let runs = run_sweep(&args, &config)?;
                args.finish(&config, runs)
            }
            Action::Check(args) => {
                let mut config = args.config().map_err(|error| text(&error))?;
                let least = u32::try_from(2 * config.client.pipeline * config.client.poolsize).unwrap_or(u32::MAX);
                config.check.get_or_insert_with(|| Check { keys: least.max(10_000), ..Check::default() });
                let runs = run_sweep(&args, &config)?;
                args.finish(&config, runs)
            }
            Action::Search { run: args, percentile, limit, start, max, step } => {
                let mut config = args.config().map_err(|error| text(&error))?;
                let search = &mut config.search;
                search.percentile = percentile.unwrap_or(search.percentile);
                search.limit = limit.unwrap_or(search.limit);
                search.start = start.unwrap_or(search.start);
                search.max = max.unwrap_or(search.max);
                search.step = step.unwrap_or(search.step);
                config.check().map_err(|error| text(&error))?;
                let runs = search_rate(&args, &config)?;
                args.finish(&config, runs)
            }
            Action::Compare { first, second } => {
                say(compare(&ResultFile::read(&first)?, &ResultFile::read(&second)?).trim_end())?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Plot { result, output } => {
                let svg = crate::plot::svg(&ResultFile::read(&result)?.runs);
                match output {
                    Some(path) => std::fs::write(&path, svg).map_err(|error| format!("{}: {error}", path.display()))?,
                    None => say(svg.trim_end())?,
                }
                Ok(ExitCode::SUCCESS)
            }
            Action::Verbs => {
                verbs().try_for_each(|(name, template)| say(&format!("{name:<16} {template}")))?;
                say("raw, multi, eval  see docs/load.md")?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Print { page, subcommand } => {
                let written = pages::write::<Cli>(page, subcommand.as_deref(), &mut std::io::stdout().lock());
                written.map_err(|error| text(&error))?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Process => {
                processes::run_part(&stop_flag()).map_err(|error| text(&error))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// The configurations of a sweep with their labels; one if there is no sweep.
fn sweep(config: &Config) -> Vec<(String, Config)> {
    let with = |label: String, change: &dyn Fn(&mut Config)| {
        let mut config = config.clone();
        change(&mut config);
        (label, config)
    };
    let by_connections = config
        .sweep
        .connections
        .iter()
        .map(|count| with(format!("{count} connections"), &|config| config.client.poolsize = *count));
    let by_rate = config.sweep.rates.iter().map(|rate| {
        with(format!("{rate}/s"), &|config| {
            let arrivals = config.workload.ratelimit.as_ref().map(|rate| rate.arrivals).unwrap_or_default();
            config.workload.ratelimit = Some(RateLimit::constant(*rate, arrivals));
        })
    });
    let all: Vec<_> = by_connections.chain(by_rate).collect();
    if all.is_empty() { vec![("run".to_owned(), config.clone())] } else { all }
}

fn run_sweep(args: &RunArgs, config: &Config) -> Result<Vec<RunResult>, String> {
    let stop = stop_flag();
    let mut runs = Vec::new();
    for (at, (label, mut config)) in sweep(config).into_iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if at > 0 {
            // The keys exist since the first run.
            config.workload.keyspace.iter_mut().for_each(|keyspace| keyspace.preload = None);
        }
        let mut observer = args.observer(&label, &config);
        runs.push(processes::run_all(&config, &label, &stop, &mut *observer).map_err(|error| error.to_string())?);
    }
    Ok(runs)
}

fn search_rate(args: &RunArgs, config: &Config) -> Result<Vec<RunResult>, String> {
    let stop = stop_flag();
    let mut bisection = Bisection::new(&config.search);
    let (mut best, mut is_first) = (None, true);
    while let Some(rate) = bisection.next().filter(|_| !stop.load(Ordering::Relaxed)) {
        let mut step = config.clone();
        let arrivals = config.workload.ratelimit.as_ref().map(|rate| rate.arrivals).unwrap_or_default();
        step.workload.ratelimit = Some(RateLimit::constant(rate, arrivals));
        (step.general.interval, step.general.duration) = (1, config.search.step.0.as_secs().max(1));
        if step.general.warmup.ns() == 0 {
            step.general.warmup = Span::from_ms(1000);
        }
        if !std::mem::replace(&mut is_first, false) {
            step.workload.keyspace.iter_mut().for_each(|keyspace| keyspace.preload = None);
        }
        let label = format!("{rate:.0}/s");
        let result = processes::run_all(&step, &label, &stop, &mut Silent).map_err(|error| error.to_string())?;
        let objection = objection(&config.search, &result);
        if !args.quiet {
            let latency_ms = result.response.histogram.percentile_ms(config.search.percentile);
            let verdict = objection.as_deref().unwrap_or("passes");
            eprintln!("{rate:>10.0}/s  p{} {latency_ms:.3} ms  {verdict}", config.search.percentile);
        }
        bisection.note(objection.is_none());
        if objection.is_none() {
            best = Some(result);
        }
    }
    let (percentile, limit) = (config.search.percentile, config.search.limit);
    match bisection.best() {
        Some(rate) => eprintln!("highest rate with p{percentile} of at most {limit}: {rate:.0}/s"),
        None => return Err(format!("no rate has a p{percentile} of at most {limit}")),
    }
    Ok(best.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> RunArgs {
        let words = ["kvick-load", "run"].iter().chain(words);
        match Cli::try_parse_from(words).expect("valid arguments").action {
            Action::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn options_suffice_for_a_simple_run() {
        let words =
            ["--rate", "5000", "-c", "7", "--command", "get:3", "--command", "incr", "--keys", "9", "--zipf", "1.1"];
        let config = args(&words).config().expect("a configuration");
        assert_eq!(config.workload.ratelimit.map(|rate| rate.start), Some(5000.0));
        assert_eq!((config.client.poolsize, config.workload.keyspace[0].nkeys), (7, 9));
        assert_eq!(config.workload.keyspace[0].commands.len(), 2);
        assert_eq!(config.workload.keyspace[0].distribution, Distribution::Zipf);
        assert!(args(&["--command", "get:x"]).config().is_err());
    }

    #[test]
    fn a_sweep_is_one_run_for_each_value() {
        let config = Config::parse("[sweep]\nconnections = [1, 10]\n[[workload.keyspace]]").expect("a configuration");
        let pools: Vec<usize> = sweep(&config).iter().map(|(_, config)| config.client.poolsize).collect();
        assert_eq!(pools, [1, 10]);
        assert_eq!(sweep(&Config::parse("[[workload.keyspace]]").expect("a configuration")).len(), 1);
    }
}
