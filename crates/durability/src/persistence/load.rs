//! Loading a dump: at startup, key by key under partition locks, while workers refuse commands; or for DEBUG RELOAD,
//! under the global lock.

use super::delay::Delay;
use super::now_s;
use crate::DurableCore;
use crate::open_slots;
use crate::slot_imports::SlotImport;
use kvick_commands::dump::{value_options, version_check};
use kvick_config::Refusal;
use kvick_config::Values;
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_config::tables::persistence::{DBFILENAME, KEY_LOAD_DELAY, RDBCHECKSUM};
use kvick_config::tables::process::DIR;
use kvick_config::tables::replication::REPLICAOF;
use kvick_rdb::check::{CheckOptions, check_file};
use kvick_rdb::{Checksum, ErrorKind, Event, Loaded, ReadOptions, ReadRecord, Reader, Usage, ValueOptions};
use kvick_runtime::clock;
use kvick_runtime::logging;
use kvick_runtime::logging::LogLevel;
use kvick_runtime::memory::Ahead;
use kvick_scripting::libraries::RestorePolicy;
use kvick_store::global_lock::Participant;
use kvick_store::log::{Batch, encode};
use kvick_store::{Access, Counters, Db, Effects, Env, Key, Keyspace, Locked, Value};
use smallvec::SmallVec;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

/// Keys without a value are named in the log up to this many.
const EMPTY_KEYS_LOGGED_MAX: u64 = 10;

/// Progress of a load, and the results of the last one.
#[derive(Default)]
pub struct Loading {
    /// When it began, Unix time in seconds.
    pub started_s: AtomicI64,
    /// Bytes of the file.
    pub total_bytes: AtomicU64,
    /// Bytes that were read.
    pub loaded_bytes: AtomicU64,
    /// Memory used by the server that wrote the dump, in bytes.
    pub used_memory: AtomicU64,
    /// Keys that were loaded.
    pub keys: AtomicU64,
    /// Expired keys, which were skipped.
    pub expired: AtomicU64,
}

/// The results of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Keys that were loaded.
    pub keys: u64,
    /// Expired keys, which were skipped.
    pub expired: u64,
    /// Keys without a value, which were skipped.
    pub empty: u64,
    /// Hashes whose fields had all expired, which were skipped.
    pub all_fields_expired: u64,
    /// The replication information in the dump.
    pub replication: Replication,
    /// The sources of its function libraries, if these are yet to be loaded.
    pub functions: Vec<Vec<u8>>,
}

/// Replication information of a dump; each field is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replication {
    /// The database that the stream selects.
    pub database: Option<i64>,
    /// The replication ID.
    pub id: Option<String>,
    /// The offset.
    pub offset: Option<i64>,
}

/// Why a dump was not loaded. Displays lines for the log.
#[derive(Debug)]
pub enum LoadError {
    /// The file cannot be opened.
    Open(PathBuf, io::Error),
    /// It cannot be read, or is invalid.
    Read(kvick_rdb::Error),
    /// A key already exists.
    Duplicate {
        /// The number of its database.
        database: u64,
        /// The key, if the log may show it.
        key: Option<Vec<u8>>,
        /// Where in the file.
        offset: u64,
    },
    /// A database number that this server does not have.
    Database {
        /// Databases that it has.
        databases: usize,
        /// Where in the file.
        offset: u64,
    },
    /// A function library cannot be loaded, for this reason.
    Functions(String),
}

impl LoadError {
    /// Whether the only cause is the server's shutdown.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, LoadError::Read(kvick_rdb::Error { kind: ErrorKind::Cancelled, .. }))
    }

    /// Whether the file was valid up to the error, so that a check can tell more.
    fn is_damage(&self) -> bool {
        let LoadError::Read(error) = self else { return false };
        matches!(error.kind, ErrorKind::Truncated | ErrorKind::Corrupt(_) | ErrorKind::Checksum { .. })
    }
}

impl std::error::Error for LoadError {}

