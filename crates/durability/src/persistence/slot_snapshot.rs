//! A snapshot of some slots as the commands that rebuild their keys, for another node.
//!
//! The thread that sends them captures the entries itself, so several such snapshots can run at the same time, each of
//! other slots. They and the [snapshots](super::snapshots) of the whole data set exclude each other, because a partition
//! belongs to one snapshot at a time. In cluster mode each slot is a partition.

use super::capture::{CaptureSink, Captured, Databases, IS_SNAPSHOT_THREAD, Progress};
use super::delay::Delay;
use super::file::{SaveError, write_error};
use super::format::Format;
use super::snapshots::Busy;
use crate::DurableCore;
use kvick_config::tables::persistence::RDB_KEY_SAVE_DELAY;
use kvick_runtime::time_slice::Turns;
use kvick_store::Locked;
use kvick_store::global_lock::Participant;
use kvick_store::log::{Audience, Follower};
use kvick_store::snapshot::Walk;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A snapshot of slots that has begun. Dropping it lets the partitions go.
pub struct SlotSnapshot {
    core: &'static DurableCore,
    participant: Participant,
    walk: Walk,
    captured: Arc<Captured>,
    format: Format,
    is_complete: bool,
}

/// Begins a snapshot of these slots. Also returns a follower of the write log that reads everything after it. Both
/// belong to the calling thread, whose participant may not be in a batch.
pub fn begin(
    core: &'static DurableCore,
    participant: Participant,
    global: &mut Locked,
    slots: impl Iterator<Item = u16>,
) -> Result<(SlotSnapshot, Follower), Busy> {
    let mut status = core.persistence.status.lock();
    if let Some(running) = &status.running {
        return Err(Busy(running.purpose));
    }
    status.slot_snapshots += 1;
    drop(status);
    let format = Format::commands();
    let captured = Arc::new(Captured::new(&format, Arc::new(Progress::default()), &core.snapshot_bytes));
    let partitions = slots.map(usize::from).collect();
    let walk = Walk::begin_in(global, partitions, Box::new(CaptureSink(captured.clone())));
    let follower = core.keyspace.log.follow(Audience::All);
    Ok((SlotSnapshot { core, participant, walk, captured, format, is_complete: false }, follower))
}

impl SlotSnapshot {
    /// Writes the commands. `is_cancelled` is called often, also during the delays of `rdb-key-save-delay`.
    pub fn write(&mut self, to: impl Write, is_cancelled: impl Fn() -> bool) -> Result<(), SaveError> {
        IS_SNAPSHOT_THREAD.set(true);
        let result = self.write_all(to, is_cancelled);
        IS_SNAPSHOT_THREAD.set(false);
        result
    }

    fn write_all(&mut self, to: impl Write, is_cancelled: impl Fn() -> bool) -> Result<(), SaveError> {
        let mut databases = Databases::new(self.format.begin(to)?, &mut []);
        let (mut delay, mut delayed_for) = (Delay::new(self.core, RDB_KEY_SAVE_DELAY), 0);
        let mut turns = Turns::begin();
        loop {
            let more = self.walk.step(self.participant);
            self.captured.move_to(&mut databases)?;
            turns.end_if_over();
            if is_cancelled() {
                return Err(SaveError::Cancelled);
            }
            let keys = self.captured.progress.keys.load(Ordering::Relaxed);
            delay.after(keys - delayed_for, &is_cancelled);
            delayed_for = keys;
            if !more {
                break;
            }
        }
        self.is_complete = true;
        databases.output.finish().map_err(write_error)?;
        Ok(())
    }
}

impl Drop for SlotSnapshot {
    fn drop(&mut self) {
        if !self.is_complete {
            // Partitions belong to the snapshot until the walk has passed them.
            self.walk.snapshot().cancel();
            while self.walk.step(self.participant) {}
        }
        let mut status = self.core.persistence.status.lock();
        status.slot_snapshots = status.slot_snapshots.saturating_sub(1);
    }
}
