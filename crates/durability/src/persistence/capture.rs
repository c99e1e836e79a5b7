//! Entries that a snapshot has captured and not yet written: buffers that workers and the snapshot thread fill with
//! bytes, and the thread empties after each step. So memory holds only what writers change, and a worker never waits
//! for the disk.
//!
//! The bytes of a large collection arrive in pieces, which must be contiguous in the output. One such collection at a
//! time is **current**: it is written as the walk proceeds, and everything else is held back until it ends. Pieces of
//! other collections, captured meanwhile because they are about to change, wait in separate buffers.

use super::file::{SaveError, Unrepresentable, write_error};
use super::format::{Format, Gradual, Kind, Output};
use kvick_store::Entry;
use kvick_store::snapshot::capture::Sink;
use kvick_store::snapshot::pieces::{Piece, PieceSink};
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Buffers for workers. If all are in use, a worker waits for one.
const WORKER_SLOTS: usize = 8;

/// A buffer that exceeds this size is followed by another, since growing becomes ever slower, and is freed when empty.
const SLOT_KEPT_BYTES: usize = 1 << 20;

/// The same for pieces of a collection.
const PIECES_BYTES: usize = 256 * 1024;

/// Elements sampled to estimate the memory of a collection.
const MEMORY_SAMPLES: usize = 1;

