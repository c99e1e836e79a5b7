//! Checks the whole cluster after a round: who owns which slot in the view of every node, and the content of every key
//! on its owner and on the owner's replica.
//!
//! A key must have exactly the writes that its client saw acknowledged, each once and in order, and of the writes of
//! unknown outcome each at most once. A node must have no other keys.

use crate::client::{Request, request, slot_ranges};
use crate::common::wire::{Reply, Wire};
use crate::writers::{Key, Kind};
use kvick_store::slot::{SLOTS, tag};
use std::collections::BTreeMap;
use std::io::Result;
use std::time::Duration;

/// How long a node may take for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests in one pipeline.
const PIPELINE: usize = 200;

/// Keys that are written before a round, per slot.
const STILL_KEYS_PER_SLOT: usize = 40;

/// A key that no client changes during a round.
pub struct StillKey {
    pub slot: u16,
    write: Request,
    read: Request,
    content: Reply,
}

/// Keys of several types in these slots. They make migrations take longer, and arrive unchanged.
pub fn still_keys(slots: &[u16]) -> Vec<StillKey> {
    let in_slot = |slot: &u16| (0..STILL_KEYS_PER_SLOT).map(|index| still_key(*slot, index)).collect::<Vec<_>>();
    slots.iter().flat_map(in_slot).collect()
}

fn still_key(slot: u16, index: usize) -> StillKey {
    let name = format!("{{{}}}:still:{index}", tag(slot));
    let items: Vec<String> = (0..20).map(|item| format!("{:04}", item * (index + 1))).collect();
    let bulk = |text: &String| Reply::Bulk(text.clone().into_bytes());
    let (write, read, content): (Vec<&str>, Vec<&str>, Reply) = match index % 4 {
        0 => (vec!["SET", &name], vec!["GET", &name], Reply::Bulk("x".repeat(500 + index).into_bytes())),
        1 => (vec!["RPUSH", &name], vec!["LRANGE", &name, "0", "-1"], Reply::Array(items.iter().map(bulk).collect())),
        2 => (vec!["HSET", &name], vec!["HGETALL", &name], Reply::Array(items.iter().map(bulk).collect())),
        _ => (vec!["XADD", &name, "1-1"], vec!["XRANGE", &name, "-", "+"], {
            let fields = Reply::Array(items.iter().map(bulk).collect());
            Reply::Array(vec![Reply::Array(vec![Reply::Bulk(b"1-1".to_vec()), fields])])
        }),
    };
    let mut write = request(&write);
    match &content {
        Reply::Bulk(text) => write.push(text.clone()),
        _ => write.extend(items.iter().map(|item| item.clone().into_bytes())),
    }
    StillKey { slot, write, read: request(&read), content }
}

/// Writes the keys to their owners, by the ports of these.
pub fn write_still_keys(keys: &[StillKey], owner: impl Fn(u16) -> u16) -> Result<()> {
    let requests = keys.iter().map(|key| (owner(key.slot), key.write.clone()));
    for reply in ask_all(requests.collect(), false)? {
        assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
    }
    Ok(())
}

/// Sends requests to nodes by their ports; the replies in the same order.
fn ask_all(requests: Vec<(u16, Request)>, from_replica: bool) -> Result<Vec<Reply>> {
    let mut by_port: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    requests.iter().enumerate().for_each(|(at, (port, _))| by_port.entry(*port).or_default().push(at));
    let mut replies = vec![Reply::Null; requests.len()];
    for (port, positions) in by_port {
        let mut wire = Wire::connect(port, PATIENCE)?;
        if from_replica {
            wire.ask(&["READONLY"])?;
        }
        for some in positions.chunks(PIPELINE) {
            wire.send(&some.iter().map(|at| requests[*at].1.clone()).collect::<Vec<_>>())?;
            for at in some {
                replies[*at] = wire.read()?;
            }
        }
    }
    Ok(replies)
}

/// The owner of each slot by its port, in the view of a node; 0 for slots without one.
pub fn owners(port: u16) -> Result<Vec<u16>> {
    let mut owners = vec![0; usize::from(SLOTS)];
    for (first, last, owner) in slot_ranges(&Wire::connect(port, PATIENCE)?.ask(&["CLUSTER", "SLOTS"])?) {
        owners[usize::from(first)..=usize::from(last)].fill(owner);
    }
    Ok(owners)
}

/// The owner of each slot if all nodes agree and every slot has one; why not otherwise.
pub fn agreed_owners(ports: &[u16]) -> std::result::Result<Vec<u16>, String> {
    let mut agreed: Option<Vec<u16>> = None;
    for port in ports {
        let view = owners(*port).map_err(|error| format!("{port}: {error}"))?;
        if let Some(slot) = view.iter().position(|owner| *owner == 0) {
            return Err(format!("{port} knows no owner of slot {slot}"));
        }
        match &agreed {
            None => agreed = Some(view),
            Some(other) => {
                if let Some(slot) = (0..view.len()).find(|slot| view[*slot] != other[*slot]) {
                    let (one, two) = (other[slot], view[slot]);
                    return Err(format!("{port} has {two} as the owner of slot {slot}, {} has {one}", ports[0]));
                }
            }
        }
    }
    agreed.ok_or_else(|| "no nodes".into())
}

