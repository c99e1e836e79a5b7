//! Observes a cluster, and plans its changes.
//!
//! A plan has three parts: the number of shards, the slots of each shard, and what belongs to one shard (workers and
//! replicas). Capacity grows as soon as the forecast for the time when it would be ready requires it, because clients
//! wait meanwhile. It shrinks only after less has been enough for a while, because moving slots to and fro costs more
//! than an idle shard. If the number grows again soon after it shrank, that time is doubled.

use crate::estimate::{Estimate, Estimator};
use crate::forecast::Trend;
use crate::observation::{Observation, Phase, Shard, ShardId};
use crate::placement::Balancer;
use crate::plan::{Action, Figures, Plan};
use crate::policy::Policy;
use crate::sizing::{Capacity, Demand, Need, is_starting, staying};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Time of the samples of a trend of CPU time.
const CORES_WINDOW: Duration = Duration::from_secs(15);
/// The same for memory, which changes more slowly.
const BYTES_WINDOW: Duration = Duration::from_secs(60);
/// How far ahead a forecast goes at most.
const LEAD_MAX: Duration = Duration::from_secs(120);
/// The number of shards that shrinks and grows within this multiple of the quiet time has changed in vain.
const REGRET: u32 = 4;
/// The longest quiet time, as a multiple of the configured one.
const QUIET_FACTOR_MAX: u32 = 16;

/// Plans the capacity of one cluster.
#[derive(Debug)]
pub struct Planner {
    policy: Policy,
    estimator: Estimator,
    balancer: Balancer,
    cores: Trend,
    bytes: Trend,
    /// Since when shards start, and how long that took the last time.
    starts: HashMap<ShardId, Duration>,
    start_time: Duration,
    /// The most shards that were needed, by the time until which that counts.
    needed: Highest,
    quiet_factor: u32,
    shrunk_at: Option<Duration>,
    leaving: BTreeSet<ShardId>,
    /// The most workers and read replicas that each shard needed.
    shards: HashMap<ShardId, ShardHistory>,
}

#[derive(Debug, Default)]
struct ShardHistory {
    workers: Highest,
    read_replicas: Highest,
}

/// The highest value over a period.
#[derive(Debug, Default)]
struct Highest {
    /// Since when there are values.
    since: Option<Duration>,
    /// Falling values, each with its time.
    values: VecDeque<(Duration, u32)>,
}

impl Highest {
    fn add(&mut self, at: Duration, value: u32, period_max: Duration) {
        self.since.get_or_insert(at);
        while self.values.back().is_some_and(|(_, last)| *last <= value) {
            self.values.pop_back();
        }
        self.values.push_back((at, value));
        while self.values.front().is_some_and(|(then, _)| at.saturating_sub(*then) > period_max) {
            self.values.pop_front();
        }
    }

    /// The highest value of the last `period`; `None` if values are not known for so long.
    fn of(&self, at: Duration, period: Duration) -> Option<u32> {
        let is_known = at.saturating_sub(self.since?) >= period;
        let recent = |(then, _): &&(Duration, u32)| at.saturating_sub(*then) <= period;
        let highest = self.values.iter().find(recent).map(|(_, value)| *value);
        highest.filter(|_| is_known)
    }

    fn restart(&mut self) {
        self.since = None;
        self.values.clear();
    }
}

impl Planner {
    /// A planner that has seen nothing yet.
    pub fn new(policy: Policy) -> Planner {
        Planner {
            start_time: policy.start_time,
            policy,
            estimator: Estimator::default(),
            balancer: Balancer::default(),
            cores: Trend::new(CORES_WINDOW),
            bytes: Trend::new(BYTES_WINDOW),
            starts: HashMap::new(),
            needed: Highest::default(),
            quiet_factor: 1,
            shrunk_at: None,
            leaving: BTreeSet::new(),
            shards: HashMap::new(),
        }
    }

    /// Its settings.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Changes the settings.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// What to begin now.
    pub fn plan(&mut self, observation: &Observation) -> Plan {
        let estimate = self.estimator.observe(observation, &self.policy);
        self.note_starts(observation);
        self.note_trends(observation, &estimate);
        let mut plan = Plan::default();
        self.plan_shards(observation, &estimate, &mut plan);
        self.plan_slots(observation, &estimate, &mut plan);
        self.shards.retain(|id, _| observation.shard(*id).is_some());
        for shard in observation.shards.iter().filter(|shard| shard.phase == Phase::Serving) {
            if !self.leaving.contains(&shard.id) {
                self.plan_workers(observation, shard, &mut plan);
                self.plan_replicas(observation, shard, &estimate, &mut plan);
            }
        }
        plan
    }

