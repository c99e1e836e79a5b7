//! Scripts and functions: Lua 5.1 with the environment of Valkey's scripts, independent of the server.
//!
//! A [`Vm`] is one Lua state, for scripts or for functions. The code that runs something in it provides a [`Host`],
//! which receives the commands that a script calls, its log lines, and the question whether it may continue. The result
//! is written as a reply. [`Shebang`] parses the first line of a script (`#!lua flags=no-writes`).
//!
//! From the lowest layer up: `lua` wraps Lua's C interface and is the only module with `unsafe`; `convert` converts
//! between replies and values; `libs` contains the libraries `cjson`, `cmsgpack`, `struct`, `bit` and `math.random`;
//! `run` runs scripts and `debugger` runs one line by line under the control of a user; `api` is the table `redis` (or
//! `server`); `library` loads functions; `analysis` finds out what
//! code will do; `sandbox` creates the global environment of scripts, whose shared parts are
//! read-only; `vm` is the machine that has all this. The tables that `sandbox::protect` protects, and the data of
//! `debugger::session`, `library::spec` and `settings`, are below the modules that use them.
//!
//! Invariants:
//!
//! * **Scripts are isolated from each other**: a script cannot write state that outlives it, except that functions of a
//!   library may keep state in its local variables.
//! * **A script that must end does end**: a hook checks every 100,000 instructions, and after the first refusal at
//!   every instruction. A single long-running call of a standard library function is not interrupted.
//! * **No script can end the process**: errors, infinite recursion, deep nesting, memory beyond a limit and precompiled
//!   code all result in an error.

mod analysis;
mod api;
mod convert;
mod debugger;
mod failure;
mod library;
mod libs;
mod lua;
mod random;
mod run;
mod sandbox;
mod settings;
mod shebang;
#[cfg(test)]
mod testing;
mod vm;

pub use analysis::{CallSite, Rest, Word};
pub use debugger::console::{Console, Received};
pub use debugger::session::Debugger;
pub use failure::Failure;
pub use library::spec::{FunctionHandle, FunctionSpec};
pub use settings::{Identity, Kind, Settings};
pub use shebang::{ScriptFlags, Shebang};
pub use vm::Vm;

use kvick_resp::Version;

/// The environment that runs scripts and functions.
pub trait Host {
    /// Runs a command and appends its reply in that protocol version: exactly one complete RESP reply.
    ///
    /// Errors are replies too, with the text for scripts (`-ERR Unknown command called from script\r\n`).
    fn call(&mut self, request: &[&[u8]], version: Version, reply: &mut Vec<u8>);

    /// Whether the current user may run a command; `None` if the command does not exist or the number of arguments is
    /// wrong.
    fn may_call(&mut self, request: &[&[u8]]) -> Option<bool>;

    /// The script has ended with a value that contains an error, which no command returned.
    fn note_returned_error(&mut self, _text: &[u8]) {}

    /// Writes a line to the server's log.
    fn log(&mut self, level: LogLevel, line: &[u8]);

    /// Sets where the effects of the following commands are propagated to. The default is everywhere.
    fn set_propagation(&mut self, targets: Propagation);

    /// The console of the debugger session that a script runs in; `None` by default.
    fn console(&mut self) -> Option<&mut dyn Console> {
        None
    }

    /// Called periodically while Lua code runs. Returns the error with which it must end, if it must (`ERR Script
    /// killed by user with SCRIPT KILL.`).
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

/// The destinations of propagated effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Propagation {
    /// The append-only file.
    pub aof: bool,
    /// The replicas.
    pub replicas: bool,
}
