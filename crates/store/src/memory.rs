//! Memory of values: the allocator's size classes, which are those of jemalloc with a quantum of eight bytes.

/// The spacing of the smallest size classes, and the alignment of all allocations, in bytes.
pub const QUANTUM: usize = 8;

/// Elements that are sampled to estimate the memory of a large value.
pub(crate) const WEIGHED: usize = 5;

/// The size of the allocation for `size` bytes: a multiple of 8 up to 64, then one of four classes per doubling.
#[inline]
pub const fn size_class(size: usize) -> usize {
    if size <= 64 {
        return if size == 0 { QUANTUM } else { (size + QUANTUM - 1) & !(QUANTUM - 1) };
    }
    let spacing = 1 << ((size - 1).ilog2() - 2);
    (size + spacing - 1) & !(spacing - 1)
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn size_classes_match_the_allocator() {
        let known =
            [(1, 8), (9, 16), (17, 24), (33, 40), (64, 64), (65, 80), (113, 128), (129, 160), (161, 192), (257, 320)];
        let large = [(1025, 1280), (4097, 5120), (8193, 10240), (16385, 20480), (65537, 81920)];
        for (size, class) in known.into_iter().chain(large) {
            assert_eq!(size_class(size), class, "{size}");
            assert_eq!(size_class(class), class);
        }
    }
}
