//! Links: the connections of the bus, and which node is at the other end of each.
//!
//! A node opens one link to every other node, on which it sends its PINGs and everything else it has to say, and on
//! which it receives PONGs. The link that the other node has opened is the inbound one; its owner is known when the
//! first message has arrived. The state machine numbers all links. The environment owns the connections.

use super::{Action, Cluster, Facts, NodeKey, log};
use crate::bus::MessageType;
use crate::flags::NodeFlags;
use crate::name_hash::NameHash;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// A link, for as long as its connection exists. Numbers are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

/// The addresses of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accepted<'a> {
    /// IP address of the other end.
    pub peer_ip: &'a str,
    /// Port of the other end.
    pub peer_port: u16,
    /// IP address of this end.
    pub local_ip: &'a str,
}

/// Which links of a node DEBUG CLUSTERLINK KILL closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkDirections {
    /// The one that this node has opened.
    To,
    /// The one that the other node has opened.
    From,
    /// Both.
    All,
}

/// What a queue without messages counts for `cluster-link-sendbuf-limit`, as in Valkey: a limit below this closes all
/// links again and again, which is a way to reset them.
const EMPTY_QUEUE_BYTES: u64 = 48;

/// All links. Their order means nothing.
pub(super) type Links = HashMap<LinkId, Box<Link>, NameHash>;

/// What is known of a link.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Whether the other end has opened it.
    pub(super) inbound: bool,
    /// The node at the other end. Always known for outbound links.
    pub(super) node: Option<NodeKey>,
    pub(super) created_ms: u64,
    pub(super) created_unix_ms: i64,
    /// Whether the connection is open.
    pub(super) connected: bool,
    pub(super) peer_ip: Arc<str>,
    pub(super) peer_port: u16,
    pub(super) local_ip: Arc<str>,
    /// Whether the other end understands extensions, as its messages say.
    pub(super) extensions: bool,
    /// Bytes that wait to be sent.
    pub(super) queued_bytes: u64,
}

impl Cluster {
    /// Another node has connected to the bus port. A primary that is loading its data must not accept connections:
    /// what is received can change the data.
    pub fn link_accepted(&mut self, connection: Accepted<'_>, facts: &Facts<'_>) -> LinkId {
        let link = self.add_link(None, facts);
        self.set_addresses(link, connection);
        link
    }

    /// A connection that [`Action::Connect`] has asked for is open.
    pub fn link_connected(&mut self, id: LinkId, connection: Accepted<'_>, facts: &Facts<'_>) {
        let Some(key) = self.links.get(&id).filter(|link| !link.inbound && !link.connected).and_then(|link| link.node)
        else {
            return;
        };
        self.set_addresses(id, connection);
        // A PING at once, so that the node is not suspected for the time that it was not connected.
        let unanswered = self.nodes.ping_sent(key);
        let meet = self.nodes[key].is(NodeFlags::MEET);
        self.send_ping(id, if meet { MessageType::Meet } else { MessageType::Ping }, facts);
        if unanswered.is_some() {
            self.nodes.set_ping_sent(key, unanswered);
        }
        log!(
            self,
            Debug,
            "Connecting with Node {} at {}:{}",
            self.nodes[key].id,
            self.nodes[key].ip,
            self.nodes[key].bus_port
        );
    }

    /// A connection was lost, or could not be opened. `reason` is for the log.
    pub fn link_closed(&mut self, id: LinkId, reason: &str, facts: &Facts<'_>) {
        let Some(link) = self.forget_link(id, facts.ms()) else { return };
        let Some(node) = link.node.filter(|_| !link.inbound && !link.connected) else { return };
        self.nodes.link_mut(node).is_address_dead = true;
        if self.nodes.ping_sent(node).is_none() {
            // Without a PING under way, nobody would ever suspect the node.
            self.nodes.set_ping_sent(node, Some(facts.ms()));
        }
        log!(
            self,
            Verbose,
            "Connection with Node {} at {}:{} failed: {reason}",
            self.nodes[link.node.unwrap_or(self.myself)].id,
            link.peer_ip,
            link.peer_port
        );
    }

