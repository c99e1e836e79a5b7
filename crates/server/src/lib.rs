//! Kvick's server: the process around the engine.
//!
//! - [`process`]: the process from the command line to its exit.
//! - [`server`]: the state that all threads share.
//! - [`cluster`]: the server as a node of a cluster.
//! - [`commands`]: commands about connections and the server. Those about data are in `kvick-commands`.
//! - `crash`: the report that a crash leaves in the log. `watchdog`: reports slow workers. `signals`: signal handling.
//! - `http`: the thread and the sockets of the HTTP endpoint.
//! - [`metrics`]: metrics for Prometheus and the state for probes, over HTTP.
//! - [`page`]: the page for browsers, as far as it concerns the server.
//! - `memory`: the report of memory use behind INFO and MEMORY.
//! - `tracing`: the export of slow commands as traces.
//!
//! The workers, their event loops and the execution of commands are in `kvick-engine`.

pub mod cluster;
pub mod commands;
pub mod crash;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod page;
pub mod process;
pub mod server;
pub mod signals;
pub mod tracing;
pub mod watchdog;
