//! The static description of a command: name, arity, flags, keys and documentation.
//!
//! Each handler has one [`Command`], which is the only place that states these facts. Dispatch, locking, the COMMAND
//! family and cluster routing derive what they need from it, so adding a command touches one file.
//!
//! The vocabulary (flag names, key specifications, argument types) is that of Valkey's command tables, because clients
//! read it through COMMAND INFO and COMMAND DOCS.

mod arg;
mod key_spec;
mod routed;

pub use arg::{Arg, ArgKind};
pub use key_spec::{Begin, Find, KeyFlags, KeySpec};

use bitflags::bitflags;
use kvick_resp::Args;
use smallvec::SmallVec;

/// A command: its description and its handler.
///
/// `H` is the handler type. Data commands access only the keyspace; session commands also access the connection and the
/// server. Each kind has its own handler type and tables.
pub struct Command<H: 'static> {
    /// The description.
    pub spec: Spec,
    /// The handler; `None` for a container such as OBJECT that only has subcommands.
    pub handler: Option<H>,
    /// Subcommands, for containers.
    pub subcommands: &'static [Command<H>],
}

impl<H> Command<H> {
    /// A command that runs `handler`.
    pub const fn new(spec: Spec, handler: H) -> Self {
        Command { spec, handler: Some(handler), subcommands: &[] }
    }

    /// A container: its first argument names one of `subcommands`.
    pub const fn container(spec: Spec, subcommands: &'static [Command<H>]) -> Self {
        Command { spec, handler: None, subcommands }
    }

    /// A command with subcommands that also runs without one, such as COMMAND.
    pub const fn with_subcommands(spec: Spec, handler: H, subcommands: &'static [Command<H>]) -> Self {
        Command { spec, handler: Some(handler), subcommands }
    }
}

/// The description of a command or subcommand.
pub struct Spec {
    /// In lower case. For a subcommand without the name of the container ("encoding", not "object|encoding").
    pub name: &'static str,
    /// Number of arguments including the name (and the subcommand); negative for "at least".
    pub arity: i16,
    /// Properties of its execution.
    pub flags: Flags,
    /// Explicit ACL categories; [`Spec::categories`] adds those that follow from the flags.
    pub acl: Categories,
    /// The positions of its keys.
    pub keys: &'static [KeySpec],
    /// Finds the keys if `keys` cannot describe them (flags that depend on options, or incomplete specifications).
    pub find_keys: Option<FindKeys>,
    /// Finds the arguments that are database numbers.
    pub databases: Option<FindDatabases>,
    /// The arguments that are channels.
    pub channels: Option<Channels>,
    /// The locks that it needs.
    pub lock: LockRule,
    /// Group in the documentation.
    pub group: Group,
    /// The first version of Valkey or Redis that has the command.
    pub since: &'static str,
    /// Time complexity, as text.
    pub complexity: &'static str,
    /// One sentence that describes the command.
    pub summary: &'static str,
    /// The arguments, for COMMAND DOCS.
    pub args: &'static [Arg],
    /// (version, what changed).
    pub history: &'static [(&'static str, &'static str)],
    /// Hints for clients and proxies, such as `request_policy:all_shards`.
    pub tips: &'static [&'static str],
    /// Since when it is deprecated, and its replacement.
    pub deprecated: Option<Deprecation>,
    /// Whether only servers send this command, to each other.
    pub internal: bool,
    /// The setting that must allow this command; `None` if it needs none.
    pub protection: Option<Protection>,
}

/// The deprecation of a command.
#[derive(Clone, Copy, Debug)]
pub struct Deprecation {
    /// The version in which it was deprecated.
    pub since: &'static str,
    /// Its replacement, as text; may be empty.
    pub instead: &'static str,
}

/// The settings that allow commands which could harm the server or the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// `enable-debug-command`, for DEBUG.
    Debug,
    /// `enable-module-command`, for MODULE.
    Module,
}

/// The argument indices of keys, as COMMAND INFO shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub first: i64,
    /// The last key; a negative index counts from the end.
    pub last: i64,
    /// The distance between keys.
    pub step: i64,
}

