//! XREAD and XREADGROUP: new entries of several streams, optionally blocking until there are some.
//!
//! All streams are examined first: what to return for each ([`Delivery`]), and whether there is anything. Output and
//! changes follow only then, so an error in one stream leaves the others unchanged. A call that finds nothing costs one
//! lookup per stream, makes no allocation, and changes nothing.

use kvick_resp::OwnedArgs;
use kvick_resp::Version;
use kvick_store::collections::stream::{ConsumerId, Group, Id, Log};
use kvick_store::{Effects, Kind, Stream};
use smallvec::SmallVec;

use super::{READ, words, write};
use crate::context::{Args, Block, Context, Error, Handler, Reply};
use crate::spec::{
    Arg, Begin, Categories, Command, Find, Flags, Group as DocGroup, KeyFlags, KeyPosition, KeyPositions, KeySpec, Spec,
};
use crate::timeout;

const STREAMS: Arg =
    Arg::block("streams", &[Arg::key("key").multiple(), Arg::string("id").multiple()]).token("STREAMS");
const COUNT: Arg = Arg::integer("count").token("COUNT").optional();
const BLOCK: Arg = Arg::integer("milliseconds").token("BLOCK").optional();

/// The keys after STREAMS: the first half of the remaining arguments.
const fn keys_behind_streams(from: i32) -> KeySpec {
    KeySpec::new(Begin::Keyword("STREAMS", from), Find::Range { last: -1, step: 1, limit: 2 }, READ)
}

/// XREAD \[COUNT count] \[BLOCK milliseconds] STREAMS key \[key ...] id \[id ...]
pub const XREAD: Command<Handler> = Command::new(
    Spec::new("xread", -4)
        .flags(&[Flags::BLOCKING, Flags::READONLY])
        .acl(&[Categories::STREAM])
        .keys(&[keys_behind_streams(1)])
        .find_keys(find_keys)
        .doc(DocGroup::Stream, "5.0.0", "", "Tells entries of streams beyond given IDs, and can wait for some to come.")
        .args(&[COUNT, BLOCK, STREAMS]),
    xread,
);

/// XREADGROUP GROUP group consumer \[COUNT count] \[BLOCK milliseconds] \[NOACK] STREAMS key \[key ...] id \[id ...]
pub const XREADGROUP: Command<Handler> = Command::new(
    Spec::new("xreadgroup", -7)
        .flags(&[Flags::BLOCKING, Flags::WRITE])
        .acl(&[Categories::STREAM])
        .keys(&[keys_behind_streams(4)])
        .find_keys(find_keys)
        .doc(
            DocGroup::Stream,
            "5.0.0",
            "O(M) for each stream, M being the number of entries told: O(1) with a fixed COUNT. Each XADD to a stream \
             that N clients wait for pays O(N).",
            "Tells a consumer of a group entries that nobody in it got yet, or those that it got and has not \
             acknowledged. Can wait for some to come.",
        )
        .args(&[
            Arg::block("group-block", &[Arg::string("group"), Arg::string("consumer")]).token("GROUP"),
            COUNT,
            BLOCK,
            Arg::word("noack", "NOACK").optional(),
            STREAMS,
        ]),
    xreadgroup,
);

/// The keys, parsed option by option, since STREAMS may also be the name of a group, a consumer or a key. If an option
/// is unknown or the number of arguments is odd, the command replies with an error, but its user must still have rights
/// for the keys that Valkey sees.
fn find_keys(args: Args<'_>) -> Option<KeyPositions> {
    let mut at = 1;
    loop {
        let word = args.get(at)?;
        if words::is(word, "BLOCK") || words::is(word, "COUNT") {
            at += 2;
        } else if words::is(word, "GROUP") {
            at += 3;
        } else if words::is(word, "STREAMS") {
            let len = (args.len() - at - 1) / 2;
            let flags = KeyFlags::RO.union(KeyFlags::ACCESS);
            let keys = at + 1..at + 1 + len;
            return (len > 0).then(|| keys.map(|index| KeyPosition { index, flags }).collect());
        } else {
            at += 1;
        }
    }
}

