//! Point-in-time snapshots of the keyspace without a fork.
//!
//! A snapshot begins under the global lock, which is held for microseconds: every partition's epoch is flipped,
//! so that the epoch bit distinguishes existing entries from those written later, and every partition receives
//! the snapshot, whose [`Sink`] takes the captured entries. A dedicated thread then [walks](Walk) through the
//! tables in small steps and captures the entries; a partition that is about to change or delete an entry of
//! the old epoch captures it first. Each entry is captured once, in the state it had when the snapshot began.
//!
//! A snapshot covers all partitions, or some of each database; those of different partitions may run at the same time.
//!
//! **Large collections are captured in [`pieces`]** ([`Gradual`](pieces::Gradual)), so that no thread holds a lock for
//! the duration of a whole collection. The first thread to reach one, the walk or one about to change it, passes
//! everything except its elements to the sink. From then on the collection itself carries the state of the capture
//! ([`Pieces`](pieces::Pieces)), captures each of its parts before that part changes, and captures the remaining parts
//! step by step when the walk asks for them. This state moves with the collection. A collection that is moved to
//! another key is [announced](pieces::Captures::note_moved) to the walk, and one that is dropped before its capture is
//! complete [passes its remainder](pieces::Captures::keep_remainder) to the walk.
//!
//! Partitions know the snapshot as a [`capture`], collections only their [`pieces`]. The walk is above both.
//!
//! **Invariant**: while no snapshot is running, all entries of a partition have the partition's epoch, and no
//! collection is being captured in pieces. A cancelled walk therefore continues to the end, capturing nothing.

pub mod capture;
pub mod pieces;
#[cfg(test)]
mod tests;

use crate::global_lock::Participant;
use crate::keyspace::{Keyspace, Locked};
use crate::partition::Partition;
use capture::{Capture, Sink, Snapshot};
use pieces::Remainder;
use std::sync::Arc;
use std::time::Duration;

/// Buckets that are captured per lock acquisition.
const BUCKETS_PER_STEP: usize = 16;

/// How long the walk sleeps when the only remaining collections are in transit between keys.
const IDLE_SLEEP: Duration = Duration::from_millis(1);

/// The traversal of the tables by the snapshot thread.
pub struct Walk {
    keyspace: &'static Keyspace,
    snapshot: Arc<Snapshot>,
    /// The partitions of each database that it captures; `None`: all of them.
    partitions: Option<Box<[usize]>>,
    /// Index of the next of these partitions, counted through all databases.
    next: usize,
    position: u64,
    /// The remainder of a dropped collection that is being captured.
    remainder: Option<Remainder>,
    /// The key of a moved collection that is being captured.
    moved_key: Option<Box<[u8]>>,
    /// A flushed partition that is being captured, and the position to continue from.
    flushed: Option<(Partition, u64)>,
}

impl Walk {
    /// Begins a snapshot, under the global lock. Only one may be running.
    pub fn begin(global: &mut Locked, sink: Box<dyn Sink>) -> Walk {
        Walk::begin_with(global, None, sink)
    }

    /// Begins a snapshot of some partitions of each database, under the global lock. No other snapshot of any of them
    /// may be running.
    ///
    /// # Panics
    /// If the keyspace does not have one of the partitions.
    pub fn begin_in(global: &mut Locked, partitions: Box<[usize]>, sink: Box<dyn Sink>) -> Walk {
        Walk::begin_with(global, Some(partitions), sink)
    }

    fn begin_with(global: &mut Locked, partitions: Option<Box<[usize]>>, sink: Box<dyn Sink>) -> Walk {
        let keyspace = global.keyspace();
        let snapshot = Snapshot::new(sink, keyspace.lazy_free.counts().clone());
        let begin = |number, partition: &mut Partition| {
            partition.begin_capture(Capture::new(snapshot.clone(), number));
        };
        match &partitions {
            None => global.for_each_filled_partition(begin),
            Some(partitions) => global.for_filled_partitions(partitions, begin),
        }
        Walk { keyspace, snapshot, partitions, next: 0, position: 0, remainder: None, moved_key: None, flushed: None }
    }

