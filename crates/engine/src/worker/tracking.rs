//! Client-side caching: records the keys that tracking clients read, and sends them invalidations; see
//! [`kvick_core::tracking`].

use super::Worker;
use super::engine::{Called, Engine};
use super::permission::Admitted;
use super::script_call::Yield;
use crate::session::{Client, Fate};
use kvick_commands::random;
use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo};
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::tracking::invalidation::{What, write_disconnected};
use kvick_core::tracking::{Invalidation, invalidate, invalidate_all};
use kvick_resp::{Args, Version};
use kvick_store::Locked;
use kvick_store::tracking::{Readers, Stale};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keys removed from the tracking table in the first turn in which it exceeds its limit.
const FORGOTTEN_MIN: usize = 100;
/// Maximum number of keys removed from the tracking table per turn.
const FORGOTTEN_MAX: usize = 10_000;

impl Engine {
    /// Runs a command of a tracking client; see `Engine::call`. `previous` is the client's preceding command.
    pub(super) fn call_tracked(
        &mut self,
        client: &mut Client,
        previous: u32,
        (admission, args): (Admitted, Args<'_>),
        owned_arg: &mut Option<Vec<u8>>,
        yielder: &mut dyn Yield,
        out: &mut Vec<u8>,
    ) -> Called {
        // CLIENT CACHING applies to the next command, or to all of the next transaction.
        let is_about_next = self
            .server
            .catalogue
            .get(previous)
            .and_then(|command| self.server.catalogue.container(command))
            .is_some_and(|container| container.spec.flags.contains(Flags::KEEPS_CACHING));
        if !is_about_next && client.transaction.is_none() {
            client.info.set_flags(ClientFlags::CACHING, false);
        }
        let author = self.effects.set_author(client.info.unheeded_author());
        let called = self.call(client, admission, args, owned_arg, yielder, out);
        self.effects.set_author(author);
        called
    }

    /// Records the keys that a client's command read, if the client tracks them. Called under the command's locks.
    pub(super) fn remember_reads(
        &self,
        client: &ClientInfo,
        db: usize,
        (command, args): (&CommandInfo, Args<'_>),
        locked: &mut Locked,
    ) {
        let reads =
            command.spec.flags.contains(Flags::READONLY) && matches!(command.class, Class::Data | Class::Session);
        if !reads || !client.remembers_reads() {
            return;
        }
        let positions = command.spec.key_positions(args).unwrap_or_default();
        for key in positions.iter().filter_map(|position| args.get(position.index)) {
            locked.add_reader(db, self.server.keyspace.key(key), client.id);
        }
    }

    /// Settles the effects of commands on clients that block on keys or cache them. Called within a batch and without
    /// locks.
    ///
    /// Postponed while a long script runs, which may hold the locks that are needed.
    #[cold]
    pub(super) fn settle_consequences(&mut self) {
        while !self.is_busy() {
            self.invalidate_stale();
            if !self.effects.has_awaited() {
                return;
            }
            self.serve_awaited();
        }
    }

    fn invalidate_stale(&mut self) {
        if self.effects.take_all_stale() {
            invalidate_all(self.server, self.executor);
        }
        let keyspace = self.server.keyspace;
        for Stale { database, key, has_readers, author, lost } in self.effects.take_stale() {
            if !lost {
                self.note_writable_replica_key(database, &key);
            }
            if has_readers {
                let hashed = keyspace.key(&key);
                let mut locked = self.lock_patiently(|_| vec![keyspace.address(database, hashed)]);
                let readers = locked.take_readers(database, hashed, author);
                drop(locked);
                self.tell_readers(&key, &readers);
            }
            if keyspace.tracking.broadcasts() {
                self.changed.add(key, if lost { 0 } else { author });
            }
        }
        self.publish_untold();
    }

    fn tell_readers(&self, key: &[u8], readers: &Readers) {
        let clients = readers.iter().filter_map(|reader| self.server.clients.get(*reader));
        // A client that has switched to broadcasting mode read the key before that.
        let clients = clients.filter(|client| !client.flags().contains(ClientFlags::BROADCAST));
        invalidate(self.server, self.executor, &What::keys(std::iter::once(key)), clients);
    }

    /// Sends clients in broadcasting mode the changed keys with their prefixes.
    #[inline]
    pub fn broadcast_changes(&mut self) {
        if !self.changed.is_empty() {
            self.changed.tell(self.server, self.executor);
        }
    }

    /// Removes keys from the tracking table when it exceeds its limit, more in each consecutive turn.
    fn limit_tracked_keys(&mut self) {
        let (keyspace, keys_max) = (self.server.keyspace, self.runtime_config.tracked_keys_max);
        // Two workers doing so at once would remove more keys than necessary.
        let Some(_alone) = self.server.tracking.limiting.try_lock() else { return };
        self.forgotten_in_turn = (self.forgotten_in_turn + FORGOTTEN_MIN).min(FORGOTTEN_MAX);
        for _ in 0..self.forgotten_in_turn {
            if keyspace.tracking.keys() <= keys_max {
                break;
            }
            let Some((key, readers)) = keyspace.forget_some_readers(random::next) else { break };
            self.tell_readers(&key, &readers);
        }
    }
}

impl Worker {
    /// Settles remaining effects of commands on other clients.
    pub(super) fn settle_turn(&mut self) {
        if self.engine.effects.concern_others() {
            self.engine.within_batch(Engine::settle_consequences);
        }
        self.tell_before_replies();
    }

    /// Delivers invalidations to tracking clients before the replies of the clients that caused them are written.
    #[inline]
    pub(super) fn tell_before_replies(&mut self) {
        if self.server.keyspace.tracking.keys() > 0 || !self.engine.changed.is_empty() {
            self.tell_who_tracks();
        }
    }

    /// See [`Worker::tell_before_replies`]: at least one client tracks.
    fn tell_who_tracks(&mut self) {
        if self.server.keyspace.tracking.keys() > self.engine.runtime_config.tracked_keys_max {
            self.engine.within_batch(Engine::limit_tracked_keys);
        } else {
            self.engine.forgotten_in_turn = 0;
        }
        self.engine.broadcast_changes();
    }

    /// Delivers an invalidation, which is the message with this number, to clients with tokens in a range.
    pub(super) fn deliver_invalidation(&mut self, number: u64, invalidation: &Invalidation, tokens: Range<usize>) {
        let mut written = [None, None];
        for target in invalidation.targets(tokens) {
            let connection = self.connections.get(target.token).filter(|connection| {
                let client = &connection.client;
                client.info.id == target.client && client.fate == Fate::Open && !client.info.is_doomed()
            });
            let Some(connection) = connection else {
                if let Some(origin) = &target.origin {
                    self.tell_of_disconnection(origin);
                }
                continue;
            };
            let client = &connection.client;
            let version = client.version;
            // RESP2 has no pushes, but subscribed clients accept messages.
            let hears = version == Version::Resp3 || (target.origin.is_some() && client.subscriptions.is_some());
            if hears && connection.heard_to <= number {
                self.push(target.token, version, &mut written, |out| invalidation.write(version, out));
            }
        }
    }

    /// Notifies a client, on whichever worker, that it will receive no more invalidations.
    fn tell_of_disconnection(&mut self, client: &Arc<ClientInfo>) {
        if client.worker == self.number {
            return self.deliver_disconnection(client);
        }
        self.server.deliver(
            Executor::Worker(self.number),
            client.worker,
            kvick_core::inbox::Delivery::Disconnected(client.clone()),
        );
    }

    /// Notifies a client of this worker that it will receive no more invalidations.
    pub(super) fn deliver_disconnection(&mut self, client: &ClientInfo) {
        let token = client.token.load(Ordering::Relaxed);
        let connection = self.connections.get(token).filter(|connection| connection.client.info.id == client.id);
        let Some(connection) = connection else { return };
        client.set_flags(ClientFlags::BROKEN_REDIRECT, true);
        if connection.client.version == Version::Resp3 && connection.client.fate == Fate::Open {
            let redirect = client.redirect.load(Ordering::Relaxed);
            self.push(token, Version::Resp3, &mut [None, None], |out| write_disconnected(redirect, out));
        }
    }
}
