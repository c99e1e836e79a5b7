//! A message on its way to those who hear it.

use super::{Kind, Name};
use kvick_resp::{Reply, Version};

/// Where a message is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// On a channel; patterns match it.
    Channel,
    /// On a shard channel.
    Shard,
}

/// A message, shared by all workers that deliver it.
pub struct Publication {
    address: Address,
    channel: Box<[u8]>,
    payload: Box<[u8]>,
    /// The patterns with subscribers that the channel matches.
    patterns: Box<[Name]>,
    /// It is for subscriptions with lower stamps.
    pub horizon: u64,
}

impl Publication {
    /// A message for subscriptions with stamps below `horizon`.
    pub fn new(address: Address, channel: &[u8], payload: &[u8], patterns: Box<[Name]>, horizon: u64) -> Self {
        Publication { address, channel: channel.into(), payload: payload.into(), patterns, horizon }
    }

    fn audience(&self, number: usize) -> Option<(Kind, &[u8])> {
        match (number.checked_sub(1), self.address) {
            (None, Address::Channel) => Some((Kind::Channel, &self.channel)),
            (None, Address::Shard) => Some((Kind::Shard, &self.channel)),
            (Some(pattern), _) => self.patterns.get(pattern).map(|pattern| (Kind::Pattern, &**pattern)),
        }
    }

    /// What its audiences are subscribed to, in the order in which they hear it: first the channel, then each pattern.
    pub fn audiences(&self) -> impl Iterator<Item = (Kind, &[u8])> {
        (0..).map_while(|number| self.audience(number))
    }

    /// Bytes of its channel and payload.
    pub fn bytes(&self) -> usize {
        self.channel.len() + self.payload.len()
    }

    /// Writes what an audience gets.
    pub fn write(&self, audience: (Kind, &[u8]), version: Version, out: &mut Vec<u8>) {
        let mut reply = Reply::new(out, version);
        match audience {
            (Kind::Pattern, pattern) => {
                reply.push(4);
                reply.bulk(b"pmessage");
                reply.bulk(pattern);
            }
            (Kind::Channel, _) => {
                reply.push(3);
                reply.bulk(b"message");
            }
            (Kind::Shard, _) => {
                reply.push(3);
                reply.bulk(b"smessage");
            }
        }
        reply.bulk(&self.channel);
        reply.bulk(&self.payload);
    }
}
