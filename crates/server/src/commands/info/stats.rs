//! The sections on statistics.

use super::Context;
use super::page::Page;
use crate::server::Server;
use kvick_acl::check::Reason;
use kvick_acl::log::Cause;
use kvick_core::eviction::ExceededTime;
use kvick_core::pubsub::Kind;
use kvick_core::rates::PerSecond;
use kvick_core::stats::Totals;
use kvick_metrics::{Value, fields};
use kvick_runtime::clock::ticks_to_us;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BYTES_PER_KB: f64 = 1024.0;

/// Counters and rates at one moment.
pub struct Facts {
    server: &'static Server,
    /// All workers, and all but the first, which correspond to the reference's I/O threads.
    totals: Totals,
    others: Totals,
    rates: PerSecond,
    /// Ticks spent in commands.
    ticks: u64,
    exceeded: ExceededTime,
    /// Debugger sessions, and the microseconds of the last fork.
    sessions: u64,
    fork_us: u64,
    /// Time of the current pass of active defragmentation, and of all.
    defrag: (Duration, Duration),
}

fields! {
    /// All fields of the section.
    pub static FIELDS: Facts;
    total_connections_received: counter redis_connections_received_total "Accepted connections."
        = |facts| facts.totals.connections;
    total_commands_processed: counter redis_commands_processed_total "Executed commands."
        = |facts| facts.totals.requests;
    forwarded_requests: counter kvick_forwarded_requests_total "Requests that other nodes executed for clients."
        = |facts| facts.totals.forwarded;
    forwarded_again: counter kvick_forwarded_again_total "How often such a request was sent again."
        = |facts| facts.totals.forwarded_again;
    instantaneous_ops_per_sec: info = |facts| facts.rates.requests;
    total_net_input_bytes: counter redis_net_input_bytes_total "Bytes received from clients."
        = |facts| facts.totals.bytes_in;
    total_net_output_bytes: counter redis_net_output_bytes_total "Bytes sent to clients and in slot migrations."
        = |facts| facts.totals.bytes_out + count(&facts.server.replication.counts.slot_bytes_out);
    total_net_repl_input_bytes: counter redis_net_repl_input_bytes_total "Bytes received from the primary."
        = |facts| count(&facts.server.replication.counts.bytes_in);
    total_net_repl_output_bytes: counter redis_net_repl_output_bytes_total "Bytes sent to replicas."
        = |facts| count(&facts.server.replication.counts.bytes_out);
    total_net_cluster_slot_import_bytes: counter kvick_slot_import_bytes_total "Bytes received in slot imports."
        = |facts| count(&facts.server.replication.counts.slot_bytes_in);
    total_net_cluster_slot_export_bytes: counter kvick_slot_export_bytes_total "Bytes sent in slot exports."
        = |facts| count(&facts.server.replication.counts.slot_bytes_out);
    instantaneous_input_kbps: info = |facts| kilobytes(facts.rates.bytes_in);
    instantaneous_output_kbps: info = |facts| kilobytes(facts.rates.bytes_out);
    instantaneous_input_repl_kbps: info = |_facts| Value::Hundredths(0.0);
    instantaneous_output_repl_kbps: info = |_facts| Value::Hundredths(0.0);
    rejected_connections: counter redis_rejected_connections_total
        "Connections refused by maxclients or protected mode."
        = |facts| count(&facts.server.rejected_connections);
    sync_full: gauge redis_replica_resyncs_full "Full syncs of replicas."
        = |facts| count(&facts.server.replication.counts.full);
    sync_partial_ok: gauge redis_replica_partial_resync_accepted "Partial syncs of replicas."
        = |facts| count(&facts.server.replication.counts.partial);
    sync_partial_err: gauge redis_replica_partial_resync_denied "Partial syncs that were not possible."
        = |facts| count(&facts.server.replication.counts.partial_refused);
    expired_keys: counter redis_expired_keys_total "Keys deleted because they expired." = |facts| facts.totals.expired;
    expired_fields: counter kvick_expired_fields_total "Hash fields deleted because they expired."
        = |facts| facts.totals.expired_fields;
    expired_stale_perc: gauge redis_expired_stale_percentage "Always 0: expired keys are not estimated."
        = |_facts| Value::Hundredths(0.0);
    expired_keys_with_volatile_items_stale_perc: info = |_facts| Value::Hundredths(0.0);
    expired_time_cap_reached_count: counter redis_expired_time_cap_reached_total
        "Passes of active expiry that ran out of time." = |facts| facts.totals.expire_cap_reached;
    expire_cycle_cpu_milliseconds: counter redis_expire_cycle_cpu_time_ms_total
        "Time spent looking for expired keys, in milliseconds." = |facts| facts.totals.expire_us / 1000;
    evicted_keys: counter redis_evicted_keys_total "Keys deleted to free memory." = |facts| facts.totals.evicted;
    evicted_clients: counter redis_evicted_clients_total "Clients closed to free memory."
        = |facts| facts.server.eviction.clients.evicted();
    evicted_scripts: counter redis_evicted_scripts_total "Cached scripts that were evicted."
        = |facts| facts.server.scripting.scripts.lock().evicted;
    total_eviction_exceeded_time: counter redis_eviction_exceeded_time_ms_total
        "Time above maxmemory, in milliseconds." = |facts| facts.exceeded.total.as_millis() as u64;
    current_eviction_exceeded_time: gauge redis_current_eviction_exceeded_time_ms
        "Time above maxmemory until now, in milliseconds; 0 if below."
        = |facts| facts.exceeded.current.as_millis() as u64;
    keyspace_hits: counter redis_keyspace_hits_total "Lookups that found a key." = |facts| facts.totals.hits;
    keyspace_misses: counter redis_keyspace_misses_total "Lookups that found no key." = |facts| facts.totals.misses;
    pubsub_channels: gauge redis_pubsub_channels "Channels with subscribers."
        = |facts| facts.server.pubsub.directory().size(Kind::Channel);
    pubsub_patterns: gauge redis_pubsub_patterns "Patterns with subscribers."
        = |facts| facts.server.pubsub.directory().size(Kind::Pattern);
    pubsubshard_channels: gauge redis_pubsubshard_channels "Shard channels with subscribers."
        = |facts| facts.server.pubsub.directory().size(Kind::Shard);
    latest_fork_usec: gauge redis_latest_fork_seconds "Time of the last fork, for a script debugger."
        = |facts| Value::Microseconds(facts.fork_us);
    // Snapshots count as forks, and so do debugger sessions.
    total_forks: counter kvick_snapshots_total "Snapshots and forks for script debuggers."
        = |facts| facts.server.persistence.status().snapshots + facts.sessions;
    migrate_cached_sockets: gauge redis_migrate_cached_sockets_total "Connections kept for MIGRATE."
        = |facts| facts.server.migration.sockets.len();
    slave_expires_tracked_keys: gauge redis_slave_expires_tracked_keys
        "Keys with an expiry that clients wrote on this replica."
        = |facts| facts.server.replication.writable_replica_keys.count();
    active_defrag_hits: gauge redis_defrag_hits "Allocations that defragmentation moved."
        = |facts| facts.totals.defrag_moved;
    active_defrag_misses: gauge redis_defrag_misses "Allocations that defragmentation examined and did not move."
        = |facts| facts.totals.defrag_kept;
    active_defrag_key_hits: gauge redis_defrag_key_hits "Keys of which defragmentation moved an allocation."
        = |facts| facts.totals.defrag_keys_moved;
    active_defrag_key_misses: gauge redis_defrag_key_misses "Keys of which defragmentation moved no allocation."
        = |facts| facts.totals.defrag_keys_kept;
    total_active_defrag_time: info = |facts| facts.defrag.1.as_millis() as u64;
    current_active_defrag_time: info = |facts| facts.defrag.0.as_millis() as u64;
    tracking_total_keys: gauge redis_tracking_total_keys "Keys that clients cache."
        = |facts| facts.server.keyspace.tracking.keys();
    tracking_total_items: gauge redis_tracking_total_items "Pairs of a client and a key that it caches."
        = |facts| facts.server.keyspace.tracking.items();
    tracking_total_prefixes: gauge redis_tracking_total_prefixes "Prefixes of keys that clients cache."
        = |facts| facts.server.tracking.prefixes();
    unexpected_error_replies: counter redis_unexpected_error_replies "Error replies between primary and replica."
        = |facts| count(&facts.server.replication.counts.unexpected_errors);
    total_error_replies: counter redis_total_error_replies "Error replies." = |facts| facts.totals.errors;
    dump_payload_sanitizations: counter redis_dump_payload_sanitizations "Always 0: all payloads are validated."
        = |_facts| 0u64;
    total_reads_processed: counter redis_total_reads_processed "Reads from sockets." = |facts| facts.totals.reads;
    total_writes_processed: counter redis_total_writes_processed "Writes to sockets." = |facts| facts.totals.writes;
    io_threaded_reads_processed: counter redis_io_threaded_reads_processed "Reads by workers other than the first."
        = |facts| facts.others.reads;
    io_threaded_writes_processed: counter redis_io_threaded_writes_processed "Writes by workers other than the first."
        = |facts| facts.others.writes;
    io_threaded_freed_objects: info = |_facts| 0u64;
    io_threaded_accept_processed: info = |_facts| 0u64;
    io_threaded_poll_processed: info = |_facts| 0u64;
    io_threaded_total_prefetch_batches: counter kvick_prefetched_batches_total "Batches whose keys were prefetched."
        = |facts| facts.totals.prefetched_batches;
    io_threaded_total_prefetch_entries: counter kvick_prefetched_keys_total "Keys that were prefetched."
        = |facts| facts.totals.prefetched_keys;
    client_query_buffer_limit_disconnections: counter redis_client_query_buffer_limit_disconnections_total
        "Clients closed because of the limit of their query buffer." = |facts| facts.totals.input_limit_disconnections;
    client_output_buffer_limit_disconnections: counter redis_client_output_buffer_limit_disconnections_total
        "Clients closed because of a limit of their output." = |facts| facts.totals.output_limit_disconnections;
    reply_buffer_shrinks: counter redis_reply_buffer_shrinks_total "Always 0: clients have no reply buffers."
        = |_facts| 0u64;
    reply_buffer_expands: counter redis_reply_buffer_expands_total "Always 0: clients have no reply buffers."
        = |_facts| 0u64;
    eventloop_cycles: counter redis_eventloop_cycles_total "Turns of event loops." = |facts| facts.totals.turns;
    eventloop_duration_sum: counter redis_eventloop_duration_sum_usec_total
        "Time of turns of event loops without waiting, in microseconds." = |facts| facts.totals.busy_us;
    eventloop_duration_cmd_sum: counter redis_eventloop_duration_cmd_sum_usec_total
        "Time spent in commands, in microseconds." = |facts| ticks_to_us(facts.ticks);
    instantaneous_eventloop_cycles_per_sec: gauge redis_instantaneous_eventloop_cycles_per_sec
        "Turns of event loops per second." = |facts| facts.rates.turns;
    instantaneous_eventloop_duration_usec: gauge redis_instantaneous_eventloop_duration_usec
        "Mean time of a turn of an event loop, in microseconds." = |facts| facts.rates.turn_us;
    acl_access_denied_auth: counter redis_acl_access_denied_auth_total "Failed authentications."
        = |facts| facts.server.acl.log.count(Cause::Auth);
    acl_access_denied_cmd: counter redis_acl_access_denied_cmd_total "Commands that a user may not run."
        = |facts| facts.server.acl.log.count(Cause::Denied(Reason::Command));
    acl_access_denied_key: counter redis_acl_access_denied_key_total "Commands with keys that a user may not access."
        = |facts| facts.server.acl.log.count(Cause::Denied(Reason::Key));
    acl_access_denied_channel: counter redis_acl_access_denied_channel_total
        "Commands with channels that a user may not access."
        = |facts| facts.server.acl.log.count(Cause::Denied(Reason::Channel));
    acl_access_denied_tls_cert: counter kvick_acl_access_denied_tls_cert_total
        "Connections whose certificate names a user that may not log in."
        = |facts| facts.server.acl.log.count(Cause::TlsCertificate);
    acl_access_denied_db: counter kvick_acl_access_denied_db_total
        "Commands with a database that a user may not access."
        = |facts| facts.server.acl.log.count(Cause::Denied(Reason::Database));
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn kilobytes(bytes: u64) -> Value {
    Value::Hundredths(bytes as f64 / BYTES_PER_KB)
}

impl Facts {
    /// Collects them.
    pub fn of(context: &Context) -> Facts {
        let server = context.server;
        let workers = server.totals();
        server.slot_migration.count_imported(server);
        let (sessions, fork_us) = server.scripting.sessions.totals();
        let commands = server.stats.iter().flat_map(|stats| stats.commands.iter());
        Facts {
            server,
            totals: workers.iter().copied().sum(),
            others: workers.iter().skip(1).copied().sum(),
            rates: server.rates.lock().now(),
            ticks: commands.map(|command| command.ticks.get()).sum(),
            exceeded: server.eviction.exceeded(),
            sessions,
            fork_us,
            defrag: server.defrag.times(),
        }
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    page.section("Stats");
    page.write(FIELDS, &Facts::of(context));
}

/// The longest turn of a worker, and the total of its timers.
pub struct LoopFacts {
    turn_us_max: u64,
    turn_requests_max: u64,
    timers_us: u64,
}

fields! {
    /// All fields of the section for developers.
    pub static DEBUG: LoopFacts;
    eventloop_duration_aof_sum: info = |_facts| 0u64;
    eventloop_duration_cron_sum: info = |facts| facts.timers_us;
    _: counter kvick_timers_seconds_total "Time of periodic work of workers."
        = |facts| Value::Microseconds(facts.timers_us);
    eventloop_duration_max: info = |facts| facts.turn_us_max;
    _: gauge kvick_worker_turn_seconds_max "Longest turn of an event loop since CONFIG RESETSTAT."
        = |facts| Value::Microseconds(facts.turn_us_max);
    eventloop_cmd_per_cycle_max: gauge kvick_worker_turn_commands_max "Most commands in a turn since CONFIG RESETSTAT."
        = |facts| facts.turn_requests_max;
    io_threaded_reads_pending: info = |_facts| 0u64;
    io_threaded_writes_pending: info = |_facts| 0u64;
}

impl LoopFacts {
    /// Collects them.
    pub fn of(context: &Context) -> LoopFacts {
        let totals: Totals = context.server.totals().into_iter().sum();
        let stats = || context.server.stats.iter();
        LoopFacts {
            turn_us_max: stats().map(|stats| stats.turn_us_max()).max().unwrap_or(0),
            turn_requests_max: stats().map(|stats| stats.turn_requests_max()).max().unwrap_or(0),
            timers_us: totals.timers_us,
        }
    }
}

/// Figures for developers.
pub fn write_debug(context: &Context, page: &mut Page) {
    page.section("Debug");
    page.write(DEBUG, &LoopFacts::of(context));
}
