//! SHUTDOWN: shuts the server down, or withdraws a pending shutdown.

use crate::process::shutdown::{self, PendingClient, Progress};
use crate::server::HasServer;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, LockRule, Spec};
use kvick_config::tables::cluster::CLUSTER_ENABLED;
use kvick_config::words::ShutdownFlags;
use kvick_engine::session::{Fate, Session, SessionHandler};
use kvick_resp::Args;
use kvick_runtime::logging;
use kvick_store::{Kind, Waiter};

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[SHUTDOWN];

/// `SHUTDOWN [[NOSAVE | SAVE] [NOW] [FORCE] [SAFE] [FAILOVER] | ABORT]`
pub const SHUTDOWN: Command<SessionHandler> = Command::new(
    Spec::new("shutdown", -1)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::NO_MULTI, Flags::ALLOW_BUSY])
        .acl(&[Categories::ADMIN, Categories::DANGEROUS, Categories::SLOW])
        .lock(LockRule::Global)
        .doc(
            Group::Server,
            "1.0.0",
            "O(N) when saving, where N is the total number of keys in all databases when saving data, otherwise O(1)",
            "Saves the data set if configured, and shuts the server down.",
        )
        .args(&[Arg::one_of(
            "abort-selector",
            &[
                Arg::block(
                    "save-selector-block",
                    &[
                        Arg::one_of("save-selector", &[Arg::word("nosave", "NOSAVE"), Arg::word("save", "SAVE")])
                            .optional(),
                        Arg::word("now", "NOW").optional().since("7.0.0"),
                        Arg::word("force", "FORCE").optional().since("7.0.0"),
                        Arg::word("safe", "SAFE").optional().since("9.0.0"),
                        Arg::word("failover", "FAILOVER").optional().since("9.0.0"),
                    ],
                ),
                Arg::word("abort", "ABORT").since("7.0.0"),
            ],
        )
        .optional()])
        .history(&[
            ("7.0.0", "The words NOW, FORCE and ABORT are new."),
            ("9.0.0", "The words SAFE and FAILOVER are new."),
        ]),
    shutdown,
);

fn shutdown(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let action = Action::parse(args)?;
    let flags = match action {
        Action::Abort => {
            if !shutdown::abort(cx.server()) {
                return Err(Error::text("ERR No shutdown in progress."));
            }
            logging::notice(format_args!("Shutdown manually aborted."));
            cx.reply.simple("OK");
            return Ok(());
        }
        Action::End(flags) => flags,
    };
    if flags.contains(ShutdownFlags::FAILOVER) && !cx.server.config.read(CLUSTER_ENABLED) {
        return Err(Error::text("ERR SHUTDOWN FAILOVER is only supported in cluster mode."));
    }
    let progress = shutdown::begin(cx.server(), cx.locked, flags, Some(&cx.client.info))
        .map_err(|shutdown::Refused| Error::text(shutdown::REFUSED))?;
    match progress {
        Progress::Ending => cx.client.fate = Fate::Close,
        Progress::Waiting => {
            // The client waits for no key.
            let waiter = Waiter::new(Kind::String, false, 0, Box::new(()));
            let (client, version) = (cx.client.info.clone(), cx.client.version);
            shutdown::join(cx.server(), PendingClient { client, ticket: waiter.ticket(), version });
            *cx.waits = Some(waiter);
        }
    }
    Ok(())
}

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Abort,
    End(ShutdownFlags),
}

impl Action {
    fn parse(args: Args<'_>) -> Result<Self, Error> {
        let syntax_error = || Error::text("ERR syntax error");
        let (mut flags, mut abort) = (ShutdownFlags::empty(), false);
        for word in args.iter().skip(1) {
            match &*word.to_ascii_lowercase() {
                b"nosave" => flags |= ShutdownFlags::NOSAVE,
                b"save" => flags |= ShutdownFlags::SAVE,
                b"now" => flags |= ShutdownFlags::NOW,
                b"force" => flags |= ShutdownFlags::FORCE,
                b"safe" => flags |= ShutdownFlags::SAFE,
                b"failover" => flags |= ShutdownFlags::FAILOVER,
                b"abort" => abort = true,
                _ => return Err(syntax_error()),
            }
        }
        match (abort, flags) {
            (true, flags) if flags.is_empty() => Ok(Action::Abort),
            (false, flags) if !flags.contains(ShutdownFlags::SAVE | ShutdownFlags::NOSAVE) => Ok(Action::End(flags)),
            _ => Err(syntax_error()),
        }
    }
}
