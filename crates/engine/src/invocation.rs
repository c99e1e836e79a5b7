//! How commands are passed between the steps of an execution.

use super::script_call::Code;
use super::yielding::Yield;
use kvick_commands::context::Handler as DataHandler;
use kvick_commands::table::CommandInfo;
use kvick_core::clients::ClientInfo;
use kvick_resp::Args;
use kvick_store::{Key, Locked};

/// A command with its arguments.
#[derive(Clone, Copy)]
pub struct Invocation<'a> {
    /// The command.
    pub command: &'static CommandInfo,
    /// All words of the request.
    pub args: Args<'a>,
}

/// A data command that is about to run.
pub(crate) struct DataCall<'a> {
    pub handler: DataHandler,
    pub args: Args<'a>,
    /// Keys among the arguments whose hashes are known.
    pub hashed: &'a [Key<'a>],
}

/// The client for which a data command runs.
#[derive(Clone, Copy)]
pub(crate) struct Recipient<'a> {
    pub info: &'a ClientInfo,
    /// The database that the command accesses.
    pub db: usize,
}

/// What a script runs under: the locks it holds, and the thread that serves other clients meanwhile.
pub(crate) struct ScriptContext<'a> {
    pub locked: &'a mut Locked,
    pub yielder: &'a mut dyn Yield,
    /// The code to run if it is confined to these locks; `None` if the caller holds the turn.
    pub confined: Option<&'a Code>,
}

impl ScriptContext<'_> {
    /// The same for a shorter time.
    pub fn reborrow(&mut self) -> ScriptContext<'_> {
        ScriptContext { locked: self.locked, yielder: self.yielder, confined: self.confined }
    }
}
