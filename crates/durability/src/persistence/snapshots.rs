//! Point-in-time snapshots for every consumer of the data set as bytes: background saves, the base of the append-only
//! file, replicas.
//!
//! [`begin`] takes a [snapshot](kvick_store::snapshot) under the global lock and hands its walk to the snapshot thread,
//! which lives as long as the process. The thread captures entries step by step. A worker captures an entry itself, as
//! bytes, before it changes it, and goes on. The thread passes all bytes on to the [`Destination`]s of the [`Request`].
//! The snapshot's point in time is an offset of the write log: the log's end while the global lock is held. The
//! snapshot does not include anything appended after that.
//!
//! Only one snapshot runs at a time. Consumers that want the same point in time and the same [`Format`] share one
//! request with several destinations; others receive [`Busy`] and retry when it is over. A destination that fails is
//! dropped, and the snapshot ends when none is left.
//!
//! The thread also loads the data set at startup, so that it is the only participant in the global lock besides the
//! workers.

use super::capture::{CaptureSink, Captured, DatabaseSize, Databases, IS_SNAPSHOT_THREAD, Progress};
use super::delay::Delay;
use super::file::{SaveError, write_error};
use super::format::Format;
use super::load::{self, LoadError};
use super::status::Running;
use super::{Persistence, changes, now_s};
use crate::DurableCore;
use kvick_commands::context::Error;
use kvick_config::tables::persistence::RDB_KEY_SAVE_DELAY;
use kvick_core::admission::Reasons;
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::time_slice::Turns;
use kvick_store::Locked;
use kvick_store::global_lock::Participant;
use kvick_store::snapshot::Walk;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// The purpose of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// BGSAVE and save points.
    Save,
    /// The base of the append-only file.
    AofBase,
    /// The initial data of replicas.
    Replicas,
    /// Slots for another node: see [`slot_snapshot`](super::slot_snapshot).
    SlotMigration,
}

/// Consumes the bytes of a snapshot. The snapshot thread calls these methods in the order of their declaration; a slow
/// call delays only other destinations.
pub trait Destination: Send {
    /// Prepares for the first bytes.
    fn open(&mut self) -> Result<(), SaveError>;

    /// Consumes the next bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Ends the output: all bytes were written, or the snapshot failed, perhaps before `open`. Returns the final
    /// outcome; the destination has logged errors of its own.
    fn finish(self: Box<Self>, outcome: Result<(), SaveError>) -> Result<(), SaveError>;
}

/// A request for a snapshot.
pub struct Request {
    /// Its purpose.
    pub purpose: Purpose,
    /// Its format.
    pub format: Format,
    /// Its destinations: at least one.
    pub destinations: Vec<Box<dyn Destination>>,
}

/// Another snapshot is running, for this purpose.
#[derive(Debug)]
pub struct Busy(pub Purpose);

impl From<Busy> for Error {
    fn from(Busy(purpose): Busy) -> Self {
        Error::text(match purpose {
            Purpose::Save => "ERR Background save already in progress",
            _ => {
                "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to \
                 schedule a BGSAVE whenever possible."
            }
        })
    }
}

/// A job of the snapshot thread.
pub enum Job {
    /// Load the data set; the answer is the outcome, `None` if no file exists.
    Load(mpsc::Sender<Result<Option<load::Report>, LoadError>>),
    /// Walk through the snapshot that has begun.
    Walk(Box<StartedSnapshot>),
}

/// A snapshot that has begun.
pub struct StartedSnapshot {
    walk: Walk,
    captured: Arc<Captured>,
    request: Request,
    /// The sizes of the databases.
    sizes: Vec<DatabaseSize>,
}

/// Starts the snapshot thread.
pub fn start(core: &'static DurableCore) -> io::Result<()> {
    let participant = core.keyspace.global_lock.join().ok_or_else(|| io::Error::other("too many workers"))?;
    let (sender, jobs) = mpsc::channel();
    std::thread::Builder::new().name("snapshot".into()).spawn(move || {
        affinity::set(Role::Saving);
        kvick_runtime::memory::register_thread();
        IS_SNAPSHOT_THREAD.set(true);
        for job in jobs {
            match job {
                // The requester waits for the answer.
                Job::Load(answer) => _ = answer.send(load::load_at_startup(core, participant)),
                Job::Walk(started) => run(core, participant, *started),
            }
        }
    })?;
    // Only a bug would call this twice; the first thread stays.
    let _ = core.persistence.jobs.set(sender);
    Ok(())
}

