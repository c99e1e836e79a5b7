//! The format of log lines: Valkey's three line formats and three timestamp formats.

use super::settings::{LogFormat, LogLevel, LogTimestampFormat};
use std::time::{SystemTime, UNIX_EPOCH};

/// The style of lines.
#[derive(Clone, Copy)]
pub struct Style {
    /// The format of the line.
    pub format: LogFormat,
    /// The format of the timestamp.
    pub timestamp: LogTimestampFormat,
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// The replication role of this process, as a character and as a word.
const ROLE: (char, &str) = ('M', "primary");

/// Formats a complete line with its line end.
pub fn line(style: Style, level: LogLevel, now: SystemTime, message: &str) -> Vec<u8> {
    let pid = std::process::id();
    let time = timestamp(style.timestamp, now);
    let (mark, name) = names(level);
    let (role_mark, role) = ROLE;
    match style.format {
        LogFormat::Legacy => format!("{pid}:{role_mark} {time} {mark} {message}\n"),
        LogFormat::Logfmt => {
            let message = plain(message);
            format!("pid={pid} role={role} timestamp=\"{time}\" level={name} message=\"{message}\"\n")
        }
        LogFormat::Json => {
            let message = json_string(message);
            format!(
                "{{\"pid\":{pid},\"role\":\"{role}\",\"timestamp\":\"{time}\",\"level\":\"{name}\",\
                 \"message\":{message}}}\n"
            )
        }
    }
    .into_bytes()
}

fn names(level: LogLevel) -> (char, &'static str) {
    match level {
        LogLevel::Debug => ('.', "debug"),
        LogLevel::Verbose => ('-', "info"),
        LogLevel::Notice => ('*', "notice"),
        LogLevel::Warning | LogLevel::Nothing => ('#', "warning"),
    }
}

/// The message in a form that fits between double quotes on one line.
fn plain(message: &str) -> String {
    message.replace('"', "'").replace(['\n', '\r'], " ")
}

/// The message as a JSON string, including the quotes.
fn json_string(message: &str) -> String {
    let mut out = String::with_capacity(message.len() + 2);
    out.push('"');
    for c in message.chars() {
        match c {
            '\\' | '"' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

fn timestamp(format: LogTimestampFormat, now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, ms) = (since.as_secs() as i64, since.subsec_millis());
    if format == LogTimestampFormat::Milliseconds {
        return (seconds * 1000 + i64::from(ms)).to_string();
    }
    let t = LocalTime::at(seconds);
    let clock = format!("{:02}:{:02}:{:02}.{ms:03}", t.hour, t.minute, t.second);
    if format == LogTimestampFormat::Legacy {
        return format!("{:02} {} {} {clock}", t.day, t.month_name(), t.year);
    }
    let sign = if t.offset_seconds < 0 { '-' } else { '+' };
    let minutes = t.offset_seconds.abs() / 60;
    format!("{:04}-{:02}-{:02}T{clock}{sign}{:02}:{:02}", t.year, t.month + 1, t.day, minutes / 60, minutes % 60)
}

/// A local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// The full year.
    pub year: i64,
    /// From 0.
    pub month: usize,
    /// From 1.
    pub day: i32,
    /// 0 to 23.
    pub hour: i32,
    /// 0 to 59.
    pub minute: i32,
    /// 0 to 60.
    pub second: i32,
    /// Offset from UTC.
    pub offset_seconds: i64,
}

impl LocalTime {
    /// The local time at a Unix time in seconds.
    pub fn at(seconds: i64) -> Self {
        // SAFETY: all-zero bytes are a valid `tm`, whose one pointer may be null.
        let mut tm: libc::tm = unsafe { std::mem::zeroed() };
        // SAFETY: both arguments point to local values that live through the call. If the year is out of range, the
        // call leaves the zeroes in place.
        unsafe { libc::localtime_r(&seconds, &mut tm) };
        LocalTime {
            year: i64::from(tm.tm_year) + 1900,
            month: tm.tm_mon.clamp(0, 11) as usize,
            day: tm.tm_mday,
            hour: tm.tm_hour,
            minute: tm.tm_min,
            second: tm.tm_sec,
            offset_seconds: tm.tm_gmtoff,
        }
    }

    /// The abbreviated month.
    pub fn month_name(&self) -> &'static str {
        MONTHS[self.month]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn show(format: LogFormat, timestamp: LogTimestampFormat, level: LogLevel, message: &str) -> String {
        let now = UNIX_EPOCH + Duration::from_millis(1_700_000_000_042);
        String::from_utf8(line(Style { format, timestamp }, level, now, message)).unwrap()
    }

    #[test]
    fn legacy_lines_have_process_role_time_and_level() {
        let pid = std::process::id();
        for (level, mark) in
            [(LogLevel::Debug, '.'), (LogLevel::Verbose, '-'), (LogLevel::Notice, '*'), (LogLevel::Warning, '#')]
        {
            let line = show(LogFormat::Legacy, LogTimestampFormat::Milliseconds, level, "hello");
            assert_eq!(line, format!("{pid}:M 1700000000042 {mark} hello\n"));
        }
    }

    #[test]
    fn logfmt_messages_are_quoted_on_one_line() {
        let line = show(LogFormat::Logfmt, LogTimestampFormat::Milliseconds, LogLevel::Verbose, "a \"b\"\r\nc");
        let pid = std::process::id();
        let expected = format!("pid={pid} role=primary timestamp=\"1700000000042\" level=info message=\"a 'b'  c\"\n");
        assert_eq!(line, expected);
    }

    #[test]
    fn json_messages_are_escaped() {
        let line =
            show(LogFormat::Json, LogTimestampFormat::Milliseconds, LogLevel::Warning, "\"\\\n\r\t\u{8}\u{c}\u{1}é");
        let pid = std::process::id();
        let expected = format!(
            "{{\"pid\":{pid},\"role\":\"primary\",\"timestamp\":\"1700000000042\",\"level\":\"warning\",\
             \"message\":\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001é\"}}\n"
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn timestamps_have_the_configured_format() {
        let t = LocalTime::at(1_700_000_000);
        let clock = format!("{:02}:{:02}:{:02}.042", t.hour, t.minute, t.second);
        let legacy = show(LogFormat::Legacy, LogTimestampFormat::Legacy, LogLevel::Notice, "x");
        assert!(legacy.contains(&format!(" {:02} Nov 2023 {clock} * x", t.day)), "{legacy}");
        let iso = show(LogFormat::Legacy, LogTimestampFormat::Iso8601, LogLevel::Notice, "x");
        let (sign, minutes) = (if t.offset_seconds < 0 { '-' } else { '+' }, t.offset_seconds.abs() / 60);
        let expected = format!(" 2023-11-{:02}T{clock}{sign}{:02}:{:02} * x", t.day, minutes / 60, minutes % 60);
        assert!(iso.contains(&expected), "{iso}");
    }
}
