//! LMOVE, RPOPLPUSH: pop an element from a list and push it to another list, or to the other end of the same list;
//! BLMOVE, BRPOPLPUSH: the same, blocking while the source is empty.

use kvick_resp::Args;
use kvick_store::collections::list::{Side, owned};
use kvick_store::{Collection, EventClass, Key, List};

use super::{pop_event, push_event, removed, side, wait};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use crate::timeout::until_ms;

const KEYS: &[KeySpec] = &[
    KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE]),
    KeySpec::at(2, &[KeyFlags::RW, KeyFlags::INSERT]),
];
const SIDES: &[Arg] = &[Arg::word("left", "LEFT"), Arg::word("right", "RIGHT")];

/// LMOVE source destination LEFT|RIGHT LEFT|RIGHT
pub const LMOVE: Command<Handler> = Command::new(
    Spec::new("lmove", 5)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::LIST])
        .keys(KEYS)
        .doc(
            Group::List,
            "6.2.0",
            "O(1)",
            "Moves an element from an end of one list to an end of another, and returns it.",
        )
        .args(&[
            Arg::key("source"),
            Arg::key("destination").key_spec(1),
            Arg::one_of("wherefrom", SIDES),
            Arg::one_of("whereto", SIDES),
        ]),
    lmove,
);

fn lmove(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (from, to) = (side(&args[3])?, side(&args[4])?);
    if !transfer(cx, args, from, to)? {
        cx.reply.null();
    }
    Ok(())
}

/// RPOPLPUSH source destination
pub const RPOPLPUSH: Command<Handler> = Command::new(
    Spec::new("rpoplpush", 3)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::LIST])
        .keys(KEYS)
        .doc(Group::List, "1.2.0", "O(1)", "Moves the last element of one list to the head of another, and returns it.")
        .args(&[Arg::key("source"), Arg::key("destination").key_spec(1)]),
    rpoplpush,
);

fn rpoplpush(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    if !transfer(cx, args, Side::Tail, Side::Head)? {
        cx.reply.null();
    }
    Ok(())
}

/// BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout
pub const BLMOVE: Command<Handler> = Command::new(
    Spec::new("blmove", 6)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::BLOCKING])
        .acl(&[Categories::LIST])
        .keys(KEYS)
        .doc(
            Group::List,
            "6.2.0",
            "O(1)",
            "Moves an element from an end of one list to an end of another and returns it, waiting for one if need be.",
        )
        .args(&[
            Arg::key("source"),
            Arg::key("destination").key_spec(1),
            Arg::one_of("wherefrom", SIDES),
            Arg::one_of("whereto", SIDES),
            Arg::double("timeout"),
        ]),
    blmove,
);

fn blmove(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (from, to) = (side(&args[3])?, side(&args[4])?);
    let until_ms = until_ms(&args[5], true, cx.db.now_ms())?;
    if transfer(cx, args, from, to)? {
        cx.db.effects().propagate(&[b"LMOVE", &args[1], &args[2], &args[3], &args[4]]);
    } else {
        wait_or_null(cx, until_ms);
    }
    Ok(())
}

/// BRPOPLPUSH source destination timeout
pub const BRPOPLPUSH: Command<Handler> = Command::new(
    Spec::new("brpoplpush", 4)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::BLOCKING])
        .acl(&[Categories::LIST])
        .keys(KEYS)
        .doc(
            Group::List,
            "2.2.0",
            "O(1)",
            "Moves the last element of one list to the head of another and returns it, waiting for one if need be.",
        )
        .history(&[("6.0.0", "The `timeout` may have a fraction.")])
        .args(&[Arg::key("source"), Arg::key("destination").key_spec(1), Arg::double("timeout")]),
    brpoplpush,
);

fn brpoplpush(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let until_ms = until_ms(&args[3], true, cx.db.now_ms())?;
    if transfer(cx, args, Side::Tail, Side::Head)? {
        cx.db.effects().propagate(&[b"RPOPLPUSH", &args[1], &args[2]]);
    } else {
        wait_or_null(cx, until_ms);
    }
    Ok(())
}

/// Blocks on a list at the source, or replies with null if blocking is not allowed.
fn wait_or_null(cx: &mut Context<'_>, until_ms: Option<i64>) {
    if cx.may_block {
        cx.block = Some(wait(1..2, until_ms));
    } else {
        cx.reply.null();
    }
}

/// Moves an element from the list at argument 1 to that at argument 2, and replies with it; returns false if the source
/// does not exist.
fn transfer(cx: &mut Context<'_>, args: Args<'_>, from: Side, to: Side) -> Result<bool, Error> {
    let (source, target, limits) = (cx.key(args, 1), cx.key(args, 2), cx.settings.encoding.list);
    let Some(list) = cx.db.write::<List>(source)? else { return Ok(false) };
    if source.bytes == target.bytes {
        list.rotate(from, to, limits, |element| cx.reply.bulk(element));
        cx.db.effects().notify(EventClass::LIST, push_event(to), target.bytes);
        removed(cx, source, pop_event(from), 1, false);
        return Ok(true);
    }
    // Check the type of the target before changing anything.
    cx.db.write::<List>(target)?;
    transfer_between(cx, source, target, from, to)?;
    Ok(true)
}

/// Moves an element between two different lists. The source exists.
fn transfer_between(cx: &mut Context<'_>, source: Key<'_>, target: Key<'_>, from: Side, to: Side) -> Result<(), Error> {
    let limits = cx.settings.encoding.list;
    let Some(list) = cx.db.write::<List>(source)? else { unreachable!("found before") };
    let element = list.pop(from, limits, owned).unwrap_or_default();
    let none_left = list.is_empty();
    cx.db.write_or_create::<List>(target)?.0.push(to, &element, limits);
    cx.db.effects().notify(EventClass::LIST, push_event(to), target.bytes);
    cx.reply.bulk(&element);
    removed(cx, source, pop_event(from), 1, none_left);
    Ok(())
}
