//! Runs a configuration: prepares the servers, starts the threads, and adds up what they measure.

use crate::check::{CheckReport, Writer, verify};
use crate::client::{Client, cluster_slots};
use crate::commands::Template;
use crate::config::{Arrival, Command, Config, ConfigError, OnRampCompletion, Ramp, RateLimit, Topology};
use crate::driver::{Clock, Driver, Job, Pace};
use crate::metrics::Interval;
use crate::result::RunResult;
use crate::schedule::{Arrivals, Profile};
use crate::source::Source;
use crate::topology::SlotMap;
use crate::transport::TlsSettings;
use crate::workload::Workload;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests that a connection has outstanding while keyspaces are filled.
const FILL_PIPELINE: usize = 64;
/// Shortest time between two requests for the slots.
const SLOTS_PERIOD: Duration = Duration::from_millis(200);

/// Time between two looks whether the run is to end early.
const STOP_PERIOD: Duration = Duration::from_millis(50);

/// Why a run did not take place.
#[derive(Debug)]
pub struct RunError(pub String);

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RunError {}

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> RunError {
        RunError(error.0)
    }
}

impl From<std::io::Error> for RunError {
    fn from(error: std::io::Error) -> RunError {
        RunError(error.to_string())
    }
}

/// The part of a run that one process has.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Its number.
    pub process: usize,
    /// The number of processes.
    pub processes: usize,
}

impl Share {
    /// All of the run.
    pub const ALL: Share = Share { process: 0, processes: 1 };
}

/// Receives what happens during a run.
pub trait Observer {
    /// All connections are ready; returns when the run may begin.
    fn ready(&mut self) {}
    /// An interval has ended, with all threads added up.
    fn interval(&mut self, _interval: &Interval) {}
}

/// Does nothing.
pub struct Silent;

impl Observer for Silent {}

/// The threads of a run that has all its connections.
struct Threads {
    handles: Vec<JoinHandle<std::io::Result<Source>>>,
    starts: Vec<Sender<Clock>>,
}

/// The rate over time.
pub fn profile(rate: &RateLimit, warmup_s: f64, duration_s: f64, seed: u64) -> Profile {
    let end = rate.end.unwrap_or(rate.start);
    let mut steps = Vec::new();
    match rate.ramp {
        _ if rate.end.is_none() => steps.push(rate.start),
        Ramp::Linear | Ramp::Shuffled => {
            let step = rate.step.unwrap_or(1.0);
            let count = ((end - rate.start).abs() / step).floor() as usize;
            steps.extend((0..=count).map(|at| rate.start + step.copysign(end - rate.start) * at as f64));
            if rate.ramp == Ramp::Shuffled {
                fastrand::Rng::with_seed(seed).shuffle(&mut steps);
            }
        }
        Ramp::Doubling => {
            let mut next = rate.start;
            while next < end {
                steps.push(next);
                next *= 2.0;
            }
            steps.push(end);
        }
        Ramp::Smooth => {}
    }
    let mut pairs: Vec<(f64, f64)> = steps.iter().map(|rate| (*rate, *rate)).collect();
    if rate.ramp == Ramp::Smooth && rate.end.is_some() {
        pairs.push((rate.start, end));
    }
    let mut profile = Profile::default();
    profile.push(pairs[0].0, pairs[0].0, warmup_s);
    let total_s = warmup_s + duration_s;
    let mut is_first = true;
    while profile.duration_s() < total_s - 1e-9 {
        let left_s = |profile: &Profile| (total_s - profile.duration_s()).min(rate.interval);
        if is_first || rate.on_ramp_completion != OnRampCompletion::Stable {
            for (from, to) in &pairs {
                let left_s = left_s(&profile);
                // A ramp that the end cuts off keeps its slope.
                profile.push(*from, from + (to - from) * left_s / rate.interval, left_s);
            }
        } else {
            let last = pairs[pairs.len() - 1].1;
            let left_s = total_s - profile.duration_s();
            profile.push(last, last, left_s);
        }
        if rate.on_ramp_completion == OnRampCompletion::Mirror {
            pairs = pairs.into_iter().rev().map(|(from, to)| (to, from)).collect();
        }
        is_first = false;
    }
    profile
}

