//! The server's log: lines with a level, written to a file or standard output, and to syslog.
//!
//! A thread that logs formats the line ([`mod@format`]) and puts it into a bounded [`queue`]; the log thread writes the
//! queued lines to the [`sink`]. So no worker blocks on a disk, a terminal or syslog. If the queue is full, lines are
//! dropped, and the log reports how many. Before a worker replies, it waits a bounded time for its lines to be written
//! ([`wait_until_written`]), so that the client finds the lines once it has the reply; if the log thread falls behind,
//! only one such wait times out, not one per line. Before [`start`] and after [`stop`], each thread writes its lines
//! itself, so that no line is lost around startup, fork and exit.

mod format;
mod queue;
mod settings;
mod sink;
mod syslog;

use format::Style;
use parking_lot::Mutex;
use queue::{Line, Queue};
use sink::Sink;
use std::cell::Cell;
use std::fmt::{self, Arguments, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

pub use settings::{LogFormat, LogLevel, LogSettings, LogTimestampFormat, SyslogFacility};
pub use sink::descriptor;

/// The longest time that a reply waits for the log.
const WAIT_MAX: Duration = Duration::from_millis(20);

thread_local! {
    /// Whether this thread has logged a line since it last waited for the log.
    static HAS_UNWRITTEN: Cell<bool> = const { Cell::new(false) };
}

/// Maximum bytes of a message; longer messages are truncated. This is Valkey's limit without the terminating NUL byte.
const MESSAGE_BYTES_MAX: usize = 1023;

/// The log of the process.
static LOG: Log = Log {
    level: AtomicU8::new(LogLevel::Notice as u8),
    style: Mutex::new(Style { format: LogFormat::Legacy, timestamp: LogTimestampFormat::Legacy }),
    to_syslog: AtomicBool::new(false),
    has_writer: AtomicBool::new(false),
    writer: Mutex::new(None),
    queue: Queue::new(),
    sink: Mutex::new(Sink::stdout()),
};

struct Log {
    /// Lines below this level are dropped.
    level: AtomicU8,
    style: Mutex<Style>,
    /// Whether lines keep their message for syslog.
    to_syslog: AtomicBool,
    /// Whether the log thread is running.
    has_writer: AtomicBool,
    writer: Mutex<Option<JoinHandle<()>>>,
    queue: Queue,
    /// Locked before lines are taken from the queue, so that they are written in order regardless of the writer.
    sink: Mutex<Sink>,
}

/// Logs an error or a critical condition.
pub fn warning(message: Arguments<'_>) {
    LOG.line(LogLevel::Warning, message);
}

/// Logs a message for operators.
pub fn notice(message: Arguments<'_>) {
    LOG.line(LogLevel::Notice, message);
}

/// Logs a message that helps to follow the server's activity.
pub fn verbose(message: Arguments<'_>) {
    LOG.line(LogLevel::Verbose, message);
}

/// Logs a message that helps to debug the server.
pub fn debug(message: Arguments<'_>) {
    LOG.line(LogLevel::Debug, message);
}

/// Logs text of any length without a prefix: the logo, a crash report.
pub fn raw(level: LogLevel, text: &str) {
    if LOG.writes(level) {
        LOG.submit(Line::new(level, text.as_bytes().to_vec(), LOG.for_syslog(text)));
    }
}

/// Applies the level and the formats, at startup and after CONFIG SET.
pub fn configure(settings: &LogSettings) {
    LOG.level.store(settings.level as u8, Ordering::Relaxed);
    *LOG.style.lock() = Style { format: settings.format, timestamp: settings.timestamp };
}

/// Opens the destinations of the log and applies the other settings like [`configure`].
pub fn open(settings: &LogSettings) {
    configure(settings);
    let mut sink = LOG.sink.lock();
    *sink = settings.file.as_ref().map_or_else(Sink::stdout, |file| Sink::file(file.clone()));
    if let Some((facility, identity)) = &settings.syslog {
        sink.add_syslog(*facility, identity);
    }
    LOG.to_syslog.store(settings.syslog.is_some(), Ordering::Relaxed);
}

/// Starts the log thread. Call it after the process has forked for the last time. Until then, or if the thread cannot
/// be started, each thread writes its lines itself.
pub fn start() -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("log".into()).spawn(|| {
        crate::memory::register_thread();
        while LOG.queue.wait() {
            flush();
        }
    })?;
    *LOG.writer.lock() = Some(thread);
    LOG.has_writer.store(true, Ordering::Release);
    Ok(())
}

