//! Atomic slot migration: the jobs of one node, as Valkey 9.1 runs them.
//!
//! CLUSTER MIGRATESLOTS creates an **export** on the source. The source connects to the target, and CLUSTER SYNCSLOTS
//! ESTABLISH creates an **import** there. The source then sends a snapshot of the slots as commands, followed by all
//! later writes to them. When little is left to send, it pauses writes to the slots, and the target takes them over:
//!
//! ```text
//! source (export)                                   target (import)
//! connecting, sending-auth-command, ...
//! sending-establish-command      -- ESTABLISH -->   waiting-for-ack
//! waiting-to-snapshot            -- ACK -->         receiving-snapshot
//! snapshotting                   -- commands, SNAPSHOT-EOF -->
//! replicating                    <-- REQUEST-PAUSE  waiting-for-paused
//! waiting-to-pause
//! failover-paused                -- PAUSED -->      failover-requested
//! failover-granted               <-- REQUEST-FAILOVER
//!                                -- FAILOVER-GRANTED --> failover-granted: claims the slots
//! success: learns the new owner from the bus        success
//! ```
//!
//! [`Jobs`] is pure: commands, messages, connection events, topology changes and the time go in, [`Action`]s come out.
//! Whoever calls it carries out the actions in order, outside of any lock that protects the jobs. A replica and the
//! append-only file know only **tracked** imports: they hide the keys of the slots until the primary's FINISH.
//!
//! With `cluster-slot-takeover-replicas`, the target sends REQUEST-PAUSE and REQUEST-FAILOVER only when replicas have
//! acknowledged what it received. The first wait covers the snapshot; writes are held during the second one alone.
//!
//! An import that fails on a primary deletes the keys it received before it counts as finished, and only then
//! announces the end to replicas and the append-only file.

mod action;
mod error;
mod export;
mod import;
mod job;
mod jobs;
mod ranges;
#[cfg(test)]
mod tests;
mod wire;

pub use action::{Action, Level};
pub use error::CommandError;
pub use export::Progress;
pub use import::Origin;
pub use job::{Direction, Job, JobName, State};
pub use jobs::Jobs;
pub use ranges::{RangeList, SlotRange};
pub use wire::{Establish, Finish, Message, encode_request};

use crate::NodeId;

/// What the jobs need to know about the cluster. It does not change during a call.
pub trait Topology {
    /// The ID of this node.
    fn my_id(&self) -> NodeId;

    /// Whether this node is a primary.
    fn is_primary(&self) -> bool;

    /// The owner of a slot, if it has one.
    fn owner(&self, slot: u16) -> Option<NodeId>;

    /// The owner of all slots of a range, if that is one node.
    fn owner_of_range(&self, range: SlotRange) -> Option<NodeId> {
        let owner = self.owner(range.first);
        owner.filter(|_| range.slots().all(|slot| self.owner(slot) == owner))
    }

    /// Another node, or this one.
    fn peer(&self, id: &NodeId) -> Option<Peer>;

    /// Whether this node is still deleting its old keys of a slot.
    fn deletes(&self, slot: u16) -> bool;

    /// Whether this node has keys of a slot, hidden ones included.
    fn has_keys(&self, slot: u16) -> bool;

    /// Whether a slot of this node is being imported by hand (CLUSTER SETSLOT IMPORTING).
    fn imports_manually(&self) -> bool;

    /// Whether a slot of this node is being migrated by hand (CLUSTER SETSLOT MIGRATING).
    fn migrates_manually(&self) -> bool;

    /// Whether another node is a primary that is not marked as failed.
    fn is_working_primary(&self, id: &NodeId) -> bool;

    /// Whether a replica is about to replace this primary in a manual failover.
    fn is_failing_over(&self) -> bool;
}

/// How a node is reached and called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its IP address, as the bus knows it.
    pub address: String,
    /// Its port for replication: the TLS port with `tls-replication`.
    pub port: u16,
    /// Its human-readable name; empty if it has none.
    pub human_name: String,
}

/// The settings that the jobs depend on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `repl-timeout`, in seconds: how long a job lives without a sign of life from the other side.
    pub repl_timeout_s: u64,
    /// `cluster-manual-failover-timeout`, in milliseconds: writes pause for at most twice as long.
    pub manual_failover_timeout_ms: u64,
    /// `cluster-node-timeout`, in milliseconds: no replica of a source that fails replaces it in this time.
    pub node_timeout_ms: u64,
    /// `slot-migration-max-failover-repl-bytes`: writes pause when no more bytes than this are left to send. `None`
    /// (-1 in the configuration): pause at once.
    pub max_failover_repl_bytes: Option<u64>,
    /// `cluster-slot-migration-log-max-len`: how many jobs are kept, finished ones included.
    pub log_max_len: usize,
    /// Whether the target asks for a password (`primaryauth` is set).
    pub authenticates: bool,
    /// `cluster-slot-takeover-replicas`: an import takes its slots over when so many replicas have acknowledged them.
    pub takeover_replicas: u64,
    /// DEBUG SLOTMIGRATION PREVENT-PAUSE.
    pub prevent_pause: bool,
    /// DEBUG SLOTMIGRATION PREVENT-FAILOVER.
    pub prevent_failover: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            repl_timeout_s: 60,
            manual_failover_timeout_ms: 5000,
            node_timeout_ms: 15_000,
            max_failover_repl_bytes: Some(0),
            log_max_len: 1000,
            authenticates: false,
            takeover_replicas: 0,
            prevent_pause: false,
            prevent_failover: false,
        }
    }
}

/// The surroundings of one call.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The cluster.
    pub topology: &'a dyn Topology,
    /// The settings.
    pub settings: &'a Settings,
    /// Unix time, in milliseconds.
    pub now_ms: u64,
    /// A clock that never goes back, in milliseconds.
    pub mono_ms: u64,
    /// Whether the server is loading a dump or the append-only file: what was loaded needs no cleaning.
    pub loading: bool,
}

impl Context<'_> {
    /// Unix time, in seconds.
    fn now_s(&self) -> u64 {
        self.now_ms / 1000
    }

    /// The node that owns all slots of the list, if there is exactly one.
    fn owner_of(&self, ranges: &RangeList) -> Option<NodeId> {
        let mut owners = ranges.ranges().iter().map(|range| self.topology.owner_of_range(*range));
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }
}
