//! Executing what a primary sends.
//!
//! It goes through an engine like any client's requests, as a client who may do everything, to whom nothing is
//! answered. What is written to the log is the primary's own bytes, under the locks of what they change: so the log's
//! end is always the offset of exactly these data. A transaction's bytes are appended when all of it is executed.

use crate::services::Services;
use crate::session::{Client, Fate};
use crate::worker::batch::ResolvedCommand;
use crate::worker::engine::{Engine, Outcome};
use crate::worker::rejection;
use kvick_acl::identity::Identity;
use kvick_commands::spec::Flags;
use kvick_commands::table::Resolved;
use kvick_config::tables::process::PROPAGATION_ERROR_BEHAVIOR;
use kvick_config::tables::replication::{REPLICA_IGNORE_DISK_WRITE_ERRORS, REPLICA_READ_ONLY};
use kvick_config::words::PropagationError;
use kvick_core::admission::Reasons;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_replication::apply::{Apply, Ends, Superseded};
use kvick_resp::Args;
use kvick_runtime::clock;
use kvick_runtime::logging;
use kvick_store::global_lock::Participant;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Room for a reply that nobody reads, kept between requests.
const REPLY_KEPT: usize = 64 * 1024;

/// Bytes of an error that the log is told.
const ERROR_SHOWN_MAX: usize = 4096;
/// How often the log is told that what the primary sends cannot be kept.
const DISK_TOLD_EVERY: Duration = Duration::from_secs(10);
/// How often to look whether a script has ended, or the append-only file has been replayed.
const PAUSE: Duration = Duration::from_millis(1);

/// See the module's documentation.
pub struct Applier {
    engine: Engine,
    client: Client,
    reply: Vec<u8>,
    /// When the log was last told that what the primary sends cannot be kept.
    told_of_disk: Option<Instant>,
    /// The number of the wish that the primary is followed by.
    number: u64,
}

impl Applier {
    /// For the thread with this place in the world lock.
    pub fn new(server: &'static Services, participant: Participant) -> Self {
        let worker = server.workers();
        let mut engine = Engine::new(server, Executor::Replication, server.stats[worker].clone(), participant);
        engine.effects().repeat_others();
        Applier {
            engine,
            client: primary(0, worker, &Ends::default()),
            reply: Vec::new(),
            told_of_disk: None,
            number: 0,
        }
    }

