//! ACL subcommands that read users.

use super::manage::redact;
use super::wrong_number;
use kvick_acl::User;
use kvick_acl::check::Request;
use kvick_acl::user::Selector;
use kvick_commands::context::Error;
use kvick_commands::spec::Categories;
use kvick_commands::table::Resolved;
use kvick_engine::session::Session;
use kvick_resp::{Args, Reply};

/// ACL LIST
pub(super) fn list(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let users = cx.server.acl.all();
    cx.reply.array(users.len());
    users.iter().for_each(|user| cx.reply.bulk(&[&b"user "[..], &user.line()].concat()));
    Ok(())
}

/// ACL USERS
pub(super) fn users(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let users = cx.server.acl.all();
    cx.reply.array(users.len());
    users.iter().for_each(|user| cx.reply.bulk(&user.name));
    Ok(())
}

/// ACL WHOAMI
pub(super) fn whoami(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.bulk(&cx.client.identity.user.name);
    Ok(())
}

/// ACL GETUSER username
pub(super) fn getuser(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    redact(cx.client, args);
    match cx.server.acl.find(&args[2]) {
        None => cx.reply.null(),
        Some(user) => reply_user(&mut cx.reply, &user),
    }
    Ok(())
}

fn reply_user(reply: &mut Reply<'_>, user: &User) {
    const OWN_FIELDS: usize = 3;
    reply.map(OWN_FIELDS + SELECTOR_FIELDS);
    reply.bulk(b"flags");
    reply.set(user.flags().count());
    user.flags().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    reply.array(user.passwords.len());
    user.passwords.iter().for_each(|password| reply.bulk(password.to_string().as_bytes()));
    reply_selector(reply, &user.root);
    reply.bulk(b"selectors");
    reply.array(user.selectors.len());
    for selector in &user.selectors {
        reply.map(SELECTOR_FIELDS);
        reply_selector(reply, selector);
    }
}

/// The number of fields of a selector.
const SELECTOR_FIELDS: usize = 4;

fn reply_selector(reply: &mut Reply<'_>, selector: &Selector) {
    let fields: [(&[u8], Vec<u8>); SELECTOR_FIELDS] = [
        (b"commands", selector.command_rules()),
        (b"keys", selector.key_rules()),
        (b"channels", selector.channel_rules()),
        (b"databases", selector.database_rules()),
    ];
    for (name, value) in fields {
        reply.bulk(name);
        reply.bulk(&value);
    }
}

/// `ACL CAT [category]`
pub(super) fn cat(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let names: Vec<String> = match args.len() {
        2 => Categories::all().names().collect(),
        3 => {
            let category = Categories::by_name(&args[2]).ok_or_else(|| {
                let shown = &args[2][..args[2].len().min(128)];
                Error::quoting(&[b"ERR Unknown category '", shown, b"'"])
            })?;
            let commands = cx.server.catalogue.all().iter();
            let in_category = commands.filter(|command| command.spec.categories().intersects(category));
            in_category.map(|command| command.full_name.clone()).collect()
        }
        _ => return Err(wrong_number(args)),
    };
    cx.reply.array(names.len());
    names.iter().for_each(|name| cx.reply.bulk(name.as_bytes()));
    Ok(())
}

/// ACL DRYRUN username command [arg [arg ...]]
pub(super) fn dryrun(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let user = cx.server.acl.find(&args[2]);
    let user = user.ok_or_else(|| Error::quoting(&[b"ERR User '", &args[2], b"' not found"]))?;
    let request_args = args.slice_from(3);
    let Resolved::Command(command) = cx.server.catalogue.resolve(request_args) else {
        return Err(Error::quoting(&[b"ERR Command '", &args[3], b"' not found"]));
    };
    if !command.spec.accepts(request_args.len()) {
        return Err(Error::new(format!("ERR wrong number of arguments for '{}' command", command.full_name)));
    }
    let request = Request { command, args: request_args, db: cx.client.db, databases: cx.server.keyspace.databases() };
    match user.check(&request) {
        Ok(()) => cx.reply.ok(),
        Err(denied) => {
            let name = request_args.get(denied.at).unwrap_or_default();
            cx.reply.bulk(&denied.full_text(&user, command, name));
        }
    }
    Ok(())
}
