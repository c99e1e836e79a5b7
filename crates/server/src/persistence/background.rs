//! BGSAVE: saving behind the backs of the workers.
//!
//! [`begin`] takes a [snapshot](kvick_store::snapshot) under the world lock and hands its walk to the snapshot thread, of
//! which there is one as long as the process lives. The thread captures entries step by step. What a worker is about to
//! change it captures itself: it turns the entry into bytes and goes on. [`Captured`] holds these bytes, and the thread
//! moves them to the file after each step; so nothing but what writers change has to be kept in memory, and a worker
//! never waits for the disk.
//!
//! The thread also loads the dump at the start, so that it is the one participant in the world lock besides the workers.

use super::delay::Delay;
use super::file::{self, DumpFile, SaveError};
use super::load::{self, LoadError};
use super::save::{Plan, record, write_error};
use super::status::Running;
use super::{Persistence, changes, gate, now_s};
use crate::config::tables::logging::LATENCY_MONITOR_THRESHOLD;
use crate::config::tables::persistence::RDB_KEY_SAVE_DELAY;
use crate::logging;
use crate::server::Server;
use kvick_rdb::{WriteError, WriteOptions, Writer, save_record};
use kvick_store::snapshot::{Sink, Walk};
use kvick_store::world::Participant;
use kvick_store::{Access, Entry, Locked};
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Buffers for workers. When all are in use at a time, a worker waits for one that is just being written to.
const WORKER_SLOTS: usize = 8;

/// A buffer that grew beyond this is given back when it is empty.
const SLOT_KEPT_BYTES: usize = 1 << 20;

/// Elements looked at to estimate the memory of a collection.
const MEMORY_SAMPLES: usize = 1;

thread_local! {
    /// Whether this is the snapshot thread.
    static WALKS: Cell<bool> = const { Cell::new(false) };
}

/// What the snapshot thread is asked for.
pub enum Job {
    /// Load the dump; the answer is how that went, `None` when there is none.
    Load(mpsc::Sender<Result<Option<load::Report>, LoadError>>),
    /// Save what this began.
    Save(Box<Begun>),
}

/// A background save that begins.
pub struct Begun {
    walk: Walk,
    captured: Arc<Captured>,
    plan: Plan,
    /// Keys, and keys that expire, by database.
    sizes: Vec<(u64, u64)>,
}

/// There is a background save already.
#[derive(Debug)]
pub struct Busy;

/// How far a background save is.
#[derive(Default)]
pub struct Progress {
    /// Keys that were captured.
    pub keys: AtomicU64,
    /// Memory of the keys and values that workers captured because they were about to change, in bytes: what a forked
    /// process would have had to copy at least.
    pub captured_bytes: AtomicU64,
}

/// Starts the snapshot thread.
pub fn start(server: &'static Server) -> io::Result<()> {
    let participant = server.keyspace.world.join().ok_or_else(|| io::Error::other("too many workers"))?;
    let (sender, jobs) = mpsc::channel();
    std::thread::Builder::new().name("snapshot".into()).spawn(move || {
        crate::memory::enrol();
        WALKS.set(true);
        for job in jobs {
            match job {
                // Whoever asked waits for the answer.
                Job::Load(answer) => _ = answer.send(load::load_own(server, participant)),
                Job::Save(begun) => run(server, participant, *begun),
            }
        }
    })?;
    // A second call would be a mistake of the caller alone; the first thread stays.
    let _ = server.persistence.jobs.set(sender);
    Ok(())
}

/// Begins a background save of the data set as it is now.
pub fn begin(server: &'static Server, world: &mut Locked) -> Result<(), Busy> {
    let persistence = &server.persistence;
    let mut status = persistence.status.lock();
    let Some(jobs) = persistence.jobs.get().filter(|_| status.running.is_none()) else { return Err(Busy) };
    let (plan, progress) = (Plan::new(server), Arc::new(Progress::default()));
    let keyspace = server.keyspace;
    let sizes: Vec<_> = (0..keyspace.databases())
        .map(|number| (keyspace.len(number) as u64, keyspace.volatile(number) as u64))
        .collect();
    let captured = Arc::new(Captured::new(&plan, progress.clone(), &persistence.captured_bytes));
    let walk = Walk::begin(world, Box::new(Handle(captured.clone())));
    let now_s = now_s();
    status.saves += 1;
    status.last_try_s = now_s;
    status.scheduled = false;
    status.running = Some(Running {
        snapshot: walk.snapshot().clone(),
        progress,
        started_s: now_s,
        changes: changes(server),
        keys: sizes.iter().map(|(keys, _)| keys).sum(),
    });
    logging::notice(format_args!("Background saving started by pid {}", std::process::id()));
    // The thread lasts as long as the process.
    let _ = jobs.send(Job::Save(Box::new(Begun { walk, captured, plan, sizes })));
    Ok(())
}

