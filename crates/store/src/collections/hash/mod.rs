//! Hashes: fields with values, some of them with an expiry.
//!
//! A small hash is a [`Listpack`] of alternating fields and values. Above a certain size it is
//! stored as [`Pairs`], which have the same content in several pieces and take less memory; clients
//! cannot distinguish the two. A hash becomes a table of [`fields`] when it has too many of them or
//! one is too long ([`Limits`]), or when a field receives an expiry, and then remains one.
//!
//! An expired field is hidden ([`FieldClock`]), but counts in [`Hash::len`] and stays in memory until
//! active expiry removes it ([`Hash::expire`]) or it is set again. The partition keeps hashes with expiring
//! fields in a queue ordered by the time at which to check them; the hash stores the time under which it is
//! queued. Commands that change expiries notify the database if [`Hash::state`] is [`State::Unqueued`].

pub(crate) mod field;
mod field_layout;
mod fields;
#[cfg(test)]
mod tests;

pub use field::Field;

use super::collection::{Collection, Inside};
use crate::defrag::Mover;
use crate::encodings::Corrupt;
use crate::encodings::listpack::{self, At, Element, Listpack};
use crate::encodings::pairs::Pairs;
use crate::memory::size_class;
use crate::snapshot::pieces::Gradual;
use crate::value::{Expiry, IntBuf, Kind, Str};
use crate::word::Word;
use field_layout::Parts;
use fields::{FieldGathering, Fields};

/// A hash.
#[repr(transparent)]
pub struct Hash(Word);

/// Tags of the word.
const PACKED: u8 = 0;
const TABLE: u8 = 1;
const PAIRS: u8 = 2;

/// Larger listpacks, in bytes, are converted to pairs.
const PACKED_BYTES_MAX: usize = 1024;
/// Pairs whose listpack would have at most this many bytes are converted to a listpack.
const PAIRS_BYTES_MIN: usize = PACKED_BYTES_MAX / 2;

/// The limits up to which a hash is a listpack.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `hash-max-listpack-entries`: number of fields.
    pub fields: usize,
    /// `hash-max-listpack-value`: bytes of a field or value.
    pub bytes: usize,
}

/// How a command treats expired fields.
#[derive(Clone, Copy, Debug)]
pub struct FieldClock {
    /// Fields with an expiry before this time are hidden.
    hidden_before_ms: i64,
    /// An expiry up to this time has passed: a command that sets it,
    /// or that sets a field which has it, treats the field as expired.
    due_until_ms: i64,
}

impl FieldClock {
    /// All fields are visible.
    pub const ALL: FieldClock = FieldClock { hidden_before_ms: i64::MIN, due_until_ms: i64::MIN };

    /// A clock under which fields that expired before `now_ms` are hidden, if
    /// `hides`, and an expiry that has passed takes effect immediately, if `drops`.
    pub fn new(now_ms: i64, hides: bool, drops: bool) -> FieldClock {
        let if_so = |flag| if flag { now_ms } else { i64::MIN };
        FieldClock { hidden_before_ms: if_so(hides), due_until_ms: if_so(drops) }
    }

    /// Whether a field with this expiry is hidden.
    #[inline]
    pub fn hides(self, expiry: Option<i64>) -> bool {
        expiry.is_some_and(|at| at < self.hidden_before_ms)
    }

    /// Whether a field with this expiry must be deleted at once.
    #[inline]
    pub fn is_due(self, at: i64) -> bool {
        at <= self.due_until_ms
    }
}

/// The result of setting a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The field is new.
    Added,
    /// The field existed and its value was replaced.
    Replaced,
    /// The field is new, in the place of an expired one.
    Revived,
}

/// The result of changing a field's expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// The field does not exist.
    Missing,
    /// The condition did not hold.
    Refused,
    /// The expiry was set or cleared.
    Changed,
    /// The time has passed, so the field was removed.
    Gone,
}

/// The action that is required after a change of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// None.
    Settled,
    /// Notify the partition: [`Db::note_expiries`](crate::Db::note_expiries).
    Unqueued,
    /// Remove the key.
    Empty,
}

