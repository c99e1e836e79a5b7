//! Values together with expiry: HSETEX, HGETEX.

use kvick_resp::Args;
use kvick_store::collections::hash::{Expired, Stored};
use kvick_store::{Expiry, FieldClock, Hash, IntBuf, Key, Str};

use super::expiry::record_expired_fields;
use super::numbered::{self, FIELDS, MISMATCH};
use super::{
    PER_FIELD, Words, apply_state, documented, growing, record_event, record_replaced_expired_fields, writing,
};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Command, KeyFlags, KeySpec};
use crate::string::options::{Condition, Expiration, Options, Syntax, TimeForm};
use crate::string::reply_string;

/// Maximum number of fields per propagated HDEL.
const FIELDS_PER_DELETION: usize = 1024;

/// HSETEX key [NX | XX] [FNX | FXX]
/// [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]
/// FIELDS numfields field value [field value ...]
pub const HSETEX: Command<Handler> = Command::new(
    documented(
        growing("hsetex", -6, &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::INSERT])]),
        "9.0.0",
        PER_FIELD,
        "Sets fields of a hash, on a condition or for a time.",
    )
    .args(&[
        Arg::key("key"),
        Arg::one_of("key-condition", &[Arg::word("nx", "NX"), Arg::word("xx", "XX")]).optional(),
        Arg::one_of("fields-condition", &[Arg::word("fnx", "FNX"), Arg::word("fxx", "FXX")]).optional(),
        Arg::one_of(
            "expiration",
            &[
                Arg::integer("seconds").token("EX"),
                Arg::integer("milliseconds").token("PX"),
                Arg::unix_time("unix-time-seconds").token("EXAT"),
                Arg::unix_time("unix-time-milliseconds").token("PXAT"),
                Arg::word("keepttl", "KEEPTTL"),
            ],
        )
        .optional(),
        Arg::block(
            "fields",
            &[
                Arg::integer("numfields").key_spec(0),
                Arg::block("data", &[Arg::string("field"), Arg::string("value")]).multiple(),
            ],
        )
        .token("FIELDS"),
    ]),
    hsetex,
);

fn hsetex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const INVALID_TIME: Error = Error::text("ERR invalid expire time in 'hsetex' command");
    let (options, pairs) = parse(args, Syntax::HSetEx, 2)?;
    let (key, clock, limits) = (cx.key(args, 1), cx.db.field_clock(), cx.settings.encoding.hash);
    let there = cx.db.write::<Hash>(key)?.is_some();
    if !holds(options.condition, there) {
        cx.reply.int(0);
        return Ok(());
    }
    let expiry = match options.expiration {
        Expiration::Keep => Expiry::Keep,
        Expiration::At(deadline) => Expiry::At(deadline.resolve_from(0, cx.db.now_ms(), INVALID_TIME)?),
        Expiration::Unsaid | Expiration::Persist => Expiry::None,
    };
    let may = |hash: Option<&Hash>| {
        let holds = |name| holds(options.field_condition, hash.is_some_and(|hash| hash.contains(name, clock)));
        pairs.iter().step_by(2).all(holds)
    };
    if options.field_condition != Condition::Always && !may(cx.db.view(key)) {
        cx.reply.int(0);
        return Ok(());
    }
    let (hash, _) = cx.db.write_or_create::<Hash>(key)?;
    if let Expiry::At(at) = expiry
        && clock.is_due(at)
    {
        let expired: Words<'_> = pairs.iter().step_by(2).filter(|name| hash.remove(name, FieldClock::ALL)).collect();
        let state = hash.state();
        cx.db.count_expired_fields(pairs.len() / 2 - expired.len());
        record_event(cx, key, "hset");
        record_event(cx, key, "hexpire");
        record_expired_fields(cx, key, &expired);
        apply_state(cx, key, state);
    } else {
        let mut revived = Words::new();
        let mut words = pairs.iter();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            if hash.set(name, value, expiry, clock, limits) == Stored::Revived {
                revived.push(name);
            }
        }
        let state = hash.state();
        cx.db.effects().changed(pairs.len() as u64 / 2);
        record_replaced_expired_fields(cx, key, revived.len());
        propagate_set(cx, key, args, &options, expiry, &revived);
        record_event(cx, key, "hset");
        if matches!(expiry, Expiry::At(_)) {
            record_event(cx, key, "hexpire");
        }
        apply_state(cx, key, state);
    }
    cx.reply.int(1);
    Ok(())
}

/// Parses the options and the fields of a request; there are `each` arguments per field after the number.
fn parse<'a>(args: Args<'a>, syntax: Syntax, each: usize) -> Result<(Options<'a>, Args<'a>), Error> {
    let at_fields = numbered::find(args, 1).ok_or(MISMATCH)?;
    let options = Options::parse_words(args.slice_from(2).iter().take(at_fields.saturating_sub(2)), syntax)?;
    Ok((options, numbered::parse(args, at_fields + 1, each, MISMATCH)?))
}

