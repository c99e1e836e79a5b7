//! Sets, in one of three encodings.
//!
//! - **intset**: only integers, up to `set-max-intset-entries` of them.
//! - **listpack**: a few short members of any kind, in insertion order.
//! - **hashtable**: everything else, as [`Members`].
//!
//! A set starts with the most compact encoding for its first member and is converted when an added
//! member does not fit its encoding ([`Limits`]). Only storing the result of an intersection ever
//! converts back. All conversions happen under the same conditions as in Valkey.

mod convert;
mod iter;
#[cfg(test)]
mod tests;

pub use convert::Loader;
pub use iter::Iter;

use super::collection::{Collection, Inside};
use crate::chance::{self, Subset};
use crate::defrag::Mover;
use crate::encodings::element::{self, Plain};
use crate::encodings::intset::{self, Intset};
use crate::encodings::listpack::{self, Listpack};
use crate::encodings::members::{Layout, Members};
use crate::memory::size_class;
use crate::snapshot::pieces::Gradual;
use crate::value::{IntBuf, Kind, Str};
use crate::word::Word;
use kvick_resp::format::parse_i64;
use std::collections::HashSet;

const INTSET: u8 = 0;
const LISTPACK: u8 = 1;
const TABLE: u8 = 2;

/// The limits of the compact encodings.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `set-max-intset-entries`.
    pub intset_entries: usize,
    /// `set-max-listpack-entries`.
    pub listpack_entries: usize,
    /// `set-max-listpack-value`: bytes of the longest member in a listpack.
    pub listpack_value: usize,
}

impl Limits {
    fn intset_entries(&self) -> usize {
        self.intset_entries.min(intset::LEN_MAX - 1)
    }
}

/// A set.
///
/// **Invariant**: the word owns an [`Intset`], a [`Listpack`] without
/// duplicates, or a box of [`Members`], as identified by its tag.
#[repr(transparent)]
pub struct Set(Word);

