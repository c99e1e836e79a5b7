//! Nodes with jobs, the links between them, and the map of slots that all of them know.

use super::*;
use crate::NodeId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The slots under way in most tests.
pub const SLOTS: [&[u8]; 2] = [b"10", b"19"];

/// The ID of node `n`.
pub fn id(n: u8) -> NodeId {
    NodeId::from_random([n; 20])
}

/// The name of job `n`.
pub fn name(n: u8) -> JobName {
    JobName::from_random([n; 20])
}

/// The list of these ranges.
pub fn ranges(ranges: &[(u64, u64)]) -> RangeList {
    RangeList::new(ranges.iter().copied()).expect("valid ranges")
}

/// A node's view: node `n` of a cluster in which nodes 0, 1 and 2 own a third of the slots 0 to 299 each.
#[derive(Clone, Debug)]
pub struct View {
    pub me: u8,
    pub is_primary: bool,
    pub owners: BTreeMap<u16, u8>,
    pub peers: BTreeSet<u8>,
    pub imports_manually: bool,
    pub migrates_manually: bool,
    pub deleting: Option<u16>,
    pub is_failing_over: bool,
    pub has_keys: bool,
}

impl View {
    pub fn new(me: u8) -> View {
        let owners = (0..300).map(|slot| (slot, (slot / 100) as u8)).collect();
        let peers = BTreeSet::from([0, 1, 2]);
        View {
            me,
            is_primary: true,
            owners,
            peers,
            imports_manually: false,
            migrates_manually: false,
            deleting: None,
            is_failing_over: false,
            has_keys: true,
        }
    }

    pub fn give(&mut self, slots: &RangeList, to: u8) {
        for slot in slots.slots() {
            self.owners.insert(slot, to);
        }
    }
}

impl Topology for View {
    fn my_id(&self) -> NodeId {
        id(self.me)
    }

    fn is_primary(&self) -> bool {
        self.is_primary
    }

    fn owner(&self, slot: u16) -> Option<NodeId> {
        self.owners.get(&slot).map(|owner| id(*owner))
    }

    fn peer(&self, wanted: &NodeId) -> Option<Peer> {
        let found = self.peers.iter().find(|peer| id(**peer) == *wanted)?;
        let human_name = if *found == 2 { "third".to_owned() } else { String::new() };
        Some(Peer { address: format!("10.0.0.{found}"), port: 7000 + u16::from(*found), human_name })
    }

    fn deletes(&self, slot: u16) -> bool {
        self.deleting == Some(slot)
    }

    fn has_keys(&self, _: u16) -> bool {
        self.has_keys
    }

    fn imports_manually(&self) -> bool {
        self.imports_manually
    }

    fn migrates_manually(&self) -> bool {
        self.migrates_manually
    }

    fn is_working_primary(&self, wanted: &NodeId) -> bool {
        self.peers.iter().any(|peer| id(*peer) == *wanted)
    }

    fn is_failing_over(&self) -> bool {
        self.is_failing_over
    }
}

/// A node: its jobs, and what they have made of their surroundings.
pub struct Node {
    pub jobs: Jobs,
    pub view: View,
    pub settings: Settings,
    pub log: Vec<String>,
    pub paused: BTreeSet<u16>,
    pub hidden: BTreeSet<u16>,
    pub has_foreign_keys: bool,
    pub has_withdrawn: bool,
    /// How far its wall clock has jumped ahead.
    pub skew_ms: u64,
    pub propagated: Vec<Vec<u8>>,
    pub alive: bool,
}

impl Node {
    pub fn new(me: u8) -> Node {
        Node {
            jobs: Jobs::default(),
            view: View::new(me),
            settings: Settings::default(),
            log: Vec::new(),
            paused: BTreeSet::new(),
            hidden: BTreeSet::new(),
            has_foreign_keys: false,
            has_withdrawn: false,
            skew_ms: 0,
            propagated: Vec::new(),
            alive: true,
        }
    }

