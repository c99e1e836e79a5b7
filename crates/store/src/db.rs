//! One database as a command sees it: lookups with expiry and access time, and every change to a key.
//!
//! All changes to the keyspace go through this module, so that expiry, statistics,
//! the access clock and notifications of changes are each implemented in one place.

mod env;
mod lookup;
mod scan;

pub use env::{Counter, Counters, Env, WhenExpired, WrongType};

use crate::access::Access;
use crate::collections::{Collection, Hash};
use crate::effects::{Effects, EventClass};
use crate::entry::{Content, Entry};
use crate::global_lock::Exclusive;
use crate::hash::Key;
use crate::keyspace::{Address, Keyspace, Locked, PartitionSlot};
use crate::lazy_free::Garbage;
use crate::memory::WEIGHED;
use crate::object::{Object, Value};
use crate::partition::Partition;
use crate::table::Place;
use crate::value::{Expiry, INLINE_MAX, Kind};
use kvick_resp::{Args, SharedBytes};
use std::cell::Cell;

/// A database under a command's locks.
pub struct Db<'a> {
    locked: &'a mut Locked,
    number: usize,
    database: usize,
    slots: &'static [PartitionSlot],
    /// The keys that the dispatcher hashed. Most commands look up only these, in this order.
    hashed: &'a [Key<'a>],
    /// Index of the one looked up last.
    last_hashed: Cell<usize>,
    /// The only key of a command that was [begun](Self::begin_keyed) with it.
    only: Option<Key<'a>>,
    env: Env<'a>,
}

impl<'a> Db<'a> {
    /// Database `number` under the locks of `locked`.
    #[inline]
    pub fn new(locked: &'a mut Locked, number: usize, env: Env<'a>) -> Self {
        let keyspace = locked.keyspace();
        let database = keyspace.database_at(number);
        Db {
            locked,
            number,
            database,
            slots: keyspace.slots(database),
            hashed: &[],
            last_hashed: Cell::new(0),
            only: None,
            env,
        }
    }

