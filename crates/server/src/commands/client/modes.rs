//! Per-connection modes: CLIENT REPLY, NO-EVICT, NO-TOUCH, IMPORT-SOURCE, CAPA.

use super::{ON_OFF, on_or_off};
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_core::clients::ClientFlags;
use kvick_engine::session::{ReplyMode, Session, SessionHandler};
use kvick_resp::Args;

/// CLIENT REPLY ON | OFF | SKIP
pub const REPLY: Command<SessionHandler> = Command::new(
    Spec::new("reply", 3)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::NO_MULTI, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "3.2.0", "O(1)", "Switches replies on or off.")
        .args(&[Arg::one_of("action", &[Arg::word("on", "ON"), Arg::word("off", "OFF"), Arg::word("skip", "SKIP")])]),
    reply,
);

fn reply(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let mode = &mut cx.client.reply_mode;
    if args[2].eq_ignore_ascii_case(b"on") {
        *mode = ReplyMode::On;
        cx.reply.ok();
    } else if args[2].eq_ignore_ascii_case(b"off") {
        *mode = ReplyMode::Off;
    } else if !args[2].eq_ignore_ascii_case(b"skip") {
        return Err(Error::SYNTAX);
    } else if *mode != ReplyMode::Off {
        *mode = ReplyMode::SkipNext;
    }
    Ok(())
}

/// CLIENT NO-EVICT ON | OFF
pub const NO_EVICT: Command<SessionHandler> = Command::new(
    Spec::new("no-evict", 3)
        .flags(&[Flags::ALLOW_BUSY, Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "7.0.0", "O(1)", "Exempts the connection from client eviction.")
        .args(ON_OFF),
    no_evict,
);

fn no_evict(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    set_flag(cx, args, ClientFlags::NO_EVICT)
}

/// CLIENT NO-TOUCH ON | OFF
pub const NO_TOUCH: Command<SessionHandler> = Command::new(
    Spec::new("no-touch", 3)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "7.2.0", "O(1)", "Controls whether commands update the LRU and LFU data of keys.")
        .args(ON_OFF),
    no_touch,
);

fn no_touch(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    set_flag(cx, args, ClientFlags::NO_TOUCH)
}

fn set_flag(cx: &mut Session<'_>, args: Args<'_>, flag: ClientFlags) -> Result<(), Error> {
    cx.client.info.set_flags(flag, on_or_off(&args[2])?);
    cx.reply.ok();
    Ok(())
}

/// CLIENT IMPORT-SOURCE ON | OFF
pub const IMPORT_SOURCE: Command<SessionHandler> = Command::new(
    Spec::new("import-source", 3)
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "8.1.0", "O(1)", "Marks the connection as an import source.")
        .args(ON_OFF),
    import_source,
);

fn import_source(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if !cx.server.runtime_config().import_mode && !args[2].eq_ignore_ascii_case(b"off") {
        return Err(Error::text("ERR Server is not in import mode"));
    }
    set_flag(cx, args, ClientFlags::IMPORT_SOURCE)
}

/// CLIENT CAPA capability [capability ...]
pub const CAPA: Command<SessionHandler> = Command::new(
    Spec::new("capa", -3)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "8.0.0", "O(1)", "Declares a client capability.")
        .args(&[Arg::string("capability").multiple()]),
    capa,
);

/// Unknown capabilities are ignored. Nodes that forward requests to this one have the capability "direct": what they
/// send is executed here or redirected, so that it is never forwarded twice.
fn capa(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let has = |name: &[u8]| args.iter().skip(2).any(|word| word.eq_ignore_ascii_case(name));
    if has(b"redirect") {
        cx.client.info.set_flags(ClientFlags::CAPA_REDIRECT, true);
    }
    if has(b"direct") {
        cx.client.info.set_flags(ClientFlags::CAPA_DIRECT, true);
        cx.client.end_forwarding(cx.server);
    }
    cx.reply.ok();
    Ok(())
}
