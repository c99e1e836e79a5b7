//! Counts and finds bits in a string.
//!
//! Bit 0 is the most significant bit of the first byte; bits are numbered from left to right. Ranges are half-open
//! ranges of bit numbers; a range of bytes is a range of bits whose ends are multiples of eight. Only the two bytes at
//! the edges of a range are masked; all others are processed in blocks.

use std::ops::Range;

use crate::wide::widened;

/// The range for an inclusive `start` and `end` in a sequence of `total` items. Negative numbers count from the end (-1
/// is the last item), and both are clamped to the sequence. The result may be empty.
pub fn clamp_range(start: i64, end: i64, total: u64) -> Range<u64> {
    let total = i64::try_from(total).unwrap_or(i64::MAX);
    let from_end = |index: i64| if index < 0 { total.saturating_add(index).max(0) } else { index };
    let start = from_end(start);
    let end = from_end(end).min(total - 1);
    if start > end { 0..0 } else { start as u64..end as u64 + 1 }
}

/// The bit at `offset`; bits beyond the end of `bytes` are zero.
pub fn get_bit(bytes: &[u8], offset: u64) -> bool {
    usize::try_from(offset >> 3)
        .ok()
        .and_then(|at| bytes.get(at))
        .is_some_and(|byte| byte >> (7 - (offset & 7)) & 1 == 1)
}

/// Sets or clears the bit at `offset`, which must lie within `bytes`.
pub fn set_bit(bytes: &mut [u8], offset: u64, on: bool) {
    let mask = 0x80 >> (offset & 7);
    let byte = &mut bytes[(offset >> 3) as usize];
    *byte = if on { *byte | mask } else { *byte & !mask };
}

widened! {
    /// Number of set bits in `bytes`.
    pub fn count_all(bytes: &[u8]) -> u64 {
        let (words, rest) = bytes.as_chunks::<8>();
        let in_words: u64 = words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum();
        let in_rest: u64 = rest.iter().map(|byte| u64::from(byte.count_ones())).sum();
        in_words + in_rest
    }
}

/// The bytes of a non-empty range, and the masks of its bits within the first and the last of them.
struct Edges {
    first: usize,
    last: usize,
    first_mask: u8,
    last_mask: u8,
}

impl Edges {
    /// `None` for an empty range. The range must lie within the string.
    fn new(range: &Range<u64>) -> Option<Edges> {
        let end = range.end.checked_sub(1).filter(|end| *end >= range.start)?;
        Some(Edges {
            first: (range.start >> 3) as usize,
            last: (end >> 3) as usize,
            first_mask: 0xff >> (range.start & 7),
            last_mask: 0xff << (7 - (end & 7)),
        })
    }
}

/// Number of set bits in `range`. The range must lie within `bytes`.
pub fn count(bytes: &[u8], range: Range<u64>) -> u64 {
    let Some(edges) = Edges::new(&range) else { return 0 };
    let before = bytes[edges.first] & !edges.first_mask;
    let behind = bytes[edges.last] & !edges.last_mask;
    let outside = before.count_ones() + behind.count_ones();
    count_all(&bytes[edges.first..=edges.last]) - u64::from(outside)
}

/// The first bit of `range` that equals `bit`. The range must lie within `bytes`.
pub fn find(bytes: &[u8], range: Range<u64>, bit: bool) -> Option<u64> {
    let Edges { first, last, first_mask, last_mask } = Edges::new(&range)?;
    // XOR with `skip` turns the bits to find into ones, so that one search for the first set bit handles both cases.
    let skip = if bit { 0x00 } else { 0xff };
    let in_byte = |at: usize, mask: u8| {
        let hits = (bytes[at] ^ skip) & mask;
        (hits != 0).then(|| at as u64 * 8 + u64::from(hits.leading_zeros()))
    };
    if first == last {
        return in_byte(first, first_mask & last_mask);
    }
    in_byte(first, first_mask)
        .or_else(|| first_other(&bytes[first + 1..last], skip).and_then(|at| in_byte(first + 1 + at, 0xff)))
        .or_else(|| in_byte(last, last_mask))
}