thread_local! {
    /// Whether this is the snapshot thread.
    pub(super) static IS_SNAPSHOT_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Progress of a snapshot.
#[derive(Default)]
pub struct Progress {
    /// Keys that were captured.
    pub keys: AtomicU64,
    /// Memory of the keys and values that workers captured because they were about to change, in bytes: the least that
    /// copy-on-write in a forked process would have copied.
    pub captured_bytes: AtomicU64,
}

/// See the module's documentation.
pub(super) struct Captured {
    /// The first belongs to the snapshot thread.
    slots: Box<[Mutex<Slot>]>,
    large: Mutex<Large>,
    /// Collections that came in pieces so far.
    large_count: AtomicU64,
    pub progress: Arc<Progress>,
    /// Counts the bytes in the slots.
    unwritten: &'static AtomicUsize,
    /// Whether entries are wanted at all.
    has_keys: bool,
    /// The first value that the format cannot represent.
    unrepresentable: OnceLock<Unrepresentable>,
}

struct Slot {
    kind: Kind,
    last: Buffer,
    /// Full buffers that precede it.
    full: Vec<Buffer>,
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Whose entries `bytes` are: the number of a database, and where its part ends.
    runs: Vec<(usize, usize)>,
}

/// Collections that are captured in pieces.
#[derive(Default)]
struct Large {
    /// The number of the current one.
    current: Option<u64>,
    /// The next output: bytes of the current collection, and of those before it.
    next: Vec<Chunk>,
    /// Collections that ended while another one was current.
    complete: Vec<Chunk>,
}

/// Bytes of an entry in a database with this number.
type Chunk = (usize, Vec<u8>);

/// A collection that comes in pieces.
struct Pieces {
    captured: Arc<Captured>,
    /// Its number.
    id: u64,
    /// That of its database.
    number: usize,
    /// There until the end.
    gradual: Option<Gradual>,
    bytes: Vec<u8>,
    /// What came before these bytes, and is counted as not written.
    full: Vec<Chunk>,
    /// Bytes that workers captured, and that are not counted yet.
    changed: u64,
}

impl Pieces {
    /// Puts the bytes to those that came before.
    fn seal(&mut self) {
        if !self.bytes.is_empty() {
            self.captured.unwritten.fetch_add(self.bytes.len(), Ordering::Relaxed);
            self.full.push((self.number, std::mem::take(&mut self.bytes)));
        }
        let changed = std::mem::take(&mut self.changed);
        self.captured.progress.captured_bytes.fetch_add(changed, Ordering::Relaxed);
    }
}

impl PieceSink for Pieces {
    fn take(&mut self, piece: Piece<'_>) {
        let Some(gradual) = &mut self.gradual else { return };
        let before = self.bytes.len();
        gradual.piece(&mut self.bytes, piece);
        if !IS_SNAPSHOT_THREAD.get() {
            self.changed += (self.bytes.len() - before) as u64;
        }
        if self.bytes.len() >= PIECES_BYTES {
            self.seal();
        }
    }

    fn flush(&mut self) {
        self.seal();
        let mut large = self.captured.large.lock();
        if *large.current.get_or_insert(self.id) == self.id {
            large.next.append(&mut self.full);
        }
    }

    fn end(mut self: Box<Self>) {
        if let Some(gradual) = self.gradual.take() {
            gradual.end(&mut self.bytes);
        }
        self.seal();
        let mut large = self.captured.large.lock();
        if *large.current.get_or_insert(self.id) == self.id {
            large.next.append(&mut self.full);
            large.current = None;
        } else {
            large.complete.append(&mut self.full);
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.captured.unwritten.fetch_sub(total_len(&self.full), Ordering::Relaxed);
    }
}

fn total_len(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|(_, bytes)| bytes.len()).sum()
}

/// What the walk hands entries to.
pub(super) struct CaptureSink(pub Arc<Captured>);

impl Sink for CaptureSink {
    fn capture(&self, number: usize, entry: Entry<'_>) {
        self.0.capture(number, entry);
    }

    fn begin(&self, number: usize, entry: Entry<'_>) -> Option<Box<dyn PieceSink>> {
        Some(Box::new(Captured::begin(&self.0, number, entry)?))
    }
}

impl Captured {
    pub fn new(format: &Format, progress: Arc<Progress>, unwritten: &'static AtomicUsize) -> Self {
        let slot = || Mutex::new(Slot { kind: format.kind().clone(), last: Buffer::default(), full: Vec::new() });
        Captured {
            large: Mutex::default(),
            large_count: AtomicU64::new(0),
            slots: (0..=WORKER_SLOTS).map(|_| slot()).collect(),
            progress,
            unwritten,
            has_keys: format.has_keys(),
            unrepresentable: OnceLock::new(),
        }
    }

    fn capture(&self, number: usize, entry: Entry<'_>) {
        if !self.has_keys {
            return;
        }
        let is_snapshot_thread = IS_SNAPSHOT_THREAD.get();
        let mut slot = self.slot(is_snapshot_thread);
        match slot.append(number, entry) {
            Ok(bytes) => _ = self.unwritten.fetch_add(bytes, Ordering::Relaxed),
            Err(what) => _ = self.unrepresentable.get_or_init(|| what),
        }
        drop(slot);
        self.progress.keys.fetch_add(1, Ordering::Relaxed);
        if !is_snapshot_thread {
            self.progress.captured_bytes.fetch_add(entry.memory(MEMORY_SAMPLES) as u64, Ordering::Relaxed);
        }
    }

    /// Begins an entry whose value comes in pieces, if it is wanted and can be represented.
    fn begin(self: &Arc<Self>, number: usize, entry: Entry<'_>) -> Option<Pieces> {
        if !self.has_keys {
            return None;
        }
        self.progress.keys.fetch_add(1, Ordering::Relaxed);
        let mut bytes = Vec::new();
        let begun = self.slot(IS_SNAPSHOT_THREAD.get()).kind.begin(&mut bytes, number, entry);
        match begun {
            Ok(gradual) => Some(Pieces {
                captured: self.clone(),
                id: self.large_count.fetch_add(1, Ordering::Relaxed),
                number,
                gradual: Some(gradual),
                bytes,
                full: Vec::new(),
                changed: 0,
            }),
            Err(what) => {
                self.unrepresentable.get_or_init(|| what);
                None
            }
        }
    }

    /// A buffer for this thread.
    fn slot(&self, is_snapshot_thread: bool) -> MutexGuard<'_, Slot> {
        if is_snapshot_thread {
            return self.slots[0].lock();
        }
        let free = self.slots[1..].iter().find_map(|slot| slot.try_lock());
        free.unwrap_or_else(|| self.slots[1].lock())
    }

    /// Writes everything that may be written now.
    pub fn move_to<W: Write>(&self, databases: &mut Databases<W>) -> Result<(), SaveError> {
        if let Some(what) = self.unrepresentable.get() {
            return Err(SaveError::Unrepresentable(what.clone()));
        }
        let mut large = self.large.lock();
        let (mut chunks, has_no_current) = (std::mem::take(&mut large.next), large.current.is_none());
        if has_no_current {
            chunks.append(&mut large.complete);
        }
        drop(large);
        let mut left = total_len(&chunks);
        let written = chunks.into_iter().try_for_each(|(number, bytes)| {
            left -= bytes.len();
            self.unwritten.fetch_sub(bytes.len(), Ordering::Relaxed);
            databases.write(number, &bytes)
        });
        self.unwritten.fetch_sub(left, Ordering::Relaxed);
        written.map_err(write_error)?;
        if has_no_current { self.move_slots_to(databases) } else { Ok(()) }
    }

    fn move_slots_to<W: Write>(&self, databases: &mut Databases<W>) -> Result<(), SaveError> {
        for slot in &self.slots {
            let mut slot = slot.lock();
            if slot.last.bytes.is_empty() && slot.full.is_empty() {
                continue;
            }
            // The lock is held only for the exchange, so no worker waits for the disk.
            let full = std::mem::take(&mut slot.full);
            let spare = Buffer { bytes: std::mem::take(&mut databases.spare), runs: Vec::new() };
            let last = std::mem::replace(&mut slot.last, spare);
            drop(slot);
            let mut outcome = Ok(());
            for Buffer { mut bytes, runs } in full.into_iter().chain([last]) {
                let mut start = 0;
                outcome = outcome.and_then(|()| {
                    runs.into_iter().try_for_each(|(number, end)| {
                        databases.write(number, &bytes[std::mem::replace(&mut start, end)..end])
                    })
                });
                self.unwritten.fetch_sub(bytes.len(), Ordering::Relaxed);
                bytes.clear();
                if bytes.capacity() <= SLOT_KEPT_BYTES {
                    databases.spare = bytes;
                }
            }
            outcome.map_err(write_error)?;
        }
        Ok(())
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let in_slots: usize = self.slots.iter_mut().map(|slot| slot.get_mut().len()).sum();
        let large = self.large.get_mut();
        let left = in_slots + total_len(&large.next) + total_len(&large.complete);
        self.unwritten.fetch_sub(left, Ordering::Relaxed);
    }
}

