//! The commands about replication: those that users and Sentinel give, and those that servers give each other.

mod psync;
mod replconf;
mod replicaof;
mod role;

use crate::session::SessionHandler;
use kvick_commands::spec::Command;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] =
    &[psync::PSYNC, psync::SYNC, replconf::REPLCONF, replicaof::REPLICAOF, replicaof::SLAVEOF, role::ROLE];
