//! What the log is set to do. The directives that say so are read elsewhere.

use std::path::PathBuf;

/// Under which facility the system log files our lines.
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

/// From which weight on a line is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What helps to find out what goes on.
    Verbose,
    /// What an operator wants to know.
    Notice,
    /// What is wrong or critical.
    Warning,
    /// Nothing at all.
    Nothing,
}

/// The form of a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Process, role, time, level and message.
    Legacy,
    /// `key=value` pairs.
    Logfmt,
    /// One JSON object.
    Json,
}

/// The form of times in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogTimestampFormat {
    /// `21 Nov 2026 04:52:46.510`.
    Legacy,
    /// ISO 8601 with the offset from UTC.
    Iso8601,
    /// Milliseconds since 1970.
    Milliseconds,
}

/// All settings of the log.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Lines below this level are dropped.
    pub level: LogLevel,
    /// Form of a line.
    pub format: LogFormat,
    /// Form of times.
    pub timestamp: LogTimestampFormat,
    /// The file; standard output if there is none.
    pub file: Option<PathBuf>,
    /// Facility and identity for the system log, if lines go there too.
    pub syslog: Option<(SyslogFacility, String)>,
}
