//! Scripts and functions: executes EVAL, FCALL and their variants, and the commands that scripts call.
//!
//! A script runs under the locks of the keys that its command declares, so no other client sees a partial effect. What
//! it may do beyond that is its [`Reach`]: a script that runs [alone](kvick_scripting) takes further locks when it
//! calls a command on another key, and keeps them until it ends, or takes the global lock for a command that needs the
//! whole keyspace. Since it is the only script, waiting for further locks while holding some cannot deadlock. Other
//! scripts are [confined](super::confined) to the locks that they have.
//!
//! For each command that a script calls, [`Caller`] does what the engine does for a request. Their effects go to the
//! write log as one transaction.

use super::debugging::DebugConsole;
use super::engine::{Engine, Keys};
use super::invocation::{DataCall, Invocation, ScriptContext};
use super::permission::{OUT_OF_MEMORY, unknown_subcommand, wrong_arity};
use super::routing::ScriptSlot;
use crate::handlers::Handler;
use crate::rejection;
use crate::session::Client;
use crate::yielding::Yield;
use kvick_acl::Denied;
use kvick_acl::log::Context as AclContext;
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo, Resolved};
use kvick_resp::format::parse_i64;
use kvick_resp::{Args, OwnedArgs, Reply, ReplyBuffer, Span, Version};
use kvick_runtime::clock::Ticks;
use kvick_runtime::logging;
use kvick_script::{Console, Debugger, Failure, Host, Kind as VmKind, LogLevel, Propagation, Received, ScriptFlags};
use kvick_scripting::Scripting;
use kvick_scripting::conduct::{Conduct, Known};
use kvick_scripting::debugging;
use kvick_scripting::functions::Function;
use kvick_scripting::interpreters::Interpreters;
use kvick_scripting::running::{Current, Kind};
use kvick_scripting::script_call::UNKNOWN;
pub use kvick_scripting::script_call::{ScriptCall, Source};
use kvick_scripting::scripts::{Script, Sum};
use kvick_store::{EventClass, Locked, PropagationTargets};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The code to run.
pub(super) enum Code {
    Script(Arc<Script>),
    Function(Arc<Function>),
}

impl Code {
    /// What is known about the keys it accesses.
    pub(super) fn known(&self) -> &Known {
        match self {
            Code::Script(script) => &script.known,
            Code::Function(function) => &function.known,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Code::Script(_) => Kind::Script,
            Code::Function(_) => Kind::Function,
        }
    }

    /// The flags that it declares; `None` for a script without a shebang line.
    pub(super) fn flags(&self) -> Option<ScriptFlags> {
        match self {
            Code::Script(script) => script.flags,
            Code::Function(function) => Some(function.flags),
        }
    }

    fn name(&self) -> String {
        match self {
            Code::Script(script) => script.sum.to_string(),
            Code::Function(function) => function.name.clone(),
        }
    }
}

/// Index of the argument that gives the number of declared keys.
pub const KEYS_COUNT: usize = 2;
/// Index of the first declared key.
pub const FIRST_KEY: usize = 3;

/// A request that runs a script: all its arguments, and the number of keys among them.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    args: Args<'a>,
    keys: usize,
}

impl<'a> Request<'a> {
    /// Reads the number of keys of a request that runs code of this source.
    pub(super) fn of(source: Source, args: Args<'a>) -> Result<Self, Error> {
        match source {
            Source::Script | Source::Sum => Request::new(args, Error::NOT_INTEGER),
            Source::Function => Request::new(args, Error::text("ERR Bad number of keys provided")),
        }
    }

    fn new(args: Args<'a>, not_a_number: Error) -> Result<Self, Error> {
        let given = args.len() - FIRST_KEY;
        let number = parse_i64(&args[KEYS_COUNT]).ok_or(not_a_number)?;
        match usize::try_from(number) {
            Err(_) => Err(Error::text("ERR Number of keys can't be negative")),
            Ok(keys) if keys > given => Err(Error::text("ERR Number of keys can't be greater than number of args")),
            Ok(keys) => Ok(Request { args, keys }),
        }
    }

