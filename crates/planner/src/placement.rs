//! Decides which slots move where.
//!
//! Cores and bytes are levelled separately; bytes only if memory is tight, or if the cluster is idle. The level of a
//! resource is the fraction of each shard's capacity that the slots fill if they are divided evenly, like water. A
//! **hot** slot needs more than half of what is planned for a shard. It cannot be divided, so it is an obstacle under
//! the water: a shard whose hot slots exceed the level keeps nothing else. Shards above the level give slots to shards
//! below it. A shard with too much CPU time gives the slots with the most CPU time per byte first, because these move
//! fastest; a shard with too many bytes gives the opposite.
//!
//! All pairs of a giving and a receiving shard migrate at the same time, each in batches of limited size.
//!
//! Measured loads are noisy, so small differences of shards do not count, and a migration that would relieve a shard of
//! almost nothing is not begun. Slots without load and data would never move for their costs. They are divided by
//! number, in the migrations that begin anyway, since they may have load later.

use crate::estimate::{Estimate, SETTLING};
use crate::observation::{Observation, Phase, Shard, ShardId};
use crate::policy::Policy;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// How far above the level a shard may be, as a factor, when slots move anyway.
const TOLERANCE: f64 = 1.06;
/// The same for stopping to move slots.
const BALANCED: f64 = 1.12;
/// Fraction of the planned load below which shards count as balanced.
const IDLE: f64 = 0.5;
/// Fraction of its cores that a shard must have above its part before slots move: less is noise of the measurement.
const DIFFERENCE_MIN: f64 = 0.08;
/// For how long shards must be uneven before slots move, unless one of them needs more capacity.
const PERSISTENCE: Duration = Duration::from_secs(3);
/// Fraction of a shard's cores that is worth a migration.
const RELIEF_MIN: f64 = 0.01;
/// Fraction of the mean cost of slots up to which a slot has no load, or no data.
const EMPTY: f64 = 0.02;
/// Fraction of a capacity that decides nothing.
const NEGLIGIBLE: f64 = 0.02;
/// Fraction of the planned memory from which on memory decides which slots move.
const TIGHT: f64 = 0.85;
/// Fraction of its memory that a shard which receives slots may have in use then.
const MEMORY_MAX: f64 = 0.9;

/// Slots to migrate from one shard to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The shard that owns them.
    pub from: ShardId,
    /// The shard that will own them.
    pub to: ShardId,
    /// The slots, in ascending order.
    pub slots: Vec<u16>,
    /// Memory of their keys.
    pub bytes: u64,
    /// Why.
    pub reason: String,
}

/// Moves slots when they are uneven, until they are even.
#[derive(Clone, Debug, Default)]
pub struct Balancer {
    is_balancing: bool,
    /// Slots that have moved since it began. If all could have moved, small differences are noise.
    moved: usize,
    /// Whether migrations were limited since it began, so that small differences are what is left to do.
    was_limited: bool,
    /// Since when shards are uneven.
    uneven_since: Option<Duration>,
    /// When slots moved last.
    moved_at: Option<Duration>,
}

/// A shard while slots are distributed. Index 0 of a pair is about cores, 1 about bytes.
#[derive(Clone, Debug)]
struct Bin {
    id: ShardId,
    is_leaving: bool,
    /// What it can take; 0 is no limit.
    capacity: [f64; 2],
    load: [f64; 2],
    /// What its hot slots need.
    hot: [f64; 2],
    /// What it should have.
    wanted: [f64; 2],
    slots: usize,
    /// How many of the slots have neither load nor data.
    empty_slots: usize,
    /// Migrations from it and to it.
    leaving_jobs: u32,
    arriving_jobs: u32,
}

/// What a hot slot needs at least.
pub(crate) fn hot_cores(policy: &Policy, workers_max: f64) -> f64 {
    0.5 * policy.busy_target * workers_max
}

impl Bin {
    fn of(shard: &Shard, leaving: &BTreeSet<ShardId>) -> Bin {
        Bin {
            id: shard.id,
            is_leaving: leaving.contains(&shard.id),
            capacity: [f64::from(shard.workers_max.max(1)), shard.memory_bytes_max as f64],
            load: [0.0; 2],
            hot: [0.0; 2],
            wanted: [0.0; 2],
            slots: 0,
            empty_slots: 0,
            leaving_jobs: 0,
            arriving_jobs: 0,
        }
    }

