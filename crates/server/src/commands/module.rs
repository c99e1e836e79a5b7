//! MODULE: modules are not supported. The commands exist for clients that list modules.

use crate::commands::help;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, Protection, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_runtime::logging;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[MODULE];

const CHANGES: &[Flags] = &[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::NOSCRIPT];

/// MODULE
pub const MODULE: Command<SessionHandler> = Command::container(
    Spec::new("module", -2).doc(Group::Server, "4.0.0", "Depends on subcommand.", "A container for module commands."),
    &[
        Command::new(
            Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).doc(
                Group::Server,
                "5.0.0",
                "O(1)",
                "Returns help about the subcommands.",
            ),
            help,
        ),
        Command::new(
            Spec::new("list", 2)
                .flags(&[Flags::ADMIN, Flags::NOSCRIPT])
                .doc(
                    Group::Server,
                    "4.0.0",
                    "O(N) where N is the number of loaded modules.",
                    "Returns the loaded modules.",
                )
                .tips(&["nondeterministic_output_order"]),
            list,
        ),
        Command::new(
            Spec::new("load", -3)
                .flags(CHANGES)
                .protection(Protection::Module)
                .doc(Group::Server, "4.0.0", "O(1)", "Loads a module.")
                .args(&[Arg::string("path"), Arg::string("arg").optional().multiple()]),
            load,
        ),
        Command::new(
            Spec::new("loadex", -3)
                .flags(CHANGES)
                .protection(Protection::Module)
                .doc(Group::Server, "7.0.0", "O(1)", "Loads a module with configuration parameters.")
                .args(&[
                    Arg::string("path"),
                    Arg::block("configs", &[Arg::string("name"), Arg::string("value")])
                        .token("CONFIG")
                        .optional()
                        .multiple_token(),
                    Arg::string("args").token("ARGS").optional().multiple(),
                ]),
            load,
        ),
        Command::new(
            Spec::new("unload", 3)
                .flags(CHANGES)
                .protection(Protection::Module)
                .doc(Group::Server, "4.0.0", "O(1)", "Unloads a module.")
                .args(&[Arg::string("name")]),
            unload,
        ),
    ],
);

fn help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    help::reply(
        cx,
        "MODULE",
        &[
            "LIST",
            "    List the loaded modules. The list is always empty.",
            "LOAD <path> [<arg> ...]",
            "    Load a module. Not supported by Kvick.",
            "LOADEX <path> [CONFIG <name> <value> ...] [ARGS <arg> ...]",
            "    Load a module with configuration parameters. Not supported by Kvick.",
            "UNLOAD <name>",
            "    Unload a module. Not supported by Kvick.",
        ],
    );
    Ok(())
}

fn list(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.array(0);
    Ok(())
}

fn load(_: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let path = String::from_utf8_lossy(&args[2]);
    logging::warning(format_args!("Module {path} failed to load: Kvick does not support modules"));
    Err(Error::text("ERR Error loading the extension. Please check the server logs."))
}

fn unload(_: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    const REASON: &str = "no such module with that name";
    logging::warning(format_args!("Error unloading module {}: {REASON}", String::from_utf8_lossy(&args[2])));
    Err(Error::new(format!("ERR Error unloading module: {REASON}")))
}
