//! Subscriptions to shard channels whose slots other nodes own.
//!
//! A worker subscribes once to a channel, at the owner of its slot, over its link for pushes, and delivers the messages
//! to its own clients. A client's subscription begins when the owner has confirmed that of the worker. If the slot
//! moves or the link is lost, the worker subscribes at the new owner, and clients keep their subscriptions.

use super::Waits;
use super::answers::NOT_EXECUTED;
use super::caching::push_peer;
use super::links::{Peer, Purpose};
use super::requests::Sent;
use crate::Worker;
use kvick_core::inbox::Delivery;
use kvick_core::pubsub::publication::{Address, Publication};
use kvick_core::pubsub::{Audience, Kind};
use kvick_core::tracking::invalidation::InvalidatedKeys;
use kvick_forward::{Push, Redirect, Subscription};
use kvick_resp::Args;
use kvick_store::slot::slot;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a subscription is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Attempts after which clients that wait for a subscription get an error; with the time above, some five seconds.
const ATTEMPTS_MAX: u32 = 100;

/// The channels of a worker.
#[derive(Default)]
pub struct Channels {
    all: HashMap<Box<[u8]>, Channel>,
    /// When some are to be tried again.
    again: Option<Instant>,
    /// Whether clients have ever subscribed to channels of other nodes.
    are_used: bool,
}

#[derive(Default)]
struct Channel {
    /// The node whose messages are delivered.
    source: Option<SocketAddr>,
    /// The node that has been asked for a subscription and has not answered.
    asked: Option<SocketAddr>,
    attempts: u32,
    /// The connections that wait for the subscription, with their clients.
    waiting: Vec<(usize, u64)>,
}

impl Channels {
    /// When the next attempt is due.
    pub fn due(&self) -> Option<Instant> {
        self.again
    }

    /// Whether an attempt is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.again.is_some_and(|again| again <= Instant::now())
    }

    fn try_again(&mut self) {
        self.again.get_or_insert_with(|| Instant::now() + AGAIN_AFTER);
    }
}

impl Worker {
    /// Begins what a client's SSUBSCRIBE needs at other nodes. The client waits for it, and the command is executed
    /// here afterwards.
    pub(super) fn subscribe_elsewhere(&mut self, token: usize, args: Args<'_>) -> Sent {
        let Some(connection) = self.connections.get_mut(token) else { return Sent::Yes };
        let client = connection.client.info.id;
        self.links.channels.are_used = true;
        let mut missing = Vec::new();
        for name in args.iter().skip(1) {
            let channel = self.links.channels.all.entry(name.into()).or_default();
            if channel.source.is_none() {
                channel.waiting.push((token, client));
                missing.push(name);
            }
        }
        if missing.is_empty() {
            if let Some(elsewhere) = &mut connection.client.forwarding {
                elsewhere.subscribes = true;
            }
            return Sent::Here;
        }
        if let Some(forwarded) = connection.forwarded.as_deref_mut() {
            forwarded.waits = Waits::Channels;
        }
        missing.into_iter().for_each(|name| self.ask_for_channel(name));
        Sent::Later
    }

    /// Asks the owner of a channel's slot for a subscription, unless that has been done.
    fn ask_for_channel(&mut self, name: &[u8]) {
        let slot = slot(name);
        let owner = self.links.routes.owner(slot);
        let is_mine = self.links.routes.is_mine(slot);
        let Some(channel) = self.links.channels.all.get_mut(name) else { return };
        if is_mine {
            // Clients subscribe here now.
            let waiting = std::mem::take(&mut channel.waiting);
            self.forget_channel(name);
            return self.resume_subscribers(&waiting, None);
        }
        if channel.asked.is_some() || (channel.source.is_some() && channel.source == owner) {
            return;
        }
        let asked = owner.and_then(|address| Some((address, self.share_link(push_peer(address))?)));
        let Some((address, number)) = asked else { return self.links.channels.try_again() };
        if let Some(channel) = self.links.channels.all.get_mut(name) {
            channel.asked = Some(address);
        }
        self.change_subscription(number, name, true);
    }

