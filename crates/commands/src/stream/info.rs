//! XINFO: information about a stream, its groups and their consumers.

use kvick_store::Stream;
use kvick_store::collections::stream::{Consumer, Group, Id};

use super::{READ, words, write};
use crate::context::{Args, Context, Error, Handler, Reply};
use crate::help;
use crate::spec::{Arg, Categories, Command, Flags, Group as DocGroup, KeySpec, Spec};

/// XINFO subcommand \[argument ...]
pub const XINFO: Command<Handler> = Command::container(
    Spec::new("xinfo", -2).doc(
        DocGroup::Stream,
        "5.0.0",
        "Depends on subcommand.",
        "Tells about streams, their consumer groups and consumers.",
    ),
    &[CONSUMERS, GROUPS, HELP, STREAM],
);

/// The common parts of the subcommands about a key.
const fn about_key(name: &'static str, arity: i16, summary: &'static str) -> Spec {
    const KEY: &[KeySpec] = &[KeySpec::at(2, READ)];
    Spec::new(name, arity).flags(&[Flags::READONLY]).acl(&[Categories::STREAM]).keys(KEY).doc(
        DocGroup::Stream,
        "5.0.0",
        "O(1)",
        summary,
    )
}

/// XINFO CONSUMERS key group
const CONSUMERS: Command<Handler> = Command::new(
    about_key("consumers", 4, "Tells of the consumers of a consumer group.")
        .args(&[Arg::key("key"), Arg::string("group")])
        .history(&[("7.2.0", "Added `inactive`, and `idle` came to mean how long a consumer asked for nothing.")])
        .tips(&["nondeterministic_output"]),
    consumers,
);

fn consumers(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, now_ms) = (cx.key(args, 2), cx.db.now_ms());
    let stream = cx.db.read::<Stream>(key)?.ok_or(Error::NO_KEY)?;
    let group = stream.groups().get(&args[3]).ok_or_else(|| words::no_such_group(key.bytes, &args[3]))?;
    let reply = &mut cx.reply;
    reply.array(group.consumers().len());
    for consumer in group.consumers() {
        reply.map(4);
        write::name(reply, "name");
        reply.bulk(consumer.name());
        write::name(reply, "pending");
        reply.uint(consumer.pending_len() as u64);
        write::name(reply, "idle");
        reply.int(now_ms.saturating_sub(consumer.seen_ms()).max(0));
        write::name(reply, "inactive");
        let active_ms = consumer.active_ms;
        reply.int(if active_ms == -1 { -1 } else { now_ms.saturating_sub(active_ms) });
    }
    Ok(())
}

/// XINFO GROUPS key
const GROUPS: Command<Handler> = Command::new(
    about_key("groups", 3, "Tells of the consumer groups of a stream.")
        .args(&[Arg::key("key")])
        .history(&[("7.0.0", "Added `entries-read` and `lag`.")]),
    groups,
);

fn groups(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 2);
    let stream = cx.db.read::<Stream>(key)?.ok_or(Error::NO_KEY)?;
    let reply = &mut cx.reply;
    reply.array(stream.groups().len());
    for group in stream.groups().iter() {
        reply.map(6);
        write::name(reply, "name");
        reply.bulk(group.name());
        write::name(reply, "consumers");
        reply.uint(group.consumers().len() as u64);
        write::name(reply, "pending");
        reply.uint(group.pending().len() as u64);
        progress(reply, stream, group);
    }
    Ok(())
}

/// Replies with the progress of a group: three pairs.
fn progress(reply: &mut Reply<'_>, stream: &Stream, group: &Group) {
    write::name(reply, "last-delivered-id");
    write::id(reply, group.last_id);
    write::name(reply, "entries-read");
    write::known(reply, group.entries_read.map(|read| read as i64));
    write::name(reply, "lag");
    write::known(reply, stream.log().lag(group));
}

/// XINFO STREAM key \[FULL \[COUNT count]]
const STREAM: Command<Handler> = Command::new(
    about_key("stream", -3, "Tells about a stream.")
        .args(&[
            Arg::key("key"),
            Arg::block("full-block", &[Arg::word("full", "FULL"), Arg::integer("count").token("COUNT").optional()])
                .optional(),
        ])
        .history(&[
            ("6.0.0", "Added `FULL`."),
            (
                "7.0.0",
                "Added `max-deleted-entry-id`, `entries-added`, `recorded-first-entry-id`, `entries-read` and `lag`.",
            ),
            ("7.2.0", "Added `active-time`, and `seen-time` came to mean when a consumer last asked for something."),
        ]),
    stream,
);

