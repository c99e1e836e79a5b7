//! Collections that are captured in pieces: what they, the sink and the walk of a snapshot have in common.
//!
//! The collection carries the state of its capture ([`Pieces`]). All captures of one snapshot share [`Captures`], where
//! they find out that the snapshot was cancelled, and where the walk finds collections that were moved or dropped
//! during their capture.

use crate::collections::hash::field::Field;
use crate::collections::list::block::BlockView;
use crate::collections::stream::block::Block;
use crate::collections::stream::id::Id;
use crate::lazy_free::counts::Counts;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Receives the pieces of one collection, exactly those that it had when
/// the snapshot began. The caller has exclusive access to the collection.
pub trait PieceSink: Send {
    /// Receives a piece, to be copied or written immediately. Pieces
    /// of lists and streams come in order, others in any order.
    fn take(&mut self, piece: Piece<'_>);

    /// Lets the sink flush the pieces it has buffered. Called periodically by the walk.
    fn flush(&mut self);

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
    /// What it shares with the snapshot that is capturing it, if any.
    fn captures(&self) -> Option<&Arc<Captures>>;

    /// Begins the capture; none may be in progress.
    fn begin(&mut self, pieces: Pieces);

    /// Captures the next part; returns false when the capture is complete.
    fn capture_next(&mut self) -> bool;

    /// Its approximate memory, in bytes.
    fn weight(&self) -> usize;
}

/// The state of a capture, carried by the collection.
pub struct Pieces {
    captures: Arc<Captures>,
    /// Present until the end.
    sink: Option<Box<dyn PieceSink>>,
}

impl Pieces {
    /// The state of a capture that begins.
    pub(super) fn new(captures: Arc<Captures>, sink: Box<dyn PieceSink>) -> Pieces {
        captures.running.fetch_add(1, Ordering::SeqCst);
        Pieces { captures, sink: Some(sink) }
    }

    /// Captures a piece.
    #[inline]
    pub(crate) fn take(&mut self, piece: Piece<'_>) {
        if let Some(sink) = self.sink.as_mut().filter(|_| !self.captures.is_cancelled()) {
            sink.take(piece);
        }
    }

    /// Lets the sink flush the pieces so far.
    pub(crate) fn flush(&mut self) {
        if let Some(sink) = self.sink.as_mut().filter(|_| !self.captures.is_cancelled()) {
            sink.flush();
        }
    }

    /// Completes the capture.
    pub(crate) fn end(mut self) {
        if let Some(sink) = self.sink.take().filter(|_| !self.captures.is_cancelled()) {
            sink.end();
        }
    }

    /// What all captures of the snapshot share.
    pub(crate) fn captures(&self) -> &Arc<Captures> {
        &self.captures
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").finish_non_exhaustive()
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.captures.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What all captures in pieces of one snapshot share with its walk.
pub struct Captures {
    cancelled: AtomicBool,
    /// Number of collections that are being captured.
    running: AtomicUsize,
    /// Remainders of collections that were dropped during their capture.
    remainders: Mutex<Vec<Remainder>>,
    /// Keys to which collections were moved during their capture.
    pub(super) moved_keys: Mutex<Vec<Box<[u8]>>>,
    /// Where the memory of remainders is counted.
    unfreed: Arc<Counts>,
}

/// The remainder of a dropped collection, and its approximate memory.
pub(super) struct Remainder {
    collection: Box<dyn Gradual>,
    bytes: usize,
}

impl Captures {
    /// The shared state of a snapshot that begins; `unfreed` counts the memory of remainders until they are captured.
    pub(super) fn new(unfreed: Arc<Counts>) -> Captures {
        Captures {
            cancelled: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            remainders: Default::default(),
            moved_keys: Default::default(),
            unfreed,
        }
    }

    /// Stops capturing.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    /// Whether the snapshot was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether any collection is being captured.
    pub(super) fn any_running(&self) -> bool {
        self.running.load(Ordering::SeqCst) != 0
    }

    /// Keeps the remainder of a collection that is dropped during its capture.
    pub(crate) fn keep_remainder(&self, collection: Box<dyn Gradual>) {
        let bytes = collection.weight();
        self.unfreed.add_bytes(bytes);
        self.remainders.lock().push(Remainder { collection, bytes });
    }

    /// Takes one of the remainders.
    pub(super) fn take_remainder(&self) -> Option<Remainder> {
        self.remainders.lock().pop()
    }

    /// Captures some more of a remainder, and returns it, or drops it if that was all.
    pub(super) fn continue_with(&self, mut remainder: Remainder) -> Option<Remainder> {
        if remainder.collection.capture_next() {
            return Some(remainder);
        }
        drop(remainder.collection);
        self.unfreed.subtract_bytes(remainder.bytes);
        None
    }

    /// Records that a collection was moved to another key during its capture.
    pub(crate) fn note_moved(&self, key: &[u8]) {
        self.moved_keys.lock().push(key.into());
    }

    /// Takes one of the keys to which collections were moved.
    pub(super) fn take_moved_key(&self) -> Option<Box<[u8]>> {
        self.moved_keys.lock().pop()
    }
}
