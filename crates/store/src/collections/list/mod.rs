//! Lists.
//!
//! A small list is one listpack, a large one a [`quicklist`] of [`block`]s. It becomes large just before an
//! addition that would exceed the [`Limits`], and small again when a removal leaves one block that is at most half
//! full. Every method that changes a list handles this itself, and therefore takes the limits as a parameter.

pub(crate) mod block;
mod capture;
mod limits;
mod quicklist;
#[cfg(test)]
mod tests;

pub use block::{BlockView, Side};
pub use limits::{Limits, set_packed_threshold};

use super::collection::{Collection, Inside};
use crate::defrag::Mover;
use crate::encodings::listpack::{self, Listpack, Needle, View};
use crate::memory::size_class;
use crate::snapshot::pieces::Gradual;
use crate::value::{IntBuf, Kind, Str};
use crate::word::Word;
use block::{Block, pop_packed, remove_matching_packed};
use kvick_resp::SharedBytes;
use quicklist::Quicklist;
use smallvec::SmallVec;
use std::ops::{ControlFlow, Range};

/// Tag: the word points to a listpack.
const PACKED: u8 = 0;
/// Tag: the word points to a boxed quicklist.
const BLOCKS: u8 = 1;

/// A list.
#[repr(transparent)]
pub struct List(Word);

