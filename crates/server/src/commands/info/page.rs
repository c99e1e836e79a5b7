//! The text of INFO's reply.

use kvick_metrics::{Field, Value};
use std::fmt::{Arguments, Display, Write};

/// See the module's documentation.
#[derive(Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Starts a section.
    pub fn section(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text += "\r\n";
        }
        self.line(format_args!("# {title}"));
    }

    /// Adds a field.
    pub fn field(&mut self, name: impl Display, value: impl Display) {
        self.line(format_args!("{name}:{value}"));
    }

    /// Adds the fields of a table.
    pub fn write<F>(&mut self, fields: &[Field<F>], facts: &F) {
        for field in fields {
            if let Some(name) = field.name {
                self.value(name, &(field.value)(facts));
            }
        }
    }

    fn value(&mut self, name: &str, value: &Value) {
        match value {
            Value::Absent => {}
            Value::Uint(number) | Value::Microseconds(number) => self.field(name, number),
            Value::Int(number) => self.field(name, number),
            Value::Bytes(bytes) => {
                self.field(name, bytes);
                self.field(format_args!("{name}_human"), human(*bytes));
            }
            Value::Hundredths(number) => self.field(name, format_args!("{number:.2}")),
            Value::Percent(number) => self.field(name, format_args!("{number:.2}%")),
            Value::Seconds(us) => self.field(name, seconds(*us)),
            Value::Status(ok) => self.field(name, if *ok { "ok" } else { "err" }),
            Value::Text(text) => self.field(name, text),
        }
    }

    fn line(&mut self, line: Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(line);
        self.text += "\r\n";
    }

    /// Adds lines.
    pub fn append(&mut self, lines: &str) {
        self.text += lines;
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A number of bytes with two decimals and a unit.
pub fn human(bytes: u64) -> String {
    let units = ["K", "M", "G", "T", "P"];
    let exponent = (bytes.checked_ilog2().unwrap_or(0) / 10) as usize;
    match exponent {
        0 => format!("{bytes}B"),
        1..=5 => format!("{:.2}{}", bytes as f64 / (1u64 << (10 * exponent)) as f64, units[exponent - 1]),
        _ => format!("{bytes}B"),
    }
}

/// Microseconds as seconds with six decimals.
pub fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// A name without characters that would end a field or a line.
pub fn sanitized(name: &[u8]) -> String {
    let plain = |c: char| if matches!(c, '#' | ':' | '\n' | '\r') { '_' } else { c };
    String::from_utf8_lossy(name).chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_separated_by_a_blank_line() {
        let mut page = Page::default();
        page.section("One");
        page.field("a", 1);
        page.section("Two");
        page.field("b", 2);
        assert_eq!(page.text(), "# One\r\na:1\r\n\r\n# Two\r\nb:2\r\n");
    }

    kvick_metrics::fields! {
        static FIELDS: u64;
        text: info = |_number| "a text";
        absent: info = |_number| Value::Absent;
        number: info = |number| *number;
        negative: info = |_number| -1i64;
        bytes: info = |number| Value::Bytes(*number);
        ratio: info = |_number| Value::Hundredths(1.005);
        percent: info = |_number| Value::Percent(99.0);
        time: info = |number| Value::Seconds(*number);
        pause: info = |number| Value::Microseconds(*number);
        status: info = |_number| Value::Status(false);
        _: gauge hidden "Not in INFO." = |number| *number;
    }

    #[test]
    fn values_have_the_formats_of_info() {
        let mut page = Page::default();
        page.write(FIELDS, &2048);
        let expected = "text:a text\r\nnumber:2048\r\nnegative:-1\r\nbytes:2048\r\nbytes_human:2.00K\r\n\
                        ratio:1.00\r\npercent:99.00%\r\ntime:0.002048\r\npause:2048\r\nstatus:err\r\n";
        assert_eq!(page.text(), expected);
    }

    #[test]
    fn human_readable_sizes_have_units() {
        let known = [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_572_864, "1.50M"), (25_276_514_304, "23.54G")];
        known.into_iter().for_each(|(bytes, text)| assert_eq!(human(bytes), text));
        assert_eq!(human(1 << 60), "1152921504606846976B");
        assert_eq!(human((1 << 60) - 1), "1024.00P");
    }

    #[test]
    fn names_cannot_break_a_line() {
        assert_eq!(sanitized(b"a:b\r\n#c"), "a_b___c");
        assert_eq!(seconds(1_000_042), "1.000042");
    }
}