impl From<kvick_rdb::Error> for LoadError {
    fn from(error: kvick_rdb::Error) -> Self {
        LoadError::Read(error)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Open(path, error) => {
                let plain = Refusal::from(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0)));
                write!(f, "Fatal error: can't open the RDB file {} for reading: {plain}", path.display())
            }
            LoadError::Read(error) => match &error.kind {
                ErrorKind::Signature(_) | ErrorKind::Version(_) | ErrorKind::Foreign { .. } => error.fmt(f),
                ErrorKind::UnknownType { .. } => {
                    write!(f, "Unknown type or opcode when loading DB. Unrecoverable error, aborting now. {error}")
                }
                ErrorKind::Checksum { expected, found } => write!(
                    f,
                    "Wrong RDB checksum expected: ({expected:x}) but got ({found:x}). Aborting now. {}",
                    error.for_log()
                ),
                _ => write!(f, "Short read or OOM loading DB. Unrecoverable error, aborting now. {}", error.for_log()),
            },
            LoadError::Duplicate { database, key, offset } => {
                f.write_str("RDB has duplicated key ")?;
                if let Some(key) = key {
                    write!(f, "'{}' ", String::from_utf8_lossy(key))?;
                }
                write!(f, "in DB {database} (at offset {offset})")
            }
            LoadError::Functions(reason) => {
                write!(f, "Failed loading library, {}", reason.trim_start_matches("ERR "))
            }
            LoadError::Database { databases, offset } => write!(
                f,
                "FATAL: Data file was created with a server configured to handle more than {databases} databases (at \
                 offset {offset}). Exiting"
            ),
        }
    }
}

/// How DEBUG RELOAD loads.
#[derive(Clone, Copy, Debug)]
pub struct Reload {
    /// Keys of the dump replace existing ones; otherwise an existing key is an error.
    pub merge: bool,
    /// The present data is dropped once the dump's version is known to be supported.
    pub flush: bool,
}

/// Loads the dump at startup, on the snapshot thread; `None` if no file exists. Workers may be running, but must not
/// access the data meanwhile: see [`Reasons::LOADING`](kvick_core::admission::Reasons::LOADING).
pub(super) fn load_at_startup(
    core: &'static DurableCore,
    participant: Participant,
) -> Result<Option<Report>, LoadError> {
    let began = Instant::now();
    let Some(file) = open(&core.config.values())? else { return Ok(None) };
    core.persistence.loading.begin(file.metadata().map_or(0, |metadata| metadata.len()));
    let mut loader = Loader::new(core, Locking::Keys(participant), Reload { merge: false, flush: false });
    // On a replica only the primary decides about expiry.
    (loader.resumes_history, loader.keep_expired) = (true, core.config.read(REPLICAOF).is_some());
    let FinishedLoad { report, .. } = loader.run(file).inspect_err(|error| {
        if error.is_damage() {
            log_file_check(core)
        }
    })?;
    report.log();
    logging::notice(format_args!("DB loaded from disk: {:.3} seconds", began.elapsed().as_secs_f64()));
    Ok(Some(report))
}

/// A dump that has been loaded.
pub struct FinishedLoad<R> {
    /// What was loaded.
    pub report: Report,
    /// The rest of the input, behind the dump.
    pub rest: R,
    /// The offset of the rest in the input.
    pub offset: u64,
}

/// Loads the dump at the start of an append-only file, after files of `before` bytes. Expired keys are kept, since
/// later commands may refer to them.
pub fn load_base(
    core: &'static DurableCore,
    participant: Participant,
    file: File,
    before: u64,
) -> Result<FinishedLoad<impl Read>, LoadError> {
    let mut loader = Loader::new(core, Locking::Keys(participant), Reload { merge: false, flush: false });
    (loader.before, loader.keep_expired) = (before, true);
    let loading = loader.run(file)?;
    loading.report.log();
    Ok(loading)
}

