//! Mailboxes for messages from other threads to a worker: a lock-free queue and a wake-up. A notification without
//! content is a bare wake-up, which uses no memory however often it is repeated before the worker runs.

use crossbeam_queue::SegQueue;
use mio::Waker;
use std::sync::atomic::{AtomicBool, Ordering};

/// A worker's mailbox.
pub struct Mailbox<M> {
    messages: SegQueue<M>,
    /// True from the first message until the worker starts to read, so that one wake-up serves all messages.
    notified: AtomicBool,
    waker: Waker,
}

impl<M> Mailbox<M> {
    /// A mailbox that wakes the poll of `waker`.
    pub fn new(waker: Waker) -> Self {
        Mailbox { messages: SegQueue::new(), notified: AtomicBool::new(false), waker }
    }

    /// Delivers a message.
    pub fn send(&self, message: M) {
        self.messages.push(message);
        self.wake();
    }

    /// Wakes the worker, so that it checks the server's state.
    pub fn wake(&self) {
        if !self.notified.swap(true, Ordering::SeqCst) {
            // Waking fails only if the worker has ended.
            let _ = self.waker.wake();
        }
    }

    /// Whether the worker has been notified since it last took the messages. A later send wakes the poll.
    #[inline]
    pub fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Acquire)
    }

    /// Takes the messages. Messages that arrive later cause another wake-up.
    pub fn drain(&self) -> impl Iterator<Item = M> + '_ {
        self.notified.store(false, Ordering::SeqCst);
        std::iter::from_fn(|| self.messages.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll, Token};
    use std::sync::Arc;
    use std::time::Duration;

    /// How long a wake-up may take before a test fails.
    const WAIT_LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn every_message_causes_a_wakeup() {
        const SENDERS: u32 = 4;
        const MESSAGES_EACH: u32 = 5_000;
        let mut poll = Poll::new().expect("poll");
        let waker = Waker::new(poll.registry(), Token(0)).expect("waker");
        let mailbox = Arc::new(Mailbox::new(waker));
        let senders: Vec<_> = (0..SENDERS)
            .map(|_| {
                let mailbox = mailbox.clone();
                std::thread::spawn(move || (0..MESSAGES_EACH).for_each(|n| mailbox.send(n)))
            })
            .collect();
        let (mut got, mut events) = (0, Events::with_capacity(4));
        while got < SENDERS * MESSAGES_EACH {
            poll.poll(&mut events, Some(WAIT_LIMIT)).expect("poll");
            assert!(!events.is_empty(), "no wake-up after {got} messages");
            got += mailbox.drain().count() as u32;
        }
        senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
        assert_eq!(got, SENDERS * MESSAGES_EACH);
    }
    #[test]
    fn notify_wakes_without_a_message() {
        let mut poll = Poll::new().expect("poll");
        let mailbox = Mailbox::<u32>::new(Waker::new(poll.registry(), Token(0)).expect("waker"));
        let mut events = Events::with_capacity(4);
        for _ in 0..3 {
            (0..1000).for_each(|_| mailbox.wake());
            poll.poll(&mut events, Some(WAIT_LIMIT)).expect("poll");
            assert_eq!((events.iter().count(), mailbox.drain().count(), mailbox.messages.len()), (1, 0, 0));
        }
    }
}
