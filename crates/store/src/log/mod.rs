//! The write log: every effect on the keyspace, totally ordered, in the form in which replicas and files get it.
//!
//! Records are requests in RESP, appended under the partition locks of the command that made them, so that two effects
//! on one key stand in the log in the order in which they happened. SELECT is put in front of a record for another
//! database than the last one's, and several records of one command stand between MULTI and EXEC. Some records are
//! **asides**: replicas get them (PUBLISH, PING), files that keep the data do not. **Insets** are the opposite, and since
//! replication counts bytes they are not among them: they stand beside the log, at an offset, for those who read data only.
//!
//! A place in the log is an offset: bytes since the history began, which is what replication counts in. The bytes stand in
//! [blocks](block) that never change once written, so followers read them without copying and without keeping writers
//! from writing. What all followers have read is dropped, except for the backlog. Nothing is kept, and appending costs one
//! branch, until somebody follows.
//!
//! How far a follower may lie behind is decided by whoever has it: it holds the memory of all that it has not read.

mod block;
mod follower;

use block::{BLOCK_BYTES_MIN, Block, BlockWriter};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

pub use block::BLOCK_BYTES;
use follower::Position;
pub use follower::{Audience, CutOff, Follower, Piece};

/// See the module's documentation.
#[derive(Default)]
pub struct WriteLog(Arc<Shared>);

#[derive(Default)]
struct Shared {
    has_readers: AtomicBool,
    end: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Writes the last of the blocks.
    writer: Option<BlockWriter>,
    /// What is kept, the oldest first.
    blocks: VecDeque<Arc<Block>>,
    /// Bytes of all blocks, with those that only readers still have.
    live_bytes: Arc<AtomicUsize>,
    /// Offset behind the last byte.
    end: u64,
    /// Whether it holds nothing but what another server's log does.
    repeats: bool,
    /// The database that the last record was for.
    selected: Option<usize>,
    followers: Vec<Weak<Position>>,
    /// Bytes before the end that are kept though all have read them.
    backlog: u64,
    /// Offset of the first byte of the backlog, which began to be kept some time.
    backlog_start: u64,
    /// Where asides stand, the oldest first, as far as a follower that leaves them out may come to them.
    replica_only: VecDeque<Range<u64>>,
    /// What only followers get that leave out asides, the oldest first, as far as one of them may come to it.
    aof_only: VecDeque<AofOnly>,
    /// Number of the next inset.
    next_aof_only: u64,
}

/// Records that stand beside the log.
struct AofOnly {
    number: u64,
    /// The offset that they stand at; it is not the log's end.
    at: u64,
    bytes: Arc<[u8]>,
}

/// What one command adds to the log.
pub struct Batch<'a> {
    /// Numbers of the database that it begins in, and of the one that its records leave selected.
    pub databases: (usize, usize),
    /// Requests in RESP, back to back.
    pub records: &'a [u8],
    /// How many they are.
    pub record_count: usize,
    /// Where in `records` there are asides, in their order.
    pub replica_only: &'a [Range<usize>],
    /// Records that only those get who leave out asides, and where in `records` they belong, in their order.
    pub aof_only: &'a [(usize, Vec<u8>)],
}

impl WriteLog {
    /// True when somebody follows, or there is a backlog.
    #[inline]
    pub fn has_readers(&self) -> bool {
        self.0.has_readers.load(Ordering::Relaxed)
    }

