//! The session commands: those about connections and the server.

pub mod acl;
pub mod appendonly;
pub mod client;
pub mod cluster;
pub mod command;
pub mod commandlog;
pub mod config;
pub mod connection;
pub mod debug;
pub mod help;
pub mod info;
pub mod latency;
pub mod lolwut;
pub mod memory;
pub mod migrate;
pub mod module;
pub mod monitor;
pub mod persistence;
pub mod pubsub;
pub mod replication;
pub mod scripting;
pub mod shutdown;
pub mod time;
pub mod transactions;

use crate::session::SessionHandler;
use kvick_commands::spec::Command;

/// The commands of all families.
pub fn families() -> Vec<&'static [Command<SessionHandler>]> {
    vec![
        appendonly::COMMANDS,
        connection::COMMANDS,
        acl::COMMANDS,
        client::COMMANDS,
        cluster::COMMANDS,
        command::COMMANDS,
        info::COMMANDS,
        config::COMMANDS,
        memory::COMMANDS,
        migrate::COMMANDS,
        module::COMMANDS,
        monitor::COMMANDS,
        commandlog::COMMANDS,
        latency::COMMANDS,
        debug::COMMANDS,
        lolwut::COMMANDS,
        persistence::COMMANDS,
        pubsub::COMMANDS,
        scripting::script::COMMANDS,
        scripting::function::COMMANDS,
        replication::COMMANDS,
        shutdown::COMMANDS,
        time::COMMANDS,
    ]
}
