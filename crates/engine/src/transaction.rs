//! Transactions: MULTI queues the commands that follow, and EXEC runs them under the locks of all their keys at once.
//!
//! EXEC locks the union of the keys that its commands name and the keys that the client watches, or takes the global
//! lock if one of the commands requires it, so that the transaction is atomic. Watched keys are checked under these
//! locks. The commands' effects go to the write log together, and blocked clients are served afterwards.

use super::engine::Engine;
use super::invocation::{DataCall, Invocation, ScriptContext};
use super::locking::Scripts;
use super::permission::Admitted;
use super::yielding::Yield;
use crate::handlers::Handler;
use crate::queued::{QueuedCommand, Transaction, WatchedKey, Watching};
use crate::session::{Client, Fate};
use crate::transactions::Control;
use kvick_acl::log::Context as AclContext;
use kvick_acl::{Denied, Reason};
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo};
use kvick_core::clients::ClientFlags;
use kvick_resp::format::parse_i64;
use kvick_resp::{Args, OwnedArgs, ReplyBuffer};
use kvick_script::ScriptFlags;
use kvick_store::{Address, Key, Locked};
use std::sync::atomic::Ordering;

/// The database that a command selects, if the command is SELECT.
pub(super) fn selected_by(command: &CommandInfo, args: Args<'_>, databases: usize) -> Option<usize> {
    let selects = command.spec.flags.contains(Flags::SELECTS);
    let number = selects.then(|| args.get(1).and_then(parse_i64)).flatten();
    number.and_then(|number| usize::try_from(number).ok()).filter(|number| *number < databases)
}

/// The flags of a command that runs a script with flags.
fn flags_of_script(flags: Flags, said: ScriptFlags) -> Flags {
    let mut flags = flags - (Flags::STALE | Flags::DENYOOM | Flags::WRITE | Flags::MAY_REPLICATE);
    flags.set(Flags::WRITE, !said.no_writes);
    flags.set(Flags::DENYOOM, !said.no_writes && !said.allow_oom);
    flags.set(Flags::STALE, said.allow_stale);
    flags
}

/// Whether a command executes a transaction.
pub(super) fn is_exec(command: &CommandInfo) -> bool {
    command.spec.flags.contains(Flags::EXECUTES)
}

impl Engine {
    /// EXEC was refused: replies with the reason and ends the transaction.
    pub(super) fn abort_transaction(&mut self, client: &mut Client, reason: &Error, is_redirected: bool) -> Error {
        self.abandon(client);
        // A redirection is answered as for any other command.
        if is_redirected {
            return reason.clone();
        }
        let reason = reason.bytes().strip_prefix(b"ERR ").unwrap_or(reason.bytes());
        Error::raw([b"EXECABORT Transaction discarded because of: ", reason].concat())
    }

    /// Queues a request in the open transaction.
    pub(super) fn queue(
        &mut self,
        client: &mut Client,
        command: &'static CommandInfo,
        args: Args<'_>,
        out: &mut ReplyBuffer,
    ) {
        let flags = self.flags_asked(client, command, args);
        self.count_queued(command, args);
        let Some(transaction) = &mut client.transaction else { return };
        if !transaction.aborted {
            transaction.flags = transaction.flags_with(flags);
            let owned = OwnedArgs::from(args);
            transaction.db = selected_by(command, args, self.server.keyspace.databases()).unwrap_or(transaction.db);
            transaction.bytes += owned.memory();
            transaction.queue.push(QueuedCommand { command, request: owned });
            if self.runtime_config.limits.query_buffer_exceeded(transaction.bytes) {
                kvick_runtime::logging::warning(format_args!(
                    "Closing client that reached max query buffer length: id={} addr={} multi-mem={}",
                    client.info.id, client.info.peer, transaction.bytes
                ));
                client.fate = Fate::Close;
            }
        }
        out.reply(client.version).simple("QUEUED");
        client.publish_transaction();
    }

    /// Ends a transaction that cannot be executed.
    pub(super) fn abandon(&mut self, client: &mut Client) {
        client.transaction = None;
        self.unwatch(client);
        client.publish_transaction();
    }

