//! The write log: every effect on the keyspace, totally ordered,
//! in the form that replicas and the append-only file receive.
//!
//! Records are requests in RESP, appended under the partition locks of the command that made them, so that
//! the effects on one key are in the log in the order in which they happened. A record for another database
//! than the previous one is preceded by SELECT, and several records of one command are enclosed in MULTI
//! and EXEC. Some records are **replica-only** (PUBLISH, PING): replicas receive them, the append-only file
//! does not. **AOF-only** records are the opposite. Since replication counts bytes, they are not part of
//! the log's bytes: they are stored separately, each at an offset, for followers that read data only.
//!
//! A position in the log is an offset: bytes since the history began, as replication counts them.
//! The bytes are stored in [blocks](block) that never change once written, so followers read without
//! copying and without blocking writers. Bytes that all followers have read are dropped, except for
//! the backlog. Without followers and backlog nothing is stored, and appending costs one branch.
//!
//! The owner of a follower limits how far it may lag: the log keeps everything that a follower has not read.
//!
//! If the append-only file is written, the records that it receives are also copied to the [tail], which outlives
//! the process.

mod block;
mod follower;
pub mod tail;

use block::{BLOCK_BYTES_MIN, Block, BlockWriter};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

pub use block::BLOCK_BYTES;
use follower::Position;
pub use follower::{Audience, CutOff, Follower, Piece};
use tail::{Anchor, Tail, TailMemory};

/// The write log. See the module documentation.
#[derive(Default)]
pub struct WriteLog(Arc<Shared>);

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// The tail has all records that the append-only file lacks, and will have the next ones.
const ALL_IN_TAIL: u64 = u64::MAX;

#[derive(Default)]
struct Shared {
    has_readers: AtomicBool,
    end: AtomicU64,
    /// The offset up to which the tail has what the append-only file lacks: [`ALL_IN_TAIL`] if the tail takes all.
    in_tail: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Writes to the last of the blocks.
    writer: Option<BlockWriter>,
    /// The blocks that are kept, the oldest first.
    blocks: VecDeque<Arc<Block>>,
    /// Bytes of all blocks, including those that only followers still hold.
    live_bytes: Arc<AtomicUsize>,
    /// Offset after the last byte.
    end: u64,
    /// Whether it accepts only bytes of another server's log.
    repeats: bool,
    /// The database of the last record.
    selected: Option<usize>,
    followers: Vec<Weak<Position>>,
    /// Number of bytes before the end that are kept even if all followers have read them.
    backlog: u64,
    /// Offset of the first byte of the backlog: the log's end when the backlog was enabled.
    backlog_start: u64,
    /// The ranges of replica-only records that a data-only follower has yet to skip, the oldest first.
    replica_only: VecDeque<Range<u64>>,
    /// The AOF-only records that a data-only follower has yet to read, the oldest first.
    aof_only: VecDeque<AofOnly>,
    /// Number of the next AOF-only record.
    next_aof_only: u64,
    /// The copy that outlives the process, and the offset up to which it is sealed.
    tail: Option<Tail>,
    sealed: u64,
}

/// Records that are stored beside the log's bytes.
struct AofOnly {
    number: u64,
    /// Their offset in the log, always before the log's end.
    at: u64,
    bytes: Arc<[u8]>,
}

/// The records that one command adds to the log.
pub struct Batch<'a> {
    /// The database of the first record, and the one that is selected after the last.
    pub databases: (usize, usize),
    /// Requests in RESP, in pieces to be concatenated.
    pub records: &'a [&'a [u8]],
    /// Number of requests in `records`.
    pub record_count: usize,
    /// The ranges of replica-only records in `records`, in order.
    pub replica_only: &'a [Range<usize>],
    /// AOF-only records with their positions in `records`, in order.
    pub aof_only: &'a [(usize, Vec<u8>)],
}

impl WriteLog {
    /// True if there is a follower or a backlog.
    #[inline]
    pub fn has_readers(&self) -> bool {
        self.0.has_readers.load(Ordering::Relaxed)
    }

