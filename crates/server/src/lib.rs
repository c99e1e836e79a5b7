//! Kvick's server: workers that execute on every core, their connections, settings and statistics.
//!
//! [`process`] starts it all. A [`worker`] is a thread with its event loop; its [`worker::engine`] runs commands from
//! the [`table`]. [`server`] is what all threads share. Commands about connections and the server are in [`commands`],
//! those about data in `kvick-commands`.

pub mod commands;
pub mod crash;
pub mod memory;
pub mod process;
pub mod server;
pub mod signals;
pub mod watchdog;
