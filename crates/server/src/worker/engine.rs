//! Runs one request: checks, locks, handler, write log, statistics.
//!
//! Here and in the [lane](super::lane) alone handlers are called and locks are taken for them. The order of the checks is Valkey's,
//! since clients see which error comes first.

use super::batch::Asks;
use super::cross_protocol;
use super::evicting::Evicting;
use super::program::{Attend, Scratch};
use super::transaction::{Control, is_exec};
use crate::acl::identity::note_denied;
use crate::acl::log::Context as AclContext;
use crate::acl::{Denied, User};
use crate::clients::{ClientFlags, ClientInfo};
use crate::clock::{self, Ticks};
use crate::commandlog::{Executed, TakenArgument};
use crate::commands::pubsub::subscribe::is_listening;
use crate::inbox::Inbox;
use crate::monitor::Lines;
use crate::persistence::{self, gate};
use crate::pubsub::events::Publisher;
use crate::scripting::scripts::RecentSum;
use crate::server::{Server, Tunables};
use crate::session::{Client, Fate, ReplyMode, Session, SessionHandler};
use crate::stats::WorkerStats;
use crate::table::{Handler, Registered, Resolved};
use crate::tracking::broadcast::Changed;
use kvick_commands::context::{Block, Context, Error, Handler as DataHandler, Receiver};
use kvick_commands::spec::{Flags, LockRule};
use kvick_resp::{Args, ProtocolError, Reply, Version};
use kvick_store::world::{Alone, Participant, Resident};
use kvick_store::{Access, Db, Effects, Env, EventClass, Key, Locked, Waiter, WhenExpired};
use smallvec::SmallVec;
use std::sync::Arc;

/// The keys of one command.
pub(super) type Keys<'k> = SmallVec<[Key<'k>; 4]>;

/// A command that takes longer than this makes the worker read the clock again.
const LONG_US: u64 = 500;
/// Turns within this time share what they know of the date.
const DATE_US: u64 = 100;

/// What a worker executes with.
pub struct Engine {
    /// The server.
    pub server: &'static Server,
    /// The worker's number.
    pub worker: usize,
    /// Its counters.
    pub stats: Arc<WorkerStats>,
    /// Its flag in the world lock.
    pub participant: Participant,
    /// What it knows of visitors, if it is the only worker.
    pub(super) resident: Option<Resident>,
    /// Whether nobody else is in a batch.
    pub(super) alone: Option<Alone>,
    /// Its copy of the settings.
    pub tunables: Arc<Tunables>,
    /// Unix time in ms, as of the turn's beginning or the last long command.
    pub now_ms: i64,
    /// How access to keys is recorded.
    pub access: Access,
    pub(super) effects: Effects,
    /// A request was not executed since what it was allowed on changed while it waited for its locks.
    pub(super) outdated: bool,
    /// Publishes keyspace events.
    events: Arc<Publisher>,
    /// What the present command waits for, if it asked to.
    pub(super) block: Option<Block>,
    /// What the client of the present session command waits for, if it does.
    waits: Option<Arc<Waiter>>,
    /// The keys that commands have changed, for clients that are told of prefixes.
    pub(super) changed: Changed,
    /// Most keys of which it was forgotten in the last turn who has read them, as there were too many.
    pub(super) forgotten_in_turn: usize,
    /// Lines for monitors that are not ready to be shown.
    pub(super) shown: Lines,
    /// Whether a transaction or a script is being executed, in which no command may wait.
    pub(super) in_transaction: bool,
    /// What TIME tells the script that is being executed, as Unix time in microseconds: when it began, and later when others
    /// were last attended to.
    pub(super) script_us: Option<i64>,
    /// Requests of this worker that wait for a script to end.
    pub(super) held: usize,
    /// Whether a script has ended just now that others knew of: what it held may be waited for.
    pub(super) ended_long_script: bool,
    /// Whether the error of the present command was counted already, as that of one that its script called.
    pub(super) error_is_counted: bool,
    /// The script of EVAL that came last, with its sum.
    pub(super) recent_sum: RecentSum,
    /// Buffers for the commands that scripts call.
    pub(super) scratch: Scratch,
    /// Whether the present command may read keys that it does not name; of no meaning for those that read no others.
    reads_every_key: bool,
    /// Whether this process is a copy of the server in which a script is debugged.
    pub(super) is_copy: bool,
    /// Whether the worker is within a batch, and so nobody has the world.
    pub(super) in_batch: bool,
    /// What it does about limits of memory.
    pub(super) evicting: Evicting,
    pub(super) last: Ticks,
    /// When `now_ms` was read.
    dated: Ticks,
}

