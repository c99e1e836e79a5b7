//! Slots whose writes are held back: while they are handed over to another node, and for short times while their export
//! cannot keep up with the writes.
//!
//! Writers that find their slot here wait as for CLIENT PAUSE and are resumed by
//! [`Message::Resume`](crate::message::Message::Resume). Other slots are not affected.

use kvick_store::slot::SLOTS;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const WORD: usize = u64::BITS as usize;

/// See the module's documentation.
pub struct SlotWrites {
    /// Number of slots in `held`.
    count: AtomicUsize,
    held: [AtomicU64; SLOTS as usize / WORD],
    /// Writes that found their slot held.
    waits: AtomicU64,
}

impl Default for SlotWrites {
    fn default() -> Self {
        SlotWrites {
            count: AtomicUsize::new(0),
            held: [const { AtomicU64::new(0) }; SLOTS as usize / WORD],
            waits: AtomicU64::new(0),
        }
    }
}

impl SlotWrites {
    /// Holds writes to these slots from now on. If the caller has the global lock, no write to them is in progress when
    /// this returns.
    pub fn hold(&self, slots: impl Iterator<Item = u16>) {
        for slot in slots {
            let Some((word, bit)) = self.place(slot) else { continue };
            if word.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
                self.count.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Lets writes to these slots proceed. The caller must send [`Resume`](crate::message::Message::Resume) to the
    /// workers.
    pub fn release(&self, slots: impl Iterator<Item = u16>) {
        for slot in slots {
            let Some((word, bit)) = self.place(slot) else { continue };
            if word.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
                self.count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether any slot is held.
    #[inline]
    pub fn holds_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Whether writes to a slot are held. False for numbers that are not slots.
    #[inline]
    pub fn holds(&self, slot: u16) -> bool {
        self.place(slot).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Counts a write that has to wait.
    pub fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes that have had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn place(&self, slot: u16) -> Option<(&AtomicU64, u64)> {
        self.held.get(usize::from(slot) / WORD).map(|word| (word, 1 << (usize::from(slot) % WORD)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_held_until_released() {
        let writes = SlotWrites::default();
        writes.hold([0, 63, 64, 16_383, 16_384, 64].into_iter());
        assert!(writes.holds_any());
        let held = |slots: &[u16]| slots.iter().map(|slot| writes.holds(*slot)).collect::<Vec<_>>();
        assert_eq!(held(&[0, 1, 63, 64, 65, 16_383, 16_384]), [true, false, true, true, false, true, false]);
        writes.release([0, 1, 63].into_iter());
        assert!(writes.holds_any() && writes.holds(64) && !writes.holds(0));
        writes.release(0..SLOTS);
        assert!(!writes.holds_any());
    }
}
