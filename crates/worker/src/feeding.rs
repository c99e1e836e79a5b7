//! Feeds replicas: sends the full sync's snapshot and then the write log.
//!
//! A replica's connection reads requests and writes replies like any other. When no reply is pending, it is also fed:
//! during a full sync with the chunks of a snapshot, then with the bytes of the log, directly from where they are
//! stored. Nothing is copied; bytes that the socket does not take stay where they are. The replica class of
//! `client-output-buffer-limit` bounds their number.

use super::Worker;
use super::connection::Connection;
use kvick_core::clients::ClientFlags;
use kvick_core::stats::WorkerStats;
use kvick_engine::feed::{Dump, Feed, FeedSource};
use kvick_engine::services::Services;
use kvick_replication::synchronise::{self, PendingFullSync};
use kvick_runtime::clock::{self, Ticks};
use kvick_runtime::logging;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum bytes written to a replica per turn.
const TURN_BYTES: usize = 4 * 1024 * 1024;
/// Minimum interval between feeds by a busy worker, since each feed costs a system call.
const FEED_EVERY_US: u64 = 250;
/// Maximum delay before an otherwise idle worker feeds its replicas.
pub(super) const FEED_DELAY_MAX: Duration = Duration::from_millis(1);

/// Result of an attempt to feed.
enum Fed {
    /// Nothing more is available, or the socket takes no more.
    Enough,
    /// A turn's share was written, and more is available.
    More,
    /// The connection is broken.
    Broken,
}

impl Connection {
    /// Writes available data to a replica.
    fn feed(&mut self, server: &Services, stats: &WorkerStats) -> Fed {
        let Some(feed) = &mut self.client.feed else { return Fed::Enough };
        let mut left = TURN_BYTES;
        while left > 0 {
            let Some(pending) = &mut feed.pending else {
                match feed.load_next(server) {
                    Some(true) => continue,
                    Some(false) => return Fed::Enough,
                    None => return Fed::Broken,
                }
            };
            match self.socket.write(pending.unwritten()) {
                Ok(0) => return Fed::Broken,
                Ok(n) => {
                    feed.replica.write_blocked_since_ms.store(0, Ordering::Relaxed);
                    stats.writes.add(1);
                    self.client.info.bytes_out.add(n as u64);
                    server.replication.counts.bytes_out.fetch_add(n as u64, Ordering::Relaxed);
                    pending.advance(n);
                    left = left.saturating_sub(n);
                    if pending.unwritten().is_empty() {
                        feed.pending = None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let now_ms = clock::unix_ms();
                    // The time since which it is stuck, if already set.
                    let stuck = &feed.replica.write_blocked_since_ms;
                    let _ = stuck.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
                    return Fed::Enough;
                }
                Err(_) => return Fed::Broken,
            }
        }
        Fed::More
    }
}

impl Worker {
    /// Registers a connection that has become a replica's.
    pub(super) fn begin_feeding(&mut self, token: usize) {
        if !self.feeds.contains(&token) {
            self.feeds.push(token);
            self.server.replication.set_feeds(self.number, self.feeds.len());
        }
    }

    /// Cleans up after a replica's connection is closed.
    pub(super) fn stop_feeding(&mut self, token: usize, feed: Box<Feed>) {
        self.feeds.retain(|fed| *fed != token);
        self.server.replication.set_feeds(self.number, self.feeds.len());
        let (replica, is_done) = (feed.replica.clone(), feed.is_dump_channel_done());
        drop(feed);
        let was_attached = self.server.replication.replicas.detach(&replica);
        // Otherwise its pending full sync would never be read, and the snapshot would wait for it.
        drop(self.server.replication.pending_full_syncs.take(replica.client.id));
        if was_attached {
            self.server.update_good_replicas(&self.server.config.values());
            logging::notice(format_args!("Connection with replica {} lost.", replica.name()));
        }
        let is_unwanted = replica.client.is_doomed() || replica.client.flags().contains(ClientFlags::CLOSE_ASAP);
        if is_done && !is_unwanted && replica.pin.lock().is_some() {
            logging::notice(format_args!(
                "Dual channel replication: Postpone RDB client id={} ({}) free for {} seconds",
                replica.client.id,
                replica.name(),
                self.server.replication.orphan_ttl_ms.load(Ordering::Relaxed) / 1000
            ));
            self.server.replication.replicas.add_orphan(replica);
        } else {
            *replica.pin.lock() = None;
        }
        synchronise::replica_disconnected(self.server);
    }

