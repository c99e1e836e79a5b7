//! Durations with a unit, as strings.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

/// A duration that is written with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

const UNITS: [(&str, u64); 6] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];

impl Span {
    /// So many milliseconds.
    pub const fn from_ms(ms: u64) -> Span {
        Span(Duration::from_millis(ms))
    }

    /// So many microseconds.
    pub const fn from_us(us: u64) -> Span {
        Span(Duration::from_micros(us))
    }

    /// In nanoseconds.
    pub fn ns(self) -> u64 {
        self.0.as_nanos() as u64
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let split = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor as f64);
        let number = number.trim().parse::<f64>().ok();
        match (number, factor) {
            (Some(number), Some(factor)) if (0.0..=1e17).contains(&(number * factor)) => {
                Ok(Span(Duration::from_nanos((number * factor).round() as u64)))
            }
            _ => Err(format!("\"{text}\" is not a duration: write a number and a unit, such as \"200ms\" or \"15m\"")),
        }
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ns = self.ns();
        let (unit, factor) =
            UNITS.into_iter().find(|(_, factor)| ns >= *factor && ns.is_multiple_of(*factor)).unwrap_or(("s", 1));
        write!(f, "{}{unit}", ns / factor)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