impl Slot {
    /// Appends an entry of a database. Returns its size in bytes.
    fn append(&mut self, number: usize, entry: Entry<'_>) -> Result<usize, Unrepresentable> {
        if self.last.bytes.len() >= SLOT_KEPT_BYTES {
            self.full.push(std::mem::take(&mut self.last));
        }
        let Buffer { bytes, runs } = &mut self.last;
        let before = bytes.len();
        self.kind.append(bytes, number, entry)?;
        let end = bytes.len();
        match runs.last_mut() {
            Some((last, to)) if *last == number => *to = end,
            _ => runs.push((number, end)),
        }
        Ok(end - before)
    }

    /// Bytes in its buffers.
    fn len(&self) -> usize {
        self.full.iter().chain([&self.last]).map(|buffer| buffer.bytes.len()).sum()
    }
}

/// The size of a database when its snapshot began.
#[derive(Clone, Copy, Default)]
pub(super) struct DatabaseSize {
    /// The number of keys.
    pub keys: u64,
    /// The number of keys with an expiry.
    pub volatile: u64,
}

/// Where entries are written, with the databases that they are of.
pub(super) struct Databases<'a, W: Write> {
    pub output: Output<W>,
    selected: Option<usize>,
    /// The sizes of databases that were not yet selected; zeros for the others.
    sizes: &'a mut [DatabaseSize],
    /// An empty buffer, given for a full one.
    spare: Vec<u8>,
}

impl<'a, W: Write> Databases<'a, W> {
    /// `sizes` are the sizes of the databases.
    pub fn new(output: Output<W>, sizes: &'a mut [DatabaseSize]) -> Self {
        Databases { output, selected: None, sizes, spare: Vec::new() }
    }

    /// Writes entries of a database.
    fn write(&mut self, number: usize, entries: &[u8]) -> io::Result<()> {
        if self.selected != Some(number) {
            self.selected = Some(number);
            // The loader reserves space once.
            let DatabaseSize { keys, volatile } = self.sizes.get_mut(number).map(std::mem::take).unwrap_or_default();
            self.output.select(number, keys, volatile)?;
        }
        self.output.write(entries)
    }
}
