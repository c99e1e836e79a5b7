//! The data commands: one module per family, with each handler next to its description.
//!
//! [`spec`] defines the description of a command, [`context`] the input of a handler. A family is a module that exports
//! `COMMANDS`.

pub mod bitmap;
pub mod connection;
pub mod context;
pub mod dump;
pub mod geo;
pub mod hash;
pub mod help;
pub mod hyperloglog;
pub mod keys;
pub mod list;
#[cfg(test)]
mod models;
pub mod random;
pub mod scan_options;
pub mod set;
pub mod sort;
pub mod sorted_set;
pub mod spec;
pub mod stream;
pub mod string;
pub mod table;
#[cfg(test)]
mod testing;
pub mod timeout;
mod wide;

use context::Handler;
use spec::Command;

/// The commands of all families.
pub fn families() -> Vec<&'static [Command<Handler>]> {
    vec![
        keys::COMMANDS,
        string::COMMANDS,
        bitmap::COMMANDS,
        hyperloglog::COMMANDS,
        list::COMMANDS,
        set::COMMANDS,
        hash::COMMANDS,
        sorted_set::COMMANDS,
        stream::COMMANDS,
        geo::COMMANDS,
        sort::COMMANDS,
        dump::COMMANDS,
        connection::COMMANDS,
    ]
}
