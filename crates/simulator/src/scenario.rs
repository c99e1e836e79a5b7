//! Whole runs: a cluster is created, faults happen, all is healed, and in the end all nodes agree.

use crate::setup::{LARGE, Setup, Workload};
use crate::trace::Trace;
use crate::world::World;
use kvick_cluster::nodes_conf::{self, NodesConf};
use kvick_cluster::state::Settings;
use kvick_cluster::{BUS_PORT_OFFSET, NodeFlags, NodeId, SLOT_COUNT, Slots};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Determines everything that the other fields do not.
    pub seed: u64,
    /// Number of nodes. 3 to 30 by default, mostly few.
    pub nodes: Option<usize>,
    /// What happens.
    pub workload: Option<Workload>,
    /// Keep the last events for [`Violation::events`].
    pub keep_events: bool,
    /// Print all events to the standard error stream.
    pub trace: bool,
    /// Changes the settings of all nodes.
    pub configure: Option<fn(&mut Settings)>,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// What happened.
    pub workload: Workload,
    /// Virtual time in milliseconds.
    pub virtual_ms: u64,
    /// From the end of all faults until all nodes agreed, in virtual milliseconds.
    pub healing_ms: u64,
    /// Events that were processed.
    pub steps: u64,
    /// Messages that nodes have sent.
    pub frames: u64,
    /// Replicas that were elected.
    pub elections: u64,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// How many of them had to survive.
    pub promised: u64,
    /// What must not happen.
    pub violation: Option<Violation>,
}

/// Something that must not happen.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What it was.
    pub what: String,
    /// When, in virtual milliseconds.
    pub at_ms: u64,
    /// The last events before it, if they were kept.
    pub events: Vec<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {} nodes, {}, {} virtual seconds, healed in {:.1}, {} steps, {} messages, {} elections, {} of {} \
             acknowledged writes had to survive",
            self.seed,
            self.nodes,
            self.workload,
            self.virtual_ms / 1000,
            self.healing_ms as f64 / 1000.0,
            self.steps,
            self.frames,
            self.elections,
            self.promised,
            self.acknowledged
        )
    }
}

/// Time between two looks at a cluster that is to reach agreement.
const POLL_MS: u64 = 500;

/// Runs a seed.
pub fn run(options: &Options) -> Outcome {
    let mut random = fastrand::Rng::with_seed(options.seed);
    let mut setup = Setup::random(options.nodes, options.workload, &mut random);
    if let Some(configure) = options.configure {
        configure(&mut setup.settings);
    }
    let trace = Trace::new(options.keep_events, options.trace);
    let mut world = World::new(setup, random, trace);
    let summary = format!("{:?}", world.setup);
    world.trace.note(0, || summary);
    world.create();
    let promise = world.setup.promise;
    world.oracle.promise(promise);
    world.start_clients();
    world.check_quiet();
    world.start_faults();
    let faults_ms = world.setup.faults_ms;
    world.run_until(world.now_ms + faults_ms);
    world.heal();
    let healed_ms = world.now_ms;
    // Elections, cleared failures and forgotten nodes all take a few node timeouts; handshakes and connections some
    // seconds.
    let limit_ms = 120_000 + 20 * world.setup.settings.node_timeout_ms;
    world.wait_for_agreement(limit_ms, "all faults are over");
    let healing_ms = world.now_ms - healed_ms;
    world.check_data();
    world.outcome(options.seed, healing_ms)
}

impl World {
    fn outcome(&self, seed: u64, healing_ms: u64) -> Outcome {
        Outcome {
            seed,
            nodes: self.hosts.len(),
            workload: self.setup.workload,
            virtual_ms: self.now_ms,
            healing_ms,
            steps: self.steps,
            frames: self.frames,
            elections: self.oracle.elections,
            acknowledged: self.oracle.acknowledged,
            promised: self.oracle.promised().len() as u64,
            violation: self.oracle.violation().map(|what| Violation {
                what: what.to_owned(),
                at_ms: self.now_ms,
                events: self.trace.lines().map(str::to_owned).collect(),
            }),
        }
    }

    /// Waits until all nodes agree.
    fn wait_for_agreement(&mut self, limit_ms: u64, since: &str) {
        let deadline_ms = self.now_ms + limit_ms;
        let poll_ms = if self.hosts.len() >= LARGE { 4 * POLL_MS } else { POLL_MS };
        loop {
            self.run_until(self.now_ms + poll_ms);
            if self.oracle.is_violated() {
                return;
            }
            let Some(disagreement) = self.find_disagreement() else { return self.audit_all() };
            if self.now_ms >= deadline_ms {
                self.oracle.violate(format!("{limit_ms} ms after {since}, nodes do not agree: {disagreement}"));
                return;
            }
        }
    }

