//! Commands about the connection they come from.

use crate::session::{Session, SessionHandler};
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_resp::Args;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[PING];

/// PING
pub const PING: Command<SessionHandler> = Command::new(
    Spec::new("ping", -1)
        .flags(&[Flags::FAST])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "1.0.0", "O(1)", "Answers PONG, or the given message.")
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .args(&[Arg::string("message").optional()]),
    ping,
);

fn ping(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    match args.len() {
        1 => cx.reply.simple("PONG"),
        2 => cx.reply.bulk(&args[1]),
        _ => return Err(Error::text("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}
