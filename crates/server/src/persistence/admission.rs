//! Why commands may not run now. The dispatcher looks at one word; the reasons are looked at one by one only when one of
//! them holds.
//!
//! The word also has the rights epoch, a number that moves whenever the rights of users change. A client remembers the
//! word under which it may do everything (see [`Client::is_free`](crate::session::Client::is_free)), so for most requests
//! all of this costs one comparison.

use crate::clients::{ClientFlags, ClientInfo};
use crate::clock;
use crate::config::Refusal;
use crate::config::tables::persistence::{LOADING_PROCESS_EVENTS_INTERVAL_BYTES, SAVE, STOP_WRITES_ON_BGSAVE_ERROR};
use crate::config::tables::process::EXTENDED_REDIS_COMPATIBILITY;
use crate::config::tables::replication::{REPLICA_READ_ONLY, REPLICA_SERVE_STALE_DATA};
use crate::server::Server;
use kvick_commands::table::CommandInfo;
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The data set is not there yet.
pub const LOADING: u32 = 1;
/// The last save failed.
pub const UNSAVED: u32 = 2;
/// The data set was saved for the last time: what is changed now would be lost.
pub const ENDING: u32 = 4;
/// The server is a replica.
pub const REPLICA: u32 = 16;
/// Fewer replicas are well than writes are to have.
pub const FEW_REPLICAS: u32 = 32;
/// There is a limit of memory, and commands have to make room first.
pub const LIMITED: u32 = 8;
/// Somebody is shown every command: nothing is refused for it but what monitors themselves ask for.
pub const MONITORED: u32 = 128;

/// Milliseconds for which commands wait for the data set before they are told that it is not there.
const BRIEF_MS: i64 = 100;

/// The rights epoch stands above the reasons.
const EPOCH_SHIFT: u32 = 32;

/// The append-only file cannot be written.
pub const UNWRITTEN: u32 = 64;
/// A dump is being loaded beside the data, which are served meanwhile.
pub const LOADING_BESIDE: u32 = 512;
/// A script has been running for longer than `busy-reply-threshold`.
pub const BUSY: u32 = 256;

/// See the module's documentation. On a cache line of its own, so that nobody takes it from the workers.
#[derive(Default)]
#[repr(align(128))]
pub struct Admission {
    word: AtomicU64,
    /// When the data set was last found not to be there, Unix time in ms.
    loading_since_ms: AtomicI64,
}