/// Runs one configuration from beginning to end. `stop` ends it early.
pub fn run(
    config: &Config,
    label: &str,
    share: Share,
    stop: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<RunResult, RunError> {
    config.check()?;
    let seed = config.general.initial_seed.unwrap_or_else(|| fastrand::u64(..));
    let tls = config.tls.as_ref().map(TlsSettings::new).transpose()?;
    let slots = match config.target.topology {
        Topology::Cluster => cluster_slots(config, tls.as_ref())?,
        _ => reach_all(config, tls.as_ref())?,
    };
    if share.process == 0 {
        prepare(config, seed, &tls, &slots, stop)?;
    }
    let threads = config.client.threads.min(config.client.poolsize.div_ceil(share.processes));
    let all_threads = threads * share.processes;
    let warmup_ns = config.general.warmup.ns();
    let stop_ns = warmup_ns + (config.duration_s() * 1e9) as u64;
    let warmup_s = warmup_ns as f64 / 1e9;
    let profile = config
        .workload
        .ratelimit
        .as_ref()
        .map(|rate| (profile(rate, warmup_s, config.duration_s(), seed), rate.arrivals));
    let run_number = seed & 0xffff_ffff;
    let plans = (0..threads).map(|thread| {
        let global = share.process * threads + thread;
        let source = match &config.check {
            Some(check) => Source::Checked(Box::new(Writer::new(check, run_number, global))),
            None => Source::Mix(Box::new(Workload::new(config, seed, global, all_threads)?)),
        };
        let pace = match &profile {
            Some((profile, kind)) => open_pace(profile, *kind, global, all_threads, seed),
            None => Pace::Closed { requests_max: u64::MAX },
        };
        Ok((source, pace, connections_of(config.client.poolsize, global, all_threads)))
    });
    let plans: Vec<_> = plans.collect::<Result<_, RunError>>()?;
    let (sender, intervals) = channel();
    let started = start(config, plans, &tls, &slots, (warmup_ns, stop_ns), stop, sender)?;
    observer.ready();
    let clock = Clock::starting_at(Instant::now() + Duration::from_millis(5));
    for start in &started.starts {
        // A thread that failed says so when it is joined.
        let _ = start.send(clock);
    }
    // Intervals of the threads wait in the channel meanwhile.
    while clock.now_ns() < warmup_ns && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_nanos(warmup_ns - clock.now_ns().min(warmup_ns)).min(STOP_PERIOD));
    }
    let cpu_before = cpu_time();
    let mut result = RunResult::new(label, config, profile.as_ref().map(|(profile, _)| profile));
    let mut collector = Collector::new(threads);
    for interval in intervals {
        collector.add(interval, &mut |interval| {
            observer.interval(interval);
            result.add(interval);
        });
    }
    collector.finish(&mut |interval| {
        observer.interval(interval);
        result.add(interval);
    });
    result.cpu_s = (cpu_time() - cpu_before).as_secs_f64();
    // The end of the measurement, even if it was stopped early.
    let measured_ns = clock.now_ns().min(stop_ns).saturating_sub(warmup_ns);
    result.seconds = measured_ns as f64 / 1e9;
    let mut writers = Vec::new();
    for handle in started.handles {
        let source = handle.join().map_err(|_| RunError("a thread panicked".to_owned()))??;
        if let Source::Checked(writer) = source {
            writers.push(*writer);
        }
    }
    if !writers.is_empty() {
        result.check = Some(check(&writers, config, &tls)?);
    }
    Ok(result)
}

fn check(writers: &[Writer], config: &Config, tls: &Option<TlsSettings>) -> Result<CheckReport, RunError> {
    verify(writers, config, tls.as_ref()).map_err(|error| RunError(format!("cannot read back the writes: {error}")))
}

fn open_pace(profile: &Profile, kind: Arrival, thread: usize, threads: usize, seed: u64) -> Pace {
    Pace::Open(Box::new(Arrivals::new(profile.clone(), kind, thread, threads, seed)))
}

/// The connections that a thread has of a pool.
fn connections_of(pool: usize, thread: usize, threads: usize) -> usize {
    pool / threads + usize::from(thread < pool % threads)
}

/// Fails if a server cannot be reached or refuses the session.
fn reach_all(config: &Config, tls: Option<&TlsSettings>) -> Result<SlotMap, RunError> {
    for endpoint in &config.target.endpoints {
        Client::connect(endpoint, &config.client, tls).map_err(|error| RunError(format!("{endpoint}: {error}")))?;
    }
    Ok(SlotMap::default())
}

/// Fills keyspaces and creates consumer groups.
fn prepare(
    config: &Config,
    seed: u64,
    tls: &Option<TlsSettings>,
    slots: &SlotMap,
    stop: &Arc<AtomicBool>,
) -> Result<(), RunError> {
    if config.check.is_some() {
        return Ok(());
    }
    for (index, keyspace) in config.workload.keyspace.iter().enumerate() {
        let mut commands = Vec::new();
        if let Some(verb) = &keyspace.preload {
            commands.push(Command::of(verb, 1.0));
        }
        let templates: Vec<Template> =
            keyspace.commands.iter().map(|command| Template::new(command, keyspace)).collect::<Result<_, _>>()?;
        let mut groups: Vec<&String> = templates.iter().filter_map(|template| template.group.as_ref()).collect();
        groups.sort();
        groups.dedup();
        for group in groups {
            let command = Some(format!("XGROUP CREATE {{key}} {group} $ MKSTREAM"));
            commands.push(Command { command, ..Command::of("raw", 1.0) });
        }
        for command in commands {
            fill(config, index, Template::new(&command, keyspace)?, seed, tls, slots, stop)?;
        }
    }
    Ok(())
}

