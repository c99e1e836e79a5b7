//! Scripts and functions: their registries, and the interpreters that run them.
//!
//! - [`scripts`]: the scripts of EVAL and SCRIPT LOAD, by SHA1 sum.
//! - [`functions`], [`libraries`]: functions, and the libraries that define them.
//! - [`running`]: the running script, as other threads see it.
//! - [`debugging`]: forked processes in which scripts are debugged.
//!
//! `kvick-engine` executes scripts and the commands that they call.
//!
//! **Invariant**: one script or function runs at a time, across all workers. A thread takes the [turn](Turn) before it
//! runs one, and before any lock of the keyspace. There are two interpreters, one for scripts and one for functions.
//! Only the thread that holds the turn or the global lock accesses them. The two exclude each other, because the turn
//! is held only within a batch or with the global lock. The registries are locked briefly, and last of all locks.

pub mod debugging;
pub mod functions;
pub mod libraries;
pub mod running;
pub mod script_call;
pub mod scripts;

use debugging::Sessions;
use functions::Library;
use kvick_commands::context::Error;
use kvick_core::Core;
use kvick_resp::Args;
use kvick_runtime::version;
use kvick_script::{Failure, Identity, Kind, ScriptFlags, Settings, Shebang, Vm};
use kvick_store::Keyspace;
use kvick_store::lazy_free::Garbage;
use libraries::{Libraries, RestorePolicy};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use running::Running;
use script_call::Source;
use scripts::{Script, Scripts, Sum};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Interval at which a thread waiting for the turn checks whether to give up.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Scripting state; see the module's documentation.
pub struct Scripting {
    keyspace: &'static Keyspace,
    turn: RwLock<()>,
    interpreters: Mutex<Interpreters>,
    /// The registered scripts.
    pub scripts: Mutex<Scripts>,
    /// The registered libraries.
    pub libraries: RwLock<Libraries>,
    /// The running script.
    pub running: Running,
    /// Debugger sessions in forked processes.
    pub sessions: Sessions,
    /// Requests blocked by a script, on all workers.
    pub blocked_requests: AtomicUsize,
    /// DEBUG SET-DISABLE-DENY-SCRIPTS: whether scripts may call commands that are denied to scripts.
    pub may_call_all: AtomicBool,
    /// Memory of the interpreters in bytes as of their last use: for scripts, for functions.
    memory: [AtomicUsize; 2],
}

/// The right to run a script. The thread that holds it may wait for keyspace locks while it holds others.
pub struct Turn<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

/// Prevents scripts from starting, for a command that waits for locks within its batch.
pub struct NoScripts<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// The interpreters, created on first use.
#[derive(Default)]
pub struct Interpreters {
    vms: [Option<Vm>; 2],
    /// Whether they provide the APIs enabled by `lua-enable-insecure-api`.
    insecure: bool,
}

impl Interpreters {
    /// The interpreter for a kind of code, created on first use.
    pub fn get(&mut self, core: &Core, kind: Kind) -> Result<&mut Vm, Error> {
        let slot = &mut self.vms[kind as usize];
        match slot {
            Some(vm) => Ok(vm),
            None => {
                let settings = Settings { insecure_api: self.insecure, ..Settings::default() };
                Ok(slot.insert(Vm::new(kind, &identity(core), settings).map_err(error_of)?))
            }
        }
    }
}

impl Scripting {
    /// Creates state without scripts and functions.
    pub fn new(keyspace: &'static Keyspace) -> Self {
        Scripting {
            keyspace,
            turn: RwLock::default(),
            interpreters: Mutex::default(),
            scripts: Mutex::default(),
            libraries: RwLock::default(),
            running: Running::default(),
            sessions: Sessions::default(),
            blocked_requests: AtomicUsize::new(0),
            may_call_all: AtomicBool::new(false),
            memory: Default::default(),
        }
    }

