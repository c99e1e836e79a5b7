//! Which target of a [`Driver`] gets a request.

use super::{Driver, Target};
use crate::config::{self, Topology};
use crate::connection::Connection;
use crate::topology::{SLOTS, SlotMap};
use crate::workload::Plan;
use std::collections::VecDeque;
use std::io;

/// Nodes that a cluster may have.
const TARGETS_MAX: usize = 4096;

/// Which target gets a request.
pub(super) struct Routes {
    topology: Topology,
    reads_replicas: bool,
    /// For requests that several targets can answer.
    next: usize,
    /// The owner of each slot.
    owners: Vec<u32>,
    /// The replicas of each slot: an index into `replica_sets`.
    replicas: Vec<u32>,
    replica_sets: Vec<Vec<usize>>,
}

impl Routes {
    pub(super) fn new(target: &config::Target) -> Routes {
        let slots = if target.topology == Topology::Cluster { SLOTS } else { 0 };
        Routes {
            topology: target.topology,
            reads_replicas: target.read_replicas,
            next: 0,
            owners: vec![0; slots],
            replicas: vec![0; slots],
            replica_sets: vec![Vec::new()],
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.topology == Topology::Cluster
    }

    pub(super) fn set_owner(&mut self, slot: u16, target: usize) {
        self.owners[slot as usize] = target as u32;
    }
}

impl Driver {
    /// The target of a request.
    #[inline]
    pub(super) fn route(&mut self, plan: &Plan) -> usize {
        let count = self.targets.len();
        match self.routes.topology {
            Topology::Single if count == 1 => 0,
            Topology::Single => self.next_of(0, count),
            Topology::Replicated if self.job.source.is_read(plan.kind) => self.next_of(1, count),
            Topology::Replicated => 0,
            Topology::Cluster => {
                let slot = self.job.source.slot(plan) as usize;
                if self.routes.reads_replicas && self.job.source.is_read(plan.kind) {
                    let replicas = &self.routes.replica_sets[self.routes.replicas[slot] as usize];
                    if !replicas.is_empty() {
                        self.routes.next = self.routes.next.wrapping_add(1);
                        return replicas[self.routes.next % replicas.len()];
                    }
                }
                self.routes.owners[slot] as usize
            }
        }
    }

    /// One of the targets from `first` to before `end`: the next in turn with a connection that has room.
    fn next_of(&mut self, first: usize, end: usize) -> usize {
        let count = end - first;
        for _ in 0..count {
            self.routes.next = self.routes.next.wrapping_add(1);
            let target = first + self.routes.next % count;
            if !self.targets[target].listed.is_empty() {
                return target;
            }
        }
        first + self.routes.next % count
    }

    pub(super) fn add_configured_targets(&mut self) -> io::Result<()> {
        match self.routes.topology {
            Topology::Cluster => {
                let slots = std::mem::take(&mut self.job.slots);
                self.apply_slots(&slots);
                if self.targets.is_empty() {
                    return Err(io::Error::other("no node of the cluster serves slots"));
                }
            }
            _ => {
                let endpoints = self.job.config.target.endpoints.clone();
                // Replicas outside a cluster answer reads without READONLY.
                for endpoint in &endpoints {
                    self.add_target(endpoint, false);
                }
            }
        }
        Ok(())
    }

    pub(super) fn apply_slots(&mut self, slots: &SlotMap) {
        self.routes.replica_sets.truncate(1);
        self.routes.replicas.fill(0);
        for (first, last, nodes) in &slots.ranges {
            let range = usize::from(*first)..=usize::from(*last);
            let owner = self.target_of(&nodes[0]);
            self.routes.owners[range.clone()].fill(owner as u32);
            if self.routes.reads_replicas && nodes.len() > 1 {
                let set: Vec<usize> = nodes[1..].iter().map(|node| self.replica_target_of(node)).collect();
                self.routes.replicas[range].fill(self.routes.replica_sets.len() as u32);
                self.routes.replica_sets.push(set);
            }
        }
        let mut has_slots = vec![false; self.targets.len()];
        self.routes.owners.iter().for_each(|owner| has_slots[*owner as usize] = true);
        self.routes.replica_sets.iter().flatten().for_each(|replica| has_slots[*replica] = true);
        for (target, has_slots) in self.targets.iter_mut().zip(has_slots) {
            target.has_left = !has_slots;
        }
        self.move_waiting();
    }

    /// Requests that wait for a node which no longer owns their slot go to the new owner.
    fn move_waiting(&mut self) {
        let mut moved = Vec::new();
        for target in 0..self.targets.len() {
            if self.targets[target].listed.is_empty() {
                moved.extend(self.targets[target].waiting.drain(..));
            }
        }
        moved.sort_by_key(|plan| plan.intended_ns);
        for plan in moved {
            let target = self.route(&plan);
            self.targets[target].waiting.push_back(plan);
        }
        let now = self.clock.now_ns();
        (0..self.targets.len()).for_each(|target| self.serve_waiting(target, now));
    }

    /// The target with an address, which is added if it is new.
    pub(super) fn target_of(&mut self, endpoint: &str) -> usize {
        self.find_or_add(endpoint, false)
    }

    fn replica_target_of(&mut self, endpoint: &str) -> usize {
        self.find_or_add(endpoint, true)
    }

    fn find_or_add(&mut self, endpoint: &str, is_replica: bool) -> usize {
        let known = self.targets.iter().position(|target| target.endpoint == endpoint);
        known.unwrap_or_else(|| {
            // A node that invents addresses must not exhaust the memory.
            if self.targets.len() >= TARGETS_MAX { 0 } else { self.add_target(endpoint, is_replica) }
        })
    }

    fn add_target(&mut self, endpoint: &str, is_replica: bool) -> usize {
        let target = self.targets.len();
        let is_capturing = self.job.source.reads_replies();
        let first = self.connections.len();
        let added = (0..self.job.connections).map(|_| Connection::new(target, is_capturing));
        self.connections.extend(added);
        self.targets.push(Target {
            endpoint: endpoint.to_owned(),
            // In a cluster, a replica may become a primary and the other way round: READONLY is harmless then.
            is_replica: is_replica || self.routes.reads_replicas,
            connections: (first..self.connections.len()).collect(),
            listed: VecDeque::new(),
            waiting: VecDeque::new(),
            has_left: false,
        });
        target
    }
}
