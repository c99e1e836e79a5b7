//! The bounded queue of log lines. A thread that adds a line may wait, for a bounded time, until it is written.

use super::settings::LogLevel;
use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of queued lines. They take some megabytes at most, since all lines except crash reports are short.
const LINES_MAX: usize = 8192;

/// A formatted line.
pub struct Line {
    /// Its level, for syslog.
    pub level: LogLevel,
    /// The bytes to write, including the line end.
    pub bytes: Vec<u8>,
    /// The bare message, if it also goes to syslog.
    pub message: Option<Box<str>>,
}

impl Line {
    /// A line.
    pub fn new(level: LogLevel, bytes: Vec<u8>, message: Option<Box<str>>) -> Self {
        Line { level, bytes, message }
    }
}

/// The queue of log lines.
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Signalled when lines have been written.
    progress: Condvar,
}

struct Waiting {
    lines: Vec<Line>,
    /// Lines dropped since the last [`Queue::take`] because the queue was full.
    lost: u64,
    closed: bool,
    /// Number of lines ever added.
    added: u64,
    /// Of these, the number taken by the writer, and the number written.
    taken: u64,
    written: u64,
    /// Whether a wait has timed out since all lines were last written. No thread waits while this is set.
    is_behind: bool,
}

impl Queue {
    /// An empty queue.
    pub const fn new() -> Self {
        let waiting =
            Waiting { lines: Vec::new(), lost: 0, closed: false, added: 0, taken: 0, written: 0, is_behind: false };
        Queue { waiting: Mutex::new(waiting), changed: Condvar::new(), progress: Condvar::new() }
    }

    /// Adds a line, or counts it as lost if the queue is full.
    pub fn push(&self, line: Line) {
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() == LINES_MAX {
            waiting.lost += 1;
            return;
        }
        waiting.lines.push(line);
        waiting.added += 1;
        if waiting.lines.len() == 1 {
            self.changed.notify_one();
        }
    }

    /// Takes all queued lines; also returns how many were lost.
    pub fn take(&self) -> (Vec<Line>, u64) {
        let mut waiting = self.waiting.lock();
        waiting.taken = waiting.added;
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.lost))
    }

    /// Marks all lines taken so far as written.
    pub fn written(&self) {
        let mut waiting = self.waiting.lock();
        waiting.written = waiting.taken;
        waiting.is_behind &= waiting.written < waiting.added;
        self.progress.notify_all();
    }

    /// Waits until the lines added so far are written, but at most `timeout`; returns whether they are. If the writer
    /// falls behind, one call times out, and later calls return at once until all lines are written.
    pub fn wait_until_written(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut waiting = self.waiting.lock();
        let added = waiting.added;
        while waiting.written < added && !waiting.is_behind {
            if self.progress.wait_until(&mut waiting, deadline).timed_out() {
                waiting.is_behind = waiting.written < added;
            }
        }
        waiting.written >= added
    }

    /// Waits for lines; returns false once the queue is closed.
    pub fn wait(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.lines.is_empty() && !waiting.closed {
            self.changed.wait(&mut waiting);
        }
        !waiting.closed
    }

    /// Closes the queue and wakes the waiting writer.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line::new(LogLevel::Notice, b"x\n".to_vec(), None)
    }

    #[test]
    fn a_full_queue_counts_dropped_lines() {
        let queue = Queue::new();
        (0..LINES_MAX + 7).for_each(|_| queue.push(line()));
        let (lines, lost) = queue.take();
        assert_eq!((lines.len(), lost), (LINES_MAX, 7));
        assert_eq!((queue.take().0.len(), queue.take().1), (0, 0));
    }

    #[test]
    fn waiting_for_a_line_has_a_timeout() {
        let queue = Queue::new();
        assert!(queue.wait_until_written(Duration::ZERO));
        queue.push(line());
        assert!(!queue.wait_until_written(Duration::ZERO));
        queue.take();
        // Lines that were taken are not yet written.
        assert!(!queue.wait_until_written(Duration::from_millis(1)));
        queue.push(line());
        queue.written();
        assert!(
            !queue.wait_until_written(Duration::from_secs(600)),
            "the second line was not taken yet, and one waited in vain"
        );
        queue.take();
        queue.written();
        queue.push(line());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                queue.take();
                queue.written();
            });
            assert!(queue.wait_until_written(Duration::from_secs(60)));
        });
    }

    #[test]
    fn the_writer_gets_every_line_and_then_the_end() {
        let queue = Queue::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while queue.wait() {
                    seen += queue.take().0.len();
                }
                seen + queue.take().0.len()
            });
            (0..1000).for_each(|_| queue.push(line()));
            queue.close();
            assert_eq!(reader.join().unwrap(), 1000);
        });
    }
}