fn holds(condition: Condition<'_>, there: bool) -> bool {
    match condition {
        Condition::Absent => !there,
        Condition::Present => there,
        Condition::Always | Condition::Equal(_) => true,
    }
}

/// Propagates the effect of HSETEX, without conditions and with an absolute time.
fn propagate_set(
    cx: &mut Context<'_>,
    key: Key<'_>,
    args: Args<'_>,
    options: &Options<'_>,
    expiry: Expiry,
    revived: &[&[u8]],
) {
    let effects = cx.db.effects();
    let conditional = options.condition != Condition::Always || options.field_condition != Condition::Always;
    let relative = matches!(options.expiration, Expiration::At(at) if at.form != TimeForm::UnixMilliseconds);
    // A field that had expired here loses its expiry despite KEEPTTL; a replica, whose clock differs, may not have seen
    // that.
    let lost = expiry == Expiry::Keep && !revived.is_empty();
    if !effects.has_readers() || !(conditional || relative || lost) {
        return;
    }
    if lost {
        for names in revived.chunks(FIELDS_PER_DELETION) {
            let mut words = Words::from_slice(&[b"HDEL", key.bytes]);
            words.extend_from_slice(names);
            effects.propagate(&words);
        }
    }
    let mut digits = IntBuf::default();
    let mut words = Words::from_slice(&[b"HSETEX", key.bytes]);
    match expiry {
        Expiry::None => {}
        Expiry::Keep => words.push(b"KEEPTTL"),
        Expiry::At(at) => words.extend_from_slice(&[b"PXAT", Str::Int(at).bytes(&mut digits)]),
    }
    words.extend(numbered::find(args, 1).into_iter().flat_map(|fields| args.slice_from(fields).iter()));
    effects.propagate(&words);
}

/// HGETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]
/// FIELDS numfields field [field ...]
pub const HGETEX: Command<Handler> = Command::new(
    documented(
        writing("hgetex", -5, &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])]),
        "9.0.0",
        PER_FIELD,
        "Gets the values of fields of a hash, and may change when they expire.",
    )
    .args(&[
        Arg::key("key"),
        Arg::one_of(
            "expiration",
            &[
                Arg::integer("seconds").token("EX"),
                Arg::integer("milliseconds").token("PX"),
                Arg::unix_time("unix-time-seconds").token("EXAT"),
                Arg::unix_time("unix-time-milliseconds").token("PXAT"),
                Arg::word("persist", "PERSIST"),
            ],
        )
        .optional(),
        FIELDS,
    ]),
    hgetex,
);

fn hgetex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const INVALID_TIME: Error = Error::text("ERR invalid expire time in 'hgetex' command");
    let (options, names) = parse(args, Syntax::HGetEx, 1)?;
    let (key, clock, now_ms) = (cx.key(args, 1), cx.db.field_clock(), cx.db.now_ms());
    let there = cx.db.read::<Hash>(key)?.is_some();
    let at = match options.expiration {
        Expiration::At(deadline) => Some(deadline.resolve_from(0, now_ms, INVALID_TIME)?),
        _ => None,
    };
    let persists = matches!(options.expiration, Expiration::Persist);
    let mut hash = if there { cx.db.write::<Hash>(key)? } else { None };
    let mut changed = Words::new();
    cx.reply.array(names.len());
    for name in names.iter() {
        let Some(hash) = &mut hash else {
            cx.reply.null();
            continue;
        };
        match hash.get(name, clock) {
            Some(value) => reply_string(&mut cx.reply, value),
            None => cx.reply.null(),
        }
        let outcome = match at {
            Some(at) => hash.expire_at(name, at, clock, |_| true),
            None if persists => hash.persist(name, clock),
            None => Expired::Refused,
        };
        if matches!(outcome, Expired::Changed | Expired::Gone) {
            changed.push(name);
        }
    }
    let state = hash.map(|hash| hash.state());
    if let Some(state) = state.filter(|_| !changed.is_empty()) {
        match at {
            Some(at) if clock.is_due(at) => record_expired_fields(cx, key, &changed),
            _ => record_expiry_change(cx, key, at, &changed),
        }
        apply_state(cx, key, state);
    }
    Ok(())
}

/// Propagates that HGETEX changed or removed the expiry of fields, and records the events.
fn record_expiry_change(cx: &mut Context<'_>, key: Key<'_>, at: Option<i64>, names: &[&[u8]]) {
    let (mut digits, mut count) = (IntBuf::default(), IntBuf::default());
    let mut words = match at {
        Some(at) => Words::from_slice(&[b"HPEXPIREAT", key.bytes, Str::Int(at).bytes(&mut digits)]),
        None => Words::from_slice(&[b"HPERSIST", key.bytes]),
    };
    words.extend_from_slice(&[b"FIELDS", Str::Int(names.len() as i64).bytes(&mut count)]);
    let effects = cx.db.effects();
    effects.changed(names.len() as u64);
    words.extend_from_slice(names);
    effects.propagate(&words);
    record_event(cx, key, if at.is_some() { "hexpire" } else { "hpersist" });
}
