//! The last events of a run, for the report of a violation.

use kvick_cluster::state::Level;
use std::collections::VecDeque;

/// Lines that are kept.
const LINES: usize = 400;

/// Lines about what happened, the last ones or all.
pub(crate) struct Trace {
    /// Whether lines are kept at all.
    pub(crate) is_on: bool,
    /// Whether they are printed at once.
    prints: bool,
    /// The log level of the nodes.
    pub(crate) level: Level,
    lines: VecDeque<String>,
}

impl Trace {
    /// `prints`: all lines to the standard error stream.
    pub(crate) fn new(is_on: bool, prints: bool) -> Trace {
        // Log lines that nobody reads cost time. They have no influence on the run.
        let level = if prints {
            Level::Debug
        } else if is_on {
            Level::Verbose
        } else {
            Level::Warning
        };
        Trace { is_on: is_on || prints, prints, level, lines: VecDeque::new() }
    }

    /// Keeps a line.
    pub(crate) fn note(&mut self, now_ms: u64, line: impl FnOnce() -> String) {
        if !self.is_on {
            return;
        }
        let line = format!("{:>9.3} {}", now_ms as f64 / 1000.0, line());
        if self.prints {
            eprintln!("{line}");
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Prints a line that is too common to be kept.
    pub(crate) fn detail(&mut self, now_ms: u64, line: impl FnOnce() -> String) {
        if self.prints {
            eprintln!("{:>9.3} {}", now_ms as f64 / 1000.0, line());
        }
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
