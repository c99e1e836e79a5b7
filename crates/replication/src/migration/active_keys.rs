//! The keys being migrated.
//!
//! If such a key is deleted here, the target may still have its old value, and is about to get a DEL. In cluster mode
//! this node therefore answers for the key as if it existed, until the migration ends: a client that followed ASK could
//! read the old value, and the DEL would delete what it writes.
//!
//! Two clients may migrate the same key concurrently. When the first has moved it, the second finds it missing. This
//! must not be treated as a deletion: the target must keep the key.

use parking_lot::Mutex;
use std::collections::HashMap;

/// The keys being migrated. Accessed under the keys' locks.
#[derive(Default)]
pub struct ActiveKeys(Mutex<HashMap<KeyId, KeyState>>);

/// The number of a database, and a key's name.
type KeyId = (usize, Box<[u8]>);

#[derive(Default)]
struct KeyState {
    jobs: usize,
    moved: bool,
}

impl ActiveKeys {
    /// A migration job includes this key.
    pub fn begin(&self, db: usize, key: &[u8]) {
        self.0.lock().entry((db, key.into())).or_default().jobs += 1;
    }

    /// A migration job is done with this key; `moved` if the key was deleted here because it has arrived.
    pub fn end(&self, db: usize, key: &[u8], moved: bool) {
        let mut keys = self.0.lock();
        let id = (db, key.into());
        let Some(key_state) = keys.get_mut(&id) else { return };
        key_state.jobs -= 1;
        key_state.moved |= moved;
        if key_state.jobs == 0 {
            keys.remove(&id);
        }
    }

    /// Whether the target may have another value of this key than this node: a job is under way, and none has moved it.
    pub fn is_in_flight(&self, db: usize, key: &[u8]) -> bool {
        let keys = self.0.lock();
        !keys.is_empty() && keys.get(&(db, key.into())).is_some_and(|key_state| !key_state.moved)
    }

    /// Whether a job has moved this key while other unfinished jobs included it.
    pub fn is_moved(&self, db: usize, key: &[u8]) -> bool {
        self.0.lock().get(&(db, key.into())).is_some_and(|key_state| key_state.moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_key_is_remembered_until_the_last_job_ends() {
        let keys = ActiveKeys::default();
        assert!(!keys.is_in_flight(0, b"k"));
        (0..3).for_each(|_| keys.begin(0, b"k"));
        keys.end(0, b"k", false);
        assert!(!keys.is_moved(0, b"k") && keys.is_in_flight(0, b"k"));
        keys.end(0, b"k", true);
        assert!(keys.is_moved(0, b"k") && !keys.is_moved(1, b"k") && !keys.is_in_flight(0, b"k"));
        keys.end(0, b"k", false);
        assert!(!keys.is_moved(0, b"k") && !keys.is_in_flight(0, b"k"));
    }
}
