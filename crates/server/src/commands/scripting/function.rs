//! FUNCTION: function libraries.

use crate::commands::help;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_config::tables::persistence::RDBCOMPRESSION;
use kvick_engine::session::{Session, SessionHandler};
use kvick_rdb::{VERSION, VersionCheck, WriteOptions, dump_functions, restore_functions};
use kvick_resp::Args;
use kvick_resp::glob;
use kvick_scripting::functions::{Function, LOAD_TIME_MAX, Library};
use kvick_scripting::libraries::RestorePolicy;
use kvick_scripting::running::Kind;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[FUNCTION];

const ALL_SUCCEEDED: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];

/// FUNCTION
pub const FUNCTION: Command<SessionHandler> = Command::container(
    Spec::new("function", -2).doc(
        Group::Scripting,
        "7.0.0",
        "Depends on subcommand.",
        "A container for function commands.",
    ),
    &[
        Command::new(
            write_subcommand("delete", 3, &[])
                .doc(Group::Scripting, "7.0.0", "O(1)", "Deletes a library and its functions.")
                .args(&[Arg::string("library-name")]),
            delete,
        ),
        Command::new(
            about("dump", 2, &[Flags::NOSCRIPT]).doc(
                Group::Scripting,
                "7.0.0",
                "O(N) where N is the number of functions",
                "Dumps all libraries into a serialized payload.",
            ),
            dump,
        ),
        Command::new(
            write_subcommand("flush", -2, &[])
                .doc(
                    Group::Scripting,
                    "7.0.0",
                    "O(N) where N is the number of functions deleted",
                    "Deletes all libraries.",
                )
                .args(&[
                    Arg::one_of("flush-type", &[Arg::word("async", "ASYNC"), Arg::word("sync", "SYNC")]).optional()
                ]),
            flush,
        ),
        Command::new(
            about("help", 2, &[Flags::LOADING, Flags::STALE]).doc(
                Group::Scripting,
                "7.0.0",
                "O(1)",
                "Returns help about the subcommands.",
            ),
            help,
        ),
        Command::new(
            about("kill", 2, &[Flags::NOSCRIPT, Flags::ALLOW_BUSY])
                .doc(Group::Scripting, "7.0.0", "O(1)", "Terminates the running function.")
                .tips(&["request_policy:all_shards", "response_policy:one_succeeded"]),
            kill,
        ),
        Command::new(
            about("list", -2, &[Flags::NOSCRIPT])
                .doc(
                    Group::Scripting,
                    "7.0.0",
                    "O(N) where N is the number of functions",
                    "Returns information about libraries.",
                )
                .tips(&["nondeterministic_output_order"])
                .args(&[
                    Arg::string("library-name-pattern").token("LIBRARYNAME").optional(),
                    Arg::word("withcode", "WITHCODE").optional(),
                ]),
            list,
        ),
        Command::new(
            write_subcommand("load", -3, &[Flags::DENYOOM])
                .doc(
                    Group::Scripting,
                    "7.0.0",
                    "O(1) (considering compilation time is redundant)",
                    "Creates a library.",
                )
                .args(&[Arg::word("replace", "REPLACE").optional(), Arg::string("function-code")]),
            load,
        ),
        Command::new(
            write_subcommand("restore", -3, &[Flags::DENYOOM])
                .doc(
                    Group::Scripting,
                    "7.0.0",
                    "O(N) where N is the number of functions on the payload",
                    "Restores libraries from a serialized payload.",
                )
                .args(&[
                    Arg::string("serialized-value"),
                    Arg::one_of(
                        "policy",
                        &[Arg::word("flush", "FLUSH"), Arg::word("append", "APPEND"), Arg::word("replace", "REPLACE")],
                    )
                    .optional(),
                ]),
            restore,
        ),
        Command::new(
            about("stats", 2, &[Flags::NOSCRIPT, Flags::ALLOW_BUSY])
                .doc(Group::Scripting, "7.0.0", "O(1)", "Returns information about the running function.")
                .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"]),
            stats,
        ),
    ],
);

const fn about(name: &'static str, arity: i16, flags: &[Flags]) -> Spec {
    Spec::new(name, arity).flags(flags).acl(&[Categories::SCRIPTING])
}

/// Changes of libraries need exclusive access to the interpreter and to the data.
const fn write_subcommand(name: &'static str, arity: i16, flags: &[Flags]) -> Spec {
    about(name, arity, flags).flags(&[Flags::NOSCRIPT, Flags::WRITE]).lock(LockRule::Global).tips(ALL_SUCCEEDED)
}

fn help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    help::reply(
        cx,
        "FUNCTION",
        &[
            "LOAD [REPLACE] <FUNCTION CODE>",
            "    Create a library from this code; returns its name.",
            "DELETE <LIBRARY NAME>",
            "    Delete a library.",
            "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
            "    Describe all libraries, or those whose names match: name, engine, functions, and the",
            "    code if WITHCODE is given.",
            "STATS",
            "    Describe the running function (name, command, and duration in milliseconds)",
            "    and the engines.",
            "KILL",
            "    Terminate the running function, unless it has written.",
            "FLUSH [ASYNC|SYNC]",
            "    Delete all libraries. The default mode is set by lazyfree-lazy-user-flush:",
            "    * ASYNC: free their memory in the background.",
            "    * SYNC: free their memory synchronously.",
            "DUMP",
            "    Return all libraries as a serialized payload, for FUNCTION RESTORE.",
            "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
            "    Create the libraries of a payload. The policy for existing libraries is:",
            "    * FLUSH: delete all of them.",
            "    * APPEND: keep them; a name that exists is an error. This is the default.",
            "    * REPLACE: replace those of the same name; it is an error if another library has a",
            "      function of the same name.",
        ],
    );
    Ok(())
}

