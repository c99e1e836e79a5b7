//! Faults, and operations of an administrator, at random times.

use crate::data::{Entry, SlotChange};
use crate::event::Event;
use crate::network::Cut;
use crate::setup::{HUGE, Setup, Workload};
use crate::world::World;
use kvick_cluster::state::FailoverMode;
use kvick_cluster::{BUS_PORT_OFFSET, NodeFlags, NodeId, SLOT_COUNT};
use std::collections::BTreeSet;

/// How a fault ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    Start {
        host: usize,
        life: u32,
    },
    /// The process goes on. If the whole machine had stopped, its monotonic clock has as well.
    Resume {
        host: usize,
        life: u32,
        since_ms: u64,
        machine: bool,
    },
    /// Begins a fault at a host.
    Disturb {
        host: usize,
        fault: Fault,
    },
    Uncut(u64),
    Fast(usize),
    /// The next step of a slot's migration.
    SetSlot {
        step: u8,
        slot: u16,
        source: usize,
        target: usize,
    },
}

/// The faults of a run.
#[derive(Default)]
pub(crate) struct Faults {
    /// No new ones begin.
    pub(crate) is_over: bool,
    cuts: u64,
    /// Hosts that an administrator wants to be replicas of some primary.
    rejoining: BTreeSet<usize>,
    /// When the migration of a slot that began last is given up.
    slot_deadline_ms: u64,
    /// The host that is restarted next.
    restarted: usize,
    /// The names of all nodes, and the process and topology in which there was no other name, by host.
    names: BTreeSet<NodeId>,
    without_ghosts: Vec<Option<(u32, u64)>>,
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Kill,
    Power,
    Stop,
    Partition,
    OneWay,
    Slow,
    BreakLinks,
    Clock,
    Manual,
    Force,
    Takeover,
    Reset,
    Forget,
    Address,
    Restart,
    SetSlot,
    MigrateSlots,
    CancelMigrations,
    KillReplica,
    KillEmpty,
}

impl Setup {
    fn random_fault(&self, random: &mut fastrand::Rng) -> Option<Fault> {
        let weights = self.workload.weights();
        let faults = [
            (weights.kill, Fault::Kill),
            (weights.power, Fault::Power),
            (weights.stop, Fault::Stop),
            (weights.partition, Fault::Partition),
            (weights.one_way, Fault::OneWay),
            (weights.slow, Fault::Slow),
            (weights.break_links, Fault::BreakLinks),
            (weights.clock, Fault::Clock),
            (weights.manual, Fault::Manual),
            (weights.force, Fault::Force),
            (weights.takeover, Fault::Takeover),
            (weights.reset, Fault::Reset),
            (weights.forget, Fault::Forget),
            (weights.address, Fault::Address),
            (weights.restart, Fault::Restart),
            (weights.set_slot, Fault::SetSlot),
            (weights.migrate_slots, Fault::MigrateSlots),
            (weights.cancel_migrations, Fault::CancelMigrations),
            (weights.kill_replica, Fault::KillReplica),
            (weights.kill_empty, Fault::KillEmpty),
        ];
        let sum = faults.iter().map(|(weight, _)| weight).sum();
        let mut place = if sum == 0 { return None } else { random.u32(0..sum) };
        for (weight, fault) in faults {
            if place < weight {
                return Some(fault);
            }
            place -= weight;
        }
        None
    }
}

impl World {
    pub(crate) fn start_faults(&mut self) {
        self.queue.push(self.now_ms, Event::Fault);
    }

    /// Begins a fault, and schedules the next one.
    pub(crate) fn next_fault(&mut self) {
        if self.faults.is_over {
            return;
        }
        let timeout_ms = self.setup.settings.node_timeout_ms;
        // Runs of huge clusters last for few node timeouts.
        let bound_ms = if self.hosts.len() >= HUGE { timeout_ms } else { timeout_ms * 3 };
        let at_ms = self.now_ms + self.random.u64(timeout_ms / 10..bound_ms);
        self.queue.push(at_ms, Event::Fault);
        let Some(fault) = self.setup.random_fault(&mut self.random) else { return };
        let host = self.random.usize(0..self.hosts.len());
        self.trace.note(self.now_ms, || format!("fault {fault:?} (host {host})"));
        self.begin_fault(fault, host);
    }

