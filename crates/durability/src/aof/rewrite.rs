//! Rewrites: a new base for the append-only file, and the removal of the files before it.
//!
//! [`begin`] takes a snapshot for the base, and makes the [writer](super::writer) switch to a new increment at the
//! snapshot's log offset. The complete base is installed together with the manifest that lists it; older files become
//! history and are deleted. A failed rewrite leaves only one additional increment.
//!
//! If there were no files, the increment has a temporary name until the base is installed.

use super::aof_dir::{Logged, log_error, reason, shown};
use super::writer::{Increment, Order, Writer};
use super::{Aof, State};
use crate::DurableCore;
use crate::persistence::file::{self, DumpFile, SaveError};
use crate::persistence::format::Format;
use crate::persistence::save::{self, DumpLocation};
use crate::persistence::snapshots::{self, Busy, Destination, Purpose, Request};
use kvick_config::tables::persistence::{
    AOF_REWRITE_INCREMENTAL_FSYNC, AOF_USE_RDB_PREAMBLE, AUTO_AOF_REWRITE_MIN_SIZE, AUTO_AOF_REWRITE_PERCENTAGE,
};
use kvick_core::admission::Reasons;
use kvick_runtime::clock;
use kvick_runtime::logging;
use kvick_store::Locked;
use kvick_store::log::{Audience, Follower, encode};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};

/// Failures after which automatic rewrites pause.
const FAILURES_MAX: u32 = 3;
/// The longest pause.
const PAUSE_MINUTES_MAX: i64 = 60;

/// Where the log is written from the new base's offset on.
pub enum NextIncrement {
    /// Nowhere: no files exist except those of a rewrite.
    Absent,
    /// To a new increment, from this offset on.
    Increment(u64, InitialSelect),
    /// To a temporary increment, read by this follower.
    Temporary(Follower, InitialSelect),
}

/// The database selected at the start of an increment, if the log does not select one itself: on a replica the primary
/// may have selected it long before.
#[derive(Clone, Copy, Debug)]
pub struct InitialSelect(Option<usize>);

impl InitialSelect {
    /// For records from here on. The caller holds the global lock.
    fn at_log_end(core: &DurableCore) -> InitialSelect {
        InitialSelect(core.replication_view().primary_database())
    }

    /// The records that start such an increment.
    fn begin(self, file: File, name: &[u8]) -> io::Result<Increment> {
        let mut increment = Increment::new(file, name, 0);
        if let Some(database) = self.0 {
            let mut select = Vec::new();
            encode(&mut select, [&b"SELECT"[..], database.to_string().as_bytes()].into_iter());
            increment.file.write_all(&select)?;
            // The next record may come much later, and until then everything is synced.
            increment.file.sync_data()?;
            (increment.size, increment.synced) = (select.len() as u64, select.len() as u64);
        }
        Ok(increment)
    }
}

/// A complete base.
pub struct FinishedBase {
    number: u64,
    file: DumpFile,
    is_dump: bool,
    /// Whether it has been installed.
    answer: Sender<bool>,
}

/// The file of a dump received from a primary, and the follower that reads the log from there on.
pub struct ReceivedDump {
    path: PathBuf,
    follower: Follower,
    initial_select: InitialSelect,
}

/// The data was replaced by a dump that was received into this file; the log continues from it in this database. The
/// file becomes the base if the append-only file is enabled and its base may be a dump. The caller holds the global
/// lock. If this returns a receiver, no other file may replace this one until the receiver has its answer.
pub fn adopt(core: &'static DurableCore, path: PathBuf, database: usize) -> Option<Receiver<()>> {
    let aof = &core.aof;
    let mut status = aof.status.lock();
    if status.state == State::Off || !core.config.read(AOF_USE_RDB_PREAMBLE) {
        return None;
    }
    // A rewrite that begins from here on has the new data.
    (status.state, status.scheduled, status.failures, status.last_rewrite_ok) = (State::On, false, 0, true);
    drop(status);
    snapshots::cancel(&core.persistence, Purpose::AofBase);
    snapshots::set_base_requested(&core.persistence, false);
    let follower = core.keyspace.log.follow(Audience::DataOnly);
    let (answer, adopted) = mpsc::channel();
    aof.order(Order::Adopt(ReceivedDump { path, follower, initial_select: InitialSelect(Some(database)) }, answer));
    Some(adopted)
}

