//! Metrics for Prometheus, and the state of the server for probes, over HTTP (`metrics-port`).
//!
//! ```text
//! sections of INFO (facts and fields) --+
//! settings, logs, cluster, streams, ... +--> catalogue --> collector --> endpoint (thread `http`)
//! ```
//!
//! A value that INFO shows as well is computed by the same function, see [`info`](crate::commands::info).
//! [`catalogue`] writes all metrics, and lists them for the documentation. Names that begin with `redis_` are those of
//! redis_exporter, with its types and labels, so that dashboards for it can be used; all others begin with `kvick_`.
//!
//! Everything runs on the HTTP thread. It looks into partitions in short batches of its own, as a participant of the
//! global lock, and gives up if another thread holds that lock: then the metrics concerned are absent.

mod activity;
mod catalogue;
mod clients;
mod cluster;
mod collector;
mod commandlog;
mod endpoint;
mod health;
mod keys;
mod settings;
mod streams;

pub use collector::Collector;
pub use endpoint::start;
