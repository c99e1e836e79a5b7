//! Commits with `appendfsync always`: what was written to the increment is made to last, in the
//! [journal](super::journal) if there is one, or else by syncing the increment itself.
//!
//! A journal is made when commits have become many. It is given up when the increments are to be synced differently, or
//! when it fails; what it held is in the increments then.

use super::aof_dir::{Told, reason, tell};
use super::journal::{self, Journal};
use super::writer::{Writer, end_process};
use kvick_config::tables::persistence::AOF_JOURNAL;
use kvick_runtime::logging;
use std::fs::File;
use std::io;
use std::time::Duration;

/// Commits after which a journal is made.
const MANY: u32 = 256;

/// What the writer knows of its journal.
#[derive(Default)]
pub(super) struct Commits {
    journal: Option<Journal>,
    /// Commits without one.
    direct: u32,
    /// Whether one failed: then there is none until `appendfsync always` is begun with again.
    failed: bool,
}

impl Writer {
    /// Makes what was written last. Errors end the process: see [`sync_increment`](Self::sync_increment).
    pub(super) fn commit(&mut self) {
        if !self.commit_to_journal() {
            self.commits.direct = self.commits.direct.saturating_add(1);
            // The log has told of an error, and it is tried again.
            let _ = self.sync_increment();
        }
    }

    /// Whether the journal has taken it.
    fn commit_to_journal(&mut self) -> bool {
        self.end_if_lost();
        let (Some(journal), Some(increment)) = (&mut self.commits.journal, &mut self.increment) else { return false };
        let committed = match journal.is_ready() {
            Ok(true) if increment.is_journaled => Ok(()),
            Ok(true) => journal.follow(&increment.file, increment.synced),
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

    /// Ends the process if the increment could not be synced in the background: another sync may go well without what
    /// was lost, and the journal, which has that, would be forgotten.
    pub(super) fn end_if_lost(&self) {
        if let Some(error) = self.commits.journal.as_ref().and_then(Journal::failure) {
            end_process(format_args!(
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
        self.give_up_journal();
    }

    /// The increment has been synced itself.
    pub(super) fn note_synced(&mut self) {
        if let (Some(journal), Some(increment)) = (&mut self.commits.journal, &self.increment)
            && increment.is_journaled
        {
            journal.forget(increment.size);
        }
    }

    /// The increment could not be synced.
    pub(super) fn note_sync_failed(&self) {
        if let Some(journal) = &self.commits.journal {
            journal.demand();
        }
    }

    /// Makes a journal, or gives it up, as settings and load ask for; how long until something is to be done for it.
    pub(super) fn tend_journal(&mut self) -> Option<Duration> {
        let is_wanted = self.aof.holds_all() && self.core.config.read(AOF_JOURNAL);
        if !is_wanted {
            self.give_up_journal();
            (self.commits.direct, self.commits.failed) = (0, false);
            return None;
        }
        match &mut self.commits.journal {
            Some(journal) => journal.tend(),
            None => {
                if self.commits.direct >= MANY && !self.commits.failed {
                    match Journal::make(&self.aof_dir.journal_path()) {
                        Ok(journal) => self.commits.journal = Some(journal),
                        Err(error) => self.journal_failed(&error),
                    }
                }
                None
            }
        }
    }

    /// Syncs the increment, so that the journal is of no more use, and deletes that. Where the sync fails both stay.
    pub(super) fn give_up_journal(&mut self) {
        if self.commits.journal.is_none() || self.sync_increment().is_err() {
            return;
        }
        if let Some(journal) = self.commits.journal.take() {
            tell_of_removal(journal.end());
            self.commits.direct = 0;
        }
        if let Some(increment) = &mut self.increment {
            increment.is_journaled = false;
        }
    }

    /// Deletes a journal that an earlier process has left, when this increment, which it may be of, has been synced.
    pub(super) fn clear_journal(&self, increment: &File) -> Result<(), Told> {
        if self.aof_dir.journal_path().exists() {
            increment
                .sync_all()
                .map_err(|error| tell(format_args!("Fail to fsync the AOF file: {}", reason(&error))))?;
            tell_of_removal(journal::remove(&self.aof_dir.journal_path()));
        }
        Ok(())
    }
}

fn tell_of_removal(removed: io::Result<()>) {
    if let Err(error) = removed {
        logging::warning(format_args!("Error deleting the AOF journal: {}", reason(&error)));
    }
}