    fn excess(&self, resource: usize) -> f64 {
        if self.is_leaving { self.load[resource] } else { self.load[resource] - self.wanted[resource] * TOLERANCE }
    }

    fn room(&self, resource: usize) -> f64 {
        if self.is_leaving { 0.0 } else { self.wanted[resource] - self.load[resource] }
    }

    /// The smaller of the fractions of its room that are left.
    fn relative_room(&self, levels: [f64; 2]) -> f64 {
        let relative = |resource: usize| {
            let unit = levels[resource] * self.capacity[resource];
            if unit > 0.0 { self.room(resource) / unit } else { f64::INFINITY }
        };
        relative(0).min(relative(1))
    }
}

impl Balancer {
    /// Whether slots are being moved until they are even.
    pub fn is_balancing(&self) -> bool {
        self.is_balancing
    }

    /// Notes that so many slots of the last migrations do not move yet. They will, even if the difference is small.
    pub(crate) fn note_left_out(&mut self, slots: usize) {
        self.was_limited = self.is_balancing;
        self.moved = self.moved.saturating_sub(slots);
    }

    /// The migrations to begin now.
    pub fn balance(
        &mut self,
        observation: &Observation,
        estimate: &Estimate,
        policy: &Policy,
        leaving: &BTreeSet<ShardId>,
    ) -> Vec<Batch> {
        let mut distribution = Distribution::new(observation, estimate, policy, leaving);
        let is_completing = self.was_limited && self.moved < observation.slots.len();
        distribution.is_completing = is_completing;
        let urgency = distribution.urgency(policy, self.is_balancing);
        self.uneven_since = urgency.map(|_| self.uneven_since.unwrap_or(observation.at));
        let has_persisted = |since| observation.at.saturating_sub(since) >= PERSISTENCE;
        if !observation.migrations.is_empty() {
            self.moved_at = Some(observation.at);
        }
        // Loads that were measured meanwhile are those from before, in part.
        let has_settled = self.moved_at.is_none_or(|then| observation.at.saturating_sub(then) >= SETTLING);
        let is_due = urgency == Some(Urgency::Now) || has_settled && self.uneven_since.is_some_and(has_persisted);
        let must_leave = distribution.bins.iter().any(|bin| bin.is_leaving && bin.slots > 0);
        let batches = if is_due || must_leave { distribution.batches(policy, is_due) } else { Vec::new() };
        if !batches.is_empty() {
            self.moved_at = Some(observation.at);
        }
        // Slots that are too large to be even do not keep it going.
        let goes_on = !(batches.is_empty() && observation.migrations.is_empty());
        self.is_balancing = if is_due { goes_on } else { self.is_balancing && urgency.is_some() && !has_settled };
        let moving = batches.iter().map(|batch| batch.slots.len()).sum::<usize>();
        self.moved = if self.is_balancing { self.moved + moving } else { 0 };
        self.was_limited = self.is_balancing && (self.was_limited || distribution.was_limited);
        batches
    }
}

/// All shards and slots while slots are distributed.
struct Distribution {
    bins: Vec<Bin>,
    levels: [f64; 2],
    /// Index of the bin that has a slot once all migrations have ended.
    owners: Vec<Option<usize>>,
    is_moving: Vec<bool>,
    costs: Vec<[f64; 2]>,
    is_hot: Vec<bool>,
    /// Whether slots have neither load nor data.
    is_empty: Vec<bool>,
    /// Whether migrations were limited earlier, and slots that should move have not had their turn yet.
    is_completing: bool,
    /// Whether more would move if migrations were not limited.
    was_limited: bool,
    /// Whether shards have a limit of memory. Without one, all count as equally large.
    has_memory_limit: bool,
}

/// When slots should move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    Now,
    IfItPersists,
}

/// What decides which slots a shard gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Criterion {
    /// The resource with this index.
    Resource(usize),
    /// The number of slots, because nothing is known of their costs.
    Count,
}

