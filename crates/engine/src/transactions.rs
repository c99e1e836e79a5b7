//! Command definitions of MULTI, EXEC, DISCARD, WATCH and UNWATCH. The engine executes them itself, since they decide
//! which locks are taken (see [`crate::transaction`]).

use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// The transaction commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// MULTI
    Multi,
    /// EXEC
    Exec,
    /// DISCARD
    Discard,
    /// WATCH
    Watch,
    /// UNWATCH
    Unwatch,
}

/// All commands of this family.
pub static COMMANDS: &[Command<Control>] = &[MULTI, EXEC, DISCARD, WATCH, UNWATCH];

/// MULTI
pub const MULTI: Command<Control> = Command::new(
    Spec::new("multi", 1)
        .flags(&[Flags::IMMEDIATE])
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::NO_MULTI, Flags::ALLOW_BUSY])
        .acl(&[Categories::TRANSACTION])
        .doc(Group::Transactions, "1.2.0", "O(1)", "Begins a transaction."),
    Control::Multi,
);

/// EXEC
pub const EXEC: Command<Control> = Command::new(
    Spec::new("exec", 1)
        .flags(&[Flags::IMMEDIATE, Flags::EXECUTES, Flags::UNWATCHES])
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::SKIP_COMMANDLOG])
        .acl(&[Categories::TRANSACTION])
        .doc(
            Group::Transactions,
            "1.2.0",
            "Depends on commands in the transaction",
            "Runs the commands of a transaction, with nothing in between.",
        ),
    Control::Exec,
);

/// DISCARD
pub const DISCARD: Command<Control> = Command::new(
    Spec::new("discard", 1)
        .flags(&[Flags::IMMEDIATE, Flags::UNWATCHES])
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::ALLOW_BUSY])
        .acl(&[Categories::TRANSACTION])
        .doc(
            Group::Transactions,
            "2.0.0",
            "O(N), when N is the number of queued commands",
            "Forgets a transaction that has begun.",
        ),
    Control::Discard,
);

/// WATCH key [key ...]
pub const WATCH: Command<Control> = Command::new(
    Spec::new("watch", -2)
        .flags(&[Flags::IMMEDIATE])
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::NO_MULTI, Flags::ALLOW_BUSY])
        .acl(&[Categories::TRANSACTION])
        .keys(&[KeySpec::range(1, -1, 1, &[KeyFlags::RO])])
        .doc(
            Group::Transactions,
            "2.2.0",
            "O(1) for every key.",
            "Has the next transaction run only if the keys stay as they are.",
        )
        .args(&[Arg::key("key").multiple()]),
    Control::Watch,
);

/// UNWATCH
pub const UNWATCH: Command<Control> = Command::new(
    Spec::new("unwatch", 1)
        .flags(&[Flags::UNWATCHES])
        .flags(&[Flags::NOSCRIPT, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::ALLOW_BUSY])
        .acl(&[Categories::TRANSACTION])
        .doc(Group::Transactions, "2.2.0", "O(1)", "Forgets the keys that are watched."),
    Control::Unwatch,
);
