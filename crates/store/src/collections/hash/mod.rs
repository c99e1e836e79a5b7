//! Values of type hash: fields with values, and for some of them a time at which they expire.
//!
//! A small hash is a [`Listpack`] of fields and values in turn, or once that is not so short any more [`Pairs`], which are
//! the same in pieces and take less memory; nobody outside of the server can tell these from each other. It becomes a table
//! of [`fields`] when it has too many of them or one is too long ([`Limits`]), and also when a field is given an expiry, and
//! stays one from then on.
//!
//! A field whose time has come is not seen any more ([`FieldClock`]), but it counts in [`Hash::len`] and stays in memory
//! until active expiry takes it out ([`Hash::expire`]) or it is set again. The partition that holds a hash with such
//! fields keeps it in a queue by the time at which to look at it next, for which the hash remembers under what time it is
//! there: commands that change expiries tell the database when [`Hash::state`] is [`State::Unqueued`].

mod field;
mod fields;
#[cfg(test)]
mod tests;

use super::word::{Collection, Inside, Word};
use crate::db::Expiry;
use crate::defrag::Mover;
use crate::encodings::Corrupt;
use crate::encodings::listpack::{self, At, Element, Listpack};
use crate::encodings::pairs::Pairs;
use crate::memory::size_class;
use crate::snapshot::Gradual;
use crate::value::{IntBuf, Kind, Str};
use field::Parts;
use fields::{FieldGathering, Fields};

/// A hash.
#[repr(transparent)]
pub struct Hash(Word);

/// Tags of the word.
const PACKED: u8 = 0;
const TABLE: u8 = 1;
const PAIRS: u8 = 2;

/// Listpacks of more bytes become pairs, ...
const PACKED_BYTES_MAX: usize = 1024;
/// ... and pairs whose listpack has no more bytes become one.
const PAIRS_BYTES_MIN: usize = PACKED_BYTES_MAX / 2;

/// Up to which size a hash is a listpack.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `hash-max-listpack-entries`: fields.
    pub fields: usize,
    /// `hash-max-listpack-value`: bytes of a field or value.
    pub bytes: usize,
}

/// How a command sees fields whose time has come.
#[derive(Clone, Copy, Debug)]
pub struct FieldClock {
    /// Fields that expire before are not seen.
    hidden_before_ms: i64,
    /// Times up to this one have passed for a command that sets them or meets them when it sets a value.
    due_until_ms: i64,
}

impl FieldClock {
    /// Every field is seen.
    pub const ALL: FieldClock = FieldClock { hidden_before_ms: i64::MIN, due_until_ms: i64::MIN };

    /// A clock at which fields that expired before `now_ms` are unseen, if it `hides` them, and times that have passed
    /// are at once followed by what they are for, if it `drops` what is due.
    pub fn new(now_ms: i64, hides: bool, drops: bool) -> FieldClock {
        let if_so = |flag| if flag { now_ms } else { i64::MIN };
        FieldClock { hidden_before_ms: if_so(hides), due_until_ms: if_so(drops) }
    }

    /// Whether a field with this expiry is not seen.
    #[inline]
    pub fn hides(self, expiry: Option<i64>) -> bool {
        expiry.is_some_and(|at| at < self.hidden_before_ms)
    }

    /// Whether a field that expires at this time is to go at once.
    #[inline]
    pub fn is_due(self, at: i64) -> bool {
        at <= self.due_until_ms
    }
}

/// What became of a field that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is new.
    Added,
    /// It has another value.
    Replaced,
    /// It is new, in the place of one that had expired.
    Revived,
}

/// What became of a field's expiry that was to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// There is no such field.
    Missing,
    /// The condition did not hold.
    Refused,
    /// It is set or cleared.
    Changed,
    /// The time has passed, so the field is gone.
    Gone,
}

/// What a change to a hash asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Settled,
    /// The partition is to be told: [`Db::note_expiries`](crate::Db::note_expiries).
    Unqueued,
    /// The key is to be removed.
    Empty,
}

