//! The data set as a file: dumps that are saved, in the foreground or behind the backs of the workers, and loaded.
//!
//! - [`form`]: what the data set is written as. [`save`]: the foreground save, with the world locked.
//! - [`snapshots`]: one thread walks through a point-in-time [snapshot](kvick_store::snapshot) for whoever wants one;
//!   workers hand it what they are about to change, and never touch a file. [`capture`]: what they hand over.
//! - [`background`]: BGSAVE, which is a snapshot that goes to a file.
//! - [`file`]: the file itself: written under a temporary name, synced bit by bit, put in place of the old one at the
//!   end.
//! - [`schedule`]: save points.
//! - [`load`]: reading a dump, at the start or for DEBUG RELOAD.
//! - [`status`]: what all of these know of each other, and INFO shows.
//!
//! **What always holds**: the file that was there stays until a complete new one takes its place. A save that was
//! cancelled replaces nothing: its last step and the wish to cancel it exclude each other by the lock on the status.

pub mod background;
pub mod capture;
pub mod delay;
pub mod file;
pub mod form;
pub mod load;
pub mod save;
pub mod schedule;
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

/// What a server knows of its dumps.
#[derive(Default)]
pub struct Persistence {
    /// How far a load has come.
    pub loading: Loading,
    status: Mutex<Status>,
    /// Where the snapshot thread takes its work from.
    jobs: OnceLock<Sender<Job>>,
    /// The files that are being written, under their temporary names.
    temporary: file::Temporary,
}

impl Persistence {
    /// What INFO shows.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Asks the snapshot thread for something.
    pub fn ask(&self, job: Job) {
        // The thread lasts as long as the process; before it is there, whoever waits for an answer is told that none
        // comes.
        if let Some(jobs) = self.jobs.get() {
            let _ = jobs.send(job);
        }
    }

    /// Takes note that a save in the foreground begins, unless there is one in the background.
    pub fn begin_save(&self) -> Result<(), Busy> {
        let mut status = self.status.lock();
        if status.is_saving() {
            return Err(Busy(Purpose::Save));
        }
        status.saves += 1;
        Ok(())
    }

    /// Takes the data as it is for saved.
    pub fn forget_changes(&self, core: &DurableCore) {
        self.status.lock().changes_saved = changes(core);
    }

    /// Begins to count what CONFIG RESETSTAT resets anew.
    pub fn reset_stats(&self) {
        self.status.lock().saves = 0;
    }

    /// Ends saves that are under way and removes files that are not complete. For the end of the process: nothing is
    /// saved after this.
    pub fn abandon(&self) {
        background::cancel(self);
        self.temporary.remove_all();
    }
}

/// All databases were flushed by `dirty` changes that no worker has counted yet: a background save of what was there
/// comes to nothing, as does a dump for replicas, which ask for another one, and if the user wants dumps at all, what
/// is there now is saved.
pub fn after_flushall(core: &'static DurableCore, global: &mut Locked, dirty: u64) {
    background::cancel(&core.persistence);
    snapshots::cancel(&core.persistence, snapshots::Purpose::Replicas);
    if !core.config.read(SAVE).points().is_empty() {
        // The log has told why, if it failed; the flush is done all the same.
        let _ = save::save(core, global, dirty);
    }
}

/// Changes made to the keyspace since the server began.
fn changes(core: &DurableCore) -> u64 {
    core.stats.iter().map(|stats| stats.dirty.get()).sum()
}

/// How access to keys is told in dumps, by these settings and at this time.
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