    fn keys(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.args.slice_from(FIRST_KEY).iter().take(self.keys)
    }

    fn arguments(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.args.slice_from(FIRST_KEY + self.keys).iter()
    }
}

/// Buffers for commands called by scripts.
#[derive(Default)]
pub(super) struct Scratch {
    input: Vec<u8>,
    spans: Vec<Span>,
}

impl Scratch {
    /// Bytes kept from one script to the next.
    const KEPT: usize = 64 * 1024;

    /// Buffers of several cache lines, so that they share none with other threads.
    pub fn new() -> Scratch {
        Scratch { input: Vec::with_capacity(256), spans: Vec::with_capacity(16) }
    }

    fn load(&mut self, words: &[&[u8]]) {
        self.input.clear();
        self.spans.clear();
        for word in words {
            self.spans.push(Span { start: self.input.len(), len: word.len() });
            self.input.extend_from_slice(word);
        }
    }

    fn args(&self) -> Args<'_> {
        Args::new(&self.input, &self.spans, &[])
    }
}

/// What a script may do besides accessing the keys whose locks it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// Anything: it is the only script.
    Alone,
    /// It does nothing else, as its code shows.
    Declared,
    /// It only reads these keys. If it is about to do more, it is given up, and runs alone from the start.
    Reading,
}

/// A script that is about to run.
pub(super) struct ScriptRun<'a> {
    pub script_call: ScriptCall,
    pub code: &'a Code,
    pub reach: Reach,
    /// The debugger that controls it, if any.
    pub debugger: Option<&'a mut Debugger>,
    pub request: Request<'a>,
}

impl Engine {
    /// Runs a script or function. The caller holds the turn, unless the context has confined code.
    pub(super) fn run_script_call(
        &mut self,
        client: &mut Client,
        script_call: ScriptCall,
        args: Args<'_>,
        context: ScriptContext<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), Error> {
        let scripting: &'static Scripting = &self.server.scripting;
        let began = self.last;
        self.monitor_script_call(client, args);
        let result = match (client.debugging, script_call.source) {
            (Some(mode), Source::Script) => {
                self.debug_script_call(client, mode, script_call, args, context, out).map(Ok)
            }
            (Some(_), Source::Sum) if Sum::read(&args[1]).is_some() => {
                Err(Error::text("ERR Please use EVAL instead of EVALSHA for debugging"))
            }
            _ if context.confined.is_some() => self.run_confined(client, script_call, args, context, out),
            _ => match scripting.interpreters() {
                // The thread that holds the turn has the interpreters.
                None => Err(SCRIPT_IN_SCRIPT),
                Some(mut interpreters) => {
                    self.find_code(script_call, args, &mut interpreters).and_then(|(code, request)| {
                        self.check_flags(client, script_call, code.flags())?;
                        let run = ScriptRun { script_call, code: &code, reach: Reach::Alone, debugger: None, request };
                        Ok(self.run_code(client, run, &mut interpreters, context, out))
                    })
                }
            },
        };
        // Its commands were accounted for individually.
        self.effects.begin(false, EventClass::empty(), client.db);
        self.last = began;
        match result {
            Err(error) => self.answer(client, Err(error), out),
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => {
                out.reply(client.version).error(failure.text());
                self.error_is_counted = failure.is_counted();
                Err(Error::raw(failure.text()))
            }
        }
    }