fn load(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let options = args.len() - 1;
    let mut replace = false;
    for word in args.iter().take(options).skip(2) {
        if !word.eq_ignore_ascii_case(b"replace") {
            return Err(Error::quoting(&[b"ERR Unknown option given: ", word]));
        }
        replace = true;
    }
    let name = cx.server.scripting.load_library(cx.server, &args[options], replace, Some(LOAD_TIME_MAX))?;
    cx.effects.changed(1);
    cx.reply.bulk(name.as_bytes());
    Ok(())
}

fn delete(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.server.scripting.delete_library(cx.server, &args[2])?;
    cx.effects.changed(1);
    cx.reply.ok();
    Ok(())
}

fn flush(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() > 3 {
        return Err(Error::bad_subcommand("FUNCTION", &args[1]));
    }
    let lazy = match args.get(2).map(<[u8]>::to_ascii_lowercase).as_deref() {
        None => cx.settings.lazy_user_flush,
        Some(b"async") => true,
        Some(b"sync") => false,
        Some(_) => return Err(Error::text("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")),
    };
    cx.server.scripting.flush_libraries(lazy)?;
    cx.effects.changed(1);
    cx.reply.ok();
    Ok(())
}

fn kill(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.server.scripting.running.kill(Kind::Function, cx.server)?;
    cx.reply.ok();
    Ok(())
}

fn dump(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let options = WriteOptions { version: VERSION, compress: cx.server.config.read(RDBCOMPRESSION), checksum: true };
    cx.reply.bulk(&dump_functions(&cx.server.scripting.library_sources(), &options));
    Ok(())
}

fn restore(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() > 4 {
        return Err(Error::bad_subcommand("FUNCTION", &args[1]));
    }
    let join = match args.get(3).map(<[u8]>::to_ascii_lowercase).as_deref() {
        None | Some(b"append") => RestorePolicy::Append,
        Some(b"replace") => RestorePolicy::Replace,
        Some(b"flush") => RestorePolicy::Flush,
        Some(_) => {
            return Err(Error::text(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    let check = if cx.settings.rdb_version_relaxed { VersionCheck::Relaxed } else { VersionCheck::Strict };
    let sources = restore_functions(&args[2], check, true).map_err(|error| Error::new(format!("ERR {error}")))?;
    cx.server.scripting.restore_libraries(cx.server, &sources, join)?;
    cx.effects.changed(1);
    cx.reply.ok();
    Ok(())
}

/// The options of FUNCTION LIST.
#[derive(Default)]
struct Listing<'a> {
    pattern: Option<&'a [u8]>,
    with_code: bool,
}

impl<'a> Listing<'a> {
    fn parse(args: Args<'a>) -> Result<Self, Error> {
        let mut listing = Listing::default();
        let mut words = args.iter().skip(2);
        while let Some(word) = words.next() {
            if !listing.with_code && word.eq_ignore_ascii_case(b"withcode") {
                listing.with_code = true;
            } else if listing.pattern.is_none() && word.eq_ignore_ascii_case(b"libraryname") {
                let pattern = words.next().ok_or(Error::text("ERR library name argument was not given"))?;
                listing.pattern = Some(pattern);
            } else {
                return Err(Error::quoting(&[b"ERR Unknown argument ", word]));
            }
        }
        Ok(listing)
    }

    fn includes(&self, library: &Library) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, library.name.as_bytes(), true))
    }
}

fn list(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let listing = Listing::parse(args)?;
    let libraries = cx.server.scripting.libraries.read();
    let listed: Vec<_> = libraries.all().filter(|library| listing.includes(library)).collect();
    cx.reply.array(listed.len());
    for library in listed {
        cx.reply.map(if listing.with_code { 4 } else { 3 });
        cx.reply.bulk(b"library_name");
        cx.reply.bulk(library.name.as_bytes());
        cx.reply.bulk(b"engine");
        cx.reply.bulk(b"LUA");
        cx.reply.bulk(b"functions");
        cx.reply.array(library.functions.len());
        library.functions.iter().for_each(|function| describe(cx, function));
        if listing.with_code {
            cx.reply.bulk(b"library_code");
            cx.reply.bulk(&library.code);
        }
    }
    Ok(())
}

fn describe(cx: &mut Session<'_>, function: &Function) {
    cx.reply.map(3);
    cx.reply.bulk(b"name");
    cx.reply.bulk(function.name.as_bytes());
    cx.reply.bulk(b"description");
    match &function.description {
        Some(description) => cx.reply.bulk(description),
        None => cx.reply.null(),
    }
    cx.reply.bulk(b"flags");
    let flags: Vec<_> = function.flags.names().collect();
    cx.reply.set(flags.len());
    flags.into_iter().for_each(|flag| cx.reply.simple(flag));
}

fn stats(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let scripting = &cx.server.scripting;
    let current = scripting.running.current();
    if current.as_ref().is_some_and(|current| current.kind == Kind::Script) {
        return Err(Kind::Script.busy(cx.server));
    }
    let reply = &mut cx.reply;
    reply.map(2);
    reply.bulk(b"running_script");
    match current {
        None => reply.null(),
        Some(current) => {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(current.name.as_bytes());
            reply.bulk(b"command");
            let command = current.command.args();
            reply.array(command.len());
            command.iter().for_each(|word| reply.bulk(word));
            reply.bulk(b"duration_ms");
            reply.uint(current.began.elapsed().as_millis() as u64);
        }
    }
    let libraries = scripting.libraries.read();
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(b"LUA");
    reply.map(2);
    reply.bulk(b"libraries_count");
    reply.uint(libraries.len() as u64);
    reply.bulk(b"functions_count");
    reply.uint(libraries.functions() as u64);
    Ok(())
}
