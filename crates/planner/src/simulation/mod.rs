//! A model of a cluster, driven by load curves, to judge controllers.
//!
//! [`run`] offers the load of a [`Curve`] to shards that behave as a [`NodeModel`], lets a [`Controller`] observe them
//! once a second, and carries its plans out: shards need time to start, and slots need time to move. The random numbers
//! have a fixed seed, so a run always has the same result.

pub mod curves;
pub mod node;
pub mod report;
pub mod threshold;

use crate::observation::{Migration, Observation, Phase, Shard, ShardId, Slot};
use crate::plan::{Action, Plan};
use crate::planner::Planner;
pub use curves::{Curve, Load};
pub use node::{Latencies, NodeModel};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Whatever plans the changes of a cluster.
pub trait Controller {
    /// What to begin now.
    fn plan(&mut self, observation: &Observation) -> Plan;
}

impl Controller for Planner {
    fn plan(&mut self, observation: &Observation) -> Plan {
        Planner::plan(self, observation)
    }
}

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How nodes behave.
    pub model: NodeModel,
    /// Number of slots. Fewer than 16,384 make a run faster.
    pub slots: u16,
    /// Shards at the beginning.
    pub shards: u32,
    /// Seconds whose response times are counted.
    pub latency_s: Range<f64>,
    /// Seconds of a step of the model. The controller observes once a second, or once per step if that is longer.
    pub step_s: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { model: NodeModel::default(), slots: 1024, shards: 1, latency_s: 0.0..f64::INFINITY, step_s: 0.5 }
    }
}

/// What happened in a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds in which at least one percent of the offered requests was not served at once.
    pub short_s: f64,
    /// Seconds in which a shard had more data than memory.
    pub memory_short_s: f64,
    /// Requests that clients have given up, and those that were offered.
    pub lost: f64,
    /// See `lost`.
    pub offered: f64,
    /// Migrations, and slots in them.
    pub migrations: u32,
    /// See `migrations`.
    pub moved_slots: u64,
    /// Changes of direction of the number of shards: from growing to shrinking or back.
    pub turns: u32,
    /// The most shards, and shards multiplied by seconds.
    pub shards_max: u32,
    /// See `shards_max`.
    pub shard_seconds: f64,
    /// Shards at the end.
    pub shards: u32,
    /// Response times of all requests.
    pub latencies: Latencies,
    /// One line per second.
    pub history: Vec<Second>,
}

/// The state of a run at the end of a second.
#[derive(Clone, Debug, Default)]
pub struct Second {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// Requests per second that were offered, and that were served.
    pub offered_s: f64,
    /// See `offered_s`.
    pub served_s: f64,
    /// Shards that serve.
    pub shards: u32,
    /// Percentiles of the response times in that second, in milliseconds.
    pub p50_ms: f64,
    /// See `p50_ms`.
    pub p99_ms: f64,
    /// Steps that were planned.
    pub steps: Vec<String>,
}

struct Node {
    phase: Phase,
    ready_at_s: f64,
    backlog: f64,
    workers: u32,
    replicas: u32,
    busy_cores: f64,
    delay_ms: f64,
}

struct Transfer {
    migration: Migration,
    left_bytes: f64,
    left_s: f64,
}

struct Cluster<'a> {
    settings: &'a Settings,
    nodes: BTreeMap<ShardId, Node>,
    owners: Vec<Option<ShardId>>,
    transfers: Vec<Transfer>,
    /// Execution time and bytes of each slot, as counted in the last step.
    counted: Vec<Slot>,
    load: Load,
    next_id: u32,
    direction: i32,
    outcome: Outcome,
    /// The weight of each slot, before hot slots.
    weights: Vec<f64>,
}

