//! XGROUP: consumer groups and their consumers.

use kvick_store::collections::stream::{ConsumerId, Group, Id};
use kvick_store::{Effects, EventClass, Stream};

use super::{DELETE, INSERT, UPDATE, words};
use crate::context::{Args, Context, Error, Handler};
use crate::help;
use crate::spec::{Arg, Categories, Command, Flags, Group as DocGroup, KeySpec, Spec};

/// XGROUP subcommand \[argument ...]
pub const XGROUP: Command<Handler> = Command::container(
    Spec::new("xgroup", -2).doc(
        DocGroup::Stream,
        "5.0.0",
        "Depends on subcommand.",
        "Creates, changes and deletes consumer groups.",
    ),
    &[CREATE, CREATECONSUMER, DELCONSUMER, DESTROY, HELP, SETID],
);

const INSERT_KEY: &[KeySpec] = &[KeySpec::at(2, INSERT)];
const DELETE_KEY: &[KeySpec] = &[KeySpec::at(2, DELETE)];
const ID: Arg = Arg::one_of("id-selector", &[Arg::string("id"), Arg::word("new-id", "$")]);
const ENTRIES_READ: Arg = Arg::integer("entriesread").token("ENTRIESREAD").optional().display("entries-read");
const CONSUMER_ARGS: &[Arg] = &[Arg::key("key"), Arg::string("group"), Arg::string("consumer")];

const NO_STREAM: Error = Error::text(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option \
     to create an empty stream automatically.",
);

/// Creates a consumer that does not exist, and records the event.
pub fn create_consumer(group: &mut Group, name: &[u8], key: &[u8], effects: &mut Effects, now_ms: i64) -> ConsumerId {
    let created = group.create_consumer(name, now_ms);
    effects.changed(1);
    effects.notify(EventClass::STREAM, "xgroup-createconsumer", key);
    created.unwrap_or_else(|| unreachable!("looked for before"))
}

/// The options of CREATE and SETID.
#[derive(Default)]
struct Options {
    create_stream: bool,
    entries_read: Option<u64>,
}

impl Options {
    fn parse(args: Args<'_>, creates: bool) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut at = 5;
        while let Some(word) = args.get(at) {
            match args.get(at + 1) {
                _ if creates && words::is(word, "MKSTREAM") => {
                    options.create_stream = true;
                    at += 1;
                }
                Some(number) if words::is(word, "ENTRIESREAD") => {
                    options.entries_read = match words::integer(number)? {
                        -1 => None,
                        number => Some(
                            u64::try_from(number)
                                .map_err(|_| Error::text("ERR value for ENTRIESREAD must be positive or -1"))?,
                        ),
                    };
                    at += 2;
                }
                _ => return Err(words::bad_subcommand(args, "XGROUP")),
            }
        }
        Ok(options)
    }
}

/// XGROUP CREATE key group id | $ \[MKSTREAM] \[ENTRIESREAD entries-read]
const CREATE: Command<Handler> = Command::new(
    Spec::new("create", -5)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STREAM])
        .keys(INSERT_KEY)
        .doc(DocGroup::Stream, "5.0.0", "O(1)", "Creates a consumer group.")
        .args(&[Arg::key("key"), Arg::string("group"), ID, Arg::word("mkstream", "MKSTREAM").optional(), ENTRIES_READ])
        .history(&[("7.0.0", "Added `ENTRIESREAD`.")]),
    create,
);

fn create(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const ARGS_MAX: usize = 8;
    let options = Options::parse(args, true)?;
    let key = cx.key(args, 2);
    let last_id = cx.db.write::<Stream>(key)?.map(|stream| stream.log().last_id());
    if last_id.is_none() && !options.create_stream {
        return Err(NO_STREAM);
    }
    if args.len() > ARGS_MAX {
        return Err(words::bad_subcommand(args, "XGROUP"));
    }
    let id = match &args[4] {
        b"$" => last_id.unwrap_or(Id::MIN),
        text => words::id(text, 0)?,
    };
    let (stream, _) = cx.db.write_or_create::<Stream>(key)?;
    if stream.groups_mut().1.create(&args[3], id, options.entries_read).is_none() {
        return Err(Error::text("BUSYGROUP Consumer Group name already exists"));
    }
    let effects = cx.db.effects();
    if last_id.is_some() {
        effects.forget_noted_changes();
    }
    effects.changed(1);
    effects.notify(EventClass::STREAM, "xgroup-create", key.bytes);
    cx.reply.ok();
    Ok(())
}

/// XGROUP SETID key group id | $ \[ENTRIESREAD entries-read]
const SETID: Command<Handler> = Command::new(
    Spec::new("setid", -5)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::STREAM])
        .keys(&[KeySpec::at(2, UPDATE)])
        .doc(DocGroup::Stream, "5.0.0", "O(1)", "Sets how far a consumer group has read.")
        .args(&[Arg::key("key"), Arg::string("group"), ID, ENTRIES_READ])
        .history(&[("7.0.0", "Added `ENTRIESREAD`.")]),
    setid,
);