    /// The code that a request asks to run. Compiles a new script.
    pub(super) fn find_code<'a>(
        &mut self,
        script_call: ScriptCall,
        args: Args<'a>,
        interpreters: &mut Interpreters,
    ) -> Result<(Code, Request<'a>), Error> {
        let scripting = &self.server.scripting;
        scripting.apply_settings(self.server, self.runtime_config.insecure_scripts, interpreters);
        match script_call.source {
            Source::Script => {
                let request = Request::of(script_call.source, args)?;
                let sum = self.recent_sum.of(&args[1]);
                let known = scripting.scripts.lock().get_to_run(&sum);
                let script = match known {
                    Some(script) => script,
                    None => {
                        let vm = interpreters.get(self.server, VmKind::Scripts)?;
                        scripting.compile(self.server, vm, &sum, &args[1], false)?
                    }
                };
                Ok((Code::Script(script), request))
            }
            Source::Sum => {
                let sum = Sum::read(&args[1]).ok_or(UNKNOWN)?;
                let request = Request::of(script_call.source, args)?;
                let script = scripting.scripts.lock().get_to_run(&sum).ok_or(UNKNOWN)?;
                Ok((Code::Script(script), request))
            }
            Source::Function => {
                let function = scripting.libraries.read().function(&args[1]);
                let function = function.ok_or(Error::text("ERR Function not found"))?;
                let request = Request::of(script_call.source, args)?;
                Ok((Code::Function(function), request))
            }
        }
    }

    /// Whether a script may run, given the flags it declares.
    pub(super) fn check_flags(
        &self,
        client: &Client,
        script_call: ScriptCall,
        flags: Option<ScriptFlags>,
    ) -> Result<(), Error> {
        if client.info.is_from_log() {
            // It was allowed when it was first executed.
            return Ok(());
        }
        if self.server.routing.is_some() && flags.is_some_and(|flags| flags.no_cluster) {
            return Err(Error::text("ERR Can not run script on cluster, 'no-cluster' flag is set."));
        }
        if rejection::is_stale(self.server) && !flags.is_some_and(|flags| flags.allow_stale) {
            return Err(rejection::STALE);
        }
        let Some(flags) = flags else { return Ok(()) };
        if flags.no_writes {
            return Ok(());
        }
        let command = self.server.catalogue.get(client.last_command);
        if let Some(error) =
            command.and_then(|command| rejection::rejection(self.server, command, Flags::WRITE | Flags::STALE))
        {
            return Err(error.error(self.server));
        }
        if script_call.read_only {
            return Err(Error::text("ERR Can not execute a script with write flag using *_ro command."));
        }
        if self.is_out_of_memory() && !flags.allow_oom {
            return Err(OUT_OF_MEMORY);
        }
        Ok(())
    }

    pub(super) fn run_code(
        &mut self,
        client: &mut Client,
        run: ScriptRun<'_>,
        interpreters: &mut Interpreters,
        context: ScriptContext<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), Failure> {
        let ScriptRun { script_call, code, reach, debugger, request } = run;
        let ScriptContext { locked, yielder, .. } = context;
        let server = self.server;
        let is_confined = reach != Reach::Alone;
        let (db, version) = (client.db, client.version);
        let in_transaction = std::mem::replace(&mut self.in_transaction, true);
        let in_group = self.effects.in_group();
        if !in_group {
            self.effects.begin_group();
        }
        self.freeze_clock();
        self.effects.set_by_script(true);
        self.run.begin();
        let flags = code.flags();
        let slot = self.slot_of_script(client, request.keys().next(), flags);
        let scratch = std::mem::take(&mut self.scratch);
        let mut caller = Caller {
            engine: self,
            client,
            locked,
            yielder,
            scratch,
            request: request.args,
            code,
            reach,
            began: Ticks::now(),
            allow_oom: flags.is_some_and(|flags| flags.allow_oom),
            read_only: script_call.read_only || flags.is_some_and(|flags| flags.no_writes),
            wrote: false,
            returned_error: false,
            only_read: code.known().get() == Conduct::Unknown,
            given_up: false,
            calls: 0,
            slot,
            is_visible: false,
            is_busy: false,
        };
        let mut reply = out.reply(version);
        let (keys, arguments) = (request.keys(), request.arguments());
        let no_memory = |error: Error| Failure::new(error.bytes());
        let result = match code {
            Code::Script(script) => {
                let sum = script.sum.digits();
                let vm = match is_confined {
                    true => interpreters.with_script(&server.scripting, server, script).ok_or_else(not_loaded),
                    false => interpreters.get(server, VmKind::Scripts).map_err(no_memory),
                };
                caller.given_up = is_confined && vm.is_err();
                vm.and_then(|vm| match debugger {
                    None => vm.run_script(sum, keys, arguments, &mut caller, &mut reply),
                    Some(debugger) => vm.debug_script(sum, keys, arguments, &mut caller, &mut reply, debugger),
                })
            }
            Code::Function(function) => {
                let vm = match is_confined {
                    true => interpreters.with_function(&server.scripting, server, function).ok_or_else(not_loaded),
                    false => match interpreters.get(server, VmKind::Functions) {
                        Ok(vm) => Ok((vm, &function.handle)),
                        Err(error) => Err(no_memory(error)),
                    },
                };
                caller.given_up = is_confined && vm.is_err();
                vm.and_then(|(vm, handle)| vm.call_function(handle, keys, arguments, &mut caller, &mut reply))
            }
        };
        let given_up = caller.given_up;
        let only_read = caller.only_read && !caller.wrote;
        let script_slot = if let ScriptSlot::One(slot) = caller.slot { Some(slot) } else { None };
        let (is_visible, mut scratch) = (caller.is_visible, std::mem::take(&mut caller.scratch));
        scratch.input.shrink_to(Scratch::KEPT);
        scratch.spans.shrink_to(Scratch::KEPT / size_of::<Span>());
        self.scratch = scratch;
        self.script_us = None;
        self.script_slot = script_slot;
        self.effects.set_by_script(false);
        self.effects.set_propagation_targets(PropagationTargets::All);
        self.in_transaction = in_transaction;
        if !in_group {
            self.effects.end_group(&server.keyspace.log);
        }
        client.select(db);
        client.version = version;
        if is_visible {
            server.scripting.running.end(&self.run, server);
            self.ended_long_script = true;
        }
        match reach {
            Reach::Alone => code.known().observe(only_read),
            Reach::Declared | Reach::Reading if given_up => self.give_up(code),
            Reach::Declared | Reach::Reading => {}
        }
        result
    }

    /// Reads the clock and freezes the time for a script.
    fn freeze_clock(&mut self) {
        let now_us = self.unix_us();
        self.script_us = Some(now_us);
        self.now_ms = now_us / 1000;
        self.access.set_now(self.now_ms);
    }
}

