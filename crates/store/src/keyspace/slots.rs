//! Slots as partitions: what cluster mode needs to know and do about one slot of the keys.
//!
//! Valid only in cluster mode, in which partition number `n` has the keys of slot `n`.

use super::{Address, Keyspace};
use crate::slot::SLOTS;

impl Keyspace {
    /// Whether the partitions are slots: the server is in cluster mode.
    pub fn is_by_slot(&self) -> bool {
        self.hasher.is_by_slot()
    }

    /// Keys of a slot in a database, also if they are hidden, counted without locks; 0 if they are about to be deleted.
    pub fn slot_len(&self, number: usize, slot: u16) -> usize {
        if self.is_doomed(usize::from(slot)) { 0 } else { self.slot_len_with_doomed(number, slot) }
    }

    /// Keys of a slot in a database, also if they are about to be deleted, counted without locks.
    pub fn slot_len_with_doomed(&self, number: usize, slot: u16) -> usize {
        debug_assert!(self.is_by_slot() && slot < SLOTS, "slots are partitions in cluster mode");
        self.partition_len_with_hidden(self.database_at(number), usize::from(slot))
    }

    /// Keys of a slot in all databases, counted without locks.
    pub fn slot_len_total(&self, slot: u16) -> usize {
        (0..self.databases()).map(|number| self.slot_len(number, slot)).sum()
    }

    /// The partition of a slot in database `number`.
    pub fn slot_address(&self, number: usize, slot: u16) -> Address {
        debug_assert!(self.is_by_slot() && slot < SLOTS, "slots are partitions in cluster mode");
        self.address_of(self.database_at(number), usize::from(slot))
    }
}
