//! Plots as SVG: throughput and response times over time, and response time by percentile.
//!
//! The files are written directly: three charts of lines need less code than the adaption of a plotting library to the
//! logarithmic axis of percentiles would.

use crate::result::RunResult;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 45.0;
const COLORS: [&str; 8] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"];
/// Runs whose percentiles are drawn.
const RUNS_MAX: usize = 8;
/// Marks of a logarithmic axis that have room beside each other.
const LOG_MARKS_MAX: usize = 12;

/// A line of a chart.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// An axis: what it shows, and where its labels are.
struct Axis {
    title: &'static str,
    is_log: bool,
    /// Labels with their values; made by the chart if there are none.
    marks: Vec<(f64, String)>,
}

/// All charts of some runs.
pub fn svg(runs: &[RunResult]) -> String {
    let mut charts = Vec::new();
    let by_time = || Axis { title: "seconds", is_log: false, marks: Vec::new() };
    if let [run] = runs {
        let over_time = |name: &str, of: &dyn Fn(&crate::result::IntervalResult) -> f64| Series {
            name: name.to_owned(),
            points: run.intervals.iter().map(|interval| (interval.start_s, of(interval))).collect(),
        };
        let mut rates = vec![over_time("replies/s", &|at| at.counters.answered as f64 / at.seconds.max(1e-9))];
        if run.planned > 0.0 {
            rates.push(over_time("planned", &|at| at.planned_rate));
            rates.push(over_time("dropped/s", &|at| at.counters.dropped as f64 / at.seconds.max(1e-9)));
        }
        let axis = Axis { title: "requests per second", is_log: false, marks: Vec::new() };
        charts.push(chart("Throughput", &by_time(), &axis, &rates));
        let latencies = [
            over_time("response p50", &|at| at.response.p50_ms),
            over_time("response p99", &|at| at.response.p99_ms),
            over_time("response p99.9", &|at| at.response.p999_ms),
            over_time("response max", &|at| at.response.max_ms),
            over_time("service p99.9", &|at| at.service.p999_ms),
        ];
        let axis = Axis { title: "milliseconds", is_log: true, marks: Vec::new() };
        charts.push(chart("Latency over time", &by_time(), &axis, &latencies));
    }
    let marks = [(0.0, "0%"), (1.0, "90%"), (2.0, "99%"), (3.0, "99.9%"), (4.0, "99.99%"), (5.0, "99.999%")];
    let marks = marks.map(|(at, text)| (at, text.to_owned())).to_vec();
    let by_percentile = Axis { title: "percentile", is_log: false, marks };
    let mut series = Vec::new();
    for run in runs.iter().take(RUNS_MAX) {
        let name = |kind: &str| if runs.len() == 1 { kind.to_owned() } else { run.label.clone() };
        series.push(percentiles(name("response time"), run.response.histogram.histogram()));
        if runs.len() == 1 {
            series.push(percentiles(name("service time"), run.service.histogram.histogram()));
        }
    }
    let axis = Axis { title: "milliseconds", is_log: true, marks: Vec::new() };
    charts.push(chart("Latency by percentile", &by_percentile, &axis, &series));
    let height = HEIGHT * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (at, chart) in charts.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0,{})\">\n{chart}</g>", HEIGHT * at as f64);
    }
    out + "</svg>\n"
}

/// Latencies at the distances -log10(1 - quantile), which gives each further nine the same width.
fn percentiles(name: String, histogram: &hdrhistogram::Histogram<u64>) -> Series {
    let nines = (histogram.len().max(1) as f64).log10().min(6.0);
    let point = |at: u32| {
        let distance = nines * f64::from(at) / 200.0;
        (distance, histogram.value_at_quantile(1.0 - 10_f64.powf(-distance)) as f64 / 1e6)
    };
    let points = if histogram.is_empty() { Vec::new() } else { (0..=200).map(point).collect() };
    Series { name, points }
}

