//! Estimates what each slot costs, from what its owner spends.
//!
//! Nodes count the execution time of each slot, but a node also parses requests, writes replies and wakes up. So the
//! busy time of a shard is divided among its slots in proportion to their execution time. A shard that takes part in a
//! migration is busy with that as well: its slots are estimated with the ratio of the other shards, or with the last
//! one that was known.

use crate::observation::{Observation, Phase, ShardId};
use crate::policy::Policy;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Time over which the execution time of slots is averaged.
const SMOOTHING_S: f64 = 4.0;
/// Time after a migration in which the busy time of a shard is still about the slots that it had before.
pub(crate) const SETTLING: Duration = Duration::from_secs(3);
/// A shard is saturated if its workers are this busy, or if requests wait and they are half as busy.
const SATURATED: f64 = 0.95;

/// What remains from one observation to the next.
#[derive(Clone, Debug, Default)]
pub struct Estimator {
    at: Option<Duration>,
    /// Averaged execution time of each slot per second.
    slots: Vec<f64>,
    /// Busy time by execution time.
    overhead: Option<f64>,
    /// When each shard took part in a migration for the last time.
    migrated_at: HashMap<ShardId, Duration>,
}

/// The cost of slots.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    /// Cores that each slot needs.
    pub cores: Vec<f64>,
    /// Cores in use, without migrations.
    pub busy_cores: f64,
    /// Saturated shards.
    pub saturated: HashSet<ShardId>,
}

impl Estimator {
    /// Estimates the cost of slots now.
    pub fn observe(&mut self, observation: &Observation, policy: &Policy) -> Estimate {
        self.smooth(observation);
        for migration in &observation.migrations {
            for shard in [migration.from, migration.to] {
                self.migrated_at.insert(shard, observation.at);
            }
        }
        self.migrated_at.retain(|_, then| observation.at.saturating_sub(*then) < SETTLING);
        let migrating = &self.migrated_at;
        let mut sums: HashMap<ShardId, (f64, usize)> = HashMap::new();
        for (slot, cpu) in observation.slots.iter().zip(&self.slots) {
            if let Some(owner) = slot.owner {
                let (sum, count) = sums.entry(owner).or_default();
                *sum += cpu;
                *count += 1;
            }
        }
        let steady = observation.shards.iter().filter(|shard| !migrating.contains_key(&shard.id));
        let (busy, cpu) = steady.fold((0.0, 0.0), |(busy, cpu), shard| match sums.get(&shard.id) {
            Some((sum, _)) if *sum > 0.0 => (busy + shard.busy_cores, cpu + sum),
            _ => (busy, cpu),
        });
        if cpu > 1e-6 {
            self.overhead = Some((busy / cpu).max(1.0));
        }
        let overhead = self.overhead.unwrap_or(1.0);
        // Per shard: a factor for the execution time of its slots, and an amount for each of them.
        let costs: HashMap<ShardId, (f64, f64)> = observation
            .shards
            .iter()
            .filter_map(|shard| {
                let (sum, count) = sums.get(&shard.id)?;
                let is_counted = *sum > 1e-9;
                Some((
                    shard.id,
                    match (is_counted, migrating.contains_key(&shard.id)) {
                        (true, true) => ((shard.busy_cores / sum).min(overhead), 0.0),
                        (true, false) => (shard.busy_cores / sum, 0.0),
                        (false, _) => (0.0, shard.busy_cores / *count as f64),
                    },
                ))
            })
            .collect();
        let cost = |(slot, cpu): (&crate::observation::Slot, &f64)| {
            let (factor, amount) = slot.owner.and_then(|owner| costs.get(&owner)).copied().unwrap_or((0.0, 0.0));
            cpu * factor + amount
        };
        let cores: Vec<f64> = observation.slots.iter().zip(&self.slots).map(cost).collect();
        Estimate { busy_cores: cores.iter().sum(), cores, saturated: saturated(observation, policy) }
    }

    fn smooth(&mut self, observation: &Observation) {
        let passed_s = self.at.map_or(f64::INFINITY, |then| observation.at.saturating_sub(then).as_secs_f64());
        self.at = Some(observation.at);
        let weight = 1.0 - (-passed_s / SMOOTHING_S).exp();
        self.slots.resize(observation.slots.len(), 0.0);
        for (average, slot) in self.slots.iter_mut().zip(&observation.slots) {
            *average += weight * (slot.cpu_cores.max(0.0) - *average);
        }
    }
}

fn saturated(observation: &Observation, policy: &Policy) -> HashSet<ShardId> {
    let is_saturated = |shard: &&crate::observation::Shard| {
        let busy = shard.busy_cores / f64::from(shard.workers_max.max(1));
        let waits = shard.queue_delay > policy.queue_delay_max;
        // A shard that may have more workers gets these first.
        shard.phase != Phase::Starting
            && shard.workers >= shard.workers_max
            && (busy >= SATURATED || waits && busy >= SATURATED / 2.0)
    };
    observation.shards.iter().filter(is_saturated).map(|shard| shard.id).collect()
}
