//! The keys of one slot, in cluster mode.

use super::Db;

impl Db<'_> {
    /// The names of keys in a slot, at most `count`, with those that have expired and are not deleted yet. The command
    /// must hold no locks, or the slot's partition is locked already, or the global lock is held.
    pub fn keys_in_slot(&mut self, slot: u16, count: usize) -> Vec<Box<[u8]>> {
        let number = self.number;
        let keyspace = self.keyspace();
        let mut names = Vec::with_capacity(count.min(keyspace.slot_len(number, slot)));
        if names.capacity() == 0 {
            return names;
        }
        let address = keyspace.slot_address(number, slot);
        let mut collect = |entry: crate::entry::Entry<'_>| {
            if names.len() < count {
                names.push(entry.key().into());
            }
        };
        if self.locked.holds(address) {
            self.locked.partition(address).for_each(&mut collect);
        } else {
            self.locked.visit(address, |partition| partition.for_each(&mut collect));
        }
        names
    }
}
