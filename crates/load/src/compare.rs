//! Two results side by side.

use crate::result::{ResultFile, RunResult};
use std::fmt::Write;

/// The figures that are compared: name, value, decimals.
fn figures(run: &RunResult) -> Vec<(String, f64, usize)> {
    let (response, service) = (&run.response.summary, &run.service.summary);
    let counters = &run.counters;
    let mut figures = vec![
        ("replies/s".to_owned(), run.throughput(), 0),
        ("dropped".to_owned(), counters.dropped as f64, 0),
        ("failed, unsent, unanswered".to_owned(), (counters.failed + counters.unsent + counters.unanswered) as f64, 0),
        ("error replies".to_owned(), counters.errors as f64, 0),
        ("response mean, ms".to_owned(), response.mean_ms, 3),
        ("response p50, ms".to_owned(), response.p50_ms, 3),
        ("response p90, ms".to_owned(), response.p90_ms, 3),
        ("response p99, ms".to_owned(), response.p99_ms, 3),
        ("response p99.9, ms".to_owned(), response.p999_ms, 3),
        ("response p99.99, ms".to_owned(), response.p9999_ms, 3),
        ("response max, ms".to_owned(), response.max_ms, 3),
        ("service p50, ms".to_owned(), service.p50_ms, 3),
        ("service p99, ms".to_owned(), service.p99_ms, 3),
        ("service p99.9, ms".to_owned(), service.p999_ms, 3),
    ];
    if run.commands.len() > 1 {
        let p99 = |name: &str, ms| (format!("{name}, response p99, ms"), ms, 3);
        figures.extend(run.commands.iter().map(|command| p99(&command.name, command.response.summary.p99_ms)));
    }
    figures
}

/// Compares runs with the same label; files with one run each are compared whatever their labels are.
pub fn compare(first: &ResultFile, second: &ResultFile) -> String {
    let mut out = String::new();
    for (at, run) in first.runs.iter().enumerate() {
        let is_pair = first.runs.len() == 1 && second.runs.len() == 1;
        let other = second.runs.iter().enumerate().find(
            |(index, other)| {
                if is_pair { *index == at } else { other.label == run.label }
            },
        );
        let Some((_, other)) = other else {
            let _ = writeln!(out, "{}: only in the first file", run.label);
            continue;
        };
        let _ = writeln!(out, "{:<28} {:>14} {:>14} {:>8}", run.label, "first", "second", "ratio");
        let others = figures(other);
        for (name, value, decimals) in figures(run) {
            let Some((_, other, _)) = others.iter().find(|(other, _, _)| *other == name) else { continue };
            let ratio = if value > 0.0 { format!("{:.2}", other / value) } else { "-".to_owned() };
            let _ = writeln!(out, "  {name:<26} {value:>14.decimals$} {other:>14.decimals$} {ratio:>8}");
        }
    }
    for run in second.runs.iter().filter(|run| first.runs.len() > 1 && first.runs.iter().all(|f| f.label != run.label))
    {
        let _ = writeln!(out, "{}: only in the second file", run.label);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::metrics::Interval;

    fn file(label: &str, latency_ns: u64) -> ResultFile {
        let config = Config::parse("[[workload.keyspace]]").expect("a configuration");
        let mut run = RunResult::new(label, &config, None);
        let mut interval = Interval::new(0, &["get".to_owned()]);
        interval.counters.answered = 100;
        interval.commands[0].response.record(latency_ns);
        run.add(&interval);
        run.seconds = 1.0;
        ResultFile::new(vec![run])
    }

    #[test]
    fn ratios_are_second_to_first() {
        let text = compare(&file("a", 1_000_000), &file("b", 3_000_000));
        let p50 = text.lines().find(|line| line.contains("response p50")).expect("a line");
        assert!(p50.ends_with("3.00"), "{p50}");
        assert!(text.lines().any(|line| line.contains("replies/s") && line.ends_with("1.00")), "{text}");
    }

    #[test]
    fn a_result_survives_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let result = file("a", 1_000_000);
        crate::report::write_files(&result, &dir.path().join("out.v1")).expect("files");
        let read = ResultFile::read(&dir.path().join("out.v1.json")).expect("a result");
        assert_eq!(read.runs[0].response.summary, result.runs[0].response.summary);
        assert_eq!(read.runs[0].counters, result.runs[0].counters);
        for extension in ["csv", "hlog", "svg"] {
            let text = std::fs::read_to_string(dir.path().join(format!("out.v1.{extension}"))).expect("a file");
            assert!(text.lines().count() > 2, "{extension}: {text}");
        }
    }
}
