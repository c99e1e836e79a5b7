//! ROLE: what the server is in replication.

use crate::session::{Session, SessionHandler};
use kvick_commands::context::Error;
use kvick_commands::spec::{Categories, Command, Flags, Group, Spec};
use kvick_resp::Args;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[ROLE];

/// ROLE
pub const ROLE: Command<SessionHandler> = Command::new(
    Spec::new("role", 1)
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS])
        .doc(Group::Server, "2.8.12", "O(1)", "Returns the server's role in replication."),
    role,
);

/// A primary tells its offset and its replicas, of which it has none.
fn role(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.array(3);
    cx.reply.bulk(b"master");
    cx.reply.uint(cx.server.keyspace.log.offset());
    cx.reply.array(0);
    Ok(())
}
