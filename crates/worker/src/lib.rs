//! A worker: a thread with its own event loop that reads, parses and executes requests and writes replies.
//!
//! Each turn waits for events, reads and parses available input into a [`Batch`], prefetches the memory that the batch
//! touches, executes it on the [`Engine`], and writes each connection's replies with one call. The input read from one
//! connection per turn is bounded, so a deep pipeline cannot starve other connections.
//!
//! Poll events are edge-triggered. A short read means that the socket is empty; any other connection goes on the
//! `ready` list and is read again in the next turn.

mod awaiting_fsync;
mod big_keys;
mod blocking;
mod certificate_owner;
mod connection;
mod core_sharing;
mod debugging;
mod defrag;
mod delivery;
mod evicting;
mod feeding;
mod forwarding;
mod handshake;
mod input;
mod invalidation;
mod large_arguments;
mod long_script;
mod migrating;
mod moving;
pub mod output;
mod readiness;
mod sending;
mod shard_channels;
mod timers;
mod violation;

use connection::Connection;
use core_sharing::CoreSharing;
use kvick_acl::identity::Identity;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::message::Message;
use kvick_engine::batch::Batch;
use kvick_engine::engine::Engine;
use kvick_engine::services::Services;
use kvick_engine::session::{Client, Fate};
use kvick_net::listen::{Listeners, NewConnection};
use kvick_net::page_pipe::PagePipe;
use kvick_net::socket::Socket;
use kvick_replication::migration::MigrationJob;
use kvick_resp::ReplyBuffer;
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::clock::Ticks;
use kvick_runtime::mailbox::Mailbox;
use kvick_runtime::memory::Ahead;
use mio::{Poll, Token, Waker};
use readiness::Events;
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum number of events per poll.
const EVENTS: usize = 1024;
/// Interval at which throttled publishers are checked.
const THROTTLE_CHECK: Duration = Duration::from_millis(1);
/// Time between the turns of a worker that is not active: the watch for hanging workers counts on some.
const PARKED: Duration = Duration::from_secs(1);
const WAKE: usize = usize::MAX;
/// Tokens from this value up belong to listeners.
const FIRST_LISTENER: usize = usize::MAX - 1024;

/// Tokens from this value up to the first listener belong to links.
const FIRST_LINK: usize = usize::MAX / 2;

/// A worker thread; see the module's documentation.
pub struct Worker {
    server: &'static Services,
    number: usize,
    poll: Poll,
    mailbox: Arc<Mailbox<Message>>,
    connections: Slab<Connection>,
    /// Connections that may have input.
    ready: VecDeque<usize>,
    /// TLS connections with a handshake in progress.
    handshakes: handshake::Handshakes,
    /// Connections stopped until CLIENT PAUSE or the script that blocks them ends.
    paused: Vec<usize>,
    /// Pending deliveries to this worker's connections.
    deliveries: delivery::Deliveries,
    /// Whether subscriptions to shard channels must be checked because slots were lost.
    slots_lost: bool,
    /// Publishing connections throttled because delivery lags behind.
    throttled: Vec<usize>,
    listeners: Listeners,
    /// Listeners that may still have pending connections after the last turn's share was accepted.
    unfinished: Vec<usize>,
    /// Listeners on which accepting failed because a resource was exhausted.
    unaccepted: Vec<usize>,
    /// Boxed, so that the standby engine can be swapped in without moving either.
    engine: Box<Engine>,
    /// Replaces the engine while the engine runs a script.
    standby_engine: Option<Box<Engine>>,
    batch: Batch,
    template: input::RequestTemplate,
    /// Input of the current batch.
    shared: Vec<u8>,
    shared_used: usize,
    /// An empty buffer for the next large argument that is expected, so that a read that brings none allocates nothing.
    spare_value: Vec<u8>,
    /// Sends pages of large strings.
    pages: PagePipe,
    /// Replies of the current batch, and the runs that assign them to connections.
    replies: ReplyBuffer,
    /// Reply buffer of a request that runs a script.
    replies_apart: ReplyBuffer,
    /// The identity of placeholders for clients whose script runs. It is this worker's own, since workers that count
    /// references to a common one would wait for each other's cache.
    nobody: Identity,
    /// Requests that were blocked by a script and are retried in this turn.
    resumed: usize,
    /// Connections to close when a script releases its locks.
    postponed: Vec<usize>,
    runs: Vec<output::Run>,
    /// Whether a connection exceeded its output limit and was closed since replies were last written.
    closed_over_limit: bool,
    /// Connections that received messages since replies were last written.
    reached: usize,
    /// Number of times that replies were written.
    writes: u64,
    /// Replies awaiting fsync.
    awaiting_fsync: awaiting_fsync::AwaitingFsync,
    /// End offset of the write log when last checked.
    log_seen: u64,
    /// Whether no requests are read until the append-only file catches up.
    pauses_reading: bool,
    timers: timers::Timers,
    /// Migrated keys returned by the migrator, not yet settled.
    returned: Vec<MigrationJob>,
    /// Connections of replicas.
    feeds: Vec<usize>,
    /// When replicas were last fed, and whether data is pending since.
    fed_at: Ticks,
    has_pending: bool,
    /// Links to other nodes.
    links: forwarding::Links,
    /// Connections to give to other workers.
    moves: moving::Moves,
    /// Whether there are more of them than a turn moves.
    has_more_to_give: bool,
    core_sharing: CoreSharing,
    /// Memory for slots that are imported.
    memory_ahead: Ahead,
}

