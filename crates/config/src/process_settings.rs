//! The settings of the log and of CPU affinity, in the form that the runtime crate takes.

use crate::Values;
use crate::tables::{logging, process};
use kvick_runtime::logging::LogSettings;

/// The log settings. A relative `logfile` is relative to `dir`.
pub fn log(values: &Values) -> LogSettings {
    let name = values.read(logging::LOGFILE);
    let to_syslog = values.read(logging::SYSLOG_ENABLED);
    LogSettings {
        level: values.read(logging::LOGLEVEL),
        format: values.read(logging::LOG_FORMAT),
        timestamp: values.read(logging::LOG_TIMESTAMP_FORMAT),
        file: (!name.is_empty()).then(|| values.read(process::DIR).resolve(&name)),
        syslog: to_syslog
            .then(|| (values.read(logging::SYSLOG_FACILITY), values.read(logging::SYSLOG_IDENT).to_string())),
    }
}

/// The CPU lists of serving, saving and background threads, in this order.
pub fn cpu_lists(values: &Values) -> [Option<String>; 3] {
    [process::SERVER_CPULIST, process::BGSAVE_CPULIST, process::BIO_CPULIST]
        .map(|setting| values.read(setting).map(|list| list.to_string()))
}
