//! A cluster client: connections to all nodes, and the owners of slots as the client last heard.
//!
//! It follows MOVED, ASK, TRYAGAIN and CLUSTERDOWN, and connects again after a node has gone. A request that a node
//! refused, or that could not be sent, was not executed and can be sent again. If a connection breaks while a reply is
//! due, the request may have been executed or not.

use crate::common::wire::{Reply, Wire};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// How long a node may take for a reply. Pauses of writes are at most half as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shortest time between two requests for the slot map.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// A request: its words.
pub type Request = Vec<Vec<u8>>;

/// Makes a request of text.
pub fn request(words: &[&str]) -> Request {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The node executed it.
    Done(Reply),
    /// No node executed it: it can be sent again.
    Refused,
    /// The connection broke before the reply.
    Unknown,
}

/// What happened to a client.
#[derive(Debug, Default, Clone)]
pub struct Events {
    pub moved: u64,
    pub ask: u64,
    pub try_again: u64,
    pub down: u64,
    pub loading: u64,
    /// Broken connections by port.
    pub broken: BTreeMap<u16, u64>,
    /// Errors that no client of a cluster expects.
    pub unexpected: Vec<String>,
}

impl Events {
    /// Adds the events of another client.
    pub fn add(&mut self, other: &Events) {
        self.moved += other.moved;
        self.ask += other.ask;
        self.try_again += other.try_again;
        self.down += other.down;
        self.loading += other.loading;
        other.broken.iter().for_each(|(port, count)| *self.broken.entry(*port).or_default() += count);
        self.unexpected.extend(other.unexpected.iter().cloned());
    }
}

/// A client.
pub struct Client {
    ports: Vec<u16>,
    connections: HashMap<u16, Wire>,
    owners: HashMap<u16, u16>,
    refreshed: Option<Instant>,
    next_port: usize,
    pub events: Events,
}

impl Client {
    /// A client of the cluster with nodes at these ports.
    pub fn new(ports: &[u16]) -> Client {
        let (ports, connections, owners) = (ports.to_vec(), HashMap::new(), HashMap::new());
        Client { ports, connections, owners, refreshed: None, next_port: 0, events: Events::default() }
    }

    /// Sends requests, each for a slot, in one pipeline per node, followed by `last` if there is one. Returns the
    /// outcomes in the same order, and for each the reply to `last` of its pipeline.
    pub fn send(&mut self, requests: &[(u16, Request)], last: Option<&Request>) -> Vec<(Outcome, Option<Reply>)> {
        let mut results = vec![(Outcome::Refused, None); requests.len()];
        let mut pipelines: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (at, (slot, _)) in requests.iter().enumerate() {
            match self.owners.get(slot) {
                Some(port) => pipelines.entry(*port).or_default().push(at),
                None => self.refresh(),
            }
        }
        pipelines.retain(|port, positions| {
            let words = positions.iter().map(|at| requests[*at].1.clone()).chain(last.cloned());
            self.write(*port, &words.collect::<Vec<_>>(), positions, &mut results)
        });
        let mut asks: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (port, positions) in &pipelines {
            self.read(*port, positions, false, last.is_some(), &mut results, &mut asks);
        }
        asks.retain(|port, positions| {
            let asked = positions.iter().flat_map(|at| [request(&["ASKING"]), requests[*at].1.clone()]);
            self.write(*port, &asked.chain(last.cloned()).collect::<Vec<_>>(), positions, &mut results)
        });
        for (port, positions) in &asks {
            // A second ASK sends the request again later.
            self.read(*port, positions, true, last.is_some(), &mut results, &mut BTreeMap::new());
        }
        if results.iter().any(|(outcome, _)| *outcome != Outcome::Refused) {
            return results;
        }
        self.refresh();
        results
    }

