//! TIME: the server's clock.

use kvick_commands::context::Error;
use kvick_commands::spec::{Command, Flags, Group, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[TIME];

const MICROSECONDS: i64 = 1_000_000;

/// TIME
pub const TIME: Command<SessionHandler> = Command::new(
    Spec::new("time", 1)
        .flags(&[Flags::LOADING, Flags::STALE, Flags::FAST])
        .doc(Group::Server, "2.6.0", "O(1)", "Returns the server time.")
        .tips(&["nondeterministic_output"]),
    time,
);

fn time(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    // Within a script, time does not advance.
    let now_us = cx.script_us.unwrap_or_else(kvick_runtime::clock::unix_us);
    cx.reply.array(2);
    cx.reply.bulk_int(now_us / MICROSECONDS);
    cx.reply.bulk_int(now_us % MICROSECONDS);
    Ok(())
}
