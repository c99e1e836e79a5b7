//! Commands on the members of one set: SADD, SREM, SISMEMBER, SMISMEMBER, SCARD, SMEMBERS, SMOVE, SSCAN.

use kvick_resp::Args;
use kvick_store::{Collection, EventClass, Kind, Set};

use super::reply_member;
use crate::context::{Context, Error, Handler};
use crate::scan_options::{Listing, ScanOptions, Scanned, parse_cursor};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// SADD key member [member ...]
pub const SADD: Command<Handler> = Command::new(
    Spec::new("sadd", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::INSERT])])
        .doc(
            Group::Set,
            "1.0.0",
            "O(1) for each member, so O(N) for N of them.",
            "Adds members to a set, which is created when there is none.",
        )
        .history(&[("2.4.0", "Takes several `member` arguments.")])
        .args(&[Arg::key("key"), Arg::string("member").multiple()]),
    sadd,
);

fn sadd(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, limits) = (cx.key(args, 1), cx.settings.encoding.set);
    let members = args.slice_from(2);
    let set = match cx.db.write::<Set>(key)? {
        Some(set) => {
            set.expect(members.len(), &limits);
            set
        }
        None => cx.db.create(key, Set::for_first(&args[2], members.len(), &limits)),
    };
    let added = members.iter().filter(|member| set.insert(member, &limits)).count();
    if added > 0 {
        let effects = cx.db.effects();
        effects.notify(EventClass::SET, "sadd", key.bytes);
        effects.changed(added as u64);
    }
    cx.reply.uint(added as u64);
    Ok(())
}

/// SREM key member [member ...]
pub const SREM: Command<Handler> = Command::new(
    Spec::new("srem", -3)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::DELETE])])
        .doc(
            Group::Set,
            "1.0.0",
            "O(N), N being the number of members to remove.",
            "Removes members from a set, and the set with the last of them.",
        )
        .history(&[("2.4.0", "Takes several `member` arguments.")])
        .args(&[Arg::key("key"), Arg::string("member").multiple()]),
    srem,
);

fn srem(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let (mut removed, mut empty) = (0, false);
    if let Some(set) = cx.db.write::<Set>(key)? {
        for member in args.slice_from(2).iter() {
            removed += u64::from(set.remove(member));
            empty = set.is_empty();
            if empty {
                break;
            }
        }
    }
    if removed > 0 {
        cx.db.effects().notify(EventClass::SET, "srem", key.bytes);
        if empty {
            remove_empty(cx, args, 1);
        }
        cx.db.effects().changed(removed);
    }
    cx.reply.uint(removed);
    Ok(())
}

/// Removes a set that has become empty.
pub(super) fn remove_empty(cx: &mut Context<'_>, args: Args<'_>, index: usize) {
    let key = cx.key(args, index);
    cx.db.remove(key, false);
    cx.db.effects().notify(EventClass::GENERIC, "del", key.bytes);
}

/// SISMEMBER key member
pub const SISMEMBER: Command<Handler> = Command::new(
    Spec::new("sismember", 3)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO])])
        .doc(Group::Set, "1.0.0", "O(1)", "Tells whether something is a member of a set.")
        .args(&[Arg::key("key"), Arg::string("member")]),
    sismember,
);

fn sismember(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let found = cx.db.read::<Set>(key)?.is_some_and(|set| set.contains(&args[2]));
    cx.reply.uint(found.into());
    Ok(())
}

/// SMISMEMBER key member [member ...]
pub const SMISMEMBER: Command<Handler> = Command::new(
    Spec::new("smismember", -3)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::Set,
            "6.2.0",
            "O(N), N being the number of members asked for.",
            "Tells for each of several things whether it is a member of a set.",
        )
        .args(&[Arg::key("key"), Arg::string("member").multiple()]),
    smismember,
);

fn smismember(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let set = cx.db.read::<Set>(key)?;
    cx.reply.array(args.len() - 2);
    for member in args.slice_from(2).iter() {
        cx.reply.uint(set.is_some_and(|set| set.contains(member)).into());
    }
    Ok(())
}

/// SCARD key
pub const SCARD: Command<Handler> = Command::new(
    Spec::new("scard", 2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO])])
        .doc(Group::Set, "1.0.0", "O(1)", "Returns the number of members of a set.")
        .args(&[Arg::key("key")]),
    scard,
);

