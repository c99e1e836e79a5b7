//! The world: all machines, the network between them, clients, and the order of events.
//!
//! A run is a sequence of events. Each changes something and schedules others; what is random comes from one
//! generator. So the seed determines the run.

use crate::clients::Client;
use crate::data::Dataset;
use crate::event::{Event, Queue};
use crate::faults::Faults;
use crate::host::{Clock, Conns, Disk, Host, Input, PORT, Process, Upstream};
use crate::network::{ConnId, End, Item, Network, Purpose, Side};
use crate::oracle::Oracle;
use crate::packed::Frame;
use crate::setup::Setup;
use crate::slot_migration::Migrations;
use crate::trace::Trace;
use kvick_cluster::nodes_conf::NodesConf;
use kvick_cluster::state::{Accepted, Action, Cluster, Facts, Now};
use kvick_cluster::{BUS_PORT_OFFSET, NodeId, Slots};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Time between two ticks of a process.
const TICK_MS: u64 = 100;

/// Time between two checks that look at all nodes.
const CHECK_MS: u64 = 500;

/// Attempts to open a connection before it is given up, as Linux makes them.
const OPEN_ATTEMPTS: u32 = 6;

/// See the module.
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) now_ms: u64,
    pub(crate) random: fastrand::Rng,
    pub(crate) queue: Queue,
    pub(crate) net: Network,
    pub(crate) hosts: Vec<Host>,
    pub(crate) by_ip: HashMap<String, usize>,
    /// Which host has a name, or had it.
    pub(crate) by_id: HashMap<NodeId, usize>,
    pub(crate) clients: Vec<Client>,
    pub(crate) faults: Faults,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    /// Events that were processed.
    pub(crate) steps: u64,
    /// Frames that were sent.
    pub(crate) frames: u64,
    next_ip: u32,
    /// A buffer that is used again.
    actions: Vec<Action>,
}

impl World {
    /// Machines without processes.
    pub(crate) fn new(setup: Setup, mut random: fastrand::Rng, trace: Trace) -> World {
        let hosts = setup.hosts;
        let net = Network::new(hosts + setup.writers, setup.conditions);
        let mut world = World {
            now_ms: 0,
            queue: Queue::default(),
            net,
            hosts: Vec::new(),
            by_ip: HashMap::new(),
            by_id: HashMap::new(),
            clients: (0..setup.writers).map(|_| Client::default()).collect(),
            faults: Faults::default(),
            oracle: Oracle::new(hosts),
            trace,
            steps: 0,
            frames: 0,
            next_ip: 0,
            actions: Vec::new(),
            random: random.fork(),
            setup,
        };
        for index in 0..hosts {
            let ip = world.new_ip();
            world.by_ip.insert(ip.clone(), index);
            let skew_ms = if random.u8(0..4) == 0 { random.i64(-60_000..=60_000) } else { random.i64(-20..=20) };
            let clock = Clock { skew_ms, base_ms: random.u64(1_000..10_000_000), stood_still_ms: 0 };
            world.hosts.push(Host {
                ip,
                life: 0,
                process: None,
                is_off: false,
                is_stopped: false,
                inbox: VecDeque::new(),
                disk: Disk::default(),
                clock,
                stored: None,
                last_shard: None,
                last_id: None,
            });
        }
        world.queue.push(CHECK_MS, Event::Check);
        world
    }

