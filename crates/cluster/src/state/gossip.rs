//! Gossip entries and extensions: what nodes say about others and about themselves in PING, PONG and MEET.

use super::node::{Announced, Node};
use super::pulse::{Pulse, Telling};
use super::send::is_sendable;
use super::settle::Todo;
use super::{Action, Cluster, Facts, NodeKey, log};
use crate::bus::{Extension, Extensions, GOSSIP_ENTRY_BYTES, Gossip, GossipEntry, set_times};
use crate::field;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;

/// Fewest gossip entries of a message, if there are as many nodes.
const GOSSIP_MIN: usize = 3;

/// How far a time that another node reports may be in the future.
const CLOCK_TOLERANCE_MS: i64 = 500;

/// Longest time that another node may have a node forgotten.
const FORGOTTEN_SECONDS_MAX: u64 = 365 * 24 * 3600;

/// Most nodes that are added because others tell about them.
const NODES_MAX: usize = 16_384;

const FAILURE: NodeFlags = NodeFlags::PFAIL.union(NodeFlags::FAIL);

impl Cluster {
    /// Puts the gossip entries of a message into `Cluster::gossip`: neighbours in the table from a random place on, and
    /// all suspected nodes.
    pub(super) fn choose_gossip(&mut self, start: u64, receiver: Option<NodeKey>, facts: &Facts<'_>) {
        let available = self.nodes.len().saturating_sub(2);
        let share = self.nodes.len() * self.settings.gossip_percent as usize / 100;
        let wanted = share.max(GOSSIP_MIN).min(available);
        let tls = self.settings.tls_bus;
        let seconds = |time_ms| u32::try_from(facts.now.unix_of(time_ms) / 1000).unwrap_or(0);
        let gossip = &mut self.gossip;
        gossip.clear();
        let mut tell = |pulse: &Pulse, entry: &[u8; GOSSIP_ENTRY_BYTES]| {
            let mut entry = *entry;
            set_times(&mut entry, seconds(pulse.ping_sent.get()), seconds(pulse.pong_received.get()));
            gossip.push(entry);
        };
        let hidden = [Some(self.myself), receiver];
        self.nodes.tell_neighbours(start, wanted, hidden, |node| decide_telling(node, tls), &mut tell);
        self.nodes.tell_suspected(self.suspected_nodes, |node| decide_telling(node, tls), &mut tell);
    }

