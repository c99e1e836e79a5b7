//! DEBUG subcommands for tests of replication.

use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use std::sync::atomic::Ordering;

/// DEBUG CHANGE-REPL-ID: starts a new history.
pub fn change_id(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    kvick_runtime::logging::notice(format_args!("Changing replication IDs after receiving change-repl-id"));
    cx.server.replication.history.lock().change_id();
    cx.reply.ok();
    Ok(())
}

/// DEBUG DELAY-RDB-CLIENT-FREE-SECONDS seconds: how long the log is retained for a replica that has received its dump.
pub fn keep_log(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let seconds = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    cx.server.replication.orphan_ttl_ms.store(seconds.saturating_mul(1000), Ordering::Relaxed);
    cx.reply.ok();
    Ok(())
}

/// DEBUG PAUSE-AFTER-FORK 0|1: whether the process stops itself during synchronisations.
pub fn pause_after_fork(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.server.replication.pauses_after_fork.store(&args[2] != b"0", Ordering::Relaxed);
    cx.reply.ok();
    Ok(())
}

/// DEBUG REPLICATE command ...: sends replicas a request unchanged.
pub fn replicate(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let words: Vec<&[u8]> = (2..args.len()).filter_map(|index| args.get(index)).collect();
    cx.server.keyspace.log.append_replica_only(&words);
    cx.reply.ok();
    Ok(())
}

/// DEBUG SLOTMIGRATION PREVENT-PAUSE|PREVENT-FAILOVER 0|1: holds slot migrations at a step.
pub fn slot_migration(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let migration = &cx.server.slot_migration;
    let setting = match args[2].to_ascii_lowercase().as_slice() {
        b"prevent-pause" => &migration.prevent_pause,
        b"prevent-failover" => &migration.prevent_failover,
        _ => return Err(Error::SYNTAX),
    };
    setting.store(&args[3] != b"0", Ordering::Relaxed);
    cx.reply.ok();
    Ok(())
}
