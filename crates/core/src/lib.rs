//! The state that the subsystems of the server share: keyspace, settings, clients, statistics, the admission word,
//! pub/sub, client-side caching, and the queues through which threads reach the workers. This crate owns no threads and
//! no sockets.
//!
//! [`Core`] holds all of it. Each subsystem keeps its own state and takes a `&'static Core` beside it.

pub mod admission;
pub mod big_keys;
pub mod clients;
pub mod commandlog;
mod core;
pub mod eviction;
pub mod executor;
pub mod handover;
pub mod hot_keys;
pub mod inbox;
pub mod latency;
pub mod message;
pub mod monitor;
pub mod oom_score;
pub mod pause;
pub mod pubsub;
pub mod rates;
pub mod routing;
pub mod runtime_config;
pub mod scaling;
pub mod slot_writes;
pub mod slow_commands;
pub mod stats;
pub mod tracking;

pub use crate::core::{Core, ScalingReport};
