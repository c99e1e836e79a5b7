//! Point-in-time snapshots of the keyspace without a fork.
//!
//! A snapshot begins under the world lock, which is held for microseconds: every partition's epoch is flipped, so that
//! the entries that were there are told from those written later by their epoch bit, and every partition is given the
//! [`Sink`] that takes what is captured. A thread of its own then [walks](Walk) through the tables in small steps and
//! captures what it finds; a partition that is about to change or drop an entry of the old epoch captures it first. Each
//! entry is captured once, as it was when the snapshot began.
//!
//! **Invariant**: while no snapshot is under way all entries of a partition have the partition's epoch. So a walk that was
//! cancelled goes on to the end, capturing nothing.

use crate::entry::Entry;
use crate::keyspace::{Keyspace, Locked};
use crate::partition::Partition;
use crate::world::Participant;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Buckets looked at under one lock.
const BUCKETS_PER_STEP: usize = 16;

/// Takes what is captured.
pub trait Sink: Send + Sync {
    /// Takes an entry of database `number` (as databases were numbered when the snapshot began), to be copied or
    /// written at once: it is about to change. Called under the lock of its partition.
    fn capture(&self, number: usize, entry: Entry<'_>);
}

/// A snapshot under way.
pub struct Snapshot {
    sink: Box<dyn Sink>,
    cancelled: AtomicBool,
    /// Partitions that were flushed away before the walk came to them, with their database.
    flushed: parking_lot::Mutex<Vec<Partition>>,
}

impl Snapshot {
    /// Has nothing more captured. The walk has to go on all the same.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn capture(&self, number: usize, entry: Entry<'_>) {
        if !self.is_cancelled() {
            self.sink.capture(number, entry);
        }
    }

    /// Keeps a partition that was flushed away.
    pub(crate) fn keep(&self, partition: Partition) {
        self.flushed.lock().push(partition);
    }
}

/// What a partition that is part of a snapshot knows of it.
pub(crate) struct Capture {
    snapshot: Arc<Snapshot>,
    /// The number that its database had when the snapshot began.
    number: usize,
}

impl Capture {
    pub(crate) fn take(&self, entry: Entry<'_>) {
        self.snapshot.capture(self.number, entry);
    }

    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
}

/// A thread's way through the tables for a snapshot.
pub struct Walk {
    keyspace: &'static Keyspace,
    snapshot: Arc<Snapshot>,
    /// Index of the next partition, databases one after the other.
    next: usize,
    position: u64,
}

impl Walk {
    /// Begins a snapshot, under the world lock. Only one may be under way.
    pub fn begin(world: &mut Locked, sink: Box<dyn Sink>) -> Walk {
        let keyspace = world.keyspace();
        let snapshot = Arc::new(Snapshot { sink, cancelled: AtomicBool::new(false), flushed: Default::default() });
        world.for_each_partition(|number, partition| {
            partition.begin_capture(Capture { snapshot: snapshot.clone(), number });
        });
        Walk { keyspace, snapshot, next: 0, position: 0 }
    }

