//! The settings that workers look at often, in plain fields: a snapshot that is made anew when settings change.

use crate::commandlog::{Kind, Thresholds};
use crate::eviction::Limits;
use crate::pubsub::events;
use kvick_commands::context::Settings;
use kvick_config::Values;
use kvick_config::shapes::{KeyspaceEvents, OutputLimits};
use kvick_config::tables::{logging, memory, network, persistence, process, replication, security, types};
use kvick_config::words::{EvictionPolicy, RdbVersionCheck};
use kvick_resp::Limits as RequestLimits;
use kvick_runtime::clock;
use kvick_store::EventClass;
use std::time::Duration;

/// See the module's documentation.
pub struct RuntimeConfig {
    /// The configuration's generation that it was read from.
    pub generation: u64,
    /// What commands go by.
    pub commands: Settings,
    /// `import-mode`: whether another server's data is being copied here.
    pub import_mode: bool,
    /// What clients may send.
    pub limits: RequestLimits,
    /// Output that may wait.
    pub output_limits: OutputLimits,
    /// Most connections.
    pub maxclients: usize,
    /// Connections that a worker accepts from a listener in a turn.
    pub accepted_per_turn: u32,
    /// Handshakes of TLS that a worker goes on with in a turn.
    pub handshakes_per_turn: u32,
    /// Idle time after which a connection is closed; zero for never.
    pub timeout: Duration,
    /// Idle time after which TCP probes the other end; zero for never.
    pub tcp_keepalive: Duration,
    /// Whether strangers are kept out while there is no password.
    pub protected_mode: bool,
    /// `busy-reply-threshold`; 0 for never.
    pub busy_reply_threshold_ms: u64,
    /// `lua-enable-insecure-api`.
    pub insecure_scripts: bool,
    /// Background passes in a second.
    pub hz: u32,
    /// 1 to 10.
    pub expire_effort: u32,
    /// Microseconds that active defragmentation works at a stretch.
    pub defrag_cycle_us: u64,
    /// Elements from which on it goes through a collection piece by piece.
    pub defrag_fields_max: usize,
    /// Ticks from which on a command is looked at as slow: the least of the thresholds below.
    pub slow_ticks: u64,
    /// What COMMANDLOG records.
    pub commandlog: Thresholds,
    /// Bytes from which on a request may be one that COMMANDLOG records.
    pub large_request_bytes: usize,
    /// The same of a reply.
    pub large_reply_bytes: usize,
    /// Whether memory that a batch will touch is asked for in advance.
    pub prefetches: bool,
    /// `notify-keyspace-events`.
    pub keyspace_events: KeyspaceEvents,
    /// The classes of events that it has published.
    pub heard_events: EventClass,
    /// Whether the durations of commands are counted.
    pub latency_tracking: bool,
    /// What LATENCY records; 0 for nothing.
    pub latency_threshold_ms: u64,
    /// `tracking-table-max-keys`: keys of which it is remembered who has read them.
    pub tracked_keys_max: usize,
    /// `lfu-log-factor`.
    pub lfu_log_factor: u32,
    /// `lfu-decay-time`.
    pub lfu_decay_minutes: u32,
    /// `aof-timestamp-enabled`, where there is an append-only file.
    pub aof_timestamps: bool,
    /// Whether a replica leaves eviction to its primary.
    pub replica_keeps_all: bool,
    /// How much memory data and connections may take.
    pub eviction: Limits,
}

