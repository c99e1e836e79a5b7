//! Set operations: SINTER, SINTERCARD, SINTERSTORE, SUNION, SUNIONSTORE, SDIFF, SDIFFSTORE.
//!
//! A missing key is an empty set. The encoding of a stored result depends on how it is computed, so the algorithms
//! follow Valkey: which set is iterated, and the encoding of the set that the members are added to.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::collections::set::{Encoded, Limits};
use kvick_store::{Collection, Db, EventClass, Key, Set, Str};
use smallvec::SmallVec;

use super::reply_member;
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// The sets at several keys, in the order of the keys.
type Sets<'a> = SmallVec<[Option<&'a Set>; 8]>;

/// Looks up the sets at all `keys`.
fn look_up<'a>(db: &'a mut Db<'_>, keys: Args<'_>) -> Result<Sets<'a>, Error> {
    let keys: SmallVec<[Key<'_>; 8]> = keys.iter().map(|name| db.key(name)).collect();
    for key in &keys {
        db.read::<Set>(*key)?;
    }
    Ok(keys.iter().map(|key| db.view(*key)).collect())
}

/// Stores the result of `combine` on the sets at the other keys at the first key, or deletes that key if the result is
/// empty; replies with the size.
fn store(
    cx: &mut Context<'_>,
    args: Args<'_>,
    event: &'static str,
    combine: impl FnOnce(&Sets<'_>, &Limits) -> Set,
) -> Result<(), Error> {
    let result = combine(&look_up(&mut cx.db, args.slice_from(2))?, &cx.settings.encoding.set);
    let (key, len) = (cx.key(args, 1), result.len());
    if len > 0 {
        cx.db.put(key, result.into(), None);
        cx.db.effects().notify(EventClass::SET, event, key.bytes);
        cx.db.effects().changed(1);
    } else if cx.db.remove(key, cx.settings.lazy_server_del) {
        cx.db.effects().notify(EventClass::GENERIC, "del", key.bytes);
        cx.db.effects().changed(1);
    }
    cx.reply.uint(len as u64);
    Ok(())
}

/// Replies with members whose number is not known in advance.
fn reply_members<'a>(cx: &mut kvick_resp::Reply<'_>, members: impl Iterator<Item = Str<'a>>) {
    let (mark, mut len) = (cx.deferred(), 0);
    for member in members {
        reply_member(cx, member);
        len += 1;
    }
    cx.set_set_len(mark, len);
}

const SOURCES: &[KeyFlags] = &[KeyFlags::RO, KeyFlags::ACCESS];
const TARGET: &[KeyFlags] = &[KeyFlags::OW, KeyFlags::UPDATE];
const INTERSECTION_COST: &str = "O(N*M) at worst, N being the size of the smallest set and M the number of sets.";
const SUM_COST: &str = "O(N), N being the number of members of all sets together.";

/// SINTER key [key ...]
pub const SINTER: Command<Handler> = Command::new(
    Spec::new("sinter", -2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::range(1, -1, 1, SOURCES)])
        .tips(&["nondeterministic_output_order"])
        .doc(Group::Set, "1.0.0", INTERSECTION_COST, "Returns what is a member of all sets.")
        .args(&[Arg::key("key").multiple()]),
    sinter,
);

fn sinter(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let sets = look_up(&mut cx.db, args.slice_from(1))?;
    reply_members(&mut cx.reply, intersection(&sets));
    Ok(())
}

