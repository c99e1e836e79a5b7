//! What a run counts and measures.
//!
//! Each thread records into an [`Interval`] of its own, without locks, and hands it over when the interval ends.
//! Intervals of threads, of processes and of time are added up by [`Interval::add`].
//!
//! For each kind of command there are two histograms of latency: the *response time* from the moment at which the
//! request should have been sent, and the *service time* from the moment at which it was sent. A server that stops
//! delays requests that are due meanwhile; only the response time contains their wait.

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Resolution of histograms. Latencies below are counted as 0.
const LOWEST_NS: u64 = 1_000;
/// Longer latencies are counted as this.
const HIGHEST_NS: u64 = 1_000_000_000_000;
/// Significant digits.
const DIGITS: u8 = 3;
/// Kinds of errors that are told apart.
const ERRORS_MAX: usize = 50;

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS).expect("valid constant bounds"))
    }
}

impl Latencies {
    /// Records one.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds those of another histogram.
    pub fn add(&mut self, other: &Latencies) {
        // Both have the same bounds, unless the other was read from a file with larger values; these are then cut.
        if self.0.add(&other.0).is_err() {
            other.0.iter_recorded().for_each(|value| {
                self.0.saturating_record_n(value.value_iterated_to(), value.count_at_value());
            });
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value below which this percentage lies, in milliseconds.
    pub fn percentile_ms(&self, percentile: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_percentile(percentile) as f64 / 1e6 }
    }

    /// The histogram itself.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }

    /// The usual figures.
    pub fn summary(&self) -> Summary {
        let ms = |percentile| self.percentile_ms(percentile);
        Summary {
            count: self.count(),
            mean_ms: self.0.mean() / 1e6,
            p50_ms: ms(50.0),
            p90_ms: ms(90.0),
            p99_ms: ms(99.0),
            p999_ms: ms(99.9),
            p9999_ms: ms(99.99),
            max_ms: ms(100.0),
        }
    }

    /// In the compressed format V2 of HdrHistogram, as base64.
    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&self.0, &mut bytes).expect("a vector takes all bytes");
        base64(&bytes)
    }

    /// Reads that format.
    pub fn decode(text: &str) -> Option<Latencies> {
        let bytes = from_base64(text)?;
        let found: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).ok()?;
        let mut latencies = Latencies::default();
        latencies.add(&Latencies(found));
        Some(latencies)
    }
}

impl Serialize for Latencies {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.encode())
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Latencies, D::Error> {
        let text = String::deserialize(deserializer)?;
        Latencies::decode(&text).ok_or_else(|| serde::de::Error::custom("not a histogram"))
    }
}

/// The usual figures of a histogram, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Summary {
    pub count: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub p9999_ms: f64,
    pub max_ms: f64,
}

/// What one kind of command did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CommandStats {
    /// Its name.
    pub name: String,
    /// Replies that were null: the key or element did not exist.
    pub misses: u64,
    /// Replies that were errors.
    pub errors: u64,
    /// From the intended time of sending to the reply.
    pub response: Latencies,
    /// From the real time of sending to the reply.
    pub service: Latencies,
}

/// What happened to requests. Each scheduled request is sent, dropped or unsent at the end; each sent one is answered,
/// failed or unanswered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Arrivals that were due.
    pub scheduled: u64,
    /// Requests that were written to a connection, without repetitions.
    pub sent: u64,
    /// Arrivals that were due while the queue was full.
    pub dropped: u64,
    /// Arrivals that still waited at the end.
    pub unsent: u64,
    /// Requests with a reply, also if it is an error.
    pub answered: u64,
    /// Requests whose connection ended before the reply.
    pub failed: u64,
    /// Requests without a reply at the end.
    pub unanswered: u64,
    /// Replies that were errors.
    pub errors: u64,
    /// Connections closed because a reply took too long.
    pub timeouts: u64,
    /// Connections that ended and were opened again.
    pub reconnects: u64,
    /// Requests sent again because of MOVED or ASK.
    pub redirects: u64,
}

impl Counters {
    fn add(&mut self, other: &Counters) {
        self.scheduled += other.scheduled;
        self.sent += other.sent;
        self.dropped += other.dropped;
        self.unsent += other.unsent;
        self.answered += other.answered;
        self.failed += other.failed;
        self.unanswered += other.unanswered;
        self.errors += other.errors;
        self.timeouts += other.timeouts;
        self.reconnects += other.reconnects;
        self.redirects += other.redirects;
    }
}

