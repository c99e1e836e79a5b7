//! A list of strings in one buffer, so that sorting needs no allocation per string.

use kvick_store::{IntBuf, Str};
use std::ops::Range;

/// A list of strings.
#[derive(Default)]
pub struct Words {
    bytes: Vec<u8>,
    /// The end of each string.
    ends: Vec<usize>,
}

impl Words {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Appends a string.
    pub fn push(&mut self, word: Str<'_>) {
        self.bytes.extend_from_slice(word.bytes(&mut IntBuf::default()));
        self.ends.push(self.bytes.len());
    }

    /// The string at `index`; empty if it does not exist.
    pub fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { Some(&0) } else { self.ends.get(index - 1) };
        let range = start.zip(self.ends.get(index)).map(|(start, end)| *start..*end);
        range.and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }

    /// All strings.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|index| self.get(index))
    }

    /// The strings at these indices, in that order.
    pub fn picked(&self, indices: impl IntoIterator<Item = usize>) -> Words {
        let mut picked = Words::default();
        indices.into_iter().for_each(|index| picked.push(Str::Bytes(self.get(index))));
        picked
    }

    /// The strings in a range of indices, which must be in bounds.
    pub fn part(self, range: Range<usize>) -> Words {
        if range == (0..self.len()) { self } else { self.picked(range) }
    }
}