/// Executes a command once for each key of a keyspace.
fn fill(
    config: &Config,
    space: usize,
    template: Template,
    seed: u64,
    tls: &Option<TlsSettings>,
    slots: &SlotMap,
    stop: &Arc<AtomicBool>,
) -> Result<(), RunError> {
    let keys = config.workload.keyspace[space].nkeys;
    let mut filling = config.clone();
    filling.client.pipeline = FILL_PIPELINE;
    filling.general.drain = crate::config::Span::from_ms(60_000);
    filling.workload.keyspace.iter_mut().for_each(|space| space.commands = vec![Command::of("get", 1.0)]);
    let threads = config.client.threads.min(config.client.poolsize).min(4);
    let plans = (0..threads).map(|thread| {
        let workload = Workload::filling(&filling, space, template.clone(), seed, (thread, threads))?;
        let requests_max = keys / threads as u64 + u64::from((thread as u64) < keys % threads as u64);
        let pace = Pace::Closed { requests_max };
        Ok((Source::Mix(Box::new(workload)), pace, connections_of(config.client.poolsize, thread, threads).min(8)))
    });
    let plans: Vec<_> = plans.collect::<Result<_, RunError>>()?;
    let (sender, intervals) = channel();
    let started = start(&filling, plans, tls, slots, (0, u64::MAX / 4), stop, sender)?;
    let clock = Clock::starting_at(Instant::now());
    for start in &started.starts {
        // A thread that failed says so when it is joined.
        let _ = start.send(clock);
    }
    let mut sum = Interval::default();
    intervals.into_iter().for_each(|interval| sum.add(&interval));
    for handle in started.handles {
        handle.join().map_err(|_| RunError("a thread panicked".to_owned()))??;
    }
    // A group that exists is what is wanted.
    let errors: Vec<_> = sum.error_texts.iter().filter(|(text, _)| *text != "BUSYGROUP").collect();
    if stop.load(Ordering::Relaxed) {
        return Err(RunError("stopped while keyspaces were filled".to_owned()));
    }
    if errors.is_empty() && sum.counters.answered == keys {
        return Ok(());
    }
    Err(RunError(format!("filled {} of {keys} keys; errors: {errors:?}", sum.counters.answered)))
}

/// Starts the threads, and waits until all have their connections.
fn start(
    config: &Config,
    plans: Vec<(Source, Pace, usize)>,
    tls: &Option<TlsSettings>,
    slots: &SlotMap,
    (warmup_ns, stop_ns): (u64, u64),
    stop: &Arc<AtomicBool>,
    intervals: Sender<Interval>,
) -> Result<Threads, RunError> {
    let config = Arc::new(config.clone());
    let (wanted_slots, wanted) = channel();
    let (mut handles, mut starts, mut slot_senders) = (Vec::new(), Vec::new(), Vec::new());
    let (ready, are_ready) = channel();
    for (source, pace, connections) in plans {
        let (new_slots, slots_receiver) = channel();
        slot_senders.push(new_slots);
        let (start, started) = channel();
        starts.push(start);
        let ready = ready.clone();
        let job = Job {
            config: config.clone(),
            connections,
            tls: tls.clone(),
            slots: slots.clone(),
            source,
            pace,
            warmup_ns,
            stop_ns,
            stop: stop.clone(),
            intervals: intervals.clone(),
            new_slots: slots_receiver,
            wanted_slots: wanted_slots.clone(),
        };
        handles.push(std::thread::spawn(move || {
            precise_timers();
            let mut driver = match Driver::new(job) {
                Ok(driver) => driver,
                Err(error) => {
                    let _ = ready.send(Err(error.to_string()));
                    return Err(error);
                }
            };
            let connected = driver.connect();
            let is_connected = connected.is_ok();
            let _ = ready.send(connected);
            // Without a start, another thread failed.
            match started.recv() {
                Ok(clock) if is_connected => driver.run(clock),
                _ => Err(std::io::Error::other("the run did not begin")),
            }
        }));
    }
    drop(wanted_slots);
    drop(ready);
    if config.target.topology == Topology::Cluster {
        let (config, tls) = (config.clone(), tls.clone());
        // Ends when all drivers have.
        std::thread::spawn(move || {
            while wanted.recv().is_ok() {
                while wanted.try_recv().is_ok() {}
                if let Ok(slots) = cluster_slots(&config, tls.as_ref()) {
                    slot_senders.iter().for_each(|sender| drop(sender.send(slots.clone())));
                }
                std::thread::sleep(SLOTS_PERIOD);
            }
        });
    }
    are_ready.into_iter().take(handles.len()).try_for_each(|connected| connected.map_err(RunError))?;
    Ok(Threads { handles, starts })
}