impl Distribution {
    fn new(
        observation: &Observation,
        estimate: &Estimate,
        policy: &Policy,
        leaving: &BTreeSet<ShardId>,
    ) -> Distribution {
        let can_own = |shard: &&Shard| shard.phase != Phase::Starting;
        let mut bins: Vec<Bin> =
            observation.shards.iter().filter(can_own).map(|shard| Bin::of(shard, leaving)).collect();
        let index: HashMap<ShardId, usize> = bins.iter().enumerate().map(|(index, bin)| (bin.id, index)).collect();
        let owners: Vec<Option<usize>> =
            observation.owners_after_migrations().iter().map(|owner| index.get(owner.as_ref()?).copied()).collect();
        let mut is_moving = vec![false; owners.len()];
        for migration in &observation.migrations {
            for slot in &migration.slots {
                if let Some(moving) = is_moving.get_mut(usize::from(*slot)) {
                    *moving = true;
                }
            }
            if let Some(from) = index.get(&migration.from) {
                bins[*from].leaving_jobs += 1;
            }
            if let Some(to) = index.get(&migration.to) {
                bins[*to].arriving_jobs += 1;
            }
        }
        let costs: Vec<[f64; 2]> =
            observation.slots.iter().zip(&estimate.cores).map(|(slot, cores)| [*cores, slot.bytes as f64]).collect();
        let workers = bins.iter().map(|bin| bin.capacity[0]).sum::<f64>() / bins.len().max(1) as f64;
        let threshold = hot_cores(policy, workers);
        let is_hot: Vec<bool> = costs.iter().map(|[cores, _]| *cores > threshold).collect();
        let empty: [f64; 2] = std::array::from_fn(|resource| {
            EMPTY * costs.iter().map(|cost| cost[resource]).sum::<f64>() / costs.len().max(1) as f64
        });
        let is_empty: Vec<bool> = costs.iter().map(|[cores, bytes]| *cores <= empty[0] && *bytes <= empty[1]).collect();
        for (slot, owner) in owners.iter().enumerate() {
            let Some(owner) = owner else { continue };
            let bin = &mut bins[*owner];
            bin.slots += 1;
            bin.empty_slots += usize::from(is_empty[slot]);
            for (resource, cost) in costs[slot].into_iter().enumerate() {
                bin.load[resource] += cost;
                bin.hot[resource] += if is_hot[slot] { cost } else { 0.0 };
            }
        }
        let has_memory_limit = bins.iter().all(|bin| bin.capacity[1] > 0.0);
        if !has_memory_limit {
            let mean = bins.iter().map(|bin| bin.load[1]).sum::<f64>() / bins.len().max(1) as f64;
            bins.iter_mut().for_each(|bin| bin.capacity[1] = mean.max(1.0));
        }
        let levels = [0.0; 2];
        let mut distribution = Distribution {
            bins,
            levels,
            owners,
            is_moving,
            costs,
            is_hot,
            is_empty,
            is_completing: false,
            was_limited: false,
            has_memory_limit,
        };
        distribution.level();
        distribution
    }

    /// Computes the levels, and what each shard should have.
    fn level(&mut self) {
        for resource in 0..2 {
            let total: f64 = self.bins.iter().map(|bin| bin.load[resource]).sum();
            let staying = || self.bins.iter().filter(|bin| !bin.is_leaving);
            let mut obstacles: Vec<(f64, f64)> =
                staying().map(|bin| (bin.hot[resource] / bin.capacity[resource], bin.capacity[resource])).collect();
            obstacles.sort_by(|one, other| one.0.total_cmp(&other.0));
            // Hot slots of leaving shards have to go somewhere, and count as water.
            let mut water = total - staying().map(|bin| bin.hot[resource]).sum::<f64>();
            let (mut level, mut width) = (0.0, 0.0);
            for (at, (height, capacity)) in obstacles.iter().enumerate() {
                if at == 0 {
                    level = *height;
                } else if water > (height - level) * width {
                    water -= (height - level) * width;
                    level = *height;
                } else {
                    break;
                }
                width += capacity;
            }
            if width > 0.0 {
                level += water / width;
            }
            self.levels[resource] = level;
            for bin in &mut self.bins {
                bin.wanted[resource] =
                    if bin.is_leaving { 0.0 } else { (level * bin.capacity[resource]).max(bin.hot[resource]) };
            }
        }
    }

