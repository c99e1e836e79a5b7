//! HINCRBY and HINCRBYFLOAT: fields that are numbers.
//!
//! A missing field counts as 0, and an existing one keeps its expiry.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::collections::hash::Stored;
use kvick_store::{Expiry, Hash, IntBuf, Str};

use super::{apply_state, documented, growing, propagate_value, record_event, record_replaced_expired_fields};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Command, KeyFlags, KeySpec};
use crate::string::long_double::{LongDouble, Text};

const KEYS: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])];

/// HINCRBY key field increment
pub const HINCRBY: Command<Handler> = Command::new(
    documented(growing("hincrby", 4, KEYS), "2.0.0", "O(1)", "Adds a number to the integer that a field holds.")
        .args(&[Arg::key("key"), Arg::string("field"), Arg::integer("increment")]),
    hincrby,
);

fn hincrby(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const NOT_INTEGER: Error = Error::text("ERR hash value is not an integer");
    const OVERFLOW: Error = Error::text("ERR increment or decrement would overflow");
    let increment = parse_i64(&args[3]).ok_or(Error::NOT_INTEGER)?;
    let mut sum = 0;
    let field = update(cx, args, "hincrby", |old| {
        let old = old.map_or(Some(0), Str::as_int).ok_or(NOT_INTEGER)?;
        sum = old.checked_add(increment).ok_or(OVERFLOW)?;
        Ok(Text::from_slice(Str::Int(sum).bytes(&mut IntBuf::default())))
    })?;
    if field.hash_has_volatile {
        // The field may have expired at a replica, whose clock differs, so the result is propagated.
        propagate_value(cx, cx.key(args, 1), &args[2], &field.value, field.expiry);
    }
    cx.reply.int(sum);
    Ok(())
}

/// HINCRBYFLOAT key field increment
pub const HINCRBYFLOAT: Command<Handler> = Command::new(
    documented(
        growing("hincrbyfloat", 4, KEYS),
        "2.6.0",
        "O(1)",
        "Adds a number, which may have a fraction, to the number that a field holds.",
    )
    .args(&[Arg::key("key"), Arg::string("field"), Arg::double("increment")]),
    hincrbyfloat,
);

fn hincrbyfloat(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const NOT_FLOAT: Error = Error::text("ERR hash value is not a float");
    const INCREMENT_NOT_FINITE: Error = Error::text("ERR value is NaN or Infinity");
    const NOT_FINITE: Error = Error::text("ERR increment would produce NaN or Infinity");
    let increment = LongDouble::parse(&args[3]).ok_or(Error::NOT_FLOAT)?;
    if !increment.is_finite() {
        return Err(INCREMENT_NOT_FINITE);
    }
    let field = update(cx, args, "hincrbyfloat", |old| {
        let old = match old {
            None => LongDouble::ZERO,
            Some(Str::Int(number)) => number.into(),
            Some(Str::Bytes(text)) => LongDouble::parse(text).ok_or(NOT_FLOAT)?,
        };
        Ok(old.checked_add(increment).ok_or(NOT_FINITE)?.format())
    })?;
    // Replicas receive the result, since another version may round or format it differently.
    propagate_value(cx, cx.key(args, 1), &args[2], &field.value, field.expiry);
    cx.reply.bulk(&field.value);
    Ok(())
}

/// A field with a new value.
struct Updated {
    value: Text,
    /// The expiry, which is unchanged.
    expiry: Option<i64>,
    /// Whether the hash had fields with an expiry.
    hash_has_volatile: bool,
}

/// Sets the field at argument 2 of the hash at argument 1 to the value that `derive` computes from the current one.
/// This counts as one change, with event `event`. `derive` must accept a missing field.
fn update(
    cx: &mut Context<'_>,
    args: Args<'_>,
    event: &'static str,
    derive: impl FnOnce(Option<Str<'_>>) -> Result<Text, Error>,
) -> Result<Updated, Error> {
    let (key, clock, limits) = (cx.key(args, 1), cx.db.field_clock(), cx.settings.encoding.hash);
    let (hash, _) = cx.db.write_or_create::<Hash>(key)?;
    let (old, expiry) = hash.get_with_expiry(&args[2], clock).unzip();
    let (value, expiry) = (derive(old)?, expiry.flatten());
    let hash_has_volatile = hash.volatile() > 0;
    let stored = hash.set(&args[2], &value, expiry.map_or(Expiry::None, Expiry::At), clock, limits);
    let state = hash.state();
    record_replaced_expired_fields(cx, key, usize::from(stored == Stored::Revived));
    record_event(cx, key, event);
    cx.db.effects().changed(1);
    apply_state(cx, key, state);
    Ok(Updated { value, expiry, hash_has_volatile })
}