    /// Runs `call` on the jobs.
    pub fn call<T>(&mut self, now_ms: u64, call: impl FnOnce(&mut Jobs, &Context<'_>) -> T) -> T {
        let (unix_ms, mono_ms) = (now_ms + self.skew_ms, now_ms);
        let context =
            Context { topology: &self.view, settings: &self.settings, now_ms: unix_ms, mono_ms, loading: false };
        call(&mut self.jobs, &context)
    }

    pub fn state(&self) -> Option<State> {
        self.jobs.iter().next().map(Job::state)
    }

    pub fn message(&self) -> String {
        self.jobs.iter().next().and_then(Job::message).unwrap_or_default().to_owned()
    }
}

/// What is under way between the two nodes, or from a node to itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Connected,
    Establish,
    Established(Result<(), String>),
    SnapshotStarted,
    SnapshotSent,
    ToTarget(Message),
    ToSource(Message),
    Replicated,
    Claimed,
    OwnerKnown,
    Cleaned(u64),
}

/// A source (node 0), a target (node 1), and what is under way between them.
pub struct World {
    pub source: Node,
    pub target: Node,
    pub events: VecDeque<Event>,
    pub connected: bool,
    /// Whether the replicas of the target acknowledge what they receive.
    pub replicas_answer: bool,
    pub now_ms: u64,
}

impl World {
    /// A world in which the source was told to migrate slots 10 to 19 to the target.
    pub fn migrating() -> World {
        let mut world = World {
            source: Node::new(0),
            target: Node::new(1),
            events: VecDeque::new(),
            connected: false,
            replicas_answer: true,
            now_ms: 1_700_000_000_000,
        };
        world.migrate();
        world
    }

    pub fn migrate(&mut self) {
        let target = id(1);
        let arguments: [&[u8]; 5] = [b"SLOTSRANGE", SLOTS[0], SLOTS[1], b"NODE", target.as_bytes()];
        let result =
            self.source.call(self.now_ms, |jobs, context| jobs.migrate(&arguments, "client", || name(7), context));
        assert_eq!(result, Ok(()));
        self.settle();
    }

    /// Carries out the actions of both nodes.
    pub fn settle(&mut self) {
        for action in self.source.jobs.take_actions() {
            self.act(0, action);
        }
        for action in self.target.jobs.take_actions() {
            self.act(1, action);
        }
    }

    fn act(&mut self, node: u8, action: Action) {
        let is_source = node == 0;
        let side = if is_source { &mut self.source } else { &mut self.target };
        match action {
            Action::Log(_, line) => side.log.push(line),
            Action::Connect { port, .. } => {
                assert_eq!(port, 7001);
                self.events.push_back(Event::Connected);
            }
            Action::Authenticate { .. } => panic!("no password is set"),
            Action::Establish { request, .. } => {
                assert!(request.starts_with(b"*10\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$9\r\nESTABLISH\r\n"));
                self.events.push_back(Event::Establish);
            }
            Action::StartSnapshot { .. } => self.events.push_back(Event::SnapshotStarted),
            Action::Send { message, .. } if is_source => self.events.push_back(Event::ToTarget(message)),
            Action::Send { message, .. } => self.events.push_back(Event::ToSource(message)),
            Action::WithdrawGrant { .. } => side.has_withdrawn = true,
            Action::PauseWrites { slots, .. } => {
                side.paused.extend(slots.slots());
                self.events.push_back(Event::ToTarget(Message::Paused));
            }
            Action::GrantFailover { .. } => self.events.push_back(Event::ToTarget(Message::FailoverGranted)),
            Action::ResumeWrites { slots, .. } => side.paused.retain(|slot| !slots.contains(*slot)),
            Action::SetImporting { slots, importing: true } => {
                side.hidden.extend(slots.slots());
                side.has_foreign_keys = true;
            }
            Action::SetImporting { slots, importing: false } => side.hidden.retain(|slot| !slots.contains(*slot)),
            Action::AwaitReplicas { replicas, .. } => {
                assert_eq!(replicas, side.settings.takeover_replicas);
                self.events.push_back(Event::Replicated);
            }
            Action::Claim { job, slots } => {
                let now_ms = self.now_ms;
                assert!(side.call(now_ms, |jobs, context| jobs.may_claim(job, context)), "no time has passed");
                if side.view.is_primary {
                    side.view.give(&slots, 1);
                }
                self.events.push_back(Event::Claimed);
            }
            Action::DeleteKeys { number, .. } => self.events.push_back(Event::Cleaned(number)),
            Action::Propagate { words } => side.propagated.push(words.join(&b' ')),
            Action::Disconnect { .. } => self.disconnect(!is_source, is_source),
        }
    }

