//! Carries operations out.

use crate::backend::{Backend, Member};
use crate::observe::Observer;
use crate::reconcile::Operation;
use crate::state::State;
use std::fmt::{self, Display, Formatter};
use std::io;

/// Starts an operation. Joins, migrations and promotions complete later.
///
/// # Errors
/// If the backend or the node refuses. The operation is planned again if it is still needed.
pub fn execute(
    operation: &Operation,
    state: &State,
    backend: &mut dyn Backend,
    observer: &mut Observer,
) -> io::Result<()> {
    let mut send = |name: &str, words: Vec<String>| observer.command(member(state, name)?, &words).map(drop);
    match operation {
        Operation::StartShard => {
            let shard = backend.new_shard()?;
            backend.start(shard).map(drop)
        }
        Operation::StartReplica(shard) => backend.start(*shard).map(drop),
        Operation::StartSpare => backend.start_spare().map(drop),
        Operation::UseSpare(name) => backend.use_spare(name),
        Operation::Restart(name) => backend.restart(name),
        Operation::Replace(name) => backend.replace(name),
        Operation::Remove(name) => backend.remove(name),
        Operation::SetLeaving(shard, is_leaving) => backend.set_leaving(*shard, *is_leaving),
        Operation::Meet(name, other) => {
            let Member { host, port, bus_port, .. } = member(state, other)?;
            send(name, words(&["CLUSTER", "MEET", host, &port.to_string(), &bus_port.to_string()]))
        }
        Operation::AddSlots(name, ranges) => send(name, with_ranges(&["CLUSTER", "ADDSLOTSRANGE"], ranges)),
        Operation::Replicate(name, id) => send(name, words(&["CLUSTER", "REPLICATE", id])),
        Operation::Migrate(name, ranges, id) => {
            let mut request = with_ranges(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"], ranges);
            request.extend(words(&["NODE", id]));
            send(name, request)
        }
        Operation::TakeOver(name) => send(name, words(&["CLUSTER", "FAILOVER", "TAKEOVER"])),
        Operation::Failover(name) => send(name, words(&["CLUSTER", "FAILOVER"])),
        Operation::Forget(name, id) => send(name, words(&["CLUSTER", "FORGET", id])),
        Operation::SetWorkers(name, workers) => {
            send(name, words(&["CONFIG", "SET", "io-threads", &workers.to_string()]))
        }
    }
}

fn member<'a>(state: &'a State, name: &str) -> io::Result<&'a Member> {
    let node = state.nodes.iter().find(|node| node.member.name == name);
    node.map(|node| &node.member).ok_or_else(|| io::Error::other(format!("there is no {name}")))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn with_ranges(first: &[&str], ranges: &[(u16, u16)]) -> Vec<String> {
    let numbers = ranges.iter().flat_map(|(first, last)| [first.to_string(), last.to_string()]);
    words(first).into_iter().chain(numbers).collect()
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let count =
            |ranges: &[(u16, u16)]| ranges.iter().map(|(first, last)| usize::from(last - first) + 1).sum::<usize>();
        match self {
            Operation::StartShard => write!(f, "start a shard"),
            Operation::StartReplica(shard) => write!(f, "start a replica of {shard}"),
            Operation::StartSpare => write!(f, "start a spare"),
            Operation::UseSpare(name) => write!(f, "make {name} a shard"),
            Operation::Restart(name) => write!(f, "restart {name}"),
            Operation::Replace(name) => write!(f, "replace {name}"),
            Operation::Remove(name) => write!(f, "remove {name}"),
            Operation::SetLeaving(shard, true) => write!(f, "drain {shard}"),
            Operation::SetLeaving(shard, false) => write!(f, "keep {shard}"),
            Operation::Meet(name, other) => write!(f, "join {other} to {name}"),
            Operation::AddSlots(name, ranges) => write!(f, "give {} slots to {name}", count(ranges)),
            Operation::Replicate(name, id) => write!(f, "make {name} a replica of {id:.8}"),
            Operation::Migrate(name, ranges, id) => write!(f, "move {} slots from {name} to {id:.8}", count(ranges)),
            Operation::TakeOver(name) => write!(f, "promote {name}"),
            Operation::Failover(name) => write!(f, "hand over to {name}"),
            Operation::Forget(name, id) => write!(f, "forget {id:.8} on {name}"),
            Operation::SetWorkers(name, workers) => write!(f, "set the workers of {name} to {workers}"),
        }
    }
}
