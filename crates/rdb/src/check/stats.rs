//! Statistics of a dump: number and size of values by kind.

use super::histogram::Histogram;
use crate::value::ValueRef;
use kvick_resp::format::format_double;
use kvick_store::Collection;
use kvick_store::collections::list::Side;
use kvick_store::collections::stream::Id;
use std::io::{self, Write};

/// The format of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Format {
    /// Aligned columns.
    #[default]
    Table,
    /// One number per line.
    Info,
    /// Comma-separated.
    Csv,
}

impl Format {
    /// The format with this name on the command line.
    pub(crate) fn from_name(name: &str) -> Option<Format> {
        Some(match name {
            "table" => Format::Table,
            "info" => Format::Info,
            "csv" => Format::Csv,
            _ => return None,
        })
    }
}

/// The kinds of values, in the order of columns.
const KINDS: [&str; 7] = ["string", "list", "set", "zset", "hash", "module", "stream"];
const MODULE: usize = 5;

/// Maximum number of elements of a value, and maximum size of an element in bytes, that percentiles cover.
const ELEMENTS_MAX: u64 = 200 * 1024;
const ELEMENT_LEN_MAX: u64 = 1024 * 1024;

/// The values of one kind in one database.
#[derive(Debug)]
struct OfKind {
    keys: u64,
    volatile: u64,
    expired: u64,
    key_bytes: u64,
    elements: u64,
    elements_max: u64,
    bytes: u64,
    bytes_max: u64,
    by_elements: Histogram,
    by_bytes: Histogram,
}

impl Default for OfKind {
    fn default() -> Self {
        OfKind {
            keys: 0,
            volatile: 0,
            expired: 0,
            key_bytes: 0,
            elements: 0,
            elements_max: 0,
            bytes: 0,
            bytes_max: 0,
            by_elements: Histogram::new(ELEMENTS_MAX),
            by_bytes: Histogram::new(ELEMENT_LEN_MAX),
        }
    }
}

/// A statistic of each kind: its name, and a function that formats it.
type Row = (&'static str, fn(&OfKind) -> String);

/// The rows after the first, which contains the names of kinds.
const ROWS: [Row; 17] = [
    ("keys.total", |of| of.keys.to_string()),
    ("expire_keys.total", |of| of.volatile.to_string()),
    ("already_expired.total", |of| of.expired.to_string()),
    ("keys.size", |of| of.key_bytes.to_string()),
    ("keys.value_size", |of| of.bytes.to_string()),
    ("elements.total", |of| of.elements.to_string()),
    ("elements.size", |of| of.bytes.to_string()),
    ("elements.num.max", |of| of.elements_max.to_string()),
    ("elements.num.avg", |of| average(of.elements, of.keys)),
    ("elements.num.p99", |of| percentile(&of.by_elements, 99.0)),
    ("elements.num.p90", |of| percentile(&of.by_elements, 90.0)),
    ("elements.num.p50", |of| percentile(&of.by_elements, 50.0)),
    ("elements.size.max", |of| of.bytes_max.to_string()),
    ("elements.size.avg", |of| average(of.bytes, of.elements)),
    ("elements.size.p99", |of| percentile(&of.by_bytes, 99.0)),
    ("elements.size.p90", |of| percentile(&of.by_bytes, 90.0)),
    ("elements.size.p50", |of| percentile(&of.by_bytes, 50.0)),
];

fn average(sum: u64, count: u64) -> String {
    format!("{:.2}", if count == 0 { 0.0 } else { sum as f64 / count as f64 })
}

fn percentile(histogram: &Histogram, percent: f64) -> String {
    format!("{:.2}", histogram.percentile(percent) as f64)
}

impl OfKind {
    fn count_key(&mut self, key: &[u8], expiry_ms: Option<i64>, now_ms: i64) {
        self.keys += 1;
        self.key_bytes += key.len() as u64;
        self.volatile += u64::from(expiry_ms.is_some());
        self.expired += u64::from(expiry_ms.is_some_and(|at| at < now_ms));
    }

    fn count_elements(&mut self, count: usize) {
        let count = count as u64;
        self.elements += count;
        self.elements_max = self.elements_max.max(count);
        self.by_elements.record(count);
    }

    fn count_element(&mut self, len: usize) {
        let len = len as u64;
        self.bytes += len;
        self.bytes_max = self.bytes_max.max(len);
        self.by_bytes.record(len);
    }
}

/// The values of all databases.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    databases: Vec<[OfKind; KINDS.len()]>,
}

