//! The state that every subsystem of the server may read: keyspace, settings, clients, statistics, the admission word,
//! pub/sub, client-side caching, and how threads reach the workers. It owns no threads and no sockets.
//!
//! [`Core`] holds it all. Subsystems keep their own state and take a `&'static Core` beside it.

pub mod admission;
pub mod clients;
pub mod commandlog;
mod core;
pub mod eviction;
pub mod executor;
pub mod handover;
pub mod inbox;
pub mod latency;
pub mod message;
pub mod monitor;
pub mod oom_score;
pub mod pause;
pub mod pubsub;
pub mod rates;
pub mod runtime_config;
pub mod stats;
pub mod tracking;

pub use crate::core::Core;