    /// Whether staying shards are so uneven that slots should move, and how soon.
    fn urgency(&self, policy: &Policy, is_balancing: bool) -> Option<Urgency> {
        let limit = if is_balancing { BALANCED } else { policy.imbalance_max };
        let targets = [policy.busy_target, policy.memory_target];
        let staying = || self.bins.iter().filter(|bin| !bin.is_leaving);
        let has_empty = staying().any(|bin| bin.slots == 0) && self.owners.iter().flatten().count() > staying().count();
        let exceeds = |bin: &Bin, resource: usize| {
            let used = bin.load[resource] / bin.capacity[resource];
            let wanted = bin.wanted[resource] / bin.capacity[resource];
            // Memory that is plentiful need not be even, but what has begun is completed.
            let least = match resource {
                0 if self.is_completing => NEGLIGIBLE,
                1 if self.is_completing && self.levels[0] <= NEGLIGIBLE => NEGLIGIBLE,
                1 if self.has_memory_limit => TIGHT * targets[resource],
                1 => f64::INFINITY,
                _ => (IDLE * targets[resource]).max(wanted + DIFFERENCE_MIN),
            };
            used > least && used > wanted * limit
        };
        let is_urgent = |bin: &Bin| {
            exceeds(bin, 1)
                || exceeds(bin, 0) && (self.is_completing || bin.load[0] > policy.busy_grow * bin.capacity[0])
        };
        if has_empty || staying().any(is_urgent) || self.next_isolation(policy).is_some() {
            return Some(Urgency::Now);
        }
        staying().any(|bin| exceeds(bin, 0)).then_some(Urgency::IfItPersists)
    }

    /// A hot slot that a crowded shard should give to another one, with the index of that shard.
    fn next_isolation(&self, policy: &Policy) -> Option<(usize, usize)> {
        let is_crowded = |bin: &Bin, cost: f64| {
            bin.is_leaving || bin.load[0] > policy.busy_target * bin.capacity[0] && bin.load[0] - cost > 0.1 * cost
        };
        let mut hot = (0..self.owners.len()).filter(|slot| self.is_hot[*slot] && !self.is_moving[*slot]);
        hot.find_map(|slot| {
            let from = &self.bins[self.owners[slot]?];
            let cost = self.costs[slot][0];
            let to = (0..self.bins.len())
                .filter(|bin| !self.bins[*bin].is_leaving && self.bins[*bin].id != from.id)
                .min_by(|one, other| self.used(*one).total_cmp(&self.used(*other)))?;
            // Otherwise it is better if the other slots leave.
            let fits = self.bins[to].load[0] + cost < 0.9 * from.load[0];
            let may_begin = from.leaving_jobs < policy.migrations_per_shard_max
                && self.bins[to].arriving_jobs < policy.migrations_per_shard_max;
            (may_begin && is_crowded(from, cost) && (fits || from.is_leaving)).then_some((slot, to))
        })
    }

    fn used(&self, bin: usize) -> f64 {
        self.bins[bin].load[0] / self.bins[bin].capacity[0]
    }

    fn batches(&mut self, policy: &Policy, is_due: bool) -> Vec<Batch> {
        let mut batches = Vec::new();
        while let Some((slot, to)) = self.next_isolation(policy) {
            let from = self.owners[slot].unwrap_or(to);
            self.take(slot, to);
            self.level();
            let percent = 100.0 * self.costs[slot][0] / self.bins[to].capacity[0];
            let reason = format!("hot slot {slot} needs {percent:.0} percent of a shard's cores");
            batches.push(self.batch(from, to, vec![slot as u16], reason));
        }
        let mut slots_of: Vec<Vec<usize>> = vec![Vec::new(); self.bins.len()];
        for (slot, owner) in self.owners.iter().enumerate() {
            if let Some(owner) = owner
                && !self.is_moving[slot]
                && !self.is_hot[slot]
            {
                slots_of[*owner].push(slot);
            }
        }
        let mut givers: Vec<usize> = (0..self.bins.len()).collect();
        givers.sort_by(|one, other| self.used(*other).total_cmp(&self.used(*one)));
        for from in givers {
            if self.bins[from].is_leaving || is_due {
                self.give(from, &mut slots_of[from], policy, &mut batches);
            }
        }
        batches
    }

