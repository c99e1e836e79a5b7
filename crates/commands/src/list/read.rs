//! LLEN, LINDEX, LRANGE, LPOS: read a list.

use std::ops::ControlFlow;

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::collections::list::Side;
use kvick_store::{Collection, List};

use super::{integer_from, signed_count};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use crate::string::reply_string;

/// LLEN key
pub const LLEN: Command<Handler> = Command::new(
    Spec::new("llen", 2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO])])
        .doc(Group::List, "1.0.0", "O(1)", "Returns the number of elements in a list.")
        .args(&[Arg::key("key")]),
    llen,
);

fn llen(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let len = cx.db.read::<List>(key)?.map_or(0, Collection::len);
    cx.reply.int(len as i64);
    Ok(())
}

/// LINDEX key index
pub const LINDEX: Command<Handler> = Command::new(
    Spec::new("lindex", 3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::List,
            "1.0.0",
            "O(N), N being the distance from the nearer end in blocks, and within a block in elements.",
            "Returns the element at an index.",
        )
        .args(&[Arg::key("key"), Arg::integer("index")]),
    lindex,
);

fn lindex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let Some(list) = cx.db.read::<List>(key)? else {
        cx.reply.null();
        return Ok(());
    };
    let index = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    if list.get(index, |element| reply_string(&mut cx.reply, element)).is_none() {
        cx.reply.null();
    }
    Ok(())
}

/// LRANGE key start stop
pub const LRANGE: Command<Handler> = Command::new(
    Spec::new("lrange", 4)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::List,
            "1.0.0",
            "O(S+N), S being the distance of the range from the nearer end and N the number of elements in it.",
            "Returns the elements in a range of indices.",
        )
        .args(&[Arg::key("key"), Arg::integer("start"), Arg::integer("stop")]),
    lrange,
);

fn lrange(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let start = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    let stop = parse_i64(&args[3]).ok_or(Error::NOT_INTEGER)?;
    let key = cx.key(args, 1);
    let Some(list) = cx.db.read::<List>(key)? else {
        cx.reply.array(0);
        return Ok(());
    };
    let range = list.range(start, stop);
    cx.reply.array(range.len());
    list.visit(range, Side::Head, |element| reply_string(&mut cx.reply, element));
    Ok(())
}

/// LPOS key element [RANK rank] [COUNT num-matches] [MAXLEN len]
pub const LPOS: Command<Handler> = Command::new(
    Spec::new("lpos", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::LIST])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::List,
            "6.0.6",
            "O(N), N being the number of elements looked at: those before the last match that counts, MAXLEN at most.",
            "Returns the indices of elements with a value.",
        )
        .args(&[
            Arg::key("key"),
            Arg::string("element"),
            Arg::integer("rank").token("RANK").optional(),
            Arg::integer("num-matches").token("COUNT").optional(),
            Arg::integer("len").token("MAXLEN").optional(),
        ]),
    lpos,
);

/// The options of LPOS.
struct Search {
    from: Side,
    /// Number of matches to skip, from that side.
    skip: usize,
    /// Maximum number of matches; `None` without COUNT, when the reply is not an array.
    count: Option<usize>,
    /// Maximum number of elements to examine.
    most: usize,
}

impl Search {
    fn parse<'a>(mut options: impl Iterator<Item = &'a [u8]>) -> Result<Search, Error> {
        // Zero means no limit.
        let limit = |number: i64| if number == 0 { usize::MAX } else { number as usize };
        let mut search = Search { from: Side::Head, skip: 0, count: None, most: usize::MAX };
        while let Some(option) = options.next() {
            let word = options.next().ok_or(Error::SYNTAX)?;
            if option.eq_ignore_ascii_case(b"rank") {
                let rank = signed_count(word)?;
                if rank == 0 {
                    return Err(Error::text(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                         negative to start from the end of the list",
                    ));
                }
                search.from = if rank < 0 { Side::Tail } else { Side::Head };
                search.skip = rank.unsigned_abs() as usize - 1;
            } else if option.eq_ignore_ascii_case(b"count") {
                search.count = Some(limit(integer_from(0, word, "ERR COUNT can't be negative")?));
            } else if option.eq_ignore_ascii_case(b"maxlen") {
                search.most = limit(integer_from(0, word, "ERR MAXLEN can't be negative")?);
            } else {
                return Err(Error::SYNTAX);
            }
        }
        Ok(search)
    }
}

fn lpos(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let search = Search::parse(args.iter().skip(3))?;
    let key = cx.key(args, 1);
    let Some(list) = cx.db.read::<List>(key)? else {
        match search.count {
            Some(_) => cx.reply.array(0),
            None => cx.reply.null(),
        }
        return Ok(());
    };
    let mark = search.count.map(|_| cx.reply.deferred());
    let (mut skip, mut replied) = (search.skip, 0);
    list.find(&args[2], search.from, search.most, |index| {
        if skip > 0 {
            skip -= 1;
            return ControlFlow::Continue(());
        }
        cx.reply.int(index as i64);
        replied += 1;
        if replied < search.count.unwrap_or(1) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    match mark {
        Some(mark) => cx.reply.set_array_len(mark, replied),
        None if replied == 0 => cx.reply.null(),
        None => {}
    }
    Ok(())
}
