//! The virtual machines that run scripts and functions. The crate's documentation says who may use which.

use super::Scripting;
use super::functions::Function;
use super::scripts::Script;
use kvick_commands::context::Error;
use kvick_core::Core;
use kvick_runtime::{clock, version};
use kvick_script::{FunctionHandle, Identity, Kind, Settings, Shebang, Vm};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A worker's interpreter is recreated when it has compiled so many scripts, or twice as many as there are, to forget
/// those that were evicted.
const COMPILED_MAX: usize = 1_024;

/// Interpreters for scripts and for functions, created on first use.
#[derive(Default)]
pub struct Interpreters {
    vms: [Option<Vm>; 2],
    /// The worker that they belong to, if they are not shared.
    worker: Option<usize>,
    /// Whether they provide the APIs enabled by `lua-enable-insecure-api`.
    pub(super) insecure: bool,
    /// The functions that a worker has loaded, by name.
    functions: HashMap<String, FunctionHandle>,
}

impl Interpreters {
    /// The interpreter for a kind of code, created on first use.
    pub fn get(&mut self, core: &Core, kind: Kind) -> Result<&mut Vm, Error> {
        let slot = &mut self.vms[kind as usize];
        match slot {
            Some(vm) => Ok(vm),
            None => {
                let seed = self.worker.map(seed);
                let settings = Settings { insecure_api: self.insecure, seed, ..Settings::default() };
                Ok(slot.insert(Vm::new(kind, &identity(core), settings).map_err(super::error_of)?))
            }
        }
    }

    /// A worker's interpreter with a script, compiled on first use. `None` if it is not registered any more, or does
    /// not compile.
    #[inline]
    pub fn with_script(&mut self, scripting: &Scripting, core: &Core, script: &Script) -> Option<&mut Vm> {
        let digits = script.sum.digits();
        if !self.vms[Kind::Scripts as usize].as_ref().is_some_and(|vm| vm.has_script(digits)) {
            self.compile(scripting, core, script)?;
        }
        self.vms[Kind::Scripts as usize].as_mut()
    }

    #[cold]
    fn compile(&mut self, scripting: &Scripting, core: &Core, script: &Script) -> Option<()> {
        let (text, registered) = {
            let scripts = scripting.scripts.lock();
            (scripts.text(&script.sum)?.to_vec(), scripts.len())
        };
        if self.get(core, Kind::Scripts).ok()?.scripts() >= COMPILED_MAX.max(2 * registered) {
            drop(self.take(Kind::Scripts));
        }
        let code = Shebang::of_script(&text).ok()?.code;
        self.get(core, Kind::Scripts).ok()?.compile_script(script.sum.digits(), &text[code]).ok()
    }

    /// A worker's interpreter with a function, loaded on first use. `None` if its library is not registered any more,
    /// or cannot be loaded.
    #[inline]
    pub fn with_function(
        &mut self,
        scripting: &Scripting,
        core: &Core,
        function: &Arc<Function>,
    ) -> Option<(&mut Vm, &FunctionHandle)> {
        if !self.functions.contains_key(&function.name) {
            self.load(scripting, core, function)?;
        }
        Some((self.vms[Kind::Functions as usize].as_mut()?, self.functions.get(&function.name)?))
    }

    #[cold]
    fn load(&mut self, scripting: &Scripting, core: &Core, function: &Arc<Function>) -> Option<()> {
        let libraries = scripting.libraries.read();
        let library = libraries.library_of(function)?;
        let loaded = library.load_copy(self.get(core, Kind::Functions).ok()?).ok()?;
        self.functions.extend(loaded);
        Some(())
    }

    /// Removes an interpreter, with what it has compiled or loaded.
    pub(super) fn take(&mut self, kind: Kind) -> Option<Vm> {
        if kind == Kind::Functions {
            self.functions.clear();
        }
        self.vms[kind as usize].take()
    }
}

/// Interpreters, and their memory as of their last use.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Slot {
    interpreters: Mutex<Interpreters>,
    /// In bytes: for scripts, for functions.
    memory: [AtomicUsize; 2],
}

impl Slot {
    /// The interpreters of a worker.
    pub(super) fn of_worker(worker: usize) -> Self {
        let interpreters = Interpreters { worker: Some(worker), ..Interpreters::default() };
        Slot { interpreters: Mutex::new(interpreters), memory: Default::default() }
    }

    pub(super) fn lock(&self) -> InterpretersGuard<'_> {
        InterpretersGuard { interpreters: self.interpreters.lock(), memory: &self.memory }
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<InterpretersGuard<'_>> {
        Some(InterpretersGuard { interpreters: self.interpreters.try_lock()?, memory: &self.memory })
    }

    pub(super) fn memory(&self, kind: Kind) -> usize {
        self.memory[kind as usize].load(Ordering::Relaxed)
    }
}

/// A seed for `math.random` in a worker's interpreter: scripts must not get the same numbers from several interpreters.
fn seed(worker: usize) -> i32 {
    let number = (worker as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ clock::unix_us().cast_unsigned().wrapping_mul(0xbf58_476d_1ce4_e5b9)).wrapping_shr(32) as i32
}

/// Access to interpreters. When it ends, their memory is noted.
pub struct InterpretersGuard<'a> {
    interpreters: MutexGuard<'a, Interpreters>,
    memory: &'a [AtomicUsize; 2],
}

impl Deref for InterpretersGuard<'_> {
    type Target = Interpreters;

    fn deref(&self) -> &Interpreters {
        &self.interpreters
    }
}

impl DerefMut for InterpretersGuard<'_> {
    fn deref_mut(&mut self) -> &mut Interpreters {
        &mut self.interpreters
    }
}

impl Drop for InterpretersGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        for (vm, memory) in self.interpreters.vms.iter().zip(self.memory) {
            memory.store(vm.as_ref().map_or(0, Vm::memory), Ordering::Relaxed);
        }
    }
}

/// The server identity that scripts see.
fn identity(core: &Core) -> Identity {
    let compatible = core.config.read(kvick_config::tables::process::EXTENDED_REDIS_COMPATIBILITY);
    Identity {
        server_name: if compatible { "redis" } else { "valkey" }.into(),
        version: version::VALKEY.into(),
        redis_version: version::REDIS.into(),
    }
}
