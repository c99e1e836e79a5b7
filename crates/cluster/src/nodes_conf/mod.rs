//! The content of `nodes.conf`, in which a node keeps its view of the cluster, as Valkey 9.1 writes and reads it.
//!
//! The file has a line per node, in any order, and a line with two epochs. Fields are separated by spaces:
//!
//! ```text
//! <id> <address> <flags> <primary or -> <ping sent> <pong received> <config epoch> <link state> [<slot> ...]
//! vars currentEpoch <epoch> lastVoteEpoch <epoch>
//! ```
//!
//! - The address is `ip:port@bus-port,hostname,name=value,...`. The port is the TCP port, also in clusters with TLS.
//!   The host name may be empty. The names are `availability-zone`, `client-tls-port`, `client-tcp-port`,
//!   `client-ipv6`, `client-ipv4`, `tls-port`, `nodename` and `shard-id`, written in this order. All but `tls-port`
//!   and `shard-id` are omitted if they have no value.
//! - Times are Unix time in milliseconds, or 0.
//! - The config epoch of a replica is written as that of its primary, and read as 0.
//! - A slot is `n`, `first-last`, `[n->-id]` (being migrated to a node) or `[n-<-id]` (being imported from a node).
//!   The last two stand on the line of the node itself.
//!
//! Nodes in handshake are not stored. [`NodesConf::parse`] repairs what Valkey repairs, and fails otherwise, because
//! a node that starts with a wrong view can take slots from others. Where Valkey reads leading digits of a malformed
//! number, parsing fails. Where a line has only whitespace, it does not.

mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{ParseError, ParseErrorKind, Repair};
pub(crate) use write::{Line, write_epochs};
pub use write::{TextField, WriteError};

use crate::Epoch;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::Slots;
use std::collections::BTreeMap;

/// A node's view of the cluster, as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodesConf {
    /// All nodes in the order of their lines. One of them has [`NodeFlags::MYSELF`].
    pub nodes: Vec<Node>,
    /// The highest epoch that the node knows.
    pub current_epoch: Epoch,
    /// The epoch in which it last voted.
    pub last_vote_epoch: Epoch,
    /// Slots of the node itself that are being migrated, with their destinations.
    pub migrating: BTreeMap<u16, NodeId>,
    /// Slots that the node itself is importing, with their sources.
    pub importing: BTreeMap<u16, NodeId>,
}

/// A node of the cluster. Texts are empty and ports 0 if they are not known or not set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name.
    pub id: NodeId,
    /// IP address.
    pub ip: String,
    /// TCP port for clients.
    pub tcp_port: u16,
    /// TLS port for clients.
    pub tls_port: u16,
    /// Port of the cluster bus.
    pub bus_port: u16,
    /// Announced host name.
    pub hostname: String,
    /// Announced name for people.
    pub human_name: String,
    /// The shard it is in. `None` if the file does not say: versions before 7.2 did not write it.
    pub shard_id: Option<NodeId>,
    /// IPv4 address that clients are redirected to.
    pub client_ipv4: String,
    /// IPv6 address that clients are redirected to.
    pub client_ipv6: String,
    /// TCP port that clients are redirected to.
    pub client_tcp_port: u16,
    /// TLS port that clients are redirected to.
    pub client_tls_port: u16,
    /// Availability zone.
    pub availability_zone: String,
    /// What the node is. Only [`NodeFlags::PERSISTED`] are stored.
    pub flags: NodeFlags,
    /// Its primary, if it is a replica.
    pub primary: Option<NodeId>,
    /// When an unanswered PING was sent: Unix time in milliseconds, or 0.
    pub ping_sent_ms: i64,
    /// When the last PONG was received: Unix time in milliseconds, or 0.
    pub pong_received_ms: i64,
    /// Epoch of its slots. 0 for a replica with a primary.
    pub config_epoch: Epoch,
    /// Whether there is a connection to it. Of no meaning when the file is read.
    pub connected: bool,
    /// Slots it owns.
    pub slots: Slots,
}

impl Node {
    /// A node of which only the name is known.
    pub fn unknown(id: NodeId) -> Node {
        Node {
            id,
            ip: String::new(),
            tcp_port: 0,
            tls_port: 0,
            bus_port: 0,
            hostname: String::new(),
            human_name: String::new(),
            shard_id: None,
            client_ipv4: String::new(),
            client_ipv6: String::new(),
            client_tcp_port: 0,
            client_tls_port: 0,
            availability_zone: String::new(),
            flags: NodeFlags::empty(),
            primary: None,
            ping_sent_ms: 0,
            pong_received_ms: 0,
            config_epoch: 0,
            connected: false,
            slots: Slots::EMPTY,
        }
    }
}

impl NodesConf {
    /// The node that the file belongs to.
    pub fn myself(&self) -> Option<&Node> {
        self.nodes.iter().find(|node| node.flags.contains(NodeFlags::MYSELF))
    }
}
