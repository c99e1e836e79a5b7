//! Elements of large sorted sets: one allocation each, shared by the tree and the table of members.
//!
//! ```text
//! | score: 8 bytes | length and member, as in encodings::element |     rounded up to a size class of the allocator
//! ```
//!
//! # Safety
//!
//! An [`Element`] is a plain pointer, and its methods dereference it. They are not marked unsafe because elements
//! never leave this module, and are stored in a tree or a table only while the allocation lives: code that removes
//! an element from its sorted set frees it last. Scores change only through an exclusively borrowed sorted set.

use crate::encodings::element::{allocate, header_len, read, release, write};
use crate::encodings::members::Layout;
use crate::memory::size_class;
use crate::snapshot::pieces::Piece;
use crate::table::{Pointer, prefetch_address};
use std::cmp::Ordering;

const SCORE: usize = size_of::<f64>();

/// A pointer to an element. See the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Element(Pointer);

impl Element {
    /// Placeholder in slots that hold no element. It is never dereferenced.
    pub const NONE: Element = Element(Pointer::dangling());

    /// The element of a table's pointer.
    #[inline]
    pub fn at(pointer: Pointer) -> Element {
        Element(pointer)
    }

    /// The pointer for a table.
    #[inline]
    pub fn pointer(self) -> Pointer {
        self.0
    }

    /// Allocates an element.
    #[inline]
    pub fn new(score: f64, member: &[u8]) -> Element {
        let pointer = allocate(size_of_element(member.len()));
        // SAFETY: just allocated with this size.
        unsafe {
            pointer.cast::<f64>().write(score);
            write(pointer.as_ptr().add(SCORE), member);
        }
        Element(pointer)
    }

    /// Frees the element, which must not be used afterwards.
    #[inline]
    pub fn free(self) {
        let size = self.size();
        // SAFETY: allocated with this size; see the module documentation.
        unsafe { release(self.0, size) }
    }

    /// Bytes of memory, rounded up to the allocator's size class.
    #[inline]
    pub fn size(self) -> usize {
        size_of_element(self.member().len())
    }

    /// The score.
    #[inline]
    pub fn score(self) -> f64 {
        // SAFETY: see the module documentation.
        unsafe { self.0.cast::<f64>().read() }
    }

    /// Changes the score.
    #[inline]
    pub fn set_score(self, score: f64) {
        // SAFETY: see the module documentation.
        unsafe { self.0.cast::<f64>().write(score) }
    }

    /// The member, valid while the element lives.
    #[inline]
    pub fn member<'a>(self) -> &'a [u8] {
        // SAFETY: see the module documentation.
        unsafe { read(self.0.as_ptr().add(SCORE)) }
    }

    /// Order by score, then by member. Scores are never NaN.
    #[inline]
    pub fn order(self, other: Element) -> Ordering {
        let by_score = self.score().partial_cmp(&other.score()).unwrap_or(Ordering::Equal);
        by_score.then_with(|| self.member().cmp(other.member()))
    }

    /// Prefetches the element.
    #[inline]
    pub fn prefetch(self) {
        prefetch_address(self.0.as_ptr());
    }
}

#[inline]
fn size_of_element(member_len: usize) -> usize {
    size_class(SCORE + header_len(member_len) + member_len)
}

/// The layout of elements in the table of members.
pub(super) struct Scored;

// SAFETY: an element's member never changes.
unsafe impl Layout for Scored {
    #[inline]
    unsafe fn name<'a>(pointer: Pointer) -> &'a [u8] {
        Element(pointer).member()
    }

    unsafe fn size(pointer: Pointer) -> usize {
        Element(pointer).size()
    }

    unsafe fn free(pointer: Pointer) {
        Element(pointer).free();
    }

    unsafe fn copy(pointer: Pointer) -> Pointer {
        let element = Element(pointer);
        Element::new(element.score(), element.member()).pointer()
    }

    unsafe fn piece<'a>(pointer: Pointer) -> Piece<'a> {
        let element = Element(pointer);
        Piece::Scored(element.member(), element.score())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_keep_members_of_all_lengths() {
        for len in [0, 1, 19, 23, 24, 253, 254, 65_535, 65_536] {
            let member: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let element = Element::new(1.5, &member);
            assert_eq!((element.score(), element.member()), (1.5, &member[..]));
            element.set_score(-0.0);
            assert_eq!((element.score().to_bits(), element.member()), ((-0.0f64).to_bits(), &member[..]));
            element.free();
        }
        let element = Element::new(0.0, b"member:000000001234");
        assert_eq!(element.size(), 32);
        element.free();
    }
}
