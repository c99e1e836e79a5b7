//! What a dump is written with, and the foreground save.

use super::delay::Delay;
use super::file::{self, DumpFile, SaveError};
use super::{access, changes, gate, now_s};
use crate::config::Values;
use crate::config::tables::memory::MAXMEMORY_POLICY;
use crate::config::tables::persistence::{
    DBFILENAME, RDB_KEY_SAVE_DELAY, RDB_SAVE_INCREMENTAL_FSYNC, RDB_SAVE_VERSION, RDBCHECKSUM, RDBCOMPRESSION,
};
use crate::config::tables::process::DIR;
use crate::config::words::{EvictionPolicy, RdbSaveVersion};
use crate::server::Server;
use crate::version::VALKEY;
use crate::{clock, logging, memory};
use kvick_rdb::{Preface, Record, VERSION, VERSION_REDIS, WriteError, WriteOptions, Writer};
use kvick_store::{Access, Counters, Db, Effects, Entry, Env, Locked, WhenExpired};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The name under which this process writes a dump in the foreground until it is complete.
fn temporary_name() -> String {
    format!("temp-{}.rdb", std::process::id())
}

/// What a dump is written with, read when it begins: later changes to the settings are for the next one.
#[derive(Clone)]
pub struct Plan {
    /// The folder that the dump is in.
    pub folder: PathBuf,
    /// Where the dump will be.
    pub place: PathBuf,
    /// Version, compression, sum.
    pub options: WriteOptions,
    /// By what the dump tells how a key was used, if eviction goes by that.
    pub access: Option<Access>,
    sync_often: bool,
    created_s: i64,
    used_memory: usize,
    /// Function libraries.
    functions: Vec<Arc<[u8]>>,
}

impl Plan {
    /// The plan for a dump that begins now.
    pub fn new(server: &Server) -> Plan {
        let values = server.config.values();
        let directory = values.read(DIR);
        let now_ms = clock::unix_ms();
        let by_usage = matches!(
            values.read(MAXMEMORY_POLICY),
            EvictionPolicy::AllkeysLru
                | EvictionPolicy::VolatileLru
                | EvictionPolicy::AllkeysLfu
                | EvictionPolicy::VolatileLfu
        );
        Plan {
            folder: directory.path().into(),
            place: directory.resolve(&values.read(DBFILENAME)),
            options: write_options(&values),
            access: by_usage.then(|| access(&values, now_ms)),
            sync_often: values.read(RDB_SAVE_INCREMENTAL_FSYNC),
            created_s: now_ms / 1000,
            used_memory: memory::allocated(),
            functions: server.scripting.library_sources(),
        }
    }

    /// Begins the file, under this name until it is complete.
    pub(super) fn begin(&self, server: &'static Server, name: &str) -> Result<Writer<DumpFile>, SaveError> {
        let file = server.persistence.temporary.create(&self.folder, name, self.sync_often)?;
        let mut writer = Writer::new(file, self.options).map_err(write_error)?;
        let preface = Preface {
            valkey_version: VALKEY,
            created_s: self.created_s as u64,
            used_memory: self.used_memory as u64,
            replication: None,
            aof_base: false,
        };
        writer.preface(&preface).map_err(write_error)?;
        for library in &self.functions {
            writer.function(library).map_err(write_error)?;
        }
        Ok(writer)
    }

    /// Ends the file, so that it can be put in its place.
    pub(super) fn end(&self, writer: Writer<DumpFile>) -> Result<DumpFile, SaveError> {
        let (file, _) = writer.finish().map_err(write_error)?;
        file.sync()?;
        Ok(file)
    }
}

/// How dumps are written by these settings.
pub fn write_options(values: &Values) -> WriteOptions {
    let version = match values.read(RDB_SAVE_VERSION) {
        RdbSaveVersion::Valkey9 => VERSION,
        RdbSaveVersion::Redis72 => VERSION_REDIS,
    };
    WriteOptions { version, compress: values.read(RDBCOMPRESSION), checksum: values.read(RDBCHECKSUM) }
}

/// What is written of an entry.
pub(super) fn record<'a>(entry: Entry<'a>, access: Option<&Access>) -> Record<'a> {
    match access {
        Some(access) => Record::with_usage(entry, access),
        None => Record::new(entry),
    }
}

/// A write failed. The name of the step is what tools know.
pub(super) fn write_error(error: io::Error) -> SaveError {
    SaveError::Write("rdbSaveRio", error)
}

/// Saves the data set while the world is held. `uncounted` changes were made that no worker has counted yet. On an error
/// the log has told why.
pub fn save(server: &'static Server, world: &mut Locked, uncounted: u64) -> Result<(), SaveError> {
    let plan = Plan::new(server);
    write(server, world, &plan).inspect_err(file::report)?;
    logging::notice(format_args!("DB saved on disk"));
    server.persistence.status.lock().saved(changes(server) + uncounted);
    server.persistence.gate.set(gate::UNSAVED, false);
    Ok(())
}

fn write(server: &'static Server, world: &mut Locked, plan: &Plan) -> Result<(), SaveError> {
    let mut writer = plan.begin(server, &temporary_name())?;
    let mut delay = Delay::new(server, RDB_KEY_SAVE_DELAY);
    for number in 0..server.keyspace.databases() {
        let keyspace = server.keyspace;
        if keyspace.is_empty(number) {
            continue;
        }
        let (keys, volatile) = (keyspace.len(number) as u64, keyspace.volatile(number) as u64);
        writer.select_db(number as u64, keys, volatile).map_err(write_error)?;
        let mut outcome = Ok(());
        for_each(world, number, |entry| {
            if outcome.is_ok() {
                outcome = writer.record(&record(entry, plan.access.as_ref()));
                delay.after(1, || false);
            }
        });
        outcome.map_err(|error| match error {
            WriteError::Sink(error) => write_error(error),
            WriteError::Inexpressible => SaveError::Inexpressible,
        })?;
    }
    let file = plan.end(writer)?;
    file.install(&plan.place)?;
    file::sync_directory(&plan.folder)
}

/// Calls `visit` with every entry of a database, also those whose time has come: whoever loads them decides.
fn for_each(world: &mut Locked, number: usize, visit: impl FnMut(Entry<'_>)) {
    let env = Env {
        now_ms: now_s() * 1000,
        access: &Access::default(),
        touch: false,
        lazy_expire: false,
        when_expired: WhenExpired::ImportSource,
        counters: &Counters::default(),
        effects: &mut Effects::default(),
    };
    Db::new(world, number, env).for_each(visit);
}
