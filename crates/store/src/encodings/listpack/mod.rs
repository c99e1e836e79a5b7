//! Listpacks: short sequences of strings and integers packed into one allocation, in the format of dump files.
//!
//! The header consists of the total size (four bytes) and the number of elements (two bytes; 65535 if unknown),
//! both little-endian. It is followed by the elements, each readable from both ends (see [`element`]), and a
//! terminating byte. Small collections are one listpack; lists and streams consist of many.
//!
//! [`View`] reads a listpack at any address. [`Listpack`] owns one: it is a [`Buffer`], and
//! so a thin pointer, and a collection can consist of just that pointer. [`Mut`] modifies
//! the listpack of a [`Word`]. [`Fronted`] owns one that grows and shrinks at its head.
//!
//! # Safety
//!
//! While a [`Mut`] lives, only it uses the word; when dropped, it writes back the pointer, which
//! may have changed. Elements are read through [`View`], which is a slice with bounds checks.

pub mod element;
mod fronted;
mod view;

pub use element::Element;
pub use fronted::Fronted;
pub use view::{At, Iter, IterRev, Needle, View};

use super::Corrupt;
use super::buffer::{Buffer, PREFIX};
use crate::defrag::Mover;
use crate::word::Word;
use std::mem::ManuallyDrop;

/// Maximum size of a listpack, in bytes.
pub const BYTES_MAX: usize = super::buffer::BYTES_MAX;

/// Bytes before the first element.
const HEADER: usize = 6;

/// The stored count if there are too many elements to represent.
const COUNT_UNKNOWN: u16 = u16::MAX;

/// Size of a listpack without elements, in bytes.
pub const EMPTY_BYTES: usize = HEADER + 1;

/// An owned listpack.
///
/// **Invariant**: the buffer's bytes are a listpack that [`View::check`] accepts.
///
/// Methods that add elements panic if the size would exceed [`BYTES_MAX`]: check
/// [`Listpack::fits`] first for input from outside. Positions must be of this listpack.
#[repr(transparent)]
#[derive(Clone)]
pub struct Listpack(Buffer);

impl Default for Listpack {
    fn default() -> Self {
        Self::new()
    }
}

impl Listpack {
    /// An empty listpack.
    pub fn new() -> Self {
        const EMPTY: [u8; EMPTY_BYTES] = [EMPTY_BYTES as u8, 0, 0, 0, 0, 0, element::END];
        Self::copy_of(&EMPTY)
    }

