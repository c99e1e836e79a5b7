//! What workers have yet to write to their connections although those did not ask for it just now: published messages,
//! invalidations for clients that cache keys, and answers to clients that waited.
//!
//! All of it for one worker is in one [`Inbox`], in the order in which it was put there. So who was served is answered
//! before it is told of what its own command changed. The worker looks into its inbox before it executes what it has
//! read, and after each request; it delivers what it finds a bounded number of connections at a time
//! (`worker::delivery`).

use crate::clients::ClientInfo;
use crate::pubsub::publication::Publication;
use crate::tracking::Invalidation;
use crossbeam_queue::SegQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Deliveries that a worker may have to make before those who cause them are held back.
const BACKLOG_MAX: usize = 4096;

/// Something for connections of a worker.
pub enum Delivery {
    /// A message, for those who are subscribed.
    Published(Arc<Publication>),
    /// For clients that cache keys.
    Invalidated(Invalidation),
    /// For a client that cannot be told of invalidations any more, as the one that it has them sent to is gone.
    Disconnected(Arc<ClientInfo>),
    /// For a client that waited.
    Served(Served),
}

/// An answer to a client that waited.
pub struct Served {
    /// The client.
    pub client: Arc<ClientInfo>,
    /// The ticket of its wait.
    pub ticket: u64,
    /// The reply.
    pub reply: Vec<u8>,
    /// Whether it ends the connection.
    pub is_last: bool,
}

/// What a worker has yet to deliver.
#[derive(Default)]
pub struct Inbox {
    deliveries: SegQueue<Delivery>,
    /// True from the first delivery until the worker begins to take them: it is woken once for all of them.
    notified: AtomicBool,
    /// Deliveries put in and not yet made.
    backlog: AtomicUsize,
    is_congested: AtomicBool,
}

impl Inbox {
    /// Whether there are deliveries that the worker has not begun to make.
    #[inline]
    pub fn has_deliveries(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// The deliveries that are there; whoever puts in a later one wakes the worker.
    pub fn take(&self) -> impl Iterator<Item = Delivery> + '_ {
        self.notified.store(false, Ordering::SeqCst);
        std::iter::from_fn(|| self.deliveries.pop())
    }
}

/// The inboxes of all workers, by their numbers.
pub struct Inboxes {
    inboxes: Box<[Inbox]>,
    /// Workers whose backlog is too long.
    congested: AtomicUsize,
}

impl Inboxes {
    /// Of so many workers.
    pub fn new(workers: usize) -> Self {
        Inboxes { inboxes: (0..workers).map(|_| Inbox::default()).collect(), congested: AtomicUsize::new(0) }
    }

    /// A worker's.
    #[inline]
    pub fn of(&self, worker: usize) -> &Inbox {
        &self.inboxes[worker]
    }

    /// Puts something into a worker's inbox; whether the worker has to be woken for it.
    pub fn put(&self, worker: usize, delivery: Delivery) -> bool {
        let inbox = &self.inboxes[worker];
        let backlog = inbox.backlog.fetch_add(1, Ordering::Relaxed) + 1;
        if backlog > BACKLOG_MAX && !inbox.is_congested.swap(true, Ordering::SeqCst) {
            self.congested.fetch_add(1, Ordering::SeqCst);
        }
        inbox.deliveries.push(delivery);
        !inbox.notified.swap(true, Ordering::SeqCst)
    }

    /// A worker has made a delivery to all its connections.
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

    /// Whether some worker has so much to deliver that nobody should cause more for a while.
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
    fn a_worker_is_woken_once_for_what_it_has_not_begun_to_take() {
        let inboxes = Inboxes::new(2);
        let put = |worker| inboxes.put(worker, message());
        assert_eq!([put(1), put(1), put(0)], [true, false, true]);
        assert_eq!(inboxes.of(1).take().count(), 2);
        assert_eq!((inboxes.of(1).has_deliveries(), put(1)), (false, true));
    }

    #[test]
    fn a_worker_is_congested_until_half_of_the_limit_is_left() {
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
