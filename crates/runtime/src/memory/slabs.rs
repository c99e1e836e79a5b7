//! Finds sparsely used slabs of the allocator and moves allocations out of them (active defragmentation).
//!
//! Small allocations of one size class share slabs. A slab whose usage is at most about the average of the non-full
//! slabs of its size is to be emptied: its allocations move to the place that the allocator selects for a new
//! allocation, which is the oldest slab with room. If the slabs of a size would gain little, nothing is moved.
//!
//! # Safety
//!
//! [`USES`] is queried for one address at a time and returns three numbers, as the allocator documents. An allocation
//! is freed with the size and alignment with which [`crate::allocator`] made it, and bypasses the thread's cache, which
//! would reuse it at once.

use super::{ALL_ARENAS, read_control, refresh};
use crate::allocator;
use kvick_store::defrag::{Heap, SHARED_BYTES_MAX};
use kvick_store::memory::QUANTUM;
use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::NonNull;
use tikv_jemalloc_sys as jemalloc;

/// The control that reports, for an allocation, the free places in its slab, the number of places, and the size of the
/// slab.
const USES: &[u8] = b"experimental.utilization.batch_query\0";

/// Slabs are examined if at least this fraction of the memory in use (as a divisor) is free in the slabs of the size.
const FREE_DIVISOR: usize = 50;

/// The allocator as a [`Heap`] that can move allocations.
pub struct Slabs {
    /// The control in its numeric form; `None` if the allocator lacks it.
    uses: Option<[usize; 3]>,
    /// For each size in quanta: the maximum number of used places in a slab that is to be emptied.
    taken_max: Box<[u32]>,
}

impl Default for Slabs {
    fn default() -> Self {
        let mut numbers = [0; 3];
        let mut len = numbers.len();
        // SAFETY: the name ends with a zero byte; the call writes at most as many numbers as the array holds.
        let error = unsafe { jemalloc::mallctlnametomib(USES.as_ptr().cast(), numbers.as_mut_ptr(), &mut len) };
        let uses = (error == 0 && len == numbers.len()).then_some(numbers);
        Slabs { uses, taken_max: vec![0; SHARED_BYTES_MAX / QUANTUM + 1].into() }
    }
}

impl Slabs {
    /// Whether the allocator provides the required control.
    pub fn is_supported(&self) -> bool {
        self.uses.is_some()
    }

    /// Reads the current usage of the slabs.
    pub fn look(&mut self) {
        refresh();
        let bins: u32 = read_control("arenas.nbins\0".into()).unwrap_or(0);
        let mut from = 0;
        for bin in (0..bins).filter_map(Bin::read) {
            let to = (bin.size / QUANTUM).min(self.taken_max.len() - 1);
            if from <= to {
                self.taken_max[from..=to].fill(bin.taken_max());
                from = to + 1;
            }
        }
    }

    /// Whether an allocation of this size is in a slab that is to be emptied.
    fn is_to_be_moved(&self, allocation: NonNull<u8>, size: usize) -> bool {
        let taken_max = self.taken_max.get(size.div_ceil(QUANTUM)).copied().unwrap_or(0);
        if taken_max == 0 {
            return false;
        }
        let Some(uses) = self.uses else { return false };
        let mut query: *const c_void = allocation.as_ptr().cast();
        let mut answer = [0usize; 3];
        let mut answer_len = size_of_val(&answer);
        // SAFETY: the control reads one address and writes three numbers; see the module's documentation.
        let error = unsafe {
            jemalloc::mallctlbymib(
                uses.as_ptr(),
                uses.len(),
                answer.as_mut_ptr().cast(),
                &mut answer_len,
                (&raw mut query).cast(),
                size_of_val(&query),
            )
        };
        let [free, places, _] = answer;
        error == 0 && free > 0 && places.saturating_sub(free) <= taken_max as usize
    }
}

// SAFETY: the result is allocated as by the global allocator and has the contents of the old allocation.
unsafe impl Heap for Slabs {
    #[inline]
    unsafe fn relocate(&mut self, allocation: NonNull<u8>, layout: Layout) -> NonNull<u8> {
        if !self.is_to_be_moved(allocation, layout.size()) {
            return allocation;
        }
        let flags = allocator::flags(layout) | jemalloc::MALLOCX_TCACHE_NONE;
        // SAFETY: the size is not zero; the caller guarantees the layout of the old allocation and does not use it
        // again.
        unsafe {
            let Some(now) = NonNull::new(jemalloc::mallocx(layout.size(), flags).cast::<u8>()) else {
                return allocation;
            };
            now.copy_from_nonoverlapping(allocation, layout.size());
            jemalloc::sdallocx(allocation.as_ptr().cast(), layout.size(), flags);
            now
        }
    }
}

