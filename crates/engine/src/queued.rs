//! The contents of a client's transaction until EXEC: the queued commands and the watched keys.

use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo};
use kvick_resp::OwnedArgs;
use kvick_store::{Address, Key, Keyspace, Watcher};
use std::sync::Arc;

/// A command in an open transaction.
pub(crate) struct QueuedCommand {
    pub(crate) command: &'static CommandInfo,
    pub(crate) request: OwnedArgs,
}

/// An open transaction.
pub struct Transaction {
    pub(crate) queue: Vec<QueuedCommand>,
    /// The combined flags of its commands; a permissive flag is set only if all commands have it.
    pub(crate) flags: Flags,
    /// Memory used by the queue, in bytes.
    pub(crate) bytes: usize,
    /// Whether a command was refused, so that EXEC fails.
    pub(crate) aborted: bool,
    /// The database that will be selected when the next command runs.
    pub(crate) db: usize,
}

impl Default for Transaction {
    /// An empty transaction in database 0.
    fn default() -> Self {
        Transaction::new(0)
    }
}

impl Transaction {
    /// Creates a transaction that begins in database `db`.
    pub(crate) fn new(db: usize) -> Self {
        Transaction { queue: Vec::new(), flags: ALLOWING, bytes: 0, aborted: false, db }
    }

    /// The database that will be selected when the next command runs.
    pub fn db(&self) -> usize {
        self.db
    }

    /// Number of queued commands.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True when no command is queued.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The combined flags of its commands and one more command.
    pub(crate) fn flags_with(&self, flags: Flags) -> Flags {
        (self.flags & flags & ALLOWING) | ((self.flags | flags) - ALLOWING)
    }

    /// Memory used by its commands, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes + self.queue.capacity() * size_of::<QueuedCommand>()
    }

    /// Whether one of its commands runs a script or function.
    pub(crate) fn may_run_script(&self) -> bool {
        self.queue.iter().any(|queued| queued.command.class == Class::Script)
    }

    /// Whether one of its SELECT commands may be refused at execution, so that the databases of later commands are
    /// unknown.
    pub(crate) fn may_be_refused_database(&self, is_unrestricted: bool) -> bool {
        let has = |flag| self.queue.iter().any(|queued| queued.command.spec.flags.contains(flag));
        has(Flags::SELECTS) && (!is_unrestricted || has(Flags::LOGS_IN))
    }

    /// Marks the transaction as failed after a command was refused.
    pub fn abort(&mut self) {
        *self = Transaction { aborted: true, ..Transaction::new(self.db) };
    }
}

/// Flags that permit; all others forbid or require.
const ALLOWING: Flags = Flags::LOADING.union(Flags::STALE);

/// Memory that a watched key uses in the lookup table of watchers in addition to its name, in bytes (estimate).
const LISTED: usize = size_of::<[usize; 8]>();

/// The keys that a client watches.
#[derive(Default)]
pub struct Watching {
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) keys: Vec<WatchedKey>,
    /// Total length of their names in bytes.
    pub(crate) key_bytes: usize,
}

pub(crate) struct WatchedKey {
    pub(crate) db: usize,
    pub(crate) key: Box<[u8]>,
}

impl Watching {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True when no key is watched.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn addresses(&self, keyspace: &'static Keyspace) -> Vec<Address> {
        self.hashed(keyspace).map(|(watched, key)| keyspace.address(watched.db, key)).collect()
    }

    /// Memory used here and in the lookup table, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.key_bytes + self.keys.capacity() * size_of::<WatchedKey>() + self.keys.len() * LISTED
    }

    pub(crate) fn hashed<'a>(&'a self, keyspace: &'static Keyspace) -> impl Iterator<Item = (&'a WatchedKey, Key<'a>)> {
        self.keys.iter().map(|watched| (watched, keyspace.key(&watched.key)))
    }
}
