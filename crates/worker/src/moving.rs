//! Moves connections between workers while the server runs, as whole objects and between two requests.
//!
//! A worker gives connections away at the end of a turn, when their replies are written. It puts them into the queue of
//! the other worker and only then names that worker as their owner. The other worker takes what it gets from its inbox
//! and its mailbox before it adopts the connections in its queue, so whatever was sent to it as the owner finds them.
//! What was sent to the previous owner, which has them no more, is sent on: see [`Worker::forward`].
//!
//! Subscriptions change their worker under the global lock, after all messages that were published before have been
//! delivered. So no message is lost, doubled or out of order.

use super::Worker;
use super::connection::Connection;
use kvick_core::inbox::Delivery;
use kvick_core::pubsub::Kind;
use kvick_engine::session::{Client, Fate};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of connections that a worker gives away in a turn.
const TURN_MAX: usize = 64;
/// How long a worker waits for the global lock to move subscribers. After that it tries again in a later turn.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(2);
/// Time over which the requests of connections are counted before some are chosen.
const COUNTED_FOR: Duration = Duration::from_millis(200);

/// A connection on its way.
pub struct Moved {
    connection: Connection,
    /// The stamp of its monitor, if it is one.
    monitor: Option<u64>,
    is_paused: bool,
    /// The rights epoch of the admission word when it left.
    rights: u32,
}

/// What a worker is to give away.
#[derive(Default)]
pub struct Moves {
    /// Numbers of connections, with the workers that get them.
    given: Vec<(usize, usize)>,
    shedding: Option<Shedding>,
    /// The worker that gets the next connection of an inactive worker.
    next: usize,
}

/// Connections that cause a share of the load are to be found and moved.
struct Shedding {
    to: usize,
    share: f64,
    began: Instant,
}

impl Worker {
    /// Whether this worker has no connections and should have none, so that it has nothing to do.
    #[inline]
    pub(super) fn is_parked(&self) -> bool {
        self.number >= self.server.active_workers() && self.connections.is_empty()
    }

    /// Remembers to give this number of connections to a worker.
    pub(super) fn plan_giving(&mut self, to: usize, count: usize) {
        self.moves.given.push((to, count));
    }

    /// Begins to look for connections that cause a share of the load.
    pub(super) fn plan_shedding(&mut self, to: usize, share: f64) {
        if self.moves.shedding.is_none() && to != self.number {
            self.connections.iter_mut().for_each(|(_, connection)| connection.counted = connection.client.commands);
            self.moves.shedding = Some(Shedding { to, share, began: Instant::now() });
        }
    }

    /// Gives connections away, at the end of a turn. Returns whether there are more to give.
    #[inline]
    pub(super) fn give_connections(&mut self) -> bool {
        let is_inactive = self.number >= self.server.active_workers() && !self.connections.is_empty();
        if !is_inactive && self.moves.given.is_empty() && self.moves.shedding.is_none() {
            return false;
        }
        self.give_some(is_inactive)
    }

    #[cold]
    fn give_some(&mut self, is_inactive: bool) -> bool {
        // A long script has moved parts of the worker out, and may hold the global lock.
        if self.engine.is_busy() || self.standby_engine.is_none() {
            return false;
        }
        if is_inactive {
            self.moves.given.clear();
            self.moves.shedding = None;
            let active = self.server.active_workers();
            let tokens: Vec<usize> = self.movable().take(TURN_MAX).collect();
            let mut given = 0;
            for token in tokens {
                let to = self.moves.next % active;
                self.moves.next = self.moves.next.wrapping_add(1);
                given += self.give(&[token], to);
            }
            return given > 0;
        }
        if let Some((to, count)) = self.moves.given.pop() {
            let tokens: Vec<usize> = self.movable().take(count.min(TURN_MAX)).collect();
            let given = if to < self.server.active_workers() { self.give(&tokens, to) } else { 0 };
            if given > 0 && given < count {
                self.moves.given.push((to, count - given));
            }
        }
        if let Some(Shedding { to, share, .. }) =
            self.moves.shedding.take_if(|shedding| shedding.began.elapsed() >= COUNTED_FOR)
        {
            let counts: Vec<(usize, u64)> = self
                .movable()
                .map(|token| (token, &self.connections[token]))
                .map(|(token, connection)| (token, connection.client.commands.saturating_sub(connection.counted)))
                .collect();
            let total = self.connections.iter().map(|(_, c)| c.client.commands.saturating_sub(c.counted)).sum();
            if to < self.server.active_workers() {
                self.give(&choose(counts, total, share), to);
            }
        }
        !self.moves.given.is_empty()
    }

