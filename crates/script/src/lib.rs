//! Scripts and functions: Lua 5.1 with what Valkey's scripts find in it, and no server.
//!
//! A [`Vm`] is one Lua state, for scripts or for functions. Whoever runs something in it is its [`Host`]: commands that
//! a script calls, its log lines and the question whether it may go on come to the host, and its result is written as
//! a reply. What a script starts with (`#!lua flags=no-writes`) is read by [`Shebang`].
//!
//! From the inside out: `lua` is Lua's C interface in terms that the rest can rely on, the only place with `unsafe`;
//! `sandbox` makes the world that scripts see, where what they share is read-only; `api` is the table `redis` (or
//! `server`), `libs` are the libraries `cjson`, `cmsgpack`, `struct`, `bit` and `math.random`; `convert` turns replies
//! into values and values into replies; `run` runs scripts, `library` loads functions, `debugger` has somebody watch a
//! script line by line.
//!
//! What always holds:
//!
//! * **Scripts do not see each other**: what outlives a script cannot be written by one, but for what functions of a
//!   library keep in their own local variables.
//! * **A script that must end ends**: a hook looks every 100,000 instructions, and once it says no, it says no at every
//!   instruction. A function of the standard library that takes long by itself is not interrupted.
//! * **Nothing a script does ends the process**: errors, endless recursion, deep nesting, memory beyond a limit and
//!   precompiled code all end in an error.

mod api;
mod convert;
mod debugger;
mod failure;
mod library;
mod libs;
mod lua;
mod run;
mod sandbox;
mod shebang;
#[cfg(test)]
mod testing;
mod vm;

pub use debugger::{Console, Debugger, Heard};
pub use failure::Failure;
pub use library::{FunctionHandle, FunctionSpec};
pub use shebang::{ScriptFlags, Shebang};
pub use vm::{Identity, Kind, Settings, Vm};

use kvick_resp::Version;

/// Who scripts and functions run for.
pub trait Host {
    /// Runs a command and appends its reply, in that protocol version: all of one reply, in RESP.
    ///
    /// Errors are replies too, with the text that scripts are to see (`-ERR Unknown command called from script\r\n`).
    fn call(&mut self, request: &[&[u8]], version: Version, reply: &mut Vec<u8>);

    /// Whether the user of what runs may run a command; `None` if there is no such command, or not with so many
    /// arguments.
    fn may_call(&mut self, request: &[&[u8]]) -> Option<bool>;

    /// Writes a line to the server's log.
    fn log(&mut self, level: LogLevel, line: &[u8]);

    /// Where the effects of the commands that follow are propagated to. Everywhere until this is called.
    fn set_propagation(&mut self, targets: Propagation);

    /// Who sits at the debugger that a script runs in. Nobody, unless a host says otherwise.
    fn console(&mut self) -> Option<&mut dyn Console> {
        None
    }

    /// Asked now and then while Lua code runs: the error text with which it ends, if it must
    /// (`ERR Script killed by user with SCRIPT KILL.`).
    fn interrupted(&mut self) -> Option<String>;
}

/// The level of a log line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// `LOG_DEBUG`.
    Debug,
    /// `LOG_VERBOSE`.
    Verbose,
    /// `LOG_NOTICE`.
    Notice,
    /// `LOG_WARNING`.
    Warning,
}

/// Where effects are propagated to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Propagation {
    /// The append-only file.
    pub aof: bool,
    /// The replicas.
    pub replicas: bool,
}
