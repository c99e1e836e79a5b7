//! The settings of the state machine, read from the directives.

use kvick_cluster::state::{Announce, Level, Safety, Settings};
use kvick_config::tables::cluster::*;
use kvick_config::tables::logging::LOGLEVEL;
use kvick_config::tables::network::PORT;
use kvick_config::tables::replication::REPL_PING_REPLICA_PERIOD;
use kvick_config::tables::tls::{TLS_CLUSTER, TLS_PORT, TLS_REPLICATION};
use kvick_config::value::Text;
use kvick_config::words::ClusterConfigSave;
use kvick_config::{Key, Values};
use kvick_runtime::logging::LogLevel;

/// The settings in these values.
pub fn of(values: &Values) -> Settings {
    let text = |key: Key<Option<Text>>| values.read(key).map(|text| text.to_string()).unwrap_or_default();
    Settings {
        node_timeout_ms: values.read(CLUSTER_NODE_TIMEOUT),
        ping_interval_ms: values.read(CLUSTER_PING_INTERVAL),
        gossip_percent: values.read(CLUSTER_MESSAGE_GOSSIP_PERC),
        manual_failover_timeout_ms: values.read(CLUSTER_MANUAL_FAILOVER_TIMEOUT).into(),
        replica_validity_factor: values.read(CLUSTER_REPLICA_VALIDITY_FACTOR).into(),
        replica_no_failover: values.read(CLUSTER_REPLICA_NO_FAILOVER),
        repl_ping_period_ms: u64::from(values.read(REPL_PING_REPLICA_PERIOD)) * 1000,
        migration_barrier: values.read(CLUSTER_MIGRATION_BARRIER),
        allow_replica_migration: values.read(CLUSTER_ALLOW_REPLICA_MIGRATION),
        require_full_coverage: values.read(CLUSTER_REQUIRE_FULL_COVERAGE),
        blacklist_ttl_seconds: u64::try_from(values.read(CLUSTER_BLACKLIST_TTL)).unwrap_or(0),
        link_send_buffer_limit: values.read(CLUSTER_LINK_SENDBUF_LIMIT),
        port: values.read(PORT),
        tls_port: values.read(TLS_PORT),
        bus_port: values.read(CLUSTER_PORT),
        tls_bus: values.read(TLS_CLUSTER),
        tls_replication: values.read(TLS_REPLICATION),
        announce: Announce {
            ip: text(CLUSTER_ANNOUNCE_IP),
            port: values.read(CLUSTER_ANNOUNCE_PORT),
            tls_port: values.read(CLUSTER_ANNOUNCE_TLS_PORT),
            bus_port: values.read(CLUSTER_ANNOUNCE_BUS_PORT),
            hostname: text(CLUSTER_ANNOUNCE_HOSTNAME),
            human_name: text(CLUSTER_ANNOUNCE_HUMAN_NODENAME),
            client_ipv4: text(CLUSTER_ANNOUNCE_CLIENT_IPV4),
            client_ipv6: text(CLUSTER_ANNOUNCE_CLIENT_IPV6),
            client_port: values.read(CLUSTER_ANNOUNCE_CLIENT_PORT),
            client_tls_port: values.read(CLUSTER_ANNOUNCE_CLIENT_TLS_PORT),
        },
        availability_zone: values.read(AVAILABILITY_ZONE).to_string(),
        log_level: match values.read(LOGLEVEL) {
            LogLevel::Debug => Level::Debug,
            LogLevel::Verbose => Level::Verbose,
            LogLevel::Notice => Level::Notice,
            LogLevel::Warning | LogLevel::Nothing => Level::Warning,
        },
        safety: Safety {
            empty_primary_wait_ms: values.read(CLUSTER_EMPTY_PRIMARY_WAIT),
            fence_minority_primary: values.read(CLUSTER_FENCE_MINORITY_PRIMARY),
            resolve_hostnames: values.read(CLUSTER_RESOLVE_HOSTNAMES),
        },
        ..Settings::default()
    }
}

/// Whether the node goes on if `nodes.conf` cannot be written.
pub fn tolerates_failed_saves(values: &Values) -> bool {
    values.read(CLUSTER_CONFIG_SAVE_BEHAVIOR) == ClusterConfigSave::BestEffort
}
