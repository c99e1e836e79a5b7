//! Uniform random choices, from 64-bit random numbers that the caller supplies.

/// A number below `limit`, which must not be 0: scales the random number `draw` to that range.
#[inline]
pub fn below(draw: u64, limit: usize) -> usize {
    ((u128::from(draw) * limit as u128) >> 64) as usize
}

/// Chooses `count` of `len` items in one pass, with equal probability
/// for each subset: decides for each item in turn whether it is chosen.
///
/// This is selection sampling (Knuth, The Art of Computer Programming, volume 2, section 3.4.2, algorithm S).
pub struct Subset {
    left: usize,
    wanted: usize,
}

impl Subset {
    /// Chooses `count` items, or all if there are fewer.
    pub fn new(count: usize, len: usize) -> Self {
        Subset { left: len, wanted: count.min(len) }
    }

    /// Whether the next item is chosen. Must be called at most `len` times.
    #[inline]
    pub fn select_next(&mut self, random: impl FnOnce() -> u64) -> bool {
        let takes = self.wanted > 0 && below(random(), self.left.max(1)) < self.wanted;
        self.left = self.left.saturating_sub(1);
        self.wanted -= usize::from(takes);
        takes
    }

    /// Whether all have been chosen.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.wanted == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> impl FnMut() -> u64 {
        let mut state = 1u64;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state ^ state >> 31
        }
    }

    #[test]
    fn fractions_cover_the_whole_range() {
        assert_eq!([0, u64::MAX / 2, u64::MAX].map(|draw| below(draw, 10)), [0, 4, 9]);
        assert_eq!(below(u64::MAX, 1), 0);
    }

    #[test]
    fn subsets_are_equally_likely() {
        let (mut random, mut hits) = (numbers(), [0u32; 1 << 5]);
        const DRAWS: u32 = 20_000;
        for _ in 0..DRAWS {
            let mut subset = Subset::new(2, 5);
            let chosen = (0..5).fold(0, |bits, i| bits | usize::from(subset.select_next(&mut random)) << i);
            assert!(subset.is_complete());
            hits[chosen] += 1;
        }
        for (bits, hits) in hits.iter().enumerate() {
            if bits.count_ones() == 2 {
                assert!(hits.abs_diff(DRAWS / 10) < 300, "{bits:b}: {hits}");
            } else {
                assert_eq!(*hits, 0);
            }
        }
    }

    #[test]
    fn choosing_more_than_exist_chooses_all() {
        let (mut random, mut subset) = (numbers(), Subset::new(9, 4));
        assert!((0..4).all(|_| subset.select_next(&mut random)) && subset.is_complete());
    }
}
