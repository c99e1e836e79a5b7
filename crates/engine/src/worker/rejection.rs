//! Who may run what now: loading, saving, replication and the append-only file may forbid commands. The admission word
//! says whether any of these checks is needed.

use crate::services::Services;
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use kvick_commands::table::CommandInfo;
use kvick_config::Refusal;
use kvick_config::tables::persistence::{LOADING_PROCESS_EVENTS_INTERVAL_BYTES, SAVE, STOP_WRITES_ON_BGSAVE_ERROR};
use kvick_config::tables::process::EXTENDED_REDIS_COMPATIBILITY;
use kvick_config::tables::replication::{REPLICA_READ_ONLY, REPLICA_SERVE_STALE_DATA};
use kvick_core::admission::Reasons;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_runtime::clock;
use std::sync::atomic::Ordering;

/// Milliseconds for which commands wait for the data set before LOADING is answered.
const BRIEF_MS: i64 = 100;

/// Whether a client is to be sent to the primary with a command instead, with `flags` as below: it follows redirections
/// (CLIENT CAPA REDIRECT), and has not said that it takes what a replica has.
pub fn redirects(server: &Services, client: &ClientInfo, flags: Flags) -> bool {
    let is = client.flags();
    server.admission.has(Reasons::REPLICA)
        && is.contains(ClientFlags::CAPA_REDIRECT)
        && (flags.contains(Flags::WRITE) || (flags.contains(Flags::READONLY) && !is.contains(ClientFlags::READONLY)))
}

/// Where it is sent.
pub fn redirection(server: &Services, client: &ClientInfo, flags: Flags) -> Option<Error> {
    let primary = redirects(server, client, flags).then(|| server.replication.upstream.target())??;
    Some(Error::new(format!("REDIRECT {}:{}", primary.host, primary.port)))
}

/// What commands are told that have to wait until the data set is there.
pub fn loading(server: &Services) -> Error {
    Error::new(format!("Reasons::LOADING {} is loading the dataset in memory", name(server)))
}

/// Whether who is told this does better to wait for a moment: a data set that is small is there by then, unless a
/// script that takes long is part of it.
pub fn is_soon_over(server: &Services, rejection: &Error) -> bool {
    let (admission, loading) = (&server.admission, &server.persistence.loading);
    let since_ms = admission.loading_since_ms();
    rejection.0.starts_with("Reasons::LOADING ")
        && admission.has(Reasons::LOADING)
        && (since_ms..since_ms + BRIEF_MS).contains(&clock::unix_ms())
        && loading.loaded_bytes.load(Ordering::Relaxed) < server.config.read(LOADING_PROCESS_EVENTS_INTERVAL_BYTES)
        && !server.scripting.running.is_shown()
}

/// Why a command may not run, with `flags` its own or those of all that it would execute.
pub fn rejection(server: &Services, command: &CommandInfo, flags: Flags) -> Option<Error> {
    let admission = &server.admission;
    if admission.has(Reasons::UNSAVED)
        && (flags.contains(Flags::WRITE) || command.spec.flags.contains(Flags::HEALTH_CHECK))
        && stops_writes(server)
    {
        let name = name(server);
        return Some(Error::new(format!(
            "MISCONF {name} is configured to save RDB snapshots, but it's currently unable to persist to disk. \
             Commands that may modify the data set are disabled, because this instance is configured to report errors \
             during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the {name} \
             logs for details about the RDB error."
        )));
    }
    if admission.has(Reasons::REPLICA)
        && let Some(error) = as_replica(server, flags)
    {
        return Some(error);
    }
    if admission.has(Reasons::FEW_REPLICAS) && flags.contains(Flags::WRITE) {
        return Some(Error::text("NOREPLICAS Not enough good replicas to write."));
    }
    if admission.has(Reasons::UNWRITTEN)
        && (flags.contains(Flags::WRITE) || command.spec.flags.contains(Flags::HEALTH_CHECK))
    {
        let error = server.aof.status().write_error.unwrap_or(libc::EIO);
        let reason = Refusal::from(std::io::Error::from_raw_os_error(error));
        return Some(Error::new(format!("MISCONF Errors writing to the AOF file: {reason}")));
    }
    if admission.has(Reasons::LOADING) && !flags.contains(Flags::LOADING) {
        return Some(loading(server));
    }
    if admission.has(Reasons::LOADING_BESIDE) && flags.contains(Flags::NO_ASYNC_LOADING) {
        return Some(loading(server));
    }
    None
}

/// Why a command may not run on a replica.
fn as_replica(server: &Services, flags: Flags) -> Option<Error> {
    let values = server.config.values();
    if flags.contains(Flags::WRITE) && values.read(REPLICA_READ_ONLY) {
        return Some(Error::text("READONLY You can't write against a read only replica."));
    }
    (is_stale(server) && !flags.contains(Flags::STALE)).then_some(STALE)
}

/// Whether what is written now may not outlast the server, as nothing can be saved or the append-only file not be
/// written, and that is a reason to refuse writes.
pub fn keeps_nothing(server: &Services) -> bool {
    let admission = &server.admission;
    admission.has(Reasons::UNWRITTEN) || (admission.has(Reasons::UNSAVED) && stops_writes(server))
}

/// Why a replica that has lost its primary refuses what it is asked.
pub const STALE: Error =
    Error::text("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");

/// Whether the server is a replica that has lost its primary and is not to show what it has.
pub fn is_stale(server: &Services) -> bool {
    server.admission.has(Reasons::REPLICA)
        && !server.replication.upstream.is_connected()
        && !server.config.read(REPLICA_SERVE_STALE_DATA)
}

/// Whether a failed save is a reason to refuse writes.
fn stops_writes(server: &Services) -> bool {
    let values = server.config.values();
    values.read(STOP_WRITES_ON_BGSAVE_ERROR) && !values.read(SAVE).points().is_empty()
}

fn name(server: &Services) -> &'static str {
    if server.config.read(EXTENDED_REDIS_COMPATIBILITY) { "Redis" } else { "Valkey" }
}
