//! Active defragmentation: moving what is alive out of pages that are mostly empty, so that these can be given back.
//!
//! The allocator knows which pages those are: it is the [`Heap`], which moves an allocation if it has a better place for it.
//! A [`Mover`] offers it one allocation after the other, and counts how many it may still offer under the present lock.
//! Everything in the keyspace has a method `relocate` that offers what it consists of and writes down where that is
//! afterwards. What is large stops when the mover [is due](Mover::is_due), and says where it is to go on; it may be changed,
//! or be something else altogether, before that. A [`Walk`] goes through the partitions that way.
//!
//! Moving changes no value, no encoding and no figure of what anything takes, and nobody outside of this crate keeps
//! addresses of what may be moved beyond the lock under which it was found.
//!
//! # Safety
//!
//! An allocation is offered by whoever owns it and has it borrowed for change, with the layout that it was allocated with, and
//! the owner uses nothing but the address that comes back. Heaps do not panic, so nobody sees an owner in between.

#[cfg(test)]
pub(crate) mod tests;
mod walk;

pub use walk::{Pass, Walk, Work};

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;

/// Allocations of more bytes than this have pages of their own, where nothing is gained by moving them.
pub const SHARED_BYTES_MAX: usize = 14 * 1024;

/// An allocator that moves things.
///
/// # Safety
///
/// What [`Heap::relocate`] returns is either what it was given, or the address of another allocation of the global
/// allocator, of the same layout and with the same contents, while the old one is freed. It does not panic.
pub unsafe trait Heap {
    /// Moves an allocation if there is a better place for it.
    ///
    /// # Safety
    /// The global allocator gave it out with this layout, nobody else uses it, and it is not used afterwards unless its
    /// address is what is returned.
    unsafe fn relocate(&mut self, allocation: NonNull<u8>, layout: Layout) -> NonNull<u8>;
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
    /// A mover that is due after `most` allocations. Collections with more elements than `fields_max` are left for later by
    /// whoever comes upon them.
    pub fn new(heap: &'h mut dyn Heap, most: usize, fields_max: usize) -> Self {
        Mover { heap, left: most, fields_max, moved: 0, kept: 0 }
    }

    /// Whether it is time to stop.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.left == 0
    }

    /// Whether a collection of so many elements is to be left for later.
    pub(crate) fn puts_off(&self, elements: usize) -> bool {
        elements > self.fields_max
    }

    /// How many allocations were moved.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// How many stayed where they are.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Offers an allocation, and returns where it is now.
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

    /// Offers what a box leads to.
    pub fn offer_box<T>(&mut self, owner: &mut Box<T>) {
        // SAFETY: the box owns the allocation, which has the layout of its type, and is not seen until it is written anew.
        unsafe {
            let before = NonNull::from(&mut **owner).cast();
            let now = self.offer(before, Layout::new::<T>());
            if now != before {
                std::ptr::write(owner, Box::from_raw(now.cast().as_ptr()));
            }
        }
    }

    /// Offers bytes in a box.
    pub fn offer_bytes(&mut self, owner: &mut Box<[u8]>) {
        let len = owner.len();
        // SAFETY: as above; bytes have no alignment, and no bytes no allocation, which `offer` sees.
        unsafe {
            let before = NonNull::from(&mut **owner).cast();
            let now = self.offer(before, Layout::from_size_align_unchecked(len, 1));
            if now != before {
                std::ptr::write(owner, Box::from_raw(std::ptr::slice_from_raw_parts_mut(now.as_ptr(), len)));
            }
        }
    }

    /// Offers what a vector holds its items in.
    pub fn offer_vec<T>(&mut self, owner: &mut Vec<T>) {
        let (len, capacity) = (owner.len(), owner.capacity());
        let Ok(layout) = Layout::array::<T>(capacity) else { return };
        // SAFETY: as above; a vector's allocation is that of an array of its capacity.
        unsafe {
            let Some(before) = NonNull::new(owner.as_mut_ptr()) else { return };
            let now = self.offer(before.cast(), layout);
            if now != before.cast() {
                std::ptr::write(owner, Vec::from_raw_parts(now.cast().as_ptr(), len, capacity));
            }
        }
    }

    /// Offers what a ring holds its items in, unless that is large.
    pub fn offer_ring<T>(&mut self, owner: &mut VecDeque<T>) {
        if owner.capacity() * size_of::<T>() <= SHARED_BYTES_MAX {
            let mut row = Vec::from(std::mem::take(owner));
            self.offer_vec(&mut row);
            *owner = row.into();
        }
    }
}
