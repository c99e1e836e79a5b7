//! Sets of slots: bitmaps, as they are on the bus.
//!
//! Slot `n` is bit `n % 8`, counted from the lowest, of byte `n / 8`. Comparing, counting and searching go by words
//! of 64 slots. [`SlotsRef`] borrows a set from a received message; [`Slots`] owns one.
//!
//! A set keeps only a part of its bitmap, outside of which it has no slots. A primary of a large cluster owns a few
//! adjacent slots: they take some bytes, of the 2,048 that the whole bitmap has.

use std::fmt;
use std::ops::RangeInclusive;

/// Slots of a cluster.
pub const SLOT_COUNT: u16 = 16_384;

/// Bytes of a bitmap with one bit per slot.
pub const SLOTS_BYTES: usize = SLOT_COUNT as usize / 8;

/// Slots per word.
const WORD: u16 = 64;

/// Bytes of a word.
const WORD_BYTES: usize = WORD as usize / 8;

/// Zeros to compare with and to write.
static NO_SLOTS: [u8; SLOTS_BYTES] = [0; SLOTS_BYTES];

/// A borrowed set of slots.
#[derive(Clone, Copy)]
pub struct SlotsRef<'a> {
    /// Index of the first word.
    first: u16,
    /// Whole words.
    bytes: &'a [u8],
}

/// A set of slots.
#[derive(Clone)]
pub struct Slots {
    /// Index of the first word.
    first: u16,
    /// Whole words. `None` for the empty set: replicas, which are most nodes of a cluster, own no slots.
    bytes: Option<Box<[u8]>>,
}

/// The slots of a set as ranges: ascending, disjoint, with a gap between each two. See [`SlotsRef::ranges`].
#[derive(Clone, Debug)]
pub struct SlotRanges<'a> {
    slots: SlotsRef<'a>,
    next: u16,
}

impl<'a> SlotsRef<'a> {
    /// The set that a bitmap represents.
    pub fn new(bitmap: &'a [u8; SLOTS_BYTES]) -> SlotsRef<'a> {
        SlotsRef { first: 0, bytes: bitmap }
    }

    /// Appends the whole bitmap.
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&NO_SLOTS[..self.start()]);
        out.extend_from_slice(self.bytes);
        out.extend_from_slice(&NO_SLOTS[self.end()..]);
    }

    /// A copy.
    pub fn to_slots(self) -> Slots {
        let part = self.trimmed();
        if part.bytes.is_empty() { Slots::EMPTY } else { Slots { first: part.first, bytes: Some(part.bytes.into()) } }
    }

    /// Whether the slot is in the set. False for numbers from [`SLOT_COUNT`] on.
    pub fn contains(self, slot: u16) -> bool {
        let byte = usize::from(slot / 8).checked_sub(self.start()).and_then(|index| self.bytes.get(index));
        byte.is_some_and(|byte| byte >> (slot % 8) & 1 == 1)
    }

    /// Number of slots in the set.
    pub fn len(self) -> usize {
        self.words().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set has no slots.
    pub fn is_empty(self) -> bool {
        is_zero(self.bytes)
    }

    /// Whether a slot is in both sets.
    pub fn intersects(self, other: SlotsRef<'_>) -> bool {
        let ([_, ours, _], [_, theirs, _]) = self.split_at_common(other);
        let pairs = ours.as_chunks().0.iter().zip(theirs.as_chunks().0);
        pairs.into_iter().any(|(ours, theirs)| u64::from_ne_bytes(*ours) & u64::from_ne_bytes(*theirs) != 0)
    }

    /// The slots, ascending.
    pub fn iter(self) -> impl Iterator<Item = u16> + 'a {
        self.ranges().flatten()
    }

    /// The slots as ascending ranges of adjacent slots.
    pub fn ranges(self) -> SlotRanges<'a> {
        SlotRanges { slots: self, next: 0 }
    }

    /// The words that are kept, the lowest slot in the lowest bit.
    fn words(self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + 'a {
        self.bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk))
    }

    /// The word with this index; 0 behind the last.
    pub(crate) fn word(self, index: u16) -> u64 {
        let chunk = index.checked_sub(self.first).and_then(|index| self.bytes.as_chunks().0.get(usize::from(index)));
        chunk.map_or(0, |chunk| u64::from_le_bytes(*chunk))
    }

    /// The first slot from `from` on that is in the set, or not in it if `inverted`. [`SLOT_COUNT`] if there is none.
    fn find(self, from: u16, inverted: bool) -> u16 {
        let mask = if inverted { u64::MAX } else { 0 };
        let from = if inverted { from } else { from.max(self.first * WORD) };
        let end = if inverted { SLOT_COUNT / WORD } else { (self.end() / WORD_BYTES) as u16 };
        let mut index = from / WORD;
        let mut word = (self.word(index) ^ mask) & (u64::MAX << (from % WORD));
        while index < end {
            if word != 0 {
                return index * WORD + word.trailing_zeros() as u16;
            }
            index += 1;
            word = self.word(index) ^ mask;
        }
        SLOT_COUNT
    }

    /// The byte of the bitmap with which `bytes` begins.
    fn start(self) -> usize {
        usize::from(self.first) * WORD_BYTES
    }

    /// The byte of the bitmap behind `bytes`.
    fn end(self) -> usize {
        self.start() + self.bytes.len()
    }

    /// The set without zeros at both ends.
    fn trimmed(self) -> SlotsRef<'a> {
        let Some(first) = self.words().position(|word| word != 0) else { return SlotsRef { first: 0, bytes: &[] } };
        let last = self.words().rposition(|word| word != 0).unwrap_or(first);
        SlotsRef { first: self.first + first as u16, bytes: &self.bytes[first * WORD_BYTES..(last + 1) * WORD_BYTES] }
    }

    /// Of both sets, what they keep before, in and behind the part of the bitmap that both keep.
    fn split_at_common<'b>(self, other: SlotsRef<'b>) -> ([&'a [u8]; 3], [&'b [u8]; 3]) {
        let start = self.start().max(other.start());
        let end = self.end().min(other.end()).max(start);
        (self.split(start, end), other.split(start, end))
    }

    /// What is kept before, in and behind a part of the bitmap.
    fn split(self, start: usize, end: usize) -> [&'a [u8]; 3] {
        let place = |byte: usize| byte.clamp(self.start(), self.end()) - self.start();
        let (start, end) = (place(start), place(end));
        [&self.bytes[..start], &self.bytes[start..end], &self.bytes[end..]]
    }
}