/// Calls commands for a running script.
struct Caller<'r> {
    engine: &'r mut Engine,
    client: &'r mut Client,
    locked: &'r mut Locked,
    yielder: &'r mut dyn Yield,
    scratch: Scratch,
    /// The request that runs the script.
    request: Args<'r>,
    code: &'r Code,
    reach: Reach,
    began: Ticks,
    read_only: bool,
    /// Whether it may use more memory while memory is above its limit.
    allow_oom: bool,
    /// Whether it has called a command that writes.
    wrote: bool,
    /// Whether it has, besides that, only read keys whose locks it held from its start. Of interest until it is known.
    only_read: bool,
    /// Whether it must end because it needs more than it may have.
    given_up: bool,
    /// Whether its result contains an error.
    returned_error: bool,
    /// Number of commands called.
    calls: u32,
    /// The only slot whose keys it may access.
    slot: ScriptSlot,
    /// Whether other threads see it as running.
    is_visible: bool,
    /// Whether it has exceeded `busy-reply-threshold`.
    is_busy: bool,
}

/// A confined script calls a command that needs more than the locks it has.
const UNDECLARED: Error = Error::text("ERR Script accesses more than the keys it declares");
/// A script may not run another script.
pub(super) const SCRIPT_IN_SCRIPT: Error = Error::text("ERR A script cannot run another");
/// After this many commands a script counts as running for a while, even if it executes little Lua between them.
const CALLS_PER_CLOCK_READ: u32 = 256;
/// Scripts that run longer than this become visible to other threads.
const VISIBLE_AFTER: Duration = Duration::from_millis(1);