/// Loads the dump under the global lock. On an error, which has been logged, the data may be incomplete.
pub fn reload(core: &'static DurableCore, global: &mut Locked, options: Reload) -> Result<Option<Report>, LoadError> {
    let mut load = || {
        let Some(file) = open(&core.config.values())? else { return Ok(None) };
        core.persistence.loading.begin(file.metadata().map_or(0, |metadata| metadata.len()));
        let mut loader = Loader::new(core, Locking::Global(global), options);
        // Replicas and the append-only file may have what a primary skips. A replica skips nothing.
        loader.keep_expired = core.config.read(REPLICAOF).is_some();
        loader.propagates_deletions = !loader.keep_expired;
        let FinishedLoad { report, .. } = loader.run(file)?;
        report.log();
        Ok(Some(report))
    };
    load().inspect_err(|error| logging::warning(format_args!("{error}")))
}

/// A dump that a primary sends.
pub struct Received<'a, R> {
    /// The dump, and perhaps something behind it.
    pub input: R,
    /// Bytes that it has; 0 when that is not known.
    pub bytes: u64,
    /// Called repeatedly, to send keepalives to the primary; returns whether to continue.
    pub keepalive: Box<dyn FnMut() -> bool + 'a>,
    /// Drops the present data once the dump's version is known to be supported; the dump then replaces it. Without it,
    /// the dump is loaded into the staging databases, and the caller loads the function libraries.
    pub flush: Option<Box<dyn FnOnce() + 'a>>,
}

/// Loads a primary's dump.
pub fn load_received<R: Read>(
    core: &'static DurableCore,
    participant: Participant,
    received: Received<'_, R>,
) -> Result<FinishedLoad<impl Read>, LoadError> {
    let Received { input, bytes, keepalive, flush } = received;
    core.persistence.loading.begin(bytes);
    let in_place = flush.is_some();
    let mut loader = Loader::new(core, Locking::Keys(participant), Reload { merge: false, flush: in_place });
    (loader.keepalive, loader.flush, loader.keep_expired) = (Some(keepalive), flush, true);
    loader.into_staging = !in_place;
    let loading = loader.run(input)?;
    loading.report.log();
    Ok(loading)
}

/// Whether a dump exists, or something in its place that cannot be examined.
pub fn dump_exists(values: &Values) -> bool {
    let found = std::fs::metadata(values.read(DIR).resolve(&values.read(DBFILENAME)));
    !matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Logs the result of a check of a dump that cannot be loaded.
fn log_file_check(core: &DurableCore) {
    let values = core.config.values();
    let options = CheckOptions {
        path: values.read(DIR).resolve(&values.read(DBFILENAME)),
        hide_user_data: values.read(HIDE_USER_DATA_FROM_LOG),
        ..CheckOptions::default()
    };
    let mut output = Vec::new();
    if let Err(error) = check_file(&options, &mut output) {
        logging::warning(format_args!("The RDB file could not be checked: {error}"));
    }
    logging::raw(LogLevel::Warning, &String::from_utf8_lossy(&output));
    logging::warning(format_args!("Terminating server after rdb file reading failure."));
}

/// Opens the dump; `None` when there is none.
fn open(values: &Values) -> Result<Option<File>, LoadError> {
    let path = values.read(DIR).resolve(&values.read(DBFILENAME));
    match File::open(&path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LoadError::Open(path, error)),
    }
}

