//! Length-prefixed bytes: a thin pointer to an allocation of the size they need.
//!
//! The first four bytes are the total length in bytes, little-endian, including themselves. The allocation has
//! the [`size_class`] of that length, so that its size need not be stored, and growth within the class is free.
//!
//! # Safety
//!
//! A [`Buffer`] points to its own allocation of `layout(n)`, where `n`, at least [`PREFIX`], is the
//! length in its first four bytes; `n` bytes of it are initialised. Only this module writes the length.

use crate::defrag::Mover;
use crate::memory::size_class;
use crate::word::Word;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error, realloc};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Size of the length, in bytes.
pub const PREFIX: usize = size_of::<u32>();

/// Maximum length of a buffer, in bytes.
pub const BYTES_MAX: usize = 1 << 30;

/// Length-prefixed bytes. See the module documentation.
#[repr(transparent)]
pub struct Buffer(NonNull<u8>);

// SAFETY: it owns its bytes.
unsafe impl Send for Buffer {}
// SAFETY: shared references only read.
unsafe impl Sync for Buffer {}

/// Returns `bytes` if it is a valid length of a buffer, else panics.
#[inline]
fn checked(bytes: usize) -> usize {
    assert!((PREFIX..=BYTES_MAX).contains(&bytes), "a buffer of {bytes} bytes");
    bytes
}

/// The allocation for `bytes` bytes. Aligned so that a [`Word`] can hold it.
#[inline]
fn layout(bytes: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and the callers' sizes are far below the limit.
    unsafe { Layout::from_size_align_unchecked(size_class(bytes), 8) }
}

