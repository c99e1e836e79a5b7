//! A client's ID, and the names that it sets.
//!
//! CLIENT LIST separates fields by spaces, so names consist of printable ASCII characters.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_engine::session::{Client, Session, SessionHandler};
use kvick_resp::Args;

/// CLIENT ID
pub const ID: Command<SessionHandler> = Command::new(
    Spec::new("id", 2)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "5.0.0", "O(1)", "Returns the ID of the connection."),
    id,
);

fn id(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.uint(cx.client.info.id);
    Ok(())
}

/// CLIENT GETNAME
pub const GETNAME: Command<SessionHandler> = Command::new(
    Spec::new("getname", 2)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "2.6.9", "O(1)", "Returns the name of the connection."),
    getname,
);

fn getname(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    match &*cx.client.info.names.lock().name {
        [] => cx.reply.null(),
        name => cx.reply.bulk(name),
    }
    Ok(())
}

/// CLIENT SETNAME connection-name
pub const SETNAME: Command<SessionHandler> = Command::new(
    Spec::new("setname", 3)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "2.6.9", "O(1)", "Sets the name of the connection.")
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .args(&[Arg::string("connection-name")]),
    setname,
);

fn setname(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    check_name(&args[2])?;
    set_name(cx.client, &args[2]);
    cx.reply.ok();
    Ok(())
}

/// Refuses invalid client names.
pub fn check_name(name: &[u8]) -> Result<(), Error> {
    const BAD: Error = Error::text("ERR Client names cannot contain spaces, newlines or special characters.");
    if is_printable(name) { Ok(()) } else { Err(BAD) }
}

/// Sets a client's name; an empty name removes it.
pub fn set_name(client: &Client, name: &[u8]) {
    client.info.names.lock().name = name.into();
}

/// CLIENT SETINFO LIB-NAME libname | LIB-VER libver
pub const SETINFO: Command<SessionHandler> = Command::new(
    Spec::new("setinfo", 4)
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "7.2.0", "O(1)", "Sets information about the client library.")
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .args(&[Arg::one_of(
            "attr",
            &[Arg::string("libname").token("LIB-NAME"), Arg::string("libver").token("LIB-VER")],
        )]),
    setinfo,
);

fn setinfo(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (attribute, value) = (&args[2], &args[3]);
    let version = attribute.eq_ignore_ascii_case(b"lib-ver");
    if !version && !attribute.eq_ignore_ascii_case(b"lib-name") {
        return Err(Error::quoting(&[b"ERR Unrecognized option '", attribute, b"'"]));
    }
    if !is_printable(value) {
        let text = b" cannot contain spaces, newlines or special characters.";
        return Err(Error::quoting(&[b"ERR ", attribute, text]));
    }
    let mut names = cx.client.info.names.lock();
    *if version { &mut names.lib_ver } else { &mut names.lib_name } = value.into();
    cx.reply.ok();
    Ok(())
}

fn is_printable(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_graphic)
}