impl Loading {
    /// A load of so many bytes begins.
    pub fn begin(&self, total_bytes: u64) {
        self.started_s.store(now_s(), Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        [&self.loaded_bytes, &self.used_memory, &self.keys, &self.expired]
            .into_iter()
            .for_each(|field| field.store(0, Ordering::Relaxed));
    }
}

impl Report {
    fn log(&self) {
        let Report { keys, expired, empty, all_fields_expired, .. } = self;
        let skipped = if *empty > 0 { format!("empty keys skipped: {empty}, ") } else { String::new() };
        logging::notice(format_args!(
            "Done loading RDB, keys loaded: {keys}, keys expired: {expired}, {skipped}all fields expired hashes: \
             {all_fields_expired}."
        ));
    }
}

/// How keys are locked.
enum Locking<'a> {
    /// Individually, by this participant.
    Keys(Participant),
    /// By the global lock.
    Global(&'a mut Locked),
}

/// Keys inserted together: enough to prefetch the memory of the last ones while the first are inserted.
const BATCH: usize = 32;

/// Minimum size of a key in a dump, in bytes: its type, its length and its value's.
const KEY_BYTES_MIN: u64 = 3;

/// A key that was read.
struct Pending {
    key: Vec<u8>,
    value: Value,
    expiry_ms: Option<i64>,
    usage: Usage,
    /// Where in the file it ends.
    offset: u64,
}

/// One load.
struct Loader<'a> {
    core: &'static DurableCore,
    inserter: Inserter<'a>,
    options: Reload,
    /// Whether expired keys are loaded.
    keep_expired: bool,
    /// Whether the server continues the dump's history.
    resumes_history: bool,
    /// Whether deletions of skipped keys and hash fields are replicated.
    propagates_deletions: bool,
    /// Bytes of what was loaded before the file.
    before: u64,
    now_ms: i64,
    database: u64,
    /// Keys of the database to insert.
    pending: Vec<Pending>,
    /// Buffers for the names of those that come.
    names: Vec<Vec<u8>>,
    memory_ahead: Ahead,
    report: Report,
    delay: Delay,
    /// Called as the dump is read; returns whether to continue.
    keepalive: Option<Box<dyn FnMut() -> bool + 'a>>,
    /// Drops the present data, if required.
    flush: Option<Box<dyn FnOnce() + 'a>>,
    /// Whether keys go to the staging databases, and functions to the report.
    into_staging: bool,
}

/// Where keys go.
struct Inserter<'a> {
    keyspace: &'static Keyspace,
    locking: Locking<'a>,
    access: Access,
    now_ms: i64,
    counters: Counters,
    effects: Effects,
}

impl<'a> Loader<'a> {
    fn new(core: &'static DurableCore, locking: Locking<'a>, options: Reload) -> Self {
        let (values, now_ms) = (core.config.values(), clock::unix_ms());
        let access = super::access(&values, now_ms);
        let (counters, effects) = Default::default();
        let inserter = Inserter { keyspace: core.keyspace, locking, access, now_ms, counters, effects };
        Loader {
            core,
            inserter,
            options,
            keep_expired: false,
            resumes_history: false,
            propagates_deletions: false,
            before: 0,
            now_ms,
            database: 0,
            pending: Vec::with_capacity(BATCH),
            names: Vec::with_capacity(BATCH),
            memory_ahead: Ahead::default(),
            report: Report::default(),
            delay: Delay::new(core, KEY_LOAD_DELAY),
            keepalive: None,
            flush: None,
            into_staging: false,
        }
    }

    /// The number of the database that keys of this one in the dump go to.
    fn destination(&self, number: u64) -> usize {
        let number = number as usize;
        if self.into_staging { self.core.keyspace.staging(number) } else { number }
    }

