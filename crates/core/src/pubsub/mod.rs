//! Publish and subscribe: who hears what, and how messages get there.
//!
//! - [`directory`]: for every channel, shard channel and pattern, how many subscribers each worker has. All workers share it,
//!   so that a publisher knows at once how many hear a message and which workers have to be told.
//! - [`subscribers`]: a worker's own subscribers by name. Only that worker touches them.
//! - [`subscriptions`]: the other direction, what one client is subscribed to.
//! - [`publication`]: a message on its way, and its form on the wire.
//! - [`events`]: keyspace events, which are messages like others.
//! - [`monitors`]: those who hear of every command; lines for them travel as messages do.
//!
//! A message goes into the [inbox](crate::inbox) of each worker that has somebody to hear it, once, however many they are. That worker
//! writes it to its connections (`worker::delivery`), a bounded number of them in a turn. Publishers put messages for a
//! channel into all inboxes under the channel's lock, and for its own subscribers a worker uses its inbox too. So:
//!
//! - all subscribers get the messages of one channel in the same order, and those of one publisher in the order of its
//!   commands;
//! - who hears a message is settled when it is published: every subscription has a stamp, ascending, and a message is for
//!   stamps below its horizon, so nobody hears what was published before he subscribed.
//!
//! The locks here are taken last: nothing else is locked under them, so a publisher may hold locks of the keyspace.

pub mod directory;
pub mod events;
pub mod monitors;
pub mod publication;
pub mod subscribers;
pub mod subscriptions;

use crate::admission::Admission;
use directory::Directory;
use monitors::Monitors;
use parking_lot::{Mutex, MutexGuard};
use publication::{Address, Publication};
use std::sync::Arc;
use subscribers::Subscribers;
use subscriptions::Subscriptions;

/// The name of a channel or a pattern; all who know it share it.
pub type Name = Arc<[u8]>;

/// What can be subscribed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A channel.
    Channel,
    /// All channels whose names match.
    Pattern,
    /// A channel that belongs to a slot; patterns do not match it.
    Shard,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 3;
}

/// Who hears a message in one form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience<'a> {
    /// Those who are subscribed to this.
    Subscribers(Kind, &'a [u8]),
    /// Monitors.
    Monitors,
}

/// See the module's documentation.
pub struct PubSub {
    directory: Directory,
    monitors: Monitors,
    /// By the numbers of their workers.
    subscribers: Box<[Mutex<Subscribers>]>,
}

impl PubSub {
    /// Of a server with so many workers, without subscribers.
    pub fn new(workers: usize) -> Self {
        PubSub {
            directory: Directory::default(),
            monitors: Monitors::new(workers),
            subscribers: (0..workers).map(|_| Mutex::default()).collect(),
        }
    }

    /// How many subscribers there are, and who.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// A worker's subscribers; for that worker alone.
    pub fn subscribers(&self, worker: usize) -> MutexGuard<'_, Subscribers> {
        self.subscribers[worker].lock()
    }

    /// Subscribes a connection of a worker, known there by its token; nothing changes if it is subscribed.
    pub fn subscribe(&self, kind: Kind, name: &[u8], (worker, token): (usize, usize), own: &mut Subscriptions) {
        if own.contains(kind, name) {
            return;
        }
        let (name, stamp) = self.directory.add(kind, name, worker);
        self.subscribers(worker).add(kind, name.clone(), token, stamp);
        own.add(kind, name, stamp);
    }

    /// Ends a subscription, if it is one, of a connection of a worker.
    pub fn unsubscribe(&self, kind: Kind, name: &[u8], (worker, token): (usize, usize), own: &mut Subscriptions) {
        if own.remove(kind, name) {
            self.subscribers(worker).remove(kind, name, token);
            self.directory.remove(kind, name, worker);
        }
    }

    /// Ends all subscriptions of a connection of a worker.
    pub fn unsubscribe_all(&self, connection: (usize, usize), own: &mut Subscriptions) {
        for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
            for name in own.names(kind) {
                self.unsubscribe(kind, &name, connection, own);
            }
        }
    }

    /// Has `put` put a message into the inboxes of all workers that have subscribers for it; how many subscribers there
    /// are.
    pub fn publish(
        &self,
        address: Address,
        channel: &[u8],
        payload: &[u8],
        mut put: impl FnMut(usize, Arc<Publication>),
    ) -> usize {
        self.directory.find(address, channel, |found| {
            let message = Arc::new(Publication::new(address, channel, payload, found.patterns, found.horizon));
            found.workers.into_iter().for_each(|worker| put(worker, message.clone()));
        })
    }

    /// Makes a connection of a worker a monitor; `admission` is told when it is the first.
    pub fn begin_monitor(&self, (worker, token): (usize, usize), admission: &Admission) {
        let stamp = self.monitors.add(worker, admission);
        self.subscribers(worker).add_monitor(token, stamp);
    }

    /// Makes a monitor a connection like others; `admission` is told when it was the last.
    pub fn end_monitor(&self, (worker, token): (usize, usize), admission: &Admission) {
        self.subscribers(worker).remove_monitor(token);
        self.monitors.remove(worker, admission);
    }

    /// Has `put` put lines into the inboxes of all workers that have monitors.
    pub fn show_monitors(&self, lines: &[u8], mut put: impl FnMut(usize, Arc<Publication>)) {
        self.monitors.find(|workers, horizon| {
            let message = Arc::new(Publication::lines(lines, horizon));
            workers.into_iter().for_each(|worker| put(worker, message.clone()));
        });
    }
}

#[cfg(test)]
mod tests;