/// A request that is being executed.
pub(super) struct Call<'a> {
    pub(super) client: &'a Client,
    pub(super) command: &'static Registered,
    pub(super) args: Args<'a>,
}

/// Whether a request was executed.
pub enum Outcome {
    /// It was, or answered an error.
    Done,
    /// It is to be executed once more, after what is in the worker's inbox is delivered.
    Again,
    /// It has to wait for the end of CLIENT PAUSE.
    Paused,
    /// It has to wait for a script that holds what it needs.
    Held,
    /// This command, which came after that, may run a script: it has to be [executed](Engine::execute_program) apart from the worker.
    Program(&'static Registered, u32),
    /// It waits for a key, and will be answered later.
    Waits(Arc<Waiter>),
}

/// What became of a command.
pub(super) enum Called {
    /// It ran.
    Done,
    /// A script holds what it needs; nothing has happened.
    Held,
    /// It waits for a key.
    Waits(Arc<Waiter>),
}

impl Engine {
    /// A worker's engine.
    pub fn new(server: &'static Server, worker: usize, stats: Arc<WorkerStats>, participant: Participant) -> Self {
        let events = Arc::new(Publisher::new(server, worker));
        let mut engine = Engine {
            server,
            worker,
            stats,
            participant,
            resident: None,
            alone: None,
            tunables: server.tunables(),
            now_ms: 0,
            access: Access::default(),
            effects: Effects::with_listener(events.clone()),
            outdated: false,
            events,
            block: None,
            waits: None,
            changed: Changed::default(),
            forgotten_in_turn: 0,
            shown: Lines::default(),
            in_transaction: false,
            script_us: None,
            held: 0,
            ended_long_script: false,
            error_is_counted: false,
            recent_sum: RecentSum::default(),
            scratch: Scratch::default(),
            reads_every_key: true,
            is_copy: false,
            in_batch: false,
            evicting: Evicting::new(worker),
            last: Ticks::now(),
            dated: Ticks::now(),
        };
        engine.apply_settings();
        engine.update_date();
        engine
    }

    /// Reads the clock, and the settings if they changed; the present point in time.
    pub fn update_clock(&mut self) -> Ticks {
        self.last = Ticks::now();
        if self.last.us_since(self.dated) >= DATE_US {
            self.update_date();
        }
        self.update_settings();
        self.last
    }

    /// Reads what time it is for keys that expire.
    fn update_date(&mut self) {
        self.dated = Ticks::now();
        self.now_ms = clock::unix_ms();
        self.access.set_now(self.now_ms);
    }

    /// Begins a batch: what was read took time that is no command's, and settings that changed before the requests were
    /// sent hold for them.
    pub fn begin_batch(&mut self) {
        let now = Ticks::now();
        if now.us_since(self.last) >= LONG_US {
            self.update_date();
        }
        self.last = now;
        self.evicting.begin_batch();
        self.update_settings();
    }

    #[inline]
    fn update_settings(&mut self) {
        if self.tunables.generation != self.server.config_generation() {
            self.tunables = self.server.tunables();
            self.apply_settings();
        }
    }

    fn apply_settings(&mut self) {
        self.access.lfu = self.tunables.commands.lfu;
        self.access.lfu_log_factor = self.tunables.lfu_log_factor;
        self.access.lfu_decay_minutes = self.tunables.lfu_decay_minutes;
        self.events.set_channels(self.tunables.keyspace_events);
        self.renew_eviction();
    }

    /// The classes of keyspace events that somebody may hear of, and whether all changes are noted.
    #[inline]
    pub(super) fn heard(&self) -> EventClass {
        self.server.heard(self.tunables.heard_events)
    }

    /// What the worker has yet to deliver.
    #[inline]
    pub(super) fn inbox(&self) -> &'static Inbox {
        self.server.inboxes.of(self.worker)
    }

