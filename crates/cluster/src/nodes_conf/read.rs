//! Reads the content of `nodes.conf`, and repairs it as Valkey does.

use super::{Node, NodesConf};
use crate::BUS_PORT_OFFSET;
use crate::field;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::{SLOT_COUNT, Slots};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Fields of a line before its slots.
const NODE_FIELDS: usize = 8;

/// Why the content cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// The line, counted from 1. For [`ParseErrorKind::NoMyself`] the number of lines.
    pub line: usize,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

/// What is wrong with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseErrorKind {
    /// It is not UTF-8.
    Utf8,
    /// A line of a node has fewer than 8 fields, or the variables are not pairs.
    Fields,
    /// The name of a node or shard is not one.
    NodeId,
    /// An earlier line is about the same node.
    DuplicateNode,
    /// The address is not `ip:port`, `ip:port@bus-port`, or a port is above 65,535.
    Address,
    /// An auxiliary field is unknown or has an invalid value.
    AuxField,
    /// A flag is unknown.
    Flag,
    /// A time or epoch is not a number.
    Number,
    /// A slot or range of slots is malformed, or beyond the last slot.
    Slot,
    /// An earlier node has the flag `myself` too.
    SecondMyself,
    /// No node has the flag `myself`.
    NoMyself,
}

/// Something that parsing has changed. The new content should be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Repair {
    /// An unknown variable was skipped.
    UnknownVariable(String),
    /// A replica got the shard of its primary.
    ShardId {
        /// The replica.
        node: NodeId,
        /// The shard it had.
        from: NodeId,
    },
    /// A node lost slots that a node on an earlier line owns.
    SlotsTaken(NodeId),
    /// The current epoch was raised to this one, the highest of the nodes.
    CurrentEpoch(u64),
    /// A node that others refer to has no line.
    MissingNode(NodeId),
}

impl NodesConf {
    /// Reads the content of the file. An empty file is an error: Valkey treats it as absent, and so must the caller.
    ///
    /// `tls_bus` says whether the bus of this node uses TLS. It decides what the only port on a line is that was
    /// written before there were two.
    pub fn parse(content: &[u8], tls_bus: bool) -> Result<(NodesConf, Vec<Repair>), ParseError> {
        let mut parser = Parser { tls_bus, ..Parser::default() };
        let mut lines = 0;
        for line in content.split(|byte| *byte == b'\n') {
            lines += 1;
            parser.line(line).map_err(|kind| ParseError { line: lines, kind })?;
        }
        if parser.conf.myself().is_none() {
            return Err(ParseError { line: lines, kind: ParseErrorKind::NoMyself });
        }
        Ok(parser.finish())
    }
}

#[derive(Default)]
struct Parser {
    conf: NodesConf,
    repairs: Vec<Repair>,
    tls_bus: bool,
    /// The index of each node in `conf.nodes`.
    indexes: HashMap<NodeId, usize>,
    /// Nodes that lines refer to, in the order of the references.
    references: Vec<NodeId>,
    /// Slots that have an owner.
    owned: Slots,
    has_myself: bool,
}

impl Parser {
    fn line(&mut self, line: &[u8]) -> Result<(), ParseErrorKind> {
        let line = std::str::from_utf8(line).map_err(|_| ParseErrorKind::Utf8)?;
        let mut fields = line.split_ascii_whitespace();
        match fields.next() {
            None => Ok(()),
            Some(first) if first.eq_ignore_ascii_case("vars") => self.variables(fields),
            Some(first) => self.node(first, fields),
        }
    }

