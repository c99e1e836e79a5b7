//! Shutdown: whether it may proceed, and its steps.
//!
//! A signal sets a [`Request`] that the first worker handles at its next tick, so that SHUTDOWN ABORT can still
//! withdraw it. SHUTDOWN acts at once. A server whose replicas have not caught up pauses writes and waits for them, for
//! at most `shutdown-timeout`; until then the shutdown can be withdrawn. Then the data set is saved if requested, the
//! workers are stopped, and the main thread, which waits for them, does the rest. The last save contains every
//! acknowledged write: no command runs between the save and the exit.

use crate::server::Server;
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_config::tables::persistence::SAVE;
use kvick_config::tables::process::{SHUTDOWN_ON_SIGINT, SHUTDOWN_ON_SIGTERM, SHUTDOWN_TIMEOUT};
use kvick_config::words::ShutdownFlags;
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Served;
use kvick_core::message::Message;
use kvick_core::pause::PauseReason;
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

/// A signal's shutdown request.
#[derive(Default)]
pub struct Request {
    /// The signal's number; 0 for none.
    signal: AtomicI32,
    /// Held while a signal is recorded and logged, so that the line precedes those of the shutdown.
    recording: Mutex<()>,
    /// Whether it is being handled, which takes time if the data set is saved.
    is_saving: AtomicBool,
    /// A shutdown that waits for replicas.
    waiting: Mutex<Option<Waiting>>,
}

/// A shutdown that waits for replicas.
struct Waiting {
    flags: ShutdownFlags,
    /// Deadline, as Unix time in ms.
    until_ms: i64,
    /// The clients that requested it.
    clients: Vec<PendingClient>,
}

/// A client that requested a shutdown, and waits for it.
pub struct PendingClient {
    /// The client.
    pub client: Arc<ClientInfo>,
    /// The ticket of its wait.
    pub ticket: u64,
    /// The protocol of its reply.
    pub version: Version,
}

/// The error for clients whose shutdown was refused.
pub const REFUSED: &str = "ERR Errors trying to SHUTDOWN. Check logs.";

impl Request {
    /// Records a signal and logs it. The shutdown does not begin before `log` returns; a client that sees the line can
    /// withdraw the request.
    pub fn record(&self, signal: i32, log: impl FnOnce()) {
        let _recording = self.recording.lock();
        self.signal.store(signal, Ordering::Relaxed);
        log();
    }