    /// Scratch space for background work between batches.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    /// Runs a request and appends its reply to `out`. `taken` is the large argument that the command keeps.
    #[inline]
    pub fn execute(
        &mut self,
        client: &mut Client,
        args: Args<'_>,
        asks: Asks,
        taken: &mut Option<Vec<u8>>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        // It may take long.
        self.receive_visitors();
        let start = out.len();
        let (command, hash) = match asks {
            Asks::For(command, hash) => (command, hash),
            _ => match self.resolve(client, args, asks, out) {
                Some(command) => (command, None),
                None => return self.finish(client, start, out),
            },
        };
        let previous = std::mem::replace(&mut client.last_command, command.id);
        let plain = self.is_plainly_allowed(client, command, args);
        if !plain {
            if self.server.persistence.gate.has(gate::ENDING) {
                // What it did would be in no dump.
                client.fate = Fate::Close;
                return self.finish(client, start, out);
            }
            // When a script has had the world for too long, what needs nothing of that goes on without a batch.
            let shut_out = !self.in_batch && !self.enter() && !command.spec.flags.contains(Flags::ALLOW_BUSY);
            if self.is_held_by_script(client, command) {
                return Outcome::Held;
            }
            if shut_out {
                return self.conclude(client, (command, args), Called::Held, start, out);
            }
            let gone = !client.renew_rights(self.server);
            let limited = self.server.persistence.gate.has(gate::LIMITED) && !self.is_busy();
            if gone || limited && !self.mind_memory(client, args, taken.as_deref()) {
                client.fate = Fate::Close;
                return self.finish(client, start, out);
            }
            if client.tracking.is_some() && self.effects.concern_others() && !self.is_busy() {
                // What was evicted just now is not what the command will read, and has to be told before.
                self.settle_consequences();
                client.last_command = previous;
                return Outcome::Again;
            }
            if self.server.is_handing_over()
                && gate::redirects(self.server, &client.info, self.flags_asked(client, command, args))
            {
                // Where to is known when the replica has taken over.
                return Outcome::Paused;
            }
            if client.feed.is_some() && super::feeding::is_out_of_place(client, command) {
                client.fate = Fate::Close;
                return self.finish(client, start, out);
            }
            if let Some(error) = self.objection(client, command, args) {
                self.refuse(client, Some((command, args)), &error, out);
                return self.finish(client, start, out);
            }
        }
        if !plain && client.is_primary() {
            // What the primary did is done.
        } else if self.server.pause.is_there() && self.is_paused(client, command, args) {
            return Outcome::Paused;
        }
        if !plain && client.is_queueing(command) {
            self.queue(client, command, args, taken.take(), out);
            return self.finish(client, start, out);
        }
        let called = match (hash, command.handler) {
            (Some(hash), Some(Handler::Data(handler))) if taken.is_none() && (plain || self.is_unobserved(client)) => {
                match self.call_keyed(client, command, handler, hash, args, out) {
                    true => Called::Done,
                    false => Called::Held,
                }
            }
            _ if client.may_run_program(command) => return Outcome::Program(command, previous),
            _ if client.tracking.is_none() => self.call(client, command, args, taken, &mut (), out),
            _ => self.call_tracked(client, previous, (command, args), taken, &mut (), out),
        };
        self.conclude(client, (command, args), called, start, out)
    }

