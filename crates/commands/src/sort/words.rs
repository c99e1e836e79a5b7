//! Strings, one behind the other in one buffer: sorting takes no allocation for each.

use kvick_store::{IntBuf, Str};
use std::ops::Range;

/// See the module's documentation.
#[derive(Default)]
pub struct Words {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Words {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds one.
    pub fn push(&mut self, word: Str<'_>) {
        self.bytes.extend_from_slice(word.bytes(&mut IntBuf::default()));
        self.ends.push(self.bytes.len());
    }

    /// Number `index`; empty when there is none.
    pub fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { Some(&0) } else { self.ends.get(index - 1) };
        let range = start.zip(self.ends.get(index)).map(|(start, end)| *start..*end);
        range.and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Some of them, in another order.
    pub fn picked(&self, indices: impl IntoIterator<Item = usize>) -> Words {
        let mut picked = Words::default();
        indices.into_iter().for_each(|index| picked.push(Str::Bytes(self.get(index))));
        picked
    }

    /// Those in a range of indices, which is in bounds.
    pub fn part(self, range: Range<usize>) -> Words {
        if range == (0..self.len()) { self } else { self.picked(range) }
    }
}
