//! The network: connections that behave as TCP does.
//!
//! A connection keeps the order of what is sent in a direction, and neither loses nor repeats anything while it
//! lives. What a real network loses arrives late, after retransmissions; what crosses a partition waits until the
//! partition ends, or until the connection is closed. Data of different connections overtake each other freely.
//!
//! In raw mode ([`Conditions::raw`]) frames are also repeated and reordered within a connection.

use crate::data::Message;
use crate::packed::{Frame, Packer};
use crate::slot_migration::JobItem;
use kvick_cluster::state::LinkId;
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// A connection, for as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnId {
    index: u32,
    generation: NonZeroU32,
}

/// One of the two ends: 0 has opened the connection, 1 has accepted it.
pub(crate) type Side = usize;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Bus,
    Replication,
    Migration,
}

/// What is sent in one piece.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Frame(Frame),
    Replication(Box<Message>),
    Job(Box<JobItem>),
    /// The sender has closed its end.
    Fin,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) host: usize,
    /// The process of the host that holds it.
    pub(crate) life: u32,
    /// The number that the state machine has for it.
    pub(crate) link: Option<LinkId>,
    pub(crate) closed: bool,
}

/// What is on its way to one end. There are two directions per pair of nodes: nearly all are empty most of the time,
/// and few have more than one item.
#[derive(Clone, Debug, Default)]
pub(crate) struct Direction {
    /// The item that arrives next, and when.
    first: Option<(u64, Item)>,
    /// Those behind it. Not empty. In a box, since that is a quarter of the size.
    #[allow(clippy::box_collection)]
    others: Option<Box<VecDeque<(u64, Item)>>>,
    /// Bytes of all frames.
    bytes: u64,
    /// Whether an event for the first item is scheduled.
    pub(crate) scheduled: bool,
    /// Arrival of the item that was sent last.
    last_ms: u64,
    /// Retransmissions of the first item.
    pub(crate) attempts: u32,
}

impl Item {
    fn frame_bytes(&self) -> u64 {
        if let Item::Frame(frame) = self { frame.len() as u64 } else { 0 }
    }
}

impl Direction {
    /// Takes the first item.
    fn pop(&mut self) -> Option<Item> {
        let (_, item) = self.first.take()?;
        self.bytes -= item.frame_bytes();
        if let Some(others) = &mut self.others {
            self.first = others.pop_front();
            if others.is_empty() {
                self.others = None;
            }
        }
        Some(item)
    }

    fn push(&mut self, at_ms: u64, item: Item) {
        self.bytes += item.frame_bytes();
        if self.first.is_none() {
            self.first = Some((at_ms, item));
        } else {
            self.others.get_or_insert_default().push_back((at_ms, item));
        }
    }

    /// When the first item arrives.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.first.as_ref().map(|(at_ms, _)| *at_ms)
    }

    fn items_mut(&mut self) -> impl Iterator<Item = &mut Item> {
        self.first.iter_mut().chain(self.others.iter_mut().flat_map(|others| others.iter_mut())).map(|(_, item)| item)
    }

    /// Drops all items.
    fn clear(&mut self) {
        (self.first, self.others, self.bytes) = (None, None, 0);
    }

    /// Bytes that wait at the sender. The network itself holds some data.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.bytes.saturating_sub(IN_FLIGHT_BYTES)
    }
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct Conn {
    pub(crate) purpose: Purpose,
    pub(crate) ends: [End; 2],
    /// By the end that receives.
    pub(crate) towards: [Direction; 2],
}

impl Conn {
    /// Which end is that link of a host.
    pub(crate) fn side_of(&self, host: usize, link: LinkId) -> Side {
        usize::from(self.ends[0].link != Some(link) || self.ends[0].host != host)
    }
}

/// How the network behaves during a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    /// Shortest delay of a packet in milliseconds.
    pub(crate) delay_ms: u64,
    /// What may be added to it at random.
    pub(crate) jitter_ms: u64,
    /// Probability that a packet is lost and sent again.
    pub(crate) loss: f64,
    /// Frames of a connection are repeated and reordered.
    pub(crate) raw: bool,
}

