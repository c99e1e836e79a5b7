//! The format of a data set: a dump, or the commands that rebuild it. Read from the settings when a snapshot begins;
//! later changes apply to the next one.

use super::access;
use super::file::{SaveError, Unrepresentable, write_error};
use crate::open_slots;
use crate::slot_imports::SlotImport;
use crate::{DurableCore, Stream, StreamPosition};
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_config::tables::memory::MAXMEMORY_POLICY;
use kvick_config::tables::persistence::{
    AOF_TIMESTAMP_ENABLED, AOF_USE_RDB_PREAMBLE, RDB_SAVE_VERSION, RDBCHECKSUM, RDBCOMPRESSION,
};
use kvick_config::words::{EvictionPolicy, RdbSaveVersion};
use kvick_rdb::aof::commands;
use kvick_rdb::{Preface, Record, VERSION, VERSION_REDIS, WriteError, WriteOptions, Writer, save_record};
use kvick_runtime::clock;
use kvick_runtime::logging;
use kvick_runtime::version::VALKEY;
use kvick_store::snapshot::pieces::Piece;
use kvick_store::{Access, Entry};
use std::convert::Infallible;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

/// Bytes of commands that are passed on at once.
const COMMANDS_BUFFER: usize = 64 * 1024;

/// See the module's documentation.
#[derive(Clone)]
pub struct Format {
    kind: Kind,
    /// Function libraries, as the last dump had them.
    functions: Vec<Arc<[u8]>>,
    /// Whether entries are written at all.
    has_keys: bool,
    /// Slots that are being imported, whose keys are hidden.
    imports: Vec<SlotImport>,
    /// The open slots of a cluster node.
    open_slots: Option<String>,
    created_s: i64,
}

/// The parts of the data set in a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// The keys of all databases.
    pub keys: bool,
    /// The function libraries.
    pub functions: bool,
}

impl Parts {
    /// Everything.
    pub const ALL: Parts = Parts { keys: true, functions: true };
}

/// How entries are written.
#[derive(Clone)]
pub(super) enum Kind {
    /// As records of a dump.
    Dump {
        /// Version, compression, sum.
        options: WriteOptions,
        /// The access information per key, if the eviction policy uses it.
        access: Option<Access>,
        /// Memory that the server uses, in bytes.
        used_memory: usize,
        /// Whether it is the base of an append-only file.
        aof_base: bool,
        /// Its position in the replication stream.
        replication: Option<StreamPosition>,
        /// Whether the log must not name keys.
        hides_keys: bool,
    },
    /// As the commands that rebuild them.
    Commands {
        /// Whether a timestamp comes first.
        timestamp: bool,
    },
}

/// The place of the data set in the replication stream, while there is a backlog. The caller holds the global lock.
fn stream_position(core: &DurableCore) -> Option<StreamPosition> {
    let stream = core.replication_view().stream();
    // The next record selects its database, unless it is copied from another server.
    core.keyspace.log.reset_selected();
    let Stream { id, database } = stream?;
    Some(StreamPosition { database: database as i64, id, offset: core.keyspace.log.offset() as i64 })
}

/// The version of the user's dumps.
pub fn dump_version(core: &DurableCore) -> u16 {
    match core.config.read(RDB_SAVE_VERSION) {
        RdbSaveVersion::Valkey9 => VERSION,
        RdbSaveVersion::Redis72 => VERSION_REDIS,
    }
}

impl Format {
    /// The user's dump.
    pub fn dump(core: &DurableCore) -> Format {
        Format::new(core, Format::dump_kind(core, dump_version(core), false))
    }

    /// The base of an append-only file.
    pub fn aof_base(core: &DurableCore) -> Format {
        let values = core.config.values();
        let kind = match values.read(AOF_USE_RDB_PREAMBLE) {
            true => Format::dump_kind(core, VERSION, true),
            false => Kind::Commands { timestamp: values.read(AOF_TIMESTAMP_ENABLED) },
        };
        Format::new(core, kind)
    }

