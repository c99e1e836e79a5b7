//! MONITOR: streams every executed command to a connection.

use kvick_commands::context::Error;
use kvick_commands::spec::{Command, Flags, Group, LockRule, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[MONITOR];

/// MONITOR
pub const MONITOR: Command<SessionHandler> = Command::new(
    Spec::new("monitor", 1)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        // No worker is in a batch: the monitor shows every command after the reply, and none from before.
        .lock(LockRule::Global)
        .doc(Group::Server, "1.0.0", "", "Streams every command that the server executes."),
    monitor,
);

/// A client that is already a monitor gets no reply, nor does a replica.
fn monitor(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    if cx.in_transaction {
        return Err(Error::text("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    if !cx.client.is_monitor() && cx.client.feed.is_none() {
        cx.client.begin_monitor(cx.server);
        cx.reply.ok();
    }
    Ok(())
}
