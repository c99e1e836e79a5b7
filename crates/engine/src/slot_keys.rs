//! Deletes the keys of slots that other nodes own, in pieces, so that clients do not wait for it.

use super::dispatch::of_client;
use super::engine::Engine;
use kvick_core::clients::ClientFlags;
use kvick_resp::Args;
use kvick_runtime::clock::Ticks;
use kvick_runtime::logging;
use kvick_runtime::memory::Returning;
use kvick_store::{Db, Env, EventClass, WhenExpired};
use std::collections::VecDeque;

/// Keys that are deleted under one lock.
const KEYS_AT_ONCE: usize = 32;

/// How long a worker deletes keys in one turn of its loop, in microseconds.
const TURN_US: u64 = 250;

/// Slots whose keys are to be deleted, and where the deletion is.
#[derive(Default)]
pub(super) struct LostSlots {
    slots: VecDeque<u16>,
    /// The database and the position in the first slot.
    database: usize,
    position: u64,
    /// Keys deleted since the last log line.
    deleted: usize,
    /// Returns the memory of deleted keys.
    returning: Returning,
}

impl Engine {
    /// Notes that the keys of these slots are to be deleted.
    pub fn delete_slots(&mut self, slots: &[u16]) {
        self.lost_slots.slots.extend(slots);
    }

    /// Whether keys of lost slots remain to be deleted.
    #[inline]
    pub fn is_deleting_slots(&self) -> bool {
        !self.lost_slots.slots.is_empty()
    }

    /// Deletes some keys of lost slots in all databases, and propagates that. Leaves out slots that this node's shard
    /// owns or imports by now. One slot is locked at a time.
    pub fn continue_deleting_slots(&mut self) {
        let began = Ticks::now();
        self.lost_slots.returning.follow();
        while let Some(slot) = self.lost_slots.slots.front().copied() {
            let databases = self.server.keyspace.databases();
            while self.lost_slots.database < databases {
                if Ticks::now().us_since(began) >= TURN_US {
                    return;
                }
                self.delete_some(slot);
            }
            self.server.keyspace.set_doomed(usize::from(slot), false);
            self.lost_slots.slots.pop_front();
            self.lost_slots.database = 0;
        }
        let deleted = std::mem::take(&mut self.lost_slots.deleted);
        if deleted > 0 {
            logging::notice(format_args!("Deleted {deleted} keys of slots that other nodes own."));
        }
    }

    /// Deletes one piece of a slot in the current database; after the last piece, advances to the next database.
    fn delete_some(&mut self, slot: u16) {
        let LostSlots { database, position, .. } = self.lost_slots;
        let mut next = None;
        if self.server.keyspace.slot_len_with_doomed(database, slot) > 0 {
            next = self.within_batch(|engine| engine.delete_piece(slot, database, position));
            self.within_batch(Self::settle_consequences);
        }
        self.lost_slots.position = next.unwrap_or(0);
        if next.is_none() {
            self.lost_slots.database += 1;
        }
    }

    /// Deletes about [`KEYS_AT_ONCE`] keys. Returns where to continue, if there may be more.
    fn delete_piece(&mut self, slot: u16, db: usize, position: u64) -> Option<u64> {
        let keyspace = self.server.keyspace;
        let mut locked = self.lock_patiently(|_| vec![keyspace.slot_address(db, slot)]);
        let map = self.server.routing.as_ref()?.current();
        if map.is_mine(slot) || map.importing.contains_key(&slot) {
            return None;
        }
        let event_mask = self.event_mask();
        self.effects.begin(keyspace.log.has_readers(), event_mask, db);
        let env = Env::command(self.now_ms, &self.access, &self.stats.keyspace, &mut self.effects);
        let env = of_client(env, ClientFlags::NO_TOUCH, &self.runtime_config.commands, WhenExpired::ImportSource);
        let lazy = self.runtime_config.commands.lazy_server_del;
        let command: &[u8] = if lazy { b"UNLINK" } else { b"DEL" };
        let mut db = Db::new(&mut locked, db, env);
        let (names, next) = db.keys_in_slot_from(slot, position, KEYS_AT_ONCE);
        for name in &names {
            let key = keyspace.key(name);
            if db.remove(key, lazy) {
                db.effects().propagate(&[command, name]);
                db.effects().notify(EventClass::GENERIC, "del", name);
                db.effects().changed(1);
            }
        }
        self.effects.commit(&keyspace.log, Args::new(&[], &[], &[]));
        self.lost_slots.deleted += names.len();
        next
    }
}
