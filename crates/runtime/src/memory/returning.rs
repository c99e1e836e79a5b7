//! Returns the memory of what is deleted in many pieces to the kernel while it is deleted.
//!
//! Otherwise a thread of the allocator does that every 100 ms. It first merges all slabs that became free, tens of
//! thousands if a gigabyte was deleted, and threads that allocate or free in this arena wait for that: up to 80 ms.

use super::purge_pages;
use crate::clock::Ticks;

/// How often memory is returned, in microseconds. What is freed meanwhile takes some hundred microseconds.
const EVERY_US: u64 = 1000;

/// When memory was last returned.
#[derive(Default)]
pub struct Returning {
    last: Option<Ticks>,
}

impl Returning {
    /// Call it between pieces.
    pub fn follow(&mut self) {
        let now = Ticks::now();
        if self.last.is_none_or(|last| now.us_since(last) >= EVERY_US) {
            self.last = Some(now);
            purge_pages();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::memory::ahead::tests::page_faults;
    use std::alloc::{GlobalAlloc, Layout};

    const VALUE: Layout = Layout::new::<[u8; 16 * 1024]>();
    const VALUES: usize = 2000;

    /// Allocates and touches values. Returns them, and how many pages that took.
    fn allocate() -> (Vec<*mut u8>, i64) {
        let before = page_faults();
        let one = || {
            // SAFETY: the layout has a size.
            let value = unsafe { Allocator.alloc(VALUE) };
            // SAFETY: it is allocated with room for a byte.
            unsafe { value.write(1) };
            value
        };
        let values = (0..VALUES).map(|_| one()).collect();
        (values, page_faults() - before)
    }

    fn free(values: Vec<*mut u8>) {
        // SAFETY: they were allocated with this layout, and are not used again.
        values.into_iter().for_each(|value| unsafe { Allocator.dealloc(value, VALUE) });
    }

    #[test]
    fn freed_pages_are_returned_at_once() {
        let (values, new) = allocate();
        free(values);
        Returning::default().follow();
        let (values, again) = allocate();
        free(values);
        assert!(again > new / 2, "{again} page faults, {new} at first");
    }
}
