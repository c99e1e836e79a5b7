//! Eviction: selects and deletes keys when memory exceeds the limit.
//!
//! Keys are not kept in the order of their use. Instead, each eviction samples a few random keys,
//! as in Valkey: the best candidates so far stay in a small [`Pool`], and the best of them is
//! evicted. Each worker has an [`Evictor`] with its own pool. It locks one partition at a time,
//! while it holds no other: to sample it, and later to delete a key. In between, the key may have
//! been deleted or used, so it is evaluated again under the lock under which it is deleted.
//!
//! A candidate is identified only by the hash of its key. If two keys of one database
//! have the same 64-bit hash, the wrong one of the two may be evicted, which is harmless.

use crate::access::Access;
use crate::chance;
use crate::db::{Counters, discard, notify_reclaimed};
use crate::effects::{Effects, EventClass};
use crate::entry::Entry;
use crate::hash::Key;
use crate::keyspace::Keyspace;
use crate::memory::WEIGHED;

/// Number of candidates in a pool.
const POOL: usize = 16;
/// Initial and maximum number of buckets searched per lock acquisition.
const BUCKETS_MIN: usize = 8;
const BUCKETS_MAX: usize = 512;
/// Number of partitions drawn at random in search of candidates before all are tried.
const DRAWS_MAX: usize = 4;
/// Maximum number of partitions of one database that are sampled per evicted key.
const PARTITIONS_MAX: usize = 4;
/// Number of evictions for which a database without candidates is skipped, unless the others have none either.
const SKIPPED_EVICTIONS: u8 = 64;
/// Lazy-free backlog, in bytes, above which evicted values are freed synchronously: writers must not outrun it.
const BACKLOG_MAX: usize = 16 << 20;

/// Which keys may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All keys.
    All,
    /// Only keys with an expiry.
    Volatile,
}

/// Which of them go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least recently used.
    LeastRecent,
    /// The least frequently used.
    LeastFrequent,
    /// Those that expire soonest.
    SoonestToExpire,
    /// Random ones.
    Random,
}

/// A `maxmemory-policy` other than `noeviction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which keys may be evicted.
    pub scope: Scope,
    /// Which of them are evicted first.
    pub order: Order,
}

impl Policy {
    /// The rank of an entry as a candidate: higher is evicted
    /// earlier. Ranks computed at different times are comparable.
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

/// A key that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    /// See [`Policy::rank`].
    rank: u64,
    /// Number of its database.
    database: usize,
    /// The hash of the key.
    hash: u64,
}

/// The best candidates so far, the best last.
#[derive(Default)]
struct Pool(Vec<Candidate>);

impl Pool {
    /// Whether a candidate of this rank would be accepted.
    fn accepts(&self, rank: u64) -> bool {
        self.0.len() < POOL || self.0.first().is_none_or(|worst| rank > worst.rank)
    }

