//! Metrics of the server's inner activity, which INFO does not show.

use super::health;
use crate::server::Server;
use kvick_cluster::migration::Direction;
use kvick_metrics::{Exposition, Metric, fields};

fields! {
    /// Metrics without labels.
    pub static FIELDS: &'static Server;
    _: gauge kvick_ready "1 if /readyz succeeds." = |server| health::obstacles(server).is_empty();
    _: counter kvick_partition_lock_waits_total "Partition locks that a thread acquired after waiting for another one."
        = |server| server.keyspace.lock_waits();
    _: gauge kvick_write_log_bytes "Memory of the write log, which replicas and the append-only file read."
        = |server| server.keyspace.log.memory();
    _: counter kvick_trace_spans_exported_total "Spans of slow commands that the collector has accepted."
        = |server| server.tracing.counts(server).exported;
    _: counter kvick_trace_spans_rejected_total "Spans that the collector has rejected."
        = |server| server.tracing.counts(server).rejected;
    _: counter kvick_trace_spans_dropped_total "Spans given up, because too many waited or no collector was reached."
        = |server| server.tracing.counts(server).dropped;
}

/// Slot migrations that are in progress.
pub static MIGRATIONS: [Metric; 2] = [
    Metric::gauge("kvick_slot_migrations", "Atomic slot migrations in progress.").labels(&["direction"]),
    Metric::gauge("kvick_slot_migration_remaining_bytes", "Bytes that slot migrations in progress have yet to send.")
        .labels(&["direction"]),
];

/// Writes the metrics of slot migrations, in cluster mode.
pub fn write_migrations(server: &Server, out: &mut Exposition) {
    if server.cluster().is_none() {
        return;
    }
    let [count, remaining] = &MIGRATIONS;
    let of = |direction: Direction| {
        server.slot_migration.view(|jobs| {
            let jobs = jobs.iter().filter(|job| job.direction() == direction && job.state().is_in_progress());
            jobs.fold((0u64, 0u64), |(count, bytes), job| (count + 1, bytes + job.remaining_bytes()))
        })
    };
    let totals = [("export", of(Direction::Export)), ("import", of(Direction::Import))];
    let mut family = out.family(count);
    totals.iter().for_each(|(direction, (count, _))| family.sample(&[direction], *count));
    let mut family = out.family(remaining);
    totals.iter().for_each(|(direction, (_, bytes))| family.sample(&[direction], *bytes));
}