/// Begins a rewrite of the data set as it is now.
pub fn begin(core: &'static DurableCore, global: &mut Locked) -> Result<(), Busy> {
    // A snapshot begins only under the global lock.
    if let Some(purpose) = core.persistence.status().occupied_for() {
        return Err(Busy(purpose));
    }
    let (aof, log) = (&core.aof, &core.keyspace.log);
    let mut status = aof.status.lock();
    status.last_rewrite += 1;
    let number = status.last_rewrite;
    let next_increment = match status.state {
        State::Off => NextIncrement::Absent,
        State::On => NextIncrement::Increment(log.offset(), InitialSelect::at_log_end(core)),
        State::WaitRewrite => NextIncrement::Temporary(log.follow(Audience::DataOnly), InitialSelect::at_log_end(core)),
    };
    // Each file selects its first database itself.
    log.reset_selected();
    (status.scheduled, status.started_s) = (false, clock::unix_ms() / 1000);
    status.rewrites += 1;
    drop(status);
    // This precedes the snapshot, which may end soon.
    aof.order(Order::Begin(number, next_increment));
    let format = Format::aof_base(core);
    let base = Base { core, number, is_dump: format.is_dump(), file: None };
    let destinations: Vec<Box<dyn Destination>> = vec![Box::new(base)];
    snapshots::begin(core, global, Request { purpose: Purpose::AofBase, format, destinations })?;
    logging::notice(format_args!("Background append only file rewriting started by pid {}", std::process::id()));
    Ok(())
}

/// Schedules a rewrite to begin as soon as possible.
pub fn schedule(core: &DurableCore) {
    core.aof.status.lock().scheduled = true;
    snapshots::set_base_requested(&core.persistence, true);
}

/// The same on a user's request, regardless of failures.
pub fn schedule_by_user(core: &DurableCore) {
    core.aof.status.lock().failures = 0;
    schedule(core);
}

/// Cancels the running rewrite, if any. Returns whether there was one.
pub fn cancel(core: &'static DurableCore) -> bool {
    let cancelled = snapshots::cancel(&core.persistence, Purpose::AofBase);
    if cancelled {
        logging::notice(format_args!("Killing running AOF rewrite child: {}", std::process::id()));
    }
    cancelled
}

/// Starts a rewrite if one is due. A worker calls this periodically, outside of a batch.
pub fn tick(core: &'static DurableCore) {
    if core.admission.has(Reasons::LOADING | Reasons::SHUTTING_DOWN) || core.persistence.status().running.is_some() {
        return;
    }
    let aof = &core.aof;
    let status = aof.status();
    let growth = (status.state == State::On && !status.scheduled).then(|| growth_percent(core)).flatten();
    if !(status.scheduled || growth.is_some()) || (status.failures > 0 && is_paused(aof)) {
        return;
    }
    if let Some(percent) = growth {
        logging::notice(format_args!("Starting automatic rewriting of AOF on {percent}% growth"));
    }
    let mut global = core.keyspace.lock_global();
    if !core.admission.has(Reasons::LOADING) {
        // If another thread has just begun a snapshot, the rewrite begins later.
        let _ = begin(core, &mut global);
    }
}

/// The growth of the files in percent, if it is enough for a rewrite.
fn growth_percent(core: &'static DurableCore) -> Option<u64> {
    let values = core.config.values();
    let percentage = u64::from(values.read(AUTO_AOF_REWRITE_PERCENTAGE));
    let size = core.aof.current_size.load(Ordering::Relaxed);
    if percentage == 0 || size <= values.read(AUTO_AOF_REWRITE_MIN_SIZE) {
        return None;
    }
    let base = core.aof.base_size.load(Ordering::Relaxed).max(1);
    let growth = (size as u128 * 100 / base as u128).saturating_sub(100) as u64;
    (growth >= percentage).then_some(growth)
}

