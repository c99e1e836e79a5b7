//! Scripts that are confined to the keys they declare, so that they run on all workers at once.
//!
//! The engine remembers the code of such scripts: it needs neither the registries nor the turn to run them. A request
//! takes the locks of its keys like any other command, and then [enters](kvick_scripting::gate) the gate that keeps
//! these scripts apart from those that run alone. If the gate is closed, or the script turns out to need more than
//! its locks, the engine releases the locks and runs the script alone.
//!
//! **Invariant**: a script that was given up has no effects but those of reading. Only code that is known to access
//! nothing but declared keys may write, publish or log ([`Conduct`]).

use super::engine::Engine;
use super::invocation::ScriptContext;
use super::script_call::{Code, Reach, Request, ScriptCall, ScriptRun, Source};
use crate::handlers::Handler;
use crate::session::Client;
use kvick_commands::context::Error;
use kvick_core::executor::Executor;
use kvick_resp::{Args, ReplyBuffer};
use kvick_script::Failure;
use kvick_scripting::conduct::Conduct;
use kvick_scripting::gate::Entered;
use kvick_scripting::scripts::Sum;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of scripts, and of names of functions, that an engine remembers.
const REMEMBERED_MAX: usize = 1_024;

/// Code that an engine has run confined, and may run again.
#[derive(Default)]
pub(super) struct ConfinedCode {
    scripts: HashMap<Sum, Arc<Code>>,
    /// By name as clients write it.
    functions: HashMap<Box<[u8]>, Arc<Code>>,
    /// The generation of the libraries that these functions are from.
    generation: u64,
}

impl Engine {
    /// The code of a request, if it may run confined.
    #[inline]
    pub(super) fn confined_code(
        &mut self,
        client: &Client,
        handler: Option<Handler>,
        args: Args<'_>,
    ) -> Option<Arc<Code>> {
        let Some(Handler::ScriptCall(script_call)) = handler else { return None };
        let scripting = &self.server.scripting;
        let may_be_confined = self.server.active_workers() > 1
            && self.executor.is_worker()
            && client.debugging.is_none()
            && !client.info.is_from_log()
            && !self.runtime_config.insecure_scripts
            && !scripting.may_call_all.load(Ordering::Relaxed);
        if !may_be_confined {
            return None;
        }
        let code = match script_call.source {
            Source::Script => {
                let sum = self.recent_sum.of(args.get(1)?);
                self.script_to_confine(sum)
            }
            Source::Sum => self.script_to_confine(Sum::read(args.get(1)?)?),
            Source::Function => self.function_to_confine(args.get(1)?),
        }?;
        match code.known().get() {
            Conduct::Confined => Some(code),
            // Monitors would see the commands of a script twice if it was given up.
            Conduct::Reads => (!self.is_monitored()).then_some(code),
            Conduct::Unknown | Conduct::Alone => None,
        }
    }

    fn script_to_confine(&mut self, sum: Sum) -> Option<Arc<Code>> {
        if let Some(code) = self.confined_code.scripts.get(&sum)
            && let Code::Script(script) = &**code
            && script.is_registered()
        {
            script.note_use();
            return Some(code.clone());
        }
        let script = self.server.scripting.scripts.lock().get(&sum)?;
        if matches!(script.known.get(), Conduct::Unknown | Conduct::Alone) {
            return None;
        }
        script.note_use();
        let (code, known) = (Arc::new(Code::Script(script)), &mut self.confined_code.scripts);
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(sum, code.clone());
        Some(code)
    }

    fn function_to_confine(&mut self, name: &[u8]) -> Option<Arc<Code>> {
        let (scripting, known) = (&self.server.scripting, &mut self.confined_code);
        let generation = scripting.libraries_generation();
        if known.generation != generation || known.functions.len() >= REMEMBERED_MAX {
            known.functions.clear();
            known.generation = generation;
        }
        if let Some(code) = known.functions.get(name) {
            return Some(code.clone());
        }
        let function = scripting.libraries.read().function(name)?;
        if matches!(function.known.get(), Conduct::Unknown | Conduct::Alone) {
            return None;
        }
        let code = Arc::new(Code::Function(function));
        known.functions.insert(name.into(), code.clone());
        Some(code)
    }

    /// Whether code is still registered. The worker may have left its batch since it looked.
    fn is_current(&self, code: &Code) -> bool {
        match code {
            Code::Script(script) => script.is_registered(),
            Code::Function(_) => self.confined_code.generation == self.server.scripting.libraries_generation(),
        }
    }

    /// Begins a confined script, whose locks are held. `None` if it must run alone.
    pub(super) fn enter_confined(&self, code: &Code) -> Option<Entered<'static>> {
        let Executor::Worker(worker) = self.executor else { return None };
        self.server.scripting.enter(worker).filter(|_| self.is_current(code))
    }

    /// Runs the context's confined code.
    pub(super) fn run_confined(
        &mut self,
        client: &mut Client,
        script_call: ScriptCall,
        args: Args<'_>,
        context: ScriptContext<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<Result<(), Failure>, Error> {
        let (Some(code), Executor::Worker(worker)) = (context.confined, self.executor) else { return Ok(Ok(())) };
        let Some(mut interpreters) = self.server.scripting.worker_interpreters(worker) else {
            self.given_up = true;
            return Ok(Ok(()));
        };
        let request = Request::of(script_call.source, args)?;
        self.check_flags(client, script_call, code.flags())?;
        let reach = if code.known().get() == Conduct::Confined { Reach::Declared } else { Reach::Reading };
        let run = ScriptRun { script_call, code, reach, debugger: None, request };
        Ok(self.run_code(client, run, &mut interpreters, context, out))
    }

    /// A confined script needs more than the locks it has: it runs alone, now and in future.
    #[cold]
    pub(super) fn give_up(&mut self, code: &Code) {
        code.known().set_alone();
        self.given_up = true;
    }
}
