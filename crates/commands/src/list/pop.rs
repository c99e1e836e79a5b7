//! LPOP, RPOP, LMPOP: pop elements from an end; BLPOP, BRPOP, BLMPOP: the same, blocking while the lists are empty.

use std::ops::Range;

use kvick_resp::Args;
use kvick_store::collections::list::Side;
use kvick_store::{Collection, IntBuf, Key, List, Str};

use super::{integer_from, pop_command, pop_event, removed, side, wait};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use crate::string::reply_string;
use crate::timeout::until_ms;

const POPPED: &[KeyFlags] = &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE];
const SIDES: &[Arg] = &[Arg::word("left", "LEFT"), Arg::word("right", "RIGHT")];
const ONE_OF_MANY: &str = "O(N+M), N being the number of keys and M that of the elements removed.";

/// `LPOP key [count]`
pub const LPOP: Command<Handler> = Command::new(
    pop_spec("lpop").doc(
        Group::List,
        "1.0.0",
        "O(N), N being the number of elements removed.",
        "Removes elements from the head of a list and returns them.",
    ),
    lpop,
);

fn lpop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    pop(cx, args, Side::Head)
}

/// `RPOP key [count]`
pub const RPOP: Command<Handler> = Command::new(
    pop_spec("rpop").doc(
        Group::List,
        "1.0.0",
        "O(N), N being the number of elements removed.",
        "Removes elements from the tail of a list and returns them.",
    ),
    rpop,
);

fn rpop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    pop(cx, args, Side::Tail)
}

const fn pop_spec(name: &'static str) -> Spec {
    Spec::new(name, -2)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::LIST])
        .keys(const { &[KeySpec::at(1, POPPED)] })
        .history(&[("6.2.0", "A `count` can be given.")])
        .args(const { &[Arg::key("key"), Arg::integer("count").optional().since("6.2.0")] })
}

#[inline]
fn pop(cx: &mut Context<'_>, args: Args<'_>, side: Side) -> Result<(), Error> {
    let (key, limits) = (cx.key(args, 1), cx.settings.encoding.list);
    if let Some(count) = args.get(2) {
        return pop_counted(cx, key, args.len(), side, count);
    }
    let Some(list) = cx.db.write::<List>(key)? else {
        cx.reply.null();
        return Ok(());
    };
    list.pop(side, limits, |element| reply_string(&mut cx.reply, element));
    let none_left = list.is_empty();
    removed(cx, key, pop_event(side), 1, none_left);
    Ok(())
}

fn pop_counted(cx: &mut Context<'_>, key: Key<'_>, argc: usize, side: Side, count: &[u8]) -> Result<(), Error> {
    if argc > 3 {
        return Err(Error::new(format!("ERR wrong number of arguments for '{}' command", pop_event(side))));
    }
    let count = integer_from(0, count, "ERR value is out of range, must be positive")?;
    match cx.db.write::<List>(key)? {
        None => cx.reply.null_array(),
        Some(_) if count == 0 => cx.reply.array(0),
        Some(_) => _ = pop_many(cx, key, side, count as usize),
    }
    Ok(())
}

/// Pops up to `count` elements, at least one, from an existing list, and replies with them; returns their number.
fn pop_many(cx: &mut Context<'_>, key: Key<'_>, side: Side, count: usize) -> usize {
    let limits = cx.settings.encoding.list;
    let Ok(Some(list)) = cx.db.write::<List>(key) else { unreachable!("found to be a list") };
    let len = list.len();
    let count = count.min(len);
    let range = match side {
        Side::Head => 0..count,
        Side::Tail => len - count..len,
    };
    cx.reply.array(count);
    list.visit(range.clone(), side, |element| reply_string(&mut cx.reply, element));
    list.remove_range(range, limits);
    removed(cx, key, pop_event(side), count, count == len);
    count
}

/// LMPOP numkeys key [key ...] LEFT|RIGHT [COUNT count]
pub const LMPOP: Command<Handler> = Command::new(
    Spec::new("lmpop", -4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::counted(1, 1, POPPED)])
        .doc(
            Group::List,
            "7.0.0",
            ONE_OF_MANY,
            "Removes elements from an end of the first list that there is and returns them.",
        )
        .args(&[
            Arg::integer("numkeys"),
            Arg::key("key").multiple(),
            Arg::one_of("where", SIDES),
            Arg::integer("count").token("COUNT").optional(),
        ]),
    lmpop,
);

fn lmpop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = PopRequest::parse(args, 1)?;
    if !request.pop(cx, args)? {
        cx.reply.null_array();
    }
    Ok(())
}

