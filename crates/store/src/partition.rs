//! A partition: one table of entries, and a safe interface for all operations on them.
//!
//! # Safety
//!
//! Every pointer in a partition's table was made by [`entry::build`] and is freed only after it was removed from
//! the table. An [`Entry`] that is returned borrows the partition, so the compiler prevents changes while it lives.

use crate::collections::hash::State;
use crate::collections::{Collection, Hash};
use crate::defrag::{Mover, Work};
use crate::entry::{self, Content, Entry};
use crate::hash::{Key, KeyHasher};
use crate::object::Value;
use crate::snapshot::capture::{Capture, Snapshot};
use crate::table::{Place, Pointer, Table, prefetch_address};
use crate::tracking::TrackedKeys;
use crate::waiting::Queues;
use crate::watching::Watchers;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Buckets of a hash that are searched for expired fields per lock acquisition.
const FIELD_BUCKETS_PER_STEP: usize = 64;

/// Limit on the work per lock acquisition during a capture, in units
/// of [`Entry::capture_effort`]; the last entry may exceed it.
const CAPTURE_EFFORT_PER_STEP: usize = 4096;

/// Entries of a sample that are kept without an allocation.
const SAMPLE: usize = 16;

/// The clients that wait for, watch or have read some of a partition's keys.
#[derive(Default)]
pub(crate) struct Observers {
    /// Clients blocked on keys.
    pub(crate) queues: Queues,
    /// Clients that WATCH keys.
    pub(crate) watchers: Watchers,
    /// Keys that clients have read and may cache.
    pub(crate) tracked: TrackedKeys,
}

/// A large collection that defragmentation has yet to process.
pub(crate) struct Deferred {
    key: Box<[u8]>,
    position: u64,
}

/// Entries under one lock.
pub struct Partition {
    table: Table,
    hasher: &'static KeyHasher,
    /// Marks entries written since the last snapshot began.
    epoch: bool,
    /// Position at which the next sweep of keys continues: see [`Table::scan`].
    swept_to: u64,
    /// The waiters, watchers and readers of its keys, if any.
    observers: Option<Box<Observers>>,
    /// The hashes that have fields with an expiry: the time at which to check each
    /// one (also stored in the hash: [`Hash::queued_ms`]), and the hash of its key.
    volatile_hashes: BTreeSet<(i64, u64)>,
    /// The running snapshot of this partition, if any.
    capture: Option<Box<Capture>>,
}

impl Partition {
    pub(crate) fn new(hasher: &'static KeyHasher) -> Self {
        Partition {
            table: Table::new(),
            hasher,
            epoch: false,
            swept_to: 0,
            observers: None,
            volatile_hashes: BTreeSet::new(),
            capture: None,
        }
    }

