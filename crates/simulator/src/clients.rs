//! Clients that write: each has keys of its own and numbers its writes, so that every acknowledged write can be looked
//! for afterwards.

use crate::data::Entry;
use crate::event::Event;
use crate::host::{Reply, Request};
use crate::world::World;
use kvick_cluster::NodeId;
use kvick_cluster::bus::ClusterState;
use std::collections::BTreeMap;

/// Keys of a client.
pub(crate) const KEYS: u32 = 8;

/// How long a client waits for a reply.
const TIMEOUT_MS: u64 = 1500;

/// Longest time between two writes of a client.
const THINK_MS_MAX: u64 = 150;

/// Redirections that a client follows for one write.
const HOPS_MAX: u32 = 6;

/// A client.
#[derive(Default)]
pub(crate) struct Client {
    /// The number of its last write.
    number: u32,
    /// Whether it waits for the reply to that write.
    is_waiting: bool,
    /// Which host it believes to own a slot.
    owners: BTreeMap<u16, usize>,
    /// Whether it does not write any more.
    pub(crate) is_done: bool,
}

impl World {
    /// The slot of a key. Keys of the same index share a slot, and so do clients.
    pub(crate) fn slot_of(&self, client: usize, key: u32) -> u16 {
        ((client as u32 * 7 + key) * 1367 % u32::from(kvick_cluster::SLOT_COUNT)) as u16
    }

    /// Clients begin to write.
    pub(crate) fn start_clients(&mut self) {
        for client in 0..self.clients.len() {
            self.queue.push(self.now_ms, Event::ClientTurn { client });
        }
    }

    pub(crate) fn client_turn(&mut self, client: usize) {
        if self.clients[client].is_done || self.clients[client].is_waiting {
            return;
        }
        let key = client as u32 * KEYS + self.random.u32(0..KEYS);
        let slot = self.slot_of(client, key % KEYS);
        let random_host = self.random.usize(0..self.hosts.len());
        let host = self.clients[client].owners.get(&slot).copied().unwrap_or(random_host);
        let state = &mut self.clients[client];
        state.number += 1;
        state.is_waiting = true;
        let waits = self.setup.waits;
        let request = Request { client, number: state.number, slot, key, waits, asking: false, hops: 0 };
        self.send_request(host, request);
        let at_ms = self.now_ms + TIMEOUT_MS;
        self.queue.push(at_ms, Event::ClientTimeout { client, number: request.number });
    }

    fn send_request(&mut self, host: usize, request: Request) {
        let endpoint = self.hosts.len() + request.client;
        if !self.net.is_cut(endpoint, host) && !self.hosts[host].is_off {
            let at_ms = self.now_ms + self.net.delay_ms(endpoint, host, &mut self.random);
            self.queue.push(at_ms, Event::Request { host, request });
        }
    }

    pub(crate) fn reply(&mut self, host: usize, request: Request, reply: Reply) {
        let endpoint = self.hosts.len() + request.client;
        if !self.net.is_cut(host, endpoint) {
            let at_ms = self.now_ms + self.net.delay_ms(host, endpoint, &mut self.random);
            self.queue.push(at_ms, Event::Reply { request, host, reply });
        }
    }

    pub(crate) fn client_timeout(&mut self, client: usize, number: u32) {
        if self.clients[client].is_waiting && self.clients[client].number == number {
            self.clients[client].owners.clear();
            self.end_turn(client);
        }
    }

    fn end_turn(&mut self, client: usize) {
        self.clients[client].is_waiting = false;
        let at_ms = self.now_ms + self.random.u64(1..=THINK_MS_MAX);
        self.queue.push(at_ms, Event::ClientTurn { client });
    }

    pub(crate) fn receive_reply(&mut self, request: Request, host: usize, reply: Reply) {
        let client = &mut self.clients[request.client];
        if !client.is_waiting || client.number != request.number {
            return;
        }
        let (target, asking) = match reply {
            Reply::Done { everywhere } => {
                client.owners.insert(request.slot, host);
                let everywhere = everywhere && self.is_at_new_owners(host, &request);
                self.oracle.acknowledge(&request, everywhere);
                self.end_turn(request.client);
                return;
            }
            Reply::Down => {
                client.owners.remove(&request.slot);
                self.end_turn(request.client);
                return;
            }
            Reply::Moved(id) => {
                let target = self.by_id.get(&id).copied();
                if let Some(target) = target {
                    client.owners.insert(request.slot, target);
                }
                (target, false)
            }
            Reply::Ask(id) => (self.by_id.get(&id).copied(), true),
        };
        match target.filter(|_| request.hops < HOPS_MAX) {
            Some(target) => self.send_request(target, Request { asking, hops: request.hops + 1, ..request }),
            None => {
                self.clients[request.client].owners.clear();
                self.end_turn(request.client);
            }
        }
    }

    /// A process gets a write.
    pub(crate) fn execute(&mut self, host: usize, request: Request) {
        let now_ms = self.clock(host).mono_ms;
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let cluster = &process.cluster;
        let Some(owner) = cluster.slot_owner(request.slot) else {
            self.reply(host, request, Reply::Down);
            return;
        };
        let topology_says = |id: NodeId| if id == cluster.my_id() { Reply::Down } else { Reply::Moved(id) };
        let is_mine = owner == cluster.my_id() && cluster.is_primary();
        let may_import = request.asking && cluster.is_primary() && cluster.importing_from(request.slot).is_some();
        let denial = if cluster.state() != ClusterState::Ok || cluster.waits_for_takeover() {
            Some(Reply::Down)
        } else if !is_mine && !may_import {
            Some(topology_says(owner))
        } else {
            let is_here = process.data.numbers(request.slot, request.key).is_some();
            cluster.migrating_to(request.slot).filter(|_| is_mine && !is_here).map(Reply::Ask)
        };
        if let Some(denial) = denial {
            self.reply(host, request, denial);
            return;
        }
        if process.is_paused(now_ms) {
            process.paused_requests.push(request);
            return;
        }
        if process.migrations.holds(request.slot) {
            process.migrations.hold(request);
            return;
        }
        let Request { slot, key, number, .. } = request;
        self.trace.detail(self.now_ms, || format!("host {host}: write {number} to key {key} in slot {slot}"));
        self.append(host, Entry::Write { slot, key, number });
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if request.waits {
            process.waiting.push((process.data.offset, request));
            self.check_waiting(host);
        } else {
            self.reply(host, request, Reply::Done { everywhere: false });
        }
    }

    /// Whether all nodes of the shard of a host have a write: they could all become its primary.
    pub(crate) fn is_everywhere(&self, host: usize, request: &Request) -> bool {
        self.is_in_shard(host, request.slot, request.key, request.number)
    }

    /// Whether all nodes of the shard of a host have a write.
    pub(crate) fn is_in_shard(&self, host: usize, slot: u16, key: u32, number: u32) -> bool {
        let Some(shard) = self.cluster(host).map(|cluster| cluster.my_shard_id()) else { return false };
        (0..self.hosts.len()).all(|other| {
            let other = &self.hosts[other];
            let (is_member, data) = match &other.process {
                Some(process) => (process.cluster.my_shard_id() == shard, Some(&process.data)),
                None => (other.last_shard == Some(shard), other.stored.as_ref()),
            };
            !is_member || data.is_some_and(|data| data.contains(slot, key, number))
        })
    }
}
