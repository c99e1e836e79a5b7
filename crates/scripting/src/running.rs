//! The running scripts and functions as other threads see them, and how to kill them.
//!
//! A script becomes visible only after it has been running for a while: short scripts pay only for one word of their
//! engine that records whether they have written. That word also resolves the race between a kill and the first write:
//! a script that has written is not killed, and a killed script writes nothing. A kill happens under the lock of the
//! list of visible scripts, which a script leaves before the next one uses its word.

use kvick_commands::context::Error;
use kvick_config::tables::process::EXTENDED_REDIS_COMPATIBILITY;
use kvick_core::Core;
use kvick_core::admission::Reasons;
use kvick_resp::OwnedArgs;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

/// The script has written: only a server shutdown can end it.
const WROTE: u8 = 1;
/// The script is to end.
const KILLED: u8 = 2;

/// The kind of code that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A script (EVAL, EVALSHA).
    Script,
    /// A function (FCALL).
    Function,
}

impl Kind {
    /// The command that kills it.
    pub fn kill_command(self) -> &'static str {
        match self {
            Kind::Script => "SCRIPT KILL",
            Kind::Function => "FUNCTION KILL",
        }
    }

    /// The error for commands that it blocks.
    pub fn busy(self, core: &Core) -> Error {
        let name = if core.config.read(EXTENDED_REDIS_COMPATIBILITY) { "Redis" } else { "Valkey" };
        let kill = self.kill_command();
        Error::new(format!("BUSY {name} is busy running a script. You can only call {kill} or SHUTDOWN NOSAVE."))
    }
}

/// A running script, once it is visible.
pub struct Current {
    /// Its kind.
    pub kind: Kind,
    /// Its SHA1 sum, or the function's name.
    pub name: String,
    /// The command that runs it.
    pub command: OwnedArgs,
    /// When it started.
    pub began: Instant,
}

/// The state of the scripts that one engine runs, one after the other. Aligned, so that engines write to different
/// cache lines.
#[derive(Default)]
#[repr(align(128))]
pub struct Run {
    /// Bits: whether the script has written, and whether it is to end.
    state: AtomicU8,
}

impl Run {
    /// Marks the start of a script.
    pub fn begin(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// Called before the script writes. Returns false if it must end instead.
    pub fn begin_to_write(&self) -> bool {
        self.state.fetch_or(WROTE, Ordering::SeqCst) & KILLED == 0
    }

    /// Whether the script is to end.
    pub fn is_killed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & KILLED != 0
    }

    fn has_written(&self) -> bool {
        self.state.load(Ordering::SeqCst) & WROTE != 0
    }

    /// Makes the script end. Returns false if it has written.
    fn kill(&self) -> bool {
        let kill = |state| (state & WROTE == 0).then_some(state | KILLED);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, kill).is_ok()
    }
}

/// A visible script.
struct Visible {
    current: Arc<Current>,
    run: Arc<Run>,
    /// Whether it has exceeded `busy-reply-threshold`.
    is_busy: bool,
}

/// The visible scripts; see the module's documentation.
#[derive(Default)]
pub struct Running {
    /// The oldest first.
    visible: Mutex<Vec<Visible>>,
    /// Number of them.
    count: AtomicUsize,
}

impl Running {
    /// Makes a script visible to other threads.
    pub fn show(&self, run: &Arc<Run>, current: Current) {
        let mut visible = self.visible.lock();
        let place = visible.partition_point(|other| other.current.began <= current.began);
        visible.insert(place, Visible { current: Arc::new(current), run: run.clone(), is_busy: false });
        self.count.store(visible.len(), Ordering::SeqCst);
    }

    /// Marks a visible script as exceeding `busy-reply-threshold`.
    pub fn set_busy(&self, run: &Arc<Run>, core: &Core) {
        let mut visible = self.visible.lock();
        visible.iter_mut().filter(|script| Arc::ptr_eq(&script.run, run)).for_each(|script| script.is_busy = true);
        core.admission.set(Reasons::BUSY, true);
    }

    /// Marks the end of a visible script.
    pub fn end(&self, run: &Arc<Run>, core: &Core) {
        let mut visible = self.visible.lock();
        let was_busy = visible.iter().any(|script| script.is_busy);
        visible.retain(|script| !Arc::ptr_eq(&script.run, run));
        self.count.store(visible.len(), Ordering::SeqCst);
        if was_busy && !visible.iter().any(|script| script.is_busy) {
            core.admission.set(Reasons::BUSY, false);
        }
    }

    /// Whether a visible script is running.
    #[inline]
    pub fn is_visible(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// The visible script that has been running for the longest time.
    pub fn current(&self) -> Option<Arc<Current>> {
        self.visible.lock().first().map(|script| script.current.clone())
    }

    /// Ends the oldest visible script that is of this kind and has not written.
    pub fn kill(&self, kind: Kind, core: &Core) -> Result<(), Error> {
        let visible = self.visible.lock();
        let Some(oldest) = visible.first() else {
            return Err(Error::text("NOTBUSY No scripts in execution right now."));
        };
        let of_kind = || visible.iter().filter(|script| script.current.kind == kind);
        let is_killed = |script: &Visible| script.run.is_killed();
        if of_kind().any(|script| !is_killed(script) && script.run.kill()) || of_kind().any(is_killed) {
            return Ok(());
        }
        if oldest.current.kind != kind && !oldest.run.has_written() {
            return Err(oldest.current.kind.busy(core));
        }
        Err(Error::text(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the \
             script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        ))
    }
}
