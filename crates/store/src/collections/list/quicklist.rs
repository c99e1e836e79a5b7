//! Large lists: a sequence of blocks.
//!
//! The blocks are in one ring buffer, sixteen bytes each, so that an index is found by summing counts in
//! contiguous memory, and both ends grow and shrink cheaply. An element joins the block at its position if
//! the [`Limits`] permit; otherwise blocks are added, split, and merged with their neighbours exactly as
//! in Valkey, since the result is observable: a list becomes small again only when it consists of a single
//! block. If elements are pushed to or popped from the head of a long list, its first block has spare room
//! at the front, so that the elements after the head need not be moved; at the tail this is not necessary.
//!
//! A snapshot captures large lists [in pieces](super::capture), block by block: [`Quicklist::before_change`]
//! is called before a block changes or is removed, and blocks are added and removed in few places.
//!
//! **Invariants**: no block is empty; `count` is the sum of the blocks' counts; with
//! a compression depth, no block within that depth of either end is compressed; only
//! the first block has spare room at the front, and only if there are other blocks.

use super::block::{Block, BlockView};
use super::capture::Capture;
use super::{Limits, Side};
use crate::defrag::Mover;
use crate::encodings::listpack::{Listpack, Needle};
use crate::memory::{WEIGHED, size_class};
use crate::snapshot::pieces::{Captures, Gradual, Pieces};
use crate::value::Str;
use kvick_resp::SharedBytes;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Lists with at least this many blocks are captured in pieces.
const GRADUAL_MIN: usize = 16;

/// Minimum number of blocks for which the first one may have spare
/// room at the front, which is then a small part of the list.
const OPEN_BLOCKS_MIN: usize = 8;

/// A large list. See the module documentation.
pub(super) struct Quicklist {
    blocks: VecDeque<Block>,
    count: usize,
    /// The limits at the time of creation.
    limits: Limits,
    /// Present while a snapshot captures the list.
    capture: Option<Box<Capture>>,
}

/// The position of an element: its block, and its index there.
#[derive(Clone, Copy)]
struct Place {
    block: usize,
    offset: usize,
}

impl Quicklist {
    pub(super) fn new(limits: Limits) -> Self {
        Quicklist { blocks: VecDeque::new(), count: 0, limits: limits.bounded(), capture: None }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = BlockView<'_>> {
        self.blocks.iter().map(Block::view)
    }

    /// Bytes of memory besides the struct itself; the blocks are estimated from `samples` of them, 0 for all.
    pub(super) fn memory(&self, samples: usize) -> usize {
        let sampled = if samples == 0 { self.blocks.len() } else { samples.min(self.blocks.len()) };
        let sum: usize = self.blocks.iter().take(sampled).map(Block::memory).sum();
        let ring = size_class(self.blocks.capacity() * size_of::<Block>());
        ring + (sum as f64 / sampled.max(1) as f64 * self.blocks.len() as f64) as usize
    }

    /// Removes and returns the listpack of its only block, if `accepts` returns true for its size in bytes and count.
    #[inline]
    pub(super) fn take_single(&mut self, accepts: impl FnOnce(usize, usize) -> bool) -> Option<Listpack> {
        if self.blocks.len() != 1 {
            return None;
        }
        let Some(Block::Packed { listpack, count }) = self.blocks.front() else { return None };
        if !accepts(listpack.byte_len(), *count as usize) {
            return None;
        }
        self.before_change(0);
        let Some(Block::Packed { listpack, .. }) = self.blocks.front_mut() else { return None };
        Some(std::mem::take(listpack))
    }

    /// Must be called before the block at an index changes.
    #[inline]
    fn before_change(&mut self, block: usize) {
        if let Some(capture) = &mut self.capture {
            capture.before_change(block, &self.blocks[block]);
        }
    }

