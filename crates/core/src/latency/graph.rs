//! LATENCY GRAPH: draws samples as columns of characters, with their ages below.

use super::Series;

const COLUMNS: usize = 80;
const ROWS: usize = 4;
/// The characters for the top of a column, from low to high within a row.
const LEVELS: [u8; 3] = *b"_o#";
/// The character below the top of a column.
const FILL: u8 = b'|';

/// Draws the samples of an event. `now` is the Unix time in seconds.
pub fn draw(event: &str, series: &Series, now: i64) -> String {
    let samples: Vec<(u64, String)> =
        series.samples.iter().map(|sample| (sample.ms, age(now.saturating_sub(sample.time)))).collect();
    let high = samples.iter().map(|(ms, _)| *ms).max().unwrap_or(0);
    let low = samples.iter().map(|(ms, _)| *ms).min().unwrap_or(0);
    let mut text = format!("{event} - high {high} ms, low {low} ms (all time high {} ms)\n", series.max_ms);
    text += &"-".repeat(COLUMNS);
    text.push('\n');
    let charts = samples.chunks(COLUMNS).map(|part| chart(part, low, high));
    text + &charts.collect::<Vec<_>>().join("\n")
}

/// Formats an age in a few characters.
fn age(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// Columns of the samples, an empty line, and the ages written downwards.
fn chart(samples: &[(u64, String)], low: u64, high: u64) -> String {
    let steps = ROWS * LEVELS.len();
    let range = (high - low).max(1);
    let height = |ms: u64| (((ms - low) as usize).saturating_mul(steps) / range as usize).min(steps - 1);
    let mut lines: Vec<String> = Vec::new();
    for row in (0..ROWS).rev() {
        let character = |(ms, _): &(u64, String)| match height(*ms).checked_sub(row * LEVELS.len()) {
            None => ' ',
            Some(level) => char::from(*LEVELS.get(level).unwrap_or(&FILL)),
        };
        lines.push(samples.iter().map(character).collect());
    }
    lines.push(" ".repeat(samples.len()));
    let longest = samples.iter().map(|(_, age)| age.len()).max().unwrap_or(0);
    for position in 0..longest {
        lines.push(samples.iter().map(|(_, age)| age.chars().nth(position).unwrap_or(' ')).collect());
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    #[test]
    fn column_heights_follow_the_samples() {
        let samples = [(90, 10), (95, 400), (99, 200), (100, 10)].map(|(time, ms)| Sample { time, ms });
        let series = Series { samples: samples.into(), max_ms: 900, sum_ms: 620, count: 4 };
        let text = draw("command", &series, 100);
        let expected = [
            "command - high 400 ms, low 10 ms (all time high 900 ms)",
            &"-".repeat(80),
            " #  ",
            " |  ",
            " |# ",
            "_||_",
            "    ",
            "1510",
            "0sss",
            "s   ",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn ages_are_abbreviated() {
        assert_eq!([0, 59, 60, 7200, 200_000].map(age), ["0s", "59s", "1m", "2h", "2d"]);
    }
}
