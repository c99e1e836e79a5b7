//! Random members: SPOP, SRANDMEMBER. All members, and all subsets of a given size, are equally likely.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::collections::set::{Encoded, Limits};
use kvick_store::{Collection, Effects, EventClass, IntBuf, Set, Str};

use super::members::remove_empty;
use super::reply_member;
use crate::context::{Context, Error, Handler};
use crate::random;
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// `SPOP key [count]`
pub const SPOP: Command<Handler> = Command::new(
    Spec::new("spop", -2)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE])])
        .tips(&["nondeterministic_output"])
        .doc(
            Group::Set,
            "1.0.0",
            "O(1) without a count, otherwise O(N), N being the count.",
            "Removes members chosen by chance from a set, returns them, and removes the set with the last of them.",
        )
        .history(&[("3.2.0", "Added `count`.")])
        .args(&[Arg::key("key"), Arg::integer("count").optional().since("3.2.0")]),
    spop,
);

fn spop(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    match args.len() {
        2 => pop_one(cx, args),
        3 => pop_many(cx, args),
        _ => Err(Error::SYNTAX),
    }
}

fn pop_one(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let (Some(set), effects) = cx.db.write_with_effects::<Set>(key)? else {
        cx.reply.null();
        return Ok(());
    };
    let reply = &mut cx.reply;
    set.pop(random::next, |member| {
        reply_member(reply, member);
        if effects.has_readers() {
            effects.propagate(&[b"SREM", key.bytes, member.bytes(&mut IntBuf::default())]);
        }
    });
    let empty = set.is_empty();
    effects.notify(EventClass::SET, "spop", key.bytes);
    effects.changed(1);
    if empty {
        remove_empty(cx, args, 1);
    }
    Ok(())
}

/// If the number of remaining members times this is at most the number of popped members, the remaining members are
/// extracted instead.
const FEW_STAY: usize = 5;

fn pop_many(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let count = parse_i64(&args[2]).and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or(Error::text("ERR value is out of range, must be positive"))?;
    let (key, limits) = (cx.key(args, 1), cx.settings.encoding.set);
    let len = match cx.db.get_for_write(key) {
        None => 0,
        Some(entry) => entry.collection::<Set>().ok_or(Error::WRONG_TYPE)?.len(),
    };
    if len == 0 || count == 0 {
        cx.reply.set(0);
        return Ok(());
    }
    if count >= len {
        return pop_all(cx, args);
    }
    let (Some(set), effects) = cx.db.write_with_effects::<Set>(key)? else { return Ok(()) };
    effects.notify(EventClass::SET, "spop", key.bytes);
    effects.changed(count as u64);
    effects.propagate_nothing();
    cx.reply.set(count);
    let mut removals = Removals::new(key.bytes, effects);
    let reply = &mut cx.reply;
    let mut gone = |member: Str<'_>| {
        reply_member(reply, member);
        removals.add(member);
    };
    if (len - count).saturating_mul(FEW_STAY) > count {
        for _ in 0..count {
            set.pop(random::next, &mut gone);
        }
    } else {
        let staying = extract_random(set, len - count, &limits);
        std::mem::replace(set, staying).iter().for_each(gone);
    }
    removals.propagate();
    Ok(())
}

/// Moves `count` members to a new set, which starts in a compact encoding.
fn extract_random(set: &mut Set, count: usize, limits: &Limits) -> Set {
    let mut picked = if matches!(set.encoded(), Encoded::Intset(_)) { Set::of_integers() } else { Set::short() };
    for _ in 0..count {
        set.pop(random::next, |member| picked.insert_str(member, limits));
    }
    picked
}

fn pop_all(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let Some(set) = cx.db.view::<Set>(key) else { return Ok(()) };
    let len = set.len();
    cx.reply.set(len);
    set.iter().for_each(|member| reply_member(&mut cx.reply, member));
    let lazy = cx.settings.lazy_server_del;
    cx.db.effects().notify(EventClass::SET, "spop", key.bytes);
    cx.db.remove(key, lazy);
    let effects = cx.db.effects();
    effects.notify(EventClass::GENERIC, "del", key.bytes);
    effects.changed(len as u64);
    effects.propagate(&[if lazy { b"UNLINK" } else { b"DEL" }, key.bytes]);
    Ok(())
}

/// Popped members, which are propagated as SREM commands with many members each.
struct Removals<'a> {
    key: &'a [u8],
    effects: &'a mut Effects,
    /// The members, concatenated, and the end of each.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl<'a> Removals<'a> {
    const BATCH: usize = 1024;

    fn new(key: &'a [u8], effects: &'a mut Effects) -> Self {
        Removals { key, effects, bytes: Vec::new(), ends: Vec::new() }
    }

    fn add(&mut self, member: Str<'_>) {
        if !self.effects.has_readers() {
            return;
        }
        self.bytes.extend_from_slice(member.bytes(&mut IntBuf::default()));
        self.ends.push(self.bytes.len());
        if self.ends.len() == Self::BATCH {
            self.propagate();
        }
    }

    fn propagate(&mut self) {
        if self.ends.is_empty() {
            return;
        }
        let mut words: Vec<&[u8]> = vec![b"SREM", self.key];
        let mut start = 0;
        for end in self.ends.drain(..) {
            words.push(&self.bytes[start..end]);
            start = end;
        }
        self.effects.propagate(&words);
        self.bytes.clear();
    }
}

/// `SRANDMEMBER key [count]`
pub const SRANDMEMBER: Command<Handler> = Command::new(
    Spec::new("srandmember", -2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .tips(&["nondeterministic_output"])
        .doc(
            Group::Set,
            "1.0.0",
            "O(1) without a count, otherwise O(N), N being the count without its sign.",
            "Returns members of a set, chosen by chance.",
        )
        .history(&[("2.6.0", "Added `count`.")])
        .args(&[Arg::key("key"), Arg::integer("count").optional().since("2.6.0")]),
    srandmember,
);

fn srandmember(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    match args.len() {
        2 => {
            let key = cx.key(args, 1);
            match cx.db.read::<Set>(key)?.and_then(|set| set.random(random::next)) {
                None => cx.reply.null(),
                Some(member) => reply_member(&mut cx.reply, member),
            }
            Ok(())
        }
        3 => several(cx, args),
        _ => Err(Error::SYNTAX),
    }
}

/// A positive count selects that many distinct members, a negative one that many draws.
fn several(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let count = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    if count == i64::MIN {
        let range = "value is out of range, value must between -9223372036854775807 and 9223372036854775807";
        return Err(Error::new(format!("ERR {range}")));
    }
    let (key, end_max) = (cx.key(args, 1), cx.reply_end_max());
    let (Some(set), 1..) = (cx.db.read::<Set>(key)?, count.unsigned_abs()) else {
        cx.reply.array(0);
        return Ok(());
    };
    if count < 0 {
        let draws = count.unsigned_abs() as usize;
        cx.reply.array(draws);
        for _ in 0..draws {
            if cx.reply.position() > end_max {
                break;
            }
            if let Some(member) = set.random(random::next) {
                reply_member(&mut cx.reply, member);
            }
        }
    } else {
        let count = set.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        cx.reply.array(count);
        set.sample(count, random::next, |member| reply_member(&mut cx.reply, member));
    }
    Ok(())
}
