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
        .doc(Group::Server, "2.8.13", "O(N), N being the commands", "Returns information about all commands.")
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
        "Returns the number of commands.",
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
        "Returns help about the subcommands.",
    ),
    command_help,
);

fn command_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    help::reply(
        cx,
        "command",
        &[
            "(no subcommand)",
            "    Return information about all commands.",
            "COUNT",
            "    Return the number of commands.",
            "DOCS [<command-name> ...]",
            "    Return documentation of these commands, or of all.",
            "GETKEYS <full-command>",
            "    Return the keys of a full command.",
            "GETKEYSANDFLAGS <full-command>",
            "    Return the keys of a full command and their access flags.",
            "INFO [<command-name> ...]",
            "    Return information about these commands, or about all.",
            "LIST [FILTERBY (MODULE <module-name>|ACLCAT <category>|PATTERN <pattern>)]",
            "    Return the names of all commands and subcommands, or of those that match the filter.",
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
