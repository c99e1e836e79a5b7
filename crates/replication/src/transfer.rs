//! The bytes of a dump on their way to replicas: one thread writes them, the replicas' workers send them.
//!
//! All readers share one buffer of limited size. The writer waits for the slowest reader, so memory use does not depend
//! on the size of the dump.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Limit of buffered bytes.
const BUFFERED_MAX: usize = 8 * 1024 * 1024;

/// See the module's documentation.
#[derive(Default)]
pub struct Transfer {
    inner: Mutex<Inner>,
    room: Condvar,
}

#[derive(Default)]
struct Inner {
    chunks: VecDeque<Arc<[u8]>>,
    /// Number of the first of them.
    first: u64,
    bytes: usize,
    /// For each reader: the number of the chunk that it reads next.
    readers: Vec<Option<u64>>,
    /// Whether anything was written.
    has_begun: bool,
    /// How it ended.
    ended: Option<Ended>,
    /// Whether the transfer was abandoned because no reader was left.
    is_abandoned: bool,
}

/// How a transfer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// All bytes were written.
    Complete,
    /// The dump failed.
    Failed,
}

/// What comes next for a reader.
pub enum Next {
    /// These bytes.
    Chunk(Arc<[u8]>),
    /// Nothing yet.
    Later,
    /// Nothing more.
    Ended(Ended),
}

impl Transfer {
    /// Sends these bytes to all readers; waits while the buffer is full. Fails if no reader is left.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.inner.lock();
        while inner.bytes > BUFFERED_MAX && inner.has_readers() {
            self.room.wait(&mut inner);
        }
        if !inner.has_readers() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "all replicas are gone"));
        }
        inner.has_begun = true;
        inner.bytes += bytes.len();
        inner.chunks.push_back(bytes.into());
        Ok(())
    }

    /// Ends it.
    pub fn end(&self, outcome: Ended) {
        self.inner.lock().ended = Some(outcome);
    }

    /// Abandons the transfer because no reader is left; true for the first call.
    pub fn abandon(&self) -> bool {
        !std::mem::replace(&mut self.inner.lock().is_abandoned, true)
    }

    /// Adds a reader from the beginning; `None` if something was already written, or the transfer has failed.
    pub fn reader(self: &Arc<Self>) -> Option<Reader> {
        let mut inner = self.inner.lock();
        if inner.has_begun || inner.ended.is_some() {
            return None;
        }
        inner.readers.push(Some(0));
        Some(Reader { transfer: self.clone(), number: inner.readers.len() - 1 })
    }

    /// The number of readers.
    pub fn readers(&self) -> usize {
        self.inner.lock().readers.iter().flatten().count()
    }
}

impl Inner {
    fn has_readers(&self) -> bool {
        self.readers.iter().any(Option::is_some)
    }

    fn drop_read_chunks(&mut self) {
        let needed = self.readers.iter().flatten().min().copied().unwrap_or(u64::MAX);
        while self.first < needed {
            let Some(chunk) = self.chunks.pop_front() else { return };
            self.bytes -= chunk.len();
            self.first += 1;
        }
    }
}

/// A reader.
pub struct Reader {
    transfer: Arc<Transfer>,
    number: usize,
}

impl Reader {
    /// The next event; a chunk counts as read.
    pub fn take(&mut self) -> Next {
        let mut inner = self.transfer.inner.lock();
        let at = inner.readers[self.number].unwrap_or(u64::MAX);
        let chunk = at.checked_sub(inner.first).and_then(|index| inner.chunks.get(index as usize)).cloned();
        match (chunk, inner.ended) {
            (Some(chunk), _) => {
                inner.readers[self.number] = Some(at + 1);
                inner.drop_read_chunks();
                self.transfer.room.notify_one();
                Next::Chunk(chunk)
            }
            (None, None) => Next::Later,
            (None, Some(outcome)) => Next::Ended(outcome),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut inner = self.transfer.inner.lock();
        inner.readers[self.number] = None;
        inner.drop_read_chunks();
        self.transfer.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_receive_all_bytes_and_the_writer_waits_for_the_slowest() {
        let transfer = Arc::new(Transfer::default());
        let mut readers = [(); 2].map(|()| transfer.reader().expect("nothing is written yet"));
        let writer = {
            let transfer = transfer.clone();
            std::thread::spawn(move || {
                let written = (0..40u8).try_for_each(|n| transfer.write(&vec![n; 1 << 20]));
                transfer.end(Ended::Complete);
                written
            })
        };
        let mut got = [0u8; 2];
        let mut open = 2;
        while open > 0 {
            open = 0;
            for (reader, got) in readers.iter_mut().zip(&mut got) {
                match reader.take() {
                    Next::Chunk(chunk) => {
                        assert!(chunk.iter().all(|byte| byte == got));
                        *got += 1;
                        open += 1;
                    }
                    Next::Later => open += 1,
                    Next::Ended(outcome) => assert_eq!(outcome, Ended::Complete),
                }
            }
            assert!(transfer.inner.lock().bytes <= BUFFERED_MAX + (1 << 20));
        }
        assert_eq!(got, [40, 40]);
        assert!(writer.join().expect("no panic").is_ok());
    }

    #[test]
    fn write_without_readers_fails() {
        let transfer = Arc::new(Transfer::default());
        let reader = transfer.reader().expect("nothing is written yet");
        assert!(transfer.write(b"x").is_ok());
        assert!(transfer.reader().is_none(), "it would miss the beginning");
        drop(reader);
        assert!(transfer.write(b"x").is_err());
    }
}