    /// Whether a signal's request has not been handled yet.
    pub fn is_requested(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// Whether the server is about to exit, unless saving fails.
    pub fn is_in_progress(&self) -> bool {
        self.is_saving.load(Ordering::Relaxed) || self.is_waiting()
    }

    /// Milliseconds until a shutdown stops waiting for replicas.
    pub fn left_ms(&self) -> Option<i64> {
        self.waiting.lock().as_ref().map(|waiting| (waiting.until_ms - clock::unix_ms()).max(0))
    }

    /// Whether a shutdown waits for replicas.
    pub fn is_waiting(&self) -> bool {
        self.waiting.lock().is_some()
    }

    /// Takes the request; the signal's number if there was one.
    pub fn take(&self) -> Option<i32> {
        if !self.is_requested() {
            return None;
        }
        let _recording = self.recording.lock();
        Some(self.signal.swap(0, Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// The server keeps running, for a reason that has been logged.
#[derive(Debug)]
pub struct Refused;

/// Withdraws a shutdown that has not begun to stop the server; false if there is none. The caller holds the global
/// lock.
pub fn abort(server: &Server) -> bool {
    let was_pending = server.shutdown.take().is_some() | server.shutdown.is_waiting();
    cancel_wait(server);
    was_pending
}

/// Handles a signal's request, and continues a waiting shutdown. Called at every tick.
pub fn poll(server: &'static Server) {
    continue_waiting(server);
    if server.is_shutting_down() || !server.shutdown.is_requested() {
        return;
    }
    let Some(signal) = server.shutdown.take() else { return };
    let flags = server.config.read(if signal == libc::SIGINT { SHUTDOWN_ON_SIGINT } else { SHUTDOWN_ON_SIGTERM });
    // A refusal has been logged.
    let _ = begin(server, &mut server.keyspace.lock_global(), flags, None);
}

/// The outcome of a shutdown request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The server exits.
    Ending,
    /// The shutdown waits for replicas: the client may [join] it.
    Waiting,
}

/// Shuts down once the replicas have caught up, unless this would lose data that should be saved. `client` is the
/// client whose command requested it.
pub fn begin(
    server: &'static Server,
    global: &mut Locked,
    flags: ShutdownFlags,
    client: Option<&ClientInfo>,
) -> Result<Progress, Refused> {
    if server.shutdown.is_waiting() {
        return Ok(Progress::Waiting);
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
        server.pause.pause_writes(PauseReason::Shutdown);
        *server.shutdown.waiting.lock() = Some(Waiting { flags, until_ms, clients: Vec::new() });
        server.on_log_appended(None);
        logging::notice(format_args!("Waiting for replicas before shutting down."));
        return Ok(Progress::Waiting);
    }
    end(server, global, flags)?;
    Ok(Progress::Ending)
}

/// Makes a client wait for the running shutdown.
pub fn join(server: &Server, client: PendingClient) {
    if let Some(waiting) = server.shutdown.waiting.lock().as_mut() {
        waiting.clients.push(client);
    }
}

/// The replicas that have not caught up.
fn lagging(server: &Server) -> impl Iterator<Item = Arc<Replica>> {
    let end = server.keyspace.log.offset();
    server.replication.replicas.all().into_iter().filter(move |replica| replica.applied.load(Ordering::Acquire) != end)
}

/// Continues a shutdown if its wait is over.
fn continue_waiting(server: &'static Server) {
    let Some((flags, until_ms)) = server.shutdown.waiting.lock().as_ref().map(|w| (w.flags, w.until_ms)) else {
        return;
    };
    if server.is_shutting_down() || (clock::unix_ms() < until_ms && lagging(server).next().is_some()) {
        return;
    }
    let mut global = server.keyspace.lock_global();
    // It may have been withdrawn meanwhile. A refusal has been logged.
    if server.shutdown.is_waiting() && end(server, &mut global, flags).is_err() {
        cancel_wait(server);
    }
}

/// Abandons a waiting shutdown, and answers the clients that requested it.
fn cancel_wait(server: &Server) {
    let Some(waiting) = server.shutdown.waiting.lock().take() else { return };
    for PendingClient { client, ticket, version } in waiting.clients {
        let mut reply = Vec::new();
        Reply::new(&mut reply, version).error(REFUSED);
        server.answer(Served { client, ticket, reply, is_last: false });
    }
    server.pause.resume_writes(PauseReason::Shutdown);
    server.send_all(|| Message::Resume);
}

/// Logs the replicas that will miss data.
fn log_lagging_replicas(server: &Server) {
    let (end, now_ms) = (server.keyspace.log.offset(), clock::unix_ms());
    let (all, mut behind) = (server.replication.replicas.count(), 0);
    for replica in lagging(server) {
        behind += 1;
        let lag_s = if replica.stage() == Stage::Online { replica.since_ack_ms(now_ms) / 1000 } else { 0 };
        logging::notice(format_args!(
            "Lagging replica {} reported offset {} behind master, lag={lag_s}, state={}.",
            replica.name(),
            end as i64 - replica.applied.load(Ordering::Relaxed) as i64,
            replica.stage().name()
        ));
    }
    if all > 0 {
        let in_sync = all.saturating_sub(behind);
        logging::notice(format_args!("{in_sync} of {all} replicas are in sync when shutting down."));
    }
}

/// Shuts down, unless this would lose data that should be saved.
fn end(server: &'static Server, global: &mut Locked, flags: ShutdownFlags) -> Result<(), Refused> {
    log_lagging_replicas(server);
    refuse_unsafe_end(server, flags)?;
    server.shutdown.is_saving.store(true, Ordering::Relaxed);
    let saved = save_last(server, global, flags);
    server.shutdown.is_saving.store(false, Ordering::Relaxed);
    saved?;
    server.admission.set(Reasons::SHUTTING_DOWN, true);
    if let Some(cluster) = server.cluster() {
        if flags.contains(ShutdownFlags::FAILOVER) {
            cluster.hand_over();
        }
        cluster.save_last();
    }
    // Before connections are closed: a client that sees the end must not find incomplete files.
    server.persistence.abandon();
    server.end();
    Ok(())
}

/// Refuses to end a primary that the cluster needs, if SAFE requires that.
fn refuse_unsafe_end(server: &Server, flags: ShutdownFlags) -> Result<(), Refused> {
    let is_voter = || server.cluster().is_some_and(|cluster| cluster.is_voter());
    if !flags.contains(ShutdownFlags::SAFE) || !is_voter() {
        return Ok(());
    }
    const REASON: &str = "This is a voting primary. Shutting down may cause the cluster to go down.";
    if flags.contains(ShutdownFlags::FORCE) {
        logging::warning(format_args!("{REASON} Exit anyway."));
        return Ok(());
    }
    logging::warning(format_args!("{REASON} Can't exit."));
    logging::warning(format_args!("Errors trying to shut down the server. Check the logs for more information."));
    Err(Refused)
}

/// Saves the data set, if requested.
fn save_last(server: &'static Server, global: &mut Locked, flags: ShutdownFlags) -> Result<(), Refused> {
    if background::cancel(&server.persistence) {
        logging::warning(format_args!("There is a background save. Cancelling it!"));
    }
    // An incomplete data set, or one that a script is changing, must not replace the saved one.
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

/// Writes and syncs the append-only file.
fn end_files(server: &'static Server, flags: ShutdownFlags) -> Result<(), Refused> {
    let state = server.aof.status().state;
    if state == State::Off {
        return Ok(());
    }
    if server.persistence.status().running_for(Purpose::AofBase).is_some() {
        // Until the first base is installed, the files are incomplete.
        if state == State::WaitRewrite && !flags.contains(ShutdownFlags::FORCE) {
            logging::warning(format_args!("Writing initial AOF, can't exit."));
            logging::warning(format_args!(
                "Errors trying to shut down the server. Check the logs for more information."
            ));
            return Err(Refused);
        }
        if state == State::WaitRewrite {
            logging::warning(format_args!("Writing initial AOF. Exit anyway."));
        }
        logging::warning(format_args!("There is a child rewriting the AOF. Killing it!"));
        aof::rewrite::cancel(server);
    }
    logging::notice(format_args!("Calling fsync() on the AOF file."));
    // Write errors have been logged; nothing else can be done.
    aof::finish(server);
    Ok(())
}

/// The last line of a log, in Valkey's wording, since tools wait for it.
pub fn log_exit() {
    logging::warning(format_args!("Valkey is now ready to exit, bye bye..."));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_executed_or_withdrawn_once() {
        let request = Request::default();
        assert!(!request.is_requested() && request.take().is_none());
        request.record(libc::SIGTERM, || ());
        assert!(request.is_requested());
        assert_eq!(request.take(), Some(libc::SIGTERM));
        assert!(!request.is_requested() && request.take().is_none());
    }

    #[test]
    fn a_request_is_logged_before_it_is_executed() {
        let request = Request::default();
        let is_logged = AtomicBool::new(false);
        std::thread::scope(|scope| {
            request.record(libc::SIGTERM, || {
                scope.spawn(|| {
                    assert_eq!(request.take(), Some(libc::SIGTERM));
                    assert!(is_logged.load(Ordering::SeqCst));
                });
                std::thread::yield_now();
                is_logged.store(true, Ordering::SeqCst);
            });
        });
    }
}