    /// Sends a pipeline. Returns whether replies are due.
    fn write(
        &mut self,
        port: u16,
        pipeline: &[Request],
        at: &[usize],
        results: &mut [(Outcome, Option<Reply>)],
    ) -> bool {
        if !self.connections.contains_key(&port) {
            let Ok(wire) = Wire::connect(port, PATIENCE) else {
                self.refresh();
                return false;
            };
            self.connections.insert(port, wire);
        }
        let sent = self.connections.get_mut(&port).is_some_and(|wire| wire.send(pipeline).is_ok());
        if !sent {
            at.iter().for_each(|at| results[*at].0 = Outcome::Unknown);
            self.lose(port);
        }
        sent
    }

    fn lose(&mut self, port: u16) {
        self.connections.remove(&port);
        *self.events.broken.entry(port).or_default() += 1;
        self.refresh();
    }

    /// Reads the replies of a pipeline.
    fn read(
        &mut self,
        port: u16,
        positions: &[usize],
        asking: bool,
        has_last: bool,
        results: &mut [(Outcome, Option<Reply>)],
        asks: &mut BTreeMap<u16, Vec<usize>>,
    ) {
        let Some(mut wire) = self.connections.remove(&port) else { return };
        let mut broken = None;
        for at in positions {
            if asking && broken.is_none() {
                broken = wire.read().err();
            }
            let reply = if broken.is_some() { None } else { wire.read().map_err(|error| broken = Some(error)).ok() };
            results[*at].0 = match reply {
                None => Outcome::Unknown,
                Some(Reply::Error(error)) => self.refused(&error, *at, asks),
                Some(reply) => Outcome::Done(reply),
            };
        }
        if has_last && broken.is_none() {
            let last = wire.read().map_err(|error| broken = Some(error)).ok();
            positions.iter().for_each(|at| results[*at].1 = last.clone());
        }
        match broken {
            None => _ = self.connections.insert(port, wire),
            Some(error) => {
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) {
                    self.events.unexpected.push(format!("no reply from {port} within {PATIENCE:?}"));
                }
                self.lose(port);
            }
        }
    }

    fn refused(&mut self, error: &str, at: usize, asks: &mut BTreeMap<u16, Vec<usize>>) -> Outcome {
        let mut words = error.split(' ');
        let code = words.next().unwrap_or_default();
        let slot = words.next().and_then(|slot| slot.parse().ok());
        let port = words.next().and_then(|address| address.rsplit(':').next()?.parse().ok());
        match (code, slot, port) {
            ("MOVED", Some(slot), Some(port)) => {
                self.events.moved += 1;
                self.owners.insert(slot, port);
            }
            ("ASK", Some(_), Some(port)) => {
                self.events.ask += 1;
                asks.entry(port).or_default().push(at);
            }
            ("TRYAGAIN", ..) => self.events.try_again += 1,
            ("CLUSTERDOWN", ..) => self.events.down += 1,
            ("LOADING", ..) => self.events.loading += 1,
            _ => self.events.unexpected.push(error.to_owned()),
        }
        Outcome::Refused
    }

    /// Asks the next node for the slot map, unless that was done a moment ago.
    fn refresh(&mut self) {
        if self.refreshed.is_some_and(|at| at.elapsed() < REFRESH_INTERVAL) {
            return;
        }
        self.refreshed = Some(Instant::now());
        self.next_port = (self.next_port + 1) % self.ports.len();
        let port = self.ports[self.next_port];
        // A connection of its own: that of the requests may have replies due.
        let ranges = Wire::connect(port, PATIENCE).and_then(|mut wire| wire.ask(&["CLUSTER", "SLOTS"]));
        let Ok(ranges) = ranges else { return };
        for (first, last, port) in slot_ranges(&ranges) {
            (first..=last).for_each(|slot| _ = self.owners.insert(slot, port));
        }
    }
}

/// First slot, last slot and the owner's port of each range in a reply to CLUSTER SLOTS.
pub fn slot_ranges(reply: &Reply) -> Vec<(u16, u16, u16)> {
    let range = |range: &Reply| {
        let [first, last, owner, ..] = range.items() else { return None };
        Some((first.integer() as u16, last.integer() as u16, owner.items().get(1)?.integer() as u16))
    };
    reply.items().iter().filter_map(range).collect()
}
