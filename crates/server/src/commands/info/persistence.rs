//! The section on dumps and the append-only file, as a server shows it that has neither.

use super::Subject;
use super::page::Page;

pub fn write(subject: &Subject, page: &mut Page) {
    let server = subject.server;
    page.section("Persistence");
    page.fields(
        ["loading", "async_loading", "current_cow_peak", "current_cow_size", "current_cow_size_age"]
            .map(|name| (name, 0)),
    );
    page.field("current_fork_perc", "0.00");
    page.fields(["current_save_keys_processed", "current_save_keys_total"].map(|name| (name, 0)));
    let changes: u64 = server.stats.iter().map(|stats| stats.dirty.get()).sum();
    page.field("rdb_changes_since_last_save", changes);
    page.field("rdb_bgsave_in_progress", 0);
    page.field("rdb_last_save_time", server.started_ms / 1000);
    page.field("rdb_last_bgsave_status", "ok");
    page.fields(["rdb_last_bgsave_time_sec", "rdb_current_bgsave_time_sec"].map(|name| (name, -1)));
    page.fields(
        [
            "rdb_saves",
            "rdb_last_cow_size",
            "rdb_last_load_keys_expired",
            "rdb_last_load_keys_loaded",
            "aof_enabled",
            "aof_rewrite_in_progress",
            "aof_rewrite_scheduled",
        ]
        .map(|name| (name, 0)),
    );
    page.fields(["aof_last_rewrite_time_sec", "aof_current_rewrite_time_sec"].map(|name| (name, -1)));
    page.field("aof_last_bgrewrite_status", "ok");
    page.fields(["aof_rewrites", "aof_rewrites_consecutive_failures"].map(|name| (name, 0)));
    page.field("aof_last_write_status", "ok");
    page.fields(
        [
            "aof_last_cow_size",
            "module_fork_in_progress",
            "module_fork_last_cow_size",
            "slot_migration_fork_in_progress",
        ]
        .map(|name| (name, 0)),
    );
}
