//! Values of type hash.

use super::word::{Collection, Word};
use crate::value::Kind;

/// A hash.
#[repr(transparent)]
pub struct Hash(Word);

impl Hash {
    /// An empty one.
    pub fn new() -> Self {
        Hash(Word::from_box(Box::new(0u64), 0))
    }
}

impl Default for Hash {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Hash {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for Hash {
    fn drop(&mut self) {
        // SAFETY: made from such a box, and dropped once.
        unsafe { drop(self.0.into_box::<u64>()) }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for Hash {
    const KIND: Kind = Kind::Hash;

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
