//! SORT and SORT_RO: sort the elements of a list, set or sorted set, and optionally return values of other keys
//! instead.
//!
//! The arguments are parsed into a [`Request`]. Its [`patterns`](pattern) refer to other keys, which
//! no key specification names; such a request takes the global lock. The elements are copied from their collection,
//! [sorted](order), and then returned or stored as a list.

mod options;
mod order;
mod pattern;
#[cfg(test)]
mod tests;
mod words;

use kvick_resp::Args;
use kvick_store::collections::list::Side;
use kvick_store::slot::slot;
use kvick_store::{Collection, Db, EventClass, Kind, List, Set, SortedSet, Str};
use smallvec::smallvec;

use crate::context::{Context, Error, Handler};
use crate::spec::{
    Arg, Begin, Categories, Command, Find, Flags, Group, KeyFlags, KeyPosition, KeyPositions, KeySpec, LockRule, Spec,
};
use crate::string::reply_string;
use options::{NativeRange, Request};
use words::Words;

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[SORT, SORT_RO];

const SOURCE: &[KeyFlags] = &[KeyFlags::RO, KeyFlags::ACCESS];
const TARGET: &[KeyFlags] = &[KeyFlags::OW, KeyFlags::UPDATE];
const CATEGORIES: &[Categories] = &[Categories::DANGEROUS, Categories::LIST, Categories::SET, Categories::SORTEDSET];
/// The key to sort.
const SORTED: KeyPosition = KeyPosition { index: 1, flags: KeyFlags::RO.union(KeyFlags::ACCESS) };
const PATTERN_KEYS: KeySpec = KeySpec::new(Begin::Unknown, Find::Unknown, SOURCE)
    .notes("What BY and GET lead to: these names are made of elements of the key that is sorted.");
const COST: &str = "O(N+M*log(M)), N being the number of elements and M that of the returned ones; O(N) when there is \
     nothing to sort by.";

const BY: Arg = Arg::pattern("by-pattern").token("BY").key_spec(1).optional().display("pattern");
const LIMIT: Arg = Arg::block("limit", &[Arg::integer("offset"), Arg::integer("count")]).token("LIMIT").optional();
const GET: Arg = Arg::pattern("get-pattern").token("GET").key_spec(1).multiple_token().optional().display("pattern");
const ORDER: Arg = Arg::one_of("order", &[Arg::word("asc", "ASC"), Arg::word("desc", "DESC")]).optional();
const ALPHA: Arg = Arg::word("sorting", "ALPHA").optional();

/// SORT key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] [STORE destination]
pub const SORT: Command<Handler> = Command::new(
    Spec::new("sort", -2)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(CATEGORIES)
        .keys(&[
            KeySpec::at(1, SOURCE),
            PATTERN_KEYS,
            KeySpec::new(Begin::Unknown, Find::Unknown, TARGET).notes("What stands behind STORE, wherever that is."),
        ])
        .find_keys(find_keys)
        .lock(LockRule::GlobalIf(needs_global_lock))
        .doc(
            Group::Generic,
            "1.0.0",
            COST,
            "Sorts the elements of a list, a set or a sorted set, and returns them or stores them as a list.",
        )
        .args(&[
            Arg::key("key"),
            BY,
            LIMIT,
            GET,
            ORDER,
            ALPHA,
            Arg::key("destination").token("STORE").key_spec(2).optional(),
        ]),
    |cx, args| run(cx, args, Request::parse(args, true, cx.reads_every_key, slot_of_sorted(cx, args))?),
);

/// SORT_RO key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]
pub const SORT_RO: Command<Handler> = Command::new(
    Spec::new("sort_ro", -2)
        .flags(&[Flags::READONLY])
        .acl(CATEGORIES)
        .keys(&[KeySpec::at(1, SOURCE), PATTERN_KEYS])
        .find_keys(|_| Some(smallvec![SORTED]))
        .lock(LockRule::GlobalIf(needs_global_lock))
        .doc(Group::Generic, "7.0.0", COST, "Returns the elements of a list, a set or a sorted set in another order.")
        .args(&[Arg::key("key"), BY, LIMIT, GET, ORDER, ALPHA]),
    |cx, args| run(cx, args, Request::parse(args, false, cx.reads_every_key, slot_of_sorted(cx, args))?),
);

/// The slot of the key to sort, in cluster mode.
fn slot_of_sorted(cx: &Context<'_>, args: Args<'_>) -> Option<u16> {
    cx.db.keyspace().is_by_slot().then(|| slot(&args[1]))
}

