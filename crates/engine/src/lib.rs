//! One request's way through the server: permission, locks, handler, effects, reply.
//!
//! [`engine`] holds an executor's state and the path of a request, [`services`] what it depends on, and [`session`] the
//! connection state that commands access. There are no sockets and no event loop here: the workers' event loop passes
//! requests in and sends replies, and the [appliers](apply) and [players](replay) do so for a primary's commands and an
//! append-only file.

pub mod apply;
pub mod batch;
pub mod blocking;
mod confined;
mod cross_protocol;
pub mod debugging;
pub mod defrag;
mod dispatch;
pub mod engine;
pub mod evicting;
mod fast_path;
pub mod feed;
pub mod forwarding;
pub mod handlers;
pub mod hot_keys;
mod invocation;
mod locking;
pub mod migrating;
mod monitoring;
pub mod pending;
mod permission;
pub mod queued;
pub mod rejection;
pub mod replay;
mod rights;
pub mod routing;
pub mod script_call;
pub mod scripts;
pub mod services;
pub mod session;
mod slot_import;
mod slot_keys;
mod slot_usage;
#[cfg(test)]
mod tests;
mod tracking;
pub mod transaction;
pub mod transactions;
pub mod writable_replica_keys;
pub mod yielding;

use services::Services;

/// Connects the lower layers to the engine, which executes the commands of a primary and of an append-only file, and
/// answers blocked clients when the server becomes a replica.
pub fn attach(services: &'static Services) {
    services.set_applier(move |participant| Box::new(apply::Applier::new(services, participant)));
    services.set_unblock(blocking::unblock_all);
    services.set_replayer(move |participant| Box::new(replay::Player::new(services, participant)));
}
