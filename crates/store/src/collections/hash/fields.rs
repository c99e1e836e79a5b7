//! The fields of a large hash, and of every hash that has fields with an expiry: a table of elements
//! ([`field_layout`]).
//!
//! Fields with an expiry are flagged in the table, so that a search for expired ones reads only flagged elements.
//! Expired fields are removed in **rounds** over the table, a bounded number of buckets at a time
//! ([`Fields::expire`]). A round begins only when there are fields to remove: [`Fields::wake_ms`] is never later than
//! the earliest expiry, except that after a round that found few expired fields the next one is delayed slightly.
//!
//! **Invariant**: an element is flagged if and only if it has an expiry.

use super::field_layout::{self, FieldLayout, Parts};
use super::{FieldClock, Stored};
use crate::defrag::Mover;
use crate::encodings::members::{Gathering, Layout, Members};
use crate::memory::size_class;
use crate::snapshot::pieces::Gradual;
use crate::table::{Place, Pointer, Table};
use crate::value::Expiry;

/// A round is worthwhile if at least one in this many of the visited fields had expired.
const WORTHWHILE_SHARE: usize = 10;
/// After a round that was not worthwhile, the next one is delayed by one millisecond per this many visited fields.
const FIELDS_PER_MS_OF_REST: usize = 64;

/// The fields of a hash. See the module documentation.
#[derive(Default)]
pub(super) struct Fields {
    members: Members<FieldLayout>,
    /// Present while a field has an expiry, and until the partition has recorded that none has.
    expiries: Option<Box<Expiries>>,
}

/// The state of active expiry of a hash.
struct Expiries {
    /// When to check for expired fields.
    wake_ms: i64,
    /// The time under which the partition has queued the hash.
    queued_ms: Option<i64>,
    round: Round,
}

/// A round in progress.
struct Round {
    position: u64,
    seen: usize,
    taken: usize,
    /// The earliest expiry among the fields that were visited and remain, and those set since.
    earliest_ms: i64,
}

impl Round {
    const NEW: Round = Round { position: 0, seen: 0, taken: 0, earliest_ms: i64::MAX };
}

impl Default for Expiries {
    fn default() -> Self {
        Expiries { wake_ms: i64::MAX, queued_ms: None, round: Round::NEW }
    }
}

/// The parts of an element in the table, while the table is borrowed.
#[inline]
fn parts<'a>(pointer: Pointer) -> Parts<'a> {
    // SAFETY: called with pointers that a table of this module
    // just returned, and the results do not outlive its borrow.
    unsafe { field_layout::parts(pointer) }
}

fn free(pointer: Pointer) {
    // SAFETY: called with pointers that were just removed from a table of this module.
    unsafe { FieldLayout::free(pointer) }
}