fn setid(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const ARGS_MAX: usize = 7;
    let options = Options::parse(args, false)?;
    let key = cx.key(args, 2);
    let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
    let (log, groups) = stream.ok_or(NO_STREAM)?.groups_mut();
    let group = groups.get_mut(&args[3]).ok_or_else(|| words::no_such_group(key.bytes, &args[3]))?;
    if args.len() > ARGS_MAX {
        return Err(words::bad_subcommand(args, "XGROUP"));
    }
    group.last_id = match &args[4] {
        b"$" => log.last_id(),
        text => words::id_or_end(text, 0)?,
    };
    group.entries_read = options.entries_read;
    effects.forget_noted_changes();
    effects.changed(1);
    effects.notify(EventClass::STREAM, "xgroup-setid", key.bytes);
    cx.reply.ok();
    Ok(())
}

/// XGROUP DESTROY key group
const DESTROY: Command<Handler> = Command::new(
    Spec::new("destroy", 4)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::STREAM])
        .keys(DELETE_KEY)
        .doc(DocGroup::Stream, "5.0.0", "O(N), N being the number of pending entries.", "Deletes a consumer group.")
        .args(&[Arg::key("key"), Arg::string("group")]),
    destroy,
);

fn destroy(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 2);
    let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
    let destroyed = stream.ok_or(NO_STREAM)?.groups_mut().1.destroy(&args[3]);
    effects.forget_noted_changes();
    if destroyed {
        effects.changed(1);
        effects.notify(EventClass::STREAM, "xgroup-destroy", key.bytes);
        cx.db.signal_ready(key);
    }
    cx.reply.int(destroyed as i64);
    Ok(())
}

/// XGROUP CREATECONSUMER key group consumer
const CREATECONSUMER: Command<Handler> = Command::new(
    Spec::new("createconsumer", 5)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STREAM])
        .keys(INSERT_KEY)
        .doc(DocGroup::Stream, "6.2.0", "O(1)", "Creates a consumer in a consumer group.")
        .args(CONSUMER_ARGS),
    createconsumer,
);

fn createconsumer(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let (key, now_ms) = (cx.key(args, 2), cx.db.now_ms());
    let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
    let group = stream.ok_or(NO_STREAM)?.groups_mut().1.get_mut(&args[3]);
    let group = group.ok_or_else(|| words::no_such_group(key.bytes, &args[3]))?;
    let is_new = group.find_consumer(&args[4]).is_none();
    effects.forget_noted_changes();
    if is_new {
        create_consumer(group, &args[4], key.bytes, effects, now_ms);
    }
    cx.reply.int(is_new as i64);
    Ok(())
}

/// XGROUP DELCONSUMER key group consumer
const DELCONSUMER: Command<Handler> = Command::new(
    Spec::new("delconsumer", 5)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::STREAM])
        .keys(DELETE_KEY)
        .doc(DocGroup::Stream, "5.0.0", "O(1)", "Deletes a consumer of a consumer group, and its pending entries.")
        .args(CONSUMER_ARGS),
    delconsumer,
);

fn delconsumer(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 2);
    let (stream, effects) = cx.db.write_with_effects::<Stream>(key)?;
    let group = stream.ok_or(NO_STREAM)?.groups_mut().1.get_mut(&args[3]);
    let group = group.ok_or_else(|| words::no_such_group(key.bytes, &args[3]))?;
    let deleted = group.delete_consumer(&args[4]);
    effects.forget_noted_changes();
    if deleted.is_some() {
        effects.changed(1);
        effects.notify(EventClass::STREAM, "xgroup-delconsumer", key.bytes);
    }
    cx.reply.uint(deleted.unwrap_or(0) as u64);
    Ok(())
}

/// XGROUP HELP
const HELP: Command<Handler> = Command::new(
    Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).acl(&[Categories::STREAM]).doc(
        DocGroup::Stream,
        "5.0.0",
        "O(1)",
        "Lists the subcommands.",
    ),
    xgroup_help,
);

fn xgroup_help(cx: &mut Context<'_>, _args: Args<'_>) -> Result<(), Error> {
    help::reply(
        &mut cx.reply,
        "xgroup",
        &[
            "CREATE <key> <groupname> <id|$> [option]",
            "    Create a consumer group. These options are known:",
            "    * MKSTREAM",
            "      Create an empty stream if there is none.",
            "    * ENTRIESREAD entries_read",
            "      How many entries the group has read (for internal use).",
            "CREATECONSUMER <key> <groupname> <consumer>",
            "    Create a consumer in a group.",
            "DELCONSUMER <key> <groupname> <consumer>",
            "    Delete a consumer of a group.",
            "DESTROY <key> <groupname>",
            "    Delete a group.",
            "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
            "    Set the ID that a group has read to, and how many entries these were.",
        ],
    );
    Ok(())
}
