//! A worker: a thread with an event loop of its own that reads, parses, executes and replies.
//!
//! One turn: wait for events; read and parse what is readable into a [`batch`]; ask for the memory it will touch;
//! execute it on the [`engine`]; write each connection's replies once. What one connection may have read in a turn is
//! bounded, so a deep pipeline waits its turn like everybody else.
//!
//! Poll events are edge-triggered: a connection from which less was read than there was room for is known to be empty;
//! any other is put on the `ready` list and read again in the next turn.

pub mod apply;
mod awaiting_fsync;
pub mod batch;
pub mod blocking;
mod certificate_owner;
pub mod connection;
mod cross_protocol;
mod debugging;
mod delivery;
mod dispatch;
pub mod engine;
pub mod evicting;
mod fast_path;
pub mod feeding;
mod handshake;
mod input;
mod locking;
mod long_script;
mod migrating;
mod monitoring;
pub mod output;
mod permission;
mod readiness;
pub mod rejection;
pub mod replay;
mod rights;
pub mod script_call;
mod timers;
mod tracking;
pub mod transaction;
mod violation;
pub mod writable_replica_keys;

use crate::services::Services;
use crate::session::{Client, Fate};
use batch::Batch;
use connection::Connection;
use engine::Engine;
use kvick_acl::identity::Identity;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::message::Message;
use kvick_net::listen::Listeners;
use kvick_net::socket::Socket;
use kvick_replication::migration::MigrationJob;
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::clock::Ticks;
use kvick_runtime::mailbox::Mailbox;
use mio::{Poll, Token, Waker};
use readiness::Events;
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Events taken from the poll at once.
const EVENTS: usize = 1024;
/// How long connections that were held back wait until it is looked whether they may go on.
const HELD_BACK: Duration = Duration::from_millis(1);
const WAKE: usize = usize::MAX;
/// Listeners have the tokens from here up.
const FIRST_LISTENER: usize = usize::MAX - 1024;

/// Connects the layers below to the engine, which executes a primary's commands and those of an append-only file, and
/// answers clients that wait when the server becomes a replica.
pub fn attach(services: &'static Services) {
    services.set_applier(move |participant| Box::new(apply::Applier::new(services, participant)));
    services.set_unblock(blocking::unblock_all);
    services.set_replayer(move |participant| Box::new(replay::Player::new(services, participant)));
}

/// See the module's documentation.
pub struct Worker {
    server: &'static Services,
    number: usize,
    poll: Poll,
    mailbox: Arc<Mailbox<Message>>,
    connections: Slab<Connection>,
    /// Connections that may have input.
    ready: VecDeque<usize>,
    /// Connections with TLS that may go on with their handshake.
    handshakes: handshake::Handshakes,
    /// Connections whose requests wait for the end of CLIENT PAUSE.
    paused: Vec<usize>,
    /// What is on its way to this worker's connections.
    deliveries: delivery::Deliveries,
    /// Connections that publish faster than can be delivered, and have to wait.
    held_back: Vec<usize>,
    listeners: Listeners,
    /// Listeners on which more connections may wait than were accepted in the last turn.
    unfinished: Vec<usize>,
    /// Listeners from which nothing could be accepted for lack of something.
    unaccepted: Vec<usize>,
    /// Boxed, so that another can take its place without being moved.
    engine: Box<Engine>,
    /// Stands in for the engine while that runs a script.
    standby_engine: Option<Box<Engine>>,
    batch: Batch,
    template: input::RequestTemplate,
    /// Input of the present batch.
    shared: Vec<u8>,
    shared_used: usize,
    /// Replies of the present batch, and whose they are.
    replies: Vec<u8>,
    /// The reply of a request that runs a script.
    replies_apart: Vec<u8>,
    /// Requests that were held for a script and are tried again in this turn.
    resumed: usize,
    /// Connections that are to be closed when a script lets go of its locks.
    postponed: Vec<usize>,
    runs: Vec<output::Run>,
    /// Whether a connection has been closed for too much output since replies were written last.
    cut_off_any: bool,
    /// Connections that have got messages since replies were written last.
    reached: usize,
    /// Times that replies were written.
    writes: u64,
    /// Replies that wait for the disk.
    awaiting_fsync: awaiting_fsync::AwaitingFsync,
    /// Where the write log ended when it was last looked at.
    log_seen: u64,
    /// Whether no requests are read until others have caught up.
    rests: bool,
    timers: timers::Timers,
    /// Keys that were sent to other servers, and are to be dealt with.
    returned: Vec<MigrationJob>,
    /// Connections of replicas.
    feeds: Vec<usize>,
    /// When they were fed last, and whether they are to get something since.
    fed_at: Ticks,
    has_pending: bool,
}

