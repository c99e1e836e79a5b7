//! Sorted sets: members with scores, ordered by score and then by member.
//!
//! - [`small`]: a listpack, in the format of dump files, while there are few and short members.
//! - [`large`]: a [`tree`] for the order and a table of members; both share the [`element`]s.
//! - [`Cut`]: a position in the order; ranges by score and by member are pairs of cuts.
//! - [`Builder`] and [`Loader`]: collect elements in any order, to build a sorted set from them.
//!
//! A small sorted set becomes large when it exceeds its [`Limits`], and remains large.
//! Only results of commands ([`Builder::build`]) choose their encoding at the end.
//!
//! **Invariant**: the word's tag identifies whether it points to
//! a listpack or to a box of [`Large`]. Scores are never NaN.

mod builder;
mod capture;
mod cut;
mod element;
mod large;
mod small;
mod tree;

pub use builder::{Builder, Loader};
pub use cut::Cut;

use super::collection::{Collection, Inside};
use crate::defrag::Mover;
use crate::encodings::Corrupt;
use crate::encodings::listpack::{self, Listpack, View};
use crate::snapshot::pieces::Gradual;
use crate::value::{IntBuf, Kind, Str};
use crate::word::Word;
use element::Element;
use large::{Large, Walk};
use std::ops::Range;

const SMALL: u8 = 0;
const LARGE: u8 = 1;

/// A sorted set.
#[repr(transparent)]
pub struct SortedSet(Word);

/// The limits of the small encoding.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `zset-max-listpack-entries`.
    pub entries: usize,
    /// `zset-max-listpack-value`: bytes of a member.
    pub value: usize,
}

/// The result of an update of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing changed.
    None,
    /// The member is new.
    Added,
    /// The member existed, and its score changed.
    Updated,
}

// SAFETY: it owns what its word points to.
unsafe impl Send for SortedSet {}
// SAFETY: shared references only read.
unsafe impl Sync for SortedSet {}

impl SortedSet {
    /// An empty sorted set.
    pub fn new() -> Self {
        SortedSet(Listpack::new().into_word(SMALL))
    }

    fn from_large(large: Large) -> Self {
        SortedSet(Word::from_box(Box::new(large), LARGE))
    }

    /// Validates and takes over a listpack from outside: pairs of members and scores in strict order.
    ///
    /// # Errors
    /// If the listpack is invalid.
    pub fn from_listpack(listpack: Listpack) -> Result<Self, Corrupt> {
        if small::is_valid(listpack.view()) { Ok(SortedSet(listpack.into_word(SMALL))) } else { Err(Corrupt) }
    }

