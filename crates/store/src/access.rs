//! How recently or how often a key was used: the 24 bits of an entry's clock.
//!
//! Under LRU policies (and without eviction) they are seconds, modulo 2^24. Under LFU policies they are
//! the minute of the last decay (16 bits) and a logarithmic counter (8 bits), which an access increments
//! with decreasing probability and which decays over time: Morris's approximate counting with decay.

use std::cell::Cell;

/// Counter of a new key under LFU, so that it is not evicted immediately.
const LFU_INITIAL: u32 = 5;
const SECONDS_MASK: i64 = 0x00ff_ffff;
const MINUTES_MASK: i64 = 0xffff;

/// Records access, and holds the current time in the clock's units.
#[derive(Clone, Debug)]
pub struct Access {
    /// True under an LFU policy.
    pub lfu: bool,
    /// `lfu-log-factor`.
    pub lfu_log_factor: u32,
    /// `lfu-decay-time`, in minutes; 0 for no decay.
    pub lfu_decay_minutes: u32,
    seconds: u32,
    minutes: u32,
    random: Cell<u64>,
}

impl Default for Access {
    fn default() -> Self {
        Access {
            lfu: false,
            lfu_log_factor: 10,
            lfu_decay_minutes: 1,
            seconds: 0,
            minutes: 0,
            random: Cell::new(0x9e37_79b9_7f4a_7c15),
        }
    }
}

impl Access {
    /// Sets the current time.
    #[inline]
    pub fn set_now(&mut self, now_ms: i64) {
        let seconds = now_ms / 1000;
        self.seconds = (seconds & SECONDS_MASK) as u32;
        self.minutes = ((seconds / 60) & MINUTES_MASK) as u32;
    }

    /// The clock of a key that is created now.
    #[inline]
    pub fn fresh(&self) -> u32 {
        if self.lfu { self.minutes << 8 | LFU_INITIAL } else { self.seconds }
    }

    /// The clock of a key that is used now.
    #[inline]
    pub fn touched(&self, clock: u32) -> u32 {
        if !self.lfu {
            return self.seconds;
        }
        self.minutes << 8 | self.incremented(self.frequency(clock))
    }

    /// The LRU clock of a key that was last used `seconds` seconds ago.
    pub fn idle_since(&self, seconds: u64) -> u32 {
        // Longer times saturate at the maximum that a clock can represent.
        let seconds = seconds.min(SECONDS_MASK as u64) as u32;
        self.seconds.wrapping_sub(seconds) & SECONDS_MASK as u32
    }

    /// The LFU clock of a key whose counter is `frequency` now.
    pub fn used_as_often(&self, frequency: u8) -> u32 {
        self.minutes << 8 | u32::from(frequency)
    }

    /// Seconds since the last use, for LRU clocks.
    pub fn idle_seconds(&self, clock: u32) -> u64 {
        (self.seconds.wrapping_sub(clock) & SECONDS_MASK as u32) as u64
    }

    /// The decayed counter of an LFU clock.
    pub fn frequency(&self, clock: u32) -> u32 {
        let (since, counter) = (clock >> 8, clock & 0xff);
        let elapsed = self.minutes.wrapping_sub(since) & MINUTES_MASK as u32;
        let periods = elapsed.checked_div(self.lfu_decay_minutes).unwrap_or(0);
        counter.saturating_sub(periods)
    }

    /// The clock of a key that was used `seconds` seconds ago under
    /// an LRU policy, limited to half of the clock's range.
    pub fn clock_idle_for(&self, seconds: u64) -> u32 {
        let seconds = seconds.min(SECONDS_MASK as u64 / 2) as u32;
        self.seconds.wrapping_sub(seconds) & SECONDS_MASK as u32
    }

    /// The clock of a key with this counter under an LFU policy.
    pub fn clock_with_frequency(&self, frequency: u8) -> u32 {
        self.minutes << 8 | u32::from(frequency)
    }

    fn incremented(&self, counter: u32) -> u32 {
        if counter == 255 {
            return counter;
        }
        let above = f64::from(counter.saturating_sub(LFU_INITIAL));
        let chance = 1.0 / (above * f64::from(self.lfu_log_factor) + 1.0);
        // xorshift64*, sufficient for a random decision.
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        let draw = (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64;
        counter + u32::from(draw < chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_counts_seconds_across_the_wrap() {
        let mut access = Access::default();
        access.set_now(((1 << 24) - 2) * 1000);
        let clock = access.fresh();
        access.set_now(((1 << 24) + 8) * 1000);
        assert_eq!(access.idle_seconds(clock), 10);
        assert_eq!(access.idle_seconds(access.touched(clock)), 0);
    }

    #[test]
    fn clock_round_trips_through_idle_time_and_frequency() {
        let mut access = Access::default();
        access.set_now(5_000);
        for seconds in [0, 3, 3600, SECONDS_MASK as u64] {
            assert_eq!(access.idle_seconds(access.idle_since(seconds)), seconds);
        }
        assert_eq!(access.idle_seconds(access.idle_since(u64::MAX)), SECONDS_MASK as u64);
        assert_eq!(access.frequency(access.used_as_often(77)), 77);
    }

    #[test]
    fn frequency_rises_slowly_and_decays() {
        let mut access = Access { lfu: true, ..Access::default() };
        access.set_now(0);
        let mut clock = access.fresh();
        for _ in 0..1000 {
            clock = access.touched(clock);
        }
        let frequency = access.frequency(clock);
        assert!((10..40).contains(&frequency), "{frequency}");
        access.set_now(5 * 60_000);
        assert_eq!(access.frequency(clock), frequency - 5);
    }
}