impl Worker {
    /// Creates a worker; [`run`](Self::run) starts it.
    pub fn new(server: &'static Services, number: usize, listeners: Listeners) -> io::Result<Self> {
        kvick_core::clients::set_connection_memory(size_of::<Connection>());
        let poll = Poll::new()?;
        let mailbox = Arc::new(Mailbox::new(Waker::new(poll.registry(), Token(WAKE))?));
        let participant = server.keyspace.global_lock.join().ok_or_else(|| io::Error::other("too many workers"))?;
        let stats = server.stats[number].clone();
        listeners.register(poll.registry(), FIRST_LISTENER)?;
        let engine = Box::new(Engine::new(server, Executor::Worker(number), stats, participant));
        let standby_engine = Some(engine.standby()?);
        Ok(Worker {
            server,
            number,
            poll,
            mailbox,
            connections: Slab::new(),
            slots_lost: false,
            ready: VecDeque::new(),
            handshakes: handshake::Handshakes::default(),
            paused: Vec::new(),
            deliveries: delivery::Deliveries::default(),
            throttled: Vec::new(),
            listeners,
            unfinished: Vec::new(),
            unaccepted: Vec::new(),
            engine,
            standby_engine,
            batch: Batch::default(),
            template: input::RequestTemplate::default(),
            shared: vec![0; input::SHARED],
            shared_used: 0,
            spare_value: Vec::new(),
            pages: PagePipe::open(),
            replies: ReplyBuffer::with_capacity(kvick_engine::evicting::REPLIES_MIN),
            replies_apart: ReplyBuffer::with_capacity(kvick_engine::evicting::REPLIES_MIN),
            nobody: Identity::nobody(),
            resumed: 0,
            postponed: Vec::new(),
            runs: Vec::new(),
            closed_over_limit: false,
            reached: 0,
            writes: 0,
            awaiting_fsync: awaiting_fsync::AwaitingFsync::default(),
            log_seen: 0,
            pauses_reading: false,
            timers: timers::Timers::new(),
            returned: Vec::new(),
            feeds: Vec::new(),
            fed_at: Ticks::now(),
            has_pending: false,
            links: forwarding::Links::default(),
            moves: moving::Moves::default(),
            has_more_to_give: false,
            core_sharing: CoreSharing::default(),
            memory_ahead: Ahead::default(),
        })
    }

    /// The mailbox for messages to this worker.
    pub fn mailbox(&self) -> Arc<Mailbox<Message>> {
        self.mailbox.clone()
    }

