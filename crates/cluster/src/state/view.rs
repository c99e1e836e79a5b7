//! What the state looks like from outside: a snapshot for routing and topology replies, links, and accessors.

use super::{Cluster, Facts, LinkId};
use crate::Epoch;
use crate::bus::ClusterState;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::{SLOT_COUNT, Slots};
use std::collections::BTreeMap;

/// The nodes, the owners of slots and the state of the cluster at one moment. For routing, and for CLUSTER SLOTS,
/// SHARDS, MYSHARDID, REPLICAS and similar replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// `Cluster::topology_version` at that moment.
    pub version: u64,
    /// The index of the node itself.
    pub myself: usize,
    /// All known nodes. Those in handshake and without address are not offered to clients.
    pub nodes: Vec<NodeView>,
    /// All shards, in the order of their names.
    pub shards: Vec<ShardView>,
    /// For each slot the index of its owner, or [`NO_OWNER`].
    pub owners: Box<[u16]>,
    /// Slots that this node is migrating (SETSLOT MIGRATING), with the indexes of the targets.
    pub migrating: BTreeMap<u16, usize>,
    /// Slots that this node is importing (SETSLOT IMPORTING), with the indexes of the sources.
    pub importing: BTreeMap<u16, usize>,
    /// Whether the cluster serves.
    pub state: ClusterState,
}

/// In [`Topology::owners`]: the slot has no owner.
pub const NO_OWNER: u16 = u16::MAX;

/// A node in a [`Topology`]. Texts are empty and ports 0 if they are not known or not set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// Its name.
    pub id: NodeId,
    /// The shard it is in.
    pub shard_id: NodeId,
    /// What it is.
    pub flags: NodeFlags,
    /// The index of its primary, if it is a replica.
    pub primary: Option<usize>,
    /// The indexes of its replicas, in the order of their names.
    pub replicas: Vec<usize>,
    /// The epoch of its slots, or of those of its primary.
    pub config_epoch: Epoch,
    /// Its replication offset. Only that of the node itself is exact.
    pub replication_offset: u64,
    /// Ranges of slots that it owns, first and last.
    pub slots: Vec<(u16, u16)>,
    /// IP address.
    pub ip: String,
    /// TCP port for clients.
    pub tcp_port: u16,
    /// TLS port for clients.
    pub tls_port: u16,
    /// Port of the cluster bus.
    pub bus_port: u16,
    /// IPv4 address that clients are redirected to.
    pub client_ipv4: String,
    /// IPv6 address that clients are redirected to.
    pub client_ipv6: String,
    /// TCP port that clients are redirected to.
    pub client_tcp_port: u16,
    /// TLS port that clients are redirected to.
    pub client_tls_port: u16,
    /// Announced host name.
    pub hostname: String,
    /// Announced name for people.
    pub human_name: String,
    /// Availability zone.
    pub availability_zone: String,
}

/// A shard in a [`Topology`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardView {
    /// Its name.
    pub id: NodeId,
    /// The indexes of its nodes.
    pub nodes: Vec<usize>,
}

/// How a client is connected, which decides what addresses it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientView {
    /// With TLS.
    pub tls: bool,
    /// With IPv6.
    pub ipv6: bool,
}

/// A link in CLUSTER LINKS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// The link.
    pub link: LinkId,
    /// Whether the other node has opened it (`from`), or this one (`to`).
    pub inbound: bool,
    /// The node at the other end.
    pub node: NodeId,
    /// Unix time in milliseconds.
    pub create_time_ms: i64,
    /// Bytes that wait to be sent, as last reported.
    pub send_buffer: u64,
}

impl NodeView {
    /// Whether clients should use it as a replica: it has not failed, and has data.
    pub fn is_available_replica(&self) -> bool {
        !self.flags.contains(NodeFlags::FAIL) && self.replication_offset != 0
    }

    /// Whether it is a replica.
    pub fn is_replica(&self) -> bool {
        self.flags.contains(NodeFlags::REPLICA)
    }

    /// The IP address for a client.
    pub fn client_ip(&self, client: ClientView) -> &str {
        let announced = if client.ipv6 { &self.client_ipv6 } else { &self.client_ipv4 };
        if announced.is_empty() { &self.ip } else { announced }
    }

