//! Waits until sockets are ready.
//!
//! Sources are registered through `mio`, but the wait uses the system call directly: the C library's wrapper supports
//! thread cancellation, which is never used here and costs two locked instructions per call.

use mio::Poll;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use std::io;
use std::time::Duration;

/// The events of the last poll.
pub struct Events(Vec<epoll::Event>);

/// An event of one source.
#[derive(Clone, Copy)]
pub struct Event {
    /// The token that the source was registered with.
    pub token: usize,
    flags: EventFlags,
}

impl Events {
    /// Creates a buffer for `capacity` events.
    pub fn with_capacity(capacity: usize) -> Self {
        Events(Vec::with_capacity(capacity))
    }

    /// Waits until a source is ready, at most for the given time rounded up to milliseconds, and stores the events.
    /// Stores none after an error.
    #[inline]
    pub fn wait(&mut self, poll: &Poll, at_most: Duration) -> io::Result<()> {
        self.0.clear();
        let ms = at_most.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i64;
        let at_most = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        epoll::wait(poll.registry(), spare_capacity(&mut self.0), Some(&at_most))?;
        Ok(())
    }

    /// The stored events.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Event> {
        self.0.iter().map(|event| Event { token: event.data.u64() as usize, flags: event.flags })
    }
}

impl Event {
    /// Whether the source is readable.
    #[inline]
    pub fn is_readable(self) -> bool {
        self.flags.intersects(EventFlags::IN | EventFlags::PRI)
    }

    /// Whether the source is writable.
    #[inline]
    pub fn is_writable(self) -> bool {
        self.flags.contains(EventFlags::OUT)
    }

    /// Whether the peer has closed its sending side.
    #[inline]
    pub fn is_read_closed(self) -> bool {
        self.flags.contains(EventFlags::HUP) || self.flags.contains(EventFlags::IN.union(EventFlags::RDHUP))
    }

    /// Whether the connection has failed.
    #[inline]
    pub fn is_error(self) -> bool {
        self.flags.contains(EventFlags::ERR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::net::UnixStream;
    use mio::{Interest, Token};
    use std::io::Write;

    #[test]
    fn what_happens_to_a_socket_is_told_with_its_token() {
        let poll = Poll::new().expect("poll");
        let (mut ours, mut theirs) = UnixStream::pair().expect("pair");
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut ours, Token(usize::MAX - 7), interest).expect("register");
        let mut events = Events::with_capacity(8);
        let mut told = || {
            events.wait(&poll, Duration::from_secs(10)).expect("wait");
            events
                .iter()
                .map(|event| {
                    (event.token, [event.is_readable(), event.is_writable(), event.is_read_closed(), event.is_error()])
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(told(), [(usize::MAX - 7, [false, true, false, false])]);
        theirs.write_all(b"x").expect("write");
        assert_eq!(told(), [(usize::MAX - 7, [true, true, false, false])]);
        drop(theirs);
        assert_eq!(told(), [(usize::MAX - 7, [true, true, true, false])]);
        events.wait(&poll, Duration::from_nanos(1)).expect("wait");
        assert_eq!(events.iter().count(), 0, "nothing is told twice");
    }
}