/// Lets this thread wake up at the time it asks for: by default, Linux may add 50 us.
fn precise_timers() {
    #[cfg(target_os = "linux")]
    // SAFETY: no memory is involved.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64)
    };
}

/// The processor time of this process.
fn cpu_time() -> Duration {
    // SAFETY: a structure of numbers may be all zeros, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Adds up the intervals of several threads or processes, and passes them on in order.
pub struct Collector {
    threads: usize,
    open: BTreeMap<u64, (usize, Interval)>,
}

impl Collector {
    /// For so many that deliver.
    pub fn new(threads: usize) -> Collector {
        Collector { threads, open: BTreeMap::new() }
    }

    /// Takes an interval of one of them.
    pub fn add(&mut self, interval: Interval, complete: &mut dyn FnMut(&Interval)) {
        let index = interval.index;
        let (count, sum) = self.open.entry(index).or_insert_with(|| (0, Interval { index, ..Interval::default() }));
        *count += 1;
        sum.add(&interval);
        while let Some(first) = self.open.first_entry().filter(|first| first.get().0 >= self.threads) {
            complete(&first.remove().1);
        }
    }

    /// Passes on intervals that some of them did not deliver.
    pub fn finish(self, complete: &mut dyn FnMut(&Interval)) {
        self.open.values().for_each(|(_, interval)| complete(interval));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str, warmup_s: f64, duration_s: f64) -> Vec<f64> {
        let rate: RateLimit = toml::from_str(text).expect("a rate");
        let profile = profile(&rate, warmup_s, duration_s, 1);
        assert!((profile.duration_s() - warmup_s - duration_s).abs() < 1e-6);
        (0..(warmup_s + duration_s) as usize).map(|second| profile.rate_at(second as f64 + 0.5)).collect()
    }

    #[test]
    fn ramps_have_their_rates() {
        assert_eq!(rates("start = 5", 1.0, 2.0), [5.0, 5.0, 5.0]);
        assert_eq!(rates("start = 5\nend = 15\nstep = 5", 0.0, 4.0), [5.0, 10.0, 15.0, 15.0]);
        assert_eq!(rates("start = 15\nend = 5\nstep = 5", 0.0, 3.0), [15.0, 10.0, 5.0]);
        assert_eq!(rates("start = 1\nend = 6\nramp = 'doubling'", 1.0, 5.0), [1.0, 1.0, 2.0, 4.0, 6.0, 6.0]);
        let mirror = "start = 1\nend = 4\nramp = 'doubling'\non_ramp_completion = 'mirror'";
        assert_eq!(rates(mirror, 0.0, 7.0), [1.0, 2.0, 4.0, 4.0, 2.0, 1.0, 1.0]);
        let repeat = "start = 1\nend = 4\nramp = 'doubling'\non_ramp_completion = 'loop'\ninterval = 2";
        assert_eq!(rates(repeat, 0.0, 8.0), [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 1.0, 1.0]);
        assert_eq!(
            rates("start = 10\nend = 14\nramp = 'smooth'\ninterval = 4", 0.0, 5.0),
            [10.5, 11.5, 12.5, 13.5, 14.0]
        );
        let mut shuffled = rates("start = 1\nend = 4\nstep = 1\nramp = 'shuffled'", 0.0, 4.0);
        shuffled.sort_by(f64::total_cmp);
        assert_eq!(shuffled, [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn intervals_of_threads_are_passed_on_in_order() {
        let mut passed = Vec::new();
        let mut collector = Collector::new(2);
        for index in [0, 1, 0, 1, 2] {
            let interval = Interval { index, ..Interval::default() };
            collector.add(interval, &mut |interval| passed.push(interval.index));
        }
        assert_eq!(passed, [0, 1]);
        collector.finish(&mut |interval| passed.push(interval.index));
        assert_eq!(passed, [0, 1, 2]);
    }

    #[test]
    fn a_pool_is_divided() {
        let shares: Vec<usize> = (0..3).map(|thread| connections_of(8, thread, 3)).collect();
        assert_eq!(shares, [3, 3, 2]);
    }
}
