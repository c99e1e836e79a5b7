//! A worker's execution state, and the path of one request through it: permission checks (`permission`), locks
//! (`locking`), the handler, the write log and statistics (`dispatch`), and the reply.

use super::batch::ResolvedCommand;
use super::confined::ConfinedCode;
use super::cross_protocol;
use super::evicting::Evicting;
use super::invocation::Invocation;
use super::permission::{Admitted, NOT_AUTHENTICATED, unknown_command, unknown_subcommand};
use super::script_call::Scratch;
use super::slot_keys::LostSlots;
use super::yielding::Yield;
use crate::feed;
use crate::forwarding::Destination;
use crate::handlers::Handler;
use crate::rejection::{self, Rejection};
use crate::services::Services;
use crate::session::{Client, Fate, ReplyMode};
use kvick_commands::context::Block;
use kvick_commands::spec::Flags;
use kvick_commands::table::{CommandInfo, CommandTable, Resolved};
use kvick_core::admission::Reasons;
use kvick_core::executor::Executor;
use kvick_core::hot_keys::sampler::Sampler;
use kvick_core::inbox::Inbox;
use kvick_core::monitor::Lines;
use kvick_core::pubsub::events::Publisher;
use kvick_core::runtime_config::RuntimeConfig;
use kvick_core::stats::WorkerStats;
use kvick_core::tracking::broadcast::Changed;
use kvick_resp::{Args, ReplyBuffer};
use kvick_runtime::clock::{self, Ticks};
use kvick_scripting::running::Run;
use kvick_scripting::scripts::RecentSum;
use kvick_store::global_lock::{BiasOwner, Exclusive, Participant};
use kvick_store::{Access, Effects, EventClass, Key, Waiter};
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;

/// The keys of one command.
pub(super) type Keys<'k> = SmallVec<[Key<'k>; 4]>;

/// Maximum argument count of a command for which other threads may busy-wait.
const BRIEF: usize = 64;

/// The worker reads the clock again after a command that takes longer than this.
pub(super) const LONG_US: u64 = 500;
/// Turns within this time share one reading of the date.
const DATE_US: u64 = 100;

/// A worker's execution state.
pub struct Engine {
    /// The engine's dependencies.
    pub server: &'static Services,
    /// The command table.
    pub table: &'static CommandTable<Handler>,
    /// The executor that this engine belongs to.
    pub executor: Executor,
    /// Statistics of the worker.
    pub stats: Arc<WorkerStats>,
    /// Its flag in the global lock.
    pub participant: Participant,
    /// Bias owner state, if this is the only worker.
    pub(super) bias_owner: Option<BiasOwner>,
    /// Set while no other thread is in a batch.
    pub exclusive: Option<Exclusive>,
    /// Its copy of the settings.
    pub runtime_config: Arc<RuntimeConfig>,
    /// Unix time in ms, read at the beginning of the turn or after the last long command.
    pub now_ms: i64,
    /// How access to keys is recorded.
    pub access: Access,
    pub(super) effects: Effects,
    /// Whether a request was not executed because its [admission](Admitted) was outdated once its keys were locked.
    pub(super) outdated: bool,
    /// Publishes keyspace events.
    events: Arc<Publisher>,
    /// The wait that the current command requested, if any.
    pub(super) block: Option<Block>,
    /// The waiter on which the client of the current session command blocks, if any.
    pub(super) waits: Option<Arc<Waiter>>,
    /// Keys changed by commands, for clients that track prefixes.
    pub(super) changed: Changed,
    /// Maximum number of keys evicted from the tracking table during the last turn.
    pub(super) forgotten_in_turn: usize,
    /// Monitor lines not yet published.
    pub(super) monitor_lines: Lines,
    /// Whether a transaction or a script is being executed. Commands in it never block.
    pub(super) in_transaction: bool,
    /// The value of TIME in the running script, as Unix time in microseconds: its start, or the last time the script
    /// yielded.
    pub(super) script_us: Option<i64>,
    /// The slot of the last script, if it may access only one.
    pub(super) script_slot: Option<u16>,
    /// Number of this worker's requests blocked by a script.
    pub blocked_by_script: usize,
    /// State of the script that it runs, shared with threads that kill it.
    pub(super) run: Arc<Run>,
    /// Code that it has run confined.
    pub(super) confined_code: ConfinedCode,
    /// Whether the current command's script was given up and must run alone.
    pub(super) given_up: bool,
    /// Whether a script that was visible to others has just ended, so that the requests it blocked must be retried.
    pub(super) ended_long_script: bool,
    /// Whether the error of the current command was already counted for a command that its script called.
    pub(super) error_is_counted: bool,
    /// The most recent EVAL script, with its SHA1 sum.
    pub(super) recent_sum: RecentSum,
    /// Buffers for commands called by scripts.
    pub(super) scratch: Scratch,
    /// Whether the current command may read keys that it does not name; meaningless for commands that read only named
    /// keys.
    pub(super) reads_every_key: bool,
    /// Whether this process is a forked copy of the server in which a script is debugged.
    pub(super) is_copy: bool,
    /// Whether the worker is within a batch, which excludes holders of the global lock.
    pub(super) in_batch: bool,
    /// State of memory limits and eviction.
    pub(super) evicting: Evicting,
    /// Which commands are sampled for HOTKEYS.
    pub(super) sampler: Sampler,
    /// Slots of other nodes, whose keys are being deleted.
    pub(super) lost_slots: LostSlots,
    /// When the clock was last read.
    pub last: Ticks,
    /// The time at which `now_ms` was read.
    dated: Ticks,
    /// [`DATE_US`] and [`LONG_US`] in ticks.
    date_ticks: u64,
    long_ticks: u64,
    /// Unix time in microseconds at which the clock stands still in tests.
    #[cfg(test)]
    pub(super) frozen_us: Option<i64>,
}

