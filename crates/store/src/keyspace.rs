//! Databases, partitions and the locks on them.
//!
//! A database is an array of partitions. Before a command runs, the dispatcher locks the
//! partitions of all its keys, in ascending order of (database, partition), or acquires
//! the global lock. The result, [`Locked`], gives access through [`Db`](crate::db::Db).
//!
//! **Invariants**: A partition's data is accessed only under its lock, under the global lock, or by
//! an [exclusive](crate::global_lock) bias owner. A thread never blocks on a partition lock while it
//! holds another, so there is no deadlock: to lock several, it releases all, waits for the contended
//! one, and retries. The one exception is a script, which discovers the keys it needs while it runs
//! and may wait for [more partitions](Locked::add); only one script does so at a time.

mod hidden;
mod locked;
mod observers;
mod slots;

use crate::global_lock::{Exclusive, GlobalLock};
use crate::hash::{Key, KeyHasher};
use crate::lazy_free::LazyFree;
use crate::log::WriteLog;
use crate::partition::Partition;
use crate::table::{prefetch_address, prefetch_for_write};
use crate::tracking::{Readers, Tracking};
use hidden::Hidden;
use locked::Held;
pub use locked::Locked;
use parking_lot::RawMutex;
use parking_lot::lock_api::{RawMutex as _, RawMutexTimed as _};
use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// How often a thread that waits for a partition lock checks whether to give up.
const CHECK_INTERVAL: Duration = Duration::from_micros(200);

/// How long [`Keyspace::yield_to_waiters`] waits for threads queued on
/// a lock: the number of checks, and the pause between them.
const YIELD_CHECKS: (usize, Duration) = (100, Duration::from_micros(50));

/// All databases of a server, and a staging database for each: initially empty and not
/// visible to clients, filled by a full sync or load and then exchanged with the live one.
pub struct Keyspace {
    /// Also referred to by each partition.
    hasher: &'static KeyHasher,
    /// The databases, and as many staging databases.
    databases: Box<[Database]>,
    /// Maps a database number to an index in `databases`; SWAPDB exchanges
    /// two. Staging databases have the numbers after those of the databases.
    numbers: Box<[AtomicUsize]>,
    /// How often the contents of each database number were discarded as a whole.
    flushes: Box<[AtomicU32]>,
    partitions: usize,
    /// The global lock.
    pub global_lock: GlobalLock,
    /// Every effect on the keyspace, in order.
    pub log: WriteLog,
    /// Frees large values in the background.
    pub lazy_free: LazyFree,
    /// Counts of the keys that clients have cached.
    pub tracking: Tracking,
    /// Partitions whose keys are hidden.
    hidden: Hidden,
    /// Partitions whose keys are about to be deleted.
    doomed: Hidden,
}

#[derive(Default)]
struct Database {
    slots: OnceLock<&'static [PartitionSlot]>,
    /// Set when a partition gets its first key with an expiry, or its first
    /// hash with an expiring field; cleared when the database is flushed.
    ever_volatile: AtomicBool,
}

/// A partition with its lock, and its sizes, which can be read without the lock.
///
/// Every command that takes the lock writes its cache line, and so takes the line from the core that had
/// it. Fields that only some commands write are on separate lines, and are written only when they change.
#[repr(C, align(128))]
pub(crate) struct PartitionSlot {
    lock: RawMutex,
    /// Number of threads that wait for the lock, and how many times one of them has acquired it.
    waiting: AtomicU32,
    acquisitions: AtomicU32,
    len: AtomicUsize,
    volatile: AtomicUsize,
    volatile_hashes: AtomicUsize,
    partition: CacheAligned<UnsafeCell<Partition>>,
}

/// Alignment that puts a value on its own cache lines.
#[repr(align(128))]
struct CacheAligned<T>(T);

impl PartitionSlot {
    #[inline]
    fn partition(&self) -> *mut Partition {
        self.partition.0.get()
    }

