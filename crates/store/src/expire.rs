//! Active expiry: deletes expired keys and hash fields that no command accesses.
//!
//! Each worker owns a share of the partitions and processes it incrementally, within a time budget. It walks the
//! tables' buckets, visits only entries that are flagged as having an expiry, and stays with a partition as long as the
//! share of expired keys is high enough. Hashes that have fields with an expiry are in a queue per partition, ordered
//! by the time at which to check them, so that only hashes with expired fields are visited. A database in which nothing
//! has had an expiry since its last flush is skipped as a whole, so a pass without any expiries costs next to nothing.

use crate::collections::{Collection, Hash};
use crate::db::{Counters, discard, notify_reclaimed};
use crate::effects::{Effects, EventClass};
use crate::hash::Key;
use crate::keyspace::{Keyspace, Share};
use std::time::{Duration, Instant};

/// Buckets that are visited per lock acquisition.
const BUCKETS_PER_STEP: usize = 32;
/// Number of consecutive steps with too few expired keys after which a partition is left for the next pass.
const STALE_STEPS_MAX: u32 = 4;

/// One worker's position in its share of the keyspace.
#[derive(Default)]
pub struct Sweeper {
    next: usize,
    /// Whether fields are processed before keys in each partition. Alternates, so that neither starves the other.
    fields_first: bool,
}

/// The parameters of one pass.
pub struct Pass<'a> {
    /// The keyspace.
    pub keyspace: &'static Keyspace,
    /// The partitions to process.
    pub share: Share,
    /// Current Unix time in milliseconds.
    pub now_ms: i64,
    /// Time limit of the pass.
    pub budget: Duration,
    /// Percentage of expired keys among those with an expiry below which a partition is left alone.
    pub acceptable_percent: u64,
    /// `lazyfree-lazy-expire`: whether large values are freed in the background.
    pub lazy: bool,
    /// Where expired keys and fields are counted.
    pub counters: &'a Counters,
    /// Scratch space.
    pub effects: &'a mut Effects,
    /// Which classes of events are to be fired.
    pub event_mask: EventClass,
}

impl Sweeper {
    /// Processes this worker's partitions until all were visited or the budget
    /// is used up; returns true in the latter case. The caller is in a batch.
    pub fn run(&mut self, mut pass: Pass<'_>) -> bool {
        let Share { worker, workers } = pass.share;
        let partitions = pass.keyspace.partitions();
        let total = pass.keyspace.databases() * partitions;
        let owned = (total + workers - 1 - worker) / workers;
        let deadline = Instant::now() + pass.budget;
        let mut left = owned;
        self.fields_first = !self.fields_first;
        while left > 0 {
            self.next %= owned;
            let index = worker + self.next * workers;
            let (number, partition) = (index / partitions, index % partitions);
            let database = pass.keyspace.database_at(number);
            if !pass.keyspace.ever_volatile(database) {
                // Skip to this worker's first partition in the next database.
                let step = ((number + 1) * partitions - index).div_ceil(workers).min(left);
                (self.next, left) = (self.next + step, left - step);
                continue;
            }
            let has_fields = pass.keyspace.partition_volatile_hashes(database, partition) > 0;
            let has_keys = pass.keyspace.partition_volatile(database, partition) > 0;
            let jobs = [(true, has_fields), (false, has_keys)];
            for (fields, there) in if self.fields_first { jobs } else { [jobs[1], jobs[0]] } {
                if there && !pass.sweep(fields, number, partition, deadline) {
                    return true;
                }
            }
            (self.next, left) = (self.next + 1, left - 1);
        }
        false
    }
}