    fn begin_fault(&mut self, fault: Fault, host: usize) {
        let timeout_ms = self.setup.settings.node_timeout_ms;
        match fault {
            Fault::Kill => self.crash(host, false),
            Fault::Power => self.crash(host, true),
            Fault::KillReplica => {
                if let Some(replica) = self.random_replica() {
                    self.crash(replica, false);
                }
            }
            Fault::KillEmpty => self.restart_empty(host),
            Fault::Restart => {
                let next = self.faults.restarted % self.hosts.len();
                self.faults.restarted += 1;
                self.crash(next, false);
            }
            Fault::Address => self.change_address(host),
            Fault::Stop => self.stop(host),
            Fault::Partition => self.cut(true),
            Fault::OneWay => self.cut(false),
            Fault::Slow => {
                let bound_ms = if self.is_calm() { timeout_ms / 50 } else { timeout_ms };
                self.net.slowness_ms[host] = self.random.u64(0..=bound_ms);
                let at_ms = self.now_ms + self.fault_ms();
                self.queue.push(at_ms, Event::EndFault(Box::new(Ending::Fast(host))));
            }
            Fault::BreakLinks => self.break_links(host),
            Fault::Clock => self.hosts[host].clock.skew_ms += self.random.i64(-100_000..=100_000),
            Fault::Manual => self.fail_over(FailoverMode::Coordinated),
            Fault::Force => self.fail_over(FailoverMode::Force),
            Fault::Takeover => self.fail_over(FailoverMode::Takeover),
            Fault::Reset => self.reset_replica(),
            Fault::Forget => self.forget_replica(),
            Fault::SetSlot => self.move_slot(),
            Fault::MigrateSlots => self.migrate_slots(),
            Fault::CancelMigrations => self.cancel_migrations(host),
        }
    }

    /// A migration has reached a step at a host: sometimes something happens to that host or to its shard.
    pub(crate) fn disturb_migration(&mut self, host: usize) {
        let is_focused = matches!(self.setup.workload, Workload::Atomic | Workload::AtomicFaults);
        if !is_focused || self.faults.is_over || self.random.u8(0..24) != 0 {
            return;
        }
        let fault = match self.random.u8(0..7) {
            0 => Fault::Manual,
            1 | 2 => Fault::BreakLinks,
            3 if !self.is_calm() => Fault::Kill,
            4 if !self.is_calm() => Fault::Power,
            5 if !self.is_calm() => Fault::Stop,
            6 if !self.is_calm() => Fault::Partition,
            _ => Fault::Slow,
        };
        // Not now: the process is in the middle of an input.
        let at_ms = self.now_ms + self.random.u64(0..=2);
        self.trace.note(self.now_ms, || format!("a migration on host {host} is disturbed: {fault:?}"));
        self.queue.push(at_ms, Event::EndFault(Box::new(Ending::Disturb { host, fault })));
    }

    /// Whether nothing may last as long as the node timeout.
    fn is_calm(&self) -> bool {
        self.setup.promise == crate::setup::Promise::All || self.setup.workload == crate::setup::Workload::Empty
    }

    /// How long a fault lasts.
    fn fault_ms(&mut self) -> u64 {
        let timeout_ms = self.setup.settings.node_timeout_ms;
        match self.random.u8(0..4) {
            0 => self.random.u64(1..=timeout_ms / 2),
            1 | 2 => self.random.u64(timeout_ms / 2..=timeout_ms * 3),
            _ => self.random.u64(timeout_ms * 3..=timeout_ms * 8),
        }
    }

