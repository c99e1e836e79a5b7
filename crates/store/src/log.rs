//! The write log: every effect on the keyspace, totally ordered, in the form in which replicas and files get it.
//!
//! Records are requests in RESP, appended under the partition locks of the command that made them, so that two effects
//! on one key stand in the log in the order in which they happened. SELECT is put in front of a record for another
//! database than the last one's, and several records of one command stand between MULTI and EXEC.
//!
//! Nothing is kept, and appending costs one branch, until somebody follows. A follower has a position of its own; what
//! all have read is dropped. One that falls more than the limit behind is cut off: it is told so at its next read.

use kvick_resp::Args;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that a follower may lie behind.
pub const LAG_MAX: usize = 1 << 30;

/// See the module's documentation.
#[derive(Default)]
pub struct WriteLog {
    followed: AtomicBool,
    end: AtomicU64,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// Offset of the first byte kept.
    start: u64,
    bytes: VecDeque<u8>,
    selected: Option<usize>,
    followers: Vec<Arc<Mutex<Option<u64>>>>,
}

/// What one command adds to the log.
pub struct Batch<'a> {
    /// Numbers of the database that it begins in, and of the one that its records leave selected.
    pub databases: (usize, usize),
    /// The command itself, where it is propagated as it came.
    pub request: Option<Args<'a>>,
    /// Other records, each a request in RESP, back to back.
    pub records: &'a [u8],
    /// How many they are.
    pub record_count: usize,
}

impl WriteLog {
    /// True when somebody follows.
    #[inline]
    pub fn followed(&self) -> bool {
        self.followed.load(Ordering::Relaxed)
    }

    /// Offset behind the last byte.
    pub fn offset(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Bytes that are kept because somebody has not read them yet.
    pub fn kept(&self) -> usize {
        if self.followed() { self.inner.lock().bytes.len() } else { 0 }
    }

    /// Appends what a command did. Called under its locks.
    pub fn append(&self, batch: &Batch<'_>) {
        let records = batch.record_count + usize::from(batch.request.is_some());
        if records == 0 || !self.followed() {
            return;
        }
        let mut inner = self.inner.lock();
        let (first, last) = batch.databases;
        if inner.selected != Some(first) {
            let number = first.to_string();
            inner.append_request([&b"SELECT"[..], number.as_bytes()].into_iter());
        }
        inner.selected = Some(last);
        if records > 1 {
            inner.append_request([&b"MULTI"[..]].into_iter());
        }
        inner.bytes.extend(batch.records);
        if let Some(args) = batch.request {
            inner.append_request(args.iter());
        }
        if records > 1 {
            inner.append_request([&b"EXEC"[..]].into_iter());
        }
        inner.forget_what_all_have_read();
        self.end.store(inner.start + inner.bytes.len() as u64, Ordering::Release);
    }

    /// Begins to follow, from the present end on.
    pub fn follow(&self) -> Follower {
        let mut inner = self.inner.lock();
        // The first record says which database it is for.
        inner.selected = None;
        let position = Arc::new(Mutex::new(Some(inner.start + inner.bytes.len() as u64)));
        inner.followers.push(position.clone());
        self.followed.store(true, Ordering::Relaxed);
        Follower { position, log: self.inner.clone() }
    }
}

impl Inner {
    fn append_request<'a>(&mut self, words: impl ExactSizeIterator<Item = &'a [u8]>) {
        let mut record = Vec::new();
        encode(&mut record, words);
        self.bytes.extend(record);
    }

    fn forget_what_all_have_read(&mut self) {
        let end = self.start + self.bytes.len() as u64;
        self.followers.retain(|follower| {
            let mut position = follower.lock();
            if position.is_some_and(|at| end - at > LAG_MAX as u64) {
                *position = None;
            }
            position.is_some() && Arc::strong_count(follower) > 1
        });
        let oldest = self.followers.iter().filter_map(|f| *f.lock()).min().unwrap_or(end);
        let read = (oldest - self.start) as usize;
        self.bytes.drain(..read);
        self.start = oldest;
    }
}

/// Writes a request in RESP.
pub(crate) fn encode<'a>(out: &mut Vec<u8>, words: impl ExactSizeIterator<Item = &'a [u8]>) {
    let mut number = itoa::Buffer::new();
    out.push(b'*');
    out.extend_from_slice(number.format(words.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    for word in words {
        out.push(b'$');
        out.extend_from_slice(number.format(word.len()).as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// A reader of the log.
pub struct Follower {
    position: Arc<Mutex<Option<u64>>>,
    log: Arc<Mutex<Inner>>,
}

/// The follower fell further behind than [`LAG_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub struct CutOff;

impl Follower {
    /// Everything appended since the last call.
    pub fn read(&mut self) -> Result<Vec<u8>, CutOff> {
        let mut inner = self.log.lock();
        let mut position = self.position.lock();
        let at = position.ok_or(CutOff)?;
        let fresh: Vec<u8> = inner.bytes.range((at - inner.start) as usize..).copied().collect();
        *position = Some(at + fresh.len() as u64);
        drop(position);
        inner.forget_what_all_have_read();
        Ok(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(words: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out, words.iter().map(|w| w.as_bytes()));
        out
    }

    fn append(log: &WriteLog, database: usize, records: &[Vec<u8>]) {
        log.append(&Batch {
            databases: (database, database),
            request: None,
            records: &records.concat(),
            record_count: records.len(),
        });
    }

    #[test]
    fn a_follower_reads_what_comes_after_it_began() {
        let log = WriteLog::default();
        append(&log, 0, &[record(&["SET", "before", "1"])]);
        assert_eq!(log.offset(), 0);
        let mut follower = log.follow();
        append(&log, 0, &[record(&["SET", "a", "1"])]);
        append(&log, 0, &[record(&["SET", "b", "1"])]);
        append(&log, 3, &[record(&["DEL", "a"]), record(&["DEL", "b"])]);
        let expected = [
            record(&["SELECT", "0"]),
            record(&["SET", "a", "1"]),
            record(&["SET", "b", "1"]),
            record(&["SELECT", "3"]),
            record(&["MULTI"]),
            record(&["DEL", "a"]),
            record(&["DEL", "b"]),
            record(&["EXEC"]),
        ];
        assert_eq!(follower.read(), Ok(expected.concat()));
        assert_eq!(follower.read(), Ok(Vec::new()));
    }

    #[test]
    fn what_all_have_read_is_dropped() {
        let log = WriteLog::default();
        let (mut one, mut two) = (log.follow(), log.follow());
        append(&log, 0, &[record(&["SET", "a", "1"])]);
        let read = one.read();
        assert!(!log.inner.lock().bytes.is_empty());
        assert_eq!(two.read(), read);
        assert!(log.inner.lock().bytes.is_empty());
        drop(one);
        append(&log, 0, &[record(&["SET", "a", "2"])]);
        assert!(two.read().is_ok_and(|bytes| !bytes.is_empty()));
    }
}