/// Result of executing a request.
pub enum Outcome {
    /// It was executed or answered with an error.
    Done,
    /// It must be executed again after the worker's inbox is delivered.
    Again,
    /// It waits for the end of CLIENT PAUSE.
    Paused,
    /// It is blocked by a script that holds locks it needs.
    BlockedByScript,
    /// It may run a script and must be [executed](Engine::execute_script_call) apart from the worker.
    ScriptCall(AdmittedScriptCall),
    /// It waits for a key and is answered later.
    Waits(Arc<Waiter>),
    /// Other nodes are to execute it. Nothing was answered or changed.
    Elsewhere(&'static CommandInfo, Destination),
}

/// An admitted request that may run a script.
#[derive(Clone, Copy)]
pub struct AdmittedScriptCall {
    admission: Admitted,
    /// The client's preceding command.
    previous: u32,
}

/// Result of calling a command.
pub(super) enum Called {
    /// It ran.
    Done,
    /// It is blocked by a script; nothing was executed.
    BlockedByScript,
    /// It waits for a key.
    Waits(Arc<Waiter>),
}

impl Engine {
    /// Creates a worker's engine.
    pub fn new(
        server: &'static Services,
        executor: Executor,
        stats: Arc<WorkerStats>,
        participant: Participant,
    ) -> Self {
        let events = Arc::new(Publisher::new(server, executor));
        let mut engine = Engine {
            server,
            table: server.table,
            executor,
            stats,
            participant,
            bias_owner: None,
            exclusive: None,
            runtime_config: server.runtime_config(),
            now_ms: 0,
            access: Access::default(),
            effects: Effects::with_listener(events.clone()),
            outdated: false,
            events,
            block: None,
            waits: None,
            changed: Changed::default(),
            forgotten_in_turn: 0,
            monitor_lines: Lines::default(),
            in_transaction: false,
            script_us: None,
            script_slot: None,
            blocked_by_script: 0,
            run: Arc::default(),
            confined_code: ConfinedCode::default(),
            given_up: false,
            ended_long_script: false,
            error_is_counted: false,
            recent_sum: RecentSum::default(),
            scratch: Scratch::new(),
            reads_every_key: true,
            is_copy: false,
            in_batch: false,
            evicting: Evicting::new(executor.slot(server.workers_max())),
            sampler: Sampler::default(),
            lost_slots: LostSlots::default(),
            last: Ticks::now(),
            dated: Ticks::now(),
            date_ticks: clock::us_to_ticks(DATE_US),
            long_ticks: clock::us_to_ticks(LONG_US),
            #[cfg(test)]
            frozen_us: None,
        };
        engine.apply_settings();
        engine.update_date();
        engine
    }

