//! The blocks of a stream while a snapshot captures them: which of them are as they were when that began.
//!
//! The snapshot takes the blocks in the order of their IDs. A block that changes or goes before its turn is copied for it.
//! New blocks come behind the last one that there was, unless all are gone and the stream was given a lower last ID:
//! such ones are noted, lest they be taken for old ones.

use super::block::Block;
use super::id::Id;
use super::ordered::Ordered;
use crate::snapshot::{Piece, Pieces};
use std::collections::BTreeMap;

/// Bytes that are captured at once, beside the last block.
const BYTES_PER_STEP: usize = if cfg!(test) { 4096 } else { 64 * 1024 };

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Capture {
    pieces: Pieces,
    /// Blocks before this ID are captured; `None` when all are.
    next: Option<Id>,
    /// The ID of the last block that there was.
    last: Id,
    /// What is not in the log as it was: blocks that have changed since, or are gone; `None` for those that are new.
    changed: BTreeMap<Id, Option<Block>>,
}

impl Capture {
    /// Begins with a stream whose last block has this ID.
    pub fn new(pieces: Pieces, last: Id) -> Capture {
        Capture { pieces, next: Some(Id::MIN), last, changed: BTreeMap::new() }
    }

    /// Where the pieces go.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Whether a block with this ID would be taken for one that is to be captured.
    fn is_awaited(&self, base: Id) -> bool {
        self.next.is_some_and(|next| base >= next) && base <= self.last && !self.changed.contains_key(&base)
    }

    /// The block with this ID is about to change or go.
    #[cold]
    pub fn before_change(&mut self, base: Id, block: &Block) {
        if self.is_awaited(base) {
            self.changed.insert(base, Some(block.clone()));
        }
    }

    /// A block with this ID is about to be added.
    #[cold]
    pub fn added(&mut self, base: Id) {
        if self.is_awaited(base) {
            self.changed.insert(base, None);
        }
    }

    /// Captures some more of the blocks in the log; false when all are.
    pub fn go_on(&mut self, blocks: &Ordered<Block>) -> bool {
        let mut bytes = 0;
        while bytes < BYTES_PER_STEP {
            let Some(next) = self.next.filter(|_| !self.pieces.snapshot().is_cancelled()) else { return false };
            let changed = self.changed.first_key_value().map(|(base, _)| *base);
            let stored = blocks.iter_from(next).next().filter(|(base, _)| *base <= self.last);
            // Where both have one with the same ID, that in the log has changed.
            let base = if let Some((base, block)) = stored.filter(|(base, _)| changed.is_none_or(|other| *base < other))
            {
                bytes += self.take(base, block);
                base
            } else if let Some((base, block)) = self.changed.pop_first() {
                bytes += block.map_or(0, |block| self.take(base, &block));
                base
            } else {
                return false;
            };
            self.next = base.next();
        }
        self.pieces.pass_on();
        true
    }

    /// Captures a block; how many bytes it has.
    fn take(&mut self, base: Id, block: &Block) -> usize {
        self.pieces.take(Piece::StreamBlock(base, block));
        block.byte_len()
    }

    /// Ends it: all are captured, or it was cancelled.
    pub fn end(self) {
        self.pieces.end();
    }
}
