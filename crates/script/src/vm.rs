//! The virtual machine as the server sees it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use kvick_resp::Reply;

use crate::library::{self, FunctionHandle, FunctionSpec};
use crate::lua::shared::State;
use crate::lua::{Ref, Universe};
use crate::{Debugger, Failure, Host, run, sandbox};

/// What a machine runs, which decides what scripts find in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Scripts (EVAL): their keys and arguments are the globals `KEYS` and `ARGV`.
    Scripts,
    /// Functions (FCALL): their keys and arguments are parameters.
    Functions,
}

/// Who the server says that it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// `SERVER_NAME`.
    pub server_name: String,
    /// `VALKEY_VERSION`, of three numbers.
    pub version: String,
    /// `REDIS_VERSION`, of three numbers.
    pub redis_version: String,
}

/// How a machine is set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Whether the deprecated `getfenv` and `setfenv` are there.
    pub insecure_api: bool,
    /// How many bytes scripts may have in use, if they are to be bounded.
    pub memory_max: Option<usize>,
}

impl Default for Settings {
    /// No deprecated functions, no bound.
    fn default() -> Self {
        Settings { insecure_api: false, memory_max: None }
    }
}

/// A virtual machine: one Lua state with the scripts that were compiled, or the functions that were loaded, in it.
pub struct Vm {
    universe: Universe,
    settings: Settings,
    scripts: HashMap<[u8; 40], Ref, BuildHasherDefault<DigestHasher>>,
    /// How many calls there were since the collector did some work.
    calls: u32,
}

/// After how many calls the collector does some work, and how much.
const COLLECT_PERIOD: u32 = 50;

/// Up to so many bytes in use, garbage is left to be collected when scripts ask for more: a cycle of the collector costs
/// as much as many short scripts do.
const MEMORY_SMALL_MAX: usize = 1 << 20;

impl Vm {
    /// A machine without any script.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub fn new(kind: Kind, identity: &Identity, settings: Settings) -> Result<Vm, Failure> {
        let Some(universe) = Universe::new(State::new()) else {
            return Err(Failure::new("ERR no memory for scripts"));
        };
        sandbox::build(universe.lua(), kind, identity, &settings);
        Ok(Vm { universe, settings, scripts: HashMap::default(), calls: 0 })
    }

    /// Compiles the code of a script (without its first line, if that is a [`Shebang`](crate::Shebang)) and keeps it
    /// under the digest, which is of 40 hexadecimal digits.
    ///
    /// # Errors
    ///
    /// What is wrong with the code.
    pub fn compile_script(&mut self, digest: &[u8; 40], code: &[u8]) -> Result<(), Failure> {
        let script = run::compile(self.universe.lua(), code, "@user_script", &self.settings)
            .map_err(|text| Failure::new([b"ERR Error compiling script (new function): ", &*text].concat()))?;
        if let Some(old) = self.scripts.insert(*digest, script) {
            self.universe.lua().forget(old);
        }
        Ok(())
    }

    /// Whether a script was compiled and not forgotten.
    pub fn has_script(&self, digest: &[u8; 40]) -> bool {
        self.scripts.contains_key(digest)
    }

    /// Forgets a script.
    pub fn forget_script(&mut self, digest: &[u8; 40]) {
        if let Some(script) = self.scripts.remove(digest) {
            self.universe.lua().forget(script);
        }
    }

    /// Runs a script and writes its result.
    ///
    /// # Errors
    ///
    /// The error that the script ended with, or that it returned; nothing is written then. Without such a script it is
    /// the NOSCRIPT error.
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

    /// Runs a script in a session of the debugger, which it leaves to the caller to end, and writes its result.
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
        let outcome = run::script(self.universe.lua(), *script, keys, arguments, host, reply, &self.settings, debugger);
        self.collect_sometimes();
        outcome
    }

    /// Runs the code of a library (without its first line) and answers the functions that it registered. With a
    /// `time_limit` it fails if it takes longer.
    ///
    /// # Errors
    ///
    /// Why it does not compile or ended with an error; nothing of it remains then.
    pub fn load_library(&mut self, code: &[u8], time_limit: Option<Duration>) -> Result<Vec<FunctionSpec>, Failure> {
        library::load(self.universe.lua(), code, time_limit, &self.settings)
    }

    /// Drops a function.
    pub fn drop_function(&mut self, function: FunctionHandle) {
        self.universe.lua().forget(function.0);
    }

    /// Runs a function and writes its result.
    ///
    /// # Errors
    ///
    /// The error that the function ended with, or that it returned; nothing is written then.
    pub fn call_function<'k>(
        &mut self,
        function: &FunctionHandle,
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
        arguments: impl ExactSizeIterator<Item = &'k [u8]>,
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let outcome = run::function(self.universe.lua(), function.0, keys, arguments, host, reply, &self.settings);
        self.collect_sometimes();
        outcome
    }

    /// The bytes that Lua has in use.
    pub fn memory(&self) -> usize {
        self.universe.lua().heap().used()
    }

    /// Frees all that scripts left behind.
    pub fn collect(&mut self) {
        self.universe.lua().collect();
    }

    /// Every few calls, lets the collector do some work if there may be much to be freed: by itself it goes on only when
    /// scripts ask for more.
    fn collect_sometimes(&mut self) {
        self.calls += 1;
        if self.calls == COLLECT_PERIOD {
            self.calls = 0;
            if self.memory() > MEMORY_SMALL_MAX {
                self.universe.lua().collect_some(COLLECT_PERIOD as i32);
            }
        }
    }
}

/// Hashes hexadecimal digests: they are random already, and who could choose them can choose worse things to run.
#[derive(Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, digits: &[u8]) {
        // A hexadecimal digit has its information in its lowest four bits and the bit for letters.
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