    /// A process ends; with `power` the whole machine does. It starts again after some time.
    fn crash(&mut self, host: usize, power: bool) {
        if !self.end_process(host, power) {
            return;
        }
        let at_ms = self.now_ms + self.fault_ms();
        let life = self.hosts[host].life;
        self.queue.push(at_ms, Event::EndFault(Box::new(Ending::Start { host, life })));
    }

    /// Ends a process. Returns whether there was one.
    pub(crate) fn end_process(&mut self, index: usize, power: bool) -> bool {
        let keeps_data = self.setup.persistence;
        let keeps_new = self.random.bool();
        self.note_forgotten_grants(index);
        let host = &mut self.hosts[index];
        let Some(process) = host.process.take() else { return false };
        host.last_shard = Some(process.cluster.my_shard_id());
        host.last_id = Some(process.cluster.my_id());
        host.stored = if keeps_data { Some(process.data) } else { None };
        host.inbox.clear();
        host.is_stopped = false;
        host.is_off = power;
        // A save under way may have come to its end, or not. What was not synchronized, a loss of power may undo.
        let pending = host.disk.pending.take().filter(|_| keeps_new);
        if let Some(content) = pending {
            host.disk.cached = Some(content);
        } else if power && !keeps_new {
            host.disk.cached.clone_from(&host.disk.durable);
        }
        host.disk.durable.clone_from(&host.disk.cached);
        self.trace.note(self.now_ms, || format!("host {index}: process ends, power lost: {power}"));
        for conn in self.net.of_host(index) {
            let Some(state) = self.net.get_mut(conn) else { continue };
            let side = usize::from(state.ends[0].host != index);
            if power {
                // Nobody tells the other end.
                state.ends[side].closed = true;
                if state.ends[1 - side].closed {
                    self.net.remove(conn);
                }
            } else {
                self.close_end(conn, side);
            }
        }
        true
    }

    /// A primary restarts so soon that nobody suspects it, without its data.
    fn restart_empty(&mut self, host: usize) {
        let is_primary = self.cluster(host).is_some_and(|cluster| cluster.is_primary());
        if !is_primary || !self.shard_is_in_sync(host) || !self.end_process(host, false) {
            return;
        }
        let at_ms = self.now_ms + self.random.u64(1..=self.setup.settings.node_timeout_ms / 2);
        let life = self.hosts[host].life;
        self.queue.push(at_ms, Event::EndFault(Box::new(Ending::Start { host, life })));
    }

    /// Whether a primary has a replica, and all hosts run and all replicas follow their primaries.
    fn shard_is_in_sync(&self, host: usize) -> bool {
        let all_run = (0..self.hosts.len()).all(|host| self.is_running(host));
        let process = self.hosts[host].process.as_ref();
        all_run && process.is_some_and(|process| process.online_replicas().next().is_some()) && self.all_in_sync()
    }

    fn change_address(&mut self, host: usize) {
        // If all move while they do not see each other, only an administrator can bring them together again.
        let all_meet = self.net.cuts.is_empty() && (0..self.hosts.len()).all(|host| self.is_running(host));
        if !all_meet || !self.addresses_are_known() || !self.end_process(host, false) {
            return;
        }
        let ip = self.new_ip();
        let old = std::mem::replace(&mut self.hosts[host].ip, ip.clone());
        self.by_ip.remove(&old);
        self.by_ip.insert(ip, host);
        // Sometimes another machine gets the address that has become free.
        let other = self.random.usize(0..self.hosts.len());
        if other != host && self.random.u8(0..8) == 0 && self.end_process(other, false) {
            let freed = std::mem::replace(&mut self.hosts[other].ip, old.clone());
            self.by_ip.remove(&freed);
            self.by_ip.insert(old, other);
            let life = self.hosts[other].life;
            let at_ms = self.now_ms + self.fault_ms() / 2;
            self.queue.push(at_ms, Event::EndFault(Box::new(Ending::Start { host: other, life })));
        }
        let life = self.hosts[host].life;
        let at_ms = self.now_ms + self.fault_ms() / 2;
        self.queue.push(at_ms, Event::EndFault(Box::new(Ending::Start { host, life })));
    }

