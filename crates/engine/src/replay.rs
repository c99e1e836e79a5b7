//! Executes requests that come from an append-only file instead of a connection.
//!
//! They run like those of clients, but without permission checks and without replies.

use super::engine::Engine;
use super::permission::wrong_arity;
use crate::services::Services;
use crate::session::Client;
use kvick_commands::context::Error;
use kvick_commands::table::Resolved;
use kvick_core::clients::ClientFlags;
use kvick_core::executor::Executor;
use kvick_core::stats::WorkerStats;
use kvick_durability::replay::{Replayed, Replayer};
use kvick_resp::{Args, ReplyBuffer};
use kvick_runtime::logging;
use kvick_store::global_lock::Participant;
use kvick_store::{Db, Env, EventClass};
use std::sync::Arc;

/// Executes requests sequentially.
pub struct Player {
    engine: Engine,
    client: Client,
    reply: ReplyBuffer,
}

impl Player {
    /// Creates a player for a thread that is not a worker. Its statistics are discarded.
    pub fn new(server: &'static Services, participant: Participant) -> Player {
        let stats = Arc::new(WorkerStats::new(server.catalogue.all().len()));
        let client = Client::detached();
        client.info.set_flags(ClientFlags::FROM_LOG, true);
        Player {
            engine: Engine::new(server, Executor::AofLoad, stats, participant),
            client,
            reply: ReplyBuffer::default(),
        }
    }
}

impl Replayer for Player {
    fn enter(&mut self) {
        self.engine.update_clock();
        self.engine.enter();
    }

    fn leave(&mut self) {
        self.engine.leave();
    }

    fn execute(&mut self, args: Args<'_>) -> Result<Replayed, Error> {
        let Player { engine, client, reply } = self;
        let command = match engine.server.catalogue.resolve(args) {
            Resolved::Command(command) => command,
            Resolved::Unknown => return Err(super::permission::unknown_command(args)),
            Resolved::UnknownSubcommand(container) => {
                return Err(super::permission::unknown_subcommand(container, args));
            }
        };
        if !command.spec.accepts(args.len()) {
            return Err(wrong_arity(command));
        }
        reply.clear();
        let was_in_transaction = client.transaction.is_some();
        if client.is_queueing(command) {
            engine.queue(client, command, args, reply);
            return Ok(Replayed::Done);
        }
        // Nothing would end a wait.
        engine.in_transaction = true;
        let admission = engine.admit_replayed(command);
        engine.call(client, admission, args, &mut (), reply);
        engine.forget_awaited();
        if reply.bytes.starts_with(b"-") {
            let error = String::from_utf8_lossy(&reply.bytes);
            logging::warning(format_args!(
                "== CRITICAL == The append-only file holds a command '{}' that failed: {}",
                command.full_name,
                error.trim_end()
            ));
        }
        let begun = client.transaction.is_some() && !was_in_transaction;
        Ok(if begun { Replayed::BeganTransaction } else { Replayed::Done })
    }

    fn is_in_transaction(&self) -> bool {
        self.client.transaction.is_some()
    }
}

impl Engine {
    /// Changes whole databases outside of any command, under the global lock, and then settles the effects on clients.
    /// The caller is outside of any batch.
    pub fn change_databases(&mut self, change: impl FnOnce(&mut Db<'_>)) {
        self.update_clock();
        let mut global = self.server.keyspace.lock_global();
        self.effects.begin(false, EventClass::empty(), 0);
        let env = Env::background(self.now_ms, &self.access, &self.stats.keyspace, &mut self.effects);
        change(&mut Db::new(&mut global, 0, env));
        drop(global);
        self.within_batch(Self::settle_consequences);
    }

    /// Discards wake-ups of blocked clients: they are served when a later command changes their keys.
    fn forget_awaited(&mut self) {
        if self.effects.has_ready_keys() {
            self.effects.take_ready_keys();
        }
    }
}
