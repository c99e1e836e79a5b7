//! Subcommands that show the cluster as this node knows it.

use super::endpoint::{Endpoint, view};
use super::node;
use crate::cluster::Viewer;
use kvick_cluster::state::CommandError;
use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;

/// CLUSTER NODES
pub fn nodes(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    if let Some(endpoint) = Endpoint::of(cx)? {
        return endpoint.nodes(cx);
    }
    let (node, client) = (node(cx)?, view(cx));
    let text = node.read(|cluster, facts| cluster.shared_nodes_text(client, facts));
    cx.reply.verbatim(text.as_bytes(), "txt");
    Ok(())
}

/// CLUSTER SLOTS
pub fn slots(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    if let Some(endpoint) = Endpoint::of(cx)? {
        endpoint.slots(cx);
        return Ok(());
    }
    let viewer = Viewer { client: view(cx), version: cx.client.version };
    let published = node(cx)?.fresh();
    cx.reply.kept(published.slots(viewer));
    Ok(())
}

/// CLUSTER SHARDS
pub fn shards(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    if let Some(endpoint) = Endpoint::of(cx)? {
        return endpoint.shards(cx);
    }
    let viewer = Viewer { client: view(cx), version: cx.client.version };
    let published = node(cx)?.fresh();
    cx.reply.kept(published.shards(viewer));
    Ok(())
}

/// CLUSTER INFO
pub fn info(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let text = node(cx)?.info_text();
    cx.reply.verbatim(text.as_bytes(), "txt");
    Ok(())
}

/// CLUSTER MYID
pub fn my_id(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let id = node(cx)?.read(|cluster, _| cluster.my_id());
    cx.reply.bulk(id.as_bytes());
    Ok(())
}

/// CLUSTER MYSHARDID
pub fn my_shard_id(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let id = node(cx)?.read(|cluster, _| cluster.my_shard_id());
    cx.reply.bulk(id.as_bytes());
    Ok(())
}

/// CLUSTER REPLICAS and CLUSTER SLAVES
pub fn replicas(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if let Some(endpoint) = Endpoint::of(cx)? {
        return endpoint.replicas(cx, args);
    }
    let (node, client) = (node(cx)?, view(cx));
    let lines = node.read(|cluster, facts| cluster.replicas_lines(&args[2], client, facts));
    let lines = lines.map_err(|error: CommandError| Error::new(format!("ERR {error}")))?;
    cx.reply.array(lines.len());
    lines.iter().for_each(|line| cx.reply.bulk(line.as_bytes()));
    Ok(())
}

/// CLUSTER LINKS
pub fn links(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let links = node(cx)?.read(|cluster, _| cluster.links());
    cx.reply.array(links.len());
    for link in links {
        cx.reply.map(6);
        let text = |cx: &mut Session<'_>, name: &str, value: &[u8]| {
            cx.reply.bulk(name.as_bytes());
            cx.reply.bulk(value);
        };
        text(cx, "direction", if link.inbound { b"from" } else { b"to" });
        text(cx, "node", link.node.as_bytes());
        cx.reply.bulk(b"create-time");
        cx.reply.int(link.create_time_ms);
        text(cx, "events", if link.send_buffer > 0 { b"rw" } else { b"r" });
        for name in ["send-buffer-allocated", "send-buffer-used"] {
            cx.reply.bulk(name.as_bytes());
            cx.reply.uint(link.send_buffer);
        }
    }
    Ok(())
}

/// CLUSTER HELP
pub fn help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    super::super::help::reply(cx, "CLUSTER", HELP);
    Ok(())
}

const HELP: &[&str] = &[
    "ADDSLOTS <slot> [<slot> ...]",
    "    Assigns slots to this node.",
    "ADDSLOTSRANGE <start-slot> <end-slot> [<start-slot> <end-slot> ...]",
    "    Assigns ranges of slots to this node.",
    "BUMPEPOCH",
    "    Gives this node a new config epoch.",
    "CANCELSLOTMIGRATIONS",
    "    Cancels all slot migrations from this node.",
    "COUNT-FAILURE-REPORTS <node-id>",
    "    Returns how many nodes report that a node is failing.",
    "COUNTKEYSINSLOT <slot>",
    "    Returns the number of keys in a slot.",
    "DELSLOTS <slot> [<slot> ...]",
    "    Removes the owner of slots, on this node.",
    "DELSLOTSRANGE <start-slot> <end-slot> [<start-slot> <end-slot> ...]",
    "    Removes the owner of ranges of slots, on this node.",
    "FAILOVER [FORCE | TAKEOVER]",
    "    Makes this replica the primary of its shard.",
    "FLUSHSLOT <slot> [ASYNC | SYNC]",
    "    Deletes all keys of a slot.",
    "FLUSHSLOTS",
    "    Removes all slots of this node.",
    "FORGET <node-id>",
    "    Removes a node from the cluster.",
    "GETKEYSINSLOT <slot> <count>",
    "    Returns keys of a slot that this node has.",
    "GETSLOTMIGRATIONS",
    "    Returns running and recent slot migrations.",
    "INFO",
    "    Returns the state of the cluster.",
    "KEYSLOT <key>",
    "    Returns the slot of a key.",
    "LINKS",
    "    Returns the links of the cluster bus.",
    "MEET <ip> <port> [<bus-port>]",
    "    Joins the cluster of another node.",
    "MIGRATESLOTS SLOTSRANGE <start-slot> <end-slot> [...] NODE <node-id> [SLOTSRANGE ... NODE ...]",
    "    Migrates slots from this node to others.",
    "MYID",
    "    Returns the ID of this node.",
    "MYSHARDID",
    "    Returns the ID of the shard of this node.",
    "NODES",
    "    Returns a line per node: <id> <ip:port@bus-port[,hostname]> <flags> <primary> <ping-sent> <pong-received>",
    "    <config-epoch> <link-state> <slot> ...",
    "REPLICAS <node-id>",
    "    Returns the replicas of a node.",
    "REPLICATE (<node-id> | NO ONE)",
    "    Makes this node a replica of another node, or an empty primary.",
    "RESET [HARD | SOFT]",
    "    Removes this node from its cluster.",
    "SAVECONFIG",
    "    Saves the configuration file of the cluster.",
    "SET-CONFIG-EPOCH <epoch>",
    "    Sets the config epoch of a new node.",
    "SETSLOT <slot> (IMPORTING <node-id> | MIGRATING <node-id> | STABLE | NODE <node-id>) [TIMEOUT <ms>]",
    "    Opens or closes a slot, or sets its owner.",
    "SHARDS",
    "    Returns the shards with their slots and nodes.",
    "SLOT-STATS (SLOTSRANGE <start-slot> <end-slot> | ORDERBY <metric> [LIMIT <count>] [ASC | DESC])",
    "    Returns the use of slots.",
    "SLOTS",
    "    Returns ranges of slots with their nodes.",
];
