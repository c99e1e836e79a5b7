//! Time without system calls: the CPU's time stamp counter for durations, the kernel's vDSO for dates.
//!
//! Every command is timed, so reading the clock must cost only a few nanoseconds. If the counter runs at a constant
//! rate in all power states, it is read directly and calibrated once against the monotonic clock; otherwise the
//! monotonic clock is used.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point in time, for measuring durations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticks(u64);

struct Source {
    /// Ticks of the counter per microsecond; `None` if the monotonic clock is used, which counts nanoseconds.
    ticks_per_us: Option<f64>,
    /// Microseconds per tick: multiplication is faster than division.
    us_per_tick: f64,
    origin: Instant,
}

static SOURCE: OnceLock<Source> = OnceLock::new();

/// Selects and calibrates the source, which takes some milliseconds. Call it once at startup.
pub fn calibrate() {
    source();
}

fn source() -> &'static Source {
    SOURCE.get_or_init(|| {
        let origin = Instant::now();
        let ticks_per_us = counter_is_constant().then(|| measure(origin)).flatten();
        Source { ticks_per_us, us_per_tick: 1.0 / ticks_per_us.unwrap_or(1000.0), origin }
    })
}

fn measure(origin: Instant) -> Option<f64> {
    let first = counter();
    while origin.elapsed() < Duration::from_millis(10) {
        std::hint::spin_loop();
    }
    let ticks = counter().wrapping_sub(first) as f64;
    let rate = ticks / origin.elapsed().as_secs_f64() / 1e6;
    (rate > 100.0).then_some(rate)
}

fn counter_is_constant() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    ["constant_tsc", "nonstop_tsc"].iter().all(|flag| flags.split_whitespace().any(|f| f == *flag))
}

#[inline]
fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction only reads a register.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

impl Ticks {
    /// The current time.
    #[inline]
    pub fn now() -> Ticks {
        let source = source();
        if source.ticks_per_us.is_some() { Ticks(counter()) } else { Ticks(source.origin.elapsed().as_nanos() as u64) }
    }

    /// Ticks since an earlier point, in the unit of the source: see [`ticks_to_us`].
    #[inline]
    pub fn since(self, earlier: Ticks) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `duration` later.
    pub fn after(self, duration: Duration) -> Ticks {
        Ticks(self.0.saturating_add(us_to_ticks(duration.as_micros() as u64)))
    }

    /// Time left from `now` until this point.
    pub fn left(self, now: Ticks) -> Duration {
        // Rounded up, so that the point has passed after waiting that long.
        Duration::from_micros(match self.since(now) {
            0 => 0,
            ticks => ticks_to_us(ticks) + 1,
        })
    }

    /// Microseconds since an earlier point.
    #[inline]
    pub fn us_since(self, earlier: Ticks) -> u64 {
        ticks_to_us(self.since(earlier))
    }
}

/// Converts a sum of ticks to microseconds.
#[inline]
pub fn ticks_to_us(ticks: u64) -> u64 {
    (ticks as f64 * source().us_per_tick) as u64
}

/// Converts a sum of ticks to nanoseconds.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    (ticks as f64 * 1000.0 * source().us_per_tick) as u64
}

/// Converts microseconds to ticks.
pub fn us_to_ticks(us: u64) -> u64 {
    (us as f64 * source().ticks_per_us.unwrap_or(1000.0)) as u64
}

/// Describes the source, for INFO and the log.
pub fn description() -> String {
    match source().ticks_per_us {
        Some(rate) => format!("X86 TSC @ {rate:.0} ticks/us"),
        None => "POSIX clock_gettime".to_string(),
    }
}

/// Unix time in microseconds.
pub fn unix_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64
}

/// Unix time in milliseconds.
pub fn unix_ms() -> i64 {
    unix_us() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_agree_with_the_monotonic_clock() {
        calibrate();
        let (ticks, instant) = (Ticks::now(), Instant::now());
        while instant.elapsed() < Duration::from_millis(20) {}
        let (ours, theirs) = (Ticks::now().us_since(ticks) as f64, instant.elapsed().as_micros() as f64);
        assert!((ours / theirs - 1.0).abs() < 0.05, "{ours} us against {theirs} us");
    }
}
