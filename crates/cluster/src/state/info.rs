//! Texts: CLUSTER INFO, CLUSTER NODES, CLUSTER REPLICAS, and nodes in log lines.

use super::commands::unknown_node;
use super::{ClientView, Cluster, CommandError, Facts, NodeKey};
use crate::bus::{ClusterState, MessageType};
use crate::flags::NodeFlags;
use crate::text::{push_number, slots_text};
use std::fmt::{self, Write};

/// Counters of the bus.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Messages sent, by number of type.
    pub sent: [u64; MessageType::ALL.len()],
    /// Messages received, by number of type.
    pub received: [u64; MessageType::ALL.len()],
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes of published messages sent.
    pub pubsub_bytes_sent: u64,
    /// Bytes of published messages received.
    pub pubsub_bytes_received: u64,
    /// Bytes of messages of modules sent.
    pub module_bytes_sent: u64,
    /// Bytes of messages of modules received.
    pub module_bytes_received: u64,
    /// Links closed because too many bytes waited to be sent.
    pub links_over_limit: u64,
}

impl Statistics {
    /// Counts a message to be sent.
    pub(super) fn count_sent(&mut self, kind: MessageType, bytes: u64) {
        self.sent[usize::from(kind.number())] += 1;
        self.bytes_sent += bytes;
        match kind {
            MessageType::Publish | MessageType::PublishShard => self.pubsub_bytes_sent += bytes,
            MessageType::Module => self.module_bytes_sent += bytes,
            _ => {}
        }
    }

    /// Counts a received message.
    pub(super) fn count_received(&mut self, kind: MessageType, bytes: u64) {
        self.received[usize::from(kind.number())] += 1;
        self.bytes_received += bytes;
        match kind {
            MessageType::Publish | MessageType::PublishShard => self.pubsub_bytes_received += bytes,
            MessageType::Module => self.module_bytes_received += bytes,
            _ => {}
        }
    }
}

/// Slots and nodes by what is wrong with them.
#[derive(Default)]
struct Tally {
    slots_ok: usize,
    slots_suspected: usize,
    slots_failed: usize,
    suspected: usize,
    failed: usize,
    voters_suspected: usize,
    voters_failed: usize,
}

impl Cluster {
    /// Counters of the bus.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Sets the counters of the bus to zero, as CONFIG RESETSTAT does.
    pub fn reset_statistics(&mut self) {
        self.statistics = Statistics::default();
    }

    /// The text of CLUSTER INFO: lines that end with CR LF. `is_served` is whether commands are executed, which
    /// follows the state of the cluster a little later: the text says ok when both are so.
    pub fn info_text(&self, is_served: bool) -> String {
        let tally = self.tally();
        let mut out = String::with_capacity(1024);
        let state = if self.state() == ClusterState::Ok && is_served { "ok" } else { "fail" };
        // Writing to a String does not fail.
        let _ = write!(out, "cluster_state:{state}\r\n");
        let statistics = &self.statistics;
        let numbers: [(&str, u64); 12] = [
            ("cluster_slots_assigned", u64::from(self.assigned)),
            ("cluster_slots_ok", tally.slots_ok as u64),
            ("cluster_slots_pfail", tally.slots_suspected as u64),
            ("cluster_slots_fail", tally.slots_failed as u64),
            ("cluster_nodes_pfail", tally.suspected as u64),
            ("cluster_nodes_fail", tally.failed as u64),
            ("cluster_voting_nodes_pfail", tally.voters_suspected as u64),
            ("cluster_voting_nodes_fail", tally.voters_failed as u64),
            ("cluster_known_nodes", self.nodes.len() as u64),
            ("cluster_size", self.health.size as u64),
            ("cluster_current_epoch", self.current_epoch),
            ("cluster_my_epoch", self.my_epoch()),
        ];
        write_numbers(&mut out, &numbers);
        write_messages(&mut out, &statistics.sent, "sent");
        write_messages(&mut out, &statistics.received, "received");
        let numbers = [
            ("cluster_stats_bytes_sent", statistics.bytes_sent),
            ("cluster_stats_bytes_received", statistics.bytes_received),
            ("cluster_stats_pubsub_bytes_sent", statistics.pubsub_bytes_sent),
            ("cluster_stats_pubsub_bytes_received", statistics.pubsub_bytes_received),
            ("cluster_stats_module_bytes_sent", statistics.module_bytes_sent),
            ("cluster_stats_module_bytes_received", statistics.module_bytes_received),
            ("total_cluster_links_buffer_limit_exceeded", statistics.links_over_limit),
        ];
        write_numbers(&mut out, &numbers);
        out
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (_, node) in self.nodes.iter() {
            let slots = usize::from(node.slot_count);
            if node.is_failed() {
                tally.slots_failed += slots;
                tally.failed += 1;
                tally.voters_failed += usize::from(node.votes());
            } else if !node.is_suspected() {
                tally.slots_ok += slots;
            }
            if node.is_suspected() {
                tally.slots_suspected += if node.is_failed() { 0 } else { slots };
                tally.suspected += 1;
                tally.voters_suspected += usize::from(node.votes());
            }
        }
        tally
    }

    /// The text of CLUSTER NODES for a client: a line per known node.
    pub fn nodes_text(&self, client: ClientView, facts: &Facts<'_>) -> String {
        let mut out = String::with_capacity(self.nodes.len() * 192);
        for (key, _) in self.nodes.iter() {
            // Writing to a String does not fail.
            let _ = self.write_node(&mut out, key, client, facts);
            out.push('\n');
        }
        out
    }

