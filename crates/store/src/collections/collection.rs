//! What all collection types have in common.
//!
//! # Safety
//!
//! A [`Collection`] consists of its [`Word`] only, so that an entry can be accessed in place as the collection of its
//! kind.

use crate::defrag::Mover;
use crate::encodings::listpack::View;
use crate::encodings::pairs::Pairs;
use crate::snapshot::pieces::Gradual;
use crate::table::Table;
use crate::value::Kind;
use crate::word::Word;
use std::mem::ManuallyDrop;

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
    const KIND: Kind;

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
