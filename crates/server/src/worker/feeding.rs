//! Sending replicas what they are to have: the dump that they begin with, and the log.
//!
//! A replica's connection reads and answers like any other. Beside that it is fed, when no answer waits to be written: first
//! with the chunks of a dump, if it begins anew, then with the bytes of the log as they stand there. Nothing is copied;
//! what the socket does not take stays where it is, and how much that may be is what `client-output-buffer-limit` says of
//! replicas.

use super::Worker;
use super::connection::Connection;
use crate::clients::ClientFlags;
use crate::clock;
use crate::logging;
use crate::replication::replicas::{Replica, Stage};
use crate::replication::synchronise::Beginning;
use crate::replication::transfer::{Ended, Next, Reader};
use crate::server::Server;
use crate::stats::WorkerStats;
use kvick_store::log::{Follower, Piece};
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes written to a replica in a turn.
const TURN_BYTES: usize = 4 * 1024 * 1024;

/// What a replica is fed with.
pub struct Feed {
    /// The replica.
    pub replica: Arc<Replica>,
    food: Food,
    /// When it was last told that it is to wait.
    told: Instant,
    /// What is being written, and how much of it is.
    plate: Option<(Plate, usize)>,
}

enum Food {
    /// Nothing until a snapshot begins.
    Nothing,
    /// A dump, and the log behind it.
    Dump(Box<Dump>),
    /// The log, once the replica says that it has loaded the dump.
    Loading(Follower),
    /// The log.
    Log(Follower),
}

struct Dump {
    reader: Reader,
    follower: Follower,
    /// Whether the replica says when it has loaded it.
    is_streamed: bool,
    /// Whether any of it has come.
    has_begun: bool,
}

enum Plate {
    Chunk(Arc<[u8]>),
    Piece(Piece),
}

impl Deref for Plate {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Plate::Chunk(chunk) => chunk,
            Plate::Piece(piece) => piece,
        }
    }
}

/// What became of an attempt to feed.
enum Fed {
    /// There is nothing more for now, or the socket takes no more.
    Enough,
    /// There is more, and a turn's share was written.
    More,
    /// The connection cannot go on.
    Broken,
}

impl Feed {
    /// A replica that waits for a snapshot.
    pub fn waiting(replica: Arc<Replica>) -> Self {
        Feed { replica, food: Food::Nothing, told: Instant::now(), plate: None }
    }

    /// A replica that goes on where it was.
    pub fn of_log(replica: Arc<Replica>, follower: Follower) -> Self {
        Feed { replica, food: Food::Log(follower), told: Instant::now(), plate: None }
    }

    /// Bytes of the log that it has not been sent.
    pub fn lag(&self) -> u64 {
        let unwritten = self.plate.as_ref().map_or(0, |(plate, written)| plate.len() - written) as u64;
        match &self.food {
            Food::Nothing => 0,
            Food::Dump(dump) => dump.follower.lag(),
            Food::Loading(follower) => follower.lag(),
            Food::Log(follower) => follower.lag() + unwritten,
        }
    }

    /// The replica says how far it is: a dump that was sent to it is loaded.
    pub fn heard(&mut self, server: &Server) {
        self.go_online(server);
    }

    fn go_online(&mut self, server: &Server) {
        self.food = match std::mem::replace(&mut self.food, Food::Nothing) {
            Food::Loading(follower) => {
                self.replica.set_stage(Stage::Online);
                self.replica.heard_ms.store(clock::unix_ms(), Ordering::Relaxed);
                server.require_replicas(&server.config.values());
                logging::notice(format_args!("Synchronization with replica {} succeeded", self.replica.name()));
                Food::Log(follower)
            }
            food => food,
        }
    }

    /// Whether a replica that waits for its dump is to be told that this server is there: from time to time.
    fn is_to_be_told(&mut self) -> bool {
        const TELL_EVERY: Duration = Duration::from_secs(1);
        let waits = match &self.food {
            Food::Nothing => true,
            Food::Dump(dump) => !dump.has_begun,
            Food::Loading(_) | Food::Log(_) => false,
        };
        let is_due = waits && self.told.elapsed() >= TELL_EVERY;
        if is_due {
            self.told = Instant::now();
        }
        is_due
    }

