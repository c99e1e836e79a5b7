//! Values of type sorted set.

mod cut;
mod element;
mod tree;

pub use cut::Cut;

use super::word::{Collection, Word};
use crate::value::Kind;

/// A sorted set.
#[repr(transparent)]
pub struct SortedSet(Word);

impl SortedSet {
    /// An empty one.
    pub fn new() -> Self {
        SortedSet(Word::from_box(Box::new(0u64), 0))
    }
}

impl Default for SortedSet {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for SortedSet {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for SortedSet {
    fn drop(&mut self) {
        // SAFETY: made from such a box, and dropped once.
        unsafe { drop(self.0.into_box::<u64>()) }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for SortedSet {
    const KIND: Kind = Kind::SortedSet;

    fn len(&self) -> usize {
        0
    }

    fn encoding(&self) -> &'static str {
        "skiplist"
    }

    fn memory(&self, _samples: usize) -> usize {
        8
    }

    fn free_effort(&self) -> usize {
        1
    }
}