    /// The connections that can be moved now.
    fn movable(&self) -> impl Iterator<Item = usize> + '_ {
        self.connections.iter().filter(|(token, _)| self.may_move(*token)).map(|(token, _)| token)
    }

    fn may_move(&self, token: usize) -> bool {
        let Some(connection) = self.connections.get(token) else { return false };
        let client = &connection.client;
        !connection.away
            && !connection.socket.is_handshaking()
            && connection.awaiting_fsync == 0
            && client.fate == Fate::Open
            && !client.info.is_doomed()
            && connection.forwarded.as_ref().is_none_or(|forwarded| forwarded.is_idle())
            && !depends_on_links(client)
            && client.debugging.is_none()
            && !client.is_slot_import()
            && !self.postponed.contains(&token)
            && !self.throttled.contains(&token)
    }

    /// Gives connections to another worker; returns how many.
    fn give(&mut self, tokens: &[usize], to: usize) -> usize {
        let hears = |connection: &Connection| {
            let client = &connection.client;
            client.subscriptions.is_some() || client.tracking.is_some() || client.is_monitor()
        };
        let (hearing, others): (Vec<usize>, Vec<usize>) =
            tokens.iter().partition(|token| self.connections.get(**token).is_some_and(hears));
        if !self.deliveries.is_empty() {
            self.deliver_all(&others);
        }
        let mut given = others.into_iter().filter(|token| self.may_move(*token) && self.send_to(*token, to)).count();
        if !hearing.is_empty() {
            let began = Instant::now();
            let global = &self.server.keyspace.global_lock;
            let Some(guard) = global.take_while(|| began.elapsed() < LOCK_WAIT_MAX) else { return given };
            self.drain_inbox();
            self.deliver_all(&hearing);
            given += hearing.into_iter().filter(|token| self.may_move(*token) && self.send_to(*token, to)).count();
            drop(guard);
        }
        self.server.moved_connections.fetch_add(given as u64, Ordering::Relaxed);
        self.publish_connections();
        given
    }

    /// Delivers and writes all messages that these connections have yet to get.
    fn deliver_all(&mut self, tokens: &[usize]) {
        for token in tokens {
            if let Some(heard_to) = self.connections.get(*token).map(|connection| connection.heard_to) {
                self.deliver_missed(*token, heard_to);
            }
        }
        self.write_replies();
    }

    /// Sends a connection to another worker. Returns whether that was possible.
    fn send_to(&mut self, token: usize, to: usize) -> bool {
        if to == self.number || !self.server.has_started(to) {
            return false;
        }
        let Some(mut connection) = self.connections.try_remove(token) else { return false };
        // It was registered, and is registered again by the other worker: an error would show there.
        let _ = connection.socket.deregister(self.poll.registry());
        if std::mem::take(&mut connection.queued) {
            self.ready.retain(|ready| *ready != token);
        }
        let paused_before = self.paused.len();
        if connection.stopped {
            self.paused.retain(|paused| *paused != token);
        }
        let info = connection.client.info.clone();
        let place = info.place();
        if let Some(subscriptions) = &mut connection.client.subscriptions {
            self.server.pubsub.depart(place, to, subscriptions);
        }
        let monitor = connection.client.is_monitor().then(|| self.server.pubsub.depart_monitor(place, to));
        if let Some(waiter) = &connection.waiter {
            self.timers.deadlines.remove(waiter);
        }
        if connection.client.feed.is_some() {
            self.feeds.retain(|fed| *fed != token);
            self.server.replication.set_feeds(self.number, self.feeds.len());
        }
        info.token.store(usize::MAX, Ordering::Relaxed);
        let is_paused = self.paused.len() < paused_before;
        let moved = Moved { connection, monitor, is_paused, rights: self.server.admission.rights() };
        self.server.moved.put(self.server, to, Box::new(moved));
        info.worker.store(to, Ordering::SeqCst);
        true
    }

    /// Adopts the connections that other workers have given.
    #[inline]
    pub(super) fn adopt_connections(&mut self) {
        if self.server.moved.has_any(self.number) {
            self.adopt_all();
        }
    }

    #[cold]
    fn adopt_all(&mut self) {
        while let Some(moved) = self.server.moved.take(self.number) {
            // Only workers put something into this queue.
            if let Ok(moved) = moved.downcast::<Moved>() {
                self.adopt(*moved);
            }
        }
        self.publish_connections();
    }

    fn adopt(&mut self, moved: Moved) {
        let Moved { mut connection, monitor, is_paused, rights } = moved;
        connection.reached_in = u64::MAX;
        connection.last_run = 0;
        // Its subscriptions are newer than the messages that this worker has yet to deliver.
        connection.heard_to = 0;
        let info = connection.client.info.clone();
        let token = self.connections.vacant_key();
        info.worker.store(self.number, Ordering::SeqCst);
        info.token.store(token, Ordering::Relaxed);
        let is_registered = connection.socket.register(self.poll.registry(), mio::Token(token)).is_ok();
        if let Some(subscriptions) = &connection.client.subscriptions {
            self.server.pubsub.arrive(info.place(), subscriptions);
        }
        if let Some(stamp) = monitor {
            self.server.pubsub.arrive_monitor(info.place(), stamp);
        }
        if let Some(waiter) = &connection.waiter {
            self.timers.deadlines.add(waiter);
        }
        // Changed rights may forbid its channels, and whoever changed them has not seen them here.
        let is_stale = connection.client.subscriptions.is_some() && rights != self.server.admission.rights();
        let (feeds, must_end) = (connection.client.feed.is_some(), !is_registered || is_stale);
        let is_doomed = Self::is_doomed(&connection);
        self.connections.insert(connection);
        if is_paused {
            self.paused.push(token);
        }
        if feeds {
            self.begin_feeding(token);
        }
        if must_end || is_doomed {
            self.close(token);
        } else {
            self.queue(token);
        }
    }

    /// Sends a delivery to the worker that has its connection now. Does nothing if this worker is still named as the
    /// owner: then the connection is closed.
    pub(super) fn forward(&self, owner: usize, delivery: Delivery) {
        if owner != self.number {
            self.server.put(owner, delivery);
        }
    }

    /// Publishes the number of connections.
    pub(super) fn publish_connections(&self) {
        self.server.connection_counts[self.number].store(self.connections.len(), Ordering::Relaxed);
    }
}