/// The members of the smallest set that all others contain.
fn intersection<'a>(sets: &Sets<'a>) -> impl Iterator<Item = Str<'a>> + use<'a> {
    let all: Option<SmallVec<[&'a Set; 8]>> = sets.iter().copied().collect();
    let mut sorted = all.unwrap_or_default();
    sorted.sort_by_key(|set| set.len());
    let smallest = sorted.first().copied();
    let others: SmallVec<[&'a Set; 8]> =
        sorted.into_iter().filter(|set| smallest.is_some_and(|smallest| !std::ptr::eq(*set, smallest))).collect();
    let members = smallest.map(Set::iter).into_iter().flatten();
    members.filter(move |member| others.iter().all(|set| set.contains_str(*member)))
}

/// SINTERCARD numkeys key [key ...] [LIMIT limit]
pub const SINTERCARD: Command<Handler> = Command::new(
    Spec::new("sintercard", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::counted(1, 1, SOURCES)])
        .doc(Group::Set, "7.0.0", INTERSECTION_COST, "Returns how much is a member of all sets.")
        .args(&[Arg::integer("numkeys"), Arg::key("key").multiple(), Arg::integer("limit").token("LIMIT").optional()]),
    sintercard,
);

fn sintercard(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let count = parse_i64(&args[1]).and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
    let count = count.ok_or(Error::text("ERR numkeys should be greater than 0"))?;
    if count > args.len() - 2 {
        return Err(Error::text("ERR Number of keys can't be greater than number of args"));
    }
    let limit = parse_limit(args.slice_from(2 + count))?;
    let keys: SmallVec<[Key<'_>; 8]> = (2..2 + count).map(|index| cx.key(args, index)).collect();
    for key in &keys {
        cx.db.read::<Set>(*key)?;
    }
    let sets = keys.iter().map(|key| cx.db.view(*key)).collect();
    let found = intersection(&sets).take(limit).count();
    cx.reply.uint(found as u64);
    Ok(())
}

/// Parses `[LIMIT limit]`, which may be repeated; 0 means no limit.
fn parse_limit(words: Args<'_>) -> Result<usize, Error> {
    let mut limit = 0;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = words.next().filter(|_| word.eq_ignore_ascii_case(b"limit")).ok_or(Error::SYNTAX)?;
        let number = parse_i64(number).and_then(|number| usize::try_from(number).ok());
        limit = number.ok_or(Error::text("ERR LIMIT can't be negative"))?;
    }
    Ok(if limit == 0 { usize::MAX } else { limit })
}

/// SINTERSTORE destination key [key ...]
pub const SINTERSTORE: Command<Handler> = Command::new(
    Spec::new("sinterstore", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, TARGET), KeySpec::range(2, -1, 1, SOURCES)])
        .doc(Group::Set, "1.0.0", INTERSECTION_COST, "Makes a key hold what is a member of all sets.")
        .args(&[Arg::key("destination"), Arg::key("key").key_spec(1).multiple()]),
    sinterstore,
);

fn sinterstore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    store(cx, args, "sinterstore", |sets, limits| {
        // Adding to a listpack is fastest; adding ordered integers to an intset is as fast.
        let smallest = sets.iter().flatten().min_by_key(|set| set.len());
        let integers = smallest.is_some_and(|set| matches!(set.encoded(), Encoded::Intset(_)));
        let mut result = if integers { Set::of_integers() } else { Set::short() };
        for member in intersection(sets) {
            result.insert_str(member, limits);
        }
        result.narrow(limits);
        result
    })
}

/// SUNION key [key ...]
pub const SUNION: Command<Handler> = Command::new(
    Spec::new("sunion", -2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::range(1, -1, 1, SOURCES)])
        .tips(&["nondeterministic_output_order"])
        .doc(Group::Set, "1.0.0", SUM_COST, "Returns what is a member of any of the sets.")
        .args(&[Arg::key("key").multiple()]),
    sunion,
);

fn sunion(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let limits = cx.settings.encoding.set;
    let sets = look_up(&mut cx.db, args.slice_from(1))?;
    let union = unite(&sets, temporary_result(&sets), &limits);
    reply_set(&mut cx.reply, &union);
    Ok(())
}

/// Adds the members of all sets to one.
fn unite(sets: &Sets<'_>, mut union: Set, limits: &Limits) -> Set {
    for member in sets.iter().flatten().flat_map(|set| set.iter()) {
        union.insert_str(member, limits);
    }
    union
}

/// An empty set for a result that is not stored: an intset if all members are integers, otherwise a hash table.
fn temporary_result(sets: &Sets<'_>) -> Set {
    let integers = sets.iter().flatten().all(|set| matches!(set.encoded(), Encoded::Intset(_)));
    if integers { Set::of_integers() } else { Set::table() }
}

