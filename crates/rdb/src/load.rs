//! Loading a whole dump into something that takes keys.

use crate::error::{Error, ErrorKind};
use crate::input::Progress;
use crate::read::{Checksum, Event, ReadOptions, Reader, Record};
use crate::value::Loaded;
use crate::write::Usage;
use kvick_store::Value;
use std::io::Read;

/// A key that is loaded.
#[derive(Debug)]
pub struct Key<'a> {
    /// The number of its database.
    pub db: u64,
    /// Its name.
    pub name: &'a [u8],
    /// When it expires: Unix time in milliseconds.
    pub expiry_ms: Option<i64>,
    /// How it was used.
    pub usage: Usage,
}

/// What a dump is loaded into. Whatever is not of interest may be left to the defaults.
pub trait Target {
    /// Why loading may have to end.
    type Error: From<Error>;

    /// Takes a key.
    fn key(&mut self, key: Key<'_>, value: Value) -> Result<(), Self::Error>;

    /// Learns that a key was left out because it had expired, or, with their names, some of its fields.
    fn expired(&mut self, _db: u64, _name: &[u8], _fields: &[Vec<u8>]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Learns how many keys a database has: `keys` in all, `volatile` that expire. Fails when there is no such database.
    fn database(&mut self, _db: u64, _keys: u64, _volatile: u64) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Takes a field that says something about the dump.
    fn aux(&mut self, _name: &[u8], _value: &[u8]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Takes the source of a function library.
    fn function(&mut self, _code: Vec<u8>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Takes the import of slots that was under way.
    fn slot_import(&mut self, _job: &[u8; 40], _ranges: &[(u16, u16)]) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// What was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Keys.
    pub keys: u64,
    /// Keys that were left out because they had expired.
    pub expired: u64,
    /// Keys without a value that were left out.
    pub empty: u64,
    /// Hashes that were left out because all their fields had expired.
    pub all_fields_expired: u64,
    /// What became of the sum.
    pub checksum: Checksum,
}

/// Loads a dump. Keys, and fields of hashes, that expired before `expire_before_ms` are left out: a replica, and a log that
/// goes on after the dump, need them all (`None`). Besides what was loaded, returns what follows the dump.
pub fn load_into<'r, R: Read, T: Target>(
    input: R,
    mut options: ReadOptions,
    expire_before_ms: Option<i64>,
    progress: Option<Progress<'r>>,
    target: &mut T,
) -> Result<(Summary, impl Read + use<R, T>), T::Error> {
    options.values.expire_fields_before_ms = expire_before_ms;
    let mut reader = Reader::open(input, options, progress)?;
    let mut loading = Loading { target, expire_before_ms, db: 0, keys: 0, expired: 0, empty: 0, all_fields_expired: 0 };
    loop {
        match reader.next_event()? {
            Some(Event::Entry(record)) => loading.take(reader.key(), record, reader.offset())?,
            Some(Event::End(checksum)) => {
                let Loading { keys, expired, empty, all_fields_expired, .. } = loading;
                return Ok((Summary { keys, expired, empty, all_fields_expired, checksum }, reader.into_rest()));
            }
            Some(event) => loading.note(event)?,
            None => unreachable!("the end comes first"),
        }
    }
}

struct Loading<'t, T> {
    target: &'t mut T,
    expire_before_ms: Option<i64>,
    db: u64,
    keys: u64,
    expired: u64,
    empty: u64,
    all_fields_expired: u64,
}

impl<T: Target> Loading<'_, T> {
    fn take(&mut self, name: &[u8], record: Record, offset: u64) -> Result<(), T::Error> {
        let db = self.db;
        let Record { value, expired_fields, expiry_ms, usage } = record;
        match value {
            Loaded::Empty => self.empty += 1,
            Loaded::Expired => {
                self.all_fields_expired += 1;
                self.target.expired(db, name, &expired_fields)?;
            }
            Loaded::Module(module) => return Err(Error { offset, kind: ErrorKind::Module(module) }.into()),
            Loaded::Value(_) if expiry_ms < self.expire_before_ms && expiry_ms.is_some() => {
                self.expired += 1;
                self.target.expired(db, name, &[])?;
            }
            Loaded::Value(value) => {
                self.keys += 1;
                self.target.key(Key { db, name, expiry_ms, usage }, value)?;
                if !expired_fields.is_empty() {
                    self.target.expired(db, name, &expired_fields)?;
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, event: Event) -> Result<(), T::Error> {
        match event {
            Event::Aux { name, value } => self.target.aux(&name, &value),
            Event::SelectDb(number) => {
                self.db = number;
                self.target.database(number, 0, 0)
            }
            Event::ResizeDb { keys, volatile } => self.target.database(self.db, keys, volatile),
            Event::SlotImport { job, ranges } => self.target.slot_import(&job, &ranges),
            Event::Function(code) => self.target.function(code),
            Event::SlotInfo { .. } | Event::ModuleAux(_) | Event::Entry(_) | Event::End(_) => Ok(()),
        }
    }
}
