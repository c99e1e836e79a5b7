//! Listpacks: short sequences of strings and integers packed into one allocation, in the format of dump files.
//!
//! Four bytes say how many bytes there are in all, two how many elements (65535: too many to say), both little-endian; then
//! the elements follow, each readable from both ends (see [`element`]), and a byte that ends it. Small collections are
//! one listpack; lists and streams are made of many.
//!
//! [`View`] reads one, wherever its bytes lie. [`Listpack`] owns one: a thin pointer to an allocation of the
//! [`size_class`] of its bytes, so that its size need not be kept, growth within the class costs nothing, and so a
//! collection can be the pointer alone. [`Mut`] changes one that a [`Word`] leads to.
//!
//! # Safety
//!
//! A [`Listpack`] points to an allocation of its own that begins with its header, whose first four bytes are the number of
//! bytes in use; the allocation has the size class of that number, which is how it is grown and freed. A [`Mut`] is the only
//! one that uses the word while it lives, and writes the pointer back, wherever it has moved to, when it is dropped.
//! Elements are read through [`View`], which is a slice and checks its bounds.

pub mod element;
mod view;

pub use element::Element;
pub use view::{At, Iter, IterRev, Needle, View};

use super::Corrupt;
use crate::collections::Word;
use crate::defrag::Mover;
use crate::memory::size_class;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The most bytes that a listpack has.
pub const BYTES_MAX: usize = 1 << 30;

/// Bytes before the first element.
const HEADER: usize = 6;

/// The count of those that have too many elements to say.
const COUNT_UNKNOWN: u16 = u16::MAX;

/// Bytes of a listpack without elements.
pub const EMPTY_BYTES: usize = HEADER + 1;

/// A listpack, owned.
///
/// **Invariant**: the pointer leads to an allocation of `layout(n)`, where `n`, at least [`EMPTY_BYTES`], is the number in
/// its first four bytes; its first `n` bytes are a listpack that [`View::check`] accepts.
///
/// Methods that add panic when there would be more than [`BYTES_MAX`] bytes: where outside input decides, ask
/// [`Listpack::fits`] first. Positions must be of this listpack.
#[repr(transparent)]
pub struct Listpack(NonNull<u8>);

// SAFETY: it owns its bytes alone.
unsafe impl Send for Listpack {}
// SAFETY: shared, it can only be read.
unsafe impl Sync for Listpack {}

/// A number of bytes that a listpack may have.
#[inline]
fn checked_total(bytes: usize) -> usize {
    assert!(bytes <= BYTES_MAX, "a listpack of {bytes} bytes");
    bytes
}

/// The allocation of a listpack of so many bytes. Aligned so that a [`Word`] can hold it.
#[inline]
fn layout(bytes: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and the callers' sizes are far below the limit.
    unsafe { Layout::from_size_align_unchecked(size_class(bytes), 8) }
}

impl Default for Listpack {
    fn default() -> Self {
        Self::new()
    }
}

impl Listpack {
    /// One without elements.
    pub fn new() -> Self {
        const EMPTY: [u8; EMPTY_BYTES] = [EMPTY_BYTES as u8, 0, 0, 0, 0, 0, element::END];
        Self::copy_of(&EMPTY)
    }