    /// Executes a request that may run a script. `attendant` serves others while a script takes long.
    pub(crate) fn execute_program(
        &mut self,
        client: &mut Client,
        (command, previous): (&'static Registered, u32),
        args: Args<'_>,
        attendant: &mut dyn Attend,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let start = out.len();
        loop {
            let called = match client.tracking {
                None => self.call(client, command, args, &mut None, attendant, out),
                Some(_) => self.call_tracked(client, previous, (command, args), &mut None, attendant, out),
            };
            match self.conclude(client, (command, args), called, start, out) {
                Outcome::Again => {}
                outcome => return outcome,
            }
            if let Some(error) = self.objection(client, command, args) {
                self.refuse(client, Some((command, args)), &error, out);
                return self.finish(client, start, out);
            }
        }
    }

    /// What is to be done after a command.
    #[inline]
    fn conclude(
        &mut self,
        client: &mut Client,
        (command, args): (&'static Registered, Args<'_>),
        called: Called,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Outcome {
        match called {
            Called::Done if self.ended_long_script => self.end_long_script(),
            Called::Done => {}
            // What it was allowed on has changed while it waited.
            Called::Held if std::mem::take(&mut self.outdated) => return Outcome::Again,
            Called::Held => match self.busy_error() {
                Some(error)
                    if !command.spec.flags.contains(Flags::ALLOW_BUSY)
                        && !client.is_primary()
                        && !self.is_held_by_script(client, command) =>
                {
                    self.refuse(client, Some((command, args)), &error, out);
                }
                _ => return Outcome::Held,
            },
            Called::Waits(waiter) => return Outcome::Waits(waiter),
        }
        if self.effects.concern_others() {
            self.settle_consequences();
        }
        self.finish(client, start, out)
    }

    /// Has the workers go on with the requests that had to wait for a script. Called without its locks.
    #[cold]
    fn end_long_script(&mut self) {
        self.ended_long_script = false;
        self.server.send_all(|| super::Message::Resume);
    }

    /// Finds out what a request asks for that could not be told from its first word, or answers that it is nothing.
    #[inline(never)]
    fn resolve(
        &mut self,
        client: &mut Client,
        args: Args<'_>,
        asks: Asks,
        out: &mut Vec<u8>,
    ) -> Option<&'static Registered> {
        if let Asks::Broken(error) = asks {
            self.break_off(client, error, out);
            return None;
        }
        let error = match self.server.table.resolve(args) {
            Resolved::Command(command) => return Some(command),
            Resolved::Unknown if cross_protocol::is_http(args) => {
                cross_protocol::warn(client, self.now_ms);
                client.fate = Fate::Close;
                return None;
            }
            // Who has not logged in learns nothing about commands.
            _ if client.must_log_in(self.server) => MUST_LOG_IN,
            Resolved::Unknown => unknown_command(args),
            Resolved::UnknownSubcommand(container) => unknown_subcommand(container, args),
        };
        self.refuse(client, None, &error, out);
        None
    }

    /// Whether nobody has to be shown a client's command, and the client need not be told later of what it reads.
    #[inline]
    fn is_unobserved(&self, client: &Client) -> bool {
        client.tracking.is_none() && !self.is_monitored()
    }

    /// What holds for nearly all requests, and is enough for them to run.
    #[inline]
    fn is_plainly_allowed(&self, client: &Client, command: &Registered, args: Args<'_>) -> bool {
        // Looked at together, not one after the other.
        let unusual = client.transaction.is_some() | client.tracking.is_some() | client.only_listens();
        let ready = (client.is_free(&self.server.persistence.gate) & self.in_batch) && !unusual;
        command.spec.accepts(args.len()) && ready && !command.spec.flags.contains(Flags::PROTECTED)
    }

    /// Why a command may not run.
    #[cold]
    fn objection(&mut self, client: &Client, command: &Registered, args: Args<'_>) -> Option<Error> {
        if client.must_log_in(self.server) && !command.spec.flags.contains(Flags::NO_AUTH) {
            return Some(MUST_LOG_IN);
        }
        if !command.spec.accepts(args.len()) {
            return Some(wrong_arity(command));
        }
        if client.is_primary() {
            return None;
        }
        if command.spec.flags.contains(Flags::PROTECTED)
            && let Some(refusal) = self.server.protected_refusal(client, command)
        {
            return Some(refusal);
        }
        if client.transaction.is_some() && command.spec.flags.contains(Flags::NO_MULTI) {
            return Some(Error::new(format!("ERR Command '{}' not allowed inside a transaction", command.full_name)));
        }
        if let Err(denied) = self.permits(client, command, args) {
            let context = if client.transaction.is_some() { AclContext::Multi } else { AclContext::TopLevel };
            client.publish();
            self.note_denied(&client.info, &client.identity.user, (denied, context), (command, args));
            return Some(denied.error(&client.identity.user, command));
        }
        let confined =
            || (client.only_listens() && !allowed_to_listeners(command)).then(|| not_while_listening(command));
        let flags = self.flags_asked(client, command, args);
        let short = || {
            (self.is_out_of_memory() && flags.contains(Flags::DENYOOM))
                .then(|| Error::text("OOM command not allowed when used memory > 'maxmemory'."))
        };
        let uses_keys = flags.intersects(Flags::READONLY | Flags::WRITE | Flags::MAY_REPLICATE);
        let monitors = || {
            (client.is_monitor() && uses_keys).then_some(Error::text("ERR Replica can't interact with the keyspace"))
        };
        let elsewhere = || gate::redirection(self.server, &client.info, flags);
        let closed = || elsewhere().or_else(|| gate::objection(self.server, command, flags));
        let busy = || if self.concerns_script(client, command) { self.busy_error() } else { None };
        confined().or_else(short).or_else(closed).or_else(busy).or_else(monitors)
    }

    /// Whether a client's user may run a command now, in the database that is selected. Refusals are for the caller to
    /// tell and to [note](Self::note_denied).
    #[inline]
    pub fn permits(&self, client: &Client, command: &Registered, args: Args<'_>) -> Result<(), Denied> {
        client.check(self.server, command, args)
    }

    /// Counts a refused command, and has ACL LOG show it.
    #[cold]
    pub fn note_denied(
        &self,
        info: &ClientInfo,
        user: &User,
        denied: (Denied, AclContext),
        request: (&Registered, Args<'_>),
    ) {
        note_denied(self.server, info, user, denied, request, self.now_ms);
    }

    /// Finds out what a command that is about to run may read besides the keys that it names. Has to be called before each
    /// command that may come across others.
    #[inline]
    pub fn confine(&mut self, client: &Client, command: &Registered, args: Args<'_>) {
        self.reads_every_key = client.is_unrestricted() || client.reads_every_key(self.server, command, args);
    }

    /// A request broke the protocol: tells the client why, and has it closed.
    #[cold]
    fn break_off(&mut self, client: &mut Client, error: ProtocolError, out: &mut Vec<u8>) {
        if error != ProtocolError::UnexpectedInline {
            let text = [b"ERR ", &error.text()[..]].concat();
            self.stats.count_error(&text);
            Reply::new(out, client.version).error(text);
        }
        client.fate = Fate::CloseAfterReply;
    }

    pub(super) fn refuse(
        &mut self,
        client: &mut Client,
        request: Option<(&Registered, Args<'_>)>,
        error: &Error,
        out: &mut Vec<u8>,
    ) {
        if let Some((command, _)) = request {
            self.stats.commands[command.id as usize].rejected.add(1);
        }
        let aborted = match request {
            Some((command, args)) if is_exec(command) => {
                self.show(client, command, args);
                Some(self.abort_transaction(client, error))
            }
            _ => None,
        };
        if let Some(transaction) = &mut client.transaction {
            transaction.abort();
        }
        self.tell(client, aborted.as_ref().unwrap_or(error), out);
    }

    pub(super) fn tell(&self, client: &Client, error: &Error, out: &mut Vec<u8>) {
        self.stats.count_error(error.0.as_bytes());
        Reply::new(out, client.version).error(error.0.as_bytes());
    }

    /// Runs a data command that has exactly one key, under that key's lock: the case worth being fast for. False when a
    /// script has that.
    #[inline]
    fn call_keyed(
        &mut self,
        client: &mut Client,
        command: &'static Registered,
        handler: DataHandler,
        hash: u64,
        args: Args<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let (keyspace, start) = (self.server.keyspace, out.len());
        let Some(mut locked) = self.lock_hash(client.db, hash) else { return false };
        let bytes = command.single_key.and_then(|index| args.get(index)).unwrap_or_default();
        let known = (args, &[Key { bytes, hash }][..]);
        let result = self.run_data(client, handler, known, None, &mut locked, out);
        if self.effects.commit(&keyspace.log, args) {
            client.write_offset = keyspace.log.offset();
        }
        drop(locked);
        self.account(Executed::by(client, args, None), command, out.len() - start, result);
        client.commands += 1;
        client.redacted = 0;
        true
    }

    /// Takes the locks that the command asks for, and runs it.
    #[inline(never)]
    pub(super) fn call(
        &mut self,
        client: &mut Client,
        command: &'static Registered,
        args: Args<'_>,
        taken: &mut Option<Vec<u8>>,
        attendant: &mut dyn Attend,
        out: &mut Vec<u8>,
    ) -> Called {
        let (keyspace, start) = (self.server.keyspace, out.len());
        if let Some(Handler::Control(control)) = command.handler {
            let Some(result) = self.control(client, control, command, args, attendant, out) else {
                return Called::Held;
            };
            let result = self.answer(client, result, out);
            if control != Control::Exec {
                self.show(client, command, args);
            }
            self.account(Executed::by(client, args, None), command, out.len() - start, result);
            client.commands += 1;
            return Called::Done;
        }
        self.confine(client, command, args);
        let world = self.needs_world(command, args);
        let Some(scripts) = self.settle_scripts(command, world) else { return Called::Held };
        let keys = if world { Keys::new() } else { self.keys_of(command, args) };
        let locked = if world { self.lock_world() } else { self.lock_hashed(client.db, &keys) };
        let Some(mut locked) = locked else { return Called::Held };
        let taken_head = self.remember_taken(command, taken.as_deref());
        let result = match command.handler {
            Some(Handler::Data(handler)) => {
                self.run_data(client, handler, (args, &keys), taken.take(), &mut locked, out)
            }
            Some(Handler::Session(handler)) => self.run_session(client, handler, args, &mut locked, out),
            Some(Handler::Program(program)) => self.run_program(client, program, args, &mut locked, attendant, out),
            // A container that has nothing to do by itself.
            Some(Handler::Control(_)) | None => self.answer(client, Err(wrong_arity(command)), out),
        };
        if client.tracking.is_some() {
            self.remember_reads(&client.info, client.db, (command, args), &mut locked);
        }
        let block = self.block.take();
        let waiter = block.map(|block| self.begin_waiting(&Call { client, command, args }, block, &mut locked));
        let waiter = waiter.or_else(|| self.waits.take());
        if self.effects.commit(&keyspace.log, args) {
            client.write_offset = keyspace.log.offset();
        }
        self.after_flushall(command, &result, &mut locked);
        if command.handler.is_some() {
            self.show(client, command, args);
        }
        drop(locked);
        drop(scripts);
        if world {
            self.enter();
        }
        if let Some(waiter) = waiter {
            client.redacted = 0;
            return Called::Waits(waiter);
        }
        let executed = Executed::by(client, args, taken_head.as_ref());
        self.account(executed, command, out.len() - start, result);
        client.commands += 1;
        client.redacted = 0;
        if client.is_reset {
            self.end_reset(client);
        }
        Called::Done
    }

    /// What the logs need of a large argument that the command may keep.
    #[inline]
    fn remember_taken(&self, command: &Registered, taken: Option<&[u8]>) -> Option<TakenArgument> {
        Some(TakenArgument::new(command.spec.takes?, taken?))
    }

    pub(super) fn needs_world(&self, command: &Registered, args: Args<'_>) -> bool {
        match command.spec.lock {
            // SHUTDOWN: a script that takes too long may have the world.
            _ if command.spec.flags.contains(Flags::ALLOW_BUSY) && self.is_busy() => false,
            LockRule::Keys => false,
            LockRule::World => true,
            LockRule::WorldIf(decide) => decide(args),
        }
    }

    /// The keys that a command names.
    pub(super) fn keys_of<'k>(&self, command: &Registered, args: Args<'k>) -> Keys<'k> {
        if command.spec.keys.is_empty() && command.spec.find_keys.is_none() {
            return Keys::new();
        }
        // Arguments that do not say where the keys are make the handler answer an error before it looks at any.
        let positions = command.spec.key_positions(args).unwrap_or_default();
        let keys = positions.iter().filter_map(|position| args.get(position.index));
        keys.map(|key| self.server.keyspace.key(key)).collect()
    }

    #[inline]
    pub(super) fn run_data(
        &mut self,
        client: &Client,
        handler: DataHandler,
        (args, hashed): (Args<'_>, &[Key<'_>]),
        taken: Option<Vec<u8>>,
        locked: &mut Locked,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let for_client = (client.info.as_ref(), client.db, client.version);
        let result = self.run_handler(for_client, handler, (args, hashed), taken, locked, out);
        self.answer(client, result, out)
    }