/// Finds the key positions in the arguments.
pub type FindKeys = fn(Args<'_>) -> Option<KeyPositions>;
/// Finds the arguments that are database numbers, given the number of databases. `None` if one of them is not a valid
/// number or the arguments are malformed; the command then replies with an error.
pub type FindDatabases = fn(Args<'_>, usize) -> Option<SmallVec<[usize; 2]>>;
/// Positions and access flags of the keys of one request.
pub type KeyPositions = SmallVec<[KeyPosition; 4]>;

/// One key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPosition {
    /// Index into the arguments.
    pub index: usize,
    /// How the command uses the key.
    pub flags: KeyFlags,
}

impl Spec {
    /// A command with `arity` and no other properties.
    pub const fn new(name: &'static str, arity: i16) -> Self {
        Spec {
            name,
            arity,
            flags: Flags::empty(),
            acl: Categories::empty(),
            keys: &[],
            find_keys: None,
            databases: None,
            channels: None,
            lock: LockRule::Keys,
            group: Group::Generic,
            since: "1.0.0",
            complexity: "",
            summary: "",
            args: &[],
            history: &[],
            tips: &[],
            deprecated: None,
            internal: false,
            protection: None,
        }
    }

    /// Sets the flags.
    pub const fn flags(mut self, list: &[Flags]) -> Self {
        let mut i = 0;
        while i < list.len() {
            self.flags = self.flags.union(list[i]);
            i += 1;
        }
        self
    }

    /// Sets the explicit ACL categories.
    pub const fn acl(mut self, list: &[Categories]) -> Self {
        let mut i = 0;
        while i < list.len() {
            self.acl = self.acl.union(list[i]);
            i += 1;
        }
        self
    }

    /// Sets the key specifications.
    pub const fn keys(mut self, keys: &'static [KeySpec]) -> Self {
        self.keys = keys;
        self
    }

    /// Sets the function that finds the keys.
    pub const fn find_keys(mut self, find: FindKeys) -> Self {
        self.find_keys = Some(find);
        self
    }

    /// Sets the function that finds the database numbers.
    pub const fn databases(mut self, find: FindDatabases) -> Self {
        self.databases = Some(find);
        self
    }

    /// Sets the arguments that are channels.
    pub const fn channels(mut self, channels: Channels) -> Self {
        self.channels = Some(channels);
        self
    }

    /// Sets the locks that it needs.
    pub const fn lock(mut self, lock: LockRule) -> Self {
        self.lock = lock;
        self
    }

    /// Sets group, first version, complexity and summary.
    pub const fn doc(
        mut self,
        group: Group,
        since: &'static str,
        complexity: &'static str,
        summary: &'static str,
    ) -> Self {
        self.group = group;
        self.since = since;
        self.complexity = complexity;
        self.summary = summary;
        self
    }

    /// Sets the documented arguments.
    pub const fn args(mut self, args: &'static [Arg]) -> Self {
        self.args = args;
        self
    }

    /// Sets the history.
    pub const fn history(mut self, history: &'static [(&'static str, &'static str)]) -> Self {
        self.history = history;
        self
    }

    /// Sets the client hints.
    pub const fn tips(mut self, tips: &'static [&'static str]) -> Self {
        self.tips = tips;
        self
    }

    /// Marks it as deprecated since a version, with its replacement.
    pub const fn deprecated(mut self, since: &'static str, instead: &'static str) -> Self {
        self.deprecated = Some(Deprecation { since, instead });
        self
    }

    /// Marks it as sent only between servers.
    pub const fn internal(mut self) -> Self {
        self.internal = true;
        self
    }

    /// Sets the setting that must allow it.
    pub const fn protection(mut self, protection: Protection) -> Self {
        self.protection = Some(protection);
        self
    }

    /// The explicit categories and those that follow from the flags.
    pub fn categories(&self) -> Categories {
        let mut acl = self.acl;
        let implied = [
            (Flags::WRITE, Categories::WRITE),
            (Flags::ADMIN, Categories::ADMIN | Categories::DANGEROUS),
            (Flags::PUBSUB, Categories::PUBSUB),
            (Flags::FAST, Categories::FAST),
            (Flags::BLOCKING, Categories::BLOCKING),
        ];
        for (flag, categories) in implied {
            if self.flags.contains(flag) {
                acl |= categories;
            }
        }
        if self.flags.contains(Flags::READONLY) && !acl.contains(Categories::SCRIPTING) {
            acl |= Categories::READ;
        }
        if !self.flags.contains(Flags::FAST) {
            acl |= Categories::SLOW;
        }
        acl
    }

    /// Whether `argc` arguments satisfy the arity.
    pub fn accepts(&self, argc: usize) -> bool {
        let argc = argc as i64;
        let arity = self.arity as i64;
        if arity >= 0 { argc == arity } else { argc >= -arity }
    }

    /// The keys of a request; `None` if the arguments are malformed (a wrong key count, for example).
    pub fn key_positions(&self, args: Args<'_>) -> Option<KeyPositions> {
        match self.find_keys {
            Some(find) => find(args),
            None => {
                let mut found = KeyPositions::new();
                for spec in self.keys {
                    if !spec.flags.contains(KeyFlags::NOT_KEY) {
                        spec.collect(args, &mut found)?;
                    }
                }
                Some(found)
            }
        }
    }

    /// The legacy key fields of COMMAND INFO. Zeros if there are no keys, or if these fields cannot describe them. If
    /// there are several specifications, the result covers adjoining ranges.
    pub fn key_range(&self) -> KeyRange {
        match self.keys {
            [only] => only.range_of_keys().unwrap_or_default(),
            many => {
                let adjoining = adjoining_ranges(many);
                let first = adjoining.clone().flatten().map(|(first, _)| first).min();
                // A position counted from the end is after all others.
                let last = adjoining.flatten().map(|(_, last)| last).max_by_key(|last| *last as u64);
                first.zip(last).map_or(KeyRange::default(), |(first, last)| KeyRange { first, last, step: 1 })
            }
        }
    }

    /// Whether [`key_range`](Self::key_range) does not cover all keys.
    pub fn has_movable_keys(&self) -> bool {
        let incomplete = self.keys.iter().any(|spec| spec.flags.contains(KeyFlags::INCOMPLETE));
        incomplete
            || match self.keys {
                [only] => only.range_of_keys().is_none(),
                many => adjoining_ranges(many).any(|range| range.is_none()),
            }
    }
}

