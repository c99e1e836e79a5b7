//! The largest keys that the workers have [found](kvick_store::big_keys), for MEMORY BIGKEYS and metrics.

use kvick_config::Values;
use kvick_config::tables::memory;
use kvick_store::big_keys::{Lists, Look, Order, Size};
use kvick_store::{Keyspace, Kind};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Whether the keyspace is searched for big keys.
    pub enabled: bool,
    /// Pause of a worker between two rounds through its share of the keyspace.
    pub pause: Duration,
}

impl Settings {
    /// Reads them.
    pub fn read(values: &Values) -> Self {
        Settings {
            enabled: values.read(memory::BIGKEYS_SCAN),
            pause: Duration::from_secs(values.read(memory::BIGKEYS_SCAN_PAUSE_SECONDS).into()),
        }
    }
}

/// What one worker has found.
#[derive(Clone, Default, Debug)]
pub struct Found {
    /// The largest keys.
    pub lists: Arc<Lists>,
    /// Completed rounds through its share of the keyspace.
    pub rounds: u64,
    /// Keys visited in the last completed round.
    pub keys: u64,
    /// Time spent since the start of the server, in microseconds.
    pub us: u64,
}

/// A big key as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BigKey {
    /// Its name.
    pub name: Box<[u8]>,
    /// The number of its database.
    pub db: usize,
    /// Its size.
    pub size: Size,
}

/// What all workers have found. See the module's documentation.
pub struct BigKeys {
    workers: Box<[Mutex<Found>]>,
}

impl BigKeys {
    /// For so many workers.
    pub fn new(workers: usize) -> Self {
        BigKeys { workers: (0..workers).map(|_| Mutex::default()).collect() }
    }

    /// Replaces what a worker has found.
    pub fn publish(&self, worker: usize, found: Found) {
        if let Some(of_worker) = self.workers.get(worker) {
            *of_worker.lock() = found;
        }
    }

    /// What each worker has found.
    pub fn found(&self) -> Vec<Found> {
        self.workers.iter().map(|found| found.lock().clone()).collect()
    }

    /// The largest keys of these kinds, the largest first. Looks each of them up, so that keys that were deleted or
    /// have shrunk are not shown as they were. A key whose partition is locked for long is shown as it was found. The
    /// caller is in a batch.
    pub fn largest(
        &self,
        keyspace: &'static Keyspace,
        now_ms: i64,
        kinds: &[Kind],
        order: Order,
        count: usize,
    ) -> Vec<BigKey> {
        let all = self.found();
        let listed = all.iter().flat_map(|found| kinds.iter().flat_map(|kind| found.lists.of(*kind, order)));
        let mut seen = HashSet::new();
        let current = listed.filter(|key| seen.insert((key.db, &*key.name))).filter_map(|key| {
            let size = match keyspace.look(key.db, &key.name, now_ms) {
                Look::Found(size) => size,
                Look::Locked => key.size,
                Look::Gone => return None,
            };
            let is_wanted = kinds.contains(&size.kind) && size.by(order) > 0;
            is_wanted.then(|| BigKey { name: key.name.clone(), db: key.db, size })
        });
        let mut keys: Vec<BigKey> = current.collect();
        keys.sort_by(|a, b| {
            (Reverse(a.size.by(order)), a.db, &a.name).cmp(&(Reverse(b.size.by(order)), b.db, &b.name))
        });
        keys.truncate(count);
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_store::big_keys::Walk;
    use kvick_store::hash::KeyHasher;
    use kvick_store::{Access, Counters, Db, Effects, Env, Expiry, Share};
    use std::time::Instant;

    const KINDS: &[Kind] = &[Kind::String];

    fn with_db(keyspace: &'static Keyspace, change: impl FnOnce(&mut Db<'_>)) {
        let (counters, mut effects, access) = (Counters::default(), Effects::default(), Access::default());
        let mut locked = keyspace.lock_global();
        change(&mut Db::new(&mut locked, 0, Env::command(0, &access, &counters, &mut effects)));
    }

    fn set(keyspace: &'static Keyspace, name: &str, len: usize) {
        with_db(keyspace, |db| db.set_bytes(db.key(name.as_bytes()), &vec![b'v'; len], Expiry::None));
    }

    fn names(big_keys: &BigKeys, keyspace: &'static Keyspace, count: usize) -> String {
        let keys = big_keys.largest(keyspace, 0, KINDS, Order::Bytes, count);
        keys.iter().map(|key| String::from_utf8_lossy(&key.name).into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_largest_keys_of_all_workers_are_shown_as_they_are_now() {
        let keyspace = Keyspace::leak(1, 8, KeyHasher::random());
        ["a", "b", "c", "d", "e"].iter().enumerate().for_each(|(n, name)| set(keyspace, name, 100 << n));
        let big_keys = BigKeys::new(2);
        for worker in 0..2 {
            let mut walk = Walk::default();
            let deadline = Instant::now() + Duration::from_secs(60);
            let progress = walk.run(keyspace, Share { worker, workers: 2 }, 0, deadline);
            let found = Found { lists: Arc::new(walk.lists().clone()), rounds: 1, keys: progress.keys, us: 1 };
            big_keys.publish(worker, found);
        }
        assert_eq!(big_keys.found().iter().map(|found| found.keys).sum::<u64>(), 5);
        assert_eq!(names(&big_keys, keyspace, 3), "e d c");
        set(keyspace, "d", 1);
        let held = keyspace.lock_one(keyspace.address(0, keyspace.key(b"d")));
        assert_eq!(names(&big_keys, keyspace, 16), "e d c b a", "as it was found");
        drop(held);
        with_db(keyspace, |db| _ = db.remove(db.key(b"e"), false));
        assert_eq!(names(&big_keys, keyspace, 16), "c b a d");
        assert!(big_keys.largest(keyspace, 0, &[Kind::List], Order::Bytes, 16).is_empty());
    }
}
