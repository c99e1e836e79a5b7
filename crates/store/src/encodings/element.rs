//! Separately allocated byte strings, used as members of large sets.
//!
//! ```text
//! | length: 1, 3 or 9 bytes | the bytes |     rounded up to a size class of the allocator
//! ```
//!
//! The length is one byte below 254; otherwise 254 and two bytes, or 255 and eight bytes,
//! little-endian ([`header_len`]). Other layouts of elements store their strings in the same way.
//!
//! # Safety
//!
//! An element is written once by [`create`] and never changed: its length determines the size of its allocation.

use super::members::Layout;
use crate::memory::size_class;
use crate::snapshot::pieces::Piece;
use crate::table::Pointer;
use std::alloc::{alloc, dealloc, handle_alloc_error};

/// Marks a length of two bytes.
const MEDIUM: u8 = 254;
/// Marks a length of eight bytes.
const LONG: u8 = 255;

/// Size of the length prefix of a string of `len` bytes.
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

/// Writes a string with its length to `to`; returns the address after it.
///
/// # Safety
/// The bytes for the prefix ([`header_len`]) and the string must be writable at `to`, and not overlap the string.
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

/// The string whose length prefix is at `from`.
///
/// # Safety
/// [`write()`] must have written it, and it must not change during `'a`.
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

/// Allocates an element of `size` bytes, a size class.
#[inline]
pub fn allocate(size: usize) -> Pointer {
    let layout = layout(size);
    // SAFETY: sizes of elements are not zero.
    match Pointer::new(unsafe { alloc(layout) }) {
        Some(pointer) => pointer,
        None => handle_alloc_error(layout),
    }
}

/// Frees an element.
///
/// # Safety
/// It must have been allocated by [`allocate`] with this size, and must not be used afterwards.
#[inline]
pub unsafe fn release(pointer: Pointer, size: usize) {
    // SAFETY: promised by the caller.
    unsafe { dealloc(pointer.as_ptr(), layout(size)) }
}

/// The layout of an element of `size` bytes, a size class.
#[inline]
pub fn layout(size: usize) -> std::alloc::Layout {
    debug_assert!(size > 0 && size_class(size) == size);
    // The length of bytes in memory never comes near the size that this refuses.
    std::alloc::Layout::from_size_align(size, 8).unwrap_or_else(|_| unreachable!("an element of {size} bytes"))
}

/// The layout of elements that consist of a string only.
pub struct Plain;

/// Creates an element.
#[inline]
pub fn create(bytes: &[u8]) -> Pointer {
    let pointer = allocate(size_class(header_len(bytes.len()) + bytes.len()));
    // SAFETY: just allocated with this size.
    unsafe { write(pointer.as_ptr(), bytes) };
    pointer
}

// SAFETY: an element is never changed.
unsafe impl Layout for Plain {
    #[inline]
    unsafe fn name<'a>(pointer: Pointer) -> &'a [u8] {
        // SAFETY: the pointer is that of an element made by `create`.
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
        // SAFETY: allocated by `create` with this size; the caller passes ownership.
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
    fn strings_of_every_length_round_trip() {
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
    fn member_uses_next_size_class() {
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
