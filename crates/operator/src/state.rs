//! The state of a cluster as its nodes describe it.

use crate::backend::Member;
use kvick_planner::{Migration, Observation, Phase, Shard, ShardId, Slot};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Number of slots of a cluster.
pub const SLOTS: usize = 16_384;

/// A node in the view of another one: a line of CLUSTER NODES.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peer {
    /// Its ID.
    pub id: String,
    /// Its address; empty if it is unknown.
    pub host: String,
    /// Its client port.
    pub port: u16,
    /// The host name that it announced; empty if it has not, or if that is not known yet.
    pub hostname: String,
    /// Whether it is the node that was asked.
    pub is_myself: bool,
    /// Its primary, if it is a replica.
    pub primary: Option<String>,
    /// Whether its ID is only provisional.
    pub is_handshake: bool,
    /// Whether that node has marked it as failed (FAIL, not PFAIL).
    pub has_failed: bool,
    /// Its config epoch.
    pub epoch: u64,
    /// The ranges of slots that it owns.
    pub slots: Vec<(u16, u16)>,
}

/// Slots that a node is sending to another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// ID of the other node.
    pub to: String,
    /// The slots.
    pub slots: Vec<u16>,
    /// Where the migration is, in the words of CLUSTER GETSLOTMIGRATIONS.
    pub state: String,
    /// Bytes left to send, as its source last reported.
    pub left_bytes: u64,
}

/// A migration of slots from a node that failed, or was cancelled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FailedExport {
    /// Its name, which no other migration has.
    pub name: String,
    /// ID of the other node.
    pub to: String,
    /// Why, in the words of the node.
    pub message: String,
}

/// What a node does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Sum of the busy fractions of its workers.
    pub busy_cores: f64,
    /// Its active workers.
    pub workers: u32,
    /// How long a PING takes, in milliseconds: the shortest of a few.
    pub ping_ms: f64,
    /// Commands per second.
    pub commands_s: f64,
    /// Bytes per second from and to clients.
    pub traffic_bytes_s: f64,
    /// Memory in use, and its limit (0 is none).
    pub memory_bytes: u64,
    /// See `memory_bytes`.
    pub memory_bytes_max: u64,
    /// Share of the execution time that read-only commands take.
    pub read_ratio: f64,
    /// Execution time per second and memory of each slot that the node owns.
    pub slots: Vec<(u16, f64, u64)>,
}

/// What a node says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Its ID.
    pub id: String,
    /// Its primary, if it is a replica.
    pub primary: Option<String>,
    /// Whether it has a copy of its primary's data.
    pub is_synchronized: bool,
    /// Up to where it knows the replication log.
    pub offset: u64,
    /// Number of its keys.
    pub keys: u64,
    /// The cluster as it sees it.
    pub peers: Vec<Peer>,
    /// Whether the cluster is up, as far as it knows: otherwise it serves no requests.
    pub is_up: bool,
    /// Migrations from it that are under way.
    pub exports: Vec<Export>,
    /// Migrations from it that have failed, as long as it remembers them.
    pub failed_exports: Vec<FailedExport>,
    /// What it does.
    pub load: Load,
}

/// A node: what should run, and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What should run.
    pub member: Member,
    /// What it says; `None` if it does not answer.
    pub facts: Option<Facts>,
}

/// All nodes at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Time since any fixed moment.
    pub at: Duration,
    /// All nodes.
    pub nodes: Vec<Node>,
}

impl Facts {
    /// Number of slots whose owner it knows. A new node that does not know the owner of a slot refuses its migration.
    fn slots(&self) -> usize {
        let ranges = self.peers.iter().flat_map(|peer| &peer.slots);
        ranges.map(|(first, last)| usize::from(last.saturating_sub(*first)) + 1).sum()
    }

    fn owns_slots(&self) -> bool {
        self.peers.iter().any(|peer| peer.is_myself && !peer.slots.is_empty())
    }
}

impl Node {
    /// Whether it answers as a primary.
    pub fn is_primary(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.primary.is_none())
    }

    /// Its ID, if it answers.
    pub fn id(&self) -> Option<&str> {
        self.facts.as_ref().map(|facts| facts.id.as_str())
    }
}

