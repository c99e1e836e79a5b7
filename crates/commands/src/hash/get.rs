//! Commands that read fields, and whole hashes.

use kvick_resp::{Args, Reply};
use kvick_store::collections::hash::Field;
use kvick_store::{Collection, Hash};

use super::{PER_FIELD, PER_SIZE, documented, reading, reading_much};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Command, KeyFlags, KeySpec};
use crate::string::reply_string;

/// For commands that return no user data.
const MEASURED_KEY: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RO])];

/// HGET key field
pub const HGET: Command<Handler> = Command::new(
    documented(reading("hget", 3), "2.0.0", "O(1)", "Gets the value of a field of a hash.")
        .args(&[Arg::key("key"), Arg::string("field")]),
    hget,
);

fn hget(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let value = cx.db.read::<Hash>(key)?.and_then(|hash| hash.get(&args[2], clock));
    match value {
        Some(value) => reply_string(&mut cx.reply, value),
        None => cx.reply.null(),
    }
    Ok(())
}

/// HMGET key field [field ...]
pub const HMGET: Command<Handler> = Command::new(
    documented(reading("hmget", -3), "2.0.0", PER_FIELD, "Gets the values of several fields of a hash.")
        .args(&[Arg::key("key"), Arg::string("field").multiple()]),
    hmget,
);

fn hmget(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let hash = cx.db.read::<Hash>(key)?;
    let fields = args.slice_from(2);
    cx.reply.array(fields.len());
    for name in fields.iter() {
        match hash.and_then(|hash| hash.get(name, clock)) {
            Some(value) => reply_string(&mut cx.reply, value),
            None => cx.reply.null(),
        }
    }
    Ok(())
}

/// HGETALL key
pub const HGETALL: Command<Handler> = Command::new(
    documented(reading_much("hgetall", 2), "2.0.0", PER_SIZE, "Gets all fields of a hash with their values.")
        .tips(&["nondeterministic_output_order"])
        .args(&[Arg::key("key")]),
    |cx, args| {
        list(cx, args, Reply::map, Reply::set_map_len, |reply, field| {
            reply_string(reply, field.name);
            reply_string(reply, field.value);
        })
    },
);

/// HKEYS key
pub const HKEYS: Command<Handler> = Command::new(
    documented(reading_much("hkeys", 2), "2.0.0", PER_SIZE, "Lists all fields of a hash.")
        .tips(&["nondeterministic_output_order"])
        .args(&[Arg::key("key")]),
    |cx, args| list(cx, args, Reply::array, Reply::set_array_len, |reply, field| reply_string(reply, field.name)),
);

/// HVALS key
pub const HVALS: Command<Handler> = Command::new(
    documented(reading_much("hvals", 2), "2.0.0", PER_SIZE, "Lists the values of all fields of a hash.")
        .tips(&["nondeterministic_output_order"])
        .args(&[Arg::key("key")]),
    |cx, args| list(cx, args, Reply::array, Reply::set_array_len, |reply, field| reply_string(reply, field.value)),
);

/// Replies with the items that `write` writes for every field, preceded by a header with their number.
fn list<'r>(
    cx: &mut Context<'r>,
    args: Args<'_>,
    begin: impl FnOnce(&mut Reply<'r>, usize),
    begin_deferred: impl FnOnce(&mut Reply<'r>, kvick_resp::Mark, usize),
    write: impl Fn(&mut Reply<'r>, Field<'_>),
) -> Result<(), Error> {
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let reply = &mut cx.reply;
    let Some(hash) = cx.db.read::<Hash>(key)? else {
        begin(reply, 0);
        return Ok(());
    };
    if hash.volatile() == 0 {
        begin(reply, hash.len());
        hash.iter().for_each(|field| write(reply, field));
        return Ok(());
    }
    let header = reply.deferred();
    let mut seen = 0;
    hash.iter().filter(|field| !clock.hides(field.expiry)).for_each(|field| {
        write(reply, field);
        seen += 1;
    });
    begin_deferred(reply, header, seen);
    Ok(())
}

/// HLEN key
pub const HLEN: Command<Handler> = Command::new(
    documented(reading("hlen", 2).keys(MEASURED_KEY), "2.0.0", "O(1)", "Tells how many fields a hash has.")
        .args(&[Arg::key("key")]),
    hlen,
);

fn hlen(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let len = cx.db.read::<Hash>(key)?.map_or(0, Collection::len);
    cx.reply.int(len as i64);
    Ok(())
}

/// HSTRLEN key field
pub const HSTRLEN: Command<Handler> = Command::new(
    documented(reading("hstrlen", 3).keys(MEASURED_KEY), "3.2.0", "O(1)", "Tells how long the value of a field is.")
        .args(&[Arg::key("key"), Arg::string("field")]),
    hstrlen,
);

fn hstrlen(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let value = cx.db.read::<Hash>(key)?.and_then(|hash| hash.get(&args[2], clock));
    cx.reply.int(value.map_or(0, |value| value.len()) as i64);
    Ok(())
}

/// HEXISTS key field
pub const HEXISTS: Command<Handler> = Command::new(
    documented(reading("hexists", 3).keys(MEASURED_KEY), "2.0.0", "O(1)", "Tells whether a hash has a field.")
        .args(&[Arg::key("key"), Arg::string("field")]),
    hexists,
);

fn hexists(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let there = cx.db.read::<Hash>(key)?.is_some_and(|hash| hash.contains(&args[2], clock));
    cx.reply.int(there as i64);
    Ok(())
}