    /// A copy of bytes from outside, after validation.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Corrupt> {
        View::check(bytes).map(Self::from)
    }

    /// A copy of a listpack's bytes.
    fn copy_of(bytes: &[u8]) -> Self {
        debug_assert!(View::check(bytes).is_ok());
        Listpack(Buffer::copy_of(bytes))
    }

    /// A listpack of `count` elements with `size` bytes in total, which `write`
    /// must write into the given slice. Panics if it would be too large.
    pub(super) fn written_by(count: usize, size: usize, write: impl FnOnce(&mut [u8])) -> Self {
        let mut buffer = Buffer::of_len(EMPTY_BYTES + size);
        let (header, elements) = buffer.body_mut().split_at_mut(HEADER - PREFIX);
        header.copy_from_slice(&(count.min(COUNT_UNKNOWN.into()) as u16).to_le_bytes());
        let (end, elements) = elements.split_last_mut().unwrap_or_else(|| unreachable!("there is room for the end"));
        *end = element::END;
        write(elements);
        debug_assert!(View::check(buffer.bytes()).is_ok());
        Listpack(buffer)
    }

    /// Size in bytes, including header and terminator.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.0.byte_len()
    }

    /// Borrows it for reading.
    #[inline]
    pub fn view(&self) -> View<'_> {
        View::known(self.0.bytes())
    }

    /// All bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.view().bytes()
    }

    /// Number of elements: see [`View::len`].
    #[inline]
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// True when there are no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.byte_len() <= EMPTY_BYTES
    }

    /// Bytes of memory, rounded up to the allocator's size class.
    #[inline]
    pub fn memory(&self) -> usize {
        self.0.memory()
    }

    /// Offers its allocation to a mover.
    pub fn relocate(&mut self, mover: &mut Mover<'_>) {
        self.0.relocate(mover);
    }

    /// Size in bytes after adding `more` bytes: see [`Element::size`].
    #[inline]
    pub fn bytes_with(&self, more: usize) -> usize {
        self.byte_len().saturating_add(more)
    }

    /// Whether elements whose strings have `more` bytes in total can be added.
    #[inline]
    pub fn fits(&self, more: usize) -> bool {
        self.view().fits(more)
    }

    /// Adds at the tail.
    #[inline]
    pub fn push_back(&mut self, bytes: &[u8]) {
        self.push_back_element(Element::new(bytes));
    }

    /// Adds an integer at the tail.
    #[inline]
    pub fn push_back_int(&mut self, number: i64) {
        self.push_back_element(Element::int(number));
    }

    /// Adds at the tail.
    #[inline]
    pub fn push_back_element(&mut self, element: Element<'_>) {
        self.push_back_elements([element]);
    }

    /// Adds several elements at the tail, in order.
    #[inline]
    pub fn push_back_elements<const N: usize>(&mut self, elements: [Element<'_>; N]) {
        let sizes = elements.each_ref().map(Element::size);
        let mut room = self.0.extend(1, sizes.iter().sum::<usize>() + 1);
        for (element, size) in elements.iter().zip(sizes) {
            let (own, rest) = room.split_at_mut(size);
            element.write(own);
            room = rest;
        }
        room[0] = element::END;
        self.count(N as isize);
    }

    /// Adds at the head.
    #[inline]
    pub fn push_front(&mut self, bytes: &[u8]) {
        self.push_front_element(Element::new(bytes));
    }

    /// Adds an integer at the head.
    #[inline]
    pub fn push_front_int(&mut self, number: i64) {
        self.push_front_element(Element::int(number));
    }

    /// Adds at the head.
    #[inline]
    pub fn push_front_element(&mut self, element: Element<'_>) {
        self.splice(HEADER, 0, &[element]);
        self.count(1);
    }

    /// Inserts before the element at `at`, which is then the position of the new one.
    #[inline]
    pub fn insert_before(&mut self, at: At, bytes: &[u8]) {
        self.insert_all_before(Some(at), &[Element::new(bytes)]);
    }

    /// Inserts after the element at `at`; returns the position of the new one.
    #[inline]
    pub fn insert_after(&mut self, at: At, bytes: &[u8]) -> At {
        let after = self.after(at);
        self.splice(after.offset(), 0, &[Element::new(bytes)]);
        self.count(1);
        after
    }

    /// Inserts several elements before the one at `at`, or at the tail if `None`.
    #[inline]
    pub fn insert_all_before(&mut self, at: Option<At>, elements: &[Element<'_>]) {
        let offset = at.map_or(self.byte_len() - 1, At::offset);
        self.splice(offset, 0, elements);
        self.count(elements.len() as isize);
    }

    /// Replaces the element at `at`; returns the position of the new one.
    #[inline]
    pub fn replace(&mut self, at: At, bytes: &[u8]) -> At {
        self.replace_element(at, Element::new(bytes))
    }

    /// Replaces the element at `at` by an integer.
    #[inline]
    pub fn replace_int(&mut self, at: At, number: i64) -> At {
        self.replace_element(at, Element::int(number))
    }

    /// Replaces the element at `at`.
    #[inline]
    pub fn replace_element(&mut self, at: At, element: Element<'_>) -> At {
        let old = self.after(at).offset() - at.offset();
        self.splice(at.offset(), old, &[element]);
        at
    }

    /// Removes the element at `at`; returns the position of the next one, which is the same.
    #[inline]
    pub fn remove(&mut self, at: At) -> Option<At> {
        let old = self.after(at).offset() - at.offset();
        self.splice(at.offset(), old, &[]);
        self.count(-1);
        (at.offset() < self.byte_len() - 1).then_some(at)
    }

    /// Removes up to `count` elements from `index` on, counted from
    /// the tail if negative; returns how many were removed.
    pub fn remove_range(&mut self, index: isize, count: usize) -> usize {
        let Some(at) = self.view().seek(index) else { return 0 };
        self.remove_from(at, count)
    }

    /// Removes up to `count` elements from the one at `at` on; returns how many were removed.
    pub fn remove_from(&mut self, at: At, count: usize) -> usize {
        let (mut end, mut removed) = (at.offset(), 0);
        let view = self.view();
        let mut next = Some(at);
        while let Some(one) = next.filter(|_| removed < count) {
            end = self.after(one).offset();
            next = view.next(one);
            removed += 1;
        }
        self.splice(at.offset(), end - at.offset(), &[]);
        self.count(-(removed as isize));
        removed
    }

    /// Appends all elements of another listpack.
    pub fn append(&mut self, other: View<'_>) {
        let bytes = &other.bytes()[HEADER..other.end()];
        let (end, len) = (self.byte_len() - 1, other.len());
        self.make_room(end, 0, bytes.len()).copy_from_slice(bytes);
        self.count(len as isize);
    }

    /// The position of the next element, or of the end.
    #[inline]
    fn after(&self, at: At) -> At {
        let after = self.view().after(at).filter(|after| *after < self.byte_len()).and_then(At::new);
        after.unwrap_or_else(|| panic!("a position of another listpack"))
    }

    /// Replaces `old` bytes at `offset` by elements; the caller updates the count.
    #[inline]
    fn splice(&mut self, offset: usize, old: usize, elements: &[Element<'_>]) {
        let new = elements.iter().map(Element::size).sum();
        let mut room = self.make_room(offset, old, new);
        for element in elements {
            let (own, rest) = room.split_at_mut(element.size());
            element.write(own);
            room = rest;
        }
    }

    /// Replaces `old` bytes at `offset` by `new` bytes, which the caller must write.
    #[inline]
    fn make_room(&mut self, offset: usize, old: usize, new: usize) -> &mut [u8] {
        let total = self.byte_len();
        assert!(offset >= HEADER && offset < total && old < total - offset);
        self.0.make_room(offset, old, new)
    }

    /// Adds to the number of elements. Once the number is unknown, it remains so.
    #[inline]
    fn count(&mut self, more: isize) {
        let Some(place) = self.0.body_mut().first_chunk_mut() else { return };
        let count = u16::from_le_bytes(*place);
        if count != COUNT_UNKNOWN {
            let count = (count as isize + more).clamp(0, COUNT_UNKNOWN as isize);
            *place = (count as u16).to_le_bytes();
        }
    }

    /// Releases ownership of it as a word.
    #[inline]
    pub fn into_word(self, tag: u8) -> Word {
        self.0.into_word(tag)
    }

    /// Takes ownership of a listpack given as a word.
    ///
    /// # Safety
    /// The word must come from `into_word`; neither it nor a copy of it may be used afterwards.
    #[inline]
    pub unsafe fn from_word(word: Word) -> Self {
        // SAFETY: promised by the caller.
        Listpack(unsafe { Buffer::from_word(word) })
    }
}

impl From<View<'_>> for Listpack {
    fn from(view: View<'_>) -> Self {
        Self::copy_of(view.bytes())
    }
}

impl std::fmt::Debug for Listpack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view().fmt(f)
    }
}