    /// A copy of bytes from outside, once checked.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Corrupt> {
        View::check(bytes).map(Self::from)
    }

    /// A copy of a listpack's bytes.
    fn copy_of(bytes: &[u8]) -> Self {
        debug_assert!(View::check(bytes).is_ok());
        let layout = layout(bytes.len());
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc(layout) };
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        // SAFETY: the allocation is new and has that many bytes at least.
        unsafe { pointer.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Listpack(pointer)
    }

    /// Number of bytes: header and end included.
    #[inline]
    pub fn byte_len(&self) -> usize {
        // SAFETY: the allocation begins with that number, aligned.
        u32::from_le(unsafe { self.0.cast::<u32>().read() }) as usize
    }

    /// It, to be read.
    #[inline]
    pub fn view(&self) -> View<'_> {
        // SAFETY: that many bytes are there, and are not changed while `self` is borrowed.
        View::known(unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.byte_len()) })
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

    /// Bytes of memory that it takes, the allocator's rounding included.
    #[inline]
    pub fn memory(&self) -> usize {
        size_class(self.byte_len())
    }

    /// Offers its allocation to a mover.
    pub fn relocate(&mut self, mover: &mut Mover<'_>) {
        // SAFETY: the allocation is its own, of this layout, and is reached from here alone.
        self.0 = unsafe { mover.offer(self.0, layout(self.byte_len())) };
    }

    /// Number of bytes with so many more: sizes of elements are told by [`Element::size`].
    #[inline]
    pub fn bytes_with(&self, more: usize) -> usize {
        self.byte_len().saturating_add(more)
    }

    /// Whether elements whose strings have so many bytes in all can be added safely.
    #[inline]
    pub fn fits(&self, more: usize) -> bool {
        self.bytes_with(more) <= BYTES_MAX - 1024
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
        let (total, size) = (self.byte_len(), element.size());
        let total_after = checked_total(total + size);
        self.reallocate(total, total_after);
        // SAFETY: just allocated; the old end and what comes behind it are its last bytes.
        let room = unsafe { self.written(total - 1, size + 1, total_after) };
        let (end, room) = room.split_last_mut().unwrap_or_else(|| unreachable!("there is the end byte"));
        element.write(room);
        *end = element::END;
        self.count(1);
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

    /// Inserts before the element at `at`, which is where the new one is then.
    #[inline]
    pub fn insert_before(&mut self, at: At, bytes: &[u8]) {
        self.insert_all_before(Some(at), &[Element::new(bytes)]);
    }

    /// Inserts after the element at `at`; the new one.
    #[inline]
    pub fn insert_after(&mut self, at: At, bytes: &[u8]) -> At {
        let after = self.after(at);
        self.splice(after.offset(), 0, &[Element::new(bytes)]);
        self.count(1);
        after
    }

    /// Inserts several elements at once before the one at `at`, at the tail when `None`.
    #[inline]
    pub fn insert_all_before(&mut self, at: Option<At>, elements: &[Element<'_>]) {
        let offset = at.map_or(self.byte_len() - 1, At::offset);
        self.splice(offset, 0, elements);
        self.count(elements.len() as isize);
    }

    /// Replaces the element at `at`, which is where the new one is then.
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

    /// Removes the element at `at`; the one that was after it, which is where it was.
    #[inline]
    pub fn remove(&mut self, at: At) -> Option<At> {
        let old = self.after(at).offset() - at.offset();
        self.splice(at.offset(), old, &[]);
        self.count(-1);
        (at.offset() < self.byte_len() - 1).then_some(at)
    }

    /// Removes the elements at `count` indices from `index` on, negative ones counted from the tail; how many there were.
    pub fn remove_range(&mut self, index: isize, count: usize) -> usize {
        let Some(at) = self.view().seek(index) else { return 0 };
        self.remove_from(at, count)
    }

    /// Removes up to `count` elements from the one at `at` on; how many there were.
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

    /// Adds all elements of another one at the tail.
    pub fn append(&mut self, other: View<'_>) {
        let bytes = &other.bytes()[HEADER..other.end()];
        let (end, len) = (self.byte_len() - 1, other.len());
        self.make_room(end, 0, bytes.len()).copy_from_slice(bytes);
        self.count(len as isize);
    }

    /// Where the element after one begins, or the end.
    #[inline]
    fn after(&self, at: At) -> At {
        let after = self.view().after(at).filter(|after| *after < self.byte_len()).and_then(At::new);
        after.unwrap_or_else(|| panic!("a position of another listpack"))
    }

    /// Puts elements in place of `old` bytes at `offset`; the count is left to the caller.
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

    /// Turns `old` bytes at `offset` into `new` ones, which are to be written.
    #[inline]
    fn make_room(&mut self, offset: usize, old: usize, new: usize) -> &mut [u8] {
        let total = self.byte_len();
        assert!(offset >= HEADER && offset < total && old < total - offset && new <= BYTES_MAX);
        let total_after = checked_total(total - old + new);
        if total_after > total {
            self.reallocate(total, total_after);
        }
        if old != new {
            // SAFETY: what is moved lies before `total`, where it goes before `total_after`, and there is room for the
            // larger of these.
            unsafe {
                let tail = self.0.as_ptr().add(offset + old);
                tail.copy_to(self.0.as_ptr().add(offset + new), total - offset - old);
            }
        }
        if total_after < total {
            self.reallocate(total, total_after);
        }
        // SAFETY: just allocated; the tail, which is not empty, lies behind what is lent.
        unsafe { self.written(offset, new, total_after) }
    }

    /// Takes note of the number of bytes, and lends `len` of them from `offset` on.
    ///
    /// # Safety
    /// The allocation is that of so many bytes, and those lent are among them, behind the header.
    #[inline]
    unsafe fn written(&mut self, offset: usize, len: usize, total: usize) -> &mut [u8] {
        debug_assert!(offset >= HEADER && offset + len <= total);
        // SAFETY: promised by the caller; what is lent is borrowed with `self`.
        unsafe {
            self.0.cast::<u32>().write((total as u32).to_le());
            std::slice::from_raw_parts_mut(self.0.as_ptr().add(offset), len)
        }
    }

    /// Goes from the allocation of one number of bytes to that of another.
    #[inline]
    fn reallocate(&mut self, from: usize, to: usize) {
        if layout(from) != layout(to) {
            self.move_to(from, to);
        }
    }

    #[inline(never)]
    fn move_to(&mut self, from: usize, to: usize) {
        // SAFETY: made with that layout; the new size is neither zero nor too large.
        let pointer = unsafe { realloc(self.0.as_ptr(), layout(from), layout(to).size()) };
        self.0 = NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout(to)));
    }

    /// Takes note that there are so many elements more. Once there are too many to say it stays so.
    #[inline]
    fn count(&mut self, more: isize) {
        // SAFETY: bytes 4 and 5 are within every listpack, and aligned.
        unsafe {
            let place = self.0.as_ptr().add(4).cast::<u16>();
            let count = u16::from_le(place.read());
            if count != COUNT_UNKNOWN {
                let count = (count as isize + more).clamp(0, COUNT_UNKNOWN as isize);
                place.write((count as u16).to_le());
            }
        }
    }

    /// Gives it away as a word.
    #[inline]
    pub fn into_word(self, tag: u8) -> Word {
        Word::new(ManuallyDrop::new(self).0, tag)
    }

    /// Takes it back.
    ///
    /// # Safety
    /// The word came from `into_word`; neither it nor a copy of it is used afterwards.
    #[inline]
    pub unsafe fn from_word(word: Word) -> Self {
        Listpack(word.pointer())
    }
}

