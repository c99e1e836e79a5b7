//! Readers of the write log.

use super::Shared;
use super::block::Block;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which records a follower reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    /// All of the log's bytes: replica-only records, but no AOF-only ones.
    All,
    /// Only changes of data: AOF-only records, but no replica-only ones.
    DataOnly,
}

/// The offset of a follower that was cut off.
const GONE: u64 = u64::MAX;

/// A follower's position.
pub(super) struct Position {
    offset: AtomicU64,
    /// Number of the AOF-only record that it reads next.
    aof_only: AtomicU64,
    audience: Audience,
}

impl Position {
    pub fn new(offset: u64, aof_only: u64, audience: Audience) -> Self {
        Position { offset: AtomicU64::new(offset), aof_only: AtomicU64::new(aof_only), audience }
    }

    pub fn aof_only(&self) -> u64 {
        self.aof_only.load(Ordering::Relaxed)
    }

    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    pub fn leaves_out(&self) -> bool {
        self.audience == Audience::DataOnly
    }

    pub fn cut_off(&self) {
        self.offset.store(GONE, Ordering::Relaxed);
    }
}

/// A reader of the log. The log keeps everything it has not read, so its owner must limit how far it lags.
pub struct Follower {
    log: Arc<Shared>,
    position: Arc<Position>,
}

/// The follower was cut off because the log began a new history.
#[derive(Debug, PartialEq, Eq)]
pub struct CutOff;

/// Bytes of the log, or AOF-only records.
pub struct Piece(Bytes);

enum Bytes {
    Block(Arc<Block>, Range<usize>),
    AofOnly(Arc<[u8]>),
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Block(block, range) => block.bytes(range.clone()),
            Bytes::AofOnly(bytes) => bytes,
        }
    }
}

impl Follower {
    pub(super) fn new(log: Arc<Shared>, position: Arc<Position>) -> Self {
        Follower { log, position }
    }

    /// Offset of the next byte to read.
    pub fn offset(&self) -> u64 {
        self.position.offset()
    }

    /// Number of bytes that it has not read.
    pub fn lag(&self) -> u64 {
        self.log.end.load(Ordering::Acquire).saturating_sub(self.offset())
    }

    /// The next contiguous bytes, up to the offset `until`, which then count as read. `None` if there are none.
    pub fn next(&mut self, until: u64) -> Result<Option<Piece>, CutOff> {
        if self.offset() == GONE {
            return Err(CutOff);
        }
        if self.offset() >= self.log.end.load(Ordering::Acquire).min(until) {
            return Ok(None);
        }
        let inner = self.log.inner.lock();
        let mut at = self.offset();
        if at == GONE {
            return Err(CutOff);
        }
        let mut end = inner.end.min(until);
        if self.position.leaves_out() {
            let ahead = inner.replica_only.partition_point(|replica_only| replica_only.end <= at);
            for replica_only in inner.replica_only.range(ahead..) {
                if replica_only.start > at {
                    end = end.min(replica_only.start);
                    break;
                }
                at = replica_only.end;
            }
        }
        if self.position.leaves_out()
            && let Some(aof_only) = inner.aof_only.iter().find(|aof_only| aof_only.number >= self.position.aof_only())
        {
            if aof_only.at <= at {
                self.position.offset.store(at, Ordering::Relaxed);
                self.position.aof_only.store(aof_only.number + 1, Ordering::Relaxed);
                return Ok(Some(Piece(Bytes::AofOnly(aof_only.bytes.clone()))));
            }
            end = end.min(aof_only.at);
        }
        if at >= end {
            self.position.offset.store(at, Ordering::Relaxed);
            return Ok(None);
        }
        let place = inner.blocks.partition_point(|block| block.start() <= at);
        // Unread bytes are kept, so the block exists.
        let Some(block) = place.checked_sub(1).and_then(|place| inner.blocks.get(place)) else { return Err(CutOff) };
        let block = block.clone();
        drop(inner);
        let end = end.min(block.end());
        let range = (at - block.start()) as usize..(end - block.start()) as usize;
        self.position.offset.store(end, Ordering::Relaxed);
        Ok(Some(Piece(Bytes::Block(block, range))))
    }

    /// Reads everything up to the end of the log.
    pub fn read(&mut self) -> Result<Vec<u8>, CutOff> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.next(u64::MAX)? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut inner = self.log.inner.lock();
        inner.followers.retain(|position| !std::ptr::eq(position.as_ptr(), Arc::as_ptr(&self.position)));
        self.log.forget(&mut inner);
    }
}
