//! Bytes behind their own number: a thin pointer to an allocation that is as large as they need.
//!
//! The first four bytes say, little-endian, how many there are, themselves included. The allocation has the [`size_class`]
//! of that number, so that its size need not be kept, and growth within the class costs nothing.
//!
//! # Safety
//!
//! A [`Buffer`] points to an allocation of its own, of `layout(n)`, where `n`, at least [`PREFIX`], is the number in its first
//! four bytes; `n` bytes of it are written. Only this module writes that number.

use crate::collections::Word;
use crate::defrag::Mover;
use crate::memory::size_class;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error, realloc};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Bytes of the number.
pub const PREFIX: usize = size_of::<u32>();

/// The most bytes that one has.
pub const BYTES_MAX: usize = 1 << 30;

/// See the module's documentation.
#[repr(transparent)]
pub struct Buffer(NonNull<u8>);

// SAFETY: it owns its bytes alone.
unsafe impl Send for Buffer {}
// SAFETY: shared, it can only be read.
unsafe impl Sync for Buffer {}

/// A number of bytes that a buffer may have.
#[inline]
fn checked(bytes: usize) -> usize {
    assert!((PREFIX..=BYTES_MAX).contains(&bytes), "a buffer of {bytes} bytes");
    bytes
}

/// The allocation of so many bytes. Aligned so that a [`Word`] can hold it.
#[inline]
fn layout(bytes: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and the callers' sizes are far below the limit.
    unsafe { Layout::from_size_align_unchecked(size_class(bytes), 8) }
}

impl Buffer {
    /// One of `len` bytes, which are zero behind the number. Panics when they are not even that, or more than [`BYTES_MAX`].
    pub fn of_len(len: usize) -> Self {
        let layout = layout(checked(len));
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc_zeroed(layout) };
        // SAFETY: made with that layout, and all of it is written.
        unsafe { Self::of_allocation(pointer, len) }
    }

    /// A copy of at least [`PREFIX`] bytes, but for their number, which is written over the first of them.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let layout = layout(checked(bytes.len()));
        // SAFETY: the layout is not empty. The allocation, if there is one, has that many bytes at least.
        unsafe {
            let pointer = alloc(layout);
            if !pointer.is_null() {
                pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            Self::of_allocation(pointer, bytes.len())
        }
    }

    /// # Safety
    /// What was made by `layout(len)`, and is written if it is not null.
    #[inline]
    unsafe fn of_allocation(pointer: *mut u8, len: usize) -> Self {
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout(len)) };
        let mut buffer = Buffer(pointer);
        // SAFETY: promised by the caller.
        unsafe { buffer.set_len(len) };
        buffer
    }

    /// Number of bytes.
    #[inline]
    pub fn byte_len(&self) -> usize {
        // SAFETY: the allocation begins with that number, aligned.
        u32::from_le(unsafe { self.0.cast::<u32>().read() }) as usize
    }

    /// Where it is: to be asked for ahead.
    #[inline]
    pub fn address(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// All bytes, the number included.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: that many bytes are there, and are not changed while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.byte_len()) }
    }

    /// The bytes behind the number.
    #[inline]
    pub fn body_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for change; the number stays what it is.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().add(PREFIX), self.byte_len() - PREFIX) }
    }

    /// Bytes of memory that it takes, the allocator's rounding included.
    #[inline]
    pub fn memory(&self) -> usize {
        size_class(self.byte_len())
    }

    /// Offers its allocation to a mover.
    pub fn relocate(&mut self, mover: &mut Mover<'_>) {
        // SAFETY: the allocation is its own, of this layout, and is reached from here alone.
        self.0 = unsafe { mover.offer(self.0, layout(self.byte_len())) };
    }

    /// Turns `old` bytes at `offset`, which is behind the number, into `new` ones, which the caller is to write at once: until
    /// then they are anything. Panics when that makes more than [`BYTES_MAX`].
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
            // SAFETY: what is moved lies before `len`, where it goes before `len_after`, and there is room for the larger
            // of these.
            unsafe {
                let tail = self.0.as_ptr().add(offset + old);
                tail.copy_to(self.0.as_ptr().add(offset + new), tail_len);
            }
        }
        if len_after < len {
            self.reallocate(len, len_after);
        }
        // SAFETY: the allocation is that of `len_after` bytes now. What is lent lies within it, behind the number, and is
        // borrowed with `self`; whoever asked for it writes it before anybody reads it.
        unsafe {
            self.set_len(len_after);
            std::slice::from_raw_parts_mut(self.0.as_ptr().add(offset), new)
        }
    }

    /// Turns the last `old` bytes, none of which is the number's, into `new` ones, which are not fewer and which the caller is to
    /// write at once. The same as [`Buffer::make_room`] does at the end, and sooner done.
    // A push is not much more than this, and what the caller knows of the numbers makes it shorter.
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

    /// Cuts it off.
    pub fn truncate(&mut self, len: usize) {
        if let Some(surplus) = self.byte_len().checked_sub(len) {
            self.make_room(len, surplus, 0);
        }
    }

    /// # Safety
    /// The allocation is that of so many bytes.
    #[inline]
    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: there is always room for the number, aligned.
        unsafe { self.0.cast::<u32>().write((len as u32).to_le()) };
    }

    /// Goes from the allocation of one number of bytes to that of another.
    #[inline]
    fn reallocate(&mut self, from: usize, to: usize) {
        if layout(from) != layout(to) {
            self.move_to(from, to);
        }
    }

    #[inline(never)]
    fn move_to(&mut self, from: usize, to: usize) {
        // SAFETY: made with that layout; the new size is neither zero nor too large.
        let pointer = unsafe { realloc(self.0.as_ptr(), layout(from), layout(to).size()) };
        self.0 = NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout(to)));
    }

    /// Gives it away as a word.
    #[inline]
    pub fn into_word(self, tag: u8) -> Word {
        Word::new(ManuallyDrop::new(self).0, tag)
    }

    /// Takes it back.
    ///
    /// # Safety
    /// The word came from `into_word`. What is returned is the only one that changes or frees the buffer from now on, or is
    /// never dropped and not used beyond the word.
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
        // SAFETY: made with that layout, and dropped once.
        unsafe { dealloc(self.0.as_ptr(), layout(self.byte_len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_put_in_and_taken_out_anywhere_behind_the_number() {
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
