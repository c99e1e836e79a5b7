//! A tagged pointer in eight unaligned bytes.
//!
//! A collection is one [`Word`] in its entry. The word's low three bits, free
//! because allocations are aligned, hold a tag that identifies the encoding of the
//! pointee. Words are stored after a key and so are unaligned, hence the byte array.
//!
//! # Safety
//!
//! A word is a plain value: it owns nothing, and copies of it point to the same place. The collection that
//! wraps a word owns the pointee, determines its type by the tag, and releases it once.

use crate::defrag::Mover;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_round_trip_with_their_tags() {
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
