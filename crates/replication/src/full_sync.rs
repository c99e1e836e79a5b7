//! Full sync on the replica: replaces its data with a dump that the primary sends.
//!
//! `repl-diskless-load` selects one of three ways. Through a file: the data stays until the complete dump has been
//! received and validated. Directly from the connection, in place: the data is dropped as soon as the dump's version is
//! known. Or directly into the staging databases, which replace the databases after a successful load; meanwhile the
//! server serves the old data if it is an earlier state of the same history.

use super::apply::{Apply, POLL_INTERVAL};
use super::primary_connection::{LinkError, PrimaryConnection, READ_SIZE, for_log};
use super::synchronise::is_only_for_replicas;
use super::upstream::LinkStage;
use crate::ReplicatedCore;
use kvick_config::tables::persistence::{DBFILENAME, RDB_DEL_SYNC_FILES};
use kvick_config::tables::process::DIR;
use kvick_config::tables::replication as settings;
use kvick_config::words::DisklessLoad;
use kvick_core::admission::Reasons;
use kvick_durability::aof::{State, rewrite};
use kvick_durability::persistence::{background, load};
use kvick_runtime::clock;
use kvick_runtime::logging;
use kvick_scripting::libraries::RestorePolicy;
use kvick_store::global_lock::Participant;
use std::cell::Cell;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The error if a primary does not send its dump.
const DUMP_TIMEOUT: &str = "Timeout receiving bulk data from PRIMARY... If the problem persists try to set the \
                       'repl-timeout' parameter in valkey.conf to a larger value.";

/// Length in bytes of the mark that delimits a dump of unknown length.
const EOF_MARK_LEN: usize = 40;
/// Length in bytes of the start of a dump, with its version.
const DUMP_HEADER_LEN: u64 = 9;

/// How a dump is delimited.
enum DumpFraming {
    /// By its length in bytes.
    Length(u64),
    /// By a mark after it.
    EofMark(Vec<u8>),
}

impl DumpFraming {
    /// How many of the first `count` bytes certainly follow.
    fn available(&self, count: u64) -> usize {
        match self {
            DumpFraming::Length(length) => count.min(*length) as usize,
            DumpFraming::EofMark(_) => count as usize,
        }
    }
}

/// The way of loading.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadMode {
    Disk,
    InPlace,
    Staging,
}

/// Receives and loads one dump.
pub struct FullSync<'a> {
    /// The core.
    pub core: &'static ReplicatedCore,
    /// The generation of the primary to follow.
    pub generation: u64,
    /// The thread's participant in the global lock.
    pub participant: Participant,
    /// Serves clients that wait for keys.
    pub applier: &'a mut dyn Apply,
    /// The replication ID of the dump.
    pub id: &'a str,
    /// The replication offset of the dump.
    pub offset: u64,
}

