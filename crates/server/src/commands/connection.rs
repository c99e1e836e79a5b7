//! Commands about the calling connection: greeting, authentication, database, end. For other connections see
//! [`client`](super::client).

use super::client::names;
use kvick_acl::identity::{Identity, note};
use kvick_acl::log::{Cause, Context, Event};
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec, is_database};
use kvick_config::tables::{cluster, process};
use kvick_core::clients::ClientFlags;
use kvick_core::clients::DEFAULT_USER;
use kvick_engine::session::{Client, Fate, ReplyMode, Session, SessionHandler};
use kvick_resp::format::parse_i64;
use kvick_resp::{Args, Version};
use kvick_runtime::version;
use smallvec::smallvec;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[HELLO, AUTH, SELECT, READONLY, READWRITE, QUIT, RESET];

/// HELLO [protover [AUTH username password] [SETNAME clientname]]
pub const HELLO: Command<SessionHandler> = Command::new(
    Spec::new("hello", -1)
        .flags(&[Flags::LOGS_IN])
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::NO_AUTH, Flags::ALLOW_BUSY])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "6.0.0", "O(1)", "Negotiates the protocol version and describes the server.")
        .history(&[
            ("8.1.0", "Added `availability_zone` to the reply, if configured."),
            ("6.2.0", "`protover` became optional."),
        ])
        .args(&[Arg::block(
            "arguments",
            &[
                Arg::integer("protover"),
                Arg::block("auth", &[Arg::string("username"), Arg::string("password")]).token("AUTH").optional(),
                Arg::string("clientname").token("SETNAME").optional(),
            ],
        )
        .optional()]),
    hello,
);

/// The name and password of a user.
struct Credentials<'a> {
    user: &'a [u8],
    password: &'a [u8],
}

/// The options of HELLO.
struct HelloOptions<'a> {
    version: Option<Version>,
    credentials: Option<Credentials<'a>>,
    name: Option<&'a [u8]>,
}

fn hello(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let options = parse_hello(cx.client, args)?;
    if let Some(Credentials { user, password }) = options.credentials {
        authenticate(cx, &args[0], user, password)?;
    }
    if !cx.client.identity.authenticated {
        return Err(Error::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time",
        ));
    }
    if let Some(name) = options.name {
        names::set_name(cx.client, name);
    }
    if let Some(version) = options.version {
        cx.client.set_version(version);
        cx.reply.set_version(version);
    }
    reply_about_server(cx);
    Ok(())
}

fn parse_hello<'a>(client: &mut Client, args: Args<'a>) -> Result<HelloOptions<'a>, Error> {
    let mut options = HelloOptions { version: None, credentials: None, name: None };
    let Some(number) = args.get(1) else { return Ok(options) };
    options.version = Some(match parse_i64(number) {
        Some(2) => Version::Resp2,
        Some(3) => Version::Resp3,
        Some(_) => return Err(Error::text("NOPROTO unsupported protocol version")),
        None => return Err(Error::text("ERR Protocol version is not an integer or out of range")),
    });
    let mut at = 2;
    while let Some(option) = args.get(at) {
        if let (true, Some(user), Some(password)) =
            (option.eq_ignore_ascii_case(b"AUTH"), args.get(at + 1), args.get(at + 2))
        {
            [at + 1, at + 2].into_iter().for_each(|secret| client.redact(secret));
            options.credentials = Some(Credentials { user, password });
            at += 3;
        } else if let (true, Some(name)) = (option.eq_ignore_ascii_case(b"SETNAME"), args.get(at + 1)) {
            names::check_name(name)?;
            options.name = Some(name);
            at += 2;
        } else {
            return Err(Error::quoting(&[b"ERR Syntax error in HELLO option '", option, b"'"]));
        }
    }
    Ok(options)
}

fn reply_about_server(cx: &mut Session<'_>) {
    let config = &cx.server.config;
    let zone = config.read(cluster::AVAILABILITY_ZONE);
    let (server, version) = match config.read(process::EXTENDED_REDIS_COMPATIBILITY) {
        true => ("redis", version::REDIS),
        false => ("valkey", version::VALKEY),
    };
    let reply = &mut cx.reply;
    reply.map(if zone.is_empty() { 7 } else { 8 });
    for (field, value) in [("server", server), ("version", version)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.int(if reply.version() == Version::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.uint(cx.client.info.id);
    // A client whose requests are forwarded may treat this server as if it were alone, and write to it.
    let forwards = cx.client.forwarding.is_some();
    let mode = if cx.server.routing.is_some() && !forwards { "cluster" } else { "standalone" };
    let role = if cx.server.replication.upstream.is_replica() && !forwards { "replica" } else { "master" };
    for (field, value) in [("mode", mode), ("role", role)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    if !zone.is_empty() {
        reply.bulk(b"availability_zone");
        reply.bulk(&zone);
    }
}

/// `AUTH [username] password`
pub const AUTH: Command<SessionHandler> = Command::new(
    Spec::new("auth", -2)
        .flags(&[Flags::LOGS_IN])
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::NO_AUTH, Flags::ALLOW_BUSY])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "1.0.0", "O(N), N being the user's passwords", "Authenticates the connection.")
        .history(&[("6.0.0", "Added the username argument.")])
        .args(&[Arg::string("username").optional().since("6.0.0"), Arg::string("password")]),
    auth,
);