    fn variables<'a>(&mut self, mut fields: impl Iterator<Item = &'a str>) -> Result<(), ParseErrorKind> {
        while let Some(name) = fields.next() {
            let value = fields.next().ok_or(ParseErrorKind::Fields)?;
            if name.eq_ignore_ascii_case("currentEpoch") {
                self.conf.current_epoch = number(value)?;
            } else if name.eq_ignore_ascii_case("lastVoteEpoch") {
                self.conf.last_vote_epoch = number(value)?;
            } else {
                self.repairs.push(Repair::UnknownVariable(name.to_owned()));
            }
        }
        Ok(())
    }

    fn node<'a>(&mut self, id: &str, mut fields: impl Iterator<Item = &'a str>) -> Result<(), ParseErrorKind> {
        let mut columns = [""; NODE_FIELDS - 1];
        for column in &mut columns {
            *column = fields.next().ok_or(ParseErrorKind::Fields)?;
        }
        let [address, flags, primary, ping_sent, pong_received, config_epoch, link] = columns;
        let id = node_id(id)?;
        if self.indexes.contains_key(&id) {
            return Err(ParseErrorKind::DuplicateNode);
        }
        let mut node = Node::unknown(id);
        read_address(&mut node, address, self.tls_bus)?;
        node.flags = NodeFlags::parse_words(flags).map_err(|_| ParseErrorKind::Flag)?;
        if node.flags.contains(NodeFlags::NO_ADDRESS) {
            node.flags |= NodeFlags::FAIL;
        }
        if node.flags.contains(NodeFlags::MYSELF) && std::mem::replace(&mut self.has_myself, true) {
            return Err(ParseErrorKind::SecondMyself);
        }
        if !primary.starts_with('-') {
            let primary = node_id(primary)?;
            node.primary = Some(primary);
            self.references.push(primary);
        }
        node.ping_sent_ms = number(ping_sent)?;
        node.pong_received_ms = number(pong_received)?;
        node.config_epoch = number(config_epoch)?;
        if node.primary.is_some() {
            node.config_epoch = 0;
        }
        node.connected = link == "connected";
        for field in fields {
            self.slots(&mut node, field)?;
        }
        self.indexes.insert(id, self.conf.nodes.len());
        self.conf.nodes.push(node);
        Ok(())
    }

    /// Reads a slot, a range of slots, or a slot that is being moved.
    fn slots(&mut self, node: &mut Node, field: &str) -> Result<(), ParseErrorKind> {
        if let Some(open) = field.strip_prefix('[') {
            let open = open.strip_suffix(']').ok_or(ParseErrorKind::Slot)?;
            let (number, rest) = open.split_once('-').ok_or(ParseErrorKind::Slot)?;
            let (slots, other) = match rest.split_at_checked(2) {
                Some((">-", other)) => (&mut self.conf.migrating, other),
                Some(("<-", other)) => (&mut self.conf.importing, other),
                _ => return Err(ParseErrorKind::Slot),
            };
            let other = node_id(other)?;
            slots.insert(slot(number)?, other);
            self.references.push(other);
            return Ok(());
        }
        let mut taken = false;
        for slot in slot_range(field)? {
            if self.owned.insert(slot) {
                node.slots.insert(slot);
            } else {
                taken |= !node.slots.contains(slot);
            }
        }
        if taken && self.repairs.last() != Some(&Repair::SlotsTaken(node.id)) {
            self.repairs.push(Repair::SlotsTaken(node.id));
        }
        Ok(())
    }

    /// Repairs what only all lines together show.
    fn finish(mut self) -> (NodesConf, Vec<Repair>) {
        let mut missing = HashSet::new();
        for id in self.references {
            if !self.indexes.contains_key(&id) && missing.insert(id) {
                self.repairs.push(Repair::MissingNode(id));
                self.conf.nodes.push(Node::unknown(id));
            }
        }
        let shards: HashMap<NodeId, Option<NodeId>> =
            self.conf.nodes.iter().map(|node| (node.id, node.shard_id)).collect();
        for node in &mut self.conf.nodes {
            let Some(shard) = node.primary.and_then(|primary| shards.get(&primary)) else { continue };
            if let Some(from) = node.shard_id.filter(|shard_id| Some(*shard_id) != *shard) {
                self.repairs.push(Repair::ShardId { node: node.id, from });
            }
            node.shard_id = *shard;
        }
        let highest = self.conf.nodes.iter().map(|node| node.config_epoch).max().unwrap_or(0);
        if highest > self.conf.current_epoch {
            self.conf.current_epoch = highest;
            self.repairs.push(Repair::CurrentEpoch(highest));
        }
        (self.conf, self.repairs)
    }
}

