//! EVAL in the Lua debugger: the debugging client talks over its own connection while its script runs.
//!
//! In both [modes](Mode) the script runs like any other, on its worker and in the server's interpreter. The debugger
//! reads its commands from a [`Console`], which uses the connection until the session ends. Then the connection is
//! closed, which tells the client that the session has ended.
//!
//! - [`Mode::Sync`]: the script counts as a long script. After `busy-reply-threshold` other clients get BUSY errors,
//!   and the script can be killed.
//! - [`Mode::Beside`]: the process is [forked](kvick_scripting::debugging). The child runs the script without
//!   propagating its effects, and exits. The server drops the connection without closing the session.

use super::engine::Engine;
use super::invocation::ScriptContext;
use super::script_call::{Reach, ScriptCall, ScriptRun};
use super::yielding::Yield;
use crate::session::{Client, Fate};
use kvick_commands::context::Error;
use kvick_config::shapes::KeyspaceEvents;
use kvick_core::admission::Reasons;
use kvick_core::runtime_config::RuntimeConfig;
use kvick_resp::{Args, ReplyBuffer};
use kvick_runtime::logging;
use kvick_script::{Console, Debugger, Failure, Received};
use kvick_scripting::Scripting;
use kvick_scripting::debugging::{self, Forked, Mode};
use kvick_store::{EventClass, PropagationTargets};
use std::sync::Arc;

/// The client whose EVAL is being executed, as the debugger's console.
pub(super) struct DebugConsole<'a>(pub(super) &'a mut dyn Yield);

impl Console for DebugConsole<'_> {
    fn send(&mut self, bytes: &[u8]) {
        // A write fails if the client does not read or is gone; the next read detects that.
        let _ = self.0.connection().map(|connection| connection.write(bytes));
    }

    /// No input is read after the script has ended.
    fn receive(&mut self, _: &mut Vec<u8>) -> Received {
        Received::Disconnected
    }
}

impl Engine {
    /// Runs the script of an EVAL in the debugger. The caller holds the turn.
    pub(super) fn debug_script_call(
        &mut self,
        client: &mut Client,
        mode: Mode,
        script_call: ScriptCall,
        args: Args<'_>,
        context: ScriptContext<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), Error> {
        if self.in_transaction {
            return Err(Error::text("ERR EVAL cannot be debugged inside a transaction"));
        }
        if context.yielder.connection().is_none_or(|connection| connection.awaits_fsync()) {
            return Err(Error::text("ERR EVAL cannot be debugged while replies to other commands are held back"));
        }
        match mode {
            Mode::Sync => {
                logging::notice(format_args!("Synchronous debugging eval session started"));
                let result = self.debug_here(client, script_call, args, context, out);
                logging::notice(format_args!("Synchronous debugging eval session ended"));
                client.fate = Fate::CloseAfterReply;
                result
            }
            Mode::Beside => {
                if !context.locked.is_global() {
                    context.locked.add_global(self.participant);
                }
                let muted = Arc::new(self.muted_config());
                let forked = self.server.scripting.sessions.copy();
                let forked = forked.map_err(|error| {
                    Error::new(format!("ERR Fork() failed: can't run EVAL in debugging mode: {error}"))
                })?;
                match forked {
                    Forked::Server => {
                        client.fate = Fate::Close;
                        if let Some(connection) = context.yielder.connection() {
                            connection.hand_over();
                        }
                        Ok(())
                    }
                    Forked::Session => self.debug_in_copy(client, muted, script_call, args, context),
                }
            }
        }
    }

    /// Settings under which a forked process leaves no trace of its commands.
    fn muted_config(&self) -> RuntimeConfig {
        let mut runtime_config = RuntimeConfig::read(&self.server.config.values(), self.runtime_config.generation);
        runtime_config.keyspace_events = KeyspaceEvents::empty();
        runtime_config.notified_events = EventClass::empty();
        runtime_config.slow_ticks = u64::MAX;
        runtime_config.large_request_bytes = usize::MAX;
        runtime_config.large_reply_bytes = usize::MAX;
        runtime_config
    }

    /// Runs the script in this forked process and exits.
    fn debug_in_copy(
        &mut self,
        client: &mut Client,
        muted: Arc<RuntimeConfig>,
        script_call: ScriptCall,
        args: Args<'_>,
        mut context: ScriptContext<'_>,
    ) -> ! {
        let Some(connection) = context.yielder.connection() else { debugging::leave() };
        debugging::prepare_child(connection.fd());
        self.runtime_config = muted;
        self.is_copy = true;
        self.effects.begin_group();
        self.effects.set_propagation_targets(PropagationTargets::None);
        self.server.admission.set(Reasons::MONITORED, false);
        let mut reply = ReplyBuffer::contiguous(Vec::new());
        if let Err(error) = self.debug_here(client, script_call, args, context.reborrow(), &mut reply) {
            reply.reply(client.version).error(error.bytes());
        }
        DebugConsole(context.yielder).send(&reply.bytes);
        if let Some(connection) = context.yielder.connection() {
            connection.close_notify();
        }
        debugging::leave()
    }

    /// Runs the script for a whole debugger session. An error from outside the script has not been answered.
    fn debug_here(
        &mut self,
        client: &mut Client,
        script_call: ScriptCall,
        args: Args<'_>,
        mut context: ScriptContext<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), Error> {
        let scripting: &'static Scripting = &self.server.scripting;
        let mut interpreters = scripting.interpreters().ok_or(super::script_call::SCRIPT_IN_SCRIPT)?;
        let mut debugger = Debugger::new(&args[1]);
        let run = self.find_code(script_call, args, &mut interpreters).and_then(|(code, request)| {
            self.check_flags(client, script_call, code.flags())?;
            let (reach, debugger) = (Reach::Alone, Some(&mut debugger));
            let run = ScriptRun { script_call, code: &code, reach, debugger, request };
            Ok(self.run_code(client, run, &mut interpreters, context.reborrow(), out))
        });
        debugger.end(&mut DebugConsole(context.yielder));
        match run {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => Err(self.record_failure(&failure)),
            Err(error) => Err(error),
        }
    }

    /// The error that a script ended with. It is counted here unless it was counted for a command.
    fn record_failure(&mut self, failure: &Failure) -> Error {
        self.error_is_counted = failure.is_counted();
        Error::raw(failure.text())
    }
}