    /// The listpack, if it is small.
    #[inline]
    pub fn listpack(&self) -> Option<View<'_>> {
        // SAFETY: the tag identifies a listpack, which lives and does not change while `self` is borrowed.
        (self.0.tag() == SMALL).then(|| unsafe { listpack::view_of(self.0) })
    }

    #[inline]
    fn form(&self) -> Form<'_> {
        match self.listpack() {
            Some(view) => Form::Small(view),
            // SAFETY: the tag identifies it as large.
            None => Form::Large(unsafe { self.0.as_ref() }),
        }
    }

    #[inline]
    fn form_mut(&mut self) -> FormMut<'_> {
        // SAFETY: the tag identifies the type; `self` is borrowed exclusively. All callers drop the guard.
        unsafe {
            if self.0.tag() == SMALL {
                FormMut::Small(listpack::Mut::new(&mut self.0))
            } else {
                FormMut::Large(self.0.as_mut())
            }
        }
    }

    /// The score of a member.
    #[inline]
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self.form() {
            Form::Small(view) => small::find(view, member).map(|at| small::score_after(view, at)),
            Form::Large(large) => large.find(member).map(Element::score),
        }
    }

    /// The rank of a member, counted from 0, and its score.
    #[inline]
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        match self.form() {
            Form::Small(view) => small::rank_of(view, member),
            Form::Large(large) => {
                let element = large.find(member)?;
                Some((large.tree().rank_of(element), element.score()))
            }
        }
    }

    /// The ranks of the elements that are not before `from`, but before `to`.
    pub fn ranks(&self, from: &Cut<'_>, to: &Cut<'_>) -> Range<usize> {
        match self.form() {
            Form::Small(view) => {
                let (start, _) = small::find_cut(view, 0, from);
                start..small::find_cut(view, start, to).0
            }
            Form::Large(large) => {
                let start = large.tree().rank(from);
                start..large.tree().rank(to).max(start)
            }
        }
    }

    /// The elements with these ranks, in order, clipped to the existing ones.
    #[inline]
    pub fn range(&self, ranks: Range<usize>) -> Entries<'_> {
        self.walk(ranks, false)
    }

    /// The elements with these ranks in reverse order, clipped to the existing ones.
    #[inline]
    pub fn range_rev(&self, ranks: Range<usize>) -> Entries<'_> {
        self.walk(ranks, true)
    }

    fn walk(&self, ranks: Range<usize>, reverse: bool) -> Entries<'_> {
        let end = ranks.end.min(self.len());
        let left = end.saturating_sub(ranks.start);
        let first = if reverse { end.saturating_sub(1) } else { ranks.start };
        let steps = match self.form() {
            _ if left == 0 => Steps::None,
            Form::Small(view) => match (view.seek(2 * first as isize), reverse) {
                (None, _) => Steps::None,
                (Some(at), false) => Steps::Pairs(view.iter_from(at)),
                (Some(at), true) => Steps::PairsBack(view.iter_rev_from(view.next(at).unwrap_or(at))),
            },
            Form::Large(large) => Steps::Tree(Walk::new(large.tree(), first, reverse)),
        };
        Entries { left, steps }
    }

    /// All elements, in order.
    pub fn iter(&self) -> Entries<'_> {
        self.range(0..usize::MAX)
    }

    /// Adds or updates a member: `decide` receives its current score, `None` if it does not
    /// exist, and returns the new score, or `None` for no change. The new score must not be NaN.
    #[inline]
    pub fn update(&mut self, member: &[u8], limits: Limits, decide: impl FnOnce(Option<f64>) -> Option<f64>) -> Change {
        let mut listpack = match self.form_mut() {
            FormMut::Large(large) => return large.update(member, decide),
            FormMut::Small(listpack) => listpack,
        };
        if let Some(at) = small::find(listpack.view(), member) {
            let old = small::score_after(listpack.view(), at);
            return match decide(Some(old)) {
                Some(score) if score != old => {
                    small::rescore(&mut listpack, at, member, score);
                    Change::Updated
                }
                _ => Change::None,
            };
        }
        let Some(score) = decide(None) else { return Change::None };
        let stays = listpack.len() / 2 < limits.entries && member.len() <= limits.value && listpack.fits(member.len());
        if stays {
            small::insert(&mut listpack, member, score);
        } else {
            drop(listpack);
            self.enlarge().add_new(member, score);
        }
        Change::Added
    }

    /// Sets the score of a member, adding it if necessary.
    pub fn insert(&mut self, member: &[u8], score: f64, limits: Limits) -> Change {
        self.update(member, limits, |_| Some(score))
    }

    /// Converts to the large encoding if adding `count` elements,
    /// the longest of `longest` bytes, would require that anyway.
    pub fn expect(&mut self, count: usize, longest: usize, limits: Limits) {
        if count > limits.entries || longest > limits.value {
            self.enlarge();
        }
    }

    /// Removes a member; returns whether it existed.
    #[inline]
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match self.form_mut() {
            FormMut::Large(large) => large.remove(member),
            FormMut::Small(mut listpack) => match small::find(listpack.view(), member) {
                Some(at) => listpack.remove_from(at, 2) > 0,
                None => false,
            },
        }
    }

    /// Removes the elements with these ranks, clipped to the existing ones.
    pub fn remove_range(&mut self, ranks: Range<usize>) {
        let end = ranks.end.min(self.len());
        let count = end.saturating_sub(ranks.start);
        match self.form_mut() {
            _ if count == 0 => {}
            FormMut::Large(large) => large.remove_range(ranks.start, count),
            FormMut::Small(mut listpack) => {
                listpack.remove_range(2 * ranks.start as isize, 2 * count);
            }
        }
    }

    /// One call of ZSCAN: visits `count` or slightly more elements, all if the set
    /// is small, and returns the next cursor; cursor 0 starts and ends a scan.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(Str<'_>, f64)) -> u64 {
        match self.form() {
            Form::Small(_) => {
                self.iter().for_each(|(member, score)| visit(member, score));
                0
            }
            Form::Large(large) => large.members().scan_some(cursor, count, |pointer| {
                let element = Element::at(pointer);
                visit(Str::Bytes(element.member()), element.score());
            }),
        }
    }

    /// The large encoding; converts a small one.
    fn enlarge(&mut self) -> &mut Large {
        if let Some(view) = self.listpack() {
            let mut large = Large::default();
            let mut pairs = view.iter();
            while let (Some(member), Some(score)) = (pairs.next(), pairs.next()) {
                let score = small::parse_score(score).unwrap_or_default();
                large.add_new(member.bytes(&mut IntBuf::default()), score);
            }
            *self = SortedSet::from_large(large);
        }
        // SAFETY: it is large now.
        unsafe { self.0.as_mut() }
    }

    /// Verifies the invariants.
    #[cfg(test)]
    fn check(&self) {
        match self.form() {
            Form::Small(view) => assert!(small::is_valid(view)),
            Form::Large(large) => large.check(),
        }
    }
}

