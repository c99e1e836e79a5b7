//! Describes the commands that run scripts and functions: the source of their code.

use kvick_commands::context::Error;

/// No script has that SHA1 sum.
pub const UNKNOWN: Error = Error::text("NOSCRIPT No matching script.");

/// Describes a command that runs a script or a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScriptCall {
    /// The source of its code.
    pub source: Source,
    /// Whether it is a read-only variant.
    pub read_only: bool,
}

/// The source of the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The script text is an argument.
    Script,
    /// The script's SHA1 sum is an argument.
    Sum,
    /// A library's function, named by an argument.
    Function,
}
