//! A block of the write log: written once, sequentially, and read by many threads while it grows.
//!
//! **Invariant**: bytes below `len` never change, and only those are read. Bytes from `len` on belong
//! to the [`BlockWriter`], of which there is one per block; it advances `len` after writing them.

use crate::table::prefetch_for_write;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum size of a block, in bytes.
pub const BLOCK_BYTES: usize = 64 * 1024;
/// Minimum size of a block, in bytes.
pub(super) const BLOCK_BYTES_MIN: usize = 16 * 1024;

/// How far ahead of the last record memory is prefetched, in bytes.
pub(super) const PREFETCH_AHEAD: usize = 256;

/// Memory of a block of `size` bytes, including its fields, its reference counts and its entry in the list of blocks.
fn footprint(size: usize) -> usize {
    size + size_of::<Block>() + 4 * size_of::<usize>()
}

/// A block. See the module documentation.
pub(super) struct Block {
    /// Offset of its first byte in the log.
    start: u64,
    len: AtomicUsize,
    bytes: Box<[UnsafeCell<MaybeUninit<u8>>]>,
    /// Total bytes of the log's blocks.
    live_bytes: Arc<AtomicUsize>,
}

// SAFETY: readers and the writer access disjoint bytes, separated
// by `len`, which is published after the bytes below it.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = footprint(self.bytes.len());
        // Freed before it is subtracted: eviction counts as memory what is in use and not of the log.
        drop(std::mem::take(&mut self.bytes));
        self.live_bytes.fetch_sub(bytes, Ordering::Release);
    }
}

impl Block {
    /// Offset of its first byte in the log.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Offset after its last written byte.
    pub fn end(&self) -> u64 {
        self.start + self.len.load(Ordering::Acquire) as u64
    }

    /// A range of the written bytes.
    ///
    /// # Panics
    /// If the range exceeds the written bytes.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len.load(Ordering::Acquire));
        let first = self.bytes.as_ptr().cast::<u8>();
        // SAFETY: bytes below `len` are initialised and do not change.
        unsafe { std::slice::from_raw_parts(first.add(range.start), range.end - range.start) }
    }
}

/// The only handle that can write to a block.
pub(super) struct BlockWriter(Arc<Block>);

impl BlockWriter {
    /// An empty block of `size` bytes that begins at offset `start`
    /// of the log. It is counted in `live_bytes` until it is dropped.
    pub fn new(start: u64, size: usize, live_bytes: &Arc<AtomicUsize>) -> Self {
        let bytes: Box<[MaybeUninit<u8>]> = Box::new_uninit_slice(size);
        let bytes = Box::into_raw(bytes) as *mut [UnsafeCell<MaybeUninit<u8>>];
        // SAFETY: the same allocation; an `UnsafeCell` has the layout of its content.
        let bytes = unsafe { Box::from_raw(bytes) };
        live_bytes.fetch_add(footprint(size), Ordering::Relaxed);
        BlockWriter(Arc::new(Block { start, len: AtomicUsize::new(0), bytes, live_bytes: live_bytes.clone() }))
    }

    /// The block, for readers.
    pub fn block(&self) -> &Arc<Block> {
        &self.0
    }

    /// Appends as many bytes as fit; returns how many.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let len = self.0.len.load(Ordering::Relaxed);
        let n = bytes.len().min(self.0.bytes.len() - len);
        let first = UnsafeCell::raw_get(self.0.bytes.as_ptr()).cast::<u8>();
        // SAFETY: only this writer accesses the bytes from `len` on, and `n` bytes fit there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), first.add(len), n) };
        self.0.len.store(len + n, Ordering::Release);
        // The thread that reads the log had these lines last. They arrive before the next records need them.
        if let Some(ahead) = self.0.bytes.get(len + n + PREFETCH_AHEAD) {
            prefetch_for_write(ahead);
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followers_read_while_records_are_appended() {
        let mut writer = BlockWriter::new(100, BLOCK_BYTES, &Arc::default());
        let block = writer.block().clone();
        let reader = std::thread::spawn(move || {
            let mut read = 0;
            while read < 3000 {
                let end = (block.end() - block.start()) as usize;
                assert!(block.bytes(read..end).iter().enumerate().all(|(i, byte)| *byte == ((read + i) % 251) as u8));
                read = end;
            }
        });
        (0..3000usize).for_each(|n| assert_eq!(writer.append(&[(n % 251) as u8]), 1));
        reader.join().expect("no panic");
    }

    #[test]
    fn full_block_rejects_elements() {
        let mut writer = BlockWriter::new(0, BLOCK_BYTES, &Arc::default());
        assert_eq!(writer.append(&vec![7; BLOCK_BYTES - 1]), BLOCK_BYTES - 1);
        assert_eq!((writer.append(b"xy"), writer.append(b"y")), (1, 0));
        assert_eq!(writer.block().bytes(BLOCK_BYTES - 2..BLOCK_BYTES), [7, b'x']);
    }
}
