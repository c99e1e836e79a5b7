//! One worker's traversal of its share of the keyspace for defragmentation.
//!
//! As in active expiry, each worker has a share of the partitions. It processes a partition's table
//! bucket by bucket, with a bounded number of allocations per lock acquisition. Large collections are
//! put off, recorded by key, and processed in pieces before the walk continues. If another thread has
//! locked a partition, the next pass tries again; after several failures the partition is skipped.

use super::{Heap, Mover, Work};
use crate::keyspace::{Keyspace, Share};
use crate::partition::Deferred;
use std::time::Instant;

/// Allocations offered per lock acquisition.
const OFFERS_PER_LOCK: usize = 128;
/// Passes that may find a partition locked before it is skipped.
const TRIES_MAX: u32 = 20;

/// A worker's traversal of its share of the partitions.
#[derive(Default)]
pub struct Walk {
    /// The current partition, counted among those of the worker.
    next: usize,
    /// The position in its table to continue from.
    position: u64,
    /// Whether the table's end was reached.
    at_end: bool,
    /// Large collections of the partition that are still to be processed.
    deferred: Vec<Deferred>,
    /// Passes that found the partition locked.
    tries: u32,
}

/// The parameters of one pass.
pub struct Pass<'a> {
    /// The keyspace.
    pub keyspace: &'static Keyspace,
    /// The partitions to process.
    pub share: Share,
    /// The allocator.
    pub heap: &'a mut dyn Heap,
    /// When the pass must end.
    pub deadline: Instant,
    /// `active-defrag-max-scan-fields`: larger collections are processed in pieces.
    pub fields_max: usize,
}

impl Walk {
    /// Continues until the deadline or the end of the share; returns true
    /// in the latter case. The caller is in a batch and holds no locks.
    pub fn run(&mut self, mut pass: Pass<'_>, work: &mut Work) -> bool {
        let Share { worker, workers } = pass.share;
        let partitions = pass.keyspace.partitions();
        let total = pass.keyspace.databases_total() * partitions;
        loop {
            let index = worker + self.next * workers;
            if index >= total {
                return true;
            }
            let (database, partition) = (index / partitions, index % partitions);
            if pass.keyspace.partition_len(database, partition) == 0 {
                self.leave();
            } else if !self.step(&mut pass, database, partition, work) {
                return false;
            }
            if Instant::now() >= pass.deadline {
                return false;
            }
        }
    }

    /// Advances to the next partition.
    fn leave(&mut self) {
        *self = Walk { next: self.next + 1, ..Walk::default() };
    }

    /// Continues in a partition, under its lock; returns false if another thread holds that.
    fn step(&mut self, pass: &mut Pass<'_>, database: usize, partition: usize, work: &mut Work) -> bool {
        let address = pass.keyspace.address_of(database, partition);
        let Some(mut locked) = pass.keyspace.try_lock_one(address) else {
            self.tries += 1;
            if self.tries > TRIES_MAX {
                self.leave();
            }
            return false;
        };
        self.tries = 0;
        let mut mover = Mover::new(pass.heap, OFFERS_PER_LOCK, pass.fields_max);
        locked.with_partition(address, |partition| match self.deferred.last_mut() {
            Some(deferred) => {
                if partition.relocate_deferred(deferred, &mut mover) {
                    self.deferred.pop();
                }
            }
            None => {
                let next = partition.relocate(self.position, &mut mover, &mut self.deferred, work);
                self.at_end = next.is_none();
                self.position = next.unwrap_or(0);
            }
        });
        work.moved += mover.moved();
        work.kept += mover.kept();
        if self.at_end && self.deferred.is_empty() {
            self.leave();
        }
        true
    }
}