    /// For how long fewer shards must be enough.
    fn quiet(&self) -> Duration {
        self.policy.quiet * self.quiet_factor
    }

    fn note_starts(&mut self, observation: &Observation) {
        for shard in &observation.shards {
            match shard.phase {
                Phase::Starting => {
                    self.starts.entry(shard.id).or_insert(observation.at);
                }
                Phase::Serving => {
                    if let Some(began) = self.starts.remove(&shard.id) {
                        // Rises at once and falls slowly.
                        let took = observation.at.saturating_sub(began);
                        self.start_time = took.max((self.start_time + took) / 2);
                    }
                }
                Phase::Leaving => {
                    // A planner that has just begun continues what another one has decided.
                    self.leaving.insert(shard.id);
                }
            }
        }
        self.starts.retain(|id, _| observation.shard(*id).is_some());
        self.leaving.retain(|id| observation.shard(*id).is_some());
    }

    fn note_trends(&mut self, observation: &Observation, estimate: &Estimate) {
        if estimate.saturated.is_empty() {
            self.cores.add(observation.at, estimate.busy_cores);
        } else {
            // What a saturated shard serves follows its capacity, not the demand.
            self.cores.clear();
        }
        self.bytes.add(observation.at, observation.slots.iter().map(|slot| slot.bytes as f64).sum());
    }

    /// Time until a shard that is started now has its part of the slots.
    fn lead(&self, demand: &Demand, shards: u32) -> Duration {
        let shards = f64::from(shards.max(1));
        // Each shard gives up to half of what it has, over some of its pairs at once.
        let transfer_s = demand.bytes / shards / 2.0 / (2.0 * self.policy.migration_bytes_s.max(1.0));
        (self.start_time + Duration::from_secs_f64(transfer_s.min(LEAD_MAX.as_secs_f64()))).min(LEAD_MAX)
    }

    fn plan_shards(&mut self, observation: &Observation, estimate: &Estimate, plan: &mut Plan) {
        let policy = self.policy.clone();
        let at = observation.at;
        let shards = staying(observation, |shard| self.leaving.contains(&shard.id));
        if shards == 0 && observation.shards.is_empty() {
            plan.push(Action::Start { shards: policy.shards_min.max(1) }, "the cluster has no shards");
            return;
        }
        let capacity = Capacity::of(observation);
        // Until capacity that was added is in use, shards stay saturated, which does not show that more is needed.
        let is_growing = observation.shards.iter().any(is_starting)
            || self.balancer.is_balancing()
            || !observation.migrations.is_empty();
        let factor = if is_growing { 1.0 } else { policy.saturation_factor };
        let now = Demand::of(observation, estimate, &policy, factor);
        let lead = self.lead(&now, shards);
        let growth = |trend: &Trend, last: f64| if last > 0.0 { (trend.forecast(lead) / last).max(1.0) } else { 1.0 };
        let cores_growth = growth(&self.cores, estimate.busy_cores);
        let forecast = now.scaled(cores_growth, growth(&self.bytes, now.bytes));
        let need = forecast.need(&capacity, policy.busy_target, policy.memory_target);
        plan.figures = Figures {
            busy_cores: estimate.busy_cores,
            forecast_cores: forecast.cores + forecast.hot_cores.iter().sum::<f64>(),
            forecast_bytes: forecast.bytes,
            lead_s: lead.as_secs_f64(),
            shards_needed: need.shards,
            quiet_s: self.quiet().as_secs_f64(),
        };
        let enough = forecast.need(&capacity, policy.busy_shrink, policy.memory_target).shards;
        let enough = enough.clamp(policy.shards_min, policy.shards_max.max(policy.shards_min));
        self.needed.add(at, enough, policy.quiet * QUIET_FACTOR_MAX);
        let must_grow = forecast.pressure(shards, &capacity, policy.busy_grow, policy.memory_grow) > 1.0;
        let wanted = if must_grow { need.shards.max(shards) } else { shards };
        let wanted = wanted.clamp(policy.shards_min.max(1), policy.shards_max.max(policy.shards_min).max(1));
        if wanted > shards {
            let reason = grow_reason(shards, need, &now, &forecast, lead, !estimate.saturated.is_empty());
            self.grow(observation, wanted - shards, &reason, plan);
        } else if shards > wanted {
            self.shrink(observation, shards - wanted, "more shards than shards_max", plan);
        } else if !is_growing && self.leaving.is_empty() {
            self.shrink_if_quiet(observation, shards, plan);
        }
        self.stop_empty(observation, plan);
    }

