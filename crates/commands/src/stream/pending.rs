//! XACK and XPENDING: entries that were delivered but not acknowledged.

use kvick_store::Stream;
use kvick_store::collections::stream::{Group, Id};

use super::{READ_KEY, UPDATE, words, write};
use crate::context::{Args, Context, Error, Handler, Reply};
use crate::spec::{Arg, Categories, Command, Flags, Group as DocGroup, KeySpec, Spec};

/// XACK key group id \[id ...]
pub const XACK: Command<Handler> = Command::new(
    Spec::new("xack", -4)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(1, UPDATE)])
        .doc(
            DocGroup::Stream,
            "5.0.0",
            "O(1) for each ID.",
            "Acknowledges entries that a consumer group got, and tells how many were pending.",
        )
        .args(&[Arg::key("key"), Arg::string("group"), Arg::string("id").multiple()]),
    xack,
);

fn xack(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let group = cx.db.read::<Stream>(key)?.and_then(|stream| stream.groups().get(&args[2]));
    if group.is_none() {
        cx.reply.int(0);
        return Ok(());
    }
    let ids = words::ids(args, 3)?;
    let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
    let mut acknowledged = 0;
    if let Some(group) = stream.and_then(|stream| stream.groups_mut().1.get_mut(&args[2])) {
        acknowledged = ids.iter().filter(|id| group.forget(**id)).count() as u64;
    }
    effects.forget_noted_changes();
    effects.changed(acknowledged);
    cx.reply.uint(acknowledged);
    Ok(())
}

/// XPENDING key group \[\[IDLE min-idle-time] start end count \[consumer]]
pub const XPENDING: Command<Handler> = Command::new(
    Spec::new("xpending", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::STREAM])
        .keys(READ_KEY)
        .doc(
            DocGroup::Stream,
            "5.0.0",
            "O(N), N being the number of entries told: O(1) with a fixed count. O(M), M being the number of entries \
             looked at, with IDLE. Without a range O(N), N being the number of consumers.",
            "Tells of a consumer group's pending entries.",
        )
        .args(&[
            Arg::key("key"),
            Arg::string("group"),
            Arg::block(
                "filters",
                &[
                    Arg::integer("min-idle-time").token("IDLE").optional().since("6.2.0"),
                    Arg::string("start"),
                    Arg::string("end"),
                    Arg::integer("count"),
                    Arg::string("consumer").optional(),
                ],
            )
            .optional(),
        ])
        .history(&[("6.2.0", "Added `IDLE` and ranges that leave out an end.")])
        .tips(&["nondeterministic_output"]),
    xpending,
);

/// A filter for pending entries.
struct Filter<'a> {
    idle_ms_min: i64,
    start: Id,
    end: Id,
    count: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> Filter<'a> {
    /// Parses the filter; `None` for the summary form.
    fn parse(args: Args<'a>) -> Result<Option<Filter<'a>>, Error> {
        if args.len() == 3 {
            return Ok(None);
        }
        if !(6..=9).contains(&args.len()) {
            return Err(Error::SYNTAX);
        }
        let (mut idle_ms_min, mut at) = (0, 3);
        if words::is(&args[3], "IDLE") {
            idle_ms_min = words::integer(&args[4])?;
            if args.len() < 8 {
                return Err(Error::SYNTAX);
            }
            at = 5;
        }
        let count = words::integer(&args[at + 2])?.max(0) as usize;
        let start = words::range_start(&args[at])?;
        let end = words::range_end(&args[at + 1])?;
        Ok(Some(Filter { idle_ms_min, start, end, count, consumer: args.get(at + 3) }))
    }
}

fn xpending(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let filter = Filter::parse(args)?;
    let (key, now_ms) = (cx.key(args, 1), cx.db.now_ms());
    let group = cx.db.read::<Stream>(key)?.and_then(|stream| stream.groups().get(&args[2]));
    let group = group.ok_or_else(|| words::no_group(key.bytes, &args[2], ""))?;
    match filter {
        None => sum_up(&mut cx.reply, group),
        Some(filter) => reply_pending(&mut cx.reply, group, &filter, now_ms),
    }
    Ok(())
}

/// Replies with the number of pending entries, the first and last ID, and the number per consumer.
fn sum_up(reply: &mut Reply<'_>, group: &Group) {
    let pending = group.pending();
    reply.array(4);
    reply.uint(pending.len() as u64);
    let (Some((first, _)), Some((last, _))) = (pending.first(), pending.last()) else {
        reply.null();
        reply.null();
        reply.null_array();
        return;
    };
    write::id(reply, first);
    write::id(reply, last);
    let mark = reply.deferred();
    let mut len = 0;
    for consumer in group.consumers().filter(|consumer| consumer.pending_len() > 0) {
        reply.array(2);
        reply.bulk(consumer.name());
        reply.bulk_int(consumer.pending_len() as i64);
        len += 1;
    }
    reply.set_array_len(mark, len);
}

fn reply_pending(reply: &mut Reply<'_>, group: &Group, filter: &Filter<'_>, now_ms: i64) {
    match filter.consumer.map(|name| group.find_consumer(name)) {
        None => reply_entries(reply, group, filter, now_ms, group.pending().iter_from(filter.start)),
        Some(Some(consumer)) => {
            let own = group.pending_of(group.consumer(consumer), filter.start);
            reply_entries(reply, group, filter, now_ms, own);
        }
        Some(None) => reply.array(0),
    }
}

fn reply_entries<'a>(
    reply: &mut Reply<'_>,
    group: &Group,
    filter: &Filter<'_>,
    now_ms: i64,
    pending: impl Iterator<Item = (Id, &'a kvick_store::collections::stream::Pending)>,
) {
    let idle_ms = |delivered_ms: i64| now_ms.saturating_sub(delivered_ms);
    let idle_enough = |delivered_ms| filter.idle_ms_min == 0 || idle_ms(delivered_ms) >= filter.idle_ms_min;
    let mark = reply.deferred();
    let mut len = 0;
    let within = pending.take_while(|(id, _)| *id <= filter.end);
    for (id, pending) in within.filter(|(_, pending)| idle_enough(pending.delivered_ms)).take(filter.count) {
        reply.array(4);
        write::id(reply, id);
        reply.bulk(group.consumer(pending.consumer()).name());
        reply.int(idle_ms(pending.delivered_ms).max(0));
        reply.int(pending.deliveries as i64);
        len += 1;
    }
    reply.set_array_len(mark, len);
}
