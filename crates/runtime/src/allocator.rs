//! The allocator: jemalloc, built with a quantum of eight bytes (see `.cargo/config.toml`).
//!
//! Its smallest sizes are multiples of eight then, which is what many members, boxes and short strings need, and what
//! [`kvick_store::memory`] counts on. What is to be aligned to more is asked for with its alignment.
//!
//! # Safety
//!
//! Memory is given back with the size that it was asked for, and with the same [`flags`] as then, which depend on its
//! layout alone. All this is what `GlobalAlloc` has its callers promise.

use kvick_store::memory::QUANTUM;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_int;
use tikv_jemalloc_sys as jemalloc;

/// See the module's documentation.
pub struct Allocator;

/// What to tell the allocator of an alignment.
#[inline]
pub(crate) fn flags(layout: Layout) -> c_int {
    if layout.align() <= QUANTUM && layout.align() <= layout.size() {
        0
    } else {
        jemalloc::MALLOCX_ALIGN(layout.align())
    }
}

// SAFETY: jemalloc is an allocator; see the module's documentation for how sizes and alignments are told.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is not zero, by the caller's promise.
        unsafe {
            match flags(layout) {
                0 => jemalloc::malloc(layout.size()),
                flags => jemalloc::mallocx(layout.size(), flags),
            }
            .cast()
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            match flags(layout) {
                0 => jemalloc::calloc(1, layout.size()),
                flags => jemalloc::mallocx(layout.size(), flags | jemalloc::MALLOCX_ZERO),
            }
            .cast()
        }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: allocated with this layout, by the caller's promise.
        unsafe { jemalloc::sdallocx(pointer.cast(), layout.size(), flags(layout)) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that size and alignment go together.
        let flags = flags(unsafe { Layout::from_size_align_unchecked(size, layout.align()) });
        // SAFETY: allocated by this allocator, and the size is not zero, by the caller's promise.
        unsafe {
            match flags {
                0 => jemalloc::realloc(pointer.cast(), size),
                flags => jemalloc::rallocx(pointer.cast(), size, flags),
            }
            .cast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_store::memory::size_class;

    #[test]
    fn allocations_have_the_size_that_the_store_counts_on_and_their_alignment() {
        for size in (1..=300).chain([1025, 4097, 20_000]) {
            for align in [1, 8, 16, 64] {
                let layout = Layout::from_size_align(size, align).expect("a layout");
                // SAFETY: freed below with the same layout, and not used afterwards.
                let pointer = unsafe { Allocator.alloc(layout) };
                assert!(!pointer.is_null() && pointer.addr().is_multiple_of(align), "{layout:?}");
                // SAFETY: just allocated.
                let usable = unsafe { jemalloc::sallocx(pointer.cast(), 0) };
                if align <= QUANTUM {
                    assert_eq!(usable, size_class(size), "{layout:?}");
                }
                // SAFETY: grown and freed with the layouts that it has.
                unsafe {
                    let grown = Allocator.realloc(pointer, layout, size + 13);
                    assert!(!grown.is_null() && grown.addr().is_multiple_of(align), "{layout:?}");
                    let layout = Layout::from_size_align_unchecked(size + 13, align);
                    Allocator.dealloc(grown, layout);
                    let zeroed = Allocator.alloc_zeroed(layout);
                    assert!(std::slice::from_raw_parts(zeroed, layout.size()).iter().all(|byte| *byte == 0));
                    Allocator.dealloc(zeroed, layout);
                }
            }
        }
    }
}
