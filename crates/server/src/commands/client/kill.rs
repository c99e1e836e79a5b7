//! CLIENT KILL.
//!
//! A killed client is marked, so that its commands no longer run and it is invisible to other clients; then its worker
//! closes the connection. The calling client receives its reply before its own connection closes.

use super::arguments;
use super::filter::{Filter, known};
use kvick_commands::context::Error;
use kvick_commands::spec::{Categories, Command, Flags, Group, LockRule, Spec};
use kvick_core::message::Message;
use kvick_engine::session::{Fate, Session, SessionHandler};
use kvick_resp::Args;
use std::sync::atomic::Ordering;

/// CLIENT KILL ip:port | option value [option value ...]
pub const KILL: Command<SessionHandler> = Command::new(
    Spec::new("kill", -3)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        // No worker is in a batch: when the caller receives its reply, no command of the killed clients runs any more.
        .lock(LockRule::Global)
        .doc(Group::Connection, "2.4.0", "O(N), N being the connections", "Closes connections.")
        .history(&[
            ("2.8.12", "Filters as options."),
            ("2.8.12", "The filter `ID`."),
            ("3.2.0", "The type `master`."),
            ("5.0.0", "The type `replica`, for `slave`, which is still understood."),
            ("6.2.0", "The filter `LADDR`."),
            ("8.0.0", "The filter `MAXAGE`."),
            ("8.0.0", "The type `primary`, for `master`, which is still understood."),
            ("8.1.0", "Several numbers behind `ID`."),
            ("9.0.0", "The filters NAME, IDLE, FLAGS, LIB-NAME, LIB-VER, DB, CAPA and IP, and negations."),
        ])
        .args(arguments::KILL),
    kill,
);

fn kill(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let by_address = args.len() == 3;
    let filter = if by_address {
        Filter::by_address(&args[2])
    } else {
        Filter::parse(args.slice_from(2), true, known(cx.server))?
    };
    let own_id = cx.client.info.id;
    let mut killed = 0;
    for client in cx.server.clients.all() {
        if !filter.matches(&client, own_id, cx.now_ms) {
            continue;
        }
        if client.id == own_id {
            killed += 1;
            cx.client.fate = Fate::CloseAfterReply;
        } else if !client.doomed.swap(true, Ordering::SeqCst) {
            killed += 1;
            cx.server.send(client.worker(), Message::Close(client));
        }
    }
    match (by_address, killed) {
        (true, 0) => return Err(Error::text("ERR No such client")),
        (true, _) => cx.reply.ok(),
        (false, killed) => cx.reply.int(killed),
    }
    Ok(())
}
