//! Finds the highest rate that meets an objective: doubles the rate until it fails, then halves the distance between
//! the highest rate that passed and the lowest that failed.

use crate::config::Search;
use crate::result::RunResult;

/// Share of the planned requests that must be sent, and of the sent ones that must be answered.
const COMPLETE: f64 = 0.99;

/// The state of a search. It is pure: rates out, verdicts in.
#[derive(Clone, Debug)]
pub struct Bisection {
    next: Option<f64>,
    passed: Option<f64>,
    failed: Option<f64>,
    max: f64,
    precision: f64,
}

impl Bisection {
    /// Begins at the configured rate.
    pub fn new(search: &Search) -> Bisection {
        let (max, precision) = (search.max, search.precision);
        Bisection { next: Some(search.start), passed: None, failed: None, max, precision }
    }

    /// The rate to try; `None` at the end.
    pub fn next(&self) -> Option<f64> {
        self.next
    }

    /// The highest rate that passed.
    pub fn best(&self) -> Option<f64> {
        self.passed
    }

    /// Notes whether the rate passed.
    pub fn note(&mut self, passes: bool) {
        let Some(rate) = self.next else { return };
        *(if passes { &mut self.passed } else { &mut self.failed }) = Some(rate);
        self.next = match (self.passed, self.failed) {
            (Some(passed), None) if passed >= self.max => None,
            (Some(passed), None) => Some((passed * 2.0).min(self.max)),
            (None, Some(failed)) if failed < 2.0 => None,
            // The first rate was too high already.
            (None, Some(failed)) => Some(failed / 2.0),
            (Some(passed), Some(failed)) if failed - passed <= passed * self.precision => None,
            (Some(passed), Some(failed)) => Some((passed + failed) / 2.0),
            (None, None) => None,
        };
    }
}

/// Why a run does not meet the objective; `None` if it does.
pub fn objection(search: &Search, run: &RunResult) -> Option<String> {
    let latency_ms = run.response.histogram.percentile_ms(search.percentile);
    let limit_ms = search.limit.0.as_secs_f64() * 1e3;
    let counters = &run.counters;
    if counters.dropped > 0 {
        Some(format!("{} arrivals were dropped", counters.dropped))
    } else if (counters.sent as f64) < run.planned * COMPLETE {
        Some(format!("only {} of {:.0} requests were sent", counters.sent, run.planned))
    } else if (counters.answered as f64) < counters.sent as f64 * COMPLETE {
        Some(format!("only {} of {} requests were answered", counters.answered, counters.sent))
    } else if counters.errors > 0 {
        Some(format!("{} replies were errors", counters.errors))
    } else if latency_ms > limit_ms {
        Some(format!("p{} is {latency_ms:.3} ms", search.percentile))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_limit_is_found(limit in 2.0..1e6, start in 1.0..1e6, precision in 0.01..0.2) {
            let search = Search { start, precision, ..Search::default() };
            let mut bisection = Bisection::new(&search);
            let mut steps = 0;
            while let Some(rate) = bisection.next() {
                bisection.note(rate <= limit);
                steps += 1;
                prop_assert!(steps < 100);
            }
            let best = bisection.best().expect("a rate");
            prop_assert!(best <= limit && limit <= best * (1.0 + precision) * 1.001, "{best} {limit}");
        }
    }

    #[test]
    fn a_search_ends_at_its_limits() {
        let mut bisection = Bisection::new(&Search { start: 100.0, max: 350.0, ..Search::default() });
        let mut tried = Vec::new();
        while let Some(rate) = bisection.next() {
            tried.push(rate);
            bisection.note(true);
        }
        assert_eq!(tried, [100.0, 200.0, 350.0]);
        let mut bisection = Bisection::new(&Search { start: 4.0, ..Search::default() });
        while bisection.next().is_some() {
            bisection.note(false);
        }
        assert_eq!(bisection.best(), None);
    }
}