/// Whether repeated failures delay the next rewrite: by a minute, doubled after each failure.
fn is_paused(aof: &Aof) -> bool {
    let (mut status, now_s) = (aof.status.lock(), clock::unix_ms() / 1000);
    if status.failures < FAILURES_MAX {
        (status.pause_minutes, status.pause_until_s) = (0, 0);
        return false;
    }
    if status.pause_until_s != 0 {
        let is_over = now_s >= status.pause_until_s;
        if is_over {
            status.pause_until_s = 0;
        }
        return !is_over;
    }
    status.pause_minutes = (status.pause_minutes * 2).clamp(1, PAUSE_MINUTES_MAX);
    status.pause_until_s = now_s + status.pause_minutes * 60;
    logging::warning(format_args!(
        "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in {} minutes",
        status.pause_minutes
    ));
    true
}

/// Where the base is written: the server's directory, until it is complete.
fn location(core: &DurableCore) -> DumpLocation {
    DumpLocation::of(core, Default::default(), AOF_REWRITE_INCREMENTAL_FSYNC)
}

/// The file of a base being written.
struct Base {
    core: &'static DurableCore,
    number: u64,
    is_dump: bool,
    file: Option<DumpFile>,
}

impl Destination for Base {
    fn open(&mut self) -> Result<(), SaveError> {
        let name = format!("temp-rewriteaof-bg-{}.aof", std::process::id());
        self.file = Some(location(self.core).create(self.core, &name)?);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn finish(self: Box<Self>, outcome: Result<(), SaveError>) -> Result<(), SaveError> {
        let Base { core, number, is_dump, file } = *self;
        let complete = outcome.and_then(|()| file.ok_or(SaveError::Cancelled)).and_then(|file| {
            file.sync()?;
            file.drop_page_cache();
            Ok(file)
        });
        let file = match complete {
            Ok(file) => file,
            Err(error) => {
                let failed = !matches!(error, SaveError::Cancelled);
                if failed {
                    file::log_save_error(&error);
                    logging::warning(format_args!("Background AOF rewrite terminated with error"));
                }
                // A thread that sees no running rewrite any more must see the outcome.
                let (answer, noted) = mpsc::channel();
                core.aof.order(Order::Abandon(number, failed, answer));
                let _ = noted.recv();
                return Err(error);
            }
        };
        logging::notice(format_args!("Background AOF rewrite terminated with success"));
        let (answer, outcome) = mpsc::channel();
        core.aof.order(Order::Install(FinishedBase { number, file, is_dump, answer }));
        if outcome.recv().unwrap_or(false) { Ok(()) } else { Err(SaveError::Cancelled) }
    }
}

impl Writer {
    /// Starts writing at startup: to the last increment, or to a new one after a first base.
    pub fn open(&mut self) -> Result<(), Logged> {
        self.aof_dir.create()?;
        let mut manifest = self.aof_dir.manifest.clone();
        let file_name = self.aof_dir.file_name();
        let mut global = self.core.keyspace.lock_global();
        if manifest.is_empty() {
            let format = Format::aof_base(self.core);
            let name = manifest.new_base(&file_name, format.is_dump()).name.clone();
            self.write_base(&mut global, &format, &name)?;
            logging::notice(format_args!("Creating AOF base file {} on server start", shown(&name)));
        }
        let is_new = manifest.increments.is_empty();
        let name = match manifest.increments.last() {
            Some(part) => part.name.clone(),
            None => manifest.new_increment(&file_name).name.clone(),
        };
        let file = self.aof_dir.open(&name, false)?;
        self.aof_dir.install_manifest(manifest)?;
        let size = self.aof_dir.size(&name).map_err(|_| Logged)?;
        self.remove_old_journal(&file)?;
        // The increment has its records.
        let _ = std::fs::remove_file(self.aof_dir.tail_path());
        let follower = self.core.keyspace.log.follow(Audience::DataOnly);
        self.begin(follower, Increment::new(file, &name, size));
        drop(global);
        self.aof.synced.store(self.aof.released.load(Ordering::SeqCst), Ordering::SeqCst);
        self.measure();
        self.aof.status.lock().state = State::On;
        let verb = if is_new { "Creating" } else { "Opening" };
        logging::notice(format_args!("{verb} AOF incr file {} on server start", shown(&name)));
        self.aof_dir.remove_history();
        Ok(())
    }

