//! What a snapshot has captured and is not yet written: buffers that workers and the snapshot thread fill with bytes, and
//! the thread empties after each step. So nothing but what writers change has to be kept in memory, and a worker never
//! waits for the disk.

use super::file::{Inexpressible, SaveError, write_error};
use super::form::{Form, Kind, Output};
use kvick_store::Entry;
use kvick_store::snapshot::Sink;
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Buffers for workers. When all are in use at a time, a worker waits for one that is just being written to.
const WORKER_SLOTS: usize = 8;

/// A buffer that grew beyond this is given back when it is empty.
const SLOT_KEPT_BYTES: usize = 1 << 20;

/// Elements looked at to estimate the memory of a collection.
const MEMORY_SAMPLES: usize = 1;

thread_local! {
    /// Whether this is the snapshot thread.
    pub(super) static WALKS: Cell<bool> = const { Cell::new(false) };
}

/// How far a snapshot is.
#[derive(Default)]
pub struct Progress {
    /// Keys that were captured.
    pub keys: AtomicU64,
    /// Memory of the keys and values that workers captured because they were about to change, in bytes: what a forked
    /// process would have had to copy at least.
    pub captured_bytes: AtomicU64,
}

/// See the module's documentation.
pub(super) struct Captured {
    /// The snapshot thread's own first.
    slots: Box<[Mutex<Slot>]>,
    pub progress: Arc<Progress>,
    /// Counts the bytes in the slots.
    unwritten: &'static AtomicUsize,
    /// Whether entries are wanted at all.
    has_keys: bool,
    /// The first value that the form cannot express.
    inexpressible: OnceLock<Inexpressible>,
}

struct Slot {
    kind: Kind,
    bytes: Vec<u8>,
    /// Whose entries `bytes` are: the number of a database, and where its part ends.
    runs: Vec<(usize, usize)>,
}

/// What the walk hands entries to.
pub(super) struct Handle(pub Arc<Captured>);

impl Sink for Handle {
    fn capture(&self, number: usize, entry: Entry<'_>) {
        self.0.capture(number, entry);
    }
}

impl Captured {
    pub fn new(form: &Form, progress: Arc<Progress>, unwritten: &'static AtomicUsize) -> Self {
        let slot = || Mutex::new(Slot { kind: form.kind().clone(), bytes: Vec::new(), runs: Vec::new() });
        Captured {
            slots: (0..=WORKER_SLOTS).map(|_| slot()).collect(),
            progress,
            unwritten,
            has_keys: form.has_keys(),
            inexpressible: OnceLock::new(),
        }
    }

    fn capture(&self, number: usize, entry: Entry<'_>) {
        if !self.has_keys {
            return;
        }
        let walks = WALKS.get();
        let mut slot = self.slot(walks);
        let before = slot.bytes.len();
        if let Err(what) = slot.append(number, entry) {
            self.inexpressible.get_or_init(|| what);
        }
        self.unwritten.fetch_add(slot.bytes.len() - before, Ordering::Relaxed);
        drop(slot);
        self.progress.keys.fetch_add(1, Ordering::Relaxed);
        if !walks {
            self.progress.captured_bytes.fetch_add(entry.memory(MEMORY_SAMPLES) as u64, Ordering::Relaxed);
        }
    }

    /// A buffer for this thread.
    fn slot(&self, walks: bool) -> MutexGuard<'_, Slot> {
        if walks {
            return self.slots[0].lock();
        }
        let free = self.slots[1..].iter().find_map(|slot| slot.try_lock());
        free.unwrap_or_else(|| self.slots[1].lock())
    }

    /// Writes all that is there.
    pub fn move_to<W: Write>(&self, databases: &mut Databases<W>) -> Result<(), SaveError> {
        if let Some(what) = self.inexpressible.get() {
            return Err(SaveError::Inexpressible(what.clone()));
        }
        for slot in &self.slots {
            let mut slot = slot.lock();
            if slot.bytes.is_empty() {
                continue;
            }
            // Nobody waits for the disk: the lock is held for the exchange alone.
            let mut bytes = std::mem::replace(&mut slot.bytes, std::mem::take(&mut databases.spare));
            let runs = std::mem::take(&mut slot.runs);
            drop(slot);
            let mut start = 0;
            let written = runs.into_iter().try_for_each(|(number, end)| {
                databases.write(number, &bytes[std::mem::replace(&mut start, end)..end]).map_err(write_error)
            });
            self.unwritten.fetch_sub(bytes.len(), Ordering::Relaxed);
            bytes.clear();
            if bytes.capacity() <= SLOT_KEPT_BYTES {
                databases.spare = bytes;
            }
            written?;
        }
        Ok(())
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let left: usize = self.slots.iter_mut().map(|slot| slot.get_mut().bytes.len()).sum();
        self.unwritten.fetch_sub(left, Ordering::Relaxed);
    }
}

impl Slot {
    /// Appends an entry of a database.
    fn append(&mut self, number: usize, entry: Entry<'_>) -> Result<(), Inexpressible> {
        self.kind.append(&mut self.bytes, number, entry)?;
        let end = self.bytes.len();
        match self.runs.last_mut() {
            Some((last, to)) if *last == number => *to = end,
            _ => self.runs.push((number, end)),
        }
        Ok(())
    }
}

/// Where entries are written, with the databases that they are of.
pub(super) struct Databases<'a, W: Write> {
    pub output: Output<W>,
    selected: Option<usize>,
    /// Keys, and keys that expire, of databases that were not yet selected.
    sizes: &'a mut [(u64, u64)],
    /// An empty buffer, given for a full one.
    spare: Vec<u8>,
}

impl<'a, W: Write> Databases<'a, W> {
    /// `sizes` are the keys, and the keys that expire, by database.
    pub fn new(output: Output<W>, sizes: &'a mut [(u64, u64)]) -> Self {
        Databases { output, selected: None, sizes, spare: Vec::new() }
    }

    /// Writes entries of a database.
    fn write(&mut self, number: usize, entries: &[u8]) -> io::Result<()> {
        if self.selected != Some(number) {
            self.selected = Some(number);
            // Whoever loads makes room once.
            let (keys, volatile) = self.sizes.get_mut(number).map(std::mem::take).unwrap_or_default();
            self.output.select(number, keys, volatile)?;
        }
        self.output.write(entries)
    }
}
