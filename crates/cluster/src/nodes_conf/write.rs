//! Writes the content of `nodes.conf`.

use super::{Node, NodesConf};
use crate::field;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A text in the description of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextField {
    /// [`Node::ip`].
    Ip,
    /// [`Node::hostname`].
    Hostname,
    /// [`Node::human_name`].
    HumanName,
    /// [`Node::client_ipv4`].
    ClientIpv4,
    /// [`Node::client_ipv6`].
    ClientIpv6,
    /// [`Node::availability_zone`].
    AvailabilityZone,
}

/// A text has characters that would not read back: a space, a comma, or others that separate fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteError {
    /// The node.
    pub node: NodeId,
    /// Its text.
    pub field: TextField,
}

impl NodesConf {
    /// The content of the file.
    pub fn write(&self) -> Result<String, WriteError> {
        let epochs: HashMap<NodeId, u64> = self.nodes.iter().map(|node| (node.id, node.config_epoch)).collect();
        let mut out = String::new();
        for node in self.nodes.iter().filter(|node| !node.flags.contains(NodeFlags::HANDSHAKE)) {
            if let Some(field) = unwritable_field(node) {
                return Err(WriteError { node: node.id, field });
            }
            let epoch = node.primary.and_then(|primary| epochs.get(&primary)).unwrap_or(&node.config_epoch);
            // Writing to a String does not fail.
            let _ = self.write_node(&mut out, node, *epoch);
        }
        let _ = writeln!(out, "vars currentEpoch {} lastVoteEpoch {}", self.current_epoch, self.last_vote_epoch);
        Ok(out)
    }

    fn write_node(&self, out: &mut String, node: &Node, config_epoch: u64) -> fmt::Result {
        write!(out, "{} {}:{}@{},{}", node.id, node.ip, node.tcp_port, node.bus_port, node.hostname)?;
        write_value(out, "availability-zone", &node.availability_zone)?;
        write_port(out, "client-tls-port", node.client_tls_port)?;
        write_port(out, "client-tcp-port", node.client_tcp_port)?;
        write_value(out, "client-ipv6", &node.client_ipv6)?;
        write_value(out, "client-ipv4", &node.client_ipv4)?;
        write!(out, ",tls-port={}", node.tls_port)?;
        write_value(out, "nodename", &node.human_name)?;
        write_value(out, "shard-id", node.shard_id.as_ref().map_or("", NodeId::as_str))?;
        out.push(' ');
        node.flags.write_words(out);
        let primary = node.primary.as_ref().map_or("-", NodeId::as_str);
        let link = if node.connected || node.flags.contains(NodeFlags::MYSELF) { "connected" } else { "disconnected" };
        write!(out, " {primary} {} {} {config_epoch} {link}", node.ping_sent_ms, node.pong_received_ms)?;
        for range in node.slots.ranges() {
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(out, " {first}")?,
                (first, last) => write!(out, " {first}-{last}")?,
            }
        }
        if node.flags.contains(NodeFlags::MYSELF) {
            self.write_open_slots(out)?;
        }
        writeln!(out)
    }

    /// Appends the slots that are being migrated or imported, ascending.
    fn write_open_slots(&self, out: &mut String) -> fmt::Result {
        let migrating = self.migrating.iter().map(|(slot, node)| (slot, '>', node));
        let importing = self.importing.iter().map(|(slot, node)| (slot, '<', node));
        let mut open: Vec<_> =
            migrating.chain(importing.filter(|(slot, ..)| !self.migrating.contains_key(slot))).collect();
        open.sort_unstable();
        open.iter().try_for_each(|(slot, direction, node)| write!(out, " [{slot}-{direction}-{node}]"))
    }
}

fn write_value(out: &mut String, name: &str, value: &str) -> fmt::Result {
    if value.is_empty() { Ok(()) } else { write!(out, ",{name}={value}") }
}

fn write_port(out: &mut String, name: &str, port: u16) -> fmt::Result {
    if port == 0 { Ok(()) } else { write!(out, ",{name}={port}") }
}

/// The first text that would not read back.
fn unwritable_field(node: &Node) -> Option<TextField> {
    [
        (TextField::Ip, field::is_address(&node.ip)),
        (TextField::Hostname, field::is_host(&node.hostname)),
        (TextField::HumanName, field::is_value(&node.human_name)),
        (TextField::ClientIpv4, node.client_ipv4.is_empty() || node.client_ipv4.parse::<Ipv4Addr>().is_ok()),
        (TextField::ClientIpv6, node.client_ipv6.is_empty() || node.client_ipv6.parse::<Ipv6Addr>().is_ok()),
        (TextField::AvailabilityZone, field::is_value(&node.availability_zone)),
    ]
    .into_iter()
    .find_map(|(field, writable)| (!writable).then_some(field))
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = match self.field {
            TextField::Ip => "IP address",
            TextField::Hostname => "host name",
            TextField::HumanName => "human-readable name",
            TextField::ClientIpv4 => "IPv4 address for clients",
            TextField::ClientIpv6 => "IPv6 address for clients",
            TextField::AvailabilityZone => "availability zone",
        };
        write!(f, "the {field} of node {} cannot be stored", self.node)
    }
}

impl std::error::Error for WriteError {}
