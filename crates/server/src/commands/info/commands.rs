//! The sections on commands: calls, errors, latencies.

use super::Context;
use super::page::{Page, sanitized};
use crate::commands::latency::durations;
use crate::server::Server;
use kvick_config::tables::logging;
use kvick_metrics::{Exposition, Metric};
use kvick_runtime::clock::{ticks_to_ns, ticks_to_us};
use kvick_runtime::histogram::Distribution;
use std::collections::BTreeMap;

/// One command's statistics, summed over all workers.
struct Statistics {
    /// The full name, as INFO shows it.
    name: String,
    calls: u64,
    ticks: u64,
    rejected: u64,
    failed: u64,
    durations: Distribution,
}

/// The metrics of commands that were called. INFO shows the numbers in one field of each command.
pub static METRICS: [Metric; 7] = [
    Metric::counter("redis_commands_total", "Calls of a command.").labels(&["cmd"]),
    Metric::counter("redis_commands_duration_seconds_total", "Time spent in calls of a command.").labels(&["cmd"]),
    Metric::counter("redis_commands_rejected_calls_total", "Calls of a command that were rejected.").labels(&["cmd"]),
    Metric::counter("redis_commands_failed_calls_total", "Calls of a command that replied with an error.")
        .labels(&["cmd"]),
    Metric::summary("redis_latency_percentiles_usec", "Percentiles of a command's duration, in microseconds.")
        .labels(&["cmd"]),
    Metric::histogram("redis_commands_latencies_usec", "Durations of a command in microseconds, as LATENCY HISTOGRAM.")
        .labels(&["cmd"]),
    Metric::histogram("kvick_command_duration_seconds", "Durations of a command in seconds, with fixed buckets.")
        .labels(&["cmd"]),
];

/// The metric of error replies.
pub static ERRORS: Metric = Metric::counter("redis_errors_total", "Error replies by error code.").labels(&["err"]);

/// Upper bounds of the buckets of `kvick_command_duration_seconds`, in nanoseconds. They are fixed, so that histograms
/// of several servers can be added.
const BUCKETS_NS: [u64; 18] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    10_000_000_000,
];

impl Statistics {
    /// The statistics of all commands that were called, in the order of the command table.
    fn all(server: &Server) -> impl Iterator<Item = Statistics> {
        let all = server.catalogue.all().iter().map(|command| {
            let counted = server.stats.iter().map(|stats| &stats.commands[command.id as usize]);
            let sum = |of: fn(&kvick_core::stats::CommandStats) -> u64| counted.clone().map(of).sum();
            Statistics {
                name: sanitized(command.full_name.as_bytes()),
                calls: sum(|one| one.calls.get()),
                ticks: sum(|one| one.ticks.get()),
                rejected: sum(|one| one.rejected.get()),
                failed: sum(|one| one.failed.get()),
                durations: durations(server, command),
            }
        });
        all.filter(|one| one.calls + one.rejected + one.failed > 0)
    }

    fn us(&self) -> u64 {
        ticks_to_us(self.ticks)
    }

    fn seconds(&self) -> f64 {
        ticks_to_ns(self.ticks) as f64 / 1e9
    }
}

/// Writes the section on calls.
pub fn write_calls(context: &Context, page: &mut Page) {
    page.section("Commandstats");
    for statistics in Statistics::all(context.server) {
        let us = statistics.us();
        let Statistics { name, calls, rejected, failed, .. } = statistics;
        let each = if calls == 0 { 0.0 } else { us as f64 / calls as f64 };
        page.field(
            format_args!("cmdstat_{name}"),
            format_args!(
                "calls={calls},usec={us},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
            ),
        );
    }
}

/// Error replies by code.
fn errors(server: &Server) -> BTreeMap<Box<[u8]>, u64> {
    let mut sums = BTreeMap::<Box<[u8]>, u64>::new();
    for (code, count) in server.stats.iter().flat_map(|stats| stats.error_codes()) {
        *sums.entry(code).or_default() += count;
    }
    sums
}

/// Writes the section on errors.
pub fn write_errors(context: &Context, page: &mut Page) {
    page.section("Errorstats");
    for (code, count) in errors(context.server) {
        page.field(format_args!("errorstat_{}", sanitized(&code)), format_args!("count={count}"));
    }
}

/// `latency-tracking-info-percentiles`; `None` while latencies are not recorded.
fn percentiles(server: &Server) -> Option<Vec<f64>> {
    let values = server.config.values();
    let percentiles = || values.read(logging::LATENCY_TRACKING_INFO_PERCENTILES).list().to_vec();
    values.read(logging::LATENCY_TRACKING).then(percentiles)
}

/// A percentile in microseconds.
fn percentile_us(durations: &Distribution, percentile: f64) -> f64 {
    durations.percentile_ns(percentile) as f64 / 1000.0
}

/// Writes the section on latencies.
pub fn write_latencies(context: &Context, page: &mut Page) {
    page.section("Latencystats");
    let Some(percentiles) = percentiles(context.server) else { return };
    for command in Statistics::all(context.server).filter(|command| command.durations.count() > 0) {
        let shown = percentiles.iter().map(|percentile| {
            let us = percentile_us(&command.durations, *percentile);
            format!("p{percentile}={us:.3}")
        });
        page.field(format_args!("latency_percentiles_usec_{}", command.name), shown.collect::<Vec<_>>().join(","));
    }
}

/// Writes the metrics of commands and errors.
pub fn export(context: &Context, out: &mut Exposition) {
    let commands: Vec<Statistics> = Statistics::all(context.server).collect();
    let [calls, duration, rejected, failed, quantiles, powers, buckets] = &METRICS;
    let mut count = |metric, value: fn(&Statistics) -> f64| {
        let mut family = out.family(metric);
        commands.iter().for_each(|command| family.sample(&[&command.name], value(command)));
    };
    count(calls, |command| command.calls as f64);
    count(duration, Statistics::seconds);
    count(rejected, |command| command.rejected as f64);
    count(failed, |command| command.failed as f64);
    let timed = || commands.iter().filter(|command| command.durations.count() > 0);
    if let Some(percentiles) = percentiles(context.server) {
        let mut family = out.family(quantiles);
        for command in timed() {
            let shown =
                percentiles.iter().map(|percentile| (*percentile, percentile_us(&command.durations, *percentile)));
            family.summary(&[&command.name], shown, command.us() as f64, command.calls);
        }
    }
    let mut family = out.family(powers);
    for command in timed() {
        let steps = command.durations.by_powers_of_two().into_iter().map(|(us, count)| (us as f64, count));
        family.histogram(&[&command.name], steps, command.us() as f64, command.durations.count());
    }
    let mut family = out.family(buckets);
    for command in timed() {
        let steps = BUCKETS_NS.iter().map(|ns| (*ns as f64 / 1e9, command.durations.count_up_to_ns(*ns)));
        family.histogram(&[&command.name], steps, command.seconds(), command.durations.count());
    }
    let mut family = out.family(&ERRORS);
    for (code, count) in errors(context.server) {
        family.sample(&[&sanitized(&code)], count);
    }
}