/// Has a background save begin when what runs now is over.
pub fn schedule(persistence: &Persistence) -> Result<(), Busy> {
    let mut status = persistence.status.lock();
    if status.running.is_some() {
        return Err(Busy);
    }
    status.scheduled = true;
    Ok(())
}

/// Withdraws the wish for one; whether there was one.
pub fn unschedule(persistence: &Persistence) -> bool {
    std::mem::take(&mut persistence.status.lock().scheduled)
}

/// Has the save that is under way, if any, come to nothing; whether there was one. Its file will not take the place of
/// the dump when this has returned.
pub fn cancel(persistence: &Persistence) -> bool {
    let status = persistence.status.lock();
    status.running.as_ref().inspect(|running| running.snapshot.cancel()).is_some()
}

/// Waits until no background save is under way, but no longer than this; whether that is so.
pub fn wait_until_idle(persistence: &Persistence, at_most: Duration) -> bool {
    let deadline = Instant::now() + at_most;
    let mut status = persistence.status.lock();
    while status.running.is_some() {
        if persistence.idle.wait_until(&mut status, deadline).timed_out() {
            return status.running.is_none();
        }
    }
    true
}

/// Saves, and takes note of how that went.
fn run(server: &'static Server, participant: Participant, mut begun: Begun) {
    let result = write(server, participant, &mut begun);
    // Also after a failure: partitions are part of the snapshot until the walk has passed.
    begun.walk.snapshot().cancel();
    while begun.walk.step(participant) {}
    let mut status = server.persistence.status.lock();
    let Some(running) = status.running.take() else { return };
    status.last_duration_s = now_s() - running.started_s;
    status.last_captured_bytes = running.progress.captured_bytes.load(Ordering::Relaxed);
    match &result {
        Ok(()) => {
            logging::notice(format_args!("Background saving terminated with success"));
            status.saved(running.changes);
            server.persistence.gate.set(gate::UNSAVED, false);
        }
        Err(SaveError::Cancelled) => logging::warning(format_args!("Background saving terminated: cancelled")),
        Err(error) => {
            file::report(error);
            logging::warning(format_args!("Background saving error"));
            status.last_ok = false;
            server.persistence.gate.set(gate::UNSAVED, true);
        }
    }
    server.persistence.idle.notify_all();
}

fn write(server: &'static Server, participant: Participant, begun: &mut Begun) -> Result<(), SaveError> {
    let writer = begun.plan.begin(server, &format!("temp-bg-{}.rdb", std::process::id()))?;
    let mut output = Output { writer, selected: None, sizes: &mut begun.sizes, spare: Vec::new() };
    let snapshot = begun.walk.snapshot().clone();
    let (mut delay, mut delayed_for) = (Delay::new(server, RDB_KEY_SAVE_DELAY), 0);
    loop {
        let more = begun.walk.step(participant);
        begun.captured.move_to(&mut output)?;
        if snapshot.is_cancelled() {
            break;
        }
        let keys = begun.captured.progress.keys.load(Ordering::Relaxed);
        delay.after(keys - delayed_for, || snapshot.is_cancelled());
        delayed_for = keys;
        if !more {
            break;
        }
    }
    let writer = output.writer;
    if snapshot.is_cancelled() {
        return drop_file(server, writer);
    }
    let file = begun.plan.end(writer)?;
    file.let_go_of_cache();
    // Not while somebody cancels: afterwards nobody could tell which file is the newer one.
    let status = server.persistence.status.lock();
    if snapshot.is_cancelled() {
        return Err(SaveError::Cancelled);
    }
    file.install(&begun.plan.place)?;
    drop(status);
    file::sync_directory(&begun.plan.folder)?;
    logging::notice(format_args!("DB saved on disk"));
    Ok(())
}

/// Removes the file of a save that was cancelled.
fn drop_file(server: &Server, writer: Writer<DumpFile>) -> Result<(), SaveError> {
    let began = Instant::now();
    drop(writer);
    let ms = began.elapsed().as_millis() as u64;
    server.latency.record("rdb-unlink-temp-file", ms, server.config.read(LATENCY_MONITOR_THRESHOLD));
    Err(SaveError::Cancelled)
}