/// The slots of a range that are in the word with this index, which the range touches.
fn word_of_range(index: u16, first: u16, last: u16) -> u64 {
    let low = first.saturating_sub(index * WORD);
    let high = (last - index * WORD).min(WORD - 1);
    (u64::MAX << low) & (u64::MAX >> (WORD - 1 - high))
}

/// Whether all of at most [`SLOTS_BYTES`] bytes are zeros.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.is_empty() || *bytes == NO_SLOTS[..bytes.len()]
}

impl PartialEq for SlotsRef<'_> {
    fn eq(&self, other: &SlotsRef<'_>) -> bool {
        let ([before, common, behind], [others_before, others_common, others_behind]) = self.split_at_common(*other);
        common == others_common && [before, behind, others_before, others_behind].into_iter().all(is_zero)
    }
}

impl Eq for SlotsRef<'_> {}

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
    pub const EMPTY: Slots = Slots { first: 0, bytes: None };

    /// The set with all slots.
    pub fn all() -> Slots {
        Slots { first: 0, bytes: Some(Box::new([0xff; SLOTS_BYTES])) }
    }

    /// The set, borrowed.
    pub fn view(&self) -> SlotsRef<'_> {
        SlotsRef { first: self.first, bytes: self.bytes.as_deref().unwrap_or_default() }
    }

    /// Adds a slot. Returns whether the set lacked it. Numbers from [`SLOT_COUNT`] on are ignored.
    pub fn insert(&mut self, slot: u16) -> bool {
        if slot >= SLOT_COUNT {
            return false;
        }
        let byte = &mut self.cover_word(slot / WORD)[usize::from(slot % WORD / 8)];
        let before = std::mem::replace(byte, *byte | 1 << (slot % 8));
        before != *byte
    }

    /// Removes a slot. Returns whether the set had it.
    pub fn remove(&mut self, slot: u16) -> bool {
        if !self.contains(slot) {
            return false;
        }
        let word = self.cover_word(slot / WORD);
        word[usize::from(slot % WORD / 8)] &= !(1 << (slot % 8));
        if *word == [0; WORD_BYTES] {
            self.drop_if_empty();
        }
        true
    }

    /// Adds all slots of a range. Numbers from [`SLOT_COUNT`] on are ignored.
    pub fn insert_range(&mut self, range: RangeInclusive<u16>) {
        let (first, last) = (*range.start(), (*range.end()).min(SLOT_COUNT - 1));
        if first > last {
            return;
        }
        let first_word = first / WORD;
        let words = self.cover(first_word, last / WORD + 1).as_chunks_mut::<WORD_BYTES>().0;
        for (index, word) in (first_word..).zip(words) {
            *word = (u64::from_le_bytes(*word) | word_of_range(index, first, last)).to_le_bytes();
        }
    }

    /// Removes all slots of a range.
    pub fn remove_range(&mut self, range: RangeInclusive<u16>) {
        let mut slots = Slots::EMPTY;
        slots.insert_range(range);
        self.remove_all(slots.view());
    }

    /// Adds all slots of another set.
    pub fn insert_all(&mut self, other: SlotsRef<'_>) {
        let other = other.trimmed();
        if !other.bytes.is_empty() {
            let ours = self.cover(other.first, (other.end() / WORD_BYTES) as u16);
            ours.iter_mut().zip(other.bytes).for_each(|(byte, other)| *byte |= other);
        }
    }

    /// Removes all slots of another set.
    pub fn remove_all(&mut self, other: SlotsRef<'_>) {
        let ([before, common, _], [_, theirs, _]) = self.view().split_at_common(other);
        let range = before.len()..before.len() + common.len();
        if let Some(bytes) = &mut self.bytes {
            bytes[range].iter_mut().zip(theirs).for_each(|(byte, other)| *byte &= !other);
            self.drop_if_empty();
        }
    }

    /// The slots that are also in another set.
    #[must_use]
    pub fn common_with(&self, other: SlotsRef<'_>) -> Slots {
        let (mut common, mut rest) = (self.clone(), self.clone());
        rest.remove_all(other);
        common.remove_all(rest.view());
        common
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
        self.bytes.is_none()
    }

    /// See [`SlotsRef::iter`].
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.view().iter()
    }

    /// See [`SlotsRef::ranges`].
    pub fn ranges(&self) -> SlotRanges<'_> {
        self.view().ranges()
    }

    /// The word with this index. Extends what is kept if it lacks it.
    #[inline]
    fn cover_word(&mut self, index: u16) -> &mut [u8; WORD_BYTES] {
        let place = |first: u16| index.checked_sub(first).map(usize::from);
        let has = |set: &Slots| place(set.first).is_some_and(|at| at < set.view().words().len());
        if !has(self) {
            self.cover(index, index + 1);
        }
        let at = usize::from(index - self.first);
        &mut self.bytes.as_deref_mut().unwrap_or_default().as_chunks_mut().0[at]
    }

    /// The words from `first` on, up to `end`. Extends what is kept if it lacks some of them.
    fn cover(&mut self, first: u16, end: u16) -> &mut [u8] {
        let place = |word: u16, start: u16| usize::from(word - start) * WORD_BYTES;
        let kept = self.view();
        let kept_end = (kept.end() / WORD_BYTES) as u16;
        let is_covered = !kept.bytes.is_empty() && first >= kept.first && end <= kept_end;
        if !is_covered {
            let (new_first, new_end) =
                if kept.bytes.is_empty() { (first, end) } else { (first.min(kept.first), end.max(kept_end)) };
            let mut bytes = vec![0; place(new_end, new_first)];
            if !kept.bytes.is_empty() {
                bytes[place(kept.first, new_first)..][..kept.bytes.len()].copy_from_slice(kept.bytes);
            }
            *self = Slots { first: new_first, bytes: Some(bytes.into()) };
        }
        let start = self.first;
        &mut self.bytes.as_deref_mut().unwrap_or_default()[place(first, start)..place(end, start)]
    }

    /// Frees the memory of a set without slots.
    fn drop_if_empty(&mut self) {
        if self.view().is_empty() {
            *self = Slots::EMPTY;
        }
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
        let mut bytes = Vec::new();
        slots.view().write(&mut bytes);
        assert_eq!(bytes.len(), SLOTS_BYTES);
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
            (range_start, length_of_range) in (0..SLOT_COUNT + 10, 0..SLOT_COUNT + 10),
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
            let mut bitmap = Vec::new();
            slots.view().write(&mut bitmap);
            let whole = SlotsRef::new(bitmap.as_slice().try_into().expect("all slots"));
            prop_assert_eq!(whole, slots.view());
            prop_assert_eq!(&whole.to_slots(), &slots);
            prop_assert!(whole.ranges().eq(slots.ranges()));
            let other = Slots::from_iter(others.iter().copied());
            let both = others.iter().filter(|slot| model.contains(slot)).count();
            prop_assert_eq!(slots == other, both == model.len() && both == other.len());
            prop_assert_eq!(slots.view().intersects(other.view()), others.iter().any(|slot| model.contains(slot)));
            if let Some(last) = length_of_range.checked_sub(1).map(|length| range_start.saturating_add(length)) {
                let (mut with, mut without) = (slots.clone(), slots.clone());
                with.insert_range(range_start..=last);
                without.remove_range(range_start..=last);
                let is_in = |slot: u16| (range_start..=last).contains(&slot);
                let all = || 0..SLOT_COUNT;
                prop_assert!(with.iter().eq(all().filter(|slot| model.contains(slot) || is_in(*slot))));
                prop_assert!(without.iter().eq(all().filter(|slot| model.contains(slot) && !is_in(*slot))));
                prop_assert_eq!(without.is_empty(), without.iter().next().is_none());
            }
            let mut union = slots.clone();
            union.insert_all(other.view());
            prop_assert!(others.iter().all(|slot| union.contains(*slot)));
            union.remove_all(other.view());
            prop_assert!(union.iter().eq(model.iter().copied().filter(|slot| !others.contains(slot))));
        }
    }
}