/// Databases from this number on are counted together, since the number comes from the file.
const DATABASES_MAX: usize = 1 << 16;

impl Stats {
    /// Creates the statistics of database `number` if necessary.
    pub fn note_database(&mut self, number: u64) {
        let index = usize::try_from(number).unwrap_or(usize::MAX).min(DATABASES_MAX);
        while self.databases.len() <= index {
            self.databases.push(Default::default());
        }
    }

    /// Counts a key; `value` is `None` if it belongs to a module.
    pub fn count(&mut self, number: u64, key: &[u8], value: Option<ValueRef<'_>>, expiry_ms: Option<i64>, now_ms: i64) {
        self.note_database(number);
        let index = usize::try_from(number).unwrap_or(usize::MAX).min(DATABASES_MAX);
        let Some(kinds) = self.databases.get_mut(index) else { return };
        let Some(value) = value else {
            kinds[MODULE].count_key(key, expiry_ms, now_ms);
            kinds[MODULE].count_elements(1);
            return;
        };
        let of = &mut kinds[column(value)];
        of.count_key(key, expiry_ms, now_ms);
        count_value(of, value);
    }

    /// Prints the statistics.
    pub fn print(&self, out: &mut dyn Write, format: Format) -> io::Result<()> {
        for (number, kinds) in self.databases.iter().enumerate() {
            match format {
                Format::Info => {
                    for (name, show) in ROWS {
                        for (kind, of) in KINDS.iter().zip(kinds) {
                            writeln!(out, "[info] db.{number}.type.{kind}.{name}:{}", show(of))?;
                        }
                    }
                }
                Format::Table => {
                    print_row(out, number, "type.name", KINDS.map(str::to_owned), true)?;
                    for (name, show) in ROWS {
                        print_row(out, number, name, kinds.each_ref().map(show), true)?;
                    }
                }
                Format::Csv => {
                    print_row(out, number, "type.name", KINDS.map(str::to_owned), false)?;
                    for (name, show) in ROWS {
                        print_row(out, number, name, kinds.each_ref().map(show), false)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn print_row(
    out: &mut dyn Write,
    number: usize,
    name: &str,
    cells: [String; KINDS.len()],
    aligned: bool,
) -> io::Result<()> {
    let title = format!("db.{number}.{name}");
    if aligned {
        let cells = cells.map(|cell| format!("\t{cell:<5}"));
        writeln!(out, "{title:<30}{}", cells.concat())
    } else {
        writeln!(out, "{title},{}", cells.join(","))
    }
}

fn column(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::Str(_) => 0,
        ValueRef::List(_) => 1,
        ValueRef::Set(_) => 2,
        ValueRef::SortedSet(_) => 3,
        ValueRef::Hash(_) => 4,
        ValueRef::Stream(_) => 6,
    }
}

/// Counts the elements of a value and their bytes.
fn count_value(of: &mut OfKind, value: ValueRef<'_>) {
    match value {
        ValueRef::Str(string) => {
            of.count_elements(1);
            of.count_element(string.len());
        }
        ValueRef::List(list) => {
            of.count_elements(list.len());
            list.visit(0..list.len(), Side::Head, |element| of.count_element(element.len()));
        }
        ValueRef::Set(set) => {
            of.count_elements(set.len());
            set.iter().for_each(|member| of.count_element(member.len()));
        }
        ValueRef::SortedSet(sorted_set) => {
            of.count_elements(sorted_set.len());
            let mut text = Vec::new();
            for (member, score) in sorted_set.iter() {
                text.clear();
                format_double(score, &mut text);
                of.count_element(member.len() + text.len());
            }
        }
        ValueRef::Hash(hash) => {
            of.count_elements(hash.len());
            hash.iter().for_each(|field| of.count_element(field.name.len() + field.value.len()));
        }
        ValueRef::Stream(stream) => {
            of.count_elements(stream.len());
            for entry in stream.log().range(Id::MIN, Id::MAX) {
                entry.fields().for_each(|(name, value)| of.count_element(name.len() + value.len()));
            }
        }
    }
}
