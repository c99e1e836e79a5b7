//! Restoring a backup into a server or a cluster, whatever its size.
//!
//! Each key goes to the node that owns its slot now, as a RESTORE command with its expiry and its access time or
//! frequency. So the number of shards need not be that of the backup.

use crate::access::Access;
use crate::storage::Storage;
use crate::target::{Request, Target};
use crate::verify;
use kvick_rdb::{
    Error, Event, Key, ReadOptions, Reader, VERSION, VERSION_REDIS, ValueRef, WriteOptions, dump, dump_functions,
    load_into,
};
use kvick_rdb::{Target as LoadTarget, Usage};
use kvick_store::Value;
use std::fmt::Display;
use std::io::{self, Read};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where to.
#[derive(Clone)]
pub struct Plan {
    /// Addresses (`host:port`) of the server, or of some nodes of the cluster.
    pub endpoints: Vec<String>,
    /// How to reach them.
    pub access: Access,
    /// Whether keys and functions that exist are overwritten. Otherwise the first one ends the restoration.
    pub replaces: bool,
}

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Number of keys.
    pub keys: u64,
    /// Number of keys that were left out, since they have expired.
    pub expired: u64,
    /// Number of function libraries.
    pub functions: u64,
}

/// Checks a backup, and restores all its keys and functions.
///
/// # Errors
/// If the backup is damaged, or if a node refuses a key. What was restored before stays.
pub fn restore(storage: &dyn Storage, name: &str, plan: &Plan) -> io::Result<Restored> {
    let manifest = verify::verify(storage, name)?;
    let dumps: Vec<Source<'_>> =
        manifest.shards.iter().map(|dump| Source { storage, name, file: &dump.file }).collect();
    let functions = restore_functions(&dumps, plan)?;
    let restored = std::thread::scope(|scope| {
        let threads: Vec<_> = dumps.iter().map(|dump| scope.spawn(move || restore_dump(dump, plan))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, io::Result<Restored>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
        };
        threads.into_iter().map(join).collect::<io::Result<Vec<_>>>()
    })?;
    let sum = |of: fn(&Restored) -> u64| restored.iter().map(of).sum();
    Ok(Restored { keys: sum(|one| one.keys), expired: sum(|one| one.expired), functions })
}

/// Where a dump is.
struct Source<'a> {
    storage: &'a dyn Storage,
    name: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        self.storage.read(self.name, self.file)
    }

    fn fail(&self, error: &dyn Display) -> io::Error {
        io::Error::other(format!("{}/{}: {error}", self.name, self.file))
    }
}

/// Function libraries of all dumps, to all primaries. They are the same in all shards.
fn restore_functions(dumps: &[Source<'_>], plan: &Plan) -> io::Result<u64> {
    let mut sources: Vec<Vec<u8>> = Vec::new();
    for dump in dumps {
        let fail = |error: Error| dump.fail(&error);
        let mut reader = Reader::new(dump.open()?, ReadOptions::default()).map_err(fail)?;
        // Functions are in front of the keys.
        loop {
            match reader.next_event().map_err(fail)? {
                Some(Event::Function(source)) if !sources.contains(&source) => sources.push(source),
                Some(Event::Entry(_) | Event::End(_)) | None => break,
                Some(_) => {}
            }
        }
    }
    if sources.is_empty() {
        return Ok(0);
    }
    let options = WriteOptions { version: VERSION_REDIS, ..WriteOptions::default() };
    let payload = dump_functions(&sources, &options);
    let policy: &[u8] = if plan.replaces { b"REPLACE" } else { b"APPEND" };
    for primary in Target::connect(&plan.endpoints, &plan.access)?.primaries() {
        let reply = plan.access.client(&primary)?.ask(&[b"FUNCTION".as_slice(), b"RESTORE", &payload, policy])?;
        if let kvick_load::reply::Value::Error(error) = reply {
            return Err(io::Error::other(format!("{primary} refused the functions: {error}")));
        }
    }
    Ok(sources.len() as u64)
}

fn restore_dump(dump: &Source<'_>, plan: &Plan) -> io::Result<Restored> {
    let target = Target::connect(&plan.endpoints, &plan.access)?;
    let mut sender = Sender { target, replaces: plan.replaces, restored: Restored::default() };
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64);
    let loaded = load_into(dump.open()?, ReadOptions::default(), Some(now_ms), None, &mut sender);
    match loaded {
        Ok((summary, _)) => sender.restored.expired = summary.expired + summary.all_fields_expired,
        Err(Failure(error)) => return Err(dump.fail(&error)),
    }
    sender.target.finish()?;
    Ok(sender.restored)
}

/// Sends the keys of a dump.
struct Sender<'a> {
    target: Target<'a>,
    replaces: bool,
    restored: Restored,
}

/// Why a dump was not restored.
struct Failure(io::Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(io::Error::other(error.to_string()))
    }
}

impl LoadTarget for Sender<'_> {
    type Error = Failure;

    fn key(&mut self, key: Key<'_>, value: Value) -> Result<(), Failure> {
        let mut words = vec![b"RESTORE".to_vec(), key.name.to_vec()];
        words.push(key.expiry_ms.unwrap_or(0).to_string().into_bytes());
        words.push(payload(&value).map_err(Failure)?);
        if key.expiry_ms.is_some() {
            words.push(b"ABSTTL".to_vec());
        }
        if self.replaces {
            words.push(b"REPLACE".to_vec());
        }
        match key.usage {
            Usage::Unknown => {}
            Usage::IdleSeconds(seconds) => words.extend([b"IDLETIME".to_vec(), seconds.to_string().into_bytes()]),
            Usage::Frequency(count) => words.extend([b"FREQ".to_vec(), count.to_string().into_bytes()]),
        }
        self.restored.keys += 1;
        self.target.send(Request { database: key.db, key: key.name.to_vec(), words }).map_err(Failure)
    }
}

/// The payload for RESTORE, in the oldest version that can represent the value, so that older servers accept it too.
fn payload(value: &Value) -> io::Result<Vec<u8>> {
    for version in [VERSION_REDIS, VERSION] {
        let mut payload = Vec::new();
        let options = WriteOptions { version, ..WriteOptions::default() };
        if dump(ValueRef::from(value), &options, &mut payload).is_ok() {
            return Ok(payload);
        }
    }
    Err(io::Error::other("a value cannot be represented as a payload"))
}
