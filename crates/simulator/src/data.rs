//! The data of a node: keys that collect the numbers of the writes they got, and the replication stream.
//!
//! As in Valkey, a history has a name and an offset. A primary that was promoted gives its history a new name, and
//! remembers up to which offset the old one is the same. A replica continues a history that its primary has, or else
//! gets a copy of all data.

use kvick_cluster::NodeId;
use kvick_cluster::Slots;
use kvick_cluster::migration::{JobName, RangeList};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Bytes of the stream that an entry takes.
pub(crate) const ENTRY_BYTES: u64 = 100;

/// Entries that are kept for replicas that reconnect.
const BACKLOG_ENTRIES: usize = 500;

/// The numbers of the writes that keys have got, by slot and key.
pub(crate) type Keys = BTreeMap<u16, BTreeMap<u32, Vec<u32>>>;

/// A change of SETSLOT, as it is replicated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotChange {
    Migrating(NodeId),
    Importing(NodeId),
    Node(NodeId),
}

/// What is replicated.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Keeps the stream alive.
    Ping,
    Write {
        slot: u16,
        key: u32,
        number: u32,
    },
    /// A key that came from another node, with all its numbers.
    Restore {
        slot: u16,
        key: u32,
        numbers: Vec<u32>,
    },
    Remove {
        slot: u16,
        key: u32,
    },
    RemoveSlots(Box<Slots>),
    SetSlot {
        slot: u16,
        change: SlotChange,
    },
    /// An atomic slot migration has begun: the words of SYNCSLOTS ESTABLISH.
    Establish {
        name: JobName,
        ranges: RangeList,
        words: Vec<Vec<u8>>,
    },
    /// It has ended: the words of SYNCSLOTS FINISH.
    Finish {
        name: JobName,
        words: Vec<Vec<u8>>,
    },
}

/// An atomic slot migration to a node, as dumps record it.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    pub(crate) name: JobName,
    pub(crate) ranges: RangeList,
}

impl Entry {
    /// The slot of the key that it changes.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self {
            Entry::Write { slot, .. } | Entry::Restore { slot, .. } | Entry::Remove { slot, .. } => Some(*slot),
            _ => None,
        }
    }
}

/// All data of a node.
#[derive(Clone, Debug)]
pub(crate) struct Dataset {
    /// The name of its history.
    pub(crate) history: u64,
    /// The name that the history had before, and up to which offset it is the same.
    former: Option<(u64, u64)>,
    pub(crate) offset: u64,
    backlog: VecDeque<Entry>,
    pub(crate) keys: Keys,
    /// Imports that have not ended.
    pub(crate) imports: Vec<Import>,
}

/// What primary and replica say to each other.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// A replica asks to continue a history, or for all data.
    Synchronize(Option<(u64, u64)>),
    /// The history goes on, under this name.
    Continue(u64),
    /// All data, and the open slots.
    Full(Rc<Dataset>, Option<String>),
    /// The entry that ends at this offset.
    Entry(u64, Entry),
    /// The replica has processed the stream up to this offset.
    Acknowledge(u64),
}

impl Dataset {
    pub(crate) fn new(history: u64) -> Dataset {
        Dataset { history, former: None, offset: 0, backlog: VecDeque::new(), keys: Keys::new(), imports: Vec::new() }
    }

    /// Applies an entry, and makes it part of the stream.
    pub(crate) fn append(&mut self, entry: Entry) {
        match &entry {
            Entry::Ping | Entry::SetSlot { .. } => {}
            Entry::Write { slot, key, number } => {
                self.keys.entry(*slot).or_default().entry(*key).or_default().push(*number);
            }
            Entry::Restore { slot, key, numbers } => {
                self.keys.entry(*slot).or_default().insert(*key, numbers.clone());
            }
            Entry::Remove { slot, key } => {
                if let Some(keys) = self.keys.get_mut(slot) {
                    keys.remove(key);
                }
            }
            Entry::Establish { name, ranges, .. } => {
                self.imports.retain(|import| import.name != *name);
                self.imports.push(Import { name: *name, ranges: ranges.clone() });
            }
            Entry::Finish { name, .. } => self.imports.retain(|import| import.name != *name),
            Entry::RemoveSlots(slots) => self.keys.retain(|slot, _| !slots.contains(*slot)),
        }
        self.keys.retain(|_, keys| !keys.is_empty());
        self.offset += ENTRY_BYTES;
        self.backlog.push_back(entry);
        if self.backlog.len() > BACKLOG_ENTRIES {
            self.backlog.pop_front();
        }
    }

    /// The entries behind an offset of a history, each with its end, if this is a continuation of that history and
    /// has them yet.
    pub(crate) fn entries_from(&self, history: u64, offset: u64) -> Option<Vec<(u64, Entry)>> {
        let is_same =
            history == self.history || self.former.is_some_and(|(former, until)| former == history && offset <= until);
        let start = self.offset - self.backlog.len() as u64 * ENTRY_BYTES;
        if !is_same || offset > self.offset || offset < start {
            return None;
        }
        let skipped = ((offset - start) / ENTRY_BYTES) as usize;
        let ends = (1..).map(|number| offset + number * ENTRY_BYTES);
        Some(ends.zip(self.backlog.iter().skip(skipped).cloned()).collect())
    }

    /// A copy for a replica: what was streamed before is not part of it.
    pub(crate) fn copy(&self) -> Dataset {
        Dataset { former: None, backlog: VecDeque::new(), ..self.clone() }
    }

    /// What a process that starts does not have: the stream that replicas could continue.
    pub(crate) fn forget_backlog(&mut self) {
        self.backlog.clear();
    }

    /// The history goes on under a new name: this node is a primary now.
    pub(crate) fn rename(&mut self, history: u64) {
        self.former = Some((self.history, self.offset));
        self.history = history;
    }

    /// Deletes everything. The history ends.
    pub(crate) fn clear(&mut self, history: u64) {
        *self = Dataset::new(history);
    }

    pub(crate) fn contains(&self, slot: u16, key: u32, number: u32) -> bool {
        self.numbers(slot, key).is_some_and(|numbers| numbers.contains(&number))
    }

    pub(crate) fn numbers(&self, slot: u16, key: u32) -> Option<&Vec<u32>> {
        self.keys.get(&slot)?.get(&key)
    }
}
