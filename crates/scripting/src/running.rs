//! The script or function that is running, as others see it, and the ways to end it.
//!
//! Others learn of a script only when it has been running for a while: short ones pay for nothing of this but one word
//! that says whether it has written. That word also settles who comes first when somebody ends a script while it is
//! about to write: a script that has written is not ended, and one that is to be ended writes nothing more.

use kvick_commands::context::Error;
use kvick_config::tables::process::EXTENDED_REDIS_COMPATIBILITY;
use kvick_core::Core;
use kvick_resp::OwnedArgs;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

/// It has written: it can only be ended with the server.
const WROTE: u8 = 1;
/// It is to end.
const KILLED: u8 = 2;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A script, of EVAL or EVALSHA.
    Script,
    /// A function, of FCALL.
    Function,
}

impl Kind {
    /// The command that ends it.
    pub fn kill_command(self) -> &'static str {
        match self {
            Kind::Script => "SCRIPT KILL",
            Kind::Function => "FUNCTION KILL",
        }
    }

    /// What those are told whose commands have to wait for it.
    pub fn busy(self, core: &Core) -> Error {
        let name = if core.config.read(EXTENDED_REDIS_COMPATIBILITY) { "Redis" } else { "Valkey" };
        let kill = self.kill_command();
        Error::new(format!("BUSY {name} is busy running a script. You can only call {kill} or SHUTDOWN NOSAVE."))
    }
}

/// The one that runs, if it has been running for a while.
pub struct Current {
    /// What it is.
    pub kind: Kind,
    /// Its sum, or the function's name.
    pub name: String,
    /// The command that runs it.
    pub command: OwnedArgs,
    /// When it began.
    pub began: Instant,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Running {
    /// What has been running for a while.
    current: Mutex<Option<Arc<Current>>>,
    /// Whether there is something in `current`.
    is_shown: AtomicBool,
    /// What the running one has done and is to do: bits.
    state: AtomicU8,
}

impl Running {
    /// One begins to run.
    pub fn begin(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// It is about to write; false when it is to end instead.
    pub fn begin_to_write(&self) -> bool {
        self.state.fetch_or(WROTE, Ordering::SeqCst) & KILLED == 0
    }

    /// It has been running for a while.
    pub fn show(&self, current: Current) {
        *self.current.lock() = Some(Arc::new(current));
        self.is_shown.store(true, Ordering::SeqCst);
    }

    /// It has ended; whether others knew of it.
    pub fn end(&self) -> bool {
        if !self.is_shown() {
            return false;
        }
        *self.current.lock() = None;
        self.is_shown.store(false, Ordering::SeqCst);
        true
    }

    /// Whether one has been running for a while.
    #[inline]
    pub fn is_shown(&self) -> bool {
        self.is_shown.load(Ordering::SeqCst)
    }

    /// The one that has been running for a while.
    pub fn current(&self) -> Option<Arc<Current>> {
        self.current.lock().clone()
    }

    /// Whether the one that runs is to end.
    pub fn is_killed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & KILLED != 0
    }

    /// Has it end, if it is of this kind and has written nothing.
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