impl FullSync<'_> {
    /// Receives and loads the dump. Returns the database that the primary's log selects after it.
    pub fn run(&mut self, primary_connection: &mut PrimaryConnection) -> Result<usize, LinkError> {
        let core = self.core;
        core.replication.upstream.set_stage(LinkStage::Receiving);
        primary_connection.timeout_error = DUMP_TIMEOUT;
        let load_mode = self.load_mode();
        let framing = self.wait_for_dump(primary_connection, load_mode)?;
        let report = match load_mode {
            LoadMode::Disk => {
                let received = self.receive(primary_connection, &framing)?;
                self.load_in_place(primary_connection, DumpSource::File(received))?
            }
            LoadMode::InPlace => {
                // The data is dropped as soon as loading is reported, also if the connection breaks then.
                primary_connection.wait_for(framing.available(DUMP_HEADER_LEN))?;
                self.load_in_place(primary_connection, DumpSource::PrimaryConnection(framing))?
            }
            LoadMode::Staging => self.load_into_staging(primary_connection, DumpSource::PrimaryConnection(framing))?,
        };
        logging::notice(format_args!("PRIMARY <-> REPLICA sync: Finished with success"));
        Ok(self.database(&report))
    }

    /// The database that the primary's log selects after a dump.
    fn database(&self, report: &load::Report) -> usize {
        let database = report.replication.database.and_then(|number| usize::try_from(number).ok());
        database.filter(|number| *number < self.core.keyspace.databases()).unwrap_or(0)
    }

    fn load_mode(&self) -> LoadMode {
        let keyspace = self.core.keyspace;
        match self.core.config.read(settings::REPL_DISKLESS_LOAD) {
            DisklessLoad::Swapdb => LoadMode::Staging,
            DisklessLoad::FlushBeforeLoad => LoadMode::InPlace,
            DisklessLoad::OnEmptyDb if (0..keyspace.databases()).all(|number| keyspace.is_empty(number)) => {
                LoadMode::InPlace
            }
            DisklessLoad::OnEmptyDb | DisklessLoad::Disabled => LoadMode::Disk,
        }
    }

    fn is_superseded(&self) -> bool {
        self.core.replication.upstream.generation() != self.generation
    }

    /// Waits until the dump begins. Returns how it is delimited.
    fn wait_for_dump(
        &self,
        primary_connection: &mut PrimaryConnection,
        load_mode: LoadMode,
    ) -> Result<DumpFraming, LinkError> {
        let line = primary_connection.read_reply()?;
        let upstream = &self.core.replication.upstream;
        upstream.dump_received.store(0, Ordering::Relaxed);
        let Some(rest) = line.strip_prefix(b"$") else {
            return Err(LinkError::Refused(format!("PRIMARY aborted replication with an error: {}", for_log(&line))));
        };
        let destination = if load_mode == LoadMode::Disk { "disk" } else { "parser" };
        if let Some(mark) = rest.strip_prefix(b"EOF:").filter(|mark| mark.len() == EOF_MARK_LEN) {
            upstream.dump_bytes.store(0, Ordering::Relaxed);
            logging::notice(format_args!(
                "PRIMARY <-> REPLICA sync: receiving streamed RDB from primary with EOF to {destination}"
            ));
            return Ok(DumpFraming::EofMark(mark.to_vec()));
        }
        let length = std::str::from_utf8(rest).ok().and_then(|digits| digits.parse().ok());
        let length = length.ok_or_else(|| {
            LinkError::Refused(format!("Bad protocol from PRIMARY, length of the dump: {}", for_log(&line)))
        })?;
        upstream.dump_bytes.store(length, Ordering::Relaxed);
        logging::notice(format_args!(
            "PRIMARY <-> REPLICA sync: receiving {length} bytes from primary to {destination}"
        ));
        Ok(DumpFraming::Length(length))
    }

    /// Loads a dump in place of the data.
    fn load_in_place(
        &mut self,
        primary_connection: &mut PrimaryConnection,
        mut source: DumpSource,
    ) -> Result<load::Report, LinkError> {
        let core = self.core;
        // This server's replicas have a different history from now on.
        core.disconnect_replicas();
        let reason = self.begin_loading(Reasons::LOADING)?;
        let lazy = core.config.read(settings::REPLICA_LAZY_FLUSH);
        let flushed = Cell::new(false);
        let applier = &mut *self.applier;
        let flush = || {
            flushed.set(true);
            applier.drop_data(lazy);
        };
        // No save may replace the file while it is loaded.
        background::cancel(&core.persistence);
        let installed =
            if let DumpSource::File(received) = &mut source { received.install().map(Some) } else { Ok(None) };
        let outcome = match installed {
            Ok(file) => {
                let loaded =
                    load(core, self.generation, self.participant, primary_connection, source, Some(Box::new(flush)));
                let outcome = loaded.and_then(|report| self.adopt(&report, file.clone()).map(|()| report));
                file.inspect(|place| self.remove_if_unneeded(place));
                outcome
            }
            Err(broken) => Err(broken),
        };
        if outcome.is_err() {
            if flushed.get() {
                logging::notice(format_args!("PRIMARY <-> REPLICA sync: Discarding the half-loaded data"));
                self.applier.drop_data(true);
            } else {
                logging::notice(format_args!("PRIMARY <-> REPLICA sync: Skipping flush, no new data was loaded."));
            }
        }
        core.admission.set(reason, false);
        outcome
    }

    /// Loads a dump into the staging databases, then exchanges them with the databases.
    fn load_into_staging(
        &mut self,
        primary_connection: &mut PrimaryConnection,
        source: DumpSource,
    ) -> Result<load::Report, LinkError> {
        let core = self.core;
        // The present data is an earlier state of the dump if the history is the same.
        let is_same = core.replication.history.lock().id == self.id;
        let reason = self.begin_loading(if is_same { Reasons::ASYNC_LOADING } else { Reasons::LOADING })?;
        let loaded = load(core, self.generation, self.participant, primary_connection, source, None);
        let outcome = loaded.and_then(|report| self.exchange(report));
        let mut global = core.keyspace.lock_global();
        (0..core.keyspace.databases()).for_each(|number| _ = global.flush(core.keyspace.staging(number), true));
        core.admission.set(reason, false);
        drop(global);
        let which = if outcome.is_ok() { "old" } else { "temporary" };
        logging::notice(format_args!("PRIMARY <-> REPLICA sync: Discarding {which} DB in background"));
        outcome
    }

    /// Refuses commands for this reason, unless the primary is no longer the current one. Returns the reason.
    fn begin_loading(&self, reason: Reasons) -> Result<Reasons, LinkError> {
        let admission = &self.core.admission;
        let mut global = self.core.keyspace.lock_global();
        // DEBUG LOADAOF: another thread uses the data exclusively.
        while admission.has(Reasons::LOADING) {
            drop(global);
            std::thread::sleep(POLL_INTERVAL);
            global = self.core.keyspace.lock_global();
        }
        if self.is_superseded() {
            return Err(LinkError::Superseded);
        }
        self.core.persistence.loading.loaded_bytes.store(0, Ordering::Relaxed);
        admission.set(reason, true);
        logging::notice(format_args!("PRIMARY <-> REPLICA sync: Loading DB in memory"));
        Ok(reason)
    }

    /// Replaces the data with the staging databases.
    fn exchange(&mut self, report: load::Report) -> Result<load::Report, LinkError> {
        let core = self.core;
        core.disconnect_replicas();
        // Libraries are compiled before the exchange, so that a failure changes nothing.
        let joined = core.scripting.restore_libraries(core, &report.functions, RestorePolicy::Flush);
        joined.map_err(|error| LinkError::Refused(format!("Failed loading library, {error}")))?;
        logging::notice(format_args!("PRIMARY <-> REPLICA sync: Swapping active DB with loaded DB"));
        self.applier.exchange_staging();
        self.adopt(&report, None)?;
        Ok(report)
    }

    /// The data belongs to the primary's history from here on. `file` may become the base of the append-only file.
    fn adopt(&self, report: &load::Report, file: Option<PathBuf>) -> Result<(), LinkError> {
        let core = self.core;
        let global = core.keyspace.lock_global();
        if self.is_superseded() {
            return Err(LinkError::Superseded);
        }
        let log = &core.keyspace.log;
        log.reset(self.offset);
        log.set_repeats(true);
        core.replication.writable_replica_keys.clear();
        core.replication.history.lock().adopt(self.id);
        core.replication.has_backlog.store(true, Ordering::SeqCst);
        log.keep_backlog(core.config.read(settings::REPL_BACKLOG_SIZE));
        let adopted = file.and_then(|path| rewrite::adopt(core, path, self.database(report)));
        drop(global);
        // The thread that owns the append-only file lives as long as the process.
        adopted.inspect(|adopted| _ = adopted.recv());
        Ok(())
    }

    /// Deletes the file of a received dump, unless it is needed.
    fn remove_if_unneeded(&self, path: &Path) {
        let values = self.core.config.values();
        let is_kept = self.core.aof.status().state != State::Off || !is_only_for_replicas(self.core);
        if values.read(RDB_DEL_SYNC_FILES) && !is_kept {
            logging::notice(format_args!(
                "Removing the RDB file obtained from the primary. This replica has persistence disabled"
            ));
            // A failure to delete it does no harm.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Writes the dump to a file that will replace this server's own dump.
    fn receive(
        &self,
        primary_connection: &mut PrimaryConnection,
        framing: &DumpFraming,
    ) -> Result<ReceivedFile, LinkError> {
        let values = self.core.config.values();
        let place = values.read(DIR).resolve(&values.read(DBFILENAME));
        let temporary = place.with_file_name(format!("temp-{}.{}.rdb", clock::unix_ms() / 1000, std::process::id()));
        let mut received = ReceivedFile { temporary: Some(temporary.clone()), place, bytes: 0 };
        received.bytes = self.receive_into(primary_connection, framing, &temporary)?;
        Ok(received)
    }

    /// Returns the number of bytes.
    fn receive_into(
        &self,
        primary_connection: &mut PrimaryConnection,
        framing: &DumpFraming,
        path: &Path,
    ) -> Result<u64, LinkError> {
        let failed = |error| LinkError::Io("Write error or short write writing to the DB dump file", error);
        let mut file = File::create(path).map_err(failed)?;
        let upstream = &self.core.replication.upstream;
        let mut received = 0u64;
        // The last bytes received. They may be the start of the mark, so they have not been written.
        let mut tail: Vec<u8> = Vec::new();
        loop {
            let wanted = match framing {
                DumpFraming::Length(length) => (length - received).min(READ_SIZE as u64) as usize,
                DumpFraming::EofMark(_) => READ_SIZE,
            };
            if wanted == 0 {
                break;
            }
            let bytes = primary_connection.read_some(wanted)?;
            received += bytes.len() as u64;
            upstream.dump_received.store(received, Ordering::Relaxed);
            match framing {
                DumpFraming::Length(_) => file.write_all(bytes).map_err(failed)?,
                DumpFraming::EofMark(mark) => {
                    tail.extend_from_slice(bytes);
                    let done = tail.ends_with(mark);
                    let complete = tail.len().saturating_sub(mark.len());
                    file.write_all(&tail[..complete]).map_err(failed)?;
                    tail.drain(..complete);
                    if done {
                        break;
                    }
                }
            }
            if self.is_superseded() {
                return Err(LinkError::Superseded);
            }
        }
        file.sync_all().and_then(|()| Ok(file.metadata()?.len())).map_err(failed)
    }
}

/// Loads a dump: in place of the data if `flush` drops it, otherwise into the staging databases.
fn load<'f>(
    core: &'static ReplicatedCore,
    generation: u64,
    participant: Participant,
    primary_connection: &mut PrimaryConnection,
    source: DumpSource,
    flush: Option<Box<dyn FnOnce() + 'f>>,
) -> Result<load::Report, LinkError> {
    let (mut keepalive_sender, upstream) = (primary_connection.keepalive(), &core.replication.upstream);
    let keepalive = move || {
        keepalive_sender.send_if_due();
        upstream.generation() == generation
    };
    let (bytes, mark, place) = match &source {
        DumpSource::File(received) => (received.bytes, &[][..], "disk"),
        DumpSource::PrimaryConnection(DumpFraming::Length(bytes)) => (*bytes, &[][..], "socket"),
        DumpSource::PrimaryConnection(DumpFraming::EofMark(mark)) => (0, &mark[..], "socket"),
    };
    let (mut file, mut stream);
    let input: &mut dyn Read = match &source {
        DumpSource::File(received) => {
            file = File::open(&received.place)
                .map_err(|error| LinkError::Io("Can't open the dump that was received", error))?;
            &mut file
        }
        DumpSource::PrimaryConnection(_) => {
            stream = DumpStream { primary_connection, left: if mark.is_empty() { bytes } else { u64::MAX } };
            &mut stream
        }
    };
    let received = load::Received { input, bytes, keepalive: Box::new(keepalive), flush };
    let failed = |reason: &dyn Display| {
        logging::warning(format_args!("{reason}"));
        LinkError::Refused(format!(
            "Failed trying to load the PRIMARY synchronization DB from {place}, check server logs."
        ))
    };
    let load::FinishedLoad { report, mut rest, .. } =
        load::load_received(core, participant, received).map_err(|error| failed(&error))?;
    let mut trailer = [0; EOF_MARK_LEN];
    if !mark.is_empty() && (rest.read_exact(&mut trailer).is_err() || trailer != mark) {
        return Err(failed(&"Replication stream EOF marker is broken"));
    }
    Ok(report)
}

