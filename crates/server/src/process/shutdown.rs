//! Whether a server that is asked to end may, and its end.
//!
//! A signal leaves a [`Request`] that the first worker acts upon at its next tick, so that SHUTDOWN ABORT can still
//! withdraw it. SHUTDOWN acts at once. A server with replicas that have not got all holds writes and waits for them,
//! for as long as `shutdown-timeout` says; until then it can be withdrawn as well. Then the data set is saved if that
//! is wanted, the workers are told, and the rest is up to the main thread, which waits for them. What was saved last is
//! what the clients were told: no command runs between the save and the end.

use crate::server::Server;
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_config::tables::persistence::SAVE;
use kvick_config::tables::process::{SHUTDOWN_ON_SIGINT, SHUTDOWN_ON_SIGTERM, SHUTDOWN_TIMEOUT};
use kvick_config::words::ShutdownFlags;
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Served;
use kvick_core::message::Message;
use kvick_core::pause::Hold;
use kvick_durability::aof::{self, State};
use kvick_durability::persistence::snapshots::Purpose;
use kvick_durability::persistence::{background, save};
use kvick_net::supervise;
use kvick_replication::replicas::{Replica, Stage};
use kvick_resp::{Reply, Version};
use kvick_runtime::clock;
use kvick_runtime::logging;
use kvick_store::Locked;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// A signal's request that the server end.
#[derive(Default)]
pub struct Request {
    /// The signal's number; 0 for none.
    signal: AtomicI32,
    /// Whether it is being acted upon, which takes time if the data set is saved.
    acting: AtomicBool,
    /// A shutdown that waits for replicas.
    waiting: Mutex<Option<Waiting>>,
}

/// A shutdown that waits for replicas.
struct Waiting {
    flags: ShutdownFlags,
    /// Unix time in ms until which it does at most.
    until_ms: i64,
    /// Who asked for it.
    askers: Vec<Asker>,
}

/// A client that asked for a shutdown, and waits for it.
pub struct Asker {
    /// The client.
    pub client: Arc<ClientInfo>,
    /// The ticket of its wait.
    pub ticket: u64,
    /// The protocol of its reply.
    pub version: Version,
}