    /// A dump for replicas, in a version that all of them can read, with the requested parts.
    pub fn for_replicas(core: &DurableCore, version: u16, parts: Parts) -> Format {
        let mut format = Format::new(core, Format::dump_kind(core, version, false));
        format.has_keys = parts.keys;
        if !parts.functions {
            format.functions.clear();
        }
        format
    }

    /// Commands that rebuild keys, and nothing else.
    pub(super) fn commands() -> Format {
        let kind = Kind::Commands { timestamp: false };
        Format { kind, functions: Vec::new(), has_keys: true, imports: Vec::new(), open_slots: None, created_s: 0 }
    }

    fn new(core: &DurableCore, kind: Kind) -> Format {
        let functions = core.scripting.library_sources();
        let imports = core.slot_imports().unfinished();
        let open_slots = core.open_slots().and_then(|open_slots| open_slots.field());
        Format { kind, functions, has_keys: true, imports, open_slots, created_s: clock::unix_ms() / 1000 }
    }

    fn dump_kind(core: &DurableCore, version: u16, aof_base: bool) -> Kind {
        let values = core.config.values();
        let by_usage = matches!(
            values.read(MAXMEMORY_POLICY),
            EvictionPolicy::AllkeysLru
                | EvictionPolicy::VolatileLru
                | EvictionPolicy::AllkeysLfu
                | EvictionPolicy::VolatileLfu
        );
        Kind::Dump {
            options: WriteOptions {
                version,
                compress: values.read(RDBCOMPRESSION),
                checksum: values.read(RDBCHECKSUM),
            },
            access: by_usage.then(|| access(&values, clock::unix_ms())),
            used_memory: kvick_runtime::memory::in_use(),
            aof_base,
            replication: stream_position(core),
            hides_keys: values.read(HIDE_USER_DATA_FROM_LOG),
        }
    }

    /// Whether it is a dump.
    pub fn is_dump(&self) -> bool {
        matches!(self.kind, Kind::Dump { .. })
    }

    /// Whether entries are written at all.
    pub(super) fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// How entries are written.
    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Begins to write to `to`.
    pub(super) fn begin<W: Write>(&self, to: W) -> Result<Output<W>, SaveError> {
        self.begin_raw(to).map_err(write_error)
    }

    fn begin_raw<W: Write>(&self, to: W) -> io::Result<Output<W>> {
        match &self.kind {
            Kind::Dump { options, used_memory, aof_base, replication, .. } => {
                let mut writer = Writer::new(to, *options)?;
                writer.preface(&Preface {
                    valkey_version: VALKEY,
                    created_s: self.created_s as u64,
                    used_memory: *used_memory as u64,
                    replication: replication.as_ref().map(|at| (at.database, at.id.as_str(), at.offset)),
                    aof_base: *aof_base,
                })?;
                if let Some(field) = &self.open_slots {
                    writer.aux(open_slots::FIELD.as_bytes(), field.as_bytes())?;
                }
                self.functions.iter().try_for_each(|library| writer.function(library))?;
                if self.has_keys {
                    self.imports.iter().try_for_each(|import| {
                        // A loader that does not know of imports would show their keys.
                        match options.version >= VERSION {
                            true => writer.slot_import(&import.name, &import.ranges),
                            false => Err(no_imports(options.version)),
                        }
                    })?;
                }
                Ok(Output::Dump(writer))
            }
            Kind::Commands { timestamp } => {
                let mut writer = BufWriter::with_capacity(COMMANDS_BUFFER, to);
                if *timestamp {
                    write!(writer, "#TS:{}\r\n", self.created_s)?;
                }
                let mut loads = Vec::new();
                self.functions
                    .iter()
                    .for_each(|library| commands::request(&mut loads, &[b"FUNCTION", b"LOAD", library]));
                self.imports.iter().for_each(|import| import.establish(&mut loads));
                writer.write_all(&loads)?;
                Ok(Output::Commands(writer))
            }
        }
    }
}

/// The version has no place for slots that are being imported.
fn no_imports(version: u16) -> io::Error {
    logging::warning(format_args!("Can't store slot migrations in RDB version {version}"));
    io::ErrorKind::Unsupported.into()
}

