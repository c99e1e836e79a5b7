//! Field expiry: HEXPIRE and its variants set it, HPERSIST removes it, HTTL and its variants return it.

use kvick_resp::Args;
use kvick_store::collections::hash::Expired;
use kvick_store::{Hash, IntBuf, Key, Str};

use super::numbered::{self, FIELDS, MISMATCH};
use super::{PER_FIELD, Words, apply_state, documented, reading, record_event, writing};
use crate::context::{Context, Error, Handler};
use crate::keys::expiry::{CONDITIONS, Conditions, left_ms, rounded_seconds};
use crate::spec::{Arg, Command, KeyFlags, KeySpec, Spec};
use crate::string::options::{Deadline, TimeForm};

const UPDATED_KEY: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::UPDATE])];
const CONDITION: Arg = CONDITIONS.since("9.0.0");
/// Used by HEXPIRE only: its description does not state that the number belongs to the key.
const HEXPIRE_FIELDS: Arg =
    Arg::block("fields", &[Arg::integer("numfields"), Arg::string("field").multiple()]).token("FIELDS");

const KEY_AND_FIELDS: &[Arg] = &[Arg::key("key"), FIELDS];

const fn setter(name: &'static str, summary: &'static str, args: &'static [Arg]) -> Spec {
    documented(writing(name, -6, UPDATED_KEY), "9.0.0", PER_FIELD, summary).args(args)
}

/// HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]
pub const HEXPIRE: Command<Handler> = Command::new(
    setter(
        "hexpire",
        "Lets fields of a hash expire after some seconds.",
        &[Arg::key("key"), Arg::integer("seconds"), CONDITIONS, HEXPIRE_FIELDS],
    ),
    |cx, args| {
        const INVALID: Error = Error::text("ERR invalid expire time in 'hexpire' command");
        expire(cx, args, TimeForm::Seconds, INVALID)
    },
);

/// HPEXPIRE key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]
pub const HPEXPIRE: Command<Handler> = Command::new(
    setter(
        "hpexpire",
        "Lets fields of a hash expire after some milliseconds.",
        &[Arg::key("key"), Arg::integer("milliseconds"), CONDITION, FIELDS],
    ),
    |cx, args| {
        const INVALID: Error = Error::text("ERR invalid expire time in 'hpexpire' command");
        expire(cx, args, TimeForm::Milliseconds, INVALID)
    },
);

/// HEXPIREAT key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]
pub const HEXPIREAT: Command<Handler> = Command::new(
    setter(
        "hexpireat",
        "Lets fields of a hash expire at a Unix time in seconds.",
        &[Arg::key("key"), Arg::integer("unix-time-seconds"), CONDITION, FIELDS],
    ),
    |cx, args| {
        const INVALID: Error = Error::text("ERR invalid expire time in 'hexpireat' command");
        expire(cx, args, TimeForm::UnixSeconds, INVALID)
    },
);

/// HPEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]
pub const HPEXPIREAT: Command<Handler> = Command::new(
    setter(
        "hpexpireat",
        "Lets fields of a hash expire at a Unix time in milliseconds.",
        &[Arg::key("key"), Arg::integer("unix-time-milliseconds"), CONDITION, FIELDS],
    ),
    |cx, args| {
        const INVALID: Error = Error::text("ERR invalid expire time in 'hpexpireat' command");
        expire(cx, args, TimeForm::UnixMilliseconds, INVALID)
    },
);

fn expire(cx: &mut Context<'_>, args: Args<'_>, form: TimeForm, invalid: Error) -> Result<(), Error> {
    const OPTIONS: usize = 3;
    let at_fields = numbered::find(args, OPTIONS).ok_or(MISMATCH)?;
    let conditions = Conditions::parse(args.slice_from(OPTIONS).iter().take(at_fields - OPTIONS))?;
    let names = numbered::parse(args, at_fields + 1, 1, MISMATCH)?;
    let at = Deadline { form, text: &args[2] }.resolve_from(0, cx.db.now_ms(), invalid)?;
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let mut hash = cx.db.write::<Hash>(key)?;
    let (mut changed, mut expired) = (0, Words::new());
    cx.reply.array(names.len());
    for name in names.iter() {
        let outcome = match &mut hash {
            Some(hash) => hash.expire_at(name, at, clock, |present| conditions.allow(at, present)),
            None => Expired::Missing,
        };
        match outcome {
            Expired::Changed => changed += 1,
            Expired::Gone => expired.push(name),
            Expired::Missing | Expired::Refused => {}
        }
        cx.reply.int(match outcome {
            Expired::Missing => -2,
            Expired::Refused => 0,
            Expired::Changed => 1,
            Expired::Gone => 2,
        });
    }
    let Some(state) = hash.map(|hash| hash.state()) else { return Ok(()) };
    if !expired.is_empty() {
        record_expired_fields(cx, key, &expired);
    } else if changed > 0 {
        cx.db.effects().changed(changed);
        if form != TimeForm::UnixMilliseconds {
            let mut digits = IntBuf::default();
            let mut words = Words::from_slice(&[b"HPEXPIREAT", key.bytes, Str::Int(at).bytes(&mut digits)]);
            words.extend(args.slice_from(OPTIONS).iter());
            cx.db.effects().propagate(&words);
        }
        record_event(cx, key, "hexpire");
    } else {
        return Ok(());
    }
    apply_state(cx, key, state);
    Ok(())
}

