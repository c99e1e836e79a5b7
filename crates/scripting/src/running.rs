//! The running script or function as other threads see it, and how to kill it.
//!
//! A script becomes visible only after it has been running for a while: short scripts pay only for one word that
//! records whether they have written. That word also resolves the race between a kill and the first write: a script
//! that has written is not killed, and a killed script writes nothing.

use kvick_commands::context::Error;
use kvick_config::tables::process::EXTENDED_REDIS_COMPATIBILITY;
use kvick_core::Core;
use kvick_resp::OwnedArgs;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
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

/// The running script, once it is visible.
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

/// State of the running script; see the module's documentation.
#[derive(Default)]
pub struct Running {
    /// The running script, if visible.
    current: Mutex<Option<Arc<Current>>>,
    /// Whether `current` is set.
    is_visible: AtomicBool,
    /// Bits: whether the script has written, and whether it is to end.
    state: AtomicU8,
}

impl Running {
    /// Marks the start of a script.
    pub fn begin(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// Called before the script writes. Returns false if it must end instead.
    pub fn begin_to_write(&self) -> bool {
        self.state.fetch_or(WROTE, Ordering::SeqCst) & KILLED == 0
    }

    /// Makes the script visible to other threads.
    pub fn show(&self, current: Current) {
        *self.current.lock() = Some(Arc::new(current));
        self.is_visible.store(true, Ordering::SeqCst);
    }

    /// Marks the end of the script. Returns whether it was visible.
    pub fn end(&self) -> bool {
        if !self.is_visible() {
            return false;
        }
        *self.current.lock() = None;
        self.is_visible.store(false, Ordering::SeqCst);
        true
    }

    /// Whether a visible script is running.
    #[inline]
    pub fn is_visible(&self) -> bool {
        self.is_visible.load(Ordering::SeqCst)
    }

    /// The visible running script.
    pub fn current(&self) -> Option<Arc<Current>> {
        self.current.lock().clone()
    }

    /// Whether the running script is to end.
    pub fn is_killed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & KILLED != 0
    }

    /// Ends the running script if it is of this kind and has not written.
    pub fn kill(&self, kind: Kind, core: &Core) -> Result<(), Error> {
        let current = self.current.lock();
        let Some(current) = &*current else {
            return Err(Error::text("NOTBUSY No scripts in execution right now."));
        };
        let unkillable = Error::text(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the \
             script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        );
        if self.state.load(Ordering::SeqCst) & WROTE != 0 {
            return Err(unkillable);
        }
        if current.kind != kind {
            return Err(current.kind.busy(core));
        }
        let settled = self
            .state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| (state & WROTE == 0).then_some(state | KILLED));
        settled.map(drop).map_err(|_| unkillable)
    }
}