impl Fields {
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Number of fields with an expiry.
    pub fn volatile(&self) -> usize {
        self.members.flagged()
    }

    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<Parts<'_>> {
        self.members.find(name).map(parts)
    }

    pub fn iter(&self) -> impl Iterator<Item = Parts<'_>> {
        self.members.iter().map(parts)
    }

    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(Parts<'_>)) -> u64 {
        self.members.scan_some(cursor, count, |pointer| visit(parts(pointer)))
    }

    pub fn random(&self, random: impl FnMut() -> u64) -> Option<Parts<'_>> {
        self.members.random(random).map(parts)
    }

    /// Adds a field, which must be absent.
    pub fn insert_new(&mut self, new: Parts<'_>) {
        debug_assert!(new.expiry.is_none() && !self.members.contains(new.field));
        // SAFETY: created here, and known to be absent.
        unsafe { self.members.insert_new(field_layout::create(new), false) }
    }

    #[inline]
    pub fn set(&mut self, name: &[u8], value: &[u8], expiry: Expiry, clock: FieldClock) -> Stored {
        let given = if let Expiry::At(at) = expiry { Some(at) } else { None };
        match self.members.find_place(name) {
            Err(vacant) => {
                let pointer = field_layout::create(Parts { field: name, value, expiry: given });
                // SAFETY: created here, with the name that was looked up.
                unsafe { self.members.insert_at(vacant, pointer, given.is_some()) };
                self.expect(given);
                Stored::Added
            }
            Ok(place) => {
                // SAFETY: returned by the table just now.
                let before = unsafe { field_layout::expiry(self.members.get(place)) };
                let due = before.is_some_and(|at| clock.is_due(at));
                let after = if expiry == Expiry::Keep && !due { before } else { given };
                self.update(place, Some(value), after);
                if due { Stored::Revived } else { Stored::Replaced }
            }
        }
    }

    /// Sets or clears the expiry of a field if `allow` returns true
    /// for the current one; `None` if the field does not exist.
    pub fn set_expiry(
        &mut self,
        name: &[u8],
        expiry: Option<i64>,
        clock: FieldClock,
        allow: impl FnOnce(Option<i64>) -> bool,
    ) -> Option<bool> {
        let place = self.members.find_place(name).ok()?;
        // SAFETY: returned by the table just now.
        let before = unsafe { field_layout::expiry(self.members.get(place)) };
        if clock.hides(before) {
            return None;
        }
        let allowed = allow(before);
        if allowed {
            self.update(place, None, expiry);
        }
        Some(allowed)
    }

    #[inline]
    fn update(&mut self, place: Place, value: Option<&[u8]>, expiry: Option<i64>) {
        self.members.before_change(place);
        let pointer = self.members.get(place);
        // SAFETY: the table is borrowed exclusively, and the value comes from outside it. The new
        // element has the old one's name; the table then contains either the new one or the old one.
        unsafe {
            match field_layout::update(pointer, value, expiry) {
                None => {
                    self.members.replace(place, pointer, expiry.is_some());
                }
                Some(new) => free(self.members.replace(place, new, expiry.is_some())),
            }
        }
        self.expect(expiry);
    }

    /// Removes a field unless `clock` hides it; returns whether it was removed.
    pub fn remove(&mut self, name: &[u8], clock: FieldClock) -> bool {
        let Ok(place) = self.members.find_place(name) else { return false };
        // SAFETY: returned by the table just now.
        if clock.hides(unsafe { field_layout::expiry(self.members.get(place)) }) {
            return false;
        }
        free(self.members.remove_at(place));
        true
    }

    /// Records an expiry that was set.
    #[inline]
    fn expect(&mut self, expiry: Option<i64>) {
        if let Some(at) = expiry {
            let expiries = self.expiries.get_or_insert_default();
            expiries.wake_ms = expiries.wake_ms.min(at);
            expiries.round.earliest_ms = expiries.round.earliest_ms.min(at);
        }
    }

    /// When to check for expired fields; `None` if no field has an expiry.
    pub fn wake_ms(&self) -> Option<i64> {
        let expiries = self.expiries.as_ref().filter(|_| self.volatile() > 0)?;
        Some(expiries.wake_ms)
    }

    /// The time under which the partition has queued the hash.
    pub fn queued_ms(&self) -> Option<i64> {
        self.expiries.as_ref()?.queued_ms
    }

    /// Records the time under which the partition has queued the hash; `None` if it has not.
    pub fn set_queued_ms(&mut self, queued_ms: Option<i64>) {
        if let Some(expiries) = &mut self.expiries {
            expiries.queued_ms = queued_ms;
        }
        if self.volatile() == 0 && queued_ms.is_none() {
            self.expiries = None;
        }
    }

    /// Continues a round over up to `buckets` buckets: removes the fields that
    /// expired before `now_ms` and calls `taken` with their names. Returns true
    /// when the round is over; [`Fields::wake_ms`] is then the start of the next.
    pub fn expire(&mut self, now_ms: i64, buckets: usize, mut taken: impl FnMut(&[u8])) -> bool {
        let Some(expiries) = &mut self.expiries else { return true };
        let round = &mut expiries.round;
        let mut due: Vec<Vec<u8>> = Vec::new();
        let next = self.members.scan_flagged(round.position, buckets, |pointer| {
            let found = parts(pointer);
            round.seen += 1;
            match found.expiry {
                Some(at) if at < now_ms => due.push(found.field.to_vec()),
                Some(at) => round.earliest_ms = round.earliest_ms.min(at),
                None => {}
            }
        });
        for name in due {
            // A bucket may have been visited twice.
            if let Some(pointer) = self.members.remove(&name) {
                free(pointer);
                taken(&name);
                round.taken += 1;
            }
        }
        match next {
            Some(position) => {
                round.position = position;
                false
            }
            None => {
                let futile = round.taken * WORTHWHILE_SHARE < round.seen;
                let rest_ms = if futile { round.seen / FIELDS_PER_MS_OF_REST } else { 0 };
                expiries.wake_ms = round.earliest_ms.max(now_ms.saturating_add(rest_ms as i64));
                expiries.round = Round::NEW;
                true
            }
        }
    }

    /// See [`Collection::gradual`](super::Collection::gradual).
    pub fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        self.members.gradual()
    }

    pub fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if let Some(expiries) = self.expiries.as_mut().filter(|_| position == 0) {
            mover.offer_box(expiries);
        }
        self.members.relocate(position, mover)
    }

    /// The table of the fields.
    pub fn table(&self) -> &Table {
        self.members.table()
    }

    pub fn memory(&self, samples: usize) -> usize {
        let expiries = if self.expiries.is_some() { size_class(size_of::<Expiries>()) } else { 0 };
        size_class(size_of::<Self>()) + expiries + self.members.memory(samples)
    }
}

impl Clone for Fields {
    /// The clone is not in any queue.
    fn clone(&self) -> Self {
        let mut clone = Fields { members: self.members.clone(), expiries: None };
        clone.expect(self.wake_ms());
        clone
    }
}

/// Collects the fields of a large hash that are loaded one after the other.
pub(super) struct FieldGathering {
    members: Gathering<FieldLayout>,
    earliest_ms: Option<i64>,
}

impl FieldGathering {
    pub fn new(claimed: usize) -> Self {
        FieldGathering { members: Gathering::new(claimed), earliest_ms: None }
    }

    #[inline]
    pub fn add(&mut self, new: Parts<'_>) {
        if let Some(at) = new.expiry {
            self.earliest_ms = Some(self.earliest_ms.map_or(at, |earliest| earliest.min(at)));
        }
        // SAFETY: the element is new, and ownership passes to the table.
        unsafe { self.members.add(field_layout::create(new), new.expiry.is_some()) };
    }

    /// The fields; `None` if one occurred twice.
    pub fn finish(self) -> Option<Fields> {
        let mut fields = Fields { members: self.members.finish()?, expiries: None };
        fields.expect(self.earliest_ms);
        Some(fields)
    }
}