    /// Returns itself if it is large enough to be captured in pieces, or is being captured.
    pub(super) fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        if self.blocks.len() >= GRADUAL_MIN || self.capture.is_some() { Some(self) } else { None }
    }

    /// The block at one end, which is about to be modified there.
    #[inline]
    fn end_mut(blocks: &mut VecDeque<Block>, side: Side, limits: Limits) -> Option<&mut Block> {
        if side == Side::Tail {
            return blocks.back_mut();
        }
        let many = blocks.len() >= OPEN_BLOCKS_MIN;
        let front = blocks.front_mut()?;
        if many
            && matches!(front, Block::Packed { .. })
            && let Some(capacity) = limits.bytes_max()
        {
            front.open(capacity);
        }
        Some(front)
    }

    /// Adds a block at the tail.
    pub(super) fn append_block(&mut self, block: Block) {
        self.count += block.count();
        self.add_block(self.blocks.len(), block);
    }

    #[inline]
    pub(super) fn push(&mut self, side: Side, element: &[u8]) {
        self.count += 1;
        let limits = self.limits;
        let index = self.end(side);
        match Self::end_mut(&mut self.blocks, side, limits) {
            Some(block) if block.has_room(element.len(), limits) => {
                if let Some(capture) = &mut self.capture {
                    capture.before_change(index, block);
                }
                block.push(side, element);
            }
            _ => self.push_block(side, Block::of_one(element, limits)),
        }
    }

    /// The index of the block at one end, if there is one.
    #[inline]
    fn end(&self, side: Side) -> usize {
        match side {
            Side::Head => 0,
            Side::Tail => self.blocks.len().wrapping_sub(1),
        }
    }

    /// Pushes an element. A large one keeps its buffer.
    pub(super) fn push_shared(&mut self, side: Side, element: &SharedBytes) {
        if self.limits.is_large(element.len()) {
            self.count += 1;
            self.push_block(side, Block::Plain(element.clone()));
        } else {
            self.push(side, element);
        }
    }

    /// Offers the blocks to a mover, from number `first` on, until it is due; returns the number to continue from.
    pub(super) fn relocate(&mut self, first: usize, mover: &mut Mover<'_>) -> Option<usize> {
        if first == 0 {
            mover.offer_ring(&mut self.blocks);
        }
        for (number, block) in self.blocks.iter_mut().enumerate().skip(first) {
            if mover.is_due() && number > first {
                return Some(number);
            }
            block.relocate(mover);
        }
        None
    }

    fn push_block(&mut self, side: Side, block: Block) {
        let index = match side {
            Side::Head => 0,
            Side::Tail => self.blocks.len(),
        };
        self.add_block(index, block);
    }

    #[inline]
    pub(super) fn pop<R>(&mut self, side: Side, take: impl FnOnce(Str<'_>) -> R) -> Option<R> {
        let index = self.end(side);
        let block = Self::end_mut(&mut self.blocks, side, self.limits)?;
        if let Some(capture) = &mut self.capture {
            capture.before_change(index, block);
        }
        let taken = block.pop(side, take);
        self.count -= 1;
        if block.count() == 0 {
            self.drop_blocks(index, 1);
        }
        Some(taken)
    }

    /// Finds the element at an index, starting from the nearer end.
    fn locate(&self, index: usize) -> Option<Place> {
        let mut from_tail = self.count.checked_sub(index + 1)?;
        if index <= from_tail {
            let mut offset = index;
            for (block, one) in self.blocks.iter().enumerate() {
                match offset.checked_sub(one.count()) {
                    Some(left) => offset = left,
                    None => return Some(Place { block, offset }),
                }
            }
        } else {
            for (block, one) in self.blocks.iter().enumerate().rev() {
                match from_tail.checked_sub(one.count()) {
                    Some(left) => from_tail = left,
                    None => return Some(Place { block, offset: one.count() - 1 - from_tail }),
                }
            }
        }
        unreachable!("the blocks' counts add up")
    }

    /// Calls `visit` with up to `count` elements from the one at `index` on, towards the other side, until it breaks.
    #[inline]
    pub(super) fn visit<B>(
        &self,
        from: Side,
        index: usize,
        count: usize,
        visit: &mut impl FnMut(Str<'_>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some(place) = self.locate(index) else { return ControlFlow::Continue(()) };
        let (mut offset, mut left) = (Some(place.offset), count);
        match from {
            Side::Head => {
                for block in self.blocks.range(place.block..) {
                    left = visit_block(block, from, offset.take(), left, visit)?;
                    if left == 0 {
                        break;
                    }
                }
            }
            Side::Tail => {
                for block in self.blocks.range(..=place.block).rev() {
                    left = visit_block(block, from, offset.take(), left, visit)?;
                    if left == 0 {
                        break;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Inserts before or after the first element equal to `pivot`; returns false if there is none.
    pub(super) fn insert(&mut self, pivot: Needle<'_>, side: Side, element: &[u8]) -> bool {
        let found = self.blocks.iter().enumerate().find_map(|(block, one)| {
            let offset = one.read(|view| match view {
                Ok(view) => view.iter().position(|other| pivot.is(other)),
                Err(only) => pivot.is(Str::Bytes(only)).then_some(0),
            })?;
            Some(Place { block, offset })
        });
        let Some(place) = found else { return false };
        self.insert_at(place, side, element);
        true
    }

    /// Inserts before or after an element.
    fn insert_at(&mut self, place: Place, side: Side, element: &[u8]) {
        let (limits, block) = (self.limits, &self.blocks[place.block]);
        let at_end = match side {
            Side::Head => place.offset == 0,
            Side::Tail => place.offset + 1 == block.count(),
        };
        let before = place.offset + usize::from(side == Side::Tail);
        let next = match side {
            Side::Head => place.block.checked_sub(1),
            Side::Tail => Some(place.block + 1),
        };
        self.count += 1;
        if block.has_room(element.len(), limits) {
            self.before_change(place.block);
            self.blocks[place.block].insert(before, element);
            self.update_compression(place.block);
        } else if !at_end {
            self.insert_by_splitting(Place { offset: before, ..place }, side, element);
        } else if let Some(next) = next.filter(|next| self.has_room(*next, element.len())) {
            self.before_change(next);
            self.blocks[next].push(side.other(), element);
            self.update_compression(next);
        } else {
            let index = place.block + usize::from(side == Side::Tail);
            self.add_block(index, Block::of_one(element, limits));
        }
    }

    fn has_room(&self, block: usize, bytes: usize) -> bool {
        self.blocks.get(block).is_some_and(|block| block.has_room(bytes, self.limits))
    }

    /// Inserts by splitting a full block. The element joins the part on the opposite side of `side`.
    fn insert_by_splitting(&mut self, place: Place, side: Side, element: &[u8]) {
        self.before_change(place.block);
        let mut tail = self.blocks[place.block].split_off(place.offset);
        if self.limits.is_large(element.len()) {
            self.add_block(place.block + 1, tail);
            self.add_block(place.block + 1, Block::of_one(element, self.limits));
            return;
        }
        match side {
            Side::Head => self.blocks[place.block].push(Side::Tail, element),
            Side::Tail => tail.push(Side::Head, element),
        }
        self.add_block(place.block + 1, tail);
        // The part that keeps the block's position in Valkey: that of the pivot.
        self.merge_around(place.block + usize::from(side == Side::Head));
    }

    /// Replaces the element at an index; returns false if there is none.
    pub(super) fn replace(&mut self, index: usize, element: &[u8]) -> bool {
        let Some(place) = self.locate(index) else { return false };
        self.before_change(place.block);
        let large = self.limits.is_large(element.len());
        match self.blocks[place.block].packed_mut() {
            Some((listpack, _)) if !large && listpack.fits(element.len()) => {
                let Some(at) = listpack.view().seek(place.offset as isize) else { return false };
                listpack.replace(at, element);
                self.update_compression(place.block);
            }
            None if large => self.blocks[place.block] = Block::of_one(element, self.limits),
            None => {
                self.insert_at(place, Side::Tail, element);
                self.count -= 1;
                self.drop_blocks(place.block, 1);
            }
            Some(_) => self.replace_by_splitting(place, element),
        }
        true
    }

    /// Replaces an element of a block that has no room for the new
    /// one: splits the block and inserts a new block in between.
    fn replace_by_splitting(&mut self, place: Place, element: &[u8]) {
        let block = &mut self.blocks[place.block];
        let tail = (place.offset + 1 < block.count()).then(|| block.split_off(place.offset + 1));
        block.remove(place.offset, 1);
        let was_alone = block.count() == 0;
        if let Some(tail) = tail {
            self.add_block(place.block + 1, tail);
        }
        self.add_block(place.block + 1, Block::of_one(element, self.limits));
        if was_alone {
            self.drop_blocks(place.block, 1);
        } else {
            let merged = self.merge_around(place.block + 1);
            self.update_compression(merged);
        }
    }

    /// Merges a block and its neighbours if the limits permit; returns the block's new index.
    fn merge_around(&mut self, mut center: usize) -> usize {
        if center >= 2 && self.merge(center - 2) {
            center -= 1;
        }
        self.merge(center + 1);
        if center >= 1 && self.merge(center - 1) {
            center -= 1;
        }
        self.merge(center);
        center
    }

    /// Merges a block with the next one if the limits permit.
    fn merge(&mut self, first: usize) -> bool {
        let (Some(a), Some(b)) = (self.blocks.get(first), self.blocks.get(first + 1)) else { return false };
        let bytes = a.bytes() + b.bytes() - crate::encodings::listpack::EMPTY_BYTES;
        if a.is_plain() || b.is_plain() || self.limits.exceeded(bytes, a.count() + b.count()) {
            return false;
        }
        self.before_change(first);
        if let Some(second) = self.blocks.remove(first + 1) {
            self.blocks[first].append(&second);
            if let Some(capture) = &mut self.capture {
                capture.removed(first + 1, [second]);
            }
        }
        self.update_compression(first);
        true
    }

    /// Removes up to `most` elements equal to `needle`, starting from side `from`; returns how many.
    pub(super) fn remove_value(&mut self, from: Side, most: usize, needle: Needle<'_>) -> usize {
        let matches = |element: Str<'_>| needle.is(element);
        let (mut removed, mut seen) = (0, 0);
        while removed < most && seen < self.blocks.len() {
            let block = if from == Side::Head { seen } else { self.blocks.len() - 1 - seen };
            if self.capture.is_some() && self.blocks[block].contains_matching(&matches) {
                self.before_change(block);
            }
            let here = self.blocks[block].remove_matching(from, most - removed, &matches);
            removed += here;
            self.count -= here;
            if self.blocks[block].count() == 0 {
                self.drop_blocks(block, 1);
            } else {
                if here > 0 {
                    self.update_compression(block);
                }
                seen += 1;
            }
        }
        removed
    }

    /// Removes `count` existing elements from `index` on.
    pub(super) fn remove_range(&mut self, index: usize, count: usize) {
        let Some(Place { mut block, mut offset }) = self.locate(index) else { return };
        let (mut left, mut whole) = (count, 0..0);
        self.count -= count;
        while left > 0 {
            let here = left.min(self.blocks[block].count() - offset);
            if here == self.blocks[block].count() {
                whole = if whole.is_empty() { block..block + 1 } else { whole.start..block + 1 };
            } else {
                self.before_change(block);
                self.blocks[block].remove(offset, here);
                self.update_compression(block);
            }
            left -= here;
            offset = 0;
            block += 1;
        }
        if !whole.is_empty() {
            self.drop_blocks(whole.start, whole.len());
        }
    }

    fn add_block(&mut self, index: usize, block: Block) {
        if index == 0
            && let Some(front) = self.blocks.front_mut()
        {
            front.close();
        }
        self.blocks.insert(index, block);
        if let Some(capture) = &mut self.capture {
            capture.added(index);
        }
        self.update_compression(index);
    }

    #[cfg(test)]
    pub(super) fn assert_sound(&self) {
        assert!(self.blocks.iter().all(|block| block.count() > 0), "an empty block");
        assert_eq!(self.blocks.iter().map(Block::count).sum::<usize>(), self.count);
        let fronted = self.blocks.iter().map(|block| matches!(block, Block::Fronted { .. }));
        let fronted: Vec<usize> = fronted.enumerate().filter_map(|(i, is)| is.then_some(i)).collect();
        assert!(fronted.is_empty() || fronted == [0] && self.blocks.len() > 1, "room in front of {fronted:?}");
    }

    fn drop_blocks(&mut self, index: usize, count: usize) {
        if let Some(capture) = &mut self.capture {
            capture.removed(index, self.blocks.drain(index..index + count));
        } else if count == 1 {
            self.blocks.remove(index);
        } else {
            self.blocks.drain(index..index + count);
        }
        if let ([front], []) | ([], [front]) = self.blocks.as_mut_slices() {
            front.close();
        }
        if self.blocks.len() < self.blocks.capacity() / 4 {
            self.blocks.shrink_to(self.blocks.len() * 2);
        }
        self.update_compression(usize::MAX);
    }

    /// Decompresses the blocks near the ends, and compresses those next
    /// to them and the block at `touched` if it is further inside.
    #[inline]
    fn update_compression(&mut self, touched: usize) {
        if self.limits.compress_depth > 0 {
            self.update_compression_depth(touched);
        }
    }

    #[inline(never)]
    fn update_compression_depth(&mut self, touched: usize) {
        let (depth, len) = (self.limits.compress_depth as usize, self.blocks.len());
        for i in 0..depth.min(len) {
            self.blocks[i].decompress();
            self.blocks[len - 1 - i].decompress();
        }
        if len > 2 * depth {
            let inner = depth..len - depth;
            for i in [touched, inner.start, inner.end - 1] {
                if inner.contains(&i) {
                    self.blocks[i].compress();
                }
            }
        }
    }
}

impl Gradual for Quicklist {
    fn captures(&self) -> Option<&Arc<Captures>> {
        self.capture.as_ref().map(|capture| capture.pieces().captures())
    }

    fn begin(&mut self, pieces: Pieces) {
        self.capture = Some(Box::new(Capture::new(pieces, self.blocks.len())));
    }

    fn capture_next(&mut self) -> bool {
        let Some(capture) = &mut self.capture else { return false };
        if capture.capture_next(&self.blocks) {
            return true;
        }
        if let Some(capture) = self.capture.take() {
            capture.end();
        }
        false
    }

    fn weight(&self) -> usize {
        self.memory(WEIGHED)
    }
}

impl Clone for Quicklist {
    fn clone(&self) -> Self {
        Quicklist { blocks: self.blocks.clone(), count: self.count, limits: self.limits, capture: None }
    }
}

impl Drop for Quicklist {
    fn drop(&mut self) {
        if let Some(capture) = self.capture.take() {
            // The snapshot captures the rest and drops it.
            let captures = capture.pieces().captures().clone();
            let blocks = std::mem::take(&mut self.blocks);
            let rest = Quicklist { blocks, count: self.count, limits: self.limits, capture: Some(capture) };
            captures.keep_remainder(Box::new(rest));
        }
    }
}

/// Calls `visit` with up to `most` elements of a block, from index `offset` on,
/// or from that side's end if `None`; returns how many remain to be visited.
#[inline]
fn visit_block<B>(
    block: &Block,
    from: Side,
    offset: Option<usize>,
    most: usize,
    visit: &mut impl FnMut(Str<'_>) -> ControlFlow<B>,
) -> ControlFlow<B, usize> {
    block.read(|view| match view {
        Ok(view) => super::visit_packed(view, from, offset, most, visit),
        Err(element) => {
            visit(Str::Bytes(element))?;
            ControlFlow::Continue(most - 1)
        }
    })
}