    /// Adds a candidate if it is good enough, replacing its own older entry or the worst one.
    fn offer(&mut self, candidate: Candidate) {
        let same = |known: &Candidate| (known.database, known.hash) == (candidate.database, candidate.hash);
        if let Some(known) = self.0.iter().position(same) {
            self.0.remove(known);
        } else if self.0.len() == POOL {
            if !self.accepts(candidate.rank) {
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

    /// The rank of the best candidate.
    fn best_rank(&self) -> Option<u64> {
        self.0.last().map(|best| best.rank)
    }
}

/// The parameters of one eviction.
pub struct Pass<'a> {
    /// The keyspace. The caller is in a batch, and holds no locks.
    pub keyspace: &'static Keyspace,
    /// Which keys are evicted.
    pub policy: Policy,
    /// `maxmemory-samples`: number of keys sampled in each database per eviction.
    pub samples: usize,
    /// `lazyfree-lazy-eviction`: whether large values are freed in the background.
    pub lazy: bool,
    /// Current Unix time in milliseconds.
    pub now_ms: i64,
    /// Interprets access clocks.
    pub access: &'a Access,
    /// Where evicted keys are counted.
    pub counters: &'a Counters,
    /// Scratch space.
    pub effects: &'a mut Effects,
    /// Which classes of events are to be fired.
    pub event_mask: EventClass,
}

/// The outcome for a candidate.
enum Verdict {
    /// Evicted, freeing about this many bytes.
    Evicted(usize),
    /// No longer a candidate.
    Lapsed,
    /// Not evicted: it was used in the meantime, now has this rank, and there are better candidates.
    Spared(u64),
}

/// Selects and evicts keys. See the module documentation.
pub struct Evictor {
    pool: Pool,
    /// The policy for which the pool's ranks were computed.
    policy: Option<Policy>,
    /// State of the random number generator.
    random: u64,
    /// The last database that was sampled; the next search starts after it.
    next_database: usize,
    /// By database: the number of evictions for which it is skipped.
    skips: Vec<u8>,
    /// Buffer for the name of the key to evict.
    name: Vec<u8>,
}

impl Evictor {
    /// An evictor whose random choices are determined by `seed`.
    pub fn new(seed: u64) -> Self {
        // The generator's state must not be zero, and its bits should be mixed.
        let random = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Evictor { pool: Pool::default(), policy: None, random, next_database: 0, skips: Vec::new(), name: Vec::new() }
    }

    /// Evicts a key; about how many bytes that frees. If no key may go, frees the empty tables that commands left
    /// behind; `None` if there are none of these either.
    pub fn evict(&mut self, mut pass: Pass<'_>) -> Option<usize> {
        if self.policy != Some(pass.policy) {
            self.policy = Some(pass.policy);
            self.pool = Pool::default();
        }
        self.skips.resize(pass.keyspace.databases(), 0);
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

    /// Adds candidates to the pool; returns false if there are none.
    fn find_candidates(&mut self, pass: &Pass<'_>) -> bool {
        if self.sample_databases(pass) {
            return true;
        }
        // Databases that were skipped may have received keys in the meantime.
        let skipped = self.skips.iter().any(|skip| *skip > 0);
        self.skips.fill(0);
        skipped && self.sample_databases(pass)
    }

    fn sample_databases(&mut self, pass: &Pass<'_>) -> bool {
        let mut found = false;
        for _ in 0..pass.keyspace.databases() {
            self.next_database = (self.next_database + 1) % pass.keyspace.databases();
            let number = self.next_database;
            if self.skips[number] > 0 {
                self.skips[number] -= 1;
            } else if self.sample_database(pass, number) {
                found = true;
                if pass.policy.order == Order::Random {
                    break;
                }
            } else {
                self.skips[number] = SKIPPED_EVICTIONS;
            }
        }
        found
    }

    /// Samples keys of a database; returns false if it has no candidates.
    fn sample_database(&mut self, pass: &Pass<'_>, number: usize) -> bool {
        let database = pass.keyspace.database_at(number);
        if !pass.keyspace.is_allocated(database)
            || (pass.policy.scope == Scope::Volatile && !pass.keyspace.ever_volatile(database))
        {
            return false;
        }
        let sample_size = if pass.policy.order == Order::Random { 1 } else { pass.samples };
        let mut sampled = 0;
        for _ in 0..PARTITIONS_MAX {
            let Some(partition) = self.draw_partition(pass, database) else { break };
            sampled += self.sample_partition(pass, number, partition, sample_size - sampled);
            if sampled >= sample_size {
                break;
            }
        }
        sampled > 0
    }

    /// A random partition of a database that has candidates.
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

    /// Offers about `sample_size` keys of a partition to the pool, from a random position on; returns how many it
    /// sampled.
    fn sample_partition(&mut self, pass: &Pass<'_>, number: usize, partition: usize, sample_size: usize) -> usize {
        let Policy { scope, order } = pass.policy;
        let address = pass.keyspace.address_of(pass.keyspace.database_at(number), partition);
        if order == Order::Random && scope == Scope::All {
            // Skip a partition that a script holds.
            let Some(locked) = pass.keyspace.lock_one_while(address, || false) else { return 0 };
            let entry = locked.partition(address).random(|| self.draw());
            let hash = entry.map(|entry| pass.keyspace.key(entry.key()).hash);
            hash.into_iter().for_each(|hash| self.pool.offer(Candidate { rank: 0, database: number, hash }));
            return usize::from(hash.is_some());
        }
        let (mut sampled, mut buckets) = (0, BUCKETS_MIN);
        let start = self.draw();
        let (mut position, mut wrapped) = (start, false);
        while sampled == 0 {
            let Some(locked) = pass.keyspace.lock_one_while(address, || false) else { return sampled };
            let volatile = scope == Scope::Volatile;
            let next = locked.partition(address).sample(position, buckets, sample_size, volatile, |entry| {
                sampled += 1;
                let rank = pass.policy.rank(&entry, pass.access, pass.now_ms);
                if self.pool.accepts(rank) {
                    let hash = pass.keyspace.key(entry.key()).hash;
                    self.pool.offer(Candidate { rank, database: number, hash });
                }
            });
            // Once around the table, from the starting position.
            match next {
                Some(next) if wrapped && next > start => break,
                Some(next) => position = next,
                None if wrapped => break,
                None => (position, wrapped) = (0, true),
            }
            buckets = (buckets * 2).min(BUCKETS_MAX);
        }
        sampled
    }

    /// Evicts a candidate if it still is one and no other candidate is better.
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
        effects.begin(keyspace.log.has_readers(), pass.event_mask | keyspace.tracking.event_mask(), number);
        locked.with_partition(address, |partition| {
            discard(keyspace, partition, place, lazy);
            notify_reclaimed(partition, effects, number, key);
            // Where partitions have few keys each, tables take more than the keys.
            partition.release_empty_table();
        });
        pass.counters.evicted.add(1);
        effects.evicted(key, pass.lazy);
        effects.commit(&keyspace.log, kvick_resp::Args::new(&[], &[], &[]));
        Verdict::Evicted(bytes)
    }

    /// A random number (xorshift64*).
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
    for database in databases.filter(|database| keyspace.is_allocated(*database)) {
        for partition in (0..keyspace.partitions()).filter(|at| keyspace.partition_len_with_hidden(database, *at) == 0)
        {
            let address = keyspace.address_of(database, partition);
            let locked = keyspace.try_lock_one(address);
            bytes += locked.map_or(0, |mut locked| locked.partition_mut(address).release_empty_table());
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
