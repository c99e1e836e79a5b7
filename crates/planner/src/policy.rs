//! The settings of the planner.

use std::time::Duration;

/// Limits and targets. Fractions are of what a shard can do: its workers, memory and traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Least and greatest number of shards.
    pub shards_min: u32,
    /// See `shards_min`.
    pub shards_max: u32,
    /// Least number of workers of a shard.
    pub workers_min: u32,
    /// Replicas of each shard, against failures.
    pub replicas: u32,
    /// Replicas that a shard may have in addition, for reads, if its load is one slot that cannot be divided.
    pub read_replicas_max: u32,
    /// Busy fraction, or fraction of the traffic, for which capacity is planned.
    pub busy_target: f64,
    /// Forecast busy fraction at which capacity is added.
    pub busy_grow: f64,
    /// Busy fraction that fewer shards would have at most when their number is reduced.
    pub busy_shrink: f64,
    /// Fraction of the memory for which capacity is planned. The rest is headroom, also for migrations: slots are on
    /// both sides until they have moved.
    pub memory_target: f64,
    /// Forecast fraction of the memory at which capacity is added.
    pub memory_grow: f64,
    /// Queueing delay at which a busy shard counts as saturated: its real demand is unknown.
    pub queue_delay_max: Duration,
    /// What the demand of a saturated shard is estimated at, in multiples of what it gets.
    pub saturation_factor: f64,
    /// For how long fewer shards must have been enough before their number is reduced.
    pub quiet: Duration,
    /// Time from the decision to start a shard until it can own slots. A planner that has seen shards start uses the
    /// time that they took.
    pub start_time: Duration,
    /// Bytes per second that move between two shards.
    pub migration_bytes_s: f64,
    /// Migrations at once from one shard, and to one shard.
    pub migrations_per_shard_max: u32,
    /// Bytes that one migration moves. The slots of a migration change their owner together, so a smaller one relieves
    /// its source sooner.
    pub migration_bytes_max: u64,
    /// How far the most loaded shard may exceed the mean before slots move, as a factor.
    pub imbalance_max: f64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            shards_min: 1,
            shards_max: 100,
            workers_min: 1,
            replicas: 0,
            read_replicas_max: 0,
            busy_target: 0.6,
            busy_grow: 0.75,
            busy_shrink: 0.5,
            memory_target: 0.65,
            memory_grow: 0.8,
            queue_delay_max: Duration::from_millis(5),
            saturation_factor: 1.5,
            quiet: Duration::from_secs(300),
            start_time: Duration::from_secs(2),
            migration_bytes_s: 400e6,
            migrations_per_shard_max: 4,
            migration_bytes_max: 512 << 20,
            imbalance_max: 1.3,
        }
    }
}
