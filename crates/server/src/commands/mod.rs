//! The session commands: those about connections and the server.

pub mod acl;
pub mod appendonly;
pub mod big_keys;
pub mod client;
pub mod cluster;
pub mod command;
pub mod commandlog;
pub mod config;
pub mod connection;
pub mod debug;
pub mod help;
pub mod hot_keys;
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
pub mod slot_scan;
pub mod slot_stats;
pub mod time;

use kvick_commands::spec::Command;
use kvick_commands::table::{Class, CommandTable};
use kvick_engine::handlers::Handler;
use kvick_engine::session::SessionHandler;

/// The table of all commands.
pub fn table() -> CommandTable<Handler> {
    let mut table = CommandTable::new();
    families().into_iter().for_each(|family| table.add_family(Class::Session, family, Handler::Session));
    table.add_family(Class::Transaction, kvick_engine::transactions::COMMANDS, Handler::Control);
    table.add_family(Class::Script, kvick_engine::scripts::COMMANDS, Handler::ScriptCall);
    table
}

/// The session commands of all families.
pub fn families() -> Vec<&'static [Command<SessionHandler>]> {
    vec![
        appendonly::COMMANDS,
        connection::COMMANDS,
        acl::COMMANDS,
        client::COMMANDS,
        cluster::COMMANDS,
        command::COMMANDS,
        slot_scan::COMMANDS,
        info::COMMANDS,
        config::COMMANDS,
        memory::COMMANDS,
        migrate::COMMANDS,
        module::COMMANDS,
        monitor::COMMANDS,
        commandlog::COMMANDS,
        hot_keys::COMMANDS,
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