    fn stop(&mut self, host: usize) {
        if !self.is_running(host) {
            return;
        }
        self.hosts[host].is_stopped = true;
        let machine = self.random.bool();
        let at_ms = self.now_ms + self.fault_ms();
        let ending = Ending::Resume { host, life: self.hosts[host].life, since_ms: self.now_ms, machine };
        self.queue.push(at_ms, Event::EndFault(Box::new(ending)));
    }

    /// Divides the endpoints, in both directions or in one.
    fn cut(&mut self, both: bool) {
        let endpoints = self.net.slowness_ms.len();
        let mut one: Vec<bool> = (0..endpoints).map(|_| self.random.bool()).collect();
        if self.random.bool() {
            // A single host.
            let host = self.random.usize(0..self.hosts.len());
            one.iter_mut().enumerate().for_each(|(index, member)| *member = index == host);
        }
        self.cut_off(one, both);
    }

    /// Cuts these endpoints off from all others.
    fn cut_off(&mut self, one: Vec<bool>, both: bool) {
        let other: Vec<bool> = one.iter().map(|member| !member).collect();
        self.faults.cuts += 1;
        let id = self.faults.cuts;
        self.net.cuts.push(Cut { id, from: one.clone(), to: other.clone() });
        if both {
            self.net.cuts.push(Cut { id, from: other, to: one.clone() });
        }
        self.trace.note(self.now_ms, || {
            let members: Vec<usize> = (0..one.len()).filter(|index| one[*index]).collect();
            format!("cut {id} in both directions: {both}; from hosts {members:?}")
        });
        let at_ms = self.now_ms + self.fault_ms();
        self.queue.push(at_ms, Event::EndFault(Box::new(Ending::Uncut(id))));
    }

    /// Closes some connections of a host at both ends.
    fn break_links(&mut self, host: usize) {
        for conn in self.net.of_host(host) {
            if self.random.u8(0..3) != 0 {
                continue;
            }
            for side in 0..2 {
                let Some(end) = self.net.get(conn).map(|conn| conn.ends[side].clone()) else { continue };
                if !end.closed && end.life != 0 {
                    self.input(end.host, end.life, crate::host::Input::Closed(conn, side));
                }
            }
        }
    }

    /// Running replicas.
    fn random_replica(&mut self) -> Option<usize> {
        let replicas: Vec<usize> = (0..self.hosts.len())
            .filter(|host| self.is_running(*host) && self.cluster(*host).is_some_and(|cluster| !cluster.is_primary()))
            .collect();
        if replicas.is_empty() { None } else { Some(replicas[self.random.usize(0..replicas.len())]) }
    }

    fn fail_over(&mut self, mode: FailoverMode) {
        if let Some(replica) = self.random_replica() {
            self.fail_over_to(replica, mode);
        }
    }

    /// CLUSTER FAILOVER of a replica of a primary.
    fn fail_over_shard_of(&mut self, primary: usize) {
        let Some(id) = self.cluster(primary).map(|cluster| cluster.my_id()) else { return };
        let is_replica = |host: &usize| self.cluster(*host).and_then(|cluster| cluster.my_primary()) == Some(id);
        if let Some(replica) = (0..self.hosts.len()).find(is_replica) {
            self.fail_over_to(replica, FailoverMode::Coordinated);
        }
    }

    fn fail_over_to(&mut self, replica: usize, mode: FailoverMode) {
        self.trace.note(self.now_ms, || format!("host {replica}: CLUSTER FAILOVER {mode:?}"));
        self.command(replica, |cluster, facts| cluster.failover(mode, None, false, "simulator", facts).is_ok());
    }