/// Offers a load to a cluster that a controller manages.
pub fn run(curve: &Curve, settings: &Settings, controller: &mut dyn Controller) -> Outcome {
    let mut cluster = Cluster::new(curve, settings);
    let mut next_plan_s = 0.0;
    let steps = (f64::from(curve.seconds) / settings.step_s) as u32;
    for step in 0..steps {
        let now_s = f64::from(step) * settings.step_s;
        cluster.load = curve.at(now_s);
        let mut second = cluster.step(now_s);
        if now_s >= next_plan_s {
            next_plan_s = now_s + settings.step_s.max(1.0);
            let plan = controller.plan(&cluster.observation(now_s));
            second.steps = plan.steps.iter().map(ToString::to_string).collect();
            plan.steps.into_iter().for_each(|step| cluster.act(step.action, now_s));
            cluster.outcome.history.push(second);
        }
    }
    cluster.outcome.shards = cluster.nodes.len() as u32;
    cluster.outcome
}

impl Cluster<'_> {
    fn new<'a>(curve: &Curve, settings: &'a Settings) -> Cluster<'a> {
        let ids: Vec<ShardId> = (0..settings.shards).map(ShardId).collect();
        let slots = usize::from(settings.slots);
        let owner = |slot: usize| Some(ids[slot * ids.len() / slots]);
        let mut cluster = Cluster {
            settings,
            nodes: BTreeMap::new(),
            owners: (0..slots).map(owner).collect(),
            transfers: Vec::new(),
            counted: vec![Slot::default(); slots],
            load: curve.at(0.0),
            next_id: settings.shards,
            direction: 0,
            outcome: Outcome::default(),
            weights: curve.weights(slots),
        };
        for id in ids {
            cluster.add_node(id, 0.0);
        }
        cluster
    }

    fn add_node(&mut self, id: ShardId, ready_at_s: f64) {
        let node = Node {
            phase: Phase::Starting,
            ready_at_s,
            backlog: 0.0,
            workers: self.settings.model.workers,
            replicas: 0,
            busy_cores: 0.0,
            delay_ms: 0.0,
        };
        self.nodes.insert(id, node);
    }

    /// Requests per second of a slot, and the bytes of its keys.
    fn slot_load(&self, slot: usize) -> (f64, f64) {
        let hot: f64 = self.load.hot.iter().map(|(_, share)| share).sum();
        let own: f64 = self.load.hot.iter().filter(|(hot, _)| *hot as usize == slot).map(|(_, share)| share).sum();
        let count = self.owners.len() as f64;
        (self.load.requests_s * (own + (1.0 - hot) * self.weights[slot]), self.load.bytes / count)
    }

    fn step(&mut self, now_s: f64) -> Second {
        let (model, step_s) = (self.settings.model, self.settings.step_s);
        for node in self.nodes.values_mut() {
            if node.phase == Phase::Starting && now_s >= node.ready_at_s {
                node.phase = Phase::Serving;
            }
        }
        let importing = self.transfer(now_s, step_s);
        let mut offered: BTreeMap<ShardId, f64> = BTreeMap::new();
        let mut bytes: BTreeMap<ShardId, f64> = BTreeMap::new();
        for slot in 0..self.owners.len() {
            let (rate, size) = self.slot_load(slot);
            if let Some(owner) = self.owners[slot] {
                *offered.entry(owner).or_default() += rate;
                *bytes.entry(owner).or_default() += size;
            }
        }
        let mut second = Second { at_s: now_s, offered_s: self.load.requests_s, ..Second::default() };
        let mut latencies = Latencies::default();
        let (mut late, mut served_ratio) = (0.0, BTreeMap::new());
        for (id, node) in &mut self.nodes {
            let all = offered.get(id).copied().unwrap_or(0.0);
            // Replicas divide the reads evenly with their primary.
            let own = all * (1.0 - self.load.reads * f64::from(node.replicas) / f64::from(node.replicas + 1));
            let other = importing.get(id).copied().unwrap_or(0.0);
            let served = model.serve(own, node.backlog, node.workers, other, step_s);
            late += served.lost + (served.backlog - node.backlog).max(0.0);
            node.backlog = served.backlog;
            node.busy_cores = served.busy_cores;
            node.delay_ms = served.delay_ms;
            latencies.add_served(&model, &served);
            if self.settings.latency_s.contains(&now_s) {
                self.outcome.latencies.add_served(&model, &served);
            }
            self.outcome.lost += served.lost;
            second.served_s += served.requests / step_s + all - own;
            served_ratio.insert(*id, if own > 0.0 { served.requests / (own * step_s) } else { 0.0 });
        }
        for slot in 0..self.owners.len() {
            let (rate, size) = self.slot_load(slot);
            let ratio = self.owners[slot].and_then(|owner| served_ratio.get(&owner)).copied().unwrap_or(0.0);
            let cpu_cores = rate * ratio.min(2.0) * model.request_us / 1e6 * model.execution_ratio;
            self.counted[slot] = Slot { owner: self.owners[slot], cpu_cores, bytes: size as u64 };
        }
        self.outcome.offered += self.load.requests_s * step_s;
        if late > 0.01 * self.load.requests_s * step_s {
            self.outcome.short_s += step_s;
        }
        if bytes.values().any(|used| *used > model.memory_bytes as f64) {
            self.outcome.memory_short_s += step_s;
        }
        second.shards = self.nodes.values().filter(|node| node.phase != Phase::Starting).count() as u32;
        second.p50_ms = latencies.quantile_ms(0.5);
        second.p99_ms = latencies.quantile_ms(0.99);
        self.outcome.shards_max = self.outcome.shards_max.max(self.nodes.len() as u32);
        self.outcome.shard_seconds += self.nodes.len() as f64 * step_s;
        second
    }

    /// Continues the migrations. Returns the cores that they take from each shard.
    fn transfer(&mut self, now_s: f64, step_s: f64) -> BTreeMap<ShardId, f64> {
        let model = self.settings.model;
        let mut jobs: BTreeMap<ShardId, f64> = BTreeMap::new();
        for transfer in &self.transfers {
            *jobs.entry(transfer.migration.from).or_default() += 1.0;
            *jobs.entry(transfer.migration.to).or_default() += 1.0;
        }
        let mut cores: BTreeMap<ShardId, f64> = BTreeMap::new();
        for transfer in &mut self.transfers {
            let Migration { from, to, .. } = &transfer.migration;
            let rate = [from, to]
                .map(|id| {
                    // The threads of a migration compete with busy workers.
                    let busy = self.nodes.get(id).map_or(0.0, |node| node.busy_cores / f64::from(model.workers));
                    let share = if busy > 0.95 { 0.5 } else { 1.0 };
                    (share * model.migration_bytes_s).min(model.migration_bytes_s_max / jobs[id])
                })
                .into_iter()
                .fold(f64::INFINITY, f64::min);
            let used_s = transfer.left_s.min(step_s);
            transfer.left_s -= used_s;
            let moved = (rate * (step_s - used_s)).min(transfer.left_bytes);
            transfer.left_bytes -= moved;
            let spent = model.migration_cores * moved / step_s / model.migration_bytes_s;
            *cores.entry(*to).or_default() += spent;
            *cores.entry(*from).or_default() += spent / 2.0;
        }
        let (done, under_way): (Vec<_>, Vec<_>) = std::mem::take(&mut self.transfers)
            .into_iter()
            .partition(|transfer| transfer.left_bytes <= 0.0 && transfer.left_s <= 0.0);
        self.transfers = under_way;
        for transfer in done {
            for slot in transfer.migration.slots {
                let slot = usize::from(slot);
                assert_eq!(self.owners[slot], Some(transfer.migration.from), "only the owner of a slot gives it away");
                self.owners[slot] = Some(transfer.migration.to);
                // Half of the handover is the mean wait of a request that arrives meanwhile.
                if self.settings.latency_s.contains(&now_s) {
                    let waiting = self.slot_load(slot).0 * model.handover_s;
                    self.outcome.latencies.add(model.base_ms + 500.0 * model.handover_s, waiting);
                }
            }
        }
        cores
    }

    fn observation(&self, now_s: f64) -> Observation {
        let mut bytes: BTreeMap<ShardId, u64> = BTreeMap::new();
        for slot in &self.counted {
            if let Some(owner) = slot.owner {
                *bytes.entry(owner).or_default() += slot.bytes;
            }
        }
        let shards = self.nodes.iter().map(|(id, node)| Shard {
            id: *id,
            phase: node.phase,
            workers: node.workers,
            workers_max: self.settings.model.workers,
            busy_cores: node.busy_cores,
            queue_delay: Duration::from_secs_f64(node.delay_ms / 1e3),
            traffic_bytes_s: 0.0,
            traffic_bytes_s_max: 0.0,
            memory_bytes: bytes.get(id).copied().unwrap_or(0),
            memory_bytes_max: self.settings.model.memory_bytes,
            read_ratio: self.load.reads,
            replicas: node.replicas,
        });
        // Owners may have changed since the slots were counted.
        let slots =
            self.counted.iter().zip(&self.owners).map(|(slot, owner)| Slot { owner: *owner, ..*slot }).collect();
        Observation {
            at: Duration::from_secs_f64(now_s + 1.0),
            shards: shards.collect(),
            slots,
            migrations: self.transfers.iter().map(|transfer| transfer.migration.clone()).collect(),
        }
    }

    fn act(&mut self, action: Action, now_s: f64) {
        match action {
            Action::Start { shards } => {
                self.turn(1);
                for _ in 0..shards {
                    self.add_node(ShardId(self.next_id), now_s + self.settings.model.start_s);
                    self.next_id += 1;
                }
            }
            Action::Drain { shard } => {
                self.turn(-1);
                self.node(shard).phase = Phase::Leaving;
            }
            Action::Keep { shard } => {
                self.turn(1);
                self.node(shard).phase = Phase::Serving;
            }
            Action::Stop { shard } => {
                assert!(!self.owners.contains(&Some(shard)), "a shard that is stopped owns no slots");
                self.nodes.remove(&shard);
            }
            Action::Assign { shard, slots } => {
                for slot in slots {
                    assert_eq!(self.owners[usize::from(slot)].replace(shard), None, "an assigned slot has no owner");
                }
            }
            Action::Move { from, to, slots, bytes } => self.begin(Migration { from, to, slots }, bytes as f64),
            Action::SetWorkers { shard, workers } => self.node(shard).workers = workers,
            Action::AddReplica { shard } => self.node(shard).replicas += 1,
            Action::RemoveReplica { shard } => self.node(shard).replicas -= 1,
        }
    }

    fn node(&mut self, shard: ShardId) -> &mut Node {
        self.nodes.get_mut(&shard).expect("a plan names existing shards")
    }

    fn begin(&mut self, migration: Migration, bytes: f64) {
        assert_ne!(migration.from, migration.to, "slots move to another shard");
        assert!(self.node(migration.to).phase != Phase::Starting, "a shard that starts cannot have slots");
        for slot in &migration.slots {
            assert_eq!(self.owners[usize::from(*slot)], Some(migration.from), "only the owner of a slot gives it away");
            let is_moving = self.transfers.iter().any(|transfer| transfer.migration.slots.binary_search(slot).is_ok());
            assert!(!is_moving, "a slot moves once at a time");
        }
        self.outcome.migrations += 1;
        self.outcome.moved_slots += migration.slots.len() as u64;
        let left_s = self.settings.model.migration_overhead_s;
        self.transfers.push(Transfer { migration, left_bytes: bytes, left_s });
    }

    fn turn(&mut self, direction: i32) {
        if self.direction == -direction {
            self.outcome.turns += 1;
        }
        self.direction = direction;
    }
}