    fn run_entered<'a>(&mut self, next: &mut dyn FnMut() -> Option<(Args<'a>, &'a [u8])>) -> Result<(), Superseded> {
        let upstream = &self.engine.server.replication.upstream;
        loop {
            // A command may let go of the world and take it again, and anything may have happened meanwhile.
            if upstream.number() != self.number {
                return Err(Superseded);
            }
            if self.engine.server.admission.has(Reasons::LOADING) {
                // DEBUG LOADAOF: the files are replayed first, and without what comes behind them.
                self.pause();
                continue;
            }
            let Some((args, bytes)) = next() else { return Ok(()) };
            self.apply(args, bytes)?;
        }
    }

    fn apply(&mut self, args: Args<'_>, bytes: &[u8]) -> Result<(), Superseded> {
        let name = args.get(0).unwrap_or_default();
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let replica_only =
            self.client.transaction.is_none() && (is("ping") || is("replconf") || is("publish") || is("spublish"));
        self.engine.effects().repeat(bytes, replica_only);
        while let Outcome::BlockedByScript | Outcome::Again = self.execute(args) {
            self.wait_for_script()?;
        }
        if self.client.fate == Fate::Close {
            // Somebody wants the link closed, and the request was not executed: it is not repeated either, and comes
            // again.
            self.engine.effects().repeat_others();
            return Err(Superseded);
        }
        self.engine.server.replication.upstream.database.store(self.client.db, Ordering::Relaxed);
        if self.reply.first() == Some(&b'-') {
            self.tell_of_error();
        }
        self.reply.clear();
        self.reply.shrink_to(REPLY_KEPT);
        if self.client.transaction.is_none() {
            // What no handler committed: requests that do nothing, or that this server does not know.
            self.engine.commit_verbatim();
        }
        Ok(())
    }

    /// What the primary wrote may be lost here with the server: the server ends unless the settings say that it goes
    /// on.
    #[cold]
    fn mind_disk(&mut self, args: Args<'_>) {
        let server = self.engine.server;
        let writes = match server.catalogue.resolve(args) {
            Resolved::Command(command) => command.spec.flags.contains(Flags::WRITE),
            Resolved::Unknown | Resolved::UnknownSubcommand(_) => false,
        };
        if !writes || !rejection::keeps_nothing(server) {
            return;
        }
        assert!(server.config.read(REPLICA_IGNORE_DISK_WRITE_ERRORS), "Replica was unable to write command to disk.");
        if self.told_of_disk.is_none_or(|told| told.elapsed() >= DISK_TOLD_EVERY) {
            self.told_of_disk = Some(Instant::now());
            logging::warning(format_args!("Replica is applying a command even though it is unable to write to disk."));
        }
    }

    fn execute(&mut self, args: Args<'_>) -> Outcome {
        if self.engine.server.admission.has(Reasons::UNSAVED | Reasons::UNWRITTEN) {
            self.mind_disk(args);
        }
        let Applier { engine, client, reply, .. } = self;
        match engine.execute(client, args, ResolvedCommand::Unresolved, &mut None, reply) {
            // Scripts are sent by old servers alone.
            Outcome::ScriptCall(command, previous) => {
                engine.execute_script_call(client, (command, previous), args, &mut (), reply)
            }
            outcome => outcome,
        }
    }

    /// Has the world free for others for a moment.
    fn pause(&mut self) {
        self.engine.leave();
        std::thread::sleep(PAUSE);
        self.engine.enter();
    }

    /// A script of a client here has what a request needs, for however long: the primary's is not answered that the
    /// server is busy, as others are.
    #[cold]
    fn wait_for_script(&mut self) -> Result<(), Superseded> {
        self.pause();
        // It may have had to let go of the world, and somebody loads something now.
        while self.engine.server.admission.has(Reasons::LOADING) {
            self.pause();
        }
        if self.engine.server.replication.upstream.number() != self.number {
            // What was not executed is not repeated either.
            self.engine.effects().repeat_others();
            return Err(Superseded);
        }
        Ok(())
    }

    /// What a primary sends went well there, so the data are not the same.
    #[cold]
    fn tell_of_error(&self) {
        let server = self.engine.server;
        let command = server.catalogue.get(self.client.last_command).map_or("<unknown>", |command| &*command.full_name);
        let end = self.reply.iter().position(|byte| *byte == b'\r').unwrap_or(self.reply.len());
        logging::warning(format_args!(
            "== CRITICAL == This replica is sending an error to its primary: '{}' after processing the command \
             '{command}'",
            String::from_utf8_lossy(&self.reply[..end.min(ERROR_SHOWN_MAX)])
        ));
        server.replication.counts.unexpected_errors.fetch_add(1, Ordering::Relaxed);
        let panics = server.config.read(PROPAGATION_ERROR_BEHAVIOR) != PropagationError::Ignore;
        if panics && server.config.read(REPLICA_READ_ONLY) {
            panic!("This replica panicked sending an error to its primary after processing the command '{command}'");
        }
    }
}

impl Apply for Applier {
    fn begin(&mut self, number: u64, database: usize, ends: &Ends) {
        let server = self.engine.server;
        self.client = primary(server.clients.next_id(), server.workers(), ends);
        server.clients.add(self.client.info.clone());
        self.client.select(database);
        server.replication.upstream.database.store(database, Ordering::Relaxed);
        self.number = number;
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

/// The client that a primary speaks through.
fn primary(id: u64, worker: usize, ends: &Ends) -> Client {
    let (peer, local) = (ends.peer.clone(), ends.local.clone());
    let info = ClientInfo::new(id, worker, ends.fd, peer, local, false, clock::unix_ms());
    let client = Client::new(Arc::new(info), Identity::superuser());
    client.info.set_flags(ClientFlags::PRIMARY | ClientFlags::FROM_LOG, true);
    client
}
