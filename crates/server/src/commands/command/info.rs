//! COMMAND and COMMAND INFO: arity, flags, categories, tips, and where the keys are.

use super::{reply_field, reply_words};
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Begin, Categories, Command, Find, Flags, Group, KeyFlags, KeyRange, KeySpec, Spec};
use kvick_commands::table::{Catalogue, CommandInfo};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::{Args, Reply};

/// COMMAND INFO [command-name [command-name ...]]
pub const INFO: Command<SessionHandler> = Command::new(
    Spec::new("info", -2)
        .flags(&[Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Server, "2.8.13", "O(N), N being the requested commands", "Returns information about commands.")
        .tips(&["nondeterministic_output_order"])
        .history(&[("7.0.0", "Returns all commands if called without names.")])
        .args(&[Arg::string("command-name").optional().multiple()]),
    info,
);

fn info(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() == 2 {
        return all(cx, args);
    }
    let table = &cx.server.catalogue;
    cx.reply.array(args.len() - 2);
    for name in args.iter().skip(2) {
        match table.by_full_name(name) {
            Some(command) => reply_info(&mut cx.reply, table, command),
            None => cx.reply.null(),
        }
    }
    Ok(())
}

/// COMMAND without a subcommand.
pub(super) fn all(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let table = &cx.server.catalogue;
    cx.reply.array(table.top_level().len());
    for (_, command) in table.top_level() {
        reply_info(&mut cx.reply, table, command);
    }
    Ok(())
}

fn reply_info(reply: &mut Reply<'_>, table: &Catalogue, command: &CommandInfo) {
    let spec = command.spec;
    reply.array(10);
    reply.bulk(command.full_name.as_bytes());
    reply.int(spec.arity.into());
    reply_words(reply, flag_names(spec));
    let KeyRange { first, last, step } = spec.key_range();
    [first, last, step].into_iter().for_each(|number| reply.int(number));
    reply_words(reply, spec.categories().names().map(|name| format!("@{name}")));
    reply.set(spec.tips.len());
    spec.tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
    reply.set(spec.keys.len());
    spec.keys.iter().for_each(|keys| reply_key_spec(reply, keys));
    reply.array(command.subcommands.len());
    for subcommand in command.subcommands.iter().filter_map(|id| table.get(*id)) {
        reply_info(reply, table, subcommand);
    }
}

fn flag_names(spec: &Spec) -> impl Iterator<Item = &'static str> {
    let movable = spec.has_movable_keys();
    Flags::SHOWN.iter().flat_map(move |(flag, name)| {
        // The derived flag precedes the last of the others.
        let before = (movable && *flag == Flags::ALLOW_BUSY).then_some("movablekeys");
        before.into_iter().chain(spec.flags.contains(*flag).then_some(*name))
    })
}

/// The names of a key's flags.
pub(super) fn key_flag_names(flags: KeyFlags) -> impl Iterator<Item = &'static str> {
    KeyFlags::SHOWN.iter().filter(move |(flag, _)| flags.contains(*flag)).map(|(_, name)| *name)
}

fn reply_key_spec(reply: &mut Reply<'_>, keys: &KeySpec) {
    reply.map(if keys.notes.is_empty() { 3 } else { 4 });
    if !keys.notes.is_empty() {
        reply_field(reply, "notes", keys.notes);
    }
    reply.bulk(b"flags");
    reply_words(reply, key_flag_names(keys.flags));
    reply.bulk(b"begin_search");
    match keys.begin {
        Begin::Unknown => reply_search(reply, "unknown", &[]),
        Begin::Index(index) => reply_search(reply, "index", &[("index", index as i64)]),
        Begin::Keyword(word, from) => {
            reply.map(2);
            reply_field(reply, "type", "keyword");
            reply.bulk(b"spec");
            reply.map(2);
            reply_field(reply, "keyword", word);
            reply.bulk(b"startfrom");
            reply.int(from.into());
        }
    }
    reply.bulk(b"find_keys");
    match keys.find {
        Find::Unknown => reply_search(reply, "unknown", &[]),
        Find::Range { last, step, limit } => {
            let numbers = [("lastkey", last.into()), ("keystep", step as i64), ("limit", limit as i64)];
            reply_search(reply, "range", &numbers);
        }
        Find::KeyNum { num, first, step } => {
            let numbers = [("keynumidx", num as i64), ("firstkey", first as i64), ("keystep", step as i64)];
            reply_search(reply, "keynum", &numbers);
        }
    }
}

fn reply_search(reply: &mut Reply<'_>, kind: &str, numbers: &[(&str, i64)]) {
    reply.map(2);
    reply_field(reply, "type", kind);
    reply.bulk(b"spec");
    reply.map(numbers.len());
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        reply.int(*number);
    }
}
