//! Executes commands: takes a request from its connection to its reply, on workers that each run an event loop.
//!
//! [`services`] holds what the engine depends on, [`session`] the connection state that commands access, and [`worker`]
//! the event loop and the engine.

pub mod defrag;
pub mod feed;
pub mod handlers;
pub mod queued;
pub mod scripts;
pub mod services;
pub mod session;
#[cfg(test)]
mod tests;
pub mod transactions;
pub mod worker;