/// A hash by its encoding.
enum View<'a> {
    Packed(listpack::View<'a>),
    Pairs(&'a Pairs),
    Table(&'a Fields),
}

/// The same for change.
enum ViewMut<'a> {
    Packed(listpack::Mut<'a>),
    Pairs(&'a mut Pairs),
    Table(&'a mut Fields),
}

/// A field of a hash with everything about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name.
    pub name: Str<'a>,
    /// Its value.
    pub value: Str<'a>,
    /// Unix time in milliseconds at which it expires.
    pub expiry: Option<i64>,
}

impl<'a> From<(Str<'a>, Str<'a>)> for Field<'a> {
    #[inline]
    fn from((name, value): (Str<'a>, Str<'a>)) -> Self {
        Field { name, value, expiry: None }
    }
}

impl<'a> From<Parts<'a>> for Field<'a> {
    #[inline]
    fn from(parts: Parts<'a>) -> Self {
        Field { name: Str::Bytes(parts.field), value: Str::Bytes(parts.value), expiry: parts.expiry }
    }
}

impl Hash {
    /// An empty one.
    pub fn new() -> Self {
        Hash::packed(Listpack::new())
    }

    #[inline]
    fn view(&self) -> View<'_> {
        // SAFETY: the tag says what the word was made from, and it changes only while the hash is borrowed exclusively.
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
        // SAFETY: the tag says what the word was made from, and the word owns it.
        unsafe {
            match self.0.tag() {
                PACKED => ViewMut::Packed(listpack::Mut::new(&mut self.0)),
                PAIRS => ViewMut::Pairs(self.0.as_mut()),
                _ => ViewMut::Table(self.0.as_mut()),
            }
        }
    }

    /// The table, if it is one.
    #[inline]
    fn table_mut(&mut self) -> Option<&mut Fields> {
        match self.view_mut() {
            ViewMut::Table(fields) => Some(fields),
            _ => None,
        }
    }

    /// The table that it is or becomes.
    #[inline]
    fn make_table(&mut self) -> &mut Fields {
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

    /// Turns the listpack that it is into pairs, and the other way round, if it has the size for it.
    #[inline]
    fn settle(&mut self) {
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

    /// Whether it is encoded as a listpack for whoever asks.
    pub fn is_packed(&self) -> bool {
        self.0.tag() != TABLE
    }

    /// Calls `see` with the listpack of fields and values if it is encoded as one, which is made for that if need be.
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

    /// Whether there is such a field.
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

    /// Prepares for as many more fields as `words` has pairs of, whose fields and values `words` are: becomes a table if
    /// they would be too many, even should some be there already, or one is too long.
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

    /// Whether strings of so many bytes in all can be added safely. A table has no limit.
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
            self.make_table();
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
            self.settle();
        }
        stored
    }

    /// Removes a field unless `clock` hides it; whether it was there.
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
        self.settle();
        true
    }

    /// Sets the expiry of a field if `allow`, given the present one, says so. When the time is due the field goes.
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
            // It stays a listpack unless something changes.
            if !self.contains(name, clock) {
                return Expired::Missing;
            } else if !allow(None) {
                return Expired::Refused;
            }
            self.make_table().set_expiry(name, Some(at), clock, |_| true);
            return Expired::Changed;
        }
        Self::outcome(self.make_table().set_expiry(name, Some(at), clock, allow))
    }

    /// Clears the expiry of a field: refused when it has none.
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

    /// A copy of it without the fields that `clock` hides.
    pub fn copy_seen(&self, clock: FieldClock) -> Hash {
        let mut copy = self.clone();
        if self.volatile() > 0 {
            let mut text = IntBuf::default();
            for field in self.iter().filter(|field| clock.hides(field.expiry)) {
                copy.remove(field.name.bytes(&mut text), FieldClock::ALL);
            }
        }
        copy
    }

    /// What a change that was made asks for.
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

    /// When to look for fields whose time has come; `None` when no field has an expiry.
    #[inline]
    pub(crate) fn wake_ms(&self) -> Option<i64> {
        match self.view() {
            View::Packed(_) | View::Pairs(_) => None,
            View::Table(fields) => fields.wake_ms(),
        }
    }

    /// The time under which its partition has it in its queue.
    #[inline]
    pub(crate) fn queued_ms(&self) -> Option<i64> {
        match self.view() {
            View::Packed(_) | View::Pairs(_) => None,
            View::Table(fields) => fields.queued_ms(),
        }
    }

    /// Takes note of the time under which its partition has it in its queue, or that it has not.
    pub(crate) fn set_queued_ms(&mut self, queued_ms: Option<i64>) {
        if let Some(fields) = self.table_mut() {
            fields.set_queued_ms(queued_ms);
        }
    }

    /// Looks for fields that expired before `now_ms` in up to `buckets` buckets more, removes them and calls `taken` with
    /// their names. True when it has gone all around, and need not be looked at until the time it now asks for.
    pub(crate) fn expire(&mut self, now_ms: i64, buckets: usize, taken: impl FnMut(&[u8])) -> bool {
        self.table_mut().is_none_or(|fields| fields.expire(now_ms, buckets, taken))
    }

    /// All fields, those that have expired included, in the order of the listpack or none in particular.
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

    /// One call of HSCAN: visits about `count` fields and says with which cursor to go on; 0 begins, and ends. A listpack
    /// is visited at once.
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

    /// A field chosen with equal chances for all; `random` yields random numbers. `None` when there are none or, almost
    /// surely, all have expired.
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

    /// A hash of a listpack from outside, which is to have fields, no two the same, and their values in turn.
    pub fn from_listpack(pack: Listpack) -> Result<Hash, Corrupt> {
        let view = pack.view();
        if !pack.len().is_multiple_of(2) || !view.all_differ(1) {
            return Err(Corrupt);
        }
        let mut hash = Hash::packed(pack);
        hash.settle();
        Ok(hash)
    }

    fn in_pairs(pairs: Box<Pairs>) -> Hash {
        Hash(Word::from_box(pairs, PAIRS))
    }

    /// A hash of a listpack that has fields and their values in turn.
    fn packed(pack: Listpack) -> Hash {
        Hash(pack.into_word(PACKED))
    }
}

/// Fields of a hash that is a table, read one after the other.
pub struct Loader(FieldGathering);

impl Loader {
    /// One for as many fields as somebody claims.
    pub fn new(claimed: usize) -> Self {
        Loader(FieldGathering::new(claimed))
    }

    /// Adds a field, with the Unix time in milliseconds at which it expires.
    #[inline]
    pub fn add(&mut self, name: &[u8], value: &[u8], expiry: Option<i64>) {
        self.0.add(Parts { field: name, value, expiry });
    }

    /// The hash.
    ///
    /// # Errors
    /// When a field came twice.
    pub fn finish(self) -> Result<Hash, Corrupt> {
        let fields = self.0.finish().ok_or(Corrupt)?;
        Ok(Hash(Word::from_box(Box::new(fields), TABLE)))
    }
}

/// Where a field is in a listpack.
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
    /// The clone is in no partition's queue.
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
        // SAFETY: the tag says what the word was made from, and it is dropped once.
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
            // SAFETY: the tag says that it leads to such a box, which is borrowed exclusively.
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
