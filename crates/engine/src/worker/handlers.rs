//! What runs a command, and the table of all of them.

use super::script_call::ScriptCall;
use super::transaction::Control;
use crate::session::SessionHandler;
use kvick_commands::context::Handler as DataHandler;

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