/// The slabs of one size.
#[derive(Clone, Copy)]
struct Bin {
    size: usize,
    /// Places per slab.
    places: usize,
    slabs: usize,
    /// Slabs that are not full.
    open: usize,
    /// Used places in all slabs.
    taken: usize,
}

impl Bin {
    fn read(bin: u32) -> Option<Bin> {
        let stat = |name: &str| format!("stats.arenas.{ALL_ARENAS}.bins.{bin}.{name}\0");
        let places: u32 = read_control(format!("arenas.bin.{bin}.nregs\0"))?;
        Some(Bin {
            size: read_control(format!("arenas.bin.{bin}.size\0"))?,
            places: places as usize,
            slabs: read_control(stat("curslabs"))?,
            open: read_control(stat("nonfull_slabs"))?,
            taken: read_control(stat("curregs"))?,
        })
    }

    /// The maximum number of used places in a slab that is to be emptied; 0 if none is.
    fn taken_max(self) -> u32 {
        let full = self.slabs.saturating_sub(self.open);
        let taken = self.taken.saturating_sub(full * self.places);
        let free = (self.open * self.places).saturating_sub(taken);
        if self.open < 2 || free < (2 * self.places).max(self.taken / FREE_DIVISOR) {
            return 0;
        }
        // If all slabs are about equally empty, emptying half of them would not be enough. If they are nearly full,
        // emptying those above the average would only move the gaps.
        let is_nearly_full = taken * 4 > self.open * self.places * 3;
        let eighths = if is_nearly_full { taken * 8 + self.open * 4 } else { taken * 9 };
        // Slabs that are less than half used are always emptied, even if a few slabs that cannot be emptied lower the
        // average.
        (eighths / (8 * self.open)).clamp(self.places / 2, self.places.saturating_sub(1).max(self.places / 2)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use std::alloc::GlobalAlloc;

    #[test]
    fn slabs_below_average_use_are_emptied() {
        let bin = Bin { size: 64, places: 64, slabs: 100, open: 50, taken: 50 * 64 + 50 * 32 };
        assert_eq!(bin.taken_max(), 36);
        assert_eq!(Bin { taken: 50 * 64 + 50 * 50 + 20, ..bin }.taken_max(), 50, "no more than the average");
        assert_eq!(Bin { taken: 50 * 64 + 50 * 8 - 1, ..bin }.taken_max(), 32, "half at least");
        assert_eq!(Bin { open: 0, taken: 100 * 64, ..bin }.taken_max(), 0, "all are full");
        assert_eq!(Bin { taken: 100 * 64 - 60, ..bin }.taken_max(), 0, "not worth it");
        assert_eq!(Bin { slabs: 1, open: 1, taken: 3, ..bin }.taken_max(), 0, "nowhere to go");
    }

    #[test]
    fn remaining_allocations_are_compacted() {
        const COUNT: usize = 100_000;
        let layout = Layout::from_size_align(336, 8).expect("a layout");
        // SAFETY: each allocation is written within its size, and freed once at its current address.
        unsafe {
            let all: Vec<*mut u8> = (0..COUNT).map(|_| Allocator.alloc(layout)).collect();
            let mut left = Vec::new();
            for (number, pointer) in all.into_iter().enumerate() {
                if number % 4 == 0 {
                    pointer.cast::<usize>().write(number);
                    left.push(NonNull::new(pointer).expect("memory"));
                } else {
                    Allocator.dealloc(pointer, layout);
                }
            }
            let mut slabs = Slabs::default();
            assert!(slabs.is_supported());
            slabs.look();
            let free = || {
                refresh();
                let bins = (0..read_control::<u32>("arenas.nbins\0".into()).unwrap_or(0)).filter_map(Bin::read);
                let bin = bins.into_iter().find(|bin| bin.size == 384).expect("a bin");
                (bin.slabs * bin.places).saturating_sub(bin.taken)
            };
            let before = free();
            let mut moved = 0;
            for pointer in &mut left {
                let now = slabs.relocate(*pointer, layout);
                moved += usize::from(now != *pointer);
                *pointer = now;
            }
            assert!(moved > COUNT / 8 && free() < before / 4, "{moved} moved; free: {before}, then {}", free());
            for (number, pointer) in left.into_iter().enumerate() {
                assert_eq!(pointer.cast::<usize>().read(), 4 * number);
                Allocator.dealloc(pointer.as_ptr(), layout);
            }
        }
    }
}
