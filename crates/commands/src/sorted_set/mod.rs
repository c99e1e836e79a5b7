//! Sorted sets: members with scores, accessed by rank, by score and by member.
//!
//! - [`add`]: ZADD and ZINCRBY.
//! - [`remove`]: ZREM and the ZREMRANGE commands.
//! - [`pop`]: popping from either end, and the blocking variants.
//! - [`lookup`]: cardinality, scores, ranks, counts, ZSCAN.
//! - [`range`](mod@range): ZRANGE and its variants, and ZRANGESTORE.
//! - [`random`]: ZRANDMEMBER and its sampling algorithms.
//! - [`combine`]: union, intersection and difference of several sets.
//! - [`bounds`]: parsing of the bounds of ranges by score and by member.
//!
//! A command that leaves a sorted set empty removes the key ([`remove_if_empty`]). Commands that store a result use
//! [`store_result`].

use kvick_resp::format::parse_i64;
use kvick_resp::{Args, Reply, Version};
use kvick_store::{Collection, EventClass, Key, SortedSet, Str, Value};

use crate::context::{Context, Error, Handler};
use crate::spec::Command;

pub mod add;
pub mod bounds;
pub mod combine;
pub mod lookup;
pub mod pop;
pub mod random;
pub mod range;
pub mod remove;

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[
    add::ZADD,
    add::ZINCRBY,
    remove::ZREM,
    remove::ZREMRANGEBYRANK,
    remove::ZREMRANGEBYSCORE,
    remove::ZREMRANGEBYLEX,
    pop::ZPOPMIN,
    pop::ZPOPMAX,
    pop::ZMPOP,
    pop::BZPOPMIN,
    pop::BZPOPMAX,
    pop::BZMPOP,
    lookup::ZCARD,
    lookup::ZSCORE,
    lookup::ZMSCORE,
    lookup::ZRANK,
    lookup::ZREVRANK,
    lookup::ZCOUNT,
    lookup::ZLEXCOUNT,
    lookup::ZSCAN,
    range::ZRANGE,
    range::ZREVRANGE,
    range::ZRANGEBYSCORE,
    range::ZREVRANGEBYSCORE,
    range::ZRANGEBYLEX,
    range::ZREVRANGEBYLEX,
    range::ZRANGESTORE,
    random::ZRANDMEMBER,
    combine::ZUNION,
    combine::ZINTER,
    combine::ZDIFF,
    combine::ZUNIONSTORE,
    combine::ZINTERSTORE,
    combine::ZDIFFSTORE,
    combine::ZINTERCARD,
];

/// Replies with a member.
#[inline]
fn reply_member(reply: &mut Reply<'_>, member: Str<'_>) {
    match member {
        Str::Bytes(bytes) => reply.bulk(bytes),
        Str::Int(number) => reply.bulk_int(number),
    }
}

/// Starts a list of `len` members. With scores, it has twice as many elements in RESP2, and is a list of pairs in
/// RESP3.
fn reply_list(reply: &mut Reply<'_>, len: usize, with_scores: bool) {
    reply.array(if with_scores && reply.version() == Version::Resp2 { 2 * len } else { len });
}

/// Replies with an element of such a list.
#[inline]
fn reply_element(reply: &mut Reply<'_>, (member, score): (Str<'_>, f64), with_scores: bool) {
    if with_scores && reply.version() == Version::Resp3 {
        reply.array(2);
    }
    reply_member(reply, member);
    if with_scores {
        reply.double(score);
    }
}

/// Removes the key of a sorted set if its size, `len`, is zero.
#[inline]
fn remove_if_empty(cx: &mut Context<'_>, key: Key<'_>, len: usize) {
    if len == 0 {
        cx.db.remove(key, false);
        cx.db.effects().notify(EventClass::GENERIC, "del", key.bytes);
    }
}

/// Stores a result at a key, with event `event`, or deletes the key if the result is empty. Counts as `changes`
/// changes, or as one if a key is deleted. Returns the size of the result.
pub(crate) fn store_result(
    cx: &mut Context<'_>,
    key: Key<'_>,
    result: SortedSet,
    event: &'static str,
    changes: u64,
) -> usize {
    let len = result.len();
    if len > 0 {
        cx.db.put(key, Value::from(result), None);
        let effects = cx.db.effects();
        effects.notify(EventClass::SORTED_SET, event, key.bytes);
        effects.changed(changes);
    } else if cx.db.remove(key, cx.settings.lazy_server_del) {
        let effects = cx.db.effects();
        effects.notify(EventClass::GENERIC, "del", key.bytes);
        effects.changed(1);
    }
    len
}

/// Parses an integer argument.
fn integer(args: Args<'_>, index: usize) -> Result<i64, Error> {
    args.get(index).and_then(parse_i64).ok_or(Error::NOT_INTEGER)
}

/// The ranks between two indices, where negative indices count from the end; empty if there are none.
fn ranks_between(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let len = len as i64;
    let from_start = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
    let (start, stop) = (from_start(start).max(0), from_start(stop).min(len - 1));
    if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
}
