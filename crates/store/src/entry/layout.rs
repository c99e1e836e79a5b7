//! Where the parts of an entry lie within its allocation: see [the format](super).

use super::Pointer;
use crate::memory::size_class;
use crate::value::Kind;
use std::alloc;

pub(super) const META: usize = 3;
pub(super) const LENGTHS: usize = 4;
pub(super) const KIND_MASK: u8 = 0b0000_0111;
pub(super) const REPR_SHIFT: u8 = 3;
pub(super) const REPR_MASK: u8 = 0b0001_1000;
pub(super) const HAS_EXPIRY: u8 = 1 << 5;
pub(super) const WIDE: u8 = 1 << 6;
pub(super) const EPOCH: u8 = 1 << 7;

/// Bytes of a short expiry, and the value that marks a long one.
pub(super) const EXPIRY_SHORT: usize = 6;
pub(super) const EXPIRY_ESCAPE: u64 = (1 << 48) - 1;

/// How a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repr {
    /// A string's bytes, in the entry.
    Inline,
    /// A string that is an integer, in the entry.
    Int,
    /// A pointer to a string's `Vec<u8>`, or the word of a collection.
    External,
}

/// Offsets of the parts of an entry.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) meta: u8,
    pub(super) expiry: usize,
    pub(super) key: usize,
    pub(super) key_len: usize,
    pub(super) value: usize,
    pub(super) value_len: usize,
}

impl Layout {
    /// The layout of an entry to be built.
    #[inline]
    pub(super) fn plan(kind: Kind, repr: Repr, key_len: usize, value_len: usize, expiry: Option<i64>) -> Layout {
        let inline = repr == Repr::Inline;
        let wide = key_len > 255 || (inline && value_len > 255);
        let lengths = if wide { 4 } else { 1 } * if inline { 2 } else { 1 };
        let at_expiry = LENGTHS + lengths;
        let expiry_len = expiry.map_or(0, expiry_len);
        let key = at_expiry + expiry_len;
        let mut meta = kind as u8 | (repr as u8) << REPR_SHIFT;
        if expiry.is_some() {
            meta |= HAS_EXPIRY;
        }
        if wide {
            meta |= WIDE;
        }
        Layout { meta, expiry: at_expiry, key, key_len, value: key + key_len, value_len }
    }

    /// The layout of an existing entry.
    ///
    /// # Safety
    /// `entry` must be a live allocation made by `build`.
    #[inline]
    pub(super) unsafe fn read(entry: Pointer) -> Layout {
        // SAFETY: `build` wrote the header; only the parts that its flags declare are read.
        unsafe {
            let at = entry.as_ptr();
            let meta = at.add(META).read();
            let inline = meta & REPR_MASK == 0;
            let (key_len, mut value_len, at_expiry);
            if meta & WIDE == 0 {
                key_len = at.add(LENGTHS).read() as usize;
                value_len = at.add(LENGTHS + 1).read() as usize;
                at_expiry = LENGTHS + if inline { 2 } else { 1 };
            } else {
                key_len = at.add(LENGTHS).cast::<u32>().read_unaligned() as usize;
                value_len = if inline { at.add(LENGTHS + 4).cast::<u32>().read_unaligned() as usize } else { 0 };
                at_expiry = LENGTHS + if inline { 8 } else { 4 };
            }
            if !inline {
                value_len = size_of::<u64>();
            }
            let mut key = at_expiry;
            if meta & HAS_EXPIRY != 0 {
                key += if read_48(at.add(at_expiry)) == EXPIRY_ESCAPE { EXPIRY_SHORT + 8 } else { EXPIRY_SHORT };
            }
            Layout { meta, expiry: at_expiry, key, key_len, value: key + key_len, value_len }
        }
    }

    #[inline]
    pub(super) fn size(&self) -> usize {
        self.value + self.value_len
    }

    #[inline]
    pub(super) fn allocation(&self) -> alloc::Layout {
        allocation(self.size())
    }

    #[inline]
    pub(super) fn repr(&self) -> Repr {
        match (self.meta & REPR_MASK) >> REPR_SHIFT {
            0 => Repr::Inline,
            1 => Repr::Int,
            _ => Repr::External,
        }
    }
}

/// Whether two slices of the same length are equal. Avoids a call to `memcmp` for the lengths of most keys.
#[inline]
pub(super) fn is_same(a: &[u8], b: &[u8]) -> bool {
    let (Some(a_last), Some(b_last), 8..=32) = (a.last_chunk(), b.last_chunk(), a.len()) else { return a == b };
    let differing = |a: &[u8; 8], b: &[u8; 8]| u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
    let words = a.as_chunks().0.iter().zip(b.as_chunks().0);
    words.fold(differing(a_last, b_last), |bits, (a, b)| bits | differing(a, b)) == 0
}

pub(super) fn expiry_len(at: i64) -> usize {
    if (0..EXPIRY_ESCAPE as i64).contains(&at) { EXPIRY_SHORT } else { EXPIRY_SHORT + 8 }
}

#[inline]
pub(super) fn allocation(size: usize) -> alloc::Layout {
    // SAFETY: the alignment is a power of two, and the size is a sum of lengths below 2^33.
    unsafe { alloc::Layout::from_size_align_unchecked(size_class(size), 8) }
}

/// # Safety
/// Six bytes must be readable at `at`.
#[inline]
pub(super) unsafe fn read_48(at: *const u8) -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: promised by the caller; the ranges do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), EXPIRY_SHORT) };
    u64::from_le_bytes(bytes)
}

/// Whether Valkey would embed this string in its object. Clients and tests depend on the encoding's name, so it
/// follows Valkey's sizes (an 8-byte header, key and value with their string headers, 128 bytes in all), not ours.
pub(super) fn embedded_in_reference(layout: &Layout, volatile: bool) -> bool {
    let key_header = match layout.key_len {
        0..32 => 1,
        32..256 => 3,
        256..65536 => 5,
        _ => 9,
    };
    let key = layout.key_len + key_header + 2;
    let value = layout.value_len + 4;
    layout.value_len <= 255 && 8 + key + if volatile { 8 } else { 0 } + value <= 128
}
