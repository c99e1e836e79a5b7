//! The section on dumps and the append-only file.

use super::Context;
use super::page::Page;
use kvick_core::admission::Reasons;
use kvick_durability::aof::{self, State};
use kvick_durability::persistence::load::Loading;
use kvick_durability::persistence::snapshots::Purpose;
use kvick_durability::persistence::status::Status;
use kvick_runtime::clock;
use std::sync::atomic::Ordering::Relaxed;

pub fn write(context: &Context, page: &mut Page) {
    let persistence = &context.server.persistence;
    let (status, now_s) = (persistence.status(), clock::unix_ms() / 1000);
    let aof = context.server.aof.status();
    let (is_loading, is_async_loading) =
        (context.server.admission.has(Reasons::LOADING), context.server.admission.has(Reasons::ASYNC_LOADING));
    page.section("Persistence");
    page.field("loading", u8::from(is_loading));
    page.field("async_loading", u8::from(is_async_loading));
    let running = status.active();
    let captured = running.map_or(0, |running| running.captured_bytes());
    let (saved, keys) = running.map_or((0, 0), |running| (running.progress.keys.load(Relaxed), running.keys));
    page.fields([("current_cow_peak", captured), ("current_cow_size", captured), ("current_cow_size_age", 0)]);
    let percent = if keys > 0 { 100.0 * saved as f64 / keys as f64 } else { 0.0 };
    page.field("current_fork_perc", format!("{percent:.2}"));
    page.fields([("current_save_keys_processed", saved), ("current_save_keys_total", keys)]);
    let changes: u64 = context.server.stats.iter().map(|stats| stats.dirty.get()).sum();
    page.field("rdb_changes_since_last_save", changes.saturating_sub(status.changes_saved));
    let save = status.running_for(Purpose::Save);
    page.field("rdb_bgsave_in_progress", u8::from(status.writes_dump()));
    page.field("rdb_last_save_time", status.last_save_s);
    page.field("rdb_last_bgsave_status", if status.last_ok { "ok" } else { "err" });
    page.field("rdb_last_bgsave_time_sec", status.last_duration_s);
    page.field("rdb_current_bgsave_time_sec", save.map_or(-1, |save| now_s - save.started_s));
    page.fields([("rdb_saves", status.saves), ("rdb_last_cow_size", status.last_captured_bytes)]);
    page.fields([
        ("rdb_last_load_keys_expired", persistence.loading.expired.load(Relaxed)),
        ("rdb_last_load_keys_loaded", persistence.loading.keys.load(Relaxed)),
    ]);
    write_aof(context, &status, now_s, page);
    page.fields(
        ["module_fork_in_progress", "module_fork_last_cow_size", "slot_migration_fork_in_progress"]
            .map(|name| (name, 0)),
    );
    if aof.state != State::Off {
        write_files(context, &aof, page);
    }
    if is_loading || is_async_loading {
        write_loading(&persistence.loading, now_s, page);
    }
}

/// The state of the append-only file and its rewrites.
fn write_aof(context: &Context, status: &Status, now_s: i64, page: &mut Page) {
    let aof = context.server.aof.status();
    let rewrite = status.running_for(Purpose::AofBase);
    let status_text = |ok: bool| if ok { "ok" } else { "err" };
    page.fields([
        ("aof_enabled", u8::from(aof.state != State::Off)),
        ("aof_rewrite_in_progress", u8::from(status.writes_base())),
        ("aof_rewrite_scheduled", u8::from(aof.scheduled)),
    ]);
    page.field("aof_last_rewrite_time_sec", aof.last_duration_s);
    page.field("aof_current_rewrite_time_sec", rewrite.map_or(-1, |rewrite| now_s - rewrite.started_s));
    page.field("aof_last_bgrewrite_status", status_text(aof.last_rewrite_ok));
    page.field("aof_rewrites", aof.rewrites);
    page.field("aof_rewrites_consecutive_failures", aof.failures);
    page.field("aof_last_write_status", status_text(aof.write_error.is_none() && !aof.sync_failed));
    page.field("aof_last_cow_size", status.last_rewrite_captured_bytes);
}

/// The size of the append-only file, and pending syncs.
fn write_files(context: &Context, status: &aof::Status, page: &mut Page) {
    let aof = &context.server.aof;
    page.fields([
        ("aof_current_size", aof.current_size.load(Relaxed)),
        ("aof_base_size", aof.base_size.load(Relaxed)),
        ("aof_pending_rewrite", u64::from(status.scheduled)),
        ("aof_buffer_length", aof.unwritten(&context.server.keyspace.log)),
        ("aof_pending_bio_fsync", u64::from(aof.sync_pending.load(Relaxed))),
        ("aof_delayed_fsync", aof.delayed_syncs.load(Relaxed)),
    ]);
}

/// The progress of the load, and the estimated seconds left.
fn write_loading(loading: &Loading, now_s: i64, page: &mut Page) {
    let (total, loaded) = (loading.total_bytes.load(Relaxed), loading.loaded_bytes.load(Relaxed));
    let started_s = loading.started_s.load(Relaxed);
    let elapsed_s = (now_s - started_s).max(0) as u64;
    let eta_s = match elapsed_s {
        // Too early for an estimate.
        0 => 1,
        _ => elapsed_s.saturating_mul(total.saturating_sub(loaded)) / (loaded + 1),
    };
    page.field("loading_start_time", started_s);
    page.fields([
        ("loading_total_bytes", total),
        ("loading_rdb_used_mem", loading.used_memory.load(Relaxed)),
        ("loading_loaded_bytes", loaded),
    ]);
    page.field("loading_loaded_perc", format!("{:.2}", 100.0 * loaded as f64 / total.max(1) as f64));
    page.field("loading_eta_seconds", eta_s);
}
