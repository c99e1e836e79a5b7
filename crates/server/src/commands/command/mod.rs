//! COMMAND: introspection of the command table.
//!
//! - [`info`]: COMMAND and COMMAND INFO, for clients that route requests.
//! - [`docs`]: COMMAND DOCS, for interactive clients.
//! - [`keys`]: COMMAND GETKEYS and GETKEYSANDFLAGS.
//! - [`list`]: COMMAND LIST.
//!
//! A subcommand's name includes its container, as in `client|id`. Sets of words are sets of statuses, as in the
//! reference.

pub mod docs;
pub mod info;
pub mod keys;
pub mod list;

use super::help;
use kvick_commands::context::Error;
use kvick_commands::spec::{Categories, Command, Flags, Group, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::{Args, Reply};

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[COMMAND];

/// COMMAND
pub const COMMAND: Command<SessionHandler> = Command::with_subcommands(
    Spec::new("command", -1)
        .flags(&[Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Server, "2.8.13", "O(N), N being the commands", "Tells the facts of all commands.")
        .tips(&["nondeterministic_output_order"]),
    info::all,
    &[COUNT, docs::DOCS, keys::GETKEYS, keys::GETKEYSANDFLAGS, HELP, info::INFO, list::LIST],
);

/// COMMAND COUNT
pub const COUNT: Command<SessionHandler> = Command::new(
    Spec::new("count", 2).flags(&[Flags::LOADING, Flags::STALE]).acl(&[Categories::CONNECTION]).doc(
        Group::Server,
        "2.8.13",
        "O(1)",
        "Counts the commands.",
    ),
    count,
);

fn count(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.uint(cx.server.catalogue.top_level().len() as u64);
    Ok(())
}

/// COMMAND HELP
pub const HELP: Command<SessionHandler> = Command::new(
    Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).acl(&[Categories::CONNECTION]).doc(
        Group::Server,
        "5.0.0",
        "O(1)",
        "Lists the subcommands.",
    ),
    command_help,
);

fn command_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    help::reply(
        cx,
        "command",
        &[
            "(no subcommand)",
            "    The facts of all commands.",
            "COUNT",
            "    How many commands there are.",
            "DOCS [<command-name> ...]",
            "    The documentation of these commands, or of all.",
            "GETKEYS <full-command>",
            "    The keys in a request.",
            "GETKEYSANDFLAGS <full-command>",
            "    The keys in a request, and how each is used.",
            "INFO [<command-name> ...]",
            "    The facts of these commands, or of all.",
            "LIST [FILTERBY (MODULE <module-name>|ACLCAT <category>|PATTERN <pattern>)]",
            "    The names of all commands and subcommands, or of those to which the filter applies.",
        ],
    );
    Ok(())
}

/// Replies with a set of words.
fn reply_words<W: AsRef<[u8]>>(reply: &mut Reply<'_>, words: impl IntoIterator<Item = W>) {
    let mark = reply.deferred();
    let count = words.into_iter().map(|word| reply.simple(word)).count();
    reply.set_set_len(mark, count);
}

/// Replies with a field name and a text.
fn reply_field(reply: &mut Reply<'_>, field: &str, text: &str) {
    reply.bulk(field.as_bytes());
    reply.bulk(text.as_bytes());
}
