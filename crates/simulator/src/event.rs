//! What is scheduled, in the order of time.

use crate::faults::Ending;
use crate::host::{Reply, Request};
use crate::network::{ConnId, Item, Side};
use crate::slot_migration::Step;
use kvick_cluster::state::LinkId;
use std::collections::{BTreeMap, VecDeque};

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
    /// The target of a slot migration refused the connection.
    JobRefused {
        host: usize,
        life: u32,
        conn: ConnId,
    },
    Migration {
        host: usize,
        life: u32,
        step: Step,
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

/// All scheduled events, by time. Events of one millisecond happen in the order in which they were scheduled.
#[derive(Default)]
pub(crate) struct Queue {
    by_time: BTreeMap<u64, VecDeque<Event>>,
}

impl Queue {
    pub(crate) fn push(&mut self, at_ms: u64, event: Event) {
        self.by_time.entry(at_ms).or_default().push_back(event);
    }

    /// The next event, unless it is after a time.
    pub(crate) fn pop_until(&mut self, until_ms: u64) -> Option<(u64, Event)> {
        let mut next = self.by_time.first_entry().filter(|next| *next.key() <= until_ms)?;
        let at_ms = *next.key();
        let event = next.get_mut().pop_front();
        if next.get().is_empty() {
            next.remove();
        }
        event.map(|event| (at_ms, event))
    }
}