    /// Completes the part of RESET that needs locks.
    pub(super) fn end_reset(&mut self, client: &mut Client) {
        client.is_reset = false;
        self.abandon(client);
    }

    /// The effective flags of a command: EXEC includes the flags of the transaction's commands, and a script call those
    /// that the script declares.
    pub(super) fn flags_asked(&mut self, client: &Client, command: &CommandInfo, args: Args<'_>) -> Flags {
        match (self.table.handler(command), &client.transaction) {
            (Some(Handler::ScriptCall(script_call)), _) => {
                let sum = |code: &[u8]| self.recent_sum.of(code);
                let said = self.server.scripting.flags_of(script_call.source, args, sum);
                said.map_or(command.spec.flags, |said| flags_of_script(command.spec.flags, said))
            }
            (_, Some(transaction)) if is_exec(command) => transaction.flags_with(command.spec.flags),
            _ => command.spec.flags,
        }
    }

    /// Runs a transaction command; `None` when it is blocked by a script.
    pub(super) fn control(
        &mut self,
        client: &mut Client,
        control: Control,
        admission: Admitted,
        args: Args<'_>,
        yielder: &mut dyn Yield,
        out: &mut ReplyBuffer,
    ) -> Option<Result<(), Error>> {
        self.effects.begin(false, kvick_store::EventClass::empty(), client.db);
        let done = match control {
            Control::Multi => {
                client.transaction = Some(Box::new(Transaction::new(client.db)));
                Ok(())
            }
            Control::Discard => match client.transaction.take() {
                None => Err(Error::text("ERR DISCARD without MULTI")),
                Some(_) => {
                    self.unwatch(client);
                    Ok(())
                }
            },
            Control::Watch => {
                self.watch(client, admission, args)?;
                Ok(())
            }
            Control::Unwatch => {
                self.unwatch(client);
                Ok(())
            }
            Control::Exec => {
                let result = self.exec(client, admission, args, yielder, out);
                client.publish_transaction();
                return result;
            }
        };
        client.publish_transaction();
        Some(done.map(|()| out.reply(client.version).ok()))
    }

    fn watch(&mut self, client: &mut Client, admission: Admitted, args: Args<'_>) -> Option<()> {
        let mut locked = self.lock_keys(admission, client.db, args)?;
        let (db, now_ms, keyspace) = (client.db, self.now_ms, self.server.keyspace);
        let watching = client.watching.get_or_insert_default();
        for word in args.iter().skip(1) {
            if locked.watch(db, keyspace.key(word), &watching.watcher, now_ms) {
                watching.keys.push(WatchedKey { db, key: word.into() });
                // The name is stored twice: here and in the lookup table.
                watching.key_bytes += 2 * word.len();
            }
        }
        Some(())
    }

    /// Ends all watches of a client. Called without locks.
    pub fn unwatch(&mut self, client: &mut Client) {
        if let Some(elsewhere) = &mut client.forwarding {
            elsewhere.watched = None;
        }
        let Some(watching) = client.watching.take() else { return };
        self.within_batch(|engine| {
            let mut locked = engine.lock_patiently(|engine| watching.addresses(engine.server.keyspace));
            engine.unwatch_locked(&watching, &mut locked);
        });
    }

    fn unwatch_locked(&self, watching: &Watching, locked: &mut Locked) {
        watching
            .hashed(self.server.keyspace)
            .for_each(|(watched, key)| locked.unwatch(watched.db, key, &watching.watcher));
    }

