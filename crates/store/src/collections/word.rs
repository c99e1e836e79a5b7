//! A pointer and what it points to, in eight bytes that may lie anywhere.
//!
//! A collection is one [`Word`] in its entry. The word's low three bits, free because allocations are aligned, say which
//! encoding the pointer leads to. Words lie unaligned behind a key, hence the byte array.
//!
//! # Safety
//!
//! A word is a plain value: it keeps nothing alive, and copies of it lead to the same place. Whoever wraps one in a collection
//! owns what it leads to, knows by the tag what that is, and takes it back once. A [`Collection`] is its word and nothing else,
//! so that an entry may be read as the collection of its kind where it lies.

use crate::defrag::Mover;
use crate::encodings::listpack::View;
use crate::encodings::pairs::Pairs;
use crate::snapshot::Gradual;
use crate::table::Table;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

const TAG: u64 = 0b111;

/// See the module's documentation. It owns nothing by itself: the collection that wraps it does.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word([u8; 8]);

impl Word {
    /// `pointer`, aligned to eight bytes at least, with `tag` below eight.
    #[inline]
    pub fn new(pointer: NonNull<u8>, tag: u8) -> Word {
        let address = pointer.as_ptr().expose_provenance() as u64;
        debug_assert!(address & TAG == 0 && u64::from(tag) <= TAG);
        Word((address | u64::from(tag)).to_le_bytes())
    }

    /// A box given away to the word.
    #[inline]
    pub fn from_box<T>(value: Box<T>, tag: u8) -> Word {
        const { assert!(align_of::<T>() >= 8, "the tag needs three bits") };
        Word::new(NonNull::from(Box::leak(value)).cast(), tag)
    }

    /// Which encoding it leads to.
    #[inline]
    pub fn tag(self) -> u8 {
        (u64::from_le_bytes(self.0) & TAG) as u8
    }

    /// Where it leads.
    #[inline]
    pub fn pointer(self) -> NonNull<u8> {
        let address = (u64::from_le_bytes(self.0) & !TAG) as usize;
        // SAFETY: `new` was given a pointer that is not null, and aligned, so that the tag took none of its bits.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address)) }
    }

    /// What a word made by [`Word::from_box`] leads to.
    ///
    /// # Safety
    /// It was made from a `Box<T>` that was not taken back, and nobody changes the value during `'a`.
    #[inline]
    pub unsafe fn as_ref<'a, T>(self) -> &'a T {
        // SAFETY: promised by the caller.
        unsafe { self.pointer().cast::<T>().as_ref() }
    }

    /// The same for change.
    ///
    /// # Safety
    /// As for `as_ref`, and nobody else looks at the value during `'a`.
    #[inline]
    pub unsafe fn as_mut<'a, T>(self) -> &'a mut T {
        // SAFETY: promised by the caller.
        unsafe { self.pointer().cast::<T>().as_mut() }
    }

    /// Offers the box that it leads to.
    ///
    /// # Safety
    /// As for `as_mut`, and no copy of the word is used afterwards.
    pub unsafe fn relocate_box<T>(&mut self, mover: &mut Mover<'_>) {
        // SAFETY: promised by the caller; the box is given back to the word.
        let mut owner = unsafe { self.into_box::<T>() };
        mover.offer_box(&mut owner);
        *self = Word::from_box(owner, self.tag());
    }

    /// Takes the box back.
    ///
    /// # Safety
    /// It was made from a `Box<T>`; neither this word nor a copy of it is used afterwards.
    #[inline]
    pub unsafe fn into_box<T>(self) -> Box<T> {
        // SAFETY: promised by the caller.
        unsafe { Box::from_raw(self.pointer().cast::<T>().as_ptr()) }
    }
}

/// What a collection is at heart, for those who look into it.
pub enum Inside<'a> {
    /// One listpack.
    Listpack(View<'a>),
    /// What others take for one listpack, in pieces.
    Pairs(&'a Pairs),
    /// A hash table of its elements, whatever is there beside it.
    Table(&'a Table),
    /// Something else.
    Other,
}

/// A value that an entry holds as one word.
///
/// # Safety
/// The type is `#[repr(transparent)]` around a [`Word`], which is its only state, and may be moved freely.
pub unsafe trait Collection: Sized + Clone {
    /// Its kind.
    const KIND: crate::value::Kind;

    /// Number of elements.
    fn len(&self) -> usize;

    /// True when there are none: commands remove such keys, except for streams.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoding's name, as OBJECT ENCODING tells it.
    fn encoding(&self) -> &'static str;

    /// What it is at heart.
    fn inside(&self) -> Inside<'_>;

    /// Bytes of memory that it takes beside its word, the allocator's rounding included. Large ones are estimated from
    /// `samples` elements; 0 looks at all.
    fn memory(&self, samples: usize) -> usize;

    /// The number of allocations, roughly: what freeing it costs.
    fn free_effort(&self) -> usize;

    /// Offers what it consists of to a mover, from `position` on, 0 for the beginning, until that is due or somewhat further.
    /// Where to go on then; `None` when that was all. The position may be one that was told of another value.
    fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64>;

    /// The value as one that is captured in pieces: if it is so large that capturing all of it would keep others waiting, or
    /// while that is under way.
    fn gradual(&mut self) -> Option<&mut dyn Gradual>;

    /// Gives the value away as a word.
    #[inline]
    fn into_word(self) -> Word {
        let value = ManuallyDrop::new(self);
        // SAFETY: transparent around a word.
        unsafe { std::mem::transmute_copy(&value) }
    }

    /// Takes the value back.
    ///
    /// # Safety
    /// The word came from `into_word` of this type; neither it nor a copy of it is used afterwards.
    #[inline]
    unsafe fn from_word(word: Word) -> Self {
        // SAFETY: transparent around a word, and given away by the caller.
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
