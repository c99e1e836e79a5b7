//! Clients interested in locked keys: those that wait for them, watch them, or have cached them.

use super::{Address, Locked};
use crate::hash::Key;
use crate::partition::Attention;
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

    pub(super) fn forget_some_readers(&mut self, address: Address, draw: u64) -> Option<(Box<[u8]>, Readers)> {
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