/// What happened in a span of time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Interval {
    /// Its number.
    pub index: u64,
    /// What happened to requests.
    pub counters: Counters,
    /// From the intended to the real time of sending.
    pub send_delay: Latencies,
    /// The part of it that the generator causes: until it sent the request, or found no connection with room for it.
    pub own_delay: Latencies,
    /// By kind of command.
    pub commands: Vec<CommandStats>,
    /// Errors by their first word, with their number.
    pub error_texts: BTreeMap<String, u64>,
}

impl Interval {
    /// An empty one for these kinds of commands.
    pub fn new(index: u64, names: &[String]) -> Interval {
        let commands = names.iter().map(|name| CommandStats { name: name.clone(), ..CommandStats::default() });
        Interval { index, commands: commands.collect(), ..Interval::default() }
    }

    /// Adds another one of the same run.
    pub fn add(&mut self, other: &Interval) {
        self.counters.add(&other.counters);
        self.send_delay.add(&other.send_delay);
        self.own_delay.add(&other.own_delay);
        for (at, from) in other.commands.iter().enumerate() {
            if at == self.commands.len() {
                self.commands.push(CommandStats { name: from.name.clone(), ..CommandStats::default() });
            }
            let to = &mut self.commands[at];
            to.misses += from.misses;
            to.errors += from.errors;
            to.response.add(&from.response);
            to.service.add(&from.service);
        }
        other.error_texts.iter().for_each(|(text, count)| self.note_error(text, *count));
    }

    /// Counts an error by its text.
    pub fn note_error(&mut self, text: &str, count: u64) {
        if let Some(known) = self.error_texts.get_mut(text) {
            *known += count;
        } else {
            let text = if self.error_texts.len() < ERRORS_MAX { text } else { "others" };
            *self.error_texts.entry(text.to_owned()).or_default() += count;
        }
    }

    /// Response times of all commands.
    pub fn response(&self) -> Latencies {
        self.sum(|command| &command.response)
    }

    /// Service times of all commands.
    pub fn service(&self) -> Latencies {
        self.sum(|command| &command.service)
    }

    fn sum(&self, of: impl Fn(&CommandStats) -> &Latencies) -> Latencies {
        let mut sum = Latencies::default();
        self.commands.iter().for_each(|command| sum.add(of(command)));
        sum
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize] as char;
            text.push(if at <= group.len() { letter } else { '=' });
        }
    }
    text
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        bits = bits << 6 | ALPHABET.iter().position(|known| *known == letter)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn base64_is_reversible(bytes in proptest::collection::vec(any::<u8>(), 0..50)) {
            prop_assert_eq!(from_base64(&base64(&bytes)), Some(bytes));
        }

        #[test]
        fn histograms_survive_being_passed_to_a_process(
            values in proptest::collection::vec(0_u64..10_000_000_000, 0..50),
        ) {
            let mut latencies = Latencies::default();
            values.iter().for_each(|value| latencies.record(*value));
            let back = Latencies::decode(&latencies.encode()).expect("a histogram");
            prop_assert_eq!(back.summary(), latencies.summary());
        }

        #[test]
        fn any_text_is_a_histogram_or_none(text in "\\PC{0,80}") {
            let _ = Latencies::decode(&text);
        }
    }

    #[test]
    fn base64_is_the_standard_one() {
        assert_eq!(base64(b"Ma"), "TWE=");
        assert_eq!(base64(b"light work."), "bGlnaHQgd29yay4=");
    }

    #[test]
    fn percentiles_have_three_digits() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|at| latencies.record(at * 1_000_000));
        let summary = latencies.summary();
        assert!((summary.p50_ms - 500.0).abs() < 0.6 && (summary.p99_ms - 990.0).abs() < 1.1, "{summary:?}");
        latencies.record(u64::MAX);
        assert_eq!(latencies.count(), 1001);
    }

    #[test]
    fn intervals_add_up() {
        let names = ["get".to_owned()];
        let mut first = Interval::new(0, &names);
        first.counters.sent = 2;
        first.commands[0].response.record(5_000_000);
        (0..100).for_each(|at| first.note_error(&format!("E{at}"), 1));
        let mut sum = Interval::default();
        sum.add(&first);
        sum.add(&first);
        assert_eq!((sum.counters.sent, sum.response().count(), sum.error_texts["others"]), (4, 2, 100));
    }
}