/// Whether other nodes send a client messages over the links of its worker.
fn depends_on_links(client: &Client) -> bool {
    let subscribes = || client.subscriptions.as_ref().is_some_and(|own| own.count(Kind::Shard) > 0);
    client.forwarding.is_some() && (client.tracking.is_some() || subscribes())
}

/// Chooses connections that cause about a share of all requests, large ones first. A connection that causes more than
/// the share stays: moving it would only move the problem.
fn choose(mut counts: Vec<(usize, u64)>, total: u64, share: f64) -> Vec<usize> {
    counts.sort_unstable_by_key(|(token, count)| (std::cmp::Reverse(*count), *token));
    let mut left = (total as f64 * share) as u64;
    let mut chosen = Vec::new();
    for (token, count) in counts {
        if count > 0 && count <= left && chosen.len() < TURN_MAX {
            left -= count;
            chosen.push(token);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_chosen_up_to_the_share() {
        let counts = || vec![(1, 50), (2, 30), (3, 10), (4, 10), (5, 0)];
        assert_eq!(choose(counts(), 100, 0.4), [2, 3]);
        assert_eq!(choose(counts(), 100, 0.5), [1]);
        assert_eq!(choose(counts(), 100, 0.05), [] as [usize; 0]);
        assert_eq!(choose(vec![(1, 100)], 100, 0.4), [] as [usize; 0], "a single hot connection stays");
        assert_eq!(choose(counts(), 100, 1.0), [1, 2, 3, 4]);
    }
}