    /// Feeds this worker's replicas after a turn. After a `busy` turn, data is collected for a moment before it is
    /// sent, unless a client waits for it.
    pub(super) fn feed_when_due(&mut self, busy: bool) {
        if self.feeds.is_empty() {
            return;
        }
        let now = Ticks::now();
        let must_feed_now = self.server.aof.has_waiting_clients() || self.server.pause.may_be_active();
        self.has_pending = busy && !must_feed_now && now.us_since(self.fed_at) < FEED_EVERY_US;
        if !self.has_pending {
            self.fed_at = now;
            self.feed_replicas();
        }
    }

    /// Feeds this worker's replicas.
    fn feed_replicas(&mut self) {
        for at in (0..self.feeds.len()).rev() {
            if let Some(token) = self.feeds.get(at).copied() {
                self.feed(token);
            }
        }
    }

    /// Feeds a replica.
    pub(super) fn feed(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if Self::is_doomed(connection) {
            // The request to close it assumes that it receives nothing more.
            return self.close(token);
        }
        if let Some(Feed { source: source @ FeedSource::Nothing, replica, stop_after_dump, .. }) =
            connection.client.feed.as_deref_mut()
            && let Some(full_sync) = self.server.replication.pending_full_syncs.take(replica.client.id)
        {
            let PendingFullSync { history, offset, database, .. } = &full_sync;
            if replica.is_dump_channel.load(Ordering::Relaxed) {
                let id = replica.client.id;
                logging::notice(format_args!(
                    "Dual channel replication: Sending to replica {} RDB end offset {offset} and client-id {id}",
                    replica.name()
                ));
                connection.output.push(format!("$ENDOFF:{offset} {history} {database} {id}\r\n").as_bytes());
            } else if !replica.is_pre_psync.load(Ordering::Relaxed) {
                connection.output.push(format!("+FULLRESYNC {history} {offset}\r\n").as_bytes());
            }
            let PendingFullSync { reader, follower, is_streamed, stop_after_dump: stop, .. } = full_sync;
            *stop_after_dump = stop;
            *source = FeedSource::Dump(Box::new(Dump { reader, follower, is_streamed, has_begun: false }));
            return self.write_waiting(token);
        }
        if connection.client.feed.as_deref_mut().is_some_and(Feed::takes_keepalive) {
            connection.output.push(b"\n");
            return self.write_waiting(token);
        }
        // Replies awaiting fsync also come first.
        if !connection.output.is_empty() || connection.awaiting_fsync > 0 {
            return;
        }
        let is_done =
            |connection: &Connection| connection.client.feed.as_ref().is_some_and(|feed| feed.is_dump_channel_done());
        let was_done = is_done(connection);
        let fed = connection.feed(self.server, &self.engine.stats);
        if !was_done
            && is_done(connection)
            && let Some(feed) = &connection.client.feed
        {
            feed.replica.dump_sent_ms.store(clock::unix_ms(), Ordering::Relaxed);
        }
        if is_done(connection)
            && connection.socket.pending_output() == 0
            && let Some(feed) = &mut connection.client.feed
            && let Some(stop) = feed.stop_after_dump.take()
        {
            stop.dump_sent();
        }
        match fed {
            Fed::Enough => {}
            Fed::More => {
                connection.unwritten = true;
                self.queue(token);
            }
            Fed::Broken => return self.close(token),
        }
        self.enforce_output_limit(token);
    }

    /// Publishes that a connection belongs to a replica.
    pub(super) fn register_feed(&mut self, token: usize) {
        let Some(connection) = self.connections.get(token) else { return };
        if let Some(feed) = &connection.client.feed
            && !connection.client.info.flags().contains(ClientFlags::REPLICA)
        {
            connection.client.info.set_flags(ClientFlags::REPLICA, true);
            self.server.replication.replicas.attach(feed.replica.clone());
            self.begin_feeding(token);
        }
    }
}
