//! Lookups: expiry, the access clock, and the counters of hits and misses.

use super::{Db, WhenExpired, WrongType, discard, notify_reclaimed};
use crate::collections::Collection;
use crate::collections::hash::FieldClock;
use crate::effects::EventClass;
use crate::entry::Entry;
use crate::hash::Key;
use crate::table::Place;

impl Db<'_> {
    /// Finds the place of a key that exists and has not expired; deletes an expired key.
    #[inline(always)]
    pub(super) fn locate(&mut self, key: Key<'_>) -> Option<Place> {
        let (place, entry) = self.partition(key).find_entry(key)?;
        if entry.has_expiry() && !self.is_visible(key, place) {
            return None;
        }
        Some(place)
    }

    /// Whether a key with an expiry is visible; deletes it if it has expired and expired keys are to be deleted.
    fn is_visible(&mut self, key: Key<'_>, place: Place) -> bool {
        let hidden = self.env.hides(&self.entry(key, place));
        if hidden && self.env.when_expired == WhenExpired::Drop {
            self.drop_expired(key, place);
        }
        !hidden
    }

    /// Whether a key that is given this expiry must be deleted at once: the time has passed, and import mode is off.
    #[inline]
    pub fn is_due(&self, at: i64) -> bool {
        at <= self.env.now_ms && matches!(self.env.when_expired, WhenExpired::Drop | WhenExpired::Keep)
    }

    /// How expired fields of hashes are treated.
    #[inline]
    pub fn field_clock(&self) -> FieldClock {
        let hides = self.env.when_expired != WhenExpired::ImportSource;
        let drops = matches!(self.env.when_expired, WhenExpired::Drop | WhenExpired::Keep);
        FieldClock::new(self.env.now_ms, hides, drops)
    }

    /// Queues the hash at a key for active expiry of its fields, as the hash
    /// requested (see [`State::Unqueued`](crate::collections::hash::State)).
    #[cold]
    pub fn note_expiries(&mut self, key: Key<'_>) {
        if let Some(place) = self.partition(key).find(key) {
            self.change(key, |partition| partition.note_expiries(place, key.hash));
        }
    }

    /// Counts fields that a command removed or replaced because they had expired.
    pub fn count_expired_fields(&self, fields: usize) {
        self.env.counters.expired_fields.add(fields as u64);
    }

    #[cold]
    pub(super) fn drop_expired(&mut self, key: Key<'_>, place: Place) {
        let (keyspace, lazy) = (self.keyspace(), self.env.lazy_expire);
        let address = self.address(key);
        let (slot, effects, number) = (&self.slots[self.partition_number(key)], &mut *self.env.effects, self.number);
        self.locked.with(slot, address, |partition| {
            discard(keyspace, partition, place, lazy);
            notify_reclaimed(partition, effects, number, key);
        });
        self.env.counters.expired.add(1);
        self.env.effects.expired(key, lazy);
    }

    #[inline(always)]
    pub(super) fn touch(&mut self, key: Key<'_>, place: Place) {
        let clock = self.partition(key).entry(place).clock();
        let touched = self.env.access.touched(clock);
        if touched != clock {
            self.set_clock(key, place, touched);
        }
    }

    /// Sets the access clock of a key, if it exists. [`Access`](crate::access::Access) computes clocks from idle times
    /// and frequencies.
    pub fn set_access_clock(&mut self, key: Key<'_>, clock: u32) {
        if let Some(place) = self.locate(key) {
            self.set_clock(key, place, clock);
        }
    }

    #[cold]
    pub(super) fn set_clock(&mut self, key: Key<'_>, place: Place, clock: u32) {
        self.partition_mut(key).set_clock(place, clock);
    }

    /// Looks up a key for a reading command: counts a hit or a miss, notifies of a miss, updates the access clock.
    #[inline]
    pub fn get(&mut self, key: Key<'_>) -> Option<Entry<'_>> {
        let touch = self.env.touch;
        self.look_up(key, touch, true)
    }

    /// Like [`Db::get`], but does not update the access clock (EXISTS, TTL, TYPE).
    pub fn get_untouched(&mut self, key: Key<'_>) -> Option<Entry<'_>> {
        self.look_up(key, false, true)
    }

    /// Like [`Db::get`], but updates the access clock even for a client with CLIENT NO-TOUCH (TOUCH).
    pub fn get_touched(&mut self, key: Key<'_>) -> Option<Entry<'_>> {
        self.look_up(key, true, true)
    }

    /// Like [`Db::get_untouched`], but does not notify of a miss (OBJECT).
    pub fn inspect(&mut self, key: Key<'_>) -> Option<Entry<'_>> {
        self.look_up(key, false, false)
    }

    #[inline]
    fn look_up(&mut self, key: Key<'_>, touch: bool, notify: bool) -> Option<Entry<'_>> {
        let access = self.env.access;
        let found = self.partition(key).find_entry(key).map(|(place, entry)| {
            let stays_as_it_is = !touch || access.touched(entry.clock()) == entry.clock();
            (place, (!entry.has_expiry() && stays_as_it_is).then(|| entry.pointer()))
        });
        let Some((place, entry)) = found else {
            self.miss(key, notify);
            return None;
        };
        let Some(entry) = entry else { return self.look_up_changing(key, place, touch, notify) };
        self.env.counters.hits.add(1);
        // SAFETY: live, as it was found just now, and borrowed from `self`.
        Some(unsafe { Entry::from_pointer(entry) })
    }

    /// Continues a lookup of a key that has an expiry or whose access clock changes.
    fn look_up_changing(&mut self, key: Key<'_>, place: Place, touch: bool, notify: bool) -> Option<Entry<'_>> {
        if self.entry(key, place).has_expiry() && !self.is_visible(key, place) {
            self.miss(key, notify);
            return None;
        }
        self.env.counters.hits.add(1);
        if touch {
            self.touch(key, place);
        }
        Some(self.entry(key, place))
    }

    #[cold]
    fn miss(&mut self, key: Key<'_>, notify: bool) {
        self.env.counters.misses.add(1);
        if notify {
            self.env.effects.notify(EventClass::KEY_MISS, "keymiss", key.bytes);
        }
    }

    /// Looks up a key for a writing command: updates the access clock, counts nothing.
    #[inline]
    pub fn get_for_write(&mut self, key: Key<'_>) -> Option<Entry<'_>> {
        let place = self.locate(key)?;
        if self.env.touch {
            self.touch(key, place);
        }
        Some(self.entry(key, place))
    }

    /// Looks up a key without updating its access clock or counting.
    #[inline]
    pub fn peek(&mut self, key: Key<'_>) -> Option<Entry<'_>> {
        let place = self.locate(key)?;
        Some(self.entry(key, place))
    }

    /// The collection at a key, for a reading command: see [`Db::get`].
    #[inline]
    pub fn read<C: Collection>(&mut self, key: Key<'_>) -> Result<Option<&C>, WrongType> {
        self.get(key).map(|entry| entry.collection().ok_or(WrongType)).transpose()
    }

    /// The collection at a key that was already looked up with [`Db::read`] or [`Db::write`], for
    /// commands that access several collections at once. Expires, counts and updates nothing.
    #[inline]
    pub fn view<C: Collection>(&self, key: Key<'_>) -> Option<&C> {
        let partition = self.partition(key);
        let entry = partition.entry(partition.find(key)?);
        if self.env.hides(&entry) { None } else { entry.collection() }
    }
}
