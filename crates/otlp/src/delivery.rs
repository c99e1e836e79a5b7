//! What is sent when: spans wait in a bounded queue, a batch is repeated after failures that pass, with growing pauses,
//! and given up after some minutes. Without I/O and clock: the caller tells the time since the start.

use crate::span::Span;
use std::collections::VecDeque;
use std::time::Duration;

/// Spans that wait at most; more are dropped.
pub const WAITING_MAX: usize = 4096;
/// Spans of a batch, as the default of OpenTelemetry's SDKs.
const BATCH_MAX: usize = 512;
/// Pause after the first failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause, also if a collector asks for a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Since the first failure to send a batch: then it is given up.
const RETRY_FOR: Duration = Duration::from_secs(300);

/// What became of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The collector has it, except for a number of spans.
    Accepted {
        /// Spans that it did not accept.
        rejected: u64,
    },
    /// It may succeed later; after this time, if the collector has told one.
    Later(Option<Duration>),
    /// It never will.
    Refused,
}

/// The failures of the batch at the front.
#[derive(Clone, Copy, Debug)]
struct Failures {
    since: Duration,
    pause: Duration,
    retry_at: Duration,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Delivery {
    waiting: VecDeque<Span>,
    failures: Option<Failures>,
    /// Spans that a collector has accepted.
    pub exported: u64,
    /// Spans that it has rejected.
    pub rejected: u64,
    /// Spans given up: too many, or too old.
    pub dropped: u64,
}

impl Delivery {
    /// Adds spans.
    pub fn add(&mut self, spans: impl IntoIterator<Item = Span>) {
        for span in spans {
            if self.waiting.len() < WAITING_MAX {
                self.waiting.push_back(span);
            } else {
                self.dropped += 1;
            }
        }
    }

    /// The number of spans to send now, the first ones of [`Self::batch`]; 0 if there is nothing to do yet.
    pub fn due(&self, now: Duration) -> usize {
        match self.failures {
            Some(failures) if now < failures.retry_at => 0,
            _ => self.waiting.len().min(BATCH_MAX),
        }
    }

    /// The first `count` spans.
    pub fn batch(&mut self, count: usize) -> &[Span] {
        &self.waiting.make_contiguous()[..count]
    }

    /// Records what became of the first `count` spans.
    pub fn done(&mut self, count: usize, outcome: &Outcome, now: Duration) {
        let sent = count as u64;
        match outcome {
            Outcome::Accepted { rejected } => {
                let rejected = (*rejected).min(sent);
                self.rejected += rejected;
                self.exported += sent - rejected;
            }
            Outcome::Refused => self.rejected += sent,
            Outcome::Later(wanted) => {
                let failures = self.failures.unwrap_or(Failures { since: now, pause: PAUSE_MIN, retry_at: now });
                if now.saturating_sub(failures.since) < RETRY_FOR {
                    let pause = wanted.unwrap_or_default().clamp(failures.pause, PAUSE_MAX);
                    let doubled = (failures.pause * 2).min(PAUSE_MAX);
                    self.failures = Some(Failures { pause: doubled, retry_at: now + pause, ..failures });
                    return;
                }
                self.dropped += sent;
                // The collector is still away: the next batch waits as long as this one did.
                let retry_at = now + failures.pause;
                self.waiting.drain(..count);
                self.failures = Some(Failures { since: now, retry_at, ..failures });
                return;
            }
        }
        self.failures = None;
        self.waiting.drain(..count);
    }

    /// Gives up all spans that wait, because there is no collector any more.
    pub fn clear(&mut self) {
        self.dropped += self.waiting.len() as u64;
        self.waiting.clear();
        self.failures = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn spans(count: usize) -> Vec<Span> {
        let span = |number: usize| Span {
            name: number.to_string(),
            began: UNIX_EPOCH,
            duration: Duration::ZERO,
            error: None,
            attributes: Vec::new(),
        };
        (0..count).map(span).collect()
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn batches_are_sent_in_order() {
        let mut delivery = Delivery::default();
        delivery.add(spans(BATCH_MAX + 1));
        assert_eq!(delivery.due(at(0)), BATCH_MAX);
        assert_eq!(delivery.batch(BATCH_MAX)[0].name, "0");
        delivery.done(BATCH_MAX, &Outcome::Accepted { rejected: 2 }, at(0));
        assert_eq!((delivery.due(at(0)), delivery.batch(1)[0].name.as_str()), (1, "512"));
        delivery.done(1, &Outcome::Refused, at(0));
        assert_eq!((delivery.exported, delivery.rejected, delivery.dropped), (510, 3, 0));
        assert_eq!(delivery.due(at(0)), 0);
    }

    #[test]
    fn pauses_between_attempts_grow_and_end_with_success() {
        let mut delivery = Delivery::default();
        delivery.add(spans(1));
        let mut now = at(0);
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            delivery.done(1, &Outcome::Later(None), now);
            assert_eq!(
                (delivery.due(now + at(pause) - Duration::from_millis(1)), delivery.due(now + at(pause))),
                (0, 1)
            );
            now += at(pause);
        }
        delivery.done(1, &Outcome::Accepted { rejected: 0 }, now);
        delivery.add(spans(1));
        assert_eq!(delivery.due(now), 1);
    }

    #[test]
    fn collector_may_ask_for_longer_pauses_within_limits() {
        for (wanted, pause) in [(0, 1), (20, 20), (3600, 60)] {
            let mut delivery = Delivery::default();
            delivery.add(spans(1));
            delivery.done(1, &Outcome::Later(Some(at(wanted))), at(0));
            assert_eq!((delivery.due(at(pause - 1)), delivery.due(at(pause))), (0, 1), "{wanted}");
        }
    }

    #[test]
    fn spans_are_dropped_when_they_are_too_old_or_too_many() {
        let mut delivery = Delivery::default();
        delivery.add(spans(WAITING_MAX + 5));
        assert_eq!(delivery.dropped, 5);
        let mut now = at(0);
        while delivery.dropped == 5 {
            now += at(1);
            assert!(now < RETRY_FOR + PAUSE_MAX * 2, "the batch is given up");
            if delivery.due(now) > 0 {
                delivery.done(BATCH_MAX, &Outcome::Later(None), now);
            }
        }
        assert_eq!((delivery.dropped, delivery.due(now)), (5 + BATCH_MAX as u64, 0));
        assert_eq!(delivery.due(now + PAUSE_MAX), BATCH_MAX);
        delivery.clear();
        assert_eq!(delivery.dropped, WAITING_MAX as u64 + 5);
    }
}