    /// Runs until the server shuts down.
    pub fn run(mut self) {
        kvick_runtime::memory::register_thread();
        affinity::set(Role::Serving);
        self.core_sharing.set_workers(self.server.active_workers());
        self.claim_bias();
        let mut events = Events::with_capacity(EVENTS);
        let mut ended = Ticks::now();
        while !self.server.is_shutting_down() {
            let delivers = !self.deliveries.is_empty() || self.engine.inbox().has_deliveries();
            let at_most = if self.is_parked() {
                PARKED
            } else if self.pauses_reading {
                THROTTLE_CHECK
            } else if !self.has_more_to_do(delivers) {
                let wait = self.timers.wait(ended, self.engine.now_ms, &self.server.defrag);
                let wait = if self.has_pending { wait.min(feeding::FEED_DELAY_MAX) } else { wait };
                let wait = self.links.limit_wait(wait);
                if self.throttled.is_empty() { wait } else { wait.min(THROTTLE_CHECK) }
            } else {
                Duration::ZERO
            };
            match events.wait(&self.poll, at_most) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    kvick_runtime::logging::warning(format_args!("Worker {} cannot poll: {error}", self.number));
                    self.server.end();
                    break;
                }
                _ => ended = self.turn(&events),
            }
        }
        self.flush_everything();
    }

    /// Whether the next turn starts at once, without waiting for poll events.
    fn has_more_to_do(&self, delivers: bool) -> bool {
        let has_connections = !self.ready.is_empty() || !self.handshakes.is_empty() || !self.unfinished.is_empty();
        let has_input = has_connections || self.links.has_unread();
        has_input || delivers || self.has_more_to_give || self.is_evicting() || self.engine.is_deleting_slots()
    }

    /// Runs one turn; returns the time at which it ended.
    fn turn(&mut self, events: &Events) -> Ticks {
        let began = self.engine.update_clock();
        self.adapt_bias();
        self.sync_with_log();
        if !self.unfinished.is_empty() {
            self.continue_accepting();
        }
        let requests = self.engine.stats.requests.get();
        for event in events.iter() {
            match event.token {
                WAKE => {}
                token if token >= FIRST_LISTENER => self.accept(token - FIRST_LISTENER),
                token if token >= FIRST_LINK => self.serve_link(token - FIRST_LINK, event),
                token => {
                    if event.is_writable() && self.has_pending_output(token) {
                        self.write_waiting(token);
                    }
                    if event.is_read_closed() && self.handle_read_closed(token) {
                        self.close(token);
                    } else if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.queue(token);
                    }
                }
            }
        }
        self.read_messages();
        if self.engine.inbox().has_deliveries() {
            self.deliver_pending();
        }
        if self.links.has_work() {
            self.continue_forwarding();
        }
        // Work that takes locks by itself is postponed while a long script runs, which may hold them.
        let is_busy = self.engine.is_busy();
        if !is_busy {
            self.settle_returned();
        }
        if !self.pauses_reading {
            self.serve_ready();
            self.forget_resumed();
        }
        self.flush_links();
        self.continue_handshakes();
        if !is_busy && !self.engine.is_busy() {
            self.continue_evicting();
            if self.engine.is_deleting_slots() {
                self.engine.continue_deleting_slots();
            }
            self.run_timers();
            self.defragment();
            self.expire_waits();
            self.engine.settle_turn();
        }
        if !self.deliveries.is_empty() || self.engine.inbox().has_deliveries() {
            self.deliver_pending();
        }
        self.write_replies();
        let executed = self.engine.stats.requests.get() - requests;
        self.feed_when_due(executed > 0);
        self.release_throttled();
        self.has_more_to_give = self.give_connections();
        self.engine.settle_memory();
        let ended = Ticks::now();
        self.engine.stats.count_turn(ended.us_since(began), executed);
        self.core_sharing.set_deleting(self.engine.is_deleting_slots());
        self.core_sharing.end_turn_if_over();
        ended
    }

    /// Syncs this worker with the write log at the start of a turn: passes the time to the files, sends replies whose
    /// fsync has completed, and stops reading requests when too many replies await fsync or the append-only file falls
    /// too far behind.
    fn sync_with_log(&mut self) {
        let log = &self.server.keyspace.log;
        if !log.has_readers() {
            self.pauses_reading = false;
            return self.release_synced();
        }
        if self.engine.runtime_config.aof_timestamps {
            self.server.aof.mark_time(log, self.engine.now_ms / 1000);
        }
        self.release_synced();
        self.pauses_reading = self.awaiting_fsync.is_full() || self.server.aof.is_behind(log);
    }

    /// Wakes the followers of the write log if its end has moved. Returns whether this turn's replies must await fsync.
    #[inline]
    fn note_log(&mut self) -> bool {
        let end = self.server.keyspace.log.offset();
        if end == self.log_seen {
            return false;
        }
        self.log_seen = end;
        self.server.on_log_appended(Some(self.number))
    }

    /// Handles the peer closing its sending side. Returns whether the connection can be closed at once: it is stopped,
    /// and the replies to its requests would have no recipient.
    fn handle_read_closed(&mut self, token: usize) -> bool {
        self.connections.get_mut(token).is_some_and(|connection| {
            connection.read_closed = true;
            // Requests sent right behind the TLS handshake are still executed.
            connection.stopped && !connection.socket.is_handshaking() && !connection.is_held_back()
        })
    }

    fn queue(&mut self, token: usize) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push_back(token);
        }
    }

    fn read_messages(&mut self) {
        if self.mailbox.is_notified() {
            self.read_mailbox();
        }
    }

    #[cold]
    fn read_mailbox(&mut self) {
        let mailbox = self.mailbox.clone();
        let messages: Vec<Message> = mailbox.drain().collect();
        self.adopt_connections();
        while let Some(new) = self.server.connections.take(self.number) {
            self.add(new);
        }
        while let Some(job) = self.server.migration.finished.take(self.number) {
            self.returned.push(*job);
        }
        for message in messages {
            match message {
                Message::Close(info) => self.close_doomed(&info),
                Message::Resume => self.resume_paused(),
                Message::Loaded => self.timers.make_due(),
                Message::DeleteSlots(slots) => self.engine.delete_slots(&slots),
                Message::Shed { to, share } => self.plan_shedding(to, share),
                Message::Give { to, count } => self.plan_giving(to, count),
                Message::RetryWrites => {
                    let tokens: Vec<usize> = self.connections.iter().map(|(token, _)| token).collect();
                    tokens.into_iter().for_each(|token| self.write_waiting(token));
                }
                Message::Listen => {
                    if let Err(error) = self.listeners.register(self.poll.registry(), FIRST_LISTENER) {
                        kvick_runtime::logging::warning(format_args!("Cannot listen: {error}"));
                    }
                }
            }
        }
    }

    /// Takes over a connection.
    fn add(&mut self, new: NewConnection) {
        let NewConnection { socket, info } = new;
        let identity = Identity::for_new_connection(self.server, &self.server.acl);
        let id = info.id;
        let entry = self.connections.vacant_entry();
        let token = entry.key();
        info.token.store(token, Ordering::Relaxed);
        let connection = entry.insert(Connection::new(socket, Client::new(info, identity)));
        self.engine.stats.connections.add(1);
        let registered = connection.socket.register(self.poll.registry(), Token(token));
        let is_lost = registered.is_err();
        // A request to close it before it was registered here could not reach it.
        if is_lost || Self::is_doomed(connection) {
            let info = self.connections.remove(token).client.info;
            self.server.clients.remove(id);
            self.server.eviction.clients.forget(&info);
        }
        self.publish_connections();
    }

    /// Closes a connection.
    fn close(&mut self, token: usize) {
        if self.postpone_closing(token) || self.is_protected(token) {
            return;
        }
        let Some(mut connection) = self.connections.try_remove(token) else { return };
        self.publish_connections();
        if connection.awaiting_fsync > 0 {
            self.forget_awaiting(token);
        }
        // A socket that cannot be deregistered is closed anyway.
        let _ = connection.socket.deregister(self.poll.registry());
        self.server.clients.remove(connection.client.info.id);
        if let Socket::Tls(stream) = &mut connection.socket {
            // A client that has read the end is not listed any more.
            stream.send_close_notify();
        }
        connection.client.unsubscribe_all(&self.server.pubsub);
        connection.client.stop_tracking(self.server);
        connection.client.end_monitor(self.server);
        if connection.queued {
            self.ready.retain(|ready| *ready != token);
        }
        if connection.stopped {
            self.paused.retain(|paused| *paused != token);
            self.handshakes.remove(token);
        }
        self.cancel_blocked(connection.waiter.take());
        if let Some(forwarded) = connection.forwarded.take() {
            self.end_lease(&forwarded);
        }
        if let Some(feed) = connection.client.feed.take() {
            self.stop_feeding(token, feed);
        }
        self.engine.unwatch(&mut connection.client);
        if connection.client.is_slot_import() {
            self.server.slot_migration.import_closed(self.server, connection.client.info.id);
            // The input of another import sets it again.
            self.core_sharing.set_importing(false);
            self.memory_ahead.end();
        }
        // Keep the client registered until its memory is freed: eviction accounts for it until then.
        let info = connection.client.info.clone();
        drop(connection);
        self.server.eviction.clients.forget(&info);
    }

    /// Whether DEBUG PROTECT-CLIENT keeps this connection open instead of closing it. It executes no more requests.
    fn is_protected(&self, token: usize) -> bool {
        let Some(connection) = self.connections.get(token) else { return false };
        let info = &connection.client.info;
        let protected = info.protected.load(Ordering::Relaxed);
        if protected {
            info.doomed.store(true, Ordering::SeqCst);
        }
        protected
    }

    /// Closes the connection of a client marked as doomed.
    fn close_doomed(&mut self, info: &Arc<ClientInfo>) {
        let owner = info.worker();
        if owner != self.number {
            // It has moved.
            return self.server.send(owner, Message::Close(info.clone()));
        }
        let token = info.token.load(Ordering::Relaxed);
        // A queued connection is closed when its turn to be read comes, without searching the queue.
        if self.connections.get(token).is_some_and(|c| c.client.info.id == info.id && !c.queued) {
            self.close(token);
        }
    }

    fn resume_paused(&mut self) {
        self.resumed = self.engine.blocked_by_script;
        for token in std::mem::take(&mut self.paused).into_iter().rev() {
            if let Some(connection) = self.connections.get_mut(token) {
                connection.stopped = false;
                connection.client.info.set_flags(ClientFlags::BLOCKED | ClientFlags::PAUSED, false);
                if !connection.queued {
                    // Ahead of connections that became ready later.
                    connection.queued = true;
                    self.ready.push_front(token);
                }
            }
        }
        if !self.engine.is_busy() {
            // The script that prevented closing may have ended.
            self.close_postponed();
        }
    }

    /// Accepts pending connections of a listener, up to a turn's share, and distributes them round-robin among workers.
    fn accept(&mut self, listener: usize) {
        for _ in 0..self.engine.runtime_config.accepted_per_turn {
            let (socket, peer) = match self.listeners.accept(listener, &self.server.tls) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    kvick_runtime::logging::warning(format_args!("Error accepting a client connection: {error}"));
                    return self.unaccepted.push(listener);
                }
            };
            let is_open = self.server.acl.default_user().nopass;
            let config = &self.engine.runtime_config;
            let Some(new) = kvick_net::listen::admit(self.server, socket, peer, config, is_open) else {
                continue;
            };
            if new.info.worker() == self.number {
                self.add(new);
            } else {
                self.server.connections.put(self.server, new.info.worker(), new);
            }
        }
        if !self.unfinished.contains(&listener) {
            self.unfinished.push(listener);
        }
    }

    /// Accepts from the listeners that had more than a turn's share pending.
    #[cold]
    fn continue_accepting(&mut self) {
        for listener in std::mem::take(&mut self.unfinished) {
            self.accept(listener);
        }
    }

    /// Owns the global lock's bias while no other worker has connections.
    #[inline]
    fn adapt_bias(&mut self) {
        if self.number == 0 && self.engine.has_bias() && self.server.active_workers() > 1 {
            self.engine.disown_bias();
        }
    }

    /// Takes the global lock's bias if no other worker has connections.
    fn claim_bias(&mut self) {
        let others = || self.server.connection_counts.iter().skip(1).all(|count| count.load(Ordering::Relaxed) == 0);
        if self.number == 0 && !self.engine.has_bias() && self.server.active_workers() == 1 && others() {
            self.engine.own_bias();
        }
    }

    /// Whether a connection was marked to be closed.
    fn is_doomed(connection: &Connection) -> bool {
        connection.client.fate == Fate::Close || connection.client.info.doomed.load(Ordering::Relaxed)
    }
}
