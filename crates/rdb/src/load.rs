//! Loading of a whole dump into a target.

use crate::error::{Error, ErrorKind};
use crate::input::Progress;
use crate::read::{Checksum, Event, ReadOptions, Reader, Record};
use crate::value::Loaded;
use crate::write::Usage;
use kvick_store::Value;
use std::io::Read;

/// A loaded key.
#[derive(Debug)]
pub struct Key<'a> {
    /// The number of its database.
    pub db: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Its expiry: Unix time in milliseconds.
    pub expiry_ms: Option<i64>,
    /// Its access time or frequency.
    pub usage: Usage,
}

/// The target of loading a dump. All methods but `key` are optional.
pub trait Target {
    /// The error that ends loading.
    type Error: From<Error>;

    /// Receives a key.
    fn key(&mut self, key: Key<'_>, value: Value) -> Result<(), Self::Error>;

    /// Called when an expired key was skipped, or expired fields of a key, with their names.
    fn expired(&mut self, _db: u64, _name: &[u8], _fields: &[Vec<u8>]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Receives the size of a database: `keys` in total, `volatile`
    /// with an expiry. Fails if the database does not exist.
    fn database(&mut self, _db: u64, _keys: u64, _volatile: u64) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Receives an auxiliary field about the dump.
    fn aux(&mut self, _name: &[u8], _value: &[u8]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Receives the source of a function library.
    fn function(&mut self, _code: Vec<u8>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Receives a slot import that was in progress.
    fn slot_import(&mut self, _job: &[u8; 40], _ranges: &[(u16, u16)]) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// The result of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of keys.
    pub keys: u64,
    /// Number of keys that were skipped because they had expired.
    pub expired: u64,
    /// Number of keys that were skipped because they had no elements.
    pub empty: u64,
    /// Number of hashes that were skipped because all their fields had expired.
    pub all_fields_expired: u64,
    /// The result of the checksum.
    pub checksum: Checksum,
}

/// Loads a dump. Skips keys and hash fields that expired before `expire_before_ms`;
/// `None` loads them all, as a replica, or an append-only file with commands after
/// the dump, requires. Returns the summary and the input after the dump.
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