impl Pass<'_> {
    /// Processes the fields or the keys of one partition; returns false when the time is up.
    fn sweep(&mut self, fields: bool, number: usize, partition: usize, deadline: Instant) -> bool {
        if fields {
            self.sweep_fields(number, partition, deadline)
        } else {
            self.sweep_keys(number, partition, deadline)
        }
    }

    /// Processes the keys of one partition; returns false when the time is up.
    fn sweep_keys(&mut self, number: usize, partition: usize, deadline: Instant) -> bool {
        let mut stale_steps = 0;
        loop {
            let step = self.step(number, partition);
            if step.at_end {
                return true;
            }
            let worthwhile = step.examined == 0 || step.expired * 100 > step.examined * self.acceptable_percent;
            stale_steps = if worthwhile { 0 } else { stale_steps + 1 };
            if stale_steps > STALE_STEPS_MAX {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
    }

    /// Processes the hashes of one partition; returns false when the time is up.
    fn sweep_fields(&mut self, number: usize, partition: usize, deadline: Instant) -> bool {
        while self.step_fields(number, partition) {
            if Instant::now() >= deadline {
                return false;
            }
        }
        true
    }

    /// Searches some buckets of the next due hash, under the partition's lock; returns false if no hash is due.
    fn step_fields(&mut self, number: usize, partition: usize) -> bool {
        let (keyspace, now_ms, lazy) = (self.keyspace, self.now_ms, self.lazy);
        let address = keyspace.address_of(keyspace.database_at(number), partition);
        let Some(mut locked) = keyspace.try_lock_one(address) else { return false };
        let Some((place, key_hash)) = locked.partition(address).next_due_hash(now_ms) else { return false };
        let name = locked.partition(address).entry(place).key().to_vec();
        let key = Key { bytes: &name, hash: key_hash };
        let mut fields = Vec::new();
        let emptied = locked.with_partition(address, |partition| {
            partition.expire_fields(place, key_hash, now_ms, |field| fields.push(field.to_vec()));
            let emptied = partition.entry(place).collection::<Hash>().is_some_and(|hash| hash.is_empty());
            if emptied {
                discard(keyspace, partition, place, lazy);
                partition.release_empty_table();
            }
            if !fields.is_empty() {
                self.effects.begin(
                    keyspace.log.has_readers(),
                    self.event_mask | keyspace.tracking.event_mask(),
                    number,
                );
                notify_reclaimed(partition, self.effects, number, key);
            }
            emptied
        });
        if !fields.is_empty() {
            self.counters.expired_fields.add(fields.len() as u64);
            self.effects.fields_expired(key, &fields, emptied, lazy);
            self.effects.commit(&keyspace.log, kvick_resp::Args::new(&[], &[], &[]));
        }
        true
    }

    /// Searches some buckets under the partition's lock and deletes the
    /// expired keys. Skips a partition that another thread has locked.
    fn step(&mut self, number: usize, partition: usize) -> Step {
        let keyspace = self.keyspace;
        let address = keyspace.address_of(keyspace.database_at(number), partition);
        let Some(mut locked) = keyspace.try_lock_one(address) else {
            return Step { at_end: true, examined: 0, expired: 0 };
        };
        let (mut examined, mut expired) = (0, Vec::new());
        let at_end = locked.with_partition(address, |partition| {
            partition.sweep(BUCKETS_PER_STEP, |entry| {
                examined += 1;
                if entry.is_expired(self.now_ms) {
                    expired.push(entry.key().to_vec());
                }
            })
        });
        for key in &expired {
            let key = keyspace.key(key);
            self.effects.begin(keyspace.log.has_readers(), self.event_mask | keyspace.tracking.event_mask(), number);
            locked.with_partition(address, |partition| {
                if let Some(place) = partition.find(key) {
                    discard(keyspace, partition, place, self.lazy);
                    notify_reclaimed(partition, self.effects, number, key);
                }
            });
            self.counters.expired.add(1);
            self.effects.expired(key, self.lazy);
            self.effects.commit(&keyspace.log, kvick_resp::Args::new(&[], &[], &[]));
        }
        if !expired.is_empty() {
            locked.partition_mut(address).release_empty_table();
        }
        Step { examined, expired: expired.len() as u64, at_end }
    }
}

/// The result of a step through the keys.
struct Step {
    /// Number of keys with an expiry that it visited.
    examined: u64,
    /// Number of keys that it deleted.
    expired: u64,
    /// Whether it reached the partition's end, or skipped it.
    at_end: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::collections::hash::{FieldClock, Limits};
    use crate::db::{Db, Env};
    use crate::hash::KeyHasher;
    use crate::log::Audience;
    use crate::value::Expiry;

    const NOW_MS: i64 = 1_700_000_000_000;

    fn fill(keyspace: &'static Keyspace, number: usize, expiry: impl Fn(usize) -> Expiry) {
        with_db(keyspace, number, |db| {
            for n in 0..300 {
                let name = n.to_string();
                db.set_bytes(db.key(name.as_bytes()), b"v", expiry(n));
            }
        });
    }

    fn with_db(keyspace: &'static Keyspace, number: usize, run: impl FnOnce(&mut Db<'_>)) {
        let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
        let mut locked = keyspace.lock_global();
        let env = Env::command(NOW_MS, &access, &counters, &mut effects);
        run(&mut Db::new(&mut locked, number, env));
    }

    const ONE_WORKER: Share = Share { worker: 0, workers: 1 };

    /// Runs one pass.
    fn run(keyspace: &'static Keyspace, sweeper: &mut Sweeper, share: Share, acceptable_percent: u64) -> Counters {
        let (counters, mut effects) = (Counters::default(), Effects::default());
        let ran_out = sweeper.run(Pass {
            keyspace,
            share,
            now_ms: NOW_MS + 1,
            budget: Duration::from_secs(60),
            acceptable_percent,
            lazy: true,
            counters: &counters,
            effects: &mut effects,
            event_mask: EventClass::empty(),
        });
        assert!(!ran_out);
        counters
    }

    /// Runs one pass of each of `workers` workers; returns the number of deleted keys.
    fn sweep(keyspace: &'static Keyspace, workers: usize) -> u64 {
        (0..workers)
            .map(|worker| run(keyspace, &mut Sweeper::default(), Share { worker, workers }, 0).expired.get())
            .sum()
    }

    #[test]
    fn workers_together_delete_all_expired_keys() {
        for workers in [1, 3, 4, 5, 32] {
            let keyspace = Keyspace::leak(6, 4, KeyHasher::with_secret(1, 2));
            fill(keyspace, 1, |_| Expiry::None);
            fill(keyspace, 2, |n| Expiry::At(NOW_MS + (n % 3) as i64));
            fill(keyspace, 5, |_| Expiry::At(NOW_MS));
            assert_eq!(sweep(keyspace, workers), 400, "{workers} workers");
            assert_eq!([1, 2, 5].map(|number| keyspace.len(number)), [300, 200, 0]);
        }
    }

    #[test]
    fn sweep_resumes_where_the_last_one_stopped() {
        let keyspace = Keyspace::leak(1, 1, KeyHasher::with_secret(1, 2));
        // Few expired keys among many that have not expired.
        for batch in 0..20 {
            with_db(keyspace, 0, |db| {
                (0..1000).for_each(|n| {
                    let name = format!("{batch}:{n}");
                    let expiry = Expiry::At(NOW_MS + i64::from(n != 0) * 1000);
                    db.set_bytes(db.key(name.as_bytes()), b"v", expiry);
                })
            });
        }
        let mut sweeper = Sweeper::default();
        let mut passes = 0;
        while keyspace.len(0) > 20_000 - 20 {
            run(keyspace, &mut sweeper, ONE_WORKER, 10);
            passes += 1;
            assert!(passes < 1000, "{} are left", keyspace.len(0));
        }
        assert!(passes > 1);
    }

    #[test]
    fn expired_fields_are_deleted_and_the_key_with_the_last() {
        let keyspace = Keyspace::leak(3, 4, KeyHasher::with_secret(1, 2));
        let mut follower = keyspace.log.follow(Audience::All);
        let limits = Limits { fields: 100, bytes: 100 };
        let put = |name: &str, fields: usize, volatile: usize, at: i64| {
            with_db(keyspace, 1, |db| {
                let mut hash = Hash::new();
                for n in 0..fields {
                    let expiry = if n < volatile { Expiry::At(at) } else { Expiry::None };
                    hash.set(format!("f{n}").as_bytes(), b"v", expiry, FieldClock::ALL, limits);
                }
                db.create(db.key(name.as_bytes()), hash);
            });
        };
        put("mixed", 5000, 3, NOW_MS);
        put("gone", 2000, 2000, NOW_MS);
        put("later", 10, 10, NOW_MS + 1);
        put("never", 10, 0, 0);
        assert_eq!(keyspace.volatile_hashes(1), 3);
        let _ = follower.read();
        let mut sweeper = Sweeper::default();
        assert_eq!(run(keyspace, &mut sweeper, ONE_WORKER, 10).expired_fields.get(), 2003);
        assert_eq!((keyspace.len(1), keyspace.volatile_hashes(1)), (3, 1));
        let log = follower.read().unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        assert!(log.contains("HDEL\r\n$5\r\nmixed") && log.contains("UNLINK\r\n$4\r\ngone"));
        assert_eq!(run(keyspace, &mut sweeper, ONE_WORKER, 10).expired_fields.get(), 0);
    }

    #[test]
    fn expiry_after_a_flush_is_swept() {
        let keyspace = Keyspace::leak(2, 4, KeyHasher::with_secret(1, 2));
        fill(keyspace, 0, |_| Expiry::At(NOW_MS));
        keyspace.lock_global().flush(0, false);
        assert!(!keyspace.ever_volatile(keyspace.database_at(0)));
        fill(keyspace, 0, |_| Expiry::At(NOW_MS));
        assert_eq!(sweep(keyspace, 1), 300);
    }
}
