//! Setting and deleting fields: HSET, HMSET, HSETNX, HDEL, HGETDEL.

use kvick_resp::Args;
use kvick_store::collections::hash::Stored;
use kvick_store::{Expiry, Hash};

use super::numbered::{self, FIELDS, MISMATCH};
use super::{
    PER_FIELD, apply_state, documented, growing, propagate_value, record_event, record_replaced_expired_fields, writing,
};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Command, KeyFlags, KeySpec};
use crate::string::reply_string;

const UPDATED_KEY: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::UPDATE])];
const PAIRS: Arg = Arg::block("data", &[Arg::string("field"), Arg::string("value")]).multiple();
const PER_PAIR: &str = "O(N), N being the number of fields set.";

/// HSET key field value [field value ...]
pub const HSET: Command<Handler> = Command::new(
    documented(growing("hset", -4, UPDATED_KEY), "2.0.0", PER_PAIR, "Sets fields of a hash.")
        .history(&[("4.0.0", "Takes several fields and values.")])
        .args(&[Arg::key("key"), PAIRS]),
    |cx, args| {
        const ARITY: Error = Error::text("ERR wrong number of arguments for 'hset' command");
        let added = store(cx, args, ARITY)?;
        cx.reply.int(added as i64);
        Ok(())
    },
);

/// HMSET key field value [field value ...]
pub const HMSET: Command<Handler> = Command::new(
    documented(growing("hmset", -4, UPDATED_KEY), "2.0.0", PER_PAIR, "Sets several fields of a hash.")
        .args(&[Arg::key("key"), PAIRS]),
    |cx, args| {
        const ARITY: Error = Error::text("ERR wrong number of arguments for 'hmset' command");
        store(cx, args, ARITY)?;
        cx.reply.ok();
        Ok(())
    },
);

/// Sets the fields given by the arguments; returns the number of new fields.
fn store(cx: &mut Context<'_>, args: Args<'_>, arity: Error) -> Result<usize, Error> {
    let pairs = args.slice_from(2);
    if !pairs.len().is_multiple_of(2) {
        return Err(arity);
    }
    let (key, clock, limits) = (cx.key(args, 1), cx.db.field_clock(), cx.settings.encoding.hash);
    let (hash, _) = cx.db.write_or_create::<Hash>(key)?;
    hash.expect(pairs.iter(), limits);
    let (mut added, mut revived) = (0, 0);
    let mut words = pairs.iter();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        match hash.set(name, value, Expiry::None, clock, limits) {
            Stored::Replaced => {}
            Stored::Added => added += 1,
            Stored::Revived => revived += 1,
        }
    }
    let state = hash.state();
    record_replaced_expired_fields(cx, key, revived);
    record_event(cx, key, "hset");
    cx.db.effects().changed(pairs.len() as u64 / 2);
    apply_state(cx, key, state);
    Ok(added + revived)
}

/// HSETNX key field value
pub const HSETNX: Command<Handler> = Command::new(
    documented(
        growing("hsetnx", 4, &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::INSERT])]),
        "2.0.0",
        "O(1)",
        "Sets a field of a hash, only if there is none of that name.",
    )
    .args(&[Arg::key("key"), Arg::string("field"), Arg::string("value")]),
    hsetnx,
);

fn hsetnx(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, clock, limits) = (cx.key(args, 1), cx.db.field_clock(), cx.settings.encoding.hash);
    let (hash, _) = cx.db.write_or_create::<Hash>(key)?;
    if hash.contains(&args[2], clock) {
        cx.reply.int(0);
        return Ok(());
    }
    let had_volatile = hash.volatile() > 0;
    hash.expect(args.slice_from(2).iter(), limits);
    let stored = hash.set(&args[2], &args[3], Expiry::None, clock, limits);
    let state = hash.state();
    record_replaced_expired_fields(cx, key, usize::from(stored == Stored::Revived));
    record_event(cx, key, "hset");
    cx.db.effects().changed(1);
    if had_volatile {
        // A replica may still have a field that has expired here.
        propagate_value(cx, key, &args[2], &args[3], None);
    }
    apply_state(cx, key, state);
    cx.reply.int(1);
    Ok(())
}

/// HDEL key field [field ...]
pub const HDEL: Command<Handler> = Command::new(
    documented(
        writing("hdel", -3, &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::DELETE])]),
        "2.0.0",
        PER_FIELD,
        "Removes fields from a hash, and the hash with its last one.",
    )
    .history(&[("2.4.0", "Takes several fields.")])
    .args(&[Arg::key("key"), Arg::string("field").multiple()]),
    hdel,
);

fn hdel(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let Some(hash) = cx.db.write::<Hash>(key)? else {
        cx.reply.int(0);
        return Ok(());
    };
    let removed = args.slice_from(2).iter().filter(|name| hash.remove(name, clock)).count();
    let state = hash.state();
    if removed > 0 {
        record_event(cx, key, "hdel");
        cx.db.effects().changed(removed as u64);
        apply_state(cx, key, state);
    }
    cx.reply.int(removed as i64);
    Ok(())
}

/// HGETDEL key FIELDS numfields field [field ...]
pub const HGETDEL: Command<Handler> = Command::new(
    documented(
        writing("hgetdel", -5, &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE])]),
        "9.1.0",
        PER_FIELD,
        "Gets the values of fields and removes these from a hash.",
    )
    .args(&[Arg::key("key"), FIELDS]),
    hgetdel,
);

fn hgetdel(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let names = numbered::parse_second(args, MISMATCH)?;
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let mut hash = cx.db.write::<Hash>(key)?;
    let mut removed = 0;
    cx.reply.array(names.len());
    for name in names.iter() {
        match hash.as_ref().and_then(|hash| hash.get(name, clock)) {
            Some(value) => reply_string(&mut cx.reply, value),
            None => cx.reply.null(),
        }
        removed += u64::from(hash.as_mut().is_some_and(|hash| hash.remove(name, clock)));
    }
    let state = hash.map(|hash| hash.state());
    if let Some(state) = state.filter(|_| removed > 0) {
        record_event(cx, key, "hdel");
        cx.db.effects().changed(removed);
        apply_state(cx, key, state);
    }
    Ok(())
}