/// Begins a snapshot of the present data set. Returns its offset in the write log.
pub fn begin(core: &'static DurableCore, global: &mut Locked, request: Request) -> Result<u64, Busy> {
    let (persistence, keyspace) = (&core.persistence, core.keyspace);
    let mut status = persistence.status.lock();
    if let Some(purpose) = status.occupied_for() {
        return Err(Busy(purpose));
    }
    let progress = Arc::new(Progress::default());
    let sizes: Vec<_> = (0..keyspace.databases())
        .map(|number| DatabaseSize { keys: keyspace.len(number) as u64, volatile: keyspace.volatile(number) as u64 })
        .collect();
    let captured = Arc::new(Captured::new(&request.format, progress.clone(), &core.snapshot_bytes));
    let walk = Walk::begin(global, Box::new(CaptureSink(captured.clone())));
    let offset = keyspace.log.offset();
    status.record_start(Running {
        purpose: request.purpose,
        snapshot: walk.snapshot().clone(),
        is_cancelled: false,
        progress,
        started_s: now_s(),
        changes: changes(core),
        keys: sizes.iter().map(|size| size.keys).sum(),
    });
    persistence.send_job(Job::Walk(Box::new(StartedSnapshot { walk, captured, request, sizes })));
    Ok(offset)
}

/// Cancels the running snapshot for this purpose, if any, and returns whether one was running. After the return its
/// output cannot replace an existing file.
pub fn cancel(persistence: &Persistence, purpose: Purpose) -> bool {
    let mut status = persistence.status.lock();
    let running = status.running.as_mut().filter(|running| running.purpose == purpose && !running.is_cancelled);
    let cancelled = running.map(|running| {
        running.is_cancelled = true;
        running.snapshot.cancel();
    });
    cancelled.is_some()
}

/// Requests a base of the append-only file as soon as no other snapshot runs, or withdraws the request.
pub fn set_base_requested(persistence: &Persistence, is_wanted: bool) {
    let mut status = persistence.status.lock();
    match is_wanted {
        true => status.scheduled_for(Purpose::AofBase),
        false => status.unscheduled_for(Purpose::AofBase),
    }
}

/// Notes that the base has been installed, which ends the snapshot for all observers. The base's destination calls this
/// while it finishes.
pub fn base_installed(persistence: &Persistence) {
    let mut status = persistence.status.lock();
    if status.running_for(Purpose::AofBase).is_some() {
        status.snapshot_ended();
    }
}

/// Walks through a snapshot and records the outcome.
fn run(core: &'static DurableCore, participant: Participant, mut started: StartedSnapshot) {
    let mut fanout = Fanout(std::mem::take(&mut started.request.destinations).into_iter().map(Branch::new).collect());
    let outcome = write(core, participant, &mut started, &mut fanout);
    if outcome.is_err() {
        // Partitions belong to the snapshot until the walk has passed them.
        started.walk.snapshot().cancel();
        while started.walk.step(participant) {}
    }
    let outcome = fanout.finish(outcome);
    let mut status = core.persistence.status.lock();
    if !status.running.as_ref().is_some_and(|running| Arc::ptr_eq(&running.snapshot, started.walk.snapshot())) {
        // The end has been recorded, and another snapshot may have begun.
        return;
    }
    let Some(running) = status.snapshot_ended() else { return };
    if running.purpose == Purpose::Save
        && let Some(saved) = status.save_ended(&running, &outcome)
    {
        core.admission.set(Reasons::SAVE_FAILED, !saved);
    }
}

