//! XCLAIM and XAUTOCLAIM: transfer pending entries to another consumer.

use kvick_store::collections::stream::{ConsumerId, Group, Id, Log};
use kvick_store::{Effects, Stream};

use super::words::{self, Ids};
use super::{DELETE, UPDATE, group, write};
use crate::context::{Args, Context, Error, Handler, Reply};
use crate::spec::{Arg, Categories, Command, Flags, Group as DocGroup, KeySpec, Spec};

/// XCLAIM key group consumer min-idle-time id \[id ...] \[IDLE ms] \[TIME unix-time-milliseconds] \[RETRYCOUNT count]
/// \[FORCE] \[JUSTID] \[LASTID lastid]
pub const XCLAIM: Command<Handler> = Command::new(
    Spec::new("xclaim", -6)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(1, UPDATE)])
        .doc(
            DocGroup::Stream,
            "5.0.0",
            "O(log N), N being the number of the group's pending entries.",
            "Gives pending entries of a consumer group to a consumer.",
        )
        .args(&[
            Arg::key("key"),
            Arg::string("group"),
            Arg::string("consumer"),
            Arg::string("min-idle-time"),
            Arg::string("id").multiple(),
            Arg::integer("ms").token("IDLE").optional(),
            Arg::unix_time("unix-time-milliseconds").token("TIME").optional(),
            Arg::integer("count").token("RETRYCOUNT").optional(),
            Arg::word("force", "FORCE").optional(),
            Arg::word("justid", "JUSTID").optional(),
            Arg::string("lastid").token("LASTID").optional(),
        ])
        .tips(&["nondeterministic_output"]),
    xclaim,
);

/// XAUTOCLAIM key group consumer min-idle-time start \[COUNT count] \[JUSTID]
pub const XAUTOCLAIM: Command<Handler> = Command::new(
    Spec::new("xautoclaim", -6)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(1, DELETE)])
        .doc(
            DocGroup::Stream,
            "6.2.0",
            "O(1) with a small COUNT.",
            "Gives those pending entries of a consumer group that are idle to a consumer.",
        )
        .args(&[
            Arg::key("key"),
            Arg::string("group"),
            Arg::string("consumer"),
            Arg::string("min-idle-time"),
            Arg::string("start"),
            Arg::integer("count").token("COUNT").optional(),
            Arg::word("justid", "JUSTID").optional(),
        ])
        .history(&[("7.0.0", "Tells also of entries that are gone and are no longer pending.")])
        .tips(&["nondeterministic_output"]),
    xautoclaim,
);

/// The IDs and options of XCLAIM.
struct Claim {
    idle_ms_min: i64,
    ids: Ids,
    delivered_ms: i64,
    deliveries: Option<u64>,
    force: bool,
    just_ids: bool,
    last_id: Id,
}

impl Claim {
    fn parse(args: Args<'_>, now_ms: i64) -> Result<Claim, Error> {
        let idle_ms_min = words::integer_or(&args[4], "ERR Invalid min-idle-time argument for XCLAIM")?.max(0);
        let ids: Ids = args.slice_from(5).iter().map_while(|text| Id::parse(text, 0)).collect();
        let (mut delivered_ms, mut deliveries) = (-1, -1);
        let (mut force, mut just_ids, mut last_id) = (false, false, Id::MIN);
        let mut at = 5 + ids.len();
        while let Some(word) = args.get(at) {
            at += 1;
            if words::is(word, "FORCE") {
                force = true;
                continue;
            }
            if words::is(word, "JUSTID") {
                just_ids = true;
                continue;
            }
            match args.get(at) {
                Some(next) if words::is(word, "IDLE") => {
                    let idle_ms = words::integer_or(next, "ERR Invalid IDLE option argument for XCLAIM")?;
                    delivered_ms = now_ms.wrapping_sub(idle_ms);
                }
                Some(next) if words::is(word, "TIME") => {
                    delivered_ms = words::integer_or(next, "ERR Invalid TIME option argument for XCLAIM")?;
                }
                Some(next) if words::is(word, "RETRYCOUNT") => {
                    deliveries = words::integer_or(next, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                }
                Some(next) if words::is(word, "LASTID") => last_id = words::id(next, 0)?,
                _ => {
                    return Err(Error::quoting(&[b"ERR Unrecognized XCLAIM option '", word, b"'"]));
                }
            }
            at += 1;
        }
        // An invalid time is replaced by the current time, since the clocks of clients differ.
        let delivered_ms = if (0..=now_ms).contains(&delivered_ms) { delivered_ms } else { now_ms };
        let deliveries = u64::try_from(deliveries).ok();
        Ok(Claim { idle_ms_min, ids, delivered_ms, deliveries, force, just_ids, last_id })
    }
}

/// A consumer that claims entries.
struct Claimer<'a> {
    log: &'a Log,
    group: &'a mut Group,
    effects: &'a mut Effects,
    place: write::Place<'a>,
    consumer: ConsumerId,
    now_ms: i64,
}