    /// Runs EXEC. Monitors receive the transaction's commands together and EXEC last, which marks the end of the
    /// transaction.
    fn exec(
        &mut self,
        client: &mut Client,
        admission: Admitted,
        args: Args<'_>,
        yielder: &mut dyn Yield,
        out: &mut ReplyBuffer,
    ) -> Option<Result<(), Error>> {
        let invocation = Invocation { command: admission.command(), args };
        let Some(transaction) = client.transaction.as_deref() else {
            self.monitor(client, invocation);
            return Some(Err(Error::text("ERR EXEC without MULTI")));
        };
        if transaction.aborted {
            client.transaction = None;
            self.unwatch(client);
            self.monitor(client, invocation);
            return Some(Err(Error::text("EXECABORT Transaction discarded because of previous errors.")));
        }
        let watching = client.watching.take().unwrap_or_default();
        // Commands that lock the keys they encounter by themselves (SCAN) may not do so while others are locked.
        let global = transaction.queue.iter().any(|QueuedCommand { command, request }| {
            command.spec.flags.contains(Flags::TOUCHES_ARBITRARY_KEYS)
                || self.needs_global_lock(command, request.args())
        }) || transaction.may_be_refused_database(client.is_unrestricted());
        let scripts =
            if transaction.may_run_script() { self.acquire_turn().map(Scripts::Own) } else { Some(Scripts::Any) };
        let locked = match &scripts {
            None => None,
            Some(_) if global => self.lock_global(admission),
            Some(_) => {
                self.lock_several(admission, |engine| engine.transaction_addresses(client.db, transaction, &watching))
            }
        };
        let Some(mut locked) = locked else {
            client.watching = (!watching.is_empty()).then_some(watching);
            return None;
        };
        let elsewhere =
            if admission.is_for_open_slot() { self.redirect_open(client, invocation, &locked) } else { None };
        let transaction = client.transaction.take().unwrap_or_default();
        let overdue = |(watched, key): (&WatchedKey, Key<'_>)| {
            locked.expired_since_watch(watched.db, key, &watching.watcher, self.now_ms)
        };
        let touched = watching.watcher.is_touched() || watching.hashed(self.server.keyspace).any(overdue);
        self.unwatch_locked(&watching, &mut locked);
        client.publish_watched();
        self.monitor_lines.begin_group();
        let began = self.last;
        let result = match elsewhere {
            Some(error) => Err(error),
            None if touched => {
                out.reply(client.version).null_array();
                Ok(())
            }
            None => {
                self.run_transaction(client, &transaction, &mut locked, yielder, out);
                Ok(())
            }
        };
        self.monitor_lines.end_group();
        self.monitor(client, invocation);
        self.send_monitor_lines();
        drop(locked);
        drop(scripts);
        if global {
            self.enter();
        }
        // The duration of EXEC includes its commands.
        self.last = began;
        Some(result)
    }

    /// Addresses of all keys that the commands name, each in the database selected at that point, and of the watched
    /// keys.
    fn transaction_addresses(&self, db: usize, transaction: &Transaction, watching: &Watching) -> Vec<Address> {
        let keyspace = self.server.keyspace;
        let mut addresses = watching.addresses(self.server.keyspace);
        let mut selected = db;
        for QueuedCommand { command, request } in &transaction.queue {
            let args = request.args();
            selected = selected_by(command, args, keyspace.databases()).unwrap_or(selected);
            // As for a single command: if the arguments do not determine the keys, the command will answer an error.
            let positions = command.spec.key_positions(args).unwrap_or_default();
            let keys = positions.iter().filter_map(|position| args.get(position.index));
            addresses.extend(keys.map(|key| keyspace.address(selected, keyspace.key(key))));
        }
        addresses
    }

