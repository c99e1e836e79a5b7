//! A high dynamic range histogram: counts of values with a precision of three digits.

use std::collections::BTreeMap;

/// Values below this have their own class; above, each doubling has half as many classes.
const EXACT: u64 = 2048;

/// A histogram. See the module documentation.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Values from this one on are not counted.
    limit: u64,
    /// Counts by the largest value of each class.
    counts: BTreeMap<u64, u64>,
    total: u64,
}

impl Histogram {
    /// A histogram for values up to at least `max`.
    pub fn new(max: u64) -> Self {
        let mut limit = EXACT;
        while limit <= max {
            limit *= 2;
        }
        Histogram { limit, counts: BTreeMap::new(), total: 0 }
    }

    /// Counts a value, unless it is out of range.
    pub fn record(&mut self, value: u64) {
        if value < self.limit {
            *self.counts.entry(largest_equivalent(value)).or_default() += 1;
            self.total += 1;
        }
    }

    /// The value that this percentage of the values does not exceed; 0 if there are none.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = ((percent / 100.0 * self.total as f64 + 0.5) as u64).max(1);
        let mut seen = 0;
        let mut at_percentile = self.counts.iter().filter(|(_, count)| {
            seen += *count;
            seen >= wanted
        });
        at_percentile.next().map_or(0, |(value, _)| *value)
    }
}

/// The largest value of the same class.
fn largest_equivalent(value: u64) -> u64 {
    let width_bits = (value / EXACT).checked_ilog2().map_or(0, |bits| bits + 1);
    value | ((1 << width_bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_are_exact_and_large_ones_to_three_digits() {
        assert_eq!([0, 5, 2047].map(largest_equivalent), [0, 5, 2047]);
        assert_eq!([2048, 2049, 4095, 4096, 4099].map(largest_equivalent), [2049, 2049, 4095, 4099, 4099]);
    }

    #[test]
    fn percentiles_match_the_values() {
        let mut histogram = Histogram::new(1000);
        assert_eq!(histogram.percentile(99.0), 0);
        (1..=100).for_each(|value| histogram.record(value));
        histogram.record(1 << 40);
        assert_eq!([50.0, 90.0, 99.0].map(|percent| histogram.percentile(percent)), [50, 90, 99]);
    }
}
