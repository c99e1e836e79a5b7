//! SCRIPT: cached scripts.

use crate::commands::help;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_scripting::debugging::Mode;
use kvick_scripting::running::Kind;
use kvick_scripting::script_call::UNKNOWN;
use kvick_scripting::scripts::Sum;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[SCRIPT];

const ALL_SUCCEEDED: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

/// SCRIPT
pub const SCRIPT: Command<SessionHandler> = Command::container(
    Spec::new("script", -2).doc(
        Group::Scripting,
        "2.6.0",
        "Depends on subcommand.",
        "A container for Lua script commands.",
    ),
    &[
        Command::new(
            about("debug", -3, &[Flags::NOSCRIPT])
                .doc(Group::Scripting, "3.2.0", "O(1)", "Sets the debug mode of subsequent scripts.")
                .args(&[
                    Arg::one_of("mode", &[Arg::word("yes", "YES"), Arg::word("sync", "SYNC"), Arg::word("no", "NO")]),
                    Arg::string("engine").optional().since("9.1.0"),
                ]),
            debug,
        ),
        Command::new(
            about("exists", -3, &[Flags::NOSCRIPT, Flags::STALE])
                .doc(
                    Group::Scripting,
                    "2.6.0",
                    "O(N) with N being the number of scripts to check (so checking a single script is an O(1) \
                     operation).",
                    "Returns whether scripts are in the script cache.",
                )
                .tips(&["request_policy:all_shards", "response_policy:agg_logical_and"])
                .args(&[Arg::string("sha1").multiple()]),
            exists,
        ),
        Command::new(
            about("flush", -2, &[Flags::NOSCRIPT, Flags::STALE])
                .lock(LockRule::Global)
                .doc(
                    Group::Scripting,
                    "2.6.0",
                    "O(N) with N being the number of scripts in cache",
                    "Removes all scripts from the script cache.",
                )
                .history(&[("6.2.0", "The words `ASYNC` and `SYNC` are new.")])
                .tips(ALL_SUCCEEDED)
                .args(&[Arg::one_of("flush-type", &[Arg::word("async", "ASYNC"), Arg::word("sync", "SYNC")])
                    .optional()
                    .since("6.2.0")]),
            flush,
        ),
        Command::new(
            about("help", 2, &[Flags::LOADING, Flags::STALE]).doc(
                Group::Scripting,
                "5.0.0",
                "O(1)",
                "Returns help about the subcommands.",
            ),
            help,
        ),
        Command::new(
            about("kill", 2, &[Flags::NOSCRIPT, Flags::ALLOW_BUSY])
                .doc(Group::Scripting, "2.6.0", "O(1)", "Terminates the running script.")
                .tips(&["request_policy:all_shards", "response_policy:one_succeeded"]),
            kill,
        ),
        Command::new(
            about("load", 3, &[Flags::NOSCRIPT, Flags::STALE])
                .lock(LockRule::Global)
                .doc(
                    Group::Scripting,
                    "2.6.0",
                    "O(N) with N being the length in bytes of the script body.",
                    "Loads a script into the script cache.",
                )
                .tips(ALL_SUCCEEDED)
                .args(&[Arg::string("script")]),
            load,
        ),
        Command::new(
            about("show", 3, &[Flags::NOSCRIPT, Flags::STALE])
                .doc(Group::Scripting, "8.0.0", "O(1).", "Returns the source of a cached script.")
                .args(&[Arg::string("sha1")]),
            show,
        ),
    ],
);

const fn about(name: &'static str, arity: i16, flags: &[Flags]) -> Spec {
    Spec::new(name, arity).flags(flags).acl(&[Categories::SCRIPTING])
}

fn help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    help::reply(
        cx,
        "SCRIPT",
        &[
            "DEBUG (YES|SYNC|NO) [<engine_name>]",
            "    Run scripts of EVAL on this connection in the debugger:",
            "    * YES: in a forked process, whose writes are discarded.",
            "    * SYNC: in the server, while other clients wait.",
            "    * NO: disable the debugger.",
            "EXISTS <sha1> [<sha1> ...]",
            "    For each SHA1 sum, return whether the script is cached.",
            "FLUSH [ASYNC|SYNC]",
            "    Remove all cached scripts. The default mode is set by lazyfree-lazy-user-flush:",
            "    * ASYNC: free their memory in the background.",
            "    * SYNC: free their memory synchronously.",
            "KILL",
            "    Terminate the running script, unless it has written.",
            "LOAD <script>",
            "    Load a script into the cache without running it; returns its SHA1 sum.",
            "SHOW <sha1>",
            "    Return the source of a cached script.",
        ],
    );
    Ok(())
}

fn debug(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() > 4 {
        return Err(Error::bad_subcommand("SCRIPT", &args[1]));
    }
    if let Some(name) = args.get(3)
        && !name.eq_ignore_ascii_case(b"lua")
    {
        let text = b"ERR No scripting engine found with name '";
        return Err(Error::quoting(&[text, name, b"' to enable debug"]));
    }
    cx.client.debugging = match &*args[2].to_ascii_lowercase() {
        b"no" => None,
        b"yes" => Some(Mode::Beside),
        b"sync" => Some(Mode::Sync),
        _ => return Err(Error::text("ERR Use SCRIPT DEBUG YES/SYNC/NO")),
    };
    cx.reply.ok();
    Ok(())
}

fn exists(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let scripts = cx.server.scripting.scripts.lock();
    cx.reply.array(args.len() - 2);
    for word in args.iter().skip(2) {
        let known = Sum::read(word).is_some_and(|sum| scripts.get(&sum).is_some());
        cx.reply.int(known.into());
    }
    Ok(())
}

fn flush(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let lazy = match args.get(2).map(<[u8]>::to_ascii_lowercase).as_deref() {
        None => cx.settings.lazy_user_flush,
        Some(b"async") if args.len() == 3 => true,
        Some(b"sync") if args.len() == 3 => false,
        _ => return Err(Error::text("ERR SCRIPT FLUSH only support SYNC|ASYNC option")),
    };
    cx.server.scripting.flush_scripts(lazy)?;
    cx.reply.ok();
    Ok(())
}

fn kill(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.server.scripting.running.kill(Kind::Script, cx.server)?;
    cx.reply.ok();
    Ok(())
}

fn load(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let sum = Sum::of(&args[2]);
    cx.server.scripting.load_script(cx.server, &sum, &args[2])?;
    cx.reply.bulk(sum.digits());
    Ok(())
}

fn show(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let sum = Sum::read(&args[2]).ok_or(UNKNOWN)?;
    let scripts = cx.server.scripting.scripts.lock();
    cx.reply.bulk(scripts.text(&sum).ok_or(UNKNOWN)?);
    Ok(())
}
