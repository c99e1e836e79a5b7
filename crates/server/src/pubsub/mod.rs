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
//! A message goes into the [`Inbox`] of each worker that has somebody to hear it, once, however many they are. That worker
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

use crate::persistence::gate::Gate;
use crossbeam_queue::SegQueue;
use directory::Directory;
use monitors::Monitors;
use parking_lot::{Mutex, MutexGuard};
use publication::{Address, Publication};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use subscribers::Subscribers;
use subscriptions::Subscriptions;

/// The name of a channel or a pattern; all who know it share it.
pub type Name = Arc<[u8]>;

/// Messages that a worker may have to deliver before those who publish are held back.
const BACKLOG_MAX: usize = 4096;

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
    workers: Box<[WorkerSide]>,
    /// Workers whose backlog is too long.
    congested: AtomicUsize,
}

/// What belongs to one worker.
struct WorkerSide {
    inbox: Inbox,
    subscribers: Mutex<Subscribers>,
}

/// The messages that a worker has yet to deliver.
#[derive(Default)]
pub struct Inbox {
    messages: SegQueue<Arc<Publication>>,
    /// True from the first message until the worker begins to take them: it is woken once for all of them.
    notified: AtomicBool,
    /// Messages put in and not yet delivered to all who hear them.
    backlog: AtomicUsize,
    is_congested: AtomicBool,
}

impl Inbox {
    /// Whether there are messages that the worker has not begun to deliver.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// The messages that are there; whoever puts in a later one wakes the worker.
    pub fn take(&self) -> impl Iterator<Item = Arc<Publication>> + '_ {
        self.notified.store(false, Ordering::SeqCst);
        std::iter::from_fn(|| self.messages.pop())
    }
}

impl PubSub {
    /// Of a server with so many workers, without subscribers.
    pub fn new(workers: usize) -> Self {
        let side = |_| WorkerSide { inbox: Inbox::default(), subscribers: Mutex::default() };
        PubSub {
            directory: Directory::default(),
            monitors: Monitors::new(workers),
            workers: (0..workers).map(side).collect(),
            congested: AtomicUsize::new(0),
        }
    }

    /// How many subscribers there are, and who.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// A worker's inbox.
    pub fn inbox(&self, worker: usize) -> &Inbox {
        &self.workers[worker].inbox
    }

    /// A worker's subscribers; for that worker alone.
    pub fn subscribers(&self, worker: usize) -> MutexGuard<'_, Subscribers> {
        self.workers[worker].subscribers.lock()
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

    /// Puts a message into the inboxes of all workers that have subscribers for it; how many subscribers there are. A
    /// worker that has to be woken for it is told to `wake`.
    pub fn publish(&self, address: Address, channel: &[u8], payload: &[u8], mut wake: impl FnMut(usize)) -> usize {
        let mut asleep = smallvec::SmallVec::<[usize; 8]>::new();
        let receivers = self.directory.find(address, channel, |found| {
            let message = Arc::new(Publication::new(address, channel, payload, found.patterns, found.horizon));
            for worker in found.workers {
                if self.put(worker, message.clone()) {
                    asleep.push(worker);
                }
            }
        });
        asleep.into_iter().for_each(&mut wake);
        receivers
    }

    /// Makes a connection of a worker a monitor; `gate` is told when it is the first.
    pub fn begin_monitor(&self, (worker, token): (usize, usize), gate: &Gate) {
        let stamp = self.monitors.add(worker, gate);
        self.subscribers(worker).add_monitor(token, stamp);
    }

    /// Makes a monitor a connection like others; `gate` is told when it was the last.
    pub fn end_monitor(&self, (worker, token): (usize, usize), gate: &Gate) {
        self.subscribers(worker).remove_monitor(token);
        self.monitors.remove(worker, gate);
    }

    /// Puts lines into the inboxes of all workers that have monitors. A worker that has to be woken for it is told to
    /// `wake`.
    pub fn show_monitors(&self, lines: &[u8], mut wake: impl FnMut(usize)) {
        let mut asleep = smallvec::SmallVec::<[usize; 8]>::new();
        self.monitors.find(|worker_numbers, horizon| {
            let message = Arc::new(Publication::lines(lines, horizon));
            for worker in worker_numbers {
                if self.put(worker, message.clone()) {
                    asleep.push(worker);
                }
            }
        });
        asleep.into_iter().for_each(&mut wake);
    }

    /// Puts a message into an inbox; whether the worker has to be woken for it.
    fn put(&self, worker: usize, message: Arc<Publication>) -> bool {
        let inbox = &self.workers[worker].inbox;
        let backlog = inbox.backlog.fetch_add(1, Ordering::Relaxed) + 1;
        if backlog > BACKLOG_MAX && !inbox.is_congested.swap(true, Ordering::SeqCst) {
            self.congested.fetch_add(1, Ordering::SeqCst);
        }
        inbox.messages.push(message);
        !inbox.notified.swap(true, Ordering::SeqCst)
    }

    /// A worker has delivered a message to all its connections.
    pub fn delivered(&self, worker: usize) {
        let inbox = &self.workers[worker].inbox;
        let backlog = inbox.backlog.fetch_sub(1, Ordering::Relaxed) - 1;
        if backlog < BACKLOG_MAX / 2
            && inbox.is_congested.load(Ordering::Relaxed)
            && inbox.is_congested.swap(false, Ordering::SeqCst)
        {
            self.congested.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether some worker has so much to deliver that nobody should publish for a while.
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.congested.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests;
