//! The slot map, and the decision about a request.

use super::{RouteNode, Viewer};
use kvick_store::slot::SLOTS;
use std::collections::BTreeMap;

/// Index of a node in [`SlotMap::nodes`], or [`NO_NODE`].
pub type NodeIndex = u16;

/// Owner of a slot that nobody owns.
pub const NO_NODE: NodeIndex = NodeIndex::MAX;

/// The error of a request for keys in several slots.
pub const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// Whether the cluster can serve requests, as this node sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClusterState {
    /// It can.
    Ok,
    /// It cannot.
    Down(DownReason),
}

/// Why the cluster cannot serve requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownReason {
    /// This node has just started or become a primary, and does not know the present configuration yet.
    Starting,
    /// A slot is not served, and `cluster-require-full-coverage` is set.
    Coverage,
    /// This node cannot reach the majority of the primaries.
    Minority,
}

/// The part of the cluster's configuration that decides about requests. Immutable once published.
#[derive(Clone, Debug)]
pub struct SlotMap {
    /// The cluster's state.
    pub state: ClusterState,
    /// The nodes that own slots or take part in migrations, and this one.
    pub nodes: Vec<RouteNode>,
    /// This node.
    pub myself: NodeIndex,
    /// The primary that this node replicates; `None` if it is a primary.
    pub primary: Option<NodeIndex>,
    /// For primaries that have some, their replicas that are not known or suspected to have failed.
    pub replicas: BTreeMap<NodeIndex, Vec<NodeIndex>>,
    /// Slots that this node, or its primary, is migrating, with the node they go to.
    pub migrating: BTreeMap<u16, NodeIndex>,
    /// Slots that this node, or its primary, is importing, with the node they come from.
    pub importing: BTreeMap<u16, NodeIndex>,
    /// `cluster-allow-reads-when-down`.
    pub allow_reads_when_down: bool,
    /// `cluster-allow-pubsubshard-when-down`.
    pub allow_pubsubshard_when_down: bool,
    /// The owner of each slot: see [`set_owner`](Self::set_owner).
    pub owners: Owners,
}

/// The owner of each slot.
#[derive(Clone, Debug)]
pub struct Owners(Box<[NodeIndex]>);

impl Default for Owners {
    /// No slot has an owner.
    fn default() -> Self {
        Owners(vec![NO_NODE; usize::from(SLOTS)].into_boxed_slice())
    }
}

/// What [`SlotMap::route`] needs to know about a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query {
    /// It may write, or is a transaction or script that may.
    pub writes: bool,
    /// It concerns shard channels.
    pub shard_channels: bool,
    /// Its client has sent READONLY.
    pub readonly: bool,
    /// Its client has sent ASKING before, or its command implies that.
    pub asking: bool,
    /// It is MIGRATE.
    pub migrates: bool,
    /// It accesses keys in another database (MOVE, COPY DB), which cannot be checked while the slot is open.
    pub leaves_database: bool,
    /// Which of its keys exist; `None` if that was not determined.
    pub presence: Option<Presence>,
}

/// Which of a request's keys exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Some key is missing.
    pub missing: bool,
    /// Some key exists.
    pub existing: bool,
    /// It names at least two different keys.
    pub several: bool,
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Decision<'m> {
    /// Execute it.
    Serve,
    /// Lock its keys, determine [which of them exist](Presence), and ask again.
    CheckKeys,
    /// Redirect the client to the owner of the slot.
    Moved(&'m RouteNode),
    /// Redirect this one request to the node that imports the slot.
    Ask(&'m RouteNode),
    /// Some of its keys have been migrated.
    TryAgain,
    /// The slot has no owner.
    Unbound,
    /// The cluster is down.
    Down,
    /// The cluster is down and serves only reads.
    DownForWrites,
}

impl Decision<'_> {
    /// The error reply, without the leading `-`; `None` if there is none.
    pub fn error(&self, slot: u16, viewer: Viewer) -> Option<String> {
        let fixed = match self {
            Decision::Serve | Decision::CheckKeys => return None,
            Decision::Moved(node) => return Some(format!("MOVED {slot} {}", node.endpoint(viewer))),
            Decision::Ask(node) => return Some(format!("ASK {slot} {}", node.endpoint(viewer))),
            Decision::TryAgain => "TRYAGAIN Multiple keys request during rehashing of slot",
            Decision::Unbound => "CLUSTERDOWN Hash slot not served",
            Decision::Down => "CLUSTERDOWN The cluster is down",
            Decision::DownForWrites => "CLUSTERDOWN The cluster is down and only accepts read commands",
        };
        Some(fixed.to_owned())
    }
}