/// Stops the log thread. When this returns, all lines logged before are written.
pub fn stop() {
    LOG.has_writer.store(false, Ordering::Release);
    LOG.queue.close();
    if let Some(thread) = LOG.writer.lock().take() {
        // A panic of the thread would have ended the process.
        let _ = thread.join();
    }
    flush();
}

/// Writes all lines logged so far before it returns.
pub fn flush() {
    LOG.write_out(&mut LOG.sink.lock());
}

/// Disables the log, for a forked copy of the process that has no log thread.
pub fn disable() {
    LOG.level.store(u8::MAX, Ordering::Relaxed);
}

/// Waits until the lines of this thread are written, for at most [`WAIT_MAX`].
#[inline]
pub fn wait_until_written() {
    if HAS_UNWRITTEN.replace(false) {
        LOG.queue.wait_until_written(WAIT_MAX);
    }
}

/// Like [`flush`], for crashes: gives up after `wait`, since the crashed thread may hold the lock.
pub fn flush_within(wait: Duration) -> bool {
    LOG.sink.try_lock_for(wait).map(|mut sink| LOG.write_out(&mut sink)).is_some()
}

impl Log {
    fn writes(&self, level: LogLevel) -> bool {
        level as u8 >= self.level.load(Ordering::Relaxed)
    }

    fn for_syslog(&self, message: &str) -> Option<Box<str>> {
        self.to_syslog.load(Ordering::Relaxed).then(|| message.into())
    }

    fn line(&self, level: LogLevel, message: Arguments<'_>) {
        if !self.writes(level) {
            return;
        }
        let mut text = Cut(String::new());
        // The only possible error is that the message was truncated.
        let _ = text.write_fmt(message);
        let style = *self.style.lock();
        let bytes = format::line(style, level, SystemTime::now(), &text.0);
        self.submit(Line::new(level, bytes, self.for_syslog(&text.0)));
    }

    fn submit(&self, line: Line) {
        self.queue.push(line);
        HAS_UNWRITTEN.set(true);
        if !self.has_writer.load(Ordering::Acquire) {
            self.write_out(&mut self.sink.lock());
        }
    }

    /// Writes the queued lines.
    fn write_out(&self, sink: &mut Sink) {
        let (mut lines, lost) = self.queue.take();
        if lost > 0 {
            let message =
                format!("{lost} lines of the log were lost, since they came faster than they could be written.");
            let bytes = format::line(*self.style.lock(), LogLevel::Warning, SystemTime::now(), &message);
            lines.push(Line::new(LogLevel::Warning, bytes, self.for_syslog(&message)));
        }
        if !lines.is_empty() {
            sink.write(&lines);
        }
        self.queue.written();
    }
}

/// A string that is truncated at [`MESSAGE_BYTES_MAX`] bytes, at a character boundary.
struct Cut(String);

impl Write for Cut {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MESSAGE_BYTES_MAX - self.0.len();
        let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.0.push_str(&text[..end]);
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        let cut = |text: &str| {
            let mut out = Cut(String::new());
            let _ = write!(out, "{text}");
            out.0
        };
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"x".repeat(5000)).len(), MESSAGE_BYTES_MAX);
        let text = cut(&"\u{20ac}".repeat(5000));
        assert!(text.len() <= MESSAGE_BYTES_MAX && text.len() > MESSAGE_BYTES_MAX - 3);
    }
}