    /// What this node says about itself beyond the header.
    pub(super) fn extensions(&self, now_ms: u64) -> Vec<Extension<'_>> {
        let me = self.me();
        let announced = me.announced();
        let value = |text: &'_ str| !text.is_empty() && field::is_value(text);
        let mut extensions = Vec::new();
        if !announced.hostname.is_empty() && field::is_host(&announced.hostname) {
            extensions.push(Extension::Hostname(&announced.hostname));
        }
        if value(&announced.human_name) {
            extensions.push(Extension::HumanNodeName(&announced.human_name));
        }
        if value(&announced.client_ipv4) {
            extensions.push(Extension::ClientIpv4(&announced.client_ipv4));
        }
        if value(&announced.client_ipv6) {
            extensions.push(Extension::ClientIpv6(&announced.client_ipv6));
        }
        if announced.client_tcp_port != 0 {
            extensions.push(Extension::ClientPort(announced.client_tcp_port));
        }
        if announced.client_tls_port != 0 {
            extensions.push(Extension::ClientTlsPort(announced.client_tls_port));
        }
        if value(&announced.availability_zone) {
            extensions.push(Extension::AvailabilityZone(&announced.availability_zone));
        }
        for (node, until_ms) in self.blacklist.iter().filter(|(_, until_ms)| **until_ms >= now_ms) {
            extensions.push(Extension::ForgottenNode { node: *node, ttl_seconds: (until_ms - now_ms) / 1000 });
        }
        extensions.push(Extension::ShardId(me.shard_id));
        extensions
    }

    /// Takes over what a message says about other nodes.
    pub(super) fn process_gossip(&mut self, sender: NodeKey, gossip: Gossip<'_>, facts: &Facts<'_>) {
        let mut previous = sender;
        for received in gossip.received() {
            let Some(key) = self.nodes.find_behind(previous, received.name()) else {
                if let Some(entry) = received.decode() {
                    self.add_from_gossip(&entry, facts);
                }
                continue;
            };
            previous = key;
            if self.nodes.is_quiet(key) && !received.flags().intersects(FAILURE) {
                self.renew_pong(key, received.pong_received(), facts);
            } else if let Some(entry) = received.decode().filter(|_| key != self.myself) {
                self.process_entry(sender, key, &entry, facts);
                self.nodes.decide_quiet(key);
            }
        }
    }

    /// Adds the nodes that a MEET message of an unknown node tells about: an operator has decided that the clusters are
    /// one. What it says about known nodes does not count yet.
    pub(super) fn add_nodes_of_meet(&mut self, gossip: Gossip<'_>, facts: &Facts<'_>) {
        for entry in gossip.iter() {
            if self.nodes.find(&entry.node).is_none() {
                self.add_from_gossip(&entry, facts);
            }
        }
    }

    /// Takes over what a message says about a node that is known.
    fn process_entry(&mut self, sender: NodeKey, key: NodeKey, entry: &GossipEntry<'_>, facts: &Facts<'_>) {
        let is_failing = entry.flags.intersects(FAILURE);
        self.process_report(sender, key, is_failing, facts);
        let node = &self.nodes[key];
        let is_calm = !is_failing && node.is_normal() && self.nodes.ping_sent(key).is_none();
        if is_calm && self.failure_reports(key, facts.ms()) == 0 {
            self.renew_pong(key, entry.pong_received, facts);
        }
        let usable = !entry.flags.intersects(FAILURE | NodeFlags::NO_ADDRESS);
        if self.nodes[key].is(FAILURE) && usable {
            self.update_address_from_gossip(key, entry, facts);
        }
    }

    /// Takes over when another node has received a PONG of a node, in seconds of Unix time.
    fn renew_pong(&mut self, key: NodeKey, pong_received: u32, facts: &Facts<'_>) {
        let time_ms = i64::from(pong_received) * 1000;
        let pong = facts.now.mono_of(time_ms.min(facts.now.unix_ms));
        if time_ms <= facts.now.unix_ms + CLOCK_TOLERANCE_MS && pong > self.nodes.pong_received(key) {
            self.nodes.set_pong_received(key, pong);
        }
    }

    /// Takes over that a voter has found a node failing, or working again.
    fn process_report(&mut self, sender: NodeKey, key: NodeKey, is_failing: bool, facts: &Facts<'_>) {
        if is_failing {
            let votes = self.nodes[sender].votes();
            let counts = votes && !self.nodes[key].is_failed();
            if counts && self.nodes.quiet_mut(key).reports.add(sender, facts.ms()) {
                let (sender, node) = (self.label(sender), self.label(key));
                log!(self, Verbose, "Node {sender} reported node {node} as not reachable.");
            }
            self.mark_failed_if_agreed(key, facts);
        } else if !self.nodes[key].reports.is_empty() && self.nodes.quiet_mut(key).reports.remove(sender) {
            let (sender, node) = (self.label(sender), self.label(key));
            log!(self, Verbose, "Node {sender} reported node {node} is back online.");
        }
    }

    /// A node that is not reachable has another address, according to one that can reach it.
    fn update_address_from_gossip(&mut self, key: NodeKey, entry: &GossipEntry<'_>, facts: &Facts<'_>) {
        let (tcp, tls) = self.client_ports(entry.port, entry.secondary_port);
        let node = &mut self.nodes[key];
        if node.ip.eq_ignore_ascii_case(entry.ip)
            && (node.tcp_port, node.tls_port, node.bus_port) == (tcp, tls, entry.bus_port)
        {
            return;
        }
        node.ip = entry.ip.into();
        (node.tcp_port, node.tls_port, node.bus_port) = (tcp, tls, entry.bus_port);
        self.address_changed(key, facts);
    }

    /// What follows from a new address of a node: a new link, and for the own primary a new replication link.
    pub(super) fn address_changed(&mut self, key: NodeKey, facts: &Facts<'_>) {
        self.close_link(self.nodes[key].link, facts.ms());
        self.nodes[key].flags -= NodeFlags::NO_ADDRESS;
        let node = &self.nodes[key];
        let port = if self.settings.tls_bus { node.tls_port } else { node.tcp_port };
        log!(self, Notice, "Address updated for node {}, now {}:{port}", self.label(key), node.ip);
        self.change_topology();
        if self.me().is_replica() && self.me().replica_of == Some(key) {
            self.replicate_from(key, false, false);
        }
    }

    /// Tells the environment to replicate a node.
    pub(super) fn replicate_from(&mut self, key: NodeKey, full_sync: bool, new_primary: bool) {
        let node = &self.nodes[key];
        let port = if self.settings.tls_replication { node.tls_port } else { node.tcp_port };
        self.out.push(Action::ReplicateFrom {
            id: node.id,
            ip: node.ip.as_ref().to_owned(),
            port,
            full_sync,
            new_primary,
        });
        self.replicating = true;
    }

    /// Adds a node that a member has told about. It is trusted: a handshake with its address could lead into another
    /// cluster, if the address is in use again.
    fn add_from_gossip(&mut self, entry: &GossipEntry<'_>, facts: &Facts<'_>) {
        let is_useless = entry.flags.contains(NodeFlags::NO_ADDRESS) || self.nodes.len() >= NODES_MAX;
        if is_useless || self.is_blacklisted(&entry.node, facts.ms()) {
            return;
        }
        let (tcp, tls) = self.client_ports(entry.port, entry.secondary_port);
        let key = self.add_node(entry.node, entry.flags - (NodeFlags::MYSELF | NodeFlags::HANDSHAKE), facts.ms());
        let node = &mut self.nodes[key];
        node.ip = entry.ip.into();
        (node.tcp_port, node.tls_port, node.bus_port) = (tcp, tls, entry.bus_port);
        if node.is_failed() {
            node.failed_since = Some(facts.ms()).into();
        }
        self.change_topology();
    }

    /// The TCP and the TLS port, of a message's first and second client port.
    pub(super) fn client_ports(&self, port: u16, secondary_port: u16) -> (u16, u16) {
        if self.settings.tls_bus { (secondary_port, port) } else { (port, secondary_port) }
    }

    /// Takes over what the sender says about itself. What it does not mention, it does not have.
    pub(super) fn process_extensions(&mut self, sender: NodeKey, extensions: Extensions<'_>, facts: &Facts<'_>) {
        let mut texts = [""; 5];
        let mut ports = [0; 2];
        let mut shard_id = None;
        for extension in extensions.iter() {
            match extension {
                Extension::Hostname(text) => texts[0] = text,
                Extension::HumanNodeName(text) => texts[1] = text,
                Extension::ClientIpv4(text) => texts[2] = text,
                Extension::ClientIpv6(text) => texts[3] = text,
                Extension::AvailabilityZone(text) => texts[4] = text,
                Extension::ClientPort(port) => ports[0] = port,
                Extension::ClientTlsPort(port) => ports[1] = port,
                Extension::ShardId(id) => shard_id = Some(id),
                Extension::ForgottenNode { node, ttl_seconds } => self.forget_as_told(node, ttl_seconds, facts),
                Extension::Unknown { number, .. } => {
                    log!(self, Warning, "Received unknown extension type {number}");
                }
            }
        }
        // The sender may have been told to forget itself.
        if self.nodes.get(sender).is_none() {
            return;
        }
        // Gossip tells nothing of this.
        let node = self.nodes.quiet_mut(sender);
        let known = node.announced();
        let known_texts =
            [&known.hostname, &known.human_name, &known.client_ipv4, &known.client_ipv6, &known.availability_zone];
        let says_nothing = texts.iter().all(|text| text.is_empty()) && ports == [0; 2];
        let is_known = (says_nothing && node.announces_nothing())
            || (known_texts == texts && [known.client_tcp_port, known.client_tls_port] == ports);
        if !is_known {
            let [hostname, human_name, client_ipv4, client_ipv6, availability_zone] = texts;
            node.set_announced(Announced {
                hostname: hostname.to_owned(),
                human_name: human_name.to_owned(),
                availability_zone: availability_zone.to_owned(),
                client_ipv4: client_ipv4.to_owned(),
                client_ipv6: client_ipv6.to_owned(),
                client_tcp_port: ports[0],
                client_tls_port: ports[1],
            });
            self.todo(Todo::SAVE);
        }
        let shard_id = shard_id.unwrap_or_else(|| self.nodes[self.primary_of(sender)].shard_id);
        self.update_shard(sender, shard_id);
    }

    /// Moves a node to a shard, unless it is a replica whose primary is in another one.
    pub(super) fn update_shard(&mut self, key: NodeKey, shard_id: NodeId) {
        if self.nodes[key].is_replica() {
            let primary_shard = self.nodes[self.primary_of(key)].shard_id;
            if primary_shard != shard_id {
                log!(
                    self,
                    Notice,
                    "Shard id {shard_id} update request for node id {} diverges from existing primary shard id \
                     {primary_shard}, rejecting!",
                    self.nodes[key].id
                );
                return;
            }
        }
        if self.nodes[key].shard_id != shard_id {
            self.nodes.set_shard(key, shard_id);
            self.todo(Todo::SAVE);
        }
        if key != self.myself && self.me().replica_of == Some(key) && self.me().shard_id != shard_id {
            self.nodes.set_shard(self.myself, shard_id);
            self.todo(Todo::SAVE | Todo::SYNC);
        }
    }

    /// Forgets a node because another one was told to.
    fn forget_as_told(&mut self, id: NodeId, ttl_seconds: u64, facts: &Facts<'_>) {
        let Some(key) = self.nodes.find(&id) else { return };
        let is_my_primary = self.me().is_replica() && self.me().replica_of == Some(key);
        if key == self.myself || is_my_primary {
            return;
        }
        let ttl_ms = ttl_seconds.min(FORGOTTEN_SECONDS_MAX) * 1000;
        self.blacklist_node(id, facts.ms().saturating_add(ttl_ms), facts.ms());
        self.remove_node(key, facts);
        self.todo(Todo::STATE | Todo::SAVE);
    }
}

/// Whether others are told about a node, and the entry without times.
fn decide_telling(node: &Node, tls: bool) -> Option<(Telling, [u8; GOSSIP_ENTRY_BYTES])> {
    let is_useless = node.link.is_none() && node.slot_count == 0;
    let telling = if node.is(NodeFlags::HANDSHAKE | NodeFlags::NO_ADDRESS) || !is_sendable(&node.ip) {
        return None;
    } else if node.is_suspected() {
        Telling::Always
    } else if is_useless {
        return None;
    } else {
        Telling::InTurn
    };
    let entry = GossipEntry {
        node: node.id,
        ping_sent: 0,
        pong_received: 0,
        ip: &node.ip,
        port: if tls { node.tls_port } else { node.tcp_port },
        bus_port: node.bus_port,
        flags: node.flags,
        secondary_port: if tls { node.tcp_port } else { node.tls_port },
    };
    entry.encode().map(|entry| (telling, entry))
}