    /// Runs a handler for a client with a selected database and a protocol, whether the request came just now or waited.
    #[inline]
    pub(super) fn run_handler(
        &mut self,
        (client, db, version): (&ClientInfo, usize, Version),
        handler: DataHandler,
        (args, hashed): (Args<'_>, &[Key<'_>]),
        taken: Option<Vec<u8>>,
        locked: &mut Locked,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let (heard, is_logged, flags) = (self.heard(), self.is_logged(client), client.flags());
        self.effects.begin(is_logged, heard, db);
        let env = Env {
            now_ms: self.now_ms,
            access: &self.access,
            touch: !flags.contains(ClientFlags::NO_TOUCH),
            lazy_expire: self.tunables.commands.lazy_expire,
            lazy_overwrite: self.tunables.commands.lazy_server_del,
            when_expired: self.when_expired(client),
            counters: &self.stats.keyspace,
            effects: &mut self.effects,
        };
        let db = Db::new(locked, db, env).with_hashed(hashed);
        let reply = Reply::new(out, version);
        let settings = &self.tunables.commands;
        let (may_block, in_script, reads_every_key) =
            (!self.in_transaction, self.script_us.is_some(), self.reads_every_key);
        let receiver = if in_script {
            Receiver::Server
        } else if flags.contains(ClientFlags::PUBSUB) {
            Receiver::Subscriber
        } else {
            Receiver::Client
        };
        let from_log = flags.contains(ClientFlags::FROM_LOG);
        let mut context = Context {
            db,
            reply,
            taken,
            settings,
            receiver,
            may_block,
            in_script,
            from_log,
            reads_every_key,
            block: None,
            remark: None,
        };
        let result = handler(&mut context, args);
        if result.is_err()
            && let Some(remark) = context.remark.take()
        {
            crate::logging::verbose(format_args!("{remark}"));
        }
        if let Some(block) = context.block {
            self.block = Some(block);
        }
        result
    }

    pub(super) fn run_session(
        &mut self,
        client: &mut Client,
        handler: SessionHandler,
        args: Args<'_>,
        locked: &mut Locked,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let (heard, is_logged) = (self.heard(), self.is_logged(&client.info));
        self.effects.begin(is_logged, heard, client.db);
        let when_expired = self.when_expired(&client.info);
        let mut session = Session {
            server: self.server,
            reply: Reply::new(out, client.version),
            client,
            locked,
            effects: &mut self.effects,
            now_ms: self.now_ms,
            access: &self.access,
            when_expired,
            settings: &self.tunables.commands,
            in_transaction: self.in_transaction,
            script_us: self.script_us,
            worker: self.worker,
            stats: &self.stats,
            waits: &mut self.waits,
        };
        let result = handler(&mut session, args);
        // CONFIG SET holds from itself on.
        self.update_settings();
        self.answer(client, result, out)
    }

    /// Has dumps know of FLUSHALL.
    #[inline]
    pub(super) fn after_flushall(&self, command: &Registered, result: &Result<(), Error>, locked: &mut Locked) {
        if command.spec.name == "flushall" && result.is_ok() && !self.server.persistence.gate.has(gate::LOADING) {
            persistence::after_flushall(self.server, locked, self.effects.dirty());
        }
    }

    /// Answers the error, if it is one.
    #[inline]
    pub(super) fn answer(&self, client: &Client, result: Result<(), Error>, out: &mut Vec<u8>) -> Result<(), Error> {
        if let Err(error) = &result {
            Reply::new(out, client.version).error(error.0.as_bytes());
        }
        result
    }

    /// Appends what the present request of a primary's did not commit: see [`Effects::repeat`].
    pub fn commit_verbatim(&mut self) {
        self.effects.commit_verbatim(&self.server.keyspace.log);
    }

    /// Whether what a command of this client does goes to the write log: not if it comes from there.
    #[inline]
    pub(super) fn is_logged(&self, client: &ClientInfo) -> bool {
        self.server.keyspace.log.followed() && !client.is_from_log()
    }

    /// What becomes of expired keys that a command of this client meets.
    #[inline]
    pub(super) fn when_expired(&self, client: &ClientInfo) -> WhenExpired {
        if client.is_from_log() {
            return WhenExpired::ImportSource;
        }
        if self.server.replication.upstream.is_replica() {
            // The primary says when keys go.
            return WhenExpired::Import;
        }
        if self.tunables.import_mode {
            let source = client.flags().contains(ClientFlags::IMPORT_SOURCE);
            return if source { WhenExpired::ImportSource } else { WhenExpired::Import };
        }
        if self.server.pause.keeps_data(self.now_ms) { WhenExpired::Keep } else { WhenExpired::Drop }
    }

    /// Statistics, and the logs of slow commands.
    #[inline]
    pub(super) fn account(
        &mut self,
        executed: Executed<'_>,
        command: &Registered,
        reply_bytes: usize,
        result: Result<(), Error>,
    ) {
        let ticks = self.count(command, self.last, &result);
        self.offer_to_logs(executed, command, ticks, reply_bytes);
    }

    /// Looks whether a command that was executed is one that the logs are for.
    #[inline]
    pub(super) fn offer_to_logs(
        &mut self,
        executed: Executed<'_>,
        command: &Registered,
        ticks: u64,
        reply_bytes: usize,
    ) {
        if ticks >= self.tunables.slow_ticks {
            self.slow(executed, command, clock::ticks_to_us(ticks));
        }
        if reply_bytes >= self.tunables.large_reply_bytes || executed.bytes_max() >= self.tunables.large_request_bytes {
            self.large(executed, command, reply_bytes);
        }
    }

    /// Counts a command that began to run then and has ended now; how many ticks it took.
    #[inline]
    pub(super) fn count(&mut self, command: &Registered, began: Ticks, result: &Result<(), Error>) -> u64 {
        let now = Ticks::now();
        let ticks = now.since(began);
        self.last = now;
        self.stats.count(command.id, ticks, self.effects.dirty(), self.tunables.latency_tracking);
        if let Err(error) = result {
            let is_counted = std::mem::take(&mut self.error_is_counted);
            self.stats.count_failure(command.id, (!is_counted).then_some(error.0.as_bytes()));
        }
        ticks
    }

    #[cold]
    fn slow(&mut self, executed: Executed<'_>, command: &Registered, us: u64) {
        if us >= LONG_US && self.script_us.is_none() {
            self.update_date();
        }
        if !command.spec.flags.contains(Flags::SKIP_COMMANDLOG) {
            self.server.commandlog.offer_slow(us, executed, &self.tunables.commandlog);
        }
        let event = if command.spec.flags.contains(Flags::FAST) { "fast-command" } else { "command" };
        self.server.latency.record(event, us / 1000, self.tunables.latency_threshold_ms);
    }

    #[cold]
    fn large(&self, executed: Executed<'_>, command: &Registered, reply_bytes: usize) {
        if !command.spec.flags.contains(Flags::SKIP_COMMANDLOG) {
            let (log, thresholds) = (&self.server.commandlog, &self.tunables.commandlog);
            log.offer_request(executed, thresholds);
            log.offer_reply(reply_bytes, executed, thresholds);
        }
    }

    /// Applies CLIENT REPLY to what was written since `start`.
    #[inline]
    pub(super) fn finish(&mut self, client: &mut Client, start: usize, out: &mut Vec<u8>) -> Outcome {
        // Pushes are no replies, and are sent even if those are not.
        let pushed = std::mem::take(&mut client.answered_by_pushes);
        let silenced = if pushed { out.len() } else { start };
        match client.reply_mode {
            ReplyMode::On => {}
            ReplyMode::Off => out.truncate(silenced),
            ReplyMode::Skip => {
                out.truncate(silenced);
                client.reply_mode = ReplyMode::On;
            }
            ReplyMode::SkipNext => client.reply_mode = ReplyMode::Skip,
        }
        if client.fate == Fate::Close {
            out.truncate(start);
        }
        Outcome::Done
    }
}

