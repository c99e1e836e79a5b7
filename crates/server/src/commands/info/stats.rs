//! The sections on statistics.

use super::Context;
use super::page::Page;
use crate::server::Server;
use kvick_acl::log::Cause;
use kvick_core::pubsub::Kind;
use kvick_core::stats::Totals;
use kvick_runtime::clock::ticks_to_us;
use std::sync::atomic::Ordering;

const BYTES_PER_KB: f64 = 1024.0;

pub fn write(context: &Context, page: &mut Page) {
    let workers = context.server.totals();
    let totals: Totals = workers.iter().copied().sum();
    page.section("Stats");
    write_traffic(context, &totals, page);
    write_keys(context, &totals, page);
    write_errors(context.server, &totals, page);
    write_io(&workers, &totals, page);
    write_loops(context, &totals, page);
    for (cause, name) in Cause::NAMES {
        page.field(format_args!("acl_access_denied_{name}"), context.server.acl.log.count(cause));
    }
}

fn write_traffic(context: &Context, totals: &Totals, page: &mut Page) {
    let rates = context.server.rates.lock().now();
    let kilobytes = |bytes: u64| format!("{:.2}", bytes as f64 / BYTES_PER_KB);
    page.field("total_connections_received", totals.connections);
    page.field("total_commands_processed", totals.requests);
    page.field("instantaneous_ops_per_sec", rates.requests);
    page.field("total_net_input_bytes", totals.bytes_in);
    let counts = &context.server.replication.counts;
    context.server.slot_migration.count_imported(context.server);
    let [slot_bytes_in, slot_bytes_out] =
        [&counts.slot_bytes_in, &counts.slot_bytes_out].map(|count| count.load(Ordering::Relaxed));
    page.field("total_net_output_bytes", totals.bytes_out + slot_bytes_out);
    page.field("total_net_repl_input_bytes", counts.bytes_in.load(Ordering::Relaxed));
    page.field("total_net_repl_output_bytes", counts.bytes_out.load(Ordering::Relaxed));
    page.field("total_net_cluster_slot_import_bytes", slot_bytes_in);
    page.field("total_net_cluster_slot_export_bytes", slot_bytes_out);
    page.field("instantaneous_input_kbps", kilobytes(rates.bytes_in));
    page.field("instantaneous_output_kbps", kilobytes(rates.bytes_out));
    page.fields(["instantaneous_input_repl_kbps", "instantaneous_output_repl_kbps"].map(|name| (name, "0.00")));
    page.field("rejected_connections", context.server.rejected_connections.load(Ordering::Relaxed));
    let fields = [
        ("sync_full", &counts.full),
        ("sync_partial_ok", &counts.partial),
        ("sync_partial_err", &counts.partial_refused),
    ];
    page.fields(fields.map(|(name, count)| (name, count.load(Ordering::Relaxed))));
}

fn write_keys(context: &Context, totals: &Totals, page: &mut Page) {
    page.field("expired_keys", totals.expired);
    page.field("expired_fields", totals.expired_fields);
    page.fields(["expired_stale_perc", "expired_keys_with_volatile_items_stale_perc"].map(|name| (name, "0.00")));
    page.field("expired_time_cap_reached_count", totals.expire_cap_reached);
    page.field("expire_cycle_cpu_milliseconds", totals.expire_us / 1000);
    write_evicted(context, totals, page);
    page.field("keyspace_hits", totals.hits);
    page.field("keyspace_misses", totals.misses);
    let subscribed = context.server.pubsub.directory();
    page.field("pubsub_channels", subscribed.size(Kind::Channel));
    page.field("pubsub_patterns", subscribed.size(Kind::Pattern));
    page.field("pubsubshard_channels", subscribed.size(Kind::Shard));
    let (sessions, fork_us) = context.server.scripting.sessions.totals();
    page.field("latest_fork_usec", fork_us);
    // Snapshots count as forks, and so do debugger sessions.
    page.field("total_forks", context.server.persistence.status().snapshots + sessions);
    page.field("migrate_cached_sockets", context.server.migration.sockets.len());
    page.field("slave_expires_tracked_keys", context.server.replication.writable_replica_keys.count());
    write_defrag(context, totals, page);
    let tracked = &context.server.keyspace.tracking;
    page.field("tracking_total_keys", tracked.keys());
    page.field("tracking_total_items", tracked.items());
    page.field("tracking_total_prefixes", context.server.tracking.prefixes());
}