/// Counts and propagates the removal of expired fields, and records the events.
pub fn record_expired_fields(cx: &mut Context<'_>, key: Key<'_>, names: &[&[u8]]) {
    cx.db.count_expired_fields(names.len());
    let effects = cx.db.effects();
    effects.changed(names.len() as u64);
    if !names.is_empty() {
        effects.propagate(&[&[b"HDEL", key.bytes], names].concat());
    }
    record_event(cx, key, "hexpired");
}

/// HPERSIST key FIELDS numfields field [field ...]
pub const HPERSIST: Command<Handler> = Command::new(
    documented(writing("hpersist", -5, UPDATED_KEY), "9.0.0", PER_FIELD, "Keeps fields of a hash from expiring.")
        .args(KEY_AND_FIELDS),
    hpersist,
);

fn hpersist(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let names = numbered::parse_second(args, MISMATCH)?;
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let mut hash = cx.db.write::<Hash>(key)?;
    let mut changed = 0;
    cx.reply.array(names.len());
    for name in names.iter() {
        cx.reply.int(match hash.as_mut().map(|hash| hash.persist(name, clock)) {
            None | Some(Expired::Missing) => -2,
            Some(Expired::Refused) => -1,
            Some(Expired::Changed | Expired::Gone) => {
                changed += 1;
                1
            }
        });
    }
    let state = hash.map(|hash| hash.state());
    if let Some(state) = state.filter(|_| changed > 0) {
        cx.db.effects().changed(changed);
        record_event(cx, key, "hpersist");
        apply_state(cx, key, state);
    }
    Ok(())
}

const fn getter(name: &'static str, summary: &'static str) -> Spec {
    documented(reading(name, -5), "9.0.0", PER_FIELD, summary).args(KEY_AND_FIELDS)
}

/// HTTL key FIELDS numfields field [field ...]
pub const HTTL: Command<Handler> =
    Command::new(getter("httl", "Tells in how many seconds fields of a hash will expire."), |cx, args| {
        let now_ms = cx.db.now_ms();
        reply_expiries(cx, args, |at| rounded_seconds(left_ms(at, now_ms)))
    });

/// HPTTL key FIELDS numfields field [field ...]
pub const HPTTL: Command<Handler> =
    Command::new(getter("hpttl", "Tells in how many milliseconds fields of a hash will expire."), |cx, args| {
        let now_ms = cx.db.now_ms();
        reply_expiries(cx, args, |at| left_ms(at, now_ms))
    });

/// HEXPIRETIME key FIELDS numfields field [field ...]
pub const HEXPIRETIME: Command<Handler> = Command::new(
    getter("hexpiretime", "Tells the Unix time in seconds at which fields of a hash will expire."),
    |cx, args| reply_expiries(cx, args, rounded_seconds),
);

/// HPEXPIRETIME key FIELDS numfields field [field ...]
pub const HPEXPIRETIME: Command<Handler> = Command::new(
    getter("hpexpiretime", "Tells the Unix time in milliseconds at which fields of a hash will expire."),
    |cx, args| reply_expiries(cx, args, |at| at),
);

/// Replies with the result of `of` for each field's expiry; -1 if it has none, -2 if the field does not exist.
fn reply_expiries(cx: &mut Context<'_>, args: Args<'_>, of: impl Fn(i64) -> i64) -> Result<(), Error> {
    let names = numbered::parse_second(args, Error::SYNTAX)?;
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let hash = cx.db.read::<Hash>(key)?;
    cx.reply.array(names.len());
    for name in names.iter() {
        cx.reply.int(match hash.and_then(|hash| hash.get_with_expiry(name, clock)) {
            None => -2,
            Some((_, None)) => -1,
            Some((_, Some(at))) => of(at),
        });
    }
    Ok(())
}
