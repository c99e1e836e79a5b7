//! What the planner wants to happen.

use crate::observation::ShardId;
use std::fmt::{self, Display, Formatter};

/// One change of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start new shards.
    Start {
        /// How many.
        shards: u32,
    },
    /// Mark a shard as leaving: its slots will move away.
    Drain {
        /// The shard.
        shard: ShardId,
    },
    /// Do not remove a leaving shard after all.
    Keep {
        /// The shard.
        shard: ShardId,
    },
    /// Remove a leaving shard that has no slots.
    Stop {
        /// The shard.
        shard: ShardId,
    },
    /// Give slots without an owner to a shard.
    Assign {
        /// The shard.
        shard: ShardId,
        /// The slots, in ascending order.
        slots: Vec<u16>,
    },
    /// Migrate slots.
    Move {
        /// The shard that owns them.
        from: ShardId,
        /// The shard that will own them.
        to: ShardId,
        /// The slots, in ascending order.
        slots: Vec<u16>,
        /// Memory of their keys.
        bytes: u64,
    },
    /// Set the number of workers of a shard.
    SetWorkers {
        /// The shard.
        shard: ShardId,
        /// The number.
        workers: u32,
    },
    /// Start a replica.
    AddReplica {
        /// Its shard.
        shard: ShardId,
    },
    /// Stop a replica.
    RemoveReplica {
        /// Its shard.
        shard: ShardId,
    },
}

/// A change and why it is planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The change.
    pub action: Action,
    /// The reason, as words for a log.
    pub reason: String,
}

/// The figures behind a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Cores in use, without migrations.
    pub busy_cores: f64,
    /// Cores that will be needed when capacity that is added now is ready.
    pub forecast_cores: f64,
    /// The same for memory, in bytes.
    pub forecast_bytes: f64,
    /// Seconds until capacity that is added now is ready.
    pub lead_s: f64,
    /// Shards that the forecast needs.
    pub shards_needed: u32,
    /// For how long fewer shards must be enough before their number is reduced, in seconds.
    pub quiet_s: f64,
}

/// Changes to begin now. They are independent of each other, and may be carried out in parallel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The changes.
    pub steps: Vec<Step>,
    /// What they are based on.
    pub figures: Figures,
}

impl Plan {
    pub(crate) fn push(&mut self, action: Action, reason: impl Into<String>) {
        self.steps.push(Step { action, reason: reason.into() });
    }
}

impl Display for ShardId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Action::Start { shards: 1 } => write!(f, "start a shard"),
            Action::Start { shards } => write!(f, "start {shards} shards"),
            Action::Drain { shard } => write!(f, "drain {shard}"),
            Action::Keep { shard } => write!(f, "keep {shard}"),
            Action::Stop { shard } => write!(f, "stop {shard}"),
            Action::Assign { shard, slots } => write!(f, "assign {} slots to {shard}", slots.len()),
            Action::Move { from, to, slots, bytes } => {
                write!(f, "move {} slots with {:.1} MB from {from} to {to}", slots.len(), *bytes as f64 / 1e6)
            }
            Action::SetWorkers { shard, workers } => write!(f, "set the workers of {shard} to {workers}"),
            Action::AddReplica { shard } => write!(f, "add a replica to {shard}"),
            Action::RemoveReplica { shard } => write!(f, "remove a replica of {shard}"),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.reason)
    }
}

/// Slots in ascending order as ranges.
pub fn ranges(slots: &[u16]) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*slot) => *last = *slot,
            _ => ranges.push((*slot, *slot)),
        }
    }
    ranges
}
