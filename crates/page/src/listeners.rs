//! The open event streams of a session, and how messages of subscriptions reach them.
//!
//! Each stream has a short queue. A browser that reads more slowly than messages arrive loses some, and is told how
//! many: neither the server nor this thread waits for it.

use kvick_http::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Event streams of one session.
const STREAMS_MAX: usize = 4;
/// Events that may wait for a browser.
const EVENTS_MAX: usize = 16;
/// Bytes of messages in one event.
const EVENT_BYTES_MAX: usize = 32 * 1024;

/// The sending side of an event stream.
pub struct Stream {
    events: Sender<Bytes>,
    /// Messages that were lost because the browser is slow.
    lost: AtomicU64,
}

impl Stream {
    /// Sends an event, or drops it if too many wait. False if the browser has gone.
    pub fn send(&self, event: Bytes) -> bool {
        !matches!(self.events.try_send(event), Err(tokio::sync::mpsc::error::TrySendError::Closed(_)))
    }

    /// Messages that were lost so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The event streams of a session.
#[derive(Default)]
pub struct Listeners {
    streams: Mutex<Vec<Arc<Stream>>>,
}

impl Listeners {
    fn streams(&self) -> MutexGuard<'_, Vec<Arc<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a stream, in place of the oldest one if there are too many.
    pub fn open(&self) -> (Arc<Stream>, Receiver<Bytes>) {
        let (events, receiver) = channel(EVENTS_MAX);
        let stream = Arc::new(Stream { events, lost: AtomicU64::new(0) });
        let mut streams = self.streams();
        streams.retain(|stream| !stream.events.is_closed());
        while streams.len() >= STREAMS_MAX {
            streams.remove(0);
        }
        streams.push(stream.clone());
        (stream, receiver)
    }

    /// Whether a stream has not been replaced.
    pub fn has(&self, stream: &Arc<Stream>) -> bool {
        self.streams().iter().any(|other| Arc::ptr_eq(other, stream))
    }

    /// Passes messages to all streams, as few events.
    pub fn publish(&self, messages: &[String]) {
        let streams = self.streams();
        if streams.is_empty() {
            return;
        }
        let mut rest = messages;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |message: &&String| {
                bytes += message.len();
                bytes <= EVENT_BYTES_MAX
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            let event = event("messages", &format!("[{}]", now.join(",")));
            for stream in streams.iter().filter(|stream| stream.events.try_send(event.clone()).is_err()) {
                stream.lost.fetch_add(count as u64, Ordering::Relaxed);
            }
            rest = later;
        }
    }
}

/// A server-sent event. `data` must not contain line ends.
pub fn event(name: &str, data: &str) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_browsers_lose_messages_and_are_told_how_many() {
        let listeners = Listeners::default();
        let (stream, mut events) = listeners.open();
        let messages = vec!["1".to_owned(), "2".to_owned()];
        for _ in 0..EVENTS_MAX + 3 {
            listeners.publish(&messages);
        }
        assert_eq!(stream.lost(), 6);
        assert_eq!(events.try_recv().expect("an event"), "event: messages\ndata: [1,2]\n\n");
        assert!(stream.send(event("sample", "{}")));
        drop(events);
        assert!(!stream.send(event("sample", "{}")));
    }

    #[test]
    fn many_messages_become_several_events() {
        let listeners = Listeners::default();
        let (_stream, mut events) = listeners.open();
        listeners.publish(&vec!["x".repeat(EVENT_BYTES_MAX / 2); 5]);
        let count = std::iter::from_fn(|| events.try_recv().ok()).count();
        assert_eq!(count, 3);
    }

    #[test]
    fn a_further_stream_replaces_the_oldest() {
        let listeners = Listeners::default();
        let opened: Vec<_> = (0..=STREAMS_MAX).map(|_| listeners.open()).collect();
        assert!(!listeners.has(&opened[0].0) && listeners.has(&opened[1].0));
    }
}