/// The maximum number of entries and groups for FULL, 0 for all; `None` without FULL.
fn full_count(args: Args<'_>) -> Result<Option<usize>, Error> {
    const DEFAULT: usize = 10;
    let wrong = || words::bad_subcommand(args, "XINFO");
    match (args.get(3), args.get(4), args.get(5), args.len()) {
        (None, ..) => Ok(None),
        (Some(full), None, None, 4) if words::is(full, "FULL") => Ok(Some(DEFAULT)),
        (Some(full), Some(word), Some(count), 6) if words::is(full, "FULL") && words::is(word, "COUNT") => {
            let count = words::integer(count)?;
            Ok(Some(usize::try_from(count).unwrap_or(DEFAULT)))
        }
        _ => Err(wrong()),
    }
}

fn stream(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 2);
    let stream = cx.db.read::<Stream>(key)?.ok_or(Error::NO_KEY)?;
    let full = full_count(args)?;
    let (reply, log) = (&mut cx.reply, stream.log());
    reply.map(if full.is_some() { 9 } else { 10 });
    write::name(reply, "length");
    reply.uint(log.len());
    write::name(reply, "radix-tree-keys");
    reply.uint(log.blocks_len() as u64);
    write::name(reply, "radix-tree-nodes");
    reply.uint(stream.radix_nodes() as u64);
    write::name(reply, "last-generated-id");
    write::id(reply, log.last_id());
    write::name(reply, "max-deleted-entry-id");
    write::id(reply, log.history().max_deleted_id);
    write::name(reply, "entries-added");
    reply.int(log.history().entries_added as i64);
    write::name(reply, "recorded-first-entry-id");
    write::id(reply, log.history().first_id);
    match full {
        None => ends(reply, stream),
        Some(count) => everything(reply, stream, count),
    }
    Ok(())
}

/// Replies with the number of groups, the first and the last entry: three pairs.
fn ends(reply: &mut Reply<'_>, stream: &Stream) {
    write::name(reply, "groups");
    reply.uint(stream.groups().len() as u64);
    let log = stream.log();
    let first = log.range(Id::MIN, Id::MAX).next();
    let last = log.range_back(Id::MIN, Id::MAX).next();
    for (name, entry) in [("first-entry", first), ("last-entry", last)] {
        write::name(reply, name);
        match entry {
            Some(entry) => write::entry(reply, &entry),
            None => reply.null(),
        }
    }
}

/// Replies with entries and groups: two pairs.
fn everything(reply: &mut Reply<'_>, stream: &Stream, count: usize) {
    let len_max = if count == 0 { usize::MAX } else { count };
    write::name(reply, "entries");
    write::entries(reply, stream.log().range(Id::MIN, Id::MAX), count);
    write::name(reply, "groups");
    reply.array(stream.groups().len());
    for group in stream.groups().iter() {
        reply.map(7);
        write::name(reply, "name");
        reply.bulk(group.name());
        progress(reply, stream, group);
        write::name(reply, "pel-count");
        reply.uint(group.pending().len() as u64);
        write::name(reply, "pending");
        reply.array(group.pending().len().min(len_max));
        for (id, pending) in group.pending().iter().take(len_max) {
            reply.array(4);
            write::id(reply, id);
            reply.bulk(group.consumer(pending.consumer()).name());
            reply.int(pending.delivered_ms);
            reply.int(pending.deliveries as i64);
        }
        write::name(reply, "consumers");
        reply.array(group.consumers().len());
        group.consumers().for_each(|consumer| of_consumer(reply, group, consumer, len_max));
    }
}

fn of_consumer(reply: &mut Reply<'_>, group: &Group, consumer: &Consumer, len_max: usize) {
    reply.map(5);
    write::name(reply, "name");
    reply.bulk(consumer.name());
    write::name(reply, "seen-time");
    reply.int(consumer.seen_ms());
    write::name(reply, "active-time");
    reply.int(consumer.active_ms);
    write::name(reply, "pel-count");
    reply.uint(consumer.pending_len() as u64);
    write::name(reply, "pending");
    reply.array(consumer.pending_len().min(len_max));
    for (id, pending) in group.pending_of(consumer, Id::MIN).take(len_max) {
        reply.array(3);
        write::id(reply, id);
        reply.int(pending.delivered_ms);
        reply.int(pending.deliveries as i64);
    }
}

/// XINFO HELP
const HELP: Command<Handler> = Command::new(
    Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).acl(&[Categories::STREAM]).doc(
        DocGroup::Stream,
        "5.0.0",
        "O(1)",
        "Lists the subcommands.",
    ),
    xinfo_help,
);

fn xinfo_help(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Error> {
    help::reply(
        &mut cx.reply,
        "xinfo",
        &[
            "CONSUMERS <key> <groupname>",
            "    Tell of the consumers of a group.",
            "GROUPS <key>",
            "    Tell of the groups of a stream.",
            "STREAM <key> [FULL [COUNT <count>]",
            "    Tell about a stream.",
        ],
    );
    Ok(())
}
