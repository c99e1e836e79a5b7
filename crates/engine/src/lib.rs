//! Executes commands: the way of a request from its connection to its reply, on workers that each have an event loop.
//!
//! [`services`] is what they work with, [`session`] a connection's state as commands see it, [`worker`] the event loop
//! and the engine.

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
