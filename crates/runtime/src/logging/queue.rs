//! Lines that wait to be written: bounded. Who adds one need not wait, but may, for a while, until it is written.

use super::settings::LogLevel;
use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Lines that may wait; some megabytes at most, since all but crash reports are short.
const LINES_MAX: usize = 8192;

/// A line that is ready to be written.
pub struct Line {
    /// Its level, for syslog.
    pub level: LogLevel,
    /// What is written, with the end of the line.
    pub bytes: Vec<u8>,
    /// The bare message, if syslog is told too.
    pub message: Option<Box<str>>,
}

impl Line {
    /// A line.
    pub fn new(level: LogLevel, bytes: Vec<u8>, message: Option<Box<str>>) -> Self {
        Line { level, bytes, message }
    }
}

/// See the module's documentation.
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Signalled when lines have been written.
    settled: Condvar,
}

struct Waiting {
    lines: Vec<Line>,
    /// Lines for which there was no room since the last [`Queue::take`].
    lost: u64,
    closed: bool,
    /// Lines that were ever added.
    added: u64,
    /// Of these, how many were taken by who writes, and how many are written.
    taken: u64,
    written: u64,
    /// Whether somebody waited in vain since all lines were last written: nobody waits then.
    behind: bool,
}

impl Queue {
    /// An empty queue.
    pub const fn new() -> Self {
        let waiting =
            Waiting { lines: Vec::new(), lost: 0, closed: false, added: 0, taken: 0, written: 0, behind: false };
        Queue { waiting: Mutex::new(waiting), changed: Condvar::new(), settled: Condvar::new() }
    }

    /// Adds a line, or counts it as lost.
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

    /// All lines that wait, and how many were lost.
    pub fn take(&self) -> (Vec<Line>, u64) {
        let mut waiting = self.waiting.lock();
        waiting.taken = waiting.added;
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.lost))
    }

    /// All lines taken so far are written.
    pub fn written(&self) {
        let mut waiting = self.waiting.lock();
        waiting.written = waiting.taken;
        waiting.behind &= waiting.written < waiting.added;
        self.settled.notify_all();
    }

    /// Waits until the lines added so far are written, but no longer than this; whether they are. Where who writes does
    /// not keep up, one has to wait in vain, and nobody after that until all is written.
    pub fn settle(&self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        let mut waiting = self.waiting.lock();
        let added = waiting.added;
        while waiting.written < added && !waiting.behind {
            if self.settled.wait_until(&mut waiting, deadline).timed_out() {
                waiting.behind = waiting.written < added;
            }
        }
        waiting.written >= added
    }

    /// Waits for lines; false once the queue is closed.
    pub fn wait(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.lines.is_empty() && !waiting.closed {
            self.changed.wait(&mut waiting);
        }
        !waiting.closed
    }

    /// Has who waits wait no longer.
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
    fn a_full_queue_counts_what_it_loses() {
        let queue = Queue::new();
        (0..LINES_MAX + 7).for_each(|_| queue.push(line()));
        let (lines, lost) = queue.take();
        assert_eq!((lines.len(), lost), (LINES_MAX, 7));
        assert_eq!((queue.take().0.len(), queue.take().1), (0, 0));
    }

    #[test]
    fn who_adds_a_line_may_wait_for_it_but_not_for_ever() {
        let queue = Queue::new();
        assert!(queue.settle(Duration::ZERO));
        queue.push(line());
        assert!(!queue.settle(Duration::ZERO));
        queue.take();
        // Taken is not written.
        assert!(!queue.settle(Duration::from_millis(1)));
        queue.push(line());
        queue.written();
        assert!(!queue.settle(Duration::from_secs(600)), "the second line was not taken yet, and one waited in vain");
        queue.take();
        queue.written();
        queue.push(line());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                queue.take();
                queue.written();
            });
            assert!(queue.settle(Duration::from_secs(60)));
        });
    }

    #[test]
    fn who_waits_gets_every_line_and_then_the_end() {
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