impl Kind {
    /// Appends an entry of a database.
    pub(super) fn append(&self, bytes: &mut Vec<u8>, database: usize, entry: Entry<'_>) -> Result<(), Unrepresentable> {
        match self {
            Kind::Dump { options, access, hides_keys, .. } => {
                save_record(bytes, &record(entry, access.as_ref()), options)
                    .map_err(|error| unrepresentable(error, database, entry, options, *hides_keys))
            }
            Kind::Commands { .. } => {
                commands::rebuild(bytes, &Record::new(entry));
                Ok(())
            }
        }
    }

    /// Begins an entry of a database whose value comes in pieces.
    pub(super) fn begin(
        &self,
        bytes: &mut Vec<u8>,
        database: usize,
        entry: Entry<'_>,
    ) -> Result<Gradual, Unrepresentable> {
        match self {
            Kind::Dump { options, access, hides_keys, .. } => {
                kvick_rdb::Gradual::begin(bytes, &record(entry, access.as_ref()), options)
                    .map(Gradual::Dump)
                    .map_err(|error| unrepresentable(error, database, entry, options, *hides_keys))
            }
            Kind::Commands { .. } => Ok(Gradual::Commands(commands::Gradual::begin(&Record::new(entry)))),
        }
    }
}

/// An entry that is written in pieces.
pub(super) enum Gradual {
    /// As a record of a dump.
    Dump(kvick_rdb::Gradual),
    /// As the commands that rebuild it.
    Commands(commands::Gradual),
}

impl Gradual {
    /// Appends a piece.
    pub fn piece(&mut self, bytes: &mut Vec<u8>, piece: Piece<'_>) {
        match self {
            Gradual::Dump(record) => record.piece(bytes, piece),
            Gradual::Commands(requests) => requests.piece(bytes, piece),
        }
    }

    /// Appends what stands behind the pieces.
    pub fn end(self, bytes: &mut Vec<u8>) {
        match self {
            Gradual::Dump(record) => record.end(bytes),
            Gradual::Commands(requests) => requests.end(bytes),
        }
    }
}

/// What is written of an entry.
fn record<'a>(entry: Entry<'a>, access: Option<&Access>) -> Record<'a> {
    match access {
        Some(access) => Record::with_usage(entry, access),
        None => Record::new(entry),
    }
}

/// Why an entry of a database could not be written.
fn unrepresentable(
    error: WriteError<Infallible>,
    database: usize,
    entry: Entry<'_>,
    options: &WriteOptions,
    hides_keys: bool,
) -> Unrepresentable {
    match error {
        WriteError::Unrepresentable => {
            let key = (!hides_keys).then(|| entry.key().into());
            Unrepresentable { key, database, version: options.version }
        }
        WriteError::Sink(never) => match never {},
    }
}

/// A data set being written.
pub(super) enum Output<W: Write> {
    /// As a dump.
    Dump(Writer<W>),
    /// As commands.
    Commands(BufWriter<W>),
}

impl<W: Write> Output<W> {
    /// The database of the entries that follow, with the number of its keys and of those that expire.
    pub fn select(&mut self, number: usize, keys: u64, volatile: u64) -> io::Result<()> {
        match self {
            Output::Dump(writer) => writer.select_db(number as u64, keys, volatile),
            Output::Commands(writer) => {
                let mut request = Vec::new();
                commands::request(&mut request, &[b"SELECT", number.to_string().as_bytes()]);
                writer.write_all(&request)
            }
        }
    }

    /// Writes encoded entries.
    pub fn write(&mut self, entries: &[u8]) -> io::Result<()> {
        match self {
            Output::Dump(writer) => writer.captured(entries),
            Output::Commands(writer) => writer.write_all(entries),
        }
    }

    /// Ends it, and returns where it went.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Output::Dump(writer) => writer.finish().map(|(to, _)| to),
            Output::Commands(writer) => writer.into_inner().map_err(io::IntoInnerError::into_error),
        }
    }
}
