//! Syslog: one datagram to `/dev/log` per line, in the RFC 3164 form that local daemons read.

use super::format::LocalTime;
use super::settings::{LogLevel, SyslogFacility};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A connection to syslog.
pub struct Syslog {
    socket: Option<UnixDatagram>,
    path: PathBuf,
    facility: u8,
    ident: String,
}

impl Syslog {
    /// A connection to the daemon that listens on the socket `path`.
    pub fn new(path: &Path, facility: SyslogFacility, ident: &str) -> Self {
        // Without a socket, nothing is sent to syslog; other destinations are unaffected.
        let socket = UnixDatagram::unbound().ok().filter(|socket| socket.set_nonblocking(true).is_ok());
        Syslog { socket, path: path.into(), facility: code(facility), ident: ident.into() }
    }

    /// Sends a message. The message is lost if the daemon is not running or not keeping up.
    pub fn send(&mut self, level: LogLevel, message: &str) {
        let Some(socket) = &self.socket else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let t = LocalTime::at(now.as_secs() as i64);
        let priority = self.facility * 8 + severity(level);
        let datagram = format!(
            "<{priority}>{} {:>2} {:02}:{:02}:{:02} {}[{}]: {message}",
            t.month_name(),
            t.day,
            t.hour,
            t.minute,
            t.second,
            self.ident,
            std::process::id()
        );
        let _ = socket.send_to(datagram.as_bytes(), &self.path);
    }
}

/// The facility's number in RFC 3164.
fn code(facility: SyslogFacility) -> u8 {
    match facility {
        SyslogFacility::User => 1,
        SyslogFacility::Local0 => 16,
        SyslogFacility::Local1 => 17,
        SyslogFacility::Local2 => 18,
        SyslogFacility::Local3 => 19,
        SyslogFacility::Local4 => 20,
        SyslogFacility::Local5 => 21,
        SyslogFacility::Local6 => 22,
        SyslogFacility::Local7 => 23,
    }
}

fn severity(level: LogLevel) -> u8 {
    match level {
        LogLevel::Debug => 7,
        LogLevel::Verbose => 6,
        LogLevel::Notice => 5,
        LogLevel::Warning | LogLevel::Nothing => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syslog_gets_priority_time_name_process_and_message() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        Syslog::new(&path, SyslogFacility::Local3, "kv").send(LogLevel::Warning, "hello");
        let mut buffer = [0; 256];
        let n = daemon.recv(&mut buffer).unwrap();
        let text = std::str::from_utf8(&buffer[..n]).unwrap();
        assert!(text.starts_with("<156>"), "{text}");
        assert!(text.ends_with(&format!(" kv[{}]: hello", std::process::id())), "{text}");
        assert_eq!(text.split(':').count(), 4, "{text}");
    }

    #[test]
    fn a_missing_daemon_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        Syslog::new(&dir.path().join("none"), SyslogFacility::User, "kv").send(LogLevel::Notice, "hello");
    }
}
