//! Point-in-time snapshots of the keyspace without a fork.
//!
//! A snapshot begins under the world lock, which is held for microseconds: every partition's epoch is flipped, so that
//! the entries that were there are told from those written later by their epoch bit, and every partition is given the
//! [`Sink`] that takes what is captured. A thread of its own then [walks](Walk) through the tables in small steps and
//! captures what it finds; a partition that is about to change or drop an entry of the old epoch captures it first. Each
//! entry is captured once, as it was when the snapshot began.
//!
//! **Large collections are captured in pieces** ([`Gradual`]), so that nobody holds a lock for as long as all of one takes.
//! Whoever comes to one first, the walk or somebody about to change it, has the sink take what is to be known beside its
//! elements; from then on the collection itself carries what is under way ([`Pieces`]), has each part of it captured before
//! that part changes, and the walk asks it for the rest, a part at a time. This goes along wherever the collection goes.
//! One that is put under another key is [announced](Snapshot::strayed) to the walk, and what is dropped before it is done
//! [leaves itself](Snapshot::keep_rest) to the walk, by whatever way it is dropped.
//!
//! **Invariant**: while no snapshot is under way all entries of a partition have the partition's epoch, and no collection is
//! in pieces. So a walk that was cancelled goes on to the end, capturing nothing.

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

/// Buckets looked at under one lock.
const BUCKETS_PER_STEP: usize = 16;

/// How long the walk waits when all that is left is a collection on its way from one place to another.
const REST: Duration = Duration::from_millis(1);