    /// An address that was not used before.
    pub(crate) fn new_ip(&mut self) -> String {
        self.next_ip += 1;
        let number = self.next_ip;
        format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255)
    }

    /// Processes events until a time, or until a violation.
    pub(crate) fn run_until(&mut self, until_ms: u64) {
        while !self.oracle.is_violated() {
            let Some((at_ms, event)) = self.queue.pop_until(until_ms) else { break };
            self.now_ms = at_ms;
            self.steps += 1;
            self.process(event);
        }
        self.now_ms = self.now_ms.max(until_ms);
    }

    fn process(&mut self, event: Event) {
        match event {
            Event::Tick { host, life } => self.tick(host, life),
            Event::Open { conn, attempt } => self.open(conn, attempt),
            Event::Opened { conn, attempt } => self.opened(conn, attempt),
            Event::Refused { host, life, link, conn } => {
                self.net.remove(conn);
                self.input(host, life, Input::ConnectFailed(link));
            }
            Event::Deliver { conn, to } => self.deliver(conn, to),
            Event::DeliverRaw { conn, to, item } => self.deliver_raw(conn, to, *item),
            Event::Saved { host, life } => self.saved(host, life),
            Event::WritesPaused { host, life, number } => self.input(host, life, Input::WritesPaused(number)),
            Event::JobRefused { host, life, conn } => {
                self.net.remove(conn);
                self.input(host, life, Input::JobRefused(conn));
            }
            Event::Migration { host, life, step } => self.input(host, life, Input::Migration(step)),
            Event::FullSync { host, life, conn } => self.input(host, life, Input::FullSync(conn)),
            Event::Request { host, request } => {
                let life = self.hosts[host].life;
                self.input(host, life, Input::Request(request));
            }
            Event::Reply { request, host, reply } => self.receive_reply(request, host, reply),
            Event::ClientTurn { client } => self.client_turn(client),
            Event::ClientTimeout { client, number } => self.client_timeout(client, number),
            Event::Fault => self.next_fault(),
            Event::EndFault(ending) => self.end_fault(*ending),
            Event::Check => {
                self.check_all();
                self.queue.push(self.now_ms + CHECK_MS, Event::Check);
            }
        }
    }

    /// The time as a host has it.
    pub(crate) fn clock(&self, host: usize) -> Now {
        self.hosts[host].clock.read(self.now_ms)
    }

    /// Whether a process runs on a host now.
    pub(crate) fn is_running(&self, host: usize) -> bool {
        self.hosts[host].process.is_some() && !self.hosts[host].is_stopped
    }

    pub(crate) fn cluster(&self, host: usize) -> Option<&Cluster> {
        self.hosts[host].process.as_ref().map(|process| &process.cluster)
    }

    /// The process of a host, if it is the given one.
    pub(crate) fn process_mut(&mut self, host: usize, life: u32) -> Option<&mut Process> {
        let host = &mut self.hosts[host];
        if host.life == life { host.process.as_deref_mut() } else { None }
    }

    /// Starts a process. Its `nodes.conf` is what the disk has.
    pub(crate) fn start(&mut self, index: usize) {
        let now = self.clock(index);
        let seed = self.random.u64(..);
        let history = self.random.u64(..);
        let mut settings = self.setup.settings.clone();
        settings.log_level = self.trace.level;
        settings.replica_no_failover = self.setup.no_failover.contains(&index);
        let host = &mut self.hosts[index];
        let conf = match host.disk.cached.as_ref().map(|content| NodesConf::parse(content.as_bytes(), false)) {
            None => None,
            Some(Ok((conf, _))) => Some(conf),
            Some(Err(error)) => {
                self.oracle.violate(format!("host {index} cannot read its nodes.conf: {error}"));
                return;
            }
        };
        if self.setup.saves_only_epochs {
            host.disk = Disk::default();
        }
        let mut data = host.stored.take().unwrap_or_else(|| Dataset::new(history));
        data.forget_backlog();
        if !data.imports.is_empty() {
            // The append-only file has jobs whose end only a full sync may tell.
            data.rename(history);
        }
        host.life += 1;
        host.is_stopped = false;
        host.inbox.clear();
        let life = host.life;
        host.process = Some(Box::new(Process {
            cluster: Cluster::new(conf.as_ref(), settings, seed, now),
            conns: Conns::default(),
            crowded: BTreeSet::new(),
            actions: VecDeque::new(),
            is_saving: false,
            data,
            upstream: Upstream::default(),
            downstream: Vec::new(),
            paused_until_ms: None,
            pause_until_ms: 0,
            pause_is_pending: false,
            pause_number: 0,
            resumed_step: 0,
            hidden: Slots::EMPTY,
            paused_requests: Vec::new(),
            waiting: Vec::new(),
            waiting_changes: Vec::new(),
            heartbeat_ms: 0,
            migrations: Migrations::new(),
        }));
        self.trace.note(self.now_ms, || format!("host {index}: process {life} starts"));
        self.load_imports(index);
        self.with_cluster(index, |cluster, facts| cluster.data_loaded(facts));
        self.check_start(index);
        self.settle(index, true);
        let at_ms = self.now_ms + self.random.u64(0..TICK_MS);
        self.queue.push(at_ms, Event::Tick { host: index, life });
    }

    /// Calls the state machine of a host that has a process.
    pub(crate) fn with_cluster<T>(
        &mut self,
        host: usize,
        call: impl FnOnce(&mut Cluster, &Facts<'_>) -> T,
    ) -> Option<T> {
        let now = self.clock(host);
        let process = self.hosts[host].process.as_mut()?;
        Some(process.with_facts(now, call))
    }

    /// Executes a command of an operator, if the process runs, and settles it.
    pub(crate) fn command<T>(&mut self, host: usize, call: impl FnOnce(&mut Cluster, &Facts<'_>) -> T) -> Option<T> {
        if !self.is_running(host) {
            return None;
        }
        let result = self.with_cluster(host, call);
        self.settle(host, true);
        result
    }

    fn tick(&mut self, host: usize, life: u32) {
        if self.process_mut(host, life).is_none() {
            return;
        }
        self.queue.push(self.now_ms + TICK_MS, Event::Tick { host, life });
        let inbox = &self.hosts[host].inbox;
        if !inbox.iter().any(|input| matches!(input, Input::Tick)) {
            self.input(host, life, Input::Tick);
        }
    }

    /// Something happens to a process. If it does not run now, it will find out later.
    pub(crate) fn input(&mut self, host: usize, life: u32, mut input: Input) {
        let blocks = self.setup.disk_blocks;
        let Some(process) = self.process_mut(host, life) else { return };
        let is_waiting = blocks && process.is_saving;
        if is_waiting || self.hosts[host].is_stopped {
            if let Input::Frame(_, _, frame) = &mut input {
                self.net.packer.pack(frame);
            }
            self.hosts[host].inbox.push_back(input);
            return;
        }
        self.apply(host, input);
        self.settle(host, false);
    }

    /// Processes what has arrived while the process did not run.
    pub(crate) fn drain_inbox(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let batch = if self.random.bool() { usize::MAX } else { 1 };
        loop {
            for _ in 0..batch {
                if self.hosts[host].is_stopped || self.process_mut(host, life).is_none() {
                    return;
                }
                let Some(input) = self.hosts[host].inbox.pop_front() else { break };
                self.apply(host, input);
            }
            self.settle(host, false);
            let blocks = self.setup.disk_blocks;
            let is_saving = self.process_mut(host, life).is_some_and(|process| process.is_saving);
            if self.hosts[host].inbox.is_empty() || (blocks && is_saving) {
                return;
            }
        }
    }

    fn apply(&mut self, host: usize, input: Input) {
        match input {
            Input::Tick => {
                self.replication_tick(host);
                self.report_send_buffers(host);
                self.with_cluster(host, |cluster, facts| cluster.tick(facts));
                self.migration_tick(host);
            }
            Input::Accepted(conn) => self.accepted(host, conn),
            Input::Connected(conn) => self.connected(host, conn),
            Input::ConnectFailed(link) => {
                if let Some(process) = self.hosts[host].process.as_mut() {
                    process.conns.remove(link);
                }
                self.with_cluster(host, |cluster, facts| cluster.link_closed(link, "Connection refused", facts));
            }
            Input::Frame(conn, side, frame) => {
                let frame = self.net.packer.unpack(frame);
                if let Some(link) = self.net.get(conn).and_then(|conn| conn.ends[side].link) {
                    self.with_cluster(host, |cluster, facts| cluster.received(link, &frame, facts));
                }
            }
            Input::Closed(conn, side) => self.closed(host, conn, side),
            Input::Replication(conn, side, message) => self.receive_replication(host, conn, side, *message),
            Input::FullSync(conn) => self.send_full_sync(host, conn),
            Input::WritesPaused(number) => self.writes_paused(host, number),
            Input::JobItem(conn, side, item) => self.receive_job_item(host, conn, side, *item),
            Input::JobRefused(conn) => self.migration_refused(host, conn),
            Input::Migration(step) => self.migration_step(host, step),
            Input::Request(request) => self.execute(host, request),
        }
    }

    fn report_send_buffers(&mut self, host: usize) {
        if self.setup.settings.link_send_buffer_limit == 0 {
            return;
        }
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let Process { cluster, conns, crowded, .. } = &mut **process;
        crowded.retain(|link| {
            let Some(conn) = conns.get(*link).and_then(|conn| self.net.get(conn)) else { return false };
            let to = 1 - conn.side_of(host, *link);
            let bytes = conn.towards[to].waiting_bytes();
            cluster.link_send_buffer(*link, bytes);
            bytes > 0
        });
    }

    /// Finishes the inputs of a process: carries out what the state machine wants, and checks its new state.
    pub(crate) fn settle(&mut self, host: usize, by_command: bool) {
        let mut actions = std::mem::take(&mut self.actions);
        self.with_cluster(host, |cluster, facts| cluster.settle(facts, &mut actions));
        for action in actions.drain(..) {
            match action {
                Action::Connect { .. } | Action::Disconnect(_) | Action::Send { .. } | Action::Save { .. } => {
                    if let Some(process) = self.hosts[host].process.as_mut() {
                        process.actions.push_back(action);
                    }
                }
                Action::Log(level, line) => {
                    self.trace.note(self.now_ms, || format!("host {host}: {level:?}: {line}"));
                }
                change => self.perform(host, change),
            }
        }
        self.actions = actions;
        self.check_host(host, by_command);
        self.carry_out(host);
    }

    /// Carries out actions of the bus, up to one that has to wait.
    fn carry_out(&mut self, host: usize) {
        let now = self.clock(host);
        loop {
            let Some(process) = self.hosts[host].process.as_mut().filter(|process| !process.is_saving) else { return };
            let Some(action) = process.actions.pop_front() else { return };
            match action {
                Action::Save { sync } => {
                    let cluster = &process.cluster;
                    let content = if self.setup.saves_only_epochs {
                        Ok(format!("lastVoteEpoch {}\n", cluster.last_vote_epoch()))
                    } else {
                        cluster.config_content(now)
                    };
                    let content: Arc<str> = match content {
                        Ok(content) => content.into(),
                        Err(error) => {
                            self.oracle.violate(format!("host {host} cannot write its nodes.conf: {error}"));
                            return;
                        }
                    };
                    if sync && self.setup.save_ms_max > 0 {
                        process.is_saving = true;
                        let life = self.hosts[host].life;
                        self.hosts[host].disk.pending = Some(content);
                        let is_slow = self.random.u8(0..50) == 0;
                        let bound_ms = if is_slow { self.setup.save_ms_max * 20 } else { self.setup.save_ms_max };
                        let at_ms = self.now_ms + self.random.u64(0..=bound_ms);
                        self.queue.push(at_ms, Event::Saved { host, life });
                    } else {
                        if sync {
                            self.hosts[host].disk.durable = Some(content.clone());
                        }
                        self.hosts[host].disk.cached = Some(content);
                    }
                }
                Action::Connect { link, ip, port, .. } => {
                    let target = self.by_ip.get(&ip).copied().filter(|_| port == PORT + BUS_PORT_OFFSET);
                    let life = self.hosts[host].life;
                    let opener = End { host, life, link: Some(link), closed: false };
                    let acceptor = End { host: target.unwrap_or(host), life: 0, link: None, closed: false };
                    let conn = self.net.add(Purpose::Bus, opener, acceptor);
                    self.begin_open(conn, target);
                    if let Some(process) = self.hosts[host].process.as_mut() {
                        process.conns.insert(link, conn);
                    }
                }
                Action::Disconnect(link) => {
                    let conn = process.conns.remove(link);
                    if let Some(conn) = conn {
                        self.close_link_end(host, link, conn);
                    }
                }
                Action::Send { link, frame } => {
                    let Some(conn) = process.conns.get(link) else { continue };
                    self.send_frame(host, link, conn, frame);
                }
                _ => {}
            }
        }
    }

    fn saved(&mut self, host: usize, life: u32) {
        let Some(process) = self.process_mut(host, life) else { return };
        process.is_saving = false;
        let disk = &mut self.hosts[host].disk;
        disk.durable = disk.pending.take();
        disk.cached.clone_from(&disk.durable);
        self.carry_out(host);
        self.drain_inbox(host);
    }

    fn send_frame(&mut self, host: usize, link: kvick_cluster::state::LinkId, id: ConnId, frame: Arc<[u8]>) {
        let Some(conn) = self.net.get(id) else { return };
        let side = conn.side_of(host, link);
        if conn.ends[side].closed {
            return;
        }
        let peer = conn.ends[1 - side].host;
        self.frames += 1;
        self.check_sent(host, peer, &frame);
        if self.net.conditions.raw && conn_is_open(self.net.get(id)) {
            self.send_raw(id, host, peer, 1 - side, frame);
        } else {
            self.send_item(id, 1 - side, Item::Frame(Frame::Plain(frame)));
            let is_crowded = self.net.get(id).is_some_and(|conn| conn.towards[1 - side].waiting_bytes() > 0);
            if let Some(process) = self.hosts[host].process.as_mut().filter(|_| is_crowded) {
                process.crowded.insert(link);
            }
        }
    }

    /// Sends a frame without the guarantees of TCP.
    fn send_raw(&mut self, conn: ConnId, from: usize, peer: usize, to: Side, frame: Arc<[u8]>) {
        let copies = if self.random.u8(0..20) == 0 { 2 } else { 1 };
        for _ in 0..copies {
            let mut at_ms = self.now_ms + self.net.delay_ms(from, peer, &mut self.random);
            if self.random.u8(0..10) == 0 {
                at_ms += self.random.u64(0..500);
            }
            let item = Box::new(Item::Frame(Frame::Plain(frame.clone())));
            self.queue.push(at_ms, Event::DeliverRaw { conn, to, item });
        }
    }

    pub(crate) fn send_item(&mut self, conn: ConnId, to: Side, item: Item) {
        if let Some(at_ms) = self.net.send(conn, to, item, self.now_ms, &mut self.random) {
            self.queue.push(at_ms, Event::Deliver { conn, to });
        }
    }

    /// The first packet of a new connection leaves.
    pub(crate) fn begin_open(&mut self, conn: ConnId, target: Option<usize>) {
        let Some(state) = self.net.get_mut(conn) else { return };
        // What is sent before the connection is open waits.
        state.towards[1].scheduled = true;
        let opener = state.ends[0].host;
        let at_ms = self.now_ms + self.net.delay_ms(opener, target.unwrap_or(opener), &mut self.random);
        if target.is_some() {
            self.queue.push(at_ms, Event::Open { conn, attempt: 0 });
        } else {
            self.refuse(conn, at_ms);
        }
    }

    fn refuse(&mut self, id: ConnId, at_ms: u64) {
        let Some(conn) = self.net.get(id) else { return };
        let End { host, life, link, .. } = conn.ends[0];
        match link {
            None if conn.purpose == Purpose::Migration => {
                self.queue.push(at_ms, Event::JobRefused { host, life, conn: id });
            }
            Some(link) => self.queue.push(at_ms, Event::Refused { host, life, link, conn: id }),
            None => {
                self.net.remove(id);
                if let Some(process) = self.process_mut(host, life).filter(|process| process.upstream.conn == Some(id))
                {
                    process.upstream.conn = None;
                }
            }
        }
    }

    fn open(&mut self, id: ConnId, attempt: u32) {
        let Some(conn) = self.net.get_mut(id) else { return };
        if conn.ends[0].closed {
            self.net.remove(id);
            return;
        }
        let (opener, target) = (conn.ends[0].host, conn.ends[1].host);
        let host = &self.hosts[target];
        let has_process = host.process.is_some();
        let life = host.life;
        let is_unreachable = host.is_off || self.net.is_cut(opener, target) || self.net.is_cut(target, opener);
        if is_unreachable {
            self.open_again(id, attempt, false);
            return;
        }
        let at_ms = self.now_ms + self.net.delay_ms(target, opener, &mut self.random);
        if !has_process {
            self.refuse(id, at_ms);
            return;
        }
        if let Some(conn) = self.net.get_mut(id) {
            conn.ends[1].life = life;
        }
        self.input(target, life, Input::Accepted(id));
        self.queue.push(at_ms, Event::Opened { conn: id, attempt: 0 });
    }

    /// A packet that opens a connection was lost.
    fn open_again(&mut self, conn: ConnId, attempt: u32, is_answer: bool) {
        let at_ms = self.now_ms + (1000 << attempt.min(OPEN_ATTEMPTS));
        if attempt >= OPEN_ATTEMPTS {
            self.refuse(conn, at_ms);
        } else if is_answer {
            self.queue.push(at_ms, Event::Opened { conn, attempt: attempt + 1 });
        } else {
            self.queue.push(at_ms, Event::Open { conn, attempt: attempt + 1 });
        }
    }

    fn opened(&mut self, id: ConnId, attempt: u32) {
        let Some(conn) = self.net.get(id) else { return };
        let (opener, target, life) = (conn.ends[0].host, conn.ends[1].host, conn.ends[0].life);
        if conn.ends[0].closed {
            return;
        }
        if self.net.is_cut(target, opener) || self.hosts[opener].is_off {
            self.open_again(id, attempt, true);
            return;
        }
        self.input(opener, life, Input::Connected(id));
        if let Some(conn) = self.net.get_mut(id) {
            let direction = &mut conn.towards[1];
            direction.scheduled = direction.next_ms().is_some();
            if direction.scheduled {
                self.queue.push(self.now_ms, Event::Deliver { conn: id, to: 1 });
            }
        }
    }

    fn accepted(&mut self, host: usize, id: ConnId) {
        let Some(conn) = self.net.get(id) else { return };
        if conn.purpose != Purpose::Bus {
            return;
        }
        let peer_ip = self.hosts[conn.ends[0].host].ip.clone();
        let local_ip = self.hosts[host].ip.clone();
        let connection = Accepted { peer_ip: &peer_ip, peer_port: 40_000, local_ip: &local_ip };
        let link = self.with_cluster(host, |cluster, facts| cluster.link_accepted(connection, facts));
        if let (Some(link), Some(process)) = (link, self.hosts[host].process.as_mut()) {
            process.conns.insert(link, id);
            if let Some(conn) = self.net.get_mut(id) {
                conn.ends[1].link = Some(link);
            }
        }
    }

    fn connected(&mut self, host: usize, id: ConnId) {
        let Some(conn) = self.net.get(id).filter(|conn| !conn.ends[0].closed) else { return };
        let Some(link) = conn.ends[0].link else {
            match conn.purpose {
                Purpose::Migration => self.migration_connected(host, id),
                _ => self.replication_connected(host, id),
            }
            return;
        };
        let peer_ip = self.hosts[conn.ends[1].host].ip.clone();
        let local_ip = self.hosts[host].ip.clone();
        let connection = Accepted { peer_ip: &peer_ip, peer_port: PORT + BUS_PORT_OFFSET, local_ip: &local_ip };
        self.with_cluster(host, |cluster, facts| cluster.link_connected(link, connection, facts));
    }

    /// Delivers what has arrived at one end.
    fn deliver(&mut self, id: ConnId, to: Side) {
        let Some(conn) = self.net.get(id) else { return };
        let (sender, receiver) = (conn.ends[1 - to].host, conn.ends[to].host);
        let (life, is_closed, purpose) = (conn.ends[to].life, conn.ends[to].closed, conn.purpose);
        let is_unreachable = self.hosts[receiver].is_off || self.net.is_cut(sender, receiver);
        let now_ms = self.now_ms;
        if is_unreachable {
            if let Some(wait_ms) = self.net.retry(id, to) {
                self.queue.push(now_ms + wait_ms, Event::Deliver { conn: id, to });
            }
            return;
        }
        let item = self.net.receive(id, to);
        let Some(conn) = self.net.get_mut(id) else { return };
        let direction = &mut conn.towards[to];
        direction.attempts = 0;
        let next_ms = direction.next_ms();
        direction.scheduled = next_ms.is_some();
        if let Some(at_ms) = next_ms {
            self.queue.push(at_ms.max(now_ms), Event::Deliver { conn: id, to });
        }
        if is_closed || self.hosts[receiver].life != life || self.hosts[receiver].process.is_none() {
            // Nobody has this connection: the machine says so.
            let is_data = item.is_some_and(|item| !matches!(item, Item::Fin));
            if is_data {
                self.send_item(id, 1 - to, Item::Fin);
            }
            return;
        }
        match item {
            Some(Item::Frame(frame)) => self.input(receiver, life, Input::Frame(id, to, frame)),
            Some(Item::Replication(message)) => self.input(receiver, life, Input::Replication(id, to, message)),
            Some(Item::Job(item)) => self.input(receiver, life, Input::JobItem(id, to, item)),
            Some(Item::Fin) => self.input(receiver, life, Input::Closed(id, to)),
            None => {}
        }
        debug_assert!(purpose == Purpose::Bus || self.net.get(id).is_none_or(|conn| conn.ends[0].link.is_none()));
    }

    fn deliver_raw(&mut self, id: ConnId, to: Side, mut item: Item) {
        let Some(conn) = self.net.get(id).filter(|conn| !conn.ends[to].closed) else { return };
        let (sender, receiver, life) = (conn.ends[1 - to].host, conn.ends[to].host, conn.ends[to].life);
        if self.net.is_cut(sender, receiver) || self.hosts[receiver].is_off {
            let at_ms = self.now_ms + self.random.u64(100..1000);
            if let Item::Frame(frame) = &mut item {
                self.net.packer.pack(frame);
            }
            self.queue.push(at_ms, Event::DeliverRaw { conn: id, to, item: Box::new(item) });
            return;
        }
        if let Item::Frame(frame) = item {
            self.input(receiver, life, Input::Frame(id, to, frame));
        }
    }

    /// The other end has closed a connection.
    fn closed(&mut self, host: usize, id: ConnId, side: Side) {
        let Some(conn) = self.net.get_mut(id) else { return };
        conn.ends[side].closed = true;
        let (link, purpose, gone) = (conn.ends[side].link, conn.purpose, conn.ends[1 - side].closed);
        if gone {
            self.net.remove(id);
        }
        if purpose == Purpose::Replication {
            self.replication_closed(host, id);
        } else if purpose == Purpose::Migration {
            self.migration_closed(host, id, side);
        } else if let Some(link) = link {
            if let Some(process) = self.hosts[host].process.as_mut() {
                process.conns.remove(link);
            }
            self.with_cluster(host, |cluster, facts| cluster.link_closed(link, "Connection reset by peer", facts));
        }
    }

    fn close_link_end(&mut self, host: usize, link: kvick_cluster::state::LinkId, id: ConnId) {
        let Some(conn) = self.net.get(id) else { return };
        let side = conn.side_of(host, link);
        self.close_end(id, side);
    }

    /// A process closes its end of a connection.
    pub(crate) fn close_end(&mut self, id: ConnId, side: Side) {
        let drops = self.random.bool();
        let Some(conn) = self.net.get_mut(id) else { return };
        if std::mem::replace(&mut conn.ends[side].closed, true) {
            return;
        }
        if conn.ends[1 - side].closed || (side == 0 && conn.ends[1].life == 0) {
            self.net.remove(id);
            return;
        }
        if drops {
            self.net.drop_items(id, 1 - side);
        }
        self.send_item(id, 1 - side, Item::Fin);
    }
}

/// Whether the acceptor has a connection.
fn conn_is_open(conn: Option<&crate::network::Conn>) -> bool {
    conn.is_some_and(|conn| conn.ends[1].life != 0 && !conn.towards[1].scheduled)
}
