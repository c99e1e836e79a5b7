//! A message in delivery.

use super::{Audience, Kind, Name};
use kvick_resp::{Reply, Version};

/// The namespace in which a message is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// On a channel; patterns match it.
    Channel,
    /// On a shard channel.
    Shard,
}

/// A message, shared by all workers that deliver it.
pub struct Publication {
    /// `None` for lines for monitors, whose payload is sent unchanged.
    address: Option<Address>,
    channel: Box<[u8]>,
    payload: Box<[u8]>,
    /// The patterns with subscribers that the channel matches.
    patterns: Box<[Name]>,
    /// Only subscriptions with stamps below this receive it.
    pub horizon: u64,
}

impl Publication {
    /// A message for subscriptions with stamps below `horizon`.
    pub fn new(address: Address, channel: &[u8], payload: &[u8], patterns: Box<[Name]>, horizon: u64) -> Self {
        Publication { address: Some(address), channel: channel.into(), payload: payload.into(), patterns, horizon }
    }

    /// Lines for monitors with stamps below `horizon`.
    pub fn lines(lines: &[u8], horizon: u64) -> Self {
        Publication { address: None, channel: Box::default(), payload: lines.into(), patterns: Box::default(), horizon }
    }

    fn audience(&self, number: usize) -> Option<Audience<'_>> {
        match (number.checked_sub(1), self.address) {
            (None, Some(Address::Channel)) => Some(Audience::Subscribers(Kind::Channel, &self.channel)),
            (None, Some(Address::Shard)) => Some(Audience::Subscribers(Kind::Shard, &self.channel)),
            (None, None) => Some(Audience::Monitors),
            (Some(at), _) => self.patterns.get(at).map(|pattern| Audience::Subscribers(Kind::Pattern, pattern)),
        }
    }

    /// The groups of receivers in the order of delivery: the subscribers of the channel, then those of each pattern.
    pub fn audiences(&self) -> impl Iterator<Item = Audience<'_>> {
        (0..).map_while(|number| self.audience(number))
    }

    /// Bytes of the channel name and the payload.
    pub fn bytes(&self) -> usize {
        self.channel.len() + self.payload.len()
    }

    /// Writes the message in the form for a group of receivers.
    pub fn write(&self, audience: Audience<'_>, version: Version, out: &mut Vec<u8>) {
        let mut reply = Reply::new(out, version);
        match audience {
            Audience::Monitors => return reply.raw(&self.payload),
            Audience::Subscribers(Kind::Pattern, pattern) => {
                reply.push(4);
                reply.bulk(b"pmessage");
                reply.bulk(pattern);
            }
            Audience::Subscribers(Kind::Channel, _) => {
                reply.push(3);
                reply.bulk(b"message");
            }
            Audience::Subscribers(Kind::Shard, _) => {
                reply.push(3);
                reply.bulk(b"smessage");
            }
        }
        reply.bulk(&self.channel);
        reply.bulk(&self.payload);
    }
}
