//! A listpack with spare room at its front, for a list that grows
//! and shrinks at its head: the other elements do not move.

use super::{Element, HEADER, Listpack, View};
use crate::defrag::Mover;
use crate::memory::size_class;

/// A listpack with spare room at its front.
///
/// **Invariant**: the bytes from `start` on are a listpack with a known number of elements.
#[derive(Clone)]
pub struct Fronted {
    bytes: Box<[u8]>,
    start: usize,
}

impl Fronted {
    /// A copy of a listpack, with a total capacity of `capacity` bytes.
    /// `None` if it is larger, or its number of elements is unknown.
    pub fn copy_of(listpack: View<'_>, capacity: usize) -> Option<Fronted> {
        listpack.known_len()?;
        let own = listpack.bytes();
        let start = capacity.checked_sub(own.len())?;
        let mut bytes = vec![0; capacity].into_boxed_slice();
        bytes[start..].copy_from_slice(own);
        Some(Fronted { bytes, start })
    }

    /// Borrows it for reading.
    #[inline]
    pub fn view(&self) -> View<'_> {
        View::known(&self.bytes[self.start..])
    }

    /// A copy without spare room.
    pub fn to_listpack(&self) -> Listpack {
        self.view().into()
    }

    /// Bytes of memory besides the struct itself.
    pub fn memory(&self) -> usize {
        size_class(self.bytes.len())
    }

    /// Offers its bytes to a mover.
    pub fn relocate(&mut self, mover: &mut Mover<'_>) {
        mover.offer_bytes(&mut self.bytes);
    }

    /// Adds an element at the head if it fits; returns whether it did.
    #[inline]
    pub fn push_front(&mut self, element: Element<'_>) -> bool {
        let (count, size) = (self.view().known_len(), element.size());
        // The new count must be representable.
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

    /// Sets the start, and the header with this number of elements.
    #[inline]
    fn begin(&mut self, start: usize, count: u16) {
        let total = (self.bytes.len() - start) as u32;
        self.start = start;
        let header = &mut self.bytes[start..start + HEADER];
        header[..4].copy_from_slice(&total.to_le_bytes());
        header[4..].copy_from_slice(&count.to_le_bytes());
    }
}
