//! What is known of the saves that were and of the one that is under way.

use super::capture::Progress;
use super::file::SaveError;
use super::snapshots::Purpose;
use kvick_runtime::logging;
use kvick_store::snapshot::Snapshot;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// See the module's documentation. Times are Unix times in seconds.
#[derive(Clone)]
pub struct Status {
    /// When the data set was last saved; before the first time, when the server began.
    pub last_save_s: i64,
    /// Whether the last save that ended by itself went well.
    pub last_ok: bool,
    /// When a background save was last begun; 0 before the first.
    pub last_try_s: i64,
    /// Seconds that the last background save took; -1 before the first.
    pub last_duration_s: i64,
    /// Memory of what writers captured for the last background save, in bytes.
    pub last_captured_bytes: u64,
    /// Saves that were begun.
    pub saves: u64,
    /// Changes made to the keyspace, counted from the start, that the last save holds.
    pub changes_saved: u64,
    /// Whether a background save is to begin as soon as possible.
    pub scheduled: bool,
    /// Memory of what writers captured for the last rewrite of the append-only file, in bytes.
    pub last_rewrite_captured_bytes: u64,
    /// Snapshots that were begun, for whatever purpose.
    pub snapshots: u64,
    /// What begins as soon as the snapshot that was cancelled has ended: users are told that it is under way.
    pub(super) next: Option<Purpose>,
    /// The snapshot that is under way: no other begins meanwhile, though it may have been cancelled.
    pub running: Option<Running>,
}

/// A snapshot under way.
#[derive(Clone)]
pub struct Running {
    /// What it is for.
    pub purpose: Purpose,
    /// The snapshot itself.
    pub snapshot: Arc<Snapshot>,
    /// Whether somebody called it off.
    pub is_cancelled: bool,
    /// How far it is.
    pub progress: Arc<Progress>,
    /// When it began.
    pub started_s: i64,
    /// Changes made before it began.
    pub changes: u64,
    /// Keys that it holds.
    pub keys: u64,
}

impl Default for Status {
    fn default() -> Self {
        Status {
            last_save_s: super::now_s(),
            last_ok: true,
            last_try_s: 0,
            last_duration_s: -1,
            last_captured_bytes: 0,
            last_rewrite_captured_bytes: 0,
            snapshots: 0,
            saves: 0,
            changes_saved: 0,
            scheduled: false,
            next: None,
            running: None,
        }
    }
}

impl Running {
    /// Memory of what writers captured so far, in bytes.
    pub fn captured_bytes(&self) -> u64 {
        self.progress.captured_bytes.load(Ordering::Relaxed)
    }
}

impl Status {
    /// What is under way and will come to something. The walk of a snapshot that was cancelled goes on to its end all
    /// the same.
    pub fn active(&self) -> Option<&Running> {
        self.running.as_ref().filter(|running| !running.is_cancelled)
    }

    /// What is under way for this purpose.
    pub fn running_for(&self, purpose: Purpose) -> Option<&Running> {
        self.active().filter(|running| running.purpose == purpose)
    }

    /// Whether what is under way was cancelled, and others can begin in a moment.
    pub fn is_ending(&self) -> bool {
        self.running.is_some() && self.active().is_none()
    }

    /// A snapshot for this was asked for, and begins as soon as nothing else is under way.
    pub(super) fn scheduled_for(&mut self, purpose: Purpose) {
        if self.is_ending() {
            self.next = Some(purpose);
        }
    }

    /// It is wanted no longer.
    pub(super) fn unscheduled_for(&mut self, purpose: Purpose) {
        self.next = self.next.filter(|next| *next != purpose);
    }

    /// Whether a dump is being written, or is about to be: a save that was called off counts until its file is gone.
    pub fn writes_dump(&self) -> bool {
        let running = self.running.as_ref().map(|running| running.purpose);
        running.is_some_and(|purpose| purpose != Purpose::AofBase) || self.next == Some(Purpose::Save)
    }

    /// Whether a base of the append-only file is being written, or is about to be.
    pub fn writes_base(&self) -> bool {
        self.running_for(Purpose::AofBase).is_some() || self.next == Some(Purpose::AofBase)
    }

    /// Whether a background save is under way.
    pub fn is_saving(&self) -> bool {
        self.running_for(Purpose::Save).is_some()
    }

    /// A snapshot begins.
    pub(super) fn began(&mut self, running: Running) {
        self.snapshots += 1;
        self.unscheduled_for(running.purpose);
        if running.purpose == Purpose::Save {
            self.saves += 1;
            self.last_try_s = running.started_s;
            self.scheduled = false;
        }
        self.running = Some(running);
    }

    /// The snapshot that is under way is over.
    pub(super) fn snapshot_ended(&mut self) -> Option<Running> {
        let running = self.running.take()?;
        if running.purpose == Purpose::AofBase {
            self.last_rewrite_captured_bytes = running.captured_bytes();
        }
        Some(running)
    }

    /// A background save is over; whether it went well, unless somebody called it off.
    pub(super) fn save_ended(&mut self, running: &Running, outcome: &Result<(), SaveError>) -> Option<bool> {
        self.last_duration_s = super::now_s() - running.started_s;
        self.last_captured_bytes = running.captured_bytes();
        match outcome {
            Ok(()) => {
                logging::notice(format_args!("Background saving terminated with success"));
                self.saved(running.changes);
                Some(true)
            }
            Err(SaveError::Cancelled) => {
                logging::warning(format_args!("Background saving terminated: cancelled"));
                None
            }
            Err(_) => {
                logging::warning(format_args!("Background saving error"));
                self.last_ok = false;
                Some(false)
            }
        }
    }

    /// The data set was saved, with the first `changes` changes.
    pub(super) fn saved(&mut self, changes: u64) {
        self.changes_saved = changes;
        self.last_save_s = super::now_s();
        self.last_ok = true;
    }
}