widened! {
    /// The position of the first byte other than `skip`.
    fn first_other(bytes: &[u8], skip: u8) -> Option<usize> {
        const BLOCK: usize = 64;
        let skip_word = u64::from_ne_bytes([skip; 8]);
        let (blocks, _) = bytes.as_chunks::<BLOCK>();
        let same = |block: &&[u8; BLOCK]| {
            let (words, _) = block.as_chunks::<8>();
            words.iter().fold(0, |found, word| found | (u64::from_ne_bytes(*word) ^ skip_word)) == 0
        };
        let skipped = blocks.iter().take_while(same).count() * BLOCK;
        bytes[skipped..].iter().position(|byte| *byte != skip).map(|at| skipped + at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// One bool per bit, from left to right.
    fn model(bytes: &[u8]) -> Vec<bool> {
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect()
    }

    /// Strings with long runs of equal bytes, to test the block boundaries of the search.
    fn strings() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![4 => Just(0u8), 4 => Just(0xff), 1 => any::<u8>()];
        vec((byte, 1usize..90), 0..6)
            .prop_map(|runs| runs.into_iter().flat_map(|(byte, len)| std::iter::repeat_n(byte, len)).collect())
    }

    #[test]
    fn ranges_are_clamped_into_the_sequence() {
        assert_eq!(clamp_range(0, -1, 5), 0..5);
        assert_eq!(clamp_range(-2, -1, 5), 3..5);
        assert_eq!(clamp_range(-100, 100, 5), 0..5);
        assert_eq!(clamp_range(i64::MIN, i64::MAX, 5), 0..5);
        assert_eq!(clamp_range(3, 2, 5), 0..0);
        assert_eq!(clamp_range(5, 9, 5), 0..0);
        assert_eq!(clamp_range(0, -1, 0), 0..0);
        assert_eq!(clamp_range(-7, -6, 5), 0..1);
    }

    #[test]
    fn bits_after_the_end_read_as_zero() {
        assert!(get_bit(&[0x01], 7));
        assert!(!get_bit(&[0xff], 8));
        assert!(!get_bit(&[], u64::MAX));
    }

    proptest! {
        #[test]
        fn setting_a_bit_changes_only_that_bit(
            mut bytes in vec(any::<u8>(), 1..20), at: prop::sample::Index, on: bool
        ) {
            let at = at.index(bytes.len() * 8);
            let mut expected = model(&bytes);
            expected[at] = on;
            set_bit(&mut bytes, at as u64, on);
            prop_assert_eq!(get_bit(&bytes, at as u64), on);
            prop_assert_eq!(model(&bytes), expected);
        }

        #[test]
        fn counts_agree_with_counting_one_by_one(
            bytes in vec(any::<u8>(), 0..300), a: prop::sample::Index, b: prop::sample::Index
        ) {
            let bits = model(&bytes);
            let (a, b) = (a.index(bits.len() + 1), b.index(bits.len() + 1));
            let range = a.min(b)..a.max(b);
            let expected = bits[range.clone()].iter().filter(|bit| **bit).count();
            prop_assert_eq!(count(&bytes, range.start as u64..range.end as u64), expected as u64);
        }

        #[test]
        fn bitpos_finds_the_first_bit(
            bytes in strings(), a: prop::sample::Index, b: prop::sample::Index, bit: bool
        ) {
            let bits = model(&bytes);
            let (a, b) = (a.index(bits.len() + 1), b.index(bits.len() + 1));
            let range = a.min(b)..a.max(b);
            let expected = bits[range.clone()].iter().position(|b| *b == bit).map(|at| (at + range.start) as u64);
            prop_assert_eq!(find(&bytes, range.start as u64..range.end as u64, bit), expected);
        }
    }
}
