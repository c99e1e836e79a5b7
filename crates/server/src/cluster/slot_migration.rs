//! The cluster as atomic slot migration sees it.

use super::{ClusterNode, Published};
use crate::server::Server;
use kvick_cluster::migration::{Peer, RangeList, SlotRange, Topology};
use kvick_cluster::state::Cluster;
use kvick_cluster::{NodeFlags, NodeId};
use kvick_config::tables::tls::TLS_REPLICATION;
use kvick_replication::slot_migration::Membership;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// This node as a source and target of slot migrations.
pub(super) struct Member {
    pub(super) server: &'static Server,
    pub(super) node: &'static ClusterNode,
}

impl Membership for Member {
    fn topology(&self) -> Arc<dyn Topology + Send + Sync> {
        Arc::new(View {
            server: self.server,
            published: self.node.published(),
            tls: self.server.config.read(TLS_REPLICATION),
            node: self.node,
        })
    }

    fn claim(&self, slots: &RangeList) -> bool {
        let ranges: Vec<RangeInclusive<u16>> = slots.ranges().iter().map(|range| range.first..=range.last).collect();
        let mut global = self.server.keyspace.lock_global();
        self.node.change(&mut global, |cluster, facts| {
            let may_claim = cluster.is_primary();
            if may_claim {
                cluster.take_over_slots(&ranges, facts);
            }
            may_claim
        })
    }

    fn withdraw_grant(&self) {
        self.node.bus.with(|cluster, _| cluster.withdraw_grant());
    }

    fn is_failing_over(&self) -> bool {
        self.node.bus.view(Cluster::is_failing_over)
    }
}

/// The published topology.
struct View {
    server: &'static Server,
    published: Arc<Published>,
    tls: bool,
    node: &'static ClusterNode,
}

impl Topology for View {
    fn my_id(&self) -> NodeId {
        self.published.topology.myself().id
    }

    fn is_primary(&self) -> bool {
        !self.published.topology.myself().is_replica()
    }

    fn owner(&self, slot: u16) -> Option<NodeId> {
        self.published.topology.owner(slot).map(|owner| owner.id)
    }

    fn owner_of_range(&self, range: SlotRange) -> Option<NodeId> {
        let owners = self.published.topology.owners.get(usize::from(range.first)..=usize::from(range.last))?;
        let is_one = owners.windows(2).all(|pair| pair[0] == pair[1]);
        self.owner(range.first).filter(|_| is_one)
    }

    fn peer(&self, id: &NodeId) -> Option<Peer> {
        let node = self.published.topology.nodes.iter().find(|node| node.id == *id)?;
        let port = if self.tls { node.tls_port } else { node.tcp_port };
        Some(Peer { address: node.ip.clone(), port, human_name: node.human_name.clone() })
    }

    fn deletes(&self, slot: u16) -> bool {
        self.server.keyspace.is_doomed(usize::from(slot))
    }

    fn has_keys(&self, slot: u16) -> bool {
        self.server.keyspace.slot_len_total(slot) > 0
    }

    fn imports_manually(&self) -> bool {
        !self.published.topology.importing.is_empty()
    }

    fn migrates_manually(&self) -> bool {
        !self.published.topology.migrating.is_empty()
    }

    fn is_working_primary(&self, id: &NodeId) -> bool {
        let node = self.published.topology.nodes.iter().find(|node| node.id == *id);
        node.is_some_and(|node| !node.is_replica() && !node.flags.contains(NodeFlags::FAIL))
    }

    fn is_failing_over(&self) -> bool {
        self.node.bus.view(Cluster::is_failing_over)
    }
}
