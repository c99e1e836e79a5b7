//! Settings that are one word, or a few words, out of a fixed list.

use super::directive::{Worded, Words};
use super::value::{Setting, Value};
pub use kvick_runtime::logging::{LogFormat, LogLevel, LogTimestampFormat, SyslogFacility};

/// Gives an enumeration its words; several words may stand for one variant, and the first of them is the one shown. The
/// order is that of error texts.
macro_rules! word_values {
    ($($Name:ident { $($Variant:ident = $($word:literal)|+),+ $(,)? })+) => {$(
        impl Worded for $Name {
            const WORDS: Words = &[$($(($word, Self::$Variant as u8)),+),+];
        }

        impl Setting for $Name {
            fn of(value: &Value) -> Self {
                match value {
                    $(Value::Word(word) if *word == Self::$Variant as u8 => Self::$Variant,)+
                    other => unreachable!("{other:?} read as {}", stringify!($Name)),
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
    /// The version of the format in which dumps are saved.
    pub enum RdbSaveVersion {
        /// That of Valkey 9.
        Valkey9 = "80",
        /// That of Redis 7.2, which Valkey before 9 and other servers read.
        Redis72 = "11",
    }

    /// Which keys `maxmemory` evicts.
    pub enum EvictionPolicy {
        /// The least recently used that expire.
        VolatileLru = "volatile-lru",
        /// The least frequently used that expire.
        VolatileLfu = "volatile-lfu",
        /// Any that expire.
        VolatileRandom = "volatile-random",
        /// Those that expire soonest.
        VolatileTtl = "volatile-ttl",
        /// The least recently used.
        AllkeysLru = "allkeys-lru",
        /// The least frequently used.
        AllkeysLfu = "allkeys-lfu",
        /// Any.
        AllkeysRandom = "allkeys-random",
        /// None: writes fail instead.
        NoEviction = "noeviction",
    }





    /// Which supervisor is told that the server is ready.
    pub enum Supervised {
        /// upstart, by stopping the process.
        Upstart = "upstart",
        /// systemd, over its notification socket.
        Systemd = "systemd",
        /// Whichever the environment names.
        Auto = "auto",
        /// None.
        No = "no",
    }

    /// When the append-only file is synced to the disk.
    pub enum AppendFsync {
        /// Every second.
        Everysec = "everysec",
        /// Before replies to the commands in it.
        Always = "always",
        /// When the operating system likes.
        No = "no",
    }

    /// How a replica takes in the data set that a full synchronisation sends.
    pub enum DisklessLoad {
        /// Through a file.
        Disabled = "disabled",
        /// From the socket, if the replica is empty.
        OnEmptyDb = "on-empty-db",
        /// From the socket, beside the data it has.
        Swapdb = "swapdb",
        /// From the socket, dropping the data it has.
        FlushBeforeLoad = "flush-before-load",
    }

    /// Whether TLS clients must show a certificate.
    pub enum TlsAuthClients {
        /// No, and none is asked for.
        No = "no",
        /// Yes.
        Yes = "yes",
        /// Only a certificate that is shown is verified.
        Optional = "optional",
    }

    /// Which field of a client's certificate names its user.
    pub enum TlsAuthClientsUser {
        /// The subject's common name.
        CommonName = "CN",
        /// The alternative name that is a URI.
        Uri = "URI",
        /// None.
        Off = "off",
    }

    /// Whether and how the score for the out-of-memory killer is set.
    pub enum OomScoreAdj {
        /// It is left alone.
        No = "no",
        /// The values add to the score at the start.
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

    /// Who may do what is dangerous.
    pub enum ProtectedAction {
        /// Nobody.
        No = "no",
        /// Everybody.
        Yes = "yes",
        /// Connections from this machine.
        Local = "local",
    }

    /// By what a cluster tells clients to find its nodes.
    pub enum EndpointType {
        /// The address.
        Ip = "ip",
        /// The host name.
        Hostname = "hostname",
        /// Nothing: the client stays with the host that it used.
        Unknown = "unknown-endpoint",
    }

    /// How a node keeps its cluster configuration.
    pub enum ClusterConfigSave {
        /// Synced to the disk, and the node exits if that fails.
        Sync = "sync",
        /// As well as it can.
        BestEffort = "best-effort",
    }

    /// What a replica does about a replicated command that fails.
    pub enum PropagationError {
        /// Nothing.
        Ignore = "ignore",
        /// It crashes, as does the loading of an append-only file.
        Panic = "panic",
        /// It crashes.
        PanicOnReplicas = "panic-on-replicas",
    }

    /// Which versions of the dump format are loaded.
    pub enum RdbVersionCheck {
        /// Known ones.
        Strict = "strict",
        /// Newer ones too, until something in them is unknown.
        Relaxed = "relaxed",
    }
}

bitflags::bitflags! {
    /// How the server stops on a signal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShutdownFlags: u8 {
        /// Write a dump even if no save points are set.
        const SAVE = 1 << 0;
        /// Do not write a dump.
        const NOSAVE = 1 << 1;
        /// Do not wait for replicas.
        const NOW = 1 << 2;
        /// Let no error stand in the way.
        const FORCE = 1 << 3;
        /// Stop only when that loses nothing.
        const SAFE = 1 << 4;
        /// Hand over to a replica first.
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