/// The dump as far as it is written.
struct Output<'a> {
    writer: Writer<DumpFile>,
    selected: Option<usize>,
    /// Of databases that were not yet selected.
    sizes: &'a mut [(u64, u64)],
    /// An empty buffer, given for a full one.
    spare: Vec<u8>,
}

impl Output<'_> {
    /// Writes records of a database.
    fn write(&mut self, number: usize, records: &[u8]) -> io::Result<()> {
        if self.selected != Some(number) {
            self.selected = Some(number);
            // Whoever loads makes room once.
            let (keys, volatile) = self.sizes.get_mut(number).map(std::mem::take).unwrap_or_default();
            self.writer.select_db(number as u64, keys, volatile)?;
        }
        self.writer.captured(records)
    }
}

/// What was captured and is not yet in the file.
struct Captured {
    /// The snapshot thread's own first.
    slots: Box<[Mutex<Slot>]>,
    options: WriteOptions,
    progress: Arc<Progress>,
    /// Counts the bytes in the slots.
    waiting: &'static AtomicUsize,
    /// Whether there was a value that the version of the format has no form for.
    inexpressible: AtomicBool,
}

#[derive(Default)]
struct Slot {
    bytes: Vec<u8>,
    /// Whose records `bytes` are: the number of a database, and where its part ends.
    runs: Vec<(usize, usize)>,
    access: Option<Access>,
}

/// What the walk hands entries to.
struct Handle(Arc<Captured>);

impl Sink for Handle {
    fn capture(&self, number: usize, entry: Entry<'_>) {
        self.0.capture(number, entry);
    }
}

impl Captured {
    fn new(plan: &Plan, progress: Arc<Progress>, waiting: &'static AtomicUsize) -> Self {
        let slot = || Mutex::new(Slot { access: plan.access.clone(), ..Slot::default() });
        Captured {
            slots: (0..=WORKER_SLOTS).map(|_| slot()).collect(),
            options: plan.options,
            progress,
            waiting,
            inexpressible: AtomicBool::new(false),
        }
    }

    fn capture(&self, number: usize, entry: Entry<'_>) {
        let walks = WALKS.get();
        let mut slot = self.slot(walks);
        let before = slot.bytes.len();
        if !slot.append(number, entry, &self.options) {
            self.inexpressible.store(true, Ordering::Relaxed);
        }
        self.waiting.fetch_add(slot.bytes.len() - before, Ordering::Relaxed);
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

    /// Moves all to the file.
    fn move_to(&self, output: &mut Output<'_>) -> Result<(), SaveError> {
        if self.inexpressible.load(Ordering::Relaxed) {
            return Err(SaveError::Inexpressible);
        }
        for slot in &self.slots {
            let mut slot = slot.lock();
            if slot.bytes.is_empty() {
                continue;
            }
            // Nobody waits for the disk: the lock is held for the exchange alone.
            let mut bytes = std::mem::replace(&mut slot.bytes, std::mem::take(&mut output.spare));
            let runs = std::mem::take(&mut slot.runs);
            drop(slot);
            let mut start = 0;
            let written = runs.into_iter().try_for_each(|(number, end)| {
                output.write(number, &bytes[std::mem::replace(&mut start, end)..end]).map_err(write_error)
            });
            self.waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
            bytes.clear();
            if bytes.capacity() <= SLOT_KEPT_BYTES {
                output.spare = bytes;
            }
            written?;
        }
        Ok(())
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        let left: usize = self.slots.iter_mut().map(|slot| slot.get_mut().bytes.len()).sum();
        self.waiting.fetch_sub(left, Ordering::Relaxed);
    }
}

impl Slot {
    /// Appends an entry of a database as a record; false when there is no form for it.
    fn append(&mut self, number: usize, entry: Entry<'_>, options: &WriteOptions) -> bool {
        match save_record(&mut self.bytes, &record(entry, self.access.as_ref()), options) {
            Ok(()) => {}
            Err(WriteError::Inexpressible) => return false,
            Err(WriteError::Sink(never)) => match never {},
        }
        let end = self.bytes.len();
        match self.runs.last_mut() {
            Some((last, to)) if *last == number => *to = end,
            _ => self.runs.push((number, end)),
        }
        true
    }
}