/// The consumer that reads, and its group.
#[derive(Clone, Copy, Default)]
struct Member<'a> {
    group: &'a [u8],
    consumer: &'a [u8],
}

/// The parsed arguments, without the IDs.
struct Request<'a> {
    /// Maximum number of entries per stream; 0 means no limit.
    count: usize,
    /// Whether to block, and until when.
    wait: Option<Option<i64>>,
    member: Option<Member<'a>>,
    noack: bool,
    /// The argument index of the first key, and the number of keys.
    keys_at: usize,
    len: usize,
}

impl<'a> Request<'a> {
    fn parse(args: Args<'a>, with_group: bool, now_ms: i64) -> Result<Request<'a>, Error> {
        let mut request = Request { count: 0, wait: None, member: None, noack: false, keys_at: 0, len: 0 };
        let mut at = 1;
        while let Some(word) = args.get(at) {
            let (next, third) = (args.get(at + 1), args.get(at + 2));
            match (next, third) {
                (Some(next), _) if words::is(word, "BLOCK") => {
                    request.wait = Some(timeout::until_ms(next, false, now_ms)?);
                    at += 1;
                }
                (Some(next), _) if words::is(word, "COUNT") => {
                    request.count = words::integer(next)?.max(0) as usize;
                    at += 1;
                }
                (Some(_), _) if words::is(word, "STREAMS") => {
                    request.keys_at = at + 1;
                    break;
                }
                (Some(group), Some(consumer)) if words::is(word, "GROUP") => {
                    if !with_group {
                        return Err(only_with_group("GROUP"));
                    }
                    request.member = Some(Member { group, consumer });
                    at += 2;
                }
                _ if words::is(word, "NOACK") => {
                    if !with_group {
                        return Err(only_with_group("NOACK"));
                    }
                    request.noack = true;
                }
                _ => return Err(Error::SYNTAX),
            }
            at += 1;
        }
        if request.keys_at == 0 {
            return Err(Error::SYNTAX);
        }
        let remaining = args.len() - request.keys_at;
        if !remaining.is_multiple_of(2) {
            return Err(unbalanced(with_group));
        }
        request.len = remaining / 2;
        if with_group && request.member.is_none() {
            return Err(Error::text("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(request)
    }

    fn keys(&self) -> std::ops::Range<usize> {
        self.keys_at..self.keys_at + self.len
    }
}

fn only_with_group(option: &str) -> Error {
    Error::new(format!("ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."))
}

fn unbalanced(with_group: bool) -> Error {
    let (name, symbol) = if with_group { ("xreadgroup", '>') } else { ("xread", '$') };
    Error::new(format!(
        "ERR Unbalanced '{name}' list of streams: for each stream key an ID or '{symbol}' must be specified."
    ))
}

fn meaningless(id: char) -> Error {
    Error::new(format!(
        "ERR The {id} ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by \
         specifying a proper ID, or use the > ID to get new messages. The {id} ID would just return an empty \
         result set."
    ))
}

/// Writes the header of the reply before the first stream.
struct ReplyHeader {
    mark: Option<kvick_resp::Mark>,
    len: usize,
}

impl ReplyHeader {
    fn new() -> ReplyHeader {
        ReplyHeader { mark: None, len: 0 }
    }

    /// Starts the reply of a stream.
    fn begin(&mut self, reply: &mut Reply<'_>, key: &[u8]) {
        if self.mark.is_none() {
            self.mark = Some(reply.deferred());
        }
        self.len += 1;
        if reply.version() == Version::Resp2 {
            reply.array(2);
        }
        reply.bulk(key);
    }

    /// Ends the reply; returns false if it has no streams.
    fn end(self, reply: &mut Reply<'_>) -> bool {
        let Some(mark) = self.mark else { return false };
        match reply.version() {
            Version::Resp2 => reply.set_array_len(mark, self.len),
            Version::Resp3 => reply.set_map_len(mark, self.len),
        }
        true
    }
}

fn xread(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = Request::parse(args, false, cx.db.now_ms())?;
    // For each stream, the ID after which entries are returned, and whether there are any.
    let mut beyond: SmallVec<[(Id, bool); 8]> = SmallVec::new();
    for at in request.keys() {
        let key = cx.key(args, at);
        let log = cx.db.read::<Stream>(key)?.map(Stream::log);
        let id = match &args[at + request.len] {
            b"$" => log.map_or(Id::MIN, Log::last_id),
            b"+" => match log.filter(|log| !log.is_empty()) {
                Some(log) => log.last_id().prev().ok_or(Error::text("ERR the stream last element ID is 0-0"))?,
                None => Id::MIN,
            },
            b">" => {
                return Err(Error::text(
                    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> \
                     option.",
                ));
            }
            text => words::id(text, 0)?,
        };
        beyond.push((id, log.is_some_and(|log| log.has_beyond(id))));
    }
    let mut header = ReplyHeader::new();
    for (at, (id, any)) in request.keys().zip(&beyond) {
        let key = cx.key(args, at);
        if *any && let Some(stream) = cx.db.view::<Stream>(key) {
            header.begin(&mut cx.reply, key.bytes);
            let start = id.next().unwrap_or(Id::MIN);
            write::entries(&mut cx.reply, stream.log().range(start, Id::MAX), request.count);
        }
    }
    if !header.end(&mut cx.reply) {
        wait(cx, args, &request, beyond.iter().map(|(id, _)| *id));
    }
    Ok(())
}

/// Blocks, or replies with null. `ids` replaces `$`, which must not change its meaning on later attempts.
fn wait(cx: &mut Context<'_>, args: Args<'_>, request: &Request<'_>, ids: impl Iterator<Item = Id>) {
    let Some(until_ms) = request.wait.filter(|_| cx.may_block) else {
        cx.reply.null_array();
        return;
    };
    let ids_at = request.keys_at + request.len;
    let rewritten = args.slice_from(ids_at).iter().any(|text| text == b"$").then(|| {
        let resolved = args.slice_from(ids_at).iter().zip(ids).map(|(text, id)| match text {
            b"$" => id.to_string().into_bytes(),
            _ => text.to_vec(),
        });
        OwnedArgs::new(args.iter().take(ids_at).map(<[u8]>::to_vec).chain(resolved))
    });
    // If one consumer of a group finds nothing, neither do the others of the same group.
    let group = request.member.map_or(0, |member| kvick_store::hash::elements().hash(member.group) | 1);
    let wakes_on_deletion = request.member.is_some();
    let keys = request.keys().collect();
    cx.block = Some(Block { keys, kind: Kind::Stream, wakes_on_deletion, group, until_ms, rewritten });
}

/// What XREADGROUP returns to a consumer for a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// Nothing: there is no new entry, and the consumer exists.
    Nothing,
    /// Nothing: there is no new entry, but the consumer must be created.
    Consumer,
    /// New entries, which were not delivered to any consumer.
    New,
    /// The consumer's pending entries after this ID.
    Pending(Id),
}

fn xreadgroup(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let now_ms = cx.db.now_ms();
    let request = Request::parse(args, true, now_ms)?;
    let Member { group: group_name, consumer: consumer_name } = request.member.unwrap_or_default();
    let mut deliveries: SmallVec<[Delivery; 8]> = SmallVec::new();
    for at in request.keys() {
        let key = cx.key(args, at);
        let stream = cx.db.read::<Stream>(key)?;
        let no_group = || words::no_group(key.bytes, group_name, " in XREADGROUP with GROUP option");
        let (log, group) =
            stream.and_then(|stream| Some((stream.log(), stream.groups().get(group_name)?))).ok_or_else(no_group)?;
        deliveries.push(choose_delivery(log, group, consumer_name, &args[at + request.len], now_ms)?);
    }
    let mut header = ReplyHeader::new();
    for (at, delivery) in request.keys().zip(&deliveries).filter(|(_, delivery)| **delivery != Delivery::Nothing) {
        let key = cx.key(args, at);
        let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
        let Some((log, groups)) = stream.map(Stream::groups_mut) else { continue };
        let Some(group) = groups.get_mut(group_name) else { continue };
        let place = write::Place { key: key.bytes, group: group_name };
        let mut reader = Reader { log, group, effects, reply: &mut cx.reply, place, now_ms };
        let consumer = reader.consumer(consumer_name, request.noack);
        // If a stream is given twice, nothing may be left the second time.
        if !matches!(delivery, Delivery::Pending(_)) && !log.has_beyond(reader.group.last_id) {
            continue;
        }
        header.begin(reader.reply, key.bytes);
        match *delivery {
            Delivery::Pending(beyond) => reader.reply_pending(consumer, beyond, request.count),
            _ => reader.reply_new(consumer, request.count, request.noack),
        }
        reader.effects.changed(1);
    }
    let effects = cx.db.effects();
    effects.forget_noted_changes();
    // The individual deliveries have been propagated.
    effects.propagate_nothing();
    if !header.end(&mut cx.reply) {
        wait(cx, args, &request, std::iter::empty());
    }
    Ok(())
}

/// What to return to a consumer for a stream with the ID argument `text`. Updates the seen-time of the consumer.
fn choose_delivery(log: &Log, group: &Group, consumer: &[u8], text: &[u8], now_ms: i64) -> Result<Delivery, Error> {
    let beyond = match text {
        b"$" => return Err(meaningless('$')),
        b"+" => return Err(meaningless('+')),
        b">" => Id::MAX,
        text => words::id(text, 0)?,
    };
    let known = group.find_consumer(consumer);
    if let Some(known) = known {
        group.consumer(known).see(now_ms);
    }
    Ok(if beyond != Id::MAX {
        Delivery::Pending(beyond)
    } else if log.has_beyond(group.last_id) {
        Delivery::New
    } else if known.is_none() {
        Delivery::Consumer
    } else {
        Delivery::Nothing
    })
}

/// Replies to a consumer of a group with the entries of one stream.
struct Reader<'a, 'r> {
    log: &'a Log,
    group: &'a mut Group,
    effects: &'a mut Effects,
    reply: &'a mut Reply<'r>,
    place: write::Place<'a>,
    now_ms: i64,
}

impl Reader<'_, '_> {
    /// The consumer, created if necessary. Replicas create it with its first pending entry, or, with `noack`, by a
    /// separate command.
    fn consumer(&mut self, name: &[u8], noack: bool) -> ConsumerId {
        if let Some(known) = self.group.find_consumer(name) {
            return known;
        }
        let created = super::group::create_consumer(self.group, name, self.place.key, self.effects, self.now_ms);
        if noack {
            self.place.propagate_consumer(self.effects, self.group, created);
        }
        created
    }

    /// Delivers new entries.
    fn reply_new(&mut self, consumer: ConsumerId, count: usize, noack: bool) {
        let mark = self.reply.deferred();
        let start = self.group.last_id.next().unwrap_or(Id::MIN);
        let mut len = 0;
        for entry in self.log.range(start, Id::MAX).take(if count == 0 { usize::MAX } else { count }) {
            self.log.advance(self.group, entry.id);
            write::entry(self.reply, &entry);
            len += 1;
            if noack {
                continue;
            }
            self.group.deliver(entry.id, consumer, self.now_ms);
            if self.effects.has_readers()
                && let Some(pending) = self.group.pending().get(entry.id)
            {
                self.place.propagate_pending(self.effects, self.group, entry.id.text(&mut [0; 41]), pending);
            }
        }
        if len > 0 {
            self.place.propagate_last_id(self.effects, self.group);
        }
        self.reply.set_array_len(mark, len);
    }

    /// Returns the pending entries of the consumer. Entries that no longer exist have null in place of their fields.
    fn reply_pending(&mut self, consumer: ConsumerId, beyond: Id, count: usize) {
        let mark = self.reply.deferred();
        let mut len = 0;
        let mut from = beyond.next();
        while let Some(id) = from.and_then(|from| self.group.next_pending_of(consumer, from)) {
            if write::entry_of(self.reply, self.log, id) {
                if let Some(pending) = self.group.pending_mut(id) {
                    pending.delivered_ms = self.now_ms;
                    pending.deliveries = pending.deliveries.wrapping_add(1);
                }
            } else {
                self.reply.array(2);
                write::id(self.reply, id);
                self.reply.null_array();
            }
            len += 1;
            from = id.next().filter(|_| count == 0 || len < count);
        }
        self.reply.set_array_len(mark, len);
    }
}
