//! Iteration over a database: SCAN, and random keys.

use super::{Db, Env, WhenExpired, discard, notify_reclaimed};
use crate::effects::EventClass;
use crate::entry::Entry;
use crate::keyspace::{Address, Keyspace};
use crate::partition::Partition;
use crate::slot::SLOTS;
use std::ops::{Range, RangeInclusive};

impl Db<'_> {
    /// A key chosen uniformly at random, or nearly so if many have expired. Expired keys found on the way are
    /// deleted; if they must be kept and seem to be the only ones, returns one of them. Needs the global lock.
    pub fn random_key(&mut self, mut random: impl FnMut() -> u64) -> Option<Vec<u8>> {
        let mut kept = 0;
        // Each iteration returns a key, deletes one, or counts one that must be kept.
        loop {
            let len = self.len();
            if len == 0 {
                return None;
            }
            let address = self.weighted_partition(random() % len as u64);
            let name = self.locked.partition(address).random(&mut random)?.key().to_vec();
            if self.peek(self.key(&name)).is_some() || kept == KEPT_TRIES_MAX {
                return Some(name);
            }
            kept += usize::from(self.env.when_expired != WhenExpired::Drop);
            let keyspace = self.keyspace();
            self.env.effects.commit_records(&keyspace.log);
        }
    }

    /// The partition that holds key number `rank`, counting keys partition by partition.
    fn weighted_partition(&self, mut rank: u64) -> Address {
        let keyspace = self.keyspace();
        let mut partition = 0;
        for number in 0..keyspace.partitions() {
            let len = keyspace.partition_len(self.database, number) as u64;
            if len > 0 {
                partition = number;
            }
            if rank < len {
                break;
            }
            rank = rank.saturating_sub(len);
        }
        keyspace.address_of(self.database, partition)
    }

    /// Scans from `cursor` on, over at least `count` keys or all that remain, and returns the next cursor; 0 when done.
    /// Of the keys for which `filter` returns true, visits those that have not expired, and deletes the others unless
    /// they must be kept. Partitions are locked one at a time, so the command must hold no locks, or the global lock.
    pub fn scan(
        &mut self,
        cursor: u64,
        count: usize,
        filter: impl FnMut(&Entry<'_>) -> bool,
        visit: impl FnMut(Entry<'_>),
    ) -> u64 {
        self.scan_partitions(cursor, 0..self.keyspace().partitions(), count, filter, visit)
    }

    /// Like [`scan`](Self::scan), over the keys of some slots. A cursor before the first of them begins there, one after
    /// the last is at the end. The slot of a cursor is [`slot_of`](crate::hash::slot_of) it. For cluster mode.
    pub fn scan_slots(
        &mut self,
        cursor: u64,
        slots: RangeInclusive<u16>,
        count: usize,
        filter: impl FnMut(&Entry<'_>) -> bool,
        visit: impl FnMut(Entry<'_>),
    ) -> u64 {
        debug_assert!(self.keyspace().is_by_slot() && *slots.end() < SLOTS, "slots are partitions in cluster mode");
        let partitions = usize::from(*slots.start())..usize::from(*slots.end()) + 1;
        self.scan_partitions(cursor, partitions, count, filter, visit)
    }

    fn scan_partitions(
        &mut self,
        cursor: u64,
        within: Range<usize>,
        count: usize,
        mut filter: impl FnMut(&Entry<'_>) -> bool,
        mut visit: impl FnMut(Entry<'_>),
    ) -> u64 {
        let keyspace = self.keyspace();
        let partitions = keyspace.partitions();
        let (mut partition, mut position) = decode_cursor(cursor, partitions);
        if partition < within.start {
            (partition, position) = (within.start, 0);
        }
        let mut visited = 0;
        let mut due = Vec::new();
        // Empty buckets count too: on a sparse table, the call ends
        // after a bounded amount of work, not only after `count` keys.
        let mut buckets = count.saturating_mul(10);
        while partition < within.end {
            if keyspace.partition_len(self.database, partition) == 0 {
                (partition, position) = (partition + 1, 0);
                continue;
            }
            if visited >= count || buckets == 0 {
                return encode_cursor(partition, position, partitions);
            }
            buckets -= 1;
            let address = keyspace.address_of(self.database, partition);
            let env = &mut self.env;
            let next = self.locked.visit(address, |partition| {
                let next = partition.scan(position, |entry| {
                    visited += 1;
                    if filter(&entry) {
                        if !env.hides(&entry) {
                            visit(entry);
                        } else if env.when_expired == WhenExpired::Drop {
                            due.push(entry.key().to_vec());
                        }
                    }
                });
                due.drain(..).for_each(|key| drop_due(keyspace, partition, env, &key));
                next
            });
            (partition, position) = next.map_or((partition + 1, 0), |position| (partition, position));
        }
        0
    }
}

impl Db<'_> {
    /// Up to `count` keys of a slot that have not expired. The command must hold no locks, or the global lock. For
    /// cluster mode.
    pub fn keys_in_slot(&mut self, slot: u16, count: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let address = self.keyspace().slot_address(self.number, slot);
        let env = &self.env;
        self.locked.visit(address, |partition| {
            let mut position = Some(0);
            while let Some(from) = position.filter(|_| found.len() < count) {
                position = partition.scan(from, |entry| {
                    if found.len() < count && !env.hides(&entry) {
                        found.push(entry.key().to_vec());
                    }
                });
            }
        });
        found
    }

    /// About `count` keys of a slot as they are, also hidden or expired ones, from `position` on, which is 0 at first.
    /// Also returns the position to continue from; `None` at the end. All calls together return every key that is there
    /// all the time. The slot's partition must be locked. For cluster mode.
    pub fn keys_in_slot_from(&self, slot: u16, position: u64, count: usize) -> (Vec<Vec<u8>>, Option<u64>) {
        let partition = self.locked.partition(self.keyspace().slot_address(self.number, slot));
        let mut found = Vec::new();
        let mut position = Some(position);
        while let Some(from) = position.filter(|_| found.len() < count) {
            position = partition.scan(from, |entry| found.push(entry.key().to_vec()));
        }
        (found, position)
    }

    /// Deletes the keys of a slot in this database and returns their number. With `lazy`, large values are freed in the
    /// background. With `notify`, each deletion is an event. Nothing is propagated: the caller logs the command, or the
    /// deletions, itself. The command must hold no locks, or the global lock. For cluster mode.
    pub fn flush_slot(&mut self, slot: u16, lazy: bool, notify: bool) -> usize {
        let (keyspace, number) = (self.keyspace(), self.number);
        let address = keyspace.slot_address(number, slot);
        let effects = &mut *self.env.effects;
        self.locked.visit(address, |partition| {
            let mut names = Vec::with_capacity(partition.len());
            partition.for_each(|entry| names.push(entry.key().to_vec()));
            for name in &names {
                let key = keyspace.key(name);
                let Some(place) = partition.find(key) else { continue };
                discard(keyspace, partition, place, lazy);
                notify_reclaimed(partition, effects, number, key);
                if notify {
                    effects.notify(EventClass::GENERIC, "del", name);
                }
            }
            partition.release_empty_table();
            names.len()
        })
    }
}

/// Deletes an expired key while its partition is locked, and appends
/// the deletion to the log before other threads can change the key.
#[cold]
fn drop_due(keyspace: &Keyspace, partition: &mut Partition, env: &mut Env<'_>, key: &[u8]) {
    let key = keyspace.key(key);
    let Some(place) = partition.find(key) else { return };
    discard(keyspace, partition, place, env.lazy_expire);
    let number = env.effects.current_database();
    notify_reclaimed(partition, env.effects, number, key);
    env.counters.expired.add(1);
    env.effects.expired(key, env.lazy_expire);
    env.effects.commit_records(&keyspace.log);
}

/// Number of times that a random key may be an expired one that must be kept, before it is returned.
const KEPT_TRIES_MAX: usize = 100;

/// A cursor consists of the partition in its low bits and the
/// first 48 bits of the position in the hash space above them.
fn encode_cursor(partition: usize, position: u64, partitions: usize) -> u64 {
    (position >> 16) << partitions.trailing_zeros() | partition as u64
}

fn decode_cursor(cursor: u64, partitions: usize) -> (usize, u64) {
    let partition = cursor as usize & (partitions - 1);
    (partition, (cursor >> partitions.trailing_zeros()) << 16)
}