/// A broken path: nothing gets from the endpoints of one set to those of another.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) id: u64,
    pub(crate) from: Vec<bool>,
    pub(crate) to: Vec<bool>,
}

/// Bytes of a direction that are on their way, and do not count as waiting.
const IN_FLIGHT_BYTES: u64 = 16 * 1024;

/// While more bytes are on their way than this, messages are packed: when a cluster of 1,000 nodes starts, each sends a
/// PING to each other one within 100 milliseconds.
const CROWD_BYTES: u64 = 256 << 20;

/// Time until a lost packet is sent again, doubled with each attempt.
const RETRANSMIT_MS: u64 = 200;
const RETRANSMIT_DOUBLINGS_MAX: u32 = 4;

struct Slot {
    generation: NonZeroU32,
    conn: Option<Conn>,
}

/// Connections that are allocated at once.
const PAGE_SLOTS: usize = 1024;

/// An endpoint that does not exist.
const NOWHERE: u32 = u32::MAX;

/// See the module.
pub(crate) struct Network {
    /// Pages of [`PAGE_SLOTS`]: the last one may have fewer.
    pages: Vec<Vec<Slot>>,
    /// The hosts at both ends of each connection, by the index of its slot.
    hosts: Vec<[u32; 2]>,
    free: Vec<u32>,
    /// Bytes of all frames on their way, as they are on the wire.
    bytes: u64,
    pub(crate) conditions: Conditions,
    pub(crate) cuts: Vec<Cut>,
    /// Additional delay of all packets of an endpoint.
    pub(crate) slowness_ms: Vec<u64>,
    pub(crate) packer: Packer,
}

impl Network {
    /// A network of endpoints: hosts, then clients.
    pub(crate) fn new(endpoints: usize, conditions: Conditions) -> Network {
        let slowness_ms = vec![0; endpoints];
        Network {
            pages: Vec::new(),
            hosts: Vec::new(),
            free: Vec::new(),
            bytes: 0,
            conditions,
            cuts: Vec::new(),
            slowness_ms,
            packer: Packer::default(),
        }
    }

