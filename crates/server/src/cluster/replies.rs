//! The replies of CLUSTER SLOTS and CLUSTER SHARDS, rendered once for each kind of client and topology.

use kvick_cluster::NodeFlags;
use kvick_cluster::state::{ClientView, NO_OWNER, NodeView, Topology};
use kvick_config::words::EndpointType;
use kvick_resp::{KeptReply, Reply, Version};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Kinds of clients that get different replies: TLS or not, IPv6 or not, RESP3 or not.
const KINDS: usize = 8;

/// How old replication offsets in a reply may be.
const OFFSETS_AGE_MAX: Duration = Duration::from_millis(100);

/// A topology with the replies that clients were given.
pub struct Published {
    /// The topology.
    pub topology: Topology,
    /// `cluster-preferred-endpoint-type`.
    pub preferred: EndpointType,
    made: Instant,
    slots: [OnceLock<KeptReply>; KINDS],
    shards: [OnceLock<KeptReply>; KINDS],
}

/// What decides about the addresses and the encoding of a reply.
#[derive(Clone, Copy)]
pub struct Viewer {
    /// How the client is connected.
    pub client: ClientView,
    /// Its protocol.
    pub version: Version,
}

impl Viewer {
    fn kind(self) -> usize {
        let bits = [self.client.tls, self.client.ipv6, self.version == Version::Resp3];
        bits.iter().fold(0, |kind, bit| kind << 1 | usize::from(*bit))
    }
}

impl Published {
    /// A topology without replies. `preferred` is `cluster-preferred-endpoint-type`.
    pub fn new(topology: Topology, preferred: EndpointType) -> Self {
        Published { topology, preferred, made: Instant::now(), slots: Default::default(), shards: Default::default() }
    }

    /// Whether the replication offsets in it are as new as messages of other nodes make them.
    pub fn is_fresh(&self) -> bool {
        self.made.elapsed() < OFFSETS_AGE_MAX
    }

    /// The reply to CLUSTER SLOTS.
    pub fn slots(&self, viewer: Viewer) -> &KeptReply {
        self.slots[viewer.kind()].get_or_init(|| self.render(viewer, Self::render_slots))
    }

    /// The reply to CLUSTER SHARDS.
    pub fn shards(&self, viewer: Viewer) -> &KeptReply {
        self.shards[viewer.kind()].get_or_init(|| self.render(viewer, Self::render_shards))
    }

    fn render(&self, viewer: Viewer, render: impl Fn(&Self, &mut Reply<'_>, ClientView)) -> KeptReply {
        let mut bytes = Vec::new();
        render(self, &mut Reply::new(&mut bytes, viewer.version), viewer.client);
        KeptReply::new(bytes)
    }

    fn render_slots(&self, reply: &mut Reply<'_>, client: ClientView) {
        let mark = reply.deferred();
        let (mut count, mut first) = (0, 0);
        for range in self.topology.owners.chunk_by(|left, right| left == right) {
            let last = first + range.len() - 1;
            if range[0] != NO_OWNER {
                self.render_range(reply, client, usize::from(range[0]), (first, last));
                count += 1;
            }
            first = last + 1;
        }
        reply.set_array_len(mark, count);
    }

    fn render_range(&self, reply: &mut Reply<'_>, client: ClientView, owner: usize, (first, last): (usize, usize)) {
        let nodes = &self.topology.nodes;
        let replicas: Vec<_> = nodes[owner]
            .replicas
            .iter()
            .map(|replica| &nodes[*replica])
            .filter(|node| node.is_available_replica())
            .collect();
        reply.array(3 + replicas.len());
        reply.uint(first as u64);
        reply.uint(last as u64);
        self.render_endpoint(reply, client, &nodes[owner]);
        replicas.into_iter().for_each(|node| self.render_endpoint(reply, client, node));
    }

    fn render_endpoint(&self, reply: &mut Reply<'_>, client: ClientView, node: &NodeView) {
        reply.array(4);
        match self.preferred {
            EndpointType::Ip => reply.bulk(node.client_ip(client).as_bytes()),
            EndpointType::Hostname => reply.bulk(hostname_or_unknown(node).as_bytes()),
            EndpointType::Unknown => reply.null(),
        }
        reply.uint(node.client_port(client).into());
        reply.bulk(node.id.as_bytes());
        let mut more: Vec<(&str, &str)> = Vec::new();
        if self.preferred != EndpointType::Ip {
            more.push(("ip", node.client_ip(client)));
        }
        if self.preferred != EndpointType::Hostname && !node.hostname.is_empty() {
            more.push(("hostname", &node.hostname));
        }
        if !node.availability_zone.is_empty() {
            more.push(("availability-zone", &node.availability_zone));
        }
        reply.map(more.len());
        for (name, value) in more {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
    }

    fn render_shards(&self, reply: &mut Reply<'_>, client: ClientView) {
        let Topology { shards, nodes, .. } = &self.topology;
        reply.array(shards.len());
        for shard in shards {
            let members = || shard.nodes.iter().map(|member| &nodes[*member]);
            let slots = members().map(|node| &node.slots).find(|slots| !slots.is_empty());
            reply.map(3);
            reply.bulk(b"slots");
            reply.array(2 * slots.map_or(0, Vec::len));
            for (first, last) in slots.into_iter().flatten() {
                reply.uint((*first).into());
                reply.uint((*last).into());
            }
            reply.bulk(b"nodes");
            reply.array(shard.nodes.len());
            members().for_each(|node| self.render_node(reply, client, node));
            reply.bulk(b"id");
            reply.bulk(shard.id.as_bytes());
        }
    }

    fn render_node(&self, reply: &mut Reply<'_>, client: ClientView, node: &NodeView) {
        let mark = reply.deferred();
        let mut fields = 0;
        let mut field = |reply: &mut Reply<'_>, name: &str| {
            fields += 1;
            reply.bulk(name.as_bytes());
        };
        field(reply, "id");
        reply.bulk(node.id.as_bytes());
        for (name, port, tls) in [("port", node.tcp_port, false), ("tls-port", node.tls_port, true)] {
            if port != 0 {
                field(reply, name);
                reply.uint(node.client_port(ClientView { tls, ..client }).into());
            }
        }
        let endpoint = match self.preferred {
            EndpointType::Ip => node.client_ip(client),
            EndpointType::Hostname => hostname_or_unknown(node),
            EndpointType::Unknown => "",
        };
        for (name, text) in [("ip", node.client_ip(client)), ("endpoint", endpoint)] {
            field(reply, name);
            reply.bulk(text.as_bytes());
        }
        if !node.hostname.is_empty() {
            field(reply, "hostname");
            reply.bulk(node.hostname.as_bytes());
        }
        field(reply, "role");
        reply.bulk(if node.is_replica() { b"replica" } else { b"master" });
        field(reply, "replication-offset");
        reply.uint(node.replication_offset);
        field(reply, "health");
        reply.bulk(match () {
            () if node.flags.contains(NodeFlags::FAIL) => b"fail",
            () if node.is_replica() && node.replication_offset == 0 => b"loading",
            () => b"online",
        });
        if !node.availability_zone.is_empty() {
            field(reply, "availability-zone");
            reply.bulk(node.availability_zone.as_bytes());
        }
        reply.set_map_len(mark, fields);
    }
}

fn hostname_or_unknown(node: &NodeView) -> &str {
    if node.hostname.is_empty() { "?" } else { &node.hostname }
}
