//! The entries of a stream: an ordered sequence of blocks, and statistics about deleted entries.

use super::block::{self, Block, Contents, Entries, EntriesBack, Entry};
use super::capture::Capture;
use super::group::Group;
use super::id::Id;
use super::ordered::{Ordered, Place};
use crate::defrag::Mover;
use crate::encodings::Corrupt;
use crate::memory::WEIGHED;
use crate::snapshot::pieces::{Captures, Gradual, Pieces};
use std::sync::Arc;

/// Streams with at least this many blocks are captured in pieces.
const GRADUAL_MIN: usize = 16;

/// The size limits of blocks; 0 for no limit.
#[derive(Clone, Copy, Debug)]
pub struct BlockLimits {
    /// `stream-node-max-bytes`: size in bytes.
    pub bytes: usize,
    /// `stream-node-max-entries`: number of entries, including deleted ones.
    pub entries: usize,
}

/// Absolute maximum size of a block in bytes.
const BLOCK_BYTES_MAX: usize = 1 << 30;

/// How the ID of a new entry is determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewId {
    /// From the current time, greater than the last ID.
    Auto,
    /// These milliseconds, with the next sequence number.
    Ms(u64),
    /// Exactly this ID.
    Exact(Id),
}

/// The target of trimming a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trim {
    /// Keep this many entries.
    Len(u64),
    /// Keep the entries from this ID on.
    From(Id),
}

/// Why an entry was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendError {
    /// Its ID is not greater than the last one.
    NotBeyond,
    /// It is too large.
    TooLarge,
}

/// Statistics of all entries that a stream ever had.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct History {
    /// The ID of the first entry that is not deleted; the lowest ID if there is none.
    pub first_id: Id,
    /// The highest ID that was deleted.
    pub max_deleted_id: Id,
    /// Number of entries that were added.
    pub entries_added: u64,
}

/// The entries of a stream. See the module documentation.
#[derive(Default, Debug)]
pub struct Log {
    blocks: Ordered<Block>,
    len: u64,
    last_id: Id,
    history: History,
    /// Present while a snapshot captures the blocks; it is notified before one changes or is removed, and of new ones.
    capture: Option<Box<Capture>>,
}

impl Log {
    /// Number of entries.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offers the blocks to a mover, from chunk number `first` on: see [`Ordered::relocate`].
    pub(super) fn relocate(&mut self, first: usize, mover: &mut Mover<'_>) -> Option<usize> {
        self.blocks.relocate(first, mover, |mover, block| block.relocate(mover))
    }