    fn change_subscription(&mut self, number: usize, name: &[u8], begins: bool) {
        if let Some(link) = self.links.get(number) {
            link.link.subscribe(Subscription { channel: name.to_vec(), begins });
            self.mark_dirty(number);
        } else {
            // It is being read: what follows from that is done afterwards.
            self.links.changes.push((number, Subscription { channel: name.to_vec(), begins }));
        }
    }

    /// Ends the worker's subscription to a channel.
    fn forget_channel(&mut self, name: &[u8]) {
        let Some(channel) = self.links.channels.all.remove(name) else { return };
        for address in channel.source.into_iter().chain(channel.asked) {
            self.leave_channel(address, name);
        }
    }

    fn leave_channel(&mut self, address: SocketAddr, name: &[u8]) {
        if let Some(number) = self.links.shared(push_peer(address)) {
            self.change_subscription(number, name, false);
        }
    }

    /// Continues clients that waited for a subscription, which has begun unless there is an error.
    fn resume_subscribers(&mut self, waiting: &[(usize, u64)], error: Option<&str>) {
        for (token, client) in waiting {
            let Some(connection) = self.connections.get_mut(*token) else { continue };
            let is_same = connection.client.info.id == *client;
            let Some(forwarded) = connection.forwarded.as_deref_mut() else { continue };
            if is_same && forwarded.waits == Waits::Channels {
                forwarded.refused = error.map(str::to_owned);
                self.resume_forwarded(*token);
            }
        }
    }

    /// A node has answered a change of a subscription.
    pub(super) fn note_subscribed(&mut self, peer: Peer, subscription: Subscription, error: Option<&[u8]>) {
        let Subscription { channel: name, begins } = subscription;
        let Some(channel) = self.links.channels.all.get_mut(&name[..]) else { return };
        if !begins || channel.asked != Some(peer.address) {
            return;
        }
        channel.asked = None;
        let Some(error) = error else {
            let previous = channel.source.replace(peer.address);
            channel.attempts = 0;
            let waiting = std::mem::take(&mut channel.waiting);
            if let Some(previous) = previous.filter(|previous| *previous != peer.address) {
                self.leave_channel(previous, &name);
            }
            return self.resume_subscribers(&waiting, None);
        };
        channel.attempts += 1;
        let is_over = Redirect::parse(error).is_none() || channel.attempts >= ATTEMPTS_MAX;
        if is_over && !channel.waiting.is_empty() {
            let text = String::from_utf8_lossy(&error[1..]).trim_end().to_owned();
            let text = if Redirect::parse(error).is_some() { NOT_EXECUTED.to_owned() } else { text };
            let waiting = std::mem::take(&mut channel.waiting);
            self.resume_subscribers(&waiting, Some(&text));
        }
        self.links.channels.try_again();
    }

    /// A push has arrived.
    pub(super) fn receive_push(&mut self, peer: Peer, push: Push<'_>) {
        match push {
            Push::Invalidated(keys) => self.receive_invalidation(peer, &keys),
            Push::InvalidatedAll => match peer.purpose {
                Purpose::Own { client, .. } | Purpose::OwnPushes(client) => {
                    self.invalidate_own(client, &InvalidatedKeys::All);
                }
                purpose => self.invalidate_all_cached(purpose == Purpose::Broadcasts),
            },
            Push::ShardMessage { channel, message } => {
                if self.links.channels.all.get(channel).is_some_and(|known| known.source == Some(peer.address)) {
                    let message = Publication::new(Address::Shard, channel, message, Box::default(), u64::MAX);
                    self.server.put(self.number, Delivery::Published(Arc::new(message)));
                }
            }
            Push::Unsubscribed(name) => {
                // The slot has moved.
                if let Some(channel) = self.links.channels.all.get_mut(name)
                    && channel.source == Some(peer.address)
                {
                    channel.source = None;
                    self.links.channels.again = Some(Instant::now());
                }
            }
            Push::Subscribed(_) | Push::Other => {}
        }
    }

