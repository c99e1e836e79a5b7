//! Elements of large sorted sets: one allocation each, shared by the tree and the table of members.
//!
//! ```text
//! | score: 8 bytes | length: 1 byte | member |              members below 255 bytes
//! | score: 8 bytes | 255 | length: 8 bytes | member |       others
//! ```
//!
//! # Safety
//!
//! An [`Element`] is a plain pointer, and its methods read what it points to. They may be called because handles never
//! leave this folder, and live in a tree or a table only as long as the allocation does: whoever takes an element out of
//! its sorted set frees it last. Scores change only through an exclusively borrowed sorted set.

use crate::memory::size_class;
use crate::table::{Pointer, prefetch_address};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp::Ordering;

const SCORE: usize = size_of::<f64>();
/// The length byte of members that are too long for it.
const LONG: u8 = u8::MAX;
const SHORT_HEADER: usize = SCORE + 1;
const LONG_HEADER: usize = SHORT_HEADER + size_of::<u64>();

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Element(pub(super) Pointer);

impl Element {
    /// What fills places that hold no element. It is never read.
    pub const NONE: Element = Element(Pointer::dangling());

    /// Allocates an element.
    pub fn new(score: f64, member: &[u8]) -> Element {
        let long = member.len() >= LONG as usize;
        let header = if long { LONG_HEADER } else { SHORT_HEADER };
        let layout = layout_of(header + member.len());
        // SAFETY: the layout is not empty; all that is written lies inside of it.
        unsafe {
            let Some(pointer) = Pointer::new(alloc(layout)) else { handle_alloc_error(layout) };
            pointer.cast::<f64>().write(score);
            if long {
                pointer.add(SCORE).write(LONG);
                pointer.add(SHORT_HEADER).cast::<u64>().write_unaligned(member.len() as u64);
            } else {
                pointer.add(SCORE).write(member.len() as u8);
            }
            pointer.add(header).as_ptr().copy_from_nonoverlapping(member.as_ptr(), member.len());
            Element(pointer)
        }
    }

    /// Frees it. Nobody may use the element afterwards.
    pub fn free(self) {
        // SAFETY: allocated with the same layout; see the module's documentation.
        unsafe { dealloc(self.0.as_ptr(), layout_of(self.header().1 + self.header().0)) }
    }

    /// Bytes of memory that it takes.
    pub fn size(self) -> usize {
        let (len, header) = self.header();
        layout_of(header + len).size()
    }

    /// The score.
    #[inline]
    pub fn score(self) -> f64 {
        // SAFETY: see the module's documentation.
        unsafe { self.0.cast::<f64>().read() }
    }

    /// Changes the score.
    #[inline]
    pub fn set_score(self, score: f64) {
        // SAFETY: see the module's documentation.
        unsafe { self.0.cast::<f64>().write(score) }
    }

    /// The member, for as long as the element lives.
    #[inline]
    pub fn member<'a>(self) -> &'a [u8] {
        let (len, header) = self.header();
        // SAFETY: see the module's documentation.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(header), len) }
    }

    /// The member's length, and where it begins.
    #[inline]
    fn header(self) -> (usize, usize) {
        // SAFETY: see the module's documentation.
        unsafe {
            match self.0.add(SCORE).read() {
                LONG => (self.0.add(SHORT_HEADER).cast::<u64>().read_unaligned() as usize, LONG_HEADER),
                len => (len as usize, SHORT_HEADER),
            }
        }
    }

    /// Order by score, then by member. Scores are never NaN.
    #[inline]
    pub fn order(self, other: Element) -> Ordering {
        let by_score = self.score().partial_cmp(&other.score()).unwrap_or(Ordering::Equal);
        by_score.then_with(|| self.member().cmp(other.member()))
    }

    /// Asks the processor to load it.
    #[inline]
    pub fn prefetch(self) {
        prefetch_address(self.0.as_ptr());
    }
}

fn layout_of(size: usize) -> Layout {
    match Layout::from_size_align(size_class(size), align_of::<f64>()) {
        Ok(layout) => layout,
        Err(_) => unreachable!("members are slices that exist, and far smaller than the address space"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_keep_members_of_all_lengths() {
        for len in [0, 1, 19, 23, 24, 254, 255, 256, 70_000] {
            let member: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let element = Element::new(1.5, &member);
            assert_eq!((element.score(), element.member()), (1.5, &member[..]));
            element.set_score(-0.0);
            assert_eq!((element.score().to_bits(), element.member()), ((-0.0f64).to_bits(), &member[..]));
            assert_eq!(element.size(), size_class(len + if len < 255 { 9 } else { 17 }));
            element.free();
        }
    }
}
