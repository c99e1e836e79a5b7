//! Active expiry: dropping keys whose time has come although nobody looks at them.
//!
//! Each worker owns a share of the partitions and works on it a little at a time, within a time budget. It walks the
//! tables' buckets, looking only at words that are marked as having an expiry, and stays with a partition as long as a
//! good part of what it finds has expired. A database in which no key ever had an expiry is passed over as a whole, so
//! where there are none a pass costs next to nothing.

use crate::db::{Counters, discard};
use crate::effects::{Effects, EventClass};
use crate::keyspace::Keyspace;
use std::time::{Duration, Instant};

/// Buckets looked at under one lock.
const BUCKETS_PER_STEP: usize = 32;
/// Steps in a row without an expired key, after which a partition is left for the next pass.
const STALE_STEPS_MAX: u32 = 4;

/// One worker's place in its share of the keyspace.
#[derive(Default)]
pub struct Sweeper {
    next: usize,
    position: u64,
}

/// What one pass is given.
pub struct Pass<'a> {
    /// The keyspace.
    pub keyspace: &'static Keyspace,
    /// This worker's number and the number of workers: partitions are shared out by them.
    pub share: (usize, usize),
    /// Present Unix time in milliseconds.
    pub now_ms: i64,
    /// How long the pass may take.
    pub budget: Duration,
    /// Share of expired keys, in percent of those with an expiry, below which a partition is left alone.
    pub acceptable_percent: u64,
    /// `lazyfree-lazy-expire`: whether large values are freed in the background.
    pub lazy: bool,
    /// Where expired keys are counted.
    pub counters: &'a Counters,
    /// Scratch space.
    pub effects: &'a mut Effects,
    /// Which events are heard.
    pub heard: EventClass,
}

impl Sweeper {
    /// Works through this worker's partitions until all were looked at or the budget is used up. True when the budget
    /// ended it. The caller is in a batch.
    pub fn run(&mut self, mut pass: Pass<'_>) -> bool {
        let (worker, workers) = pass.share;
        let partitions = pass.keyspace.partitions();
        let total = pass.keyspace.databases() * partitions;
        let owned = (total + workers - 1 - worker) / workers;
        let deadline = Instant::now() + pass.budget;
        let mut left = owned;
        while left > 0 {
            self.next %= owned;
            let index = worker + self.next * workers;
            let (number, partition) = (index / partitions, index % partitions);
            let database = pass.keyspace.database_at(number);
            if !pass.keyspace.ever_volatile(database) {
                // On to the first of its partitions that is this worker's in the next database.
                let step = ((number + 1) * partitions - index).div_ceil(workers).min(left);
                (self.next, self.position, left) = (self.next + step, 0, left - step);
                continue;
            }
            if pass.keyspace.partition_volatile(database, partition) > 0
                && !self.sweep(&mut pass, number, partition, deadline)
            {
                return true;
            }
            (self.next, self.position, left) = (self.next + 1, 0, left - 1);
        }
        false
    }

    /// Works on one partition; false when the time is up.
    fn sweep(&mut self, pass: &mut Pass<'_>, number: usize, partition: usize, deadline: Instant) -> bool {
        let mut stale_steps = 0;
        loop {
            let (looked_at, expired) = self.step(pass, number, partition);
            if self.position == 0 {
                return true;
            }
            let worthwhile = looked_at == 0 || expired * 100 > looked_at * pass.acceptable_percent;
            stale_steps = if worthwhile { 0 } else { stale_steps + 1 };
            if stale_steps > STALE_STEPS_MAX {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
    }

    /// Looks at some buckets under the partition's lock: how many keys with an expiry it saw, and dropped.
    fn step(&mut self, pass: &mut Pass<'_>, number: usize, partition: usize) -> (u64, u64) {
        let keyspace = pass.keyspace;
        let address = keyspace.address_of(keyspace.database_at(number), partition);
        let mut locked = keyspace.lock_one(address);
        let (mut looked_at, mut expired) = (0, Vec::new());
        let next = locked.partition(address).scan_volatile(self.position, BUCKETS_PER_STEP, |entry| {
            looked_at += 1;
            if entry.is_expired(pass.now_ms) {
                expired.push(entry.key().to_vec());
            }
        });
        self.position = next.unwrap_or(0);
        for key in &expired {
            let key = keyspace.key(key);
            pass.effects.begin(keyspace.log.followed(), pass.heard, number);
            locked.with_partition(address, |partition| {
                if let Some(place) = partition.find(key) {
                    discard(keyspace, partition, place, pass.lazy);
                    if partition.is_awaited(key.bytes) {
                        pass.effects.awaited_changed(number, key.bytes);
                    }
                }
            });
            pass.counters.expired.add(1);
            pass.effects.expired(key, pass.lazy);
            pass.effects.commit(&keyspace.log, kvick_resp::Args::new(&[], &[], &[]));
        }
        (looked_at, expired.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::db::{Db, Env, Expiry, WhenExpired};
    use crate::hash::KeyHasher;

    const NOW_MS: i64 = 1_700_000_000_000;

    fn fill(keyspace: &'static Keyspace, number: usize, expiry: impl Fn(usize) -> Expiry) {
        let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
        let mut locked = keyspace.lock_world();
        let env = Env {
            now_ms: NOW_MS,
            access: &access,
            touch: true,
            lazy_expire: true,
            when_expired: WhenExpired::Drop,
            counters: &counters,
            effects: &mut effects,
        };
        let mut db = Db::new(&mut locked, number, env);
        for n in 0..300 {
            let name = n.to_string();
            db.set_bytes(db.key(name.as_bytes()), b"v", expiry(n));
        }
    }

    /// One pass of each of `workers` workers; how many keys it dropped.
    fn sweep(keyspace: &'static Keyspace, workers: usize) -> u64 {
        let (counters, mut effects) = (Counters::default(), Effects::default());
        for worker in 0..workers {
            let ran_out = Sweeper::default().run(Pass {
                keyspace,
                share: (worker, workers),
                now_ms: NOW_MS + 1,
                budget: Duration::from_secs(60),
                acceptable_percent: 0,
                lazy: true,
                counters: &counters,
                effects: &mut effects,
                heard: EventClass::empty(),
            });
            assert!(!ran_out);
        }
        counters.expired.get()
    }

    #[test]
    fn the_workers_together_drop_all_that_has_expired() {
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
    fn a_flush_is_forgotten_by_the_next_expiry() {
        let keyspace = Keyspace::leak(2, 4, KeyHasher::with_secret(1, 2));
        fill(keyspace, 0, |_| Expiry::At(NOW_MS));
        keyspace.lock_world().flush(0, false);
        assert!(!keyspace.ever_volatile(keyspace.database_at(0)));
        fill(keyspace, 0, |_| Expiry::At(NOW_MS));
        assert_eq!(sweep(keyspace, 1), 300);
    }
}
