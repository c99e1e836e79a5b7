//! Lists of slot ranges, as MIGRATESLOTS and ESTABLISH name them.

use super::CommandError;
use crate::{SLOT_COUNT, Slots};
use std::fmt;

/// Slots from `first` to `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRange {
    /// The first slot.
    pub first: u16,
    /// The last slot, not below the first.
    pub last: u16,
}

/// Slot ranges in the order in which they were named. They do not overlap, so there are at most 16,384.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeList(Vec<SlotRange>);

impl SlotRange {
    /// The slots.
    pub fn slots(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }

    /// Whether both ranges have a slot in common.
    pub fn overlaps(self, other: SlotRange) -> bool {
        self.last >= other.first && self.first <= other.last
    }
}

impl RangeList {
    /// The list of these ranges. `None` if it is empty, a slot does not exist, or ranges are reversed or overlap.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Option<RangeList> {
        let mut list = RangeList::default();
        for (first, last) in ranges {
            let (first, last) = (u16::try_from(first).ok()?, u16::try_from(last).ok()?);
            if first > last || last >= SLOT_COUNT {
                return None;
            }
            list.push(SlotRange { first, last }).ok()?;
        }
        (!list.0.is_empty()).then_some(list)
    }

    /// Parses pairs of slots until the end, or until a first slot that is not a number. Returns the list and the
    /// number of arguments it took.
    ///
    /// `check` sees each range before it is added, in the order in which Valkey finds errors.
    pub(super) fn parse(
        arguments: &[&[u8]],
        mut check: impl FnMut(SlotRange) -> Result<(), CommandError>,
    ) -> Result<(RangeList, usize), CommandError> {
        let mut list = RangeList::default();
        let mut taken = 0;
        while let Some(argument) = arguments.get(taken).filter(|argument| integer(argument).is_some()) {
            let first = slot(argument)?;
            let last = slot(arguments.get(taken + 1).ok_or(CommandError::NoEndSlot)?)?;
            if first > last {
                return Err(CommandError::StartAfterEnd(first, last));
            }
            let range = SlotRange { first, last };
            check(range)?;
            list.push(range)?;
            taken += 2;
        }
        if list.0.is_empty() {
            return Err(CommandError::NoRanges);
        }
        Ok((list, taken))
    }

    fn push(&mut self, range: SlotRange) -> Result<(), CommandError> {
        match self.0.iter().find(|previous| previous.overlaps(range)) {
            Some(previous) => Err(CommandError::RangesOverlap(range, *previous)),
            None => {
                self.0.push(range);
                Ok(())
            }
        }
    }

    /// The ranges.
    pub fn ranges(&self) -> &[SlotRange] {
        &self.0
    }

    /// The slots, range by range.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        self.0.iter().flat_map(|range| range.slots())
    }

    /// The slots as a set.
    pub fn to_slots(&self) -> Slots {
        let mut slots = Slots::EMPTY;
        self.0.iter().for_each(|range| slots.insert_range(range.first..=range.last));
        slots
    }

    /// Whether a slot is in the list.
    pub fn contains(&self, slot: u16) -> bool {
        self.0.iter().any(|range| (range.first..=range.last).contains(&slot))
    }

    /// Whether both lists have a slot in common.
    pub fn overlaps(&self, other: &RangeList) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|theirs| range.overlaps(*theirs)))
    }
}

impl fmt::Display for SlotRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// As in logs and GETSLOTMIGRATIONS: `0-5 7-7`.
impl fmt::Display for RangeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{range}")?;
        }
        Ok(())
    }
}

/// An integer as Valkey reads arguments: no sign but a minus, no leading zeros, no spaces.
fn integer(argument: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(argument).ok()?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = digits.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !digits.is_empty() && !digits.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

fn slot(argument: &[u8]) -> Result<u16, CommandError> {
    let number = integer(argument).and_then(|number| u16::try_from(number).ok());
    number.filter(|slot| *slot < SLOT_COUNT).ok_or(CommandError::InvalidSlot)
}