    fn grow(&mut self, observation: &Observation, count: u32, reason: &str, plan: &mut Plan) {
        let at = observation.at;
        let was_in_vain = self.shrunk_at.take().is_some_and(|then| at.saturating_sub(then) < self.quiet() * REGRET);
        if was_in_vain {
            self.quiet_factor = (self.quiet_factor * 2).min(QUIET_FACTOR_MAX);
        }
        self.needed.restart();
        let mut missing = count;
        // Those that leave with most slots still left come back first.
        let mut leaving: Vec<ShardId> = self.leaving.iter().copied().collect();
        leaving.sort_by_key(|id| observation.slots.iter().filter(|slot| slot.owner == Some(*id)).count());
        while missing > 0
            && let Some(shard) = leaving.pop()
        {
            self.leaving.remove(&shard);
            plan.push(Action::Keep { shard }, reason);
            missing -= 1;
        }
        if missing > 0 {
            plan.push(Action::Start { shards: missing }, reason);
        }
    }

    fn shrink_if_quiet(&mut self, observation: &Observation, shards: u32, plan: &mut Plan) {
        let (at, quiet) = (observation.at, self.quiet());
        if let Some(then) = self.shrunk_at
            && at.saturating_sub(then) >= quiet * REGRET
        {
            self.shrunk_at = None;
            self.quiet_factor = (self.quiet_factor / 2).max(1);
        }
        let Some(highest) = self.needed.of(at, quiet).filter(|highest| *highest < shards) else { return };
        let reason = format!("{highest} of {shards} shards were enough for {} seconds", quiet.as_secs());
        self.shrink(observation, shards - highest, &reason, plan);
        self.shrunk_at = Some(at);
        self.needed.restart();
    }

    /// Drains the shards with the fewest bytes, of equal ones those with the highest numbers.
    fn shrink(&mut self, observation: &Observation, count: u32, reason: &str, plan: &mut Plan) {
        let mut bytes: HashMap<ShardId, u64> = HashMap::new();
        for slot in &observation.slots {
            if let Some(owner) = slot.owner {
                *bytes.entry(owner).or_default() += slot.bytes;
            }
        }
        let mut candidates: Vec<ShardId> = observation.shards.iter().map(|shard| shard.id).collect();
        candidates.retain(|id| !self.leaving.contains(id));
        candidates.sort_by_key(|id| (bytes.get(id).copied().unwrap_or(0), std::cmp::Reverse(*id)));
        for shard in candidates.into_iter().take(count as usize) {
            self.leaving.insert(shard);
            plan.push(Action::Drain { shard }, reason);
        }
    }

    fn stop_empty(&self, observation: &Observation, plan: &mut Plan) {
        for shard in &self.leaving {
            let is_used = observation.slots.iter().any(|slot| slot.owner == Some(*shard))
                || observation.migrations.iter().any(|migration| [migration.from, migration.to].contains(shard));
            // It was marked in an earlier plan, which has been carried out.
            let is_marked = observation.shard(*shard).is_some_and(|shard| shard.phase == Phase::Leaving);
            if is_marked && !is_used {
                plan.push(Action::Stop { shard: *shard }, "it is leaving and has no slots");
            }
        }
    }

    fn plan_slots(&mut self, observation: &Observation, estimate: &Estimate, plan: &mut Plan) {
        let unowned: Vec<u16> = (0..observation.slots.len())
            .filter(|slot| observation.slots[*slot].owner.is_none())
            .map(|s| s as u16)
            .collect();
        let receivers: Vec<ShardId> = observation
            .shards
            .iter()
            .filter(|shard| shard.phase == Phase::Serving && !self.leaving.contains(&shard.id))
            .map(|shard| shard.id)
            .collect();
        if !unowned.is_empty() && !receivers.is_empty() {
            for (slots, shard) in unowned.chunks(unowned.len().div_ceil(receivers.len())).zip(receivers) {
                plan.push(Action::Assign { shard, slots: slots.to_vec() }, "the slots have no owner");
            }
            return;
        }
        for batch in self.balancer.balance(observation, estimate, &self.policy, &self.leaving) {
            let (from, to, slots, bytes) = (batch.from, batch.to, batch.slots, batch.bytes);
            plan.push(Action::Move { from, to, slots, bytes }, batch.reason);
        }
    }

