//! ACL: users, their permissions, and denied commands. The implementation is `kvick-acl`.

mod inspect;
mod log;
mod manage;
mod revoke;

use super::help;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, LockRule, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[ACL];

const OPEN: &[Flags] = &[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE];
const ADMIN: &[Flags] = &[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE];
const TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];
const USERNAME: Arg = Arg::string("username");
const USERS: &str = "O(N), N being the users";
const RULES: &str = "O(N), N being the user's rules";

const fn sub(name: &'static str, arity: i16, flags: &'static [Flags]) -> Spec {
    Spec::new(name, arity).flags(flags)
}

/// ACL
pub const ACL: Command<SessionHandler> = Command::container(
    Spec::new("acl", -2).doc(
        Group::Server,
        "6.0.0",
        "Depends on subcommand.",
        "A container for access control list commands.",
    ),
    &[
        Command::new(
            sub("cat", -2, OPEN)
                .doc(
                    Group::Server,
                    "6.0.0",
                    "O(N), N being the commands",
                    "Lists the ACL categories, or the commands of a category.",
                )
                .args(&[Arg::string("category").optional()]),
            inspect::cat,
        ),
        Command::new(
            // No worker is in a batch, so no command of a client with revoked permissions still runs.
            sub("deluser", -3, ADMIN)
                .lock(LockRule::Global)
                .doc(
                    Group::Server,
                    "6.0.0",
                    "O(N), N being the connections",
                    "Deletes users and closes their connections.",
                )
                .tips(TIPS)
                .args(&[USERNAME.multiple()]),
            manage::deluser,
        ),
        Command::new(
            sub("dryrun", -4, ADMIN)
                .doc(Group::Server, "7.0.0", "O(1).", "Checks whether a user may run a command, without running it.")
                .args(&[USERNAME, Arg::string("command"), Arg::string("arg").optional().multiple()]),
            inspect::dryrun,
        ),
        Command::new(
            sub("genpass", -2, OPEN)
                .doc(Group::Server, "6.0.0", "O(1)", "Generates a random password.")
                .args(&[Arg::integer("bits").optional()]),
            manage::genpass,
        ),
        Command::new(
            sub("getuser", 3, ADMIN)
                .doc(Group::Server, "6.0.0", RULES, "Returns the rules of a user.")
                .history(&[
                    ("6.2.0", "Patterns of channels."),
                    ("7.0.0", "Selectors; patterns of keys and channels are told as rules."),
                    ("9.1.0", "Databases."),
                ])
                .args(&[USERNAME]),
            inspect::getuser,
        ),
        Command::new(
            sub("help", 2, &[Flags::LOADING, Flags::STALE]).doc(
                Group::Server,
                "6.0.0",
                "O(1)",
                "Returns help about the subcommands.",
            ),
            acl_help,
        ),
        Command::new(
            sub("list", 2, ADMIN).doc(Group::Server, "6.0.0", USERS, "Lists the users as lines of an ACL file."),
            inspect::list,
        ),
        Command::new(
            sub("load", 2, ADMIN).lock(LockRule::Global).doc(
                Group::Server,
                "6.0.0",
                USERS,
                "Reloads the users from the ACL file.",
            ),
            manage::load,
        ),
        Command::new(
            sub("log", -2, ADMIN)
                .doc(Group::Server, "6.0.0", "O(N), N being the entries shown", "Returns recent security events.")
                .history(&[("7.2.0", "Number of the entry, and when it was made and changed.")])
                .args(&[Arg::one_of("operation", &[Arg::integer("count"), Arg::word("reset", "RESET")]).optional()]),
            log::log,
        ),
        Command::new(
            sub("save", 2, ADMIN).doc(Group::Server, "6.0.0", USERS, "Writes the users to the ACL file.").tips(TIPS),
            manage::save,
        ),
        Command::new(
            sub("setuser", -3, ADMIN)
                .lock(LockRule::Global)
                .doc(Group::Server, "6.0.0", RULES, "Creates or modifies a user and its rules.")
                .history(&[
                    ("6.2.0", "Patterns of channels."),
                    ("7.0.0", "Selectors, and rights to keys for reading and for writing."),
                    ("9.1.0", "Databases."),
                ])
                .tips(TIPS)
                .args(&[USERNAME, Arg::string("rule").optional().multiple()]),
            manage::setuser,
        ),
        Command::new(
            sub("users", 2, ADMIN).doc(Group::Server, "6.0.0", USERS, "Lists the names of the users."),
            inspect::users,
        ),
        Command::new(
            sub("whoami", 2, OPEN).doc(Group::Server, "6.0.0", "O(1)", "Returns the user of the connection."),
            inspect::whoami,
        ),
    ],
);

/// The error for a subcommand with a wrong number of arguments.
fn wrong_number(args: Args<'_>) -> Error {
    Error::bad_subcommand("ACL", args.get(1).unwrap_or_default())
}

fn acl_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    const LINES: &[&str] = &[
        "CAT [<category>]",
        "    Show the categories of commands, or the commands of <category>.",
        "DELUSER <username> [<username> ...]",
        "    Delete users and close their connections.",
        "DRYRUN <username> <command> [<arg> ...]",
        "    Check whether the user may run the command, without running it.",
        "GETUSER <username>",
        "    Show the rules of the user.",
        "GENPASS [<bits>]",
        "    Generate a random password of <bits> bits (default: 256).",
        "LIST",
        "    Show the users as lines of an ACL file.",
        "LOAD",
        "    Read the users from the ACL file again.",
        "LOG [<count> | RESET]",
        "    Show the latest denials, or clear them.",
        "SAVE",
        "    Write the users to the ACL file.",
        "SETUSER <username> <rule> [<rule> ...]",
        "    Create or change a user by applying rules to it.",
        "USERS",
        "    Show the names of the users.",
        "WHOAMI",
        "    Show the user of this connection.",
    ];
    help::reply(cx, "ACL", LINES);
    Ok(())
}
