//! HyperLogLog: approximate counts of distinct elements, in at most 12 KiB.
//!
//! A sketch consists of 16384 registers. An element raises one of them ([`hash`]), and the number of elements is
//! estimated from the histogram of their values ([`estimate`], standard error 0.81 %). Registers are stored packed
//! ([`dense`]) or, while most are zero, run-length encoded ([`sparse`]), in an ordinary string whose header is
//! described in [`value`]. These modules work on plain bytes; the commands are in this module and in `debug`.
//!
//! A string that is not a sketch may be stored at any key. A command replies with WRONGTYPE if the header is invalid,
//! and with INVALIDOBJ if the registers are malformed. Neither changes the key.

use kvick_store::{Db, Entry, EventClass, Expiry, Key, Str};

use crate::context::{Args, Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

mod debug;
pub mod dense;
pub mod estimate;
pub mod hash;
mod selftest;
pub mod sparse;
#[cfg(test)]
mod tests;
pub mod value;

use dense::{PACKED_LEN, REGISTERS, Raw};
use hash::Mark;
use value::{Corrupt, NotHyperLogLog, Registers, Sketch, View};

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[PFADD, PFCOUNT, PFMERGE, debug::PFDEBUG, selftest::PFSELFTEST];

impl From<NotHyperLogLog> for Error {
    fn from(_: NotHyperLogLog) -> Error {
        Error::text("WRONGTYPE Key is not a valid HyperLogLog string value.")
    }
}

impl From<Corrupt> for Error {
    fn from(_: Corrupt) -> Error {
        Error::text("INVALIDOBJ Corrupted HLL object detected")
    }
}

/// PFADD key [element ...]
pub const PFADD: Command<Handler> = Command::new(
    Spec::new("pfadd", -2)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::HYPERLOGLOG])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::INSERT])])
        .doc(
            Group::HyperLogLog,
            "2.8.9",
            "O(1) for each element",
            "Adds elements to a HyperLogLog, which is created when there is none.",
        )
        .args(&[Arg::key("key"), Arg::string("element").optional().multiple()]),
    pfadd,
);

fn pfadd(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let changes = add(cx, key, args.iter().skip(2).map(Mark::of))?;
    if changes > 0 {
        changed(&mut cx.db, key, changes);
    }
    cx.reply.int((changes > 0).into());
    Ok(())
}

/// Adds marks to the sketch at `key`; returns the number of changes, including the creation of the key.
fn add(cx: &mut Context<'_>, key: Key<'_>, mut marks: impl Iterator<Item = Mark>) -> Result<u64, Error> {
    let sparse_len_max = cx.settings.hll_sparse_max_bytes;
    let entry = cx.db.get_for_write(key);
    let is_embedded = entry.is_some_and(|entry| entry.encoding() == "embstr");
    let (mut sketch, mut changes) = match entry.map(view).transpose()? {
        None => (Sketch::new(sparse_len_max), 1),
        Some(view) => match view.registers() {
            Registers::Dense(packed) => {
                let missing = marks.find(|mark| dense::get(packed, mark.index) < mark.count);
                return Ok(missing.map_or(0, |first| raise(&mut cx.db, key, std::iter::once(first).chain(marks))));
            }
            Registers::Sparse(_) => {
                let grown = marks.find_map(|mark| Sketch::with(&view, mark, sparse_len_max).transpose());
                match grown.transpose()? {
                    None => {
                        if is_embedded {
                            // As in Valkey, the string is from now on one that can grow.
                            cx.db.string_mut(key, value::HEADER_LEN);
                        }
                        return Ok(0);
                    }
                    Some(sketch) => (sketch, 1),
                }
            }
        },
    };
    for mark in marks {
        changes += u64::from(sketch.add(mark)?);
    }
    store(&mut cx.db, key, &sketch.into_bytes());
    Ok(changes)
}

/// Raises registers of the dense sketch at `key` in place; returns the number of registers raised.
fn raise(db: &mut Db<'_>, key: Key<'_>, marks: impl Iterator<Item = Mark>) -> u64 {
    let bytes = db.string_mut(key, value::DENSE_LEN);
    value::invalidate(bytes);
    let packed = value::dense_registers(bytes);
    packed.map_or(0, |packed| marks.filter(|mark| dense::raise(packed, *mark)).count() as u64)
}

/// PFCOUNT key [key ...]
pub const PFCOUNT: Command<Handler> = Command::new(
    Spec::new("pfcount", -2)
        .flags(&[Flags::READONLY, Flags::MAY_REPLICATE])
        .acl(&[Categories::HYPERLOGLOG])
        .keys(&[KeySpec::range(1, -1, 1, &[KeyFlags::RW, KeyFlags::ACCESS])
            .notes("Changes the key when it stores a new estimate in it, which replicas repeat.")])
        .doc(
            Group::HyperLogLog,
            "2.8.9",
            "O(1) with a small constant for one key, O(N) with a large one for N keys",
            "Estimates how many distinct elements were added to one HyperLogLog or to several together.",
        )
        .args(&[Arg::key("key").multiple()]),
    pfcount,
);

