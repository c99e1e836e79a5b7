//! Executes the commands that a primary sends.
//!
//! They run through an engine like any client's requests, with an unrestricted client that gets no replies. The
//! primary's own bytes are appended to the write log under the locks of the keys they change, so the end of the log is
//! always the offset of exactly this data. The bytes of a transaction are appended once all of it is executed.

use crate::batch::ResolvedCommand;
use crate::engine::{Engine, Outcome};
use crate::rejection;
use crate::services::Services;
use crate::session::{Client, Fate};
use kvick_acl::identity::Identity;
use kvick_commands::spec::Flags;
use kvick_commands::table::Resolved;
use kvick_config::tables::process::PROPAGATION_ERROR_BEHAVIOR;
use kvick_config::tables::replication::{REPLICA_IGNORE_DISK_WRITE_ERRORS, REPLICA_READ_ONLY};
use kvick_config::words::PropagationError;
use kvick_core::admission::Reasons;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_replication::apply::{Apply, Endpoints, Superseded};
use kvick_resp::{Args, ReplyBuffer};
use kvick_runtime::clock;
use kvick_runtime::logging;
use kvick_store::global_lock::Participant;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Capacity of the discarded reply kept between requests.
const REPLY_KEPT: usize = 64 * 1024;

/// Maximum bytes of an error that are logged.
const ERROR_SHOWN_MAX: usize = 4096;
/// Interval of log messages about replicated data that cannot be persisted.
const DISK_WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of checks whether a script has ended or the append-only file has been replayed.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Executes a primary's commands; see the module's documentation.
pub struct Applier {
    engine: Engine,
    client: Client,
    reply: ReplyBuffer,
    /// When the last log message about unpersisted data was written.
    disk_warned_at: Option<Instant>,
    /// The replication generation in which the primary is followed.
    generation: u64,
}

impl Applier {
    /// Creates an applier for the thread with this participant of the global lock.
    pub fn new(server: &'static Services, participant: Participant) -> Self {
        let worker = server.workers_max();
        let mut engine = Engine::new(server, Executor::Replication, server.stats[worker].clone(), participant);
        engine.effects().relay_only();
        Applier {
            engine,
            client: primary(0, worker, &Endpoints::default()),
            reply: ReplyBuffer::default(),
            disk_warned_at: None,
            generation: 0,
        }
    }

