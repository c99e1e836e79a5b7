//! COMMAND GETKEYS and COMMAND GETKEYSANDFLAGS: the keys in a request.

use super::{info, reply_words};
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeyPositions, Spec};
use kvick_commands::table::Resolved;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

const ARGS: &[Arg] = &[Arg::string("command"), Arg::string("arg").optional().multiple()];

/// COMMAND GETKEYS command [arg [arg ...]]
pub const GETKEYS: Command<SessionHandler> = Command::new(
    Spec::new("getkeys", -3)
        .flags(&[Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Server, "2.8.13", "O(N), N being the arguments", "Extracts the key names of a command.")
        .args(ARGS),
    getkeys,
);

fn getkeys(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = args.slice_from(2);
    let keys = keys_of(cx, request)?;
    cx.reply.array(keys.len());
    keys.iter().for_each(|key| cx.reply.bulk(&request[key.index]));
    Ok(())
}

/// COMMAND GETKEYSANDFLAGS command [arg [arg ...]]
pub const GETKEYSANDFLAGS: Command<SessionHandler> = Command::new(
    Spec::new("getkeysandflags", -3)
        .flags(&[Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(
            Group::Server,
            "7.0.0",
            "O(N), N being the arguments",
            "Extracts the key names and access flags of a command.",
        )
        .args(ARGS),
    getkeysandflags,
);

fn getkeysandflags(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let request = args.slice_from(2);
    let keys = keys_of(cx, request)?;
    cx.reply.array(keys.len());
    for key in keys {
        cx.reply.array(2);
        cx.reply.bulk(&request[key.index]);
        reply_words(&mut cx.reply, info::key_flag_names(key.flags));
    }
    Ok(())
}

fn keys_of(cx: &Session<'_>, request: Args<'_>) -> Result<KeyPositions, Error> {
    let Resolved::Command(command) = cx.server.catalogue.resolve(request) else {
        return Err(Error::text("ERR Invalid command specified"));
    };
    let spec = command.spec;
    let keyless = |flags: KeyFlags| flags.contains(KeyFlags::NOT_KEY);
    if spec.find_keys.is_none() && spec.keys.iter().all(|keys| keyless(keys.flags)) {
        return Err(Error::text("ERR The command has no key arguments"));
    }
    if !spec.accepts(request.len()) {
        return Err(Error::text("ERR Invalid number of arguments specified for command"));
    }
    let keys = spec.key_positions(request).unwrap_or_default();
    if keys.is_empty() && !spec.flags.contains(Flags::NO_MANDATORY_KEYS) {
        return Err(Error::text("ERR Invalid arguments specified for command"));
    }
    Ok(keys)
}