impl Admission {
    /// Reasons and rights epoch in one.
    #[inline]
    pub fn word(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// The word when nothing keeps commands from running, in this rights epoch.
    pub fn open_word(rights: u32) -> u64 {
        u64::from(rights) << EPOCH_SHIFT
    }

    /// The rights epoch. What is read of users after it is at least as new.
    #[inline]
    pub fn rights(&self) -> u32 {
        (self.word.load(Ordering::Acquire) >> EPOCH_SHIFT) as u32
    }

    /// Begins another rights epoch.
    pub fn renew_rights(&self) {
        // Beyond the last number the first comes again.
        self.word.fetch_add(1 << EPOCH_SHIFT, Ordering::Release);
    }

    /// Whether this reason holds.
    #[inline]
    pub fn has(&self, reason: u32) -> bool {
        self.word.load(Ordering::Acquire) & u64::from(reason) != 0
    }

    /// Says whether this reason holds.
    pub fn set(&self, reason: u32, holds: bool) {
        if holds {
            if reason & LOADING != 0 {
                self.loading_since_ms.store(clock::unix_ms(), Ordering::Relaxed);
            }
            self.word.fetch_or(reason.into(), Ordering::Release);
        } else {
            self.word.fetch_and(!u64::from(reason), Ordering::Release);
        }
    }
}

/// Whether a client is to be sent to the primary with a command instead, with `flags` as below: it follows redirections
/// (CLIENT CAPA REDIRECT), and has not said that it takes what a replica has.
pub fn redirects(server: &Server, client: &ClientInfo, flags: Flags) -> bool {
    let is = client.flags();
    server.persistence.admission.has(REPLICA)
        && is.contains(ClientFlags::CAPA_REDIRECT)
        && (flags.contains(Flags::WRITE) || (flags.contains(Flags::READONLY) && !is.contains(ClientFlags::READONLY)))
}

/// Where it is sent.
pub fn redirection(server: &Server, client: &ClientInfo, flags: Flags) -> Option<Error> {
    let primary = redirects(server, client, flags).then(|| server.replication.upstream.target())??;
    Some(Error::new(format!("REDIRECT {}:{}", primary.host, primary.port)))
}

/// What commands are told that have to wait until the data set is there.
pub fn loading(server: &Server) -> Error {
    Error::new(format!("LOADING {} is loading the dataset in memory", name(server)))
}

/// Whether who is told this does better to wait for a moment: a data set that is small is there by then, unless a script that
/// takes long is part of it.
pub fn is_soon_over(server: &Server, rejection: &Error) -> bool {
    let (admission, loading) = (&server.persistence.admission, &server.persistence.loading);
    let since_ms = admission.loading_since_ms.load(Ordering::Relaxed);
    rejection.0.starts_with("LOADING ")
        && admission.has(LOADING)
        && (since_ms..since_ms + BRIEF_MS).contains(&clock::unix_ms())
        && loading.loaded_bytes.load(Ordering::Relaxed) < server.config.read(LOADING_PROCESS_EVENTS_INTERVAL_BYTES)
        && !server.scripting.running.is_shown()
}

/// Why a command may not run, with `flags` its own or those of all that it would execute.
pub fn rejection(server: &Server, command: &CommandInfo, flags: Flags) -> Option<Error> {
    let admission = &server.persistence.admission;
    if admission.has(UNSAVED) && (flags.contains(Flags::WRITE) || command.spec.flags.contains(Flags::HEALTH_CHECK)) && stops_writes(server) {
        let name = name(server);
        return Some(Error::new(format!(
            "MISCONF {name} is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands \
             that may modify the data set are disabled, because this instance is configured to report errors during \
             writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the {name} logs for \
             details about the RDB error."
        )));
    }
    if admission.has(REPLICA)
        && let Some(error) = as_replica(server, flags)
    {
        return Some(error);
    }
    if admission.has(FEW_REPLICAS) && flags.contains(Flags::WRITE) {
        return Some(Error::text("NOREPLICAS Not enough good replicas to write."));
    }
    if admission.has(UNWRITTEN) && (flags.contains(Flags::WRITE) || command.spec.flags.contains(Flags::HEALTH_CHECK)) {
        let error = server.aof.status().write_error.unwrap_or(libc::EIO);
        let reason = Refusal::from(std::io::Error::from_raw_os_error(error));
        return Some(Error::new(format!("MISCONF Errors writing to the AOF file: {reason}")));
    }
    if admission.has(LOADING) && !flags.contains(Flags::LOADING) {
        return Some(loading(server));
    }
    if admission.has(LOADING_BESIDE) && flags.contains(Flags::NO_ASYNC_LOADING) {
        return Some(loading(server));
    }
    None
}

/// Why a command may not run on a replica.
fn as_replica(server: &Server, flags: Flags) -> Option<Error> {
    let values = server.config.values();
    if flags.contains(Flags::WRITE) && values.read(REPLICA_READ_ONLY) {
        return Some(Error::text("READONLY You can't write against a read only replica."));
    }
    (is_stale(server) && !flags.contains(Flags::STALE)).then_some(STALE)
}

/// Whether what is written now may not outlast the server, as nothing can be saved or the append-only file not be written, and
/// that is a reason to refuse writes.
pub fn keeps_nothing(server: &Server) -> bool {
    let admission = &server.persistence.admission;
    admission.has(UNWRITTEN) || (admission.has(UNSAVED) && stops_writes(server))
}

/// Why a replica that has lost its primary refuses what it is asked.
pub const STALE: Error =
    Error::text("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");

/// Whether the server is a replica that has lost its primary and is not to show what it has.
pub fn is_stale(server: &Server) -> bool {
    server.persistence.admission.has(REPLICA)
        && !server.replication.upstream.is_connected()
        && !server.config.read(REPLICA_SERVE_STALE_DATA)
}

/// Whether a failed save is a reason to refuse writes.
fn stops_writes(server: &Server) -> bool {
    let values = server.config.values();
    values.read(STOP_WRITES_ON_BGSAVE_ERROR) && !values.read(SAVE).points().is_empty()
}

fn name(server: &Server) -> &'static str {
    if server.config.read(EXTENDED_REDIS_COMPATIBILITY) { "Redis" } else { "Valkey" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_open_when_no_reason_holds() {
        let admission = Admission::default();
        let is_open = || admission.word() == Admission::open_word(admission.rights());
        assert!(is_open());
        admission.set(LOADING, true);
        admission.set(UNSAVED, true);
        admission.set(LOADING, false);
        assert!(!is_open() && admission.has(UNSAVED) && !admission.has(LOADING));
        admission.set(UNSAVED, false);
        assert!(is_open());
    }

    #[test]
    fn rights_and_reasons_leave_each_other_alone() {
        let admission = Admission { word: AtomicU64::new(Admission::open_word(u32::MAX)), ..Admission::default() };
        admission.set(ENDING, true);
        admission.renew_rights();
        assert_eq!((admission.rights(), admission.has(ENDING), admission.has(LOADING)), (0, true, false));
        admission.renew_rights();
        admission.set(ENDING, false);
        assert_eq!(admission.word(), Admission::open_word(1));
    }
}