impl State {
    /// The nodes that answer, with what they say.
    pub fn answering(&self) -> impl Iterator<Item = (&Node, &Facts)> {
        self.nodes.iter().filter_map(|node| Some((node, node.facts.as_ref()?)))
    }

    /// The nodes of a shard.
    pub fn of_shard(&self, shard: ShardId) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.member.shard == shard)
    }

    /// All shards. Nodes that wait for one do not count.
    pub fn shards(&self) -> BTreeSet<ShardId> {
        self.nodes.iter().filter(|node| !node.member.is_spare).map(|node| node.member.shard).collect()
    }

    /// Nodes that wait for a shard.
    pub fn spares(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.member.is_spare)
    }

    /// Whether a node waits for a shard and can be one at once: it knows the cluster, and the cluster knows it.
    pub fn is_ready_spare(&self, node: &Node) -> bool {
        let owned = self.owners().iter().flatten().count();
        let has_joined = |facts: &Facts| facts.slots() >= owned && self.has_joined(&facts.id);
        node.member.is_spare
            && !node.member.is_ending
            && node.facts.as_ref().is_some_and(|facts| facts.primary.is_none() && has_joined(facts))
    }

    /// The node that a peer is. A node that does not answer is known by its host name or its address.
    pub fn node_of(&self, peer: &Peer) -> Option<&Node> {
        let by_id = self.nodes.iter().find(|node| node.id() == Some(&peer.id));
        by_id.or_else(|| self.nodes.iter().find(|node| node.facts.is_none() && self.is_at(peer, &node.member)))
    }

    /// Whether a peer has the place of a member. Some nodes may not know its host name yet.
    fn is_at(&self, peer: &Peer, member: &Member) -> bool {
        let mut views = self.answering().flat_map(|(_, facts)| &facts.peers);
        let hostname = views.find(|view| view.id == peer.id && !view.hostname.is_empty());
        match hostname {
            Some(known) if !member.hostname.is_empty() => known.hostname == member.hostname,
            _ => peer.host == member.host && peer.port == member.port,
        }
    }

    /// Peers that own slots, but whose nodes do not exist any more. That is only certain if all nodes answer.
    pub fn lost_owners(&self) -> BTreeSet<&str> {
        if self.nodes.iter().any(|node| node.facts.is_none() && !node.member.is_spare) {
            return BTreeSet::new();
        }
        let peers = self.answering().flat_map(|(_, facts)| &facts.peers);
        let lost = peers.filter(|peer| !peer.slots.is_empty() && !peer.is_handshake && self.node_of(peer).is_none());
        lost.map(|peer| peer.id.as_str()).collect()
    }

    /// Whether nothing is under way: all nodes run, answer, know each other and are in their shards, all replicas have
    /// the data of their primaries, and no slots move.
    pub fn is_settled(&self) -> bool {
        let owners = self.owners();
        // A spare that does not answer yet disturbs nothing.
        self.nodes.iter().filter(|node| !node.member.is_spare || node.facts.is_some()).all(|node| {
            let Some(facts) = node.facts.as_ref().filter(|_| node.member.is_running && !node.member.is_ending) else {
                return false;
            };
            let primary = self.primary_of(node.member.shard, &owners);
            let in_place = match &facts.primary {
                None => primary.is_some_and(|primary| primary.member.name == node.member.name),
                Some(id) => facts.is_synchronized && primary.is_some_and(|primary| primary.id() == Some(id)),
            };
            in_place && facts.exports.is_empty() && self.has_joined(&facts.id)
        })
    }

    /// The owner of each slot: whoever claims it with the highest epoch, what a node says of itself first.
    pub fn owners(&self) -> Vec<Option<&Node>> {
        let mut owners: Vec<Option<(bool, u64, &Node)>> = vec![None; SLOTS];
        for peer in self.answering().flat_map(|(_, facts)| &facts.peers) {
            let Some(node) = self.node_of(peer).filter(|_| !peer.slots.is_empty()) else { continue };
            for slot in peer.slots.iter().flat_map(|(first, last)| *first..=*last).map(usize::from) {
                if slot < SLOTS
                    && owners[slot].is_none_or(|(own, epoch, _)| (own, epoch) < (peer.is_myself, peer.epoch))
                {
                    owners[slot] = Some((peer.is_myself, peer.epoch, node));
                }
            }
        }
        owners.into_iter().map(|owner| owner.map(|(_, _, node)| node)).collect()
    }

    /// The primary of a shard, also if it does not answer: the owner of slots, or for a shard without slots its first
    /// node that answers as a primary.
    pub fn primary_of<'a>(&'a self, shard: ShardId, owners: &[Option<&'a Node>]) -> Option<&'a Node> {
        let owner = owners.iter().flatten().copied().find(|node| node.member.shard == shard);
        owner.or_else(|| self.of_shard(shard).find(|node| node.is_primary()))
    }

    /// Whether all nodes that answer know a node.
    pub fn has_joined(&self, id: &str) -> bool {
        let knows = |facts: &Facts| facts.peers.iter().any(|peer| peer.id == id && !peer.is_handshake);
        self.answering().all(|(_, facts)| knows(facts))
    }

    /// Nodes of a shard that answer, beside its primary.
    fn replicas_of(&self, shard: ShardId) -> u32 {
        (self.of_shard(shard).count() as u32).saturating_sub(1)
    }

    /// What the planner needs to know.
    pub fn observation(&self, workers_max: u32) -> Observation {
        let owners = self.owners();
        let owned = owners.iter().flatten().count();
        let mut shards = Vec::new();
        for id in self.shards() {
            let primary = self.primary_of(id, &owners);
            let facts = primary.and_then(|node| node.facts.as_ref());
            let is_leaving = self.of_shard(id).any(|node| node.member.is_leaving);
            // Without an owner for each slot, the cluster need not be up for any node.
            let is_ready = facts.is_some_and(|facts| {
                let knows_all = facts.slots() >= owned && (facts.is_up || owned < SLOTS);
                facts.primary.is_none() && self.has_joined(&facts.id) && (facts.owns_slots() || knows_all)
            });
            let load = facts.map(|facts| facts.load.clone()).unwrap_or_default();
            shards.push(Shard {
                id,
                // A shard without a primary can neither give nor take slots.
                phase: match (is_leaving, is_ready) {
                    (true, _) => Phase::Leaving,
                    (false, true) => Phase::Serving,
                    (false, false) => Phase::Starting,
                },
                workers: load.workers.max(1),
                workers_max,
                busy_cores: load.busy_cores,
                queue_delay: Duration::from_secs_f64(load.ping_ms / 1e3),
                traffic_bytes_s: load.traffic_bytes_s,
                traffic_bytes_s_max: 0.0,
                memory_bytes: load.memory_bytes,
                memory_bytes_max: load.memory_bytes_max,
                read_ratio: load.read_ratio,
                replicas: self.replicas_of(id),
            });
        }
        let mut slots: Vec<Slot> =
            owners.iter().map(|owner| Slot { owner: owner.map(|node| node.member.shard), ..Slot::default() }).collect();
        for (node, facts) in self.answering().filter(|(_, facts)| facts.primary.is_none()) {
            for (slot, cpu_cores, bytes) in &facts.load.slots {
                let slot = &mut slots[usize::from(*slot)];
                if slot.owner == Some(node.member.shard) {
                    (slot.cpu_cores, slot.bytes) = (*cpu_cores, *bytes);
                }
            }
        }
        Observation { at: self.at, shards, slots, migrations: self.migrations() }
    }

    fn migrations(&self) -> Vec<Migration> {
        let shards: HashMap<&str, ShardId> =
            self.answering().map(|(node, facts)| (facts.id.as_str(), node.member.shard)).collect();
        let exports = self.answering().flat_map(|(node, facts)| facts.exports.iter().map(move |export| (node, export)));
        let migrations = exports.filter_map(|(node, export)| {
            let to = *shards.get(export.to.as_str())?;
            Some(Migration { from: node.member.shard, to, slots: export.slots.clone() })
        });
        migrations.collect()
    }

    /// Number of slots of each shard.
    pub fn slot_counts(&self) -> BTreeMap<ShardId, usize> {
        let mut counts = BTreeMap::new();
        for owner in self.owners().into_iter().flatten() {
            *counts.entry(owner.member.shard).or_default() += 1;
        }
        counts
    }
}
