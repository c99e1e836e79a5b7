//! The state machine of a cluster node: nodes, slots, epochs, gossip, failure detection, elections and failovers, by
//! the rules of Valkey 9.1.
//!
//! [`Cluster`] is a value without I/O. Its inputs are calls: [`Cluster::tick`] ten times a second, events of links,
//! received frames, and one method per CLUSTER subcommand. Each is given the time and facts about the node's data
//! ([`Facts`]). Its outputs are [`Action`]s. **After each input, or after a batch of inputs that arrived together,
//! call [`Cluster::settle`]**, which finishes what the inputs have started and returns all actions. The same inputs
//! give the same actions: random numbers come from the seed, and no order depends on hashes.
//!
//! | module | concern |
//! | --- | --- |
//! | `table`, `node`, `pulse` | the known nodes, their shards, failure reports; what heartbeats need of a node |
//! | `links` | connections: which node is at the other end, limits |
//! | `receive`, `roles`, `handshake` | received messages: header, changes of roles, MEET and addresses |
//! | `send`, `gossip` | messages to be sent; gossip entries and extensions |
//! | `claims`, `slots` | which node owns a slot, and what follows when that changes |
//! | `handed_over` | keys of slots that went to another node, until they may be deleted |
//! | `failure` | PFAIL, FAIL, forgotten nodes |
//! | `election`, `manual_failover`, `replica_migration` | what replicas do |
//! | `health` | whether the cluster is up |
//! | `epoch` | config epochs without election, collisions |
//! | `tick` | timers |
//! | `commands`, `set_slot` | subcommands that change the state |
//! | `view`, `info`, `persist` | what the state looks like: topology, texts, `nodes.conf` |
//!
//! Invariants:
//!
//! - A slot has an owner exactly if one node has it among its slots, and it is the same node.
//! - A node votes at most once in an epoch, and an epoch that was voted in or claimed is saved before it is sent.
//! - `current_epoch` never goes back, except by CLUSTER RESET HARD, and is not below any node's config epoch.
//! - A sender that is not a known node changes nothing, except that MEET starts a handshake with its address.

mod actions;
mod audit;
mod claims;
mod commands;
mod election;
mod epoch;
mod error;
mod facts;
mod failure;
mod gossip;
mod handed_over;
mod handshake;
mod health;
mod info;
mod links;
mod manual_failover;
mod mutation;
mod node;
mod nodes_text;
mod persist;
mod pulse;
mod random;
mod receive;
mod replica_migration;
mod roles;
mod safety;
mod send;
mod set_slot;
mod settings;
mod settle;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod tick;
mod view;

pub use actions::{Action, Level};
#[doc(hidden)]
pub use audit::AuditedNode;
pub use commands::{BumpedEpoch, FailoverMode};
pub use error::CommandError;
pub use facts::{Facts, Now, SlotJobs};
pub use health::FailReason;
pub use info::Statistics;
pub use links::{Accepted, LinkDirections, LinkId};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use set_slot::SetSlot;
pub use settings::{Announce, DebugSettings, DropFilter, Safety, Settings};
pub use table::NodeKey;
pub use view::{ClientView, LinkView, NO_OWNER, NodeView, ShardView, Topology};

use crate::Epoch;
use crate::bus::GOSSIP_ENTRY_BYTES;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::nodes_conf::NodesConf;
use crate::slots::{SLOT_COUNT, Slots};
use claims::Taken;
use election::Election;
use epoch::Collisions;
use handed_over::HandedOver;
use health::{Health, Votes};
use links::Links;
use manual_failover::ManualFailover;
use node::{Announced, Node};
use nodes_text::NodesTexts;
use random::Random;
use replica_migration::Counted;
use settle::Todo;
use std::collections::BTreeMap;
use std::sync::Arc;
use table::Table;

/// Appends a log line, if the log level is that low.
macro_rules! log {
    ($cluster:expr, $level:ident, $($argument:tt)+) => {
        if $cluster.logs($crate::state::Level::$level) {
            let line = format!($($argument)+);
            $cluster.out.push($crate::state::Action::Log($crate::state::Level::$level, line));
        }
    };
}
use log;

