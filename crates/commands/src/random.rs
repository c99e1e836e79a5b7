//! Random numbers for commands that select random elements. The generator is fast and of sufficient quality, but not
//! cryptographically secure.
//!
//! Each thread has its own generator (Marsaglia's xorshift with Vigna's multiplier), seeded from the operating system
//! on first use.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    /// Never zero, since the generator would remain zero.
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0) | 1);
}

/// The next random number of the thread.
pub fn next() -> u64 {
    STATE.with(|state| {
        let mut x = state.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        state.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    })
}

#[cfg(test)]
mod tests {
    use super::next;

    #[test]
    fn hash_bits_are_set_half_the_time() {
        const DRAWS: u32 = 10_000;
        let mut set = [0; 64];
        for _ in 0..DRAWS {
            let draw = next();
            set.iter_mut().enumerate().for_each(|(bit, count)| *count += (draw >> bit & 1) as u32);
        }
        // Eight standard deviations from the mean.
        assert!(set.iter().all(|count| count.abs_diff(DRAWS / 2) < 400), "{set:?}");
    }

    #[test]
    fn threads_have_independent_random_numbers() {
        let there = std::thread::spawn(next).join().expect("no panic");
        assert_ne!(there, next());
    }
}
