//! Capture of a stream's blocks by a snapshot: tracks which blocks are unchanged since the snapshot began.
//!
//! The snapshot takes the blocks in the order of their IDs. A block that changes or is removed before
//! its turn is copied. New blocks come after the existing ones, unless all were removed and the stream
//! was given a lower last ID: these are recorded, so that they are not mistaken for old blocks.

use super::block::Block;
use super::id::Id;
use super::ordered::Ordered;
use crate::snapshot::pieces::{Piece, Pieces};
use std::collections::BTreeMap;

/// Bytes that are captured per step; the last block may exceed this.
const BYTES_PER_STEP: usize = if cfg!(test) { 4096 } else { 64 * 1024 };

/// The capture of a stream. See the module documentation.
#[derive(Debug)]
pub(super) struct Capture {
    pieces: Pieces,
    /// Blocks before this ID were captured; `None` when all were.
    next: Option<Id>,
    /// The ID of the last block when the snapshot began.
    last: Id,
    /// Blocks that differ from the log: copies of those that changed or were removed; `None` for new ones.
    changed: BTreeMap<Id, Option<Block>>,
}

impl Capture {
    /// Begins the capture of a stream whose last block has this ID.
    pub fn new(pieces: Pieces, last: Id) -> Capture {
        Capture { pieces, next: Some(Id::MIN), last, changed: BTreeMap::new() }
    }

    /// The state that the snapshot needs.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Whether a block with this ID would be considered as yet to be captured.
    fn is_awaited(&self, base: Id) -> bool {
        self.next.is_some_and(|next| base >= next) && base <= self.last && !self.changed.contains_key(&base)
    }

    /// Must be called before the block with this ID changes or is removed.
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

    /// Captures some more of the blocks in the log; returns false when all were captured.
    pub fn capture_next(&mut self, blocks: &Ordered<Block>) -> bool {
        let mut bytes = 0;
        while bytes < BYTES_PER_STEP {
            let Some(next) = self.next.filter(|_| !self.pieces.captures().is_cancelled()) else { return false };
            let changed = self.changed.first_key_value().map(|(base, _)| *base);
            let stored = blocks.iter_from(next).next().filter(|(base, _)| *base <= self.last);
            // If both have a block with the same ID, the one in the log has changed.
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
        self.pieces.flush();
        true
    }

    /// Captures a block; returns its size in bytes.
    fn take(&mut self, base: Id, block: &Block) -> usize {
        self.pieces.take(Piece::StreamBlock(base, block));
        block.byte_len()
    }

    /// Ends the capture: all blocks were captured, or it was cancelled.
    pub fn end(self) {
        self.pieces.end();
    }
}