/// All violations, in words. `replicas` maps the ports of owners to those of their replicas, which are in sync.
pub fn violations(
    keys: &[Key],
    still: &[StillKey],
    owners: &[u16],
    replicas: &BTreeMap<u16, u16>,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let owner = |slot: u16| owners[usize::from(slot)];
    let replica = |slot: u16| replicas.get(&owner(slot)).copied().unwrap_or(0);
    let mut present: BTreeMap<u16, i64> = BTreeMap::new();
    for from_replica in [false, true] {
        let port = |slot: u16| if from_replica { replica(slot) } else { owner(slot) };
        let read = |key: &Key| match key.kind {
            Kind::List => request(&["LRANGE", &key.name, "0", "-1"]),
            Kind::Text | Kind::Register | Kind::Flag => request(&["GET", &key.name]),
        };
        let replies = ask_all(keys.iter().map(|key| (port(key.slot), read(key))).collect(), from_replica)?;
        for (key, reply) in keys.iter().zip(replies) {
            if matches!(reply, Reply::Bulk(_)) || !reply.items().is_empty() {
                *present.entry(port(key.slot)).or_default() += 1;
            }
            if let Err(what) = content_of(key, &reply) {
                found.push(format!("{} (slot {}, {:?}) on {}: {what}", key.name, key.slot, key.kind, port(key.slot)));
            }
        }
        let replies = ask_all(still.iter().map(|key| (port(key.slot), key.read.clone())).collect(), from_replica)?;
        for (key, reply) in still.iter().zip(replies) {
            *present.entry(port(key.slot)).or_default() += 1;
            if reply != key.content {
                let (name, port) = (String::from_utf8_lossy(&key.read[1]).into_owned(), port(key.slot));
                found.push(format!("{name} (slot {}) on {port} has {reply:?}", key.slot));
            }
        }
    }
    for port in replicas.iter().flat_map(|(owner, replica)| [*owner, *replica]) {
        let size = Wire::connect(port, PATIENCE)?.ask(&["DBSIZE"])?.integer();
        let expected = present.get(&port).copied().unwrap_or(0);
        if size != expected {
            found.push(format!("{port} has {size} keys, {expected} are in its slots"));
        }
    }
    Ok(found)
}

/// Whether the content is possible after what the client knows of its writes.
fn content_of(key: &Key, reply: &Reply) -> std::result::Result<(), String> {
    let numbers = match (key.kind, reply) {
        (Kind::List, Reply::Array(items)) => items.iter().map(|item| item.text().parse().unwrap_or(0)).collect(),
        (Kind::Text, Reply::Bulk(text)) => {
            let number = |digits: &[u8]| std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            text.chunks(8).map(|digits| number(digits).unwrap_or(0)).collect()
        }
        (Kind::Register | Kind::Flag, Reply::Bulk(_)) => vec![reply.text().parse().unwrap_or(0)],
        (Kind::Text | Kind::Register | Kind::Flag, Reply::Null) => Vec::new(),
        _ => return Err(format!("has {reply:?}")),
    };
    match key.kind {
        Kind::List | Kind::Text => all_writes(&numbers, &key.acknowledged, &key.unknown),
        Kind::Register | Kind::Flag => {
            let value: u32 = numbers.first().copied().unwrap_or(0);
            last_write(value, key.kind == Kind::Flag, &key.acknowledged, &key.unknown)
        }
    }
}

fn all_writes(numbers: &[u32], acknowledged: &[u32], unknown: &[u32]) -> std::result::Result<(), String> {
    if let Some(pair) = numbers.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(format!("write {} comes after {}", pair[1], pair[0]));
    }
    let has = |sorted: &[u32], number: &u32| sorted.binary_search(number).is_ok();
    let missing: Vec<_> = acknowledged.iter().filter(|number| !has(numbers, number)).collect();
    if !missing.is_empty() {
        let (last, shown) = (acknowledged.last(), &missing[..missing.len().min(10)]);
        return Err(format!("{} acknowledged writes of 1 to {last:?} are missing: {shown:?}", missing.len()));
    }
    match numbers.iter().find(|number| !has(acknowledged, number) && !has(unknown, number)) {
        Some(number) => Err(format!("write {number} was not sent")),
        None => Ok(()),
    }
}

fn last_write(value: u32, is_flag: bool, acknowledged: &[u32], unknown: &[u32]) -> std::result::Result<(), String> {
    let last = acknowledged.last().copied().unwrap_or(0);
    let mut possible = unknown.iter().copied().filter(|number| *number > last).chain([last]);
    // An absent flag shows that the last write had an even number.
    let fits = |number: u32| number == value || is_flag && value == 0 && number.is_multiple_of(2);
    match possible.any(fits) {
        true => Ok(()),
        false => Err(format!("has write {value}, the last acknowledged one is {last}, unknown are {unknown:?}")),
    }
}

#[test]
fn lost_doubled_reordered_and_invented_writes_are_found() {
    assert_eq!(all_writes(&[1, 2, 4], &[1, 4], &[2, 3]), Ok(()));
    assert!(all_writes(&[1, 4], &[1, 2, 4], &[]).is_err(), "2 is lost");
    assert!(all_writes(&[1, 2, 2], &[1, 2], &[]).is_err(), "2 is doubled");
    assert!(all_writes(&[2, 1], &[1, 2], &[]).is_err(), "the order is wrong");
    assert!(all_writes(&[1, 2, 3], &[1, 2], &[]).is_err(), "3 was never sent");
    assert_eq!(last_write(5, false, &[1, 3], &[2, 4, 5]), Ok(()));
    assert_eq!(last_write(3, false, &[1, 3], &[2, 4]), Ok(()));
    assert!(last_write(2, false, &[1, 3], &[2, 4]).is_err(), "3 is lost");
    assert!(last_write(0, false, &[1, 2], &[]).is_err(), "a register is not deleted");
    assert_eq!(last_write(0, true, &[1, 2], &[]), Ok(()));
    assert!(last_write(0, true, &[1, 2, 3], &[]).is_err(), "3 is lost");
}
