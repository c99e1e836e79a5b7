//! The shards of a cluster, or the one of a server without cluster mode.

use crate::access::Access;
use kvick_load::reply::Value;
use kvick_load::topology::SlotMap;
use std::io;

/// Nodes with the same slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Ranges of slots, ascending. Empty without cluster mode.
    pub slots: Vec<(u16, u16)>,
    /// Address of the primary.
    pub primary: String,
    /// Addresses of its replicas.
    pub replicas: Vec<String>,
}

/// All shards, as the first of `endpoints` that answers knows them, ordered by their first slot.
///
/// # Errors
/// If no server answers, or if a slot of the cluster has no owner: its keys would be missing.
pub fn find(endpoints: &[String], access: &Access) -> io::Result<Vec<Shard>> {
    let mut problem = io::Error::other("no endpoint");
    for endpoint in endpoints {
        match ask(endpoint, access) {
            Ok(shards) => return Ok(shards),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

fn ask(endpoint: &str, access: &Access) -> io::Result<Vec<Shard>> {
    let reply = access.client(endpoint)?.ask(&["CLUSTER", "SLOTS"])?;
    match reply {
        Value::Error(error) if error.contains("cluster support disabled") => {
            Ok(vec![Shard { slots: Vec::new(), primary: endpoint.to_owned(), replicas: Vec::new() }])
        }
        Value::Error(error) => Err(io::Error::other(format!("{endpoint}: {error}"))),
        reply => {
            let map = SlotMap::parse(&reply, endpoint);
            if map.covered() != kvick_load::topology::SLOTS {
                let missing = kvick_load::topology::SLOTS - map.covered();
                return Err(io::Error::other(format!("{endpoint}: {missing} slots have no owner")));
            }
            Ok(group(map))
        }
    }
}

/// Ranges by primary.
fn group(map: SlotMap) -> Vec<Shard> {
    let mut shards: Vec<Shard> = Vec::new();
    for (first, last, mut nodes) in map.ranges {
        let replicas = nodes.split_off(1);
        let primary = nodes.remove(0);
        match shards.iter_mut().find(|shard| shard.primary == primary) {
            Some(shard) => shard.slots.push((first, last)),
            None => shards.push(Shard { slots: vec![(first, last)], primary, replicas }),
        }
    }
    for shard in &mut shards {
        shard.slots.sort_unstable();
    }
    shards.sort_by(|one, other| one.slots.cmp(&other.slots));
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_primary_are_one_shard() {
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let ranges = vec![
            (100, 200, nodes(&["b:1"])),
            (8_000, 16_383, nodes(&["a:1", "a:2"])),
            (0, 99, nodes(&["a:1", "a:2"])),
            (201, 7_999, nodes(&["b:1"])),
        ];
        let shards = group(SlotMap { ranges });
        assert_eq!(shards.len(), 2);
        assert_eq!(shards[0].slots, [(0, 99), (8_000, 16_383)]);
        assert_eq!(shards[0].replicas, ["a:2"]);
        assert_eq!(shards[1].slots, [(100, 200), (201, 7_999)]);
    }
}