fn write_defrag(context: &Context, totals: &Totals, page: &mut Page) {
    page.fields([
        ("active_defrag_hits", totals.defrag_moved),
        ("active_defrag_misses", totals.defrag_kept),
        ("active_defrag_key_hits", totals.defrag_keys_moved),
        ("active_defrag_key_misses", totals.defrag_keys_kept),
    ]);
    let (current, total) = context.server.defrag.times();
    page.field("total_active_defrag_time", total.as_millis());
    page.field("current_active_defrag_time", current.as_millis());
}

fn write_evicted(context: &Context, totals: &Totals, page: &mut Page) {
    let eviction = &context.server.eviction;
    page.field("evicted_keys", totals.evicted);
    page.field("evicted_clients", eviction.clients.evicted());
    page.field("evicted_scripts", context.server.scripting.scripts.lock().evicted);
    let exceeded = eviction.exceeded();
    page.field("total_eviction_exceeded_time", exceeded.total.as_millis());
    page.field("current_eviction_exceeded_time", exceeded.current.as_millis());
}

fn write_errors(server: &Server, totals: &Totals, page: &mut Page) {
    page.field("unexpected_error_replies", server.replication.counts.unexpected_errors.load(Ordering::Relaxed));
    page.field("total_error_replies", totals.errors);
    page.field("dump_payload_sanitizations", 0);
}

/// Workers other than the first correspond to the reference's I/O threads.
fn write_io(workers: &[Totals], totals: &Totals, page: &mut Page) {
    let others: Totals = workers.iter().skip(1).copied().sum();
    page.field("total_reads_processed", totals.reads);
    page.field("total_writes_processed", totals.writes);
    page.field("io_threaded_reads_processed", others.reads);
    page.field("io_threaded_writes_processed", others.writes);
    page.fields(
        ["io_threaded_freed_objects", "io_threaded_accept_processed", "io_threaded_poll_processed"]
            .map(|name| (name, 0)),
    );
    page.field("io_threaded_total_prefetch_batches", totals.prefetched_batches);
    page.field("io_threaded_total_prefetch_entries", totals.prefetched_keys);
    page.field("client_query_buffer_limit_disconnections", totals.input_limit_disconnections);
    page.field("client_output_buffer_limit_disconnections", totals.output_limit_disconnections);
    page.fields(["reply_buffer_shrinks", "reply_buffer_expands"].map(|name| (name, 0)));
}

fn write_loops(context: &Context, totals: &Totals, page: &mut Page) {
    let rates = context.server.rates.lock().now();
    let commands = context.server.stats.iter().flat_map(|stats| stats.commands.iter());
    let ticks = commands.map(|command| command.ticks.get()).sum();
    page.field("eventloop_cycles", totals.turns);
    page.field("eventloop_duration_sum", totals.busy_us);
    page.field("eventloop_duration_cmd_sum", ticks_to_us(ticks));
    page.field("instantaneous_eventloop_cycles_per_sec", rates.turns);
    page.field("instantaneous_eventloop_duration_usec", rates.turn_us);
}

/// Figures for developers.
pub fn write_debug(context: &Context, page: &mut Page) {
    let totals: Totals = context.server.totals().into_iter().sum();
    let stats = context.server.stats.iter();
    let us_max = stats.clone().map(|stats| stats.turn_us_max()).max().unwrap_or(0);
    let requests_max = stats.map(|stats| stats.turn_requests_max()).max().unwrap_or(0);
    page.section("Debug");
    page.field("eventloop_duration_aof_sum", 0);
    page.field("eventloop_duration_cron_sum", totals.timers_us);
    page.field("eventloop_duration_max", us_max);
    page.field("eventloop_cmd_per_cycle_max", requests_max);
    page.fields(["io_threaded_reads_pending", "io_threaded_writes_pending"].map(|name| (name, 0)));
}
