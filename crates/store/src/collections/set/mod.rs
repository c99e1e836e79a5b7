//! Values of type set.

use super::word::{Collection, Word};
use crate::value::Kind;

/// A set.
#[repr(transparent)]
pub struct Set(Word);

impl Set {
    /// An empty one.
    pub fn new() -> Self {
        Set(Word::from_box(Box::new(0u64), 0))
    }
}

impl Default for Set {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Set {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        // SAFETY: made from such a box, and dropped once.
        unsafe { drop(self.0.into_box::<u64>()) }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for Set {
    const KIND: Kind = Kind::Set;

    fn len(&self) -> usize {
        0
    }

    fn encoding(&self) -> &'static str {
        "hashtable"
    }

    fn memory(&self, _samples: usize) -> usize {
        8
    }

    fn free_effort(&self) -> usize {
        1
    }
}
