//! The keyspace: databases of partitions, tables of entries, values, expiry and the write log; no networking.
//!
//! The layers, from the inside out: an [`entry`] is one key with its value; a [`table`] finds entries
//! by hash; a [`partition`] is a table under a lock; the [`keyspace`] holds the partitions of all
//! databases and their locks; a [`db`] is one database as a command sees it, under the locks taken for
//! that command. The command's [`effects`] collect its changes and append them to the write [`log`].
//! The [`global_lock`] excludes all other commands, for commands that need the whole keyspace.

pub mod access;
pub mod big_keys;
pub mod chance;
pub mod collections;
pub mod db;
pub mod defrag;
pub mod effects;
pub mod encoding_limits;
pub mod encodings;
pub mod entry;
pub mod eviction;
pub mod expire;
pub mod global_lock;
pub mod hash;
pub mod keyspace;
pub mod lazy_free;
pub mod log;
pub mod memory;
pub mod object;
pub mod partition;
pub mod slot;
pub mod snapshot;
pub mod table;
pub mod tracking;
pub mod usage;
pub mod value;
pub mod waiting;
pub mod watching;
pub mod word;

pub use access::Access;
pub use collections::hash::FieldClock;
pub use collections::{Collection, Hash, Inside, List, Set, SortedSet, Stream};
pub use db::{Counter, Counters, Db, Env, WhenExpired, WrongType};
pub use effects::{Effects, EventClass, PropagationTargets};
pub use encoding_limits::EncodingLimits;
pub use entry::Entry;
pub use hash::Key;
pub use keyspace::{Address, Keyspace, Locked, Share};
pub use object::{Object, Value};
pub use value::{Expiry, IntBuf, Kind, Str};
pub use waiting::Waiter;
pub use watching::Watcher;
