//! Spans as data.

use std::time::{Duration, SystemTime};

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text. Bytes that are not UTF-8 are replaced by U+FFFD before.
    Text(String),
    /// A number.
    Integer(i64),
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Integer(number)
    }
}

/// A name with a value, by the semantic conventions of OpenTelemetry where those have the name.
pub type Attribute = (&'static str, Value);

/// An operation of the server that has ended. It has no parent: clients do not tell the server about their traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What was done, such as `HGETALL`.
    pub name: String,
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub duration: Duration,
    /// The text of the error with which it ended.
    pub error: Option<String>,
    /// More about it.
    pub attributes: Vec<Attribute>,
}

/// Attributes of the server itself, sent with each batch.
pub type Resource = Vec<Attribute>;