/// A borrowed hash, by encoding.
enum View<'a> {
    Packed(listpack::View<'a>),
    Pairs(&'a Pairs),
    Table(&'a Fields),
}

/// A mutably borrowed hash, by encoding.
enum ViewMut<'a> {
    Packed(listpack::Mut<'a>),
    Pairs(&'a mut Pairs),
    Table(&'a mut Fields),
}

impl Hash {
    /// An empty hash.
    pub fn new() -> Self {
        Hash::packed(Listpack::new())
    }

    #[inline]
    fn view(&self) -> View<'_> {
        // SAFETY: the tag identifies what the word was made from, and
        // it changes only while the hash is borrowed exclusively.
        unsafe {
            match self.0.tag() {
                PACKED => View::Packed(listpack::view_of(self.0)),
                PAIRS => View::Pairs(self.0.as_ref()),
                _ => View::Table(self.0.as_ref()),
            }
        }
    }

    #[inline]
    fn view_mut(&mut self) -> ViewMut<'_> {
        // SAFETY: the tag identifies what the word was made from, and the word owns it.
        unsafe {
            match self.0.tag() {
                PACKED => ViewMut::Packed(listpack::Mut::new(&mut self.0)),
                PAIRS => ViewMut::Pairs(self.0.as_mut()),
                _ => ViewMut::Table(self.0.as_mut()),
            }
        }
    }

    /// The table, if the hash is one.
    #[inline]
    fn table_mut(&mut self) -> Option<&mut Fields> {
        match self.view_mut() {
            ViewMut::Table(fields) => Some(fields),
            _ => None,
        }
    }

    /// The table; converts the hash if it is not one.
    #[inline]
    fn convert_to_table(&mut self) -> &mut Fields {
        if self.0.tag() != TABLE {
            self.unpack();
        }
        // SAFETY: it is a table now.
        unsafe { self.0.as_mut() }
    }

    #[cold]
    fn unpack(&mut self) {
        let mut fields = Box::<Fields>::default();
        let (mut name_text, mut value_text) = (IntBuf::default(), IntBuf::default());
        for Field { name, value, .. } in self.iter() {
            let (field, value) = (name.bytes(&mut name_text), value.bytes(&mut value_text));
            fields.insert_new(Parts { field, value, expiry: None });
        }
        *self = Hash(Word::from_box(fields, TABLE));
    }

    /// Converts a listpack to pairs, or pairs to a listpack, if the size requires it.
    #[inline]
    fn adjust_encoding(&mut self) {
        match self.view() {
            View::Packed(pack) if pack.bytes().len() > PACKED_BYTES_MAX => self.cut(),
            View::Pairs(pairs) if pairs.listpack_bytes() <= PAIRS_BYTES_MIN => {
                *self = Hash::packed(pairs.to_listpack())
            }
            _ => {}
        }
    }

    #[inline(never)]
    fn cut(&mut self) {
        if let View::Packed(pack) = self.view() {
            *self = Hash::in_pairs(Pairs::of_listpack(pack));
        }
    }

    /// Whether the encoding that clients see is a listpack.
    pub fn is_packed(&self) -> bool {
        self.0.tag() != TABLE
    }

    /// Calls `see` with the listpack of fields and values if the
    /// encoding is a listpack; pairs are converted to a temporary one.
    pub fn with_listpack<R>(&self, see: impl FnOnce(listpack::View<'_>) -> R) -> Option<R> {
        match self.view() {
            View::Packed(pack) => Some(see(pack)),
            View::Pairs(pairs) => Some(see(pairs.to_listpack().view())),
            View::Table(_) => None,
        }
    }

    /// The value of a field.
    #[inline]
    pub fn get(&self, name: &[u8], clock: FieldClock) -> Option<Str<'_>> {
        self.find(name, clock).map(|field| field.value)
    }

    /// Value and expiry of a field.
    #[inline]
    pub fn get_with_expiry(&self, name: &[u8], clock: FieldClock) -> Option<(Str<'_>, Option<i64>)> {
        self.find(name, clock).map(|field| (field.value, field.expiry))
    }

    #[inline]
    fn find(&self, name: &[u8], clock: FieldClock) -> Option<Field<'_>> {
        match self.view() {
            View::Packed(pack) => {
                let at = place_of(pack, name)?;
                Some(Field { name: pack.get(at), value: pack.get(pack.next(at)?), expiry: None })
            }
            View::Pairs(pairs) => pairs.find(name).map(|place| pairs.get(place).into()),
            View::Table(fields) => {
                let found = fields.get(name)?;
                (!clock.hides(found.expiry)).then(|| found.into())
            }
        }
    }

    /// Whether a field exists.
    #[inline]
    pub fn contains(&self, name: &[u8], clock: FieldClock) -> bool {
        self.find(name, clock).is_some()
    }

    /// Number of fields with an expiry.
    pub fn volatile(&self) -> usize {
        match self.view() {
            View::Packed(_) | View::Pairs(_) => 0,
            View::Table(fields) => fields.volatile(),
        }
    }

    /// Prepares for adding the fields and values in `words`, which alternate: converts to a table if
    /// they would exceed the limit on fields, even if some of them exist already, or if one is too long.
    #[inline]
    pub fn expect<'w>(&mut self, words: impl ExactSizeIterator<Item = &'w [u8]>, limits: Limits) {
        if !self.is_packed() {
            return;
        }
        let mut bytes: usize = 0;
        let too_many = words.len() / 2 > limits.fields;
        let too_long = words.into_iter().any(|word| {
            bytes = bytes.saturating_add(word.len());
            word.len() > limits.bytes
        });
        if too_many || too_long || !self.fits(bytes) {
            self.unpack();
        }
    }

    /// Whether strings of `more` bytes in total can be added. A table has no limit.
    #[inline]
    fn fits(&self, more: usize) -> bool {
        match self.view() {
            View::Packed(pack) => pack.fits(more),
            View::Pairs(pairs) => pairs.fits(more),
            View::Table(_) => true,
        }
    }

    /// Sets a field.
    #[inline]
    pub fn set(&mut self, name: &[u8], value: &[u8], expiry: Expiry, clock: FieldClock, limits: Limits) -> Stored {
        let too_long = name.len() > limits.bytes || value.len() > limits.bytes;
        if too_long || !self.fits(name.len() + value.len()) || matches!(expiry, Expiry::At(_)) {
            self.convert_to_table();
        }
        let stored = match self.view_mut() {
            ViewMut::Table(fields) => return fields.set(name, value, expiry, clock),
            ViewMut::Packed(mut pack) => match place_of(pack.view(), name).and_then(|at| pack.view().next(at)) {
                Some(at) => {
                    pack.replace(at, value);
                    Stored::Replaced
                }
                None => {
                    pack.push_back_elements([Element::new(name), Element::new(value)]);
                    Stored::Added
                }
            },
            ViewMut::Pairs(pairs) => match pairs.find(name) {
                Some(place) => {
                    pairs.replace(place, value);
                    Stored::Replaced
                }
                None => {
                    pairs.push(name, value);
                    Stored::Added
                }
            },
        };
        if stored == Stored::Added && self.len() > limits.fields {
            self.unpack();
        } else {
            self.adjust_encoding();
        }
        stored
    }

    /// Removes a field unless `clock` hides it; returns whether it was removed.
    pub fn remove(&mut self, name: &[u8], clock: FieldClock) -> bool {
        match self.view_mut() {
            ViewMut::Table(fields) => return fields.remove(name, clock),
            ViewMut::Packed(mut pack) => {
                let Some(at) = place_of(pack.view(), name) else { return false };
                pack.remove_from(at, 2);
            }
            ViewMut::Pairs(pairs) => {
                let Some(place) = pairs.find(name) else { return false };
                pairs.remove(place);
            }
        }
        self.adjust_encoding();
        true
    }

    /// Sets the expiry of a field if `allow` returns true for the
    /// current one. If the time has passed, removes the field.
    pub fn expire_at(
        &mut self,
        name: &[u8],
        at: i64,
        clock: FieldClock,
        allow: impl FnOnce(Option<i64>) -> bool,
    ) -> Expired {
        if clock.is_due(at) {
            return match self.find(name, clock) {
                None => Expired::Missing,
                Some(field) if !allow(field.expiry) => Expired::Refused,
                Some(_) => {
                    self.remove(name, clock);
                    Expired::Gone
                }
            };
        }
        if self.is_packed() {
            // The hash remains a listpack unless something changes.
            if !self.contains(name, clock) {
                return Expired::Missing;
            } else if !allow(None) {
                return Expired::Refused;
            }
            self.convert_to_table().set_expiry(name, Some(at), clock, |_| true);
            return Expired::Changed;
        }
        Self::outcome(self.convert_to_table().set_expiry(name, Some(at), clock, allow))
    }

    /// Clears the expiry of a field; refused if it has none.
    pub fn persist(&mut self, name: &[u8], clock: FieldClock) -> Expired {
        if let Some(fields) = self.table_mut() {
            return Self::outcome(fields.set_expiry(name, None, clock, |present| present.is_some()));
        }
        if self.contains(name, clock) { Expired::Refused } else { Expired::Missing }
    }

    fn outcome(allowed: Option<bool>) -> Expired {
        match allowed {
            None => Expired::Missing,
            Some(false) => Expired::Refused,
            Some(true) => Expired::Changed,
        }
    }

    /// A copy without the fields that `clock` hides.
    pub fn copy_visible(&self, clock: FieldClock) -> Hash {
        let mut copy = self.clone();
        if self.volatile() > 0 {
            let mut text = IntBuf::default();
            for field in self.iter().filter(|field| clock.hides(field.expiry)) {
                copy.remove(field.name.bytes(&mut text), FieldClock::ALL);
            }
        }
        copy
    }

    /// The action that is required after the changes made so far.
    #[inline]
    pub fn state(&self) -> State {
        if self.is_empty() {
            return State::Empty;
        }
        match (self.wake_ms(), self.queued_ms()) {
            (None, None) => State::Settled,
            (Some(wake_ms), Some(queued_ms)) if queued_ms <= wake_ms => State::Settled,
            _ => State::Unqueued,
        }
    }

    /// When to check for expired fields; `None` if no field has an expiry.
    #[inline]
    pub(crate) fn wake_ms(&self) -> Option<i64> {
        match self.view() {
            View::Packed(_) | View::Pairs(_) => None,
            View::Table(fields) => fields.wake_ms(),
        }
    }

    /// The time under which its partition has queued it.
    #[inline]
    pub(crate) fn queued_ms(&self) -> Option<i64> {
        match self.view() {
            View::Packed(_) | View::Pairs(_) => None,
            View::Table(fields) => fields.queued_ms(),
        }
    }

    /// Records the time under which its partition has queued it; `None` if it has not.
    pub(crate) fn set_queued_ms(&mut self, queued_ms: Option<i64>) {
        if let Some(fields) = self.table_mut() {
            fields.set_queued_ms(queued_ms);
        }
    }

    /// Searches up to `buckets` more buckets for fields that expired before `now_ms`, removes them and calls `taken`
    /// with their names. Returns true when the whole table was searched; the next check is due at [`Hash::wake_ms`].
    pub(crate) fn expire(&mut self, now_ms: i64, buckets: usize, taken: impl FnMut(&[u8])) -> bool {
        self.table_mut().is_none_or(|fields| fields.expire(now_ms, buckets, taken))
    }

    /// All fields, including expired ones; in order for a listpack, in no particular order for a table.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        let (pack, pairs, table) = match self.view() {
            View::Packed(pack) => (Some(pack), None, None),
            View::Pairs(pairs) => (None, Some(pairs), None),
            View::Table(fields) => (None, None, Some(fields)),
        };
        let packed = pack.into_iter().flat_map(|pack| {
            let mut strings = pack.iter();
            std::iter::from_fn(move || Some(Field { name: strings.next()?, value: strings.next()?, expiry: None }))
        });
        let paired = pairs.into_iter().flat_map(|pairs| pairs.iter().map(Field::from));
        packed.chain(paired).chain(table.into_iter().flat_map(|fields| fields.iter().map(Field::from)))
    }

    /// One call of HSCAN: visits about `count` fields and returns the next
    /// cursor; cursor 0 starts and ends a scan. A listpack is visited as a whole.
    pub fn scan(&self, cursor: u64, count: usize, clock: FieldClock, mut visit: impl FnMut(Field<'_>)) -> u64 {
        let View::Table(fields) = self.view() else {
            self.iter().for_each(visit);
            return 0;
        };
        fields.scan(cursor, count, |parts| {
            if !clock.hides(parts.expiry) {
                visit(parts.into())
            }
        })
    }

    /// A field chosen uniformly at random; `random` returns random numbers.
    /// `None` if there are no fields or, almost certainly, all have expired.
    pub fn random(&self, clock: FieldClock, mut random: impl FnMut() -> u64) -> Option<Field<'_>> {
        const TRIES_MAX: usize = 100;
        match self.view() {
            View::Packed(pack) => {
                let pairs = (pack.len() / 2) as u64;
                let index = (random() >> 1).checked_rem(pairs)? * 2;
                let at = pack.seek(index as isize)?;
                Some(Field { name: pack.get(at), value: pack.get(pack.next(at)?), expiry: None })
            }
            View::Pairs(pairs) => {
                let index = (random() >> 1).checked_rem(pairs.len() as u64)?;
                Some(pairs.get(pairs.seek(index as usize)?).into())
            }
            View::Table(fields) => {
                let mut draws = (0..TRIES_MAX).map_while(|_| fields.random(&mut random));
                draws.find(|found| !clock.hides(found.expiry)).map(Field::from)
            }
        }
    }

    /// Validates and takes over a listpack of alternating fields and values, without duplicate fields.
    pub fn from_listpack(pack: Listpack) -> Result<Hash, Corrupt> {
        let view = pack.view();
        if !pack.len().is_multiple_of(2) || !view.are_distinct(1) {
            return Err(Corrupt);
        }
        let mut hash = Hash::packed(pack);
        hash.adjust_encoding();
        Ok(hash)
    }

    fn in_pairs(pairs: Box<Pairs>) -> Hash {
        Hash(Word::from_box(pairs, PAIRS))
    }

    /// A hash of a listpack of alternating fields and values.
    fn packed(pack: Listpack) -> Hash {
        Hash(pack.into_word(PACKED))
    }
}