impl Buffer {
    /// A buffer of `len` bytes, which are zero after the length.
    /// Panics if `len` is below [`PREFIX`] or above [`BYTES_MAX`].
    pub fn of_len(len: usize) -> Self {
        let layout = layout(checked(len));
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc_zeroed(layout) };
        // SAFETY: allocated with that layout, and fully initialised.
        unsafe { Self::of_allocation(pointer, len) }
    }

    /// A copy of at least [`PREFIX`] bytes, the first of which are overwritten by the length.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let layout = layout(checked(bytes.len()));
        // SAFETY: the layout is not empty. The allocation, if it succeeded, has at least that many bytes.
        unsafe {
            let pointer = alloc(layout);
            if !pointer.is_null() {
                pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            Self::of_allocation(pointer, bytes.len())
        }
    }

    /// # Safety
    /// The pointer must come from an allocation of `layout(len)`, and be null or point to initialised bytes.
    #[inline]
    unsafe fn of_allocation(pointer: *mut u8, len: usize) -> Self {
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout(len)) };
        let mut buffer = Buffer(pointer);
        // SAFETY: promised by the caller.
        unsafe { buffer.set_len(len) };
        buffer
    }

    /// Length in bytes.
    #[inline]
    pub fn byte_len(&self) -> usize {
        // SAFETY: the allocation begins with the length, aligned.
        u32::from_le(unsafe { self.0.cast::<u32>().read() }) as usize
    }

    /// Its address, for prefetching.
    #[inline]
    pub fn address(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// All bytes, including the length.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: that many bytes exist, and do not change while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.byte_len()) }
    }

    /// The bytes after the length.
    #[inline]
    pub fn body_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is mutably borrowed; the length does not change.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().add(PREFIX), self.byte_len() - PREFIX) }
    }

    /// Bytes of memory, rounded up to the allocator's size class.
    #[inline]
    pub fn memory(&self) -> usize {
        size_class(self.byte_len())
    }

    /// Offers its allocation to a mover.
    pub fn relocate(&mut self, mover: &mut Mover<'_>) {
        // SAFETY: the allocation is its own, of this layout, and is referenced only here.
        self.0 = unsafe { mover.offer(self.0, layout(self.byte_len())) };
    }

    /// Replaces `old` bytes at `offset`, which is after the length, by `new` bytes with unspecified
    /// contents, which the caller must write at once. Panics if the result exceeds [`BYTES_MAX`].
    #[inline]
    pub(super) fn make_room(&mut self, offset: usize, old: usize, new: usize) -> &mut [u8] {
        let len = self.byte_len();
        assert!(offset >= PREFIX && offset <= len && old <= len - offset && new <= BYTES_MAX);
        let len_after = checked(len - old + new);
        if len_after > len {
            self.reallocate(len, len_after);
        }
        let tail_len = len - offset - old;
        if old != new && tail_len > 0 {
            // SAFETY: the moved bytes are before `len`, their new place is before
            // `len_after`, and the allocation has room for the larger of the two.
            unsafe {
                let tail = self.0.as_ptr().add(offset + old);
                tail.copy_to(self.0.as_ptr().add(offset + new), tail_len);
            }
        }
        if len_after < len {
            self.reallocate(len, len_after);
        }
        // SAFETY: the allocation has room for `len_after` bytes. The returned slice is within it,
        // after the length, and borrowed with `self`; the caller writes it before it is read.
        unsafe {
            self.set_len(len_after);
            std::slice::from_raw_parts_mut(self.0.as_ptr().add(offset), new)
        }
    }

    /// Replaces the last `old` bytes, which must be after the length, by `new` bytes, at least as many,
    /// which the caller must write at once. Equivalent to [`Buffer::make_room`] at the end, but faster.
    // Inlined because a push consists mostly of this, and the caller's constants simplify it.
    #[inline(always)]
    pub(super) fn extend(&mut self, old: usize, new: usize) -> &mut [u8] {
        let len = self.byte_len();
        assert!(old <= len - PREFIX && (old..=BYTES_MAX).contains(&new));
        let len_after = checked(len - old + new);
        if len_after > size_class(len) {
            self.move_to(len, len_after);
        }
        // SAFETY: as in `make_room`.
        unsafe {
            self.set_len(len_after);
            std::slice::from_raw_parts_mut(self.0.as_ptr().add(len - old), new)
        }
    }

    /// Truncates it to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        if let Some(surplus) = self.byte_len().checked_sub(len) {
            self.make_room(len, surplus, 0);
        }
    }

    /// # Safety
    /// The allocation must have room for `len` bytes.
    #[inline]
    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: there is always room for the length, aligned.
        unsafe { self.0.cast::<u32>().write((len as u32).to_le()) };
    }

    /// Resizes the allocation from one length to another.
    #[inline]
    fn reallocate(&mut self, from: usize, to: usize) {
        if layout(from) != layout(to) {
            self.move_to(from, to);
        }
    }

    #[inline(never)]
    fn move_to(&mut self, from: usize, to: usize) {
        // SAFETY: allocated with that layout; the new size is neither zero nor too large.
        let pointer = unsafe { realloc(self.0.as_ptr(), layout(from), layout(to).size()) };
        self.0 = NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout(to)));
    }

    /// Releases ownership of it as a word.
    #[inline]
    pub fn into_word(self, tag: u8) -> Word {
        Word::new(ManuallyDrop::new(self).0, tag)
    }

    /// Takes ownership of a buffer given as a word.
    ///
    /// # Safety
    /// The word must come from `into_word`. Either only the result modifies or frees the
    /// buffer from now on, or the result is never dropped and does not outlive the word.
    #[inline]
    pub unsafe fn from_word(word: Word) -> Self {
        Buffer(word.pointer())
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::copy_of(self.bytes())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with that layout, and dropped once.
        unsafe { dealloc(self.0.as_ptr(), layout(self.byte_len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_can_be_inserted_and_removed_anywhere_after_the_number() {
        let mut buffer = Buffer::of_len(PREFIX);
        let mut model: Vec<u8> = Vec::new();
        for step in 0..400usize {
            let offset = step * 7919 % (model.len() + 1);
            let old = (step * 31 % 9).min(model.len() - offset);
            let new: Vec<u8> = (0..step * 17 % if step < 300 { 14 } else { 3 }).map(|i| (step + i) as u8).collect();
            buffer.make_room(PREFIX + offset, old, new.len()).copy_from_slice(&new);
            model.splice(offset..offset + old, new);
            if step % 3 == 0 {
                let old = model.len().min(step % 5);
                buffer.extend(old, old + 2).fill(step as u8);
                model.truncate(model.len() - old);
                model.resize(model.len() + old + 2, step as u8);
            }
            assert_eq!(&buffer.bytes()[PREFIX..], model);
            assert_eq!((buffer.byte_len(), buffer.memory()), (PREFIX + model.len(), size_class(PREFIX + model.len())));
            assert_eq!(buffer.bytes()[..PREFIX], (buffer.byte_len() as u32).to_le_bytes());
        }
        let copy = buffer.clone();
        buffer.truncate(PREFIX + 3);
        assert_eq!((&buffer.bytes()[PREFIX..], &copy.bytes()[PREFIX..]), (&model[..3], &model[..]));
        buffer.body_mut().fill(7);
        assert_eq!(&buffer.bytes()[PREFIX..], [7; 3]);
        assert_eq!(&Buffer::of_len(20).bytes()[PREFIX..], [0; 16]);
    }
}
