//! The destinations of log lines: a file or standard output, and optionally syslog.
//!
//! The file stays open. It is reopened when its path refers to a different file or to none, so that it can be rotated
//! while the server runs.

use super::queue::Line;
use super::settings::SyslogFacility;
use super::syslog::Syslog;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

/// The file descriptor of the log, for code that cannot take a lock.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(libc::STDOUT_FILENO);

/// The current file descriptor of the log, for signal handlers. It may be closed and reopened at any time.
pub fn descriptor() -> i32 {
    DESCRIPTOR.load(Ordering::Relaxed)
}

/// The destinations of log lines.
pub struct Sink {
    /// `None` for standard output.
    file: Option<LogFile>,
    syslog: Option<Syslog>,
}

struct LogFile {
    path: PathBuf,
    /// `None` while the file cannot be opened.
    open: Option<File>,
}

impl Sink {
    /// Standard output.
    pub const fn stdout() -> Self {
        Sink { file: None, syslog: None }
    }

    /// A file to append to. If it cannot be opened, every write tries again.
    pub fn file(path: PathBuf) -> Self {
        let mut file = LogFile { path, open: None };
        file.reopen_if_moved();
        Sink { file: Some(file), syslog: None }
    }

    /// Also sends lines to syslog.
    pub fn add_syslog(&mut self, facility: SyslogFacility, ident: &str) {
        self.syslog = Some(Syslog::new(Path::new("/dev/log"), facility, ident));
    }

    /// Writes lines. Write errors are ignored, since there is no other place to report them.
    pub fn write(&mut self, lines: &[Line]) {
        let bytes: Vec<u8> = lines.iter().flat_map(|line| &line.bytes).copied().collect();
        match &mut self.file {
            Some(file) => {
                file.reopen_if_moved();
                if let Some(open) = &mut file.open {
                    let _ = open.write_all(&bytes);
                }
            }
            None => {
                let mut stdout = std::io::stdout().lock();
                let _ = stdout.write_all(&bytes).and_then(|()| stdout.flush());
            }
        }
        if let Some(syslog) = &mut self.syslog {
            for line in lines {
                line.message.iter().for_each(|message| syslog.send(line.level, message));
            }
        }
    }
}

impl LogFile {
    fn reopen_if_moved(&mut self) {
        if self.open.as_ref().is_some_and(|file| self.is_current(file)) {
            return;
        }
        self.open = OpenOptions::new().append(true).create(true).open(&self.path).ok();
        if let Some(file) = &self.open {
            DESCRIPTOR.store(file.as_raw_fd(), Ordering::Relaxed);
        }
    }

    /// Whether the path still refers to this file.
    fn is_current(&self, file: &File) -> bool {
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        match (std::fs::metadata(&self.path), file.metadata()) {
            (Ok(named), Ok(open)) => identity(named) == identity(open),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::LogLevel;

    fn line(text: &str) -> [Line; 1] {
        [Line::new(LogLevel::Notice, text.as_bytes().to_vec(), None)]
    }

    #[test]
    fn a_log_file_is_appended_to_and_may_be_moved_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        std::fs::write(&path, "old\n").unwrap();
        let mut sink = Sink::file(path.clone());
        sink.write(&line("one\n"));
        std::fs::rename(&path, &moved).unwrap();
        sink.write(&line("two\n"));
        sink.write(&line("three\n"));
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "old\none\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\nthree\n");
        std::fs::remove_file(&path).unwrap();
        sink.write(&line("four\n"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "four\n");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later/log");
        let mut sink = Sink::file(path.clone());
        sink.write(&line("lost\n"));
        std::fs::create_dir(dir.path().join("later")).unwrap();
        sink.write(&line("kept\n"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept\n");
    }
}