    /// A link to a node is lost, or is not needed any more.
    pub(super) fn lose_pushes(&mut self, peer: Peer, has_cached: bool) {
        match peer.purpose {
            Purpose::Requests | Purpose::Reads => {}
            Purpose::Tracked if has_cached => self.invalidate_all_cached(false),
            Purpose::Tracked => {}
            Purpose::Broadcasts => self.invalidate_all_cached(true),
            Purpose::Own { client, broadcasts } if has_cached || broadcasts => {
                self.invalidate_own(client, &InvalidatedKeys::All);
            }
            Purpose::Own { .. } => {}
            Purpose::OwnPushes(client) => {
                self.invalidate_own(client, &InvalidatedKeys::All);
                for number in self.links.redirected_to(peer) {
                    self.break_link(number, &"the link for invalidations is lost");
                }
            }
            Purpose::Pushes => {
                for channel in self.links.channels.all.values_mut() {
                    let is_there = |address: &mut SocketAddr| *address == peer.address;
                    let was_there = channel.source.take_if(is_there).is_some();
                    if channel.asked.take_if(is_there).is_some() || was_there {
                        channel.attempts += 1;
                        self.links.channels.again = Some(Instant::now() + AGAIN_AFTER);
                    }
                }
                // The node sends invalidations of keys that were read over these to the lost link.
                for number in self.links.redirected_to(peer) {
                    self.break_link(number, &"the link for invalidations is lost");
                }
            }
        }
    }

    /// Tries again to subscribe to channels, if that is due.
    pub(super) fn continue_subscribing(&mut self) {
        if !self.links.channels.is_due() {
            return;
        }
        self.links.channels.again = None;
        self.links.routes.update(self.server);
        let lacking = self.links.channels.all.iter().filter(|(_, channel)| channel.source.is_none());
        let names: Vec<Box<[u8]>> = lacking.map(|(name, _)| name.clone()).collect();
        for name in names {
            if let Some(channel) = self.links.channels.all.get_mut(&name)
                && channel.attempts >= ATTEMPTS_MAX
                && !channel.waiting.is_empty()
            {
                let waiting = std::mem::take(&mut channel.waiting);
                self.resume_subscribers(&waiting, Some(NOT_EXECUTED));
            }
            self.ask_for_channel(&name);
        }
    }

    /// Ends subscriptions that no client needs, and begins those that clients need: where slots have moved.
    pub(crate) fn check_channels(&mut self) {
        if !self.links.channels.are_used {
            return;
        }
        self.links.routes.update(self.server);
        let subscribers = self.server.pubsub.subscribers(self.number);
        let is_unused = |name: &[u8], channel: &Channel| {
            channel.waiting.is_empty() && subscribers.count(Audience::Subscribers(Kind::Shard, name)) == 0
        };
        let all = self.links.channels.all.iter();
        let unused: Vec<Box<[u8]>> =
            all.filter(|(name, channel)| is_unused(name, channel)).map(|(name, _)| name.clone()).collect();
        let needed: Vec<Box<[u8]>> = subscribers.names(Kind::Shard).map(Into::into).collect();
        drop(subscribers);
        unused.into_iter().for_each(|name| self.forget_channel(&name));
        for name in needed {
            if !self.links.routes.is_mine(slot(&name)) {
                self.links.channels.all.entry(name.clone()).or_default();
            }
            self.ask_for_channel(&name);
        }
    }

    /// This node's shard has lost slots, whose channels clients are subscribed to.
    pub(crate) fn keep_shard_channels(&mut self) {
        self.links.channels.are_used = true;
        self.check_channels();
    }
}