fn scard(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let len = cx.db.read::<Set>(key)?.map_or(0, |set| set.len());
    cx.reply.uint(len as u64);
    Ok(())
}

/// SMEMBERS key
pub const SMEMBERS: Command<Handler> = Command::new(
    Spec::new("smembers", 2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .tips(&["nondeterministic_output_order"])
        .doc(Group::Set, "1.0.0", "O(N), N being the number of members.", "Lists everything that is in a set.")
        .args(&[Arg::key("key")]),
    smembers,
);

fn smembers(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    match cx.db.read::<Set>(key)? {
        None => cx.reply.set(0),
        Some(set) => {
            cx.reply.set(set.len());
            set.iter().for_each(|member| reply_member(&mut cx.reply, member));
        }
    }
    Ok(())
}

/// SMOVE source destination member
pub const SMOVE: Command<Handler> = Command::new(
    Spec::new("smove", 4)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::SET])
        .keys(&[
            KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE]),
            KeySpec::at(2, &[KeyFlags::RW, KeyFlags::INSERT]),
        ])
        .doc(Group::Set, "1.0.0", "O(1)", "Takes a member out of one set and puts it into another.")
        .args(&[Arg::key("source"), Arg::key("destination").key_spec(1), Arg::string("member")]),
    smove,
);

fn smove(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (source, destination, member) = (cx.key(args, 1), cx.key(args, 2), &args[3]);
    let Some(entry) = cx.db.get_for_write(source) else {
        cx.reply.uint(0);
        return Ok(());
    };
    let source_kind = entry.kind();
    let destination_kind = cx.db.get_for_write(destination).map_or(Kind::Set, |entry| entry.kind());
    if source_kind != Kind::Set || destination_kind != Kind::Set {
        return Err(Error::WRONG_TYPE);
    }
    let moved = if source.bytes == destination.bytes {
        cx.db.view::<Set>(source).is_some_and(|set| set.contains(member))
    } else {
        move_member(cx, args, member)?
    };
    cx.reply.uint(moved.into());
    Ok(())
}

/// Moves a member between different keys, which hold sets or do not exist; returns false if the source does not contain
/// it.
fn move_member(cx: &mut Context<'_>, args: Args<'_>, member: &[u8]) -> Result<bool, Error> {
    let (source, destination, limits) = (cx.key(args, 1), cx.key(args, 2), cx.settings.encoding.set);
    let Some(set) = cx.db.write::<Set>(source)? else { return Ok(false) };
    if !set.remove(member) {
        return Ok(false);
    }
    let empty = set.is_empty();
    cx.db.effects().notify(EventClass::SET, "srem", source.bytes);
    if empty {
        remove_empty(cx, args, 1);
    }
    cx.db.effects().changed(1);
    // If the destination already contains the member, it does not change, and clients that WATCH it must not see a
    // change.
    if cx.db.view::<Set>(destination).is_some_and(|set| set.contains(member)) {
        return Ok(true);
    }
    match cx.db.write::<Set>(destination)? {
        Some(set) => set.insert(member, &limits),
        None => cx.db.create(destination, Set::for_first(member, 1, &limits)).insert(member, &limits),
    };
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::SET, "sadd", destination.bytes);
    Ok(true)
}

/// SSCAN key cursor [MATCH pattern] [COUNT count]
pub const SSCAN: Command<Handler> = Command::new(
    Spec::new("sscan", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::SET])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .tips(&["nondeterministic_output"])
        .doc(
            Group::Set,
            "2.8.0",
            "O(1) for every call, O(N) for going through a set of N members until the cursor is 0 again.",
            "Lists some members of a set, and where to go on.",
        )
        .args(&[
            Arg::key("key"),
            Arg::integer("cursor"),
            Arg::pattern("pattern").token("MATCH").optional(),
            Arg::integer("count").token("COUNT").optional(),
        ]),
    sscan,
);

fn sscan(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, cursor) = (cx.key(args, 1), parse_cursor(&args[2])?);
    let mut listing = Listing::new(&cx.reply);
    let next = match cx.db.read::<Set>(key)? {
        None => 0,
        Some(set) => {
            let options = ScanOptions::parse(args.slice_from(3), Scanned::Set)?;
            set.scan(cursor, options.count, |member| {
                if options.names.include(member.bytes(&mut Default::default())) {
                    listing.add_with(|reply| reply_member(reply, member));
                }
            })
        }
    };
    listing.reply(&mut cx.reply, next);
    Ok(())
}
