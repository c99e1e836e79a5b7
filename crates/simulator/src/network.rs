//! The network: connections that behave as TCP does.
//!
//! A connection keeps the order of what is sent in a direction, and neither loses nor repeats anything while it
//! lives. What a real network loses arrives late, after retransmissions; what crosses a partition waits until the
//! partition ends, or until the connection is closed. Data of different connections overtake each other freely.
//!
//! In raw mode ([`Conditions::raw`]) frames are also repeated and reordered within a connection.

use crate::data::Message;
use crate::packed::{Frame, Packer};
use kvick_cluster::state::LinkId;
use std::collections::VecDeque;

/// A connection, for as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnId {
    index: u32,
    generation: u32,
}

/// One of the two ends: 0 has opened the connection, 1 has accepted it.
pub(crate) type Side = usize;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Bus,
    Replication,
}

/// What is sent in one piece.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Frame(Frame),
    Replication(Box<Message>),
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

/// What is on its way to one end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Direction {
    pub(crate) queue: VecDeque<(u64, Item)>,
    /// Bytes of the frames in `queue`.
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
    pub(crate) fn pop(&mut self) -> Option<Item> {
        let (_, item) = self.queue.pop_front()?;
        self.bytes -= item.frame_bytes();
        if self.queue.is_empty() {
            // There are two directions per pair of nodes, and nearly all are empty most of the time.
            self.queue = VecDeque::new();
        }
        Some(item)
    }

    /// Drops all items.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.bytes = 0;
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

/// Time until a lost packet is sent again, doubled with each attempt.
const RETRANSMIT_MS: u64 = 200;
const RETRANSMIT_DOUBLINGS_MAX: u32 = 4;

#[derive(Default)]
struct Slot {
    generation: u32,
    conn: Option<Box<Conn>>,
}

/// See the module.
pub(crate) struct Network {
    slots: Vec<Slot>,
    free: Vec<u32>,
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
            slots: Vec::new(),
            free: Vec::new(),
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
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.conn = Some(Box::new(conn));
        ConnId { index, generation: slot.generation }
    }

    pub(crate) fn get(&self, id: ConnId) -> Option<&Conn> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.conn.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.conn.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation) {
            slot.conn = None;
            slot.generation += 1;
            self.free.push(id.index);
        }
    }

    /// All connections with an end at a host.
    pub(crate) fn of_host(&self, host: usize) -> Vec<ConnId> {
        let conns = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let is_there = slot.conn.as_ref().is_some_and(|conn| conn.ends.iter().any(|end| end.host == host));
            is_there.then_some(ConnId { index: index as u32, generation: slot.generation })
        });
        conns.collect()
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
        if let Item::Frame(frame) = &mut item
            && waits
        {
            self.packer.pack(frame);
        }
        let direction = &mut self.get_mut(id)?.towards[to];
        let at_ms = (now_ms + delay_ms).max(direction.last_ms);
        direction.last_ms = at_ms;
        direction.bytes += item.frame_bytes();
        direction.queue.push_back((at_ms, item));
        (!std::mem::replace(&mut direction.scheduled, true)).then_some(at_ms)
    }

    /// The first item of a direction could not be delivered. Returns the time until the next attempt.
    pub(crate) fn retry(&mut self, id: ConnId, to: Side) -> Option<u64> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        let direction = &mut slot.conn.as_mut()?.towards[to];
        if direction.attempts == 0 {
            for (_, item) in &mut direction.queue {
                if let Item::Frame(frame) = item {
                    self.packer.pack(frame);
                }
            }
        }
        direction.attempts += 1;
        Some(RETRANSMIT_MS << direction.attempts.min(RETRANSMIT_DOUBLINGS_MAX))
    }
}