/// Builds a hash that is a table from fields that are loaded one after the other.
pub struct Loader(FieldGathering);

impl Loader {
    /// A loader for `claimed` fields, a number that need not be correct.
    pub fn new(claimed: usize) -> Self {
        Loader(FieldGathering::new(claimed))
    }

    /// Adds a field, with its expiry as Unix time in milliseconds.
    #[inline]
    pub fn add(&mut self, name: &[u8], value: &[u8], expiry: Option<i64>) {
        self.0.add(Parts { field: name, value, expiry });
    }

    /// The complete hash.
    ///
    /// # Errors
    /// If a field occurred twice.
    pub fn finish(self) -> Result<Hash, Corrupt> {
        let fields = self.0.finish().ok_or(Corrupt)?;
        Ok(Hash(Word::from_box(Box::new(fields), TABLE)))
    }
}

/// The position of a field in a listpack.
#[inline]
fn place_of(pack: listpack::View<'_>, name: &[u8]) -> Option<At> {
    pack.find(pack.first()?, name, 1)
}

impl Default for Hash {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Hash {
    /// The clone is not in any partition's queue.
    fn clone(&self) -> Self {
        match self.view() {
            View::Packed(pack) => Hash::packed(Listpack::from(pack)),
            View::Pairs(pairs) => Hash::in_pairs(Box::new(pairs.clone())),
            View::Table(fields) => Hash(Word::from_box(Box::new(fields.clone()), TABLE)),
        }
    }
}

impl Drop for Hash {
    fn drop(&mut self) {
        // SAFETY: the tag identifies what the word was made from, and it is dropped once.
        unsafe {
            match self.0.tag() {
                PACKED => drop(Listpack::from_word(self.0)),
                PAIRS => drop(self.0.into_box::<Pairs>()),
                _ => drop(self.0.into_box::<Fields>()),
            }
        }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for Hash {
    const KIND: Kind = Kind::Hash;

    #[inline]
    fn len(&self) -> usize {
        match self.view() {
            View::Packed(pack) => pack.len() / 2,
            View::Pairs(pairs) => pairs.len(),
            View::Table(fields) => fields.len(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self.view() {
            View::Packed(_) | View::Pairs(_) => "listpack",
            View::Table(_) => "hashtable",
        }
    }

    fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if position == 0 && self.0.tag() != PACKED {
            // SAFETY: the tag identifies the type of the box, which is borrowed exclusively.
            unsafe {
                match self.0.tag() {
                    PAIRS => self.0.relocate_box::<Pairs>(mover),
                    _ => self.0.relocate_box::<Fields>(mover),
                }
            }
        }
        match self.view_mut() {
            ViewMut::Packed(mut pack) => {
                pack.relocate(mover);
                None
            }
            ViewMut::Pairs(pairs) => pairs.relocate(position as usize, mover).map(|next| next as u64),
            ViewMut::Table(fields) => fields.relocate(position, mover),
        }
    }

    fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        self.table_mut()?.gradual()
    }

    fn inside(&self) -> Inside<'_> {
        match self.view() {
            View::Packed(pack) => Inside::Listpack(pack),
            View::Pairs(pairs) => Inside::Pairs(pairs),
            View::Table(fields) => Inside::Table(fields.table()),
        }
    }

    fn memory(&self, samples: usize) -> usize {
        match self.view() {
            View::Packed(pack) => size_class(pack.bytes().len()),
            View::Pairs(pairs) => pairs.memory(),
            View::Table(fields) => fields.memory(samples),
        }
    }

    fn free_effort(&self) -> usize {
        match self.view() {
            View::Packed(_) => 1,
            View::Pairs(pairs) => pairs.allocations(),
            View::Table(fields) => fields.len(),
        }
    }
}
