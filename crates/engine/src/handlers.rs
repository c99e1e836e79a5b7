//! What runs a command, and the table of all of them.

use crate::session::SessionHandler;
use crate::transactions::Control;
use kvick_commands::context::Handler as DataHandler;
use kvick_scripting::script_call::ScriptCall;

/// The code of a command.
#[derive(Clone, Copy)]
pub enum Handler {
    /// Works on the keyspace alone.
    Data(DataHandler),
    /// Also on the connection and the server.
    Session(SessionHandler),
    /// On the client's transaction.
    Control(Control),
    /// Runs a script or function, which calls other commands.
    ScriptCall(ScriptCall),
}