    /// Passes keys whose hashes are known.
    #[inline]
    pub fn with_hashed(mut self, keys: &'a [Key<'a>]) -> Self {
        self.hashed = keys;
        self
    }

    /// Begins a command that works on one key and nothing else: locks the key's partition, unless
    /// the caller is exclusive. Returns false if the partition is locked by another thread.
    /// `has_readers` and `event_mask` are passed to [`Effects::begin`]. Nothing else may be locked.
    #[inline]
    pub fn begin_keyed(
        &mut self,
        key: Key<'a>,
        exclusive: Option<&Exclusive>,
        has_readers: bool,
        event_mask: impl FnOnce() -> EventClass,
    ) -> bool {
        let address = self.address(key);
        if !self.locked.try_lock_slot(&self.slots[self.partition_number(key)], address, exclusive) {
            return false;
        }
        // `event_mask` is evaluated under the lock, so that a client that
        // subscribes and then reads the key misses no change.
        self.env.effects.begin(has_readers, event_mask(), self.number);
        self.only = Some(key);
        true
    }

    /// Begins a command that accesses no keys.
    #[inline]
    pub fn begin_keyless(&mut self) {
        self.env.effects.begin(false, EventClass::empty(), self.number);
        self.only = None;
    }

    /// Ends the command: commits its effects and unlocks the
    /// partition. Returns whether anything was appended to the log.
    #[inline]
    pub fn end_keyed(&mut self, request: Args<'_>) -> bool {
        let appended = self.env.effects.commit(&self.locked.keyspace().log, request);
        self.locked.unlock_slot();
        appended
    }

    /// Current Unix time in milliseconds.
    #[inline]
    pub fn now_ms(&self) -> i64 {
        self.env.now_ms
    }

    /// The database's number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The keyspace that the database is part of.
    pub fn keyspace(&self) -> &'static Keyspace {
        self.locked.keyspace()
    }

    /// How access is recorded.
    pub fn access(&self) -> &Access {
        self.env.access
    }

    /// The effects of the command so far.
    #[inline]
    pub fn effects(&mut self) -> &mut Effects {
        self.env.effects
    }

    /// Runs `f` with another database selected. Needs the global lock.
    pub fn with_database<T>(&mut self, number: usize, f: impl FnOnce(&mut Self) -> T) -> T {
        let selected = self.number;
        self.enter(number);
        let previous = self.env.effects.set_current_database(number);
        let result = f(self);
        self.env.effects.set_current_database(previous);
        self.enter(selected);
        result
    }

    fn enter(&mut self, number: usize) {
        let keyspace = self.keyspace();
        self.number = number;
        self.database = keyspace.database_at(number);
        self.slots = keyspace.slots(self.database);
    }

    /// A key with its hash.
    #[inline]
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        match self.only {
            Some(only) if std::ptr::eq(only.bytes, bytes) => Key { bytes, hash: only.hash },
            _ => self.hashed_key(bytes),
        }
    }

    #[inline(never)]
    fn hashed_key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        let last_hashed = self.last_hashed.get();
        for at in [last_hashed, last_hashed + 1] {
            if let Some(known) = self.hashed.get(at)
                && std::ptr::eq(known.bytes, bytes)
            {
                self.last_hashed.set(at);
                return Key { bytes, hash: known.hash };
            }
        }
        self.key_out_of_order(bytes)
    }

    fn key_out_of_order<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        match self.hashed.iter().position(|known| std::ptr::eq(known.bytes, bytes)) {
            Some(at) => {
                self.last_hashed.set(at);
                Key { bytes, hash: self.hashed[at].hash }
            }
            None => self.locked.keyspace().key(bytes),
        }
    }

    #[inline]
    fn address(&self, key: Key<'_>) -> Address {
        self.keyspace().address_of(self.database, self.partition_number(key))
    }

    #[inline]
    fn partition_number(&self, key: Key<'_>) -> usize {
        key.hash as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn partition(&self, key: Key<'_>) -> &Partition {
        self.locked.at(&self.slots[self.partition_number(key)], self.address(key))
    }

    #[inline]
    fn partition_mut(&mut self, key: Key<'_>) -> &mut Partition {
        let address = self.address(key);
        self.locked.at_mut(&self.slots[self.partition_number(key)], address)
    }

    /// The collection at a key, for a writing command: see [`Db::get_for_write`].
    #[inline]
    pub fn write<C: Collection>(&mut self, key: Key<'_>) -> Result<Option<&mut C>, WrongType> {
        Ok(self.write_with_effects(key)?.0)
    }

    /// Like [`Db::write`], and also returns the command's effects.
    #[inline]
    pub fn write_with_effects<C: Collection>(
        &mut self,
        key: Key<'_>,
    ) -> Result<(Option<&mut C>, &mut Effects), WrongType> {
        let Some(place) = self.locate(key) else { return Ok((None, self.env.effects)) };
        if self.entry(key, place).kind() != C::KIND {
            return Err(WrongType);
        }
        if self.env.touch {
            self.touch(key, place);
        }
        self.after_change(key);
        let address = self.address(key);
        let partition = self.locked.at_mut(&self.slots[self.partition_number(key)], address);
        Ok((partition.collection_mut(place), self.env.effects))
    }

    /// Stores a collection at a key, which must be absent. The collection is not empty, or about to be filled.
    #[inline]
    pub fn create<C: Collection>(&mut self, key: Key<'_>, collection: C) -> &mut C {
        self.insert(key, Content::Object(Object::new(collection)), None);
        let partition = self.partition_mut(key);
        let Some(place) = partition.find(key) else { unreachable!("a key that was just added is there") };
        let Some(collection) = partition.collection_mut(place) else { unreachable!("it holds what it was given") };
        collection
    }

    /// The collection at a key for modification, created empty if absent; also
    /// returns whether it was created. A command that leaves it empty must remove it.
    #[inline]
    pub fn write_or_create<C: Collection + Default>(&mut self, key: Key<'_>) -> Result<(&mut C, bool), WrongType> {
        let (place, created) = match self.locate(key) {
            Some(place) => {
                if self.entry(key, place).kind() != C::KIND {
                    return Err(WrongType);
                }
                if self.env.touch {
                    self.touch(key, place);
                }
                self.after_change(key);
                (Some(place), false)
            }
            None => {
                self.insert(key, Content::Object(Object::new(C::default())), None);
                (self.partition(key).find(key), true)
            }
        };
        let collection = place.and_then(|place| self.partition_mut(key).collection_mut(place));
        collection.map(|collection| (collection, created)).ok_or(WrongType)
    }

    /// Records a change of a key that clients may watch or have cached.
    #[inline]
    fn after_change(&mut self, key: Key<'_>) {
        if self.partition(key).observers().is_some() | self.env.effects.notes_all_changes() {
            self.notify_change(key);
        }
    }

    #[cold]
    fn notify_change(&mut self, key: Key<'_>) {
        let partition = self.locked.at(&self.slots[self.partition_number(key)], self.address(key));
        let mut has_readers = false;
        if let Some(observers) = partition.observers() {
            self.env.effects.note_watched_change(observers.watchers.of(key.bytes));
            has_readers = observers.tracked.contains(key);
        }
        self.env.effects.note_cached_change(self.number, key.bytes, has_readers);
    }

    /// Wakes the clients that wait for a key. Creating, deleting or changing the kind of a key does so
    /// automatically. Commands that add to or remove from the entries and groups of a stream call this explicitly.
    #[inline]
    pub fn signal_ready(&mut self, key: Key<'_>) {
        if let Some(observers) = self.partition(key).observers()
            && observers.queues.contains(key.bytes)
        {
            self.env.effects.note_ready_key(self.number, key.bytes);
        }
    }

    #[inline]
    fn entry(&self, key: Key<'_>, place: Place) -> Entry<'_> {
        self.partition(key).entry(place)
    }

    #[inline]
    fn change<T>(&mut self, key: Key<'_>, change: impl FnOnce(&mut Partition) -> T) -> T {
        let address = self.address(key);
        let result = self.locked.with(&self.slots[self.partition_number(key)], address, change);
        self.after_change(key);
        result
    }

    /// Creates or overwrites the key, of any kind, with a string; integers are recognised.
    #[inline]
    pub fn set_bytes(&mut self, key: Key<'_>, value: &[u8], expiry: Expiry) {
        self.set(key, Content::from_bytes(value), expiry);
    }

    /// Like [`Db::set_bytes`], for a short string that stays a string even if it is an integer.
    pub fn set_text(&mut self, key: Key<'_>, value: &[u8], expiry: Expiry) {
        match value.len() <= INLINE_MAX {
            true => self.set(key, Content::Bytes(value), expiry),
            false => self.set_bytes(key, value, expiry),
        }
    }

    /// Like [`Db::set_bytes`], but takes ownership of a large value
    /// without a copy unless more than a tenth of its buffer is spare.
    pub fn set_owned(&mut self, key: Key<'_>, mut value: Vec<u8>, expiry: Expiry) {
        if value.len() <= INLINE_MAX {
            self.set_bytes(key, &value, expiry);
            return;
        }
        if value.capacity() - value.len() > value.len() / 10 {
            value.shrink_to_fit();
        }
        self.set_shared(key, value.into(), expiry);
    }

    /// Like [`Db::set_bytes`], but keeps the buffer of a large value, which others may share.
    pub fn set_shared(&mut self, key: Key<'_>, value: SharedBytes, expiry: Expiry) {
        self.set(key, Content::Raw(value), expiry);
    }

    /// Sets a key to the integer that `update` computes from its current value (`None` if the key is absent). The
    /// key keeps its expiry. On an error nothing changes. Updates the access clock, as [`Db::get_for_write`] does.
    #[inline]
    pub fn update_int<E>(
        &mut self,
        key: Key<'_>,
        update: impl FnOnce(Option<Entry<'_>>) -> Result<i64, E>,
    ) -> Result<i64, E> {
        let Some(place) = self.locate(key) else {
            let number = update(None)?;
            self.insert(key, Content::Int(number), None);
            return Ok(number);
        };
        if self.env.touch {
            self.touch(key, place);
        }
        let old = self.entry(key, place);
        let (number, expiry, clock) = (update(Some(old))?, old.expiry(), old.clock());
        // An integer is overwritten in its entry: all integers have the same size.
        self.change(key, |partition| partition.overwrite(place, key, Content::Int(number), expiry, clock));
        Ok(number)
    }

    /// Adds a key that [`locate`](Self::locate) did not find.
    #[inline]
    fn insert(&mut self, key: Key<'_>, content: Content<'_>, expiry: Option<i64>) {
        if self.env.when_expired != WhenExpired::Drop {
            self.make_room(key);
        }
        let clock = self.env.access.fresh();
        self.change(key, |partition| partition.insert(key, content, expiry, clock));
        self.signal_ready(key);
        self.env.effects.notify(EventClass::NEW, "new", key.bytes);
    }

    /// Deletes a hidden expired key in the place of a key that is about to be added.
    #[cold]
    fn make_room(&mut self, key: Key<'_>) {
        if let Some(place) = self.partition(key).find(key) {
            self.drop_expired(key, place);
        }
    }

    #[inline]
    fn set(&mut self, key: Key<'_>, content: Content<'_>, expiry: Expiry) {
        match self.locate(key) {
            None => {
                let at = if let Expiry::At(at) = expiry { Some(at) } else { None };
                self.insert(key, content, at);
            }
            Some(place) => {
                let old = self.entry(key, place);
                let at = match expiry {
                    Expiry::None => None,
                    Expiry::Keep => old.expiry(),
                    Expiry::At(at) => Some(at),
                };
                let clock = self.env.access.touched(old.clock());
                let among_strings = old.kind() == Kind::String && !matches!(content, Content::Object(_));
                let keeps_sizes = among_strings && old.expiry().is_some() == at.is_some();
                if self.env.lazy_overwrite && old.is_costly_to_free() {
                    self.replace_large(key, place, content, at, clock);
                } else if keeps_sizes {
                    self.partition_mut(key).overwrite(place, key, content, at, clock);
                    self.after_change(key);
                } else {
                    self.change(key, |partition| partition.overwrite(place, key, content, at, clock));
                }
                if !among_strings {
                    self.signal_ready(key);
                }
            }
        }
    }

    /// Gives a key a new value and frees the old one in the background.
    #[cold]
    fn replace_large(&mut self, key: Key<'_>, place: Place, content: Content<'_>, at: Option<i64>, clock: u32) {
        let keyspace = self.keyspace();
        self.change(key, |partition| {
            discard(keyspace, partition, place, true);
            partition.insert(key, content, at, clock);
        });
    }

    /// The string's bytes for modification in place, created empty if absent and padded with zero bytes
    /// to `len_min`. The encoding becomes raw. The key must hold a string or be absent: check first.
    pub fn string_mut(&mut self, key: Key<'_>, len_min: usize) -> &mut [u8] {
        let buffer = self.raw_string(key);
        if buffer.len() < len_min {
            buffer.resize(len_min, 0);
        }
        buffer
    }

    /// Appends to a string, creating the key if absent; returns the
    /// new length. The key must hold a string or be absent.
    pub fn append(&mut self, key: Key<'_>, tail: &[u8]) -> usize {
        let buffer = self.raw_string(key);
        buffer.extend_from_slice(tail);
        buffer.len()
    }

    fn raw_string(&mut self, key: Key<'_>) -> &mut Vec<u8> {
        let place = match self.locate(key) {
            Some(place) => place,
            None => {
                self.set(key, Content::Raw(SharedBytes::default()), Expiry::None);
                // Just set, and without an expiry.
                self.locate(key).unwrap_or_else(|| unreachable!("a key that was just set is there"))
            }
        };
        self.after_change(key);
        // The sizes of the partition do not change, so they need not be published.
        self.partition_mut(key)
            .raw_string(place)
            .unwrap_or_else(|| unreachable!("checked to hold a string before it is changed"))
    }

    /// Removes the key; returns false if it is absent. With `lazy`, a large value is freed in the background.
    pub fn remove(&mut self, key: Key<'_>, lazy: bool) -> bool {
        let Some(place) = self.locate(key) else { return false };
        let keyspace = self.keyspace();
        self.change(key, |partition| discard(keyspace, partition, place, lazy));
        self.signal_ready(key);
        true
    }

    /// Deletes a key because a command gave it an expiry in the past; returns false if the key is absent. Counts as
    /// one change, is propagated as a deletion, since replicas' clocks may differ, and fires the event `expired`.
    pub fn expire(&mut self, key: Key<'_>) -> bool {
        let lazy = self.env.lazy_expire;
        if !self.remove(key, lazy) {
            return false;
        }
        self.env.counters.expired.add(1);
        self.env.effects.expired_by_command(key, lazy);
        true
    }

    /// Removes the key and returns its value and expiry.
    pub fn take(&mut self, key: Key<'_>) -> Option<(Value, Option<i64>)> {
        let place = self.locate(key)?;
        let taken = self.change(key, |partition| partition.take(place));
        self.signal_ready(key);
        Some(taken)
    }

    /// A copy of value and expiry, without the expired fields of a hash.
    pub fn copy_out(&mut self, key: Key<'_>) -> Option<(Value, Option<i64>)> {
        let clock = self.field_clock();
        let entry = self.peek(key)?;
        let value = match entry.collection::<Hash>() {
            Some(hash) => hash.copy_visible(clock).into(),
            None => entry.to_value(),
        };
        Some((value, entry.expiry()))
    }

    /// Creates or overwrites the key with a value from [`Db::take`] or [`Db::copy_out`].
    pub fn put(&mut self, key: Key<'_>, mut value: Value, expiry: Option<i64>) {
        self.set(key, Content::from_value(&mut value), expiry.map_or(Expiry::None, Expiry::At));
    }

    /// Creates a key with a loaded value; returns false and does nothing if the key exists.
    pub fn put_if_absent(&mut self, key: Key<'_>, mut value: Value, expiry: Option<i64>) -> bool {
        if self.partition(key).find(key).is_some() {
            return false;
        }
        let clock = self.env.access.fresh();
        self.change(key, |partition| partition.insert(key, Content::from_value(&mut value), expiry, clock));
        self.env.effects.notify(EventClass::NEW, "new", key.bytes);
        true
    }

    /// Sets or clears the expiry of a key; returns false if it is absent.
    pub fn set_expiry(&mut self, key: Key<'_>, at: Option<i64>) -> bool {
        let Some(place) = self.locate(key) else { return false };
        self.change(key, |partition| partition.set_expiry(place, at));
        true
    }

    /// Sets the access clock of a key, if it exists, to a loaded one.
    pub fn restore_clock(&mut self, key: Key<'_>, clock: u32) {
        if let Some(place) = self.partition(key).find(key) {
            self.set_clock(key, place, clock);
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keyspace().len(self.number)
    }

    /// True when there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` with every key that has neither expired nor is hidden. Needs the global lock.
    pub fn for_each(&mut self, visit: impl FnMut(Entry<'_>)) {
        self.for_each_in(0..self.keyspace().partitions(), Keyspace::partition_len, visit);
    }

    /// Like [`for_each`](Self::for_each), but also visits hidden keys.
    pub fn for_each_with_hidden(&mut self, visit: impl FnMut(Entry<'_>)) {
        self.for_each_in(0..self.keyspace().partitions(), Keyspace::partition_len_with_hidden, visit);
    }

    /// Like [`for_each`](Self::for_each), for the keys of one slot, in cluster mode.
    pub fn for_each_in_slot(&mut self, slot: u16, visit: impl FnMut(Entry<'_>)) {
        debug_assert!(self.keyspace().is_by_slot(), "slots are partitions in cluster mode");
        self.for_each_in(usize::from(slot)..usize::from(slot) + 1, Keyspace::partition_len, visit);
    }

    fn for_each_in(
        &mut self,
        partitions: std::ops::Range<usize>,
        len: impl Fn(&Keyspace, usize, usize) -> usize,
        mut visit: impl FnMut(Entry<'_>),
    ) {
        let env = &self.env;
        for partition in partitions {
            if len(self.keyspace(), self.database, partition) > 0 {
                let address = self.keyspace().address_of(self.database, partition);
                self.locked.partition(address).for_each(|entry| {
                    if !env.hides(&entry) {
                        visit(entry)
                    }
                });
            }
        }
    }

    /// Empties a database, in the background if `lazy`; returns the number of deleted keys. Needs the global lock.
    pub fn flush(&mut self, number: usize, lazy: bool) -> usize {
        self.notify_all_observers(number);
        self.all_changed();
        self.locked.flush(number, lazy)
    }

    /// Records that everything clients have cached is stale.
    fn all_changed(&mut self) {
        self.locked.clear_readers();
        self.env.effects.all_changed();
    }

    /// Notifies of a change of all keys of a database that clients wait for, and of the watched keys that exist.
    fn notify_all_observers(&mut self, number: usize) {
        let (effects, locked, now_ms) = (&mut *self.env.effects, &*self.locked, self.env.now_ms);
        locked.for_each_observers(number, |observers| {
            observers.queues.keys().for_each(|key| effects.note_ready_key(number, key));
            for key in observers.watchers.keys() {
                let hashed = locked.keyspace().key(key);
                let (live, overdue) =
                    (locked.is_live(number, hashed, now_ms), locked.has_expired(number, hashed, now_ms));
                let watches = observers.watchers.of(key).iter();
                watches.filter(|watch| live || (overdue && !watch.stale)).for_each(|watch| watch.watcher.touch());
            }
        });
    }

    /// Exchanges two databases. Needs the global lock.
    pub fn swap(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        self.exchange([a, b], |locked| locked.swap(a, b));
        self.all_changed();
        self.enter(self.number);
    }

    /// Exchanges all databases with their staging databases. Needs the global lock.
    pub fn exchange_staging(&mut self) {
        let keyspace = self.locked.keyspace();
        for number in 0..keyspace.databases() {
            self.exchange([number, keyspace.staging(number)], |locked| locked.swap_staging(number));
        }
        self.all_changed();
        self.enter(self.number);
    }

    fn exchange(&mut self, numbers: [usize; 2], exchange: impl FnOnce(&mut Locked)) {
        // Before and after the exchange, since a key may exist on either side.
        numbers.iter().for_each(|number| self.notify_all_observers(*number));
        exchange(self.locked);
        self.locked.mark_overdue_watches_stale(numbers, self.env.now_ms);
        numbers.iter().for_each(|number| self.notify_all_observers(*number));
    }
}

/// Notifies the clients interested in a key of its deletion by expiry or eviction.
pub(crate) fn notify_reclaimed(partition: &Partition, effects: &mut Effects, number: usize, key: Key<'_>) {
    let mut has_readers = false;
    if let Some(observers) = partition.observers() {
        if observers.queues.contains(key.bytes) {
            effects.note_ready_key(number, key.bytes);
        }
        observers.watchers.of(key.bytes).iter().filter(|watch| !watch.stale).for_each(|watch| watch.watcher.touch());
        has_readers = observers.tracked.contains(key);
    }
    effects.note_cached_reclaimed(number, key.bytes, has_readers);
}

/// Removes the entry at a place. With `lazy`, a large value is freed in the background.
pub(crate) fn discard(keyspace: &Keyspace, partition: &mut Partition, place: Place, lazy: bool) {
    if lazy && partition.entry(place).is_costly_to_free() {
        let bytes = partition.entry(place).external_memory(WEIGHED);
        let (value, _) = partition.take(place);
        keyspace.lazy_free.dispose(Garbage::Value { value, bytes });
    } else {
        partition.remove(place);
    }
}

#[cfg(test)]
mod tests;
