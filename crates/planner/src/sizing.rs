//! How many shards a load needs.

use crate::estimate::Estimate;
use crate::observation::{Observation, Phase, Shard};
use crate::placement::hot_cores;
use crate::policy::Policy;

/// What a load needs, in total. Hot slots are listed, since a shard can have only whole slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    /// Cores of all slots but the hot ones.
    pub cores: f64,
    /// Cores of each hot slot.
    pub hot_cores: Vec<f64>,
    /// Memory of the slots.
    pub bytes: f64,
    /// Bytes per second from and to clients.
    pub traffic_bytes_s: f64,
}

/// What one shard can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Cores.
    pub cores: f64,
    /// Memory; infinite without a limit.
    pub bytes: f64,
    /// Bytes per second from and to clients; infinite without a limit.
    pub traffic_bytes_s: f64,
}

/// A number of shards, and the resource that requires it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// The number.
    pub shards: u32,
    /// `cores`, `memory` or `traffic`.
    pub resource: &'static str,
}

impl Capacity {
    /// That of the smallest of the shards.
    pub fn of(observation: &Observation) -> Capacity {
        let least = |of: fn(&Shard) -> f64| {
            let limits = observation.shards.iter().map(of).filter(|limit| *limit > 0.0);
            limits.fold(f64::INFINITY, f64::min)
        };
        let cores = least(|shard| f64::from(shard.workers_max));
        Capacity {
            cores: if cores.is_finite() { cores } else { 1.0 },
            bytes: least(|shard| shard.memory_bytes_max as f64),
            traffic_bytes_s: least(|shard| shard.traffic_bytes_s_max),
        }
    }
}

impl Demand {
    /// The demand of all slots. That of saturated shards is multiplied by `saturation_factor`.
    pub fn of(observation: &Observation, estimate: &Estimate, policy: &Policy, saturation_factor: f64) -> Demand {
        let threshold = hot_cores(policy, Capacity::of(observation).cores);
        let traffic = observation.shards.iter().map(|shard| shard.traffic_bytes_s).sum();
        let mut demand = Demand { traffic_bytes_s: traffic, ..Demand::default() };
        for (slot, cores) in observation.slots.iter().zip(&estimate.cores) {
            let is_saturated = slot.owner.is_some_and(|owner| estimate.saturated.contains(&owner));
            let needed = if is_saturated { cores * saturation_factor } else { *cores };
            if *cores > threshold {
                demand.hot_cores.push(needed);
            } else {
                demand.cores += needed;
            }
            demand.bytes += slot.bytes as f64;
        }
        demand
    }

    /// The same after growth: factors for CPU time and memory.
    pub fn scaled(&self, cores: f64, bytes: f64) -> Demand {
        Demand {
            cores: self.cores * cores,
            hot_cores: self.hot_cores.iter().map(|hot| hot * cores).collect(),
            bytes: self.bytes * bytes,
            traffic_bytes_s: self.traffic_bytes_s * cores,
        }
    }

    /// Cores that shards can be used for, if no shard does more than `limit` for a hot slot.
    fn useful_cores(&self, limit: f64) -> f64 {
        self.cores + self.hot_cores.iter().map(|hot| hot.min(limit)).sum::<f64>()
    }

    /// The largest used fraction of what this number of shards can do, relative to a limit for each resource.
    pub fn pressure(&self, shards: u32, capacity: &Capacity, busy: f64, memory: f64) -> f64 {
        let shards = f64::from(shards.max(1));
        let cores = self.useful_cores(capacity.cores) / (shards * capacity.cores * busy);
        let bytes = self.bytes / (shards * capacity.bytes * memory);
        let traffic = self.traffic_bytes_s / (shards * capacity.traffic_bytes_s * busy);
        cores.max(bytes).max(traffic)
    }

    /// The number of shards that use at most these fractions of what they can do.
    pub fn need(&self, capacity: &Capacity, busy: f64, memory: f64) -> Need {
        let count =
            |amount: f64, unit: f64| if amount > 0.0 { (amount / unit - 1e-6).ceil().max(1.0) as u32 } else { 1 };
        let unit = capacity.cores * busy;
        let needs = [
            Need { shards: count(self.useful_cores(unit), unit), resource: "cores" },
            Need { shards: count(self.bytes, capacity.bytes * memory), resource: "memory" },
            Need { shards: count(self.traffic_bytes_s, capacity.traffic_bytes_s * busy), resource: "traffic" },
        ];
        // Of equal ones the first.
        needs.into_iter().rev().max_by_key(|need| need.shards).unwrap_or(needs[0])
    }
}

/// Shards that have, or will have, slots.
pub fn staying(observation: &Observation, is_leaving: impl Fn(&Shard) -> bool) -> u32 {
    observation.shards.iter().filter(|shard| !is_leaving(shard)).count() as u32
}

/// Whether a shard starts.
pub fn is_starting(shard: &Shard) -> bool {
    shard.phase == Phase::Starting
}