    /// The snapshot.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Captures some more; returns false when all is done. The calling thread must not be in a batch.
    ///
    /// Collections and partitions that were dropped or moved come first: a sink
    /// that writes a collection as it arrives holds back others meanwhile.
    pub fn step(&mut self, participant: Participant) -> bool {
        if self.step_remainder()
            || self.step_moved(participant)
            || self.step_flushed()
            || self.step_partitions(participant)
        {
            return true;
        }
        if !self.snapshot.captures().any_running() {
            return false;
        }
        // A command holds the collection, or it waits to be freed.
        std::thread::sleep(IDLE_SLEEP);
        true
    }

    /// Continues with the remainder of a dropped collection; returns false if there is none.
    fn step_remainder(&mut self) -> bool {
        let captures = self.snapshot.captures();
        let Some(remainder) = self.remainder.take().or_else(|| captures.take_remainder()) else { return false };
        self.remainder = captures.continue_with(remainder);
        true
    }

    /// Continues with a moved collection; returns false if there is none.
    fn step_moved(&mut self, participant: Participant) -> bool {
        let Some(key) = self.moved_key.take().or_else(|| self.snapshot.captures().take_moved_key()) else {
            return false;
        };
        let found = self.keyspace.key(&key);
        let partition = self.keyspace.partition_of(found.hash);
        for database in (0..self.keyspace.databases_total()).filter(|database| self.keyspace.is_allocated(*database)) {
            // If the global lock is wanted, or the capture is not complete, the next step looks it up again.
            let more =
                self.with_partition(participant, database, partition, |partition| partition.capture_moved(found));
            if more != Some(false) {
                self.moved_key = Some(key);
                return true;
            }
        }
        true
    }

    /// Continues with a flushed partition; returns false if there is none.
    fn step_flushed(&mut self) -> bool {
        let next = self.flushed.take().or_else(|| self.snapshot.take_flushed().map(|it| (it, 0)));
        let Some((mut partition, position)) = next else { return false };
        if let Some(next) = partition.capture_from(position, BUCKETS_PER_STEP) {
            self.flushed = Some((partition, next));
        }
        true
    }

    /// Continues with the partitions; returns false at the end.
    fn step_partitions(&mut self, participant: Participant) -> bool {
        let count = self.partitions.as_ref().map_or(self.keyspace.partitions(), |partitions| partitions.len());
        while self.next < self.keyspace.databases_total() * count {
            // Databases by index, not by number: SWAPDB changes the numbers.
            let (database, index) = (self.next / count, self.next % count);
            if !self.keyspace.is_allocated(database) {
                self.next = (database + 1) * count;
                continue;
            }
            let partition = self.partitions.as_ref().map_or(index, |partitions| partitions[index]);
            let position = self.position;
            let next = self.with_partition(participant, database, partition, |partition| {
                partition.capture_from(position, BUCKETS_PER_STEP)
            });
            if let Some(next) = next {
                self.position = next.unwrap_or(0);
                if next.is_none() {
                    self.next += 1;
                }
            }
            return true;
        }
        false
    }

    /// Runs `change` on a partition under its lock; `None` if the global lock is wanted and the partition is locked.
    fn with_partition<T>(
        &self,
        participant: Participant,
        database: usize,
        partition: usize,
        change: impl FnOnce(&mut Partition) -> T,
    ) -> Option<T> {
        let global = &self.keyspace.global_lock;
        let address = self.keyspace.address_of(database, partition);
        global.enter(participant);
        let result = self.keyspace.lock_one_while(address, || !global.is_requested()).map(|mut locked| {
            let result = change(locked.partition_mut(address));
            locked.unlock_fair();
            result
        });
        global.leave(participant);
        self.keyspace.yield_to_waiters(address);
        result
    }
}
