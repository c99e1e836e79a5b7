//! ACL subcommands that change users.

use super::revoke;
use super::wrong_number;
use kvick_acl::file::{self, reader};
use kvick_acl::rules::has_blanks;
use kvick_commands::context::Error;
use kvick_config::Refusal;
use kvick_core::clients::DEFAULT_USER;
use kvick_engine::session::{Client, Session};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_runtime::logging;
use std::path::PathBuf;

/// Default and maximum bits of a password.
const PASSWORD_BITS: i64 = 256;
const PASSWORD_BITS_MAX: i64 = 4096;

/// Hides names, passwords and rules from MONITOR and the command log.
pub(super) fn redact(client: &mut Client, args: Args<'_>) {
    (2..args.len()).for_each(|at| client.redact(at));
}

/// ACL SETUSER username [rule [rule ...]]
pub(super) fn setuser(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    redact(cx.client, args);
    let (server, name) = (cx.server, &args[2]);
    if has_blanks(name) {
        return Err(Error::text("ERR Usernames can't contain spaces or null characters"));
    }
    let changed = server
        .acl
        .change(&server.admission, name, args.slice_from(3).iter(), reader(server))
        .map_err(|error| Error::quoting(&[b"ERR ", &error.text()]))?;
    if let Some(before) = changed.before {
        revoke::close_forbidden_subscribers(server, cx.client, &before, &changed.after);
    }
    cx.reply.ok();
    Ok(())
}

/// ACL DELUSER username [username ...]
pub(super) fn deluser(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    redact(cx.client, args);
    let names = args.slice_from(2);
    if names.iter().any(|name| name == DEFAULT_USER) {
        return Err(Error::text("ERR The 'default' user cannot be removed"));
    }
    let mut deleted = 0;
    for name in names.iter() {
        if cx.server.acl.remove(&cx.server.admission, name) {
            revoke::close_connections_of(cx.server, cx.client, name);
            deleted += 1;
        }
    }
    cx.reply.int(deleted);
    Ok(())
}

/// The ACL file, if there is one.
fn acl_file(cx: &Session<'_>) -> Result<PathBuf, Error> {
    file::path(cx.server).ok_or(Error::text(
        "ERR This instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER \
         command and then issue a CONFIG REWRITE (assuming you have a configuration file set) in order to store users \
         in the configuration.",
    ))
}

/// ACL LOAD
pub(super) fn load(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let (server, path) = (cx.server, acl_file(cx)?);
    let users = file::load(&path, reader(server)).map_err(|errors| Error::new(format!("ERR {errors}")))?;
    for before in server.acl.replace(&server.admission, users).into_values() {
        match server.acl.find(&before.name) {
            Some(after) => revoke::close_forbidden_subscribers(server, cx.client, &before, &after),
            None => revoke::close_connections_of(server, cx.client, &before.name),
        }
    }
    cx.reply.ok();
    Ok(())
}

/// ACL SAVE
pub(super) fn save(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let path = acl_file(cx)?;
    if let Err(error) = file::save(&path, &cx.server.acl.all()) {
        logging::warning(format_args!("Writing ACL file for ACL SAVE: {}", Refusal::from(error)));
        return Err(Error::text(
            "ERR There was an error trying to save the ACLs. Please check the server logs for more information",
        ));
    }
    cx.reply.ok();
    Ok(())
}

/// `ACL GENPASS [bits]`
pub(super) fn genpass(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let bits = match args.len() {
        2 => PASSWORD_BITS,
        3 => parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?,
        _ => return Err(wrong_number(args)),
    };
    if !(1..=PASSWORD_BITS_MAX).contains(&bits) {
        return Err(Error::new(format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to \
             {PASSWORD_BITS_MAX}"
        )));
    }
    let digits = bits.unsigned_abs().div_ceil(4) as usize;
    let mut random = vec![0; digits.div_ceil(2)];
    getrandom::fill(&mut random).map_err(|error| Error::new(format!("ERR no random numbers: {error}")))?;
    let mut password: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    password.truncate(digits);
    cx.reply.bulk(password.as_bytes());
    Ok(())
}