    /// Closes the link; the named sides learn of it.
    pub fn disconnect(&mut self, tell_source: bool, tell_target: bool) {
        let travels = |event: &Event| {
            matches!(event, Event::ToTarget(_) | Event::ToSource(_) | Event::Established(_) | Event::Establish)
        };
        self.events.retain(|event| !travels(event));
        if std::mem::take(&mut self.connected) {
            let now_ms = self.now_ms;
            if tell_source && self.source.alive {
                self.source.call(now_ms, |jobs, context| jobs.disconnected(name(7), context));
            }
            if tell_target && self.target.alive {
                self.target.call(now_ms, |jobs, context| jobs.disconnected(name(7), context));
            }
            self.settle();
        }
    }

    /// Lets the next event happen. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.events.pop_front() else { return false };
        let now_ms = self.now_ms;
        match event {
            Event::Connected => {
                self.connected = self.source.alive && self.target.alive;
                if self.connected {
                    self.source.call(now_ms, |jobs, context| jobs.connected(name(7), context));
                } else if self.source.alive {
                    let error = "Connection refused";
                    self.source.call(now_ms, |jobs, context| jobs.connect_failed(name(7), error, context));
                }
            }
            Event::Establish => {
                let (source, name) = (id(0), name(7));
                let arguments: [&[u8]; 7] =
                    [b"SOURCE", source.as_bytes(), b"NAME", name.as_bytes(), b"SLOTSRANGE", SLOTS[0], SLOTS[1]];
                let result =
                    self.target.call(now_ms, |jobs, context| jobs.establish(&arguments, Origin::Source, context));
                let result = result.map(|_| ()).map_err(|error| format!("-ERR {error}"));
                self.events.push_back(Event::Established(result));
            }
            Event::Established(result) => {
                let result = result.as_ref().map(|_| ()).map_err(String::as_str);
                self.source.call(now_ms, |jobs, context| jobs.established(name(7), result, context));
            }
            Event::SnapshotStarted => {
                self.source.call(now_ms, |jobs, context| jobs.snapshot_started(name(7), context));
                if self.source.state() == Some(State::ExportSnapshotting) {
                    self.events.push_back(Event::ToTarget(Message::SnapshotEof));
                    self.events.push_back(Event::SnapshotSent);
                }
            }
            Event::SnapshotSent => {
                self.source.call(now_ms, |jobs, context| jobs.snapshot_sent(name(7), context));
            }
            Event::ToTarget(message) => {
                self.target.call(now_ms, |jobs, context| jobs.received(name(7), message, context));
            }
            Event::ToSource(message) => {
                self.source.call(now_ms, |jobs, context| jobs.received(name(7), message, context));
                self.source.call(now_ms, |jobs, context| jobs.progressed(name(7), Progress::default(), context));
            }
            Event::Replicated if !self.replicas_answer => {}
            Event::Replicated => self.target.call(now_ms, |jobs, context| jobs.replicated(name(7), context)),
            Event::Claimed => {
                let claimed = self.target.view.is_primary;
                self.target.call(now_ms, |jobs, context| jobs.claimed(name(7), claimed, context));
                if claimed {
                    self.events.push_back(Event::OwnerKnown);
                }
            }
            Event::OwnerKnown => {
                self.source.view.give(&ranges(&[(10, 19)]), 1);
                self.source.call(now_ms, |jobs, context| jobs.topology_changed(context));
            }
            Event::Cleaned(number) => {
                self.target.has_foreign_keys = false;
                self.target.call(now_ms, |jobs, context| jobs.cleaned(name(7), number, context));
            }
        }
        self.settle();
        true
    }

    /// Lets everything happen that is under way.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Lets time pass, in ticks of 100 ms.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 100 {
            self.now_ms += 100;
            let now_ms = self.now_ms;
            if self.source.alive {
                self.source.call(now_ms, |jobs, context| jobs.tick(context));
            }
            if self.target.alive {
                self.target.call(now_ms, |jobs, context| jobs.tick(context));
            }
            self.settle();
            if !self.connected {
                self.disconnect(false, false);
            }
            self.run();
        }
    }
}