    /// Offset behind the last byte.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.0.end.load(Ordering::Acquire)
    }

    /// Appends what a command did. Called under its locks.
    pub fn append(&self, batch: &Batch<'_>) {
        if batch.record_count == 0 && batch.aof_only.is_empty() || !self.has_readers() {
            return;
        }
        let mut inner = self.0.inner.lock();
        let aof_only = if batch.aof_only.is_empty() || inner.is_read_in_part() { batch.aof_only } else { &[] };
        if inner.repeats || batch.record_count == 0 && aof_only.is_empty() {
            return;
        }
        let (first, last) = batch.databases;
        // Behind an inset there has to be something, or nobody would look for it.
        let together = batch.record_count > 1 || !aof_only.is_empty();
        if together {
            inner.push(b"*1\r\n$5\r\nMULTI\r\n");
        }
        if inner.selected != Some(first) {
            let mut select = Vec::new();
            encode(&mut select, [&b"SELECT"[..], itoa::Buffer::new().format(first).as_bytes()].into_iter());
            inner.push(&select);
        }
        inner.selected = Some(last);
        let start = inner.end;
        for replica_only in batch.replica_only {
            inner.mark_replica_only(start + replica_only.start as u64..start + replica_only.end as u64);
        }
        for (place, records) in aof_only {
            inner.add_aof_only(start + *place as u64, records);
        }
        inner.push(batch.records);
        if together {
            inner.push(b"*1\r\n$4\r\nEXEC\r\n");
        }
        self.publish(&inner);
    }

    /// Appends a request that is no command's effect and that only replicas get.
    pub fn append_replica_only(&self, words: &[&[u8]]) {
        if !self.has_readers() {
            return;
        }
        let mut record = Vec::new();
        encode(&mut record, words.iter().copied());
        self.append_raw(&record, true);
    }

    /// Appends bytes of another server's log as they came: whole requests, that say themselves which database they are
    /// for. They may be `replica_only`.
    pub fn append_raw(&self, bytes: &[u8], replica_only: bool) {
        let mut inner = self.0.inner.lock();
        if replica_only {
            let start = inner.end;
            inner.mark_replica_only(start..start + bytes.len() as u64);
        } else {
            inner.selected = None;
        }
        if self.has_readers() {
            inner.push(bytes);
        } else {
            inner.end += bytes.len() as u64;
        }
        self.publish(&inner);
    }

    /// Whether it takes no records but those of another server's log, as a replica's does: what clients change there is in no
    /// log. The world is held.
    pub fn set_repeats(&self, repeats: bool) {
        let mut inner = self.0.inner.lock();
        inner.repeats = repeats;
        inner.selected = None;
    }

    /// Begins to follow, from the present end on. For what is consistent with the data, the world is held.
    pub fn follow(&self, audience: Audience) -> Follower {
        let mut inner = self.0.inner.lock();
        // The first record says which database it is for.
        inner.selected = None;
        let end = inner.end;
        self.begin(&mut inner, end, audience)
    }

    /// Begins to follow from an offset on, if all from there is still kept.
    pub fn follow_from(&self, offset: u64, audience: Audience) -> Option<Follower> {
        let mut inner = self.0.inner.lock();
        let kept = inner.start()..=inner.end;
        (kept.contains(&offset) && self.has_readers()).then(|| self.begin(&mut inner, offset, audience))
    }

    fn begin(&self, inner: &mut Inner, offset: u64, audience: Audience) -> Follower {
        let aof_only = inner
            .aof_only
            .iter()
            .find(|aof_only| aof_only.at >= offset)
            .map_or(inner.next_aof_only, |aof_only| aof_only.number);
        let position = Arc::new(Position::new(offset, aof_only, audience));
        inner.followers.push(Arc::downgrade(&position));
        self.0.has_readers.store(true, Ordering::Relaxed);
        Follower::new(self.0.clone(), position)
    }

    /// Keeps this many bytes from now on, at least, for those who come back; none with 0, and then nobody need follow.
    pub fn keep_backlog(&self, bytes: u64) {
        let mut inner = self.0.inner.lock();
        if inner.backlog == 0 {
            inner.backlog_start = inner.end;
            inner.selected = None;
        }
        inner.backlog = bytes;
        if bytes > 0 {
            self.0.has_readers.store(true, Ordering::Relaxed);
        }
        self.0.forget(&mut inner);
    }

    /// The offsets that one may follow from.
    pub fn backlog(&self) -> Range<u64> {
        let inner = self.0.inner.lock();
        inner.start()..inner.end
    }

    /// Memory of all that is kept, in bytes.
    pub fn memory(&self) -> usize {
        let mut inner = self.0.inner.lock();
        inner.forget_read();
        inner.live_bytes.load(Ordering::Relaxed)
    }

    /// Memory of the log beyond the backlog, in bytes: it goes when followers have read it and done with it.
    pub fn excess(&self) -> usize {
        let inner = self.0.inner.lock();
        inner.live_bytes.load(Ordering::Relaxed).saturating_sub(inner.backlog as usize)
    }

    /// Has the next record say which database it is for.
    pub fn forget_selected(&self) {
        self.0.inner.lock().selected = None;
    }

    /// Begins another history, at this offset: what is there is dropped, and all followers are cut off. The world is
    /// held.
    pub fn reset(&self, offset: u64) {
        let mut inner = self.0.inner.lock();
        for position in std::mem::take(&mut inner.followers).iter().filter_map(Weak::upgrade) {
            position.cut_off();
        }
        (inner.writer, inner.selected) = (None, None);
        inner.blocks.clear();
        inner.replica_only.clear();
        inner.aof_only.clear();
        (inner.end, inner.backlog_start) = (offset, offset);
        self.0.forget(&mut inner);
        self.publish(&inner);
    }

    fn publish(&self, inner: &Inner) {
        self.0.end.store(inner.end, Ordering::Release);
    }
}

