//! The location of dumps, and the foreground save.

use super::delay::Delay;
use super::file::{self, DumpFile, SaveError, write_error};
use super::format::Format;
use super::{background, changes, now_s};
use crate::DurableCore;
use kvick_config::Key;
use kvick_config::tables::persistence::{DBFILENAME, RDB_KEY_SAVE_DELAY, RDB_SAVE_INCREMENTAL_FSYNC};
use kvick_config::tables::process::DIR;
use kvick_core::admission::Reasons;
use kvick_runtime::logging;
use kvick_store::{Access, Counters, Db, Effects, Entry, Env, Locked};
use std::path::PathBuf;

/// Where a data set is written, read from the settings when the save begins.
#[derive(Clone)]
pub struct DumpLocation {
    /// The directory.
    pub folder: PathBuf,
    /// The path of the complete file.
    pub path: PathBuf,
    sync_often: bool,
}

impl DumpLocation {
    /// The location of dumps.
    pub fn new(core: &DurableCore) -> DumpLocation {
        let values = core.config.values();
        let path = values.read(DIR).resolve(&values.read(DBFILENAME));
        DumpLocation::of(core, path, RDB_SAVE_INCREMENTAL_FSYNC)
    }

    /// A location in the server's directory. `sync_often` is the setting that enables incremental syncs.
    pub fn of(core: &DurableCore, path: PathBuf, sync_often: Key<bool>) -> DumpLocation {
        let values = core.config.values();
        DumpLocation { folder: values.read(DIR).path().into(), path, sync_often: values.read(sync_often) }
    }

    /// Creates the file under this temporary name.
    pub fn create(&self, core: &'static DurableCore, name: &str) -> Result<DumpFile, SaveError> {
        core.persistence.temporary.create(&self.folder, name, self.sync_often)
    }
}

/// Saves the data set while the caller holds the global lock. `uncounted` changes have not been counted by a worker
/// yet. Errors have been logged. A running background save is cancelled: its dump would be older.
pub fn save(core: &'static DurableCore, global: &mut Locked, uncounted: u64) -> Result<(), SaveError> {
    background::cancel(&core.persistence);
    let location = DumpLocation::new(core);
    let name = format!("temp-{}.rdb", std::process::id());
    let written = write(core, global, &Format::dump(core), &location, &name).and_then(|file| {
        file.install(&location.path)?;
        file::sync_directory(&location.folder)
    });
    written.inspect_err(file::log_save_error)?;
    logging::notice(format_args!("DB saved on disk"));
    core.persistence.status.lock().saved(changes(core) + uncounted);
    core.admission.set(Reasons::SAVE_FAILED, false);
    Ok(())
}

/// Writes the data set to a file that still has a temporary name, while the caller holds the global lock.
pub fn write(
    core: &'static DurableCore,
    global: &mut Locked,
    format: &Format,
    location: &DumpLocation,
    name: &str,
) -> Result<DumpFile, SaveError> {
    let mut output = format.begin(location.create(core, name)?)?;
    let mut delay = Delay::new(core, RDB_KEY_SAVE_DELAY);
    let mut bytes = Vec::new();
    for number in 0..core.keyspace.databases() {
        let keyspace = core.keyspace;
        if keyspace.is_empty(number) {
            continue;
        }
        let (keys, volatile) = (keyspace.len(number) as u64, keyspace.volatile(number) as u64);
        output.select(number, keys, volatile).map_err(write_error)?;
        let mut outcome = Ok(());
        for_each(global, number, |entry| {
            if outcome.is_ok() {
                bytes.clear();
                outcome = match format.kind().append(&mut bytes, number, entry) {
                    Ok(()) => output.write(&bytes).map_err(write_error),
                    Err(what) => Err(SaveError::Unrepresentable(what)),
                };
                delay.after(1, || false);
            }
        });
        outcome?;
    }
    let file = output.finish().map_err(write_error)?;
    file.sync()?;
    Ok(file)
}

/// Calls `visit` with every entry of a database, including expired ones: the loader decides about them.
fn for_each(global: &mut Locked, number: usize, visit: impl FnMut(Entry<'_>)) {
    let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
    let env = Env::background(now_s() * 1000, &access, &counters, &mut effects);
    Db::new(global, number, env).for_each_with_hidden(visit);
}