impl<'a> Claimer<'a> {
    /// The consumer of this name, created if necessary. Its seen-time is updated.
    fn new(parts: Parts<'a>, place: write::Place<'a>, name: &[u8], now_ms: i64) -> Claimer<'a> {
        let Parts { log, group, effects } = parts;
        let consumer = match group.find_consumer(name) {
            Some(consumer) => consumer,
            None => group::create_consumer(group, name, place.key, effects, now_ms),
        };
        group.consumer(consumer).see(now_ms);
        Claimer { log, group, effects, place, consumer, now_ms }
    }

    /// Drops a pending entry that no longer exists in the stream; returns false if it was not pending.
    fn forget(&mut self, id: Id, text: &[u8]) -> bool {
        let Some(pending) = self.group.pending().get(id) else { return false };
        // Replicas detect the missing entry in the same way.
        self.place.propagate_pending(self.effects, self.group, text, pending);
        self.effects.changed(1);
        self.group.forget(id)
    }

    /// Whether a pending entry has been idle for at least this long.
    fn is_idle(&self, id: Id, idle_ms_min: i64) -> bool {
        let delivered_ms = self.group.pending().get(id).map_or(self.now_ms, |pending| pending.delivered_ms);
        idle_ms_min == 0 || self.now_ms.saturating_sub(delivered_ms) >= idle_ms_min
    }

    /// Claims a pending entry. Sets its delivery count if given; otherwise increments it unless `just_ids` is set.
    fn take(&mut self, id: Id, text: &[u8], delivered_ms: i64, deliveries: Option<u64>, just_ids: bool) {
        self.group.assign(id, self.consumer);
        self.group.set_active(self.consumer, self.now_ms);
        if let Some(pending) = self.group.pending_mut(id) {
            pending.delivered_ms = delivered_ms;
            let more = pending.deliveries.wrapping_add(u64::from(!just_ids));
            pending.deliveries = deliveries.unwrap_or(more);
            let pending = *pending;
            self.place.propagate_pending(self.effects, self.group, text, &pending);
        }
        self.effects.changed(1);
    }
}

/// Replies with a claimed entry.
fn reply_entry(reply: &mut Reply<'_>, log: &Log, id: Id, just_ids: bool) {
    if just_ids || !write::entry_of(reply, log, id) {
        write::id(reply, id);
    }
}

/// A group of a stream, mutable, with what its changes need.
struct Parts<'a> {
    log: &'a Log,
    group: &'a mut Group,
    effects: &'a mut Effects,
}

/// The group of a stream, mutable.
fn group_mut<'a>(db: &'a mut kvick_store::Db<'_>, key: kvick_store::Key<'_>, name: &[u8]) -> Result<Parts<'a>, Error> {
    let (stream, effects) = db.write_with_effects::<Stream>(key)?;
    let found = stream.map(Stream::groups_mut).and_then(|(log, groups)| Some((log, groups.get_mut(name)?)));
    let (log, group) = found.ok_or_else(|| words::no_group(key.bytes, name, ""))?;
    Ok(Parts { log, group, effects })
}

/// Checks that the group exists.
fn check_group(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let group = cx.db.read::<Stream>(key)?.and_then(|stream| stream.groups().get(&args[2]));
    group.map(|_| ()).ok_or_else(|| words::no_group(key.bytes, &args[2], ""))
}

