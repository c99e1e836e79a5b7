//! What heartbeats need of a node, in one cache line, side by side for all nodes: a received gossip entry that tells
//! nothing new touches nothing else. In a large cluster that is most of the work.

use crate::node_id::NodeId;

/// See the module.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Pulse {
    name: [u8; NodeId::LEN],
    /// When the node last sent a PONG, also according to other nodes.
    pub(super) pong_received: Time,
    /// When a PING was sent that it has not answered yet.
    pub(super) ping_sent: Time,
    pub(super) telling: Telling,
    /// Whether gossip that does not report the node as failing can only renew the time of its PONG: nothing is wrong
    /// with it, it owes no PONG, and nobody has reported it. False if that is not known.
    pub(super) is_quiet: bool,
}

/// Whether gossip to other nodes mentions a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Telling {
    /// The node has changed since that was decided.
    Undecided,
    /// They are not.
    Hidden,
    /// They are, when its turn has come.
    InTurn,
    /// They are in every message, since it is suspected.
    Always,
}

/// A time of the monotonic clock in milliseconds, or never. Half the size of an `Option`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Time(u64);

impl Time {
    pub(super) const NEVER: Time = Time(u64::MAX);

    pub(super) fn get(self) -> Option<u64> {
        if self == Time::NEVER { None } else { Some(self.0) }
    }
}

impl From<Option<u64>> for Time {
    fn from(ms: Option<u64>) -> Time {
        ms.map_or(Time::NEVER, Time)
    }
}

impl Pulse {
    pub(super) fn new(id: &NodeId) -> Pulse {
        Pulse {
            name: *id.as_bytes(),
            pong_received: Time::NEVER,
            ping_sent: Time::NEVER,
            telling: Telling::Undecided,
            is_quiet: false,
        }
    }

    pub(super) fn rename(&mut self, id: &NodeId) {
        self.name = *id.as_bytes();
    }

    pub(super) fn has_name(&self, name: &[u8; NodeId::LEN]) -> bool {
        self.name == *name
    }
}