impl RuntimeConfig {
    /// The snapshot of `values`.
    pub fn read(values: &Values, generation: u64) -> Self {
        let commandlog = Thresholds::read(values);
        let latency_threshold_ms = values.read(logging::LATENCY_MONITOR_THRESHOLD);
        let policy = values.read(memory::MAXMEMORY_POLICY);
        let [client_reply_max, subscriber_reply_max] =
            values.read(network::CLIENT_OUTPUT_BUFFER_LIMIT).reply_bytes_max();
        let keyspace_events = values.read(logging::NOTIFY_KEYSPACE_EVENTS);
        RuntimeConfig {
            generation,
            commands: Settings {
                proto_max_bulk_len: values.read(network::PROTO_MAX_BULK_LEN),
                hll_sparse_max_bytes: values.read(types::HLL_SPARSE_MAX_BYTES) as usize,
                rdb_version_relaxed: values.read(persistence::RDB_VERSION_CHECK) == RdbVersionCheck::Relaxed,
                rdb_compression: values.read(persistence::RDBCOMPRESSION),
                lazy_user_del: values.read(memory::LAZYFREE_LAZY_USER_DEL),
                lazy_user_flush: values.read(memory::LAZYFREE_LAZY_USER_FLUSH),
                lazy_expire: values.read(memory::LAZYFREE_LAZY_EXPIRE),
                lazy_server_del: values.read(memory::LAZYFREE_LAZY_SERVER_DEL),
                lfu: matches!(policy, EvictionPolicy::AllkeysLfu | EvictionPolicy::VolatileLfu),
                list_max_listpack_size: values.read(types::LIST_MAX_LISTPACK_SIZE),
                list_compress_depth: values.read(types::LIST_COMPRESS_DEPTH),
                hash_max_listpack_entries: values.read(types::HASH_MAX_LISTPACK_ENTRIES) as usize,
                hash_max_listpack_value: values.read(types::HASH_MAX_LISTPACK_VALUE) as usize,
                set_max_intset_entries: values.read(types::SET_MAX_INTSET_ENTRIES) as usize,
                set_max_listpack_entries: values.read(types::SET_MAX_LISTPACK_ENTRIES) as usize,
                set_max_listpack_value: values.read(types::SET_MAX_LISTPACK_VALUE) as usize,
                zset_max_listpack_entries: values.read(types::ZSET_MAX_LISTPACK_ENTRIES) as usize,
                zset_max_listpack_value: values.read(types::ZSET_MAX_LISTPACK_VALUE) as usize,
                stream_node_max_bytes: values.read(types::STREAM_NODE_MAX_BYTES) as usize,
                stream_node_max_entries: values.read(types::STREAM_NODE_MAX_ENTRIES) as usize,
                reply_bytes_max: [client_reply_max, subscriber_reply_max, usize::MAX],
            },
            import_mode: values.read(replication::IMPORT_MODE),
            limits: RequestLimits {
                bulk_len_max: values.read(network::PROTO_MAX_BULK_LEN),
                authenticated: true,
                query_buffer_max: values.read(network::CLIENT_QUERY_BUFFER_LIMIT) as usize,
                replicated: false,
            },
            output_limits: values.read(network::CLIENT_OUTPUT_BUFFER_LIMIT),
            maxclients: values.read(network::MAXCLIENTS) as usize,
            accepted_per_turn: values.read(network::MAX_NEW_CONNECTIONS_PER_CYCLE),
            handshakes_per_turn: values.read(network::MAX_NEW_TLS_CONNECTIONS_PER_CYCLE),
            timeout: Duration::from_secs(values.read(network::TIMEOUT).into()),
            tcp_keepalive: Duration::from_secs(values.read(network::TCP_KEEPALIVE).into()),
            protected_mode: values.read(network::PROTECTED_MODE),
            busy_reply_threshold_ms: values.read(security::BUSY_REPLY_THRESHOLD),
            insecure_scripts: values.read(security::LUA_ENABLE_INSECURE_API),
            hz: values.read(process::HZ).clamp(1, 500),
            expire_effort: values.read(memory::ACTIVE_EXPIRE_EFFORT),
            defrag_cycle_us: values.read(memory::ACTIVE_DEFRAG_CYCLE_US).into(),
            defrag_fields_max: values.read(memory::ACTIVE_DEFRAG_MAX_SCAN_FIELDS) as usize,
            slow_ticks: slow_ticks(commandlog.slow_us, latency_threshold_ms),
            large_request_bytes: commandlog.bytes_min(Kind::LargeRequest),
            large_reply_bytes: commandlog.bytes_min(Kind::LargeReply),
            prefetches: values.read(network::PREFETCH_BATCH_MAX_SIZE) > 1,
            keyspace_events,
            heard_events: events::heard(keyspace_events),
            latency_tracking: values.read(logging::LATENCY_TRACKING),
            commandlog,
            latency_threshold_ms,
            tracked_keys_max: match values.read(network::TRACKING_TABLE_MAX_KEYS) {
                0 => usize::MAX,
                keys => keys as usize,
            },
            lfu_log_factor: values.read(memory::LFU_LOG_FACTOR),
            lfu_decay_minutes: values.read(memory::LFU_DECAY_TIME),
            replica_keeps_all: values.read(replication::REPLICA_IGNORE_MAXMEMORY),
            aof_timestamps: values.read(persistence::APPENDONLY) && values.read(persistence::AOF_TIMESTAMP_ENABLED),
            eviction: Limits::read(values),
        }
    }
}

/// Commands beyond this duration are always looked at, so that the clock is read again after them.
const LOOKED_AT_US: u64 = 500;

fn slow_ticks(slow_us: i64, latency_ms: u64) -> u64 {
    let slow = u64::try_from(slow_us).unwrap_or(u64::MAX);
    let latency = if latency_ms == 0 { u64::MAX } else { latency_ms.saturating_mul(1000) };
    clock::us_to_ticks(slow.min(latency).min(LOOKED_AT_US))
}
