//! Replication commands, of users and Sentinel and between servers.

mod failover;
mod psync;
mod replconf;
mod replicaof;
mod role;

use kvick_commands::spec::Command;
use kvick_engine::session::SessionHandler;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[
    failover::FAILOVER,
    psync::PSYNC,
    psync::SYNC,
    replconf::REPLCONF,
    replicaof::REPLICAOF,
    replicaof::SLAVEOF,
    role::ROLE,
];