/// The listpack of a word.
///
/// # Safety
/// The word must come from [`Listpack::into_word`], and the listpack must neither change nor be freed during `'a`.
#[inline]
pub unsafe fn view_of<'a>(word: Word) -> View<'a> {
    // SAFETY: promised by the caller; it is not dropped.
    unsafe {
        let buffer = ManuallyDrop::new(Buffer::from_word(word));
        View::known(std::slice::from_raw_parts(word.pointer().as_ptr(), buffer.byte_len()))
    }
}

/// Mutable access to the listpack of a word. On drop, the word is updated to its new address, with the same tag.
pub struct Mut<'a> {
    word: &'a mut Word,
    listpack: ManuallyDrop<Listpack>,
}

impl<'a> Mut<'a> {
    /// Starts the access.
    ///
    /// # Safety
    /// The word must come from [`Listpack::into_word`], and own it. The result must be dropped, not leaked.
    #[inline]
    pub unsafe fn new(word: &'a mut Word) -> Self {
        // SAFETY: promised by the caller; ownership returns to the word when this is dropped.
        Mut { listpack: ManuallyDrop::new(unsafe { Listpack::from_word(*word) }), word }
    }
}

impl std::ops::Deref for Mut<'_> {
    type Target = Listpack;

    #[inline]
    fn deref(&self) -> &Listpack {
        &self.listpack
    }
}

impl std::ops::DerefMut for Mut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Listpack {
        &mut self.listpack
    }
}

impl Drop for Mut<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: it is not used afterwards.
        *self.word = unsafe { ManuallyDrop::take(&mut self.listpack) }.into_word(self.word.tag());
    }
}

#[cfg(test)]
mod tests;