enum Form<'a> {
    Packed(View<'a>),
    Blocks(&'a Quicklist),
}

enum FormMut<'a> {
    Packed(listpack::Mut<'a>),
    Blocks(&'a mut Quicklist),
}

impl List {
    /// An empty list.
    pub fn new() -> Self {
        Self::packed(Listpack::new())
    }

    fn packed(listpack: Listpack) -> Self {
        List(listpack.into_word(PACKED))
    }

    fn blocks_of(quicklist: Quicklist) -> Self {
        List(Word::from_box(Box::new(quicklist), BLOCKS))
    }

    #[inline]
    fn form(&self) -> Form<'_> {
        // SAFETY: the tag identifies what the word was made from, and `self` is borrowed.
        unsafe {
            match self.0.tag() {
                PACKED => Form::Packed(listpack::view_of(self.0)),
                _ => Form::Blocks(self.0.as_ref()),
            }
        }
    }

    #[inline]
    fn form_mut(&mut self) -> FormMut<'_> {
        // SAFETY: the tag identifies what the word was made from, and `self` is mutably borrowed.
        unsafe {
            match self.0.tag() {
                PACKED => FormMut::Packed(listpack::Mut::new(&mut self.0)),
                _ => FormMut::Blocks(self.0.as_mut()),
            }
        }
    }

    /// Makes the list large if `count` more elements of `bytes` bytes in total would exceed the limits.
    #[inline]
    fn grow(&mut self, limits: Limits, bytes: usize, count: usize) {
        if let Form::Packed(view) = self.form()
            && limits.exceeded(view.bytes().len().saturating_add(bytes), view.len() + count)
        {
            self.convert_to_large(limits);
        }
    }

    #[inline(never)]
    fn convert_to_large(&mut self, limits: Limits) {
        let FormMut::Packed(mut listpack) = self.form_mut() else { return };
        let mut quicklist = Quicklist::new(limits);
        if let Some(block) = Block::of_listpack(std::mem::take(&mut *listpack)) {
            quicklist.append_block(block);
        }
        drop(listpack);
        *self = Self::blocks_of(quicklist);
    }

    /// Makes the list small if it has only one block, at most half full.
    #[inline]
    fn shrink(&mut self, limits: Limits) {
        let single = match self.form_mut() {
            FormMut::Packed(_) => None,
            FormMut::Blocks(quicklist) => quicklist.take_single(|bytes, count| limits.far_from_exceeded(bytes, count)),
        };
        if let Some(listpack) = single {
            *self = Self::packed(listpack);
        }
    }

    /// Adds an element at one end.
    #[inline]
    pub fn push(&mut self, side: Side, element: &[u8], limits: Limits) {
        self.extend(side, std::iter::once(element), limits);
    }

    /// Adds elements at one end, one after the other: at the head, the last one is first afterwards.
    #[inline]
    pub fn extend<'e>(&mut self, side: Side, elements: impl Iterator<Item = &'e [u8]> + Clone, limits: Limits) {
        let (bytes, count) = elements.clone().fold((0, 0), |(bytes, count), one| (bytes + one.len(), count + 1));
        self.grow(limits, bytes, count);
        match self.form_mut() {
            FormMut::Packed(mut listpack) => match side {
                Side::Head => elements.for_each(|element| listpack.push_front(element)),
                Side::Tail => elements.for_each(|element| listpack.push_back(element)),
            },
            FormMut::Blocks(quicklist) => elements.for_each(|element| quicklist.push(side, element)),
        }
    }

    /// Adds an element at one end. A large one keeps its buffer.
    pub fn push_shared(&mut self, side: Side, element: &SharedBytes, limits: Limits) {
        self.grow(limits, element.len(), 1);
        if let FormMut::Blocks(quicklist) = self.form_mut() {
            return quicklist.push_shared(side, element);
        }
        self.push(side, element, limits);
    }

    /// Calls `take` with the element at one end and removes it; `None` if the list is empty.
    #[inline]
    pub fn pop<R>(&mut self, side: Side, limits: Limits, take: impl FnOnce(Str<'_>) -> R) -> Option<R> {
        let taken = self.pop_only(side, take);
        self.shrink(limits);
        taken
    }

    #[inline]
    fn pop_only<R>(&mut self, side: Side, take: impl FnOnce(Str<'_>) -> R) -> Option<R> {
        match self.form_mut() {
            FormMut::Packed(mut listpack) => pop_packed(&mut listpack, side, take),
            FormMut::Blocks(quicklist) => quicklist.pop(side, take),
        }
    }

    /// Calls `see` with the element at one end and moves it to an end, which may be the same one.
    pub fn rotate<R>(&mut self, from: Side, to: Side, limits: Limits, see: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let element = self.pop_only(from, owned)?;
        let seen = see(&element);
        self.push(to, &element, limits);
        self.shrink(limits);
        Some(seen)
    }

    /// Converts an index, counted from the tail if negative, to one
    /// counted from the head; `None` if there is no such element.
    #[inline]
    pub fn index(&self, index: i64) -> Option<usize> {
        let len = self.len();
        let index =
            if index < 0 { len.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)? } else { index as usize };
        (index < len).then_some(index)
    }

    /// Converts the inclusive range from `start` to `stop`, each counted from
    /// the tail if negative, to a range of existing indices, which may be empty.
    #[inline]
    pub fn range(&self, start: i64, stop: i64) -> Range<usize> {
        let len = self.len() as i64;
        let from_head = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
        let (start, stop) = (from_head(start).max(0), from_head(stop).min(len - 1));
        if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
    }

    /// Calls `see` with the element at an index, counted from the tail if negative.
    pub fn get<R>(&self, index: i64, see: impl FnOnce(Str<'_>) -> R) -> Option<R> {
        let index = self.index(index)?;
        let mut see = Some(see);
        let mut seen = None;
        self.visit(index..index + 1, Side::Head, |element| seen = see.take().map(|see| see(element)));
        seen
    }

    /// Calls `visit` with the elements in a range of indices, starting from side `from`.
    #[inline]
    pub fn visit(&self, range: Range<usize>, from: Side, mut visit: impl FnMut(Str<'_>)) {
        let mut visit = |element: Str<'_>| {
            visit(element);
            ControlFlow::<()>::Continue(())
        };
        let _ = self.visit_until(range, from, &mut visit);
    }

    #[inline]
    fn visit_until<B>(
        &self,
        range: Range<usize>,
        from: Side,
        visit: &mut impl FnMut(Str<'_>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        if range.is_empty() {
            return ControlFlow::Continue(());
        }
        let begin = if from == Side::Head { range.start } else { range.end - 1 };
        match self.form() {
            Form::Packed(view) => {
                visit_packed(view, from, Some(begin), range.len(), visit)?;
                ControlFlow::Continue(())
            }
            Form::Blocks(quicklist) => quicklist.visit(from, begin, range.len(), visit),
        }
    }

    /// Calls `found` with the index of each element equal to `needle`
    /// among the first `most` from side `from`, until it breaks.
    pub fn find(&self, needle: &[u8], from: Side, most: usize, mut found: impl FnMut(usize) -> ControlFlow<()>) {
        let (needle, len) = (Needle::new(needle), self.len());
        let examined = most.min(len);
        let (range, mut index) = match from {
            Side::Head => (0..examined, 0),
            Side::Tail => (len - examined..len, len.wrapping_sub(1)),
        };
        let _ = self.visit_until(range, from, &mut |element| {
            if needle.is(element) {
                found(index)?;
            }
            index = if from == Side::Head { index + 1 } else { index.wrapping_sub(1) };
            ControlFlow::Continue(())
        });
    }

    /// Replaces the element at an index, counted from the tail if negative; returns false if there is none.
    pub fn set(&mut self, index: i64, element: &[u8], limits: Limits) -> bool {
        self.grow(limits, element.len(), 1);
        let Some(index) = self.index(index) else { return false };
        match self.form_mut() {
            FormMut::Packed(mut listpack) => {
                let Some(at) = listpack.view().seek(index as isize) else { return false };
                listpack.replace(at, element);
            }
            FormMut::Blocks(quicklist) => {
                quicklist.replace(index, element);
            }
        }
        self.shrink(limits);
        true
    }

    /// Inserts before or after the first element equal to `pivot`; returns false if there is none. If
    /// the insertion would exceed the limits, the list becomes large even if the pivot is not found.
    pub fn insert(&mut self, pivot: &[u8], side: Side, element: &[u8], limits: Limits) -> bool {
        self.grow(limits, element.len(), 1);
        let pivot = Needle::new(pivot);
        match self.form_mut() {
            FormMut::Packed(mut listpack) => {
                let view = listpack.view();
                let Some(at) = view.first().and_then(|first| view.find_needle(first, pivot, 0)) else { return false };
                match side {
                    Side::Head => listpack.insert_before(at, element),
                    Side::Tail => _ = listpack.insert_after(at, element),
                }
                true
            }
            FormMut::Blocks(quicklist) => quicklist.insert(pivot, side, element),
        }
    }

    /// Removes up to `most` elements equal to `needle`, starting from side `from`; returns how many.
    pub fn remove_value(&mut self, needle: &[u8], from: Side, most: usize, limits: Limits) -> usize {
        let needle = Needle::new(needle);
        let removed = match self.form_mut() {
            FormMut::Packed(mut listpack) => {
                remove_matching_packed(&mut listpack, from, most, &|element: Str<'_>| needle.is(element))
            }
            FormMut::Blocks(quicklist) => quicklist.remove_value(from, most, needle),
        };
        if removed > 0 {
            self.shrink(limits);
        }
        removed
    }

    /// Removes the elements in a range of existing indices.
    pub fn remove_range(&mut self, range: Range<usize>, limits: Limits) {
        self.remove_only(range);
        self.shrink(limits);
    }

    /// Removes all elements except those in a range of existing indices.
    pub fn keep_range(&mut self, range: Range<usize>, limits: Limits) {
        self.remove_only(range.end..self.len());
        self.remove_only(0..range.start);
        self.shrink(limits);
    }

    fn remove_only(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match self.form_mut() {
            FormMut::Packed(mut listpack) => _ = listpack.remove_range(range.start as isize, range.len()),
            FormMut::Blocks(quicklist) => quicklist.remove_range(range.start, range.len()),
        }
    }

    /// The listpack of a small list.
    pub fn listpack(&self) -> Option<View<'_>> {
        match self.form() {
            Form::Packed(view) => Some(view),
            Form::Blocks(_) => None,
        }
    }

    /// The blocks of a large list, and the limits that it was created with.
    pub fn blocks(&self) -> Option<(impl ExactSizeIterator<Item = BlockView<'_>>, Limits)> {
        match self.form() {
            Form::Packed(_) => None,
            Form::Blocks(quicklist) => Some((quicklist.blocks(), quicklist.limits())),
        }
    }
}

/// Calls `visit` with up to `most` elements of a listpack, from index `offset`
/// on, or from that side's end if `None`; returns how many remain to be visited.
#[inline]
fn visit_packed<B>(
    view: View<'_>,
    from: Side,
    offset: Option<usize>,
    most: usize,
    visit: &mut impl FnMut(Str<'_>) -> ControlFlow<B>,
) -> ControlFlow<B, usize> {
    let at = offset.and_then(|offset| view.seek(offset as isize));
    let mut left = most;
    match from {
        Side::Head => {
            for element in at.map_or_else(|| view.iter(), |at| view.iter_from(at)).take(most) {
                visit(element)?;
                left -= 1;
            }
        }
        Side::Tail => {
            for element in at.map_or_else(|| view.iter_rev(), |at| view.iter_rev_from(at)).take(most) {
                visit(element)?;
                left -= 1;
            }
        }
    }
    ControlFlow::Continue(left)
}

/// A copy of an element.
pub fn owned(element: Str<'_>) -> SmallVec<[u8; 128]> {
    SmallVec::from_slice(element.bytes(&mut IntBuf::default()))
}

/// Builds a list from loaded parts.
pub struct Builder {
    quicklist: Quicklist,
    limits: Limits,
}

impl Builder {
    /// A builder of an empty list.
    pub fn new(limits: Limits) -> Self {
        Builder { quicklist: Quicklist::new(limits), limits }
    }

    /// Adds the elements of a listpack, as a block.
    pub fn listpack(&mut self, listpack: Listpack) {
        if let Some(block) = Block::of_listpack(listpack) {
            self.quicklist.append_block(block);
        }
    }

    /// Adds an element in a separate block.
    pub fn plain(&mut self, mut element: Vec<u8>) {
        element.shrink_to_fit();
        self.quicklist.append_block(Block::Plain(element.into()));
    }

    /// Adds an element to the last block if it fits, as a push does.
    pub fn element(&mut self, element: &[u8]) {
        self.quicklist.push(Side::Tail, element);
    }

    /// The list, in the encoding that the limits require.
    pub fn finish(mut self) -> List {
        let limits = self.limits;
        match self.quicklist.take_single(|bytes, count| limits.allows(bytes, count)) {
            Some(listpack) => List::packed(listpack),
            None => List::blocks_of(self.quicklist),
        }
    }
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for List {
    fn clone(&self) -> Self {
        match self.form() {
            Form::Packed(view) => Self::packed(view.into()),
            Form::Blocks(quicklist) => Self::blocks_of(quicklist.clone()),
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the tag identifies what the word was made from, and it is dropped once.
        unsafe {
            match self.0.tag() {
                PACKED => drop(Listpack::from_word(self.0)),
                _ => drop(self.0.into_box::<Quicklist>()),
            }
        }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for List {
    const KIND: Kind = Kind::List;

    #[inline]
    fn len(&self) -> usize {
        match self.form() {
            Form::Packed(view) => view.len(),
            Form::Blocks(quicklist) => quicklist.len(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self.form() {
            Form::Packed(_) => "listpack",
            Form::Blocks(_) => "quicklist",
        }
    }

    fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        if self.0.tag() == BLOCKS && position == 0 {
            // SAFETY: the tag identifies the type of the box, which is borrowed exclusively.
            unsafe { self.0.relocate_box::<Quicklist>(mover) };
        }
        match self.form_mut() {
            FormMut::Packed(mut listpack) => {
                listpack.relocate(mover);
                None
            }
            FormMut::Blocks(quicklist) => quicklist.relocate(position as usize, mover).map(|block| block as u64),
        }
    }

    fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        match self.form_mut() {
            FormMut::Packed(_) => None,
            FormMut::Blocks(quicklist) => quicklist.gradual(),
        }
    }

    fn inside(&self) -> Inside<'_> {
        self.listpack().map_or(Inside::Other, Inside::Listpack)
    }

    fn memory(&self, samples: usize) -> usize {
        match self.form() {
            Form::Packed(view) => size_class(view.bytes().len()),
            Form::Blocks(quicklist) => size_class(size_of::<Quicklist>()) + quicklist.memory(samples),
        }
    }

    fn free_effort(&self) -> usize {
        match self.form() {
            Form::Packed(_) => 1,
            Form::Blocks(quicklist) => quicklist.block_count(),
        }
    }
}
