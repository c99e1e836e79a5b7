//! The status of past saves and of the running snapshot.

use super::capture::Progress;
use super::file::SaveError;
use super::snapshots::Purpose;
use kvick_runtime::logging;
use kvick_store::snapshot::capture::Snapshot;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// See the module's documentation. Times are Unix times in seconds.
#[derive(Clone)]
pub struct Status {
    /// When the data set was last saved; initially, when the server started.
    pub last_save_s: i64,
    /// Whether the last save that was not cancelled succeeded.
    pub last_ok: bool,
    /// When the last background save began; 0 before the first.
    pub last_try_s: i64,
    /// Duration of the last background save in seconds; -1 before the first.
    pub last_duration_s: i64,
    /// Memory used for entries that writers captured for the last background save, in bytes.
    pub last_captured_bytes: u64,
    /// Saves begun.
    pub saves: u64,
    /// The number of keyspace changes since startup that the last save includes.
    pub changes_saved: u64,
    /// Whether a background save will begin as soon as possible.
    pub scheduled: bool,
    /// Memory used for entries that writers captured for the last rewrite of the append-only file, in bytes.
    pub last_rewrite_captured_bytes: u64,
    /// Snapshots begun, for any purpose.
    pub snapshots: u64,
    /// The snapshot that begins as soon as the cancelled one has ended: clients already see it as running.
    pub(super) next: Option<Purpose>,
    /// The running snapshot. No other can begin meanwhile, even if this one was cancelled.
    pub running: Option<Running>,
    /// Number of snapshots of slots that are running. They exclude the above, but not each other.
    pub(super) slot_snapshots: usize,
}

/// A running snapshot.
#[derive(Clone)]
pub struct Running {
    /// Its purpose.
    pub purpose: Purpose,
    /// The snapshot itself.
    pub snapshot: Arc<Snapshot>,
    /// Whether it was cancelled.
    pub is_cancelled: bool,
    /// Its progress.
    pub progress: Arc<Progress>,
    /// When it began.
    pub started_s: i64,
    /// Changes made before it began.
    pub changes: u64,
    /// The number of keys in it.
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
            slot_snapshots: 0,
        }
    }
}

impl Running {
    /// Memory used for entries that writers captured so far, in bytes.
    pub fn captured_bytes(&self) -> u64 {
        self.progress.captured_bytes.load(Ordering::Relaxed)
    }
}

impl Status {
    /// The running snapshot, unless it was cancelled. The walk of a cancelled snapshot still runs to its end.
    pub fn active(&self) -> Option<&Running> {
        self.running.as_ref().filter(|running| !running.is_cancelled)
    }

    /// Why a snapshot of the whole data set cannot begin now.
    pub fn occupied_for(&self) -> Option<Purpose> {
        let running = self.running.as_ref().map(|running| running.purpose);
        running.or((self.slot_snapshots > 0).then_some(Purpose::SlotMigration))
    }

    /// The active snapshot for this purpose.
    pub fn running_for(&self, purpose: Purpose) -> Option<&Running> {
        self.active().filter(|running| running.purpose == purpose)
    }

    /// Whether the running snapshot was cancelled, so that another can begin soon.
    pub fn is_cancelling(&self) -> bool {
        self.running.is_some() && self.active().is_none()
    }

    /// Schedules a snapshot for this purpose, to begin as soon as no other runs.
    pub(super) fn scheduled_for(&mut self, purpose: Purpose) {
        if self.is_cancelling() {
            self.next = Some(purpose);
        }
    }

    /// Withdraws a scheduled snapshot.
    pub(super) fn unscheduled_for(&mut self, purpose: Purpose) {
        self.next = self.next.filter(|next| *next != purpose);
    }

    /// Whether a dump is being written or will be soon. A cancelled save counts until its file is gone.
    pub fn writes_dump(&self) -> bool {
        let running = self.running.as_ref().map(|running| running.purpose);
        running.is_some_and(|purpose| purpose != Purpose::AofBase) || self.next == Some(Purpose::Save)
    }

    /// Whether a base of the append-only file is being written or will be soon.
    pub fn writes_base(&self) -> bool {
        self.running_for(Purpose::AofBase).is_some() || self.next == Some(Purpose::AofBase)
    }

    /// Whether a background save is running.
    pub fn is_saving(&self) -> bool {
        self.running_for(Purpose::Save).is_some()
    }

    /// Records that a snapshot begins.
    pub(super) fn record_start(&mut self, running: Running) {
        self.snapshots += 1;
        self.unscheduled_for(running.purpose);
        if running.purpose == Purpose::Save {
            self.saves += 1;
            self.last_try_s = running.started_s;
            self.scheduled = false;
        }
        self.running = Some(running);
    }

    /// Records that the running snapshot has ended, and returns it.
    pub(super) fn snapshot_ended(&mut self) -> Option<Running> {
        let running = self.running.take()?;
        if running.purpose == Purpose::AofBase {
            self.last_rewrite_captured_bytes = running.captured_bytes();
        }
        Some(running)
    }

    /// Records that a background save has ended, and whether it succeeded, unless it was cancelled.
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

    /// Records that the data set was saved, with the first `changes` changes.
    pub(super) fn saved(&mut self, changes: u64) {
        self.changes_saved = changes;
        self.last_save_s = super::now_s();
        self.last_ok = true;
    }
}
