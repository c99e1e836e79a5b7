//! The data set as a file: dumps that are saved, in the foreground or in the background, and loaded.
//!
//! - [`mod@format`]: the format in which the data set is written. [`save`]: the foreground save, under the global lock.
//! - [`snapshots`]: one thread walks through a point-in-time [snapshot](kvick_store::snapshot) for every consumer;
//!   workers hand it the entries that they are about to change, and never write to a file. [`capture`]: what they hand
//!   over.
//! - [`slot_snapshot`]: the same for some slots, as commands for another node.
//! - [`background`]: BGSAVE, a snapshot that is written to a file.
//! - [`mod@file`]: the file itself: written under a temporary name, synced incrementally, renamed into place at the
//!   end.
//! - [`schedule`]: save points.
//! - [`load`]: reading a dump, at startup or for DEBUG RELOAD.
//! - [`status`]: the state that these modules share, which INFO shows.
//!
//! **Invariant**: the old file stays until a complete new one replaces it. A cancelled save replaces nothing: the
//! status lock makes its last step and the cancellation mutually exclusive.

pub mod background;
pub mod capture;
pub mod delay;
pub mod file;
pub mod format;
pub mod load;
pub mod save;
pub mod schedule;
pub mod slot_snapshot;
pub mod snapshots;
pub mod status;

use crate::DurableCore;
use kvick_config::Values;
use kvick_config::tables::memory::{LFU_DECAY_TIME, MAXMEMORY_POLICY};
use kvick_config::tables::persistence::SAVE;
use kvick_config::words::EvictionPolicy;
use kvick_store::{Access, Locked};
use load::Loading;
use parking_lot::Mutex;
use snapshots::{Busy, Job, Purpose};
use status::Status;
use std::sync::OnceLock;
use std::sync::mpsc::Sender;

/// A server's persistence state.
#[derive(Default)]
pub struct Persistence {
    /// Progress of a load.
    pub loading: Loading,
    status: Mutex<Status>,
    /// The queue of the snapshot thread.
    jobs: OnceLock<Sender<Job>>,
    /// Files being written, under their temporary names.
    temporary: file::TemporaryFiles,
}

impl Persistence {
    /// The status that INFO shows.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Sends a job to the snapshot thread.
    pub fn send_job(&self, job: Job) {
        // The thread lives as long as the process. Before it has started, the job is dropped, which closes its answer
        // channel.
        if let Some(jobs) = self.jobs.get() {
            let _ = jobs.send(job);
        }
    }

    /// Notes that a foreground save begins, unless a background save is running.
    pub fn begin_save(&self) -> Result<(), Busy> {
        let mut status = self.status.lock();
        if status.is_saving() {
            return Err(Busy(Purpose::Save));
        }
        status.saves += 1;
        Ok(())
    }

    /// Marks the present data as saved.
    pub fn forget_changes(&self, core: &DurableCore) {
        self.status.lock().changes_saved = changes(core);
    }

    /// Resets the counters that CONFIG RESETSTAT resets.
    pub fn reset_stats(&self) {
        self.status.lock().saves = 0;
    }

    /// Cancels running saves and removes incomplete files. Called when the process ends: nothing can be saved
    /// afterwards.
    pub fn abandon(&self) {
        background::cancel(self);
        self.temporary.remove_all();
    }
}

/// FLUSHALL has dropped all databases, with `dirty` changes that no worker has counted yet. Cancels a running
/// background save and a dump for replicas, which will request another one. If save points are configured, saves the
/// present data.
pub fn after_flushall(core: &'static DurableCore, global: &mut Locked, dirty: u64) {
    background::cancel(&core.persistence);
    snapshots::cancel(&core.persistence, snapshots::Purpose::Replicas);
    if !core.config.read(SAVE).points().is_empty() {
        // A failure has been logged; the flush succeeds anyway.
        let _ = save::save(core, global, dirty);
    }
}

/// Changes made to the keyspace since the server started.
fn changes(core: &DurableCore) -> u64 {
    core.stats.iter().map(|stats| stats.dirty.get()).sum()
}

/// How dumps encode the access information of keys, under these settings and at this time.
fn access(values: &Values, now_ms: i64) -> Access {
    let mut access = Access::default();
    access.lfu = matches!(values.read(MAXMEMORY_POLICY), EvictionPolicy::AllkeysLfu | EvictionPolicy::VolatileLfu);
    access.lfu_decay_minutes = values.read(LFU_DECAY_TIME);
    access.set_now(now_ms);
    access
}

/// Present Unix time in seconds.
fn now_s() -> i64 {
    kvick_runtime::clock::unix_ms() / 1000
}
