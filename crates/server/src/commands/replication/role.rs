//! ROLE: the server's role in replication.

use kvick_commands::context::Error;
use kvick_commands::spec::{Categories, Command, Flags, Group, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_replication::replicas::Stage;
use kvick_resp::Args;
use std::sync::atomic::Ordering;

/// ROLE
pub const ROLE: Command<SessionHandler> = Command::new(
    Spec::new("role", 1)
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS])
        .doc(Group::Server, "2.8.12", "O(1)", "Returns the replication role."),
    role,
);

/// A primary reports its offset and its replicas; a replica reports its primary.
fn role(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let (replication, offset) = (&cx.server.replication, cx.server.keyspace.log.offset());
    if let Some(primary) = replication.upstream.target() {
        let stage = replication.upstream.stage();
        cx.reply.array(5);
        cx.reply.bulk(b"slave");
        cx.reply.bulk(primary.host.as_bytes());
        cx.reply.int(primary.port.into());
        cx.reply.bulk(stage.name().as_bytes());
        cx.reply.int(if replication.upstream.is_connected() { offset as i64 } else { -1 });
        return Ok(());
    }
    let replicas: Vec<_> =
        replication.replicas.all().into_iter().filter(|replica| replica.stage() == Stage::Online).collect();
    cx.reply.array(3);
    cx.reply.bulk(b"master");
    cx.reply.uint(offset);
    cx.reply.array(replicas.len());
    for replica in replicas {
        cx.reply.array(3);
        cx.reply.bulk(replica.address().as_bytes());
        cx.reply.bulk(replica.port.load(Ordering::Relaxed).to_string().as_bytes());
        cx.reply.bulk(replica.applied.load(Ordering::Acquire).to_string().as_bytes());
    }
    Ok(())
}
