//! Command handlers, and the table of all commands.

use crate::session::SessionHandler;
use crate::transactions::Control;
use kvick_commands::context::Handler as DataHandler;
use kvick_scripting::script_call::ScriptCall;

/// The handler of a command.
#[derive(Clone, Copy)]
pub enum Handler {
    /// Accesses only the keyspace.
    Data(DataHandler),
    /// Also accesses the connection and the server.
    Session(SessionHandler),
    /// Changes the client's transaction.
    Control(Control),
    /// Runs a script or function, which calls other commands.
    ScriptCall(ScriptCall),
}