    fn write_base(&self, global: &mut Locked, format: &Format, name: &[u8]) -> Result<(), Logged> {
        let temporary = format!("temp-rewriteaof-{}.aof", std::process::id());
        let written = save::write(self.core, global, format, &location(self.core), &temporary);
        let installed = written.and_then(|file| file.install(&self.aof_dir.path(name)));
        installed.map_err(|error| log_error(format_args!("Write error writing append only file on disk: {error}")))
    }

    /// Records the sizes of the existing files.
    fn measure(&self) {
        let sizes = self.aof_dir.manifest.parts().filter_map(|(_, part)| self.aof_dir.size(&part.name).ok());
        self.aof.current_size.store(sizes.sum(), Ordering::Relaxed);
        let base = self.aof_dir.manifest.base.as_ref().and_then(|base| self.aof_dir.size(&base.name).ok());
        self.aof.base_size.store(base.unwrap_or(0), Ordering::Relaxed);
    }

    /// A rewrite begins.
    pub fn begin_rewrite(&mut self, number: u64, next_increment: NextIncrement) {
        self.rewriting = Some(number);
        let begun = self.aof_dir.create().and_then(|()| match next_increment {
            NextIncrement::Absent => Ok(()),
            NextIncrement::Increment(at, initial_select) => self.switch_increment(at, initial_select),
            NextIncrement::Temporary(follower, initial_select) => {
                self.begin_temporary_increment(follower, initial_select)
            }
        });
        if begun.is_err() {
            snapshots::cancel(&self.core.persistence, Purpose::AofBase);
            self.abandon(number, true);
        }
    }

    /// Writes the log from this offset on to a new increment, which the manifest lists.
    fn switch_increment(&mut self, at: u64, initial_select: InitialSelect) -> Result<(), Logged> {
        self.write_available(at);
        let is_complete =
            self.unwritten.is_empty() && self.follower.as_ref().is_some_and(|follower| follower.offset() >= at);
        if self.increment.is_none() || !is_complete {
            return Err(log_error(format_args!("The AOF cannot be rewritten while it cannot be written")));
        }
        // Only the last file may be truncated, so this one must be complete before the next is listed.
        self.sync_increment()?;
        let mut manifest = self.aof_dir.manifest.clone();
        let name = manifest.new_increment(&self.aof_dir.file_name()).name.clone();
        let next = begin_increment(self.aof_dir.open(&name, true)?, &name, initial_select)?;
        self.anchor_increment(&next.file, &name, next.size);
        self.aof_dir.install_manifest(manifest).inspect_err(|Logged| self.revoke_anchor())?;
        self.increment = Some(next);
        log_increment_created(&name);
        Ok(())
    }

    fn begin_temporary_increment(&mut self, follower: Follower, initial_select: InitialSelect) -> Result<(), Logged> {
        let name = self.aof_dir.temporary_name();
        let increment = begin_increment(self.aof_dir.open(&name, true)?, &name, initial_select)?;
        self.begin(follower, increment);
        log_increment_created(&name);
        Ok(())
    }

    /// Makes a dump that was received from a primary the base.
    pub fn adopt(&mut self, dump: ReceivedDump) {
        self.close();
        if self.try_adopt(dump).is_err() {
            self.close_and_schedule_rewrite();
        }
    }

    fn try_adopt(&mut self, ReceivedDump { path, follower, initial_select }: ReceivedDump) -> Result<(), Logged> {
        self.aof_dir.create()?;
        let file_name = self.aof_dir.file_name();
        let mut manifest = self.aof_dir.manifest.clone();
        let base = manifest.new_base(&file_name, true).name.clone();
        let base_path = self.aof_dir.path(&base);
        std::fs::rename(&path, &base_path).map_err(|error| {
            log_error(format_args!(
                "Error trying to rename the RDB file {} into {}: {}",
                path.display(),
                shown(&base),
                reason(&error)
            ))
        })?;
        manifest.retire_increments(0);
        let name = manifest.new_increment(&file_name).name.clone();
        let opened = self.aof_dir.open(&name, true).and_then(|file| begin_increment(file, &name, initial_select));
        let put = opened.and_then(|increment| self.aof_dir.install_manifest(manifest).map(|()| increment));
        let increment = put.inspect_err(|Logged| {
            self.aof_dir.remove_unlisted(&base);
            self.aof_dir.remove_unlisted(&name);
        })?;
        self.begin(follower, increment);
        self.measure();
        if !self.has_unsynced() {
            self.publish_synced();
        }
        logging::notice(format_args!("Reused RDB file from primary sync as AOF base file: {}", shown(&base)));
        self.aof_dir.remove_history();
        Ok(())
    }

