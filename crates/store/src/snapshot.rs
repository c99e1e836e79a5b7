//! Point-in-time snapshots of the keyspace without a fork.
//!
//! A snapshot begins under the global lock, which is held for microseconds: every partition's epoch is flipped,
//! so that the epoch bit distinguishes existing entries from those written later, and every partition receives
//! the snapshot, whose [`Sink`] takes the captured entries. A dedicated thread then [walks](Walk) through the
//! tables in small steps and captures the entries; a partition that is about to change or delete an entry of
//! the old epoch captures it first. Each entry is captured once, in the state it had when the snapshot began.
//!
//! **Large collections are captured in pieces** ([`Gradual`]), so that no thread holds a lock for the duration of a
//! whole collection. The first thread to reach one, the walk or one about to change it, passes everything except its
//! elements to the sink. From then on the collection itself carries the state of the capture ([`Pieces`]), captures
//! each of its parts before that part changes, and captures the remaining parts step by step when the walk asks for
//! them. This state moves with the collection. A collection that is moved to another key is
//! [announced](Snapshot::strayed) to the walk, and one that is dropped before its capture is complete [passes its
//! remainder](Snapshot::keep_rest) to the walk.
//!
//! **Invariant**: while no snapshot is running, all entries of a partition have the partition's epoch, and no
//! collection is being captured in pieces. A cancelled walk therefore continues to the end, capturing nothing.

use crate::collections::hash::Field;
use crate::collections::list::BlockView;
use crate::collections::stream::{Id, block::Block};
use crate::entry::Entry;
use crate::global_lock::Participant;
use crate::keyspace::{Keyspace, Locked};
use crate::partition::Partition;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Buckets that are captured per lock acquisition.
const BUCKETS_PER_STEP: usize = 16;

/// How long the walk sleeps when the only remaining collections are in transit between keys.
const REST: Duration = Duration::from_millis(1);

