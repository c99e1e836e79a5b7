//! Expiry of keys that clients wrote to a writable replica: the primary does not know these keys and never expires
//! them.
//!
//! While a replica accepts writes, its workers record every key that their clients change, and keep those that have an
//! expiry. One worker periodically checks them and deletes those that have expired; see
//! [`kvick_replication::writable_replica_keys`].

use super::dispatch::of_client;
use super::engine::Engine;
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientFlags;
use kvick_resp::Args;
use kvick_store::{Db, Env, WhenExpired};

impl Engine {
    /// Records a key that a command has changed, if it has an expiry. Called within a batch and without locks.
    #[inline]
    pub(super) fn record_writable_replica_key(&mut self, database: usize, key: &[u8]) {
        let own = &self.server.replication.writable_replica_keys;
        // Changes of the primary are not applied by a worker.
        if own.is_recording() && self.executor.is_worker() {
            // It may have expired already.
            let expires = self.keeps_expiry(database, key, WhenExpired::ImportSource);
            if expires {
                own.add(database, key);
            }
        }
    }

    /// Removes the record: the server is a primary, which expires all keys.
    pub fn forget_writable_replica_keys(&self) {
        self.server.replication.writable_replica_keys.clear();
    }

    /// Deletes the recorded keys that have expired, and drops those that have no expiry from the record.
    pub fn expire_writable_replica_keys(&mut self) {
        let own = &self.server.replication.writable_replica_keys;
        let mut keys = own.take();
        keys.retain(|noted| {
            self.within_batch(|engine| engine.keeps_expiry(noted.database, &noted.key, WhenExpired::Drop))
        });
        own.restore(keys);
        self.within_batch(Self::settle_consequences);
    }

    /// Whether a key still has an expiry, after an expired key was treated as `when_expired` requires.
    fn keeps_expiry(&mut self, database: usize, key: &[u8], when_expired: WhenExpired) -> bool {
        let (keyspace, event_mask) = (self.server.keyspace, self.event_mask());
        let hashed = keyspace.key(key);
        let mut locked = self.lock_patiently(|_| vec![keyspace.address(database, hashed)]);
        if self.server.admission.has(Reasons::LOADING) {
            return true;
        }
        self.effects.begin(false, event_mask, database);
        let env = Env::command(self.now_ms, &self.access, &self.stats.keyspace, &mut self.effects);
        let env = of_client(env, ClientFlags::NO_TOUCH, &self.runtime_config.commands, when_expired);
        let expires = Db::new(&mut locked, database, env).peek(hashed).is_some_and(|entry| entry.expiry().is_some());
        self.effects.commit(&keyspace.log, Args::new(&[], &[], &[]));
        expires
    }
}