    /// Reserves room for `keys` keys, if the partition is empty.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.table.reserve(keys);
    }

    /// Frees the table if there are no keys, and returns its size in bytes. Commands that remove the last key keep the
    /// table, which the next key will need.
    pub(crate) fn release_empty_table(&mut self) -> usize {
        if !self.is_empty() {
            return 0;
        }
        let bytes = self.table.memory();
        self.table.release();
        bytes
    }

    /// Number of keys, including expired ones that have not been deleted yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether nothing is stored for it: no keys, no table for future keys, and no state of a snapshot.
    pub(crate) fn is_pristine(&self) -> bool {
        self.is_empty() && self.table.memory() == 0 && self.capture.is_none()
    }

    /// True when there are no keys.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Number of keys with an expiry.
    pub fn volatile(&self) -> usize {
        self.table.flagged()
    }

    /// The table, for statistics and prefetching.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Finds the place of a key.
    #[inline]
    pub fn find(&self, key: Key<'_>) -> Option<Place> {
        self.find_entry(key).map(|(place, _)| place)
    }

    /// Finds the place of a key and its entry.
    #[inline]
    pub fn find_entry(&self, key: Key<'_>) -> Option<(Place, Entry<'_>)> {
        // SAFETY: pointers in the table are live (see the module's documentation).
        let has_key = |pointer| unsafe { Entry::from_pointer(pointer) }.has_key(key.bytes);
        // SAFETY: live, and borrowed from `self`.
        self.table.find_element(key.hash, has_key).map(|(place, found)| (place, unsafe { Entry::from_pointer(found) }))
    }

    /// Finds the place of a key with this hash.
    pub(crate) fn find_hash(&self, hash: u64) -> Option<Place> {
        // SAFETY: live.
        self.table.find(hash, |pointer| self.hasher.hash(unsafe { Entry::from_pointer(pointer) }.key()) == hash)
    }

    /// The entry at a place.
    #[inline]
    pub fn entry(&self, place: Place) -> Entry<'_> {
        // SAFETY: live, and borrowed from `self`.
        unsafe { Entry::from_pointer(self.table.get(place)) }
    }

    /// Adds a key, which must be absent.
    #[inline]
    pub fn insert(&mut self, key: Key<'_>, content: Content<'_>, expiry: Option<i64>, clock: u32) {
        let is_collection = matches!(content, Content::Object(_));
        let pointer = entry::build(key.bytes, content, expiry, clock, self.epoch);
        if is_collection {
            self.queue(key.hash, pointer);
            self.note_moved(key.bytes, pointer);
        }
        let hasher = self.hasher;
        self.table.insert(key.hash, pointer, expiry.is_some(), |other| {
            // SAFETY: live.
            hasher.hash(unsafe { Entry::from_pointer(other) }.key())
        });
    }

    /// Lets the running snapshot, if any, capture an entry that is
    /// about to change or be removed, unless it already has.
    #[inline]
    fn before_change(&mut self, place: Place) {
        if self.capture.is_some() {
            self.capture(self.table.get(place));
        }
    }

    /// Captures an entry, or begins to if its value is captured in pieces. Returns roughly how much work that was.
    #[cold]
    fn capture(&self, pointer: Pointer) -> usize {
        // SAFETY: live; nobody else uses it, as the partition is locked.
        unsafe {
            let entry = Entry::from_pointer(pointer);
            let Some(capture) = self.capture.as_ref().filter(|_| entry.epoch() != self.epoch) else { return 0 };
            entry::set_epoch(pointer, self.epoch);
            if entry::gradual(pointer).is_none() {
                capture.take(entry);
                return entry.capture_effort();
            }
            if let Some(pieces) = capture.begin(entry)
                && let Some(gradual) = entry::gradual(pointer)
            {
                gradual.begin(pieces);
            }
            1
        }
    }

    /// Captures the next piece of a value that is captured in pieces; returns whether more remain.
    fn capture_more(&self, pointer: Pointer) -> bool {
        // SAFETY: live; nobody else uses it, as the partition is locked.
        unsafe { entry::gradual(pointer) }.is_some_and(|gradual| gradual.captures().is_some() && gradual.capture_next())
    }

    /// Captures the next piece of a key's value, if it is captured in pieces; returns whether more remain.
    pub(crate) fn capture_moved(&mut self, key: Key<'_>) -> bool {
        self.find(key).is_some_and(|place| self.capture_more(self.table.get(place)))
    }

    /// Registers with the snapshot a value that was moved to this key while the snapshot was capturing it in pieces.
    fn note_moved(&self, key: &[u8], pointer: Pointer) {
        // SAFETY: live; nobody else uses it, as the partition is locked.
        if let Some(captures) = unsafe { entry::gradual(pointer) }.and_then(|gradual| gradual.captures()) {
            captures.note_moved(key);
        }
    }

    /// Joins a snapshot: all present entries will be captured.
    pub(crate) fn begin_capture(&mut self, capture: Capture) {
        if !self.is_empty() {
            self.epoch = !self.epoch;
            self.capture = Some(Box::new(capture));
        }
    }

    /// Captures the entries of up to `buckets` buckets from `position` on, fewer if they
    /// are large. Returns the position to continue from; `None` when all is captured.
    pub(crate) fn capture_from(&mut self, mut position: u64, buckets: usize) -> Option<u64> {
        self.capture.as_ref()?;
        let mut effort = 0;
        for _ in 0..buckets {
            let next = self.table.scan(position, |pointer, _| {
                if effort < CAPTURE_EFFORT_PER_STEP {
                    effort += self.capture(pointer);
                    if self.capture_more(pointer) {
                        effort = CAPTURE_EFFORT_PER_STEP;
                    }
                }
            });
            if effort >= CAPTURE_EFFORT_PER_STEP {
                // The next call skips the entries that were captured here.
                break;
            }
            let Some(next) = next else {
                self.capture = None;
                return None;
            };
            position = next;
        }
        Some(position)
    }

    /// The running snapshot of this partition, if any.
    pub(crate) fn snapshot(&self) -> Option<&std::sync::Arc<Snapshot>> {
        self.capture.as_ref().map(|capture| capture.snapshot())
    }

    /// Gives an existing key a new value and expiry, in its old allocation if they fit.
    #[inline]
    pub fn overwrite(&mut self, place: Place, key: Key<'_>, content: Content<'_>, expiry: Option<i64>, clock: u32) {
        self.before_change(place);
        let old = self.table.get(place);
        self.unqueue(old);
        let is_collection = matches!(content, Content::Object(_));
        // SAFETY: live, and `self` is borrowed exclusively; a replaced entry is freed after it left the table.
        unsafe {
            match entry::overwrite(old, content, expiry, clock, self.epoch) {
                Ok(()) => self.table.replace(place, old, expiry.is_some()),
                Err(content) => {
                    let new = entry::build(key.bytes, content, expiry, clock, self.epoch);
                    self.table.replace(place, new, expiry.is_some());
                    entry::free(old);
                }
            }
        }
        if is_collection {
            self.queue(key.hash, self.table.get(place));
            self.note_moved(key.bytes, self.table.get(place));
        }
    }

    /// Sets or clears the expiry of a key.
    pub fn set_expiry(&mut self, place: Place, expiry: Option<i64>) {
        self.before_change(place);
        let (old, clock) = (self.table.get(place), self.entry(place).clock());
        // SAFETY: live; the key is copied before the entry is rebuilt.
        let key = unsafe { Entry::from_pointer(old) }.key().to_vec();
        // SAFETY: the table receives the new entry before it is read again.
        let (mut value, _) = unsafe { entry::into_value(old) };
        let new = entry::build(&key, Content::from_value(&mut value), expiry, clock, self.epoch);
        self.table.replace(place, new, expiry.is_some());
    }

    /// The buffer of the string at a place; a string or integer in the entry is first moved to a buffer.
    pub fn raw_string(&mut self, place: Place) -> Option<&mut Vec<u8>> {
        self.before_change(place);
        let old = self.table.get(place);
        // SAFETY: live and exclusively borrowed; a replaced entry is freed after it left the table.
        unsafe {
            if entry::raw_mut(old).is_none() {
                let borrowed = Entry::from_pointer(old);
                let (key, expiry, clock) = (borrowed.key(), borrowed.expiry(), borrowed.clock());
                let mut buffer = Default::default();
                let bytes = borrowed.str()?.bytes(&mut buffer).to_vec().into();
                let new = entry::build(key, Content::Raw(bytes), expiry, clock, self.epoch);
                self.table.replace(place, new, expiry.is_some());
                entry::free(old);
            }
            entry::raw_mut(self.table.get(place))
        }
    }

    /// The collection at a place, for modification.
    #[inline]
    pub fn collection_mut<C: Collection>(&mut self, place: Place) -> Option<&mut C> {
        self.before_change(place);
        // SAFETY: live and exclusively borrowed.
        unsafe { entry::collection_mut(self.table.get(place)) }
    }

    /// Number of hashes that have fields with an expiry.
    #[inline]
    pub(crate) fn volatile_hashes(&self) -> usize {
        self.volatile_hashes.len()
    }

    /// Queues the hash at a place for active expiry of its fields; `key_hash` is the hash of its key.
    pub(crate) fn note_expiries(&mut self, place: Place, key_hash: u64) {
        self.queue(key_hash, self.table.get(place));
    }

    /// Queues a hash for active expiry of its fields, moves it to an earlier position
    /// or removes it from the queue, depending on the expiries of its fields.
    #[inline]
    fn queue(&mut self, key_hash: u64, entry: Pointer) {
        // SAFETY: live and exclusively borrowed.
        let Some(hash) = (unsafe { entry::collection_mut::<Hash>(entry) }) else { return };
        if hash.state() == State::Unqueued {
            self.requeue(key_hash, hash);
        }
    }

    #[cold]
    fn requeue(&mut self, key_hash: u64, hash: &mut Hash) {
        if let Some(before) = hash.queued_ms() {
            self.volatile_hashes.remove(&(before, key_hash));
        }
        let wake_ms = hash.wake_ms();
        hash.set_queued_ms(wake_ms);
        if let Some(wake_ms) = wake_ms {
            self.volatile_hashes.insert((wake_ms, key_hash));
        }
    }

    /// Removes from the expiry queue an entry that is about to be deleted.
    #[inline]
    fn unqueue(&mut self, entry: Pointer) {
        if !self.volatile_hashes.is_empty() {
            self.unqueue_hash(entry);
        }
    }

    #[cold]
    fn unqueue_hash(&mut self, entry: Pointer) {
        // SAFETY: live and exclusively borrowed.
        let (key, hash) = unsafe { (Entry::from_pointer(entry).key(), entry::collection_mut::<Hash>(entry)) };
        let key_hash = self.hasher.hash(key);
        if let Some((hash, queued_ms)) = hash.and_then(|hash| hash.queued_ms().map(|at| (hash, at))) {
            hash.set_queued_ms(None);
            self.volatile_hashes.remove(&(queued_ms, key_hash));
        }
    }

    /// The place of a hash that is due before `now_ms`, if any, and the hash of its key.
    pub(crate) fn next_due_hash(&self, now_ms: i64) -> Option<(Place, u64)> {
        let &(queued_ms, key_hash) = self.volatile_hashes.first().filter(|(at, _)| *at < now_ms)?;
        let place = self.table.find(key_hash, |pointer| {
            // SAFETY: live.
            let hash = unsafe { Entry::from_pointer(pointer) }.collection::<Hash>();
            hash.is_some_and(|hash| hash.queued_ms() == Some(queued_ms))
        });
        debug_assert!(place.is_some(), "what is in the queue is there");
        Some((place?, key_hash))
    }

    /// Removes fields that expired before `now_ms` from the hash at a place,
    /// in a bounded number of its buckets, and calls `taken` with each.
    pub(crate) fn expire_fields(&mut self, place: Place, key_hash: u64, now_ms: i64, taken: impl FnMut(&[u8])) {
        let Some(hash) = self.collection_mut::<Hash>(place) else { return };
        if !hash.expire(now_ms, FIELD_BUCKETS_PER_STEP, taken) {
            return;
        }
        let queued_ms = hash.queued_ms();
        hash.set_queued_ms(None);
        if let Some(queued_ms) = queued_ms {
            self.volatile_hashes.remove(&(queued_ms, key_hash));
        }
        self.note_expiries(place, key_hash);
    }

    /// The waiters, watchers and readers of its keys, if any.
    #[inline]
    pub(crate) fn observers(&self) -> Option<&Observers> {
        self.observers.as_deref()
    }

    /// Changes the waiters, watchers and readers of its keys.
    pub(crate) fn change_observers<T>(&mut self, change: impl FnOnce(&mut Observers) -> T) -> T {
        let observers = self.observers.get_or_insert_default();
        let result = change(observers);
        if observers.queues.is_empty() && observers.watchers.is_empty() && observers.tracked.is_empty() {
            self.observers = None;
        }
        result
    }

    /// Exchanges the waiters, watchers and readers of `self` and `other`.
    pub(crate) fn swap_observers(&mut self, other: &mut Partition) {
        std::mem::swap(&mut self.observers, &mut other.observers);
    }

    /// Whether a key exists and has not expired.
    pub(crate) fn is_live(&self, key: Key<'_>, now_ms: i64) -> bool {
        self.find(key).is_some_and(|place| !self.entry(place).is_expired(now_ms))
    }

    /// Whether a key exists but has expired.
    pub(crate) fn has_expired(&self, key: Key<'_>, now_ms: i64) -> bool {
        self.find(key).is_some_and(|place| self.entry(place).is_expired(now_ms))
    }

    /// Marks the watches of keys that have expired as stale.
    pub(crate) fn mark_overdue_watches_stale(&mut self, now_ms: i64) {
        if let Some(mut observers) = self.observers.take() {
            observers
                .watchers
                .mark_stale(|bytes| self.has_expired(Key { bytes, hash: self.hasher.hash(bytes) }, now_ms));
            self.observers = Some(observers);
        }
    }

    /// Sets the access clock of the entry at a place.
    #[inline]
    pub fn set_clock(&mut self, place: Place, clock: u32) {
        // SAFETY: live and exclusively borrowed.
        unsafe { entry::set_clock(self.table.get(place), clock) }
    }

    /// Removes a key and frees it.
    pub fn remove(&mut self, place: Place) {
        self.before_change(place);
        self.unqueue(self.table.get(place));
        let pointer = self.table.remove(place);
        // SAFETY: taken out of the table.
        unsafe { entry::free(pointer) }
    }

    /// Removes a key and returns its value and expiry.
    pub fn take(&mut self, place: Place) -> (Value, Option<i64>) {
        self.before_change(place);
        self.unqueue(self.table.get(place));
        let pointer = self.table.remove(place);
        // SAFETY: taken out of the table.
        unsafe { entry::into_value(pointer) }
    }

    /// Calls `visit` with every entry.
    pub fn for_each(&self, mut visit: impl FnMut(Entry<'_>)) {
        // SAFETY: live, and borrowed from `self`.
        self.table.for_each(|pointer| visit(unsafe { Entry::from_pointer(pointer) }));
    }

    /// Visits the bucket at `position`: see [`Table::scan`].
    pub fn scan(&self, position: u64, mut visit: impl FnMut(Entry<'_>)) -> Option<u64> {
        // SAFETY: as above.
        self.table.scan(position, |pointer, _| visit(unsafe { Entry::from_pointer(pointer) }))
    }

    /// Visits the entries with an expiry in up to `buckets` buckets, continuing where the last
    /// call stopped. Returns true at the end of the table, after which the next call starts over.
    pub(crate) fn sweep(&mut self, buckets: usize, visit: impl FnMut(Entry<'_>)) -> bool {
        let next = self.scan_volatile(self.swept_to, buckets, visit);
        self.swept_to = next.unwrap_or(0);
        next.is_none()
    }

    /// Visits entries with an expiry in up to `buckets` buckets: see [`Table::scan_flagged`].
    pub fn scan_volatile(&self, position: u64, buckets: usize, mut visit: impl FnMut(Entry<'_>)) -> Option<u64> {
        // SAFETY: as above.
        self.table.scan_flagged(position, buckets, |pointer| visit(unsafe { Entry::from_pointer(pointer) }))
    }

    /// Visits about `wanted` entries, only those with an expiry if `volatile`, from
    /// `position` on: see [`Table::sample`]. Prefetches all of them before the first visit.
    pub(crate) fn sample(
        &self,
        position: u64,
        buckets: usize,
        wanted: usize,
        volatile: bool,
        mut visit: impl FnMut(Entry<'_>),
    ) -> Option<u64> {
        let mut found: SmallVec<[Pointer; SAMPLE]> = SmallVec::new();
        let next = self.table.sample(position, buckets, wanted, volatile, |pointer| {
            prefetch_address(pointer.as_ptr());
            found.push(pointer);
        });
        // SAFETY: live, and borrowed from `self`.
        found.iter().for_each(|pointer| visit(unsafe { Entry::from_pointer(*pointer) }));
        next
    }

    /// Offers entries and their values to a mover, from `position` in the table on:
    /// see [`Table::relocate`]. Large collections are added to `deferred` instead.
    pub(crate) fn relocate(
        &mut self,
        position: u64,
        mover: &mut Mover<'_>,
        deferred: &mut Vec<Deferred>,
        work: &mut Work,
    ) -> Option<u64> {
        self.table.relocate(position, mover, |mover, pointer| {
            let moved = mover.moved();
            // SAFETY: live and exclusively borrowed; the table takes the new pointer.
            let (now, next) = unsafe {
                let now = entry::relocate(pointer, mover);
                let is_large = mover.defers(Entry::from_pointer(now).elements());
                (now, if is_large { Some(0) } else { entry::relocate_external(now, 0, mover) })
            };
            if let Some(position) = next {
                // SAFETY: live.
                let key = unsafe { Entry::from_pointer(now) }.key().into();
                deferred.push(Deferred { key, position });
            }
            *if mover.moved() > moved { &mut work.keys_moved } else { &mut work.keys_kept } += 1;
            now
        })
    }

    /// Continues with a collection that was put off, if it still exists; returns whether it is done.
    pub(crate) fn relocate_deferred(&mut self, deferred: &mut Deferred, mover: &mut Mover<'_>) -> bool {
        let key = Key { bytes: &deferred.key, hash: self.hasher.hash(&deferred.key) };
        let Some(place) = self.find(key) else { return true };
        // SAFETY: live and exclusively borrowed.
        match unsafe { entry::relocate_external(self.table.get(place), deferred.position, mover) } {
            Some(position) => deferred.position = position,
            None => return true,
        }
        false
    }

    /// An entry chosen uniformly at random.
    pub fn random(&self, random: impl FnMut() -> u64) -> Option<Entry<'_>> {
        // SAFETY: as above.
        self.table.random(random).map(|pointer| unsafe { Entry::from_pointer(pointer) })
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let free = |pointer: Pointer| {
            // SAFETY: the table is dropped right after and does not read its elements.
            unsafe { entry::free(pointer) }
        };
        self.table.for_each(free);
    }
}

// SAFETY: a partition owns its entries, and entries own what they point to.
unsafe impl Send for Partition {}