    /// The engine that replaces this one while it runs a script.
    pub fn standby(&self) -> io::Result<Box<Engine>> {
        let participant = self.server.keyspace.global_lock.join();
        let participant = participant.ok_or_else(|| io::Error::other("too many workers"))?;
        Ok(Box::new(Engine::new(self.server, self.executor, self.stats.clone(), participant)))
    }

    /// A command's handler; `None` for a container that has no behavior of its own.
    #[inline]
    pub(super) fn handler(&self, command: &CommandInfo) -> Option<Handler> {
        command.data.map(Handler::Data).or_else(|| self.table.handler(command))
    }

    /// Reads the clock, and the settings if they changed. Returns the current time.
    pub fn update_clock(&mut self) -> Ticks {
        self.last = Ticks::now();
        if self.last.since(self.dated) >= self.date_ticks {
            self.update_date();
        }
        self.update_settings();
        self.last
    }

    /// Reads the current date, used to expire keys.
    pub(super) fn update_date(&mut self) {
        self.dated = Ticks::now();
        self.now_ms = self.unix_us() / 1000;
        self.access.set_now(self.now_ms);
    }

    /// The clock, as Unix time in microseconds.
    #[inline]
    pub(super) fn unix_us(&self) -> i64 {
        #[cfg(test)]
        if let Some(frozen_us) = self.frozen_us {
            return frozen_us;
        }
        clock::unix_us()
    }

    /// Begins a batch: excludes the time spent reading from command timings, and applies settings that changed before
    /// the requests were sent.
    pub fn begin_batch(&mut self) {
        let now = Ticks::now();
        if now.since(self.last) >= self.long_ticks {
            self.update_date();
        }
        self.last = now;
        self.evicting.begin_batch();
        self.update_settings();
    }

    #[inline]
    pub(super) fn update_settings(&mut self) {
        if self.runtime_config.generation != self.server.config_generation() {
            self.runtime_config = self.server.runtime_config();
            self.apply_settings();
        }
    }

    fn apply_settings(&mut self) {
        self.access.lfu = self.runtime_config.commands.lfu;
        self.access.lfu_log_factor = self.runtime_config.lfu_log_factor;
        self.access.lfu_decay_minutes = self.runtime_config.lfu_decay_minutes;
        self.events.set_channels(self.runtime_config.keyspace_events);
        self.apply_eviction_settings();
        self.apply_hot_key_settings();
    }

    /// The classes of keyspace events that have subscribers, and whether all changes are recorded.
    #[inline]
    pub fn event_mask(&self) -> EventClass {
        self.server.notified_classes(self.runtime_config.notified_events)
    }

    /// Pending deliveries of this worker.
    #[inline]
    pub fn inbox(&self) -> &'static Inbox {
        self.server.inboxes.of(self.executor.slot(self.server.workers_max()))
    }

