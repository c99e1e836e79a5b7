//! Atomic slot migration: what carries out the actions of the jobs ([`kvick_cluster::migration`]) of a process.
//!
//! As in the server, one driver carries them out in order. What only passes something on happens at once; the others
//! take a random time, in which everything else goes on.

use crate::data::{Entry, Import, Keys};
use crate::event::Event;
use crate::host::{PORT, Process, Request};
use crate::network::{ConnId, End, Item, Purpose, Side};
use crate::world::World;
use kvick_cluster::migration::{
    Action, Context, Direction, Finish, Job, JobName, Jobs, Message, Origin, Peer, Progress, RangeList, State, Topology,
};
use kvick_cluster::state::{Cluster, SlotJobs};
use kvick_cluster::{NodeFlags, NodeId, Slots};
use std::collections::VecDeque;

/// Longest time that an action of the driver takes.
const ACT_MS_MAX: u64 = 5;

/// Longest time until a snapshot begins.
const SNAPSHOT_MS_MAX: u64 = 200;

/// Longest time until the source knows that the snapshot was sent.
const SENT_MS_MAX: u64 = 100;

/// Longest time from the wish to hold writes until they are held.
const HOLD_MS_MAX: u64 = 20;

/// Longest time that the deletion of keys takes.
const CLEAN_MS_MAX: u64 = 300;

/// What the two sides of a migration send each other.
#[derive(Clone, Debug)]
pub(crate) enum JobItem {
    /// CLUSTER SYNCSLOTS ESTABLISH: its words.
    Establish(Vec<Vec<u8>>),
    /// The reply to it.
    Established(Result<(), String>),
    Message(Message),
    /// A key of the snapshot, or a write after it.
    Entry(Entry),
}

/// Something about a job that happens at its time.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The driver carries out its next action.
    Act,
    Snapshot(JobName),
    SnapshotSent(JobName),
    Hold(JobName),
    Clean(JobName, u64, RangeList),
}

/// The slot migrations of a process.
pub(crate) struct Migrations {
    pub(crate) jobs: Jobs,
    /// What the driver has to do.
    actions: VecDeque<Action>,
    /// Whether it is about to carry out the first of them.
    is_acting: bool,
    exports: Vec<Export>,
    imports: Vec<(JobName, ConnId)>,
    /// Slots whose writes are held.
    paused: Vec<(JobName, RangeList)>,
    held: Vec<Request>,
    /// Imports that wait until so many replicas have acknowledged an offset.
    awaiting: Vec<(JobName, u64, u64)>,
    importing: Slots,
    exporting: Slots,
    granted: Vec<(NodeId, Slots)>,
    /// Whether the jobs were told that the data are loaded.
    is_loaded: bool,
}

struct Export {
    job: JobName,
    conn: ConnId,
    slots: Slots,
    /// Whether writes to the slots are sent.
    feeds: bool,
}

/// The cluster as the jobs see it.
struct View<'a> {
    cluster: &'a Cluster,
    keys: &'a Keys,
    hidden: &'a Slots,
}

impl Migrations {
    pub(crate) fn new() -> Migrations {
        Migrations {
            jobs: Jobs::default(),
            actions: VecDeque::new(),
            is_acting: false,
            exports: Vec::new(),
            imports: Vec::new(),
            paused: Vec::new(),
            held: Vec::new(),
            awaiting: Vec::new(),
            importing: Slots::EMPTY,
            exporting: Slots::EMPTY,
            granted: Vec::new(),
            is_loaded: false,
        }
    }