    /// Whether nothing gets from one endpoint to another.
    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        from != to && self.cuts.iter().any(|cut| cut.from[from] && cut.to[to])
    }

    /// Time that a packet takes, with retransmissions.
    pub(crate) fn delay_ms(&self, from: usize, to: usize, random: &mut fastrand::Rng) -> u64 {
        let conditions = &self.conditions;
        let mut delay_ms = conditions.delay_ms + self.slowness_ms[from] + self.slowness_ms[to];
        delay_ms += random.u64(0..=conditions.jitter_ms);
        let mut attempts = 0;
        while conditions.loss > 0.0 && attempts < RETRANSMIT_DOUBLINGS_MAX && random.f64() < conditions.loss {
            delay_ms += RETRANSMIT_MS << attempts;
            attempts += 1;
        }
        delay_ms
    }

    /// Adds a connection that is about to be opened.
    pub(crate) fn add(&mut self, purpose: Purpose, opener: End, acceptor: End) -> ConnId {
        let conn = Conn { purpose, ends: [opener, acceptor], towards: Default::default() };
        let hosts = [conn.ends[0].host as u32, conn.ends[1].host as u32];
        let index = self.free.pop().unwrap_or_else(|| self.add_slot());
        self.hosts[index as usize] = hosts;
        let slot = &mut self.pages[index as usize / PAGE_SLOTS][index as usize % PAGE_SLOTS];
        slot.conn = Some(conn);
        ConnId { index, generation: slot.generation }
    }

    fn add_slot(&mut self) -> u32 {
        let index = self.hosts.len();
        self.hosts.push([NOWHERE; 2]);
        if index.is_multiple_of(PAGE_SLOTS) {
            self.pages.push(Vec::with_capacity(PAGE_SLOTS));
        }
        self.pages[index / PAGE_SLOTS].push(Slot { generation: NonZeroU32::MIN, conn: None });
        index as u32
    }

    fn slot_mut(&mut self, id: ConnId) -> Option<&mut Slot> {
        let index = id.index as usize;
        let slot = self.pages.get_mut(index / PAGE_SLOTS)?.get_mut(index % PAGE_SLOTS)?;
        (slot.generation == id.generation).then_some(slot)
    }

    pub(crate) fn get(&self, id: ConnId) -> Option<&Conn> {
        let index = id.index as usize;
        let slot = self.pages.get(index / PAGE_SLOTS)?.get(index % PAGE_SLOTS)?;
        slot.conn.as_ref().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.slot_mut(id)?.conn.as_mut()
    }

    pub(crate) fn remove(&mut self, id: ConnId) {
        if let Some(slot) = self.slot_mut(id) {
            let conn = slot.conn.take();
            slot.generation = slot.generation.saturating_add(1);
            self.bytes -= conn.map_or(0, |conn| conn.towards.iter().map(|direction| direction.bytes).sum());
            self.hosts[id.index as usize] = [NOWHERE; 2];
            self.free.push(id.index);
        }
    }

    /// All connections with an end at a host.
    pub(crate) fn of_host(&self, host: usize) -> Vec<ConnId> {
        let conns = self.hosts.iter().enumerate().filter(|(_, hosts)| hosts.contains(&(host as u32)));
        let id = |index: usize| {
            let generation = self.pages[index / PAGE_SLOTS][index % PAGE_SLOTS].generation;
            ConnId { index: index as u32, generation }
        };
        conns.map(|(index, _)| id(index)).collect()
    }

    /// Sends an item to the end `to`. Returns when the first item of that direction is to be delivered, unless that
    /// is scheduled already.
    pub(crate) fn send(
        &mut self,
        id: ConnId,
        to: Side,
        mut item: Item,
        now_ms: u64,
        random: &mut fastrand::Rng,
    ) -> Option<u64> {
        let (sender, receiver) = self.get(id).map(|conn| (conn.ends[1 - to].host, conn.ends[to].host))?;
        let delay_ms = self.delay_ms(sender, receiver, random);
        let waits = self.get(id)?.towards[to].attempts > 0;
        if let Item::Frame(frame) = &mut item {
            if waits || self.bytes > CROWD_BYTES {
                self.packer.pack(frame);
            }
            self.bytes += frame.len() as u64;
        }
        let direction = &mut self.get_mut(id)?.towards[to];
        let at_ms = (now_ms + delay_ms).max(direction.last_ms);
        direction.last_ms = at_ms;
        direction.push(at_ms, item);
        (!std::mem::replace(&mut direction.scheduled, true)).then_some(at_ms)
    }

    /// Takes the first item that arrives at an end.
    pub(crate) fn receive(&mut self, id: ConnId, to: Side) -> Option<Item> {
        let item = self.get_mut(id)?.towards[to].pop()?;
        self.bytes -= item.frame_bytes();
        Some(item)
    }

    /// Drops all that is on its way to an end.
    pub(crate) fn drop_items(&mut self, id: ConnId, to: Side) {
        if let Some(conn) = self.get_mut(id) {
            let bytes = conn.towards[to].bytes;
            conn.towards[to].clear();
            self.bytes -= bytes;
        }
    }

    /// The first item of a direction could not be delivered. Returns the time until the next attempt.
    pub(crate) fn retry(&mut self, id: ConnId, to: Side) -> Option<u64> {
        let index = id.index as usize;
        let slot = self.pages.get_mut(index / PAGE_SLOTS)?.get_mut(index % PAGE_SLOTS)?;
        let conn = slot.conn.as_mut().filter(|_| slot.generation == id.generation)?;
        let direction = &mut conn.towards[to];
        if direction.attempts == 0 {
            for item in direction.items_mut() {
                if let Item::Frame(frame) = item {
                    self.packer.pack(frame);
                }
            }
        }
        direction.attempts += 1;
        Some(RETRANSMIT_MS << direction.attempts.min(RETRANSMIT_DOUBLINGS_MAX))
    }
}