fn chart(title: &str, x: &Axis, y: &Axis, series: &[Series]) -> String {
    let all = || series.iter().flat_map(|series| &series.points);
    let x_max = all().map(|point| point.0).fold(1e-9, f64::max);
    let y_max = all().map(|point| point.1).fold(1e-3, f64::max) * 1.05;
    // What is 0 has no place on a logarithmic axis.
    let y_min = if y.is_log {
        all().map(|point| point.1).filter(|value| *value > 0.0).fold(y_max / 10.0, f64::min)
    } else {
        0.0
    };
    let place_x = |value: f64| LEFT + value / x_max * (WIDTH - LEFT - RIGHT);
    let place_y = |value: f64| {
        let part = if y.is_log { (value.max(y_min) / y_min).log10() / (y_max / y_min).log10() } else { value / y_max };
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    };
    let mut out = format!("<text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{title}, {}</text>\n", y.title);
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let made_x: Vec<(f64, String)> = linear_marks(x_max);
    let marks_x = if x.marks.is_empty() { &made_x } else { &x.marks };
    for (value, text) in marks_x.iter().filter(|(value, _)| *value <= x_max) {
        let at = place_x(*value);
        let _ = writeln!(out, "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>");
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>", bottom + 16.0);
    }
    let marks_y = if y.is_log { log_marks(y_min, y_max) } else { linear_marks(y_max) };
    for (value, text) in &marks_y {
        let at = place_y(*value);
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/>");
        let _ = writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 6.0, at + 4.0);
    }
    let _ = writeln!(out, "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>", bottom + 34.0, x.title);
    // The first series is the most important one, and drawn above the others.
    for (at, series) in series.iter().enumerate().rev() {
        let color = COLORS[at % COLORS.len()];
        let mut points = String::new();
        for (x, y) in &series.points {
            let _ = write!(points, "{:.1},{:.1} ", place_x(*x), place_y(*y));
        }
        let _ = writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>");
        let label = TOP + 10.0 + at as f64 * 16.0;
        let name = series.name.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(out, "<text x=\"{}\" y=\"{label}\" fill=\"{color}\">{name}</text>", right + 8.0);
    }
    out
}

/// About five round values from 0 to `max`.
fn linear_marks(max: f64) -> Vec<(f64, String)> {
    let rough = max / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    (0..=(max / step) as usize).map(|at| at as f64 * step).map(|value| (value, format!("{value:.decimals$}"))).collect()
}

/// The powers of ten from `min` to `max`, with their double and fivefold values unless that is too close together.
fn log_marks(min: f64, max: f64) -> Vec<(f64, String)> {
    let marks = |factors: &[f64]| -> Vec<(f64, String)> {
        let exponents = min.log10().floor() as i32..=max.log10().floor() as i32;
        let powers = exponents.map(|exponent| 10_f64.powi(exponent));
        let values = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
        // What rounding added to a product, such as 5 * 0.001, is left out of its text.
        let text = |value: f64| format!("{value:.9}").trim_end_matches('0').trim_end_matches('.').to_owned();
        values.filter(|value| (min..=max).contains(value)).map(|value| (value, text(value))).collect()
    };
    let all = marks(&[1.0, 2.0, 5.0]);
    if all.len() <= LOG_MARKS_MAX { all } else { marks(&[1.0]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round() {
        let texts = |marks: Vec<(f64, String)>| marks.into_iter().map(|mark| mark.1).collect::<Vec<_>>();
        assert_eq!(texts(linear_marks(10.0)), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(texts(linear_marks(0.35)), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(texts(log_marks(0.006, 0.3)), ["0.01", "0.02", "0.05", "0.1", "0.2"]);
        assert_eq!(texts(log_marks(0.04, 9000.0)), ["0.1", "1", "10", "100", "1000"]);
    }

    #[test]
    fn plots_of_nothing_have_no_impossible_numbers() {
        let empty = svg(&[RunResult::default()]);
        assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
    }
}