const MUST_LOG_IN: Error = Error::text("NOAUTH Authentication required.");

/// Whether a client may ask for this while it is subscribed to something and speaks RESP2, in which replies and messages
/// cannot be told apart.
fn allowed_to_listeners(command: &Registered) -> bool {
    is_listening(command) || matches!(&*command.full_name, "ping" | "quit" | "reset")
}

fn not_while_listening(command: &Registered) -> Error {
    Error::new(format!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
        command.full_name
    ))
}

pub(super) fn wrong_arity(command: &Registered) -> Error {
    Error::new(format!("ERR wrong number of arguments for '{}' command", command.full_name))
}

/// Valkey's text, which shows the beginning of the arguments within 128 characters.
pub(super) fn unknown_command(args: Args<'_>) -> Error {
    const SHOWN_MAX: usize = 128;
    let clip = |bytes: &[u8], max: usize| String::from_utf8_lossy(&bytes[..bytes.len().min(max)]).into_owned();
    let mut shown = String::new();
    for arg in args.iter().skip(1) {
        if shown.len() >= SHOWN_MAX {
            break;
        }
        shown += &format!("'{}' ", clip(arg, SHOWN_MAX - shown.len()));
    }
    let name = clip(args.get(0).unwrap_or_default(), SHOWN_MAX);
    Error::new(format!("ERR unknown command '{name}', with args beginning with: {shown}"))
}

pub(super) fn unknown_subcommand(container: &Registered, args: Args<'_>) -> Error {
    let word = args.get(1).unwrap_or_default();
    let word = String::from_utf8_lossy(&word[..word.len().min(128)]);
    let container = container.full_name.to_ascii_uppercase();
    Error::new(format!("ERR unknown subcommand '{word}'. Try {container} HELP."))
}