    /// Loads everything.
    fn run<R: Read>(mut self, input: R) -> Result<FinishedLoad<impl Read>, LoadError> {
        let (core, before) = (self.core, self.before);
        let mut keepalive = self.keepalive.take();
        let progress = move |offset| {
            let keeps_going = keepalive.as_mut().is_none_or(|keepalive| keepalive());
            core.persistence.loading.loaded_bytes.store(before + offset, Ordering::Relaxed);
            if core.is_shutting_down() || !keeps_going { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = read_options(core, (!self.keep_expired).then_some(self.now_ms));
        let mut reader = Reader::with_progress(input, options, Box::new(progress))?;
        if self.options.flush {
            logging::notice(format_args!("RDB signature and version check passed. Flushing old data"));
            match self.flush.take() {
                Some(flush) => flush(),
                None => self.inserter.flush(),
            }
        }
        core.slot_imports().load_began();
        let mut functions = Vec::new();
        while let Some(event) = reader.next_event()? {
            match event {
                Event::Entry(record) => self.queue_key(record, reader.key(), reader.offset())?,
                Event::Aux { name, value } => self.handle_aux(&name, &value),
                Event::SelectDb(number) if number >= core.keyspace.databases() as u64 => {
                    let databases = core.keyspace.databases();
                    return Err(LoadError::Database { databases, offset: reader.offset() });
                }
                Event::SelectDb(number) => {
                    self.resume_dump_history();
                    self.insert_pending()?;
                    self.database = number;
                }
                // The claimed size is trusted only up to the file's length.
                Event::ResizeDb { keys, .. } => {
                    let keys = keys.min(core.persistence.loading.total_bytes.load(Ordering::Relaxed) / KEY_BYTES_MIN);
                    self.inserter.reserve(self.destination(self.database), keys as usize);
                }
                Event::Function(source) => functions.push(source),
                Event::End(Checksum::Absent) => {
                    logging::notice(format_args!("RDB file was saved with checksum disabled: no check performed."))
                }
                Event::SlotImport { job, ranges } => core.slot_imports().loaded(SlotImport { name: job, ranges }),
                Event::SlotInfo { .. } | Event::ModuleAux(_) | Event::End(_) => {}
            }
        }
        self.resume_dump_history();
        self.insert_pending()?;
        if self.into_staging {
            self.report.functions = functions;
        } else {
            self.load_functions(&functions)?;
        }
        let offset = reader.offset();
        Ok(FinishedLoad { report: self.report, rest: reader.into_rest(), offset })
    }

    /// Loads function libraries, in place of the present ones if these must be dropped.
    fn load_functions(&self, sources: &[Vec<u8>]) -> Result<(), LoadError> {
        let join = match self.options {
            Reload { flush: true, .. } => RestorePolicy::Flush,
            Reload { merge: true, .. } => RestorePolicy::Replace,
            _ => RestorePolicy::Append,
        };
        let joined = self.core.scripting.restore_libraries(self.core, sources, join);
        joined.map_err(|error| LoadError::Functions(error.to_string()))
    }

    /// Continues the dump's history, before the first key is loaded: deletions of skipped keys come after the dump's
    /// offset.
    fn resume_dump_history(&mut self) {
        if !std::mem::take(&mut self.resumes_history) {
            return;
        }
        let Replication { id: Some(id), offset: Some(offset), database } = &self.report.replication else { return };
        if let Ok(offset) = u64::try_from(*offset)
            && id.len() == 40
        {
            let database = database.and_then(|number| usize::try_from(number).ok());
            let database = database.filter(|number| *number < self.core.keyspace.databases());
            self.core.replication_view().resume_history(id, offset, database.unwrap_or(0));
            self.propagates_deletions = !self.keep_expired;
        }
    }

    /// Replicates the deletion of what was skipped because it had expired: of a key, or of these fields of a hash.
    fn propagate_deletion(&self, key: &[u8], fields: &[Vec<u8>]) {
        if !self.propagates_deletions {
            return;
        }
        let mut words = vec![if fields.is_empty() { &b"DEL"[..] } else { b"HDEL" }, key];
        words.extend(fields.iter().map(Vec::as_slice));
        let mut record = Vec::new();
        encode(&mut record, words.into_iter());
        let database = self.database as usize;
        let batch = Batch {
            databases: (database, database),
            records: &[&record],
            record_count: 1,
            replica_only: &[],
            aof_only: &[],
        };
        self.core.keyspace.log.append(&batch);
    }

    /// Queues a key for insertion, unless it has expired or has no value.
    fn queue_key(&mut self, record: ReadRecord, key: &[u8], offset: u64) -> Result<(), LoadError> {
        let loading = &self.core.persistence.loading;
        match record.value {
            Loaded::Empty => {
                self.report.empty += 1;
                if self.report.empty <= EMPTY_KEYS_LOGGED_MAX {
                    self.log_empty_key(key);
                }
            }
            Loaded::Expired => {
                self.report.all_fields_expired += 1;
                self.propagate_deletion(key, &record.expired_fields);
            }
            Loaded::Module(module) => {
                return Err(kvick_rdb::Error { offset, kind: ErrorKind::Module(module) }.into());
            }
            Loaded::Value(_) if !self.keep_expired && record.expiry_ms.is_some_and(|at| at < self.now_ms) => {
                self.report.expired += 1;
                loading.expired.store(self.report.expired, Ordering::Relaxed);
                self.propagate_deletion(key, &[]);
            }
            Loaded::Value(value) => {
                if !record.expired_fields.is_empty() {
                    self.propagate_deletion(key, &record.expired_fields);
                }
                let mut name = self.names.pop().unwrap_or_default();
                name.extend_from_slice(key);
                let (expiry_ms, usage) = (record.expiry_ms, record.usage);
                self.pending.push(Pending { key: name, value, expiry_ms, usage, offset });
                if self.pending.len() == BATCH {
                    self.insert_pending()?;
                }
            }
        }
        let core = self.core;
        self.delay.after(1, || core.is_shutting_down());
        Ok(())
    }

    /// Inserts the queued keys.
    fn insert_pending(&mut self) -> Result<(), LoadError> {
        let number = self.destination(self.database);
        let entered = self.pending.len() as u64;
        if let Err(Pending { key, offset, .. }) =
            self.inserter.insert_all(number, &mut self.pending, &mut self.names, self.options.merge)
        {
            let shown = !self.core.config.read(HIDE_USER_DATA_FROM_LOG);
            return Err(LoadError::Duplicate { database: self.database, key: shown.then_some(key), offset });
        }
        self.memory_ahead.follow();
        self.report.keys += entered;
        self.core.persistence.loading.keys.store(self.report.keys, Ordering::Relaxed);
        Ok(())
    }

    fn log_empty_key(&self, key: &[u8]) {
        if self.core.config.read(HIDE_USER_DATA_FROM_LOG) {
            logging::notice(format_args!("rdbLoadObject skipping empty key"));
        } else {
            logging::notice(format_args!("rdbLoadObject skipping empty key: {}", String::from_utf8_lossy(key)));
        }
    }

    /// Processes a dump's metadata field.
    fn handle_aux(&mut self, name: &[u8], value: &[u8]) {
        let (name, text) = (String::from_utf8_lossy(name).to_ascii_lowercase(), String::from_utf8_lossy(value));
        let number = || text.parse::<i64>().ok();
        let replication = &mut self.report.replication;
        match &*name {
            "redis-ver" => logging::notice(format_args!("Loading RDB produced by Redis version {text}")),
            "valkey-ver" => logging::notice(format_args!("Loading RDB produced by Valkey version {text}")),
            "ctime" => {
                let age_s = now_s().saturating_sub(number().unwrap_or(0)).max(0);
                logging::notice(format_args!("RDB age {age_s} seconds"));
            }
            "used-mem" => {
                let bytes = number().unwrap_or(0);
                logging::notice(format_args!("RDB memory usage when created {:.2} Mb", bytes as f64 / 1048576.0));
                self.core.persistence.loading.used_memory.store(bytes.max(0) as u64, Ordering::Relaxed);
            }
            "aof-base" if number().is_some_and(|base| base != 0) => logging::notice(format_args!("RDB is base AOF")),
            "repl-stream-db" => replication.database = number(),
            "repl-id" => replication.id = Some(text.into_owned()),
            "repl-offset" => replication.offset = number(),
            open_slots::FIELD => {
                if let Some(open_slots) = self.core.open_slots() {
                    open_slots.loaded(&text);
                }
            }
            "redis-bits" | "aof-base" | "aof-preamble" | "lua" | "slot-info" => {}
            name if name.starts_with('%') => logging::notice(format_args!("RDB '{name}': {text}")),
            name => logging::debug(format_args!("Unrecognized RDB AUX field: '{name}'")),
        }
    }
}

impl Inserter<'_> {
    /// Inserts keys and moves their names' buffers to `names`. Returns the first key that already exists and must not
    /// be replaced.
    fn insert_all(
        &mut self,
        number: usize,
        pending: &mut Vec<Pending>,
        names: &mut Vec<Vec<u8>>,
        replace: bool,
    ) -> Result<(), Pending> {
        let keyspace = self.keyspace;
        let hashes: SmallVec<[u64; BATCH]> = pending.iter().map(|pending| keyspace.key(&pending.key).hash).collect();
        let participant = if let Locking::Keys(participant) = &self.locking { Some(*participant) } else { None };
        participant.inspect(|participant| keyspace.global_lock.enter(*participant));
        keyspace.prefetch(number, &hashes, None);
        let mut result = Ok(());
        for (mut pending, hash) in pending.drain(..).zip(hashes) {
            if !self.put(number, hash, &mut pending, replace) {
                result = Err(pending);
                break;
            }
            pending.key.clear();
            names.push(pending.key);
        }
        participant.inspect(|participant| keyspace.global_lock.leave(*participant));
        result
    }

    /// Inserts a key. Returns false if it already exists and must not be replaced.
    fn put(&mut self, number: usize, hash: u64, pending: &mut Pending, replace: bool) -> bool {
        let (keyspace, access) = (self.keyspace, &self.access);
        let key = Key { bytes: &pending.key, hash };
        // Keys that expired since the load began are treated like others.
        let env = Env::background(self.now_ms, access, &self.counters, &mut self.effects);
        let (value, expiry) = (std::mem::replace(&mut pending.value, Value::Int(0)), pending.expiry_ms);
        let put = |mut db: Db<'_>| {
            if replace {
                db.put(key, value, expiry);
            } else if !db.put_if_absent(key, value, expiry) {
                return false;
            }
            if let Some(clock) = clock(pending.usage, access) {
                db.restore_clock(key, clock);
            }
            true
        };
        match &mut self.locking {
            Locking::Global(global) => put(Db::new(global, number, env)),
            Locking::Keys(_) => {
                put(Db::new(&mut keyspace.lock_one(keyspace.address_of_hash(number, hash)), number, env))
            }
        }
    }

