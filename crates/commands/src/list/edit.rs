//! LSET, LINSERT, LREM, LTRIM: changes of lists other than at their ends.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::collections::list::Side;
use kvick_store::{Collection, EventClass, List};

use super::{removed, signed_count};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// LSET key index element
pub const LSET: Command<Handler> = Command::new(
    Spec::new("lset", 4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::UPDATE])])
        .doc(
            Group::List,
            "1.0.0",
            "O(N), N being the distance from the nearer end in blocks, and within a block in elements.",
            "Replaces the element at an index.",
        )
        .args(&[Arg::key("key"), Arg::integer("index"), Arg::string("element")]),
    lset,
);

fn lset(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, limits) = (cx.key(args, 1), cx.settings.encoding.list);
    let list = cx.db.write::<List>(key)?.ok_or(Error::NO_KEY)?;
    let index = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    // Valkey uses only the low 32 bits of the index. Commands from a log are executed in the same way, but those of
    // clients are not.
    let index = if cx.from_log { i64::from(index as i32) } else { index };
    if !list.set(index, &args[3], limits) {
        return Err(Error::text("ERR index out of range"));
    }
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::LIST, "lset", key.bytes);
    cx.reply.ok();
    Ok(())
}

/// LINSERT key BEFORE|AFTER pivot element
pub const LINSERT: Command<Handler> = Command::new(
    Spec::new("linsert", 5)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::INSERT])])
        .doc(
            Group::List,
            "2.2.0",
            "O(N), N being the number of elements before the pivot.",
            "Inserts an element before or after the first one with a value.",
        )
        .args(&[
            Arg::key("key"),
            Arg::one_of("where", &[Arg::word("before", "BEFORE"), Arg::word("after", "AFTER")]),
            Arg::string("pivot"),
            Arg::string("element"),
        ]),
    linsert,
);

fn linsert(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let side = match &args[2] {
        word if word.eq_ignore_ascii_case(b"before") => Side::Head,
        word if word.eq_ignore_ascii_case(b"after") => Side::Tail,
        _ => return Err(Error::SYNTAX),
    };
    let (key, limits) = (cx.key(args, 1), cx.settings.encoding.list);
    let Some(list) = cx.db.write::<List>(key)? else {
        cx.reply.int(0);
        return Ok(());
    };
    if !list.insert(&args[3], side, &args[4], limits) {
        cx.reply.int(-1);
        return Ok(());
    }
    let len = list.len();
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::LIST, "linsert", key.bytes);
    cx.reply.int(len as i64);
    Ok(())
}

/// LREM key count element
pub const LREM: Command<Handler> = Command::new(
    Spec::new("lrem", 4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::DELETE])])
        .doc(
            Group::List,
            "1.0.0",
            "O(N+M), N being the number of elements and M that of those removed.",
            "Removes elements with a value: all, or so many from the head or the tail on.",
        )
        .args(&[Arg::key("key"), Arg::integer("count"), Arg::string("element")]),
    lrem,
);

fn lrem(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let count = signed_count(&args[2])?;
    let (key, limits) = (cx.key(args, 1), cx.settings.encoding.list);
    let Some(list) = cx.db.write::<List>(key)? else {
        cx.reply.int(0);
        return Ok(());
    };
    let (from, most) = match count {
        ..0 => (Side::Tail, count.unsigned_abs() as usize),
        0 => (Side::Head, usize::MAX),
        _ => (Side::Head, count as usize),
    };
    let gone = list.remove_value(&args[3], from, most, limits);
    let none_left = list.is_empty();
    if gone > 0 {
        removed(cx, key, "lrem", gone, none_left);
    }
    cx.reply.int(gone as i64);
    Ok(())
}

/// LTRIM key start stop
pub const LTRIM: Command<Handler> = Command::new(
    Spec::new("ltrim", 4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::DELETE])])
        .doc(
            Group::List,
            "1.0.0",
            "O(N), N being the number of elements removed.",
            "Removes all elements but those in a range of indices.",
        )
        .args(&[Arg::key("key"), Arg::integer("start"), Arg::integer("stop")]),
    ltrim,
);

fn ltrim(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let start = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    let stop = parse_i64(&args[3]).ok_or(Error::NOT_INTEGER)?;
    let (key, limits) = (cx.key(args, 1), cx.settings.encoding.list);
    if let Some(list) = cx.db.write::<List>(key)? {
        let range = list.range(start, stop);
        let gone = list.len() - range.len();
        list.keep_range(range, limits);
        let none_left = list.is_empty();
        removed(cx, key, "ltrim", gone, none_left);
    }
    cx.reply.ok();
    Ok(())
}
