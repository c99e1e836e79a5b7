//! Eviction: which keys go when memory is short.
//!
//! Nobody keeps the keys in the order of their use. Instead, for each key that is to go, a few are looked at by chance, as in
//! Valkey: the best candidates ever seen stay in a small [`Pool`], and the best of them goes. Each worker has an
//! [`Evictor`] with a pool of its own, and takes the lock of one partition at a time, while it holds no other: to sample
//! it, and later to drop a key of it. In between the key may have gone or been used, so it is judged again under the lock
//! under which it goes.
//!
//! A candidate is known by the hash of its key alone. Should two keys of one database ever have the same 64 bits, the wrong
//! one of two candidates goes, which is no harm.

use crate::access::Access;
use crate::chance;
use crate::db::{Counters, WEIGHED, discard, tell_of_loss};
use crate::effects::{Effects, EventClass};
use crate::entry::Entry;
use crate::keyspace::{Key, Keyspace};

/// Candidates in a pool.
const POOL: usize = 16;
/// Buckets searched under one lock, at first and at most, where only some keys are candidates.
const BUCKETS_MIN: usize = 8;
const BUCKETS_MAX: usize = 512;
/// Partitions drawn in search of one with candidates, before all are gone through.
const DRAWS_MAX: usize = 4;
/// Partitions of one database that are sampled for one key to go.
const PARTITIONS_MAX: usize = 4;
/// For so many keys to go, a database that had no candidates is left alone, unless the others have none either.
const REST: u8 = 64;
/// Janitor's backlog, in bytes, beyond which what is evicted is freed at once: who writes must not outrun it.
const BACKLOG_MAX: usize = 16 << 20;

/// Which keys may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// Those with an expiry.
    Volatile,
}

/// Which of them go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those whose last use is longest ago.
    LeastRecent,
    /// Those used least often.
    LeastFrequent,
    /// Those that expire soonest.
    SoonestToExpire,
    /// Any.
    Random,
}

/// `maxmemory-policy`, where there is eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which keys may go.
    pub scope: Scope,
    /// Which of them go first.
    pub order: Order,
}

impl Policy {
    /// How good a candidate an entry is: the more the better. Ranks made at different times can be compared.
    fn rank(&self, entry: &Entry<'_>, access: &Access, now_ms: i64) -> u64 {
        match self.order {
            Order::LeastRecent => {
                let last_used_s = now_ms / 1000 - access.idle_seconds(entry.clock()) as i64;
                u64::MAX.wrapping_sub(last_used_s as u64)
            }
            Order::LeastFrequent => u64::from(u8::MAX) - u64::from(access.frequency(entry.clock())),
            Order::SoonestToExpire => u64::MAX - entry.expiry().unwrap_or(i64::MAX).max(0) as u64,
            Order::Random => 0,
        }
    }

    fn covers(&self, entry: &Entry<'_>) -> bool {
        self.scope == Scope::All || entry.is_volatile()
    }
}

/// A key that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    /// See [`Policy::rank`].
    rank: u64,
    /// Number of its database.
    database: usize,
    /// The hash of the key.
    hash: u64,
}

/// The best candidates seen, the best of them last.
#[derive(Default)]
struct Pool(Vec<Candidate>);

impl Pool {
    /// Whether a candidate of this rank would be taken.
    fn wants(&self, rank: u64) -> bool {
        self.0.len() < POOL || self.0.first().is_none_or(|worst| rank > worst.rank)
    }

    /// Takes a candidate, if it is good enough, in the place of what was known of it or of the worst.
    fn offer(&mut self, candidate: Candidate) {
        let same = |known: &Candidate| (known.database, known.hash) == (candidate.database, candidate.hash);
        if let Some(known) = self.0.iter().position(same) {
            self.0.remove(known);
        } else if self.0.len() == POOL {
            if !self.wants(candidate.rank) {
                return;
            }
            self.0.remove(0);
        }
        let place = self.0.partition_point(|other| other.rank < candidate.rank);
        self.0.insert(place, candidate);
    }

    fn take_best(&mut self) -> Option<Candidate> {
        self.0.pop()
    }

    /// The rank of the best.
    fn best_rank(&self) -> Option<u64> {
        self.0.last().map(|best| best.rank)
    }
}

