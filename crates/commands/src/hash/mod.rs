//! Hashes: fields with values under one key. Single fields may have an expiry.
//!
//! - [`set`]: HSET and related commands, and the deletion of fields.
//! - [`get`]: commands that read fields, and whole hashes.
//! - [`counter`]: values that are numbers.
//! - [`expiry`]: field expiry: HEXPIRE, HPERSIST, HTTL and their variants.
//! - [`timed`]: values together with expiry: HSETEX and HGETEX.
//! - [`sample`]: subsets of the fields: HRANDFIELD, HSCAN.
//! - [`numbered`]: the arguments `FIELDS numfields field ...` of newer commands.
//!
//! An expired field is invisible to commands but remains in the hash until active expiry removes it, which also
//! propagates the removal and records the event. So the effect of a command depends on its clock. Since the clocks of
//! replicas differ, the propagated commands do not depend on it: they contain Unix times in milliseconds, and results
//! instead of conditions.

use kvick_store::collections::hash::State;
use kvick_store::{EventClass, IntBuf, Key, Str};
use smallvec::SmallVec;

use crate::context::{Context, Handler};
use crate::spec::{Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

pub mod counter;
pub mod expiry;
pub mod get;
pub mod numbered;
pub mod sample;
pub mod set;
#[cfg(test)]
mod tests;
pub mod timed;

/// All commands of the family.
pub static COMMANDS: &[Command<Handler>] = &[
    set::HSET,
    set::HSETNX,
    set::HMSET,
    set::HDEL,
    set::HGETDEL,
    get::HGET,
    get::HMGET,
    get::HGETALL,
    get::HKEYS,
    get::HVALS,
    get::HLEN,
    get::HSTRLEN,
    get::HEXISTS,
    counter::HINCRBY,
    counter::HINCRBYFLOAT,
    sample::HRANDFIELD,
    sample::HSCAN,
    expiry::HEXPIRE,
    expiry::HPEXPIRE,
    expiry::HEXPIREAT,
    expiry::HPEXPIREAT,
    expiry::HPERSIST,
    expiry::HTTL,
    expiry::HPTTL,
    expiry::HEXPIRETIME,
    expiry::HPEXPIRETIME,
    timed::HSETEX,
    timed::HGETEX,
];

/// The words of a propagated command.
type Words<'a> = SmallVec<[&'a [u8]; 8]>;

const READ_KEY: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])];

/// A command that writes a key.
const fn writing(name: &'static str, arity: i16, keys: &'static [KeySpec]) -> Spec {
    Spec::new(name, arity).flags(&[Flags::WRITE, Flags::FAST]).acl(&[Categories::HASH]).keys(keys)
}

/// A command that writes a key and may need more memory.
const fn growing(name: &'static str, arity: i16, keys: &'static [KeySpec]) -> Spec {
    Spec::new(name, arity).flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST]).acl(&[Categories::HASH]).keys(keys)
}

/// A fast command that reads a key.
const fn reading(name: &'static str, arity: i16) -> Spec {
    Spec::new(name, arity).flags(&[Flags::READONLY, Flags::FAST]).acl(&[Categories::HASH]).keys(READ_KEY)
}

/// A command that reads much of a key.
const fn reading_much(name: &'static str, arity: i16) -> Spec {
    Spec::new(name, arity).flags(&[Flags::READONLY]).acl(&[Categories::HASH]).keys(READ_KEY)
}

const fn documented(spec: Spec, since: &'static str, complexity: &'static str, summary: &'static str) -> Spec {
    spec.doc(Group::Hash, since, complexity, summary)
}

/// Complexity of commands on named fields.
const PER_FIELD: &str = "O(N), N being the number of fields named.";
/// Complexity of commands on all fields.
const PER_SIZE: &str = "O(N), N being the number of fields in the hash.";

/// Counts fields that were set in place of expired ones, and records the events.
fn record_replaced_expired_fields(cx: &mut Context<'_>, key: Key<'_>, revived: usize) {
    if revived > 0 {
        cx.db.count_expired_fields(revived);
        record_event(cx, key, "hexpired");
    }
}

fn record_event(cx: &mut Context<'_>, key: Key<'_>, event: &'static str) {
    cx.db.effects().notify(EventClass::HASH, event, key.bytes);
}

/// Applies the state of a hash after a change.
#[inline]
fn apply_state(cx: &mut Context<'_>, key: Key<'_>, state: State) {
    match state {
        State::Settled => {}
        State::Unqueued => cx.db.note_expiries(key),
        State::Empty => {
            cx.db.remove(key, false);
            cx.db.effects().notify(EventClass::GENERIC, "del", key.bytes);
        }
    }
}

/// Propagates the new value of a field together with its expiry.
fn propagate_value(cx: &mut Context<'_>, key: Key<'_>, name: &[u8], value: &[u8], expiry: Option<i64>) {
    let effects = cx.db.effects();
    match expiry {
        None => effects.propagate(&[b"HSET", key.bytes, name, value]),
        Some(at) => {
            let mut digits = IntBuf::default();
            let at = Str::Int(at).bytes(&mut digits);
            effects.propagate(&[b"HSETEX", key.bytes, b"PXAT", at, b"FIELDS", b"1", name, value]);
        }
    }
}
