//! Random numbers for commands that choose elements: quick, and fair enough for that, but no secret.
//!
//! Each thread has a generator of its own (Marsaglia's xorshift with Vigna's multiplier), seeded from the operating
//! system when it is first used.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    /// Never zero: the generator would stay there.
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0) | 1);
}

/// The thread's next random number.
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
    fn every_bit_is_set_half_the_time() {
        const DRAWS: u32 = 10_000;
        let mut set = [0; 64];
        for _ in 0..DRAWS {
            let draw = next();
            set.iter_mut().enumerate().for_each(|(bit, count)| *count += (draw >> bit & 1) as u32);
        }
        // Eight standard deviations off the mean.
        assert!(set.iter().all(|count| count.abs_diff(DRAWS / 2) < 400), "{set:?}");
    }

    #[test]
    fn threads_draw_their_own_numbers() {
        let there = std::thread::spawn(next).join().expect("no panic");
        assert_ne!(there, next());
    }
}
