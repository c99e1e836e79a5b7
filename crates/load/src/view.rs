//! What is shown during a run: one line per interval, or on a terminal a view that is drawn anew each time.
//!
//! The view uses the few escape sequences that every terminal knows, so it needs no library.

use crate::metrics::{Interval, Summary};
use crate::run::Observer;
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};

/// Intervals in the history.
const HISTORY: usize = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Shows intervals on standard error, so that standard output has only the report.
pub struct View {
    label: String,
    seconds: f64,
    is_terminal: bool,
    rates: VecDeque<f64>,
    latencies_ms: VecDeque<f64>,
}

impl View {
    /// For runs with intervals of this length.
    pub fn new(label: &str, seconds: f64) -> View {
        let is_terminal = std::io::stderr().is_terminal();
        View { label: label.to_owned(), seconds, is_terminal, rates: VecDeque::new(), latencies_ms: VecDeque::new() }
    }

    fn screen(&self, interval: &Interval) -> String {
        let counters = &interval.counters;
        let mut lines = vec![
            format!("kvick-load: {}, second {}", self.label, ((interval.index + 1) as f64 * self.seconds) as u64),
            String::new(),
            format!("{:>12.0} replies/s   {}", counters.answered as f64 / self.seconds, bars(&self.rates)),
            format!("{:>12.3} ms p99      {}", self.latencies_ms.back().unwrap_or(&0.0), bars(&self.latencies_ms)),
            String::new(),
            format!(
                "scheduled {}  sent {}  dropped {}  failed {}  errors {}  redirections {}",
                counters.scheduled,
                counters.sent,
                counters.dropped,
                counters.failed,
                counters.errors,
                counters.redirects
            ),
            String::new(),
            format!("{:<16} {:>10} {:>9} {:>9} {:>9} {:>9}", "response, ms", "count", "p50", "p99", "p99.9", "max"),
        ];
        let row = |name: &str, summary: &Summary| {
            let Summary { count, p50_ms, p99_ms, p999_ms, max_ms, .. } = summary;
            format!("{name:<16} {count:>10} {p50_ms:>9.3} {p99_ms:>9.3} {p999_ms:>9.3} {max_ms:>9.3}")
        };
        lines.push(row("all", &interval.response().summary()));
        lines.push(row("all, service", &interval.service().summary()));
        lines.extend(interval.commands.iter().take(12).map(|command| row(&command.name, &command.response.summary())));
        // Clears each line behind its text, and everything below.
        format!("\x1b[H{}\x1b[K\n\x1b[J", lines.join("\x1b[K\n"))
    }
}

/// One line for an interval.
pub fn line(interval: &Interval, seconds: f64) -> String {
    let (response, counters) = (interval.response().summary(), &interval.counters);
    let Summary { p50_ms, p99_ms, p999_ms, max_ms, .. } = response;
    let mut line = format!(
        "{:>6} s {:>10.0}/s  p50 {p50_ms:.3}  p99 {p99_ms:.3}  p99.9 {p999_ms:.3}  max {max_ms:.3} ms",
        ((interval.index + 1) as f64 * seconds) as u64,
        counters.answered as f64 / seconds,
    );
    for (name, count) in [("dropped", counters.dropped), ("failed", counters.failed), ("errors", counters.errors)] {
        if count > 0 {
            line += &format!("  {count} {name}");
        }
    }
    line
}

fn bars(values: &VecDeque<f64>) -> String {
    let max = values.iter().copied().fold(1e-12, f64::max);
    values.iter().map(|value| BARS[((value / max * 7.0) as usize).min(7)]).collect()
}

impl Observer for View {
    fn ready(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\x1b[2J");
        }
    }

    fn interval(&mut self, interval: &Interval) {
        for (history, value) in [
            (&mut self.rates, interval.counters.answered as f64 / self.seconds),
            (&mut self.latencies_ms, interval.response().percentile_ms(99.0)),
        ] {
            history.push_back(value);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
        // The run goes on if nobody can see it.
        let _ = if self.is_terminal {
            write!(std::io::stderr(), "{}", self.screen(interval))
        } else {
            writeln!(std::io::stderr(), "{}", line(interval, self.seconds))
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_shown() {
        let mut interval = Interval::new(1, &["get".to_owned()]);
        interval.counters.answered = 2000;
        interval.counters.dropped = 3;
        interval.commands[0].response.record(2_000_000);
        assert_eq!(
            line(&interval, 2.0),
            "     4 s       1000/s  p50 2.001  p99 2.001  p99.9 2.001  max 2.001 ms  3 dropped"
        );
        let mut view = View::new("test", 1.0);
        view.is_terminal = false;
        view.interval(&interval);
        let screen = view.screen(&interval);
        assert!(screen.contains("dropped 3") && screen.contains('█') && screen.contains("get"), "{screen}");
    }
}
