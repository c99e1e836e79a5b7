//! Changes of this server that follow from changes of the cluster. All are made under the global lock.

use super::{ClusterNode, Published};
use kvick_cluster::NodeFlags;
use kvick_cluster::state::{Action, NO_OWNER, NodeView, Topology};
use kvick_config::tables::cluster::{
    CLUSTER_ALLOW_PUBSUBSHARD_WHEN_DOWN, CLUSTER_ALLOW_READS_WHEN_DOWN, CLUSTER_PREFERRED_ENDPOINT_TYPE,
};
use kvick_config::words::EndpointType;
use kvick_core::executor::Executor;
use kvick_core::message::Message;
use kvick_core::pause::PauseReason;
use kvick_core::pubsub::publication::Address;
use kvick_core::routing::{ClusterState, DownReason, NO_NODE, NodeAddress, RouteNode, SlotMap};
use kvick_durability::persistence;
use kvick_replication::role::ROLE_CHANGED_ERROR;
use kvick_replication::upstream::Target;
use kvick_store::{Locked, log};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ClusterNode {
    /// Makes all queued changes.
    pub(super) fn make_changes(&'static self, global: &mut Locked) {
        loop {
            // The state machine may be used meanwhile, and queue more.
            let Some(change) = self.queue.lock().changes.pop_front() else { return };
            self.make_change(change, global);
        }
    }

    fn make_change(&'static self, change: Action, global: &mut Locked) {
        let server = self.server;
        match change {
            Action::TopologyChanged => self.publish(global),
            Action::BecomePrimary => {
                if server.replication.upstream.is_replica() {
                    server.become_primary();
                }
                self.full_sync_generation.store(0, Ordering::SeqCst);
            }
            Action::ReplicateFrom { id, ip, port, full_sync, new_primary: _ } => {
                if full_sync {
                    server.replication.history.lock().change_id();
                }
                server.set_primary(Target { host: ip, port, node_id: Some(*id.as_bytes()) });
                server.aof.unblock_waiting_clients(server, ROLE_CHANGED_ERROR);
                // The slot map, which is published next, redirects those that wait for keys.
                if full_sync {
                    self.full_sync_generation.store(server.replication.upstream.generation(), Ordering::SeqCst);
                }
            }
            Action::FlushData => self.flush_data(global),
            Action::HideKeys { slots, hidden } => {
                slots.iter().for_each(|slot| server.keyspace.set_doomed(usize::from(slot), hidden));
            }
            // A worker deletes them, which can tell clients that have cached them. It does so only with a slot map
            // that gives them to another node, which follows.
            Action::DeleteKeys(slots) => {
                slots.iter().for_each(|slot| server.keyspace.set_doomed(usize::from(slot), true));
                self.queue.lock().lost.extend(slots.iter());
            }
            // The state machine ends the pause in time.
            Action::PauseWrites { until_ms: _ } => {
                server.pause.pause_writes(PauseReason::ClusterFailover);
                self.bus.with(|cluster, facts| cluster.writes_paused(facts));
            }
            Action::ResumeWrites => {
                server.pause.resume_writes(PauseReason::ClusterFailover);
                server.send_all(|| Message::Resume);
            }
            // Publishing the slot map does that.
            Action::DropShardChannels(_) => {}
            Action::ResetSlotStats(slots) => {
                if let Some(routing) = &server.routing {
                    slots.iter().for_each(|slot| routing.slot_stats.reset(slot));
                }
            }
            Action::CheckSlotMigrations => server.slot_migration.topology_changed(server),
            Action::Publish { channel, message, sharded } => {
                let address = if sharded { Address::Shard } else { Address::Channel };
                server.publish(Executor::Replication, address, &channel, &message);
            }
            // There are no modules.
            Action::ModuleMessage { .. } => {}
            Action::Log(..)
            | Action::Connect { .. }
            | Action::Disconnect(_)
            | Action::Send { .. }
            | Action::Save { .. } => {
                debug_assert!(false, "the bus does that");
            }
        }
    }

    /// Empties all databases, also in the append-only file.
    fn flush_data(&self, global: &mut Locked) {
        let server = self.server;
        for number in 0..server.keyspace.databases() {
            global.flush(number, true);
        }
        let mut record = Vec::new();
        log::encode(&mut record, [&b"FLUSHALL"[..]].into_iter());
        if server.keyspace.log.has_readers() {
            server.keyspace.log.append_raw(&record, false);
        }
        persistence::after_flushall(server, global, 0);
        self.note_keys();
    }

    /// Publishes the present topology to the dispatcher and to commands that show it.
    fn publish(&'static self, global: &mut Locked) {
        let config = &self.server.config;
        let topology = self.bus.with(|cluster, facts| cluster.topology(facts));
        let preferred = config.read(CLUSTER_PREFERRED_ENDPOINT_TYPE);
        let map = self.slot_map(&topology, preferred);
        *self.published.write() = Arc::new(Published::new(topology, preferred));
        kvick_engine::routing::publish(self.server, map, global, &self.server.stats[0]);
        self.server.slot_migration.topology_changed(self.server);
        let lost = std::mem::take(&mut self.queue.lock().lost);
        if !lost.is_empty() {
            self.server.send(0, Message::DeleteSlots(lost.into()));
        }
    }

    fn slot_map(&self, topology: &Topology, preferred: EndpointType) -> SlotMap {
        let config = &self.server.config;
        let mut map = SlotMap::unassigned();
        map.state = match topology.state {
            kvick_cluster::bus::ClusterState::Ok => ClusterState::Ok,
            kvick_cluster::bus::ClusterState::Fail => ClusterState::Down(DownReason::Coverage),
        };
        map.nodes = topology
            .nodes
            .iter()
            .map(|node| RouteNode::new(*node.id.as_bytes(), address_of(node), preferred))
            .collect();
        let index = |at: usize| u16::try_from(at).unwrap_or(NO_NODE);
        map.myself = index(topology.myself);
        map.primary = topology.myself().primary.map(index);
        let is_healthy = |at: &usize| {
            let node = topology.nodes.get(*at);
            node.is_some_and(|node| !node.flags.intersects(NodeFlags::FAIL | NodeFlags::PFAIL))
        };
        for (at, node) in topology.nodes.iter().enumerate() {
            let healthy: Vec<_> = node.replicas.iter().copied().filter(is_healthy).map(index).collect();
            if !healthy.is_empty() {
                map.replicas.insert(index(at), healthy);
            }
        }
        map.migrating = topology.migrating.iter().map(|(slot, node)| (*slot, index(*node))).collect();
        map.importing = topology.importing.iter().map(|(slot, node)| (*slot, index(*node))).collect();
        map.allow_reads_when_down = config.read(CLUSTER_ALLOW_READS_WHEN_DOWN);
        map.allow_pubsubshard_when_down = config.read(CLUSTER_ALLOW_PUBSUBSHARD_WHEN_DOWN);
        for (slot, owner) in (0..).zip(&topology.owners) {
            map.set_owner(slot, if *owner == NO_OWNER { NO_NODE } else { *owner });
        }
        map
    }
}

fn address_of(node: &NodeView) -> NodeAddress {
    NodeAddress {
        ip: node.ip.clone(),
        hostname: node.hostname.clone(),
        tcp_port: node.tcp_port,
        tls_port: node.tls_port,
        client_ipv4: node.client_ipv4.clone(),
        client_ipv6: node.client_ipv6.clone(),
        client_tcp_port: node.client_tcp_port,
        client_tls_port: node.client_tls_port,
    }
}
