//! The tail of the log: a copy of the last data records in memory that outlives the process, a mapped file.
//!
//! The append-only file lacks records that its thread has not written yet. If the process is killed, the next start
//! [reads](reader) them from the tail. Records are copied when they are appended to the log, and **sealed** with a
//! checksum, together with those before them, before a reply to their command leaves. A record counts as written when
//! the thread has appended it to the file, so one of the two has each record that was acknowledged.
//!
//! The memory is divided into segments ([format](mod@format)). Segments whose bytes are all in the file are reused,
//! the last one first, so that a thread that keeps up needs only a few of them, which stay in the processor's cache.
//! If no segment is free, the tail is **full**: it takes nothing more until its owner restarts it, with a new epoch.
//!
//! **Invariant**: in an epoch, positions have no gap. Bytes from the last released position on are never overwritten.

mod format;
mod reader;
#[cfg(test)]
mod tests;

use crate::log::block::PREFETCH_AHEAD;
use crate::table::prefetch_for_write;
use format::{Frame, Key, frame_bytes, write_seed};
use std::collections::VecDeque;

pub use format::{Anchor, HEADER_BYTES, SEGMENT_BYTES};
pub use reader::{Records, TailReader};

/// Memory of a tail. It holds a header and a number of segments.
pub type TailMemory = Box<dyn AsMut<[u8]> + Send>;

/// See the module's documentation.
pub(super) struct Tail {
    memory: TailMemory,
    seed: u64,
    epoch: u64,
    key: Key,
    /// The slot of the last anchor.
    slot: usize,
    /// Numbers of free segments; the last one is used first.
    free: Vec<usize>,
    /// Segments in use, the oldest first, with the position after the last byte of each but the last.
    used: VecDeque<(usize, u64)>,
    /// The place of the next frame in the memory, and the end of its segment.
    place: usize,
    segment_end: usize,
    /// Bytes of the next frame that have been written, and are to be sealed.
    pending: usize,
    /// The position of the next frame.
    position: u64,
    is_full: bool,
}

impl Tail {
    /// An empty tail that uses a number of segments.
    pub fn new(memory: TailMemory, seed: u64, segments: usize) -> Tail {
        let mut tail = Tail {
            memory,
            seed,
            epoch: 0,
            key: Key::new(seed, 0),
            slot: 0,
            free: Vec::new(),
            used: VecDeque::new(),
            place: 0,
            segment_end: 0,
            pending: 0,
            position: 0,
            is_full: false,
        };
        tail.begin_epoch(segments);
        tail
    }

    /// Starts again with an empty tail, in a new epoch, and in other memory that has the same header.
    pub fn restart(&mut self, memory: TailMemory, segments: usize) {
        self.memory = memory;
        self.begin_epoch(segments);
    }

    fn begin_epoch(&mut self, segments: usize) {
        let memory = (*self.memory).as_mut();
        write_seed(memory, self.seed);
        let bytes = memory.len().saturating_sub(HEADER_BYTES);
        self.epoch += 1;
        self.key = Key::new(self.seed, self.epoch);
        self.free = (0..segments.min(bytes / SEGMENT_BYTES)).rev().collect();
        self.used.clear();
        (self.place, self.segment_end, self.pending, self.position, self.is_full) = (0, 0, 0, 0, false);
    }

    pub fn into_memory(self) -> TailMemory {
        self.memory
    }

    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Writes an anchor of the present epoch over the last but one. Returns false if its name is too long.
    pub fn anchor(&mut self, anchor: &mut Anchor) -> bool {
        anchor.epoch = self.epoch;
        self.slot = 1 - self.slot;
        anchor.write((*self.memory).as_mut(), self.slot, self.seed)
    }

    /// The next anchor will replace the last one, instead of the one before it.
    pub fn revoke_anchor(&mut self) {
        self.slot = 1 - self.slot;
    }

    /// Copies records, or a part of them.
    #[inline]
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_full {
            let start = self.place + format::FRAME_HEADER + self.pending;
            let room = self.segment_end.saturating_sub(start);
            if room == 0 {
                self.next_segment();
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min(room));
            let memory = (*self.memory).as_mut();
            memory[start..start + now.len()].copy_from_slice(now);
            if let Some(ahead) = memory.get(start + now.len() + PREFETCH_AHEAD) {
                prefetch_for_write(ahead);
            }
            self.pending += now.len();
            bytes = later;
        }
    }

    /// Completes the frame of the records since the last one. They are complete, including what belongs together.
    pub fn seal(&mut self) {
        if !self.is_full {
            self.end_frame(true);
        }
    }

    fn end_frame(&mut self, ends_group: bool) {
        let len = self.pending;
        if len == 0 {
            return;
        }
        let out = &mut (*self.memory).as_mut()[self.place..self.segment_end];
        Frame::seal(out, self.key, self.position, len, ends_group);
        self.position += len as u64;
        self.place += frame_bytes(len);
        self.pending = 0;
    }

    #[cold]
    fn next_segment(&mut self) {
        self.end_frame(false);
        let Some(number) = self.free.pop() else {
            self.is_full = true;
            return;
        };
        if let Some((_, end)) = self.used.back_mut() {
            *end = self.position;
        }
        self.used.push_back((number, u64::MAX));
        self.place = HEADER_BYTES + number * SEGMENT_BYTES;
        self.segment_end = self.place + SEGMENT_BYTES;
    }

    /// Bytes before this position are in the file.
    pub fn release(&mut self, position: u64) {
        while self.used.front().is_some_and(|(_, end)| *end <= position) {
            self.free.extend(self.used.pop_front().map(|(number, _)| number));
        }
    }
}
