//! The runtime config: a snapshot of the settings that workers read often, in plain fields. It is rebuilt when settings
//! change.

use crate::big_keys;
use crate::commandlog::{Kind, Thresholds};
use crate::eviction::Limits;
use crate::hot_keys;
use crate::pubsub::events;
use kvick_commands::context::{Collation, Settings};
use kvick_config::Values;
use kvick_config::shapes::{KeyspaceEvents, OutputLimits};
use kvick_config::tables::{cluster, logging, memory, network, persistence, process, replication, security, types};
use kvick_config::words::{EvictionPolicy, RdbVersionCheck};
use kvick_resp::Limits as RequestLimits;
use kvick_runtime::clock;
use kvick_runtime::locale;
use kvick_store::collections::stream::BlockLimits;
use kvick_store::collections::{hash, list, set, sorted_set};
use kvick_store::{EncodingLimits, EventClass};
use std::sync::Arc;
use std::time::Duration;

/// See the module's documentation.
pub struct RuntimeConfig {
    /// The generation of the configuration that it was read from.
    pub generation: u64,
    /// The settings that commands use.
    pub commands: Settings,
    /// `import-mode`: whether the data set of another server is being copied here.
    pub import_mode: bool,
    /// Limits of requests.
    pub limits: RequestLimits,
    /// Limits of pending output.
    pub output_limits: OutputLimits,
    /// Maximum number of connections.
    pub maxclients: usize,
    /// Connections that a worker accepts from a listener per turn.
    pub accepted_per_turn: u32,
    /// TLS handshakes that a worker continues per turn.
    pub handshakes_per_turn: u32,
    /// Idle time after which a connection is closed; zero disables this.
    pub timeout: Duration,
    /// Idle time after which TCP keepalive probes the peer; zero disables this.
    pub tcp_keepalive: Duration,
    /// Whether remote clients are rejected while the default user has no password.
    pub protected_mode: bool,
    /// `cluster-forward`: whether new connections forward requests.
    pub forwards: bool,
    /// `cluster-forward-link-limit`, in bytes.
    pub forward_link_max: usize,
    /// `busy-reply-threshold`; 0 disables it.
    pub busy_reply_threshold_ms: u64,
    /// `lua-enable-insecure-api`.
    pub insecure_scripts: bool,
    /// Background passes per second.
    pub hz: u32,
    /// `active-expire-effort`, 1 to 10.
    pub expire_effort: u32,
    /// Microseconds of one cycle of active defragmentation.
    pub defrag_cycle_us: u64,
    /// Number of elements above which active defragmentation processes a collection in steps.
    pub defrag_fields_max: usize,
    /// Ticks after which a command is checked for being slow: the least of the thresholds below.
    pub slow_ticks: u64,
    /// The thresholds of COMMANDLOG.
    pub commandlog: Thresholds,
    /// Lower bound of the request bytes that COMMANDLOG may record.
    pub large_request_bytes: usize,
    /// Lower bound of the reply bytes that COMMANDLOG may record.
    pub large_reply_bytes: usize,
    /// Whether the keys of a batch are prefetched.
    pub prefetches: bool,
    /// `notify-keyspace-events`.
    pub keyspace_events: KeyspaceEvents,
    /// The classes of events that `keyspace_events` publishes.
    pub notified_events: EventClass,
    /// `latency-tracking`: whether the durations of commands are recorded.
    pub latency_tracking: bool,
    /// The threshold of LATENCY; 0 disables it.
    pub latency_threshold_ms: u64,
    /// The settings of the search for big keys.
    pub big_keys: big_keys::Settings,
    /// The settings of HOTKEYS.
    pub hot_keys: hot_keys::Settings,
    /// `tracking-table-max-keys`: maximum number of keys whose readers are tracked.
    pub tracked_keys_max: usize,
    /// `lfu-log-factor`.
    pub lfu_log_factor: u32,
    /// `lfu-decay-time`.
    pub lfu_decay_minutes: u32,
    /// `aof-timestamp-enabled`, if the append-only file is enabled.
    pub aof_timestamps: bool,
    /// `replica-ignore-maxmemory`: whether a replica leaves eviction to its primary.
    pub replica_ignore_maxmemory: bool,
    /// The memory limits.
    pub eviction: Limits,
}

