//! Values of type stream.

use super::word::{Collection, Word};
use crate::value::Kind;

/// A stream.
#[repr(transparent)]
pub struct Stream(Word);

impl Stream {
    /// An empty one.
    pub fn new() -> Self {
        Stream(Word::from_box(Box::new(0u64), 0))
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Stream {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made from such a box, and dropped once.
        unsafe { drop(self.0.into_box::<u64>()) }
    }
}

// SAFETY: transparent around a word.
unsafe impl Collection for Stream {
    const KIND: Kind = Kind::Stream;

    fn len(&self) -> usize {
        0
    }

    fn encoding(&self) -> &'static str {
        "stream"
    }

    fn memory(&self, _samples: usize) -> usize {
        8
    }

    fn free_effort(&self) -> usize {
        1
    }
}
