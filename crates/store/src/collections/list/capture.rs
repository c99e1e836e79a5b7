//! Capture of a large list by a snapshot: tracks which blocks are unchanged since the snapshot began.
//!
//! The snapshot takes the blocks in order. A block that is changed
//! before its turn is copied first; one that is removed is kept.
//!
//! **Invariants**: there is one number for each block of the ring. Unchanged blocks have the index that they had when
//! the snapshot began, so these numbers ascend; each number from `next` on is either in the ring or among the copies.

use super::block::Block;
use crate::snapshot::pieces::{Piece, Pieces};
use std::collections::{BTreeMap, VecDeque};

/// Bytes that are captured per step; the last block may exceed this.
const BYTES_PER_STEP: usize = if cfg!(test) { 4096 } else { 64 * 1024 };
/// The number of a block that was captured or copied, or is new.
const NONE: u32 = u32::MAX;

/// The capture of a list. See the module documentation.
pub(super) struct Capture {
    pieces: Pieces,
    numbers: VecDeque<u32>,
    /// All blocks before this index have no number.
    done: usize,
    copies: BTreeMap<u32, Block>,
    /// The number of the block that the snapshot takes next.
    next: u32,
    /// Number of blocks when the snapshot began.
    end: u32,
}

impl Capture {
    /// Begins the capture of a list of `blocks` blocks.
    pub fn new(pieces: Pieces, blocks: usize) -> Capture {
        let end = blocks.min(NONE as usize) as u32;
        Capture { pieces, numbers: (0..end).collect(), done: 0, copies: BTreeMap::new(), next: 0, end }
    }

    /// The state that the snapshot needs.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Must be called before the block at an index changes.
    #[cold]
    pub fn before_change(&mut self, index: usize, block: &Block) {
        let number = std::mem::replace(&mut self.numbers[index], NONE);
        if number != NONE {
            self.copies.insert(number, block.clone());
        }
    }

    /// A block was added at an index.
    pub fn added(&mut self, index: usize) {
        self.numbers.insert(index, NONE);
    }

    /// Blocks from an index on were removed.
    pub fn removed(&mut self, index: usize, blocks: impl IntoIterator<Item = Block>) {
        let mut count = 0;
        for block in blocks {
            let number = self.numbers[index + count];
            if number != NONE {
                self.copies.insert(number, block);
            }
            count += 1;
        }
        self.numbers.drain(index..index + count);
        self.done -= (index + count).min(self.done).saturating_sub(index);
    }

    /// Captures some more of the blocks in the ring; returns false when all were captured.
    pub fn capture_next(&mut self, blocks: &VecDeque<Block>) -> bool {
        let mut bytes = 0;
        while bytes < BYTES_PER_STEP {
            if self.next == self.end || self.pieces.captures().is_cancelled() {
                return false;
            }
            if let Some(block) = self.copies.remove(&self.next) {
                bytes += block.bytes();
                self.pieces.take(Piece::ListBlock(block.view()));
            } else {
                while self.numbers[self.done] == NONE {
                    self.done += 1;
                }
                debug_assert_eq!(self.numbers[self.done], self.next);
                self.numbers[self.done] = NONE;
                bytes += blocks[self.done].bytes();
                self.pieces.take(Piece::ListBlock(blocks[self.done].view()));
            }
            self.next += 1;
        }
        self.pieces.flush();
        true
    }

    /// Ends the capture: all blocks were captured, or it was cancelled.
    pub fn end(self) {
        self.pieces.end();
    }
}
