//! Settles keys that the migrator returns: see [`kvick_replication::migration`].

use super::dispatch::of_client;
use super::engine::Engine;
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientFlags;
use kvick_core::inbox::Served;
use kvick_core::message::Message;
use kvick_replication::migration::{ATTEMPTS_UNHELD, MigrationJob, packed_key};
use kvick_resp::{OwnedArgs, Reply};
use kvick_store::slot::slot;
use kvick_store::{Db, Env, Key, Watcher};
use std::sync::Arc;

/// Result of settling returned keys.
pub enum Settled {
    /// The client gets its answer.
    Done(Served),
    /// Some keys were sent again.
    Sent,
    /// The data set is being loaded: try again later.
    Later(MigrationJob),
}

impl Engine {
    /// Deletes the keys that arrived at their target, then answers the client or sends changed keys again.
    pub fn settle(&mut self, mut job: MigrationJob) -> Settled {
        let (keyspace, db) = (self.server.keyspace, job.db);
        let names: Vec<Box<[u8]>> = job.packed_keys.iter().map(|packed_key| packed_key.key.clone()).collect();
        let keys: Vec<Key<'_>> = names.iter().map(|name| keyspace.key(name)).collect();
        let addresses = |_: &Engine| keys.iter().map(|key| keyspace.address(db, *key)).collect();
        let mut locked = self.lock_patiently(addresses);
        if self.server.admission.has(Reasons::LOADING) {
            // Keys not yet loaded do not count as deleted.
            return Settled::Later(job);
        }
        let when_expired = self.when_expired(&job.client.info);
        let event_mask = self.event_mask();
        self.effects.begin(keyspace.log.has_readers(), event_mask, db);
        let env = Env::command(self.now_ms, &self.access, &self.stats.keyspace, &mut self.effects);
        let env = of_client(env, ClientFlags::NO_TOUCH, &self.runtime_config.commands, when_expired);
        let lazy = self.runtime_config.commands.lazy_server_del;
        let active_keys = &self.server.migration.active_keys;
        packed_key::delete_migrated(&mut job, active_keys, &mut Db::new(&mut locked, db, env), lazy);
        keys.iter().for_each(|key| locked.unwatch(db, *key, &job.watcher));
        job.watcher = Arc::new(Watcher::default());
        for packed_key in &job.packed_keys {
            locked.watch(db, keyspace.key(&packed_key.key), &job.watcher, self.now_ms);
        }
        // The command to propagate was set above.
        self.effects.commit(&keyspace.log, OwnedArgs::new::<&[u8]>([]).args());
        self.hold_or_release(&mut job);
        drop(locked);
        if self.effects.has_pending_notifications() {
            self.settle_consequences();
        }
        if job.packed_keys.is_empty() {
            return Settled::Done(self.answer_job(&job));
        }
        self.server.migration.send(Box::new(job));
        Settled::Sent
    }

    /// Holds writes to the slot of keys that keep changing, so that the next attempt succeeds, and releases them when
    /// the job is done. The keys are locked, so those that are sent next have their present values.
    fn hold_or_release(&self, job: &mut MigrationJob) {
        let slots = &self.server.pause.slots;
        match (job.packed_keys.first(), job.held_slot) {
            (Some(changed), None) if self.server.routing.is_some() && job.attempts >= ATTEMPTS_UNHELD => {
                // All keys of a request in cluster mode are in one slot.
                let slot = slot(&changed.key);
                slots.hold_migrated(slot);
                job.held_slot = Some(slot);
            }
            (None, Some(slot)) => {
                slots.release_migrated(slot);
                job.held_slot = None;
                self.server.send_all(|| Message::Resume);
            }
            _ => {}
        }
    }

    fn answer_job(&mut self, job: &MigrationJob) -> Served {
        let client = &job.client;
        let mut reply = Vec::new();
        let result = packed_key::reply(job, &mut Reply::new(&mut reply, client.version));
        if let Err(error) = &result {
            Reply::new(&mut reply, client.version).error(error.bytes());
        }
        self.stats.dirty.add(self.effects.dirty());
        Served { client: client.info.clone(), ticket: client.ticket, reply, is_last: false }
    }
}