    /// Without faults a cluster stays up, and nobody is suspected or elected.
    fn check_quiet(&mut self) {
        let elections = self.oracle.elections;
        let is_slow = self.net.conditions.loss > 0.0 || self.net.conditions.raw || self.setup.conditions.jitter_ms > 5;
        if is_slow || self.hosts.len() >= LARGE || self.random.u8(0..4) != 0 {
            return;
        }
        for _ in 0..20 {
            self.run_until(self.now_ms + self.setup.settings.node_timeout_ms / 10);
            let disagreement = self.find_disagreement();
            if let Some(disagreement) = disagreement.filter(|_| !self.oracle.is_violated()) {
                self.oracle.violate(format!("nodes do not agree any more, although nothing happened: {disagreement}"));
            }
        }
        if self.oracle.elections != elections {
            self.oracle.violate("a replica was elected although nothing happened".to_owned());
        }
    }

    /// Clients stop; then no acknowledged write may be missing.
    fn check_data(&mut self) {
        if self.oracle.is_violated() {
            return;
        }
        for client in &mut self.clients {
            client.is_done = true;
        }
        self.run_until(self.now_ms + 5_000);
        if let Some(lost) = self.find_lost_write() {
            self.oracle.violate(lost);
        }
    }

    /// Creates a cluster in which the first hosts are primaries and the others their replicas.
    fn create(&mut self) {
        // A new cluster has no data that a primary could have lost.
        let empty_primary_wait_ms = std::mem::take(&mut self.setup.settings.safety.empty_primary_wait_ms);
        if self.setup.by_meet {
            self.create_by_meet();
        } else {
            self.write_configurations();
            (0..self.hosts.len()).for_each(|host| self.start(host));
        }
        self.wait_for_agreement(120_000, "the cluster was created");
        self.setup.settings.safety.empty_primary_wait_ms = empty_primary_wait_ms;
        for host in 0..self.hosts.len() {
            self.command(host, |cluster, _| {
                let mut settings = cluster.settings().clone();
                settings.safety.empty_primary_wait_ms = empty_primary_wait_ms;
                cluster.set_settings(settings);
            });
        }
        // What the nodes know now, they know for sure: nothing is lost by a crash.
        for host in &mut self.hosts {
            host.disk.durable.clone_from(&host.disk.cached);
        }
    }

    fn create_by_meet(&mut self) {
        for host in 0..self.hosts.len() {
            self.start(host);
            self.command(host, |cluster, _| cluster.set_config_epoch(host as i64 + 1).is_ok());
        }
        for shard in 0..self.setup.shards {
            let range = slots_of(shard, self.setup.shards);
            self.command(shard, |cluster, _| cluster.add_slots(&[range]).is_ok());
        }
        for host in 1..self.hosts.len() {
            self.meet(0, host);
        }
        let deadline_ms = self.now_ms + 120_000;
        for host in self.setup.shards..self.hosts.len() {
            let primary = host % self.setup.shards;
            let Some(id) = self.cluster(primary).map(|cluster| cluster.my_id()) else { return };
            while self.now_ms < deadline_ms && !self.oracle.is_violated() {
                let is_done = self.command(host, |cluster, facts| cluster.replicate(id.as_bytes(), facts).is_ok());
                if is_done == Some(true) {
                    break;
                }
                self.run_until(self.now_ms + 100);
            }
        }
    }

    /// Writes `nodes.conf` of all hosts, as if the cluster had existed before.
    fn write_configurations(&mut self) {
        let shards = self.setup.shards;
        let ids: Vec<NodeId> = self.hosts.iter().map(|_| self.random.new_id()).collect();
        let shard_ids: Vec<NodeId> = (0..shards).map(|_| self.random.new_id()).collect();
        let nodes: Vec<nodes_conf::Node> = ids
            .iter()
            .enumerate()
            .map(|(index, id)| {
                let is_primary = index < shards;
                let mut node = nodes_conf::Node::unknown(*id);
                node.ip.clone_from(&self.hosts[index].ip);
                node.tcp_port = crate::host::PORT;
                node.bus_port = crate::host::PORT + BUS_PORT_OFFSET;
                node.shard_id = Some(shard_ids[index % shards]);
                node.flags = if is_primary { NodeFlags::PRIMARY } else { NodeFlags::REPLICA };
                node.primary = (!is_primary).then(|| ids[index % shards]);
                if is_primary {
                    node.config_epoch = index as u64 + 1;
                    node.slots = Slots::from_iter(slots_of(index, shards));
                }
                node
            })
            .collect();
        let mut conf = NodesConf {
            nodes,
            current_epoch: shards as u64,
            last_vote_epoch: 0,
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
        };
        for (index, host) in self.hosts.iter_mut().enumerate() {
            conf.nodes[index].flags |= NodeFlags::MYSELF;
            let content: Arc<str> = conf.write().unwrap_or_default().into();
            host.disk.cached = Some(content.clone());
            host.disk.durable = Some(content);
            conf.nodes[index].flags -= NodeFlags::MYSELF;
        }
    }
}