    /// Locks the partition; returns false if `keep_waiting`, called periodically, returned false first.
    fn lock_while(&self, keep_waiting: impl Fn() -> bool) -> bool {
        if self.lock.try_lock() {
            return true;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let locked = loop {
            if self.lock.try_lock_for(CHECK_INTERVAL) {
                self.acquisitions.fetch_add(1, Ordering::Relaxed);
                break true;
            }
            if !keep_waiting() {
                break false;
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        locked
    }

    /// Prefetches the lock and the partition's own fields.
    #[inline]
    fn prefetch(&self) {
        prefetch_for_write(&self.lock);
        let fields = self.partition().cast_const().cast::<u8>();
        prefetch_address(fields);
        prefetch_address(fields.wrapping_add(64));
    }
}

/// In cluster mode there are 16,384 of them in each database that is in use: 4 MiB.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<PartitionSlot>() == 256);

// SAFETY: the partition is reached only through `Locked`, which holds its lock or the global lock, or is exclusive.
unsafe impl Sync for PartitionSlot {}

/// One worker's share of the partitions: those whose index, counted through all databases, has the remainder `worker`
/// when divided by `workers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of the worker, from 0 on.
    pub worker: usize,
    /// Number of workers.
    pub workers: usize,
}

/// A partition's place in the lock order: database in the high half, partition in the low half of one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Address(u64);

impl Address {
    fn database(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn partition(self) -> usize {
        self.0 as u32 as usize
    }
}

impl Keyspace {
    /// Creates `databases` databases of `partitions` partitions each (a power of two). A server has one keyspace,
    /// which lives as long as the process, so that locks and log followers can hold `'static` references to it.
    pub fn leak(databases: usize, partitions: usize, hasher: KeyHasher) -> &'static Self {
        assert!(partitions.is_power_of_two(), "partitions are chosen by masking the hash");
        Box::leak(Box::new(Keyspace {
            hasher: Box::leak(Box::new(hasher)),
            databases: (0..2 * databases).map(|_| Database::default()).collect(),
            numbers: (0..2 * databases).map(AtomicUsize::new).collect(),
            flushes: (0..2 * databases).map(|_| AtomicU32::new(0)).collect(),
            partitions,
            global_lock: GlobalLock::default(),
            log: WriteLog::default(),
            lazy_free: LazyFree::start(),
            tracking: Tracking::default(),
            hidden: Hidden::new(partitions),
            doomed: Hidden::new(partitions),
        }))
    }

    /// Number of databases.
    pub fn databases(&self) -> usize {
        self.numbers.len() / 2
    }

    /// The number of a database's staging database, valid for filling and flushing it.
    pub fn staging(&self, number: usize) -> usize {
        self.databases() + number
    }

    /// Number of databases and staging databases: the upper bound for the argument of
    /// [`is_allocated`](Self::is_allocated).
    pub(crate) fn databases_total(&self) -> usize {
        self.databases.len()
    }

    /// Number of partitions of each database.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// A key with its hash.
    #[inline]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, hash: self.hasher.hash(bytes) }
    }

    /// The partition of every database that keys with this hash are in.
    #[inline]
    pub(crate) fn partition_of(&self, hash: u64) -> usize {
        hash as usize & (self.partitions - 1)
    }

    /// The index in `databases` of database number `number`.
    #[inline]
    pub(crate) fn database_at(&self, number: usize) -> usize {
        self.numbers[number].load(Ordering::Relaxed)
    }

    /// How often the contents of a database were discarded as a whole: by FLUSHDB, or because another data set was
    /// loaded.
    #[inline]
    pub fn flushes(&self, number: usize) -> u32 {
        self.flushes[number].load(Ordering::Relaxed)
    }

    /// Keys in a database, counted without locks.
    pub fn len(&self, number: usize) -> usize {
        self.sum(number, |slot| &slot.len)
    }

    /// True when the database has no keys.
    pub fn is_empty(&self, number: usize) -> bool {
        let slots = self.databases[self.database_at(number)].slots.get();
        slots.is_none_or(|slots| slots.iter().all(|slot| slot.len.load(Ordering::Relaxed) == 0))
    }

    /// Keys with an expiry in a database, counted without locks.
    pub fn volatile(&self, number: usize) -> usize {
        self.sum(number, |slot| &slot.volatile)
    }

    /// Hashes that have fields with an expiry in a database, counted without locks.
    pub fn volatile_hashes(&self, number: usize) -> usize {
        self.sum(number, |slot| &slot.volatile_hashes)
    }

    fn sum(&self, number: usize, of: impl Fn(&PartitionSlot) -> &AtomicUsize) -> usize {
        let slots = self.databases[self.database_at(number)].slots.get();
        let all = slots.map_or(0, |slots| slots.iter().map(|slot| of(slot).load(Ordering::Relaxed)).sum());
        if !self.hidden.is_any() && !self.doomed.is_any() {
            return all;
        }
        let hidden = |slots: &&[PartitionSlot]| -> usize {
            let hidden = (0..self.partitions).filter(|partition| self.is_hidden(*partition));
            hidden.map(|partition| of(&slots[partition]).load(Ordering::Relaxed)).sum()
        };
        all.saturating_sub(slots.map_or(0, hidden))
    }

    /// How many times a thread has acquired a partition lock that another one held, counted without locks.
    pub fn lock_waits(&self) -> u64 {
        let slots = self.databases.iter().filter_map(|database| database.slots.get());
        slots.flat_map(|slots| slots.iter()).map(|slot| u64::from(slot.acquisitions.load(Ordering::Relaxed))).sum()
    }

    /// Keys in one partition, read without its lock; 0 if they are hidden.
    pub(crate) fn partition_len(&self, database: usize, partition: usize) -> usize {
        if self.is_hidden(partition) { 0 } else { self.partition_len_with_hidden(database, partition) }
    }

    /// Keys in one partition, read without its lock, also if they are hidden.
    pub(crate) fn partition_len_with_hidden(&self, database: usize, partition: usize) -> usize {
        let slots = self.databases[database].slots.get();
        slots.map_or(0, |slots| slots[partition].len.load(Ordering::Relaxed))
    }

    /// Keys with an expiry in one partition, read without its lock; 0 if they are hidden.
    pub(crate) fn partition_volatile(&self, database: usize, partition: usize) -> usize {
        if self.is_hidden(partition) {
            return 0;
        }
        let slots = self.databases[database].slots.get();
        slots.map_or(0, |slots| slots[partition].volatile.load(Ordering::Relaxed))
    }

    /// Hashes that have fields with an expiry in one partition, read without its lock; 0 if they are hidden.
    pub(crate) fn partition_volatile_hashes(&self, database: usize, partition: usize) -> usize {
        if self.is_hidden(partition) {
            return 0;
        }
        let slots = self.databases[database].slots.get();
        slots.map_or(0, |slots| slots[partition].volatile_hashes.load(Ordering::Relaxed))
    }

    /// False if no key and no hash field of a database has had an expiry since the last flush. Read without locks.
    pub(crate) fn ever_volatile(&self, database: usize) -> bool {
        self.databases[database].ever_volatile.load(Ordering::Relaxed)
    }

    /// Whether the partitions of a database have been created.
    pub(crate) fn is_allocated(&self, database: usize) -> bool {
        self.databases[database].slots.get().is_some()
    }

    /// The partitions of a database, created on first use.
    #[inline]
    pub(crate) fn slots(&self, database: usize) -> &[PartitionSlot] {
        match self.databases[database].slots.get() {
            Some(slots) => slots,
            None => self.create_slots(database),
        }
    }

    #[cold]
    fn create_slots(&self, database: usize) -> &[PartitionSlot] {
        let slot = || PartitionSlot {
            lock: RawMutex::INIT,
            waiting: AtomicU32::new(0),
            acquisitions: AtomicU32::new(0),
            len: AtomicUsize::new(0),
            volatile: AtomicUsize::new(0),
            volatile_hashes: AtomicUsize::new(0),
            partition: CacheAligned(UnsafeCell::new(Partition::new(self.hasher))),
        };
        self.databases[database].slots.get_or_init(|| allocate_slots(self.partitions, slot))
    }

    #[inline]
    fn slot(&self, address: Address) -> &PartitionSlot {
        &self.slots(address.database())[address.partition()]
    }

    /// The partition of a key in database `number`. Valid until the next SWAPDB, which no batch overlaps.
    #[inline]
    pub fn address(&self, number: usize, key: Key<'_>) -> Address {
        self.address_of_hash(number, key.hash)
    }

    /// Like [`address`](Self::address), for a hash.
    #[inline]
    pub fn address_of_hash(&self, number: usize, hash: u64) -> Address {
        self.address_of(self.database_at(number), self.partition_of(hash))
    }

    #[inline]
    pub(crate) fn address_of(&self, database: usize, partition: usize) -> Address {
        Address((database as u64) << 32 | partition as u64)
    }

    /// Prefetches the first memory that a lookup of this hash will access: the key's bucket if the caller is exclusive
    /// and has few partitions, which stay in the cache, else its partition's lock and fields.
    #[inline]
    pub fn prefetch_bucket(&self, number: usize, hash: u64, exclusive: Option<&Exclusive>) {
        let slots = self.slots(self.database_at(number));
        match exclusive {
            Some(_) if !self.hasher.is_by_slot() => {
                self.peek_partition(slots, hash, exclusive, |partition| partition.table().prefetch_bucket(hash))
            }
            // With thousands of partitions, their own fields are rarely in the cache.
            _ => slots[self.partition_of(hash)].prefetch(),
        }
    }

    /// Prefetches the memory of keys that will be looked up soon: first their buckets, then their entries.
    pub fn prefetch(&self, number: usize, hashes: &[u64], exclusive: Option<&Exclusive>) {
        hashes.iter().for_each(|hash| self.prefetch_bucket(number, *hash, exclusive));
        self.prefetch_entries(number, hashes, exclusive);
    }

    /// Prefetches the entries of keys that were passed to [`prefetch_bucket`](Self::prefetch_bucket),
    /// and their buckets if that did not. Skips keys whose partition is locked by another thread.
    #[inline]
    pub fn prefetch_entries(&self, number: usize, hashes: &[u64], exclusive: Option<&Exclusive>) {
        let slots = self.slots(self.database_at(number));
        if self.hasher.is_by_slot() {
            for hash in hashes {
                self.peek_partition(slots, *hash, exclusive, |partition| partition.table().prefetch_segments());
            }
        }
        if exclusive.is_none() || self.hasher.is_by_slot() {
            for hash in hashes {
                self.peek_partition(slots, *hash, exclusive, |partition| partition.table().prefetch_bucket(*hash));
            }
        }
        for hash in hashes {
            self.peek_partition(slots, *hash, exclusive, |partition| partition.table().prefetch_element(*hash));
        }
    }

    #[inline]
    fn peek_partition(
        &self,
        slots: &[PartitionSlot],
        hash: u64,
        exclusive: Option<&Exclusive>,
        look: impl FnOnce(&Partition),
    ) {
        let slot = &slots[self.partition_of(hash)];
        if exclusive.is_some() {
            // SAFETY: no other participant is in a batch, and this thread
            // holds no exclusive reference to a partition here.
            look(unsafe { &*slot.partition() });
        } else if slot.lock.try_lock() {
            // SAFETY: locked just now, and unlocked right after `look`.
            unsafe {
                look(&*slot.partition());
                slot.lock.unlock();
            }
        }
    }

    /// Locks nothing, for commands without keys.
    #[inline]
    pub fn lock_nothing(&'static self) -> Locked {
        Locked { keyspace: self, held: Held::Nothing }
    }

    /// Gives access to all partitions without locks, while no other participant
    /// is in a batch. The caller must stay exclusive until the result is dropped.
    #[inline]
    pub fn lock_nothing_alone(&'static self, _: &Exclusive) -> Locked {
        Locked { keyspace: self, held: Held::AllExclusive }
    }

    /// Locks one partition. Inside a batch, use a variant that can give up: blocking there is safe
    /// only if no thread that holds the partition [adds the global lock](Locked::add_global).
    #[inline]
    pub fn lock_one(&'static self, address: Address) -> Locked {
        let slot = self.slot(address);
        slot.lock.lock();
        Locked { keyspace: self, held: Held::One(address, slot) }
    }

    /// Chooses some tracked key at random, removes its readers, and returns both; `None`
    /// if no unlocked partition has any. The caller is in a batch and holds no locks.
    pub fn evict_tracked_key(&'static self, mut random: impl FnMut() -> u64) -> Option<(Box<[u8]>, Readers)> {
        let all = self.databases.len() * self.partitions;
        let start = crate::chance::below(random(), all);
        for at in (start..all).chain(0..start) {
            let database = at / self.partitions;
            if !self.is_allocated(database) || self.tracking.keys() == 0 {
                continue;
            }
            let address = self.address_of(database, at % self.partitions);
            let forgotten =
                self.try_lock_one(address).and_then(|mut locked| locked.evict_tracked_key(address, random()));
            if forgotten.is_some() {
                return forgotten;
            }
        }
        None
    }

    /// Locks one partition, unless another thread holds it.
    #[inline]
    pub fn try_lock_one(&'static self, address: Address) -> Option<Locked> {
        let slot = self.slot(address);
        slot.lock.try_lock().then(|| Locked { keyspace: self, held: Held::One(address, slot) })
    }

    /// Locks several partitions, each once.
    pub fn lock_all(&'static self, addresses: Vec<Address>) -> Locked {
        let mut addresses = addresses;
        loop {
            match self.lock_all_while(addresses, || true) {
                Ok(locked) => return locked,
                Err(same) => addresses = same,
            }
        }
    }

    /// Locks several partitions, each once. If `keep_waiting`, called periodically while another
    /// thread holds one of them, returns false, releases all and returns the addresses.
    pub fn lock_all_while(
        &'static self,
        mut addresses: Vec<Address>,
        keep_waiting: impl Fn() -> bool,
    ) -> Result<Locked, Vec<Address>> {
        addresses.sort_unstable();
        addresses.dedup();
        // Index of the contended partition, which is waited for and locked before the others.
        let mut first: Option<usize> = None;
        loop {
            if let Some(first) = first
                && !self.slot(addresses[first]).lock_while(&keep_waiting)
            {
                return Err(addresses);
            }
            let others = (0..addresses.len()).filter(|at| Some(*at) != first);
            let taken = others.clone().find(|at| !self.slot(addresses[*at]).lock.try_lock());
            let Some(taken) = taken else {
                return Ok(Locked { keyspace: self, held: Held::Some(addresses.into_boxed_slice()) });
            };
            for at in others.take_while(|at| *at != taken).chain(first) {
                // SAFETY: locked just now.
                unsafe { self.slot(addresses[at]).lock.unlock() };
            }
            first = Some(taken);
        }
    }

    /// Locks one partition; gives up if `keep_waiting`, called
    /// periodically while another thread holds it, returns false.
    pub fn lock_one_while(&'static self, address: Address, keep_waiting: impl Fn() -> bool) -> Option<Locked> {
        let slot = self.slot(address);
        slot.lock_while(keep_waiting).then(|| Locked { keyspace: self, held: Held::One(address, slot) })
    }

    /// Waits briefly until one of the threads queued on a partition's lock has acquired
    /// it, if there are any. For a thread that has just released the lock, holds no other
    /// and will soon take it again: under load, waiting threads need some time to wake.
    pub(crate) fn yield_to_waiters(&self, address: Address) {
        let slot = self.slot(address);
        let (acquisitions, (looks, apart)) = (slot.acquisitions.load(Ordering::Relaxed), YIELD_CHECKS);
        for _ in 0..looks {
            if slot.waiting.load(Ordering::Relaxed) == 0 || slot.acquisitions.load(Ordering::Relaxed) != acquisitions {
                return;
            }
            std::thread::sleep(apart);
        }
    }

    /// Acquires the global lock; gives up if `keep_waiting` returns false
    /// while others hold it. The calling thread must not be in a batch.
    pub fn lock_global_while(&'static self, keep_waiting: impl Fn() -> bool) -> Option<Locked> {
        Some(Locked { keyspace: self, held: Held::GlobalLock { _guard: self.global_lock.take_while(keep_waiting)? } })
    }

    /// Acquires the global lock. The calling thread must not be in a batch.
    pub fn lock_global(&'static self) -> Locked {
        Locked { keyspace: self, held: Held::GlobalLock { _guard: self.global_lock.take() } }
    }
}

/// Allocates the slots of a database, which are never freed.
///
/// They come from the system's allocator, because `maxmemory` limits what the global allocator has allocated, and
/// eviction cannot free slots. Their size depends only on the number of workers: 1.6 MB with four of them. If they
/// were counted, the first command in a database would cause eviction, or refusal of writes, to make room for its
/// locks.
fn allocate_slots(count: usize, slot: impl Fn() -> PartitionSlot) -> &'static [PartitionSlot] {
    let Ok(layout) = Layout::array::<PartitionSlot>(count) else {
        unreachable!("a database has some thousand partitions")
    };
    // SAFETY: the layout is not empty, as there is at least one partition.
    let Some(slots) = NonNull::new(unsafe { System.alloc(layout) }.cast::<PartitionSlot>()) else {
        handle_alloc_error(layout)
    };
    // SAFETY: the memory has the size and alignment of that many slots, each is initialised before the slice is made,
    // and the memory is never freed.
    unsafe {
        (0..count).for_each(|at| slots.add(at).write(slot()));
        std::slice::from_raw_parts(slots.as_ptr(), count)
    }
}
