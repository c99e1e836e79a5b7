//! Client-side caching: records the keys that tracking clients read, and sends them invalidations; see
//! [`kvick_core::tracking`].

use super::engine::Engine;
use super::invocation::Invocation;
use crate::session::Client;
use kvick_commands::random;
use kvick_commands::spec::Flags;
use kvick_commands::table::Class;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::tracking::invalidation::InvalidatedKeys;
use kvick_core::tracking::{invalidate, invalidate_all};
use kvick_store::Locked;
use kvick_store::tracking::{Readers, Stale};

/// Keys removed from the tracking table in the first turn in which it exceeds its limit.
const FORGOTTEN_MIN: usize = 100;
/// Maximum number of keys removed from the tracking table per turn.
const FORGOTTEN_MAX: usize = 10_000;

impl Engine {
    /// Runs a command of a client that may track keys. `previous` is the client's preceding command.
    pub(super) fn as_tracking_client<T>(
        &mut self,
        client: &mut Client,
        previous: u32,
        call: impl FnOnce(&mut Self, &mut Client) -> T,
    ) -> T {
        if client.tracking.is_none() {
            return call(self, client);
        }
        self.end_caching(client, previous);
        let writer = self.effects.set_noloop_writer(client.info.noloop_id());
        let called = call(self, client);
        self.effects.set_noloop_writer(writer);
        called
    }

    /// Ends the effect of CLIENT CACHING, which applies to the next command, or to all of the next transaction.
    /// `previous` is the command before the present one.
    pub(super) fn end_caching(&self, client: &Client, previous: u32) {
        let is_about_next = self
            .server
            .catalogue
            .get(previous)
            .and_then(|command| self.server.catalogue.container(command))
            .is_some_and(|container| container.spec.flags.contains(Flags::KEEPS_CACHING));
        if !is_about_next && client.transaction.is_none() {
            client.info.set_flags(ClientFlags::CACHING, false);
        }
    }

    /// Records the keys that a client's command read, if the client tracks them. Called under the command's locks.
    pub(super) fn track_reads(&self, client: &ClientInfo, db: usize, invocation: Invocation<'_>, locked: &mut Locked) {
        let Invocation { command, args } = invocation;
        let reads =
            command.spec.flags.contains(Flags::READONLY) && matches!(command.class, Class::Data | Class::Session);
        if !reads || !client.tracks_reads() {
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
    pub fn settle_consequences(&mut self) {
        while !self.is_busy() {
            self.invalidate_stale();
            if !self.effects.has_ready_keys() {
                return;
            }
            self.serve_awaited();
        }
    }

    fn invalidate_stale(&mut self) {
        if self.effects.take_all_stale() {
            self.forget_writable_replica_keys();
            invalidate_all(self.server, self.executor);
        }
        let keyspace = self.server.keyspace;
        for Stale { database, key, has_readers, noloop_writer, by_script, reclaimed } in self.effects.take_stale() {
            if !reclaimed {
                self.record_writable_replica_key(database, &key);
            }
            if has_readers {
                let hashed = keyspace.key(&key);
                let mut locked = self.lock_patiently(|_| vec![keyspace.address(database, hashed)]);
                let readers = locked.take_readers(database, hashed, noloop_writer);
                drop(locked);
                self.invalidate_readers(&key, &readers);
            }
            if keyspace.tracking.broadcasts() {
                // As in Valkey, NOLOOP in broadcasting mode does not cover changes by scripts.
                self.changed.add(key, if reclaimed || by_script { 0 } else { noloop_writer });
            }
        }
        self.publish_pending_notifications();
    }

    fn invalidate_readers(&self, key: &[u8], readers: &Readers) {
        let clients = readers.iter().filter_map(|reader| self.server.clients.get(*reader));
        // A client that has switched to broadcasting mode read the key before that.
        let clients = clients.filter(|client| !client.flags().contains(ClientFlags::BROADCAST));
        invalidate(self.server, self.executor, &InvalidatedKeys::keys(std::iter::once(key)), clients);
    }

    /// Sends clients in broadcasting mode the changed keys with their prefixes.
    #[inline]
    pub fn broadcast_changes(&mut self) {
        if !self.changed.is_empty() {
            self.changed.send(self.server, self.executor);
        }
    }

    /// Settles remaining effects of a turn's commands on other clients. Called outside of a batch.
    pub fn settle_turn(&mut self) {
        if self.effects.has_pending_notifications() {
            self.within_batch(Engine::settle_consequences);
        }
        self.settle_tracking();
    }

    /// Keeps the tracking table below its limit, and sends the changes since the last call to clients in broadcasting
    /// mode.
    #[inline]
    pub fn settle_tracking(&mut self) {
        if self.server.keyspace.tracking.keys() > 0 || !self.changed.is_empty() {
            self.settle_tracked_keys();
        }
    }

    fn settle_tracked_keys(&mut self) {
        if self.server.keyspace.tracking.keys() > self.runtime_config.tracked_keys_max {
            self.within_batch(Engine::limit_tracked_keys);
        } else {
            self.forgotten_in_turn = 0;
        }
        self.broadcast_changes();
    }

    /// Removes keys from the tracking table when it exceeds its limit, more in each consecutive turn.
    fn limit_tracked_keys(&mut self) {
        let (keyspace, keys_max) = (self.server.keyspace, self.runtime_config.tracked_keys_max);
        // Two workers doing so at once would remove more keys than necessary.
        let Some(_limiting) = self.server.tracking.limit_lock.try_lock() else { return };
        self.forgotten_in_turn = (self.forgotten_in_turn + FORGOTTEN_MIN).min(FORGOTTEN_MAX);
        for _ in 0..self.forgotten_in_turn {
            if keyspace.tracking.keys() <= keys_max {
                break;
            }
            let Some((key, readers)) = keyspace.evict_tracked_key(random::next) else { break };
            self.invalidate_readers(&key, &readers);
        }
    }
}
