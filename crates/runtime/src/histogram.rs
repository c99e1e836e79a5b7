//! Histograms of command durations. Recording a value costs one increment.
//!
//! Values are ticks of [`crate::clock`] and are converted when they are read. Each power of two has a row of 64 buckets
//! of equal width, so values are accurate to 1.6 percent. A row is allocated when its first value is recorded: a
//! command whose durations stay within a few powers of two takes some kilobytes, and a command that never ran takes
//! nothing. A histogram has one writer, its worker; readers add up the histograms of all workers.

use crate::clock;
use kvick_store::Counter;
use std::sync::OnceLock;

/// Buckets per row, as a power of two.
const ROW_BITS: u32 = 6;
const ROW: usize = 1 << ROW_BITS;
/// Number of rows. Durations of many hours fall into the last bucket.
const ROWS: usize = 42;
const MAX: u64 = (1 << (ROWS as u32 - 1 + ROW_BITS)) - 1;

type Row = OnceLock<Box<[Counter; ROW]>>;

/// A histogram of one command and worker.
#[derive(Default)]
pub struct Histogram {
    rows: OnceLock<Box<[Row; ROWS]>>,
}

impl Histogram {
    /// Records a value. Only the owner may call this.
    #[inline]
    pub fn record(&self, ticks: u64) {
        let ticks = ticks.min(MAX);
        // Row 0 holds the values below 64. Row r holds the values of r + 6 bits, indexed by the 6 bits after the
        // leading one.
        let row = (u64::BITS - (ticks | (ROW as u64 - 1)).leading_zeros() - ROW_BITS) as usize;
        let column = (ticks >> row.saturating_sub(1)) as usize & (ROW - 1);
        let rows = self.rows.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
        rows[row].get_or_init(|| Box::new(std::array::from_fn(|_| Counter::default())))[column].add(1);
    }

    /// Deletes all values. The owner must not record during the call.
    pub fn reset(&self) {
        let rows = self.rows.get().into_iter().flat_map(|rows| rows.iter());
        rows.filter_map(OnceLock::get).flat_map(|row| row.iter()).for_each(Counter::reset);
    }

    /// Calls `visit` with the greatest value and the count of each non-empty bucket, in ascending order.
    fn for_each(&self, mut visit: impl FnMut(u64, u64)) {
        let Some(rows) = self.rows.get() else { return };
        for (number, row) in rows.iter().enumerate() {
            for (column, counter) in row.get().into_iter().flat_map(|row| row.iter().enumerate()) {
                let count = counter.get();
                if count > 0 {
                    visit(greatest(number, column), count);
                }
            }
        }
    }
}

/// The greatest value of a bucket.
fn greatest(row: usize, column: usize) -> u64 {
    match row {
        0 => column as u64,
        _ => ((ROW as u64 + column as u64 + 1) << (row - 1)) - 1,
    }
}

/// The sum of several histograms.
#[derive(Debug, Default)]
pub struct Distribution {
    /// The greatest value of each bucket in nanoseconds, with the number of values up to it; ascending.
    cumulative: Vec<(u64, u64)>,
}

impl Distribution {
    /// Adds up `histograms`.
    pub fn of<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Self {
        let mut counts = std::collections::BTreeMap::<u64, u64>::new();
        histograms.for_each(|one| one.for_each(|ticks, count| *counts.entry(ticks).or_default() += count));
        let mut sum = 0;
        let add = |(ticks, count)| {
            sum += count;
            (clock::ticks_to_ns(ticks).max(1), sum)
        };
        Distribution { cumulative: counts.into_iter().map(add).collect() }
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.cumulative.last().map_or(0, |(_, count)| *count)
    }

    /// The value in nanoseconds that `percentile` percent of the values do not exceed; 0 if there are none.
    pub fn percentile_ns(&self, percentile: f64) -> u64 {
        let rank = ((percentile / 100.0 * self.count() as f64 + 0.5) as u64).clamp(1, self.count().max(1));
        let found = self.cumulative.iter().find(|(_, count)| *count >= rank);
        found.map_or(0, |(ns, _)| *ns)
    }

    /// The number of values that are at most `limit` nanoseconds, to within the precision of the histogram.
    pub fn count_up_to_ns(&self, limit: u64) -> u64 {
        let index = self.cumulative.partition_point(|(ns, _)| *ns <= limit);
        index.checked_sub(1).map_or(0, |last| self.cumulative[last].1)
    }

    /// The number of values below each power of two from 1024 ns, where that number increases: the limit in
    /// microseconds, and the count. The limits are those of a histogram with a precision of two digits, as Valkey
    /// reports.
    pub fn by_powers_of_two(&self) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut before = 0;
        for exponent in 10..u64::BITS - 1 {
            let limit = (1u64 << exponent) + (1 << (exponent - 7)) - 1;
            let count = self.count_up_to_ns(limit);
            if count > before {
                found.push((limit / 1000, count));
            }
            before = count;
            if count == self.count() {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn buckets(values: &[u64]) -> Vec<(u64, u64)> {
        let histogram = Histogram::default();
        values.iter().for_each(|value| histogram.record(*value));
        let mut found = Vec::new();
        histogram.for_each(|value, count| found.push((value, count)));
        found
    }

    proptest! {
        #[test]
        fn values_are_recorded_to_within_a_64th(value in 0..=MAX) {
            let found = buckets(&[value]);
            prop_assert_eq!(found.len(), 1);
            prop_assert!(found[0].0 >= value && found[0].0 - value <= value / 64, "{} for {value}", found[0].0);
        }

        #[test]
        fn buckets_keep_the_order_of_values(mut values in prop::collection::vec(0..=MAX, 1..50)) {
            let found = buckets(&values);
            values.sort_unstable();
            prop_assert!(found.is_sorted());
            prop_assert_eq!(found.iter().map(|(_, count)| *count).sum::<u64>(), values.len() as u64);
            prop_assert!(found.last().map(|(top, _)| *top) >= values.last().copied());
        }
    }

    #[test]
    fn hours_fall_into_the_last_bucket() {
        assert_eq!(buckets(&[u64::MAX, MAX]), [(MAX, 2)]);
        assert_eq!(buckets(&[0, 63, 64, 127, 128]), [(0, 1), (63, 1), (64, 1), (127, 1), (129, 1)]);
    }

    #[test]
    fn percentiles_and_powers_of_two_follow_the_counts() {
        let distribution = Distribution { cumulative: vec![(500, 50), (3_000, 98), (40_000, 100)] };
        assert_eq!(
            [0.0, 50.0, 51.0, 99.0, 100.0].map(|p| distribution.percentile_ns(p)),
            [500, 500, 3000, 40000, 40000]
        );
        assert_eq!(distribution.by_powers_of_two(), [(1, 50), (4, 98), (66, 100)]);
        assert_eq!([499, 500, 3_000, u64::MAX].map(|ns| distribution.count_up_to_ns(ns)), [0, 50, 98, 100]);
        assert_eq!(Distribution::default().percentile_ns(50.0), 0);
        assert!(Distribution::default().by_powers_of_two().is_empty());
    }

    #[test]
    fn a_reset_clears_all_values() {
        let histogram = Histogram::default();
        histogram.record(77);
        assert_eq!(Distribution::of([&histogram, &Histogram::default()].into_iter()).count(), 1);
        histogram.reset();
        assert_eq!(Distribution::of(std::iter::once(&histogram)).count(), 0);
    }
}
