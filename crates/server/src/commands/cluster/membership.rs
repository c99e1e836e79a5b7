//! Subcommands that change which nodes this node knows, and its role.

use super::{changed, lower, node, syntax_error};
use kvick_cluster::BUS_PORT_OFFSET;
use kvick_cluster::state::{BumpedEpoch, FailoverMode};
use kvick_commands::context::Error;
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;

/// CLUSTER MEET
pub fn meet(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let node = node(cx)?;
    if args.len() > 5 {
        return Err(syntax_error("meet"));
    }
    let invalid =
        |kind: &str, text: &[u8]| Error::new(format!("ERR Invalid {kind} port specified: {}", text.escape_ascii()));
    let port: i64 = parse_i64(&args[3]).ok_or_else(|| invalid("base", &args[3]))?;
    let port = valid_port(port).ok_or(Error::text("ERR Port number is out of range"))?;
    let bus_port = match args.get(4) {
        Some(text) => parse_i64(text).ok_or_else(|| invalid("bus", text))?,
        None => i64::from(port) + i64::from(BUS_PORT_OFFSET),
    };
    let bus_port = valid_port(bus_port).ok_or(Error::text("ERR Cluster bus port number is out of range"))?;
    let (ip, client) = (String::from_utf8_lossy(&args[2]), who(cx));
    changed(cx, node, |cluster, facts| cluster.meet(&ip, port, bus_port, &client, facts))?;
    cx.reply.ok();
    Ok(())
}

fn valid_port(port: i64) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

/// CLUSTER FORGET
pub fn forget(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, client) = (node(cx)?, who(cx));
    changed(cx, node, |cluster, facts| cluster.forget(&args[2], &client, facts))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER REPLICATE
pub fn replicate(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, client) = (node(cx)?, who(cx));
    match args.len() {
        3 => changed(cx, node, |cluster, facts| cluster.replicate(&args[2], facts))?,
        4 if lower(&args[2]) == b"no" && lower(&args[3]) == b"one" => changed(cx, node, |cluster, _| {
            cluster.replicate_no_one(&client);
            Ok(())
        })?,
        _ => return Err(syntax_error("replicate")),
    }
    cx.reply.ok();
    Ok(())
}

/// CLUSTER RESET
pub fn reset(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, client) = (node(cx)?, who(cx));
    if args.len() > 3 {
        return Err(syntax_error("reset"));
    }
    let is_hard = match args.get(2).map(lower).as_deref() {
        None | Some(b"soft") => false,
        Some(b"hard") => true,
        Some(_) => return Err(Error::text("ERR syntax error")),
    };
    changed(cx, node, |cluster, facts| cluster.reset(is_hard, &client, facts))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER FAILOVER
pub fn failover(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, client, from_primary) = (node(cx)?, who(cx), cx.client.is_primary());
    let (mut mode, mut replica, mut words) = (FailoverMode::Coordinated, None, args.iter().skip(2));
    while let Some(word) = words.next() {
        match &*lower(word) {
            b"takeover" => mode = FailoverMode::Takeover,
            b"force" if mode != FailoverMode::Takeover => mode = FailoverMode::Force,
            b"force" => {}
            // A primary that shuts down names the replica that is to take over.
            b"replicaid" if from_primary => replica = Some(words.next().ok_or(Error::text("ERR syntax error"))?),
            _ => return Err(Error::text("ERR syntax error")),
        }
    }
    changed(cx, node, |cluster, facts| cluster.failover(mode, replica, from_primary, &client, facts))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER BUMPEPOCH
pub fn bump_epoch(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let node = node(cx)?;
    let bumped = changed(cx, node, |cluster, _| Ok(cluster.bump_epoch()))?;
    cx.reply.simple(match bumped {
        BumpedEpoch::Bumped(epoch) => format!("BUMPED {epoch}"),
        BumpedEpoch::Still(epoch) => format!("STILL {epoch}"),
    });
    Ok(())
}

/// CLUSTER SET-CONFIG-EPOCH
pub fn set_config_epoch(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let node = node(cx)?;
    let epoch = parse_i64(&args[2]).ok_or(Error::text("ERR value is not an integer or out of range"))?;
    changed(cx, node, |cluster, _| cluster.set_config_epoch(epoch))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER COUNT-FAILURE-REPORTS
pub fn count_failure_reports(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let node = node(cx)?;
    let count = changed(cx, node, |cluster, facts| cluster.count_failure_reports(&args[2], facts))?;
    cx.reply.uint(count as u64);
    Ok(())
}

/// CLUSTER SAVECONFIG: answers when the file is on disk.
pub fn save_config(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let node = node(cx)?;
    node.save_for(cx);
    Ok(())
}

/// The client, as log lines name it.
fn who(cx: &Session<'_>) -> String {
    cx.client.info.described(cx.server.config.read(HIDE_USER_DATA_FROM_LOG))
}