/// A borrowed set, by encoding.
#[derive(Clone, Copy)]
pub enum Encoded<'a> {
    /// Integers.
    Intset(intset::View<'a>),
    /// A few members.
    Listpack(listpack::View<'a>),
    /// Many members.
    Table(&'a Members<Plain>),
}

/// A mutably borrowed set, by encoding.
enum EncodedMut<'a> {
    Intset(intset::Mut<'a>),
    Listpack(listpack::Mut<'a>),
    Table(&'a mut Members<Plain>),
}

impl Set {
    /// An empty intset.
    pub fn of_integers() -> Self {
        Intset::new().into()
    }

    /// An empty listpack.
    pub fn short() -> Self {
        Listpack::new().into()
    }

    /// An empty table.
    pub fn table() -> Self {
        Members::new().into()
    }

    /// An empty set in the encoding for its first member and the number of members to be added.
    #[inline]
    pub fn for_first(member: &[u8], coming: usize, limits: &Limits) -> Self {
        if coming <= limits.intset_entries && parse_i64(member).is_some() {
            Set::of_integers()
        } else if coming <= limits.listpack_entries {
            Set::short()
        } else {
            Set::table()
        }
    }

    /// The set by encoding.
    #[inline]
    pub fn encoded(&self) -> Encoded<'_> {
        // SAFETY: the tag identifies what the word owns, and that is borrowed with `self`.
        unsafe {
            match self.0.tag() {
                INTSET => Encoded::Intset(intset::view_of(self.0)),
                LISTPACK => Encoded::Listpack(listpack::view_of(self.0)),
                _ => Encoded::Table(self.0.as_ref()),
            }
        }
    }

    #[inline]
    fn encoded_mut(&mut self) -> EncodedMut<'_> {
        // SAFETY: as above, and borrowed exclusively; no guard is leaked.
        unsafe {
            match self.0.tag() {
                INTSET => EncodedMut::Intset(intset::Mut::new(&mut self.0)),
                LISTPACK => EncodedMut::Listpack(listpack::Mut::new(&mut self.0)),
                _ => EncodedMut::Table(self.0.as_mut()),
            }
        }
    }

    /// Converts to a table if adding `coming` members would soon require that.
    #[inline]
    pub fn expect(&mut self, coming: usize, limits: &Limits) {
        let too_many = match self.0.tag() {
            INTSET => coming > limits.intset_entries,
            LISTPACK => coming > limits.listpack_entries,
            _ => false,
        };
        if too_many {
            self.become_table();
        }
    }

    #[inline]
    fn as_table(&mut self) -> Option<&mut Members<Plain>> {
        // SAFETY: as above.
        (self.0.tag() == TABLE).then(|| unsafe { self.0.as_mut() })
    }

    /// Adds a member; returns false if it existed.
    #[inline]
    pub fn insert(&mut self, member: &[u8], limits: &Limits) -> bool {
        if let Some(members) = self.as_table() {
            return insert_into_table(members, member);
        }
        match self.encoded() {
            Encoded::Listpack(view) if contains(view, member) => false,
            Encoded::Listpack(_) => {
                self.add_to_listpack(member, limits);
                true
            }
            _ => match parse_i64(member) {
                Some(number) => self.insert_integer(number, limits),
                None => {
                    self.add_to_integers(member, limits);
                    true
                }
            },
        }
    }

    /// Adds a member of another set; returns false if it existed.
    pub fn insert_str(&mut self, member: Str<'_>, limits: &Limits) -> bool {
        match member {
            Str::Int(number) if self.0.tag() == INTSET => self.insert_integer(number, limits),
            _ => self.insert(member.bytes(&mut IntBuf::default()), limits),
        }
    }

    fn insert_integer(&mut self, number: i64, limits: &Limits) -> bool {
        let EncodedMut::Intset(mut intset) = self.encoded_mut() else { return false };
        let (new, len) = (intset.insert(number), intset.len());
        drop(intset);
        if new && len > limits.intset_entries() {
            self.become_table();
        }
        new
    }

    /// Adds a member that the listpack does not contain; converts to a table if it does not fit.
    fn add_to_listpack(&mut self, member: &[u8], limits: &Limits) {
        if let EncodedMut::Listpack(mut listpack) = self.encoded_mut() {
            let short = member.len() <= limits.listpack_value;
            if short && listpack.len() < limits.listpack_entries && listpack.fits(member.len()) {
                return listpack.push_back(member);
            }
        }
        insert_into_table(self.become_table(), member);
    }

    /// Removes a member; returns false if it did not exist.
    #[inline]
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match self.encoded_mut() {
            EncodedMut::Table(members) => {
                // SAFETY: the caller owns a removed element.
                members.remove(member).map(|pointer| unsafe { Plain::free(pointer) }).is_some()
            }
            EncodedMut::Listpack(mut listpack) => {
                let view = listpack.view();
                let found = view.first().and_then(|first| view.find(first, member, 0));
                found.map(|at| listpack.remove(at)).is_some()
            }
            EncodedMut::Intset(mut intset) => parse_i64(member).is_some_and(|number| intset.remove(number)),
        }
    }

    /// Removes a member of another set; returns false if it did not exist.
    pub fn remove_str(&mut self, member: Str<'_>) -> bool {
        self.remove(member.bytes(&mut IntBuf::default()))
    }

    /// Whether it contains a member.
    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        match self.encoded() {
            Encoded::Table(members) => members.contains(member),
            Encoded::Listpack(view) => contains(view, member),
            Encoded::Intset(view) => parse_i64(member).is_some_and(|number| view.contains(number)),
        }
    }

    /// Whether it contains a member of another set.
    #[inline]
    pub fn contains_str(&self, member: Str<'_>) -> bool {
        match (self.encoded(), member) {
            (Encoded::Intset(view), Str::Int(number)) => view.contains(number),
            _ => self.contains(member.bytes(&mut IntBuf::default())),
        }
    }

    /// All members: ascending in an intset, in insertion order in a listpack, in no particular order in a table.
    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        Iter::new(self.encoded())
    }

    /// A member chosen uniformly at random; `random` returns 64-bit random numbers.
    #[inline]
    pub fn random(&self, mut random: impl FnMut() -> u64) -> Option<Str<'_>> {
        match self.encoded() {
            Encoded::Table(members) => members.random(random).map(iter::member),
            Encoded::Listpack(view) => view.seek(index_below(random(), view.len())).map(|at| view.get(at)),
            Encoded::Intset(view) => view.get(chance::below(random(), view.len())).map(Str::Int),
        }
    }

    /// Removes a member chosen uniformly at random, after calling `take` with it.
    #[inline]
    pub fn pop<T>(&mut self, mut random: impl FnMut() -> u64, take: impl FnOnce(Str<'_>) -> T) -> Option<T> {
        match self.encoded_mut() {
            EncodedMut::Table(members) => {
                let pointer = members.remove_at(members.random_place(random)?);
                let taken = take(iter::member(pointer));
                // SAFETY: the caller owns a removed element.
                unsafe { Plain::free(pointer) };
                Some(taken)
            }
            EncodedMut::Listpack(mut listpack) => {
                let at = listpack.view().seek(index_below(random(), listpack.len()))?;
                let taken = take(listpack.view().get(at));
                listpack.remove(at);
                Some(taken)
            }
            EncodedMut::Intset(mut intset) => {
                let index = chance::below(random(), intset.len());
                let taken = take(Str::Int(intset.view().get(index)?));
                intset.remove_at(index);
                Some(taken)
            }
        }
    }

    /// Calls `visit` with `count` distinct members, or all if there are fewer; every subset has the same probability.
    pub fn sample(&self, count: usize, mut random: impl FnMut() -> u64, mut visit: impl FnMut(Str<'_>)) {
        // Few of many are drawn until they are distinct; otherwise all
        // members are visited and some selected on the way.
        const MANY: usize = 3;
        match self.encoded() {
            Encoded::Table(members) if count <= members.len() / MANY => {
                let mut seen = HashSet::with_capacity(count);
                while seen.len() < count {
                    let Some(pointer) = members.random(&mut random) else { return };
                    if seen.insert(pointer) {
                        visit(iter::member(pointer));
                    }
                }
            }
            _ => {
                let mut subset = Subset::new(count, self.len());
                let mut members = self.iter();
                while !subset.is_complete() {
                    let Some(member) = members.next() else { return };
                    if subset.select_next(&mut random) {
                        visit(member);
                    }
                }
            }
        }
    }

    /// One call of SSCAN: calls `visit` with `count` or slightly more members, and returns the
    /// next cursor; cursor 0 starts and ends a scan. Compact encodings are visited as a whole.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(Str<'_>)) -> u64 {
        match self.encoded() {
            Encoded::Table(members) => members.scan_some(cursor, count, |pointer| visit(iter::member(pointer))),
            _ => {
                self.iter().for_each(visit);
                0
            }
        }
    }
}

