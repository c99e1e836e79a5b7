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

use crate::global_lock::{Exclusive, GlobalGuard, GlobalLock, Participant};
use crate::hash::KeyHasher;
use crate::lazy_free::{Garbage, LazyFree};
use crate::log::WriteLog;
use crate::partition::{Attention, Partition};
use crate::table::{prefetch_address, prefetch_for_write};
use crate::tracking::{Readers, Tracking};
use crate::value::Kind;
use crate::waiting::Waiter;
use crate::watching::{Watch, Watcher};
use parking_lot::RawMutex;
use parking_lot::lock_api::{RawMutex as _, RawMutexFair as _, RawMutexTimed as _};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often a thread that waits for a partition lock checks whether to give up.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// How long [`Keyspace::give_way`] waits for threads queued on
/// a lock: the number of checks, and the pause between them.
const GIVES_WAY: (usize, Duration) = (100, Duration::from_micros(50));

/// A key with its hash, computed once.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// The key itself.
    pub bytes: &'a [u8],
    /// Its hash.
    pub hash: u64,
}

/// All databases of a server, and a staging database for each: initially empty and not
/// visible to clients, filled by a full sync or load and then exchanged with the live one.
pub struct Keyspace {
    hasher: KeyHasher,
    /// The databases, and as many staging databases.
    databases: Box<[Database]>,
    /// Maps a database number to an index in `databases`; SWAPDB exchanges
    /// two. Staging databases have the numbers after those of the databases.
    numbers: Box<[AtomicUsize]>,
    partitions: usize,
    /// The global lock.
    pub global_lock: GlobalLock,
    /// Every effect on the keyspace, in order.
    pub log: WriteLog,
    /// Frees large values in the background.
    pub lazy_free: LazyFree,
    /// Counts of the keys that clients have cached.
    pub tracking: Tracking,
}

#[derive(Default)]
struct Database {
    cells: OnceLock<Box<[PartitionSlot]>>,
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
    turns: AtomicU32,
    len: AtomicUsize,
    volatile: AtomicUsize,
    volatile_hashes: AtomicUsize,
    partition: Apart<UnsafeCell<Partition>>,
}

/// Alignment that puts a value on its own cache lines.
#[repr(align(128))]
struct Apart<T>(T);

impl PartitionSlot {
    #[inline]
    fn partition(&self) -> *mut Partition {
        self.partition.0.get()
    }

