//! The server's log: lines with a level, written to a file or to standard output, and to syslog.
//!
//! Who logs renders the line ([`format`]) and leaves it in a bounded [`queue`]; a thread of its own writes what is there
//! to the [`sink`]. No worker depends on a disk, a terminal or syslog: when the queue is full the line is lost, and the
//! log says how many were. But before a worker replies it gives the thread a moment to write what the worker has logged
//! ([`settle`]), so that who gets the reply finds the lines; a thread that does not keep up costs one such moment, not one
//! for each line. Before [`start`] and after [`stop`] lines are written at once by who logs them, so that
//! nothing is lost around the process's beginning, its fork, and its end.

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

/// No reply waits longer than this for the log.
const SETTLE_AT_MOST: Duration = Duration::from_millis(20);

thread_local! {
    /// Whether this thread has logged something since it last waited for it to be written.
    static UNSETTLED: Cell<bool> = const { Cell::new(false) };
}

/// Bytes of a message; what is longer is cut. Valkey's limit, without the byte that ends its strings.
const MESSAGE_BYTES_MAX: usize = 1023;

/// The one log of the process.
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
    /// The least level that is written.
    level: AtomicU8,
    style: Mutex<Style>,
    /// Whether lines carry their message for syslog.
    to_syslog: AtomicBool,
    /// Whether a thread writes the lines.
    has_writer: AtomicBool,
    writer: Mutex<Option<JoinHandle<()>>>,
    queue: Queue,
    /// Locked before the queue is emptied, so that lines keep their order whoever writes them.
    sink: Mutex<Sink>,
}

/// What is wrong or critical.
pub fn warning(message: Arguments<'_>) {
    LOG.line(LogLevel::Warning, message);
}

/// What an operator wants to know.
pub fn notice(message: Arguments<'_>) {
    LOG.line(LogLevel::Notice, message);
}

/// What helps to find out what goes on.
pub fn verbose(message: Arguments<'_>) {
    LOG.line(LogLevel::Verbose, message);
}

/// What helps to find a mistake in the server.
pub fn debug(message: Arguments<'_>) {
    LOG.line(LogLevel::Debug, message);
}

/// Text as it is, of any length, without anything in front of it: the logo, a crash report.
pub fn raw(level: LogLevel, text: &str) {
    if LOG.writes(level) {
        LOG.submit(Line::new(level, text.as_bytes().to_vec(), LOG.for_syslog(text)));
    }
}

/// Applies the level and the formats, at the start and after CONFIG SET.
pub fn configure(settings: &LogSettings) {
    LOG.level.store(settings.level as u8, Ordering::Relaxed);
    *LOG.style.lock() = Style { format: settings.format, timestamp: settings.timestamp };
}

/// Opens the log's destinations and applies the rest as [`configure`] does.
pub fn open(settings: &LogSettings) {
    configure(settings);
    let mut sink = LOG.sink.lock();
    *sink = settings.file.as_ref().map_or_else(Sink::stdout, |file| Sink::file(file.clone()));
    if let Some((facility, identity)) = &settings.syslog {
        sink.add_syslog(*facility, identity);
    }
    LOG.to_syslog.store(settings.syslog.is_some(), Ordering::Relaxed);
}

/// Starts the thread that writes. To be called after the process has forked for the last time; until then, and if there
/// can be no thread, who logs writes.
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

/// Ends the thread that writes. Every line logged before is written when this returns.
pub fn stop() {
    LOG.has_writer.store(false, Ordering::Release);
    LOG.queue.close();
    if let Some(thread) = LOG.writer.lock().take() {
        // Had it panicked, the process would have ended.
        let _ = thread.join();
    }
    flush();
}

/// Writes every line logged so far before it returns.
pub fn flush() {
    LOG.write_out(&mut LOG.sink.lock());
}

/// Logs nothing from here on: for a copy of the process, in which nobody writes.
pub fn silence() {
    LOG.level.store(u8::MAX, Ordering::Relaxed);
}

/// Waits until what this thread has logged is written, for a moment at most.
#[inline]
pub fn settle() {
    if UNSETTLED.replace(false) {
        LOG.queue.settle(SETTLE_AT_MOST);
    }
}

/// What [`flush`] does, for a crash: gives up after a while, since the thread that crashed may have been writing.
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
        // The one error there can be is that the message is cut.
        let _ = text.write_fmt(message);
        let style = *self.style.lock();
        let bytes = format::line(style, level, SystemTime::now(), &text.0);
        self.submit(Line::new(level, bytes, self.for_syslog(&text.0)));
    }

    fn submit(&self, line: Line) {
        self.queue.push(line);
        UNSETTLED.set(true);
        if !self.has_writer.load(Ordering::Acquire) {
            self.write_out(&mut self.sink.lock());
        }
    }

    /// Writes what waits.
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

/// A text that takes no more than [`MESSAGE_BYTES_MAX`] bytes, and no part of a character.
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