/// A node of a cluster. See the module.
#[derive(Clone, Debug)]
pub struct Cluster {
    settings: Settings,
    random: Random,
    nodes: Table,
    myself: NodeKey,
    current_epoch: Epoch,
    last_vote_epoch: Epoch,
    /// The owner of each slot.
    owners: Box<[Option<NodeKey>]>,
    /// Number of slots that have an owner.
    assigned: u16,
    /// Slots that their owner has stopped claiming, while no other node claims them yet. UPDATE messages omit them.
    unclaimed: Slots,
    /// Slots that the primary of this node had given up when this node replaced it. Their keys are deleted when another
    /// node claims them.
    left_behind: Slots,
    /// Slots that this node is migrating, with their targets.
    migrating: BTreeMap<u16, NodeKey>,
    /// Slots that this node is importing, with their sources.
    importing: BTreeMap<u16, NodeKey>,
    /// Slots that this node has taken over from others, whose messages from before may still be under way. See
    /// [`Cluster::defend_taken_slots`].
    taken: BTreeMap<NodeKey, Taken>,
    /// Slots that this node has handed over, by their new owner, as long as their keys are kept.
    handed_over: BTreeMap<NodeKey, HandedOver>,
    /// Nodes that must not be added again, and when that ends (monotonic clock, milliseconds).
    blacklist: BTreeMap<NodeId, u64>,
    links: Links,
    next_link: u64,
    /// The address at this end of the link that was opened last. Nearly all have the same, and share its text.
    local_ip: Arc<str>,
    health: Health,
    collisions: Collisions,
    election: Election,
    manual: ManualFailover,
    /// The address that this node replicates from, once it was told to.
    replicating: bool,
    takeover_deadline_ms: Option<u64>,
    /// What [`Cluster::settle`] has to do.
    todo: Todo,
    /// Slots whose shard channels lost their place since the last settle.
    dropped_channels: Slots,
    /// Slots whose statistics start anew.
    reset_stats: Slots,
    check_migrations: bool,
    /// What to do, in order, except for frames.
    out: Vec<Action>,
    /// Frames to be sent after what the todo list saves.
    frames: Vec<Action>,
    ticks: u64,
    /// Suspected nodes with an address, as the last tick has counted them.
    suspected_nodes: usize,
    votes: Votes,
    replica_counts: Counted,
    /// Buffers that are used again.
    due: Vec<NodeKey>,
    gossip: Vec<[u8; GOSSIP_ENTRY_BYTES]>,
    frame: Vec<u8>,
    topology_version: u64,
    topology_changed: bool,
    /// Counts changes that CLUSTER NODES shows, but a [`Topology`] does not: of links and nodes in handshake.
    text_changes: u64,
    nodes_texts: NodesTexts,
    statistics: Statistics,
}

impl Cluster {
    /// A node that continues from the content of its `nodes.conf`, or a new one. `seed` determines all random
    /// choices, with the names of a new node and its shard: it must differ between nodes.
    pub fn new(conf: Option<&NodesConf>, settings: Settings, seed: u64, now: Now) -> Cluster {
        let mut random = Random::new(seed);
        let mut nodes = Table::default();
        let is_new = conf.and_then(NodesConf::myself).is_none();
        let myself = match conf.and_then(NodesConf::myself) {
            Some(node) => Node::new(node.id, random.node_id(), node.flags & NodeFlags::PERSISTED, now.mono_ms),
            None => {
                let flags = NodeFlags::MYSELF | NodeFlags::PRIMARY;
                Node::new(random.node_id(), random.node_id(), flags, now.mono_ms)
            }
        };
        let myself = nodes.insert(myself);
        let mut cluster = Cluster {
            settings,
            random,
            nodes,
            myself,
            current_epoch: 0,
            last_vote_epoch: 0,
            owners: vec![None; usize::from(SLOT_COUNT)].into_boxed_slice(),
            assigned: 0,
            unclaimed: Slots::EMPTY,
            left_behind: Slots::EMPTY,
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            taken: BTreeMap::new(),
            handed_over: BTreeMap::new(),
            blacklist: BTreeMap::new(),
            links: Links::default(),
            next_link: 1,
            local_ip: Arc::default(),
            health: Health::default(),
            collisions: Collisions::default(),
            election: Election::default(),
            manual: ManualFailover::default(),
            replicating: false,
            takeover_deadline_ms: None,
            todo: Todo::empty(),
            dropped_channels: Slots::EMPTY,
            reset_stats: Slots::EMPTY,
            check_migrations: false,
            out: Vec::new(),
            frames: Vec::new(),
            ticks: 0,
            suspected_nodes: 0,
            votes: Votes::default(),
            replica_counts: Counted::default(),
            due: Vec::new(),
            gossip: Vec::new(),
            frame: Vec::new(),
            topology_version: 1,
            topology_changed: false,
            text_changes: 0,
            nodes_texts: NodesTexts::default(),
            statistics: Statistics::default(),
        };
        match conf {
            Some(conf) if !is_new => cluster.load(conf, now),
            _ => {
                cluster.nodes.join_shard(myself);
                log!(cluster, Notice, "No cluster configuration found, I'm {}", cluster.nodes[myself].id);
                cluster.todo(Todo::SAVE | Todo::SYNC);
            }
        }
        let announces_ip = !cluster.settings.announce.ip.is_empty();
        cluster.apply_settings(announces_ip);
        cluster
    }