    /// Returns itself if it is large enough to be captured in pieces, or is being captured.
    pub(super) fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        if self.blocks.len() >= GRADUAL_MIN || self.capture.is_some() { Some(self) } else { None }
    }

    /// The ID that was last assigned to an entry.
    #[inline]
    pub fn last_id(&self) -> Id {
        self.last_id
    }

    /// Statistics of all entries.
    #[inline]
    pub fn history(&self) -> History {
        self.history
    }

    /// Sets the last ID, which no entry may exceed, and the given parts of the history.
    pub fn set_last_id(&mut self, last_id: Id, entries_added: Option<u64>, max_deleted_id: Option<Id>) {
        self.last_id = last_id;
        self.history.entries_added = entries_added.unwrap_or(self.history.entries_added);
        self.history.max_deleted_id = max_deleted_id.unwrap_or(self.history.max_deleted_id);
    }

    /// The ID of a new entry.
    pub fn new_id(&self, wanted: NewId, now_ms: i64) -> Result<Id, AppendError> {
        let last = self.last_id;
        let id = match wanted {
            NewId::Exact(id) => Some(id),
            NewId::Ms(ms) if ms == last.ms => last.seq.checked_add(1).map(|seq| Id::new(ms, seq)),
            NewId::Ms(ms) => Some(Id::new(ms, 0)),
            NewId::Auto => {
                let now_ms = now_ms as u64;
                if now_ms > last.ms { Some(Id::new(now_ms, 0)) } else { last.next() }
            }
        };
        id.filter(|id| *id > last).ok_or(AppendError::NotBeyond)
    }

    /// Adds an entry of these words, which alternate between names
    /// and values. The ID must be greater than the last one.
    #[inline]
    pub fn append<'w>(
        &mut self,
        id: Id,
        words: impl ExactSizeIterator<Item = &'w [u8]> + Clone,
        limits: BlockLimits,
    ) -> Result<(), AppendError> {
        let bytes = words.clone().map(<[u8]>::len).sum();
        if !block::is_storable(words.len(), bytes) {
            return Err(AppendError::TooLarge);
        }
        match self.blocks.last_mut() {
            Some((base, block)) if has_room(block, words.len(), bytes, limits) => {
                if let Some(capture) = &mut self.capture {
                    capture.before_change(base, block);
                }
                block.push(base, id, words);
            }
            _ => {
                if let Some(capture) = &mut self.capture {
                    capture.added(id);
                }
                let _added = self.blocks.insert(id, Block::new(words));
                debug_assert!(_added.is_ok(), "no block begins with a new ID");
            }
        }
        self.len += 1;
        self.history.entries_added += 1;
        self.last_id = id;
        if self.len == 1 {
            self.history.first_id = id;
        }
        Ok(())
    }

    /// Deletes an entry; returns false if there was none.
    pub fn delete(&mut self, id: Id) -> bool {
        let Some((base, block)) = self.place_of(id).and_then(|place| self.blocks.at_mut(place)) else { return false };
        if let Some(capture) = &mut self.capture {
            capture.before_change(base, block);
        }
        if !block.delete(base, id) {
            return false;
        }
        if block.live() == 0 {
            self.blocks.remove(base);
        }
        self.len = self.len.saturating_sub(1);
        let history = &mut self.history;
        history.max_deleted_id = history.max_deleted_id.max(id);
        if self.len == 0 {
            self.history.first_id = Id::MIN;
        } else if id == self.history.first_id {
            self.find_first();
        }
        true
    }

    /// The block that may contain an entry with this ID.
    fn place_of(&self, id: Id) -> Option<Place> {
        self.blocks.last_up_to(id).or_else(|| (!self.blocks.is_empty()).then(|| self.blocks.first_place()))
    }

    fn find_first(&mut self) {
        self.history.first_id = self.range(Id::MIN, Id::MAX).next().map_or(Id::MAX, |entry| entry.id);
    }

    /// Removes entries from the beginning; returns how many. An approximate trim
    /// removes only whole blocks, and at most `limit` entries unless that is zero.
    pub fn trim(&mut self, to: Trim, approximate: bool, limit: u64) -> u64 {
        let mut removed = 0;
        while let Some((base, block)) = self.blocks.first() {
            if matches!(to, Trim::Len(len) if self.len <= len) {
                break;
            }
            let live = block.live();
            if limit > 0 && removed + live > limit {
                break;
            }
            let whole = match to {
                Trim::Len(len) => self.len.saturating_sub(live) >= len,
                Trim::From(id) => block.last_id(base).is_none_or(|last| last < id),
            };
            if whole {
                if let Some(capture) = &mut self.capture {
                    capture.before_change(base, block);
                }
                self.blocks.pop_first();
                self.len = self.len.saturating_sub(live);
                removed += live;
                continue;
            }
            if !approximate {
                removed += self.trim_within_first(to);
            }
            break;
        }
        if self.len == 0 {
            self.history.first_id = Id::MIN;
        } else if removed > 0 {
            self.find_first();
        }
        removed
    }

    /// Removes entries from the first block, some of which remain.
    fn trim_within_first(&mut self, to: Trim) -> u64 {
        let len = self.len;
        let Some((base, block)) = self.blocks.at_mut(self.blocks.first_place()) else { return 0 };
        if let Some(capture) = &mut self.capture {
            capture.before_change(base, block);
        }
        let removed = block.delete_until(base, |id, marked| match to {
            Trim::Len(len_max) => len.saturating_sub(marked) <= len_max,
            Trim::From(first) => id >= first,
        });
        self.len = self.len.saturating_sub(removed);
        removed
    }

    /// The entries from `start` to `end`, inclusive.
    #[inline]
    pub fn range(&self, start: Id, end: Id) -> Range<'_> {
        let place = self.place_of(start).unwrap_or(self.blocks.first_place());
        Range { log: self, next: place, entries: None, start, end }
    }

    /// The entries from `end` down to `start`, inclusive.
    #[inline]
    pub fn range_back(&self, start: Id, end: Id) -> RangeBack<'_> {
        let place = self.blocks.last_up_to(end).or_else(|| self.blocks.last_place());
        RangeBack { log: self, next: place, entries: None, start, end }
    }

    /// Whether an entry with this ID exists.
    #[inline]
    pub fn contains(&self, id: Id) -> bool {
        self.range(id, id).next().is_some()
    }

    /// The ID of the last entry.
    #[inline]
    pub fn last_entry_id(&self) -> Option<Id> {
        self.range_back(Id::MIN, Id::MAX).next().map(|entry| entry.id)
    }

    /// Whether there is an entry after an ID.
    #[inline]
    pub fn has_beyond(&self, id: Id) -> bool {
        self.len > 0 && self.last_id > id && self.last_entry_id().is_some_and(|last| last > id)
    }

    /// The ID of the first stored entry, deleted or not.
    pub fn first_stored_id(&self) -> Option<Id> {
        let (base, block) = self.blocks.first()?;
        block.entries(base).next().map(|entry| entry.id)
    }

    /// Whether an entry from `start` on may have been deleted.
    fn has_deleted_from(&self, start: Id) -> bool {
        self.len > 0 && self.history.max_deleted_id != Id::MIN && start <= self.history.max_deleted_id
    }

    /// Number of entries that were added up to an ID; `None` if unknown, because
    /// of deleted entries or because the ID is in the middle of the stream.
    pub fn entries_up_to(&self, id: Id) -> Option<u64> {
        let History { first_id, max_deleted_id, entries_added } = self.history;
        if entries_added == 0 {
            return Some(0);
        }
        if self.len == 0 && id <= self.last_id {
            return Some(entries_added);
        }
        if id != Id::MIN && id < max_deleted_id {
            return None;
        }
        if id >= self.last_id {
            return (id == self.last_id).then_some(entries_added);
        }
        if max_deleted_id != Id::MIN && max_deleted_id >= first_id {
            return None;
        }
        let before_first = entries_added.wrapping_sub(self.len);
        match id.cmp(&first_id) {
            std::cmp::Ordering::Less => Some(before_first),
            std::cmp::Ordering::Equal => Some(before_first.wrapping_add(1)),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// Number of entries that a group has yet to read; `None` if unknown.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        let added = self.history.entries_added;
        if added == 0 {
            return Some(0);
        }
        let counted = group.entries_read.filter(|_| !self.has_deleted_from(group.last_id));
        let read = counted.or_else(|| self.entries_up_to(group.last_id))?;
        Some(added.wrapping_sub(read) as i64)
    }

    /// Records that a group reads the entry with this ID, the next one for it.
    #[inline]
    pub fn advance(&self, group: &mut Group, id: Id) {
        let counted = group.last_id >= self.history.first_id && !self.has_deleted_from(group.last_id);
        match group.entries_read {
            Some(read) if counted => group.entries_read = Some(read.wrapping_add(1)),
            _ if self.history.entries_added > 0 => group.entries_read = self.entries_up_to(id),
            _ => {}
        }
        group.last_id = id;
    }

    /// The blocks with their IDs, in order, as stored in dumps.
    pub fn blocks(&self) -> impl Iterator<Item = (Id, &Block)> {
        self.blocks.iter()
    }

    /// Number of blocks.
    pub fn blocks_len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of memory; the blocks' bytes are estimated from `samples` of them, 0 for all.
    pub(super) fn memory(&self, samples: usize) -> usize {
        let samples = if samples == 0 { usize::MAX } else { samples }.min(self.blocks.len());
        let sampled: usize = self.blocks.iter().take(samples).map(|(_, block)| block.memory()).sum();
        let blocks = (sampled as u128 * self.blocks.len() as u128).checked_div(samples as u128).unwrap_or(0);
        self.blocks.memory() + blocks as usize
    }

    /// Appends a block from outside.
    pub(super) fn load_block(&mut self, base: Id, bytes: &[u8]) -> Result<(), Corrupt> {
        let (block, Contents { live, ids }) = Block::check(bytes, base)?;
        if self.blocks.last().is_some_and(|(last, _)| last >= base) {
            return Err(Corrupt);
        }
        if let Some((first, last)) = ids {
            if self.len > 0 && self.last_id >= first {
                return Err(Corrupt);
            }
            self.last_id = last;
        }
        self.len += live;
        self.blocks.insert(base, block).map_err(|_| Corrupt)
    }

    /// Ends the loading of blocks. Without a history, as in old dumps, assumes that nothing was deleted.
    pub(super) fn loaded(&mut self, len: u64, last_id: Id, history: Option<History>) -> Result<(), Corrupt> {
        if len != self.len || last_id < self.last_id {
            return Err(Corrupt);
        }
        self.last_id = last_id;
        match history {
            Some(history) => self.history = history,
            None => {
                self.history.entries_added = len;
                self.find_first();
            }
        }
        Ok(())
    }
}