    /// The lines of CLUSTER REPLICAS.
    pub fn replicas_lines(
        &self,
        name: &[u8],
        client: ClientView,
        facts: &Facts<'_>,
    ) -> Result<Vec<String>, CommandError> {
        let key = self.find_by_name(name).ok_or_else(|| unknown_node(name))?;
        if !self.nodes[key].is_primary() {
            return Err(CommandError::NotPrimary);
        }
        let lines = self.nodes[key].replicas.iter().map(|replica| {
            let mut line = String::new();
            // Writing to a String does not fail.
            let _ = self.write_node(&mut line, *replica, client, facts);
            line
        });
        Ok(lines.collect())
    }

    /// Appends the line of a node, without its end.
    fn write_node(&self, out: &mut String, key: NodeKey, client: ClientView, facts: &Facts<'_>) -> fmt::Result {
        let node = &self.nodes[key];
        let announced = node.announced();
        let announced_ip = if client.ipv6 { &announced.client_ipv6 } else { &announced.client_ipv4 };
        let ip = if announced_ip.is_empty() { &*node.ip } else { announced_ip };
        let (announced_port, port) = if client.tls {
            (announced.client_tls_port, node.tls_port)
        } else {
            (announced.client_tcp_port, node.tcp_port)
        };
        let port = if announced_port != 0 { announced_port } else { port };
        // Thousands of lines may be wanted: no formatting machinery.
        out.push_str(node.id.as_str());
        out.push(' ');
        out.push_str(ip);
        push_number(out, ':', u64::from(port));
        push_number(out, '@', u64::from(node.bus_port));
        if !announced.hostname.is_empty() {
            out.push(',');
            out.push_str(&announced.hostname);
        }
        out.push(' ');
        node.flags.write_words(out);
        out.push(' ');
        out.push_str(node.replica_of.map_or("-", |primary| self.nodes[primary].id.as_str()));
        push_number(out, ' ', facts.now.unix_of(self.nodes.ping_sent(key)).max(0) as u64);
        push_number(out, ' ', facts.now.unix_of(self.nodes.pong_received(key)).max(0) as u64);
        push_number(out, ' ', self.epoch_of(key));
        let connected = node.link.is_some() || key == self.myself;
        out.push_str(if connected { " connected" } else { " disconnected" });
        out.push_str(node.slots_text.get_or_init(|| slots_text(node.slots.view()).into_boxed_str()));
        if key == self.myself {
            self.write_open_slots(out)?;
        }
        Ok(())
    }

    /// Appends the slots that are being migrated or imported, ascending.
    pub(super) fn write_open_slots(&self, out: &mut String) -> fmt::Result {
        let migrating = self.migrating.iter().map(|(slot, node)| (*slot, '>', *node));
        let importing = self.importing.iter().filter(|(slot, _)| !self.migrating.contains_key(slot));
        let mut open: Vec<_> = migrating.chain(importing.map(|(slot, node)| (*slot, '<', *node))).collect();
        open.sort_unstable();
        open.iter()
            .try_for_each(|(slot, direction, node)| write!(out, " [{slot}-{direction}-{}]", self.nodes[*node].id))
    }

    /// A node in a log line: its name, and in parentheses what people call it.
    pub(super) fn label(&self, key: NodeKey) -> Label<'_> {
        Label { cluster: self, key }
    }

    /// The node at the other end of a link in a log line.
    pub(super) fn peer_label(&self, key: Option<NodeKey>) -> String {
        key.map_or_else(|| "<unknown> (<unknown>)".to_owned(), |key| self.label(key).to_string())
    }

    /// Appends what people call a node: its announced name, or its address.
    pub(super) fn write_human_name(&self, out: &mut impl Write, key: NodeKey) -> fmt::Result {
        let node = &self.nodes[key];
        if !node.announced().human_name.is_empty() {
            return out.write_str(&node.announced().human_name);
        }
        let port = if self.settings.tls_bus { node.tls_port } else { node.tcp_port };
        if node.ip.contains(':') { write!(out, "[{}]:{port}", node.ip) } else { write!(out, "{}:{port}", node.ip) }
    }
}

/// See [`Cluster::label`].
pub(super) struct Label<'a> {
    cluster: &'a Cluster,
    key: NodeKey,
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.cluster.nodes[self.key].id)?;
        self.cluster.write_human_name(f, self.key)?;
        f.write_str(")")
    }
}

fn write_numbers(out: &mut String, numbers: &[(&str, u64)]) {
    for (name, number) in numbers {
        // Writing to a String does not fail.
        let _ = write!(out, "{name}:{number}\r\n");
    }
}

/// Appends the counters of each type that occurred, and their sum.
fn write_messages(out: &mut String, counters: &[u64], direction: &str) {
    for (kind, count) in MessageType::ALL.iter().zip(counters).filter(|(_, count)| **count > 0) {
        // Writing to a String does not fail.
        let _ = write!(out, "cluster_stats_messages_{}_{direction}:{count}\r\n", kind.name());
    }
    let sum: u64 = counters.iter().sum();
    let _ = write!(out, "cluster_stats_messages_{direction}:{sum}\r\n");
}

/// Flags whose nodes are not stored.
pub(super) const NOT_STORED: NodeFlags = NodeFlags::HANDSHAKE;