/// The slots of one of several primaries.
fn slots_of(shard: usize, shards: usize) -> RangeInclusive<u16> {
    let bound = |shard: usize| (shard * usize::from(SLOT_COUNT) / shards) as u16;
    bound(shard)..=bound(shard + 1) - 1
}

trait NewId {
    fn new_id(&mut self) -> NodeId;
}

impl NewId for fastrand::Rng {
    fn new_id(&mut self) -> NodeId {
        let mut bytes = [0; NodeId::LEN / 2];
        self.fill(&mut bytes);
        NodeId::from_random(bytes)
    }
}

/// How a cluster survived the loss of half of its primaries.
#[derive(Clone, Debug)]
pub struct HalfKilled {
    /// Shards at the start.
    pub shards: usize,
    /// Primaries that were killed.
    pub killed: usize,
    /// Until the first, the median and the last replica of them was elected, in virtual milliseconds.
    pub elected_ms: Option<(u64, u64, u64)>,
    /// Shards whose replica was not elected.
    pub never: usize,
    /// Until all living nodes reported that the cluster is up, in virtual milliseconds.
    pub agreed_ms: Option<u64>,
    /// What must not happen.
    pub violation: Option<String>,
}

/// Kills almost half of the primaries of a cluster at once, of which each has one replica, and waits up to `limit_ms`
/// of virtual time until every shard has a primary and all living nodes report that the cluster is up.
pub fn kill_half(seed: u64, shards: usize, node_timeout_ms: u64, limit_ms: u64) -> HalfKilled {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut setup = Setup::random(Some(shards * 2), Some(Workload::Failover), &mut random);
    setup.shards = shards;
    setup.settings.node_timeout_ms = node_timeout_ms;
    setup.settings.require_full_coverage = true;
    setup.settings.safety = kvick_cluster::state::Safety::default();
    setup.settings.link_send_buffer_limit = 0;
    setup.settings.repl_ping_period_ms = 10_000;
    setup.no_failover.clear();
    setup.conditions = crate::network::Conditions { delay_ms: 1, jitter_ms: 2, loss: 0.0, raw: false };
    setup.save_ms_max = 3;
    setup.saves_only_epochs = true;
    setup.by_meet = false;
    setup.writers = 2;
    let mut world = World::new(setup, random, Trace::new(false, false));
    world.create();
    world.start_clients();
    world.run_until(world.now_ms + 10_000);
    let start_ms = world.now_ms;
    // Without a majority of the primaries nothing may be decided: one more, and the cluster stays down by design.
    let killed = (shards - 1) / 2;
    for host in 0..killed {
        world.end_process(host, false);
    }
    let mut elected: BTreeMap<usize, u64> = BTreeMap::new();
    let mut agreed_ms = None;
    while world.now_ms < start_ms + limit_ms && agreed_ms.is_none() && !world.oracle.is_violated() {
        world.run_until(world.now_ms + POLL_MS / 5);
        let after_ms = world.now_ms - start_ms;
        for shard in 0..killed {
            let is_primary = world.cluster(shards + shard).is_some_and(|cluster| cluster.is_primary());
            if is_primary {
                elected.entry(shard).or_insert(after_ms);
            }
        }
        let all_up = (killed..shards * 2).all(|host| {
            world.cluster(host).is_some_and(|cluster| cluster.state() == kvick_cluster::bus::ClusterState::Ok)
        });
        if elected.len() == killed && all_up {
            agreed_ms = Some(after_ms);
        }
    }
    let mut times: Vec<u64> = elected.values().copied().collect();
    times.sort_unstable();
    HalfKilled {
        shards,
        killed,
        elected_ms: times.first().zip(times.get(times.len() / 2)).zip(times.last()).map(|((a, b), c)| (*a, *b, *c)),
        never: killed - times.len(),
        agreed_ms,
        violation: world.oracle.violation().map(str::to_owned),
    }
}