    /// The snapshot.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Captures some more; false when all is done. The calling thread is outside of a batch.
    pub fn step(&mut self, participant: Participant) -> bool {
        let partitions = self.keyspace.partitions();
        while self.next < self.keyspace.places() * partitions {
            // Databases by their place, not by their number: SWAPDB changes that.
            let (database, partition) = (self.next / partitions, self.next % partitions);
            if !self.keyspace.is_made(database) {
                self.next = (database + 1) * partitions;
                continue;
            }
            let address = self.keyspace.address_of(database, partition);
            self.keyspace.world.enter(participant);
            let world = &self.keyspace.world;
            let Some(mut locked) = self.keyspace.lock_one_while(address, || !world.is_wanted()) else {
                world.leave(participant);
                return true;
            };
            let next = locked.partition_mut(address).capture_from(self.position, BUCKETS_PER_STEP);
            drop(locked);
            world.leave(participant);
            self.position = next.unwrap_or(0);
            if next.is_none() {
                self.next += 1;
            }
            return true;
        }
        // One after the other, so that what is captured of a large database need not be held all at once.
        let flushed = self.snapshot.flushed.lock().pop();
        let Some(mut partition) = flushed else { return false };
        let mut position = Some(0);
        while let Some(at) = position {
            position = partition.capture_from(at, BUCKETS_PER_STEP);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::db::{Counters, Db, Env, Expiry, WhenExpired};
    use crate::effects::Effects;
    use crate::hash::KeyHasher;
    use crate::value::IntBuf;
    use parking_lot::Mutex;
    use std::collections::BTreeMap;

    type Seen = Arc<Mutex<BTreeMap<(usize, Vec<u8>), Vec<u8>>>>;

    struct Copy(Seen);

    impl Sink for Copy {
        fn capture(&self, number: usize, entry: Entry<'_>) {
            let mut buffer = IntBuf::default();
            let value = entry.str().expect("strings only").bytes(&mut buffer).to_vec();
            let twice = self.0.lock().insert((number, entry.key().to_vec()), value);
            assert!(twice.is_none(), "captured twice");
        }
    }

    fn with_db(keyspace: &'static Keyspace, number: usize, run: impl FnOnce(&mut Db<'_>)) {
        let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
        let env = Env {
            now_ms: 1,
            access: &access,
            touch: true,
            lazy_expire: true,
            lazy_overwrite: true,
            when_expired: WhenExpired::Drop,
            counters: &counters,
            effects: &mut effects,
        };
        run(&mut Db::new(&mut keyspace.lock_world(), number, env));
    }

    fn set(db: &mut Db<'_>, n: usize, value: &str) {
        let name = format!("key:{n}");
        db.set_bytes(db.key(name.as_bytes()), value.as_bytes(), Expiry::None);
    }

    fn remove(db: &mut Db<'_>, n: usize) {
        let name = format!("key:{n}");
        db.remove(db.key(name.as_bytes()), true);
    }

    fn begin(keyspace: &'static Keyspace) -> (Walk, Seen) {
        let seen = Seen::default();
        (Walk::begin(&mut keyspace.lock_world(), Box::new(Copy(seen.clone()))), seen)
    }

    fn expected(numbers: &[usize], keys: usize) -> BTreeMap<(usize, Vec<u8>), Vec<u8>> {
        let all = numbers.iter().flat_map(|number| (0..keys).map(move |n| (*number, n)));
        all.map(|(number, n)| ((number, format!("key:{n}").into_bytes()), format!("old {n}").into_bytes())).collect()
    }

    #[test]
    fn a_snapshot_is_of_one_moment_whatever_is_written_meanwhile() {
        const KEYS: usize = 3000;
        let keyspace = Keyspace::leak(3, 4, KeyHasher::with_secret(1, 2));
        let participant = keyspace.world.join().expect("room");
        for number in [0, 2] {
            with_db(keyspace, number, |db| (0..KEYS).for_each(|n| set(db, n, &format!("old {n}"))));
        }
        for round in 0..3 {
            let (mut walk, seen) = begin(keyspace);
            let (mut step, mut seed) = (0, round as u64 + 1);
            while walk.step(participant) {
                with_db(keyspace, step % 3, |db| {
                    for _ in 0..20 {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let n = (seed >> 33) as usize % (2 * KEYS);
                        match seed >> 20 & 3 {
                            0 => remove(db, n),
                            1 => _ = db.append(db.key(format!("key:{n}").as_bytes()), b"!"),
                            2 => _ = db.set_expiry(db.key(format!("key:{n}").as_bytes()), Some(1 << 50)),
                            _ => set(db, n, "new"),
                        }
                    }
                });
                if step == 30 {
                    with_db(keyspace, 0, |db| db.swap(1, 2));
                    with_db(keyspace, 0, |db| _ = db.flush(1, true));
                }
                step += 1;
            }
            assert!(*seen.lock() == expected(&[0, 2], KEYS), "round {round}");
            for number in [0, 1, 2] {
                with_db(keyspace, number, |db| {
                    db.flush(number, false);
                    if number != 1 {
                        (0..KEYS).for_each(|n| set(db, n, &format!("old {n}")));
                    }
                });
            }
        }
    }

    #[test]
    fn a_cancelled_snapshot_leaves_nothing_behind() {
        let keyspace = Keyspace::leak(1, 4, KeyHasher::with_secret(1, 2));
        let participant = keyspace.world.join().expect("room");
        with_db(keyspace, 0, |db| (0..500).for_each(|n| set(db, n, &format!("old {n}"))));
        let (mut walk, seen) = begin(keyspace);
        walk.step(participant);
        walk.snapshot().cancel();
        with_db(keyspace, 0, |db| (0..500).filter(|n| n % 3 == 0).for_each(|n| set(db, n, &format!("old {n}"))));
        while walk.step(participant) {}
        assert!(seen.lock().len() < 500);
        let (mut walk, seen) = begin(keyspace);
        while walk.step(participant) {}
        assert!(*seen.lock() == expected(&[0], 500));
    }
}
