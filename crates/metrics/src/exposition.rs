//! The text format of Prometheus, version 0.0.4: samples grouped by metric.

use crate::metric::{Kind, Metric, Number};
use std::fmt::Write;

/// The media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of samples. All samples of a metric must be written through one [`Family`].
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins the samples of a metric. A metric without samples is left out.
    pub fn family<'a>(&'a mut self, metric: &'a Metric) -> Family<'a> {
        Family { metric, text: &mut self.text, is_begun: false }
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// The samples of a metric.
pub struct Family<'a> {
    metric: &'a Metric,
    text: &'a mut String,
    is_begun: bool,
}

impl Family<'_> {
    /// Writes a sample of a counter or gauge. `labels` are the values of the metric's labels, in their order.
    pub fn sample(&mut self, labels: &[&str], value: impl Into<Number>) {
        debug_assert!(matches!(self.metric.kind, Kind::Counter | Kind::Gauge), "{}", self.metric.name);
        self.line("", labels, None, value.into());
    }

    /// Writes a histogram: each bucket's upper bound with the number of values up to it, ascending; then the sum of the
    /// values and their number, which is the last bucket's, without a bound.
    pub fn histogram(&mut self, labels: &[&str], buckets: impl Iterator<Item = (f64, u64)>, sum: f64, count: u64) {
        debug_assert_eq!(self.metric.kind, Kind::Histogram, "{}", self.metric.name);
        for (bound, values) in buckets {
            self.line("_bucket", labels, Some(("le", Number::Float(bound))), values.into());
        }
        self.line("_bucket", labels, Some(("le", Number::Float(f64::INFINITY))), count.into());
        self.line("_sum", labels, None, sum.into());
        self.line("_count", labels, None, count.into());
    }

    /// Writes a summary: quantiles from 0 to 1 with their values, the sum of all values and their number.
    pub fn summary(&mut self, labels: &[&str], quantiles: impl Iterator<Item = (f64, f64)>, sum: f64, count: u64) {
        debug_assert_eq!(self.metric.kind, Kind::Summary, "{}", self.metric.name);
        for (quantile, value) in quantiles {
            self.line("", labels, Some(("quantile", Number::Float(quantile))), value.into());
        }
        self.line("_sum", labels, None, sum.into());
        self.line("_count", labels, None, count.into());
    }

    fn line(&mut self, suffix: &str, labels: &[&str], further: Option<(&str, Number)>, value: Number) {
        let Metric { name, kind, help, labels: names } = self.metric;
        debug_assert_eq!(names.len(), labels.len(), "{name}");
        if !std::mem::replace(&mut self.is_begun, true) {
            // Writing to a string does not fail.
            let _ = writeln!(self.text, "# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n"));
            let _ = writeln!(self.text, "# TYPE {name} {}", kind.name());
        }
        self.text.push_str(name);
        self.text.push_str(suffix);
        let mut separator = '{';
        for (name, value) in names.iter().zip(labels) {
            self.text.push(separator);
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(value, self.text);
            self.text.push('"');
            separator = ',';
        }
        if let Some((name, number)) = further {
            // As above.
            let _ = write!(self.text, "{separator}{name}=\"{number}\"");
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// Appends the value of a label, without characters that would end it.
fn escape(value: &str, text: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEYS: Metric = Metric::gauge("db_keys", "Keys \\ by\ndatabase.").labels(&["db", "name"]);
    const TIME: Metric = Metric::histogram("time_seconds", "Time.").labels(&["cmd"]);
    const QUANTILES: Metric = Metric::summary("latency", "Latency.");
    const NONE: Metric = Metric::counter("none_total", "Nothing.");

    #[test]
    fn samples_follow_their_metrics_head() {
        let mut page = Exposition::default();
        page.family(&NONE);
        let mut keys = page.family(&KEYS);
        keys.sample(&["db0", "a\"b\\c\nd"], 3u64);
        keys.sample(&["db1", ""], -0.5);
        page.family(&TIME).histogram(&["get"], [(0.001, 1), (0.5, 4)].into_iter(), 0.25, 5);
        page.family(&QUANTILES).summary(&[], [(0.5, 3.0)].into_iter(), 12.5, 4);
        let expected = r#"# HELP db_keys Keys \\ by\ndatabase.
# TYPE db_keys gauge
db_keys{db="db0",name="a\"b\\c\nd"} 3
db_keys{db="db1",name=""} -0.5
# HELP time_seconds Time.
# TYPE time_seconds histogram
time_seconds_bucket{cmd="get",le="0.001"} 1
time_seconds_bucket{cmd="get",le="0.5"} 4
time_seconds_bucket{cmd="get",le="+Inf"} 5
time_seconds_sum{cmd="get"} 0.25
time_seconds_count{cmd="get"} 5
# HELP latency Latency.
# TYPE latency summary
latency{quantile="0.5"} 3
latency_sum 12.5
latency_count 4
"#;
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn special_numbers_have_the_formats_names() {
        let text = |number| Number::Float(number).to_string();
        assert_eq!([f64::INFINITY, f64::NEG_INFINITY, f64::NAN].map(text), ["+Inf", "-Inf", "NaN"]);
        assert_eq!(Number::Uint(u64::MAX).to_string(), "18446744073709551615");
    }

    proptest! {
        #[test]
        fn a_label_cannot_end_its_line_or_quotes(value in "\\PC*|[\\\\\"\n]*") {
            let mut page = Exposition::default();
            page.family(&KEYS).sample(&["0", &value], 1u64);
            let line = page.text().lines().nth(2).expect("a sample").to_owned();
            prop_assert_eq!(page.text().lines().count(), 3);
            let quoted = line.strip_prefix("db_keys{db=\"0\",name=\"").and_then(|rest| rest.strip_suffix("\"} 1"));
            let mut unescaped = String::new();
            let mut characters = quoted.expect("the sample's frame").chars();
            while let Some(character) = characters.next() {
                unescaped.push(match character {
                    '\\' => match characters.next() {
                        Some('n') => '\n',
                        Some(other) => other,
                        None => panic!("an open escape"),
                    },
                    '"' => panic!("an open quote"),
                    other => other,
                });
            }
            prop_assert_eq!(unescaped, value);
        }
    }
}