    /// Takes the turn. While another script holds it, polls `may_wait` and gives up when it returns false.
    #[inline]
    pub fn acquire_turn(&self, may_wait: impl Fn() -> bool) -> Option<Turn<'_>> {
        loop {
            if let Some(turn) = self.turn.try_write().or_else(|| self.turn.try_write_for(POLL_INTERVAL)) {
                return Some(Turn(turn));
            }
            if !may_wait() {
                return None;
            }
        }
    }

    /// Prevents scripts from starting. While a script runs, polls `may_wait` and gives up when it returns false.
    pub fn without_scripts(&self, may_wait: impl Fn() -> bool) -> Option<NoScripts<'_>> {
        loop {
            if let Some(guard) = self.turn.try_read_for(POLL_INTERVAL) {
                return Some(NoScripts(guard));
            }
            if !may_wait() {
                return None;
            }
        }
    }

    /// The interpreters. The caller holds the turn or the global lock. `None` if a running script called a command that
    /// needs them.
    pub fn interpreters(&self) -> Option<MutexGuard<'_, Interpreters>> {
        self.interpreters.try_lock()
    }

    fn idle_interpreters(&self) -> Result<MutexGuard<'_, Interpreters>, Error> {
        self.interpreters().ok_or(Error::text("ERR A script cannot change what scripts run with"))
    }

    /// Records the memory of an interpreter.
    pub fn note_memory(&self, kind: Kind, interpreters: &Interpreters) {
        let bytes = interpreters.vms[kind as usize].as_ref().map_or(0, Vm::memory);
        self.memory[kind as usize].store(bytes, Ordering::Relaxed);
    }

    /// Memory of the interpreter of a kind, in bytes.
    pub fn interpreter_memory(&self, kind: Kind) -> usize {
        self.memory[kind as usize].load(Ordering::Relaxed)
    }

    /// Approximate memory of the texts of scripts, and of libraries, in bytes.
    pub fn text_memory(&self) -> [usize; 2] {
        [self.scripts.lock().memory(), self.libraries.read().memory()]
    }

    /// The flags declared by the script or function of a request, if it is registered or its text can be parsed. `sum`
    /// computes a script's SHA1 sum.
    pub fn flags_of(&self, source: Source, args: Args<'_>, sum: impl FnOnce(&[u8]) -> Sum) -> Option<ScriptFlags> {
        let code = args.get(1)?;
        let known = |sum: &Sum| self.scripts.lock().get(sum);
        match source {
            Source::Script => match known(&sum(code)) {
                Some(script) => script.flags,
                None => Shebang::of_script(code).ok()?.flags,
            },
            Source::Sum => known(&Sum::read(code)?)?.flags,
            Source::Function => Some(self.libraries.read().function(code)?.flags),
        }
    }

    /// Replaces an interpreter with a new one.
    fn reset(&self, interpreters: &mut Interpreters, kind: Kind, lazy: bool) {
        let old = interpreters.vms[kind as usize].take();
        match old {
            Some(vm) if lazy => self.keyspace.lazy_free.dispose(Garbage::Other(Box::new(vm))),
            old => drop(old),
        }
        self.memory[kind as usize].store(0, Ordering::Relaxed);
    }

    /// Applies `lua-enable-insecure-api`: a change recreates the interpreters. The caller holds the turn.
    #[inline]
    pub fn apply_settings(&self, core: &Core, insecure: bool, interpreters: &mut Interpreters) {
        if insecure != interpreters.insecure {
            self.recreate_interpreters(core, insecure, interpreters);
        }
    }

    #[cold]
    fn recreate_interpreters(&self, core: &Core, insecure: bool, interpreters: &mut Interpreters) {
        interpreters.insecure = insecure;
        self.scripts.lock().clear();
        self.reset(interpreters, Kind::Scripts, false);
        let sources = self.library_sources();
        std::mem::take(&mut *self.libraries.write());
        self.reset(interpreters, Kind::Functions, false);
        let Ok(vm) = interpreters.get(core, Kind::Functions) else { return };
        for source in sources {
            // It loaded before. If it depends on an API that is gone, drop it.
            if let Ok(library) = Library::load(vm, &source, None, |_| Ok(())) {
                let _ = self.libraries.write().merge(vec![library], RestorePolicy::Append);
            }
        }
    }

    /// SCRIPT FLUSH. Requires the global lock.
    pub fn flush_scripts(&self, lazy: bool) -> Result<(), Error> {
        let mut interpreters = self.idle_interpreters()?;
        let scripts = self.scripts.lock().clear();
        if lazy {
            self.keyspace.lazy_free.dispose(Garbage::Other(Box::new(scripts)));
        }
        self.reset(&mut interpreters, Kind::Scripts, lazy);
        Ok(())
    }

    /// SCRIPT LOAD. Requires the global lock.
    pub fn load_script(&self, core: &Core, sum: &Sum, text: &[u8]) -> Result<(), Error> {
        let mut interpreters = self.idle_interpreters()?;
        if !self.scripts.lock().make_permanent(sum) {
            self.compile(interpreters.get(core, Kind::Scripts)?, sum, text, true)?;
            self.note_memory(Kind::Scripts, &interpreters);
        }
        Ok(())
    }

    /// Compiles a new script and registers it.
    pub fn compile(&self, vm: &mut Vm, sum: &Sum, text: &[u8], is_permanent: bool) -> Result<Arc<Script>, Error> {
        let shebang = Shebang::of_script(text).map_err(error_of)?;
        if !shebang.engine.eq_ignore_ascii_case(b"lua") {
            return Err(Error::quoting(&[b"ERR Could not find scripting engine '", &shebang.engine, b"'"]));
        }
        vm.compile_script(sum.digits(), &text[shebang.code]).map_err(error_of)?;
        let (script, removed) = self.scripts.lock().add(*sum, text, shebang.flags, is_permanent);
        if let Some(removed) = removed {
            vm.forget_script(removed.sum.digits());
        }
        Ok(script)
    }

    /// Changes libraries. Requires the global lock.
    fn with_functions<T>(&self, core: &Core, change: impl FnOnce(&mut Vm) -> Result<T, Error>) -> Result<T, Error> {
        let mut interpreters = self.idle_interpreters()?;
        let result = change(interpreters.get(core, Kind::Functions)?);
        self.note_memory(Kind::Functions, &interpreters);
        result
    }

    /// FUNCTION LOAD. Returns the library's name. Requires the global lock.
    pub fn load_library(
        &self,
        core: &Core,
        code: &[u8],
        replace: bool,
        time_max: Option<Duration>,
    ) -> Result<String, Error> {
        self.with_functions(core, |vm| {
            let admit = |name: &str| match self.libraries.read().contains(name) && !replace {
                true => Err(Failure::new(format!("ERR Library '{name}' already exists"))),
                false => Ok(()),
            };
            let loaded = Library::load(vm, code, time_max, admit).map_err(error_of)?;
            let name = loaded.name.clone();
            let policy = if replace { RestorePolicy::Replace } else { RestorePolicy::Append };
            self.merge(vm, vec![loaded], policy)?;
            Ok(name)
        })
    }

    /// FUNCTION RESTORE: loads all libraries or none. Requires the global lock.
    pub fn restore_libraries(
        &self,
        core: &Core,
        sources: &[impl AsRef<[u8]>],
        policy: RestorePolicy,
    ) -> Result<(), Error> {
        self.with_functions(core, |vm| {
            let mut loaded: Vec<Library> = Vec::new();
            for source in sources {
                let admit = |name: &str| match loaded.iter().any(|library| library.name == name) {
                    true => Err(Failure::new(format!("ERR Library '{name}' already exists"))),
                    false => Ok(()),
                };
                match Library::load(vm, source.as_ref(), None, admit) {
                    Ok(library) => loaded.push(library),
                    Err(error) => {
                        loaded.into_iter().for_each(|library| library.drop_from(vm));
                        return Err(error_of(error));
                    }
                }
            }
            self.merge(vm, loaded, policy)
        })
    }

    fn merge(&self, vm: &mut Vm, loaded: Vec<Library>, policy: RestorePolicy) -> Result<(), Error> {
        let merged = self.libraries.write().merge(loaded, policy);
        let (dropped, result) = match merged {
            Ok(replaced) => (replaced, Ok(())),
            Err((error, refused)) => (refused, Err(Error::new(format!("ERR {error}")))),
        };
        dropped.into_iter().for_each(|library| library.drop_from(vm));
        result
    }

    /// FUNCTION DELETE. Requires the global lock.
    pub fn delete_library(&self, core: &Core, name: &[u8]) -> Result<(), Error> {
        self.with_functions(core, |vm| {
            let removed = std::str::from_utf8(name).ok().and_then(|name| self.libraries.write().remove(name));
            removed.ok_or(Error::text("ERR Library not found"))?.drop_from(vm);
            Ok(())
        })
    }

    /// FUNCTION FLUSH. Requires the global lock.
    pub fn flush_libraries(&self, lazy: bool) -> Result<(), Error> {
        let mut interpreters = self.idle_interpreters()?;
        let libraries = std::mem::take(&mut *self.libraries.write());
        if lazy {
            self.keyspace.lazy_free.dispose(Garbage::Other(Box::new(libraries)));
        }
        self.reset(&mut interpreters, Kind::Functions, lazy);
        Ok(())
    }

    /// The libraries' code, for snapshots.
    pub fn library_sources(&self) -> Vec<Arc<[u8]>> {
        self.libraries.read().all().map(|library| library.code.clone()).collect()
    }

    /// Resets the statistics.
    pub fn reset_stats(&self) {
        self.scripts.lock().evicted = 0;
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

fn error_of(failure: Failure) -> Error {
    Error::raw(failure.text())
}
