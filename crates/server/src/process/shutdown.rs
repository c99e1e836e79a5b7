//! Whether a server that is asked to end may, and its end.
//!
//! A signal leaves a [`Request`] that the first worker acts upon at its next tick, so that SHUTDOWN ABORT can still
//! withdraw it. SHUTDOWN acts at once. There are no replicas to wait for, so a shutdown that may happen happens at once:
//! the data set is saved if that is wanted, the workers are told, and the rest is up to the main thread, which waits for
//! them. What was saved last is what the clients were told: no command runs between the save and the end.

use crate::aof::{self, State};
use crate::clients::ClientInfo;
use crate::config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use crate::config::tables::persistence::SAVE;
use crate::config::tables::process::{SHUTDOWN_ON_SIGINT, SHUTDOWN_ON_SIGTERM};
use crate::config::words::ShutdownFlags;
use crate::persistence::snapshots::Purpose;
use crate::persistence::{background, gate, save};
use crate::server::Server;
use crate::{logging, supervise};
use kvick_store::Locked;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// A signal's request that the server end.
#[derive(Default)]
pub struct Request {
    /// The signal's number; 0 for none.
    signal: AtomicI32,
    /// Whether it is being acted upon, which takes time if the data set is saved.
    acting: AtomicBool,
}

impl Request {
    /// A signal asks.
    pub fn make(&self, signal: i32) {
        self.signal.store(signal, Ordering::Relaxed);
    }

    /// Whether a signal asked and nobody has acted upon it.
    pub fn is_made(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// Whether the server is about to end, unless it cannot save the data set.
    pub fn is_acted_upon(&self) -> bool {
        self.acting.load(Ordering::Relaxed)
    }

    /// Takes the request back or up; the signal's number if there was one.
    pub fn take(&self) -> Option<i32> {
        Some(self.signal.swap(0, Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// The server goes on, for a reason that the log tells.
#[derive(Debug)]
pub struct Refused;

/// Acts upon a signal, if one asked. Called at every tick.
pub fn poll(server: &'static Server) {
    if server.is_ending() || !server.shutdown.is_made() {
        return;
    }
    let Some(signal) = server.shutdown.take() else { return };
    let flags = server.config.read(if signal == libc::SIGINT { SHUTDOWN_ON_SIGINT } else { SHUTDOWN_ON_SIGTERM });
    // The log has told why, if it is refused, and there is nobody else to tell.
    let _ = begin(server, &mut server.keyspace.lock_world(), flags, None);
}

/// Ends the server, unless that loses what the user wants saved. `client` is who asked by a command.
pub fn begin(
    server: &'static Server,
    world: &mut Locked,
    flags: ShutdownFlags,
    client: Option<&ClientInfo>,
) -> Result<(), Refused> {
    match client {
        None => logging::notice(format_args!("User requested shutdown...")),
        Some(client) => {
            let client = client.described(server.config.read(HIDE_USER_DATA_FROM_LOG));
            logging::notice(format_args!("User requested shutdown... (user request from '{client}')"));
        }
    }
    supervise::notify("STOPPING=1\n");
    server.shutdown.acting.store(true, Ordering::Relaxed);
    let saved = save_last(server, world, flags);
    server.shutdown.acting.store(false, Ordering::Relaxed);
    saved?;
    server.persistence.gate.set(gate::ENDING, true);
    server.end();
    Ok(())
}

/// Saves the data set for the last time, if that is wanted.
fn save_last(server: &'static Server, world: &mut Locked, flags: ShutdownFlags) -> Result<(), Refused> {
    if background::cancel(&server.persistence) {
        logging::warning(format_args!("There is a background save. Cancelling it!"));
    }
    // Half a data set must not take the place of the whole one, nor one that a script is changing.
    let is_incomplete = server.persistence.gate.has(gate::LOADING | gate::BUSY);
    if !is_incomplete {
        end_files(server, flags)?;
    }
    let by_default = !flags.contains(ShutdownFlags::NOSAVE) && !server.config.read(SAVE).points().is_empty();
    if is_incomplete || !(flags.contains(ShutdownFlags::SAVE) || by_default) {
        return Ok(());
    }
    logging::notice(format_args!("Saving the final RDB snapshot before exiting."));
    supervise::notify("STATUS=Saving the final RDB snapshot\n");
    if save::save(server, world, 0).is_ok() {
        return Ok(());
    }
    if flags.contains(ShutdownFlags::FORCE) {
        logging::warning(format_args!("Error trying to save the DB. Exit anyway."));
        return Ok(());
    }
    logging::warning(format_args!("Error trying to save the DB, can't exit."));
    supervise::notify("STATUS=Error trying to save the DB, can't exit.\n");
    logging::warning(format_args!("Errors trying to shut down the server. Check the logs for more information."));
    Err(Refused)
}

/// Has the append-only file hold all that was done.
fn end_files(server: &'static Server, flags: ShutdownFlags) -> Result<(), Refused> {
    let state = server.aof.status().state;
    if state == State::Off {
        return Ok(());
    }
    if server.persistence.status().running_for(Purpose::AofBase).is_some() {
        // Until the first base is there, the files hold nothing.
        if state == State::Waiting && !flags.contains(ShutdownFlags::FORCE) {
            logging::warning(format_args!("Writing initial AOF. Can't exit."));
            logging::warning(format_args!(
                "Errors trying to shut down the server. Check the logs for more information."
            ));
            return Err(Refused);
        }
        if state == State::Waiting {
            logging::warning(format_args!("Writing initial AOF. Exit anyway."));
        }
        logging::warning(format_args!("There is a child rewriting the AOF. Killing it!"));
        aof::rewrite::cancel(server);
    }
    logging::notice(format_args!("Calling fsync() on the AOF file."));
    // The log has told why, if it could not be written; nobody can do anything about it now.
    aof::flush(server);
    Ok(())
}

/// The last line of a log; Valkey's words, since tools wait for them.
pub fn say_goodbye() {
    logging::warning(format_args!("Valkey is now ready to exit, bye bye..."));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_acted_upon_or_withdrawn_once() {
        let request = Request::default();
        assert!(!request.is_made() && request.take().is_none());
        request.make(libc::SIGTERM);
        assert!(request.is_made());
        assert_eq!(request.take(), Some(libc::SIGTERM));
        assert!(!request.is_made() && request.take().is_none());
    }
}
