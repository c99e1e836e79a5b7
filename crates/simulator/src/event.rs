//! What is scheduled, in the order of time.

use crate::faults::Ending;
use crate::host::{Reply, Request};
use crate::network::{ConnId, Item, Side};
use kvick_cluster::state::LinkId;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that happens at a time.
#[derive(Debug)]
pub(crate) enum Event {
    Tick {
        host: usize,
        life: u32,
    },
    /// A packet that opens a connection arrives.
    Open {
        conn: ConnId,
        attempt: u32,
    },
    /// The opener learns that the connection is open.
    Opened {
        conn: ConnId,
        attempt: u32,
    },
    /// The opener learns that nobody listens.
    Refused {
        host: usize,
        life: u32,
        link: LinkId,
        conn: ConnId,
    },
    Deliver {
        conn: ConnId,
        to: Side,
    },
    DeliverRaw {
        conn: ConnId,
        to: Side,
        item: Box<Item>,
    },
    /// `nodes.conf` is durable.
    Saved {
        host: usize,
        life: u32,
    },
    WritesPaused {
        host: usize,
        life: u32,
        number: u64,
    },
    /// The copy of all data for a replica is ready.
    FullSync {
        host: usize,
        life: u32,
        conn: ConnId,
    },
    Request {
        host: usize,
        request: Request,
    },
    Reply {
        request: Request,
        host: usize,
        reply: Reply,
    },
    /// A client sends its next write.
    ClientTurn {
        client: usize,
    },
    /// A client gives up waiting for a reply.
    ClientTimeout {
        client: usize,
        number: u32,
    },
    /// The next fault or operation.
    Fault,
    EndFault(Box<Ending>),
    Check,
}

struct Scheduled {
    at_ms: u64,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The heap has the greatest first: that is the earliest, and of several the one scheduled first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ms, other.number).cmp(&(self.at_ms, self.number))
    }
}

/// All scheduled events.
#[derive(Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Scheduled>,
    scheduled: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at_ms: u64, event: Event) {
        self.heap.push(Scheduled { at_ms, number: self.scheduled, event });
        self.scheduled += 1;
    }

    /// The next event, unless it is after a time.
    pub(crate) fn pop_until(&mut self, until_ms: u64) -> Option<(u64, Event)> {
        if self.heap.peek()?.at_ms > until_ms {
            return None;
        }
        self.heap.pop().map(|next| (next.at_ms, next.event))
    }
}