    /// The slots under way, for the state machine of the cluster.
    pub(crate) fn slots(&self) -> SlotJobs<'_> {
        SlotJobs { importing: self.importing.view(), exporting: self.exporting.view(), granted: &self.granted }
    }

    /// What a dump records of the jobs.
    pub(crate) fn unfinished_imports(&self) -> Vec<Import> {
        let import = |job: &Job| Import { name: job.name(), ranges: job.ranges().clone() };
        self.jobs.unfinished_imports().map(import).collect()
    }

    /// Whether writes to a slot are held.
    pub(crate) fn holds(&self, slot: u16) -> bool {
        self.paused.iter().any(|(_, slots)| slots.contains(slot))
    }

    /// Holds a request until the pause of its slot ends.
    pub(crate) fn hold(&mut self, request: Request) {
        self.held.push(request);
    }

    fn note_slots(&mut self) {
        (self.importing, self.exporting) = (Slots::EMPTY, Slots::EMPTY);
        self.granted.clear();
        for job in self.jobs.iter().filter(|job| !job.state().is_finished()) {
            let slots = job.ranges().to_slots();
            match job.direction() {
                Direction::Import => self.importing.insert_all(slots.view()),
                Direction::Export => self.exporting.insert_all(slots.view()),
            }
            if let (State::ExportFailoverGranted, Some(target)) = (job.state(), job.target()) {
                self.granted.push((target, slots));
            }
        }
    }

    fn conn_of(&self, job: JobName) -> Option<(ConnId, Side)> {
        let export = self.exports.iter().find(|export| export.job == job).map(|export| (export.conn, 0));
        export.or_else(|| self.imports.iter().find(|(name, _)| *name == job).map(|(_, conn)| (*conn, 1)))
    }

    fn job_of(&self, conn: ConnId, side: Side) -> Option<JobName> {
        match side {
            0 => self.exports.iter().find(|export| export.conn == conn).map(|export| export.job),
            _ => self.imports.iter().find(|(_, import)| *import == conn).map(|(job, _)| *job),
        }
    }

    fn forget(&mut self, job: JobName) {
        self.exports.retain(|export| export.job != job);
        self.imports.retain(|(name, _)| *name != job);
        self.awaiting.retain(|(name, ..)| *name != job);
    }
}

impl Topology for View<'_> {
    fn my_id(&self) -> NodeId {
        self.cluster.my_id()
    }

    fn is_primary(&self) -> bool {
        self.cluster.is_primary()
    }

    fn owner(&self, slot: u16) -> Option<NodeId> {
        self.cluster.slot_owner(slot)
    }

    fn peer(&self, id: &NodeId) -> Option<Peer> {
        let node = self.cluster.audited_nodes().find(|node| node.id == *id)?;
        Some(Peer { address: node.ip.to_owned(), port: PORT, human_name: String::new() })
    }

    fn deletes(&self, slot: u16) -> bool {
        self.hidden.contains(slot)
    }

    fn has_keys(&self, slot: u16) -> bool {
        self.keys.contains_key(&slot)
    }

    fn imports_manually(&self) -> bool {
        self.cluster.has_importing_slots()
    }

    fn migrates_manually(&self) -> bool {
        self.cluster.has_migrating_slots()
    }

    fn is_working_primary(&self, id: &NodeId) -> bool {
        let node = self.cluster.audited_nodes().find(|node| node.id == *id);
        node.is_some_and(|node| node.flags.contains(NodeFlags::PRIMARY) && !node.flags.contains(NodeFlags::FAIL))
    }

    fn is_failing_over(&self) -> bool {
        self.cluster.is_failing_over()
    }
}