    /// How many bytes wait to be sent on a link. Report it before [`Cluster::tick`], which closes links above the
    /// limit, and before [`Cluster::links`].
    pub fn link_send_buffer(&mut self, id: LinkId, bytes: u64) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.queued_bytes = bytes;
        if let Some(key) = link.node.filter(|_| bytes > self.settings.link_send_buffer_limit) {
            self.nodes.set_due(key, 0);
        }
    }

    /// Whether a link is known. If not, its connection is of no use any more.
    pub fn has_link(&self, id: LinkId) -> bool {
        self.links.contains_key(&id)
    }

    /// Opens a link to a node.
    pub(super) fn connect(&mut self, key: NodeKey, facts: &Facts<'_>) {
        let id = self.add_link(Some(key), facts);
        let node = self.nodes.link_mut(key);
        node.link = Some(id);
        self.text_changes += 1;
        let (ip, port) = (node.ip.clone(), node.bus_port);
        let resolve =
            self.settings.safety.resolve_hostnames && node.is_address_dead && !node.announced().hostname.is_empty();
        let hostname = resolve.then(|| node.announced().hostname.clone());
        if let Some(link) = self.links.get_mut(&id) {
            link.peer_ip = ip.clone();
            link.peer_port = port;
        }
        self.out.push(Action::Connect {
            link: id,
            node: self.nodes[key].id,
            ip: ip.as_ref().to_owned(),
            port,
            hostname,
        });
    }

    /// Closes a link, if there is one.
    pub(super) fn close_link(&mut self, id: Option<LinkId>, now_ms: u64) {
        let Some(id) = id else { return };
        if self.forget_link(id, now_ms).is_some() {
            self.out.push(Action::Disconnect(id));
        }
    }

    /// Notes which node is at the other end of an inbound link. Closes the one it had before.
    pub(super) fn bind_inbound(&mut self, key: NodeKey, id: LinkId, now_ms: u64) {
        if self.nodes[key].inbound != Some(id) {
            self.close_link(self.nodes[key].inbound, now_ms);
        }
        self.nodes.link_mut(key).inbound = Some(id);
        if let Some(link) = self.links.get_mut(&id) {
            link.node = Some(key);
            let ip = &self.nodes[key].ip;
            if link.peer_ip == *ip {
                link.peer_ip = ip.clone();
            }
            let (ip, port) = (link.peer_ip.clone(), link.peer_port);
            log!(self, Verbose, "Bound cluster node {} to connection of client {ip}:{port}", self.label(key));
        }
    }

    /// The node at the other end of an inbound link is not the one that was there before.
    pub(super) fn unbind_inbound(&mut self, key: NodeKey, id: LinkId, now_ms: u64) {
        let node = self.nodes.link_mut(key);
        if node.inbound == Some(id) {
            node.inbound = None;
            node.inbound_lost_ms = now_ms;
        }
        if let Some(link) = self.links.get_mut(&id) {
            link.node = None;
        }
    }

    /// Closes the links of a node that hold more unsent bytes than the limit.
    pub(super) fn enforce_send_buffer_limit(&mut self, key: NodeKey, now_ms: u64) {
        let limit = self.settings.link_send_buffer_limit;
        if limit == 0 {
            return;
        }
        for id in [self.nodes[key].link, self.nodes[key].inbound].into_iter().flatten() {
            let Some(link) = self.links.get(&id) else { continue };
            let (direction, bytes) = (if link.inbound { "from" } else { "to" }, link.queued_bytes + EMPTY_QUEUE_BYTES);
            if bytes <= limit {
                continue;
            }
            log!(
                self,
                Warning,
                "Freeing cluster link({direction} node {}, used memory: {bytes}) due to exceeding send buffer memory \
                 limit.",
                self.label(key)
            );
            self.close_link(Some(id), now_ms);
            self.statistics.links_over_limit += 1;
        }
    }

    fn add_link(&mut self, node: Option<NodeKey>, facts: &Facts<'_>) -> LinkId {
        let id = LinkId(self.next_link);
        self.next_link += 1;
        let link = Link {
            inbound: node.is_none(),
            node,
            created_ms: facts.ms(),
            created_unix_ms: facts.now.unix_ms,
            connected: false,
            peer_ip: Arc::default(),
            peer_port: 0,
            local_ip: Arc::default(),
            extensions: false,
            queued_bytes: 0,
        };
        self.links.insert(id, Box::new(link));
        id
    }

    fn set_addresses(&mut self, id: LinkId, connection: Accepted<'_>) {
        if let Some(link) = self.links.get_mut(&id) {
            link.connected = true;
            if *link.peer_ip != *connection.peer_ip {
                link.peer_ip = connection.peer_ip.into();
            }
            link.peer_port = connection.peer_port;
            if *self.local_ip != *connection.local_ip {
                self.local_ip = connection.local_ip.into();
            }
            link.local_ip = self.local_ip.clone();
        }
    }

    /// Removes a link, and the references of its node to it.
    fn forget_link(&mut self, id: LinkId, now_ms: u64) -> Option<Box<Link>> {
        let link = self.links.remove(&id)?;
        if let Some(key) = link.node.filter(|key| self.nodes.get(*key).is_some()) {
            let node = self.nodes.link_mut(key);
            if node.link == Some(id) {
                node.link = None;
                self.text_changes += 1;
                self.forget_told(key);
            } else if node.inbound == Some(id) {
                node.inbound = None;
                node.inbound_lost_ms = now_ms;
            }
        }
        Some(link)
    }
}

/// The usual text of an IP address. `None` if it is not one.
pub(super) fn normalize_ip(text: &str) -> Option<String> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_string())
}
