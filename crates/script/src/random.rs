//! The 48-bit linear congruential generator of POSIX's `lrand48`: the same seed produces the same numbers on every
//! machine.

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;
const MASK: u64 = (1 << 48) - 1;
/// The lowest 16 bits of the state after seeding.
const SEED_LOW: u64 = 0x330E;

/// The state of the generator.
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Random(0x1234_ABCD << 16 | SEED_LOW)
    }
}

impl Random {
    /// Restarts the generator.
    pub(crate) fn seed(&mut self, seed: i32) {
        self.0 = u64::from(seed.cast_unsigned()) << 16 | SEED_LOW;
    }

    /// The next 31-bit number.
    pub(crate) fn next(&mut self) -> i32 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK;
        (self.0 >> 17) as i32
    }
}
