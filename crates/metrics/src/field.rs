//! Fields of INFO, and the metrics of the same values.

use crate::exposition::Exposition;
use crate::metric::{Metric, Number};

/// The value of a field, which INFO shows as text and a metric as a number.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The field does not exist now: INFO leaves it out, and the metric has no sample.
    Absent,
    /// A count.
    Uint(u64),
    /// An integer.
    Int(i64),
    /// An integer in bytes, after which INFO shows a second field with a readable unit.
    Bytes(u64),
    /// Two decimals in INFO.
    Hundredths(f64),
    /// Two decimals and a percent sign in INFO.
    Percent(f64),
    /// Microseconds; seconds with six decimals in INFO, and seconds as a metric.
    Seconds(u64),
    /// Microseconds; an integer in INFO, and seconds as a metric.
    Microseconds(u64),
    /// `ok` or `err` in INFO, 1 or 0 as a metric.
    Status(bool),
    /// Text, which has no number.
    Text(String),
}

impl Value {
    /// The value of the metric; `None` if there is none.
    pub fn number(&self) -> Option<Number> {
        Some(match *self {
            Value::Absent | Value::Text(_) => return None,
            Value::Uint(number) | Value::Bytes(number) => Number::Uint(number),
            Value::Int(number) => Number::Int(number),
            Value::Hundredths(number) | Value::Percent(number) => Number::Float(number),
            Value::Seconds(us) | Value::Microseconds(us) => Number::Float(us as f64 / 1e6),
            Value::Status(ok) => Number::Uint(ok.into()),
        })
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Uint(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Value {
        Value::Uint(number as u64)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Uint(number.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Value {
        Value::Uint(number.into())
    }
}

/// `yes` is 1.
impl From<bool> for Value {
    fn from(number: bool) -> Value {
        Value::Uint(number.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Absent, Into::into)
    }
}

/// A field whose value is computed from `F`, the facts that its section has collected.
#[derive(Debug)]
pub struct Field<F> {
    /// Its name in INFO; `None` if it is a metric only.
    pub name: Option<&'static str>,
    /// Computes its value.
    pub value: fn(&F) -> Value,
    /// The metric of the same value.
    pub metric: Option<Metric>,
}

impl<F> Field<F> {
    /// A field of INFO that is no metric.
    pub const fn info(name: &'static str, value: fn(&F) -> Value) -> Self {
        Field { name: Some(name), value, metric: None }
    }

    /// A field of INFO and its metric.
    pub const fn of(name: &'static str, metric: Metric, value: fn(&F) -> Value) -> Self {
        Field { name: Some(name), value, metric: Some(metric) }
    }

    /// A metric that INFO does not show.
    pub const fn metric(metric: Metric, value: fn(&F) -> Value) -> Self {
        Field { name: None, value, metric: Some(metric) }
    }
}

/// Declares a table of [`Field`]s, a line each:
///
/// ```text
/// fields! {
///     /// Fields on keys.
///     static KEYS: Facts;
///     key_policy: info = |facts| facts.policy.name();
///     keys: gauge redis_keys "Number of keys." = |facts| facts.keys;
///     _: counter kvick_lookups_total "Lookups, which INFO does not show." = |facts| facts.lookups;
/// }
/// ```
#[macro_export]
macro_rules! fields {
    (
        $(#[$doc:meta])* $visibility:vis static $table:ident: $facts:ty;
        $($name:tt: $kind:ident $($metric:ident $help:literal)? = |$f:ident| $value:expr;)+
    ) => {
        $(#[$doc])*
        $visibility static $table: &[$crate::Field<$facts>] =
            &[$($crate::fields!(@ $name, $kind, $($metric, $help,)? |$f: &$facts| $crate::Value::from($value))),+];
    };
    (@ $name:ident, info, $compute:expr) => { $crate::Field::info(stringify!($name), $compute) };
    (@ _, $kind:ident, $metric:ident, $help:literal, $compute:expr) => {
        $crate::Field::metric($crate::Metric::$kind(stringify!($metric), $help), $compute)
    };
    (@ $name:ident, $kind:ident, $metric:ident, $help:literal, $compute:expr) => {
        $crate::Field::of(stringify!($name), $crate::Metric::$kind(stringify!($metric), $help), $compute)
    };
}

/// Writes the metrics of fields.
pub fn export<F>(fields: &'static [Field<F>], facts: &F, out: &mut Exposition) {
    for field in fields {
        if let Some(metric) = &field.metric
            && let Some(number) = (field.value)(facts).number()
        {
            out.family(metric).sample(&[], number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Facts {
        keys: u64,
        is_ok: bool,
    }

    fields! {
        static FIELDS: Facts;
        name: info = |_facts| "kvick";
        keys: gauge keys "Keys." = |facts| facts.keys;
        status: gauge status "Status." = |facts| Value::Status(facts.is_ok);
        gone: gauge gone "Nothing." = |_facts| Value::Absent;
        _: counter busy_seconds_total "Busy." = |_facts| Value::Microseconds(1_500_000);
    }

    #[test]
    fn the_table_has_the_names_of_info() {
        let names: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
        assert_eq!(names, [Some("name"), Some("keys"), Some("status"), Some("gone"), None]);
    }

    #[test]
    fn fields_with_numbers_are_exported() {
        let mut out = Exposition::default();
        export(FIELDS, &Facts { keys: 7, is_ok: false }, &mut out);
        let samples: Vec<&str> = out.text().lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["keys 7", "status 0", "busy_seconds_total 1.5"]);
    }
}
