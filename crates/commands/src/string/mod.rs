//! Strings: the simplest values, and the commands of most requests.
//!
//! - [`set`]: SET and the older commands for one key and one value; DELIFEQ.
//! - [`get`]: GET, and the commands that read and change a key (GETEX, GETDEL).
//! - [`many`]: several keys at once: MGET and the MSET family.
//! - [`range`](mod@range): GETRANGE, SETRANGE, APPEND, STRLEN.
//! - [`counter`]: values that are numbers, with [`long_double`] for floating-point numbers.
//! - [`lcs`]: the longest common subsequence of two values.
//! - [`options`]: the common options of SET, GETEX and MSETEX, and the notation of expiry times.
//!
//! The store selects the encoding of a value (integer, embedded, raw). The commands of this family store complete
//! values by [`Db::set_bytes`], which recognizes integers; only changes in place make a value raw.
//!
//! [`Db::set_bytes`]: kvick_store::Db::set_bytes

use kvick_resp::{Args, Reply};
use kvick_store::{Entry, EventClass, Expiry, IntBuf, Key, Str};

use crate::context::{Context, Error, Handler};
use crate::spec::Command;

pub mod counter;
pub mod get;
pub mod lcs;
pub mod long_double;
pub mod many;
pub mod options;
pub mod range;
pub mod set;

/// All commands of the family.
pub static COMMANDS: &[Command<Handler>] = &[
    get::GET,
    set::SET,
    set::SETNX,
    set::SETEX,
    set::PSETEX,
    set::GETSET,
    set::DELIFEQ,
    get::GETEX,
    get::GETDEL,
    many::MGET,
    many::MSET,
    many::MSETNX,
    many::MSETEX,
    range::APPEND,
    range::STRLEN,
    range::GETRANGE,
    range::SUBSTR,
    range::SETRANGE,
    counter::INCR,
    counter::DECR,
    counter::INCRBY,
    counter::DECRBY,
    counter::INCRBYFLOAT,
    lcs::LCS,
];

/// The string in `entry`, or the error for another type.
fn string_in(entry: Entry<'_>) -> Result<Str<'_>, Error> {
    entry.str().ok_or(Error::WRONG_TYPE)
}

/// Whether a stored string equals `text`.
fn equals(value: Str<'_>, text: &[u8]) -> bool {
    value.bytes(&mut IntBuf::default()) == text
}

/// Replies with the string that a key holds.
#[inline]
fn reply_entry(reply: &mut Reply<'_>, entry: Entry<'_>) -> Result<(), Error> {
    match entry.shared() {
        Some(bytes) => reply.bulk_shared(&bytes),
        None => reply_string(reply, string_in(entry)?),
    }
    Ok(())
}

/// Replies with a stored string.
#[inline]
pub(crate) fn reply_string(reply: &mut Reply<'_>, value: Str<'_>) {
    match value {
        Str::Bytes(bytes) => reply.bulk(bytes),
        Str::Int(number) => reply.bulk_int(number),
    }
}

/// Stores argument `index` at `key`. Records one change, with event `set`.
#[inline]
fn store(cx: &mut Context<'_>, key: Key<'_>, args: Args<'_>, index: usize, expiry: Expiry) {
    match args.shared(index) {
        None => cx.db.set_bytes(key, &args[index], expiry),
        Some(value) => cx.db.set_shared(key, value.clone(), expiry),
    }
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::STRING, "set", key.bytes);
}

/// Returns an error if a string of `len` plus `more` bytes would exceed the configured maximum.
fn check_len(cx: &Context<'_>, len: u64, more: usize) -> Result<(), Error> {
    const TOO_LONG: Error = Error::text("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    match len.checked_add(more as u64) {
        Some(total) if total <= cx.settings.proto_max_bulk_len => Ok(()),
        _ => Err(TOO_LONG),
    }
}
