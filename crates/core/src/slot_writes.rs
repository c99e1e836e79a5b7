//! Slots whose writes are held back: while they are handed over to another node, for short times while their export
//! cannot keep up with the writes, and while MIGRATE sends keys that kept changing. Once the other node was allowed to
//! take them over, reads are held back too: it may own the slots already, and change what this node would show.
//!
//! Clients that find their slot here wait as for CLIENT PAUSE and are resumed by
//! [`Message::Resume`](crate::message::Message::Resume). Other slots are not affected.

use kvick_store::slot::SLOTS;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const WORD: usize = u64::BITS as usize;
const WORDS: usize = SLOTS as usize / WORD;

/// See the module's documentation. Thousands of slots change at once while clients wait, so they are changed in words.
pub struct SlotWrites {
    /// Number of slots in `held`.
    count: AtomicUsize,
    /// How often slots were held.
    generation: AtomicU64,
    held: [AtomicU64; WORDS],
    /// Slots of `held` whose reads are held back as well.
    granted: [AtomicU64; WORDS],
    /// Writes that found their slot held.
    waits: AtomicU64,
    holders: Mutex<Holders>,
}

/// Who holds slots.
struct Holders {
    /// Slots of exports.
    exported: [u64; WORDS],
    /// Number of MIGRATE requests for each slot.
    migrated: HashMap<u16, usize>,
}

impl Default for SlotWrites {
    fn default() -> Self {
        SlotWrites {
            count: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
            held: [const { AtomicU64::new(0) }; WORDS],
            granted: [const { AtomicU64::new(0) }; WORDS],
            waits: AtomicU64::new(0),
            holders: Mutex::new(Holders { exported: [0; WORDS], migrated: HashMap::new() }),
        }
    }
}

impl SlotWrites {
    /// Holds writes to the slots of an export from now on. If the caller has the global lock, no write to them is in
    /// progress when this returns.
    pub fn hold(&self, slots: impl Iterator<Item = u16>) {
        let mut holders = self.holders.lock();
        for (index, bits) in words(slots) {
            holders.exported[index] |= bits;
            self.set(index, bits);
        }
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Holds reads of those slots of an export that are still held by [`hold`](Self::hold), until they are released. If
    /// the caller has the global lock, no read of them is in progress when this returns.
    pub fn hold_reads(&self, slots: impl Iterator<Item = u16>) {
        let holders = self.holders.lock();
        for (index, bits) in words(slots) {
            self.granted[index].fetch_or(bits & holders.exported[index], Ordering::SeqCst);
        }
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends [`hold`](Self::hold) for these slots. The caller must send [`Resume`](crate::message::Message::Resume) to
    /// the workers.
    pub fn release(&self, slots: impl Iterator<Item = u16>) {
        let mut holders = self.holders.lock();
        let migrated = words(holders.migrated.keys().copied()).collect::<HashMap<_, _>>();
        for (index, bits) in words(slots) {
            holders.exported[index] &= !bits;
            self.granted[index].fetch_and(!bits, Ordering::SeqCst);
            self.clear(index, bits & !migrated.get(&index).copied().unwrap_or(0));
        }
    }

    /// Holds writes to the slot of keys that MIGRATE sends. Each call needs one of
    /// [`release_migrated`](Self::release_migrated).
    pub fn hold_migrated(&self, slot: u16) {
        let mut holders = self.holders.lock();
        *holders.migrated.entry(slot).or_default() += 1;
        words([slot].into_iter()).for_each(|(index, bits)| self.set(index, bits));
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends one [`hold_migrated`](Self::hold_migrated). The caller must send
    /// [`Resume`](crate::message::Message::Resume) to the workers.
    pub fn release_migrated(&self, slot: u16) {
        let mut holders = self.holders.lock();
        let Some(requests) = holders.migrated.get_mut(&slot) else { return };
        *requests -= 1;
        if *requests == 0 {
            holders.migrated.remove(&slot);
            words([slot].into_iter()).for_each(|(index, bits)| self.clear(index, bits & !holders.exported[index]));
        }
    }

    /// Marks slots as held. The caller has locked `holders`.
    fn set(&self, index: usize, bits: u64) {
        let added = bits & !self.held[index].fetch_or(bits, Ordering::SeqCst);
        self.count.fetch_add(added.count_ones() as usize, Ordering::SeqCst);
    }

    /// Clears the marks of slots that nobody holds any more. The caller has locked `holders`.
    fn clear(&self, index: usize, bits: u64) {
        let removed = bits & self.held[index].fetch_and(!bits, Ordering::SeqCst);
        self.count.fetch_sub(removed.count_ones() as usize, Ordering::SeqCst);
    }

    /// Changes whenever slots are held. A write that was admitted in an earlier generation must be checked again.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether any slot is held.
    #[inline]
    pub fn holds_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Whether writes to a slot are held. False for numbers that are not slots.
    #[inline]
    pub fn holds(&self, slot: u16) -> bool {
        place(&self.held, slot).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Whether reads of a slot are held. False for numbers that are not slots.
    #[inline]
    pub fn holds_reads(&self, slot: u16) -> bool {
        place(&self.granted, slot).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Counts a write that has to wait.
    pub fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes that have had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

/// The words that have slots, each with its index. Numbers that are not slots are left out.
fn words(slots: impl Iterator<Item = u16>) -> impl Iterator<Item = (usize, u64)> {
    let mut words = [0; WORDS];
    for slot in slots.filter(|slot| *slot < SLOTS) {
        words[usize::from(slot) / WORD] |= 1 << (usize::from(slot) % WORD);
    }
    words.into_iter().enumerate().filter(|(_, bits)| *bits != 0)
}

/// The word and the bit of a slot.
fn place(slots: &[AtomicU64], slot: u16) -> Option<(&AtomicU64, u64)> {
    slots.get(usize::from(slot) / WORD).map(|word| (word, 1 << (usize::from(slot) % WORD)))
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

    #[test]
    fn a_slot_is_held_until_its_last_holder_releases_it() {
        let writes = SlotWrites::default();
        writes.hold([7].into_iter());
        let generation = writes.generation();
        writes.hold_migrated(7);
        assert_ne!(writes.generation(), generation);
        writes.hold_migrated(7);
        writes.release([7, 8].into_iter());
        writes.release_migrated(7);
        assert!(writes.holds(7));
        writes.hold([7].into_iter());
        writes.release_migrated(7);
        assert!(writes.holds(7), "of an export");
        writes.release([7].into_iter());
        assert!(!writes.holds(7) && !writes.holds_any());
        writes.release_migrated(7);
        assert!(!writes.holds_any());
    }

    #[test]
    fn reads_are_held_only_as_long_as_writes() {
        let slots = SlotWrites::default();
        slots.hold_reads([7].into_iter());
        assert!(!slots.holds_reads(7), "the export has ended");
        slots.hold([7, 64].into_iter());
        let generation = slots.generation();
        slots.hold_reads([7, 65].into_iter());
        assert_eq!([7, 64, 65, SLOTS].map(|slot| slots.holds_reads(slot)), [true, false, false, false]);
        assert_ne!(slots.generation(), generation);
        slots.release([7].into_iter());
        assert!(!slots.holds_reads(7) && !slots.holds(7));
    }
}
