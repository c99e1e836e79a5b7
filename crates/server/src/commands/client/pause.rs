//! Pausing and unblocking clients: CLIENT PAUSE, UNPAUSE, UNBLOCK.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_core::clients::ClientFlags;
use kvick_core::inbox::Delivery;
use kvick_core::message::Message;
use kvick_engine::blocking::Blocked;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::Waiter;

/// CLIENT PAUSE timeout [WRITE | ALL]
pub const PAUSE: Command<SessionHandler> = Command::new(
    Spec::new("pause", -3)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        // No worker is in an earlier batch: when the caller receives its reply, no write runs any more.
        .lock(LockRule::Global)
        .doc(Group::Connection, "3.0.0", "O(1)", "Suspends command processing.")
        .history(&[("6.2.0", "Added the modes WRITE and ALL.")])
        .args(&[
            Arg::integer("timeout"),
            Arg::one_of("mode", &[Arg::word("write", "WRITE"), Arg::word("all", "ALL")]).optional().since("6.2.0"),
        ]),
    pause,
);

fn pause(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let all = match args.get(3).filter(|_| args.len() == 4) {
        None => true,
        Some(word) if word.eq_ignore_ascii_case(b"all") => true,
        Some(word) if word.eq_ignore_ascii_case(b"write") => false,
        Some(_) => return Err(Error::text("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let timeout = parse_i64(&args[2]).ok_or(Error::text("ERR timeout is not an integer or out of range"))?;
    if timeout < 0 {
        return Err(Error::text("ERR timeout is negative"));
    }
    let until = timeout.checked_add(cx.now_ms).ok_or(Error::text("ERR timeout is out of range"))?;
    cx.server.pause.begin(cx.now_ms, until, all);
    cx.reply.ok();
    Ok(())
}

/// CLIENT UNPAUSE
pub const UNPAUSE: Command<SessionHandler> = Command::new(
    Spec::new("unpause", 2)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "6.2.0", "O(N), N being the held-up clients", "Resumes command processing."),
    unpause,
);

fn unpause(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.server.pause.end();
    cx.server.send_all(|| Message::Resume);
    cx.reply.ok();
    Ok(())
}

/// CLIENT UNBLOCK client-id [TIMEOUT | ERROR]
pub const UNBLOCK: Command<SessionHandler> = Command::new(
    Spec::new("unblock", -3)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .acl(&[Categories::CONNECTION])
        .lock(LockRule::Global)
        .doc(Group::Connection, "5.0.0", "O(log N), N being the clients", "Unblocks a blocked client.")
        .args(&[
            Arg::integer("client-id"),
            Arg::one_of("unblock-type", &[Arg::word("timeout", "TIMEOUT"), Arg::word("error", "ERROR")]).optional(),
        ]),
    unblock,
);

/// Clients waiting for the end of a pause, or for a command without a timeout, cannot be unblocked in this way.
fn unblock(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let reasons: [&[u8]; 2] = [b"timeout", b"error"];
    if args.len() == 4 && !reasons.iter().any(|reason| args[3].eq_ignore_ascii_case(reason)) {
        return Err(Error::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
    }
    let id = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    let error = args.get(3).is_some_and(|reason| reason.eq_ignore_ascii_case(b"error"));
    let client = u64::try_from(id).ok().and_then(|id| cx.server.clients.get(id));
    let waiter = client.as_ref().and_then(|client| client.waiter.lock().clone());
    let elsewhere = ClientFlags::FORWARD | ClientFlags::BLOCKED;
    let unblocked = match (waiter, client) {
        (Some(waiter), _) => release(cx, &waiter, error),
        (None, Some(client)) if client.flags().contains(elsewhere) => {
            cx.server.put(client.worker(), Delivery::UnblockedElsewhere(client, error));
            true
        }
        _ => false,
    };
    cx.reply.int(unblocked.into());
    Ok(())
}

/// Ends a client's wait, under the global lock; false if it has already been served.
fn release(cx: &mut Session<'_>, waiter: &Waiter, error: bool) -> bool {
    let error = error.then_some("UNBLOCKED client unblocked via CLIENT UNBLOCK");
    let Some(blocked) = Blocked::of(waiter) else {
        return cx.server.aof.unblock(cx.server, waiter.ticket(), error);
    };
    if !blocked.leave(waiter, cx.locked) {
        return false;
    }
    let served = blocked.end(waiter, error, cx.server, cx.stats);
    cx.server.answer(served);
    true
}
