//! Values of type list.

use super::word::{Collection, Word};
use crate::value::Kind;

/// A list.
#[repr(transparent)]
pub struct List(Word);

impl List {
    /// An empty one.
    pub fn new() -> Self {
        List(Word::from_box(Box::new(0u64), 0))
    }
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for List {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made from such a box, and dropped once.
        unsafe { drop(self.0.into_box::<u64>()) }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for List {
    const KIND: Kind = Kind::List;

    fn len(&self) -> usize {
        0
    }

    fn encoding(&self) -> &'static str {
        "quicklist"
    }

    fn memory(&self, _samples: usize) -> usize {
        8
    }

    fn free_effort(&self) -> usize {
        1
    }
}
