//! Extrapolates a quantity to the time when new capacity will be ready.
//!
//! The trend is a straight line through the samples of the last seconds, by least squares, and also a line through
//! their logarithms, for loads that double. Only the part of a trend counts that exceeds twice its standard error, so
//! noise is not growth. Falling quantities are not extrapolated: capacity that is left over costs little.

use std::collections::VecDeque;
use std::time::Duration;

/// Samples that are kept.
const SAMPLES_MAX: usize = 64;
/// Samples that a trend needs.
const SAMPLES_MIN: usize = 4;
/// The forecast is at most this multiple of the last sample.
const FACTOR_MAX: f64 = 4.0;

/// The recent samples of a quantity that is never negative.
#[derive(Clone, Debug)]
pub struct Trend {
    window: Duration,
    samples: VecDeque<(Duration, f64)>,
}

impl Trend {
    /// A trend of the samples of this time.
    pub fn new(window: Duration) -> Trend {
        Trend { window, samples: VecDeque::new() }
    }

    /// Adds a sample. Samples that are too old, and those in excess, are dropped.
    pub fn add(&mut self, at: Duration, value: f64) {
        // A clock that stands still would give a vertical line.
        if self.samples.back().is_some_and(|(last, _)| at <= *last) {
            return;
        }
        self.samples.push_back((at, value.max(0.0)));
        while self.samples.len() > SAMPLES_MAX
            || self.samples.front().is_some_and(|(first, _)| at.saturating_sub(*first) > self.window)
        {
            self.samples.pop_front();
        }
    }

    /// Forgets the samples, because what was measured has changed.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// The value to expect after this time, at least the mean of the last two samples.
    pub fn forecast(&self, ahead: Duration) -> f64 {
        let last = self.samples.iter().rev().take(2).map(|(_, value)| *value).collect::<Vec<_>>();
        if last.is_empty() {
            return 0.0;
        }
        let now = last.iter().sum::<f64>() / last.len() as f64;
        if self.samples.len() < SAMPLES_MIN {
            return now;
        }
        let ahead = ahead.as_secs_f64();
        let linear = now + self.slope(|value| value) * ahead;
        let exponential = now * (self.slope(|value| value.max(1e-9).ln()) * ahead).min(FACTOR_MAX.ln()).exp();
        // Whether a quantity grows by addition or by multiplication is known only later.
        linear.max(exponential).clamp(now, now.max(1e-9) * FACTOR_MAX)
    }

    /// Least slope per second of these values that is consistent with them; 0 if they do not grow.
    fn slope(&self, of: fn(f64) -> f64) -> f64 {
        let origin = self.samples[0].0;
        let points = || self.samples.iter().map(|(at, value)| ((*at - origin).as_secs_f64(), of(*value)));
        let count = self.samples.len() as f64;
        let (sum_x, sum_y) = points().fold((0.0, 0.0), |(xs, ys), (x, y)| (xs + x, ys + y));
        let (mean_x, mean_y) = (sum_x / count, sum_y / count);
        let spread: f64 = points().map(|(x, _)| (x - mean_x).powi(2)).sum();
        if spread <= 0.0 {
            return 0.0;
        }
        let slope = points().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / spread;
        let errors: f64 = points().map(|(x, y)| (y - mean_y - slope * (x - mean_x)).powi(2)).sum();
        let standard_error = (errors / (count - 2.0) / spread).sqrt();
        (slope - 2.0 * standard_error).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend_of(values: impl IntoIterator<Item = f64>) -> Trend {
        let mut trend = Trend::new(Duration::from_secs(20));
        (1..).map(Duration::from_secs).zip(values).for_each(|(at, value)| trend.add(at, value));
        trend
    }

    #[test]
    fn a_line_is_continued() {
        let forecast = trend_of((0..20).map(f64::from)).forecast(Duration::from_secs(5));
        assert!((23.0..=30.0).contains(&forecast), "{forecast}");
    }

    #[test]
    fn a_doubling_is_continued() {
        // A doubling every 10 s.
        let forecast =
            trend_of((0..20).map(|second| 2_f64.powf(f64::from(second) / 10.0))).forecast(Duration::from_secs(10));
        let last = 2_f64.powf(1.9);
        assert!((1.8 * last..2.1 * last).contains(&forecast), "{forecast} after {last}");
    }

    #[test]
    fn noise_and_decline_are_not_continued() {
        let noise = trend_of((0..20).map(|second| 100.0 + f64::from(second * 7919 % 13)));
        assert!(noise.forecast(Duration::from_secs(10)) < 120.0);
        let decline = trend_of((0..20).map(|second| 100.0 - f64::from(second)));
        assert_eq!(decline.forecast(Duration::from_secs(10)), 81.5);
    }

    #[test]
    fn a_trend_without_samples_is_zero() {
        assert_eq!(trend_of([]).forecast(Duration::from_secs(1)), 0.0);
        assert_eq!(trend_of([3.0]).forecast(Duration::from_secs(1)), 3.0);
    }
}