    fn reset_replica(&mut self) {
        let Some(host) = self.random_replica() else { return };
        let hard = self.random.bool();
        self.trace.note(self.now_ms, || format!("host {host}: CLUSTER RESET, hard: {hard}"));
        if let Some(id) = self.cluster(host).map(|cluster| cluster.my_id()) {
            self.oracle.reset(host, id, hard);
        }
        self.command(host, |cluster, facts| cluster.reset(hard, "simulator", facts).is_ok());
        self.faults.rejoining.insert(host);
    }

    fn forget_replica(&mut self) {
        let Some(host) = self.random_replica() else { return };
        let Some(id) = self.cluster(host).map(|cluster| cluster.my_id()) else { return };
        self.trace.note(self.now_ms, || format!("CLUSTER FORGET of host {host}"));
        for other in 0..self.hosts.len() {
            if other != host {
                self.command(other, |cluster, facts| cluster.forget(id.as_bytes(), "simulator", facts).is_ok());
            }
        }
    }

    /// Begins to move a slot between two primaries.
    fn move_slot(&mut self) {
        let client = self.random.usize(0..self.clients.len().max(1));
        let slot = if self.random.bool() || self.clients.is_empty() {
            self.random.u16(0..SLOT_COUNT)
        } else {
            let key = self.random.u32(0..crate::clients::KEYS);
            self.slot_of(client, key)
        };
        let primaries: Vec<usize> = (0..self.hosts.len())
            .filter(|host| self.is_running(*host))
            .filter(|host| self.cluster(*host).is_some_and(|cluster| !cluster.my_slots().is_empty()))
            .collect();
        let owns = |host: &&usize| self.cluster(**host).is_some_and(|cluster| cluster.my_slots().contains(slot));
        let Some(source) = primaries.iter().find(owns).copied() else { return };
        let target = primaries[self.random.usize(0..primaries.len())];
        if source != target {
            self.set_slot_step(0, slot, source, target);
        }
    }

    /// The steps of a migration as `valkey-cli` takes them: each begins when the one before it has succeeded.
    fn set_slot_step(&mut self, step: u8, slot: u16, source: usize, target: usize) {
        let id_of = |host: usize| self.cluster(host).map(|cluster| cluster.my_id());
        let (Some(source_id), Some(target_id)) = (id_of(source), id_of(target)) else { return };
        let is_importing = self.cluster(target).is_some_and(|cluster| cluster.importing_from(slot).is_some());
        let is_migrating = self.cluster(source).is_some_and(|cluster| cluster.migrating_to(slot).is_some());
        let has_moved = self.cluster(target).is_some_and(|cluster| cluster.my_slots().contains(slot));
        let is_due = match step {
            0 => true,
            1 => is_importing,
            2 => is_importing && is_migrating,
            3 => self.hosts[source].process.as_ref().is_some_and(|process| !process.data.keys.contains_key(&slot)),
            _ => has_moved,
        };
        if !is_due {
            // A reply that is missing for so long has been lost: the administrator gives up.
            let is_given_up = self.now_ms >= self.faults.slot_deadline_ms || self.faults.is_over;
            if !is_given_up {
                self.next_set_slot(step, slot, source, target);
            }
            return;
        }
        self.trace.note(self.now_ms, || format!("slot {slot} from {source} to {target}: step {step}"));
        let goes_on = match step {
            0 => {
                self.faults.slot_deadline_ms = self.now_ms + 20_000;
                self.replicated_change(target, slot, SlotChange::Importing(source_id))
            }
            1 => self.replicated_change(source, slot, SlotChange::Migrating(target_id)),
            2 => self.move_keys(slot, source, target),
            3 => self.replicated_change(target, slot, SlotChange::Node(target_id)),
            4 => self.replicated_change(source, slot, SlotChange::Node(target_id)),
            _ => {
                for host in 0..self.hosts.len() {
                    let is_primary = self.cluster(host).is_some_and(|cluster| cluster.is_primary());
                    if is_primary && host != source && host != target {
                        self.replicated_change(host, slot, SlotChange::Node(target_id));
                    }
                }
                false
            }
        };
        if goes_on {
            self.next_set_slot(step + 1, slot, source, target);
        }
    }