    fn run_transaction(
        &mut self,
        client: &mut Client,
        transaction: &Transaction,
        locked: &mut Locked,
        yielder: &mut dyn Yield,
        out: &mut ReplyBuffer,
    ) {
        out.reply(client.version).array(transaction.len());
        self.in_transaction = true;
        self.effects.begin_group();
        for QueuedCommand { command, request } in &transaction.queue {
            let (args, start) = (request.args(), out.len());
            let invocation = Invocation { command, args };
            if let Err(error) = self.may_still_run(client, command, args) {
                self.reply_error(client, &error, out);
                continue;
            }
            self.set_read_scope(client, command, args);
            let result = match self.handler(command) {
                Some(Handler::Data(handler)) => {
                    let call = DataCall { handler, args, hashed: &[] };
                    self.run_data(client, call, locked, out)
                }
                Some(Handler::Session(handler)) => self.run_session(client, handler, args, locked, out),
                Some(Handler::ScriptCall(script_call)) => {
                    let context = ScriptContext { locked: &mut *locked, yielder: &mut *yielder, confined: None };
                    self.run_script_call(client, script_call, args, context, out)
                }
                // UNWATCH is the only one of these that is queued: the watches have already ended.
                Some(Handler::Control(_)) => {
                    // Clear the effects of the preceding command.
                    self.effects.begin(false, kvick_store::EventClass::empty(), client.db);
                    out.reply(client.version).ok();
                    Ok(())
                }
                None => {
                    self.effects.begin(false, kvick_store::EventClass::empty(), client.db);
                    self.answer(client, Err(super::permission::wrong_arity(command)), out)
                }
            };
            if client.tracking.is_some() {
                self.track_reads(&client.info, client.db, invocation, locked);
            }
            self.effects.commit(&self.server.keyspace.log, args);
            self.after_flushall(command, &result, locked);
            self.monitor(client, invocation);
            self.record_command(client, invocation, out.len() - start, result);
            client.commands += 1;
            client.redacted = 0;
        }
        self.effects.end_group(&self.server.keyspace.log);
        // The changes of its commands have been counted.
        self.effects.begin(false, kvick_store::EventClass::empty(), client.db);
        client.write_offset = self.server.keyspace.log.offset();
        self.in_transaction = false;
    }

    /// Whether a queued command is still allowed when it is about to run: rights may have changed meanwhile, also by an
    /// earlier command of the transaction.
    fn may_still_run(&self, client: &mut Client, command: &'static CommandInfo, args: Args<'_>) -> Result<(), Error> {
        let denied = if client.renew_rights(self.server) {
            let Err(denied) = self.permits(client, command, args) else { return Ok(()) };
            denied
        } else {
            // The user was deleted.
            Denied { reason: Reason::Command, at: 0 }
        };
        client.publish();
        self.record_denied(
            &client.info,
            &client.identity.user,
            denied,
            AclContext::Multi,
            Invocation { command, args },
        );
        Err(denied.error_in_exec())
    }

    /// Whether a command may run a script or function, directly or by executing a transaction.
    #[inline]
    pub(super) fn may_run_script(client: &Client, command: &CommandInfo) -> bool {
        match command.class {
            Class::Script => true,
            Class::Transaction if is_exec(command) => {
                client.transaction.as_ref().is_some_and(|transaction| transaction.may_run_script())
            }
            _ => false,
        }
    }
}

impl Client {
    /// Whether this command is to be queued in an open transaction.
    pub(super) fn is_queueing(&self, command: &CommandInfo) -> bool {
        self.transaction.is_some() && !command.spec.flags.contains(Flags::IMMEDIATE)
    }

    /// Publishes the state of the transaction for CLIENT LIST.
    pub(super) fn publish_transaction(&self) {
        let queued = self.transaction.as_ref().map(|transaction| transaction.len() as i64);
        // -1 stands for a client that has never used MULTI or WATCH.
        let elsewhere = self.watched_elsewhere();
        if queued.is_some()
            || self.watching.is_some()
            || elsewhere.is_some()
            || self.info.queued.load(Ordering::Relaxed) >= 0
        {
            self.info.queued.store(queued.unwrap_or(0), Ordering::Relaxed);
        }
        let memory = self.transaction.as_ref().map_or(0, |transaction| transaction.memory())
            + self.watching.as_ref().map_or(0, |watching| watching.memory())
            + elsewhere.map_or(0, |watched| watched.memory());
        self.info.transaction_memory.store(memory, Ordering::Relaxed);
        self.publish_watched();
        self.info.set_flags(ClientFlags::MULTI, self.transaction.is_some());
    }

    fn publish_watched(&self) {
        let watched = self.watching.as_ref().map_or(0, |watching| watching.len())
            + self.watched_elsewhere().map_or(0, |watched| watched.len());
        if self.info.watched.swap(watched, Ordering::Relaxed) != watched {
            *self.info.watcher.lock() = self.watching.as_ref().map(|watching| watching.watcher.clone());
        }
    }
}