    /// The port for a client.
    pub fn client_port(&self, client: ClientView) -> u16 {
        let (announced, port) =
            if client.tls { (self.client_tls_port, self.tls_port) } else { (self.client_tcp_port, self.tcp_port) };
        if announced != 0 { announced } else { port }
    }
}

impl Topology {
    /// The owner of a slot.
    pub fn owner(&self, slot: u16) -> Option<&NodeView> {
        self.nodes.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// The node itself.
    pub fn myself(&self) -> &NodeView {
        &self.nodes[self.myself]
    }
}

impl Cluster {
    /// The nodes, the owners of slots and the state now. Costs time in proportion to nodes and slots: build it after
    /// [`super::Action::TopologyChanged`], not for each reply.
    pub fn topology(&self, facts: &Facts<'_>) -> Topology {
        let mut indexes = BTreeMap::new();
        for (index, (key, _)) in self.nodes.iter().enumerate() {
            indexes.insert(key, index);
        }
        let index_of = |key| indexes.get(&key).copied();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (key, node) in self.nodes.iter() {
            let announced = node.announced();
            nodes.push(NodeView {
                id: node.id,
                shard_id: node.shard_id,
                flags: node.flags,
                primary: node.replica_of.and_then(index_of),
                replicas: node.replicas.iter().filter_map(|replica| index_of(*replica)).collect(),
                config_epoch: self.epoch_of(key),
                replication_offset: self.offset_of(key, facts),
                slots: node.slots.ranges().map(|range| (*range.start(), *range.end())).collect(),
                ip: node.ip.as_ref().to_owned(),
                tcp_port: node.tcp_port,
                tls_port: node.tls_port,
                bus_port: node.bus_port,
                client_ipv4: announced.client_ipv4.clone(),
                client_ipv6: announced.client_ipv6.clone(),
                client_tcp_port: announced.client_tcp_port,
                client_tls_port: announced.client_tls_port,
                hostname: announced.hostname.clone(),
                human_name: announced.human_name.clone(),
                availability_zone: announced.availability_zone.clone(),
            });
        }
        let mut owners = vec![NO_OWNER; usize::from(SLOT_COUNT)].into_boxed_slice();
        for (index, view) in nodes.iter().enumerate() {
            for (first, last) in &view.slots {
                owners[usize::from(*first)..=usize::from(*last)].fill(index as u16);
            }
        }
        let open = |slots: &BTreeMap<u16, super::NodeKey>| {
            slots.iter().filter_map(|(slot, node)| Some((*slot, index_of(*node)?))).collect()
        };
        let shards = self.nodes.shards().iter().map(|(id, members)| ShardView {
            id: *id,
            nodes: members.iter().filter_map(|member| index_of(*member)).collect(),
        });
        Topology {
            version: self.topology_version,
            myself: index_of(self.myself).unwrap_or(0),
            shards: shards.collect(),
            nodes,
            owners,
            migrating: open(&self.migrating),
            importing: open(&self.importing),
            state: self.state(),
        }
    }

    /// Changes whenever a [`Topology`] would differ, except for replication offsets.
    pub fn topology_version(&self) -> u64 {
        self.topology_version
    }

    /// Whether the cluster serves, as this node sees it.
    pub fn state(&self) -> ClusterState {
        self.health.state
    }

    /// The name of this node.
    pub fn my_id(&self) -> NodeId {
        self.nodes[self.myself].id
    }

    /// The name of the shard that this node is in.
    pub fn my_shard_id(&self) -> NodeId {
        self.nodes[self.myself].shard_id
    }

    /// Whether this node is a primary.
    pub fn is_primary(&self) -> bool {
        self.nodes[self.myself].is_primary()
    }

    /// The name of the primary of this replica.
    pub fn my_primary(&self) -> Option<NodeId> {
        self.nodes[self.myself].replica_of.map(|primary| self.nodes[primary].id)
    }

    /// The slots that this node owns. Empty for a replica.
    pub fn my_slots(&self) -> &Slots {
        &self.nodes[self.myself].slots
    }