/// For each specification its first and last key, if it is a plain range that starts where the previous one ended.
fn adjoining_ranges(specs: &[KeySpec]) -> impl Iterator<Item = Option<(i64, i64)>> + Clone {
    let mut end = None;
    specs.iter().map(move |spec| {
        let adjoins = |range: &KeyRange| range.step == 1 && end.is_none_or(|end| end == range.first - 1);
        let KeyRange { first, last, .. } = spec.range_of_keys().filter(adjoins)?;
        end = Some(last);
        Some((first, last))
    })
}

/// The arguments of a command that are channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// The first argument is a channel to publish to.
    Published,
    /// All arguments are channels to subscribe to.
    Subscribed,
    /// All arguments are patterns to subscribe to.
    SubscribedPatterns,
}

/// Whether an argument is a valid database number.
pub fn is_database(number: &[u8], databases: usize) -> bool {
    let number = kvick_resp::format::parse_i64(number).and_then(|number| usize::try_from(number).ok());
    number.is_some_and(|number| number < databases)
}

/// The locks that the dispatcher takes before the handler runs.
#[derive(Clone, Copy)]
pub enum LockRule {
    /// The partitions of the keys (none for a command without keys).
    Keys,
    /// The global lock: no other command runs.
    Global,
    /// The global lock if the function returns true, else the partitions of the keys.
    GlobalIf(fn(Args<'_>) -> bool),
}

bitflags! {
    /// Properties of the execution of a command.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// May write to the keyspace.
        const WRITE = 1 << 0;
        /// Only reads the keyspace.
        const READONLY = 1 << 1;
        /// Refused if memory is above its limit.
        const DENYOOM = 1 << 2;
        /// Administrative.
        const ADMIN = 1 << 3;
        /// Related to publish and subscribe.
        const PUBSUB = 1 << 4;
        /// Not allowed in scripts.
        const NOSCRIPT = 1 << 5;
        /// May block its connection.
        const BLOCKING = 1 << 6;
        /// Allowed while the data set is loading.
        const LOADING = 1 << 7;
        /// Allowed on a replica whose data is stale.
        const STALE = 1 << 8;
        /// Not shown to MONITOR.
        const SKIP_MONITOR = 1 << 9;
        /// Not recorded in the command logs.
        const SKIP_COMMANDLOG = 1 << 10;
        /// Implies ASKING in cluster mode.
        const ASKING = 1 << 11;
        /// Constant or logarithmic time.
        const FAST = 1 << 12;
        /// Allowed without authentication.
        const NO_AUTH = 1 << 13;
        /// May be replicated although it is not a write.
        const MAY_REPLICATE = 1 << 14;
        /// May be called without keys although it has key specifications.
        const NO_MANDATORY_KEYS = 1 << 15;
        /// Not allowed while a replica loads a full sync into a staging database and serves its old data.
        const NO_ASYNC_LOADING = 1 << 16;
        /// Not allowed in a transaction.
        const NO_MULTI = 1 << 17;
        /// Allowed while a script exceeds its time limit.
        const ALLOW_BUSY = 1 << 18;
        /// May access keys that it does not name.
        const TOUCHES_ARBITRARY_KEYS = 1 << 19;
        /// Operates on every database.
        const ALL_DBS = 1 << 20;

        // Flags for internal use, which COMMAND INFO does not show.

        /// Executed immediately within MULTI instead of being queued.
        const IMMEDIATE = 1 << 21;
        /// Executes the queued transaction.
        const EXECUTES = 1 << 22;
        /// Ends the WATCH of its client, so it locks the watched keys.
        const UNWATCHES = 1 << 23;
        /// Allowed while a RESP2 client is subscribed.
        const SUBSCRIBED = 1 << 24;
        /// Deletes every key, which makes earlier dumps obsolete.
        const FLUSHES = 1 << 25;
        /// Selects the database given by its first argument.
        const SELECTS = 1 << 26;
        /// May change the client's user.
        const LOGS_IN = 1 << 27;
        /// Allowed on the replication connection of a replica.
        const FROM_REPLICA = 1 << 28;
        /// Used by monitoring tools to check whether writes are accepted, so it is refused when writes are.
        const HEALTH_CHECK = 1 << 29;
        /// Leaves the effect of CLIENT CACHING for the next command.
        const KEEPS_CACHING = 1 << 30;
        /// A primary sends it to its replicas, which do not store it in the append-only file.
        const REPLICAS_ONLY = 1 << 31;
    }
}

impl Flags {
    /// The flags that COMMAND INFO shows, in its order. `movablekeys` is derived and follows `no_multi`.
    pub const SHOWN: &'static [(Flags, &'static str)] = &[
        (Flags::WRITE, "write"),
        (Flags::READONLY, "readonly"),
        (Flags::DENYOOM, "denyoom"),
        (Flags::ADMIN, "admin"),
        (Flags::PUBSUB, "pubsub"),
        (Flags::NOSCRIPT, "noscript"),
        (Flags::BLOCKING, "blocking"),
        (Flags::LOADING, "loading"),
        (Flags::STALE, "stale"),
        (Flags::SKIP_MONITOR, "skip_monitor"),
        (Flags::SKIP_COMMANDLOG, "skip_commandlog"),
        (Flags::ASKING, "asking"),
        (Flags::FAST, "fast"),
        (Flags::NO_AUTH, "no_auth"),
        (Flags::NO_MANDATORY_KEYS, "no_mandatory_keys"),
        (Flags::NO_ASYNC_LOADING, "no_async_loading"),
        (Flags::NO_MULTI, "no_multi"),
        (Flags::ALLOW_BUSY, "allow_busy"),
    ];
}

