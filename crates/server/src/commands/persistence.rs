//! SAVE, BGSAVE and LASTSAVE: dumps on demand.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_durability::persistence::snapshots::{Busy, Purpose};
use kvick_durability::persistence::{background, save};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_runtime::logging;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[SAVE, BGSAVE, LASTSAVE];

/// SAVE
pub const SAVE: Command<SessionHandler> = Command::new(
    Spec::new("save", 1)
        .flags(&[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::NOSCRIPT, Flags::NO_MULTI])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS, Categories::SLOW])
        .lock(LockRule::Global)
        .doc(
            Group::Server,
            "1.0.0",
            "O(N) where N is the total number of keys in all databases",
            "Saves the data set to a file synchronously.",
        ),
    save_now,
);

/// BGSAVE [SCHEDULE | CANCEL]
pub const BGSAVE: Command<SessionHandler> = Command::new(
    Spec::new("bgsave", -1)
        .flags(&[Flags::NO_ASYNC_LOADING, Flags::ADMIN, Flags::NOSCRIPT])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS, Categories::SLOW])
        // The snapshot begins between other commands.
        .lock(LockRule::Global)
        .doc(Group::Server, "1.0.0", "O(1)", "Saves the data set to a file in the background.")
        .args(&[Arg::one_of(
            "operation",
            &[Arg::word("schedule", "SCHEDULE").since("3.2.2"), Arg::word("cancel", "CANCEL").since("8.1.0")],
        )
        .optional()])
        .history(&[("3.2.2", "The word SCHEDULE is new."), ("8.1.0", "The word CANCEL is new.")]),
    save_in_background,
);

/// LASTSAVE
pub const LASTSAVE: Command<SessionHandler> = Command::new(
    Spec::new("lastsave", 1)
        .flags(&[Flags::LOADING, Flags::STALE, Flags::FAST])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS, Categories::FAST])
        .doc(Group::Server, "1.0.0", "O(1)", "Returns the Unix time of the last successful save.")
        .tips(&["nondeterministic_output"]),
    last_save,
);

fn save_now(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.server.persistence.begin_save()?;
    save::save(cx.server, cx.locked, 0).map_err(|_| Error::text("ERR"))?;
    cx.reply.ok();
    Ok(())
}

fn save_in_background(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut may_wait = false;
    match (args.len(), args.get(1)) {
        (1, _) => {}
        (2, Some(word)) if word.eq_ignore_ascii_case(b"schedule") => may_wait = true,
        (2, Some(word)) if word.eq_ignore_ascii_case(b"cancel") => return cancel(cx),
        _ => return Err(Error::text("ERR syntax error")),
    }
    if cx.in_transaction {
        // A snapshot cannot begin within a transaction.
        background::schedule(&cx.server.persistence)?;
        logging::notice(format_args!("Background saving scheduled to run after transaction execution"));
        cx.reply.simple("Background saving scheduled");
        return Ok(());
    }
    match background::begin(cx.server, cx.locked) {
        // The cancelled snapshot ends soon.
        Err(Busy(purpose))
            if cx.server.persistence.status().is_cancelling() || (may_wait && purpose != Purpose::Save) =>
        {
            background::schedule(&cx.server.persistence)?;
            cx.reply.simple("Background saving scheduled");
        }
        started => {
            started?;
            cx.reply.simple("Background saving started");
        }
    }
    Ok(())
}

fn cancel(cx: &mut Session<'_>) -> Result<(), Error> {
    if !background::cancel(&cx.server.persistence) {
        if background::unschedule(&cx.server.persistence) {
            logging::notice(format_args!("Scheduled background saving will be cancelled due to user request"));
            cx.reply.simple("Scheduled background saving cancelled");
            return Ok(());
        }
        return Err(Error::text("ERR Background saving is currently not in progress or scheduled"));
    }
    logging::notice(format_args!("Background saving will be aborted due to user request"));
    cx.reply.simple("Background saving cancelled");
    Ok(())
}

fn last_save(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.int(cx.server.persistence.status().last_save_s);
    Ok(())
}
