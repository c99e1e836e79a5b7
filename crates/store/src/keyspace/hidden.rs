//! Partitions whose keys are hidden: those of slots that are being imported from another node.
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

    /// The partitions.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.words.len() * WORD).filter(|partition| self.contains(*partition))
    }
}

impl Keyspace {
    /// Hides the keys of these partitions in all databases, or shows them.
    ///
    /// # Panics
    /// If a partition does not exist.
    pub fn set_hidden(&self, partitions: impl Iterator<Item = usize>, hide: bool) {
        for partition in partitions {
            let (word, bit) = (&self.hidden.words[partition / WORD], 1 << (partition % WORD));
            if hide && word.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
                self.hidden.count.fetch_add(1, Ordering::SeqCst);
            } else if !hide && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
                self.hidden.count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Shows all keys.
    pub fn show_all(&self) {
        let partitions: Vec<usize> = self.hidden.iter().collect();
        self.set_hidden(partitions.into_iter(), false);
    }
}
