//! Settings whose values are one or more words from a fixed list.

use super::directive::{Worded, Words};
use super::value::{Setting, Value};
pub use kvick_runtime::logging::{LogFormat, LogLevel, LogTimestampFormat, SyslogFacility};

/// Defines the words of an enumeration. Several words may stand for one variant, and the first of them is shown. Error
/// texts list the words in this order.
macro_rules! word_values {
    ($($Name:ident { $($Variant:ident = $($word:literal)|+),+ $(,)? })+) => {$(
        impl Worded for $Name {
            const WORDS: Words = &[$($(($word, Self::$Variant as u8)),+),+];
        }

        impl Setting for $Name {
            fn of(value: &Value) -> Self {
                match value {
                    $(Value::Word(word) if *word == Self::$Variant as u8 => Self::$Variant,)+
                    other => other.not_of_type(stringify!($Name)),
                }
            }

            fn into_value(self) -> Value {
                Value::Word(self as u8)
            }
        }
    )+};
}

/// Declares an enumeration whose variants are words: see `word_values`.
macro_rules! words {
    ($($(#[$about:meta])* pub enum $Name:ident {
        $($(#[$doc:meta])* $Variant:ident = $($word:literal)|+),+ $(,)?
    })+) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Name { $($(#[$doc])* $Variant),+ }

        word_values! { $Name { $($Variant = $($word)|+),+ } }
    )+};
}

words! {
    /// The format version of saved dumps.
    pub enum RdbSaveVersion {
        /// The version of Valkey 9.
        Valkey9 = "80",
        /// The version of Redis 7.2, which Valkey before 9 and other servers can load.
        Redis72 = "11",
    }

    /// The keys that `maxmemory` evicts.
    pub enum EvictionPolicy {
        /// The least recently used among the keys with an expiry.
        VolatileLru = "volatile-lru",
        /// The least frequently used among the keys with an expiry.
        VolatileLfu = "volatile-lfu",
        /// A random one among the keys with an expiry.
        VolatileRandom = "volatile-random",
        /// The keys that expire soonest.
        VolatileTtl = "volatile-ttl",
        /// The least recently used keys.
        AllkeysLru = "allkeys-lru",
        /// The least frequently used keys.
        AllkeysLfu = "allkeys-lfu",
        /// Random keys.
        AllkeysRandom = "allkeys-random",
        /// None: writes fail instead.
        NoEviction = "noeviction",
    }





    /// The supervisor to notify when the server is ready.
    pub enum Supervised {
        /// upstart, by stopping the process.
        Upstart = "upstart",
        /// systemd, over its notification socket.
        Systemd = "systemd",
        /// The one that the environment indicates.
        Auto = "auto",
        /// None.
        No = "no",
    }

    /// When the append-only file is synced to the disk.
    pub enum AppendFsync {
        /// Every second.
        Everysec = "everysec",
        /// Before the replies to the logged commands.
        Always = "always",
        /// When the operating system decides to.
        No = "no",
    }

    /// How a replica loads the data set of a full synchronization.
    pub enum DisklessLoad {
        /// From a file.
        Disabled = "disabled",
        /// From the socket, if the replica is empty.
        OnEmptyDb = "on-empty-db",
        /// From the socket into a staging database, while the current data set is kept.
        Swapdb = "swapdb",
        /// From the socket, after deleting the current data set.
        FlushBeforeLoad = "flush-before-load",
    }

    /// Whether TLS clients must present a certificate.
    pub enum TlsAuthClients {
        /// No certificate is requested.
        No = "no",
        /// A valid certificate is required.
        Yes = "yes",
        /// A certificate is optional; it is verified if presented.
        Optional = "optional",
    }

    /// The field of a client certificate that contains the user name.
    pub enum TlsAuthClientsUser {
        /// The subject's common name.
        CommonName = "CN",
        /// The URI subject alternative name.
        Uri = "URI",
        /// None.
        Off = "off",
    }

    /// Whether and how the score of the out-of-memory killer is set.
    pub enum OomScoreAdj {
        /// The score is not changed.
        No = "no",
        /// The values are added to the score at startup.
        Relative = "yes" | "relative",
        /// The values are the scores.
        Absolute = "absolute",
    }

    /// Which channels a new user may use.
    pub enum AclPubsubDefault {
        /// All of them.
        Allchannels = "allchannels",
        /// None.
        Resetchannels = "resetchannels",
    }

    /// The connections that may use dangerous features.
    pub enum ProtectedAction {
        /// None.
        No = "no",
        /// All.
        Yes = "yes",
        /// Connections from this machine.
        Local = "local",
    }

    /// The endpoint that cluster replies contain.
    pub enum EndpointType {
        /// The address.
        Ip = "ip",
        /// The host name.
        Hostname = "hostname",
        /// No endpoint: the client keeps using the host that it is connected to.
        Unknown = "unknown-endpoint",
    }

    /// How a node saves its cluster configuration.
    pub enum ClusterConfigSave {
        /// Synced to disk; the node exits on failure.
        Sync = "sync",
        /// Failures are tolerated.
        BestEffort = "best-effort",
    }

    /// The reaction of a replica to a replicated command that fails.
    pub enum PropagationError {
        /// None.
        Ignore = "ignore",
        /// The replica crashes; so does the loading of an append-only file.
        Panic = "panic",
        /// The replica crashes.
        PanicOnReplicas = "panic-on-replicas",
    }

    /// The versions of the dump format that are loaded.
    pub enum RdbVersionCheck {
        /// Known versions.
        Strict = "strict",
        /// Newer versions too, until an unknown item occurs.
        Relaxed = "relaxed",
    }
}

bitflags::bitflags! {
    /// How the server shuts down on a signal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShutdownFlags: u8 {
        /// Write a dump even if no save points are set.
        const SAVE = 1 << 0;
        /// Do not write a dump.
        const NOSAVE = 1 << 1;
        /// Do not wait for replicas.
        const NOW = 1 << 2;
        /// Ignore errors.
        const FORCE = 1 << 3;
        /// Shut down only if no data is lost.
        const SAFE = 1 << 4;
        /// Fail over to a replica first.
        const FAILOVER = 1 << 5;
    }
}

impl Worded for ShutdownFlags {
    const WORDS: Words = &[
        ("default", 0),
        ("save", Self::SAVE.bits()),
        ("nosave", Self::NOSAVE.bits()),
        ("now", Self::NOW.bits()),
        ("force", Self::FORCE.bits()),
        ("safe", Self::SAFE.bits()),
        ("failover", Self::FAILOVER.bits()),
    ];
}

impl Setting for ShutdownFlags {
    fn of(value: &Value) -> Self {
        match value {
            Value::Word(bits) => Self::from_bits_truncate(*bits),
            other => unreachable!("{other:?} read as ShutdownFlags"),
        }
    }

    fn into_value(self) -> Value {
        Value::Word(self.bits())
    }
}

word_values! {
    SyslogFacility {
        User = "user",
        Local0 = "local0",
        Local1 = "local1",
        Local2 = "local2",
        Local3 = "local3",
        Local4 = "local4",
        Local5 = "local5",
        Local6 = "local6",
        Local7 = "local7",
    }

    LogLevel {
        Debug = "debug",
        Verbose = "verbose",
        Notice = "notice",
        Warning = "warning",
        Nothing = "nothing",
    }

    LogFormat {
        Legacy = "legacy",
        Logfmt = "logfmt",
        Json = "json",
    }

    LogTimestampFormat {
        Legacy = "legacy",
        Iso8601 = "iso8601",
        Milliseconds = "milliseconds",
    }
}
