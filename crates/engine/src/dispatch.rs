//! Dispatches commands: takes their locks, calls their handlers, commits their effects, and updates statistics.
//!
//! Only this module and the [fast path](super::fast_path) call handlers and take locks for them.

use super::engine::{Called, Engine, Keys, LONG_US};
use super::hot_keys::Used;
use super::invocation::{DataCall, Invocation, Recipient, ScriptContext};
use super::locking::{Confined, Scripts};
use super::permission::{Admitted, wrong_arity};
use super::yielding::Yield;
use crate::handlers::Handler;
use crate::session::{Client, Session, SessionHandler};
use crate::transactions::Control;
use kvick_commands::context::{Circumstances, Context, Error, Handler as DataHandler, Receiver, Settings};
use kvick_commands::spec::{Flags, LockRule};
use kvick_commands::table::CommandInfo;
use kvick_core::admission::Reasons;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::commandlog::Executed;
use kvick_durability::persistence;
use kvick_resp::{Args, Reply, ReplyBuffer};
use kvick_runtime::clock::{self, Ticks};
use kvick_store::{Db, Env, Key, Locked, WhenExpired};

/// The environment of a command that a client with these flags sent.
#[inline]
pub(super) fn of_client<'a>(
    env: Env<'a>,
    flags: ClientFlags,
    settings: &Settings,
    when_expired: WhenExpired,
) -> Env<'a> {
    env.touch(!flags.contains(ClientFlags::NO_TOUCH))
        .lazy_expire(settings.lazy_expire)
        .lazy_overwrite(settings.lazy_server_del)
        .when_expired(when_expired)
}

impl Engine {
    /// Runs a data command that has exactly one key, under that key's lock: the common case. Returns false when the
    /// command is blocked by a script or the request is no longer admitted.
    #[inline]
    pub(super) fn call_keyed(
        &mut self,
        client: &mut Client,
        admission: Admitted,
        handler: DataHandler,
        hash: u64,
        args: Args<'_>,
        out: &mut ReplyBuffer,
    ) -> bool {
        let (keyspace, start, command) = (self.server.keyspace, out.len(), admission.command());
        let Some(mut locked) = self.lock_hash(admission, client.db, hash) else { return false };
        let counted_slot = self.counted_slot(client, command, args);
        let bytes = command.single_key.and_then(|index| args.get(index)).unwrap_or_default();
        let hashed = [Key { bytes, hash }];
        let call = DataCall { handler, args, hashed: &hashed };
        let result = self.run_data(client, call, &mut locked, out);
        if self.effects.commit(&keyspace.log, args) {
            client.write_offset = keyspace.log.offset();
        }
        drop(locked);
        let reply_bytes = out.len() - start;
        let invocation = Invocation { command, args };
        let ticks = self.record_command(client, invocation, reply_bytes, result);
        self.count_slot(counted_slot, invocation, ticks, client.sent_bytes(reply_bytes));
        client.commands += 1;
        client.redacted = 0;
        true
    }

