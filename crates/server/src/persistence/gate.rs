//! Why commands may not run now. The dispatcher looks at one byte that is zero nearly always; the reasons are looked at
//! one by one only when it is not.

use crate::config::tables::persistence::{SAVE, STOP_WRITES_ON_BGSAVE_ERROR};
use crate::config::tables::process::EXTENDED_REDIS_COMPATIBILITY;
use crate::server::Server;
use crate::table::Registered;
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use std::sync::atomic::{AtomicU8, Ordering};

/// The data set is not there yet.
pub const LOADING: u8 = 1;
/// The last save failed.
pub const UNSAVED: u8 = 2;
/// The data set was saved for the last time: what is changed now would be lost.
pub const ENDING: u8 = 4;
/// A script has been running for longer than `busy-reply-threshold`.
pub const BUSY: u8 = 8;

/// See the module's documentation. On a cache line of its own, so that nobody takes it from the workers.
#[derive(Default)]
#[repr(align(128))]
pub struct Gate(AtomicU8);

impl Gate {
    /// Whether nothing keeps commands from running.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether this reason holds.
    #[inline]
    pub fn has(&self, reason: u8) -> bool {
        self.0.load(Ordering::Acquire) & reason != 0
    }

    /// Says whether this reason holds.
    pub fn set(&self, reason: u8, holds: bool) {
        if holds {
            self.0.fetch_or(reason, Ordering::Release);
        } else {
            self.0.fetch_and(!reason, Ordering::Release);
        }
    }
}

/// Why a command may not run.
pub fn objection(server: &Server, command: &Registered) -> Option<Error> {
    let gate = &server.persistence.gate;
    let flags = &command.spec.flags;
    if gate.has(UNSAVED) && (flags.contains(Flags::WRITE) || command.full_name == "ping") && stops_writes(server) {
        let name = name(server);
        return Some(Error::new(format!(
            "MISCONF {name} is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands \
             that may modify the data set are disabled, because this instance is configured to report errors during \
             writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the {name} logs for \
             details about the RDB error."
        )));
    }
    if gate.has(LOADING) && !flags.contains(Flags::LOADING) {
        return Some(Error::new(format!("LOADING {} is loading the dataset in memory", name(server))));
    }
    None
}

/// Why a script that may write may not run.
pub fn objection_to_writing_script(server: &Server) -> Result<(), Error> {
    if server.persistence.gate.has(UNSAVED) && stops_writes(server) {
        return Err(Error::new(format!(
            "MISCONF {} is configured to save RDB snapshots, but it's currently unable to persist to disk. Writable \
             scripts are blocked. Use 'no-writes' flag for read only scripts.",
            name(server)
        )));
    }
    Ok(())
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
        let gate = Gate::default();
        assert!(gate.is_open());
        gate.set(LOADING, true);
        gate.set(UNSAVED, true);
        gate.set(LOADING, false);
        assert!(!gate.is_open() && gate.has(UNSAVED) && !gate.has(LOADING));
        gate.set(UNSAVED, false);
        assert!(gate.is_open());
    }
}
