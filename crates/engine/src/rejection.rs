//! Rejects commands depending on the server's state: loading, failed saves, replication and the append-only file. The
//! admission word tells whether any of these checks is needed.

use super::permission::{NOT_AUTHENTICATED, OUT_OF_MEMORY, not_while_subscribed, wrong_arity};
use crate::forwarding::Destination;
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

/// Milliseconds for which commands wait for the data set before they are answered with LOADING.
const BRIEF_MS: i64 = 100;

/// Whether a client is redirected to the primary for a command, with `flags` as below: it has announced CLIENT CAPA
/// REDIRECT and has not sent READONLY.
pub fn redirects(server: &Services, client: &ClientInfo, flags: Flags) -> bool {
    let is = client.flags();
    server.admission.has(Reasons::REPLICA)
        && server.routing.is_none()
        && is.contains(ClientFlags::CAPA_REDIRECT)
        && (flags.contains(Flags::WRITE) || (flags.contains(Flags::READONLY) && !is.contains(ClientFlags::READONLY)))
}

/// Why a request may not run.
pub enum Rejection {
    /// Its client must authenticate first.
    NotAuthenticated,
    /// It has the wrong number of arguments.
    WrongArity(&'static CommandInfo),
    /// The command is forbidden by `enable-debug-command` or a similar setting.
    Protected(Error),
    /// The command may not be queued in a transaction.
    InTransaction(&'static CommandInfo),
    /// The user has no permission for it.
    Denied(Error),
    /// The client is subscribed and its protocol has no pushes.
    Subscribed(&'static CommandInfo),
    /// Memory is above its limit.
    OutOfMemory,
    /// The request is for another node of the cluster, or for none.
    Routed(Error),
    /// Other nodes execute the request for the client.
    Elsewhere(Destination),
    /// Redirects the client to the primary, given by host and port.
    Redirect(String, u16),
    /// The last save failed.
    Unsaved,
    /// The server is a read-only replica.
    ReadOnly,
    /// The server is a replica that has lost its primary.
    Stale,
    /// Fewer good replicas are connected than writes require.
    FewReplicas,
    /// Writing the append-only file failed with this system error.
    Unwritten(i32),
    /// The data set is being loaded.
    Loading,
    /// A script exceeds `busy-reply-threshold`.
    Busy(Error),
    /// Monitors may not access keys.
    Monitor,
}

impl Rejection {
    /// The error reply.
    pub fn error(self, server: &Services) -> Error {
        match self {
            Rejection::NotAuthenticated => NOT_AUTHENTICATED,
            Rejection::WrongArity(command) => wrong_arity(command),
            Rejection::Protected(error)
            | Rejection::Denied(error)
            | Rejection::Routed(error)
            | Rejection::Busy(error) => error,
            Rejection::InTransaction(command) => {
                Error::new(format!("ERR Command '{}' not allowed inside a transaction", command.full_name))
            }
            Rejection::Subscribed(command) => not_while_subscribed(command),
            Rejection::OutOfMemory => OUT_OF_MEMORY,
            Rejection::Elsewhere(_) => Error::text("TRYAGAIN The slot of the keys is moving to another node"),
            Rejection::Redirect(host, port) => Error::new(format!("REDIRECT {host}:{port}")),
            Rejection::Unsaved => {
                let name = name(server);
                Error::new(format!(
                    "MISCONF {name} is configured to save RDB snapshots, but it's currently unable to persist to disk. \
                     Commands that may modify the data set are disabled, because this instance is configured to report \
                     errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check \
                     the {name} logs for details about the RDB error."
                ))
            }
            Rejection::ReadOnly => Error::text("READONLY You can't write against a read only replica."),
            Rejection::Stale => STALE,
            Rejection::FewReplicas => Error::text("NOREPLICAS Not enough good replicas to write."),
            Rejection::Unwritten(error) => {
                let reason = Refusal::from(std::io::Error::from_raw_os_error(error));
                Error::new(format!("MISCONF Errors writing to the AOF file: {reason}"))
            }
            Rejection::Loading => Error::new(format!("LOADING {} is loading the dataset in memory", name(server))),
            Rejection::Monitor => Error::text("ERR Replica can't interact with the keyspace"),
        }
    }

    /// Whether the client should wait for a moment instead: a small data set is loaded by then, unless it includes a
    /// long script.
    pub fn is_temporary(&self, server: &Services) -> bool {
        let (admission, loading) = (&server.admission, &server.persistence.loading);
        let since_ms = admission.loading_since_ms();
        matches!(self, Rejection::Loading)
            && admission.has(Reasons::LOADING)
            && (since_ms..since_ms + BRIEF_MS).contains(&clock::unix_ms())
            && loading.loaded_bytes.load(Ordering::Relaxed) < server.config.read(LOADING_PROCESS_EVENTS_INTERVAL_BYTES)
            && !server.scripting.running.is_visible()
    }
}

/// The redirection to the primary, if the client gets one for this command.
pub fn redirection(server: &Services, client: &ClientInfo, flags: Flags) -> Option<Rejection> {
    let primary = redirects(server, client, flags).then(|| server.replication.upstream.target())??;
    Some(Rejection::Redirect(primary.host.clone(), primary.port))
}

/// Why a command may not run. `flags` are its own flags or those of everything it would execute.
pub fn rejection(server: &Services, command: &CommandInfo, flags: Flags) -> Option<Rejection> {
    let admission = &server.admission;
    let needs_disk = flags.contains(Flags::WRITE) || command.spec.flags.contains(Flags::HEALTH_CHECK);
    if admission.has(Reasons::SAVE_FAILED) && needs_disk && stops_writes(server) {
        return Some(Rejection::Unsaved);
    }
    if admission.has(Reasons::REPLICA)
        && let Some(rejection) = as_replica(server, flags)
    {
        return Some(rejection);
    }
    if admission.has(Reasons::FEW_REPLICAS) && flags.contains(Flags::WRITE) {
        return Some(Rejection::FewReplicas);
    }
    if admission.has(Reasons::AOF_WRITE_FAILED) && needs_disk {
        return Some(Rejection::Unwritten(server.aof.status().write_error.unwrap_or(libc::EIO)));
    }
    let loads = admission.has(Reasons::LOADING) && !flags.contains(Flags::LOADING);
    let is_async_loading = admission.has(Reasons::ASYNC_LOADING) && flags.contains(Flags::NO_ASYNC_LOADING);
    (loads || is_async_loading).then_some(Rejection::Loading)
}

/// Why a command may not run on a replica.
fn as_replica(server: &Services, flags: Flags) -> Option<Rejection> {
    if flags.contains(Flags::WRITE) && server.config.read(REPLICA_READ_ONLY) {
        return Some(Rejection::ReadOnly);
    }
    (is_stale(server) && !flags.contains(Flags::STALE)).then_some(Rejection::Stale)
}

/// Whether writes are refused because they may be lost: saving or writing the append-only file fails.
pub fn persistence_fails(server: &Services) -> bool {
    let admission = &server.admission;
    admission.has(Reasons::AOF_WRITE_FAILED) || (admission.has(Reasons::SAVE_FAILED) && stops_writes(server))
}

/// The error of a replica that has lost its primary.
pub const STALE: Error =
    Error::text("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");

/// Whether the server is a replica that has lost its primary and may not serve stale data.
pub fn is_stale(server: &Services) -> bool {
    server.admission.has(Reasons::REPLICA)
        && !server.replication.upstream.is_connected()
        && !server.config.read(REPLICA_SERVE_STALE_DATA)
}

/// Whether writes are refused because the last save failed.
fn stops_writes(server: &Services) -> bool {
    let values = server.config.values();
    values.read(STOP_WRITES_ON_BGSAVE_ERROR) && !values.read(SAVE).points().is_empty()
}

fn name(server: &Services) -> &'static str {
    if server.config.read(EXTENDED_REDIS_COMPATIBILITY) { "Redis" } else { "Valkey" }
}
