//! A listpack with room in front of it, for one that grows and shrinks at its head: nothing behind that moves.

use super::{Element, HEADER, Listpack, View};
use crate::defrag::Mover;
use crate::memory::size_class;

/// See the module's documentation.
///
/// **Invariant**: the bytes from `start` on are a listpack that says how many elements it has.
#[derive(Clone)]
pub struct Fronted {
    bytes: Box<[u8]>,
    start: usize,
}

impl Fronted {
    /// A copy of a listpack, with room for one of `capacity` bytes. `None` when it has more, or too many elements to say.
    pub fn copy_of(listpack: View<'_>, capacity: usize) -> Option<Fronted> {
        listpack.known_len()?;
        let own = listpack.bytes();
        let start = capacity.checked_sub(own.len())?;
        let mut bytes = vec![0; capacity].into_boxed_slice();
        bytes[start..].copy_from_slice(own);
        Some(Fronted { bytes, start })
    }

    /// It, to be read.
    #[inline]
    pub fn view(&self) -> View<'_> {
        View::known(&self.bytes[self.start..])
    }

    /// A copy of it that takes no more room than it needs.
    pub fn to_listpack(&self) -> Listpack {
        self.view().into()
    }

    /// Bytes of memory that it takes beside itself.
    pub fn memory(&self) -> usize {
        size_class(self.bytes.len())
    }

    /// Offers its bytes to a mover.
    pub fn relocate(&mut self, mover: &mut Mover<'_>) {
        mover.offer_bytes(&mut self.bytes);
    }

    /// Adds at the head if there is room; whether there was.
    #[inline]
    pub fn push_front(&mut self, element: Element<'_>) -> bool {
        let (count, size) = (self.view().known_len(), element.size());
        // One more must be a number that can be said.
        let Some(count) = count.and_then(|count| u16::try_from(count + 1).ok()).filter(|count| *count < u16::MAX)
        else {
            return false;
        };
        let Some(start) = self.start.checked_sub(size) else { return false };
        element.write(&mut self.bytes[start + HEADER..self.start + HEADER]);
        self.begin(start, count);
        true
    }

    /// Removes the first element, if there is one.
    #[inline]
    pub fn pop_front(&mut self) {
        let view = self.view();
        if let (Some(first), Some(count)) = (view.first(), view.known_len()) {
            self.begin(self.start + view.size_of(first), count as u16 - 1);
        }
    }

    /// Begins there, with so many elements.
    #[inline]
    fn begin(&mut self, start: usize, count: u16) {
        let total = (self.bytes.len() - start) as u32;
        self.start = start;
        let header = &mut self.bytes[start..start + HEADER];
        header[..4].copy_from_slice(&total.to_le_bytes());
        header[4..].copy_from_slice(&count.to_le_bytes());
    }
}
