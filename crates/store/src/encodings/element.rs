//! Byte strings in allocations of their own, as members of large sets are kept.
//!
//! ```text
//! | length: 1, 3 or 9 bytes | the bytes |     rounded up to a size class of the allocator
//! ```
//!
//! The length is one byte below 254; then 254 and two bytes, or 255 and eight bytes, little-endian ([`header_len`]). Other
//! layouts of elements begin their strings in the same way.
//!
//! # Safety
//!
//! An element is written once by [`create`] and never changed: its length says how large its allocation is.

use super::members::Layout;
use crate::memory::size_class;
use crate::snapshot::Piece;
use crate::table::Pointer;
use std::alloc::{alloc, dealloc, handle_alloc_error};

/// A length of two bytes follows.
const MEDIUM: u8 = 254;
/// A length of eight bytes follows.
const LONG: u8 = 255;

/// Bytes that the length of a string of `len` bytes takes in front of it.
#[inline]
pub const fn header_len(len: usize) -> usize {
    if len < MEDIUM as usize {
        1
    } else if len <= u16::MAX as usize {
        3
    } else {
        9
    }
}

/// Writes a string with its length to `to`; where it ends.
///
/// # Safety
/// As many bytes as [`header_len`] and the string take are writable there, and are not the string.
#[inline]
pub unsafe fn write(to: *mut u8, bytes: &[u8]) -> *mut u8 {
    let header = header_len(bytes.len());
    // SAFETY: promised by the caller.
    unsafe {
        match header {
            1 => to.write(bytes.len() as u8),
            3 => {
                to.write(MEDIUM);
                to.add(1).cast::<[u8; 2]>().write((bytes.len() as u16).to_le_bytes());
            }
            _ => {
                to.write(LONG);
                to.add(1).cast::<[u8; 8]>().write((bytes.len() as u64).to_le_bytes());
            }
        }
        to.add(header).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        to.add(header + bytes.len())
    }
}

/// The string whose length stands at `from`.
///
/// # Safety
/// [`write`] wrote it there, and it stays during `'a`.
#[inline]
pub unsafe fn read<'a>(from: *const u8) -> &'a [u8] {
    // SAFETY: promised by the caller.
    unsafe {
        let (header, len) = match from.read() {
            MEDIUM => (3, u16::from_le_bytes(from.add(1).cast::<[u8; 2]>().read()) as usize),
            LONG => (9, u64::from_le_bytes(from.add(1).cast::<[u8; 8]>().read()) as usize),
            short => (1, short as usize),
        };
        std::slice::from_raw_parts(from.add(header), len)
    }
}

/// Memory for an element of `size` bytes, a size class.
#[inline]
pub fn allocate(size: usize) -> Pointer {
    let layout = layout(size);
    // SAFETY: sizes of elements are not zero.
    match Pointer::new(unsafe { alloc(layout) }) {
        Some(pointer) => pointer,
        None => handle_alloc_error(layout),
    }
}

/// Gives it back.
///
/// # Safety
/// Allocated by [`allocate`] with this size, and not used afterwards.
#[inline]
pub unsafe fn release(pointer: Pointer, size: usize) {
    // SAFETY: promised by the caller.
    unsafe { dealloc(pointer.as_ptr(), layout(size)) }
}

/// The layout of an element of `size` bytes, a size class.
#[inline]
pub fn layout(size: usize) -> std::alloc::Layout {
    debug_assert!(size > 0 && size_class(size) == size);
    // Nothing that is in memory already comes near to the size that this refuses.
    std::alloc::Layout::from_size_align(size, 8).unwrap_or_else(|_| unreachable!("an element of {size} bytes"))
}

/// The layout of elements that are a string and nothing else.
pub struct Plain;

/// A new element.
#[inline]
pub fn create(bytes: &[u8]) -> Pointer {
    let pointer = allocate(size_class(header_len(bytes.len()) + bytes.len()));
    // SAFETY: just allocated with this room.
    unsafe { write(pointer.as_ptr(), bytes) };
    pointer
}

// SAFETY: an element is never changed.
unsafe impl Layout for Plain {
    #[inline]
    unsafe fn name<'a>(pointer: Pointer) -> &'a [u8] {
        // SAFETY: the pointer leads to an element that `create` made.
        unsafe { read(pointer.as_ptr()) }
    }

    #[inline]
    unsafe fn size(pointer: Pointer) -> usize {
        // SAFETY: as above.
        let len = unsafe { Self::name(pointer) }.len();
        size_class(header_len(len) + len)
    }

    #[inline]
    unsafe fn free(pointer: Pointer) {
        // SAFETY: allocated by `create` with this size; the caller gives it away.
        unsafe { release(pointer, Self::size(pointer)) }
    }

    unsafe fn copy(pointer: Pointer) -> Pointer {
        // SAFETY: as above.
        create(unsafe { Self::name(pointer) })
    }

    unsafe fn piece<'a>(pointer: Pointer) -> Piece<'a> {
        // SAFETY: as above.
        Piece::Member(unsafe { Self::name(pointer) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_every_length_come_back() {
        for len in [0, 1, 7, 8, 19, 253, 254, 255, 256, 65535, 65536, 200_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let element = create(&bytes);
            // SAFETY: made just now, and freed once.
            unsafe {
                assert_eq!(Plain::name(element), bytes);
                let copy = Plain::copy(element);
                Plain::free(element);
                assert_eq!(Plain::name(copy), bytes);
                Plain::free(copy);
            }
        }
    }

    #[test]
    fn a_member_takes_the_size_class_above_its_bytes() {
        for (len, size) in [(0, 8), (7, 8), (8, 16), (19, 24), (31, 32), (32, 40), (253, 256), (254, 320)] {
            let element = create(&vec![b'x'; len]);
            // SAFETY: as above.
            unsafe {
                assert_eq!(Plain::size(element), size, "{len}");
                Plain::free(element);
            }
        }
    }
}