    /// Offset after the last byte.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.0.end.load(Ordering::Acquire)
    }

    /// Appends the effects of a command. Called under its locks.
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
        // An AOF-only record needs log bytes after it, or followers would not look for it; EXEC provides them.
        let needs_transaction = batch.record_count > 1 || !aof_only.is_empty();
        if needs_transaction {
            inner.push_shared(MULTI);
        }
        if inner.selected != Some(first) {
            let mut select = Vec::new();
            encode(&mut select, [&b"SELECT"[..], itoa::Buffer::new().format(first).as_bytes()].into_iter());
            inner.push_shared(&select);
        }
        inner.selected = Some(last);
        let start = inner.end;
        for replica_only in batch.replica_only {
            inner.mark_replica_only(start + replica_only.start as u64..start + replica_only.end as u64);
        }
        for (place, records) in aof_only {
            inner.add_aof_only(start + *place as u64, records);
        }
        batch.records.iter().for_each(|piece| inner.push(piece));
        if let Some(tail) = &mut inner.tail {
            push_data(tail, batch.records, batch.replica_only, aof_only);
        }
        if needs_transaction {
            inner.push_shared(EXEC);
        }
        self.publish(&inner);
    }

    /// Appends a request that is not an effect of a command and that only replicas receive. Nothing is appended to the
    /// log of a replica: its bytes are those of its primary.
    pub fn append_replica_only(&self, words: &[&[u8]]) {
        if !self.has_readers() {
            return;
        }
        let mut record = Vec::new();
        encode(&mut record, words.iter().copied());
        let mut inner = self.0.inner.lock();
        if !inner.repeats {
            self.append_bytes(&mut inner, &record, true);
        }
    }

    /// Appends bytes of another server's log unchanged: complete requests, including
    /// the SELECTs they need. With `replica_only`, only replicas receive them.
    pub fn append_raw(&self, bytes: &[u8], replica_only: bool) {
        self.append_bytes(&mut self.0.inner.lock(), bytes, replica_only);
    }

    fn append_bytes(&self, inner: &mut Inner, bytes: &[u8], replica_only: bool) {
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
        if let Some(tail) = inner.tail.as_mut().filter(|_| !replica_only) {
            tail.push(bytes);
        }
        self.publish(inner);
    }

    /// Sets whether the log accepts only records of another server's log, as on a replica:
    /// local changes of clients are then not logged. The caller holds the global lock.
    pub fn set_repeats(&self, repeats: bool) {
        let mut inner = self.0.inner.lock();
        inner.repeats = repeats;
        inner.selected = None;
    }

    /// Starts following at the current end. The caller holds the
    /// global lock if the follower must be consistent with the data.
    pub fn follow(&self, audience: Audience) -> Follower {
        let mut inner = self.0.inner.lock();
        // Makes the first record start with a SELECT.
        inner.selected = None;
        let end = inner.end;
        self.begin(&mut inner, end, audience)
    }

    /// Starts following at an offset, if everything from there on is still kept.
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

    /// Keeps at least this many bytes from now on, for followers that reconnect.
    /// With 0, keeps none, and the log is active only while it has followers.
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

    /// The range of offsets at which a follower can start.
    pub fn backlog(&self) -> Range<u64> {
        let inner = self.0.inner.lock();
        inner.start()..inner.end
    }

    /// Memory of all blocks, in bytes.
    pub fn memory(&self) -> usize {
        let mut inner = self.0.inner.lock();
        inner.drop_read();
        inner.live_bytes.load(Ordering::Relaxed)
    }

    /// Memory of the log beyond the backlog, in bytes. It is freed when followers have read and released it.
    pub fn excess(&self) -> usize {
        let inner = self.0.inner.lock();
        inner.live_bytes.load(Ordering::Relaxed).saturating_sub(inner.backlog as usize)
    }

    /// Makes the next record start with a SELECT.
    pub fn reset_selected(&self) {
        self.0.inner.lock().selected = None;
    }

    /// Begins a new history at this offset: drops all bytes and
    /// cuts off all followers. The caller holds the global lock.
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
        inner.tail = None;
        self.0.in_tail.store(0, Ordering::Release);
        self.0.forget(&mut inner);
        self.publish(&inner);
    }

    fn publish(&self, inner: &Inner) {
        self.0.end.store(inner.end, Ordering::Release);
    }

    /// Seals the tail, before replies leave. Returns whether it has all records that the append-only file lacks.
    pub fn seal_tail(&self) -> bool {
        if self.0.in_tail.load(Ordering::Acquire) != ALL_IN_TAIL {
            return self.is_in_tail(self.offset());
        }
        let mut inner = self.0.inner.lock();
        let Inner { tail, sealed, end, .. } = &mut *inner;
        let Some(tail) = tail else { return false };
        tail.seal();
        if tail.is_full() {
            self.0.in_tail.store(*sealed, Ordering::Release);
        } else {
            *sealed = *end;
        }
        !tail.is_full()
    }

    /// Begins a tail of this many segments at the log's end, which it returns. It counts once it has an
    /// [anchor](Self::anchor_tail).
    pub fn begin_tail(&self, memory: TailMemory, seed: u64, segments: usize) -> u64 {
        let mut inner = self.0.inner.lock();
        self.0.in_tail.store(0, Ordering::Release);
        inner.tail = Some(Tail::new(memory, seed, segments));
        inner.end
    }

    /// Begins the tail again at the log's end, which it returns, in other memory that has its header. The append-only
    /// file has all records of the tail.
    pub fn restart_tail(&self, memory: TailMemory, segments: usize) -> u64 {
        let mut inner = self.0.inner.lock();
        self.0.in_tail.store(0, Ordering::Release);
        if let Some(tail) = &mut inner.tail {
            tail.restart(memory, segments);
        }
        inner.end
    }

    /// Notes where the tail's records are in the append-only file, which has all records from before the tail. Sets the
    /// anchor's epoch. Returns false if there is no tail, or the file's name is too long.
    pub fn anchor_tail(&self, anchor: &mut Anchor) -> bool {
        let mut inner = self.0.inner.lock();
        let is_anchored = inner.tail.as_mut().is_some_and(|tail| {
            tail.seal();
            tail.anchor(anchor)
        });
        if is_anchored && self.0.in_tail.load(Ordering::Relaxed) == 0 && !inner.is_tail_full() {
            inner.sealed = inner.end;
            self.0.in_tail.store(ALL_IN_TAIL, Ordering::Release);
        }
        is_anchored
    }

    /// The last anchor is not valid, but the one before it.
    pub fn revoke_tail_anchor(&self) {
        if let Some(tail) = &mut self.0.inner.lock().tail {
            tail.revoke_anchor();
        }
    }

    /// The append-only file has the tail's records up to this position.
    pub fn release_tail(&self, position: u64) {
        if let Some(tail) = &mut self.0.inner.lock().tail {
            tail.release(position);
        }
    }

    /// Ends the tail. Returns its memory.
    pub fn end_tail(&self) -> Option<TailMemory> {
        let mut inner = self.0.inner.lock();
        self.0.in_tail.store(0, Ordering::Release);
        inner.tail.take().map(Tail::into_memory)
    }

    /// Whether all sealed records before this offset that the append-only file lacks are in the tail. With the largest
    /// offset: whether the tail also takes the next ones.
    #[inline]
    pub fn is_in_tail(&self, offset: u64) -> bool {
        offset <= self.0.in_tail.load(Ordering::Acquire)
    }
}

