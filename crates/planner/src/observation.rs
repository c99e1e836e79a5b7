//! What the planner knows of a cluster at one moment.

use std::time::Duration;

/// Number of a shard: a primary with its replicas. Whoever runs the shards chooses it, and never uses it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u32);

/// What a shard is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its primary does not answer yet, or has not joined the cluster. It cannot have slots.
    Starting,
    /// It serves, or could serve.
    Serving,
    /// It serves until its slots have moved away, and is stopped then.
    Leaving,
}

/// The load of a shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// Its number.
    pub id: ShardId,
    /// What it is about to do.
    pub phase: Phase,
    /// Active workers of the primary.
    pub workers: u32,
    /// Workers that the primary may have: the cores that it can use.
    pub workers_max: u32,
    /// Sum of the busy fractions of the primary's workers: how many cores it uses.
    pub busy_cores: f64,
    /// How long a request waits before it is executed.
    pub queue_delay: Duration,
    /// Bytes per second from and to clients.
    pub traffic_bytes_s: f64,
    /// Bytes per second that it can exchange with clients; 0 if unknown, which means no limit.
    pub traffic_bytes_s_max: f64,
    /// Memory in use, in bytes.
    pub memory_bytes: u64,
    /// Memory that it may use, in bytes; 0 is no limit.
    pub memory_bytes_max: u64,
    /// Share of the busy time that commands take which a replica could execute, from 0 to 1.
    pub read_ratio: f64,
    /// Replicas, also those that start.
    pub replicas: u32,
}

/// The load of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    /// The shard that owns it.
    pub owner: Option<ShardId>,
    /// Execution time per second of the commands on its keys. The owner spends more than that on them: it also reads
    /// requests and writes replies.
    pub cpu_cores: f64,
    /// Memory of its keys, in bytes.
    pub bytes: u64,
}

/// A migration of slots that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The shard that owns the slots.
    pub from: ShardId,
    /// The shard that will own them.
    pub to: ShardId,
    /// The slots.
    pub slots: Vec<u16>,
}

/// A cluster at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Time since any fixed moment. It never goes back.
    pub at: Duration,
    /// All shards.
    pub shards: Vec<Shard>,
    /// All slots, by number.
    pub slots: Vec<Slot>,
    /// Migrations that are under way.
    pub migrations: Vec<Migration>,
}

impl Observation {
    /// The shard with this number.
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.shards.iter().find(|shard| shard.id == id)
    }

    /// The owner of each slot once all migrations have ended.
    pub fn owners_after_migrations(&self) -> Vec<Option<ShardId>> {
        let mut owners: Vec<Option<ShardId>> = self.slots.iter().map(|slot| slot.owner).collect();
        for migration in &self.migrations {
            for slot in &migration.slots {
                if let Some(owner) = owners.get_mut(usize::from(*slot)) {
                    *owner = Some(migration.to);
                }
            }
        }
        owners
    }
}
