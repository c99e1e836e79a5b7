//! Sets of slots: bitmaps of 2,048 bytes, as they are on the bus.
//!
//! Slot `n` is bit `n % 8`, counted from the lowest, of byte `n / 8`. Comparing, counting and searching go by words
//! of 64 slots. [`SlotsRef`] borrows a set from a received message; [`Slots`] owns one.

use std::fmt;
use std::ops::RangeInclusive;

/// Slots of a cluster.
pub const SLOT_COUNT: u16 = 16_384;

/// Bytes of a bitmap with one bit per slot.
pub const SLOTS_BYTES: usize = SLOT_COUNT as usize / 8;

/// Slots per word.
const WORD: u16 = 64;

/// A borrowed set of slots.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SlotsRef<'a>(&'a [u8; SLOTS_BYTES]);

/// A set of slots. The empty set takes no memory of its own: replicas, which are most nodes of a cluster, own none.
#[derive(Clone)]
pub struct Slots(Option<Box<Bitmap>>);

/// A bit for each slot.
type Bitmap = [u8; SLOTS_BYTES];

/// The bitmap of the empty set.
static NO_SLOTS: Bitmap = [0; SLOTS_BYTES];

/// The slots of a set as ranges: ascending, disjoint, with a gap between each two. See [`SlotsRef::ranges`].
#[derive(Clone, Debug)]
pub struct SlotRanges<'a> {
    slots: SlotsRef<'a>,
    next: u16,
}

impl<'a> SlotsRef<'a> {
    /// The set that a bitmap represents.
    pub fn new(bitmap: &'a [u8; SLOTS_BYTES]) -> SlotsRef<'a> {
        SlotsRef(bitmap)
    }

    /// The bitmap.
    pub fn as_bytes(self) -> &'a [u8; SLOTS_BYTES] {
        self.0
    }

    /// A copy.
    pub fn to_slots(self) -> Slots {
        if self.is_empty() { Slots::EMPTY } else { Slots(Some(Box::new(*self.0))) }
    }

    /// Whether the slot is in the set. False for numbers from [`SLOT_COUNT`] on.
    pub fn contains(self, slot: u16) -> bool {
        self.0.get(usize::from(slot / 8)).is_some_and(|byte| byte >> (slot % 8) & 1 == 1)
    }

    /// Number of slots in the set.
    pub fn len(self) -> usize {
        self.words().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set has no slots.
    pub fn is_empty(self) -> bool {
        self.words().all(|word| word == 0)
    }

    /// Whether a slot is in both sets.
    pub fn intersects(self, other: SlotsRef<'_>) -> bool {
        self.words().zip(other.words()).any(|(word, other)| word & other != 0)
    }

    /// The slots, ascending.
    pub fn iter(self) -> impl Iterator<Item = u16> + 'a {
        self.ranges().flatten()
    }

    /// The slots as ascending ranges of adjacent slots.
    pub fn ranges(self) -> SlotRanges<'a> {
        SlotRanges { slots: self, next: 0 }
    }

    /// Words of 64 slots, the lowest slot in the lowest bit.
    fn words(self) -> impl Iterator<Item = u64> + 'a {
        self.0.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk))
    }

    /// The word with this index; 0 behind the last.
    pub(crate) fn word(self, index: u16) -> u64 {
        self.0.as_chunks().0.get(usize::from(index)).map_or(0, |chunk| u64::from_le_bytes(*chunk))
    }

    /// The first slot from `from` on that is in the set, or not in it if `inverted`. [`SLOT_COUNT`] if there is none.
    fn find(self, from: u16, inverted: bool) -> u16 {
        let mask = if inverted { u64::MAX } else { 0 };
        let mut index = from / WORD;
        let mut word = (self.word(index) ^ mask) & (u64::MAX << (from % WORD));
        while index < SLOT_COUNT / WORD {
            if word != 0 {
                return index * WORD + word.trailing_zeros() as u16;
            }
            index += 1;
            word = self.word(index) ^ mask;
        }
        SLOT_COUNT
    }
}

impl Iterator for SlotRanges<'_> {
    type Item = RangeInclusive<u16>;

    fn next(&mut self) -> Option<RangeInclusive<u16>> {
        let first = self.slots.find(self.next, false);
        if first == SLOT_COUNT {
            self.next = SLOT_COUNT;
            return None;
        }
        self.next = self.slots.find(first, true);
        Some(first..=self.next - 1)
    }
}

impl Slots {
    /// The set without slots.
    pub const EMPTY: Slots = Slots(None);

    /// The set with all slots.
    pub fn all() -> Slots {
        Slots(Some(Box::new([0xff; SLOTS_BYTES])))
    }

