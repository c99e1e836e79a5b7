//! Limits of lists: when a list is small, when a block is full, and which elements are large.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum size in bytes of a block whose limit is a number of elements.
const COUNTED_BYTES_MAX: usize = 8192;

/// Maximum overhead of an element in a block, in bytes, unless it is large.
const OVERHEAD: usize = 8;

/// Elements of at least this size are always large, since the size of a listpack is limited.
const LARGE_ALWAYS: usize = 1 << 28;

/// Size in bytes from which on elements are large; 0 if the limits decide.
static LARGE_FROM: AtomicUsize = AtomicUsize::new(0);

/// Sets the size from which on elements are large in all lists; 0 means that the limits decide again. For
/// tests (DEBUG QUICKLIST-PACKED-THRESHOLD). Returns false, with no effect, for sizes near or above 4 GiB.
pub fn set_packed_threshold(bytes: u64) -> bool {
    let fits = bytes <= (1 << 32) - (1 << 20);
    if fits {
        LARGE_FROM.store(bytes as usize, Ordering::Relaxed);
    }
    fits
}

/// The settings of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `list-max-listpack-size`: the number of elements in a block, or from -1 to -5 its size: 4, 8, 16, 32, 64 KiB.
    pub max_listpack_size: i32,
    /// `list-compress-depth`: the number of blocks at each end that are not compressed; 0 disables compression.
    pub compress_depth: u32,
}

impl Limits {
    /// The limits clamped to their effective range, as they are stored in a list.
    pub(super) fn bounded(self) -> Limits {
        Limits {
            max_listpack_size: self.max_listpack_size.clamp(-5, i16::MAX.into()),
            compress_depth: self.compress_depth.min(u16::MAX.into()),
        }
    }

    /// Maximum bytes and maximum elements of a listpack; one of them is unlimited.
    fn pair(self) -> (usize, usize) {
        match self.max_listpack_size {
            level @ ..0 => (2048 << level.unsigned_abs().min(5), usize::MAX),
            count => (usize::MAX, (count as usize).max(1)),
        }
    }

    /// Maximum size of a listpack in bytes, if the limit is one in bytes.
    #[inline]
    pub(super) fn bytes_max(self) -> Option<usize> {
        Some(self.pair().0).filter(|bytes| *bytes < usize::MAX)
    }

    /// Whether a listpack of `bytes` bytes and `count` elements exceeds the limit.
    #[inline]
    pub(super) fn exceeded(self, bytes: usize, count: usize) -> bool {
        match self.pair() {
            (usize::MAX, most) => bytes > COUNTED_BYTES_MAX || count > most,
            (most, _) => bytes > most,
        }
    }

    /// Whether a listpack is at most half the limit, so that a list consisting of it becomes small again.
    pub(super) fn far_from_exceeded(self, bytes: usize, count: usize) -> bool {
        let (bytes_max, count_max) = self.pair();
        bytes <= bytes_max / 2 && count <= count_max / 2
    }

    /// Whether a listpack is within the limit, for a newly built list.
    pub(super) fn allows(self, bytes: usize, count: usize) -> bool {
        let (bytes_max, count_max) = self.pair();
        bytes <= bytes_max && count <= count_max
    }

    /// Whether an element of `bytes` bytes needs a separate block.
    #[inline]
    pub(super) fn is_large(self, bytes: usize) -> bool {
        match LARGE_FROM.load(Ordering::Relaxed) {
            0 => match self.pair() {
                (usize::MAX, _) => bytes > COUNTED_BYTES_MAX,
                (most, _) => bytes > most,
            },
            from => bytes >= from.min(LARGE_ALWAYS),
        }
    }

    /// Whether an element that is not large fits in a block.
    #[inline]
    pub(super) fn has_room(self, block_bytes: usize, block_count: usize, bytes: usize) -> bool {
        !self.exceeded(block_bytes + bytes + OVERHEAD, block_count + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Limits;

    fn limits(max_listpack_size: i32) -> Limits {
        Limits { max_listpack_size, compress_depth: 0 }
    }

    #[test]
    fn negative_sizes_are_levels_of_bytes() {
        for (level, bytes) in [(-1, 4096), (-2, 8192), (-3, 16384), (-4, 32768), (-5, 65536), (-6, 65536)] {
            assert!(!limits(level).exceeded(bytes, 1_000_000), "{level}");
            assert!(limits(level).exceeded(bytes + 1, 1), "{level}");
            assert!(limits(level).far_from_exceeded(bytes / 2, 1_000_000));
            assert!(!limits(level).far_from_exceeded(bytes / 2 + 1, 1));
            assert!(!limits(level).is_large(bytes) && limits(level).is_large(bytes + 1));
        }
    }

    #[test]
    fn positive_sizes_are_element_counts() {
        assert!(!limits(3).exceeded(8192, 3) && limits(3).exceeded(8193, 3) && limits(3).exceeded(8, 4));
        assert!(!limits(0).exceeded(8, 1) && limits(0).exceeded(8, 2));
        assert!(limits(4).far_from_exceeded(1 << 20, 2) && !limits(4).far_from_exceeded(8, 3));
        assert!(!limits(4).is_large(8192) && limits(4).is_large(8193));
    }
}
