//! Subsets of the fields of a hash: HRANDFIELD, HSCAN.

use std::collections::HashSet;
use std::ops::ControlFlow;

use kvick_resp::format::parse_i64;
use kvick_resp::{Args, Version};
use kvick_store::collections::hash::Field;
use kvick_store::{Collection, FieldClock, Hash, IntBuf};

use super::{documented, reading_much};
use crate::context::{Context, Error, Handler};
use crate::random;
use crate::scan_options::{Listing, ScanOptions, Scanned, parse_cursor};
use crate::spec::{Arg, Command};
use crate::string::reply_string;

/// `HRANDFIELD key [count [WITHVALUES]]`
pub const HRANDFIELD: Command<Handler> = Command::new(
    documented(
        reading_much("hrandfield", -2),
        "6.2.0",
        "O(N), N being the number of fields listed.",
        "Picks fields of a hash at random.",
    )
    .tips(&["nondeterministic_output"])
    .args(&[
        Arg::key("key"),
        Arg::block("options", &[Arg::integer("count"), Arg::word("withvalues", "WITHVALUES").optional()]).optional(),
    ]),
    hrandfield,
);

fn hrandfield(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = match args.get(2) {
        Some(count) => Some(parse_count(count, args)?),
        None => None,
    };
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let end_max = cx.reply_end_max();
    let reply = &mut cx.reply;
    let hash = cx.db.read::<Hash>(key)?;
    let Some((count, with_values)) = request else {
        match hash.and_then(|hash| hash.random(clock, random::next)) {
            Some(field) => reply_string(reply, field.name),
            None => reply.null(),
        }
        return Ok(());
    };
    let Some(hash) = hash.filter(|_| count != 0) else {
        reply.array(0);
        return Ok(());
    };
    let header = reply.deferred();
    let mut listed = 0;
    let pairs_apart = with_values && reply.version() == Version::Resp3;
    choose(hash, count, clock, |field| {
        if pairs_apart {
            reply.array(2);
        }
        reply_string(reply, field.name);
        listed += 1;
        if with_values {
            reply_string(reply, field.value);
            listed += usize::from(!pairs_apart);
        }
        if reply.position() > end_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    cx.reply.set_array_len(header, listed);
    Ok(())
}

/// Parses the count, and WITHVALUES.
fn parse_count(text: &[u8], args: Args<'_>) -> Result<(i64, bool), Error> {
    const OUT_OF_RANGE: Error = Error::text("ERR value is out of range");
    let count = parse_i64(text).ok_or(Error::NOT_INTEGER)?;
    if count == i64::MIN {
        let (least, most) = (-i64::MAX, i64::MAX);
        return Err(Error::new(format!("ERR value is out of range, value must between {least} and {most}")));
    }
    match args.slice_from(3).iter().collect::<Vec<_>>().as_slice() {
        [] => Ok((count, false)),
        [word] if !word.eq_ignore_ascii_case(b"withvalues") => Err(Error::SYNTAX),
        [_] if count.unsigned_abs() > i64::MAX as u64 / 2 => Err(OUT_OF_RANGE),
        [_] => Ok((count, true)),
        _ => Err(Error::SYNTAX),
    }
}

/// Visits `count` distinct fields, or, if `count` is negative, `-count` fields with repetitions, until `visit` returns
/// `Break`.
fn choose(hash: &Hash, count: i64, clock: FieldClock, mut visit: impl FnMut(Field<'_>) -> ControlFlow<()>) {
    /// If at least one in this many fields is wanted, iterating over all fields is faster than drawing until enough are
    /// distinct.
    const DRAWN_SHARE_MAX: usize = 3;
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 || wanted == 1 {
        draw(hash, wanted, clock, visit);
    } else if hash.is_packed() || wanted.saturating_mul(DRAWN_SHARE_MAX) > hash.len() {
        let seen = || hash.iter().filter(|field| !clock.hides(field.expiry));
        let there = if hash.volatile() == 0 { hash.len() } else { seen().count() };
        let (mut wanted, mut left) = (wanted.min(there), there as u64);
        // Selection sampling: each field is taken with the probability that makes all subsets equally likely.
        for field in seen() {
            if below(left) < wanted as u64 {
                wanted -= 1;
                if visit(field).is_break() {
                    break;
                }
            }
            left = left.saturating_sub(1).max(1);
        }
    } else {
        draw_different(hash, wanted, clock, visit);
    }
}

/// Visits `count` fields drawn one by one, with repetitions.
fn draw(hash: &Hash, count: usize, clock: FieldClock, mut visit: impl FnMut(Field<'_>) -> ControlFlow<()>) {
    // The caller does not need to know whether `visit` stopped early.
    let _ = if !hash.is_packed() || count == 1 {
        (0..count).map_while(|_| hash.random(clock, random::next)).try_for_each(visit)
    } else {
        let fields: Vec<Field<'_>> = hash.iter().collect();
        (0..count).try_for_each(|_| visit(fields[below(fields.len() as u64) as usize]))
    };
}

/// Visits up to `count` distinct fields drawn one by one; fewer if many draws are repetitions.
fn draw_different(hash: &Hash, count: usize, clock: FieldClock, mut visit: impl FnMut(Field<'_>) -> ControlFlow<()>) {
    let mut names = HashSet::with_capacity(count);
    let mut text = IntBuf::default();
    for _ in 0..count.saturating_mul(10) {
        let Some(field) = hash.random(clock, random::next) else { break };
        let is_new = names.insert(field.name.bytes(&mut text).to_vec());
        if is_new && (visit(field).is_break() || names.len() == count) {
            break;
        }
    }
}

/// A random number below `bound`, which must not be 0.
fn below(bound: u64) -> u64 {
    ((u128::from(random::next()) * u128::from(bound)) >> 64) as u64
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`
pub const HSCAN: Command<Handler> = Command::new(
    documented(
        reading_much("hscan", -3),
        "2.8.0",
        "O(1) for each call, O(N) for all that list the whole hash, N being the number of its fields.",
        "Lists the fields of a hash a part at a time.",
    )
    .tips(&["nondeterministic_output"])
    .args(&[
        Arg::key("key"),
        Arg::integer("cursor"),
        Arg::pattern("pattern").token("MATCH").optional(),
        Arg::integer("count").token("COUNT").optional(),
        Arg::word("novalues", "NOVALUES").optional(),
    ]),
    hscan,
);

fn hscan(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let cursor = parse_cursor(&args[2])?;
    let (key, clock) = (cx.key(args, 1), cx.db.field_clock());
    let mut listing = Listing::new(&cx.reply);
    let Some(hash) = cx.db.read::<Hash>(key)? else {
        listing.reply(&mut cx.reply, 0);
        return Ok(());
    };
    let options = ScanOptions::parse(args.slice_from(3), Scanned::Hash)?;
    let mut text = IntBuf::default();
    let next = hash.scan(cursor, options.count, clock, |field| {
        if options.names.include(field.name.bytes(&mut text)) {
            listing.add_with(|reply| reply_string(reply, field.name));
            if !options.names_only {
                listing.add_with(|reply| reply_string(reply, field.value));
            }
        }
    });
    listing.reply(&mut cx.reply, next);
    Ok(())
}