    fn run_entered<'a>(&mut self, next: &mut dyn FnMut() -> Option<(Args<'a>, &'a [u8])>) -> Result<(), Superseded> {
        let upstream = &self.engine.server.replication.upstream;
        loop {
            // A command may leave the batch and enter it again, and the upstream may have changed meanwhile.
            if upstream.generation() != self.generation {
                return Err(Superseded);
            }
            if self.engine.server.admission.has(Reasons::LOADING) {
                // DEBUG LOADAOF: the files are replayed before further commands are applied.
                self.pause();
                continue;
            }
            let Some((args, bytes)) = next() else { return Ok(()) };
            self.apply(args, bytes)?;
        }
    }

    fn apply(&mut self, args: Args<'_>, bytes: &[u8]) -> Result<(), Superseded> {
        let resolved = match self.engine.server.catalogue.resolve(args) {
            Resolved::Command(command) => ResolvedCommand::For(command, None),
            Resolved::Unknown | Resolved::UnknownSubcommand(_) => ResolvedCommand::Unresolved,
        };
        let has = |flag| matches!(resolved, ResolvedCommand::For(command, _) if command.spec.flags.contains(flag));
        let replica_only = self.client.transaction.is_none() && has(Flags::REPLICAS_ONLY);
        self.engine.effects().relay(bytes, replica_only);
        while let Outcome::BlockedByScript | Outcome::Again = self.execute(args, resolved) {
            self.wait_for_script()?;
        }
        if self.client.fate == Fate::Close {
            // The link is about to be closed and the request was not executed: it is not appended to the log and will
            // be sent again.
            self.engine.effects().relay_only();
            return Err(Superseded);
        }
        self.engine.server.replication.upstream.database.store(self.client.db, Ordering::Relaxed);
        if self.reply.bytes.first() == Some(&b'-') {
            self.log_error_reply();
        }
        self.reply.clear();
        self.reply.bytes.shrink_to(REPLY_KEPT);
        if self.client.transaction.is_none() {
            // Requests that no handler committed: they do nothing or are unknown to this server.
            self.engine.commit_verbatim();
        }
        Ok(())
    }

    /// Persisting the primary's writes fails: the server exits unless the settings allow it to continue.
    #[cold]
    fn check_persistence(&mut self, resolved: ResolvedCommand) {
        let server = self.engine.server;
        let writes = matches!(resolved, ResolvedCommand::For(command, _) if command.spec.flags.contains(Flags::WRITE));
        if !writes || !rejection::persistence_fails(server) {
            return;
        }
        assert!(server.config.read(REPLICA_IGNORE_DISK_WRITE_ERRORS), "Replica was unable to write command to disk.");
        if self.disk_warned_at.is_none_or(|at| at.elapsed() >= DISK_WARNING_INTERVAL) {
            self.disk_warned_at = Some(Instant::now());
            logging::warning(format_args!("Replica is applying a command even though it is unable to write to disk."));
        }
    }

    fn execute(&mut self, args: Args<'_>, resolved: ResolvedCommand) -> Outcome {
        if self.engine.server.admission.has(Reasons::SAVE_FAILED | Reasons::AOF_WRITE_FAILED) {
            self.check_persistence(resolved);
        }
        let Applier { engine, client, reply, .. } = self;
        match engine.execute(client, args, resolved, reply) {
            // Only old servers replicate scripts.
            Outcome::ScriptCall(script_call) => engine.execute_script_call(client, script_call, args, &mut (), reply),
            outcome => outcome,
        }
    }

    /// Leaves the batch for a moment, so that other threads can take the global lock.
    fn pause(&mut self) {
        self.engine.leave();
        std::thread::sleep(POLL_INTERVAL);
        self.engine.enter();
    }

    /// A local client's script holds locks that a request needs: waits as long as necessary, since a primary is never
    /// answered with BUSY.
    #[cold]
    fn wait_for_script(&mut self) -> Result<(), Superseded> {
        self.pause();
        // The batch may have been left meanwhile, and other data may be loading now.
        while self.engine.server.admission.has(Reasons::LOADING) {
            self.pause();
        }
        if self.engine.server.replication.upstream.generation() != self.generation {
            // A request that was not executed is not appended to the log either.
            self.engine.effects().relay_only();
            return Err(Superseded);
        }
        Ok(())
    }

    /// The command succeeded on the primary, so the data sets differ.
    #[cold]
    fn log_error_reply(&self) {
        let server = self.engine.server;
        let command = server.catalogue.get(self.client.last_command).map_or("<unknown>", |command| &*command.full_name);
        let end = self.reply.bytes.iter().position(|byte| *byte == b'\r').unwrap_or(self.reply.bytes.len());
        logging::warning(format_args!(
            "== CRITICAL == This replica is sending an error to its primary: '{}' after processing the command \
             '{command}'",
            String::from_utf8_lossy(&self.reply.bytes[..end.min(ERROR_SHOWN_MAX)])
        ));
        server.replication.counts.unexpected_errors.fetch_add(1, Ordering::Relaxed);
        let panics = server.config.read(PROPAGATION_ERROR_BEHAVIOR) != PropagationError::Ignore;
        if panics && server.config.read(REPLICA_READ_ONLY) {
            panic!("This replica panicked sending an error to its primary after processing the command '{command}'");
        }
    }
}

impl Apply for Applier {
    fn begin(&mut self, generation: u64, database: usize, endpoints: &Endpoints) {
        let server = self.engine.server;
        self.client = primary(server.clients.next_id(), server.workers_max(), endpoints);
        server.clients.add(self.client.info.clone());
        self.client.select(database);
        server.replication.upstream.database.store(database, Ordering::Relaxed);
        self.generation = generation;
    }

    fn exchange_staging(&mut self) {
        self.engine.change_databases(|db| db.exchange_staging());
    }

    fn drop_data(&mut self, lazy: bool) {
        let databases = self.engine.server.keyspace.databases();
        self.engine.change_databases(|db| (0..databases).for_each(|number| _ = db.flush(number, lazy)));
    }

    fn end(&mut self) {
        self.engine.server.clients.remove(self.client.info.id);
    }

    fn is_doomed(&self) -> bool {
        self.client.info.is_doomed()
    }

    fn tick(&mut self) {
        self.engine.update_clock();
    }

    fn run<'a>(&mut self, next: &mut dyn FnMut() -> Option<(Args<'a>, &'a [u8])>) -> Result<(), Superseded> {
        self.engine.enter();
        let outcome = self.run_entered(next);
        self.engine.broadcast_changes();
        self.engine.leave();
        outcome
    }
}

/// The client that represents the primary.
fn primary(id: u64, worker: usize, endpoints: &Endpoints) -> Client {
    let (peer, local) = (endpoints.peer.clone(), endpoints.local.clone());
    let info = ClientInfo::new(id, worker, endpoints.fd, peer, local, false, clock::unix_ms());
    let client = Client::new(Arc::new(info), Identity::superuser());
    client.info.set_flags(ClientFlags::PRIMARY | ClientFlags::FROM_LOG, true);
    client
}