    fn next_set_slot(&mut self, step: u8, slot: u16, source: usize, target: usize) {
        let at_ms = self.now_ms + self.random.u64(50..600);
        let ending = Ending::SetSlot { step, slot, source, target };
        self.queue.push(at_ms, Event::EndFault(Box::new(ending)));
    }

    /// SETSLOT on a primary: its replicas get it first.
    fn replicated_change(&mut self, host: usize, slot: u16, change: SlotChange) -> bool {
        if !self.is_running(host) || self.cluster(host).is_none_or(|cluster| !cluster.is_primary()) {
            return false;
        }
        let has_replicas =
            self.hosts[host].process.as_ref().is_some_and(|process| process.online_replicas().next().is_some());
        if has_replicas {
            self.append(host, Entry::SetSlot { slot, change });
            if let Some(process) = self.hosts[host].process.as_mut() {
                process.waiting_changes.push((process.data.offset, slot, change));
            }
            return true;
        }
        let is_done = self.change_slot(host, slot, change, false);
        self.settle(host, true);
        is_done
    }

    /// MIGRATE of all keys of a slot.
    fn move_keys(&mut self, slot: u16, source: usize, target: usize) -> bool {
        let now_ms = self.clock(source).mono_ms;
        let connected = self.is_running(source) && self.is_running(target) && !self.net.is_cut(source, target);
        let Some(process) = self.hosts[source].process.as_ref().filter(|_| connected) else { return false };
        let is_ready = process.cluster.migrating_to(slot).is_some()
            && process.cluster.is_primary()
            && !process.is_paused(now_ms)
            && self.cluster(target).is_some_and(|cluster| {
                cluster.is_primary() && (cluster.importing_from(slot).is_some() || cluster.my_slots().contains(slot))
            });
        if !is_ready {
            return false;
        }
        let keys = process.data.keys.get(&slot).cloned().unwrap_or_default();
        for (key, numbers) in keys {
            self.append(target, Entry::Restore { slot, key, numbers });
            self.append(source, Entry::Remove { slot, key });
        }
        true
    }