bitflags! {
    /// ACL categories.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Categories: u32 {
        #[allow(missing_docs)] const KEYSPACE = 1 << 0;
        #[allow(missing_docs)] const READ = 1 << 1;
        #[allow(missing_docs)] const WRITE = 1 << 2;
        #[allow(missing_docs)] const SET = 1 << 3;
        #[allow(missing_docs)] const SORTEDSET = 1 << 4;
        #[allow(missing_docs)] const LIST = 1 << 5;
        #[allow(missing_docs)] const HASH = 1 << 6;
        #[allow(missing_docs)] const STRING = 1 << 7;
        #[allow(missing_docs)] const BITMAP = 1 << 8;
        #[allow(missing_docs)] const HYPERLOGLOG = 1 << 9;
        #[allow(missing_docs)] const GEO = 1 << 10;
        #[allow(missing_docs)] const STREAM = 1 << 11;
        #[allow(missing_docs)] const PUBSUB = 1 << 12;
        #[allow(missing_docs)] const ADMIN = 1 << 13;
        #[allow(missing_docs)] const FAST = 1 << 14;
        #[allow(missing_docs)] const SLOW = 1 << 15;
        #[allow(missing_docs)] const BLOCKING = 1 << 16;
        #[allow(missing_docs)] const DANGEROUS = 1 << 17;
        #[allow(missing_docs)] const CONNECTION = 1 << 18;
        #[allow(missing_docs)] const TRANSACTION = 1 << 19;
        #[allow(missing_docs)] const SCRIPTING = 1 << 20;
    }
}

