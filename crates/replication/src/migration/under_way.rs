//! The keys being migrated.
//!
//! Two clients may migrate the same key concurrently. When the first has moved it, the second finds it missing. This
//! must not be treated as a deletion: the target must keep the key.

use parking_lot::Mutex;
use std::collections::HashMap;

/// The keys being migrated. Accessed under the keys' locks.
#[derive(Default)]
pub struct UnderWay(Mutex<HashMap<Place, Traffic>>);

/// The number of a database, and a key's name.
type Place = (usize, Box<[u8]>);

#[derive(Default)]
struct Traffic {
    jobs: usize,
    moved: bool,
}

impl UnderWay {
    /// A migration job includes this key.
    pub fn begin(&self, db: usize, key: &[u8]) {
        self.0.lock().entry((db, key.into())).or_default().jobs += 1;
    }

    /// A migration job is done with this key; `moved` if the key was deleted here because it has arrived.
    pub fn end(&self, db: usize, key: &[u8], moved: bool) {
        let mut keys = self.0.lock();
        let place = (db, key.into());
        let Some(traffic) = keys.get_mut(&place) else { return };
        traffic.jobs -= 1;
        traffic.moved |= moved;
        if traffic.jobs == 0 {
            keys.remove(&place);
        }
    }

    /// Whether a job has moved this key while other unfinished jobs included it.
    pub fn was_moved(&self, db: usize, key: &[u8]) -> bool {
        self.0.lock().get(&(db, key.into())).is_some_and(|traffic| traffic.moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_know_that_a_key_was_moved_until_the_last_is_done() {
        let keys = UnderWay::default();
        (0..3).for_each(|_| keys.begin(0, b"k"));
        keys.end(0, b"k", false);
        assert!(!keys.was_moved(0, b"k"));
        keys.end(0, b"k", true);
        assert!(keys.was_moved(0, b"k") && !keys.was_moved(1, b"k"));
        keys.end(0, b"k", false);
        assert!(!keys.was_moved(0, b"k"));
    }
}
