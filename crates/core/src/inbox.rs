//! Deliveries that workers have yet to write to their connections and that do not answer the current request: published
//! messages, invalidations for client-side caching, and replies to clients that were blocked.
//!
//! Each worker has one [`Inbox`], which keeps deliveries in the order of arrival. So a client that was blocked receives
//! its reply before the invalidations of its own command. The worker checks its inbox before it executes the input that
//! it has read, and after each request; it delivers to a bounded number of connections at a time (`worker::delivery`).

use crate::clients::ClientInfo;
use crate::pubsub::publication::Publication;
use crate::tracking::Invalidation;
use crossbeam_queue::SegQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Deliveries pending for a worker above which the threads that cause them are throttled.
const BACKLOG_MAX: usize = 4096;

/// Something to write to connections of a worker.
pub enum Delivery {
    /// A message for its subscribers.
    Published(Arc<Publication>),
    /// For clients that cache keys.
    Invalidated(Invalidation),
    /// For a client whose invalidations cannot be sent, because the client that should receive them is gone.
    Disconnected(Arc<ClientInfo>),
    /// The reply to a client that was blocked.
    Served(Served),
    /// A request to the source of a slot import, on its connection.
    ToSource(Arc<ClientInfo>, Vec<u8>),
    /// Unblocks a client that waits at another node: as if its time had passed, or with an error.
    UnblockedElsewhere(Arc<ClientInfo>, bool),
    /// For subscribers of shard channels in slots that this node's shard does not own any more.
    SlotsLost,
}

/// The reply to a client that was blocked.
pub struct Served {
    /// The client.
    pub client: Arc<ClientInfo>,
    /// The ticket of its wait.
    pub ticket: u64,
    /// The reply.
    pub reply: Vec<u8>,
    /// Whether the connection closes after it.
    pub is_last: bool,
}

/// The deliveries that a worker has yet to make.
#[derive(Default)]
pub struct Inbox {
    deliveries: SegQueue<Delivery>,
    /// True from the first delivery until the worker starts to take them, so that it is woken once for all of them.
    notified: AtomicBool,
    /// Deliveries put in and not yet completed.
    backlog: AtomicUsize,
    is_congested: AtomicBool,
}

impl Inbox {
    /// Whether there are deliveries that the worker has not taken.
    #[inline]
    pub fn has_deliveries(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// Takes the deliveries. A delivery that is put in later wakes the worker again.
    pub fn take(&self) -> impl Iterator<Item = Delivery> + '_ {
        self.notified.store(false, Ordering::SeqCst);
        std::iter::from_fn(|| self.deliveries.pop())
    }
}

/// The inboxes of all workers, by worker number.
pub struct Inboxes {
    inboxes: Box<[Inbox]>,
    /// Number of workers whose backlog is too long.
    congested: AtomicUsize,
}

impl Inboxes {
    /// Empty inboxes for `workers` workers.
    pub fn new(workers: usize) -> Self {
        Inboxes { inboxes: (0..workers).map(|_| Inbox::default()).collect(), congested: AtomicUsize::new(0) }
    }

    /// The inbox of a worker.
    #[inline]
    pub fn of(&self, worker: usize) -> &Inbox {
        &self.inboxes[worker]
    }

    /// Puts a delivery into the inbox of a worker; returns whether the worker has to be woken.
    pub fn put(&self, worker: usize, delivery: Delivery) -> bool {
        let inbox = &self.inboxes[worker];
        let backlog = inbox.backlog.fetch_add(1, Ordering::Relaxed) + 1;
        if backlog > BACKLOG_MAX && !inbox.is_congested.swap(true, Ordering::SeqCst) {
            self.congested.fetch_add(1, Ordering::SeqCst);
        }
        inbox.deliveries.push(delivery);
        !inbox.notified.swap(true, Ordering::SeqCst)
    }

    /// Marks a delivery as completed: the worker has written it to all its connections.
    pub fn delivered(&self, worker: usize) {
        let inbox = &self.inboxes[worker];
        let backlog = inbox.backlog.fetch_sub(1, Ordering::Relaxed) - 1;
        if backlog < BACKLOG_MAX / 2
            && inbox.is_congested.load(Ordering::Relaxed)
            && inbox.is_congested.swap(false, Ordering::SeqCst)
        {
            self.congested.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether the backlog of some worker is so long that other threads should not add to it.
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.congested.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pubsub::publication::Address;

    #[test]
    fn worker_is_woken_once_until_it_takes_its_deliveries() {
        let inboxes = Inboxes::new(2);
        let put = |worker| inboxes.put(worker, message());
        assert_eq!([put(1), put(1), put(0)], [true, false, true]);
        assert_eq!(inboxes.of(1).take().count(), 2);
        assert_eq!((inboxes.of(1).has_deliveries(), put(1)), (false, true));
    }

    #[test]
    fn worker_is_congested_until_its_backlog_is_half_the_limit() {
        let inboxes = Inboxes::new(2);
        (0..BACKLOG_MAX).for_each(|_| _ = inboxes.put(1, message()));
        assert!(!inboxes.is_congested());
        inboxes.put(1, message());
        assert!(inboxes.is_congested());
        let until_half = inboxes.of(1).take().count() - BACKLOG_MAX / 2;
        (0..until_half).for_each(|_| inboxes.delivered(1));
        assert!(inboxes.is_congested());
        inboxes.delivered(1);
        assert!(!inboxes.is_congested());
    }

    fn message() -> Delivery {
        Delivery::Published(Arc::new(Publication::new(Address::Channel, b"c", b"x", Box::default(), 0)))
    }
}