    /// Scratch space for background work between batches.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    /// Executes a request and appends its reply to `out`.
    #[inline]
    pub fn execute(
        &mut self,
        client: &mut Client,
        args: Args<'_>,
        resolved: ResolvedCommand,
        out: &mut ReplyBuffer,
    ) -> Outcome {
        let start = out.position();
        let is_brief = args.len() <= BRIEF && matches!(resolved, ResolvedCommand::For(command, _) if command.brief);
        if !is_brief {
            // The command may take long.
            self.yield_bias();
        }
        let (command, hash) = match resolved {
            ResolvedCommand::For(command, hash) => (command, hash),
            _ => match self.resolve(client, args, resolved, out) {
                Some(command) => (command, None),
                None => return self.finish(client, start, out),
            },
        };
        let previous = std::mem::replace(&mut client.last_command, command.id);
        let admitted = self.admit_plain(client, command, hash, args);
        let plain = admitted.is_some();
        let admission = if let Some(admission) = admitted {
            admission
        } else {
            self.yield_bias();
            if self.server.admission.has(Reasons::SHUTTING_DOWN) {
                // Its effects would be missing from every snapshot.
                client.fate = Fate::Close;
                return self.finish(client, start, out);
            }
            // While a long script holds the global lock, commands that need none of its data run without a batch.
            let shut_out = !self.in_batch && !self.enter() && !command.spec.flags.contains(Flags::ALLOW_BUSY);
            if self.is_blocked_by_script(client, command) {
                return Outcome::BlockedByScript;
            }
            if shut_out {
                return self.conclude(client, Invocation { command, args }, Called::BlockedByScript, start, out);
            }
            let gone = !client.renew_rights(self.server);
            let limited = self.server.admission.has(Reasons::LIMITED) && !self.is_busy();
            if gone || limited && !self.keep_memory_limits(client, args, out.bytes.capacity()) {
                client.fate = Fate::Close;
                return self.finish(client, start, out);
            }
            if client.tracking.is_some() && self.effects.has_pending_notifications() && !self.is_busy() {
                // Deliver invalidations of evicted keys first: the command will not read those keys.
                self.settle_consequences();
                client.last_command = previous;
                return Outcome::Again;
            }
            if self.server.is_failover_in_progress()
                && rejection::redirects(self.server, &client.info, self.flags_asked(client, command, args))
            {
                // The redirection target is known once the replica has taken over.
                return Outcome::Paused;
            }
            if client.feed.is_some() && feed::is_forbidden_on_feed(client, command) {
                client.fate = Fate::Close;
                return self.finish(client, start, out);
            }
            match self.admit(client, command, args) {
                Ok(admission) => admission,
                Err(rejection) if rejection.is_temporary(self.server) => {
                    client.last_command = previous;
                    return Outcome::Paused;
                }
                Err(Rejection::Elsewhere(destination)) => {
                    client.last_command = previous;
                    if self.server.pause.may_be_active() && self.is_paused(client, command, args) {
                        return Outcome::Paused;
                    }
                    return Outcome::Elsewhere(command, destination);
                }
                Err(rejection) => {
                    self.reject(client, Invocation { command, args }, rejection, out);
                    return self.finish(client, start, out);
                }
            }
        };
        if !plain && client.must_await_others(command) {
            client.last_command = previous;
            return Outcome::Elsewhere(command, Destination::Nowhere);
        }
        if !plain && client.is_obeyed() {
            // The primary has already executed its requests.
        } else if self.server.pause.may_be_active() && self.is_paused(client, command, args) {
            return Outcome::Paused;
        }
        if !plain && client.is_queueing(command) {
            self.queue(client, command, args, out);
            return self.finish(client, start, out);
        }
        if !plain {
            client.note_write_here(command);
        }
        let called = match (hash, command.data) {
            (Some(hash), Some(handler)) if plain || (self.is_unobserved(client) && !admission.is_for_open_slot()) => {
                match self.call_keyed(client, admission, handler, hash, args, out) {
                    true => Called::Done,
                    false => Called::BlockedByScript,
                }
            }
            _ if Self::may_run_script(client, command) => {
                return Outcome::ScriptCall(AdmittedScriptCall { admission, previous });
            }
            _ => self.as_tracking_client(client, previous, |engine, client| {
                engine.call(client, admission, args, &mut (), out)
            }),
        };
        self.conclude(client, Invocation { command, args }, called, start, out)
    }

