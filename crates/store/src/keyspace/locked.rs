//! The partition locks that a command holds, and access to the partitions they protect.

use super::{Address, Keyspace, PartitionSlot};
use crate::global_lock::{Exclusive, GlobalGuard, Participant};
use crate::lazy_free::Garbage;
use crate::partition::Partition;
use parking_lot::lock_api::{RawMutex as _, RawMutexFair as _};
use std::sync::atomic::Ordering;

/// The locks under which a command runs; dropping it releases them.
pub struct Locked {
    pub(super) keyspace: &'static Keyspace,
    pub(super) held: Held,
}

pub(super) enum Held {
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
    pub(crate) fn try_lock_slot(
        &mut self,
        slot: &'static PartitionSlot,
        address: Address,
        exclusive: Option<&Exclusive>,
    ) -> bool {
        debug_assert!(matches!(self.held, Held::Nothing), "one partition is locked while others are held");
        if exclusive.is_some() {
            self.set_held(Held::Exclusive(address));
            return true;
        }
        let locked = slot.lock.try_lock();
        if locked {
            self.set_held(Held::One(address, slot));
        }
        locked
    }

    /// Releases the one partition that it [holds](Self::try_lock_slot).
    #[inline]
    pub(crate) fn unlock_slot(&mut self) {
        match self.held {
            Held::Exclusive(_) => self.set_held(Held::Nothing),
            Held::One(_, slot) => {
                self.set_held(Held::Nothing);
                // SAFETY: locked when this began to hold it, and released only once.
                unsafe { slot.lock.unlock() }
            }
            _ => {}
        }
    }