impl Worker {
    /// A worker that does not run yet.
    pub fn new(server: &'static Services, number: usize, listeners: Listeners) -> io::Result<Self> {
        kvick_core::clients::set_connection_memory(size_of::<Connection>());
        let poll = Poll::new()?;
        let mailbox = Arc::new(Mailbox::new(Waker::new(poll.registry(), Token(WAKE))?));
        let participant = server.keyspace.global_lock.join().ok_or_else(|| io::Error::other("too many workers"))?;
        let stats = server.stats[number].clone();
        listeners.register(poll.registry(), FIRST_LISTENER)?;
        let engine = Box::new(Engine::new(server, Executor::Worker(number), stats, participant));
        let standby_engine = Some(Self::standby_engine(&engine)?);
        Ok(Worker {
            server,
            number,
            poll,
            mailbox,
            connections: Slab::new(),
            ready: VecDeque::new(),
            handshakes: handshake::Handshakes::default(),
            paused: Vec::new(),
            deliveries: delivery::Deliveries::default(),
            held_back: Vec::new(),
            listeners,
            unfinished: Vec::new(),
            unaccepted: Vec::new(),
            engine,
            standby_engine,
            batch: Batch::default(),
            template: input::RequestTemplate::default(),
            shared: vec![0; input::SHARED],
            shared_used: 0,
            replies: Vec::with_capacity(evicting::SCRATCH_MIN),
            replies_apart: Vec::new(),
            resumed: 0,
            postponed: Vec::new(),
            runs: Vec::new(),
            cut_off_any: false,
            reached: 0,
            writes: 0,
            awaiting_fsync: awaiting_fsync::AwaitingFsync::default(),
            log_seen: 0,
            rests: false,
            timers: timers::Timers::new(),
            returned: Vec::new(),
            feeds: Vec::new(),
            fed_at: Ticks::now(),
            has_pending: false,
        })
    }

    /// Where to send the worker messages.
    pub fn mailbox(&self) -> Arc<Mailbox<Message>> {
        self.mailbox.clone()
    }

