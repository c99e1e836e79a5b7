//! Keys with an expiry that were set by clients of a writable replica: the primary does not expire them.
//!
//! While a replica accepts writes, its workers record every key that their clients change and that has an expiry. One
//! worker checks them periodically and deletes the expired ones, also after the replica has become read-only again. A
//! key that the primary sets meanwhile counts as one of these until it has no expiry any more. The record ends when the
//! data set is replaced or emptied, and when active expiry runs on the server as a primary.

use crate::ReplicatedCore;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module's documentation.
#[derive(Default)]
pub struct WritableReplicaKeys {
    /// Whether keys are recorded: the server is a writable replica.
    is_recording: AtomicBool,
    keys: Mutex<HashSet<RecordedKey>>,
}

/// A recorded key.
#[derive(PartialEq, Eq, Hash)]
pub struct RecordedKey {
    /// The number of its database.
    pub database: usize,
    /// The key.
    pub key: Box<[u8]>,
}

impl WritableReplicaKeys {
    /// Whether keys are recorded.
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Relaxed)
    }

    /// Records a key.
    pub fn add(&self, database: usize, key: &[u8]) {
        self.keys.lock().insert(RecordedKey { database, key: key.into() });
    }

    /// Takes all keys, to check them.
    pub fn take(&self) -> HashSet<RecordedKey> {
        std::mem::take(&mut *self.keys.lock())
    }

    /// Puts back the keys that still have an expiry.
    pub fn restore(&self, keys: HashSet<RecordedKey>) {
        self.keys.lock().extend(keys);
    }

    /// Removes all keys.
    pub fn clear(&self) {
        self.keys.lock().clear();
    }

    /// The number of recorded keys.
    pub fn count(&self) -> usize {
        self.keys.lock().len()
    }
}

impl ReplicatedCore {
    /// Starts or stops recording the keys that clients change, depending on the role and the settings.
    pub fn update_writable_replica_keys(&self, is_writable: bool) {
        let own = &self.replication.writable_replica_keys;
        let recording = is_writable && self.replication.upstream.is_replica();
        if own.is_recording.swap(recording, Ordering::Relaxed) != recording {
            self.keyspace.tracking.set_notes_all(recording);
        }
    }
}
