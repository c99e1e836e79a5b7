//! The virtual machine, the interface of this crate to the server.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use kvick_resp::Reply;

use crate::debugger::session::Debugger;
use crate::library::spec::{FunctionHandle, FunctionSpec};
use crate::lua::GlobalState;
use crate::lua::reference::Ref;
use crate::lua::shared::{Hooks, State};
use crate::settings::{Identity, Kind, Settings};
use crate::{CallSite, Failure, Host, analysis, debugger, library, run, sandbox};

/// A virtual machine: one Lua state with its compiled scripts or loaded functions.
pub struct Vm {
    global_state: GlobalState,
    settings: Settings,
    scripts: HashMap<[u8; 40], Ref, BuildHasherDefault<DigestHasher>>,
    /// Number of calls since the last collector step.
    calls: u32,
}

/// Number of calls between collector steps, and the size of a step.
const COLLECT_PERIOD: u32 = 50;

/// Up to this many bytes in use, garbage is left until scripts need more memory: a collector cycle costs as much as
/// many short scripts.
const MEMORY_SMALL_MAX: usize = 1 << 20;

impl Vm {
    /// A machine without scripts.
    ///
    /// # Errors
    ///
    /// If there is not enough memory.
    pub fn new(kind: Kind, identity: &Identity, settings: Settings) -> Result<Vm, Failure> {
        let hooks = Hooks { at_line: debugger::at_line, check_interrupt: run::check_interrupt };
        let Some(global_state) = GlobalState::new(State::new(), hooks) else {
            return Err(Failure::new("ERR no memory for scripts"));
        };
        sandbox::build(global_state.lua(), kind, identity, &settings);
        if let Some(seed) = settings.seed {
            global_state.lua().state().random.seed(seed);
        }
        Ok(Vm { global_state, settings, scripts: HashMap::default(), calls: 0 })
    }

    /// Compiles the code of a script (without its first line, if that is a [`Shebang`](crate::Shebang)) and stores it
    /// under the digest of 40 hexadecimal digits.
    ///
    /// # Errors
    ///
    /// If the code does not compile.
    pub fn compile_script(&mut self, digest: &[u8; 40], code: &[u8]) -> Result<(), Failure> {
        let script = run::compile(self.global_state.lua(), code, "@user_script", &self.settings)
            .map_err(|text| Failure::new([b"ERR Error compiling script (new function): ", &*text].concat()))?;
        if let Some(old) = self.scripts.insert(*digest, script) {
            self.global_state.lua().forget(old);
        }
        Ok(())
    }

    /// Whether a script has been compiled and not removed.
    pub fn has_script(&self, digest: &[u8; 40]) -> bool {
        self.scripts.contains_key(digest)
    }

    /// Number of scripts.
    pub fn scripts(&self) -> usize {
        self.scripts.len()
    }

    /// The commands that a script calls, if all of them are known.
    pub fn script_calls(&self, digest: &[u8; 40]) -> Option<Vec<CallSite>> {
        analysis::of_script(self.global_state.lua(), *self.scripts.get(digest)?)
    }

    /// Removes a script.
    pub fn forget_script(&mut self, digest: &[u8; 40]) {
        if let Some(script) = self.scripts.remove(digest) {
            self.global_state.lua().forget(script);
        }
    }

    /// Runs a script and writes its result.
    ///
    /// # Errors
    ///
    /// The error that the script raised or returned; nothing is written then. If the script does not exist, the
    /// NOSCRIPT error.
    pub fn run_script<'k>(
        &mut self,
        digest: &[u8; 40],
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
        arguments: impl ExactSizeIterator<Item = &'k [u8]>,
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        self.run(digest, keys, arguments, host, reply, None)
    }

    /// Runs a script in a debugger session, which the caller must end, and writes its result.
    ///
    /// # Errors
    ///
    /// As [`run_script`](Self::run_script).
    pub fn debug_script<'k>(
        &mut self,
        digest: &[u8; 40],
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
        arguments: impl ExactSizeIterator<Item = &'k [u8]>,
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
        debugger: &mut Debugger,
    ) -> Result<(), Failure> {
        self.run(digest, keys, arguments, host, reply, Some(debugger))
    }

    fn run<'k>(
        &mut self,
        digest: &[u8; 40],
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
        arguments: impl ExactSizeIterator<Item = &'k [u8]>,
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
        debugger: Option<&mut Debugger>,
    ) -> Result<(), Failure> {
        let Some(script) = self.scripts.get(digest) else {
            return Err(Failure::new("NOSCRIPT No matching script."));
        };
        let outcome =
            run::script(self.global_state.lua(), *script, keys, arguments, host, reply, &self.settings, debugger);
        self.collect_periodically();
        outcome
    }

    /// Runs the code of a library (without its first line) and returns the functions that it registered. Fails if it
    /// takes longer than `time_limit`.
    ///
    /// # Errors
    ///
    /// If the code does not compile or raises an error; its functions are dropped then.
    pub fn load_library(&mut self, code: &[u8], time_limit: Option<Duration>) -> Result<Vec<FunctionSpec>, Failure> {
        library::load(self.global_state.lua(), code, time_limit, &self.settings)
    }

    /// Drops a function, once.
    pub fn drop_function(&mut self, function: &FunctionHandle) {
        self.global_state.lua().forget(function.0);
    }

    /// Runs a function and writes its result.
    ///
    /// # Errors
    ///
    /// The error that the function raised or returned; nothing is written then.
    pub fn call_function<'k>(
        &mut self,
        function: &FunctionHandle,
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
        arguments: impl ExactSizeIterator<Item = &'k [u8]>,
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let outcome = run::function(self.global_state.lua(), function.0, keys, arguments, host, reply, &self.settings);
        self.collect_periodically();
        outcome
    }

    /// Bytes in use by Lua.
    pub fn memory(&self) -> usize {
        self.global_state.lua().heap().used()
    }

    /// Runs a full garbage collection.
    pub fn collect(&mut self) {
        self.global_state.lua().collect();
    }

    /// Runs a collector step every few calls if there may be much garbage: the collector itself runs only when scripts
    /// allocate.
    fn collect_periodically(&mut self) {
        self.calls += 1;
        if self.calls == COLLECT_PERIOD {
            self.calls = 0;
            if self.memory() > MEMORY_SMALL_MAX {
                self.global_state.lua().collect_step(COLLECT_PERIOD as i32);
            }
        }
    }
}

/// Hashes hexadecimal digests. They are already random, and clients that could choose them could run worse scripts.
#[derive(Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, digits: &[u8]) {
        // The information of a hexadecimal digit is in its lowest four bits and the bit that marks letters.
        for chunk in digits.chunks_exact(8).take(2) {
            let word = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
