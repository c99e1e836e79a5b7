//! The section on processor time.
//!
//! Invariant of the unsafe code here: the kernel fills a structure of ours, for a valid target.

use super::Context;
use super::page::{Page, seconds};
use kvick_config::tables::network::IO_THREADS;
use kvick_core::stats::Totals;
use kvick_metrics::{Exposition, Metric, Value, fields};
use libc::{RUSAGE_CHILDREN, RUSAGE_SELF, RUSAGE_THREAD, c_int, rusage, timeval};

/// Processor times in microseconds, and the workers' counters.
pub struct Facts {
    /// System and user time of the process, of its children, and of the calling thread.
    process: (u64, u64),
    children: (u64, u64),
    thread: (u64, u64),
    workers: Vec<Totals>,
    /// `io-threads`.
    configured: usize,
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
}

/// The metrics of workers. INFO shows the last three in one field of each worker.
pub static WORKER_METRICS: [Metric; 4] = [
    Metric::counter("redis_active_time_io_thread_seconds_total", "Time that another worker was busy.")
        .labels(&["thread"]),
    Metric::counter("kvick_worker_busy_seconds_total", "Time that a worker was busy: its event loop without waiting.")
        .labels(&["worker"]),
    Metric::counter("kvick_worker_turns_total", "Turns of a worker's event loop.").labels(&["worker"]),
    Metric::counter("kvick_worker_commands_total", "Commands that a worker executed.").labels(&["worker"]),
];

fn busy(totals: &Totals) -> Value {
    Value::Seconds(totals.busy_us)
}

impl Facts {
    /// Collects them.
    pub fn of(context: &Context) -> Facts {
        let [process, children, thread] = [RUSAGE_SELF, RUSAGE_CHILDREN, RUSAGE_THREAD].map(used);
        let configured = context.server.config.read(IO_THREADS) as usize;
        Facts { process, children, thread, workers: context.server.totals(), configured }
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
    for (number, totals) in facts.workers.iter().enumerate() {
        page.field(
            format_args!("kvick_worker_{number}"),
            format_args!("busy_usec={},turns={},commands={}", totals.busy_us, totals.turns, totals.requests),
        );
    }
}

/// Writes the metrics of workers.
pub fn export_workers(facts: &Facts, out: &mut Exposition) {
    let [others, busy_time, turns, commands] = &WORKER_METRICS;
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
    write(busy_time, 0, usize::MAX, busy);
    write(turns, 0, usize::MAX, |totals| totals.turns.into());
    write(commands, 0, usize::MAX, |totals| totals.requests.into());
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
