//! Keys that clients of a writable replica gave a time to live: nobody else says when they go.
//!
//! While a replica takes writes, its workers note every key that their clients change, and remember those that have an
//! expiry. One worker looks through them now and then and drops those whose time has come. A key that the primary sets
//! meanwhile is taken for one of these until it has no expiry any more.

use super::engine::Engine;
use kvick_core::admission::Reasons;
use kvick_resp::Args;
use kvick_store::{Db, Env, WhenExpired};

impl Engine {
    /// Takes note of a key that a command has changed.
    #[inline]
    pub(super) fn note_writable_replica_key(&self, database: usize, key: &[u8]) {
        let own = &self.server.replication.writable_replica_keys;
        // What the primary changes is applied by no worker.
        if own.are_noted() && self.executor.is_worker() {
            own.add(database, key);
        }
    }

    /// Drops those whose time has come, and forgets those that have no expiry.
    pub(super) fn expire_writable_replica_keys(&mut self) {
        let own = &self.server.replication.writable_replica_keys;
        let mut keys = own.take();
        keys.retain(|(database, key)| self.within_batch(|engine| engine.keeps_expiry(*database, key)));
        own.put_back(keys);
        self.within_batch(Self::settle_consequences);
    }

    /// Whether a key has an expiry; it is dropped if that has come.
    fn keeps_expiry(&mut self, database: usize, key: &[u8]) -> bool {
        let (keyspace, heard) = (self.server.keyspace, self.heard());
        let hashed = keyspace.key(key);
        let mut locked = self.lock_patiently(|_| vec![keyspace.address(database, hashed)]);
        if self.server.admission.has(Reasons::LOADING) {
            return true;
        }
        self.effects.begin(false, heard, database);
        let env = Env {
            now_ms: self.now_ms,
            access: &self.access,
            touch: false,
            lazy_expire: self.runtime_config.commands.lazy_expire,
            lazy_overwrite: false,
            when_expired: WhenExpired::Drop,
            counters: &self.stats.keyspace,
            effects: &mut self.effects,
        };
        let expires = Db::new(&mut locked, database, env).peek(hashed).is_some_and(|entry| entry.expiry().is_some());
        self.effects.commit(&keyspace.log, Args::new(&[], &[], &[]));
        expires
    }
}