    /// Runs until the server ends.
    pub fn run(mut self) {
        kvick_runtime::memory::register_thread();
        affinity::set(Role::Serving);
        if self.server.workers() == 1 {
            self.engine.bias_owner = Some(self.server.keyspace.global_lock.settle(self.engine.participant));
        }
        let mut events = Events::with_capacity(EVENTS);
        let mut ended = Ticks::now();
        while !self.server.is_ending() {
            let delivers = !self.deliveries.is_empty() || self.engine.inbox().has_deliveries();
            let at_most = if self.rests {
                HELD_BACK
            } else if !self.has_more_to_do(delivers) {
                let wait = self.timers.wait(ended, self.engine.now_ms, &self.server.defrag);
                let wait = if self.has_pending { wait.min(feeding::OWED_AT_MOST) } else { wait };
                if self.held_back.is_empty() { wait } else { wait.min(HELD_BACK) }
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

    /// Whether a turn is to begin at once, whatever the poll tells.
    fn has_more_to_do(&self, delivers: bool) -> bool {
        let has_connections = !self.ready.is_empty() || !self.handshakes.is_empty() || !self.unfinished.is_empty();
        has_connections || delivers || self.is_evicting()
    }

    /// See the module's documentation. When it ended.
    fn turn(&mut self, events: &Events) -> Ticks {
        let began = self.engine.update_clock();
        self.keep_up_with_log();
        if !self.unfinished.is_empty() {
            self.go_on_accepting();
        }
        let requests = self.engine.stats.requests.get();
        for event in events.iter() {
            match event.token {
                WAKE => {}
                token if token >= FIRST_LISTENER => self.accept(token - FIRST_LISTENER),
                token => {
                    if event.is_writable() && self.wants_room(token) {
                        self.write_waiting(token);
                    }
                    if event.is_read_closed() && self.note_read_closed(token) {
                        self.close(token);
                    } else if event.is_readable() || event.is_read_closed() || event.is_error() {
                        self.queue(token);
                    }
                }
            }
        }
        self.read_messages();
        if self.engine.inbox().has_deliveries() {
            self.make_deliveries();
        }
        // What takes locks by itself waits until no script takes too long, which may have them.
        let is_busy = self.engine.is_busy();
        if !is_busy {
            self.settle_returned();
        }
        if !self.rests {
            self.serve_ready();
            self.forget_resumed();
        }
        self.shake_hands();
        if !is_busy && !self.engine.is_busy() {
            self.go_on_evicting();
            self.run_timers();
            self.defragment();
            self.end_waits();
            self.settle_turn();
        }
        if !self.deliveries.is_empty() || self.engine.inbox().has_deliveries() {
            self.make_deliveries();
        }
        self.write_replies();
        let executed = self.engine.stats.requests.get() - requests;
        self.feed_in_time(executed > 0);
        self.release_held_back();
        self.engine.settle_memory();
        let ended = Ticks::now();
        self.engine.stats.count_turn(ended.us_since(began), executed);
        ended
    }

    /// Begins a turn as far as the write log is concerned: tells files the time, sends what had to wait for the disk,
    /// and rests when there is too much that does.
    fn keep_up_with_log(&mut self) {
        let log = &self.server.keyspace.log;
        if !log.has_readers() {
            self.rests = false;
            return self.release_synced();
        }
        if self.engine.runtime_config.aof_timestamps {
            self.server.aof.mark_time(log, self.engine.now_ms / 1000);
        }
        self.release_synced();
        self.rests = self.awaiting_fsync.is_full() || self.server.aof.is_behind(log);
    }

    /// Wakes who follows the write log if it has moved; whether the turn's replies are to wait for that.
    #[inline]
    fn note_log(&mut self) -> bool {
        let end = self.server.keyspace.log.offset();
        if end == self.log_seen {
            return false;
        }
        self.log_seen = end;
        self.server.log_moved(Some(self.number))
    }

    /// The other end of a connection sends no more; whether the connection can be closed at once, since nobody waits
    /// for what it sent.
    fn note_read_closed(&mut self, token: usize) -> bool {
        self.connections.get_mut(token).is_some_and(|connection| {
            connection.read_closed = true;
            // What a client sends right behind its handshake is executed all the same.
            connection.stopped && !connection.socket.is_handshaking()
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
        while let Some((socket, info)) = self.server.connections.take(self.number) {
            self.add(socket, info);
        }
        while let Some(job) = self.server.migration.returned.take(self.number) {
            self.returned.push(*job);
        }
        for message in messages {
            match message {
                Message::Close(info) => self.close_doomed(&info),
                Message::Resume => self.resume_paused(),
                Message::Loaded => self.timers.hurry(),
                Message::Unclog => {
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

    /// Takes a connection over.
    fn add(&mut self, socket: Socket, info: Arc<ClientInfo>) {
        let identity = Identity::newcomer(self.server, &self.server.acl);
        let id = info.id;
        let entry = self.connections.vacant_entry();
        let token = entry.key();
        info.token.store(token, Ordering::Relaxed);
        let connection = entry.insert(Connection::new(socket, Client::new(info, identity)));
        self.engine.stats.connections.add(1);
        let registered = connection.socket.register(self.poll.registry(), Token(token));
        // Whoever wanted it closed before it was here could not reach it.
        if registered.is_err() || Self::is_doomed(connection) {
            let info = self.connections.remove(token).client.info;
            self.server.clients.remove(id);
            self.server.eviction.clients.forget(&info);
        }
    }

    /// Ends a connection.
    fn close(&mut self, token: usize) {
        if self.postpones_closing(token) || self.protects(token) {
            return;
        }
        let Some(mut connection) = self.connections.try_remove(token) else { return };
        if let Socket::Tls(stream) = &mut connection.socket {
            stream.say_goodbye();
        }
        if connection.awaiting_fsync > 0 {
            self.forget_awaiting(token);
        }
        // A socket that cannot be deregistered is closed all the same.
        let _ = connection.socket.deregister(self.poll.registry());
        self.server.clients.remove(connection.client.info.id);
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
        self.stop_waiting(connection.waiter.take());
        if let Some(feed) = connection.client.feed.take() {
            self.stop_feeding(token, feed);
        }
        self.engine.unwatch(&mut connection.client);
        // Not before its memory is free: until then eviction must know that it will be.
        let info = connection.client.info.clone();
        drop(connection);
        self.server.eviction.clients.forget(&info);
    }

    /// Whether a connection that is to be closed stays, by DEBUG PROTECT-CLIENT: it executes nothing any more.
    fn protects(&self, token: usize) -> bool {
        let Some(connection) = self.connections.get(token) else { return false };
        let info = &connection.client.info;
        let protected = info.protected.load(Ordering::Relaxed);
        if protected {
            info.doomed.store(true, Ordering::SeqCst);
        }
        protected
    }

    /// Closes the connection of a client that somebody has marked as doomed.
    fn close_doomed(&mut self, info: &ClientInfo) {
        let token = info.token.load(Ordering::Relaxed);
        // One that is about to be read is closed then, without a search for its place in the queue.
        if self.connections.get(token).is_some_and(|c| c.client.info.id == info.id && !c.queued) {
            self.close(token);
        }
    }

    fn resume_paused(&mut self) {
        self.resumed = self.engine.held;
        for token in std::mem::take(&mut self.paused).into_iter().rev() {
            if let Some(connection) = self.connections.get_mut(token) {
                connection.stopped = false;
                connection.client.info.set_flags(ClientFlags::BLOCKED | ClientFlags::PAUSED, false);
                if !connection.queued {
                    // Before those that came later.
                    connection.queued = true;
                    self.ready.push_front(token);
                }
            }
        }
        if !self.engine.is_busy() {
            // A script may have ended that kept the worker from this.
            self.close_postponed();
        }
    }

    /// Accepts what waits on a listener, or a turn's share of it, and hands the connections to the workers in turn.
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
            let Some((socket, info, worker)) = kvick_net::listen::admit(self.server, socket, peer, config, is_open)
            else {
                continue;
            };
            if worker == self.number {
                self.add(socket, info);
            } else {
                self.server.connections.put(self.server, worker, (socket, info));
            }
        }
        if !self.unfinished.contains(&listener) {
            self.unfinished.push(listener);
        }
    }

    /// Accepts what waits on the listeners that had more than a turn's share.
    #[cold]
    fn go_on_accepting(&mut self) {
        for listener in std::mem::take(&mut self.unfinished) {
            self.accept(listener);
        }
    }

    /// Whether a connection is to be closed by somebody's wish.
    fn is_doomed(connection: &Connection) -> bool {
        connection.client.fate == Fate::Close || connection.client.info.doomed.load(Ordering::Relaxed)
    }
}
