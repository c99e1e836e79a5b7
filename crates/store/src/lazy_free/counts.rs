//! Counts of what waits to be freed and of what was freed.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The counts of one keyspace. Objects and bytes that are added must be subtracted when they are freed.
#[derive(Default)]
pub(crate) struct Counts {
    pending: AtomicUsize,
    pending_bytes: AtomicUsize,
    freed: AtomicUsize,
}

impl Counts {
    /// Adds objects that wait to be freed, and their memory in bytes.
    pub(super) fn add(&self, objects: usize, bytes: usize) {
        self.pending.fetch_add(objects, Ordering::Relaxed);
        self.add_bytes(bytes);
    }

    /// Subtracts objects that were freed, and their memory in bytes.
    pub(super) fn freed_objects(&self, objects: usize, bytes: usize) {
        self.pending.fetch_sub(objects, Ordering::Relaxed);
        self.subtract_bytes(bytes);
        self.freed.fetch_add(objects, Ordering::Relaxed);
    }

    /// Adds memory that will be freed later, in bytes.
    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts memory that was freed.
    pub(crate) fn subtract_bytes(&self, bytes: usize) {
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Number of objects that wait to be freed.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Memory that waits to be freed, in bytes.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Number of objects freed since the start or the last reset.
    pub(super) fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }

    /// Resets the number of freed objects.
    pub(super) fn reset_freed(&self) {
        self.freed.store(0, Ordering::Relaxed);
    }
}