/// Takes what is captured.
pub trait Sink: Send + Sync {
    /// Takes an entry of database `number` (as databases were numbered when the snapshot began), to be copied or
    /// written at once: it is about to change. Called under the lock of its partition.
    fn capture(&self, number: usize, entry: Entry<'_>);

    /// Takes an entry whose elements come later, in pieces: all about it that is to be known beside them, their number
    /// among it. `None` when they are not wanted, and need not be captured. Called under the lock of its partition.
    fn begin(&self, number: usize, entry: Entry<'_>) -> Option<Box<dyn PieceSink>>;
}

/// Takes the pieces of one collection, as many as it had when the snapshot began. Whoever calls this has the collection to
/// itself.
pub trait PieceSink: Send {
    /// Takes a piece, to be copied or written at once. Pieces of lists and streams come in order, others in any.
    fn take(&mut self, piece: Piece<'_>);

    /// May pass on what it has taken. Called by the walk, now and then.
    fn pass_on(&mut self);

    /// That was all. Called by the walk, unless it was cancelled.
    fn end(self: Box<Self>);
}

/// What a collection consists of.
#[derive(Clone, Copy)]
pub enum Piece<'a> {
    /// A member of a set.
    Member(&'a [u8]),
    /// A member of a sorted set, with its score.
    Scored(&'a [u8], f64),
    /// A field of a hash.
    Field(Field<'a>),
    /// Elements of a list that lie in one block.
    ListBlock(BlockView<'a>),
    /// Entries of a stream that lie in one block, with its ID.
    StreamBlock(Id, &'a Block),
}

/// A collection that can be captured in pieces. It captures each of its parts before that changes, once it has
/// [begun](Self::begin).
pub trait Gradual: Send {
    /// The snapshot that is capturing it, if one is.
    fn snapshot(&self) -> Option<&Arc<Snapshot>>;

    /// Begins; nothing may be under way.
    fn begin(&mut self, pieces: Pieces);

    /// Captures some more; false when that was all, and nothing is under way any more.
    fn go_on(&mut self) -> bool;

    /// About how much memory it takes, in bytes.
    fn weight(&self) -> usize;
}

/// What a collection that is being captured carries with it.
pub struct Pieces {
    snapshot: Arc<Snapshot>,
    /// There until the end.
    sink: Option<Box<dyn PieceSink>>,
}

impl Pieces {
    /// Takes a piece.
    #[inline]
    pub(crate) fn take(&mut self, piece: Piece<'_>) {
        if let Some(sink) = self.sink.as_mut().filter(|_| !self.snapshot.is_cancelled()) {
            sink.take(piece);
        }
    }

    /// The pieces so far may be passed on.
    pub(crate) fn pass_on(&mut self) {
        if let Some(sink) = self.sink.as_mut().filter(|_| !self.snapshot.is_cancelled()) {
            sink.pass_on();
        }
    }

    /// All pieces were taken.
    pub(crate) fn end(mut self) {
        if let Some(sink) = self.sink.take().filter(|_| !self.snapshot.is_cancelled()) {
            sink.end();
        }
    }

    /// The snapshot that they are for.
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

/// A snapshot under way.
pub struct Snapshot {
    keyspace: &'static Keyspace,
    sink: Box<dyn Sink>,
    cancelled: AtomicBool,
    /// Partitions that were flushed away before the walk came to their end, that in which it was first.
    flushed: Mutex<VecDeque<Partition>>,
    /// What is left of collections that were dropped while they were captured.
    rests: Mutex<Vec<Rest>>,
    /// Keys under which collections were put while they were captured.
    strays: Mutex<Vec<Box<[u8]>>>,
    /// Collections that are being captured, wherever they are.
    in_pieces: AtomicUsize,
}

/// What is left of a collection, and about how much memory it takes.
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

    /// Has nothing more captured. The walk has to go on all the same.
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

    /// Keeps a partition that was flushed away.
    pub(crate) fn keep(&self, partition: Partition) {
        self.flushed.lock().push_back(partition);
    }

    /// Keeps what is left of a collection that is dropped while it is captured.
    pub(crate) fn keep_rest(&self, collection: Box<dyn Gradual>) {
        let bytes = collection.weight();
        self.keyspace.lazy_free.await_bytes(bytes);
        self.rests.lock().push(Rest { collection, bytes });
    }

    /// Takes note that a collection was put under another key while it is captured.
    pub(crate) fn strayed(&self, key: &[u8]) {
        self.strays.lock().push(key.into());
    }
}

/// What a partition that is part of a snapshot knows of it.
pub(crate) struct Capture {
    snapshot: Arc<Snapshot>,
    /// The number that its database had when the snapshot began.
    number: usize,
}

impl Capture {
    pub(crate) fn take(&self, entry: Entry<'_>) {
        self.snapshot.capture(self.number, entry);
    }

    /// Begins with an entry whose value is captured in pieces, if these are wanted.
    pub(crate) fn begin(&self, entry: Entry<'_>) -> Option<Pieces> {
        self.snapshot.begin(self.number, entry)
    }

    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
}

/// A thread's way through the tables for a snapshot.
pub struct Walk {
    keyspace: &'static Keyspace,
    snapshot: Arc<Snapshot>,
    /// Index of the next partition, databases one after the other.
    next: usize,
    position: u64,
    /// What is left of a dropped collection, while that is captured.
    rest: Option<Rest>,
    /// The key of a collection that strayed, while that is captured.
    stray: Option<Box<[u8]>>,
    /// A flushed partition, and how far it is captured.
    flushed: Option<(Partition, u64)>,
}

impl Walk {
    /// Begins a snapshot, under the world lock. Only one may be under way.
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

    /// Captures some more; false when all is done. The calling thread is outside of a batch.
    ///
    /// What has left its place comes first: a sink that writes a collection as it comes holds back others meanwhile.
    pub fn step(&mut self, participant: Participant) -> bool {
        if self.step_in_rest() || self.step_in_stray(participant) || self.step_in_flushed() || self.step_on(participant)
        {
            return true;
        }
        if self.snapshot.in_pieces.load(Ordering::SeqCst) == 0 {
            return false;
        }
        // It is in the hands of a command, or waits to be freed.
        std::thread::sleep(REST);
        true
    }

    /// Goes on with what is left of a dropped collection; false when there is none.
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

    /// Goes on with a collection that strayed; false when there is none.
    fn step_in_stray(&mut self, participant: Participant) -> bool {
        let Some(key) = self.stray.take().or_else(|| self.snapshot.strays.lock().pop()) else { return false };
        let found = self.keyspace.key(&key);
        let partition = self.keyspace.partition_of(found.hash);
        for database in (0..self.keyspace.places()).filter(|database| self.keyspace.is_made(*database)) {
            // When the world is wanted, or it is not done, it is looked for again.
            let more =
                self.with_partition(participant, database, partition, |partition| partition.capture_stray(found));
            if more != Some(false) {
                self.stray = Some(key);
                return true;
            }
        }
        true
    }

    /// Goes on with a partition that was flushed away; false when there is none.
    fn step_in_flushed(&mut self) -> bool {
        let next = self.flushed.take().or_else(|| self.snapshot.flushed.lock().pop_front().map(|it| (it, 0)));
        let Some((mut partition, position)) = next else { return false };
        if let Some(next) = partition.capture_from(position, BUCKETS_PER_STEP) {
            self.flushed = Some((partition, next));
        }
        true
    }

    /// Goes on with the partitions; false when it has come to the end of them.
    fn step_on(&mut self, participant: Participant) -> bool {
        let partitions = self.keyspace.partitions();
        while self.next < self.keyspace.places() * partitions {
            // Databases by their place, not by their number: SWAPDB changes that.
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

    /// Does something with a partition under its lock; `None` when it could not be had because somebody wants the world.
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
