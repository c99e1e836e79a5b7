//! Clients interested in locked keys: those that wait for them, watch them, or have cached them.

use super::{Address, Locked};
use crate::hash::Key;
use crate::partition::Observers;
use crate::tracking::Readers;
use crate::value::Kind;
use crate::waiting::Waiter;
use crate::watching::{Watch, Watcher};
use std::sync::Arc;

impl Locked {
    /// Adds a waiter to the queue of a key of database `number`, which is locked.
    pub fn join_queue(&mut self, number: usize, key: Key<'_>, waiter: &Arc<Waiter>) {
        let address = self.keyspace.address(number, key);
        self.with_partition(address, |partition| {
            partition.change_observers(|observers| observers.queues.join(key.bytes, waiter.clone()));
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
                partition.change_observers(|observers| observers.queues.remove(key.bytes, waiter.ticket()));
            });
        }
        true
    }

    /// The first waiter with a ticket after `after` that waits for a key of database `number`, which is locked,
    /// and can be served with a value of this kind. Skips waiters whose [`Waiter::group`] are among `skipped_groups`.
    pub fn next_waiter(
        &self,
        number: usize,
        key: Key<'_>,
        after: u64,
        kind: Option<Kind>,
        skipped_groups: &[u64],
    ) -> Option<Arc<Waiter>> {
        let partition = self.partition(self.keyspace.address(number, key));
        partition.observers()?.queues.next(key.bytes, after, kind, skipped_groups)
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
        let stale = partition.has_expired(key, now_ms);
        let watch = Watch { watcher: watcher.clone(), stale };
        partition.change_observers(|observers| observers.watchers.add(key.bytes, watch))
    }

    /// Reverses [`watch`](Self::watch).
    pub fn unwatch(&mut self, number: usize, key: Key<'_>, watcher: &Arc<Watcher>) {
        let address = self.keyspace.address(number, key);
        let partition = self.partition_mut(address);
        if partition.observers().is_some() {
            partition.change_observers(|observers| observers.watchers.remove(key.bytes, watcher));
        }
    }

    /// Records that a client has read a key of database `number`, which is locked, and may cache the value.
    pub fn add_reader(&mut self, number: usize, key: Key<'_>, client: u64) {
        let address = self.keyspace.address(number, key);
        let added = self.partition_mut(address).change_observers(|observers| observers.tracked.add(key, client));
        self.keyspace.tracking.added(added);
    }

    /// Removes the readers of a key of database `number`, which is
    /// locked, and returns them; client `but` stays if it is one.
    pub fn take_readers(&mut self, number: usize, key: Key<'_>, but: u64) -> Readers {
        let address = self.keyspace.address(number, key);
        let partition = self.partition_mut(address);
        if partition.observers().is_none_or(|observers| !observers.tracked.contains(key)) {
            return Readers::new();
        }
        let (taken, left) =
            partition.change_observers(|observers| (observers.tracked.take(key, but), observers.tracked.contains(key)));
        self.keyspace.tracking.removed(usize::from(!left), taken.len());
        taken
    }

    pub(super) fn evict_tracked_key(&mut self, address: Address, draw: u64) -> Option<(Box<[u8]>, Readers)> {
        let hasher = *self.keyspace.hasher;
        let partition = self.partition_mut(address);
        partition.observers()?;
        let (key, readers) = partition.change_observers(|observers| observers.tracked.take_any(draw, hasher))?;
        self.keyspace.tracking.removed(1, readers.len());
        Some((key, readers))
    }

    /// Removes all recorded readers of all keys. Needs the global lock.
    pub fn clear_readers(&mut self) {
        if self.keyspace.tracking.keys() == 0 {
            return;
        }
        let (mut keys, mut readers) = (0, 0);
        self.for_each_partition(|_, partition| {
            if partition.observers().is_some() {
                partition.change_observers(|observers| {
                    let (some_keys, some_readers) = std::mem::take(&mut observers.tracked).counts();
                    (keys, readers) = (keys + some_keys, readers + some_readers);
                });
            }
        });
        self.keyspace.tracking.removed(keys, readers);
    }

    /// Whether a key of database `number`, which is locked, exists but
    /// has expired, and had not expired when `watcher` began to watch it.
    pub fn expired_since_watch(&self, number: usize, key: Key<'_>, watcher: &Arc<Watcher>, now_ms: i64) -> bool {
        let partition = self.partition(self.keyspace.address(number, key));
        let watches = partition.observers().map_or(&[][..], |observers| observers.watchers.of(key.bytes));
        let was_live_when_watched = watches.iter().any(|watch| Arc::ptr_eq(&watch.watcher, watcher) && !watch.stale);
        was_live_when_watched && self.has_expired(number, key, now_ms)
    }

    /// Whether a key exists but has expired.
    pub(crate) fn has_expired(&self, number: usize, key: Key<'_>, now_ms: i64) -> bool {
        self.partition(self.keyspace.address(number, key)).has_expired(key, now_ms)
    }

    /// Marks the watches of expired keys in these databases as stale, so that
    /// the expiry no longer aborts a transaction. Needs the global lock.
    pub(crate) fn mark_overdue_watches_stale(&mut self, numbers: [usize; 2], now_ms: i64) {
        self.for_each_partition(|number, partition| {
            if numbers.contains(&number) {
                partition.mark_overdue_watches_stale(now_ms);
            }
        });
    }

    /// Calls `visit` with the waiters, watchers and readers of database
    /// `number`, partition by partition. Needs the global lock.
    pub(crate) fn for_each_observers(&self, number: usize, mut visit: impl FnMut(&Observers)) {
        debug_assert!(self.is_global());
        let database = self.keyspace.database_at(number);
        let Some(slots) = self.keyspace.databases[database].slots.get() else { return };
        for partition in 0..slots.len() {
            let address = self.keyspace.address_of(database, partition);
            self.partition(address).observers().into_iter().for_each(&mut visit);
        }
    }

    /// Whether a key exists in database `number` and has not expired. Its partition is locked.
    pub(crate) fn is_live(&self, number: usize, key: Key<'_>, now_ms: i64) -> bool {
        self.partition(self.keyspace.address(number, key)).is_live(key, now_ms)
    }
}
