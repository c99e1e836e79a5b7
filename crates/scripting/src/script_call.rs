//! The commands that run scripts and functions: where their code comes from.

use kvick_commands::context::Error;

/// There is no script by that sum.
pub const UNKNOWN: Error = Error::text("NOSCRIPT No matching script.");

/// What runs a script or a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScriptCall {
    /// Where its code comes from.
    pub source: Source,
    /// Whether it may not write.
    pub read_only: bool,
}

/// Where the code comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// It is an argument.
    Script,
    /// It is known by the sum that is an argument.
    Sum,
    /// It is a function of a library.
    Function,
}