    /// Installs a base.
    pub fn install(&mut self, finished: FinishedBase) {
        let FinishedBase { number, file, is_dump, answer } = finished;
        if self.rewriting != Some(number) {
            // The cancelling thread has logged it.
            let _ = answer.send(false);
            return;
        }
        let installed = self.try_install(file, is_dump);
        if installed.is_ok() {
            self.rewriting = None;
            let mut status = self.aof.status.lock();
            status.rewrite_ended(true);
            if status.state == State::WaitRewrite {
                status.state = State::On;
            }
            drop(status);
            // Before clients that wait for the disk are answered: they must see that no rewrite is running.
            snapshots::base_installed(&self.core.persistence);
            if !self.has_unsynced() {
                self.publish_synced();
            }
            logging::notice(format_args!("Background AOF rewrite finished successfully"));
        } else {
            self.abandon(number, true);
        }
        // The snapshot thread waits for it.
        let _ = answer.send(installed.is_ok());
    }

    fn try_install(&mut self, file: DumpFile, is_dump: bool) -> Result<(), Logged> {
        let file_name = self.aof_dir.file_name();
        let mut manifest = self.aof_dir.manifest.clone();
        let base = manifest.new_base(&file_name, is_dump).name.clone();
        let from = file.name();
        file.install(&self.aof_dir.path(&base)).map_err(|error| log_error(format_args!("{error}")))?;
        logging::notice(format_args!("Successfully renamed the temporary AOF base file {from} into {}", shown(&base)));
        let state = self.aof.status.lock().state;
        let mut increment = None;
        let put = (|| {
            if state == State::WaitRewrite {
                let name = manifest.new_increment(&file_name).name.clone();
                self.aof_dir.rename(&self.aof_dir.path(&self.aof_dir.temporary_name()), &name, "incr")?;
                self.rename_increment(&name);
                increment = Some(name);
            }
            manifest.retire_increments(usize::from(self.increment.is_some()));
            self.aof_dir.install_manifest(manifest)
        })();
        if put.is_err() {
            self.aof_dir.remove_unlisted(&base);
            increment.iter().for_each(|name| self.aof_dir.remove_unlisted(name));
            return put;
        }
        let written = self.increment.as_ref().map_or(0, |increment| increment.size);
        let size = self.aof_dir.size(&base).unwrap_or(0) + written;
        if self.increment.is_some() {
            self.aof.current_size.store(size, Ordering::Relaxed);
            self.aof.base_size.store(size, Ordering::Relaxed);
        }
        self.aof_dir.remove_history();
        Ok(())
    }

    /// A rewrite failed or was cancelled.
    pub fn abandon(&mut self, number: u64, failed: bool) {
        if self.rewriting != Some(number) {
            return;
        }
        self.rewriting = None;
        let state = self.aof.status.lock().state;
        if state == State::WaitRewrite {
            self.close();
        }
        let mut status = self.aof.status.lock();
        if failed {
            status.rewrite_ended(false);
        }
        // There are no files without a base.
        status.scheduled |= state == State::WaitRewrite;
    }
}

impl super::Status {
    fn rewrite_ended(&mut self, succeeded: bool) {
        self.last_duration_s = clock::unix_ms() / 1000 - self.started_s;
        self.last_rewrite_ok = succeeded;
        self.failures = if succeeded { 0 } else { self.failures.saturating_add(1) };
    }
}

fn begin_increment(file: File, name: &[u8], initial_select: InitialSelect) -> Result<Increment, Logged> {
    initial_select
        .begin(file, name)
        .map_err(|error| log_error(format_args!("Error writing to the AOF file: {}", reason(&error))))
}

fn log_increment_created(name: &[u8]) {
    logging::notice(format_args!("Creating AOF incr file {} on background rewrite", shown(name)));
}