impl Shared {
    /// Drops what nobody will read, and followers that are gone.
    fn forget(&self, inner: &mut Inner) {
        inner.forget_read();
        self.has_readers.store(inner.backlog > 0 || !inner.followers.is_empty(), Ordering::Relaxed);
    }
}

impl Inner {
    /// Offset of the first byte that one may follow from.
    fn start(&self) -> u64 {
        let there = self.blocks.front().map_or(self.end, |block| block.start());
        // A block's first bytes may be there though they are neither of the backlog nor waited for.
        if self.backlog > 0 { there.max(self.needed().1) } else { there }
    }

    /// The offsets from which on followers have not read everything, and from which on everything is to be kept.
    fn needed(&self) -> (u64, u64) {
        let positions = self.followers.iter().filter_map(Weak::upgrade);
        let oldest = positions.map(|position| position.offset()).min().unwrap_or(self.end);
        let kept =
            if self.backlog > 0 { self.end.saturating_sub(self.backlog).max(self.backlog_start) } else { self.end };
        (oldest, oldest.min(kept))
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let written = self.writer.as_mut().map_or(0, |writer| writer.append(bytes));
            self.end += written as u64;
            bytes = &bytes[written..];
            if !bytes.is_empty() {
                // Blocks are dropped when another begins, which is seldom enough to look at all followers.
                self.forget_read();
                let writer = BlockWriter::new(self.end, self.block_bytes(), &self.live_bytes);
                self.blocks.push_back(writer.block().clone());
                self.writer = Some(writer);
            }
        }
    }

    /// Bytes of the next block: a small backlog is kept in small ones, so that not much more than it is kept.
    fn block_bytes(&self) -> usize {
        match self.backlog {
            0 => BLOCK_BYTES,
            bytes => usize::try_from(bytes / 4).unwrap_or(BLOCK_BYTES).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES),
        }
    }

    /// Whether somebody follows who leaves out asides.
    fn is_read_in_part(&self) -> bool {
        let leaves_out = |position: &Weak<Position>| position.upgrade().is_some_and(|position| position.leaves_out());
        self.followers.iter().any(leaves_out)
    }

    fn add_aof_only(&mut self, at: u64, records: &[u8]) {
        self.aof_only.push_back(AofOnly { number: self.next_aof_only, at, bytes: records.into() });
        self.next_aof_only += 1;
    }

    fn mark_replica_only(&mut self, place: Range<u64>) {
        if !self.is_read_in_part() {
            return;
        }
        match self.replica_only.back_mut() {
            Some(last) if last.end == place.start => last.end = place.end,
            _ => self.replica_only.push_back(place),
        }
    }

    fn forget_read(&mut self) {
        self.followers.retain(|position| position.strong_count() > 0);
        let (oldest, needed) = self.needed();
        while self.blocks.len() > 1 && self.blocks[0].end() <= needed {
            self.blocks.pop_front();
        }
        while self.replica_only.front().is_some_and(|replica_only| replica_only.end <= oldest) {
            self.replica_only.pop_front();
        }
        let readers = self.followers.iter().filter_map(Weak::upgrade).filter(|position| position.leaves_out());
        let read = readers.map(|position| position.aof_only()).min().unwrap_or(self.next_aof_only);
        while self.aof_only.front().is_some_and(|aof_only| aof_only.number < read) {
            self.aof_only.pop_front();
        }
    }
}

/// Writes a request in RESP.
pub fn encode<'a>(out: &mut Vec<u8>, words: impl ExactSizeIterator<Item = &'a [u8]>) {
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

#[cfg(test)]
mod tests;
