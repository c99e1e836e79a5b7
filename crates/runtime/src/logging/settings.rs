//! The settings of the log. The config crate reads them from directives.

use std::path::PathBuf;

/// The facility for lines sent to syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyslogFacility {
    /// `LOG_USER`.
    User,
    /// `LOG_LOCAL0`.
    Local0,
    /// `LOG_LOCAL1`.
    Local1,
    /// `LOG_LOCAL2`.
    Local2,
    /// `LOG_LOCAL3`.
    Local3,
    /// `LOG_LOCAL4`.
    Local4,
    /// `LOG_LOCAL5`.
    Local5,
    /// `LOG_LOCAL6`.
    Local6,
    /// `LOG_LOCAL7`.
    Local7,
}

/// The minimum level of logged lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// Messages that help to follow the server's activity.
    Verbose,
    /// Messages for operators.
    Notice,
    /// Errors and critical conditions.
    Warning,
    /// Nothing at all.
    Nothing,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Process, role, time, level and message.
    Legacy,
    /// `key=value` pairs.
    Logfmt,
    /// One JSON object.
    Json,
}

/// The format of timestamps in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogTimestampFormat {
    /// `21 Nov 2026 04:52:46.510`.
    Legacy,
    /// ISO 8601 with the offset from UTC.
    Iso8601,
    /// Milliseconds since 1970.
    Milliseconds,
}

/// The settings of the log.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Lines below this level are dropped.
    pub level: LogLevel,
    /// Format of lines.
    pub format: LogFormat,
    /// Format of timestamps.
    pub timestamp: LogTimestampFormat,
    /// The log file; `None` for standard output.
    pub file: Option<PathBuf>,
    /// Facility and identity for syslog, if lines also go there.
    pub syslog: Option<(SyslogFacility, String)>,
}
