//! The definition of a metric.

use std::fmt;

/// The type of a metric, as Prometheus names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows until it is reset.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts of values below several bounds, with their sum and number.
    Histogram,
    /// Quantiles, with the sum and number of values.
    Summary,
}

impl Kind {
    /// The word in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        }
    }
}

/// A metric: a name that has samples, which differ in their labels.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its full name, with the prefix.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// What it says, in one sentence.
    pub help: &'static str,
    /// The names of the labels that every sample has.
    pub labels: &'static [&'static str],
}

impl Metric {
    /// A counter without labels.
    pub const fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Counter, help, labels: &[] }
    }

    /// A gauge without labels.
    pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Gauge, help, labels: &[] }
    }

    /// A histogram without labels.
    pub const fn histogram(name: &'static str, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Histogram, help, labels: &[] }
    }

    /// A summary without labels.
    pub const fn summary(name: &'static str, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Summary, help, labels: &[] }
    }

    /// The same with labels.
    pub const fn labels(self, labels: &'static [&'static str]) -> Metric {
        Metric { labels, ..self }
    }
}

/// The value of a sample. Integers keep all their digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A count.
    Uint(u64),
    /// An integer.
    Int(i64),
    /// Any other number.
    Float(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Number::Uint(number) => number.fmt(f),
            Number::Int(number) => number.fmt(f),
            Number::Float(f64::INFINITY) => f.write_str("+Inf"),
            Number::Float(f64::NEG_INFINITY) => f.write_str("-Inf"),
            Number::Float(number) => number.fmt(f),
        }
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Number {
        Number::Uint(number)
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Number {
        Number::Uint(number as u64)
    }
}

impl From<u32> for Number {
    fn from(number: u32) -> Number {
        Number::Uint(number.into())
    }
}

impl From<bool> for Number {
    fn from(number: bool) -> Number {
        Number::Uint(number.into())
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Number {
        Number::Int(number)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Number {
        Number::Float(number)
    }
}
