//! Subcommands about slots: who owns them, and the keys in them.

use super::{changed, lower, node};
use kvick_cluster::SLOT_COUNT;
use kvick_cluster::state::SetSlot;
use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::EventClass;
use std::ops::RangeInclusive;

/// CLUSTER ADDSLOTS
pub fn add_slots(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, slots) = (node(cx)?, singles(args)?);
    changed(cx, node, |cluster, _| cluster.add_slots(&slots))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER DELSLOTS
pub fn del_slots(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, slots) = (node(cx)?, singles(args)?);
    changed(cx, node, |cluster, _| cluster.del_slots(&slots))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER ADDSLOTSRANGE
pub fn add_slot_ranges(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, slots) = (node(cx)?, ranges(args, "addslotsrange")?);
    changed(cx, node, |cluster, _| cluster.add_slots(&slots))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER DELSLOTSRANGE
pub fn del_slot_ranges(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, slots) = (node(cx)?, ranges(args, "delslotsrange")?);
    changed(cx, node, |cluster, _| cluster.del_slots(&slots))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER FLUSHSLOTS
pub fn flush_slots(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let node = node(cx)?;
    changed(cx, node, |cluster, facts| cluster.flush_slots(facts))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER SETSLOT
pub fn set_slot(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (node, from_primary) = (node(cx)?, cx.client.is_primary());
    // Errors about the state come before those about arguments.
    changed(cx, node, |cluster, facts| cluster.check_set_slot(0, SetSlot::Stable, from_primary, facts))?;
    let slot = slot(&args[2])?;
    let action = lower(&args[3]);
    let (change, rest) = match (&*action, args.get(4)) {
        (b"migrating", Some(name)) => (SetSlot::Migrating(name), 5),
        (b"importing", Some(name)) => (SetSlot::Importing(name), 5),
        (b"node", Some(name)) => (SetSlot::Node(name), 5),
        (b"stable", _) => (SetSlot::Stable, 4),
        _ => {
            return Err(Error::text("ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP"));
        }
    };
    changed(cx, node, |cluster, facts| cluster.check_set_slot(slot, change, from_primary, facts))?;
    let timeout_ms = timeout_ms(args, rest)?;
    if matches!(change, SetSlot::Importing(_)) {
        delete_doomed_keys(cx, slot);
    }
    if !from_primary && node.replicate_first(cx, args, slot, change, timeout_ms)? {
        return Ok(());
    }
    changed(cx, node, |cluster, facts| cluster.set_slot(slot, change, from_primary, facts))?;
    cx.reply.ok();
    Ok(())
}

/// Deletes the keys that a slot has left from the time before it went to another node: it is about to come back.
fn delete_doomed_keys(cx: &mut Session<'_>, slot: u16) {
    if !cx.server.keyspace.is_doomed(usize::from(slot)) {
        return;
    }
    let lazy = cx.settings.lazy_server_del;
    let command: &[u8] = if lazy { b"UNLINK" } else { b"DEL" };
    for number in 0..cx.server.keyspace.databases() {
        for name in cx.db(number).keys_in_slot(slot, usize::MAX) {
            let key = cx.server.keyspace.key(&name);
            if cx.db(number).remove(key, lazy) {
                cx.effects.propagate(&[command, &name]);
                cx.effects.notify(EventClass::GENERIC, "del", &name);
                cx.effects.changed(1);
            }
        }
    }
    cx.server.keyspace.set_doomed(usize::from(slot), false);
}

/// The option TIMEOUT in milliseconds, if given. Words that are no option are ignored, as by Valkey.
fn timeout_ms(args: Args<'_>, first: usize) -> Result<Option<i64>, Error> {
    let mut timeout_ms = None;
    let mut words = args.iter().skip(first);
    while let Some(word) = words.next() {
        if lower(word) == b"timeout" {
            let text = words.next().ok_or(Error::text("ERR Missing timeout value"))?;
            let ms = parse_i64(text).ok_or(Error::text("ERR timeout is not an integer or out of range"))?;
            if ms < 0 {
                return Err(Error::text("ERR timeout is negative"));
            }
            timeout_ms = Some(ms);
        }
    }
    Ok(timeout_ms)
}

/// CLUSTER COUNTKEYSINSLOT
pub fn count_keys(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    let slot = in_range(integer(&args[2])?).ok_or(Error::text("ERR Invalid slot"))?;
    let count = cx.server.keyspace.slot_len(cx.client.db, slot);
    cx.reply.uint(count as u64);
    Ok(())
}

/// CLUSTER GETKEYSINSLOT
pub fn get_keys(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    let (slot, count) = (integer(&args[2])?, integer(&args[3])?);
    let invalid = || Error::text("ERR Invalid slot or number of keys");
    let slot = in_range(slot).ok_or_else(invalid)?;
    let count = usize::try_from(count).map_err(|_| invalid())?;
    let db = cx.client.db;
    let keys = cx.db(db).keys_in_slot(slot, count);
    cx.reply.array(keys.len());
    keys.iter().for_each(|key| cx.reply.bulk(key));
    Ok(())
}

/// CLUSTER FLUSHSLOT
pub fn flush_slot(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    let slot = slot(&args[2])?;
    let lazy = match args.get(3).map(lower).as_deref() {
        _ if args.len() > 4 => return Err(super::syntax_error("flushslot")),
        None => cx.settings.lazy_user_flush,
        Some(b"async") => true,
        Some(b"sync") => false,
        Some(_) => return Err(Error::text("ERR syntax error")),
    };
    for number in 0..cx.server.keyspace.databases() {
        let deleted = cx.db(number).flush_slot(slot, lazy, true);
        cx.effects.changed(deleted as u64);
    }
    cx.effects.propagate_always();
    cx.reply.ok();
    Ok(())
}

/// A slot argument.
pub fn slot(text: &[u8]) -> Result<u16, Error> {
    parse_i64(text).and_then(in_range).ok_or(Error::text("ERR Invalid or out of range slot"))
}

fn in_range(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|slot| *slot < SLOT_COUNT)
}

fn integer(text: &[u8]) -> Result<i64, Error> {
    parse_i64(text).ok_or(Error::text("ERR value is not an integer or out of range"))
}

fn singles(args: Args<'_>) -> Result<Vec<RangeInclusive<u16>>, Error> {
    args.iter().skip(2).map(|text| slot(text).map(|slot| slot..=slot)).collect()
}

fn ranges(args: Args<'_>, name: &str) -> Result<Vec<RangeInclusive<u16>>, Error> {
    if !args.len().is_multiple_of(2) {
        return Err(Error::new(format!("ERR wrong number of arguments for 'cluster|{name}' command")));
    }
    let mut ranges = Vec::new();
    for at in (2..args.len()).step_by(2) {
        let (first, last) = (slot(&args[at])?, slot(&args[at + 1])?);
        if first > last {
            return Err(Error::new(format!("ERR start slot number {first} is greater than end slot number {last}")));
        }
        ranges.push(first..=last);
    }
    Ok(ranges)
}
