//! Scripts and functions: their registries, and the interpreters that run them.
//!
//! - [`scripts`]: the scripts of EVAL and SCRIPT LOAD, by SHA1 sum.
//! - [`functions`], [`libraries`]: functions, and the libraries that define them.
//! - [`conduct`]: which scripts may run in parallel.
//! - [`gate`]: keeps those apart from the others.
//! - [`interpreters`]: the virtual machines.
//! - [`running`]: the running scripts, as other threads see them.
//! - [`debugging`]: forked processes in which scripts are debugged.
//!
//! `kvick-engine` executes scripts and the commands that they call.
//!
//! A script is either *confined* to its declared keys or runs *alone*. One script runs alone at a time, across all
//! workers, and no confined one beside it. Confined scripts run on all workers at once, if there are several.
//!
//! **No deadlock.** A thread takes the [turn](Turn) before it runs a script alone, and before any lock of the keyspace.
//! While it waits for the turn, or for confined scripts to end, it holds no lock of the keyspace. A script that runs
//! alone may wait for further locks while it holds some: their holders are neither another such script, nor a confined
//! one, but threads that never wait while they hold a lock. A confined script takes the locks of its declared keys as
//! any command does, and waits for nothing from then on. It [enters the gate](gate::Gate::enter) without waiting; if
//! the gate is closed, it releases its locks and queues for a [shared turn](SharedTurn) before it tries again. If it
//! may write, its code shows that it never needs another lock; if it has only read and needs one, it ends, releases
//! its locks, and starts again alone. So whatever a thread waits for is held by a thread that does not wait for it.
//!
//! **Interpreters.** There are shared interpreters, one for scripts and one for functions, which only the thread that
//! holds the turn or the global lock accesses. The two exclude each other, because the turn is held only within a batch
//! or with the global lock. Each worker has interpreters of its own for confined scripts. It uses them within a batch
//! only, so a thread that holds the global lock, or the turn, may replace them. The registries are locked briefly, and
//! last of all locks.

pub mod conduct;
pub mod debugging;
pub mod functions;
pub mod gate;
pub mod interpreters;
pub mod libraries;
pub mod running;
pub mod script_call;
pub mod scripts;

use conduct::Known;
use debugging::Sessions;
use functions::Library;
use gate::{Closed, Entered, Gate};
use interpreters::{Interpreters, InterpretersGuard, Slot};
use kvick_commands::context::Error;
use kvick_core::Core;
use kvick_resp::Args;
use kvick_script::{Failure, Kind, ScriptFlags, Shebang, Vm};
use kvick_store::Keyspace;
use kvick_store::lazy_free::Garbage;
use libraries::{Libraries, RestorePolicy};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use running::Running;
use script_call::Source;
use scripts::{NewScript, Script, Scripts, Sum};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Interval at which a thread waiting for the turn checks whether to give up.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Scripting state; see the module's documentation.
pub struct Scripting {
    keyspace: &'static Keyspace,
    turn: RwLock<()>,
    gate: Gate,
    shared: Slot,
    /// The interpreters of workers.
    workers: Box<[Slot]>,
    /// The registered scripts.
    pub scripts: Mutex<Scripts>,
    /// The registered libraries.
    pub libraries: RwLock<Libraries>,
    /// Increases with each change of libraries, under the global lock or the turn.
    libraries_generation: AtomicU64,
    /// The running scripts.
    pub running: Running,
    /// Debugger sessions in forked processes.
    pub sessions: Sessions,
    /// Requests blocked by a script, on all workers.
    pub blocked_requests: AtomicUsize,
    /// When a request last gave up waiting for long scripts of all workers to end, as Unix time in milliseconds.
    pub all_wanted_ms: AtomicI64,
    /// DEBUG SET-DISABLE-DENY-SCRIPTS: whether scripts may call commands that are denied to scripts.
    pub may_call_all: AtomicBool,
}

