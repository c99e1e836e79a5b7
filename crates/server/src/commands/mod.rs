//! The session commands: those about connections and the server.

pub mod client;
pub mod command;
pub mod connection;
pub mod help;
pub mod shutdown;

use crate::session::SessionHandler;
use kvick_commands::spec::Command;

/// The commands of all families.
pub fn families() -> Vec<&'static [Command<SessionHandler>]> {
    vec![connection::COMMANDS, client::COMMANDS, command::COMMANDS, shutdown::COMMANDS]
}