impl Categories {
    /// Finds a category by name, case-insensitively.
    pub fn by_name(name: &[u8]) -> Option<Categories> {
        Categories::all()
            .iter_names()
            .find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
            .map(|(_, flag)| flag)
    }

    /// The lower-case names of the categories in the set, in Valkey's order.
    pub fn names(self) -> impl Iterator<Item = String> {
        self.iter_names().map(|(name, _)| name.to_ascii_lowercase())
    }
}

/// Groups of commands in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Group {
    Generic,
    String,
    List,
    Set,
    SortedSet,
    Hash,
    PubSub,
    Transactions,
    Connection,
    Server,
    Scripting,
    HyperLogLog,
    Cluster,
    Geo,
    Stream,
    Bitmap,
}

impl Group {
    /// The name in COMMAND DOCS.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Generic => "generic",
            Group::String => "string",
            Group::List => "list",
            Group::Set => "set",
            Group::SortedSet => "sorted-set",
            Group::Hash => "hash",
            Group::PubSub => "pubsub",
            Group::Transactions => "transactions",
            Group::Connection => "connection",
            Group::Server => "server",
            Group::Scripting => "scripting",
            Group::HyperLogLog => "hyperloglog",
            Group::Cluster => "cluster",
            Group::Geo => "geo",
            Group::Stream => "stream",
            Group::Bitmap => "bitmap",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RO: &[KeyFlags] = &[KeyFlags::RO];

    fn facts(keys: &'static [KeySpec]) -> ((i64, i64, i64), bool) {
        let spec = Spec::new("test", -2).keys(keys);
        let KeyRange { first, last, step } = spec.key_range();
        ((first, last, step), spec.has_movable_keys())
    }

    #[test]
    fn adjoining_matches_are_merged() {
        assert_eq!(facts(&[]), ((0, 0, 0), false));
        assert_eq!(facts(const { &[KeySpec::range(1, -1, 2, RO)] }), ((1, -1, 2), false));
        assert_eq!(facts(const { &[KeySpec::at(1, RO), KeySpec::range(2, -1, 1, RO)] }), ((1, -1, 1), false));
        assert_eq!(facts(const { &[KeySpec::at(2, RO), KeySpec::at(3, RO)] }), ((2, 3, 1), false));
    }

    #[test]
    fn keys_outside_a_fixed_range_are_movable() {
        assert_eq!(facts(const { &[KeySpec::counted(1, 1, RO)] }), ((0, 0, 0), true));
        assert_eq!(facts(const { &[KeySpec::at(1, RO), KeySpec::counted(2, 1, RO)] }), ((1, 1, 1), true));
        assert_eq!(facts(const { &[KeySpec::at(1, RO), KeySpec::at(3, RO)] }), ((1, 1, 1), true));
        assert_eq!(facts(const { &[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::INCOMPLETE])] }), ((1, 1, 1), true));
    }

    #[test]
    fn keys_behind_a_malformed_count_have_no_flags() {
        let flags = |count: &str| {
            let args = kvick_resp::OwnedArgs::new(["test", count, "a", "b"]);
            let mut found = KeyPositions::new();
            KeySpec::counted(1, 1, RO).collect(args.args(), &mut found)?;
            Some(found.iter().map(|key| (key.index, key.flags)).collect::<Vec<_>>())
        };
        assert_eq!(flags("2"), Some(vec![(2, KeyFlags::RO), (3, KeyFlags::RO)]));
        assert_eq!(flags("1e10"), Some(vec![(2, KeyFlags::empty())]));
        assert_eq!((flags("x"), flags("0"), flags("3")), (None, None, None));
    }
}