    /// Executes a request that may run a script. `yielder` serves other connections while a script takes long.
    pub fn execute_script_call(
        &mut self,
        client: &mut Client,
        script_call: AdmittedScriptCall,
        args: Args<'_>,
        yielder: &mut dyn Yield,
        out: &mut ReplyBuffer,
    ) -> Outcome {
        let AdmittedScriptCall { mut admission, previous } = script_call;
        let (start, command) = (out.position(), admission.command());
        loop {
            let called = self.as_tracking_client(client, previous, |engine, client| {
                engine.call(client, admission, args, yielder, out)
            });
            match self.conclude(client, Invocation { command, args }, called, start, out) {
                Outcome::Again => {}
                outcome => return outcome,
            }
            if self.server.admission.has(Reasons::SHUTTING_DOWN) || !client.renew_rights(self.server) {
                client.fate = Fate::Close;
                return self.finish(client, start, out);
            }
            admission = match self.admit(client, command, args) {
                Ok(admission) => admission,
                Err(rejection) => {
                    self.reject(client, Invocation { command, args }, rejection, out);
                    return self.finish(client, start, out);
                }
            };
            if !client.is_obeyed() && self.server.pause.may_be_active() && self.is_paused(client, command, args) {
                return Outcome::Paused;
            }
        }
    }

    /// Performs the follow-up work of a command.
    #[inline]
    fn conclude(
        &mut self,
        client: &mut Client,
        invocation: Invocation<'_>,
        called: Called,
        start: usize,
        out: &mut ReplyBuffer,
    ) -> Outcome {
        match called {
            Called::Done if self.ended_long_script => self.end_long_script(),
            Called::Done => {}
            // The state on which its admission was based changed while it waited.
            Called::BlockedByScript if std::mem::take(&mut self.outdated) => return Outcome::Again,
            Called::BlockedByScript => match self.busy_error() {
                Some(error)
                    if !invocation.command.spec.flags.contains(Flags::ALLOW_BUSY)
                        && !client.is_obeyed()
                        && !self.is_blocked_by_script(client, invocation.command) =>
                {
                    self.refuse(client, Some(invocation), &error, false, out);
                }
                _ => return Outcome::BlockedByScript,
            },
            Called::Waits(waiter) => {
                client.end_asking();
                return Outcome::Waits(waiter);
            }
        }
        if self.effects.has_pending_notifications() {
            self.settle_consequences();
        }
        self.finish(client, start, out)
    }

    /// Makes all workers retry the requests blocked by a script. The caller holds none of the script's locks.
    #[cold]
    pub(super) fn end_long_script(&mut self) {
        self.ended_long_script = false;
        self.server.send_all(|| kvick_core::message::Message::Resume);
    }

    /// Resolves a request that its first word does not identify, or answers that the command is unknown.
    #[inline(never)]
    fn resolve(
        &mut self,
        client: &mut Client,
        args: Args<'_>,
        resolved: ResolvedCommand,
        out: &mut ReplyBuffer,
    ) -> Option<&'static CommandInfo> {
        if let ResolvedCommand::Broken(error) = resolved {
            self.reply_protocol_error(client, error, out);
            return None;
        }
        let error = match self.server.catalogue.resolve(args) {
            Resolved::Command(command) => return Some(command),
            Resolved::Unknown if cross_protocol::is_http(args) => {
                cross_protocol::warn(client, self.now_ms);
                client.fate = Fate::Close;
                return None;
            }
            // Unauthenticated clients learn nothing about commands.
            _ if client.must_authenticate(self.server) => NOT_AUTHENTICATED,
            Resolved::Unknown => unknown_command(args),
            Resolved::UnknownSubcommand(container) => unknown_subcommand(container, args),
        };
        // Also ends CLIENT CACHING, which applies to the next request.
        client.last_command = u32::MAX;
        self.refuse(client, None, &error, false, out);
        None
    }

    /// Applies CLIENT REPLY to the reply written since `start`.
    #[inline]
    pub fn finish(&mut self, client: &mut Client, start: usize, out: &mut ReplyBuffer) -> Outcome {
        client.end_asking();
        // Pushes are not replies and are sent even when replies are off.
        let pushed = std::mem::take(&mut client.answered_by_pushes);
        if client.reply_mode == ReplyMode::Off && client.is_slot_import() && out.bytes.get(start) == Some(&b'-') {
            self.fail_import(client, &out.bytes[start..]);
        }
        let silenced = if pushed { out.position() } else { start };
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