fn reply_set(reply: &mut kvick_resp::Reply<'_>, set: &Set) {
    reply.set(set.len());
    set.iter().for_each(|member| reply_member(reply, member));
}

/// SUNIONSTORE destination key [key ...]
pub const SUNIONSTORE: Command<Handler> = Command::new(
    Spec::new("sunionstore", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, TARGET), KeySpec::range(2, -1, 1, SOURCES)])
        .doc(Group::Set, "1.0.0", SUM_COST, "Makes a key hold what is a member of any of the sets.")
        .args(&[Arg::key("destination"), Arg::key("key").key_spec(1).multiple()]),
    sunionstore,
);

fn sunionstore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    store(cx, args, "sunionstore", |sets, limits| unite(sets, Set::of_integers(), limits))
}

/// SDIFF key [key ...]
pub const SDIFF: Command<Handler> = Command::new(
    Spec::new("sdiff", -2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::range(1, -1, 1, SOURCES)])
        .tips(&["nondeterministic_output_order"])
        .doc(Group::Set, "1.0.0", SUM_COST, "Returns the members of the first set that are in none of the others.")
        .args(&[Arg::key("key").multiple()]),
    sdiff,
);

fn sdiff(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let limits = cx.settings.encoding.set;
    let sets = look_up(&mut cx.db, args.slice_from(1))?;
    let difference = Difference::of(&sets);
    match difference.by_lookup() {
        Some(members) => reply_members(&mut cx.reply, members),
        None => reply_set(&mut cx.reply, &difference.by_removal(temporary_result(&sets), &limits)),
    }
    Ok(())
}

/// SDIFFSTORE destination key [key ...]
pub const SDIFFSTORE: Command<Handler> = Command::new(
    Spec::new("sdiffstore", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, TARGET), KeySpec::range(2, -1, 1, SOURCES)])
        .doc(
            Group::Set,
            "1.0.0",
            SUM_COST,
            "Makes a key hold the members of the first set that are in none of the others.",
        )
        .args(&[Arg::key("destination"), Arg::key("key").key_spec(1).multiple()]),
    sdiffstore,
);

fn sdiffstore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    store(cx, args, "sdiffstore", |sets, limits| {
        let difference = Difference::of(sets);
        let Some(members) = difference.by_lookup() else { return difference.by_removal(Set::of_integers(), limits) };
        let mut result = Set::of_integers();
        for member in members {
            result.insert_str(member, limits);
        }
        result
    })
}

/// The members of a first set that no other set contains.
struct Difference<'a> {
    first: Option<&'a Set>,
    others: SmallVec<[&'a Set; 8]>,
}

impl<'a> Difference<'a> {
    fn of(sets: &Sets<'a>) -> Self {
        let (first, others) = sets.split_first().map_or((None, &[][..]), |(first, others)| (*first, others));
        Difference { first, others: others.iter().copied().flatten().collect() }
    }

    /// The members, each looked up in all other sets, the largest first. `None` if the others have so few members that
    /// removing these from the first set is less work.
    fn by_lookup(&self) -> Option<impl Iterator<Item = Str<'a>> + use<'a>> {
        let mut others = self.others.clone();
        // If the first set is among the others, the difference is empty.
        let first = self.first.filter(|first| !others.iter().any(|other| std::ptr::eq(*other, *first)));
        let len = first.map_or(0, |first| first.len());
        let lookups = len.saturating_mul(1 + others.len()) / 2;
        let removals = len + others.iter().map(|set| set.len()).sum::<usize>();
        if lookups > removals {
            return None;
        }
        others.sort_by_key(|set| std::cmp::Reverse(set.len()));
        let members = first.into_iter().flat_map(Set::iter);
        Some(members.filter(move |member| !others.iter().any(|set| set.contains_str(*member))))
    }

    /// Adds the members of the first set to an empty set, and removes those of all others.
    fn by_removal(&self, mut rest: Set, limits: &Limits) -> Set {
        for member in self.first.into_iter().flat_map(Set::iter) {
            rest.insert_str(member, limits);
        }
        for set in &self.others {
            if rest.is_empty() {
                break;
            }
            for member in set.iter() {
                rest.remove_str(member);
            }
        }
        rest
    }
}