    /// Fills batches with slots of a shard.
    fn give(&mut self, from: usize, slots: &mut Vec<usize>, policy: &Policy, batches: &mut Vec<Batch>) {
        let criterion = self.criterion(from, policy);
        // The first ones to go are at the end of the list.
        let density = |slot: usize| match self.costs[slot] {
            [cores, bytes] if criterion == Criterion::Resource(0) => (cores + 1e-9) / (bytes + 1.0),
            [cores, bytes] => (bytes + 1.0) / (cores + 1e-9),
        };
        let order = |one: &usize, other: &usize| density(*one).total_cmp(&density(*other)).then(other.cmp(one));
        slots.sort_by(order);
        let staying = self.bins.iter().filter(|bin| !bin.is_leaving).count().max(1);
        let count_max = if self.bins[from].is_leaving { slots.len().div_ceil(staying) } else { slots.len() };
        let mut empty: Vec<usize> = slots.iter().copied().filter(|slot| self.is_empty[*slot]).collect();
        if self.bins[from].is_leaving || criterion == Criterion::Count {
            empty.clear();
        }
        if !empty.is_empty() {
            slots.retain(|slot| !self.is_empty[*slot]);
        }
        let mut used: BTreeSet<usize> = BTreeSet::new();
        while self.bins[from].leaving_jobs < policy.migrations_per_shard_max {
            let receivers = (0..self.bins.len()).filter(|to| {
                let bin = &self.bins[*to];
                !bin.is_leaving
                    && *to != from
                    && !used.contains(to)
                    && bin.arriving_jobs < policy.migrations_per_shard_max
            });
            let room = |to: &usize| self.bins[*to].relative_room(self.levels);
            let Some(to) = receivers.max_by(|one, other| room(one).total_cmp(&room(other))) else { break };
            used.insert(to);
            if !self.is_worthwhile(from, to, criterion) {
                continue;
            }
            let (mut taken, mut bytes) = (Vec::new(), 0.0);
            while bytes < policy.migration_bytes_max as f64
                && taken.len() < count_max
                && let Some(slot) = slots.last().copied()
                && self.should_give(from, to, slot, criterion)
            {
                slots.pop();
                bytes += self.costs[slot][1];
                self.take(slot, to);
                taken.push(slot as u16);
            }
            self.was_limited |= bytes >= policy.migration_bytes_max as f64;
            if taken.is_empty() && self.bins[to].slots > 0 {
                continue;
            }
            let part = self.bins.iter().map(|bin| bin.empty_slots).sum::<usize>().div_ceil(staying);
            let is_uneven = |giver: &Bin, receiver: &Bin| {
                giver.empty_slots > part && receiver.empty_slots < part || receiver.slots == 0 && giver.slots > 1
            };
            while is_uneven(&self.bins[from], &self.bins[to])
                && let Some(slot) = empty.pop()
            {
                self.take(slot, to);
                taken.push(slot as u16);
            }
            if taken.is_empty() {
                continue;
            }
            taken.sort_unstable();
            let reason = self.reason(from, to, criterion);
            batches.push(self.batch(from, to, taken, reason));
        }
        self.was_limited |= self.bins[from].leaving_jobs >= policy.migrations_per_shard_max;
    }

    /// Whether a migration can relieve its source of more than almost nothing.
    fn is_worthwhile(&self, from: usize, to: usize, criterion: Criterion) -> bool {
        let (giver, receiver) = (&self.bins[from], &self.bins[to]);
        giver.is_leaving
            || receiver.slots == 0
            || self.is_completing
            || criterion != Criterion::Resource(0)
            || giver.excess(0) >= RELIEF_MIN * giver.capacity[0]
                && receiver.room(0) >= RELIEF_MIN * receiver.capacity[0]
    }

