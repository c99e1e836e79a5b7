//! BGSAVE: a dump in the background, from a [snapshot](super::snapshots).

use super::Persistence;
use super::file::{self, DumpFile, SaveError};
use super::format::Format;
use super::save::DumpLocation;
use super::snapshots::{self, Busy, Destination, Purpose, Request};
use crate::DurableCore;
use kvick_config::tables::logging::LATENCY_MONITOR_THRESHOLD;
use kvick_runtime::logging;
use kvick_store::Locked;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

/// Begins a background save of the data set as it is now.
pub fn begin(core: &'static DurableCore, global: &mut Locked) -> Result<(), Busy> {
    let destinations: Vec<Box<dyn Destination>> = vec![Box::new(SavedFile::new(core))];
    snapshots::begin(core, global, Request { purpose: Purpose::Save, format: Format::dump(core), destinations })?;
    logging::notice(format_args!("Background saving started by pid {}", std::process::id()));
    Ok(())
}

/// Schedules a background save for when the running one is over.
pub fn schedule(persistence: &Persistence) -> Result<(), Busy> {
    let mut status = persistence.status.lock();
    if status.is_saving() {
        return Err(Busy(Purpose::Save));
    }
    status.scheduled = true;
    status.scheduled_for(Purpose::Save);
    Ok(())
}

/// Withdraws a scheduled save. Returns whether there was one.
pub fn unschedule(persistence: &Persistence) -> bool {
    let mut status = persistence.status.lock();
    status.unscheduled_for(Purpose::Save);
    std::mem::take(&mut status.scheduled)
}

/// Cancels the running save, if any, and returns whether there was one. After the return its file cannot replace the
/// dump.
pub fn cancel(persistence: &Persistence) -> bool {
    snapshots::cancel(persistence, Purpose::Save)
}

/// The dump's file, written in the background.
pub struct SavedFile {
    core: &'static DurableCore,
    location: DumpLocation,
    file: Option<DumpFile>,
}

impl SavedFile {
    /// A file that is not written yet.
    pub fn new(core: &'static DurableCore) -> SavedFile {
        SavedFile { core, location: DumpLocation::new(core), file: None }
    }

    /// Its final path.
    pub fn path(&self) -> &Path {
        &self.location.path
    }
}

impl Destination for SavedFile {
    fn open(&mut self) -> Result<(), SaveError> {
        let name = format!("temp-bg-{}.rdb", std::process::id());
        self.file = Some(self.location.create(self.core, &name)?);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn finish(self: Box<Self>, outcome: Result<(), SaveError>) -> Result<(), SaveError> {
        let SavedFile { core, location, file } = *self;
        match (outcome, file) {
            (Ok(()), Some(file)) => install(core, &location, file).inspect_err(file::log_save_error),
            (Err(SaveError::Cancelled), file) => {
                let began = Instant::now();
                drop(file);
                let ms = began.elapsed().as_millis() as u64;
                core.latency.record("rdb-unlink-temp-file", ms, core.config.read(LATENCY_MONITOR_THRESHOLD));
                Err(SaveError::Cancelled)
            }
            (outcome, _) => outcome.inspect_err(file::log_save_error),
        }
    }
}

/// Renames a complete dump into place.
fn install(core: &'static DurableCore, location: &DumpLocation, file: DumpFile) -> Result<(), SaveError> {
    file.sync()?;
    file.drop_page_cache();
    // This excludes a concurrent cancellation: otherwise the older file could replace the newer one.
    let status = core.persistence.status.lock();
    if status.running.as_ref().is_none_or(|running| running.snapshot.is_cancelled()) {
        return Err(SaveError::Cancelled);
    }
    file.install(&location.path)?;
    drop(status);
    file::sync_directory(&location.folder)?;
    logging::notice(format_args!("DB saved on disk"));
    Ok(())
}