impl RuntimeConfig {
    /// Builds the runtime config from `values`.
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
                collation: collation(values),
                proto_max_bulk_len: values.read(network::PROTO_MAX_BULK_LEN),
                hll_sparse_max_bytes: values.read(types::HLL_SPARSE_MAX_BYTES) as usize,
                rdb_version_relaxed: values.read(persistence::RDB_VERSION_CHECK) == RdbVersionCheck::Relaxed,
                rdb_compression: values.read(persistence::RDBCOMPRESSION),
                lazy_user_del: values.read(memory::LAZYFREE_LAZY_USER_DEL),
                lazy_user_flush: values.read(memory::LAZYFREE_LAZY_USER_FLUSH),
                lazy_expire: values.read(memory::LAZYFREE_LAZY_EXPIRE),
                lazy_server_del: values.read(memory::LAZYFREE_LAZY_SERVER_DEL),
                lfu: matches!(policy, EvictionPolicy::AllkeysLfu | EvictionPolicy::VolatileLfu),
                encoding: encoding_limits(values),
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
            forwards: values.read(cluster::CLUSTER_FORWARD),
            forward_link_max: usize::try_from(values.read(cluster::CLUSTER_FORWARD_LINK_LIMIT)).unwrap_or(usize::MAX),
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
            notified_events: events::notified_classes(keyspace_events),
            latency_tracking: values.read(logging::LATENCY_TRACKING),
            commandlog,
            latency_threshold_ms,
            big_keys: big_keys::Settings::read(values),
            hot_keys: hot_keys::Settings::read(values),
            tracked_keys_max: match values.read(network::TRACKING_TABLE_MAX_KEYS) {
                0 => usize::MAX,
                keys => keys as usize,
            },
            lfu_log_factor: values.read(memory::LFU_LOG_FACTOR),
            lfu_decay_minutes: values.read(memory::LFU_DECAY_TIME),
            replica_ignore_maxmemory: values.read(replication::REPLICA_IGNORE_MAXMEMORY),
            aof_timestamps: values.read(persistence::APPENDONLY) && values.read(persistence::AOF_TIMESTAMP_ENABLED),
            eviction: Limits::read(values),
        }
    }
}

/// A collation of the system.
#[derive(Debug)]
struct SystemCollation(locale::Collation);

impl Collation for SystemCollation {
    fn sort_key(&self, text: &[u8]) -> Vec<u8> {
        self.0.sort_key(text)
    }
}

/// The collation; none if it is the order of bytes, or if the environment names a locale that does not exist.
fn collation(values: &Values) -> Option<Arc<dyn Collation>> {
    let collation = locale::Collation::of(&values.read(process::LOCALE_COLLATE)).ok().flatten()?;
    Some(Arc::new(SystemCollation(collation)))
}

fn encoding_limits(values: &Values) -> EncodingLimits {
    EncodingLimits {
        list: list::Limits {
            max_listpack_size: values.read(types::LIST_MAX_LISTPACK_SIZE),
            compress_depth: values.read(types::LIST_COMPRESS_DEPTH),
        },
        hash: hash::Limits {
            fields: values.read(types::HASH_MAX_LISTPACK_ENTRIES) as usize,
            bytes: values.read(types::HASH_MAX_LISTPACK_VALUE) as usize,
        },
        set: set::Limits {
            intset_entries: values.read(types::SET_MAX_INTSET_ENTRIES) as usize,
            listpack_entries: values.read(types::SET_MAX_LISTPACK_ENTRIES) as usize,
            listpack_value: values.read(types::SET_MAX_LISTPACK_VALUE) as usize,
        },
        sorted_set: sorted_set::Limits {
            entries: values.read(types::ZSET_MAX_LISTPACK_ENTRIES) as usize,
            value: values.read(types::ZSET_MAX_LISTPACK_VALUE) as usize,
        },
        stream: BlockLimits {
            bytes: values.read(types::STREAM_NODE_MAX_BYTES) as usize,
            entries: values.read(types::STREAM_NODE_MAX_ENTRIES) as usize,
        },
    }
}

/// Commands longer than this are always checked, so that the clock is read again after them.
const ALWAYS_CHECKED_US: u64 = 500;

fn slow_ticks(slow_us: i64, latency_ms: u64) -> u64 {
    let slow = u64::try_from(slow_us).unwrap_or(u64::MAX);
    let latency = if latency_ms == 0 { u64::MAX } else { latency_ms.saturating_mul(1000) };
    clock::us_to_ticks(slow.min(latency).min(ALWAYS_CHECKED_US))
}