    fn criterion(&self, from: usize, policy: &Policy) -> Criterion {
        let relative = |resource: usize| self.bins[from].excess(resource) / self.bins[from].capacity[resource];
        let decides = |resource: usize| self.levels[resource] > NEGLIGIBLE;
        let giver = &self.bins[from];
        let is_tight = self.has_memory_limit && giver.load[1] > TIGHT * policy.memory_target * giver.capacity[1];
        match (decides(0), decides(1)) {
            (true, true) if is_tight && relative(1) > relative(0) => Criterion::Resource(1),
            (true, _) => Criterion::Resource(0),
            (false, true) => Criterion::Resource(1),
            (false, false) => Criterion::Count,
        }
    }

    fn should_give(&self, from: usize, to: usize, slot: usize, criterion: Criterion) -> bool {
        let (giver, receiver) = (&self.bins[from], &self.bins[to]);
        let [cores, bytes] = self.costs[slot];
        if self.has_memory_limit && receiver.load[1] + bytes > MEMORY_MAX * receiver.capacity[1] {
            return false;
        }
        if giver.is_leaving {
            return true;
        }
        // A shard without slots must get one, even if slots cost nothing.
        if receiver.slots == 0 && giver.slots > 1 {
            return true;
        }
        let Criterion::Resource(resource) = criterion else { return giver.slots > receiver.slots + 1 };
        let cost = [cores, bytes][resource];
        // A move for memory must not be undone by one for cores.
        if resource == 1 && self.levels[0] > NEGLIGIBLE && receiver.load[0] + cores > receiver.wanted[0] * TOLERANCE {
            return false;
        }
        // Without the condition on the sums, a slot could move to and fro.
        giver.excess(resource) > 0.0
            && receiver.room(resource) >= cost / 2.0
            && receiver.load[resource] + cost < giver.load[resource]
    }

    /// Changes the owner of a slot.
    fn take(&mut self, slot: usize, to: usize) {
        let (is_hot, is_empty) = (self.is_hot[slot], self.is_empty[slot]);
        for (bin, sign) in self.owners[slot].map(|from| (from, -1.0)).into_iter().chain([(to, 1.0)]) {
            let bin = &mut self.bins[bin];
            bin.slots = if sign > 0.0 { bin.slots + 1 } else { bin.slots - 1 };
            if is_empty {
                bin.empty_slots = if sign > 0.0 { bin.empty_slots + 1 } else { bin.empty_slots - 1 };
            }
            for (resource, cost) in self.costs[slot].into_iter().enumerate() {
                bin.load[resource] += sign * cost;
                bin.hot[resource] += if is_hot { sign * cost } else { 0.0 };
            }
        }
        self.owners[slot] = Some(to);
        self.is_moving[slot] = true;
    }

    fn batch(&mut self, from: usize, to: usize, slots: Vec<u16>, reason: String) -> Batch {
        self.bins[from].leaving_jobs += 1;
        self.bins[to].arriving_jobs += 1;
        let bytes = slots.iter().map(|slot| self.costs[usize::from(*slot)][1]).sum::<f64>() as u64;
        Batch { from: self.bins[from].id, to: self.bins[to].id, slots, bytes, reason }
    }

    fn reason(&self, from: usize, to: usize, criterion: Criterion) -> String {
        let (giver, receiver) = (&self.bins[from], &self.bins[to]);
        let (giver_name, receiver_name) = (giver.id, receiver.id);
        if giver.is_leaving {
            return format!("{giver_name} is leaving");
        }
        let percent = |bin: &Bin, resource: usize| 100.0 * bin.load[resource] / bin.capacity[resource];
        let (what, resource) = match criterion {
            Criterion::Resource(0) => ("cores", 0),
            Criterion::Resource(resource) if self.has_memory_limit => ("memory", resource),
            _ => return format!("{giver_name} has more keys or slots than {receiver_name}"),
        };
        let (left, then) = (percent(giver, resource), percent(receiver, resource));
        format!("even {what}: {giver_name} will have {left:.0} percent, {receiver_name} {then:.0} percent")
    }
}