impl SlotMap {
    /// A map without nodes and owners, in which the cluster is down.
    pub fn unassigned() -> Self {
        SlotMap {
            state: ClusterState::Down(DownReason::Starting),
            nodes: Vec::new(),
            myself: NO_NODE,
            primary: None,
            replicas: BTreeMap::new(),
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            allow_reads_when_down: false,
            allow_pubsubshard_when_down: false,
            owners: Owners::default(),
        }
    }

    /// Sets the owner of a slot. Numbers that are not slots are ignored.
    pub fn set_owner(&mut self, slot: u16, owner: NodeIndex) {
        if let Some(entry) = self.owners.0.get_mut(usize::from(slot)) {
            *entry = owner;
        }
    }

    /// The owner of a slot, or [`NO_NODE`].
    pub fn owner(&self, slot: u16) -> NodeIndex {
        self.owners.0.get(usize::from(slot)).copied().unwrap_or(NO_NODE)
    }

    /// The primary of this node's shard: itself, if it is a primary.
    pub fn my_primary(&self) -> NodeIndex {
        self.primary.unwrap_or(self.myself)
    }

    /// Whether this node's shard owns a slot.
    pub fn is_mine(&self, slot: u16) -> bool {
        let owner = self.owner(slot);
        owner != NO_NODE && owner == self.my_primary()
    }

    /// Whether this node serves everything in a slot: see [`Routing::serves`](super::Routing::serves).
    pub fn serves_stable(&self, slot: u16) -> bool {
        self.state == ClusterState::Ok
            && self.primary.is_none()
            && self.is_mine(slot)
            && !self.migrating.contains_key(&slot)
            && !self.importing.contains_key(&slot)
    }

    fn node(&self, index: NodeIndex) -> Option<&RouteNode> {
        self.nodes.get(usize::from(index))
    }

    /// Decides about a request whose keys, or shard channels, are all in `slot`. The checks are in Valkey's order.
    pub fn route(&self, slot: u16, query: &Query) -> Decision<'_> {
        let Some(owner) = self.node(self.owner(slot)) else { return Decision::Unbound };
        let is_mine = self.is_mine(slot);
        let is_primary = self.primary.is_none();
        // Clients of a replica that did not send READONLY are redirected to the primary, which knows.
        let sees_open = is_primary || query.readonly;
        let target = if sees_open && is_mine { self.migrating.get(&slot).and_then(|to| self.node(*to)) } else { None };
        let importing = sees_open && target.is_none() && self.importing.contains_key(&slot);
        let is_open = target.is_some() || importing;
        if is_open && query.leaves_database {
            return Decision::TryAgain;
        }
        if self.state != ClusterState::Ok {
            if query.shard_channels {
                if !self.allow_pubsubshard_when_down {
                    return Decision::Down;
                }
            } else if !self.allow_reads_when_down {
                return Decision::Down;
            } else if query.writes {
                return Decision::DownForWrites;
            }
        }
        // MIGRATE moves keys in and out of open slots.
        if is_open && query.migrates && is_primary {
            return Decision::Serve;
        }
        // Shard channels stay with the owner while a slot is open.
        let presence = if query.shard_channels { Some(Presence::default()) } else { query.presence };
        if let Some(target) = target {
            match presence {
                None => return Decision::CheckKeys,
                Some(Presence { missing: true, existing: true, .. }) => return Decision::TryAgain,
                Some(Presence { missing: true, .. }) => return Decision::Ask(target),
                Some(_) => {}
            }
        }
        if importing && query.asking {
            return match presence {
                None => Decision::CheckKeys,
                Some(Presence { missing: true, several: true, .. }) => Decision::TryAgain,
                Some(_) => Decision::Serve,
            };
        }
        if is_mine && (is_primary || ((query.readonly || query.shard_channels) && !query.writes)) {
            return Decision::Serve;
        }
        Decision::Moved(owner)
    }

    /// Decides about a client that waits for a key in `slot`: whether it can go on waiting, and if not, its answer.
    /// `reads_here`: it has sent READONLY, and its command does not write.
    pub fn route_blocked(&self, slot: u16, reads_here: bool) -> Decision<'_> {
        if self.state != ClusterState::Ok {
            return Decision::Down;
        }
        let serves = self.is_mine(slot) && (self.primary.is_none() || reads_here);
        if serves || self.importing.contains_key(&slot) {
            return Decision::Serve;
        }
        self.node(self.owner(slot)).map_or(Decision::Unbound, Decision::Moved)
    }
}