    /// Replaces the configuration, as CONFIG SET does.
    pub fn set_settings(&mut self, settings: Settings) {
        let ip_changed = settings.announce.ip != self.settings.announce.ip;
        self.settings = settings;
        self.nodes.decide_telling_anew();
        self.apply_settings(ip_changed);
        self.todo(Todo::STATE);
    }

    /// The configuration.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Copies what the configuration says about this node into its description.
    fn apply_settings(&mut self, ip_changed: bool) {
        let settings = &self.settings;
        let node = &mut self.nodes[self.myself];
        let before = (node.flags, node.tcp_port, node.tls_port, node.bus_port, node.ip.clone());
        node.flags.set(NodeFlags::NO_FAILOVER, settings.replica_no_failover);
        node.flags |= NodeFlags::EXTENSIONS | NodeFlags::LIGHT_PUBLISH | NodeFlags::LIGHT_MODULE;
        node.tcp_port = settings.announced_tcp_port();
        node.tls_port = settings.announced_tls_port();
        node.bus_port = settings.announced_bus_port();
        if ip_changed {
            node.ip = settings.announce.ip.as_str().into();
        }
        let mut changed = before != (node.flags, node.tcp_port, node.tls_port, node.bus_port, node.ip.clone());
        let announce = &settings.announce;
        let announced = Announced {
            hostname: announce.hostname.clone(),
            human_name: announce.human_name.clone(),
            availability_zone: settings.availability_zone.clone(),
            client_ipv4: announce.client_ipv4.clone(),
            client_ipv6: announce.client_ipv6.clone(),
            client_tcp_port: announce.client_port,
            client_tls_port: announce.client_tls_port,
        };
        if *node.announced() != announced {
            node.set_announced(announced);
            changed = true;
        }
        if changed {
            self.todo(Todo::SAVE | Todo::STATE);
        }
    }

    /// Whether lines of this level are wanted.
    fn logs(&self, level: Level) -> bool {
        level >= self.settings.log_level
    }

    /// The config epoch of the slots of a node: that of its primary if it is a replica.
    fn epoch_of(&self, key: NodeKey) -> Epoch {
        let node = &self.nodes[key];
        node.replica_of.map_or(node.config_epoch, |primary| self.nodes[primary].config_epoch)
    }

    /// The replication offset of a node. That of the node itself is a fact.
    fn offset_of(&self, key: NodeKey, facts: &Facts<'_>) -> u64 {
        if key == self.myself { facts.replication_offset } else { self.nodes[key].replication_offset }
    }

    /// The node at the top of the chain of primaries. Messages that overtake each other can close a chain to a circle,
    /// into which the node itself only leads: then it is any node of the circle.
    fn primary_of(&self, key: NodeKey) -> NodeKey {
        let mut primary = key;
        for _ in 0..self.nodes.len() {
            match self.nodes[primary].replica_of {
                Some(next) if next != key => primary = next,
                Some(next) => return next,
                None => break,
            }
        }
        primary
    }

    /// Whether two nodes are in one shard.
    fn same_shard(&self, one: NodeKey, other: NodeKey) -> bool {
        self.nodes[one].shard_id == self.nodes[other].shard_id
    }

    /// Number of votes that win an election, and of reports that make a failure.
    fn quorum(&self) -> usize {
        self.health.size / 2 + 1
    }

    /// This node.
    fn me(&self) -> &Node {
        &self.nodes[self.myself]
    }
}
