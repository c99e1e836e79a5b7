//! The page for browsers at `/ui` on the HTTP endpoint: its files, sessions and interface.
//!
//! ```text
//! browser --> guard (origin, cookie) --> api --> sessions --> connection --> a worker, as a client like any other
//!                                         |                        |
//!                                         +--> policy              +--> reply: RESP3 to JSON
//! browser <-- server-sent events <-- listeners <-- samples and messages
//! ```
//!
//! A session has two client connections to the server, which its user has authenticated. Everything that the page shows
//! or does is a command on one of them, so the user's ACL rules hold without any check here, clients that deal with the
//! page are in CLIENT LIST, and deleting the user ends the session. In addition [`policy`] refuses what a page should
//! not do, and without `ui-write` everything that may change something.
//!
//! The crate knows the server only as a [`Host`]. All code runs on the HTTP thread and does not block it. Everything
//! that a browser or the server may send has a limit: sessions, requests that wait, replies, messages, event streams.

mod api;
mod assets;
pub mod connection;
mod events;
mod guard;
pub mod host;
mod listeners;
pub mod policy;
pub mod reply;
pub mod sessions;
mod throttle;

pub use api::add_routes;
pub use host::{Browser, CommandFacts, Host, Settings};
