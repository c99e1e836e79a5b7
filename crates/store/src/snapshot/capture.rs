//! A running snapshot, as the partitions see it: they pass entries to its sink.

use super::pieces::{Captures, PieceSink, Pieces};
use crate::entry::Entry;
use crate::lazy_free::counts::Counts;
use crate::partition::Partition;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Receives captured entries.
pub trait Sink: Send + Sync {
    /// Receives an entry of database `number` (as numbered when the snapshot began), to be copied or
    /// written immediately: the entry is about to change. Called under the lock of its partition.
    fn capture(&self, number: usize, entry: Entry<'_>);

    /// Receives an entry whose elements follow in pieces: everything except the elements, including their number.
    /// Returns `None` if the elements are not wanted and need not be captured. Called under the lock of its partition.
    fn begin(&self, number: usize, entry: Entry<'_>) -> Option<Box<dyn PieceSink>>;
}

/// A running snapshot.
pub struct Snapshot {
    sink: Box<dyn Sink>,
    /// The captures of collections in pieces.
    captures: Arc<Captures>,
    /// Partitions that were flushed before the walk had finished with them, in the order of flushing.
    flushed: Mutex<VecDeque<Partition>>,
}

impl Snapshot {
    pub(super) fn new(sink: Box<dyn Sink>, unfreed: Arc<Counts>) -> Arc<Snapshot> {
        Arc::new(Snapshot { sink, captures: Arc::new(Captures::new(unfreed)), flushed: Default::default() })
    }

    /// Stops capturing. The walk must still run to its end.
    pub fn cancel(&self) {
        self.captures.cancel();
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.captures.is_cancelled()
    }

    /// The captures of collections in pieces.
    pub(super) fn captures(&self) -> &Captures {
        &self.captures
    }

    fn capture(&self, number: usize, entry: Entry<'_>) {
        if !self.is_cancelled() {
            self.sink.capture(number, entry);
        }
    }

    fn begin(&self, number: usize, entry: Entry<'_>) -> Option<Pieces> {
        let sink = if self.is_cancelled() { None } else { self.sink.begin(number, entry) }?;
        Some(Pieces::new(self.captures.clone(), sink))
    }

    /// Keeps a flushed partition until it is captured.
    pub(crate) fn keep(&self, partition: Partition) {
        self.flushed.lock().push_back(partition);
    }

    /// Takes the partition that was flushed first.
    pub(super) fn take_flushed(&self) -> Option<Partition> {
        self.flushed.lock().pop_front()
    }
}

/// The snapshot state of a partition that is part of a snapshot.
pub(crate) struct Capture {
    snapshot: Arc<Snapshot>,
    /// The number that its database had when the snapshot began.
    number: usize,
}

impl Capture {
    pub(super) fn new(snapshot: Arc<Snapshot>, number: usize) -> Capture {
        Capture { snapshot, number }
    }

    pub(crate) fn take(&self, entry: Entry<'_>) {
        self.snapshot.capture(self.number, entry);
    }

    /// Begins the capture of an entry in pieces; `None` if these are not wanted.
    pub(crate) fn begin(&self, entry: Entry<'_>) -> Option<Pieces> {
        self.snapshot.begin(self.number, entry)
    }

    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
}
