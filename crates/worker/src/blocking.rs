//! Connections whose request blocks: stops them, ends their waits at the deadline, and delivers their answers. See
//! [`kvick_engine::blocking`].

use super::Worker;
use super::connection::Deferred;
use super::output::Run;
use kvick_commands::timeout::{is_over, left_ms};
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientFlags;
use kvick_core::inbox::{Delivery, Served};
use kvick_engine::blocking::Blocked;
use kvick_engine::session::Fate;
use kvick_store::Waiter;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Deadlines of blocked clients.
#[derive(Default)]
pub struct Deadlines(BTreeMap<(i64, u64), Arc<Waiter>>);

impl Deadlines {
    /// Adds a waiter if it has a timeout.
    pub fn add(&mut self, waiter: &Arc<Waiter>) {
        if let Some(until_ms) = Blocked::of(waiter).and_then(|blocked| blocked.until_ms) {
            self.0.insert((until_ms, waiter.ticket()), waiter.clone());
        }
    }

    /// Removes a waiter that no longer waits.
    pub fn remove(&mut self, waiter: &Waiter) {
        if let Some(until_ms) = Blocked::of(waiter).and_then(|blocked| blocked.until_ms) {
            self.0.remove(&(until_ms, waiter.ticket()));
        }
    }

    /// Time until the next deadline.
    pub fn wait(&self, now_ms: i64) -> Option<Duration> {
        let ((until_ms, _), _) = self.0.first_key_value()?;
        Some(Duration::from_millis(left_ms(*until_ms, now_ms) as u64))
    }

    fn pop_due(&mut self, now_ms: i64) -> Option<Arc<Waiter>> {
        let entry = self.0.first_entry()?;
        is_over(entry.key().0, now_ms).then(|| entry.remove())
    }
}

/// Why a connection is stopped.
pub(super) enum Stop {
    /// A script holds locks that the request needs; it is executed again.
    Script,
    /// Commands are paused; the request is executed again.
    Pause,
    /// The request waits for a key.
    Wait(Arc<Waiter>),
    /// Other nodes have to answer first, or to take more requests; the request is executed again.
    Others,
    /// Another node executes the request, and nothing else of the client meanwhile.
    Lease,
}

impl Stop {
    /// Whether the request is yet to be executed.
    pub(super) fn is_pending(&self) -> bool {
        !matches!(self, Stop::Wait(_) | Stop::Lease)
    }
}

impl Worker {
    /// Stops a connection. Its requests that are not executed yet are deferred.
    pub(super) fn stop_for(&mut self, token: usize, stop: Stop) {
        match stop {
            Stop::Script => self.block_for_script(token),
            Stop::Pause => self.pause(token),
            Stop::Wait(waiter) => self.block_connection(token, waiter),
            Stop::Others => {
                let connection = self.connections.get(token);
                let forwarded = connection.and_then(|connection| connection.forwarded.as_deref());
                let is_blocked = forwarded.is_some_and(|forwarded| forwarded.is_blocked());
                self.stop(token, if is_blocked { ClientFlags::BLOCKED } else { ClientFlags::empty() });
            }
            Stop::Lease => self.stop(token, ClientFlags::BLOCKED),
        }
    }

    /// Stops a connection until CLIENT PAUSE ends.
    fn pause(&mut self, token: usize) {
        self.paused.push(token);
        if self.server.admission.has(Reasons::LOADING) {
            self.timers.check_soon();
        }
        self.stop(token, ClientFlags::BLOCKED | ClientFlags::PAUSED);
    }

    /// Stops a connection whose request blocks.
    pub(super) fn block_connection(&mut self, token: usize, waiter: Arc<Waiter>) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let info = &connection.client.info;
        info.argument_memory.store(Blocked::of(&waiter).map_or(0, Blocked::memory), Ordering::Relaxed);
        *info.waiter.lock() = Some(waiter.clone());
        self.timers.deadlines.add(&waiter);
        connection.waiter = Some(waiter);
        self.stop(token, ClientFlags::BLOCKED);
    }

    /// Stops a connection and sets `flags` on its client: its requests wait.
    pub(super) fn stop(&mut self, token: usize, flags: ClientFlags) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.stopped = true;
        connection.client.info.set_flags(flags, true);
        if connection.read_closed {
            // It is closed after the replies to its earlier requests are written.
            self.queue(token);
        }
    }

    /// Removes a connection's blocked request, if any, from its queues: the connection is about to be closed.
    pub(super) fn cancel_blocked(&mut self, waiter: Option<Arc<Waiter>>) {
        if let Some(waiter) = waiter {
            self.timers.deadlines.remove(&waiter);
            self.engine.cancel_wait(&waiter);
        }
    }

    /// Answers blocked clients whose timeout has expired.
    pub(super) fn expire_waits(&mut self) {
        let now_ms = self.engine.now_ms;
        while let Some(waiter) = self.timers.deadlines.pop_due(now_ms) {
            if self.engine.cancel_wait(&waiter)
                && let Some(blocked) = Blocked::of(&waiter)
            {
                let served = blocked.end(&waiter, None, self.server, &self.engine.stats);
                self.deliver(served);
            }
        }
    }

    /// Delivers a client's answer and resumes its connection.
    pub(super) fn deliver(&mut self, served: Served) {
        let owner = served.client.worker();
        if owner != self.number {
            return self.forward(owner, Delivery::Served(served));
        }
        let token = served.client.token.load(Ordering::Relaxed);
        let Some(connection) = self.connections.get_mut(token) else { return };
        // The token may have been reused for another connection.
        let Some(waiter) = connection.waiter.take_if(|waiter| waiter.ticket() == served.ticket) else { return };
        self.timers.deadlines.remove(&waiter);
        let client = &mut connection.client;
        client.info.set_flags(ClientFlags::BLOCKED, false);
        *client.info.waiter.lock() = None;
        client.info.argument_memory.store(0, Ordering::Relaxed);
        self.engine.complete_pending(client, &served.reply);
        client.commands += 1;
        client.write_offset = self.server.keyspace.log.offset();
        connection.stopped = false;
        if client.forwarding.is_some()
            && served.reply.starts_with(b"-MOVED ")
            && let Some(blocked) = Blocked::of(&waiter)
        {
            // The slot has moved while it waited: the request is sent to the new owner.
            connection.deferred.push_front(Deferred::Request(blocked.received().clone()));
            return self.queue(token);
        }
        let start = self.replies.position();
        self.replies.bytes.extend_from_slice(&served.reply);
        self.engine.finish(client, start, &mut self.replies);
        if served.is_last {
            client.fate = Fate::CloseAfterReply;
        }
        client.publish();
        self.runs.push(Run { token, start, end: self.replies.position() });
        self.queue(token);
    }
}