    /// Releases one partition and hands the lock to a waiting thread, if there is one. For a thread that
    /// will soon take the lock again and would otherwise win against threads that first have to wake.
    pub(crate) fn unlock_fair(mut self) {
        if let Held::One(_, slot) = self.held {
            self.set_held(Held::Nothing);
            // SAFETY: locked when this was made, and released only once.
            unsafe { slot.lock.unlock_fair() }
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
        self.keyspace.slot(address).lock.lock();
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
        self.at(self.keyspace.slot(address), address)
    }

    /// Runs `change` on a locked partition and publishes its sizes when `change` returns.
    #[inline]
    pub(crate) fn with_partition<T>(&mut self, address: Address, change: impl FnOnce(&mut Partition) -> T) -> T {
        self.with(self.keyspace.slot(address), address, change)
    }

    /// The partition in a slot, whose address is `address`.
    #[inline]
    pub(crate) fn at(&self, slot: &'static PartitionSlot, address: Address) -> &Partition {
        debug_assert!(self.holds(address), "a command reached for a partition that it did not lock");
        // SAFETY: locked by us; exclusive access goes through `&mut self`.
        unsafe { &*slot.partition() }
    }

    /// Like [`at`](Self::at), for a change that keeps the numbers of keys and of expiries.
    #[inline]
    pub(crate) fn at_mut(&mut self, slot: &'static PartitionSlot, address: Address) -> &mut Partition {
        debug_assert!(self.holds(address), "a command reached for a partition that it did not lock");
        // SAFETY: locked by us, and `self` is borrowed exclusively.
        unsafe { &mut *slot.partition() }
    }

    /// Like [`at`](Self::at), for any change.
    #[inline]
    pub(crate) fn with<T>(
        &mut self,
        slot: &'static PartitionSlot,
        address: Address,
        change: impl FnOnce(&mut Partition) -> T,
    ) -> T {
        let partition = self.at_mut(slot, address);
        let result = change(partition);
        if slot.len.load(Ordering::Relaxed) != partition.len() {
            slot.len.store(partition.len(), Ordering::Relaxed);
        }
        let sizes = [(&slot.volatile, partition.volatile()), (&slot.volatile_hashes, partition.volatile_hashes())];
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
        self.at_mut(self.keyspace.slot(address), address)
    }

    /// Calls `visit` with every partition that was ever used and its database's number. Needs the global lock.
    pub(crate) fn for_each_partition(&mut self, mut visit: impl FnMut(usize, &mut Partition)) {
        assert!(self.is_global(), "all partitions at once are the world");
        for number in 0..self.keyspace.databases() {
            let database = self.keyspace.database_at(number);
            if self.keyspace.is_allocated(database) {
                for partition in 0..self.keyspace.partitions {
                    visit(number, self.partition_mut(self.keyspace.address_of(database, partition)));
                }
            }
        }
    }

    /// Calls `visit` with those of these partitions that have keys, in every database, and the database's number. Needs
    /// the global lock.
    pub(crate) fn for_filled_partitions(&mut self, partitions: &[usize], visit: impl FnMut(usize, &mut Partition)) {
        self.for_filled(partitions.iter().copied(), visit);
    }

    /// Like [`for_each_partition`](Self::for_each_partition), except those without keys.
    pub(crate) fn for_each_filled_partition(&mut self, visit: impl FnMut(usize, &mut Partition)) {
        self.for_filled(0..self.keyspace.partitions, visit);
    }

    fn for_filled(
        &mut self,
        partitions: impl Iterator<Item = usize> + Clone,
        mut visit: impl FnMut(usize, &mut Partition),
    ) {
        assert!(self.is_global(), "all partitions at once are the world");
        for number in 0..self.keyspace.databases() {
            let database = self.keyspace.database_at(number);
            for partition in partitions.clone() {
                if self.keyspace.partition_len_with_hidden(database, partition) > 0 {
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
        self.keyspace.flushes[number].fetch_add(1, Ordering::Relaxed);
        // Hidden keys are not counted, but go as well.
        if self.keyspace.is_empty(number) {
            return 0;
        }
        for partition in 0..self.keyspace.partitions {
            let address = self.keyspace.address_of(database, partition);
            if self.partition(address).is_pristine() {
                continue;
            }
            let fresh = Partition::new(self.keyspace.hasher);
            let old = self.with_partition(address, |partition| {
                let mut old = std::mem::replace(partition, fresh);
                partition.swap_observers(&mut old);
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
            self.swap_observers(at_a, at_b);
        }
    }

    /// Exchanges a database and its staging database. Needs the global lock.
    pub fn swap_staging(&mut self, number: usize) {
        let (keyspace, staging) = (self.keyspace, self.keyspace.staging(number));
        keyspace.flushes[number].fetch_add(1, Ordering::Relaxed);
        if keyspace.is_allocated(keyspace.database_at(number)) || keyspace.is_allocated(keyspace.database_at(staging)) {
            self.swap(number, staging);
        }
    }

    /// Exchanges the waiters, watchers and readers of two databases back: they
    /// belong to a database number, not to the data that now has that number.
    fn swap_observers(&mut self, a: usize, b: usize) {
        let (slots_a, slots_b) = (self.keyspace.slots(a), self.keyspace.slots(b));
        for (slot_a, slot_b) in slots_a.iter().zip(slots_b) {
            // SAFETY: the global lock is held, and the slots belong to different databases.
            unsafe { (*slot_a.partition()).swap_observers(&mut *slot_b.partition()) }
        }
    }
}

impl Drop for Locked {
    #[inline]
    fn drop(&mut self) {
        let unlock = |slot: &PartitionSlot| {
            // SAFETY: locked when this was made, and released only here.
            unsafe { slot.lock.unlock() }
        };
        match &self.held {
            Held::One(_, slot) => unlock(slot),
            Held::Some(addresses) => addresses.iter().rev().for_each(|address| unlock(self.keyspace.slot(*address))),
            // The global lock, if it was added, is released when `held` is dropped, after all partitions.
            Held::Growing(addresses, _) => addresses.iter().for_each(|address| unlock(self.keyspace.slot(*address))),
            Held::Nothing | Held::Exclusive(_) | Held::AllExclusive | Held::GlobalLock { .. } => {}
        }
    }
}