/// Receives captured entries.
pub trait Sink: Send + Sync {
    /// Receives an entry of database `number` (as numbered when the snapshot began), to be copied or
    /// written immediately: the entry is about to change. Called under the lock of its partition.
    fn capture(&self, number: usize, entry: Entry<'_>);

    /// Receives an entry whose elements follow in pieces: everything except the elements, including their number.
    /// Returns `None` if the elements are not wanted and need not be captured. Called under the lock of its partition.
    fn begin(&self, number: usize, entry: Entry<'_>) -> Option<Box<dyn PieceSink>>;
}

/// Receives the pieces of one collection, exactly those that it had when
/// the snapshot began. The caller has exclusive access to the collection.
pub trait PieceSink: Send {
    /// Receives a piece, to be copied or written immediately. Pieces
    /// of lists and streams come in order, others in any order.
    fn take(&mut self, piece: Piece<'_>);

    /// Lets the sink flush the pieces it has buffered. Called periodically by the walk.
    fn pass_on(&mut self);

    /// All pieces were captured. Called by the walk, unless the snapshot was cancelled.
    fn end(self: Box<Self>);
}

/// A part of a collection.
#[derive(Clone, Copy)]
pub enum Piece<'a> {
    /// A member of a set.
    Member(&'a [u8]),
    /// A member of a sorted set, with its score.
    Scored(&'a [u8], f64),
    /// A field of a hash.
    Field(Field<'a>),
    /// Elements of a list in one block.
    ListBlock(BlockView<'a>),
    /// Entries of a stream in one block, with the block's ID.
    StreamBlock(Id, &'a Block),
}

/// A collection that can be captured in pieces. After [`begin`](Self::begin),
/// it captures each of its parts before that part changes.
pub trait Gradual: Send {
    /// The snapshot that is capturing it, if any.
    fn snapshot(&self) -> Option<&Arc<Snapshot>>;

    /// Begins the capture; none may be in progress.
    fn begin(&mut self, pieces: Pieces);

    /// Captures the next part; returns false when the capture is complete.
    fn go_on(&mut self) -> bool;

    /// Its approximate memory, in bytes.
    fn weight(&self) -> usize;
}

/// The state of a capture, carried by the collection.
pub struct Pieces {
    snapshot: Arc<Snapshot>,
    /// Present until the end.
    sink: Option<Box<dyn PieceSink>>,
}

impl Pieces {
    /// Captures a piece.
    #[inline]
    pub(crate) fn take(&mut self, piece: Piece<'_>) {
        if let Some(sink) = self.sink.as_mut().filter(|_| !self.snapshot.is_cancelled()) {
            sink.take(piece);
        }
    }

    /// Lets the sink flush the pieces so far.
    pub(crate) fn pass_on(&mut self) {
        if let Some(sink) = self.sink.as_mut().filter(|_| !self.snapshot.is_cancelled()) {
            sink.pass_on();
        }
    }

    /// Completes the capture.
    pub(crate) fn end(mut self) {
        if let Some(sink) = self.sink.take().filter(|_| !self.snapshot.is_cancelled()) {
            sink.end();
        }
    }

    /// The snapshot that the pieces belong to.
    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").finish_non_exhaustive()
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.snapshot.in_pieces.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A running snapshot.
pub struct Snapshot {
    keyspace: &'static Keyspace,
    sink: Box<dyn Sink>,
    cancelled: AtomicBool,
    /// Partitions that were flushed before the walk had finished with them, in the order of flushing.
    flushed: Mutex<VecDeque<Partition>>,
    /// Remainders of collections that were dropped during their capture.
    rests: Mutex<Vec<Rest>>,
    /// Keys to which collections were moved during their capture.
    strays: Mutex<Vec<Box<[u8]>>>,
    /// Number of collections that are being captured in pieces.
    in_pieces: AtomicUsize,
}

/// The remainder of a dropped collection, and its approximate memory.
struct Rest {
    collection: Box<dyn Gradual>,
    bytes: usize,
}

impl Snapshot {
    fn new(keyspace: &'static Keyspace, sink: Box<dyn Sink>) -> Arc<Snapshot> {
        Arc::new(Snapshot {
            keyspace,
            sink,
            cancelled: AtomicBool::new(false),
            flushed: Default::default(),
            rests: Default::default(),
            strays: Default::default(),
            in_pieces: AtomicUsize::new(0),
        })
    }

    /// Stops capturing. The walk must still run to its end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn capture(&self, number: usize, entry: Entry<'_>) {
        if !self.is_cancelled() {
            self.sink.capture(number, entry);
        }
    }

    fn begin(self: &Arc<Self>, number: usize, entry: Entry<'_>) -> Option<Pieces> {
        let sink = if self.is_cancelled() { None } else { self.sink.begin(number, entry) }?;
        self.in_pieces.fetch_add(1, Ordering::SeqCst);
        Some(Pieces { snapshot: self.clone(), sink: Some(sink) })
    }

    /// Keeps a flushed partition until it is captured.
    pub(crate) fn keep(&self, partition: Partition) {
        self.flushed.lock().push_back(partition);
    }

    /// Keeps the remainder of a collection that is dropped during its capture.
    pub(crate) fn keep_rest(&self, collection: Box<dyn Gradual>) {
        let bytes = collection.weight();
        self.keyspace.lazy_free.await_bytes(bytes);
        self.rests.lock().push(Rest { collection, bytes });
    }

    /// Records that a collection was moved to another key during its capture.
    pub(crate) fn strayed(&self, key: &[u8]) {
        self.strays.lock().push(key.into());
    }
}

/// The snapshot state of a partition that is part of a snapshot.
pub(crate) struct Capture {
    snapshot: Arc<Snapshot>,
    /// The number that its database had when the snapshot began.
    number: usize,
}

impl Capture {
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

/// The traversal of the tables by the snapshot thread.
pub struct Walk {
    keyspace: &'static Keyspace,
    snapshot: Arc<Snapshot>,
    /// Index of the next partition, counted through all databases.
    next: usize,
    position: u64,
    /// The remainder of a dropped collection that is being captured.
    rest: Option<Rest>,
    /// The key of a moved collection that is being captured.
    stray: Option<Box<[u8]>>,
    /// A flushed partition that is being captured, and the position to continue from.
    flushed: Option<(Partition, u64)>,
}

impl Walk {
    /// Begins a snapshot, under the global lock. Only one may be running.
    pub fn begin(global: &mut Locked, sink: Box<dyn Sink>) -> Walk {
        let keyspace = global.keyspace();
        let snapshot = Snapshot::new(keyspace, sink);
        global.for_each_partition(|number, partition| {
            partition.begin_capture(Capture { snapshot: snapshot.clone(), number });
        });
        Walk { keyspace, snapshot, next: 0, position: 0, rest: None, stray: None, flushed: None }
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
        if self.step_in_rest() || self.step_in_stray(participant) || self.step_in_flushed() || self.step_on(participant)
        {
            return true;
        }
        if self.snapshot.in_pieces.load(Ordering::SeqCst) == 0 {
            return false;
        }
        // A command holds the collection, or it waits to be freed.
        std::thread::sleep(REST);
        true
    }

    /// Continues with the remainder of a dropped collection; returns false if there is none.
    fn step_in_rest(&mut self) -> bool {
        let Some(mut rest) = self.rest.take().or_else(|| self.snapshot.rests.lock().pop()) else { return false };
        if rest.collection.go_on() {
            self.rest = Some(rest);
        } else {
            drop(rest.collection);
            self.keyspace.lazy_free.awaited_bytes(rest.bytes);
        }
        true
    }

    /// Continues with a moved collection; returns false if there is none.
    fn step_in_stray(&mut self, participant: Participant) -> bool {
        let Some(key) = self.stray.take().or_else(|| self.snapshot.strays.lock().pop()) else { return false };
        let found = self.keyspace.key(&key);
        let partition = self.keyspace.partition_of(found.hash);
        for database in (0..self.keyspace.places()).filter(|database| self.keyspace.is_made(*database)) {
            // If the global lock is wanted, or the capture is not complete, the next step looks it up again.
            let more =
                self.with_partition(participant, database, partition, |partition| partition.capture_stray(found));
            if more != Some(false) {
                self.stray = Some(key);
                return true;
            }
        }
        true
    }

    /// Continues with a flushed partition; returns false if there is none.
    fn step_in_flushed(&mut self) -> bool {
        let next = self.flushed.take().or_else(|| self.snapshot.flushed.lock().pop_front().map(|it| (it, 0)));
        let Some((mut partition, position)) = next else { return false };
        if let Some(next) = partition.capture_from(position, BUCKETS_PER_STEP) {
            self.flushed = Some((partition, next));
        }
        true
    }

    /// Continues with the partitions; returns false at the end.
    fn step_on(&mut self, participant: Participant) -> bool {
        let partitions = self.keyspace.partitions();
        while self.next < self.keyspace.places() * partitions {
            // Databases by index, not by number: SWAPDB changes the numbers.
            let (database, partition) = (self.next / partitions, self.next % partitions);
            if !self.keyspace.is_made(database) {
                self.next = (database + 1) * partitions;
                continue;
            }
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
        let result = self.keyspace.lock_one_while(address, || !global.is_wanted()).map(|mut locked| {
            let result = change(locked.partition_mut(address));
            locked.pass_on();
            result
        });
        global.leave(participant);
        self.keyspace.give_way(address);
        result
    }
}

#[cfg(test)]
mod tests;