/// The right to run a script alone, once [no confined script](Turn::is_alone) runs. The thread that has it may wait for
/// keyspace locks while it holds others.
pub struct Turn<'a>(Closed<'a>, #[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

/// Prevents scripts from running alone, for a confined one that found the gate closed and is about to try again.
pub struct SharedTurn<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// Prevents scripts from starting, for a command that waits for locks within its batch.
pub struct NoScripts<'a>(Closed<'a>, #[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

impl Turn<'_> {
    /// Whether no confined script runs any more.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.0.is_quiet()
    }
}

impl NoScripts<'_> {
    /// Whether no confined script runs any more.
    pub fn is_alone(&self) -> bool {
        self.0.is_quiet()
    }
}

impl Scripting {
    /// Creates state without scripts and functions.
    pub fn new(keyspace: &'static Keyspace, workers: usize) -> Self {
        Scripting {
            keyspace,
            turn: RwLock::default(),
            gate: Gate::new(workers),
            shared: Slot::default(),
            workers: (0..workers).map(Slot::of_worker).collect(),
            scripts: Mutex::default(),
            libraries: RwLock::default(),
            libraries_generation: AtomicU64::new(0),
            running: Running::default(),
            sessions: Sessions::default(),
            blocked_requests: AtomicUsize::new(0),
            all_wanted_ms: AtomicI64::new(0),
            may_call_all: AtomicBool::new(false),
        }
    }

