//! XLEN, XRANGE and XREVRANGE: entries by ID.

use kvick_store::Stream;

use super::{READ_KEY, words, write};
use crate::context::{Args, Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// XLEN key
pub const XLEN: Command<Handler> = Command::new(
    Spec::new("xlen", 2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO])])
        .doc(Group::Stream, "5.0.0", "O(1)", "Tells how many entries a stream has.")
        .args(&[Arg::key("key")]),
    xlen,
);

fn xlen(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let len = cx.db.read::<Stream>(key)?.map_or(0, |stream| stream.log().len());
    cx.reply.uint(len);
    Ok(())
}

const COST: &str = "O(N), N being the number of entries told: O(1) with a fixed COUNT.";
const HISTORY: &[(&str, &str)] = &[("6.2.0", "Added ranges that leave out an end.")];
const COUNT: Arg = Arg::integer("count").token("COUNT").optional();

/// The common parts of XRANGE and XREVRANGE.
const fn range(name: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, -4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::STREAM])
        .keys(READ_KEY)
        .doc(Group::Stream, "5.0.0", COST, summary)
        .history(HISTORY)
}

/// XRANGE key start end \[COUNT count]
pub const XRANGE: Command<Handler> = Command::new(
    range("xrange", "Tells a stream's entries within a range of IDs.").args(&[
        Arg::key("key"),
        Arg::string("start"),
        Arg::string("end"),
        COUNT,
    ]),
    |cx, args| reply_range(cx, args, false),
);

/// XREVRANGE key end start \[COUNT count]
pub const XREVRANGE: Command<Handler> = Command::new(
    range("xrevrange", "Tells a stream's entries within a range of IDs, the last one first.").args(&[
        Arg::key("key"),
        Arg::string("end"),
        Arg::string("start"),
        COUNT,
    ]),
    |cx, args| reply_range(cx, args, true),
);

fn reply_range(cx: &mut Context<'_>, args: Args<'_>, reverse: bool) -> Result<(), Error> {
    let (start_at, end_at) = if reverse { (3, 2) } else { (2, 3) };
    let start = words::range_start(&args[start_at])?;
    let end = words::range_end(&args[end_at])?;
    let mut count = None;
    let mut at = 4;
    while let Some(word) = args.get(at) {
        match args.get(at + 1) {
            Some(number) if words::is(word, "COUNT") => count = Some(words::integer(number)?.max(0) as usize),
            _ => return Err(Error::SYNTAX),
        }
        at += 2;
    }
    let key = cx.key(args, 1);
    let Some(stream) = cx.db.read::<Stream>(key)? else {
        cx.reply.array(0);
        return Ok(());
    };
    let (log, reply) = (stream.log(), &mut cx.reply);
    match count {
        Some(0) => reply.null_array(),
        count if reverse => write::entries(reply, log.range_back(start, end), count.unwrap_or(0)),
        count => write::entries(reply, log.range(start, end), count.unwrap_or(0)),
    }
    Ok(())
}
