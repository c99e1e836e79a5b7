//! Logging, slow-command logs, latency monitoring, hot keys and keyspace events.

use super::*;
use crate::directive::{Directive, Key, Special, Typed, boolean, integer, special, text, theme, word};
use crate::shapes::{KeyspaceEvents, Percentiles};
use crate::value::Text;
use crate::words::{LogFormat, LogLevel, LogTimestampFormat, SyslogFacility};

theme! {
    after process::END;
    LOGLEVEL: LogLevel = word("loglevel", LogLevel::Notice as u8).works();
    LOGFILE: Text = text("logfile", "").immutable().works();
    LOG_FORMAT: LogFormat = word("log-format", LogFormat::Legacy as u8).works();
    LOG_TIMESTAMP_FORMAT: LogTimestampFormat = word("log-timestamp-format", LogTimestampFormat::Legacy as u8).works();
    HIDE_USER_DATA_FROM_LOG: bool = boolean("hide-user-data-from-log", true).works();
    SYSLOG_ENABLED: bool = boolean("syslog-enabled", false).immutable().works();
    SYSLOG_IDENT: Text = text("syslog-ident", "valkey").immutable().works();
    SYSLOG_FACILITY: SyslogFacility = word("syslog-facility", SyslogFacility::Local0 as u8).immutable().works();
    CRASH_LOG_ENABLED: bool = boolean("crash-log-enabled", true).works();
    CRASH_MEMCHECK_ENABLED: bool = boolean("crash-memcheck-enabled", true);

    COMMANDLOG_EXECUTION_SLOWER_THAN: i64 =
        integer("commandlog-execution-slower-than", -1, I64_MAX, 10000).alias("slowlog-log-slower-than").works();
    COMMANDLOG_SLOW_EXECUTION_MAX_LEN: u64 =
        integer("commandlog-slow-execution-max-len", 0, I64_MAX, 128).alias("slowlog-max-len").works();
    COMMANDLOG_REQUEST_LARGER_THAN: i64 = integer("commandlog-request-larger-than", -1, I64_MAX, MB).works();
    COMMANDLOG_LARGE_REQUEST_MAX_LEN: u64 = integer("commandlog-large-request-max-len", 0, I64_MAX, 128).works();
    COMMANDLOG_REPLY_LARGER_THAN: i64 = integer("commandlog-reply-larger-than", -1, I64_MAX, MB).works();
    COMMANDLOG_LARGE_REPLY_MAX_LEN: u64 = integer("commandlog-large-reply-max-len", 0, I64_MAX, 128).works();
    LATENCY_MONITOR_THRESHOLD: u64 = integer("latency-monitor-threshold", 0, I64_MAX, 0).works();
    LATENCY_TRACKING: bool = boolean("latency-tracking", true).works();
    LATENCY_TRACKING_INFO_PERCENTILES: Percentiles =
        special("latency-tracking-info-percentiles", Special::Percentiles).multi_arg().works();
    HOTKEYS_TOP_K: u32 = integer("hotkeys-top-k", 0, 1000, 0).works();
    HOTKEYS_SAMPLING_PERCENTAGE: u32 = integer("hotkeys-sampling-percentage", 1, 100, 1).works();
    HOTKEYS_WINDOW_SECONDS: u32 = integer("hotkeys-window-seconds", 1, 300, 1).works();
    NOTIFY_KEYSPACE_EVENTS: KeyspaceEvents = special("notify-keyspace-events", Special::KeyspaceEvents).works();
}
