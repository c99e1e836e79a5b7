//! The section on processor time.
//!
//! Invariant of the unsafe code here: the kernel fills a structure of ours, for a valid target.

use super::Context;
use super::page::{Page, seconds};
use kvick_config::tables::network::IO_THREADS;
use kvick_core::ScalingReport;
use kvick_core::stats::Totals;
use kvick_metrics::{Exposition, Metric, Value, fields};
use kvick_process::cpu_limit;
use libc::{RUSAGE_CHILDREN, RUSAGE_SELF, RUSAGE_THREAD, c_int, rusage, timeval};
use std::sync::atomic::Ordering;

/// Processor times in microseconds, and the workers' counters.
pub struct Facts {
    /// System and user time of the process, of its children, and of the calling thread.
    process: (u64, u64),
    children: (u64, u64),
    thread: (u64, u64),
    /// The counters of all workers that there can be.
    workers: Vec<Totals>,
    /// `io-threads`.
    configured: usize,
    /// How many workers have been started, and how many are active.
    started: usize,
    active: usize,
    scaling: ScalingReport,
    /// How many cores the process may use.
    cpu_limit: f64,
    /// Number of connections of each worker.
    connections: Vec<usize>,
    /// Connections that have moved between workers.
    moved: u64,
}

fields! {
    /// The times that the system counts.
    pub static FIELDS: Facts;
    used_cpu_sys: counter redis_cpu_sys_seconds_total "System time of the process."
        = |facts| Value::Seconds(facts.process.0);
    used_cpu_user: counter redis_cpu_user_seconds_total "User time of the process."
        = |facts| Value::Seconds(facts.process.1);
    used_cpu_sys_children: counter redis_cpu_sys_children_seconds_total "System time of ended child processes."
        = |facts| Value::Seconds(facts.children.0);
    used_cpu_user_children: counter redis_cpu_user_children_seconds_total "User time of ended child processes."
        = |facts| Value::Seconds(facts.children.1);
    used_cpu_sys_main_thread: counter redis_cpu_sys_main_thread_seconds_total
        "System time of the thread that was asked: the HTTP thread, or in INFO a worker."
        = |facts| Value::Seconds(facts.thread.0);
    used_cpu_user_main_thread: counter redis_cpu_user_main_thread_seconds_total
        "User time of the thread that was asked: the HTTP thread, or in INFO a worker."
        = |facts| Value::Seconds(facts.thread.1);
    used_active_time_main_thread: counter redis_active_time_main_thread_seconds_total
        "Time that worker 0 was busy." = |facts| facts.workers.first().map_or(Value::Absent, busy);
    kvick_cpu_limit: gauge kvick_cpu_limit_cores
        "Cores that the process may use, by its CPU affinity and the quotas of its cgroups."
        = |facts| Value::Hundredths(facts.cpu_limit);
    kvick_workers_active: gauge kvick_workers_active "Number of active workers." = |facts| facts.active;
    kvick_workers_changes: counter kvick_workers_changes_total "Changes of the number of active workers."
        = |facts| facts.scaling.changes;
    kvick_workers_reason: info = |facts| facts.scaling.reason.clone();
    kvick_connections_moved: counter kvick_connections_moved_total "Connections that moved to another worker."
        = |facts| facts.moved;
}

/// The metrics of workers. INFO shows all but the first in one field of each worker.
pub static WORKER_METRICS: [Metric; 6] = [
    Metric::counter("redis_active_time_io_thread_seconds_total", "Time that another worker was busy.")
        .labels(&["thread"]),
    Metric::counter("kvick_worker_busy_seconds_total", "Time that a worker was busy: its event loop without waiting.")
        .labels(&["worker"]),
    Metric::counter("kvick_worker_turns_total", "Turns of a worker's event loop.").labels(&["worker"]),
    Metric::counter("kvick_worker_commands_total", "Commands that a worker executed.").labels(&["worker"]),
    Metric::gauge("kvick_worker_busy_ratio", "Busy fraction of a worker over the last moments.").labels(&["worker"]),
    Metric::gauge("kvick_worker_connections", "Connections of a worker.").labels(&["worker"]),
];

fn busy(totals: &Totals) -> Value {
    Value::Seconds(totals.busy_us)
}

impl Facts {
    /// Collects them.
    pub fn of(context: &Context) -> Facts {
        let [process, children, thread] = [RUSAGE_SELF, RUSAGE_CHILDREN, RUSAGE_THREAD].map(used);
        let server = context.server;
        let numbers = 0..server.workers_max();
        let connections = server.connection_counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        Facts {
            process,
            children,
            thread,
            workers: server.totals(),
            configured: server.config.read(IO_THREADS) as usize,
            started: numbers.filter(|worker| server.has_started(*worker)).count(),
            active: server.active_workers(),
            scaling: server.scaling_report(),
            cpu_limit: cpu_limit::cores(),
            connections,
            moved: server.moved_connections.load(Ordering::Relaxed),
        }
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    let facts = Facts::of(context);
    page.section("CPU");
    page.write(FIELDS, &facts);
    for (number, totals) in facts.workers.iter().enumerate().take(facts.configured).skip(1) {
        page.field(format_args!("used_active_time_io_thread_{number}"), seconds(totals.busy_us));
    }
    for (number, totals) in facts.workers.iter().enumerate().take(facts.started) {
        page.field(
            format_args!("kvick_worker_{number}"),
            format_args!(
                "busy_usec={},turns={},commands={},busy={:.2},connections={}",
                totals.busy_us, totals.turns, totals.requests, facts.scaling.busy[number], facts.connections[number]
            ),
        );
    }
}

/// Writes the metrics of workers.
pub fn export_workers(facts: &Facts, out: &mut Exposition) {
    let [others, busy_time, turns, commands, busy_ratio, connections] = &WORKER_METRICS;
    let numbers: Vec<String> = (0..facts.workers.len()).map(|number| number.to_string()).collect();
    let workers = || numbers.iter().map(String::as_str).zip(&facts.workers);
    let mut write = |metric, skipped, shown, value: fn(&Totals) -> Value| {
        let mut family = out.family(metric);
        for (number, totals) in workers().take(shown).skip(skipped) {
            if let Some(value) = value(totals).number() {
                family.sample(&[number], value);
            }
        }
    };
    write(others, 1, facts.configured, busy);
    write(busy_time, 0, facts.started, busy);
    write(turns, 0, facts.started, |totals| totals.turns.into());
    write(commands, 0, facts.started, |totals| totals.requests.into());
    let mut family = out.family(busy_ratio);
    for (number, busy) in numbers.iter().zip(&facts.scaling.busy).take(facts.started) {
        family.sample(&[number], *busy);
    }
    let mut family = out.family(connections);
    for (number, count) in numbers.iter().zip(&facts.connections).take(facts.started) {
        family.sample(&[number], *count);
    }
}

/// System and user time in microseconds; zero if the kernel does not report them.
fn used(target: c_int) -> (u64, u64) {
    let zero = timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: all-zero bytes are a valid value of this structure of integers.
    let mut usage: rusage = unsafe { std::mem::zeroed() };
    // SAFETY: by the module's invariant.
    if unsafe { libc::getrusage(target, &mut usage) } != 0 {
        (usage.ru_stime, usage.ru_utime) = (zero, zero);
    }
    (microseconds(usage.ru_stime), microseconds(usage.ru_utime))
}

fn microseconds(time: timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
}