/// A random index of a listpack of `len` elements.
#[inline]
fn index_below(draw: u64, len: usize) -> isize {
    chance::below(draw, len) as isize
}

#[inline]
fn contains(view: listpack::View<'_>, member: &[u8]) -> bool {
    view.first().is_some_and(|first| view.find(first, member, 0).is_some())
}

/// Adds a member; returns false if it existed.
#[inline]
fn insert_into_table(members: &mut Members<Plain>, member: &[u8]) -> bool {
    let Err(vacant) = members.find_place(member) else { return false };
    // SAFETY: the new element has the name that was not found.
    unsafe { members.insert_at(vacant, element::create(member), false) };
    true
}

impl From<Intset> for Set {
    fn from(intset: Intset) -> Set {
        Set(intset.into_word(INTSET))
    }
}

/// The elements must all be different.
impl From<Listpack> for Set {
    fn from(listpack: Listpack) -> Set {
        Set(listpack.into_word(LISTPACK))
    }
}

impl From<Members<Plain>> for Set {
    fn from(members: Members<Plain>) -> Set {
        Set(Word::from_box(Box::new(members), TABLE))
    }
}

impl Default for Set {
    fn default() -> Self {
        Self::of_integers()
    }
}

impl Clone for Set {
    fn clone(&self) -> Self {
        match self.encoded() {
            Encoded::Intset(view) => Intset::from(view).into(),
            Encoded::Listpack(view) => Listpack::from(view).into(),
            Encoded::Table(members) => members.clone().into(),
        }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        // SAFETY: the tag identifies what the word owns, and it is dropped once.
        unsafe {
            match self.0.tag() {
                INTSET => drop(Intset::from_word(self.0)),
                LISTPACK => drop(Listpack::from_word(self.0)),
                _ => drop(self.0.into_box::<Members<Plain>>()),
            }
        }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for Set {
    const KIND: Kind = Kind::Set;

    #[inline]
    fn len(&self) -> usize {
        match self.encoded() {
            Encoded::Intset(view) => view.len(),
            Encoded::Listpack(view) => view.len(),
            Encoded::Table(members) => members.len(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self.encoded() {
            Encoded::Intset(_) => "intset",
            Encoded::Listpack(_) => "listpack",
            Encoded::Table(_) => "hashtable",
        }
    }

    fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if self.0.tag() == TABLE && position == 0 {
            // SAFETY: the tag identifies the type of the box, which is borrowed exclusively.
            unsafe { self.0.relocate_box::<Members<Plain>>(mover) };
        }
        match self.encoded_mut() {
            EncodedMut::Intset(mut intset) => intset.relocate(mover),
            EncodedMut::Listpack(mut listpack) => listpack.relocate(mover),
            EncodedMut::Table(members) => return members.relocate(position, mover),
        }
        None
    }

    fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        self.as_table()?.gradual()
    }

    fn inside(&self) -> Inside<'_> {
        match self.encoded() {
            Encoded::Intset(_) => Inside::Other,
            Encoded::Listpack(view) => Inside::Listpack(view),
            Encoded::Table(members) => Inside::Table(members.table()),
        }
    }

    fn memory(&self, samples: usize) -> usize {
        match self.encoded() {
            Encoded::Intset(view) => size_class(view.bytes().len()),
            Encoded::Listpack(view) => size_class(view.bytes().len()),
            Encoded::Table(members) => size_class(size_of_val(members)) + members.memory(samples),
        }
    }

    fn free_effort(&self) -> usize {
        match self.encoded() {
            Encoded::Table(members) => members.len(),
            _ => 1,
        }
    }
}