    /// Takes the locks that the command needs, and runs it.
    #[inline(never)]
    pub(super) fn call(
        &mut self,
        client: &mut Client,
        admission: Admitted,
        args: Args<'_>,
        yielder: &mut dyn Yield,
        out: &mut ReplyBuffer,
    ) -> Called {
        let (keyspace, start, position, command) =
            (self.server.keyspace, out.len(), out.position(), admission.command());
        let invocation = Invocation { command, args };
        let handler = self.handler(command);
        let counted_slot = self.counted_slot(client, command, args);
        if let Some(Handler::Control(control)) = handler {
            let Some(result) = self.control(client, control, admission, args, yielder, out) else {
                return Called::BlockedByScript;
            };
            let result = self.answer(client, result, out);
            if control != Control::Exec {
                self.monitor(client, invocation);
            }
            let reply_bytes = out.len() - start;
            let ticks = self.record_command(client, invocation, reply_bytes, result);
            self.count_slot(counted_slot, invocation, ticks, client.sent_bytes(reply_bytes));
            client.commands += 1;
            return Called::Done;
        }
        self.set_read_scope(client, command, args);
        let global = self.needs_global_lock(command, args);
        let keys = if global { Keys::new() } else { self.keys_of(command, args) };
        let mut confined = self.confined_code(client, handler, args).map(|code| (code, Confined::AtOnce));
        // Again if a script cannot be confined to its locks now, or at all.
        let (result, mut locked, scripts, entered) = loop {
            let scripts = self.settle_scripts(command, global, confined.as_ref().map(|(_, start)| *start));
            let Some(mut scripts) = scripts else { return Called::BlockedByScript };
            let locked = match global {
                true => self.lock_global(admission),
                false => self.lock_hashed(admission, client.db, &keys),
            };
            let Some(mut locked) = locked else { return Called::BlockedByScript };
            let entered = confined.as_ref().map(|(code, _)| self.enter_confined(code));
            if let Some(entered) = &entered {
                if entered.is_none() {
                    let again = confined.filter(|(_, start)| *start == Confined::AtOnce);
                    confined = again.map(|(code, _)| (code, Confined::AfterOthers));
                    continue;
                }
                scripts = Scripts::Any;
            }
            if admission.is_for_open_slot()
                && let Some(error) = self.redirect_open(client, invocation, &locked)
            {
                drop(locked);
                drop(scripts);
                if global {
                    self.enter();
                }
                self.effects.begin(false, kvick_store::EventClass::empty(), client.db);
                self.refuse(client, Some(invocation), &error, true, out);
                return Called::Done;
            }
            let result = match handler {
                Some(Handler::Data(handler)) => {
                    let call = DataCall { handler, args, hashed: &keys };
                    self.run_data(client, call, &mut locked, out)
                }
                Some(Handler::Session(handler)) => self.run_session(client, handler, args, &mut locked, out),
                Some(Handler::ScriptCall(script_call)) => {
                    let code = confined.as_ref().map(|(code, _)| &**code);
                    let context = ScriptContext { locked: &mut locked, yielder, confined: code };
                    self.run_script_call(client, script_call, args, context, out)
                }
                // A container without behavior of its own.
                Some(Handler::Control(_)) | None => self.answer(client, Err(wrong_arity(command)), out),
            };
            if !self.given_up {
                break (result, locked, scripts, entered);
            }
            (self.given_up, self.error_is_counted, confined) = (false, false, None);
            out.truncate(position);
            drop(locked);
            if self.ended_long_script {
                self.end_long_script();
            }
        };
        if client.tracking.is_some() {
            self.track_reads(&client.info, client.db, invocation, &mut locked);
        }
        let block = self.block.take();
        let waiter = block.map(|block| self.block_request(client, invocation, block, &mut locked));
        let waiter = waiter.or_else(|| {
            let waiter = self.waits.take()?;
            self.begin_pending(client, invocation);
            Some(waiter)
        });
        if self.effects.commit(&keyspace.log, args) {
            client.write_offset = keyspace.log.offset();
        }
        self.after_flushall(command, &result, &mut locked);
        if handler.is_some() {
            self.monitor(client, invocation);
        }
        drop(locked);
        drop((scripts, entered));
        if global {
            self.enter();
        }
        if let Some(waiter) = waiter {
            client.redacted = 0;
            return Called::Waits(waiter);
        }
        let reply_bytes = out.len() - start;
        let ticks = self.record_command(client, invocation, reply_bytes, result);
        self.count_slot(counted_slot, invocation, ticks, client.sent_bytes(reply_bytes));
        client.commands += 1;
        client.redacted = 0;
        if client.is_reset {
            self.end_reset(client);
        }
        Called::Done
    }

    pub(super) fn needs_global_lock(&self, command: &CommandInfo, args: Args<'_>) -> bool {
        match command.spec.lock {
            // SHUTDOWN: a long script may hold the global lock.
            _ if command.spec.flags.contains(Flags::ALLOW_BUSY) && self.is_busy() => false,
            LockRule::Keys => false,
            LockRule::Global => true,
            LockRule::GlobalIf(decide) => decide(args),
        }
    }

