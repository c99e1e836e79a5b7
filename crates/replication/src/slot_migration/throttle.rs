//! How much an export slows the writers of its slots, so that it gets through under any write rate.
//!
//! Writes to the slots are held for a part of each [`PERIOD`]. That part grows with the bytes that are left to send,
//! and with the time for which the target has waited for a pause. At the maximum share, writers still get through. With
//! many writers, one write can wait for several periods: it competes with the others for the rest of each.

use std::time::{Duration, Instant};

/// Held writes are released once in this time.
pub(super) const PERIOD: Duration = Duration::from_millis(10);

/// The largest part of a period for which writes are held.
const SHARE_MAX: f64 = 0.95;

/// How long the target waits for a pause before writers are slowed for that reason, and how long until the maximum.
const PATIENCE: Duration = Duration::from_millis(500);
const ESCALATION: Duration = Duration::from_secs(5);

/// Bytes left to send from which on writers are slowed, and those at which they are slowed most.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Band {
    pub(super) low: u64,
    pub(super) high: u64,
}

impl Band {
    /// For an export that fails when more than `limit` bytes are left to send; 0: no limit.
    pub(super) fn below(limit: u64) -> Band {
        let limit = if limit == 0 { 256 << 20 } else { limit };
        Band { low: limit / 32, high: (limit / 4).max(1) }
    }
}

/// See the module's documentation.
pub(super) struct Throttle {
    began: Instant,
    share: f64,
}

impl Throttle {
    pub(super) fn new(now: Instant) -> Throttle {
        Throttle { began: now, share: 0.0 }
    }

    /// Sets how much is left to send, and how long the target has waited for a pause.
    pub(super) fn update(&mut self, remaining: u64, band: Band, waited: Duration) {
        let span = band.high.saturating_sub(band.low).max(1) as f64;
        let behind = remaining.saturating_sub(band.low) as f64 / span;
        let impatient = waited.saturating_sub(PATIENCE).as_secs_f64() / ESCALATION.as_secs_f64();
        self.share = behind.max(impatient).clamp(0.0, 1.0) * SHARE_MAX;
    }

    /// The part of the time for which writes are held.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Whether writes are held now.
    pub(super) fn holds(&self, now: Instant) -> bool {
        let period = PERIOD.as_nanos();
        let phase = now.duration_since(self.began).as_nanos() % period;
        (phase as f64) < self.share * period as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(throttle: &Throttle, from: Instant) -> usize {
        (0..1000).filter(|step| throttle.holds(from + Duration::from_micros(step * 100))).count()
    }

    #[test]
    fn writers_are_slowed_as_the_export_falls_behind() {
        let now = Instant::now();
        let mut throttle = Throttle::new(now);
        let band = Band { low: 1000, high: 2000 };
        let mut share = |remaining, waited| {
            throttle.update(remaining, band, Duration::from_millis(waited));
            held(&throttle, now)
        };
        assert_eq!(share(0, 0), 0);
        assert_eq!(share(1000, 500), 0);
        assert!((470..=480).contains(&share(1500, 0)));
        assert!((945..=950).contains(&share(u64::MAX, u64::MAX / 2)));
        assert!((470..=480).contains(&share(0, 3000)));
    }

    #[test]
    fn limits_give_the_band() {
        assert_eq!(Band::below(0), Band { low: 8 << 20, high: 64 << 20 });
        assert_eq!(Band::below(3200), Band { low: 100, high: 800 });
        assert_eq!(Band::below(1), Band { low: 0, high: 1 });
    }
}
