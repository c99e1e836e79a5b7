//! The global allocator: jemalloc, built with a quantum of eight bytes (see `.cargo/config.toml`).
//!
//! With this quantum the smallest size classes are multiples of eight, which fits many elements, boxes and short
//! strings; [`kvick_store::memory`] relies on it. Allocations with a larger alignment pass it to jemalloc.
//!
//! # Safety
//!
//! An allocation is freed with the size that it was requested with and with the same [`flags`], which depend only on
//! its layout. The contract of `GlobalAlloc` guarantees both.

use kvick_store::memory::QUANTUM;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_int;
use tikv_jemalloc_sys as jemalloc;

/// The global allocator.
pub struct Allocator;

/// The jemalloc flags for a layout.
#[inline]
pub(crate) fn flags(layout: Layout) -> c_int {
    if layout.align() <= QUANTUM && layout.align() <= layout.size() {
        0
    } else {
        jemalloc::MALLOCX_ALIGN(layout.align())
    }
}

// SAFETY: jemalloc is an allocator; see the module's documentation for sizes and alignments.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees that the size is not zero.
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
        // SAFETY: the caller guarantees that it was allocated with this layout.
        unsafe { jemalloc::sdallocx(pointer.cast(), layout.size(), flags(layout)) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that size and alignment form a valid layout.
        let flags = flags(unsafe { Layout::from_size_align_unchecked(size, layout.align()) });
        // SAFETY: the caller guarantees that it was allocated by this allocator and that the size is not zero.
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
    fn allocations_have_the_expected_usable_size_and_alignment() {
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
                // SAFETY: grown and freed with its current layout.
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