/// BLMPOP timeout numkeys key [key ...] LEFT|RIGHT [COUNT count]
pub const BLMPOP: Command<Handler> = Command::new(
    Spec::new("blmpop", -5)
        .flags(&[Flags::WRITE, Flags::BLOCKING])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::counted(2, 1, POPPED)])
        .doc(
            Group::List,
            "7.0.0",
            ONE_OF_MANY,
            "Removes elements from an end of the first list that there is and returns them, waiting for one if need \
             be.",
        )
        .args(&[
            Arg::double("timeout"),
            Arg::integer("numkeys"),
            Arg::key("key").multiple(),
            Arg::one_of("where", SIDES),
            Arg::integer("count").token("COUNT").optional(),
        ]),
    blmpop,
);

fn blmpop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = PopRequest::parse(args, 2)?;
    let until_ms = until_ms(&args[1], true, cx.db.now_ms())?;
    if !request.pop(cx, args)? {
        wait_or_null(cx, request.keys, until_ms);
    }
    Ok(())
}

/// The arguments of LMPOP and BLMPOP.
struct PopRequest {
    /// Argument indices of the keys.
    keys: Range<usize>,
    side: Side,
    count: usize,
}

impl PopRequest {
    /// Parses the arguments from `numkeys` on.
    fn parse(args: Args<'_>, numkeys: usize) -> Result<PopRequest, Error> {
        let key_count = integer_from(1, &args[numkeys], "ERR numkeys should be greater than 0")?;
        let first = numkeys + 1;
        let end = first.saturating_add(key_count as usize);
        let side = side(args.get(end).ok_or(Error::SYNTAX)?)?;
        let mut count = None;
        let mut options = args.iter().skip(end + 1);
        while let Some(option) = options.next() {
            if count.is_some() || !option.eq_ignore_ascii_case(b"count") {
                return Err(Error::SYNTAX);
            }
            let word = options.next().ok_or(Error::SYNTAX)?;
            count = Some(integer_from(1, word, "ERR count should be greater than 0")?);
        }
        Ok(PopRequest { keys: first..end, side, count: count.unwrap_or(1) as usize })
    }

    /// Pops from the first list that exists, and propagates that; returns false if none exists.
    fn pop(&self, cx: &mut Context<'_>, args: Args<'_>) -> Result<bool, Error> {
        for index in self.keys.clone() {
            let key = cx.key(args, index);
            if cx.db.write::<List>(key)?.is_some() {
                cx.reply.array(2);
                cx.reply.bulk(key.bytes);
                let count = pop_many(cx, key, self.side, self.count);
                let effects = cx.db.effects();
                if effects.has_readers() {
                    let mut digits = IntBuf::default();
                    effects.propagate(&[pop_command(self.side), key.bytes, Str::Int(count as i64).bytes(&mut digits)]);
                }
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// BLPOP key [key ...] timeout
pub const BLPOP: Command<Handler> = Command::new(
    waiting_spec("blpop").doc(
        Group::List,
        "2.0.0",
        "O(N), N being the number of keys.",
        "Removes the first element of the first list that there is and returns it, waiting for one if need be.",
    ),
    blpop,
);

fn blpop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    pop_waiting(cx, args, Side::Head)
}

/// BRPOP key [key ...] timeout
pub const BRPOP: Command<Handler> = Command::new(
    waiting_spec("brpop").doc(
        Group::List,
        "2.0.0",
        "O(N), N being the number of keys.",
        "Removes the last element of the first list that there is and returns it, waiting for one if need be.",
    ),
    brpop,
);

fn brpop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    pop_waiting(cx, args, Side::Tail)
}

const fn waiting_spec(name: &'static str) -> Spec {
    Spec::new(name, -3)
        .flags(&[Flags::WRITE, Flags::BLOCKING])
        .acl(&[Categories::LIST])
        .keys(const { &[KeySpec::range(1, -2, 1, POPPED)] })
        .history(&[("6.0.0", "The `timeout` may have a fraction.")])
        .args(const { &[Arg::key("key").multiple(), Arg::double("timeout")] })
}

fn pop_waiting(cx: &mut Context<'_>, args: Args<'_>, side: Side) -> Result<(), Error> {
    let (keys, limits) = (1..args.len() - 1, cx.settings.encoding.list);
    let until_ms = until_ms(&args[keys.end], true, cx.db.now_ms())?;
    for index in keys.clone() {
        let key = cx.key(args, index);
        let Some(list) = cx.db.write::<List>(key)? else { continue };
        cx.reply.array(2);
        cx.reply.bulk(key.bytes);
        list.pop(side, limits, |element| reply_string(&mut cx.reply, element));
        let none_left = list.is_empty();
        removed(cx, key, pop_event(side), 1, none_left);
        cx.db.effects().propagate(&[pop_command(side), key.bytes]);
        return Ok(());
    }
    wait_or_null(cx, keys, until_ms);
    Ok(())
}

/// Blocks on lists at these keys, or replies with null if blocking is not allowed.
fn wait_or_null(cx: &mut Context<'_>, keys: Range<usize>, until_ms: Option<i64>) {
    if cx.may_block {
        cx.block = Some(wait(keys, until_ms));
    } else {
        cx.reply.null_array();
    }
}
