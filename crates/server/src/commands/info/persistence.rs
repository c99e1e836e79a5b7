//! The section on dumps and the append-only file.

use super::Context;
use super::page::Page;
use crate::server::Server;
use kvick_core::admission::Reasons;
use kvick_durability::aof::{self, State};
use kvick_durability::persistence::snapshots::Purpose;
use kvick_durability::persistence::status::Status;
use kvick_metrics::{Value, fields};
use kvick_runtime::clock;
use std::sync::atomic::Ordering::Relaxed;

/// The state of dumps, the append-only file and loading at one moment.
pub struct Facts {
    server: &'static Server,
    now_s: i64,
    status: Status,
    aof: aof::Status,
    is_loading: bool,
    is_async_loading: bool,
    /// Keys that the running snapshot has saved, and all of its keys.
    saved: u64,
    keys: u64,
    /// Bytes that the running snapshot has captured.
    captured: u64,
}

fields! {
    /// All fields of the section.
    pub static FIELDS: Facts;
    loading: gauge redis_loading_dump_file "1 while data is loaded and commands are refused."
        = |facts| facts.is_loading;
    async_loading: gauge redis_async_loading "1 while data is loaded and the previous data is served."
        = |facts| facts.is_async_loading;
    current_cow_peak: info = |facts| facts.captured;
    current_cow_size: gauge kvick_snapshot_captured_bytes
        "Bytes of old values that the running snapshot has captured." = |facts| facts.captured;
    current_cow_size_age: info = |_facts| 0u64;
    current_fork_perc: info = |facts| Value::Hundredths(facts.percent_saved());
    current_save_keys_processed: gauge kvick_snapshot_keys_processed "Keys that the running snapshot has saved."
        = |facts| facts.saved;
    current_save_keys_total: gauge kvick_snapshot_keys "Keys of the running snapshot; 0 if none runs."
        = |facts| facts.keys;
    rdb_changes_since_last_save: gauge redis_rdb_changes_since_last_save "Changes since the last dump."
        = |facts| facts.changes();
    rdb_bgsave_in_progress: gauge redis_rdb_bgsave_in_progress "1 while a dump is written."
        = |facts| facts.status.writes_dump();
    rdb_last_save_time: gauge redis_rdb_last_save_timestamp_seconds "Unix time of the last dump."
        = |facts| facts.status.last_save_s;
    rdb_last_bgsave_status: gauge redis_rdb_last_bgsave_status "1 if the last dump succeeded."
        = |facts| Value::Status(facts.status.last_ok);
    rdb_last_bgsave_time_sec: gauge redis_rdb_last_bgsave_duration_sec "Seconds that the last dump took; -1 if none."
        = |facts| facts.status.last_duration_s;
    rdb_current_bgsave_time_sec: gauge redis_rdb_current_bgsave_duration_sec
        "Seconds since the running dump began; -1 if none runs." = |facts| facts.seconds_of(Purpose::Save);
    rdb_saves: gauge redis_rdb_saves_total "Dumps since the start." = |facts| facts.status.saves;
    rdb_last_cow_size: gauge redis_rdb_last_cow_size_bytes "Bytes of old values that the last dump captured."
        = |facts| facts.status.last_captured_bytes;
    rdb_last_load_keys_expired: gauge redis_rdb_last_load_expired_keys "Expired keys that the last load skipped."
        = |facts| facts.server.persistence.loading.expired.load(Relaxed);
    rdb_last_load_keys_loaded: gauge redis_rdb_last_load_loaded_keys "Keys that the last load added."
        = |facts| facts.server.persistence.loading.keys.load(Relaxed);
    aof_enabled: gauge redis_aof_enabled "1 if changes are written to the append-only file." = |facts| facts.has_aof();
    aof_rewrite_in_progress: gauge redis_aof_rewrite_in_progress "1 while the append-only file is rewritten."
        = |facts| facts.status.writes_base();
    aof_rewrite_scheduled: gauge redis_aof_rewrite_scheduled "1 if a rewrite waits for a running snapshot."
        = |facts| facts.aof.scheduled;
    aof_last_rewrite_time_sec: gauge redis_aof_last_rewrite_duration_sec
        "Seconds that the last rewrite took; -1 if none." = |facts| facts.aof.last_duration_s;
    aof_current_rewrite_time_sec: gauge redis_aof_current_rewrite_duration_sec
        "Seconds since the running rewrite began; -1 if none runs." = |facts| facts.seconds_of(Purpose::AofBase);
    aof_last_bgrewrite_status: gauge redis_aof_last_bgrewrite_status "1 if the last rewrite succeeded."
        = |facts| Value::Status(facts.aof.last_rewrite_ok);
    aof_rewrites: counter kvick_aof_rewrites_total "Rewrites of the append-only file." = |facts| facts.aof.rewrites;
    aof_rewrites_consecutive_failures: gauge kvick_aof_rewrites_consecutive_failures
        "Failed rewrites since the last success." = |facts| facts.aof.failures;
    aof_last_write_status: gauge redis_aof_last_write_status "1 if the last write to the append-only file succeeded."
        = |facts| Value::Status(facts.aof.write_error.is_none() && !facts.aof.sync_failed);
    aof_last_cow_size: gauge redis_aof_last_cow_size_bytes "Bytes of old values that the last rewrite captured."
        = |facts| facts.status.last_rewrite_captured_bytes;
    module_fork_in_progress: gauge redis_module_fork_in_progress "Always 0: there are no modules." = |_facts| 0u64;
    module_fork_last_cow_size: gauge redis_module_fork_last_cow_size "Always 0: there are no modules."
        = |_facts| 0u64;
    slot_migration_fork_in_progress: info = |_facts| 0u64;
    aof_current_size: gauge redis_aof_current_size_bytes "Bytes of the append-only files."
        = |facts| facts.has_aof().then(|| facts.server.aof.current_size.load(Relaxed));
    aof_base_size: gauge redis_aof_base_size_bytes "Bytes of the append-only files after the last rewrite."
        = |facts| facts.has_aof().then(|| facts.server.aof.base_size.load(Relaxed));
    aof_pending_rewrite: gauge redis_aof_pending_rewrite "1 if a rewrite waits for a running snapshot."
        = |facts| facts.has_aof().then_some(facts.aof.scheduled);
    aof_buffer_length: gauge redis_aof_buffer_length "Bytes of the write log that are not in the append-only file yet."
        = |facts| facts.has_aof().then(|| facts.server.aof.unwritten(&facts.server.keyspace.log));
    aof_pending_bio_fsync: gauge redis_aof_pending_bio_fsync "1 while written changes wait for a sync."
        = |facts| facts.has_aof().then(|| facts.server.aof.sync_pending.load(Relaxed));
    aof_delayed_fsync: gauge redis_aof_delayed_fsync "Syncs that took too long."
        = |facts| facts.has_aof().then(|| facts.server.aof.delayed_syncs.load(Relaxed));
    loading_start_time: info = |facts| facts.loads().then(|| facts.load_started_s());
    loading_total_bytes: gauge kvick_loading_bytes "Bytes to load; absent unless data is loaded."
        = |facts| facts.loads().then(|| facts.server.persistence.loading.total_bytes.load(Relaxed));
    loading_rdb_used_mem: info
        = |facts| facts.loads().then(|| facts.server.persistence.loading.used_memory.load(Relaxed));
    loading_loaded_bytes: gauge kvick_loading_loaded_bytes "Bytes loaded; absent unless data is loaded."
        = |facts| facts.loads().then(|| facts.server.persistence.loading.loaded_bytes.load(Relaxed));
    loading_loaded_perc: info = |facts| facts.percent_loaded();
    loading_eta_seconds: gauge kvick_loading_eta_seconds "Estimated time until data is loaded; absent otherwise."
        = |facts| facts.loads().then(|| facts.load_eta_s());
}

