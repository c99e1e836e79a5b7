//! Objects passed to a worker: connections, and keys for which another server has answered. Each worker has one
//! queue per kind of object; putting an object into a queue wakes the worker.

use crate::Core;
use crossbeam_queue::SegQueue;

/// Queues of one kind of object, one per worker.
pub struct Handover<T>(Box<[SegQueue<T>]>);

impl<T> Handover<T> {
    /// Empty queues for `workers` workers.
    pub fn new(workers: usize) -> Self {
        Handover((0..workers).map(|_| SegQueue::new()).collect())
    }

    /// Gives a worker an object and wakes it.
    pub fn put(&self, core: &Core, worker: usize, object: T) {
        self.0[worker].push(object);
        core.wake(worker);
    }

    /// Whether there are objects for a worker.
    #[inline]
    pub fn has_any(&self, worker: usize) -> bool {
        !self.0[worker].is_empty()
    }

    /// Takes the oldest object for a worker.
    pub fn take(&self, worker: usize) -> Option<T> {
        self.0[worker].pop()
    }
}