enum Form<'a> {
    Small(View<'a>),
    Large(&'a Large),
}

enum FormMut<'a> {
    Small(listpack::Mut<'a>),
    Large(&'a mut Large),
}

/// Elements of a sorted set: members and scores.
pub struct Entries<'a> {
    left: usize,
    steps: Steps<'a>,
}

enum Steps<'a> {
    None,
    Pairs(listpack::Iter<'a>),
    PairsBack(listpack::IterRev<'a>),
    Tree(Walk<'a>),
}

impl<'a> Iterator for Entries<'a> {
    type Item = (Str<'a>, f64);

    #[inline]
    fn next(&mut self) -> Option<(Str<'a>, f64)> {
        self.left = self.left.checked_sub(1)?;
        let (member, score) = match &mut self.steps {
            Steps::None => return None,
            Steps::Tree(walk) => {
                return walk.next().map(|element| (Str::Bytes(element.member()), element.score()));
            }
            Steps::Pairs(pairs) => (pairs.next()?, pairs.next()?),
            Steps::PairsBack(pairs) => {
                let score = pairs.next()?;
                (pairs.next()?, score)
            }
        };
        Some((member, small::parse_score(score).unwrap_or_default()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Entries<'_> {}

impl Default for SortedSet {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for SortedSet {
    fn clone(&self) -> Self {
        match self.form() {
            Form::Small(view) => SortedSet(Listpack::from(view).into_word(SMALL)),
            Form::Large(large) => SortedSet::from_large(large.clone()),
        }
    }
}

impl Drop for SortedSet {
    fn drop(&mut self) {
        // SAFETY: the tag identifies the type, and it is dropped once.
        unsafe {
            if self.0.tag() == SMALL {
                drop(Listpack::from_word(self.0));
            } else {
                drop(self.0.into_box::<Large>());
            }
        }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for SortedSet {
    const KIND: Kind = Kind::SortedSet;

    #[inline]
    fn len(&self) -> usize {
        match self.form() {
            Form::Small(view) => view.len() / 2,
            Form::Large(large) => large.len(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self.form() {
            Form::Small(_) => "listpack",
            Form::Large(_) => "skiplist",
        }
    }

    fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if self.0.tag() == LARGE && position == 0 {
            // SAFETY: the tag identifies the type of the box, which is borrowed exclusively.
            unsafe { self.0.relocate_box::<Large>(mover) };
        }
        match self.form_mut() {
            FormMut::Small(mut listpack) => {
                listpack.relocate(mover);
                None
            }
            FormMut::Large(large) => large.relocate(position, mover),
        }
    }

    fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        match self.form_mut() {
            FormMut::Small(_) => None,
            FormMut::Large(large) => large.gradual(),
        }
    }

    fn inside(&self) -> Inside<'_> {
        match self.form() {
            Form::Small(view) => Inside::Listpack(view),
            Form::Large(large) => Inside::Table(large.members().table()),
        }
    }

    fn memory(&self, samples: usize) -> usize {
        match self.form() {
            Form::Small(view) => crate::memory::size_class(view.bytes().len()),
            Form::Large(large) => large.memory(samples),
        }
    }

    fn free_effort(&self) -> usize {
        match self.form() {
            Form::Small(_) => 1,
            Form::Large(large) => large.len() + large.tree().node_count(),
        }
    }
}

#[cfg(test)]
mod tests;