/// Where a dump is loaded from.
enum DumpSource {
    /// A file.
    File(ReceivedFile),
    /// The connection.
    PrimaryConnection(DumpFraming),
}

/// The file of a received dump. It is deleted on drop unless it was installed.
struct ReceivedFile {
    /// Its temporary name, until it is installed.
    temporary: Option<PathBuf>,
    /// Its final path.
    place: PathBuf,
    bytes: u64,
}

impl ReceivedFile {
    /// Replaces the server's own dump with this file. Returns its path.
    fn install(&mut self) -> Result<PathBuf, LinkError> {
        if let Some(temporary) = &self.temporary {
            std::fs::rename(temporary, &self.place).map_err(|error| {
                let name = self.place.file_name().unwrap_or_default().to_string_lossy();
                LinkError::Refused(format!(
                    "Failed trying to rename the temp DB into {name} in PRIMARY <-> REPLICA synchronization: {error}"
                ))
            })?;
        }
        self.temporary = None;
        Ok(self.place.clone())
    }
}

impl Drop for ReceivedFile {
    fn drop(&mut self) {
        // An incomplete or unwanted file is useless.
        self.temporary.iter().for_each(|temporary| _ = std::fs::remove_file(temporary));
    }
}

/// A dump received over the connection.
struct DumpStream<'w> {
    primary_connection: &'w mut PrimaryConnection,
    /// Bytes left to read.
    left: u64,
}

impl Read for DumpStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted = into.len().min(self.left.min(READ_SIZE as u64) as usize);
        if wanted == 0 {
            return Ok(0);
        }
        let received = &self.primary_connection.core.replication.upstream.dump_received;
        let bytes = self.primary_connection.read_some(wanted).map_err(|broken| io::Error::other(broken.to_string()))?;
        into[..bytes.len()].copy_from_slice(bytes);
        self.left -= bytes.len() as u64;
        received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }
}