/// Copies the records that the append-only file receives.
fn push_data(tail: &mut Tail, pieces: &[&[u8]], replica_only: &[Range<usize>], aof_only: &[(usize, Vec<u8>)]) {
    if replica_only.is_empty() && aof_only.is_empty() {
        return pieces.iter().for_each(|piece| tail.push(piece));
    }
    let joined;
    let records = match pieces {
        [records] => *records,
        _ => {
            joined = pieces.concat();
            &joined[..]
        }
    };
    let (mut from, mut hidden) = (0, replica_only.iter().peekable());
    let ends = aof_only.iter().map(|(place, bytes)| (*place, &bytes[..])).chain([(records.len(), &[][..])]);
    for (until, bytes) in ends {
        while let Some(range) = hidden.next_if(|range| range.start < until) {
            tail.push(&records[from..range.start]);
            from = range.end;
        }
        // An AOF-only record inside of a replica-only one takes its place.
        if from < until {
            tail.push(&records[from..until]);
            from = until;
        }
        tail.push(bytes);
    }
}

impl Shared {
    /// Drops the bytes that no follower needs, and followers that no longer exist.
    fn forget(&self, inner: &mut Inner) {
        inner.drop_read();
        self.has_readers.store(inner.backlog > 0 || !inner.followers.is_empty(), Ordering::Relaxed);
    }
}

impl Inner {
    /// The first offset at which a follower can start.
    fn start(&self) -> u64 {
        let there = self.blocks.front().map_or(self.end, |block| block.start());
        // The first block may begin with bytes that neither the backlog nor a follower needs.
        if self.backlog > 0 { there.max(self.needed().1) } else { there }
    }

    /// The oldest offset of all followers, and the offset from which on bytes must be kept.
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
                // Blocks are dropped when a new one begins: rarely enough that visiting all followers is cheap.
                self.drop_read();
                let writer = BlockWriter::new(self.end, self.block_bytes(), &self.live_bytes);
                self.blocks.push_back(writer.block().clone());
                self.writer = Some(writer);
            }
        }
    }

    /// Appends bytes that replicas and the append-only file receive.
    fn push_shared(&mut self, bytes: &[u8]) {
        self.push(bytes);
        if let Some(tail) = &mut self.tail {
            tail.push(bytes);
        }
    }

    fn is_tail_full(&self) -> bool {
        self.tail.as_ref().is_some_and(Tail::is_full)
    }

    /// Size of the next block in bytes. A small backlog uses small
    /// blocks, so that not much more than the backlog is kept.
    fn block_bytes(&self) -> usize {
        match self.backlog {
            0 => BLOCK_BYTES,
            bytes => usize::try_from(bytes / 4).unwrap_or(BLOCK_BYTES).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES),
        }
    }

    /// Whether any follower reads data only.
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

    fn drop_read(&mut self) {
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

/// Appends a request in RESP to `out`.
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
