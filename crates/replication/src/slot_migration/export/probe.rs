//! How far behind the target is: the time until it returns a message.
//!
//! Buffers of the network hide what the target has not executed yet. A message that it returns when it comes to it does
//! not. Valkey does not return it; what is known is then only what is left to send.

use std::time::{Duration, Instant};

/// A target that takes longer to return a message lags.
const LAG_MAX: Duration = Duration::from_millis(4);

/// How long a measurement is valid.
const VALID_FOR: Duration = Duration::from_millis(5);

/// A target that has returned nothing for this long never does.
const ANSWER_MAX: Duration = Duration::from_millis(300);

/// The state of the measurements.
#[derive(Default)]
pub(super) struct Probe {
    /// When the first message was sent.
    first: Option<Instant>,
    /// When the message that has not returned was sent.
    sent: Option<Instant>,
    /// When a message returned last, and how long it took.
    last: Option<(Instant, Duration)>,
}

impl Probe {
    /// Whether a message is to be sent now. It then counts as sent.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.sent.is_none();
        if is_due {
            self.sent = Some(now);
            self.first.get_or_insert(now);
        }
        is_due
    }

    /// The message has returned.
    pub(super) fn returned(&mut self, now: Instant) {
        if let Some(sent) = self.sent.take() {
            self.last = Some((now, now.duration_since(sent)));
        }
    }

    /// Whether the target returns messages, as far as is known.
    fn answers(&self, now: Instant) -> bool {
        self.last.is_some() || self.first.is_none_or(|first| now.duration_since(first) < ANSWER_MAX)
    }

    /// Whether the target is known or supposed to have much to execute.
    pub(super) fn target_lags(&self, now: Instant) -> bool {
        self.answers(now) && !self.is_close(now)
    }

    /// Whether the target executes at once what it is sent.
    pub(super) fn is_close(&self, now: Instant) -> bool {
        match self.last {
            Some((at, took)) => took <= LAG_MAX && now.duration_since(at) <= VALID_FOR,
            None => !self.answers(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn target_that_returns_messages_at_once_is_close() {
        let now = Instant::now();
        let mut probe = Probe::default();
        assert!(probe.is_due(now) && !probe.is_due(now + MS));
        assert!(probe.target_lags(now + MS) && !probe.is_close(now + MS));
        probe.returned(now + 100 * MS);
        assert!(probe.target_lags(now + 100 * MS), "it took too long");
        assert!(probe.is_due(now + 101 * MS));
        probe.returned(now + 103 * MS);
        assert!(probe.is_close(now + 104 * MS) && !probe.target_lags(now + 104 * MS));
        assert!(probe.is_due(now + 105 * MS));
        assert!(probe.target_lags(now + 120 * MS), "that was long ago");
    }

    #[test]
    fn target_that_returns_nothing_is_not_measured() {
        let now = Instant::now();
        let mut probe = Probe::default();
        assert!(probe.is_due(now));
        assert!(probe.target_lags(now + 299 * MS));
        assert!(!probe.target_lags(now + 300 * MS) && probe.is_close(now + 300 * MS));
    }
}