fn pfcount(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let estimate = if args.len() == 2 {
        let key = cx.key(args, 1);
        count_one(&mut cx.db, key)?
    } else {
        let mut raw = [0; REGISTERS];
        for index in 1..args.len() {
            let key = cx.key(args, index);
            if let Some(view) = cx.db.get(key).map(view).transpose()? {
                view.unite_into(&mut raw)?;
            }
        }
        estimate::cardinality(&dense::raw_histogram(&raw))
    };
    // Only forged sketches have estimates beyond the signed range; they are shown as in Valkey.
    cx.reply.int(estimate as i64);
    Ok(())
}

/// The estimate in the header of the sketch, which is recomputed first if it is outdated.
fn count_one(db: &mut Db<'_>, key: Key<'_>) -> Result<u64, Error> {
    let Some(view) = db.get(key).map(view).transpose()? else { return Ok(0) };
    if let Some(estimate) = view.cached() {
        return Ok(estimate);
    }
    let estimate = view.estimate()?;
    value::set_cached(db.string_mut(key, value::HEADER_LEN), estimate);
    db.effects().changed(1);
    Ok(estimate)
}

/// PFMERGE destkey [sourcekey ...]
pub const PFMERGE: Command<Handler> = Command::new(
    Spec::new("pfmerge", -2)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::HYPERLOGLOG])
        .keys(&[
            KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::INSERT]),
            KeySpec::range(2, -1, 1, &[KeyFlags::RO, KeyFlags::ACCESS]),
        ])
        .doc(
            Group::HyperLogLog,
            "2.8.9",
            "O(N) for N HyperLogLogs, with a large constant",
            "Merges HyperLogLogs into one.",
        )
        .args(&[Arg::key("destkey"), Arg::key("sourcekey").key_spec(1).optional().multiple()]),
    pfmerge,
);

fn pfmerge(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut raw = [0; REGISTERS];
    let mut any_dense = false;
    for index in 1..args.len() {
        let key = cx.key(args, index);
        if let Some(view) = cx.db.get(key).map(view).transpose()? {
            any_dense |= matches!(view.registers(), Registers::Dense(_));
            view.unite_into(&mut raw)?;
        }
    }
    let target = cx.key(args, 1);
    if any_dense {
        store_dense(&mut cx.db, target, &raw)?;
    } else {
        store_sparse(&mut cx.db, target, &raw, cx.settings.hll_sparse_max_bytes)?;
    }
    changed(&mut cx.db, target, 1);
    cx.reply.ok();
    Ok(())
}

/// Replaces the registers of the sketch at `key` by `raw`, in the dense representation.
fn store_dense(db: &mut Db<'_>, key: Key<'_>, raw: &Raw) -> Result<(), Error> {
    let empty = value::empty();
    let view = match db.get_for_write(key) {
        None => View::new(&empty)?,
        Some(entry) => view(entry)?,
    };
    if let Registers::Sparse(_) = view.registers() {
        let mut packed = [0; PACKED_LEN];
        dense::pack(&mut packed, raw);
        let mut bytes = view.with_registers(&packed);
        value::invalidate(&mut bytes);
        store(db, key, &bytes);
    } else {
        let bytes = db.string_mut(key, value::DENSE_LEN);
        value::invalidate(bytes);
        dense::pack(value::dense_registers(bytes).ok_or(Corrupt)?, raw);
    }
    Ok(())
}

/// Raises the registers of the sparse (or missing) sketch at `key` to those of `raw`, which may make it dense.
fn store_sparse(db: &mut Db<'_>, key: Key<'_>, raw: &Raw, sparse_len_max: usize) -> Result<(), Error> {
    let mut sketch = match db.get_for_write(key) {
        None => Sketch::new(sparse_len_max),
        Some(entry) => Sketch::copy(&view(entry)?, sparse_len_max),
    };
    for (index, count) in raw.iter().enumerate().filter(|(_, count)| **count > 0) {
        sketch.add(Mark { index, count: *count })?;
    }
    store(db, key, &sketch.into_bytes());
    Ok(())
}

/// The sketch in an entry.
fn view(entry: Entry<'_>) -> Result<View<'_>, Error> {
    match entry.str().ok_or(Error::WRONG_TYPE)? {
        Str::Bytes(bytes) => Ok(View::new(bytes)?),
        Str::Int(_) => Err(NotHyperLogLog.into()),
    }
}

/// Stores a new or changed sketch, in place unless it shrank. Like every string changed in place, it is stored raw.
fn store(db: &mut Db<'_>, key: Key<'_>, bytes: &[u8]) {
    let shrinks = db.peek(key).and_then(|entry| entry.str()).is_some_and(|old| old.len() > bytes.len());
    if shrinks {
        db.set_bytes(key, bytes, Expiry::Keep);
    }
    db.string_mut(key, bytes.len()).copy_from_slice(bytes);
}

/// Records `count` changes to the sketch at `key`.
fn changed(db: &mut Db<'_>, key: Key<'_>, count: u64) {
    db.effects().changed(count);
    db.effects().notify(EventClass::STRING, "pfadd", key.bytes);
}
