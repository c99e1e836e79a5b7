//! The data set on disk: RDB files ([`persistence`]) and the append-only file ([`aof`]).

pub mod aof;
mod durable_core;
pub mod open_slots;
pub mod persistence;
pub mod replay;
pub mod slot_imports;

pub use durable_core::{DurableCore, ReplicationView, Stream, StreamPosition};
