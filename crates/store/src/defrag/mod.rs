//! Active defragmentation: moves live allocations out of mostly empty pages, so that these can be released.
//!
//! The allocator knows which pages those are: it is the [`Heap`], which moves an allocation if it has
//! a better place for it. A [`Mover`] offers it one allocation after the other, and counts how many
//! it may still offer under the current lock. Every type in the keyspace has a method `relocate` that
//! offers its allocations and updates its pointers. For large objects, `relocate` stops when the
//! mover [is due](Mover::is_due) and returns the position to continue from; the object may be changed
//! or replaced in between. A [`Walk`](walk::Walk) iterates over the partitions in this way.
//!
//! Moving changes no value, encoding or memory figure. Code outside this crate must not
//! keep the address of anything movable beyond the lock under which it was obtained.
//!
//! # Safety
//!
//! An allocation is offered by its owner, which borrows it mutably, with the layout
//! that it was allocated with; afterwards the owner uses only the returned address.
//! Heaps do not panic, so an owner is never observed in an inconsistent state.

#[cfg(test)]
pub(crate) mod tests;
pub mod walk;

use kvick_resp::SharedBytes;
use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;

/// Larger allocations have their own pages, so moving them gains nothing.
pub const SHARED_BYTES_MAX: usize = 14 * 1024;

/// An allocator that can move allocations.
///
/// # Safety
///
/// [`Heap::relocate`] must return either its argument, or the address of another allocation from the global
/// allocator with the same layout and contents, in which case the old allocation has been freed. It must not panic.
pub unsafe trait Heap {
    /// Moves an allocation if there is a better place for it.
    ///
    /// # Safety
    /// The global allocator must have returned `allocation` for this layout. No other
    /// thread may use it, and afterwards only the returned address may be used.
    unsafe fn relocate(&mut self, allocation: NonNull<u8>, layout: Layout) -> NonNull<u8>;
}

/// Statistics of a pass.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Work {
    /// Allocations that were moved.
    pub moved: u64,
    /// Allocations that were not moved.
    pub kept: u64,
    /// Keys of which some allocation was moved.
    pub keys_moved: u64,
    /// Keys of which none was moved.
    pub keys_kept: u64,
}

/// Offers allocations to a heap.
pub struct Mover<'h> {
    heap: &'h mut dyn Heap,
    left: usize,
    fields_max: usize,
    moved: u64,
    kept: u64,
}

impl<'h> Mover<'h> {
    /// A mover that is due after `most` allocations. Collections
    /// with more than `fields_max` elements are to be put off.
    pub fn new(heap: &'h mut dyn Heap, most: usize, fields_max: usize) -> Self {
        Mover { heap, left: most, fields_max, moved: 0, kept: 0 }
    }

    /// Whether it is time to stop.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.left == 0
    }

    /// Whether a collection with this many elements is to be put off.
    pub(crate) fn defers(&self, elements: usize) -> bool {
        elements > self.fields_max
    }

    /// Number of allocations that were moved.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Number of allocations that were offered and not moved.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Offers an allocation; returns its new address.
    ///
    /// # Safety
    /// As for [`Heap::relocate`].
    #[inline]
    pub unsafe fn offer(&mut self, allocation: NonNull<u8>, layout: Layout) -> NonNull<u8> {
        self.left = self.left.saturating_sub(1);
        if layout.size() > SHARED_BYTES_MAX || layout.size() == 0 {
            return allocation;
        }
        // SAFETY: promised by the caller.
        let now = unsafe { self.heap.relocate(allocation, layout) };
        *if now == allocation { &mut self.kept } else { &mut self.moved } += 1;
        now
    }

    /// Offers a box's allocation.
    pub fn offer_box<T>(&mut self, owner: &mut Box<T>) {
        // SAFETY: the box owns the allocation, which has the layout of
        // its type, and is not used before it is overwritten.
        unsafe {
            let before = NonNull::from(&mut **owner).cast();
            let now = self.offer(before, Layout::new::<T>());
            if now != before {
                std::ptr::write(owner, Box::from_raw(now.cast().as_ptr()));
            }
        }
    }

    /// Offers the allocation of boxed bytes.
    pub fn offer_bytes(&mut self, owner: &mut Box<[u8]>) {
        let len = owner.len();
        // SAFETY: as above; bytes have an alignment of 1. An empty box has no allocation, which `offer` handles.
        unsafe {
            let before = NonNull::from(&mut **owner).cast();
            let now = self.offer(before, Layout::from_size_align_unchecked(len, 1));
            if now != before {
                std::ptr::write(owner, Box::from_raw(std::ptr::slice_from_raw_parts_mut(now.as_ptr(), len)));
            }
        }
    }

    /// Offers a vector's buffer.
    pub fn offer_vec<T>(&mut self, owner: &mut Vec<T>) {
        let (len, capacity) = (owner.len(), owner.capacity());
        let Ok(layout) = Layout::array::<T>(capacity) else { return };
        // SAFETY: as above; a vector's allocation has the layout of an array of its capacity.
        unsafe {
            let Some(before) = NonNull::new(owner.as_mut_ptr()) else { return };
            let now = self.offer(before.cast(), layout);
            if now != before.cast() {
                std::ptr::write(owner, Vec::from_raw_parts(now.cast().as_ptr(), len, capacity));
            }
        }
    }

    /// Offers both allocations of shared bytes, unless they have other owners.
    pub fn offer_shared(&mut self, owner: &mut SharedBytes) {
        let Some(buffer) = owner.get_mut() else { return };
        self.offer_vec(buffer);
        // SAFETY: as above; there is no other owner.
        unsafe {
            let before = owner.header();
            let now = self.offer(before, SharedBytes::HEADER);
            if now != before {
                std::ptr::write(owner, SharedBytes::moved(now));
            }
        }
    }

    /// Offers a ring's buffer, unless it is large.
    pub fn offer_ring<T>(&mut self, owner: &mut VecDeque<T>) {
        if owner.capacity() * size_of::<T>() <= SHARED_BYTES_MAX {
            let mut row = Vec::from(std::mem::take(owner));
            self.offer_vec(&mut row);
            *owner = row.into();
        }
    }
}
