//! Results as text and as files: JSON, CSV of the intervals, and histograms in the log format of HdrHistogram.

use crate::metrics::Summary;
use crate::plot;
use crate::result::{ResultFile, RunResult};
use std::fmt::Write;
use std::path::Path;

/// A result for people.
pub fn text(run: &RunResult) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_text(run, &mut out);
    out
}

fn write_text(run: &RunResult, out: &mut String) -> std::fmt::Result {
    let counters = &run.counters;
    writeln!(out, "{} ({:.1} s)", run.label, run.seconds)?;
    if run.planned > 0.0 {
        let share = counters.sent as f64 / run.planned * 100.0;
        writeln!(out, "  open loop     {:.0} arrivals planned, {share:.2}% of them sent", run.planned)?;
    } else {
        writeln!(out, "  closed loop   the response time contains no wait for a connection")?;
    }
    writeln!(out, "  throughput    {:.0} replies/s, {:.0} requests/s sent", run.throughput(), run.sent_rate())?;
    writeln!(
        out,
        "  requests      {} scheduled = {} sent + {} dropped + {} unsent",
        counters.scheduled, counters.sent, counters.dropped, counters.unsent
    )?;
    writeln!(
        out,
        "  replies       {} answered ({} errors), {} failed, {} unanswered",
        counters.answered, counters.errors, counters.failed, counters.unanswered
    )?;
    if counters.redirects + counters.reconnects + counters.timeouts > 0 {
        writeln!(
            out,
            "  connections   {} redirections, {} reconnects, {} timeouts",
            counters.redirects, counters.reconnects, counters.timeouts
        )?;
    }
    writeln!(out, "  own CPU       {:.2} us per request", run.cpu_us_per_request())?;
    writeln!(out)?;
    writeln!(
        out,
        "  {:<24} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "milliseconds", "count", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"
    )?;
    line(out, "response time", &run.response.summary)?;
    line(out, "service time", &run.service.summary)?;
    line(out, "delay of sending", &run.send_delay.summary)?;
    if run.planned > 0.0 {
        line(out, "of it, the generator's", &run.own_delay.summary)?;
    }
    if run.commands.len() > 1 {
        for command in &run.commands {
            line(out, &format!("response, {}", command.name), &command.response.summary)?;
        }
    }
    for command in run.commands.iter().filter(|command| command.misses + command.errors > 0) {
        writeln!(out, "  {}: {} null or empty replies, {} errors", command.name, command.misses, command.errors)?;
    }
    for (text, count) in &run.error_texts {
        writeln!(out, "  error {text}: {count}")?;
    }
    if let Some(check) = &run.check {
        let verdict = if check.is_good() { "no acknowledged write is missing" } else { "ACKNOWLEDGED WRITES ARE LOST" };
        writeln!(
            out,
            "  checked writes: {verdict}: {} keys read, {} missing, {} stale, {} never written; {} of unknown fate",
            check.keys, check.missing, check.stale, check.never_written, check.unknown
        )?;
        check.examples.iter().try_for_each(|example| writeln!(out, "    {example}"))?;
    }
    Ok(())
}

fn line(out: &mut String, name: &str, summary: &Summary) -> std::fmt::Result {
    let Summary { count, mean_ms, p50_ms, p90_ms, p99_ms, p999_ms, p9999_ms, max_ms } = summary;
    write!(out, "  {name:<24} {count:>10}")?;
    for ms in [mean_ms, p50_ms, p90_ms, p99_ms, p999_ms, p9999_ms, max_ms] {
        write!(out, " {ms:>9.3}")?;
    }
    writeln!(out)
}

/// One line per interval, of all runs.
pub fn csv(runs: &[RunResult]) -> String {
    let mut out = "label,start_s,planned_rate,scheduled,sent,dropped,answered,errors,failed,rate,response_p50_ms,\
                   response_p99_ms,response_p999_ms,response_max_ms,service_p50_ms,service_p99_ms,service_p999_ms,\
                   service_max_ms\n"
        .to_owned();
    for run in runs {
        let label = format!("\"{}\"", run.label.replace('"', "\"\""));
        for interval in &run.intervals {
            let (counters, response, service) = (&interval.counters, &interval.response, &interval.service);
            let _ = write!(
                out,
                "{label},{},{},{},{},{},{},{},{},{}",
                interval.start_s,
                interval.planned_rate,
                counters.scheduled,
                counters.sent,
                counters.dropped,
                counters.answered,
                counters.errors,
                counters.failed,
                counters.answered as f64 / interval.seconds.max(1e-9),
            );
            for summary in [response, service] {
                let Summary { p50_ms, p99_ms, p999_ms, max_ms, .. } = summary;
                let _ = write!(out, ",{p50_ms},{p99_ms},{p999_ms},{max_ms}");
            }
            out.push('\n');
        }
    }
    out
}

/// Response times of the intervals, in the log format that the tools of HdrHistogram read. The maximum is in
/// milliseconds, as these tools expect for histograms of nanoseconds.
pub fn histogram_log(runs: &[RunResult]) -> String {
    let mut out = "#[Histogram log format version 1.3]\n#[Recorded by kvick-load, response times in nanoseconds]\n\
                   \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n"
        .to_owned();
    for (number, run) in runs.iter().enumerate() {
        for interval in run.intervals.iter().filter(|interval| interval.histogram.count() > 0) {
            let tag = if runs.len() > 1 { format!("Tag=run{number},") } else { String::new() };
            let _ = writeln!(
                out,
                "{tag}{:.3},{:.3},{:.3},{}",
                interval.start_s,
                interval.seconds,
                interval.response.max_ms,
                interval.histogram.encode()
            );
        }
    }
    out
}

/// Writes all files of a result: the path with the extensions json, csv, hlog and svg.
pub fn write_files(file: &ResultFile, output: &Path) -> std::io::Result<()> {
    let path = |extension: &str| {
        let mut name = output.as_os_str().to_owned();
        name.push(format!(".{extension}"));
        name
    };
    std::fs::write(path("json"), serde_json::to_string(file).map_err(std::io::Error::other)?)?;
    std::fs::write(path("csv"), csv(&file.runs))?;
    std::fs::write(path("hlog"), histogram_log(&file.runs))?;
    std::fs::write(path("svg"), plot::svg(&file.runs))
}
