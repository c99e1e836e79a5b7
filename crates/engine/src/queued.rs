//! What a client's transaction holds until EXEC: the queued commands, and the keys that the client watches.

use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo};
use kvick_resp::OwnedArgs;
use kvick_store::{Address, Key, Keyspace, Watcher};
use std::sync::Arc;

/// A transaction that has begun.
pub struct Transaction {
    pub(crate) queue: Vec<(&'static CommandInfo, OwnedArgs)>,
    /// The flags of its commands together: what allows something, only if all allow it.
    pub(crate) flags: Flags,
    /// Bytes that the queue takes.
    pub(crate) bytes: usize,
    /// Whether a command was refused, so that EXEC runs none.
    pub(crate) aborted: bool,
    /// The database that will be selected when the next command runs.
    pub(crate) db: usize,
}

impl Transaction {
    /// One that begins in database `db`.
    pub(crate) fn new(db: usize) -> Self {
        Transaction { queue: Vec::new(), flags: ALLOWING, bytes: 0, aborted: false, db }
    }

    /// The database that will be selected when the next command runs.
    pub fn db(&self) -> usize {
        self.db
    }

    /// Commands queued.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True when nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The flags of its commands together with those of one more.
    pub(crate) fn flags_with(&self, flags: Flags) -> Flags {
        (self.flags & flags & ALLOWING) | ((self.flags | flags) - ALLOWING)
    }

    /// Bytes that its commands take.
    pub fn memory(&self) -> usize {
        self.bytes + self.queue.capacity() * size_of::<(&CommandInfo, OwnedArgs)>()
    }

    /// Whether one of its commands runs a script or function.
    pub(crate) fn may_run_script(&self) -> bool {
        self.queue.iter().any(|(command, _)| command.class == Class::Script)
    }

    /// Whether a SELECT among its commands may turn out to be forbidden, so that it cannot be told beforehand which
    /// databases the others work on.
    pub(crate) fn may_be_refused_database(&self, is_unrestricted: bool) -> bool {
        let has = |flag| self.queue.iter().any(|(command, _)| command.spec.flags.contains(flag));
        has(Flags::SELECTS) && (!is_unrestricted || has(Flags::LOGS_IN))
    }

    /// A command was refused.
    pub fn abort(&mut self) {
        *self = Transaction { aborted: true, ..Transaction::new(self.db) };
    }
}

/// The flags that allow something; others forbid or demand.
const ALLOWING: Flags = Flags::LOADING.union(Flags::STALE);

/// Bytes that a watched key takes where those who watch are looked up, but for its name: some words and pointers.
const LISTED: usize = size_of::<[usize; 8]>();

/// The keys that a client watches.
#[derive(Default)]
pub struct Watching {
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) keys: Vec<WatchedKey>,
    /// Bytes of their names.
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

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn addresses(&self, keyspace: &'static Keyspace) -> Vec<Address> {
        self.hashed(keyspace).map(|(watched, key)| keyspace.address(watched.db, key)).collect()
    }

    /// Bytes that they take, here and where they are looked up.
    pub(crate) fn memory(&self) -> usize {
        self.key_bytes + self.keys.capacity() * size_of::<WatchedKey>() + self.keys.len() * LISTED
    }

    pub(crate) fn hashed<'a>(&'a self, keyspace: &'static Keyspace) -> impl Iterator<Item = (&'a WatchedKey, Key<'a>)> {
        self.keys.iter().map(|watched| (watched, keyspace.key(&watched.key)))
    }
}
