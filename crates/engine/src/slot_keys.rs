//! Deletes the keys of slots that other nodes own.

use super::dispatch::of_client;
use super::engine::Engine;
use kvick_core::clients::ClientFlags;
use kvick_resp::Args;
use kvick_runtime::logging;
use kvick_store::{Db, Env, EventClass, WhenExpired};

impl Engine {
    /// Deletes the keys of these slots in all databases, and propagates that. Leaves out slots that this node's shard
    /// owns or imports by now. One slot is locked at a time.
    pub fn delete_slots(&mut self, slots: &[u16]) {
        let keyspace = self.server.keyspace;
        let mut deleted = 0;
        for slot in slots {
            for db in 0..keyspace.databases() {
                if keyspace.slot_len_with_doomed(db, *slot) > 0 {
                    deleted += self.within_batch(|engine| engine.delete_slot(*slot, db));
                    self.within_batch(Self::settle_consequences);
                }
            }
            keyspace.set_doomed(usize::from(*slot), false);
        }
        if deleted > 0 {
            logging::notice(format_args!("Deleted {deleted} keys of slots that other nodes own."));
        }
    }

    fn delete_slot(&mut self, slot: u16, db: usize) -> usize {
        let keyspace = self.server.keyspace;
        let mut locked = self.lock_patiently(|_| vec![keyspace.slot_address(db, slot)]);
        let Some(routing) = &self.server.routing else { return 0 };
        let map = routing.current();
        if map.is_mine(slot) || map.importing.contains_key(&slot) {
            return 0;
        }
        let event_mask = self.event_mask();
        self.effects.begin(keyspace.log.has_readers(), event_mask, db);
        let env = Env::command(self.now_ms, &self.access, &self.stats.keyspace, &mut self.effects);
        let env = of_client(env, ClientFlags::NO_TOUCH, &self.runtime_config.commands, WhenExpired::ImportSource);
        let lazy = self.runtime_config.commands.lazy_server_del;
        let command: &[u8] = if lazy { b"UNLINK" } else { b"DEL" };
        let mut db = Db::new(&mut locked, db, env);
        let names = db.any_keys_in_slot(slot, usize::MAX);
        for name in &names {
            let key = keyspace.key(name);
            if db.remove(key, lazy) {
                db.effects().propagate(&[command, name]);
                db.effects().notify(EventClass::GENERIC, "del", name);
                db.effects().changed(1);
            }
        }
        self.effects.commit(&keyspace.log, Args::new(&[], &[], &[]));
        names.len()
    }
}