/// The key to sort, and the key after the last STORE, as [`Request::parse`] reads it. These keys are locked, and the
/// user needs rights to them.
fn find_keys(args: Args<'_>) -> Option<KeyPositions> {
    let mut found: KeyPositions = smallvec![SORTED];
    let mut index = 2;
    while let Some(word) = args.get(index) {
        index += match word.to_ascii_lowercase().as_slice() {
            b"limit" => 3,
            b"get" | b"by" => 2,
            b"store" if index + 1 < args.len() => {
                found.truncate(1);
                found.push(KeyPosition { index: index + 1, flags: KeyFlags::OW | KeyFlags::UPDATE });
                2
            }
            _ => 1,
        };
    }
    Some(found)
}

/// Whether it may access keys that [`find_keys`] does not find: those of patterns.
fn needs_global_lock(args: Args<'_>) -> bool {
    Request::parse(args, true, true, None).is_ok_and(|request| request.accesses_other_keys())
}

fn run(cx: &mut Context<'_>, args: Args<'_>, mut request: Request<'_>) -> Result<(), Error> {
    let mut elements = load(cx, args, &mut request)?;
    if request.sorts() {
        elements = order::sort(cx, &request, elements)?;
    }
    match request.store {
        None => reply(cx, &request, &elements),
        Some(index) => store(cx, args, index, &request, &elements),
    }
    Ok(())
}

/// Copies the elements to sort, or, if they are not sorted, those within the limits.
fn load(cx: &mut Context<'_>, args: Args<'_>, request: &mut Request<'_>) -> Result<Words, Error> {
    let mut words = Words::default();
    let key = cx.key(args, 1);
    let Some(entry) = cx.db.get(key) else { return Ok(words) };
    match entry.kind() {
        Kind::List => {
            let Some(list) = entry.collection::<List>() else { return Ok(words) };
            let NativeRange { range, reverse } = request.native_range(list.len());
            list.visit(range, if reverse { Side::Tail } else { Side::Head }, |element| words.push(element));
        }
        Kind::SortedSet => {
            let Some(set) = entry.collection::<SortedSet>() else { return Ok(words) };
            let NativeRange { range, reverse } = request.native_range(set.len());
            let members = if reverse { set.range_rev(range) } else { set.range(range) };
            members.for_each(|(member, _)| words.push(member));
        }
        Kind::Set => {
            // A stored result must be the same wherever the command is repeated.
            request.order_sets(cx.in_script);
            entry.collection::<Set>().into_iter().flat_map(Set::iter).for_each(|member| words.push(member));
            if !request.sorts() {
                let range = request.range(words.len());
                words = words.part(range);
            }
        }
        _ => return Err(Error::WRONG_TYPE),
    }
    Ok(words)
}

/// Calls `show` with each value to return: the element, or the values of the GET patterns.
fn each_value(db: &mut Db<'_>, request: &Request<'_>, elements: &Words, mut show: impl FnMut(Option<Str<'_>>)) {
    let mut name = Vec::new();
    for element in elements.iter() {
        if request.get.is_empty() {
            show(Some(Str::Bytes(element)));
        }
        for pattern in &request.get {
            pattern.look_up(db, element, &mut name, &mut show);
        }
    }
}

fn reply(cx: &mut Context<'_>, request: &Request<'_>, elements: &Words) {
    let reply = &mut cx.reply;
    reply.array(elements.len() * request.get.len().max(1));
    each_value(&mut cx.db, request, elements, |value| match value {
        None => reply.null(),
        Some(value) => reply_string(reply, value),
    });
}

/// Stores a list of the values at the key at argument `index`, or deletes the key if there are none.
fn store(cx: &mut Context<'_>, args: Args<'_>, index: usize, request: &Request<'_>, elements: &Words) {
    let mut values = Words::default();
    each_value(&mut cx.db, request, elements, |value| values.push(value.unwrap_or(Str::Bytes(b""))));
    let key = cx.key(args, index);
    if values.len() > 0 {
        let mut list = List::new();
        list.extend(Side::Tail, values.iter(), cx.settings.encoding.list);
        cx.db.put(key, list.into(), None);
        cx.db.effects().notify(EventClass::LIST, "sortstore", key.bytes);
        cx.db.effects().changed(values.len() as u64);
    } else if cx.db.remove(key, cx.settings.lazy_server_del) {
        cx.db.effects().notify(EventClass::GENERIC, "del", key.bytes);
        cx.db.effects().changed(1);
    }
    cx.reply.uint(values.len() as u64);
}
