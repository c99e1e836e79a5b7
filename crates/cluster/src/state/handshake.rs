//! Handshakes: how nodes become known to each other, and what their addresses are.
//!
//! A node in handshake has a random name. Its real one is known when it answers. The node that was told to MEET adds
//! the sender in handshake, and connects to it for the other direction.

use super::settle::Todo;
use super::{Cluster, Facts, LinkId, NodeKey, log};
use crate::bus::{Header, MessageType, Ping};
use crate::flags::NodeFlags;
use std::sync::Arc;

/// Most handshakes that strangers can start at a time. Each ends with the node timeout.
const HANDSHAKES_MAX: usize = 1_000;

impl Cluster {
    /// Starts a handshake with an address, unless one is under way.
    pub(super) fn start_handshake(&mut self, ip: &str, port: u16, bus_port: u16, facts: &Facts<'_>) {
        let tls = self.settings.tls_bus;
        let is_under_way = self.nodes.iter().any(|(_, node)| {
            let node_port = if tls { node.tls_port } else { node.tcp_port };
            node.in_handshake() && node.ip.eq_ignore_ascii_case(ip) && node_port == port && node.bus_port == bus_port
        });
        if is_under_way {
            return;
        }
        let id = self.random.node_id();
        let key = self.add_node(id, NodeFlags::HANDSHAKE | NodeFlags::MEET, facts.ms());
        let node = &mut self.nodes[key];
        node.ip = ip.into();
        if tls {
            node.tls_port = port;
        } else {
            node.tcp_port = port;
        }
        node.bus_port = bus_port;
    }

    /// Answers PING and MEET, after adding the sender of MEET if it is new.
    pub(super) fn answer(
        &mut self,
        id: LinkId,
        sender: Option<NodeKey>,
        header: &Header<'_>,
        kind: MessageType,
        ping: &Ping<'_>,
        facts: &Facts<'_>,
    ) {
        self.learn_own_address(id, kind == MessageType::Meet, sender.is_some());
        if kind == MessageType::Meet {
            match sender {
                None => self.receive_meet(id, header, ping, facts),
                Some(sender) => self.reconnect_after_meet(sender, id, facts),
            }
        }
        self.send_ping(id, MessageType::Pong, facts);
    }

    /// The address that others have connected to is the one of this node.
    fn learn_own_address(&mut self, id: LinkId, is_meet: bool, is_member: bool) {
        if !self.settings.announce.ip.is_empty() || !(is_meet || (is_member && self.me().ip.is_empty())) {
            return;
        }
        let Some(link) = self.links.get(&id) else { return };
        if link.local_ip.is_empty() || link.local_ip == self.me().ip {
            return;
        }
        let ip = link.local_ip.clone();
        log!(self, Notice, "IP address for this node updated to {ip}");
        self.nodes[self.myself].ip = ip;
        self.todo(Todo::SAVE);
    }

    /// MEET from an unknown node: adds it in handshake.
    fn receive_meet(&mut self, id: LinkId, header: &Header<'_>, ping: &Ping<'_>, facts: &Facts<'_>) {
        let Some(link) = self.links.get(&id) else { return };
        // It may be repeated before this node could connect.
        if link.node.is_none() {
            let ip = if header.ip.is_empty() { link.peer_ip.clone() } else { header.ip.into() };
            if ip.is_empty() {
                log!(
                    self,
                    Notice,
                    "Closing cluster link due to failure to retrieve IP from the connection, possibly caused by a \
                     closed connection."
                );
                self.close_link(Some(id), facts.ms());
                return;
            }
            if self.nodes.iter().filter(|(_, node)| node.in_handshake()).count() >= HANDSHAKES_MAX {
                log!(self, Warning, "Ignoring MEET from {ip}: too many handshakes are under way.");
                return;
            }
            self.add_from_meet(id, ip, header, facts);
        }
        self.add_nodes_of_meet(ping.gossip, facts);
    }

    fn add_from_meet(&mut self, id: LinkId, ip: Arc<str>, header: &Header<'_>, facts: &Facts<'_>) {
        let name = self.random.node_id();
        let key = self.add_node(name, NodeFlags::HANDSHAKE, facts.ms());
        let (tcp, tls) = self.client_ports(header.port, header.secondary_port);
        let understands_extensions = self.links.get(&id).is_some_and(|link| link.extensions);
        let node = &mut self.nodes[key];
        node.ip = ip;
        (node.tcp_port, node.tls_port, node.bus_port) = (tcp, tls, header.bus_port);
        node.flags.set(NodeFlags::EXTENSIONS, understands_extensions);
        self.bind_inbound(key, id, facts.ms());
        self.todo(Todo::SAVE);
    }