impl Facts {
    /// Collects them.
    pub fn of(context: &Context) -> Facts {
        let server = context.server;
        let status = server.persistence.status();
        let running = status.active();
        let captured = running.map_or(0, |running| running.captured_bytes());
        let (saved, keys) = running.map_or((0, 0), |running| (running.progress.keys.load(Relaxed), running.keys));
        Facts {
            server,
            now_s: clock::unix_ms() / 1000,
            aof: server.aof.status(),
            is_loading: server.admission.has(Reasons::LOADING),
            is_async_loading: server.admission.has(Reasons::ASYNC_LOADING),
            saved,
            keys,
            captured,
            status,
        }
    }

    fn percent_saved(&self) -> f64 {
        if self.keys > 0 { 100.0 * self.saved as f64 / self.keys as f64 } else { 0.0 }
    }

    fn changes(&self) -> u64 {
        let changes: u64 = self.server.stats.iter().map(|stats| stats.dirty.get()).sum();
        changes.saturating_sub(self.status.changes_saved)
    }

    /// Seconds since a snapshot for this purpose began; -1 if none runs.
    fn seconds_of(&self, purpose: Purpose) -> i64 {
        self.status.running_for(purpose).map_or(-1, |running| self.now_s - running.started_s)
    }

    fn has_aof(&self) -> bool {
        self.aof.state != State::Off
    }

    fn loads(&self) -> bool {
        self.is_loading || self.is_async_loading
    }

    fn load_started_s(&self) -> i64 {
        self.server.persistence.loading.started_s.load(Relaxed)
    }

    /// Bytes to load, and those loaded.
    fn load_progress(&self) -> (u64, u64) {
        let loading = &self.server.persistence.loading;
        (loading.total_bytes.load(Relaxed), loading.loaded_bytes.load(Relaxed))
    }

    fn percent_loaded(&self) -> Value {
        let (total, loaded) = self.load_progress();
        match self.loads() {
            true => Value::Hundredths(100.0 * loaded as f64 / total.max(1) as f64),
            false => Value::Absent,
        }
    }

    fn load_eta_s(&self) -> u64 {
        let (total, loaded) = self.load_progress();
        match (self.now_s - self.load_started_s()).max(0) as u64 {
            // Too early for an estimate.
            0 => 1,
            elapsed_s => elapsed_s.saturating_mul(total.saturating_sub(loaded)) / (loaded + 1),
        }
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    page.section("Persistence");
    page.write(FIELDS, &Facts::of(context));
}