impl Caller<'_> {
    /// Why a script may not call a command, as the error that the script receives.
    fn refusal(&self, command: &'static CommandInfo, args: Args<'_>) -> Option<Error> {
        let flags = command.spec.flags;
        if !command.spec.accepts(args.len()) {
            return Some(Error::text("ERR Wrong number of args calling command from script"));
        }
        let never = matches!(command.class, Class::Transaction | Class::Script);
        let denied =
            flags.contains(Flags::NOSCRIPT) && !self.engine.server.scripting.may_call_all.load(Ordering::Relaxed);
        if never || denied {
            return Some(Error::text("ERR This Valkey command is not allowed from script"));
        }
        if let Err(denied) = self.engine.permits(self.client, command, args) {
            self.client.publish();
            let user = &self.client.identity.user;
            self.engine.record_denied(&self.client.info, user, denied, AclContext::Lua, Invocation { command, args });
            return Some(denied.error_in_script(user, command));
        }
        if self.client.info.is_from_log() {
            return None;
        }
        if flags.contains(Flags::DENYOOM) && !self.allow_oom && !self.wrote && self.engine.is_out_of_memory() {
            return Some(OUT_OF_MEMORY);
        }
        if self.read_only && flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE)) {
            return Some(Error::text("ERR Write commands are not allowed from read-only scripts."));
        }
        if let Some(error) = self.engine.server.protected_refusal(self.client, command) {
            return Some(error);
        }
        if !flags.contains(Flags::STALE) && rejection::is_stale(self.engine.server) {
            return Some(Error::text("ERR Can not execute the command on a stale replica"));
        }
        if !self.wrote && flags.contains(Flags::WRITE) {
            let server = self.engine.server;
            return rejection::rejection(server, command, flags).map(|rejection| rejection.error(server));
        }
        None
    }

    /// Refuses a command and counts the refusal.
    #[cold]
    fn refuse(&self, command: &CommandInfo, error: Error) -> Result<(), Error> {
        self.engine.stats.commands[command.id as usize].rejected.add(1);
        Err(error)
    }

    /// Whether a command needs no locks but those held.
    fn is_covered(&self, command: &CommandInfo, args: Args<'_>, keys: &[kvick_store::Key<'_>]) -> bool {
        let keyspace = self.engine.server.keyspace;
        !self.engine.needs_global_lock(command, args)
            && !command.spec.flags.contains(Flags::TOUCHES_ARBITRARY_KEYS)
            && keys.iter().all(|key| self.locked.holds(keyspace.address(self.client.db, *key)))
    }

    /// Whether a command only reads keys, and concerns neither the connection nor the server.
    fn is_read(command: &CommandInfo) -> bool {
        command.class == Class::Data && !command.spec.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE)
    }

    /// Whether the reach of the script includes a command.
    #[inline]
    fn reaches(&mut self, command: &CommandInfo, args: Args<'_>, keys: &[kvick_store::Key<'_>]) -> bool {
        match self.reach {
            Reach::Alone => {
                self.only_read = self.only_read && Self::is_read(command) && self.is_covered(command, args, keys);
                true
            }
            Reach::Declared => self.is_covered(command, args, keys),
            Reach::Reading => Self::is_read(command) && self.is_covered(command, args, keys),
        }
    }

    /// Takes the locks that a command needs in addition to those held.
    fn lock(&mut self, command: &CommandInfo, args: Args<'_>, keys: &[kvick_store::Key<'_>]) {
        if self.locked.is_global() {
            return;
        }
        let engine = &*self.engine;
        if engine.needs_global_lock(command, args) || command.spec.flags.contains(Flags::TOUCHES_ARBITRARY_KEYS) {
            self.locked.add_global(engine.participant);
            return;
        }
        for key in keys {
            self.locked.add(engine.server.keyspace.address(self.client.db, *key));
        }
    }

    fn run(&mut self, args: Args<'_>, version: Version, out: &mut ReplyBuffer) -> Result<(), Error> {
        let server = self.engine.server;
        let command = match server.catalogue.resolve(args) {
            Resolved::Command(command) => command,
            Resolved::Unknown => return Err(Error::text("ERR Unknown command called from script")),
            Resolved::UnknownSubcommand(container) => return Err(unknown_subcommand(container, args)),
        };
        let keys: Keys<'_> = self.engine.keys_of(command, args);
        if !self.reaches(command, args, &keys) {
            // Code that writes here is known not to reach for more.
            debug_assert!(!self.wrote, "the analysis of {} is wrong", self.code.name());
            self.given_up = !self.wrote;
            return Err(UNDECLARED);
        }
        if let Some(error) = self.refusal(command, args) {
            return self.refuse(command, error);
        }
        if self.reach == Reach::Alone {
            self.lock(command, args, &keys);
        }
        let routed =
            self.engine.route_in_script(self.client, Invocation { command, args }, self.locked, &mut self.slot);
        if let Err(error) = routed {
            return self.refuse(command, error);
        }
        if !self.wrote && command.spec.flags.contains(Flags::WRITE) {
            if !self.engine.run.begin_to_write() {
                return self.refuse(command, Error::new(killed(self.code.kind())));
            }
            self.wrote = true;
        }
        let Caller { engine, client, locked, .. } = self;
        engine.set_read_scope(client, command, args);
        let start = out.len();
        client.version = version;
        engine.last = Ticks::now();
        let result = match engine.handler(command) {
            Some(Handler::Data(handler)) => {
                let call = DataCall { handler, args, hashed: &keys };
                engine.run_data(client, call, locked, out)
            }
            Some(Handler::Session(handler)) => engine.run_session(client, handler, args, locked, out),
            Some(Handler::Control(_) | Handler::ScriptCall(_)) | None => {
                engine.answer(client, Err(wrong_arity(command)), out)
            }
        };
        engine.block = None;
        engine.effects.commit(&server.keyspace.log, args);
        let invocation = Invocation { command, args };
        engine.track_reads(&client.info, client.db, invocation, locked);
        engine.after_flushall(command, &result, locked);
        engine.monitor_called(client, invocation);
        engine.record_command(client, invocation, out.len() - start, result);
        client.commands += 1;
        client.redacted = 0;
        Ok(())
    }

    /// Running time of the script.
    fn elapsed(&self) -> Duration {
        Duration::from_micros(Ticks::now().us_since(self.began))
    }

    /// Makes the script visible to other threads once it has been running for a while.
    fn publish_when_long(&mut self) {
        if self.is_visible || self.elapsed() < VISIBLE_AFTER {
            return;
        }
        self.is_visible = true;
        let (kind, name) = (self.code.kind(), self.code.name());
        let command = OwnedArgs::from(self.request);
        let began = Instant::now() - self.elapsed();
        self.engine.server.scripting.running.show(&self.engine.run, Current { kind, name, command, began });
    }

    /// Marks the script as exceeding `busy-reply-threshold`, so that blocked requests are answered with BUSY.
    fn become_busy(&mut self) {
        self.is_busy = true;
        let (server, kind) = (self.engine.server, self.code.kind());
        logging::warning(format_args!(
            "Slow script detected: still in execution after {} milliseconds. You can try killing the script using the \
             {} command. Script name is: {}.",
            self.elapsed().as_millis(),
            kind.kill_command(),
            self.code.name()
        ));
        server.scripting.running.set_busy(&self.engine.run, server);
        server.send_all(|| kvick_core::message::Message::Resume);
    }
}

