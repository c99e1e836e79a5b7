//! Forwards requests to the nodes that own their slots, for clients that know nothing of the cluster.
//!
//! ```text
//!  clients --> batch --> engine: Outcome::Elsewhere --> `requests`: which node, which link
//!                                                             |
//!  clients <-- replies <-- ReplyQueue of each client <-- `answers` <-- `links` <==> other nodes
//! ```
//!
//! Each worker has one link to each node that it forwards to (per database and version of the protocol), which carries
//! the requests of all its clients. It is written once per turn. Requests that would hold others up or that depend on
//! their connection, which are blocking commands and transactions with WATCH, get a link of their own for the time,
//! the client's **lease**.
//!
//! Invariants:
//! * A client receives its replies in the order of its requests, whoever executes them.
//! * A request that may have been executed is sent again only if it merely reads.
//! * Requests of a client for one slot are executed in order: after a redirection, and after a change of the slot map,
//!   the client waits until nothing of it is outstanding.
//! * Everything that is kept is limited: bytes of requests per link, outstanding requests and waiting replies per
//!   client. At a limit, clients wait, and what they send stays in their sockets.

mod answers;
mod caching;
mod channels;
mod links;
mod plain;
mod requests;
mod routes;
mod unblocking;
mod waits;

pub(super) use links::Links;
pub(super) use requests::Sent;

use kvick_forward::ReplyQueue;
use waits::{Wait, Written};

/// Maximum number of outstanding requests of a client.
const OUTSTANDING_MAX: usize = 4096;
/// Maximum bytes of replies of a client that wait for earlier ones; then it sends nothing more until they are out.
const REPLIES_KEPT_MAX: usize = 1024 * 1024;

/// What a connection has at other nodes.
#[derive(Default)]
pub struct Forwarded {
    /// The replies to come.
    queue: ReplyQueue,
    /// Whether nothing more is executed until the queue is empty.
    drains: bool,
    /// Why the connection is stopped.
    waits: Waits,
    /// Why a subscription that it waited for was refused.
    refused: Option<String>,
    /// Invalidations that were sent before replies with the keys may have been, to be sent again behind these.
    held: Vec<HeldPush>,
    /// Whether replies of this node wait in the queue.
    has_local: bool,
    /// The link that only this connection uses.
    lease: Option<usize>,
    /// Number of WATCH commands that were sent over the lease.
    watches: u32,
    /// Whether the keys that it watched have to be considered changed, because the link to their node was lost.
    watch_lost: bool,
    /// By what the outstanding requests were sent: see [`Links::generation`].
    generation: (u64, u64),
    /// The links that have carried its last writes, one per node.
    written: Vec<Written>,
    /// WAIT or WAITAOF, until other nodes have acknowledged enough.
    wait: Option<Box<Wait>>,
    /// Whether the connection stays at this worker, because it has asked for acknowledgements of writes over its links.
    stays: bool,
}

/// A push to be sent behind replies that other nodes have yet to give.
struct HeldPush {
    /// The number of the reply that it precedes.
    until: u64,
    bytes: Vec<u8>,
}

/// What a stopped connection waits for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Waits {
    /// It is not stopped on behalf of other nodes.
    #[default]
    Nothing,
    /// All replies.
    Replies,
    /// That a link has room for more requests.
    Room,
    /// The reply to the request on its lease.
    Lease,
    /// Subscriptions to shard channels.
    Channels,
    /// Acknowledgements of its writes.
    Acknowledgements,
}

impl Forwarded {
    /// Whether the connection may move to another worker.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.lease.is_none() && self.waits == Waits::Nothing && !self.stays
    }

    /// Whether it is blocked by a command of its own.
    pub fn is_blocked(&self) -> bool {
        self.waits == Waits::Acknowledgements
    }

    /// Sends a push again behind the replies that are outstanding now.
    pub fn hold(&mut self, push: Vec<u8>) {
        self.held.push(HeldPush { until: self.queue.end(), bytes: push });
    }

    /// Appends the pushes that all earlier replies have preceded by now.
    fn release_held(&mut self, out: &mut Vec<u8>) {
        let first = self.queue.first();
        let released = self.held.iter().take_while(|push| push.until <= first).count();
        self.held.drain(..released).for_each(|push| out.extend_from_slice(&push.bytes));
    }

    /// Whether it is stopped only for a moment, with more of its requests to be executed.
    pub fn is_held_back(&self) -> bool {
        matches!(self.waits, Waits::Replies | Waits::Room | Waits::Channels)
    }

    /// Whether outstanding replies have to arrive before anything else is executed.
    #[inline]
    fn is_full(&self) -> bool {
        self.drains
            || self.queue.len() >= OUTSTANDING_MAX
            || self.queue.memory() > REPLIES_KEPT_MAX
            || self.held.len() >= OUTSTANDING_MAX
    }

    /// The same. If so, it waits for them.
    pub fn must_drain(&mut self) -> bool {
        let must = self.is_full();
        if must {
            self.waits = Waits::Replies;
        }
        must
    }
}
