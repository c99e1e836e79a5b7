//! A worker's way through its share of the keyspace.
//!
//! As for active expiry, each worker has a share of the partitions. It goes through a partition's table bucket by bucket, under
//! the partition's lock for a bounded number of allocations at a time. Large collections that it comes upon are put off, by
//! their keys, and are gone through piece by piece before it goes on. A partition that somebody has locked is tried again by
//! the next pass, and left alone when that was in vain some times.

use super::{Heap, Mover};
use crate::keyspace::Keyspace;
use crate::partition::PutOff;
use std::time::Instant;

/// Allocations looked at under one lock.
const OFFERS_PER_LOCK: usize = 128;
/// Passes that find a partition locked before it is left alone.
const TRIES_MAX: u32 = 20;

/// A worker's way through its share of the partitions.
#[derive(Default)]
pub struct Walk {
    /// The number of the partition it is at, among all of the worker's.
    next: usize,
    /// Where in its table to go on.
    position: u64,
    /// Whether the table's end has been reached.
    at_end: bool,
    /// Large collections of the partition that are yet to be gone through.
    put_off: Vec<PutOff>,
    /// Passes that found the partition locked.
    tries: u32,
}

/// What one pass is given.
pub struct Pass<'a> {
    /// The keyspace.
    pub keyspace: &'static Keyspace,
    /// This worker's number and the number of workers: partitions are shared out by them.
    pub share: (usize, usize),
    /// The allocator.
    pub heap: &'a mut dyn Heap,
    /// When it is to end.
    pub deadline: Instant,
    /// `active-defrag-max-scan-fields`: collections with more elements are gone through piece by piece.
    pub fields_max: usize,
}

/// What a pass did.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Work {
    /// Allocations that were moved.
    pub moved: u64,
    /// Allocations that stayed where they are.
    pub kept: u64,
    /// Keys of which something was moved.
    pub keys_moved: u64,
    /// Keys of which nothing was.
    pub keys_kept: u64,
}

impl Walk {
    /// Goes on until the deadline, or to the end of the share, of which it says whether it has been reached. The caller is in
    /// a batch and holds nothing.
    pub fn run(&mut self, mut pass: Pass<'_>, work: &mut Work) -> bool {
        let (worker, workers) = pass.share;
        let partitions = pass.keyspace.partitions();
        let total = pass.keyspace.places() * partitions;
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

    /// On to the next partition.
    fn leave(&mut self) {
        *self = Walk { next: self.next + 1, ..Walk::default() };
    }

    /// Goes on in a partition, under its lock; false when somebody else has that.
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
        locked.with_partition(address, |partition| match self.put_off.last_mut() {
            Some(put_off) => {
                if partition.relocate_put_off(put_off, &mut mover) {
                    self.put_off.pop();
                }
            }
            None => {
                let next = partition.relocate(self.position, &mut mover, &mut self.put_off, work);
                self.at_end = next.is_none();
                self.position = next.unwrap_or(0);
            }
        });
        work.moved += mover.moved();
        work.kept += mover.kept();
        if self.at_end && self.put_off.is_empty() {
            self.leave();
        }
        true
    }
}