    /// Locks the partition; returns false if `patient`, called periodically, returned false first.
    fn lock_while(&self, patient: impl Fn() -> bool) -> bool {
        if self.lock.try_lock() {
            return true;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let locked = loop {
            if self.lock.try_lock_for(LOOK_EVERY) {
                self.turns.fetch_add(1, Ordering::Relaxed);
                break true;
            }
            if !patient() {
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

// SAFETY: the partition is reached only through `Locked`, which holds its lock or the global lock, or is exclusive.
unsafe impl Sync for PartitionSlot {}

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

/// The locks under which a command runs; dropping it releases them.
pub struct Locked {
    keyspace: &'static Keyspace,
    held: Held,
}

enum Held {
    Nothing,
    /// One partition, with its slot already found.
    One(Address, &'static PartitionSlot),
    /// One partition, not locked because no other participant is in a batch.
    Exclusive(Address),
    /// All partitions, not locked for the same reason.
    AllExclusive,
    Some(Box<[Address]>),
    /// Partitions in ascending order, to which more can be added, and the global lock if that was added too.
    Growing(Vec<Address>, Option<GlobalGuard<'static>>),
    GlobalLock {
        _guard: GlobalGuard<'static>,
    },
}

impl Keyspace {
    /// Creates `databases` databases of `partitions` partitions each (a power of two). A server has one keyspace,
    /// which lives as long as the process, so that locks and log followers can hold `'static` references to it.
    pub fn leak(databases: usize, partitions: usize, hasher: KeyHasher) -> &'static Self {
        assert!(partitions.is_power_of_two(), "partitions are chosen by masking the hash");
        Box::leak(Box::new(Keyspace {
            hasher,
            databases: (0..2 * databases).map(|_| Database::default()).collect(),
            numbers: (0..2 * databases).map(AtomicUsize::new).collect(),
            partitions,
            global_lock: GlobalLock::default(),
            log: WriteLog::default(),
            lazy_free: LazyFree::start(),
            tracking: Tracking::default(),
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

    /// Number of databases and staging databases: the upper bound for the argument of [`is_made`](Self::is_made).
    pub(crate) fn places(&self) -> usize {
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

    #[inline]
    pub(crate) fn partition_of(&self, hash: u64) -> usize {
        hash as usize & (self.partitions - 1)
    }

    /// The index in `databases` of database number `number`.
    #[inline]
    pub(crate) fn database_at(&self, number: usize) -> usize {
        self.numbers[number].load(Ordering::Relaxed)
    }

    /// Keys in a database, counted without locks.
    pub fn len(&self, number: usize) -> usize {
        self.sum(number, |cell| &cell.len)
    }

    /// True when the database has no keys.
    pub fn is_empty(&self, number: usize) -> bool {
        self.len(number) == 0
    }

    /// Keys with an expiry in a database, counted without locks.
    pub fn volatile(&self, number: usize) -> usize {
        self.sum(number, |cell| &cell.volatile)
    }

    /// Hashes that have fields with an expiry in a database, counted without locks.
    pub fn volatile_hashes(&self, number: usize) -> usize {
        self.sum(number, |cell| &cell.volatile_hashes)
    }

    fn sum(&self, number: usize, of: impl Fn(&PartitionSlot) -> &AtomicUsize) -> usize {
        let cells = self.databases[self.database_at(number)].cells.get();
        cells.map_or(0, |cells| cells.iter().map(|cell| of(cell).load(Ordering::Relaxed)).sum())
    }

    /// Keys in one partition, read without its lock.
    pub(crate) fn partition_len(&self, database: usize, partition: usize) -> usize {
        let cells = self.databases[database].cells.get();
        cells.map_or(0, |cells| cells[partition].len.load(Ordering::Relaxed))
    }

    /// Keys with an expiry in one partition, read without its lock.
    pub(crate) fn partition_volatile(&self, database: usize, partition: usize) -> usize {
        let cells = self.databases[database].cells.get();
        cells.map_or(0, |cells| cells[partition].volatile.load(Ordering::Relaxed))
    }

    /// Hashes that have fields with an expiry in one partition, read without its lock.
    pub(crate) fn partition_volatile_hashes(&self, database: usize, partition: usize) -> usize {
        let cells = self.databases[database].cells.get();
        cells.map_or(0, |cells| cells[partition].volatile_hashes.load(Ordering::Relaxed))
    }

    /// False if no key and no hash field of a database has had an expiry since the last flush. Read without locks.
    pub(crate) fn ever_volatile(&self, database: usize) -> bool {
        self.databases[database].ever_volatile.load(Ordering::Relaxed)
    }

    /// Whether the partitions of a database have been created.
    pub(crate) fn is_made(&self, database: usize) -> bool {
        self.databases[database].cells.get().is_some()
    }

    /// The partitions of a database, created on first use.
    #[inline]
    pub(crate) fn cells(&self, database: usize) -> &[PartitionSlot] {
        match self.databases[database].cells.get() {
            Some(cells) => cells,
            None => self.make_cells(database),
        }
    }

    #[cold]
    fn make_cells(&self, database: usize) -> &[PartitionSlot] {
        let cell = || PartitionSlot {
            lock: RawMutex::INIT,
            waiting: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            len: AtomicUsize::new(0),
            volatile: AtomicUsize::new(0),
            volatile_hashes: AtomicUsize::new(0),
            partition: Apart(UnsafeCell::new(Partition::new(self.hasher))),
        };
        self.databases[database].cells.get_or_init(|| (0..self.partitions).map(|_| cell()).collect())
    }

    #[inline]
    fn cell(&self, address: Address) -> &PartitionSlot {
        &self.cells(address.database())[address.partition()]
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

    /// Prefetches the first memory that a lookup of this hash will access: the key's
    /// bucket if the caller is exclusive, else its partition's lock and fields.
    #[inline]
    pub fn prefetch_bucket(&self, number: usize, hash: u64, exclusive: Option<&Exclusive>) {
        let cells = self.cells(self.database_at(number));
        match exclusive {
            Some(_) => self.glance(cells, hash, exclusive, |partition| partition.table().prefetch_bucket(hash)),
            None => cells[hash as usize & (cells.len() - 1)].prefetch(),
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
        let cells = self.cells(self.database_at(number));
        if exclusive.is_none() {
            for hash in hashes {
                self.glance(cells, *hash, exclusive, |partition| partition.table().prefetch_bucket(*hash));
            }
        }
        for hash in hashes {
            self.glance(cells, *hash, exclusive, |partition| partition.table().prefetch_element(*hash));
        }
    }

    #[inline]
    fn glance(&self, cells: &[PartitionSlot], hash: u64, exclusive: Option<&Exclusive>, look: impl FnOnce(&Partition)) {
        let cell = &cells[hash as usize & (cells.len() - 1)];
        if exclusive.is_some() {
            // SAFETY: no other participant is in a batch, and this thread
            // holds no exclusive reference to a partition here.
            look(unsafe { &*cell.partition() });
        } else if cell.lock.try_lock() {
            // SAFETY: locked just now, and unlocked right after `look`.
            unsafe {
                look(&*cell.partition());
                cell.lock.unlock();
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
        let cell = self.cell(address);
        cell.lock.lock();
        Locked { keyspace: self, held: Held::One(address, cell) }
    }

    /// Chooses some tracked key at random, removes its readers, and returns both; `None`
    /// if no unlocked partition has any. The caller is in a batch and holds no locks.
    pub fn forget_some_readers(&'static self, mut random: impl FnMut() -> u64) -> Option<(Box<[u8]>, Readers)> {
        let all = self.databases.len() * self.partitions;
        let start = crate::chance::below(random(), all);
        for at in (start..all).chain(0..start) {
            let database = at / self.partitions;
            if !self.is_made(database) || self.tracking.keys() == 0 {
                continue;
            }
            let address = self.address_of(database, at % self.partitions);
            let forgotten =
                self.try_lock_one(address).and_then(|mut locked| locked.forget_some_readers(address, random()));
            if forgotten.is_some() {
                return forgotten;
            }
        }
        None
    }

    /// Locks one partition, unless another thread holds it.
    #[inline]
    pub fn try_lock_one(&'static self, address: Address) -> Option<Locked> {
        let cell = self.cell(address);
        cell.lock.try_lock().then(|| Locked { keyspace: self, held: Held::One(address, cell) })
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

    /// Locks several partitions, each once. If `patient`, called periodically while another
    /// thread holds one of them, returns false, releases all and returns the addresses.
    pub fn lock_all_while(
        &'static self,
        mut addresses: Vec<Address>,
        patient: impl Fn() -> bool,
    ) -> Result<Locked, Vec<Address>> {
        addresses.sort_unstable();
        addresses.dedup();
        // Index of the contended partition, which is waited for and locked before the others.
        let mut first: Option<usize> = None;
        loop {
            if let Some(first) = first
                && !self.cell(addresses[first]).lock_while(&patient)
            {
                return Err(addresses);
            }
            let others = (0..addresses.len()).filter(|at| Some(*at) != first);
            let taken = others.clone().find(|at| !self.cell(addresses[*at]).lock.try_lock());
            let Some(taken) = taken else {
                return Ok(Locked { keyspace: self, held: Held::Some(addresses.into_boxed_slice()) });
            };
            for at in others.take_while(|at| *at != taken).chain(first) {
                // SAFETY: locked just now.
                unsafe { self.cell(addresses[at]).lock.unlock() };
            }
            first = Some(taken);
        }
    }

    /// Locks one partition; gives up if `patient`, called periodically while another thread holds it, returns false.
    pub fn lock_one_while(&'static self, address: Address, patient: impl Fn() -> bool) -> Option<Locked> {
        let cell = self.cell(address);
        cell.lock_while(patient).then(|| Locked { keyspace: self, held: Held::One(address, cell) })
    }

    /// Waits briefly until one of the threads queued on a partition's lock has acquired
    /// it, if there are any. For a thread that has just released the lock, holds no other
    /// and will soon take it again: under load, waiting threads need some time to wake.
    pub(crate) fn give_way(&self, address: Address) {
        let cell = self.cell(address);
        let (turns, (looks, apart)) = (cell.turns.load(Ordering::Relaxed), GIVES_WAY);
        for _ in 0..looks {
            if cell.waiting.load(Ordering::Relaxed) == 0 || cell.turns.load(Ordering::Relaxed) != turns {
                return;
            }
            std::thread::sleep(apart);
        }
    }

    /// Acquires the global lock; gives up if `patient` returns false
    /// while others hold it. The calling thread must not be in a batch.
    pub fn lock_global_while(&'static self, patient: impl Fn() -> bool) -> Option<Locked> {
        Some(Locked { keyspace: self, held: Held::GlobalLock { _guard: self.global_lock.take_while(patient)? } })
    }

    /// Acquires the global lock. The calling thread must not be in a batch.
    pub fn lock_global(&'static self) -> Locked {
        Locked { keyspace: self, held: Held::GlobalLock { _guard: self.global_lock.take() } }
    }
}

impl Locked {
    /// The keyspace that is locked.
    pub fn keyspace(&self) -> &'static Keyspace {
        self.keyspace
    }

    /// True if the global lock is held.
    pub fn is_global(&self) -> bool {
        matches!(self.held, Held::GlobalLock { .. } | Held::Growing(_, Some(_)))
    }

    /// Whether a partition is locked.
    pub fn holds(&self, address: Address) -> bool {
        match &self.held {
            Held::Growing(_, Some(_)) => true,
            Held::Growing(held, None) => held.binary_search(&address).is_ok(),
            Held::Nothing => false,
            Held::One(held, _) | Held::Exclusive(held) => *held == address,
            Held::Some(held) => held.contains(&address),
            Held::GlobalLock { .. } | Held::AllExclusive => true,
        }
    }

    /// Locks the one partition in a slot if that is possible without
    /// waiting; an exclusive caller needs no lock. The set must be empty.
    #[inline]
    pub(crate) fn try_hold(
        &mut self,
        cell: &'static PartitionSlot,
        address: Address,
        exclusive: Option<&Exclusive>,
    ) -> bool {
        debug_assert!(matches!(self.held, Held::Nothing), "one partition is locked while others are held");
        if exclusive.is_some() {
            self.set_held(Held::Exclusive(address));
            return true;
        }
        let locked = cell.lock.try_lock();
        if locked {
            self.set_held(Held::One(address, cell));
        }
        locked
    }

    /// Releases the one partition that it [holds](Self::try_hold).
    #[inline]
    pub(crate) fn let_go(&mut self) {
        match self.held {
            Held::Exclusive(_) => self.set_held(Held::Nothing),
            Held::One(_, cell) => {
                self.set_held(Held::Nothing);
                // SAFETY: locked when this began to hold it, and released only once.
                unsafe { cell.lock.unlock() }
            }
            _ => {}
        }
    }

    /// Releases one partition and hands the lock to a waiting thread, if there is one. For a thread that
    /// will soon take the lock again and would otherwise win against threads that first have to wake.
    pub(crate) fn pass_on(mut self) {
        if let Held::One(_, cell) = self.held {
            self.set_held(Held::Nothing);
            // SAFETY: locked when this was made, and released only once.
            unsafe { cell.lock.unlock_fair() }
        }
    }

    /// Replaces `held`, which is one partition or nothing and so needs no drop.
    #[inline]
    fn set_held(&mut self, held: Held) {
        std::mem::forget(std::mem::replace(&mut self.held, held));
    }

    /// Locks one more partition, unless it is already locked. Only one thread at a time may do this, within a batch.
    pub fn add(&mut self, address: Address) {
        if self.holds(address) {
            return;
        }
        self.keyspace.cell(address).lock.lock();
        if let Held::Growing(addresses, _) = self.grow() {
            let place = addresses.binary_search(&address).unwrap_or_else(|place| place);
            addresses.insert(place, address);
        }
    }

    /// Acquires the global lock in addition, unless it is already held. Only one
    /// thread at a time may do this, from within the batch of `participant`.
    pub fn add_global(&mut self, participant: Participant) {
        if self.is_global() {
            return;
        }
        let taken = self.keyspace.global_lock.take_from_within(participant);
        if let Held::Growing(_, global) = self.grow() {
            *global = Some(taken);
        }
    }

    /// Converts a set of partitions into one that can grow.
    fn grow(&mut self) -> &mut Held {
        let addresses = match &self.held {
            Held::Nothing | Held::Exclusive(_) | Held::AllExclusive => Vec::new(),
            Held::One(address, _) => vec![*address],
            Held::Some(addresses) => addresses.to_vec(),
            Held::Growing(..) | Held::GlobalLock { .. } => return &mut self.held,
        };
        // This releases no lock: only dropping `Locked` does.
        self.held = Held::Growing(addresses, None);
        &mut self.held
    }

    /// A locked partition.
    #[inline]
    pub(crate) fn partition(&self, address: Address) -> &Partition {
        self.at(self.keyspace.cell(address), address)
    }

    /// Runs `change` on a locked partition and publishes its sizes when `change` returns.
    #[inline]
    pub(crate) fn with_partition<T>(&mut self, address: Address, change: impl FnOnce(&mut Partition) -> T) -> T {
        self.with(self.keyspace.cell(address), address, change)
    }

    /// The partition in a slot, whose address is `address`.
    #[inline]
    pub(crate) fn at(&self, cell: &'static PartitionSlot, address: Address) -> &Partition {
        debug_assert!(self.holds(address), "a command reached for a partition that it did not lock");
        // SAFETY: locked by us; exclusive access goes through `&mut self`.
        unsafe { &*cell.partition() }
    }

    /// Like [`at`](Self::at), for a change that keeps the numbers of keys and of expiries.
    #[inline]
    pub(crate) fn at_mut(&mut self, cell: &'static PartitionSlot, address: Address) -> &mut Partition {
        debug_assert!(self.holds(address), "a command reached for a partition that it did not lock");
        // SAFETY: locked by us, and `self` is borrowed exclusively.
        unsafe { &mut *cell.partition() }
    }

    /// Like [`at`](Self::at), for any change.
    #[inline]
    pub(crate) fn with<T>(
        &mut self,
        cell: &'static PartitionSlot,
        address: Address,
        change: impl FnOnce(&mut Partition) -> T,
    ) -> T {
        let partition = self.at_mut(cell, address);
        let result = change(partition);
        if cell.len.load(Ordering::Relaxed) != partition.len() {
            cell.len.store(partition.len(), Ordering::Relaxed);
        }
        let sizes = [(&cell.volatile, partition.volatile()), (&cell.volatile_hashes, partition.volatile_hashes())];
        for (published, present) in sizes {
            let before = published.load(Ordering::Relaxed);
            if before != present {
                published.store(present, Ordering::Relaxed);
                if before == 0 {
                    self.keyspace.databases[address.database()].ever_volatile.store(true, Ordering::Relaxed);
                }
            }
        }
        result
    }

    /// A locked partition, for a change that keeps its sizes.
    pub(crate) fn partition_mut(&mut self, address: Address) -> &mut Partition {
        self.at_mut(self.keyspace.cell(address), address)
    }

    /// Calls `visit` with every partition that was ever used and its database's number. Needs the global lock.
    pub(crate) fn for_each_partition(&mut self, mut visit: impl FnMut(usize, &mut Partition)) {
        assert!(self.is_global(), "all partitions at once are the world");
        for number in 0..self.keyspace.databases() {
            let database = self.keyspace.database_at(number);
            if self.keyspace.is_made(database) {
                for partition in 0..self.keyspace.partitions {
                    visit(number, self.partition_mut(self.keyspace.address_of(database, partition)));
                }
            }
        }
    }

    /// Locks one partition for the duration of `visit`. The set must be empty, or hold the global lock.
    pub(crate) fn visit<T>(&mut self, address: Address, visit: impl FnOnce(&mut Partition) -> T) -> T {
        match self.held {
            Held::GlobalLock { .. } | Held::Growing(_, Some(_)) => self.with_partition(address, visit),
            Held::Nothing => self.keyspace.lock_one(address).with_partition(address, visit),
            _ => unreachable!("one partition is visited while others are held"),
        }
    }

    /// Reserves room for about `keys` keys in the empty partitions of
    /// a database. The set must be empty, or hold the global lock.
    pub fn reserve(&mut self, number: usize, keys: usize) {
        let database = self.keyspace.database_at(number);
        let share = keys / self.keyspace.partitions;
        if share == 0 {
            return;
        }
        for partition in 0..self.keyspace.partitions {
            self.visit(self.keyspace.address_of(database, partition), |partition| partition.reserve(share));
        }
    }

    /// Empties a database; with `lazy`, its old contents are freed in the
    /// background. Returns the number of removed keys. Needs the global lock.
    pub fn flush(&mut self, number: usize, lazy: bool) -> usize {
        assert!(self.is_global(), "flushing needs the world");
        let database = self.keyspace.database_at(number);
        let removed = self.keyspace.len(number);
        if removed == 0 {
            return 0;
        }
        for partition in 0..self.keyspace.partitions {
            let address = self.keyspace.address_of(database, partition);
            let fresh = Partition::new(self.keyspace.hasher);
            let old = self.with_partition(address, |partition| {
                let mut old = std::mem::replace(partition, fresh);
                partition.swap_attention(&mut old);
                old
            });
            if let Some(snapshot) = old.snapshot().cloned() {
                snapshot.keep(old);
            } else if lazy && !old.is_empty() {
                self.keyspace.lazy_free.dispose(Garbage::Partition(Box::new(old)));
            }
        }
        self.keyspace.databases[database].ever_volatile.store(false, Ordering::Relaxed);
        removed
    }

    /// Exchanges two databases. Needs the global lock.
    pub fn swap(&mut self, a: usize, b: usize) {
        assert!(self.is_global(), "swapping needs the world");
        let numbers = &self.keyspace.numbers;
        let (at_a, at_b) = (numbers[a].load(Ordering::Relaxed), numbers[b].load(Ordering::Relaxed));
        numbers[a].store(at_b, Ordering::Relaxed);
        numbers[b].store(at_a, Ordering::Relaxed);
        if a != b {
            self.swap_attention(at_a, at_b);
        }
    }

    /// Exchanges a database and its staging database. Needs the global lock.
    pub fn swap_staging(&mut self, number: usize) {
        let (keyspace, staging) = (self.keyspace, self.keyspace.staging(number));
        if keyspace.is_made(keyspace.database_at(number)) || keyspace.is_made(keyspace.database_at(staging)) {
            self.swap(number, staging);
        }
    }

    /// Exchanges the waiters, watchers and readers of two databases back: they
    /// belong to a database number, not to the data that now has that number.
    fn swap_attention(&mut self, a: usize, b: usize) {
        let (cells_a, cells_b) = (self.keyspace.cells(a), self.keyspace.cells(b));
        for (cell_a, cell_b) in cells_a.iter().zip(cells_b) {
            // SAFETY: the global lock is held, and the slots belong to different databases.
            unsafe { (*cell_a.partition()).swap_attention(&mut *cell_b.partition()) }
        }
    }

    /// Adds a waiter to the queue of a key of database `number`, which is locked.
    pub fn join_queue(&mut self, number: usize, key: Key<'_>, waiter: &Arc<Waiter>) {
        let address = self.keyspace.address(number, key);
        self.with_partition(address, |partition| {
            partition.change_attention(|attention| attention.queues.join(key.bytes, waiter.clone()));
        });
    }

    /// Removes a waiter from the queues of all its keys, which are locked; returns false if it had left before.
    pub fn leave_queues<'k>(&mut self, number: usize, keys: impl Iterator<Item = Key<'k>>, waiter: &Waiter) -> bool {
        if waiter.has_left() {
            return false;
        }
        waiter.leave();
        for key in keys {
            let address = self.keyspace.address(number, key);
            self.with_partition(address, |partition| {
                partition.change_attention(|attention| attention.queues.remove(key.bytes, waiter.ticket()));
            });
        }
        true
    }

    /// The first waiter with a ticket after `after` that waits for a key of database `number`, which is locked,
    /// and can be served with a value of this kind. Skips waiters whose [`Waiter::rivals`] are among `rivals`.
    pub fn next_waiter(
        &self,
        number: usize,
        key: Key<'_>,
        after: u64,
        kind: Option<Kind>,
        rivals: &[u64],
    ) -> Option<Arc<Waiter>> {
        let partition = self.partition(self.keyspace.address(number, key));
        partition.attention()?.queues.next(key.bytes, after, kind, rivals)
    }

    /// The kind of value at a key of database `number`, which is locked; `None` if the key is absent or has expired.
    pub fn kind_at(&self, number: usize, key: Key<'_>, now_ms: i64) -> Option<Kind> {
        let partition = self.partition(self.keyspace.address(number, key));
        let entry = partition.entry(partition.find(key)?);
        (!entry.is_expired(now_ms)).then(|| entry.kind())
    }

    /// Makes `watcher` watch a key of database `number`, which is locked; returns false if it already did.
    pub fn watch(&mut self, number: usize, key: Key<'_>, watcher: &Arc<Watcher>, now_ms: i64) -> bool {
        let address = self.keyspace.address(number, key);
        let partition = self.partition_mut(address);
        let stale = partition.is_overdue(key, now_ms);
        let watch = Watch { watcher: watcher.clone(), stale };
        partition.change_attention(|attention| attention.watchers.add(key.bytes, watch))
    }

    /// Reverses [`watch`](Self::watch).
    pub fn unwatch(&mut self, number: usize, key: Key<'_>, watcher: &Arc<Watcher>) {
        let address = self.keyspace.address(number, key);
        let partition = self.partition_mut(address);
        if partition.attention().is_some() {
            partition.change_attention(|attention| attention.watchers.remove(key.bytes, watcher));
        }
    }

    /// Records that a client has read a key of database `number`, which is locked, and may cache the value.
    pub fn add_reader(&mut self, number: usize, key: Key<'_>, client: u64) {
        let address = self.keyspace.address(number, key);
        let added = self.partition_mut(address).change_attention(|attention| attention.tracked.add(key, client));
        self.keyspace.tracking.added(added);
    }

    /// Removes the readers of a key of database `number`, which is
    /// locked, and returns them; client `but` stays if it is one.
    pub fn take_readers(&mut self, number: usize, key: Key<'_>, but: u64) -> Readers {
        let address = self.keyspace.address(number, key);
        let partition = self.partition_mut(address);
        if partition.attention().is_none_or(|attention| !attention.tracked.contains(key)) {
            return Readers::new();
        }
        let (taken, left) =
            partition.change_attention(|attention| (attention.tracked.take(key, but), attention.tracked.contains(key)));
        self.keyspace.tracking.removed(usize::from(!left), taken.len());
        taken
    }

    fn forget_some_readers(&mut self, address: Address, draw: u64) -> Option<(Box<[u8]>, Readers)> {
        let hasher = self.keyspace.hasher;
        let partition = self.partition_mut(address);
        partition.attention()?;
        let (key, readers) = partition.change_attention(|attention| attention.tracked.take_any(draw, hasher))?;
        self.keyspace.tracking.removed(1, readers.len());
        Some((key, readers))
    }

    /// Removes all recorded readers of all keys. Needs the global lock.
    pub fn forget_readers(&mut self) {
        if self.keyspace.tracking.keys() == 0 {
            return;
        }
        let (mut keys, mut readers) = (0, 0);
        self.for_each_partition(|_, partition| {
            if partition.attention().is_some() {
                partition.change_attention(|attention| {
                    let (some_keys, some_readers) = std::mem::take(&mut attention.tracked).counts();
                    (keys, readers) = (keys + some_keys, readers + some_readers);
                });
            }
        });
        self.keyspace.tracking.removed(keys, readers);
    }

    /// Whether a key of database `number`, which is locked, exists but
    /// has expired, and had not expired when `watcher` began to watch it.
    pub fn became_overdue(&self, number: usize, key: Key<'_>, watcher: &Arc<Watcher>, now_ms: i64) -> bool {
        let partition = self.partition(self.keyspace.address(number, key));
        let watches = partition.attention().map_or(&[][..], |attention| attention.watchers.of(key.bytes));
        let news = watches.iter().any(|watch| Arc::ptr_eq(&watch.watcher, watcher) && !watch.stale);
        news && self.is_overdue(number, key, now_ms)
    }

    /// Whether a key exists but has expired.
    pub(crate) fn is_overdue(&self, number: usize, key: Key<'_>, now_ms: i64) -> bool {
        self.partition(self.keyspace.address(number, key)).is_overdue(key, now_ms)
    }

    /// Marks the watches of expired keys in these databases as stale, so that
    /// the expiry no longer aborts a transaction. Needs the global lock.
    pub(crate) fn accept_overdue(&mut self, numbers: [usize; 2], now_ms: i64) {
        self.for_each_partition(|number, partition| {
            if numbers.contains(&number) {
                partition.accept_overdue(now_ms);
            }
        });
    }

    /// Calls `visit` with the waiters, watchers and readers of database
    /// `number`, partition by partition. Needs the global lock.
    pub(crate) fn for_each_attention(&self, number: usize, mut visit: impl FnMut(&Attention)) {
        debug_assert!(self.is_global());
        let database = self.keyspace.database_at(number);
        let Some(cells) = self.keyspace.databases[database].cells.get() else { return };
        for partition in 0..cells.len() {
            let address = self.keyspace.address_of(database, partition);
            self.partition(address).attention().into_iter().for_each(&mut visit);
        }
    }

    /// Whether a key exists in database `number` and has not expired. Its partition is locked.
    pub(crate) fn is_live(&self, number: usize, key: Key<'_>, now_ms: i64) -> bool {
        self.partition(self.keyspace.address(number, key)).is_live(key, now_ms)
    }
}

impl Drop for Locked {
    #[inline]
    fn drop(&mut self) {
        let unlock = |cell: &PartitionSlot| {
            // SAFETY: locked when this was made, and released only here.
            unsafe { cell.lock.unlock() }
        };
        match &self.held {
            Held::One(_, cell) => unlock(cell),
            Held::Some(addresses) => addresses.iter().rev().for_each(|address| unlock(self.keyspace.cell(*address))),
            // The global lock, if it was added, is released when `held` is dropped, after all partitions.
            Held::Growing(addresses, _) => addresses.iter().for_each(|address| unlock(self.keyspace.cell(*address))),
            Held::Nothing | Held::Exclusive(_) | Held::AllExclusive | Held::GlobalLock { .. } => {}
        }
    }
}