impl Gradual for Log {
    fn captures(&self) -> Option<&Arc<Captures>> {
        self.capture.as_ref().map(|capture| capture.pieces().captures())
    }

    fn begin(&mut self, pieces: Pieces) {
        let last = self.blocks.last().map_or(Id::MIN, |(base, _)| base);
        self.capture = Some(Box::new(Capture::new(pieces, last)));
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

impl Clone for Log {
    fn clone(&self) -> Self {
        let Log { len, last_id, history, .. } = *self;
        Log { blocks: self.blocks.clone(), len, last_id, history, capture: None }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(capture) = self.capture.take() {
            // The snapshot captures the rest and drops it.
            let captures = capture.pieces().captures().clone();
            let blocks = std::mem::take(&mut self.blocks);
            captures.keep_remainder(Box::new(Log { blocks, capture: Some(capture), ..Log::default() }));
        }
    }
}

/// Whether an entry fits in the last block.
#[inline]
fn has_room(block: &Block, words_len: usize, bytes: usize, limits: BlockLimits) -> bool {
    let bytes_max = if limits.bytes == 0 { BLOCK_BYTES_MAX } else { limits.bytes.min(BLOCK_BYTES_MAX) };
    block.byte_len().saturating_add(bytes) < bytes_max
        && (limits.entries == 0 || block.len() < limits.entries as u64)
        && block.has_room(words_len, bytes)
}

/// Entries of a range, in order.
pub struct Range<'a> {
    log: &'a Log,
    /// The next block.
    next: Place,
    entries: Option<Entries<'a>>,
    start: Id,
    end: Id,
}

impl<'a> Iterator for Range<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            let start = self.start;
            let wanted = |entry: &Entry<'_>| entry.id >= start && !entry.is_deleted();
            if let Some(entry) = self.entries.as_mut().and_then(|entries| entries.find(wanted)) {
                return (entry.id <= self.end).then_some(entry);
            }
            let (base, block) = self.log.blocks.at(self.next)?;
            self.entries = Some(block.entries(base));
            self.next = self.log.blocks.after(self.next);
        }
    }
}

/// Entries of a range, in reverse order.
pub struct RangeBack<'a> {
    log: &'a Log,
    /// The next block.
    next: Option<Place>,
    entries: Option<EntriesBack<'a>>,
    start: Id,
    end: Id,
}

impl<'a> Iterator for RangeBack<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            let end = self.end;
            let wanted = |entry: &Entry<'_>| entry.id <= end && !entry.is_deleted();
            if let Some(entry) = self.entries.as_mut().and_then(|entries| entries.find(wanted)) {
                return (entry.id >= self.start).then_some(entry);
            }
            let (base, block) = self.log.blocks.at(self.next?)?;
            self.entries = Some(block.entries_back(base));
            self.next = self.next.and_then(|place| self.log.blocks.before(place));
        }
    }
}
