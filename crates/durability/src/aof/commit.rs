//! Commits with `appendfsync always`: makes the bytes written to the increment durable, through the
//! [journal] if one exists, otherwise by syncing the increment.
//!
//! A journal is created when commits are frequent. It is closed when the sync policy changes or when it fails; by then
//! the increments hold its content.

use super::aof_dir::{Logged, log_error, reason};
use super::journal::{self, Journal};
use super::writer::{Writer, exit_with_error};
use kvick_config::tables::persistence::AOF_JOURNAL;
use kvick_runtime::logging;
use std::fs::File;
use std::io;
use std::time::Duration;

/// The number of commits after which a journal is created.
const JOURNAL_COMMITS_MIN: u32 = 256;

/// The writer's view of its journal.
#[derive(Default)]
pub(super) struct Commits {
    journal: Option<Journal>,
    /// Commits made without a journal.
    direct: u32,
    /// Whether a journal has failed. No other is created until `appendfsync always` is set again.
    failed: bool,
}

impl Writer {
    /// Makes the last write durable. Errors end the process: see [`sync_increment`](Self::sync_increment).
    pub(super) fn commit(&mut self) {
        if !self.commit_to_journal() {
            self.commits.direct = self.commits.direct.saturating_add(1);
            // Errors are logged, and the sync is retried.
            let _ = self.sync_increment();
        }
    }

    /// Commits to the journal. Returns whether the journal accepted the bytes.
    fn commit_to_journal(&mut self) -> bool {
        self.exit_if_sync_failed();
        let (Some(journal), Some(increment)) = (&mut self.commits.journal, &mut self.increment) else { return false };
        let committed = match journal.is_ready() {
            Ok(true) if increment.is_journaled => Ok(()),
            Ok(true) => journal.begin_increment(&increment.file, increment.synced),
            Ok(false) => return false,
            Err(error) => Err(error),
        };
        let committed = committed.and_then(|()| {
            increment.is_journaled = true;
            journal.commit(increment.synced, increment.size)
        });
        match committed {
            Ok(true) => increment.synced = increment.size,
            Ok(false) => return false,
            Err(error) => {
                self.journal_failed(&error);
                return false;
            }
        }
        true
    }

    /// Ends the process if a background sync of the increment failed. A later sync could succeed without the lost
    /// bytes, and the journal, which still holds them, would be discarded.
    pub(super) fn exit_if_sync_failed(&self) {
        if let Some(error) = self.commits.journal.as_ref().and_then(Journal::failure) {
            exit_with_error(format_args!(
                "Can't persist AOF for fsync error when the AOF fsync policy is 'always': {}. Exiting...",
                reason(&error)
            ));
        }
    }

    #[cold]
    fn journal_failed(&mut self, error: &io::Error) {
        logging::warning(format_args!(
            "The journal of the append-only file cannot be used: {}. The file itself is synced instead.",
            reason(error)
        ));
        self.commits.failed = true;
        self.close_journal();
    }

    /// Notes that the increment itself has been synced.
    pub(super) fn clear_journal_frames(&mut self) {
        if let (Some(journal), Some(increment)) = (&mut self.commits.journal, &self.increment)
            && increment.is_journaled
        {
            journal.discard_frames(increment.size);
        }
    }

    /// Notes that the increment could not be synced.
    pub(super) fn force_journal_recovery(&self) {
        if let Some(journal) = &self.commits.journal {
            journal.force_recovery();
        }
    }

    /// Creates or closes the journal, depending on settings and load. Returns the time until the next check is due.
    pub(super) fn update_journal(&mut self) -> Option<Duration> {
        let is_wanted = self.aof.replies_await_fsync() && self.core.config.read(AOF_JOURNAL);
        if !is_wanted {
            self.close_journal();
            (self.commits.direct, self.commits.failed) = (0, false);
            return None;
        }
        match &mut self.commits.journal {
            Some(journal) => journal.checkpoint_if_due(),
            None => {
                if self.commits.direct >= JOURNAL_COMMITS_MIN && !self.commits.failed {
                    match Journal::create(&self.aof_dir.journal_path()) {
                        Ok(journal) => self.commits.journal = Some(journal),
                        Err(error) => self.journal_failed(&error),
                    }
                }
                None
            }
        }
    }

    /// Syncs the increment, which makes the journal redundant, and deletes the journal. If the sync fails, both stay.
    pub(super) fn close_journal(&mut self) {
        if self.commits.journal.is_none() || self.sync_increment().is_err() {
            return;
        }
        if let Some(journal) = self.commits.journal.take() {
            log_removal_error(journal.close());
            self.commits.direct = 0;
        }
        if let Some(increment) = &mut self.increment {
            increment.is_journaled = false;
        }
    }

    /// Deletes the journal of an earlier process after syncing this increment, whose bytes it may hold.
    pub(super) fn remove_old_journal(&self, increment: &File) -> Result<(), Logged> {
        if self.aof_dir.journal_path().exists() {
            increment
                .sync_all()
                .map_err(|error| log_error(format_args!("Fail to fsync the AOF file: {}", reason(&error))))?;
            log_removal_error(journal::remove(&self.aof_dir.journal_path()));
        }
        Ok(())
    }
}

fn log_removal_error(removed: io::Result<()>) {
    if let Err(error) = removed {
        logging::warning(format_args!("Error deleting the AOF journal: {}", reason(&error)));
    }
}
