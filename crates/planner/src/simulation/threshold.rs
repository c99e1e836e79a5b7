//! A controller for comparison: the rule of autoscalers that look at utilization and wait between two steps.
//!
//! As the autoscaler of Google's Memorystore for clusters does by default, it waits 10 minutes after a step before it
//! grows again, and 20 minutes before it shrinks. The new size is the old one multiplied by utilization and divided by
//! the threshold ("linear"). Slots move by the planner's placement, over all pairs at once, so the comparison is only
//! about when to change the number of shards and by how much.

use super::Controller;
use crate::estimate::Estimator;
use crate::observation::{Observation, Phase, ShardId};
use crate::placement::Balancer;
use crate::plan::{Action, Plan};
use crate::policy::Policy;
use std::collections::BTreeSet;
use std::time::Duration;

/// Waits.
const GROW_WAIT: Duration = Duration::from_secs(600);
const SHRINK_WAIT: Duration = Duration::from_secs(1200);
/// Utilization of CPU time and memory at which the number of shards grows.
const GROW_AT: f64 = 0.8;
/// The same for shrinking.
const SHRINK_AT: f64 = 0.5;
/// Utilization that the new number is computed for.
const TARGET: f64 = 0.65;
/// Utilization is averaged over a minute, as metrics services do.
const AVERAGE_S: f64 = 60.0;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Threshold {
    policy: Policy,
    estimator: Estimator,
    balancer: Balancer,
    leaving: BTreeSet<ShardId>,
    changed_at: Option<Duration>,
    cores: Option<f64>,
    at: Duration,
}

impl Threshold {
    fn sizes(&mut self, observation: &Observation) -> (u32, u32, f64) {
        let staying = || observation.shards.iter().filter(|shard| !self.leaving.contains(&shard.id));
        let shards = staying().count() as u32;
        let cores: f64 = staying().map(|shard| f64::from(shard.workers_max)).sum();
        let busy: f64 = observation.shards.iter().map(|shard| shard.busy_cores).sum();
        let limit: f64 = staying().map(|shard| shard.memory_bytes_max as f64).sum();
        let memory = observation.slots.iter().map(|slot| slot.bytes as f64).sum::<f64>() / limit.max(1.0);
        let passed_s = observation.at.saturating_sub(self.at).as_secs_f64();
        self.at = observation.at;
        let weight = 1.0 - (-passed_s / (AVERAGE_S / 2.0)).exp();
        let average = self.cores.map_or(busy, |average| average + weight * (busy - average));
        self.cores = Some(average);
        let used = (average / cores).max(memory);
        (shards, (f64::from(shards) * used / TARGET).ceil().max(1.0) as u32, used)
    }
}

impl Controller for Threshold {
    fn plan(&mut self, observation: &Observation) -> Plan {
        let mut plan = Plan::default();
        let estimate = self.estimator.observe(observation, &self.policy);
        let (shards, wanted, used) = self.sizes(observation);
        let waited = |wait: Duration| self.changed_at.is_none_or(|then| observation.at.saturating_sub(then) >= wait);
        let reason = format!("{:.0} percent are used", used * 100.0);
        if used > GROW_AT && wanted > shards && waited(GROW_WAIT) {
            plan.push(Action::Start { shards: wanted - shards }, reason);
            self.changed_at = Some(observation.at);
        } else if used < SHRINK_AT && wanted < shards && waited(SHRINK_WAIT) && self.leaving.is_empty() {
            let mut ids: Vec<ShardId> = observation.shards.iter().map(|shard| shard.id).collect();
            ids.sort_by_key(|id| std::cmp::Reverse(*id));
            for shard in ids.into_iter().take((shards - wanted) as usize) {
                self.leaving.insert(shard);
                plan.push(Action::Drain { shard }, reason.clone());
            }
            self.changed_at = Some(observation.at);
        }
        self.leaving.retain(|id| observation.shard(*id).is_some());
        for shard in &self.leaving {
            let is_used = observation.slots.iter().any(|slot| slot.owner == Some(*shard))
                || observation.migrations.iter().any(|migration| [migration.from, migration.to].contains(shard));
            if !is_used && observation.shard(*shard).is_some_and(|shard| shard.phase == Phase::Leaving) {
                plan.push(Action::Stop { shard: *shard }, "it has no slots");
            }
        }
        for batch in self.balancer.balance(observation, &estimate, &self.policy, &self.leaving) {
            let (from, to, slots, bytes) = (batch.from, batch.to, batch.slots, batch.bytes);
            plan.push(Action::Move { from, to, slots, bytes }, batch.reason);
        }
        plan
    }
}