    /// The keys named by a command.
    pub(super) fn keys_of<'k>(&self, command: &CommandInfo, args: Args<'k>) -> Keys<'k> {
        if command.spec.keys.is_empty() && command.spec.find_keys.is_none() {
            return Keys::new();
        }
        if let Some(index) = command.single_key {
            return args.get(index).map(|key| self.server.keyspace.key(key)).into_iter().collect();
        }
        // If the arguments do not determine the key positions, the handler answers an error before it accesses a key.
        let positions = command.spec.key_positions(args).unwrap_or_default();
        let keys = positions.iter().filter_map(|position| args.get(position.index));
        keys.map(|key| self.server.keyspace.key(key)).collect()
    }

    #[inline]
    pub(super) fn run_data(
        &mut self,
        client: &Client,
        call: DataCall<'_>,
        locked: &mut Locked,
        out: &mut ReplyBuffer,
    ) -> Result<(), Error> {
        let recipient = Recipient { info: &client.info, db: client.db };
        let result = self.run_handler(recipient, call, locked, out.reply(client.version));
        self.answer(client, result, out)
    }

    /// Runs a handler for a client with a selected database, immediately or after a wait.
    #[inline]
    pub(super) fn run_handler(
        &mut self,
        recipient: Recipient<'_>,
        call: DataCall<'_>,
        locked: &mut Locked,
        reply: Reply<'_>,
    ) -> Result<(), Error> {
        let Recipient { info, db } = recipient;
        let (event_mask, is_logged, flags) = (self.event_mask(), self.is_logged(info), info.flags());
        self.effects.begin(is_logged, event_mask, db);
        let (circumstances, when_expired) = (self.circumstances(flags), self.when_expired(info));
        let settings = &self.runtime_config.commands;
        let env = Env::command(self.now_ms, &self.access, &self.stats.keyspace, &mut self.effects);
        let env = of_client(env, flags, settings, when_expired);
        let db = Db::new(locked, db, env).with_hashed(call.hashed);
        let mut context = Context::new(db, reply, settings, circumstances);
        let result = (call.handler)(&mut context, call.args);
        if result.is_err()
            && let Some(remark) = context.log_message.take()
        {
            kvick_runtime::logging::verbose(format_args!("{remark}"));
        }
        if let Some(block) = context.block {
            self.block = Some(block);
        }
        result
    }

    /// The circumstances of a command that now runs for a client with these flags.
    #[inline]
    pub(super) fn circumstances(&self, flags: ClientFlags) -> Circumstances {
        let in_script = self.script_us.is_some();
        let receiver = if in_script {
            Receiver::Server
        } else if flags.contains(ClientFlags::PUBSUB) {
            Receiver::Subscriber
        } else {
            Receiver::Client
        };
        Circumstances {
            receiver,
            may_block: !self.in_transaction,
            in_script,
            from_log: flags.intersects(ClientFlags::FROM_LOG | ClientFlags::SLOT_IMPORT),
            reads_every_key: self.reads_every_key,
        }
    }

    pub(super) fn run_session(
        &mut self,
        client: &mut Client,
        handler: SessionHandler,
        args: Args<'_>,
        locked: &mut Locked,
        out: &mut ReplyBuffer,
    ) -> Result<(), Error> {
        let (event_mask, is_logged) = (self.event_mask(), self.is_logged(&client.info));
        self.effects.begin(is_logged, event_mask, client.db);
        let when_expired = self.when_expired(&client.info);
        let mut session = Session {
            server: self.server,
            reply: out.reply(client.version),
            client,
            locked,
            effects: &mut self.effects,
            now_ms: self.now_ms,
            access: &self.access,
            when_expired,
            settings: &self.runtime_config.commands,
            in_transaction: self.in_transaction,
            script_us: self.script_us,
            executor: self.executor,
            stats: &self.stats,
            waits: &mut self.waits,
        };
        let result = handler(&mut session, args);
        // CONFIG SET takes effect starting with its own command.
        self.update_settings();
        self.answer(client, result, out)
    }

    /// Records FLUSHALL for snapshots and slot migrations.
    #[inline]
    pub(super) fn after_flushall(&self, command: &CommandInfo, result: &Result<(), Error>, locked: &mut Locked) {
        if result.is_ok() {
            self.end_migrations_after(command);
        }
        if command.spec.flags.contains(Flags::FLUSHES) && result.is_ok() && !self.server.admission.has(Reasons::LOADING)
        {
            persistence::after_flushall(self.server, locked, self.effects.dirty());
        }
    }

    /// Answers the error, if any.
    #[inline]
    pub(super) fn answer(
        &self,
        client: &Client,
        result: Result<(), Error>,
        out: &mut ReplyBuffer,
    ) -> Result<(), Error> {
        if let Err(error) = &result {
            out.reply(client.version).error(error.bytes());
        }
        result
    }

    /// Appends the part of the primary's current request that no handler committed: see
    /// [`Effects::repeat`](kvick_store::Effects::relay).
    pub fn commit_verbatim(&mut self) {
        self.effects.commit_verbatim(&self.server.keyspace.log);
    }

    /// Whether effects of this client's commands go to the write log. False for commands that come from the log.
    #[inline]
    pub(super) fn is_logged(&self, client: &ClientInfo) -> bool {
        self.server.keyspace.log.has_readers() && !client.is_from_log()
    }

    /// How commands of this client treat expired keys.
    #[inline]
    pub(super) fn when_expired(&self, client: &ClientInfo) -> WhenExpired {
        if client.is_replicated() {
            return WhenExpired::ImportSource;
        }
        if self.server.replication.upstream.is_replica() {
            // The primary decides when keys expire.
            return WhenExpired::Import;
        }
        if self.runtime_config.import_mode {
            let source = client.flags().contains(ClientFlags::IMPORT_SOURCE);
            return if source { WhenExpired::ImportSource } else { WhenExpired::Import };
        }
        if self.server.pause.blocks_writes(self.now_ms) { WhenExpired::Keep } else { WhenExpired::Drop }
    }

    /// Updates statistics, and adds the command to the slow log and its keys to the hot keys if needed. Returns its
    /// duration in ticks.
    #[inline]
    pub(super) fn record_command(
        &mut self,
        client: &Client,
        invocation: Invocation<'_>,
        reply_bytes: usize,
        result: Result<(), Error>,
    ) -> u64 {
        let Invocation { command, args } = invocation;
        let ticks = self.count(command, self.last, &result);
        let executed = Executed { error: result.as_ref().err().map(Error::bytes), ..client.executed(args) };
        self.offer_to_logs(executed, command, ticks, reply_bytes);
        self.count_for_sample(&client.info, client.db, invocation, Used { ticks, reply_bytes });
        ticks
    }

    /// Checks whether an executed command belongs in the slow log or a large command log.
    #[inline]
    pub(super) fn offer_to_logs(
        &mut self,
        executed: Executed<'_>,
        command: &CommandInfo,
        ticks: u64,
        reply_bytes: usize,
    ) {
        if ticks >= self.runtime_config.slow_ticks {
            self.log_slow(executed, command, clock::ticks_to_us(ticks));
        }
        if reply_bytes >= self.runtime_config.large_reply_bytes
            || executed.bytes_max() >= self.runtime_config.large_request_bytes
        {
            self.log_large(executed, command, reply_bytes);
        }
    }

    /// Counts a command that started at `began` and has just ended. Returns its duration in ticks.
    #[inline]
    pub(super) fn count(&mut self, command: &CommandInfo, began: Ticks, result: &Result<(), Error>) -> u64 {
        let now = Ticks::now();
        let ticks = now.since(began);
        self.last = now;
        self.stats.count(command.id, ticks, self.effects.dirty(), self.runtime_config.latency_tracking);
        if let Err(error) = result {
            let is_counted = std::mem::take(&mut self.error_is_counted);
            self.stats.count_failure(command.id, (!is_counted).then_some(error.bytes()));
        }
        ticks
    }

    #[cold]
    fn log_slow(&mut self, executed: Executed<'_>, command: &CommandInfo, us: u64) {
        if us >= LONG_US && self.script_us.is_none() {
            self.update_date();
        }
        if !command.spec.flags.contains(Flags::SKIP_COMMANDLOG) {
            self.server.commandlog.record_slow(us, executed, &self.runtime_config.commandlog);
        }
        let event = if command.spec.flags.contains(Flags::FAST) { "fast-command" } else { "command" };
        self.server.latency.record(event, us / 1000, self.runtime_config.latency_threshold_ms);
    }

    #[cold]
    fn log_large(&self, executed: Executed<'_>, command: &CommandInfo, reply_bytes: usize) {
        if !command.spec.flags.contains(Flags::SKIP_COMMANDLOG) {
            let (log, thresholds) = (&self.server.commandlog, &self.runtime_config.commandlog);
            log.record_request(executed, thresholds);
            log.record_reply(reply_bytes, executed, thresholds);
        }
    }
}
