//! DEBUG subcommands for tests of the cluster bus.

use crate::cluster::ClusterNode;
use crate::server::HasServer;
use kvick_cluster::bus::MessageType;
use kvick_cluster::state::{DropFilter, LinkDirections};
use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;

/// The number that stands for all types of messages.
const ALL_TYPES: i64 = -2;

fn node(cx: &Session<'_>) -> Result<&'static ClusterNode, Error> {
    cx.server().cluster().ok_or(Error::text("ERR Debug option only available for cluster mode enabled setup!"))
}

fn switch(cx: &Session<'_>, text: &[u8]) -> Result<(&'static ClusterNode, bool), Error> {
    Ok((node(cx)?, parse_i64(text).is_some_and(|number| number != 0)))
}

/// DEBUG CLUSTERLINK KILL TO | FROM | ALL node-id: closes the links to or from a node.
pub fn kill_links(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let node = node(cx)?;
    let directions = match args[3].to_ascii_lowercase().as_slice() {
        _ if !args[2].eq_ignore_ascii_case(b"kill") => None,
        b"to" => Some(LinkDirections::To),
        b"from" => Some(LinkDirections::From),
        b"all" => Some(LinkDirections::All),
        _ => None,
    };
    let Some(directions) = directions else {
        return Err(Error::quoting(&[b"ERR Unknown direction ", &args[3]]));
    };
    let killed = node.change(cx.locked, |cluster, facts| cluster.kill_links(&args[4], directions, facts));
    killed.map_err(|error| Error::new(format!("ERR {error}")))?;
    cx.reply.ok();
    Ok(())
}

/// DEBUG DROP-CLUSTER-PACKET-FILTER type: drops received messages of a type; -1 for none, -2 for all.
pub fn drop_packets(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let node = node(cx)?;
    let filter = match parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)? {
        ALL_TYPES => DropFilter::All,
        number => match u16::try_from(number).ok().and_then(MessageType::from_number) {
            Some(kind) => DropFilter::Type(kind),
            None => DropFilter::None,
        },
    };
    node.debug(cx.locked, |debug| debug.drop = filter);
    cx.reply.ok();
    Ok(())
}

/// DEBUG CLOSE-CLUSTER-LINK-ON-PACKET-DROP 0|1: whether a link is closed when one of its messages is dropped.
pub fn close_link_on_drop(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, on) = switch(cx, &args[2])?;
    node.debug(cx.locked, |debug| debug.close_link_on_drop = on);
    cx.reply.ok();
    Ok(())
}

/// DEBUG DISABLE-CLUSTER-RANDOM-PING 0|1: whether no PINGs are sent to random nodes.
pub fn disable_random_ping(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, on) = switch(cx, &args[2])?;
    node.debug(cx.locked, |debug| debug.no_random_ping = on);
    cx.reply.ok();
    Ok(())
}

/// DEBUG DISABLE-CLUSTER-RECONNECTION 0|1: whether lost links are not opened again.
pub fn disable_reconnection(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, on) = switch(cx, &args[2])?;
    node.debug(cx.locked, |debug| debug.no_reconnection = on);
    cx.reply.ok();
    Ok(())
}
