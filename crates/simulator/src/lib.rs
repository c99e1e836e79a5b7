//! Deterministic simulator of clusters.
//!
//! It runs many state machines ([`kvick_cluster::state::Cluster`]) in virtual time, with a network, disks, clocks and
//! clients that misbehave as the real ones do, and checks after every step what must always hold. A run is determined
//! by its seed. `docs/simulation.md` says what is checked, and how to repeat a run.
//!
//! | module | concern |
//! | --- | --- |
//! | `setup` | what a run is like: size, settings, workload |
//! | `world`, `event` | machines and processes; the order of events |
//! | `network`, `packed` | connections, delays, partitions; messages that wait |
//! | `host`, `data`, `replication` | clocks, disks, data, replication |
//! | `slot_migration` | CLUSTER MIGRATESLOTS |
//! | `clients` | writers |
//! | `faults` | faults and operations |
//! | `oracle` | what must hold |
//! | `scenario` | creating a cluster, faults, healing |

mod clients;
mod data;
mod event;
mod faults;
mod host;
mod network;
mod oracle;
mod packed;
mod replication;
mod scenario;
mod setup;
mod slot_migration;
mod trace;
mod world;

pub use scenario::{HalfKilled, Options, Outcome, Violation, kill_half, run};
pub use setup::Workload;