/// What clients are told whose shutdown is not to be.
pub const REFUSED: &str = "ERR Errors trying to SHUTDOWN. Check logs.";

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
        self.acting.load(Ordering::Relaxed) || self.is_waiting()
    }

    /// Milliseconds that a shutdown which waits for replicas does so at most.
    pub fn left_ms(&self) -> Option<i64> {
        self.waiting.lock().as_ref().map(|waiting| (waiting.until_ms - clock::unix_ms()).max(0))
    }

    /// Whether a shutdown waits for replicas.
    pub fn is_waiting(&self) -> bool {
        self.waiting.lock().is_some()
    }

    /// Takes the request back or up; the signal's number if there was one.
    pub fn take(&self) -> Option<i32> {
        Some(self.signal.swap(0, Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// The server goes on, for a reason that the log tells.
#[derive(Debug)]
pub struct Refused;

/// Withdraws a shutdown that has not begun to end the server; false when there is none. The world is held.
pub fn abort(server: &Server) -> bool {
    let there_was = server.shutdown.take().is_some() | server.shutdown.is_waiting();
    give_up(server);
    there_was
}

/// Acts upon a signal, if one asked, and goes on with a shutdown that waits. Called at every tick.
pub fn poll(server: &'static Server) {
    go_on(server);
    if server.is_ending() || !server.shutdown.is_made() {
        return;
    }
    let Some(signal) = server.shutdown.take() else { return };
    let flags = server.config.read(if signal == libc::SIGINT { SHUTDOWN_ON_SIGINT } else { SHUTDOWN_ON_SIGTERM });
    // The log has told why, if it is refused, and there is nobody else to tell.
    let _ = begin(server, &mut server.keyspace.lock_global(), flags, None);
}

/// What became of the wish to end the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// It ends.
    Ending,
    /// It waits for replicas: whoever asked may [join](join).
    Waiting,
}

/// Ends the server when its replicas have all, unless that loses what the user wants saved. `client` is who asked by a
/// command.
pub fn begin(
    server: &'static Server,
    global: &mut Locked,
    flags: ShutdownFlags,
    client: Option<&ClientInfo>,
) -> Result<Begun, Refused> {
    if server.shutdown.is_waiting() {
        return Ok(Begun::Waiting);
    }
    match client {
        None => logging::notice(format_args!("User requested shutdown...")),
        Some(client) => {
            let client = client.described(server.config.read(HIDE_USER_DATA_FROM_LOG));
            logging::notice(format_args!("User requested shutdown... (user request from '{client}')"));
        }
    }
    supervise::notify("STOPPING=1\n");
    let timeout_s = server.config.read(SHUTDOWN_TIMEOUT);
    if !flags.contains(ShutdownFlags::NOW) && timeout_s > 0 && lagging(server).next().is_some() {
        let until_ms = clock::unix_ms() + i64::from(timeout_s) * 1000;
        server.keyspace.log.append_replica_only(&[b"REPLCONF", b"GETACK", b"*"]);
        server.pause.hold(Hold::Shutdown);
        *server.shutdown.waiting.lock() = Some(Waiting { flags, until_ms, askers: Vec::new() });
        server.log_moved(None);
        logging::notice(format_args!("Waiting for replicas before shutting down."));
        return Ok(Begun::Waiting);
    }
    end(server, global, flags)?;
    Ok(Begun::Ending)
}

/// Has a client wait for the shutdown that is under way.
pub fn join(server: &Server, asker: Asker) {
    if let Some(waiting) = server.shutdown.waiting.lock().as_mut() {
        waiting.askers.push(asker);
    }
}

/// The replicas that have not got all.
fn lagging(server: &Server) -> impl Iterator<Item = Arc<Replica>> {
    let end = server.keyspace.log.offset();
    server.replication.replicas.all().into_iter().filter(move |replica| replica.applied.load(Ordering::Acquire) != end)
}

/// Goes on with a shutdown that waits, if it need not wait any longer.
fn go_on(server: &'static Server) {
    let Some((flags, until_ms)) = server.shutdown.waiting.lock().as_ref().map(|w| (w.flags, w.until_ms)) else {
        return;
    };
    if server.is_ending() || (clock::unix_ms() < until_ms && lagging(server).next().is_some()) {
        return;
    }
    let mut global = server.keyspace.lock_global();
    // It may have been withdrawn meanwhile. If it is refused the log has told why.
    if server.shutdown.is_waiting() && end(server, &mut global, flags).is_err() {
        give_up(server);
    }
}

/// Waits no more, and tells those who asked.
fn give_up(server: &Server) {
    let Some(waiting) = server.shutdown.waiting.lock().take() else { return };
    for Asker { client, ticket, version } in waiting.askers {
        let mut reply = Vec::new();
        Reply::new(&mut reply, version).error(REFUSED);
        server.answer(Served { client, ticket, reply, is_last: false });
    }
    server.pause.release(Hold::Shutdown);
    server.send_all(|| Message::Resume);
}

/// Tells the log which replicas lose something.
fn tell_of_replicas(server: &Server) {
    let (end, now_ms) = (server.keyspace.log.offset(), clock::unix_ms());
    let (all, mut behind) = (server.replication.replicas.count(), 0);
    for replica in lagging(server) {
        behind += 1;
        let lag_s = if replica.stage() == Stage::Online { replica.silent_ms(now_ms) / 1000 } else { 0 };
        logging::notice(format_args!(
            "Lagging replica {} reported offset {} behind master, lag={lag_s}, state={}.",
            replica.name(),
            end as i64 - replica.applied.load(Ordering::Relaxed) as i64,
            replica.stage().name()
        ));
    }
    if all > 0 {
        let well = all.saturating_sub(behind);
        logging::notice(format_args!("{well} of {all} replicas are in sync when shutting down."));
    }
}

/// Ends the server, unless that loses what the user wants saved.
fn end(server: &'static Server, global: &mut Locked, flags: ShutdownFlags) -> Result<(), Refused> {
    tell_of_replicas(server);
    server.shutdown.acting.store(true, Ordering::Relaxed);
    let saved = save_last(server, global, flags);
    server.shutdown.acting.store(false, Ordering::Relaxed);
    saved?;
    server.admission.set(Reasons::ENDING, true);
    // Before connections are closed: whoever sees the end finds no files that are not complete.
    server.persistence.abandon();
    server.end();
    Ok(())
}

/// Saves the data set for the last time, if that is wanted.
fn save_last(server: &'static Server, global: &mut Locked, flags: ShutdownFlags) -> Result<(), Refused> {
    if background::cancel(&server.persistence) {
        logging::warning(format_args!("There is a background save. Cancelling it!"));
    }
    // Half a data set must not take the place of the whole one, nor one that a script is changing.
    let is_incomplete = server.admission.has(Reasons::LOADING | Reasons::BUSY);
    if !is_incomplete {
        end_files(server, flags)?;
    }
    let by_default = !flags.contains(ShutdownFlags::NOSAVE) && !server.config.read(SAVE).points().is_empty();
    if is_incomplete || !(flags.contains(ShutdownFlags::SAVE) || by_default) {
        return Ok(());
    }
    logging::notice(format_args!("Saving the final RDB snapshot before exiting."));
    supervise::notify("STATUS=Saving the final RDB snapshot\n");
    if save::save(server, global, 0).is_ok() {
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
            logging::warning(format_args!("Writing initial AOF, can't exit."));
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