    /// Takes the turn. While another script holds it, polls `may_wait` and gives up when it returns false.
    #[inline]
    pub fn acquire_turn(&self, may_wait: impl Fn() -> bool) -> Option<Turn<'_>> {
        loop {
            if let Some(turn) = self.turn.try_write().or_else(|| self.turn.try_write_for(POLL_INTERVAL)) {
                return Some(Turn(self.gate.close(), turn));
            }
            if !may_wait() {
                return None;
            }
        }
    }

    /// Prevents scripts from starting. While a script runs alone, polls `may_wait` and gives up when it returns false.
    pub fn without_scripts(&self, may_wait: impl Fn() -> bool) -> Option<NoScripts<'_>> {
        loop {
            if let Some(guard) = self.turn.try_read_for(POLL_INTERVAL) {
                return Some(NoScripts(self.gate.close(), guard));
            }
            if !may_wait() {
                return None;
            }
        }
    }

    /// Waits for the script that runs alone, and those that wait for the turn. Gives up after a moment.
    pub fn share_turn(&self) -> Option<SharedTurn<'_>> {
        self.turn.try_read_for(POLL_INTERVAL).map(SharedTurn)
    }

    /// Begins a confined script of a worker; `None` if scripts must not run now. The caller is within a batch.
    #[inline]
    pub fn enter(&self, worker: usize) -> Option<Entered<'_>> {
        self.gate.enter(worker)
    }

    /// The shared interpreters. The caller holds the turn or the global lock. `None` if a running script called a
    /// command that needs them.
    pub fn interpreters(&self) -> Option<InterpretersGuard<'_>> {
        self.shared.try_lock()
    }

    /// The interpreters of a worker for confined scripts. The caller has [entered](Self::enter) the gate.
    #[inline]
    pub fn worker_interpreters(&self, worker: usize) -> Option<InterpretersGuard<'_>> {
        self.workers[worker].try_lock()
    }

    fn idle_interpreters(&self) -> Result<InterpretersGuard<'_>, Error> {
        self.interpreters().ok_or(Error::text("ERR A script cannot change what scripts run with"))
    }

    /// Memory of all interpreters of a kind, in bytes, as of their last use.
    pub fn interpreter_memory(&self, kind: Kind) -> usize {
        self.workers.iter().chain([&self.shared]).map(|slot| slot.memory(kind)).sum()
    }

    /// Increases with each change of libraries.
    #[inline]
    pub fn libraries_generation(&self) -> u64 {
        self.libraries_generation.load(Ordering::Acquire)
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
        match interpreters.take(kind) {
            Some(vm) if lazy => self.keyspace.lazy_free.dispose(Garbage::Other(Box::new(vm))),
            old => drop(old),
        }
    }

    /// Replaces the workers' interpreters of a kind, which are not in use.
    fn reset_workers(&self, kind: Kind, lazy: bool) {
        self.workers.iter().for_each(|own| self.reset(&mut own.lock(), kind, lazy));
    }

    /// The libraries have changed: workers load them again.
    fn libraries_changed(&self) {
        self.libraries_generation.fetch_add(1, Ordering::Release);
        self.reset_workers(Kind::Functions, false);
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
        self.reset_workers(Kind::Scripts, false);
        let sources = self.library_sources();
        std::mem::take(&mut *self.libraries.write());
        self.reset(interpreters, Kind::Functions, false);
        if let Ok(vm) = interpreters.get(core, Kind::Functions) {
            for source in sources {
                // It loaded before. If it depends on an API that is gone, drop it.
                if let Ok(library) = Library::load(vm, core.catalogue, &source, None, |_| Ok(())) {
                    let _ = self.libraries.write().merge(vec![library], RestorePolicy::Append);
                }
            }
        }
        self.libraries_changed();
    }

    /// SCRIPT FLUSH. Requires the global lock.
    pub fn flush_scripts(&self, lazy: bool) -> Result<(), Error> {
        let mut interpreters = self.idle_interpreters()?;
        let scripts = self.scripts.lock().clear();
        if lazy {
            self.keyspace.lazy_free.dispose(Garbage::Other(Box::new(scripts)));
        }
        self.reset(&mut interpreters, Kind::Scripts, lazy);
        self.reset_workers(Kind::Scripts, lazy);
        Ok(())
    }

    /// SCRIPT LOAD. Requires the global lock.
    pub fn load_script(&self, core: &Core, sum: &Sum, text: &[u8]) -> Result<(), Error> {
        let mut interpreters = self.idle_interpreters()?;
        if !self.scripts.lock().make_permanent(sum) {
            self.compile(core, interpreters.get(core, Kind::Scripts)?, sum, text, true)?;
        }
        Ok(())
    }

    /// Compiles a new script and registers it.
    pub fn compile(
        &self,
        core: &Core,
        vm: &mut Vm,
        sum: &Sum,
        text: &[u8],
        is_permanent: bool,
    ) -> Result<Arc<Script>, Error> {
        let shebang = Shebang::of_script(text).map_err(error_of)?;
        if !shebang.engine.eq_ignore_ascii_case(b"lua") {
            return Err(Error::quoting(&[b"ERR Could not find scripting engine '", &shebang.engine, b"'"]));
        }
        vm.compile_script(sum.digits(), &text[shebang.code]).map_err(error_of)?;
        let calls = vm.script_calls(sum.digits());
        let known = Known::of_code(core.catalogue, calls.as_deref());
        let new = NewScript { sum: *sum, text, flags: shebang.flags, known, is_permanent };
        let (script, removed) = self.scripts.lock().add(new);
        if let Some(removed) = removed {
            vm.forget_script(removed.sum.digits());
        }
        Ok(script)
    }

    /// Changes libraries. Requires the global lock.
    fn with_functions<T>(&self, core: &Core, change: impl FnOnce(&mut Vm) -> Result<T, Error>) -> Result<T, Error> {
        let mut interpreters = self.idle_interpreters()?;
        let result = change(interpreters.get(core, Kind::Functions)?);
        self.libraries_changed();
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
            let loaded = Library::load(vm, core.catalogue, code, time_max, admit).map_err(error_of)?;
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
                match Library::load(vm, core.catalogue, source.as_ref(), None, admit) {
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
        self.libraries_changed();
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

fn error_of(failure: Failure) -> Error {
    Error::raw(failure.text())
}