    /// The set, borrowed.
    pub fn view(&self) -> SlotsRef<'_> {
        SlotsRef(self.0.as_deref().unwrap_or(&NO_SLOTS))
    }

    /// Adds a slot. Returns whether the set lacked it. Numbers from [`SLOT_COUNT`] on are ignored.
    pub fn insert(&mut self, slot: u16) -> bool {
        self.set(slot, true)
    }

    /// Removes a slot. Returns whether the set had it.
    pub fn remove(&mut self, slot: u16) -> bool {
        self.set(slot, false)
    }

    /// Adds all slots of another set.
    pub fn insert_all(&mut self, other: SlotsRef<'_>) {
        match &mut self.0 {
            Some(bitmap) => bitmap.iter_mut().zip(other.0).for_each(|(byte, other)| *byte |= other),
            None => *self = other.to_slots(),
        }
    }

    /// Removes all slots of another set.
    pub fn remove_all(&mut self, other: SlotsRef<'_>) {
        let Some(bitmap) = &mut self.0 else { return };
        bitmap.iter_mut().zip(other.0).for_each(|(byte, other)| *byte &= !other);
        if self.is_empty() {
            self.0 = None;
        }
    }

    /// See [`SlotsRef::contains`].
    pub fn contains(&self, slot: u16) -> bool {
        self.view().contains(slot)
    }

    /// See [`SlotsRef::len`].
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// See [`SlotsRef::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.view().is_empty()
    }

    /// See [`SlotsRef::iter`].
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.view().iter()
    }

    /// See [`SlotsRef::ranges`].
    pub fn ranges(&self) -> SlotRanges<'_> {
        self.view().ranges()
    }

    /// Adds or removes a slot. Returns whether that changed the set.
    fn set(&mut self, slot: u16, member: bool) -> bool {
        if slot >= SLOT_COUNT || (self.0.is_none() && !member) {
            return false;
        }
        let byte = &mut self.0.get_or_insert_with(|| Box::new(NO_SLOTS))[usize::from(slot / 8)];
        let bit = 1 << (slot % 8);
        let before = *byte;
        *byte = if member { before | bit } else { before & !bit };
        *byte != before
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Slots) -> bool {
        self.view() == other.view()
    }
}

impl Eq for Slots {}

impl Default for Slots {
    fn default() -> Slots {
        Slots::EMPTY
    }
}

impl FromIterator<u16> for Slots {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> Slots {
        let mut set = Slots::EMPTY;
        for slot in slots {
            set.insert(slot);
        }
        set
    }
}

impl fmt::Debug for SlotsRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ranges()).finish()
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn bits_are_where_the_bus_has_them() {
        let slots = Slots::from_iter([0, 9, SLOT_COUNT - 1]);
        let bytes = slots.view().as_bytes();
        assert_eq!((bytes[0], bytes[1], bytes[SLOTS_BYTES - 1]), (1, 2, 0x80));
    }

    #[test]
    fn ranges_reach_both_ends() {
        assert_eq!(Slots::all().ranges().collect::<Vec<_>>(), [0..=SLOT_COUNT - 1]);
        assert_eq!(Slots::EMPTY.ranges().next(), None);
        assert_eq!(Slots::all().len(), usize::from(SLOT_COUNT));
        let slots = Slots::from_iter((0..=63).chain(65..=200).chain([SLOT_COUNT - 1]));
        assert_eq!(slots.ranges().collect::<Vec<_>>(), [0..=63, 65..=200, SLOT_COUNT - 1..=SLOT_COUNT - 1]);
    }

    #[test]
    fn numbers_that_are_no_slots_are_ignored() {
        let mut slots = Slots::EMPTY;
        assert!(!slots.insert(SLOT_COUNT) && !slots.insert(u16::MAX));
        assert!(slots.is_empty() && !slots.contains(u16::MAX));
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(
            changes in prop::collection::vec((0..SLOT_COUNT, 0u16..200, any::<bool>()), 0..20),
            others in prop::collection::vec(0..SLOT_COUNT, 0..50),
        ) {
            let (mut slots, mut model) = (Slots::EMPTY, BTreeSet::new());
            for (first, length, insert) in changes {
                for slot in first..(first + length).min(SLOT_COUNT) {
                    if insert {
                        prop_assert_eq!(slots.insert(slot), model.insert(slot));
                    } else {
                        prop_assert_eq!(slots.remove(slot), model.remove(&slot));
                    }
                }
            }
            prop_assert!(slots.iter().eq(model.iter().copied()));
            prop_assert_eq!(slots.len(), model.len());
            prop_assert_eq!(slots.is_empty(), model.is_empty());
            let ranges: Vec<_> = slots.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end() + 1 < *pair[1].start()));
            let other = Slots::from_iter(others.iter().copied());
            prop_assert_eq!(slots.view().intersects(other.view()), others.iter().any(|slot| model.contains(slot)));
            let mut union = slots.clone();
            union.insert_all(other.view());
            prop_assert!(others.iter().all(|slot| union.contains(*slot)));
            union.remove_all(other.view());
            prop_assert!(union.iter().eq(model.iter().copied().filter(|slot| !others.contains(slot))));
        }
    }
}