/// Reads `ip:port@bus-port,hostname,name=value,...`. Everything from the `@` on may be missing.
fn read_address(node: &mut Node, text: &str, tls_bus: bool) -> Result<(), ParseErrorKind> {
    let mut parts = text.split(',');
    let address = parts.next().unwrap_or_default();
    let hostname = parts.next().unwrap_or_default();
    if !field::is_host(hostname) {
        return Err(ParseErrorKind::Address);
    }
    node.hostname = hostname.to_owned();
    let (mut has_tcp_port, mut has_tls_port) = (false, false);
    for part in parts {
        let (name, value) = part.split_once('=').ok_or(ParseErrorKind::AuxField)?;
        read_aux_field(node, name, value)?;
        has_tcp_port |= name == "tcp-port";
        has_tls_port |= name == "tls-port";
    }

    let (ip, ports) = address.rsplit_once(':').ok_or(ParseErrorKind::Address)?;
    let (port, bus_port) = match ports.split_once('@') {
        Some((port, bus_port)) => (port, Some(bus_port)),
        None => (ports, None),
    };
    if !field::is_address(ip) {
        return Err(ParseErrorKind::Address);
    }
    node.ip = ip.to_owned();
    let port: u16 = port.parse().map_err(|_| ParseErrorKind::Address)?;
    match (has_tcp_port, has_tls_port) {
        (false, false) if tls_bus => node.tls_port = port,
        (false, _) => node.tcp_port = port,
        (true, false) => node.tls_port = port,
        (true, true) => {}
    }
    node.bus_port = match bus_port {
        Some(bus_port) => bus_port.parse().ok(),
        None => if tls_bus { node.tls_port } else { node.tcp_port }.checked_add(BUS_PORT_OFFSET),
    }
    .ok_or(ParseErrorKind::Address)?;
    Ok(())
}

fn read_aux_field(node: &mut Node, name: &str, value: &str) -> Result<(), ParseErrorKind> {
    fn text<T: FromStr>(value: &str) -> Result<String, ParseErrorKind> {
        if !value.is_empty() && value.parse::<T>().is_err() {
            return Err(ParseErrorKind::AuxField);
        }
        Ok(value.to_owned())
    }
    if !field::is_value(value) {
        return Err(ParseErrorKind::AuxField);
    }
    let port = || value.parse().map_err(|_| ParseErrorKind::AuxField);
    match name {
        "shard-id" => node.shard_id = Some(node_id(value)?),
        "nodename" => node.human_name = value.to_owned(),
        "tcp-port" => node.tcp_port = port()?,
        "tls-port" => node.tls_port = port()?,
        "client-ipv4" => node.client_ipv4 = text::<Ipv4Addr>(value)?,
        "client-ipv6" => node.client_ipv6 = text::<Ipv6Addr>(value)?,
        "client-tcp-port" => node.client_tcp_port = port()?,
        "client-tls-port" => node.client_tls_port = port()?,
        "availability-zone" => node.availability_zone = value.to_owned(),
        _ => return Err(ParseErrorKind::AuxField),
    }
    Ok(())
}

fn node_id(text: &str) -> Result<NodeId, ParseErrorKind> {
    text.parse().map_err(|_| ParseErrorKind::NodeId)
}

fn number<T: FromStr>(text: &str) -> Result<T, ParseErrorKind> {
    text.parse().map_err(|_| ParseErrorKind::Number)
}

fn slot(text: &str) -> Result<u16, ParseErrorKind> {
    text.parse().ok().filter(|slot| *slot < SLOT_COUNT).ok_or(ParseErrorKind::Slot)
}

/// `n` or `first-last`, which has no slots if `first` is above `last`.
fn slot_range(text: &str) -> Result<RangeInclusive<u16>, ParseErrorKind> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok(slot(first)?..=slot(last)?)
}

impl fmt::Display for ParseErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParseErrorKind::Utf8 => "not UTF-8",
            ParseErrorKind::Fields => "missing fields",
            ParseErrorKind::NodeId => "invalid node ID or shard ID",
            ParseErrorKind::DuplicateNode => "duplicate node ID",
            ParseErrorKind::Address => "invalid address",
            ParseErrorKind::AuxField => "invalid auxiliary field",
            ParseErrorKind::Flag => "unknown flag",
            ParseErrorKind::Number => "invalid number",
            ParseErrorKind::Slot => "invalid slot",
            ParseErrorKind::SecondMyself => "a second node has the flag myself",
            ParseErrorKind::NoMyself => "no node has the flag myself",
        })
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.kind)
    }
}

impl std::error::Error for ParseError {}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Repair::UnknownVariable(name) => write!(f, "skipped the unknown variable '{name}'"),
            Repair::ShardId { node, from } => {
                write!(f, "moved replica {node} from shard {from} to that of its primary")
            }
            Repair::SlotsTaken(node) => write!(f, "removed slots of node {node} that an earlier node owns"),
            Repair::CurrentEpoch(epoch) => write!(f, "raised the current epoch to {epoch}"),
            Repair::MissingNode(node) => write!(f, "added node {node}, to which other nodes refer"),
        }
    }
}
