//! Replication, for primaries and replicas.

use super::*;
use crate::checks;
use crate::directive::{Directive, Key, Special, Typed, boolean, integer, memory, optional, special, theme, word};
use crate::shapes::Primary;
use crate::value::Text;
use crate::words::DisklessLoad;

theme! {
    after persistence::END;
    REPLICAOF: Option<Primary> =
        special("replicaof", Special::Primary).alias("slaveof").immutable().multi_arg().works();
    PRIMARYAUTH: Option<Text> = optional("primaryauth").alias("masterauth").sensitive().works();
    PRIMARYUSER: Option<Text> = optional("primaryuser").alias("masteruser").sensitive().works();
    REPLICA_SERVE_STALE_DATA: bool = boolean("replica-serve-stale-data", true).alias("slave-serve-stale-data").works();
    REPLICA_READ_ONLY: bool = boolean("replica-read-only", true).alias("slave-read-only").works();
    REPLICA_PRIORITY: u32 = integer("replica-priority", 0, I32_MAX, 100).alias("slave-priority").works();
    REPLICA_ANNOUNCED: bool = boolean("replica-announced", true).works();
    REPLICA_ANNOUNCE_IP: Option<Text> = optional("replica-announce-ip").alias("slave-announce-ip").works();
    REPLICA_ANNOUNCE_PORT: u16 = integer("replica-announce-port", 0, 65535, 0).alias("slave-announce-port").works();
    REPLICA_IGNORE_MAXMEMORY: bool = boolean("replica-ignore-maxmemory", true).alias("slave-ignore-maxmemory").works();
    REPLICA_LAZY_FLUSH: bool = boolean("replica-lazy-flush", true).alias("slave-lazy-flush").works();
    REPLICA_IGNORE_DISK_WRITE_ERRORS: bool = boolean("replica-ignore-disk-write-errors", false).works();

    REPL_DISKLESS_SYNC: bool = boolean("repl-diskless-sync", true).works();
    REPL_DISKLESS_SYNC_DELAY: u32 = integer("repl-diskless-sync-delay", 0, I32_MAX, 5).works();
    REPL_DISKLESS_SYNC_MAX_REPLICAS: u32 = integer("repl-diskless-sync-max-replicas", 0, I32_MAX, 0).works();
    REPL_DISKLESS_LOAD: DisklessLoad = word("repl-diskless-load", DisklessLoad::Disabled as u8).deny_loading().works();
    DUAL_CHANNEL_REPLICATION_ENABLED: bool = boolean("dual-channel-replication-enabled", false).works();
    REPL_PING_REPLICA_PERIOD: u32 =
        integer("repl-ping-replica-period", 1, I32_MAX, 10).alias("repl-ping-slave-period").works();
    REPL_TIMEOUT: u32 = integer("repl-timeout", 1, I32_MAX, 60).works();
    REPL_DISABLE_TCP_NODELAY: bool = boolean("repl-disable-tcp-nodelay", false).works();
    REPL_MPTCP: bool = boolean("repl-mptcp", false).immutable().works();
    REPL_BACKLOG_SIZE: u64 =
        memory("repl-backlog-size", 1, I64_MAX, 10 * MB).checked(checks::repl_backlog_size).works();
    REPL_BACKLOG_TTL: u64 = integer("repl-backlog-ttl", 0, I64_MAX, 3600).works();
    MIN_REPLICAS_TO_WRITE: u32 = integer("min-replicas-to-write", 0, I32_MAX, 0).alias("min-slaves-to-write").works();
    MIN_REPLICAS_MAX_LAG: u32 = integer("min-replicas-max-lag", 0, I32_MAX, 10).alias("min-slaves-max-lag").works();
    IMPORT_MODE: bool = boolean("import-mode", false).works();
}