    /// MEET from a member, long after the handshake: it does not see the link of this node, so opens a new one.
    fn reconnect_after_meet(&mut self, sender: NodeKey, id: LinkId, facts: &Facts<'_>) {
        let node = &self.nodes[sender];
        let is_old = facts.ms().saturating_sub(node.created_ms) > self.handshake_timeout_ms();
        if node.link.is_none() || node.link == Some(id) || !is_old {
            return;
        }
        log!(
            self,
            Notice,
            "Freeing outbound link to node {} after receiving a MEET packet from this known node",
            self.label(sender)
        );
        self.close_link(self.nodes[sender].link, facts.ms());
    }

    /// Checks who has answered on a link that this node has opened. Returns whether the message is to be processed
    /// further.
    pub(super) fn check_outbound(
        &mut self,
        id: LinkId,
        sender: Option<NodeKey>,
        header: &Header<'_>,
        facts: &Facts<'_>,
    ) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        let Some(key) = link.node.filter(|_| !link.inbound) else { return true };
        if self.nodes[key].in_handshake() {
            return self.complete_handshake(key, id, sender, header, facts);
        }
        if self.nodes[key].id != header.sender {
            self.lose_address(key, id, facts);
            return false;
        }
        true
    }

    /// Gives a node in handshake its name, or drops it if the name is known.
    fn complete_handshake(
        &mut self,
        key: NodeKey,
        id: LinkId,
        sender: Option<NodeKey>,
        header: &Header<'_>,
        facts: &Facts<'_>,
    ) -> bool {
        if let Some(sender) = sender {
            log!(
                self,
                Verbose,
                "Handshake: we already know node {}, updating the address if needed.",
                self.label(sender)
            );
            if self.update_address_if_needed(sender, id, header, facts) {
                self.todo(Todo::SAVE | Todo::STATE);
            }
            self.remove_node(key, facts);
            return false;
        }
        if self.nodes.find(&header.sender).is_some() {
            // Another handshake has chosen that name at random.
            return false;
        }
        log!(self, Debug, "Renaming node {} into {}", self.label(key), header.sender);
        self.nodes.rename(key, header.sender);
        self.nodes.join_shard(key);
        log!(self, Debug, "Handshake with node {} completed.", self.label(key));
        let node = &mut self.nodes[key];
        node.flags -= NodeFlags::HANDSHAKE;
        node.flags |= header.flags & (NodeFlags::PRIMARY | NodeFlags::REPLICA);
        self.todo(Todo::SAVE);
        true
    }

    /// Another node answers at the address of a node, which has got a new name or is gone.
    fn lose_address(&mut self, key: NodeKey, id: LinkId, facts: &Facts<'_>) {
        let node = &self.nodes[key];
        log!(
            self,
            Notice,
            "PONG contains mismatching sender ID. About node {} in shard {} added {} ms ago, having flags {}",
            self.label(key),
            node.shard_id,
            facts.ms().saturating_sub(node.created_ms),
            node.flags.bits()
        );
        if self.settings.safety.resolve_hostnames && !self.nodes[key].announced().hostname.is_empty() {
            // Its name leads to it.
            self.nodes[key].is_address_dead = true;
            return self.close_link(Some(id), facts.ms());
        }
        let node = &mut self.nodes[key];
        node.flags |= NodeFlags::NO_ADDRESS;
        node.ip = Arc::default();
        (node.tcp_port, node.tls_port, node.bus_port) = (0, 0, 0);
        self.close_link(Some(id), facts.ms());
        // Nobody will connect to it again: only as a failed node can it be replaced.
        if !self.nodes[key].is_failed() {
            self.mark_failed(key, facts);
            self.broadcast_failure(self.nodes[key].id, facts);
        }
        self.todo(Todo::SAVE | Todo::STATE);
    }

    /// Takes over the address of a node from its message on the link that it has opened. Returns whether it is new.
    pub(super) fn update_address_if_needed(
        &mut self,
        key: NodeKey,
        id: LinkId,
        header: &Header<'_>,
        facts: &Facts<'_>,
    ) -> bool {
        let Some(link) = self.links.get(&id).filter(|_| self.nodes[key].link != Some(id)) else { return false };
        let ip = if header.ip.is_empty() { &*link.peer_ip } else { header.ip };
        let (tcp, tls) = self.client_ports(header.port, header.secondary_port);
        let node = &self.nodes[key];
        let is_same = *node.ip == *ip && (node.tcp_port, node.tls_port, node.bus_port) == (tcp, tls, header.bus_port);
        if ip.is_empty() || is_same {
            return false;
        }
        let ip = ip.into();
        let node = &mut self.nodes[key];
        node.ip = ip;
        (node.tcp_port, node.tls_port, node.bus_port) = (tcp, tls, header.bus_port);
        self.address_changed(key, facts);
        true
    }
}
