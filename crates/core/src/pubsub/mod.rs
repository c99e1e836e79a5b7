//! Publish and subscribe: subscriptions, and the delivery of messages.
//!
//! - [`directory`]: the number of subscribers that each worker has for every channel, shard channel and pattern. All
//!   workers share it, so a publisher can count the receivers at once and knows which workers to notify.
//! - [`subscribers`]: a worker's own subscribers by name. Only that worker accesses them.
//! - [`subscriptions`]: the subscriptions of one client.
//! - [`publication`]: a message in delivery, and its form in the protocol.
//! - [`events`]: keyspace events, which are published as messages.
//! - [`monitors`]: the clients of MONITOR; their lines are delivered like messages.
//!
//! A publisher puts a message once into the [inbox](crate::inbox) of each worker that has receivers, its own worker
//! included, under the lock of the channel. The worker writes it to its connections (`worker::delivery`), a bounded
//! number per turn. This guarantees:
//!
//! - All subscribers receive the messages of one channel in the same order, and the messages of one publisher in the
//!   order of its commands.
//! - The receivers of a message are fixed when it is published. Every subscription has an ascending stamp, and a
//!   message is for stamps below its horizon, so a client never receives messages from before its subscription.
//!
//! The locks of this module are leaves: no other lock is taken under them, so a publisher may hold locks of the
//! keyspace.

pub mod directory;
pub mod events;
pub mod monitors;
pub mod publication;
pub mod subscribers;
pub mod subscriptions;

use crate::admission::Admission;
use crate::clients::Place;
use directory::Directory;
use monitors::Monitors;
use parking_lot::{Mutex, MutexGuard};
use publication::{Address, Publication};
use std::sync::Arc;
use subscribers::Subscribers;
use subscriptions::Subscriptions;

/// The name of a channel or a pattern, shared by all subscriptions to it.
pub type Name = Arc<[u8]>;

/// The kinds of subscriptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A channel.
    Channel,
    /// All channels whose names match a pattern.
    Pattern,
    /// A channel that belongs to a slot; patterns do not match it.
    Shard,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 3;
}

/// A group of receivers that get a message in the same form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience<'a> {
    /// Subscribers of this name.
    Subscribers(Kind, &'a [u8]),
    /// Monitors.
    Monitors,
}

/// See the module's documentation.
pub struct PubSub {
    directory: Directory,
    monitors: Monitors,
    /// By worker number.
    subscribers: Box<[Mutex<Subscribers>]>,
}

impl PubSub {
    /// For a server with this many workers; without subscribers.
    pub fn new(workers: usize) -> Self {
        PubSub {
            directory: Directory::default(),
            monitors: Monitors::new(workers),
            subscribers: (0..workers).map(|_| Mutex::default()).collect(),
        }
    }

    /// The numbers of subscribers by name.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// A worker's subscribers. Only that worker may call this.
    pub fn subscribers(&self, worker: usize) -> MutexGuard<'_, Subscribers> {
        self.subscribers[worker].lock()
    }

    /// Subscribes a connection. Does nothing if it is already subscribed.
    pub fn subscribe(&self, kind: Kind, name: &[u8], place: Place, own: &mut Subscriptions) {
        if own.contains(kind, name) {
            return;
        }
        let (name, stamp) = self.directory.add(kind, name, place.worker);
        self.subscribers(place.worker).add(kind, name.clone(), place.token, stamp);
        own.add(kind, name, stamp);
    }

    /// Ends a subscription of a connection, if it exists.
    pub fn unsubscribe(&self, kind: Kind, name: &[u8], place: Place, own: &mut Subscriptions) {
        if own.remove(kind, name) {
            self.subscribers(place.worker).remove(kind, name, place.token);
            self.directory.remove(kind, name, place.worker);
        }
    }

    /// Ends all subscriptions of a connection.
    pub fn unsubscribe_all(&self, place: Place, own: &mut Subscriptions) {
        for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
            for name in own.names(kind) {
                self.unsubscribe(kind, &name, place, own);
            }
        }
    }

    /// Moves the subscriptions of a connection to another worker, which then calls [`arrive`](Self::arrive). From now on
    /// that worker gets their messages. The caller holds the global lock, and the connection has all messages published
    /// before.
    pub fn depart(&self, from: Place, to: usize, own: &mut Subscriptions) {
        for (kind, name, _) in own.all() {
            self.subscribers(from.worker).remove(kind, &name, from.token);
            let stamp = self.directory.transfer(kind, &name, from.worker, to);
            own.add(kind, name, stamp);
        }
    }

    /// The subscriptions of a connection that has arrived at a worker.
    pub fn arrive(&self, place: Place, own: &Subscriptions) {
        let mut subscribers = self.subscribers(place.worker);
        for (kind, name, stamp) in own.all() {
            subscribers.add(kind, name, place.token, stamp);
        }
    }

    /// Moves a monitor, as [`depart`](Self::depart) moves subscriptions. Returns what
    /// [`arrive_monitor`](Self::arrive_monitor) needs.
    pub fn depart_monitor(&self, from: Place, to: usize) -> u64 {
        self.subscribers(from.worker).remove_monitor(from.token);
        self.monitors.transfer(from.worker, to)
    }

    /// A monitor has arrived at a worker.
    pub fn arrive_monitor(&self, place: Place, stamp: u64) {
        self.subscribers(place.worker).add_monitor(place.token, stamp);
    }

    /// Calls `put` for each worker that has receivers, to put the message into its inbox; returns the number of
    /// receivers.
    pub fn publish(
        &self,
        address: Address,
        channel: &[u8],
        payload: &[u8],
        mut put: impl FnMut(usize, Arc<Publication>),
    ) -> usize {
        self.directory.find(address, channel, |receivers| {
            let message = Arc::new(Publication::new(address, channel, payload, receivers.patterns, receivers.horizon));
            receivers.workers.into_iter().for_each(|worker| put(worker, message.clone()));
        })
    }

    /// Makes a connection a monitor. Sets [`MONITORED`](crate::admission::Reasons::MONITORED).
    pub fn begin_monitor(&self, place: Place, admission: &Admission) {
        let stamp = self.monitors.add(place.worker, admission);
        self.subscribers(place.worker).add_monitor(place.token, stamp);
    }

    /// Ends monitoring by a connection. Clears [`MONITORED`](crate::admission::Reasons::MONITORED) after
    /// the last one.
    pub fn end_monitor(&self, place: Place, admission: &Admission) {
        self.subscribers(place.worker).remove_monitor(place.token);
        self.monitors.remove(place.worker, admission);
    }

    /// Calls `put` for each worker that has monitors, to put the lines into its inbox.
    pub fn feed_monitors(&self, lines: &[u8], mut put: impl FnMut(usize, Arc<Publication>)) {
        self.monitors.find(|workers, horizon| {
            let message = Arc::new(Publication::lines(lines, horizon));
            workers.into_iter().for_each(|worker| put(worker, message.clone()));
        });
    }
}

#[cfg(test)]
mod tests;
