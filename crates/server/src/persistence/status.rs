//! What is known of the saves that were and of the one that is under way.

use super::background::Progress;
use kvick_store::snapshot::Snapshot;
use std::sync::Arc;

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
    /// The background save that is under way.
    pub running: Option<Running>,
}

/// A background save under way.
#[derive(Clone)]
pub struct Running {
    /// The snapshot that it writes.
    pub snapshot: Arc<Snapshot>,
    /// How far it is.
    pub progress: Arc<Progress>,
    /// When it began.
    pub started_s: i64,
    /// Changes made before it began.
    pub changes: u64,
    /// Keys that it saves.
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
            saves: 0,
            changes_saved: 0,
            scheduled: false,
            running: None,
        }
    }
}

impl Status {
    /// The data set was saved, with the first `changes` changes.
    pub(super) fn saved(&mut self, changes: u64) {
        self.changes_saved = changes;
        self.last_save_s = super::now_s();
        self.last_ok = true;
    }
}