    /// The name of the owner of a slot.
    pub fn slot_owner(&self, slot: u16) -> Option<NodeId> {
        self.owner(slot).map(|owner| self.nodes[owner].id)
    }

    /// The target of a slot that this node is migrating (SETSLOT MIGRATING).
    pub fn migrating_to(&self, slot: u16) -> Option<NodeId> {
        self.migrating.get(&slot).map(|target| self.nodes[*target].id)
    }

    /// The source of a slot that this node is importing (SETSLOT IMPORTING).
    pub fn importing_from(&self, slot: u16) -> Option<NodeId> {
        self.importing.get(&slot).map(|source| self.nodes[*source].id)
    }

    /// The highest epoch known.
    pub fn current_epoch(&self) -> Epoch {
        self.current_epoch
    }

    /// The epoch in which this node last voted.
    pub fn last_vote_epoch(&self) -> Epoch {
        self.last_vote_epoch
    }

    /// The epoch of the slots of this node, or of its primary if it is a replica.
    pub fn my_epoch(&self) -> Epoch {
        self.epoch_of(self.myself)
    }

    /// The epoch of this node's own claims, also while it is a replica.
    pub fn my_config_epoch(&self) -> Epoch {
        self.nodes[self.myself].config_epoch
    }

    /// Names and flags of all known nodes.
    pub fn known_nodes(&self) -> impl Iterator<Item = (NodeId, NodeFlags)> + '_ {
        self.nodes.iter().map(|(_, node)| (node.id, node.flags))
    }

    /// The config epoch that this node has for another one.
    pub fn config_epoch_of(&self, id: &NodeId) -> Option<Epoch> {
        self.nodes.find(id).map(|key| self.nodes[key].config_epoch)
    }

    /// Number of known nodes, with those in handshake.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Number of primaries that own slots.
    pub fn size(&self) -> usize {
        self.health.size
    }

    /// Number of known replicas of this node.
    pub fn replica_count(&self) -> usize {
        self.nodes[self.myself].replicas.len()
    }

    /// Number of slots of the shard of this node.
    pub fn my_shard_slot_count(&self) -> usize {
        let myself = &self.nodes[self.myself];
        let primary = if myself.is_replica() { myself.replica_of } else { Some(self.myself) };
        primary.map_or(0, |primary| usize::from(self.nodes[primary].slot_count))
    }

    /// Names of all nodes that modules see: with address, and not in handshake.
    pub fn node_ids(&self) -> Vec<NodeId> {
        let hidden = NodeFlags::NO_ADDRESS | NodeFlags::HANDSHAKE;
        self.nodes.iter().filter(|(_, node)| !node.is(hidden)).map(|(_, node)| node.id).collect()
    }

    /// Whether a slot is open by SETSLOT MIGRATING.
    pub fn has_migrating_slots(&self) -> bool {
        !self.migrating.is_empty()
    }

    /// Whether a slot is open by SETSLOT IMPORTING.
    pub fn has_importing_slots(&self) -> bool {
        !self.importing.is_empty()
    }

    /// When the manual failover under way is given up (monotonic clock, milliseconds).
    pub fn manual_failover_deadline_ms(&self) -> Option<u64> {
        self.manual.deadline_ms
    }

    /// The offset at which a manual failover can go on. When replication has reached it, call [`Cluster::settle`]
    /// without waiting for the next tick.
    pub fn awaited_replication_offset(&self) -> Option<u64> {
        if self.manual.can_start { None } else { self.manual.primary_offset }
    }

    /// Whether this node is a primary without data that waits for a replica to take over. See
    /// [`super::Safety::empty_primary_wait_ms`].
    pub fn waits_for_takeover(&self) -> bool {
        self.takeover_deadline_ms.is_some()
    }

    /// The links whose other end is known.
    pub fn links(&self) -> Vec<LinkView> {
        let mut views = Vec::new();
        for (_, node) in self.nodes.iter() {
            for id in [node.link, node.inbound].into_iter().flatten() {
                let Some(link) = self.links.get(&id) else { continue };
                views.push(LinkView {
                    link: id,
                    inbound: link.inbound,
                    node: node.id,
                    create_time_ms: link.created_unix_ms,
                    send_buffer: link.queued_bytes,
                });
            }
        }
        views
    }
}
