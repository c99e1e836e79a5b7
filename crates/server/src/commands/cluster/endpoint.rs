//! The cluster as clients see it whose requests are forwarded: one primary, this node, which has all slots. So a
//! cluster client never connects to another node.

use super::{lower, node};
use kvick_cluster::state::ClientView;
use kvick_commands::context::Error;
use kvick_config::tables::cluster::{CLUSTER_ANNOUNCE_HOSTNAME, CLUSTER_PREFERRED_ENDPOINT_TYPE};
use kvick_config::words::EndpointType;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_store::slot::SLOTS;

/// How the client is connected.
pub fn view(cx: &Session<'_>) -> ClientView {
    let viewer = cx.client.info.viewer();
    ClientView { tls: viewer.tls, ipv6: viewer.ipv6 }
}

/// This node as its only client sees it.
pub struct Endpoint {
    /// The address that the client uses.
    ip: String,
    /// What is shown as the host; `None` for the one that the client uses already (unknown-endpoint).
    host: Option<String>,
    port: u16,
    id: String,
}

impl Endpoint {
    /// The endpoint that a client is connected to; `None` if its requests are not forwarded.
    pub fn of(cx: &Session<'_>) -> Result<Option<Endpoint>, Error> {
        let address = cx.client.info.local.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (true, Some((host, port))) = (cx.client.forwarding.is_some(), address) else { return Ok(None) };
        let ip = host.trim_matches(['[', ']']).to_owned();
        let hostname = cx.server.config.read(CLUSTER_ANNOUNCE_HOSTNAME);
        let host = match cx.server.config.read(CLUSTER_PREFERRED_ENDPOINT_TYPE) {
            EndpointType::Ip => Some(ip.clone()),
            EndpointType::Hostname => {
                Some(hostname.map_or("?".to_owned(), |name| String::from_utf8_lossy(&name).into_owned()))
            }
            EndpointType::Unknown => None,
        };
        let id = node(cx)?.read(|cluster, _| cluster.my_id()).to_string();
        Ok(Some(Endpoint { ip, host, port, id }))
    }

    /// CLUSTER NODES: the line of this node with the address that the client uses, and all slots.
    pub fn nodes(&self, cx: &mut Session<'_>) -> Result<(), Error> {
        let node = node(cx)?;
        let bus = node.published().topology.myself().bus_port;
        let epoch = node.read(|cluster, _| cluster.my_epoch());
        let Endpoint { ip, port, id, .. } = self;
        let line = format!("{id} {ip}:{port}@{bus} myself,master - 0 0 {epoch} connected 0-{}\n", SLOTS - 1);
        cx.reply.verbatim(line.as_bytes(), "txt");
        Ok(())
    }

    /// CLUSTER REPLICAS: this node has none.
    pub fn replicas(&self, cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
        if *lower(&args[2]) != *self.id.as_bytes() {
            return Err(Error::new(format!("ERR Unknown node {}", String::from_utf8_lossy(&args[2]))));
        }
        cx.reply.array(0);
        Ok(())
    }

    /// CLUSTER SLOTS
    pub fn slots(&self, cx: &mut Session<'_>) {
        let reply = &mut cx.reply;
        reply.array(1);
        reply.array(3);
        reply.uint(0);
        reply.uint(u64::from(SLOTS) - 1);
        reply.array(4);
        match &self.host {
            Some(host) => reply.bulk(host.as_bytes()),
            None => reply.null(),
        }
        reply.uint(self.port.into());
        reply.bulk(self.id.as_bytes());
        if self.host.as_ref() == Some(&self.ip) {
            reply.map(0);
        } else {
            reply.map(1);
            reply.bulk(b"ip");
            reply.bulk(self.ip.as_bytes());
        }
    }

    /// CLUSTER SHARDS
    pub fn shards(&self, cx: &mut Session<'_>) -> Result<(), Error> {
        let shard = node(cx)?.read(|cluster, _| cluster.my_shard_id());
        let port_name: &[u8] = if view(cx).tls { b"tls-port" } else { b"port" };
        let reply = &mut cx.reply;
        reply.array(1);
        reply.map(3);
        reply.bulk(b"slots");
        reply.array(2);
        reply.uint(0);
        reply.uint(u64::from(SLOTS) - 1);
        reply.bulk(b"nodes");
        reply.array(1);
        reply.map(7);
        reply.bulk(b"id");
        reply.bulk(self.id.as_bytes());
        reply.bulk(port_name);
        reply.uint(self.port.into());
        let host = self.host.as_deref().unwrap_or_default();
        for (name, text) in [("ip", &self.ip[..]), ("endpoint", host), ("role", "master")] {
            reply.bulk(name.as_bytes());
            reply.bulk(text.as_bytes());
        }
        reply.bulk(b"replication-offset");
        reply.uint(0);
        reply.bulk(b"health");
        reply.bulk(b"online");
        reply.bulk(b"id");
        reply.bulk(shard.as_bytes());
        Ok(())
    }
}