    /// Takes the next helping; false when there is none yet, `None` when there will be none.
    fn help_itself(&mut self, server: &Server) -> Option<bool> {
        let plate = match &mut self.food {
            Food::Nothing | Food::Loading(_) => return Some(false),
            Food::Log(follower) => match follower.next(u64::MAX) {
                Ok(Some(piece)) => Plate::Piece(piece),
                Ok(None) => return Some(false),
                Err(_) => return None,
            },
            Food::Dump(dump) => match dump.reader.take() {
                Next::Chunk(chunk) => {
                    dump.has_begun = true;
                    Plate::Chunk(chunk)
                }
                Next::Later => return Some(false),
                Next::Ended(Ended::Failed) => return None,
                Next::Ended(Ended::Complete) => {
                    if let Food::Dump(dump) = std::mem::replace(&mut self.food, Food::Nothing) {
                        self.food = Food::Loading(dump.follower);
                        if !dump.is_streamed {
                            // It knows by itself where the dump ends.
                            self.go_online(server);
                        }
                    }
                    return Some(!matches!(self.food, Food::Loading(_)) && self.help_itself(server)?);
                }
            },
        };
        self.plate = Some((plate, 0));
        Some(true)
    }
}

impl Connection {
    /// Writes to a replica what is there for it.
    fn feed(&mut self, server: &Server, stats: &WorkerStats) -> Fed {
        let Some(feed) = &mut self.client.feed else { return Fed::Enough };
        let mut left = TURN_BYTES;
        while left > 0 {
            let Some((plate, written)) = &mut feed.plate else {
                match feed.help_itself(server) {
                    Some(true) => continue,
                    Some(false) => return Fed::Enough,
                    None => return Fed::Broken,
                }
            };
            match self.socket.write(&plate[*written..]) {
                Ok(0) => return Fed::Broken,
                Ok(n) => {
                    stats.writes.add(1);
                    self.client.info.bytes_out.add(n as u64);
                    server.replication.counts.bytes_out.fetch_add(n as u64, Ordering::Relaxed);
                    *written += n;
                    left = left.saturating_sub(n);
                    if *written == plate.len() {
                        feed.plate = None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Fed::Enough,
                Err(_) => return Fed::Broken,
            }
        }
        Fed::More
    }
}

impl Worker {
    /// Takes note of a connection that has become a replica's.
    pub(super) fn begin_feeding(&mut self, token: usize) {
        if !self.feeds.contains(&token) {
            self.feeds.push(token);
            self.server.replication.set_feeds(self.number, self.feeds.len());
        }
    }

    /// A replica's connection is closed.
    pub(super) fn stop_feeding(&mut self, token: usize, feed: Box<Feed>) {
        self.feeds.retain(|fed| *fed != token);
        self.server.replication.set_feeds(self.number, self.feeds.len());
        let replica = feed.replica.clone();
        drop(feed);
        // What was prepared for it would never be read, and its dump would wait for it.
        drop(self.server.replication.beginnings.take(replica.client.id));
        if self.server.replication.replicas.detach(&replica) {
            self.server.require_replicas(&self.server.config.values());
            logging::notice(format_args!("Connection with replica {} lost.", replica.name()));
        }
    }

    /// Feeds this worker's replicas.
    pub(super) fn feed_replicas(&mut self) {
        for at in (0..self.feeds.len()).rev() {
            if let Some(token) = self.feeds.get(at).copied() {
                self.feed(token);
            }
        }
    }

    /// Feeds a replica.
    pub(super) fn feed(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if let Some(Feed { food: food @ Food::Nothing, replica, .. }) = connection.client.feed.as_deref_mut()
            && let Some(beginning) = self.server.replication.beginnings.take(replica.client.id)
        {
            if !replica.is_old.load(Ordering::Relaxed) {
                let reply = format!("+FULLRESYNC {} {}\r\n", beginning.history, beginning.offset);
                connection.output.push(reply.as_bytes());
            }
            let Beginning { reader, follower, is_streamed, .. } = beginning;
            *food = Food::Dump(Box::new(Dump { reader, follower, is_streamed, has_begun: false }));
            return self.write_waiting(token);
        }
        if connection.client.feed.as_deref_mut().is_some_and(Feed::is_to_be_told) {
            connection.output.push(b"\n");
            return self.write_waiting(token);
        }
        // Replies that wait for the disk come first as well.
        if !connection.output.is_empty() || connection.held > 0 {
            return;
        }
        match connection.feed(self.server, &self.engine.stats) {
            Fed::Enough => {}
            Fed::More => {
                connection.unwritten = true;
                self.queue(token);
            }
            Fed::Broken => return self.close(token),
        }
        self.enforce_output_limit(token);
    }

    /// Has a connection show that it is a replica's.
    pub(super) fn note_new_feed(&mut self, token: usize) {
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