    pub(crate) fn end_fault(&mut self, ending: Ending) {
        match ending {
            Ending::SetSlot { step, slot, source, target } => self.set_slot_step(step, slot, source, target),
            Ending::Start { host, life } => {
                if self.hosts[host].process.is_none() && self.hosts[host].life == life {
                    self.hosts[host].is_off = false;
                    self.start(host);
                }
            }
            Ending::Resume { host, life, since_ms, machine } => {
                if self.hosts[host].life == life && self.hosts[host].is_stopped {
                    if machine {
                        self.hosts[host].clock.stood_still_ms += self.now_ms - since_ms;
                    }
                    self.hosts[host].is_stopped = false;
                    self.trace.note(self.now_ms, || format!("host {host} goes on"));
                    self.drain_inbox(host);
                }
            }
            Ending::Disturb { fault: Fault::Manual, host } => self.fail_over_shard_of(host),
            Ending::Disturb { fault: Fault::Partition, host } => {
                let endpoints = self.net.slowness_ms.len();
                self.cut_off((0..endpoints).map(|endpoint| endpoint == host).collect(), true);
            }
            Ending::Disturb { fault, host } => self.begin_fault(fault, host),
            Ending::Uncut(id) => self.net.cuts.retain(|cut| cut.id != id),
            Ending::Fast(host) => self.net.slowness_ms[host] = 0,
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.trace.note(self.now_ms, || "all faults end".to_owned());
        self.faults.is_over = true;
        self.net.cuts.clear();
        self.net.slowness_ms.fill(0);
        for host in 0..self.hosts.len() {
            if self.hosts[host].process.is_none() {
                self.hosts[host].is_off = false;
                self.start(host);
            } else if self.hosts[host].is_stopped {
                self.hosts[host].is_stopped = false;
                self.drain_inbox(host);
            }
        }
    }

    /// What an administrator does about nodes that were reset or forgotten.
    pub(crate) fn operate(&mut self) {
        for host in self.faults.rejoining.clone() {
            self.rejoin(host);
        }
        if self.setup.workload.needs_operator() {
            self.forget_ghosts();
            if self.faults.is_over {
                self.introduce();
            }
        }
    }

    /// Makes a node that was reset a replica again.
    fn rejoin(&mut self, host: usize) {
        if !self.is_running(host) {
            return;
        }
        let Some(cluster) = self.cluster(host) else { return };
        if !cluster.is_primary() || !cluster.my_slots().is_empty() {
            self.faults.rejoining.remove(&host);
            return;
        }
        let known: BTreeSet<_> = cluster
            .known_nodes()
            .filter(|(_, flags)| flags.contains(NodeFlags::PRIMARY) && !flags.contains(NodeFlags::HANDSHAKE))
            .map(|(id, _)| id)
            .collect();
        let targets: Vec<usize> = (0..self.hosts.len())
            .filter(|other| *other != host && self.is_running(*other))
            .filter(|other| self.cluster(*other).is_some_and(|cluster| cluster.node_count() > 1))
            .collect();
        if targets.is_empty() {
            return;
        }
        let target = targets[self.random.usize(0..targets.len())];
        let Some(cluster) = self.cluster(target) else { return };
        let (id, owns_slots) = (cluster.my_id(), !cluster.my_slots().is_empty());
        if known.contains(&id) && owns_slots {
            self.trace.note(self.now_ms, || format!("host {host}: CLUSTER REPLICATE host {target}"));
            self.command(host, |cluster, facts| cluster.replicate(id.as_bytes(), facts).is_ok());
        } else if known.len() <= 1 {
            self.meet(host, target);
        }
    }

    pub(crate) fn meet(&mut self, host: usize, target: usize) {
        let ip = self.hosts[target].ip.clone();
        let port = crate::host::PORT;
        self.command(host, |cluster, facts| {
            cluster.meet(&ip, port, port + BUS_PORT_OFFSET, "simulator", facts).is_ok()
        });
    }

    /// Names that no node has any more are forgotten everywhere.
    fn forget_ghosts(&mut self) {
        let names: BTreeSet<_> = self
            .hosts
            .iter()
            .filter_map(|host| host.process.as_ref().map(|process| process.cluster.my_id()).or(host.last_id))
            .collect();
        if names != self.faults.names {
            self.faults.names.clone_from(&names);
            self.faults.without_ghosts = vec![None; self.hosts.len()];
        }
        for host in 0..self.hosts.len() {
            let Some(cluster) = self.cluster(host) else { continue };
            let version = (self.hosts[host].life, cluster.topology_version());
            if self.faults.without_ghosts[host] == Some(version) {
                continue;
            }
            let ghosts: Vec<_> = cluster
                .known_nodes()
                .filter(|(id, flags)| !flags.contains(NodeFlags::HANDSHAKE) && !names.contains(id))
                .map(|(id, _)| id)
                .collect();
            self.faults.without_ghosts[host] = ghosts.is_empty().then_some(version);
            for ghost in ghosts {
                self.command(host, |cluster, facts| cluster.forget(ghost.as_bytes(), "simulator", facts).is_ok());
            }
        }
    }

    /// Nodes that do not know each other are introduced.
    fn introduce(&mut self) {
        if self.now_ms % 5000 >= 500 {
            return;
        }
        for host in 1..self.hosts.len() {
            let Some(id) = self.cluster(host).map(|cluster| cluster.my_id()) else { continue };
            let is_known = self.cluster(0).is_some_and(|cluster| cluster.config_epoch_of(&id).is_some());
            if !is_known {
                self.meet(0, host);
            }
        }
    }
}