impl From<View<'_>> for Listpack {
    fn from(view: View<'_>) -> Self {
        Self::copy_of(view.bytes())
    }
}

impl Clone for Listpack {
    fn clone(&self) -> Self {
        self.view().into()
    }
}

impl Drop for Listpack {
    fn drop(&mut self) {
        // SAFETY: made with that layout, and dropped once.
        unsafe { dealloc(self.0.as_ptr(), layout(self.byte_len())) }
    }
}

impl std::fmt::Debug for Listpack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view().fmt(f)
    }
}

/// The listpack that a word leads to.
///
/// # Safety
/// The word came from [`Listpack::into_word`], and nobody changes or frees the listpack during `'a`.
#[inline]
pub unsafe fn view_of<'a>(word: Word) -> View<'a> {
    let listpack = ManuallyDrop::new(Listpack(word.pointer()));
    // SAFETY: promised by the caller.
    View::known(unsafe { std::slice::from_raw_parts(word.pointer().as_ptr(), listpack.byte_len()) })
}

/// Changes the listpack that a word leads to, and then leads the word to where it lies, with the tag that it had.
pub struct Mut<'a> {
    word: &'a mut Word,
    listpack: ManuallyDrop<Listpack>,
}

impl<'a> Mut<'a> {
    /// Begins.
    ///
    /// # Safety
    /// The word came from [`Listpack::into_word`], and owns it. What is returned is dropped, not forgotten.
    #[inline]
    pub unsafe fn new(word: &'a mut Word) -> Self {
        Mut { listpack: ManuallyDrop::new(Listpack(word.pointer())), word }
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
        *self.word = Word::new(self.listpack.0, self.word.tag());
    }
}

#[cfg(test)]
mod tests;