    /// Reserves space for this many keys of a database.
    fn reserve(&mut self, number: usize, keys: usize) {
        match &mut self.locking {
            Locking::Global(global) => global.reserve(number, keys),
            Locking::Keys(participant) => {
                self.keyspace.global_lock.enter(*participant);
                self.keyspace.lock_nothing().reserve(number, keys);
                self.keyspace.global_lock.leave(*participant);
            }
        }
    }

    /// Drops all data. The caller holds the global lock.
    fn flush(&mut self) {
        if let Locking::Global(global) = &mut self.locking {
            (0..self.keyspace.databases()).for_each(|number| _ = global.flush(number, false));
        }
    }
}

/// The access clock of a key with this usage, if the eviction policy uses clocks.
fn clock(usage: Usage, access: &Access) -> Option<u32> {
    match usage {
        Usage::IdleSeconds(seconds) if !access.lfu => Some(access.idle_since(seconds)),
        Usage::Frequency(frequency) if access.lfu => Some(access.used_as_often(frequency)),
        _ => None,
    }
}

/// The options for reading dumps under the current settings. Fields that expired before this time are skipped.
fn read_options(core: &DurableCore, expired_before_ms: Option<i64>) -> ReadOptions {
    let settings = &core.runtime_config().commands;
    ReadOptions {
        version_check: version_check(settings),
        checksum: core.config.read(RDBCHECKSUM),
        skip_modules: false,
        values: ValueOptions { expire_fields_before_ms: expired_before_ms, ..value_options(settings) },
    }
}
