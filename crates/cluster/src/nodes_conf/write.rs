//! Writes the content of `nodes.conf`.

use super::{Node, NodesConf};
use crate::Epoch;
use crate::field;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::text::{push_number, slots_text};
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

/// A node as its line describes it.
pub(crate) struct Line<'a> {
    pub(crate) id: &'a NodeId,
    pub(crate) ip: &'a str,
    pub(crate) tcp_port: u16,
    pub(crate) tls_port: u16,
    pub(crate) bus_port: u16,
    pub(crate) hostname: &'a str,
    pub(crate) human_name: &'a str,
    pub(crate) shard_id: Option<&'a NodeId>,
    pub(crate) client_ipv4: &'a str,
    pub(crate) client_ipv6: &'a str,
    pub(crate) client_tcp_port: u16,
    pub(crate) client_tls_port: u16,
    pub(crate) availability_zone: &'a str,
    pub(crate) flags: NodeFlags,
    pub(crate) primary: Option<&'a NodeId>,
    pub(crate) ping_sent_ms: i64,
    pub(crate) pong_received_ms: i64,
    /// That of its primary, if it is a replica.
    pub(crate) config_epoch: Epoch,
    pub(crate) connected: bool,
    /// See [`slots_text`].
    pub(crate) slots: &'a str,
}

impl NodesConf {
    /// The content of the file.
    pub fn write(&self) -> Result<String, WriteError> {
        let epochs: HashMap<NodeId, u64> = self.nodes.iter().map(|node| (node.id, node.config_epoch)).collect();
        let mut out = String::new();
        for node in self.nodes.iter().filter(|node| !node.flags.contains(NodeFlags::HANDSHAKE)) {
            let config_epoch = *node.primary.and_then(|primary| epochs.get(&primary)).unwrap_or(&node.config_epoch);
            let mut slots = slots_text(node.slots.view());
            if node.flags.contains(NodeFlags::MYSELF) {
                // Writing to a String does not fail.
                let _ = self.write_open_slots(&mut slots);
            }
            node.line(config_epoch, &slots).write(&mut out)?;
        }
        write_epochs(&mut out, self.current_epoch, self.last_vote_epoch);
        Ok(out)
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

impl Node {
    fn line<'a>(&'a self, config_epoch: Epoch, slots: &'a str) -> Line<'a> {
        Line {
            id: &self.id,
            ip: &self.ip,
            tcp_port: self.tcp_port,
            tls_port: self.tls_port,
            bus_port: self.bus_port,
            hostname: &self.hostname,
            human_name: &self.human_name,
            shard_id: self.shard_id.as_ref(),
            client_ipv4: &self.client_ipv4,
            client_ipv6: &self.client_ipv6,
            client_tcp_port: self.client_tcp_port,
            client_tls_port: self.client_tls_port,
            availability_zone: &self.availability_zone,
            flags: self.flags,
            primary: self.primary.as_ref(),
            ping_sent_ms: self.ping_sent_ms,
            pong_received_ms: self.pong_received_ms,
            config_epoch,
            connected: self.connected,
            slots,
        }
    }
}

impl Line<'_> {
    /// Appends the line.
    pub(crate) fn write(&self, out: &mut String) -> Result<(), WriteError> {
        if let Some(field) = self.unwritable_field() {
            return Err(WriteError { node: *self.id, field });
        }
        out.push_str(self.id.as_str());
        out.push(' ');
        out.push_str(self.ip);
        push_number(out, ':', u64::from(self.tcp_port));
        push_number(out, '@', u64::from(self.bus_port));
        out.push(',');
        out.push_str(self.hostname);
        push_value(out, ",availability-zone=", self.availability_zone);
        push_port(out, ",client-tls-port", self.client_tls_port);
        push_port(out, ",client-tcp-port", self.client_tcp_port);
        push_value(out, ",client-ipv6=", self.client_ipv6);
        push_value(out, ",client-ipv4=", self.client_ipv4);
        out.push_str(",tls-port");
        push_number(out, '=', u64::from(self.tls_port));
        push_value(out, ",nodename=", self.human_name);
        push_value(out, ",shard-id=", self.shard_id.map_or("", NodeId::as_str));
        out.push(' ');
        self.flags.write_words(out);
        out.push(' ');
        out.push_str(self.primary.map_or("-", NodeId::as_str));
        push_time(out, self.ping_sent_ms);
        push_time(out, self.pong_received_ms);
        push_number(out, ' ', self.config_epoch);
        let is_connected = self.connected || self.flags.contains(NodeFlags::MYSELF);
        out.push_str(if is_connected { " connected" } else { " disconnected" });
        out.push_str(self.slots);
        out.push('\n');
        Ok(())
    }

    /// The first text that would not read back.
    fn unwritable_field(&self) -> Option<TextField> {
        [
            (TextField::Ip, field::is_address(self.ip)),
            (TextField::Hostname, field::is_host(self.hostname)),
            (TextField::HumanName, field::is_value(self.human_name)),
            (TextField::ClientIpv4, self.client_ipv4.is_empty() || self.client_ipv4.parse::<Ipv4Addr>().is_ok()),
            (TextField::ClientIpv6, self.client_ipv6.is_empty() || self.client_ipv6.parse::<Ipv6Addr>().is_ok()),
            (TextField::AvailabilityZone, field::is_value(self.availability_zone)),
        ]
        .into_iter()
        .find_map(|(field, writable)| (!writable).then_some(field))
    }
}

/// Appends the last line.
pub(crate) fn write_epochs(out: &mut String, current_epoch: Epoch, last_vote_epoch: Epoch) {
    out.push_str("vars currentEpoch");
    push_number(out, ' ', current_epoch);
    out.push_str(" lastVoteEpoch");
    push_number(out, ' ', last_vote_epoch);
    out.push('\n');
}

/// Appends a value behind its name, if it has one.
fn push_value(out: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        out.push_str(name);
        out.push_str(value);
    }
}

fn push_port(out: &mut String, name: &str, port: u16) {
    if port != 0 {
        out.push_str(name);
        push_number(out, '=', u64::from(port));
    }
}

/// Appends a time. It is negative only if the clock is wrong.
fn push_time(out: &mut String, ms: i64) {
    if ms < 0 {
        out.push(' ');
    }
    push_number(out, if ms < 0 { '-' } else { ' ' }, ms.unsigned_abs());
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