/// What one key's eviction is given.
pub struct Pass<'a> {
    /// The keyspace. The caller is in a batch, and holds no locks.
    pub keyspace: &'static Keyspace,
    /// Which keys go.
    pub policy: Policy,
    /// `maxmemory-samples`: how many are looked at in each database for one to go.
    pub samples: usize,
    /// `lazyfree-lazy-eviction`: whether large values are freed in the background.
    pub lazy: bool,
    /// Present Unix time in milliseconds.
    pub now_ms: i64,
    /// What access clocks mean.
    pub access: &'a Access,
    /// Where evicted keys are counted.
    pub counters: &'a Counters,
    /// Scratch space.
    pub effects: &'a mut Effects,
    /// Which events are heard.
    pub heard: EventClass,
}

/// What became of a candidate.
enum Verdict {
    /// It is gone, by us, and so much memory will be free.
    Evicted(usize),
    /// It is no candidate any more.
    Lapsed,
    /// There are better ones: it was used meanwhile, and has this rank now.
    Spared(u64),
}

/// See the module's documentation.
pub struct Evictor {
    pool: Pool,
    /// The policy that the pool's ranks belong to.
    policy: Option<Policy>,
    /// State of the random numbers.
    random: u64,
    /// The database to be looked at next, where one key is as good as another.
    next_database: usize,
    /// By database: for how many keys more it is left alone.
    rests: Vec<u8>,
    /// The name of the key that goes.
    name: Vec<u8>,
}

impl Evictor {
    /// One whose choices by chance follow from `seed`.
    pub fn new(seed: u64) -> Self {
        // The generator needs any state but zero, and one whose bits are mixed.
        let random = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Evictor { pool: Pool::default(), policy: None, random, next_database: 0, rests: Vec::new(), name: Vec::new() }
    }

    /// Evicts a key; about how many bytes that frees. If no key may go, frees the empty tables that commands left
    /// behind; `None` if there are none of these either.
    pub fn evict(&mut self, mut pass: Pass<'_>) -> Option<usize> {
        if self.policy != Some(pass.policy) {
            self.policy = Some(pass.policy);
            self.pool = Pool::default();
        }
        self.rests.resize(pass.keyspace.databases(), 0);
        loop {
            if !self.find_candidates(&pass) {
                let bytes = release_empty_tables(pass.keyspace);
                return (bytes > 0).then_some(bytes);
            }
            while let Some(candidate) = self.pool.take_best() {
                match self.judge(&mut pass, candidate) {
                    Verdict::Evicted(bytes) => return Some(bytes),
                    Verdict::Lapsed => {}
                    Verdict::Spared(rank) => self.pool.offer(Candidate { rank, ..candidate }),
                }
            }
        }
    }

    /// Adds to the pool; false when there is no key that may go.
    fn find_candidates(&mut self, pass: &Pass<'_>) -> bool {
        if self.look_around(pass) {
            return true;
        }
        // Those that rested may have got keys meanwhile.
        let rested = self.rests.iter().any(|rest| *rest > 0);
        self.rests.fill(0);
        rested && self.look_around(pass)
    }

    fn look_around(&mut self, pass: &Pass<'_>) -> bool {
        let mut found = false;
        for _ in 0..pass.keyspace.databases() {
            self.next_database = (self.next_database + 1) % pass.keyspace.databases();
            let number = self.next_database;
            if self.rests[number] > 0 {
                self.rests[number] -= 1;
            } else if self.sample_database(pass, number) {
                found = true;
                if pass.policy.order == Order::Random {
                    break;
                }
            } else {
                self.rests[number] = REST;
            }
        }
        found
    }

    /// Looks at some keys of a database; false when it has none that may go.
    fn sample_database(&mut self, pass: &Pass<'_>, number: usize) -> bool {
        let database = pass.keyspace.database_at(number);
        if !pass.keyspace.is_made(database)
            || (pass.policy.scope == Scope::Volatile && !pass.keyspace.ever_volatile(database))
        {
            return false;
        }
        let wanted = if pass.policy.order == Order::Random { 1 } else { pass.samples };
        let mut seen = 0;
        for _ in 0..PARTITIONS_MAX {
            let Some(partition) = self.draw_partition(pass, database) else { break };
            seen += self.sample_partition(pass, number, partition, wanted - seen);
            if seen >= wanted {
                break;
            }
        }
        seen > 0
    }

    /// A partition of a database that has keys which may go.
    fn draw_partition(&mut self, pass: &Pass<'_>, database: usize) -> Option<usize> {
        let partitions = pass.keyspace.partitions();
        let has_candidates = |partition: &usize| match pass.policy.scope {
            Scope::All => pass.keyspace.partition_len(database, *partition) > 0,
            Scope::Volatile => pass.keyspace.partition_volatile(database, *partition) > 0,
        };
        let drawn = (0..DRAWS_MAX).map(|_| chance::below(self.draw(), partitions)).find(has_candidates);
        drawn.or_else(|| {
            let first = chance::below(self.draw(), partitions);
            (first..partitions).chain(0..first).find(has_candidates)
        })
    }