impl World {
    /// Calls the jobs of a host that has a process, and carries out what can be done at once.
    pub(crate) fn with_jobs<T>(&mut self, host: usize, call: impl FnOnce(&mut Jobs, &Context<'_>) -> T) -> Option<T> {
        self.with_jobs_loading(host, false, call)
    }

    fn with_jobs_loading<T>(
        &mut self,
        host: usize,
        loading: bool,
        call: impl FnOnce(&mut Jobs, &Context<'_>) -> T,
    ) -> Option<T> {
        let now = self.clock(host);
        let now_ms = u64::try_from(now.unix_ms).unwrap_or_default();
        let Process { cluster, data, migrations, hidden, .. } = &mut **self.hosts[host].process.as_mut()?;
        let view = View { cluster, keys: &data.keys, hidden };
        let context = Context { topology: &view, settings: &self.setup.jobs, now_ms, mono_ms: now.mono_ms, loading };
        let result = call(&mut migrations.jobs, &context);
        let actions = migrations.jobs.take_actions();
        if !actions.is_empty() {
            migrations.note_slots();
            migrations.actions.extend(actions);
            self.act(host);
        }
        Some(result)
    }

    /// The imports that the data of a process know of.
    pub(crate) fn load_imports(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let imports: Vec<Import> = process.data.imports.clone();
        self.with_jobs_loading(host, true, |jobs, context| {
            jobs.load_began(context);
            imports.into_iter().for_each(|import| jobs.load_import(import.name, import.ranges, context));
        });
    }

    /// What is due now.
    pub(crate) fn migration_tick(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let was_loaded = std::mem::replace(&mut process.migrations.is_loaded, true);
        self.with_jobs(host, |jobs, context| {
            if !was_loaded {
                jobs.load_ended(context);
            }
            jobs.tick(context);
            let is_waiting = |job: &&Job| job.state() == State::ExportWaitingToPause;
            let waiting: Vec<JobName> = jobs.iter().filter(is_waiting).map(Job::name).collect();
            waiting.into_iter().for_each(|job| jobs.progressed(job, Progress::default(), context));
        });
    }

    /// Carries out the actions of the jobs, up to one that takes time.
    fn act(&mut self, host: usize) {
        loop {
            let life = self.hosts[host].life;
            let Some(process) = self.hosts[host].process.as_mut() else { return };
            let migrations = &mut process.migrations;
            if migrations.is_acting {
                return;
            }
            let Some(action) = migrations.actions.pop_front() else { return };
            if let Some(action) = self.pass_on(host, action) {
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                process.migrations.actions.push_front(action);
                process.migrations.is_acting = true;
                let at_ms = self.now_ms + self.random.u64(0..=ACT_MS_MAX);
                self.queue.push(at_ms, Event::Migration { host, life, step: Step::Act });
                return;
            }
        }
    }

    /// Carries out an action that takes no time. Returns any other.
    fn pass_on(&mut self, host: usize, action: Action) -> Option<Action> {
        match action {
            Action::Log(level, line) => self.trace.note(self.now_ms, || format!("host {host}: {level:?}: {line}")),
            Action::Establish { job, request } => self.send_job_item(host, job, JobItem::Establish(words_of(&request))),
            Action::StartSnapshot { job, .. } => self.plan(host, SNAPSHOT_MS_MAX, Step::Snapshot(job)),
            Action::PauseWrites { job, .. } => self.plan(host, HOLD_MS_MAX, Step::Hold(job)),
            Action::GrantFailover { job } => {
                if let Some(process) = self.hosts[host].process.as_mut() {
                    let exports = process.migrations.exports.iter_mut();
                    exports.filter(|export| export.job == job).for_each(|export| export.feeds = false);
                }
                self.send_job_item(host, job, JobItem::Message(Message::FailoverGranted));
            }
            Action::Send { job, message } => self.send_job_item(host, job, JobItem::Message(message)),
            Action::ResumeWrites { job, .. } => {
                let process = self.hosts[host].process.as_mut()?;
                process.migrations.paused.retain(|(name, _)| *name != job);
                for request in std::mem::take(&mut process.migrations.held) {
                    self.queue.push(self.now_ms, Event::Request { host, request });
                }
            }
            Action::Disconnect { job } => {
                let process = self.hosts[host].process.as_mut()?;
                let conn = process.migrations.conn_of(job);
                process.migrations.forget(job);
                if let Some((conn, side)) = conn {
                    self.close_end(conn, side);
                }
            }
            action => return Some(action),
        }
        None
    }

    fn plan(&mut self, host: usize, ms_max: u64, step: Step) {
        let life = self.hosts[host].life;
        let at_ms = self.now_ms + self.random.u64(0..=ms_max);
        self.queue.push(at_ms, Event::Migration { host, life, step });
    }

    fn send_job_item(&mut self, host: usize, job: JobName, item: JobItem) {
        let process = self.hosts[host].process.as_ref();
        if let Some((conn, side)) = process.and_then(|process| process.migrations.conn_of(job)) {
            self.send_item(conn, 1 - side, Item::Job(Box::new(item)));
        }
    }

    /// Sends an entry of the stream to the targets of its slot.
    pub(crate) fn feed_exports(&mut self, host: usize, entry: &Entry) {
        let (Some(slot), Some(process)) = (entry.slot(), self.hosts[host].process.as_ref()) else { return };
        let exports = process.migrations.exports.iter();
        let fed = exports.filter(|export| export.feeds && export.slots.contains(slot));
        let conns: Vec<ConnId> = fed.map(|export| export.conn).collect();
        for conn in conns {
            self.send_item(conn, 1, Item::Job(Box::new(JobItem::Entry(entry.clone()))));
        }
    }

    /// Something about a job happens.
    pub(crate) fn migration_step(&mut self, host: usize, step: Step) {
        self.disturb_migration(host);
        match step {
            Step::Act => {
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                if let Some(action) = process.migrations.actions.pop_front() {
                    self.perform_for_job(host, action);
                }
                if let Some(process) = self.hosts[host].process.as_mut() {
                    process.migrations.is_acting = false;
                }
                self.act(host);
            }
            Step::Snapshot(job) => self.send_snapshot(host, job),
            Step::SnapshotSent(job) => {
                self.with_jobs(host, |jobs, context| jobs.snapshot_sent(job, context));
            }
            Step::Hold(job) => {
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                let found = process.migrations.jobs.get(job);
                let Some(found) = found.filter(|job| job.state() == State::ExportFailoverPaused) else { return };
                let ranges = found.ranges().clone();
                process.migrations.paused.push((job, ranges));
                self.send_job_item(host, job, JobItem::Message(Message::Paused));
            }
            Step::Clean(job, number, slots) => {
                self.clean(host, &slots);
                self.with_jobs(host, |jobs, context| jobs.cleaned(job, number, context));
            }
        }
    }

    /// Carries out an action that takes time.
    fn perform_for_job(&mut self, host: usize, action: Action) {
        let life = self.hosts[host].life;
        match action {
            Action::Connect { job, address, .. } => {
                let target = self.by_ip.get(&address).copied().filter(|target| *target != host);
                let opener = End { host, life, link: None, closed: false };
                let acceptor = End { host: target.unwrap_or(host), life: 0, link: None, closed: false };
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                let Some(slots) = process.migrations.jobs.get(job).map(|job| job.ranges().to_slots()) else { return };
                let conn = self.net.add(Purpose::Migration, opener, acceptor);
                process.migrations.exports.push(Export { job, conn, slots, feeds: false });
                self.begin_open(conn, target);
            }
            Action::AwaitReplicas { job, replicas } => {
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                let offset = process.data.offset;
                process.migrations.awaiting.push((job, offset, replicas));
                self.check_awaiting(host);
            }
            Action::Claim { job, slots } => {
                if self.with_jobs(host, |jobs, context| jobs.may_claim(job, context)) != Some(true) {
                    return;
                }
                let is_primary = self.cluster(host).is_some_and(Cluster::is_primary);
                if is_primary {
                    self.check_takeover(host, &slots);
                    let ranges: Vec<_> = slots.ranges().iter().map(|range| range.first..=range.last).collect();
                    self.with_cluster(host, |cluster, facts| cluster.take_over_slots(&ranges, facts));
                    self.settle(host, true);
                }
                self.with_jobs(host, |jobs, context| jobs.claimed(job, is_primary, context));
            }
            Action::WithdrawGrant { job } => {
                let process = self.hosts[host].process.as_ref();
                let found = process.and_then(|process| process.migrations.jobs.get(job)).cloned();
                let target = found.as_ref().and_then(|job| self.by_id.get(&job.target()?).copied());
                if let Some((job, target)) = found.zip(target) {
                    self.withdraw_grant(host, target, job.ranges());
                }
                self.with_cluster(host, |cluster, _| cluster.withdraw_grant());
                self.settle(host, true);
            }
            Action::DeleteKeys { job, number, slots } => self.plan(host, CLEAN_MS_MAX, Step::Clean(job, number, slots)),
            Action::Propagate { words } => {
                let is_source = self.hosts[host].process.as_ref().is_some_and(|process| process.is_source());
                let name = Finish::parse(&slices(&words[3..])).map(|finish| finish.name);
                if let (true, Ok(name)) = (is_source, name) {
                    self.append(host, Entry::Finish { name, words });
                }
            }
            // The slots of unfinished imports are hidden.
            _ => {}
        }
    }

    /// Deletes the keys of a failed import.
    fn clean(&mut self, host: usize, slots: &RangeList) {
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        if !process.is_source() {
            return;
        }
        let owned = process.cluster.my_slots();
        let foreign: Slots = slots.slots().filter(|slot| !owned.contains(*slot)).collect();
        if process.data.keys.keys().any(|slot| foreign.contains(*slot)) {
            self.append(host, Entry::RemoveSlots(Box::new(foreign)));
        }
    }

    fn send_snapshot(&mut self, host: usize, job: JobName) {
        self.with_jobs(host, |jobs, context| jobs.snapshot_started(job, context));
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let Process { migrations, data, .. } = &mut **process;
        if migrations.jobs.get(job).map(|job| job.state()) != Some(State::ExportSnapshotting) {
            return;
        }
        let Some(export) = migrations.exports.iter_mut().find(|export| export.job == job) else { return };
        export.feeds = true;
        let in_slots = data.keys.iter().filter(|(slot, _)| export.slots.contains(**slot));
        let all_keys = in_slots.flat_map(|(slot, keys)| keys.iter().map(|(key, numbers)| (*slot, *key, numbers)));
        let entries: Vec<Entry> =
            all_keys.map(|(slot, key, numbers)| Entry::Restore { slot, key, numbers: numbers.clone() }).collect();
        for entry in entries {
            self.send_job_item(host, job, JobItem::Entry(entry));
        }
        self.send_job_item(host, job, JobItem::Message(Message::SnapshotEof));
        self.plan(host, SENT_MS_MAX, Step::SnapshotSent(job));
    }

    /// Imports go on when replicas have what they received.
    pub(crate) fn check_awaiting(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let is_done = |(_, offset, replicas): &(JobName, u64, u64)| {
            process.online_replicas().filter(|replica| replica.acknowledged >= *offset).count() as u64 >= *replicas
        };
        let done: Vec<JobName> = process.migrations.awaiting.iter().filter(|w| is_done(w)).map(|w| w.0).collect();
        process.migrations.awaiting.retain(|(job, ..)| !done.contains(job));
        for job in done {
            self.with_jobs(host, |jobs, context| jobs.replicated(job, context));
        }
    }

    /// The connection to the target is open.
    pub(crate) fn migration_connected(&mut self, host: usize, conn: ConnId) {
        if let Some(job) = self.job_of(host, conn, 0) {
            self.with_jobs(host, |jobs, context| jobs.connected(job, context));
        }
    }

    /// The target refused the connection.
    pub(crate) fn migration_refused(&mut self, host: usize, conn: ConnId) {
        if let Some(job) = self.job_of(host, conn, 0) {
            self.with_jobs(host, |jobs, context| jobs.connect_failed(job, "Connection refused", context));
        }
    }

    /// The other side has closed the connection.
    pub(crate) fn migration_closed(&mut self, host: usize, conn: ConnId, side: Side) {
        let Some(job) = self.job_of(host, conn, side) else { return };
        if let Some(process) = self.hosts[host].process.as_mut() {
            process.migrations.forget(job);
        }
        self.with_jobs(host, |jobs, context| jobs.disconnected(job, context));
    }

    fn job_of(&self, host: usize, conn: ConnId, side: Side) -> Option<JobName> {
        self.hosts[host].process.as_ref()?.migrations.job_of(conn, side)
    }

    /// Something from the other side.
    pub(crate) fn receive_job_item(&mut self, host: usize, conn: ConnId, side: Side, item: JobItem) {
        if let JobItem::Establish(words) = item {
            self.establish(host, conn, words);
            return;
        }
        let Some(job) = self.job_of(host, conn, side) else { return };
        let now_s = u64::try_from(self.clock(host).unix_ms / 1000).unwrap_or_default();
        self.with_jobs(host, |jobs, _| jobs.heard(job, now_s));
        match item {
            JobItem::Message(message) => {
                self.disturb_migration(host);
                // What is left to send is measured at once, or in the next tick.
                let measures = self.random.bool();
                self.with_jobs(host, |jobs, context| {
                    jobs.received(job, message, context);
                    if message == Message::RequestPause && measures {
                        jobs.progressed(job, Progress::default(), context);
                    }
                });
            }
            JobItem::Established(result) => {
                let result = result.as_ref().map(|_| ()).map_err(String::as_str);
                self.with_jobs(host, |jobs, context| jobs.established(job, result, context));
            }
            JobItem::Entry(entry) => {
                // A connection whose job has ended is about to be closed.
                let process = self.hosts[host].process.as_ref();
                let is_open = process.is_some_and(|process| {
                    process.is_source()
                        && process.migrations.jobs.get(job).is_some_and(|job| job.state().is_in_progress())
                });
                if is_open {
                    self.append(host, entry);
                }
            }
            JobItem::Establish(_) => {}
        }
    }

    fn establish(&mut self, host: usize, conn: ConnId, words: Vec<Vec<u8>>) {
        let result =
            self.with_jobs(host, |jobs, context| jobs.establish(&slices(&words[3..]), Origin::Source, context));
        let reply = match result {
            Some(Ok(name)) => {
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                process.migrations.imports.push((name, conn));
                let ranges = process.migrations.jobs.get(name).map(|job| job.ranges().clone()).unwrap_or_default();
                self.append(host, Entry::Establish { name, ranges, words });
                Ok(())
            }
            Some(Err(error)) => Err(format!("-ERR {error}")),
            None => return,
        };
        self.send_item(conn, 0, Item::Job(Box::new(JobItem::Established(reply))));
    }

    /// A replica has received what its primary propagates of a job.
    pub(crate) fn track_job(&mut self, host: usize, entry: &Entry) {
        match entry {
            Entry::Establish { words, .. } => {
                self.with_jobs(host, |jobs, context| {
                    jobs.establish(&slices(&words[3..]), Origin::Stream, context).is_ok()
                });
            }
            Entry::Finish { words, .. } => {
                self.with_jobs(host, |jobs, context| jobs.finish_command(&slices(&words[3..]), context).is_ok());
            }
            _ => {}
        }
    }

    /// CLUSTER MIGRATESLOTS of a random range to a random primary.
    pub(crate) fn migrate_slots(&mut self) {
        let primaries: Vec<usize> = (0..self.hosts.len())
            .filter(|host| self.is_running(*host))
            .filter(|host| self.cluster(*host).is_some_and(|cluster| !cluster.my_slots().is_empty()))
            .collect();
        if primaries.is_empty() {
            return;
        }
        let source = primaries[self.random.usize(0..primaries.len())];
        let target = primaries[self.random.usize(0..primaries.len())];
        let Some(id) = self.cluster(target).filter(|_| source != target).map(Cluster::my_id) else { return };
        let written: Vec<u16> = (0..self.clients.len())
            .flat_map(|client| (0..crate::clients::KEYS).map(move |key| (client, key)))
            .map(|(client, key)| self.slot_of(client, key))
            .collect();
        let Some(slots) = self.cluster(source).map(|cluster| cluster.my_slots().clone()) else { return };
        let candidates: Vec<u16> = match self.random.u8(0..4) {
            0 => slots.iter().collect(),
            _ => written.into_iter().filter(|slot| slots.contains(*slot)).collect(),
        };
        if candidates.is_empty() {
            return;
        }
        let slot = candidates[self.random.usize(0..candidates.len())];
        let Some(run) = slots.view().ranges().find(|range| range.contains(&slot)) else { return };
        let len = if self.random.u8(0..8) == 0 { u16::MAX } else { self.random.u16(0..2000) };
        let (first, last) = (slot.saturating_sub(len).max(*run.start()), slot.saturating_add(len).min(*run.end()));
        self.trace.note(self.now_ms, || format!("slots {first} to {last} move from host {source} to {target}"));
        let mut bytes = [0; JobName::LEN / 2];
        self.random.fill(&mut bytes);
        let (first, last) = (first.to_string(), last.to_string());
        let arguments = [b"SLOTSRANGE", first.as_bytes(), last.as_bytes(), b"NODE", id.as_bytes()];
        self.with_jobs(source, |jobs, context| {
            jobs.migrate(&arguments, "simulator", || JobName::from_random(bytes), context).is_ok()
        });
    }

    /// CLUSTER CANCELSLOTMIGRATIONS.
    pub(crate) fn cancel_migrations(&mut self, host: usize) {
        if self.is_running(host) {
            self.with_jobs(host, |jobs, context| jobs.cancel("simulator", context).is_ok());
        }
    }

    /// The process of a host ends. If it has allowed targets to take slots over, and a target dies as well before
    /// others hear of its claim, the claim comes when the target starts again: writes until then may be lost.
    pub(crate) fn note_forgotten_grants(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let granted: Vec<u16> = process.migrations.granted.iter().flat_map(|(_, slots)| slots.iter()).collect();
        self.oracle.at_risk.extend(granted);
    }

    /// A job that has not ended.
    pub(crate) fn find_unfinished_job(&self) -> Option<String> {
        for host in 0..self.hosts.len() {
            let migrations = &self.hosts[host].process.as_ref()?.migrations;
            if let Some(job) = migrations.jobs.iter().find(|job| !job.state().is_finished()) {
                let state = job.state().as_str();
                return Some(format!("host {host}: {} is in state {state}", job.description()));
            }
            if !migrations.held.is_empty() || !migrations.paused.is_empty() {
                return Some(format!("host {host} holds writes, but no job has it do so"));
            }
        }
        None
    }
}

/// The words of a request in RESP.
fn words_of(request: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = request.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.next();
    std::iter::from_fn(|| {
        lines.next()?;
        lines.next().map(<[u8]>::to_vec)
    })
    .collect()
}

fn slices(words: &[Vec<u8>]) -> Vec<&[u8]> {
    words.iter().map(Vec::as_slice).collect()
}