fn write(
    core: &'static DurableCore,
    participant: Participant,
    started: &mut StartedSnapshot,
    fanout: &mut Fanout,
) -> Result<(), SaveError> {
    fanout.open()?;
    let output = started.request.format.begin(&mut *fanout)?;
    let mut databases = Databases::new(output, &mut started.sizes);
    let snapshot = started.walk.snapshot().clone();
    let (mut delay, mut delayed_for) = (Delay::new(core, RDB_KEY_SAVE_DELAY), 0);
    let mut turns = Turns::begin();
    loop {
        let more = started.walk.step(participant);
        started.captured.move_to(&mut databases)?;
        turns.end_if_over();
        if snapshot.is_cancelled() {
            return Err(SaveError::Cancelled);
        }
        let keys = started.captured.progress.keys.load(Ordering::Relaxed);
        delay.after(keys - delayed_for, || snapshot.is_cancelled());
        delayed_for = keys;
        if !more {
            break;
        }
    }
    databases.output.finish().map_err(write_error)?;
    Ok(())
}

/// Copies the bytes to several destinations.
struct Fanout(Vec<Branch>);

struct Branch {
    destination: Box<dyn Destination>,
    failure: Option<SaveError>,
}

impl Branch {
    fn new(destination: Box<dyn Destination>) -> Self {
        Branch { destination, failure: None }
    }
}

impl Fanout {
    fn open(&mut self) -> Result<(), SaveError> {
        for branch in &mut self.0 {
            branch.failure = branch.destination.open().err();
        }
        self.check()
    }

    /// Fails if no destination is left.
    fn check(&self) -> Result<(), SaveError> {
        if self.0.iter().all(|branch| branch.failure.is_some()) { Err(SaveError::Cancelled) } else { Ok(()) }
    }

    /// Finishes all destinations. Succeeds if one of them received everything, otherwise returns the first error.
    fn finish(self, outcome: Result<(), SaveError>) -> Result<(), SaveError> {
        let mut last = Err(SaveError::Cancelled);
        for branch in self.0.into_iter().rev() {
            let own = match (branch.failure, &outcome) {
                (Some(failure), _) => Err(failure),
                (None, Ok(())) => Ok(()),
                (None, Err(error)) => Err(error.for_other_destination()),
            };
            let ended = branch.destination.finish(own);
            if last.is_err() {
                last = ended;
            }
        }
        last
    }
}

impl Write for Fanout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for branch in self.0.iter_mut().filter(|branch| branch.failure.is_none()) {
            branch.failure = branch.destination.write(bytes).err().map(write_error);
        }
        self.check().map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Accepts a limited number of bytes, and reports the outcome.
    struct Limited {
        room: usize,
        outcomes: Arc<Mutex<Vec<(usize, bool)>>>,
    }

    impl Destination for Limited {
        fn open(&mut self) -> Result<(), SaveError> {
            if self.room == 0 { Err(write_error(io::ErrorKind::StorageFull.into())) } else { Ok(()) }
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.room = self.room.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(())
        }

        fn finish(self: Box<Self>, outcome: Result<(), SaveError>) -> Result<(), SaveError> {
            self.outcomes.lock().push((self.room, outcome.is_ok()));
            outcome
        }
    }

    fn run(rooms: &[usize]) -> (bool, Vec<(usize, bool)>) {
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let limited = |room: &usize| Branch::new(Box::new(Limited { room: *room, outcomes: outcomes.clone() }));
        let mut fanout = Fanout(rooms.iter().map(limited).collect());
        let written = fanout
            .open()
            .and_then(|()| fanout.write_all(b"1234").and_then(|()| fanout.write_all(b"5")).map_err(write_error));
        let succeeded = fanout.finish(written).is_ok();
        let mut outcomes = outcomes.lock().clone();
        outcomes.sort();
        (succeeded, outcomes)
    }

    #[test]
    fn failed_destination_does_not_affect_the_others() {
        assert_eq!(run(&[9, 4, 0]), (true, vec![(0, false), (0, false), (4, true)]));
        assert_eq!(run(&[9, 9]), (true, vec![(4, true), (4, true)]));
        assert_eq!(run(&[3, 4]), (false, vec![(0, false), (3, false)]));
    }
}