    /// Offers keys of a partition to the pool, `wanted` of them or somewhat more, if there are so many near a place chosen by
    /// chance; how many it looked at.
    fn sample_partition(&mut self, pass: &Pass<'_>, number: usize, partition: usize, wanted: usize) -> usize {
        let Policy { scope, order } = pass.policy;
        let address = pass.keyspace.address_of(pass.keyspace.database_at(number), partition);
        if order == Order::Random && scope == Scope::All {
            // A partition that a script has is passed over.
            let Some(locked) = pass.keyspace.lock_one_while(address, || false) else { return 0 };
            let entry = locked.partition(address).random(|| self.draw());
            let hash = entry.map(|entry| pass.keyspace.key(entry.key()).hash);
            hash.into_iter().for_each(|hash| self.pool.offer(Candidate { rank: 0, database: number, hash }));
            return usize::from(hash.is_some());
        }
        let (mut seen, mut buckets) = (0, BUCKETS_MIN);
        let start = self.draw();
        let (mut position, mut wrapped) = (start, false);
        while seen == 0 {
            let Some(locked) = pass.keyspace.lock_one_while(address, || false) else { return seen };
            let volatile = scope == Scope::Volatile;
            let next = locked.partition(address).sample(position, buckets, wanted, volatile, |entry| {
                seen += 1;
                let rank = pass.policy.rank(&entry, pass.access, pass.now_ms);
                if self.pool.wants(rank) {
                    let hash = pass.keyspace.key(entry.key()).hash;
                    self.pool.offer(Candidate { rank, database: number, hash });
                }
            });
            // Once around, wherever it began.
            match next {
                Some(next) if wrapped && next > start => break,
                Some(next) => position = next,
                None if wrapped => break,
                None => (position, wrapped) = (0, true),
            }
            buckets = (buckets * 2).min(BUCKETS_MAX);
        }
        seen
    }

    /// Evicts a candidate if it still is one, and as good as the next best.
    fn judge(&mut self, pass: &mut Pass<'_>, candidate: Candidate) -> Verdict {
        let Candidate { database: number, hash, .. } = candidate;
        let keyspace = pass.keyspace;
        let address = keyspace.address_of_hash(number, hash);
        let Some(mut locked) = keyspace.lock_one_while(address, || false) else { return Verdict::Lapsed };
        let partition = locked.partition(address);
        let Some(place) = partition.find_hash(hash) else { return Verdict::Lapsed };
        let entry = partition.entry(place);
        if !pass.policy.covers(&entry) {
            return Verdict::Lapsed;
        }
        let rank = pass.policy.rank(&entry, pass.access, pass.now_ms);
        if rank < candidate.rank && self.pool.best_rank().is_some_and(|next| next > rank) {
            return Verdict::Spared(rank);
        }
        self.name.clear();
        self.name.extend_from_slice(entry.key());
        let (key, bytes) = (Key { bytes: &self.name, hash }, entry.memory(WEIGHED));
        let lazy = pass.lazy && keyspace.lazy_free.pending_bytes() < BACKLOG_MAX;
        let effects = &mut *pass.effects;
        effects.begin(keyspace.log.has_readers(), pass.heard | keyspace.tracking.heard(), number);
        locked.with_partition(address, |partition| {
            discard(keyspace, partition, place, lazy);
            tell_of_loss(partition, effects, number, key);
            // Where partitions have few keys each, tables take more than the keys.
            partition.release_empty_table();
        });
        pass.counters.evicted.add(1);
        effects.evicted(key, pass.lazy);
        effects.commit(&keyspace.log, kvick_resp::Args::new(&[], &[], &[]));
        Verdict::Evicted(bytes)
    }

    /// A random number: xorshift64*.
    fn draw(&mut self) -> u64 {
        let mut x = self.random;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Frees the tables of partitions without keys, and returns their size in bytes. Locked partitions are skipped.
fn release_empty_tables(keyspace: &'static Keyspace) -> usize {
    let mut bytes = 0;
    let databases = (0..keyspace.databases()).map(|number| keyspace.database_at(number));
    for database in databases.filter(|database| keyspace.is_made(*database)) {
        for partition in (0..keyspace.partitions()).filter(|at| keyspace.partition_len(database, *at) == 0) {
            let address = keyspace.address_of(database, partition);
            let locked = keyspace.try_lock_one(address);
            bytes += locked.map_or(0, |mut locked| locked.partition_mut(address).release_empty_table());
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
