//! The sections on commands: calls, errors, latencies.

use super::Context;
use super::page::{Page, sanitized};
use crate::commands::latency::durations;
use kvick_config::tables::logging;
use kvick_runtime::clock::ticks_to_us;
use std::collections::BTreeMap;

/// One command's statistics, summed over all workers.
#[derive(Default)]
struct Sum {
    calls: u64,
    ticks: u64,
    rejected: u64,
    failed: u64,
}

pub fn write_calls(context: &Context, page: &mut Page) {
    page.section("Commandstats");
    for command in context.server.catalogue.all() {
        let counted = context.server.stats.iter().map(|stats| &stats.commands[command.id as usize]);
        let sum = counted.fold(Sum::default(), |sum, one| Sum {
            calls: sum.calls + one.calls.get(),
            ticks: sum.ticks + one.ticks.get(),
            rejected: sum.rejected + one.rejected.get(),
            failed: sum.failed + one.failed.get(),
        });
        let Sum { calls, ticks, rejected, failed } = sum;
        if calls + rejected + failed > 0 {
            let us = ticks_to_us(ticks);
            let each = if calls == 0 { 0.0 } else { us as f64 / calls as f64 };
            page.field(
                format_args!("cmdstat_{}", sanitized(command.full_name.as_bytes())),
                format_args!(
                    "calls={calls},usec={us},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
                ),
            );
        }
    }
}

pub fn write_errors(context: &Context, page: &mut Page) {
    let mut sums = BTreeMap::<Box<[u8]>, u64>::new();
    for (code, count) in context.server.stats.iter().flat_map(|stats| stats.error_codes()) {
        *sums.entry(code).or_default() += count;
    }
    page.section("Errorstats");
    for (code, count) in sums {
        page.field(format_args!("errorstat_{}", sanitized(&code)), format_args!("count={count}"));
    }
}

pub fn write_latencies(context: &Context, page: &mut Page) {
    page.section("Latencystats");
    let values = context.server.config.values();
    if !values.read(logging::LATENCY_TRACKING) {
        return;
    }
    let percentiles = values.read(logging::LATENCY_TRACKING_INFO_PERCENTILES);
    for command in context.server.catalogue.all() {
        let distribution = durations(context.server, command);
        if distribution.count() == 0 {
            continue;
        }
        let shown = percentiles.list().iter().map(|percentile| {
            let us = distribution.percentile_ns(*percentile) as f64 / 1000.0;
            format!("p{percentile}={us:.3}")
        });
        page.field(
            format_args!("latency_percentiles_usec_{}", sanitized(command.full_name.as_bytes())),
            shown.collect::<Vec<_>>().join(","),
        );
    }
}
