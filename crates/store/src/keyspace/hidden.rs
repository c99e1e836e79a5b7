//! Partitions whose keys are hidden: those of slots that are being imported from another node, and those of slots that
//! this node has lost, until their keys are deleted.
//!
//! Hidden keys are not counted, listed, scanned, drawn at random, evicted or expired. Commands that name them find
//! them, and snapshots and dumps have them.

use super::Keyspace;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const WORD: usize = u64::BITS as usize;

/// A set of partitions.
pub(super) struct Hidden {
    count: AtomicUsize,
    words: Box<[AtomicU64]>,
}

impl Hidden {
    /// No partitions, of this many.
    pub(super) fn new(partitions: usize) -> Hidden {
        Hidden {
            count: AtomicUsize::new(0),
            words: (0..partitions.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Whether any partition is in the set.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Whether a partition is in the set.
    #[inline]
    pub(super) fn contains(&self, partition: usize) -> bool {
        self.is_any() && self.words[partition / WORD].load(Ordering::Relaxed) >> (partition % WORD) & 1 == 1
    }

    /// Adds a partition, or removes it.
    fn set(&self, partition: usize, add: bool) {
        let (word, bit) = (&self.words[partition / WORD], 1 << (partition % WORD));
        if add && word.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
            self.count.fetch_add(1, Ordering::SeqCst);
        } else if !add && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Keyspace {
    /// Hides the keys of these partitions in all databases, or shows them.
    ///
    /// # Panics
    /// If a partition does not exist.
    pub fn set_hidden(&self, partitions: impl Iterator<Item = usize>, hide: bool) {
        partitions.for_each(|partition| self.hidden.set(partition, hide));
    }

    /// Notes that the keys of this partition, in all databases, are about to be deleted, or that they were. Until then
    /// they are hidden, and the slot counts as empty.
    ///
    /// # Panics
    /// If the partition does not exist.
    pub fn set_doomed(&self, partition: usize, doom: bool) {
        self.doomed.set(partition, doom);
    }

    /// Whether the keys of a partition are about to be deleted.
    pub fn is_doomed(&self, partition: usize) -> bool {
        self.doomed.contains(partition)
    }

    /// Whether the keys of a partition are hidden.
    #[inline]
    pub(super) fn is_hidden(&self, partition: usize) -> bool {
        self.hidden.contains(partition) || self.doomed.contains(partition)
    }
}