    fn plan_workers(&mut self, observation: &Observation, shard: &Shard, plan: &mut Plan) {
        let policy = &self.policy;
        let least = policy.workers_min.clamp(1, shard.workers_max.max(1));
        let needed = ((shard.busy_cores / policy.busy_target).ceil() as u32).clamp(least, shard.workers_max.max(1));
        let history = self.shards.entry(shard.id).or_default();
        history.workers.add(observation.at, needed, policy.quiet);
        let is_busy = shard.busy_cores > policy.busy_grow * f64::from(shard.workers);
        let percent = 100.0 * shard.busy_cores / f64::from(shard.workers.max(1));
        if shard.workers < least || is_busy && needed > shard.workers {
            let reason = format!("{} workers are {percent:.0} percent busy", shard.workers);
            plan.push(Action::SetWorkers { shard: shard.id, workers: needed.max(least) }, reason);
        } else if let Some(workers) = history.workers.of(observation.at, policy.quiet)
            && workers < shard.workers
        {
            let reason =
                format!("{workers} of {} workers were enough for {} seconds", shard.workers, policy.quiet.as_secs());
            plan.push(Action::SetWorkers { shard: shard.id, workers }, reason);
            history.workers.restart();
        }
    }

    fn plan_replicas(&mut self, observation: &Observation, shard: &Shard, estimate: &Estimate, plan: &mut Plan) {
        let policy = &self.policy;
        let reads = self.read_replicas(observation, shard, estimate);
        let history = self.shards.entry(shard.id).or_default();
        history.read_replicas.add(observation.at, reads, policy.quiet);
        let recent = history.read_replicas.values.front().map_or(reads, |(_, highest)| *highest);
        let (needed, kept) = (policy.replicas + reads, policy.replicas + recent);
        if shard.replicas < policy.replicas {
            plan.push(
                Action::AddReplica { shard: shard.id },
                format!("{} of {} replicas", shard.replicas, policy.replicas),
            );
        } else if shard.replicas < needed {
            let percent = 100.0 * shard.busy_cores / f64::from(shard.workers_max.max(1));
            let reason = format!("reads of a hot slot: it is {percent:.0} percent busy");
            plan.push(Action::AddReplica { shard: shard.id }, reason);
        } else if shard.replicas > kept {
            let reason = format!("{} replicas are enough", kept);
            plan.push(Action::RemoveReplica { shard: shard.id }, reason);
        }
    }

    /// Replicas that would help a shard whose load is one slot, mostly reads.
    fn read_replicas(&self, observation: &Observation, shard: &Shard, estimate: &Estimate) -> u32 {
        let own = || observation.slots.iter().zip(&estimate.cores).filter(|(slot, _)| slot.owner == Some(shard.id));
        let hottest = own().map(|(_, cores)| *cores).fold(0.0, f64::max);
        let capacity = f64::from(shard.workers_max.max(1));
        let is_one_slot = hottest > 0.8 * shard.busy_cores;
        // What replicas do already counts as well. Clients are assumed to divide reads evenly.
        let reads = shard.busy_cores * shard.read_ratio;
        let all_reads = reads * (1.0 + f64::from(shard.replicas));
        let demand = shard.busy_cores - reads + all_reads;
        let saturated = estimate.saturated.contains(&shard.id);
        let demand = if saturated { demand * self.policy.saturation_factor } else { demand };
        if !is_one_slot || reads <= 0.0 || demand < self.policy.busy_grow * capacity {
            return 0;
        }
        let servers = (demand / (self.policy.busy_target * capacity)).ceil() as u32;
        servers.saturating_sub(1).min(self.policy.read_replicas_max)
    }
}

fn grow_reason(shards: u32, need: Need, now: &Demand, forecast: &Demand, lead: Duration, saturated: bool) -> String {
    let seconds = lead.as_secs_f64();
    match need.resource {
        "memory" => format!(
            "{shards} shards, {} needed: memory will be {:.1} GB in {seconds:.0} s, now {:.1} GB",
            need.shards,
            forecast.bytes / 1e9,
            now.bytes / 1e9
        ),
        "cores" => {
            let why = if saturated { "shards are saturated" } else { "forecast" };
            let [now, then] = [now, forecast].map(|demand| demand.cores + demand.hot_cores.iter().sum::<f64>());
            format!("{shards} shards, {} needed ({why}): {then:.1} cores in {seconds:.0} s, now {now:.1}", need.shards)
        }
        other => format!("{shards} shards, {} needed: {other}", need.shards),
    }
}
