//! A tagged pointer in eight unaligned bytes.
//!
//! A collection is one [`Word`] in its entry. The word's low three bits, free
//! because allocations are aligned, hold a tag that identifies the encoding of the
//! pointee. Words are stored after a key and so are unaligned, hence the byte array.
//!
//! # Safety
//!
//! A word is a plain value: it owns nothing, and copies of it point to the same place. The collection that
//! wraps a word owns the pointee, determines its type by the tag, and releases it once. A [`Collection`]
//! consists of its word only, so that an entry can be accessed in place as the collection of its kind.

use crate::defrag::Mover;
use crate::encodings::listpack::View;
use crate::encodings::pairs::Pairs;
use crate::snapshot::Gradual;
use crate::table::Table;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

const TAG: u64 = 0b111;

/// A tagged pointer. It owns nothing by itself: the collection that wraps it does.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word([u8; 8]);

impl Word {
    /// A word for `pointer`, which is aligned to at least eight bytes, with a `tag` below eight.
    #[inline]
    pub fn new(pointer: NonNull<u8>, tag: u8) -> Word {
        let address = pointer.as_ptr().expose_provenance() as u64;
        debug_assert!(address & TAG == 0 && u64::from(tag) <= TAG);
        Word((address | u64::from(tag)).to_le_bytes())
    }

    /// Moves a box into a word.
    #[inline]
    pub fn from_box<T>(value: Box<T>, tag: u8) -> Word {
        const { assert!(align_of::<T>() >= 8, "the tag needs three bits") };
        Word::new(NonNull::from(Box::leak(value)).cast(), tag)
    }

    /// The tag, which identifies the encoding.
    #[inline]
    pub fn tag(self) -> u8 {
        (u64::from_le_bytes(self.0) & TAG) as u8
    }

    /// The pointer.
    #[inline]
    pub fn pointer(self) -> NonNull<u8> {
        let address = (u64::from_le_bytes(self.0) & !TAG) as usize;
        // SAFETY: `new` received a pointer that is not null and is aligned, so the tag does not overlap its bits.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address)) }
    }

    /// Borrows the box of a word made by [`Word::from_box`].
    ///
    /// # Safety
    /// The word was made from a `Box<T>` that was not taken back, and the value does not change during `'a`.
    #[inline]
    pub unsafe fn as_ref<'a, T>(self) -> &'a T {
        // SAFETY: promised by the caller.
        unsafe { self.pointer().cast::<T>().as_ref() }
    }

    /// Borrows the box mutably.
    ///
    /// # Safety
    /// As for `as_ref`, and the value is not accessed otherwise during `'a`.
    #[inline]
    pub unsafe fn as_mut<'a, T>(self) -> &'a mut T {
        // SAFETY: promised by the caller.
        unsafe { self.pointer().cast::<T>().as_mut() }
    }

    /// Offers the box to a mover.
    ///
    /// # Safety
    /// As for `as_mut`, and no copy of the word is used afterwards.
    pub unsafe fn relocate_box<T>(&mut self, mover: &mut Mover<'_>) {
        // SAFETY: promised by the caller; the box is moved back into the word.
        let mut owner = unsafe { self.into_box::<T>() };
        mover.offer_box(&mut owner);
        *self = Word::from_box(owner, self.tag());
    }

    /// Takes the box back.
    ///
    /// # Safety
    /// The word was made from a `Box<T>`; neither this word nor a copy of it is used afterwards.
    #[inline]
    pub unsafe fn into_box<T>(self) -> Box<T> {
        // SAFETY: promised by the caller.
        unsafe { Box::from_raw(self.pointer().cast::<T>().as_ptr()) }
    }
}

/// The internal representation of a collection, for introspection.
pub enum Inside<'a> {
    /// One listpack.
    Listpack(View<'a>),
    /// A listpack to clients, stored in pieces.
    Pairs(&'a Pairs),
    /// A hash table of its elements, possibly with other structures.
    Table(&'a Table),
    /// Something else.
    Other,
}

/// A value that an entry stores as one word.
///
/// # Safety
/// The type must be `#[repr(transparent)]` around a [`Word`], which is its only state, and must be movable.
pub unsafe trait Collection: Sized + Clone {
    /// Its kind.
    const KIND: crate::value::Kind;

    /// Number of elements.
    fn len(&self) -> usize;

    /// True if there are no elements: commands remove such keys, except streams.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoding's name, as OBJECT ENCODING reports it.
    fn encoding(&self) -> &'static str;

    /// Its internal representation.
    fn inside(&self) -> Inside<'_>;

    /// Bytes of memory besides its word, rounded up to the allocator's size classes.
    /// Large collections are estimated from `samples` elements; 0 counts all.
    fn memory(&self, samples: usize) -> usize;

    /// The approximate number of allocations, which is the cost of freeing it.
    fn free_effort(&self) -> usize;

    /// Offers its allocations to a mover, from `position` on (0 is the start), until the mover is due. Returns
    /// the position to continue from; `None` when done. The position may have been returned for another value.
    fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64>;

    /// The collection as one that is captured in pieces, if it is large enough that
    /// capturing it at once would block other threads, or if such a capture is running.
    fn gradual(&mut self) -> Option<&mut dyn Gradual>;

    /// Releases ownership of the value as a word.
    #[inline]
    fn into_word(self) -> Word {
        let value = ManuallyDrop::new(self);
        // SAFETY: transparent around a word.
        unsafe { std::mem::transmute_copy(&value) }
    }

    /// Takes ownership of a value given as a word.
    ///
    /// # Safety
    /// The word came from `into_word` of this type; neither it nor a copy of it is used afterwards.
    #[inline]
    unsafe fn from_word(word: Word) -> Self {
        // SAFETY: transparent around a word, whose ownership the caller passes.
        unsafe { std::mem::transmute_copy(&word) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_comes_back_with_its_tag() {
        for tag in 0..8 {
            let word = Word::from_box(Box::new(u64::from(tag) + 7), tag);
            assert_eq!(word.tag(), tag);
            // SAFETY: made from such a box, once.
            unsafe {
                *word.as_mut::<u64>() += 1;
                assert_eq!(*word.as_ref::<u64>(), u64::from(tag) + 8);
                assert_eq!(*word.into_box::<u64>(), u64::from(tag) + 8);
            }
        }
    }
}