fn auth(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    (1..args.len()).for_each(|secret| cx.client.redact(secret));
    if args.len() > 3 {
        return Err(Error::SYNTAX);
    }
    let (user, password) = match args.len() {
        2 if cx.server.acl.default_user().nopass => {
            return Err(Error::text(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ));
        }
        2 => (DEFAULT_USER, &args[1]),
        _ => (&args[1], &args[2]),
    };
    authenticate(cx, &args[0], user, password)?;
    cx.reply.ok();
    Ok(())
}

fn authenticate(cx: &mut Session<'_>, word: &[u8], name: &[u8], password: &[u8]) -> Result<(), Error> {
    let server = cx.server;
    let epoch = server.admission.rights();
    match server.acl.log_in(name, password) {
        Some(user) => {
            cx.client.log_in(user, epoch);
            Ok(())
        }
        None => {
            let context = if cx.in_transaction { Context::Multi } else { Context::TopLevel };
            let event = Event { cause: Cause::Auth, context, object: word, user: name, now_ms: cx.now_ms };
            cx.client.publish();
            note(server, &server.acl, &cx.client.info, &event);
            Err(Error::text("WRONGPASS invalid username-password pair or user is disabled."))
        }
    }
}

/// SELECT index
pub const SELECT: Command<SessionHandler> = Command::new(
    Spec::new("select", 2)
        .flags(&[Flags::SELECTS])
        .databases(|args, count| is_database(args.get(1)?, count).then(|| smallvec![1]))
        .flags(&[Flags::ALLOW_BUSY, Flags::LOADING, Flags::STALE, Flags::FAST])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "1.0.0", "O(1)", "Selects the database of the connection.")
        .args(&[Arg::integer("index")]),
    select,
);

fn select(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let index = parse_i64(&args[1]).ok_or(Error::NOT_INTEGER)?;
    let index = i32::try_from(index)
        .map_err(|_| Error::text("ERR value is out of range, value must between -2147483648 and 2147483647"))?;
    match usize::try_from(index) {
        Ok(index) if index < cx.server.keyspace.databases() => cx.client.select(index),
        _ => return Err(Error::text("ERR DB index is out of range")),
    }
    cx.reply.ok();
    Ok(())
}

/// READONLY
pub const READONLY: Command<SessionHandler> = Command::new(
    about_replicas("readonly").doc(Group::Cluster, "3.0.0", "O(1)", "Enables read-only commands on a cluster replica."),
    readonly,
);

/// READWRITE
pub const READWRITE: Command<SessionHandler> = Command::new(
    about_replicas("readwrite").doc(
        Group::Cluster,
        "3.0.0",
        "O(1)",
        "Disables read-only commands on a cluster replica.",
    ),
    readwrite,
);

const fn about_replicas(name: &'static str) -> Spec {
    Spec::new(name, 1).flags(&[Flags::LOADING, Flags::STALE, Flags::FAST]).acl(&[Categories::CONNECTION])
}

/// Clients that read from replicas send this to every server, so it is accepted on a primary and without a cluster too.
fn readonly(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.client.info.set_flags(ClientFlags::READONLY, true);
    cx.reply.ok();
    Ok(())
}

fn readwrite(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.client.info.set_flags(ClientFlags::READONLY, false);
    cx.reply.ok();
    Ok(())
}

/// QUIT
pub const QUIT: Command<SessionHandler> = Command::new(
    Spec::new("quit", -1)
        .flags(&[Flags::IMMEDIATE, Flags::SUBSCRIBED])
        .flags(&[Flags::ALLOW_BUSY, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::NO_AUTH])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "1.0.0", "O(1)", "Closes the connection."),
    quit,
);

fn quit(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.ok();
    cx.client.fate = Fate::CloseAfterReply;
    Ok(())
}

/// RESET
pub const RESET: Command<SessionHandler> = Command::new(
    Spec::new("reset", 1)
        .flags(&[Flags::IMMEDIATE, Flags::SUBSCRIBED, Flags::UNWATCHES])
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::NO_AUTH, Flags::ALLOW_BUSY])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "6.2.0", "O(1)", "Resets the state of the connection."),
    reset,
);

fn reset(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let client = &mut *cx.client;
    client.unsubscribe_all(&cx.server.pubsub);
    client.stop_tracking(cx.server);
    client.end_monitor(cx.server);
    client.select(0);
    client.set_version(Version::Resp2);
    client.assume(Identity::for_new_connection(cx.server, &cx.server.acl));
    client.is_reset = true;
    names::set_name(client, b"");
    let chosen = ClientFlags::NO_TOUCH | ClientFlags::NO_EVICT | ClientFlags::IMPORT_SOURCE | ClientFlags::READONLY;
    client.info.set_flags(chosen, false);
    // CLIENT REPLY SKIP still suppresses the reply of this command.
    if client.reply_mode == ReplyMode::Off {
        client.reply_mode = ReplyMode::On;
    }
    cx.reply.set_version(Version::Resp2);
    cx.reply.simple("RESET");
    Ok(())
}