fn xclaim(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    check_group(cx, args)?;
    let (key, now_ms) = (cx.key(args, 1), cx.db.now_ms());
    let claim = Claim::parse(args, now_ms)?;
    let parts = group_mut(&mut cx.db, key, &args[2])?;
    let mut last_id_changed = claim.last_id > parts.group.last_id;
    parts.group.last_id = parts.group.last_id.max(claim.last_id);
    let place = write::Place { key: key.bytes, group: &args[2] };
    let mut claimer = Claimer::new(parts, place, &args[3], now_ms);
    let mark = cx.reply.deferred();
    let mut len = 0;
    for (at, id) in claim.ids.iter().copied().enumerate() {
        let text = &args[5 + at];
        if !claimer.log.contains(id) {
            last_id_changed &= !claimer.forget(id, text);
            continue;
        }
        let created = claim.force && claimer.group.add_pending(id, now_ms, 1);
        let is_pending = created || claimer.group.pending().get(id).is_some();
        if is_pending && (created || claimer.is_idle(id, claim.idle_ms_min)) {
            claimer.take(id, text, claim.delivered_ms, claim.deliveries, claim.just_ids);
            reply_entry(&mut cx.reply, claimer.log, id, claim.just_ids);
            last_id_changed = false;
            len += 1;
        }
    }
    if last_id_changed {
        place.propagate_last_id(claimer.effects, claimer.group);
        claimer.effects.changed(1);
    }
    cx.reply.set_array_len(mark, len);
    let effects = cx.db.effects();
    effects.forget_noted_changes();
    // The individual claims have been propagated.
    effects.propagate_nothing();
    Ok(())
}

/// The options of XAUTOCLAIM.
struct AutoclaimOptions {
    idle_ms_min: i64,
    start: Id,
    count: usize,
    just_ids: bool,
}

impl AutoclaimOptions {
    fn parse(args: Args<'_>) -> Result<AutoclaimOptions, Error> {
        const COUNT_MAX: i64 = i64::MAX / 16;
        let idle_ms_min = words::integer_or(&args[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM")?.max(0);
        let start = words::range_start(&args[5])?;
        let (mut count, mut just_ids, mut at) = (100, false, 6);
        while let Some(word) = args.get(at) {
            match args.get(at + 1) {
                Some(number) if words::is(word, "COUNT") => {
                    const WRONG: &str = "ERR COUNT must be > 0";
                    count = words::integer_or(number, WRONG)?;
                    if !(1..=COUNT_MAX).contains(&count) {
                        return Err(Error::text(WRONG));
                    }
                    at += 1;
                }
                _ if words::is(word, "JUSTID") => just_ids = true,
                _ => return Err(Error::SYNTAX),
            }
            at += 1;
        }
        Ok(AutoclaimOptions { idle_ms_min, start, count: count as usize, just_ids })
    }
}

fn xautoclaim(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const ATTEMPTS_PER_ENTRY: usize = 10;
    // The lookup comes first, because it counts as a miss and fires an event; its errors come after those of options.
    let group = check_group(cx, args);
    let options = AutoclaimOptions::parse(args)?;
    group?;
    let (key, now_ms) = (cx.key(args, 1), cx.db.now_ms());
    let parts = group_mut(&mut cx.db, key, &args[2])?;
    let place = write::Place { key: key.bytes, group: &args[2] };
    let mut claimer = Claimer::new(parts, place, &args[3], now_ms);
    let (mut taken, mut gone) = (Ids::new(), Ids::new());
    let mut attempts = options.count.saturating_mul(ATTEMPTS_PER_ENTRY);
    let mut next = claimer.group.pending().iter_from(options.start).next().map(|(id, _)| id);
    while let Some(id) = next.filter(|_| attempts > 0 && taken.len() + gone.len() < options.count) {
        attempts -= 1;
        if !claimer.log.contains(id) {
            claimer.forget(id, id.text(&mut [0; 41]));
            gone.push(id);
        } else if claimer.is_idle(id, options.idle_ms_min) {
            claimer.take(id, id.text(&mut [0; 41]), now_ms, None, options.just_ids);
            taken.push(id);
        }
        next = id.next().and_then(|from| claimer.group.pending().iter_from(from).next()).map(|(id, _)| id);
    }
    let reply = &mut cx.reply;
    reply.array(3);
    write::id(reply, next.unwrap_or(Id::MIN));
    reply.array(taken.len());
    taken.iter().for_each(|id| reply_entry(reply, claimer.log, *id, options.just_ids));
    reply.array(gone.len());
    gone.iter().for_each(|id| write::id(reply, *id));
    let effects = cx.db.effects();
    effects.forget_noted_changes();
    effects.propagate_nothing();
    Ok(())
}
