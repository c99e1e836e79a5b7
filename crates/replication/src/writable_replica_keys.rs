//! Keys that clients of a writable replica gave a time to live: nobody else says when they go.
//!
//! While a replica takes writes, its workers note every key that their clients change, and remember those that have an
//! expiry. One worker looks through them now and then and drops those whose time has come. A key that the primary sets
//! meanwhile is taken for one of these until it has no expiry any more.

use crate::ReplicatedCore;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module's documentation.
#[derive(Default)]
pub struct WritableReplicaKeys {
    /// Whether they are remembered: the server is a replica that takes writes.
    are_noted: AtomicBool,
    /// Numbers of databases, and keys.
    keys: Mutex<HashSet<(usize, Box<[u8]>)>>,
}

impl WritableReplicaKeys {
    /// Whether keys are remembered.
    #[inline]
    pub fn are_noted(&self) -> bool {
        self.are_noted.load(Ordering::Relaxed)
    }

    /// Remembers a key.
    pub fn add(&self, database: usize, key: &[u8]) {
        self.keys.lock().insert((database, key.into()));
    }

    /// Takes all keys out, to look through them.
    pub fn take(&self) -> HashSet<(usize, Box<[u8]>)> {
        std::mem::take(&mut *self.keys.lock())
    }

    /// Puts back those that still have an expiry.
    pub fn put_back(&self, keys: HashSet<(usize, Box<[u8]>)>) {
        self.keys.lock().extend(keys);
    }

    /// How many are remembered, with those that have no expiry and have yet to be looked at.
    pub fn count(&self) -> usize {
        self.keys.lock().len()
    }
}

impl ReplicatedCore {
    /// Begins or ends to note the keys that clients change, as the server's role and its settings have it.
    pub fn note_writable_replica_keys(&self, takes_writes: bool) {
        let own = &self.replication.writable_replica_keys;
        let noted = takes_writes && self.replication.upstream.is_replica();
        if own.are_noted.swap(noted, Ordering::Relaxed) != noted {
            self.keyspace.tracking.set_noted(noted);
            if !noted {
                own.keys.lock().clear();
            }
        }
    }
}