impl Console for Caller<'_> {
    fn send(&mut self, bytes: &[u8]) {
        DebugConsole(self.yielder).send(bytes);
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Received {
        loop {
            match self.yielder.connection().and_then(|connection| connection.read(into)) {
                None => return Received::Disconnected,
                Some(0) => {}
                Some(_) => return Received::Input,
            }
            if let Some(text) = self.interrupted() {
                return Received::End(text);
            }
        }
    }
}

impl Host for Caller<'_> {
    fn call(&mut self, request: &[&[u8]], version: Version, reply: &mut Vec<u8>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.load(request);
        let result = if self.given_up {
            Err(UNDECLARED)
        } else {
            let mut out = ReplyBuffer::contiguous(std::mem::take(reply));
            let result = self.run(scratch.args(), version, &mut out);
            *reply = out.bytes;
            result
        };
        self.scratch = scratch;
        if let Err(error) = result {
            if !self.given_up {
                let is_denied = error.bytes().starts_with(Denied::IN_SCRIPT);
                self.engine.stats.count_error(if is_denied { Denied::CODE } else { error.bytes() });
            }
            Reply::new(reply, version).error(error.bytes());
        }
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_PER_CLOCK_READ) {
            self.publish_when_long();
        }
    }

    fn may_call(&mut self, request: &[&[u8]]) -> Option<bool> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.load(request);
        let args = scratch.args();
        let known = match self.engine.server.catalogue.resolve(args) {
            Resolved::Command(command) => Some(self.engine.permits(self.client, command, args).is_ok()),
            Resolved::Unknown | Resolved::UnknownSubcommand(_) => None,
        };
        self.scratch = scratch;
        known
    }

    fn note_returned_error(&mut self, text: &[u8]) {
        if self.given_up {
            return;
        }
        self.engine.stats.count_error(text);
        if !std::mem::replace(&mut self.returned_error, true)
            && let Resolved::Command(command) = self.engine.server.catalogue.resolve(self.request)
        {
            self.engine.stats.count_failure(command.id, None);
        }
    }

    fn log(&mut self, level: LogLevel, line: &[u8]) {
        self.only_read = false;
        self.given_up |= self.reach == Reach::Reading;
        if self.given_up {
            return;
        }
        let line = String::from_utf8_lossy(line);
        match level {
            LogLevel::Debug => logging::debug(format_args!("{line}")),
            LogLevel::Verbose => logging::verbose(format_args!("{line}")),
            LogLevel::Notice => logging::notice(format_args!("{line}")),
            LogLevel::Warning => logging::warning(format_args!("{line}")),
        }
    }

    fn set_propagation(&mut self, targets: Propagation) {
        if self.engine.is_copy {
            return;
        }
        self.engine.effects.set_propagation_targets(match (targets.aof, targets.replicas) {
            (true, true) => PropagationTargets::All,
            (false, true) => PropagationTargets::Replicas,
            (true, false) => PropagationTargets::AofOnly,
            (false, false) => PropagationTargets::None,
        });
    }

    fn console(&mut self) -> Option<&mut dyn Console> {
        Some(self)
    }

    fn interrupted(&mut self) -> Option<String> {
        if self.engine.is_copy {
            debugging::alarm();
            let is_closed = self.yielder.connection().is_none_or(|connection| connection.is_closed());
            return is_closed.then(|| "ERR The client is gone".to_string());
        }
        if self.given_up {
            return Some(UNDECLARED.to_string());
        }
        self.publish_when_long();
        let threshold_ms = self.engine.runtime_config.busy_reply_threshold_ms;
        if !self.is_busy && self.is_visible && threshold_ms > 0 && self.elapsed().as_millis() >= threshold_ms.into() {
            self.become_busy();
        }
        if self.is_busy {
            self.yielder.yield_now();
            // As in the reference, TIME advances with the event loop, while expiry still uses the script's start time.
            self.engine.script_us = Some(self.engine.unix_us());
        }
        let server = self.engine.server;
        if self.engine.run.is_killed() {
            let text = killed(self.code.kind());
            logging::notice(format_args!("{}", text.trim_start_matches("ERR ")));
            return Some(text);
        }
        server.is_shutting_down().then(|| "ERR The server is ending".to_string())
    }
}

/// A worker could not load the code, which is given up then.
fn not_loaded() -> Failure {
    Failure::new("ERR no memory for scripts")
}

/// The error that a killed script receives.
fn killed(kind: Kind) -> String {
    format!("ERR Script killed by user with {}.", kind.kill_command())
}
