//! A packed key, and its fate after it has arrived.

use super::active_keys::ActiveKeys;
use super::{ATTEMPTS_MAX, MigrationJob, Request};
use kvick_commands::context::Error;
use kvick_rdb::{ValueRef, WriteOptions};
use kvick_resp::Reply;
use kvick_runtime::logging;
use kvick_store::{Db, EventClass};
use std::collections::HashSet;

/// A key as it was when packed.
pub struct PackedKey {
    /// The key.
    pub key: Box<[u8]>,
    /// Its value in DUMP format; `None` if it was deleted and must be deleted on the target too.
    pub payload: Option<Vec<u8>>,
    /// When it expires: Unix time in milliseconds.
    pub expiry_ms: Option<i64>,
    /// Whether it may overwrite what the target has.
    pub replace: bool,
    /// Whether the request names it a second time: the first occurrence decides.
    pub is_duplicate: bool,
    /// Whether the target has accepted an earlier value of it.
    pub is_resent: bool,
    /// Whether this deletes such an earlier value, because a later one did not arrive and the key stays here.
    pub is_withdrawn: bool,
    /// Whether the target has accepted it.
    pub arrived: bool,
}

impl PackedKey {
    /// Deletes a key on the target.
    fn deletion(key: Box<[u8]>) -> PackedKey {
        PackedKey {
            key,
            payload: None,
            expiry_ms: None,
            replace: true,
            is_duplicate: false,
            is_resent: true,
            is_withdrawn: false,
            arrived: false,
        }
    }
}

/// Packs the keys that exist. `compress` is `rdbcompression`.
pub fn pack<'k>(
    db: &mut Db<'_>,
    keys: impl Iterator<Item = &'k [u8]>,
    replace: bool,
    compress: bool,
) -> Result<Vec<PackedKey>, Error> {
    let options = WriteOptions { compress, ..WriteOptions::default() };
    let (mut packed_keys, mut seen) = (Vec::new(), HashSet::new());
    for key in keys {
        if let Some(packed_key) = pack_key(db, key, replace, true, &options)? {
            packed_keys.push(PackedKey { is_duplicate: !seen.insert(key), ..packed_key });
        }
    }
    Ok(packed_keys)
}

/// Packs a key, if it exists. `counts_as_lookup`: whether this counts as the lookup of a reading command.
fn pack_key(
    db: &mut Db<'_>,
    key: &[u8],
    replace: bool,
    counts_as_lookup: bool,
    options: &WriteOptions,
) -> Result<Option<PackedKey>, Error> {
    let hashed = db.key(key);
    let entry = if counts_as_lookup { db.get(hashed) } else { db.peek(hashed) };
    let Some(entry) = entry else { return Ok(None) };
    let mut payload = Vec::new();
    kvick_rdb::dump(ValueRef::from(entry), options, &mut payload)
        .map_err(|error| Error::new(format!("ERR {error}")))?;
    let (payload, expiry_ms) = (Some(payload), entry.expiry());
    Ok(Some(PackedKey {
        key: key.into(),
        payload,
        expiry_ms,
        replace,
        is_duplicate: false,
        is_resent: false,
        is_withdrawn: false,
        arrived: false,
    }))
}

/// Deletes the arrived keys that have not changed, and leaves in the job those that must be sent again. The caller
/// holds the locks of all its keys.
pub fn delete_migrated(job: &mut MigrationJob, active_keys: &ActiveKeys, db: &mut Db<'_>, lazy: bool) {
    let packed_keys = std::mem::take(&mut job.packed_keys);
    if job.request.copy {
        return;
    }
    job.attempts += 1;
    let touched = job.watcher.is_touched();
    let mut deleted: Vec<Box<[u8]>> = Vec::new();
    for packed_key in packed_keys.into_iter().filter(|packed_key| !packed_key.is_duplicate) {
        let moved_by_another = active_keys.is_moved(job.db, &packed_key.key);
        if !packed_key.arrived && packed_key.is_resent {
            if !packed_key.is_withdrawn {
                job.packed_keys.push(PackedKey { is_withdrawn: true, ..PackedKey::deletion(packed_key.key) });
                continue;
            }
            let Request { host, port, .. } = &job.request;
            logging::warning(format_args!("MIGRATE could not delete an outdated value on the target {host}:{port}"));
        }
        let change = if packed_key.arrived && !packed_key.is_withdrawn {
            change_since(db, &packed_key, touched, moved_by_another, job.compress)
        } else {
            Ok(Change::Keep)
        };
        let removed = match change {
            Ok(Change::None) => db.remove(db.key(&packed_key.key), lazy),
            Ok(Change::ChangedTo(_)) if job.attempts >= ATTEMPTS_MAX => {
                let text = "ERR Keys changed again and again while they were migrated; those that did are still here";
                job.failure.get_or_insert(text.into());
                if packed_key.payload.is_some() {
                    // The target must not keep an old value.
                    job.packed_keys.push(PackedKey::deletion(packed_key.key));
                    continue;
                }
                false
            }
            Ok(Change::ChangedTo(changed)) => {
                job.packed_keys.push(PackedKey { is_resent: true, ..changed });
                continue;
            }
            Ok(Change::Keep) => false,
            Err(error) => {
                job.failure.get_or_insert(error.to_string());
                false
            }
        };
        active_keys.end(job.db, &packed_key.key, removed);
        if removed {
            deleted.push(packed_key.key);
        }
    }
    propagate(db, &deleted);
}

/// Propagates deletions to replicas and notifies subscribers.
fn propagate(db: &mut Db<'_>, deleted: &[Box<[u8]>]) {
    if deleted.is_empty() {
        return;
    }
    let effects = db.effects();
    effects.changed(deleted.len() as u64);
    if effects.has_readers() {
        let words: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(deleted.iter().map(|key| &**key)).collect();
        effects.propagate(&words);
    }
    deleted.iter().for_each(|key| effects.notify(EventClass::GENERIC, "del", key));
}

/// How a key changed since it was packed.
enum Change {
    /// Unchanged: the target has the same value.
    None,
    /// Changed into this, which must be sent.
    ChangedTo(PackedKey),
    /// No action: the target does not have the key, or has it independently.
    Keep,
}

fn change_since(
    db: &mut Db<'_>,
    packed_key: &PackedKey,
    touched: bool,
    moved_by_another: bool,
    compress: bool,
) -> Result<Change, Error> {
    if !touched && packed_key.payload.is_some() {
        return Ok(Change::None);
    }
    // As the first time: equal values must have equal payloads.
    let options = WriteOptions { compress, ..WriteOptions::default() };
    Ok(match pack_key(db, &packed_key.key, true, false, &options)? {
        Some(now) if now.payload == packed_key.payload && now.expiry_ms == packed_key.expiry_ms => Change::None,
        Some(now) => Change::ChangedTo(now),
        None if packed_key.payload.is_none() || moved_by_another => Change::Keep,
        // It will expire on the target too.
        None if packed_key.expiry_ms.is_some_and(|at| db.is_due(at)) => Change::Keep,
        None => Change::ChangedTo(PackedKey::deletion(packed_key.key.clone())),
    })
}

/// Writes the reply.
pub fn reply(job: &MigrationJob, reply: &mut Reply<'_>) -> Result<(), Error> {
    match &job.failure {
        Some(text) => Err(Error::new(text.clone())),
        None => {
            reply.ok();
            Ok(())
        }
    }
}
