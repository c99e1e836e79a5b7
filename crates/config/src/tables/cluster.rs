//! The cluster: nodes, slots, and what a node announces about itself.

use super::*;
use crate::checks;
use crate::directive::{Directive, Form, Key, Typed, boolean, integer, memory, number, optional, text, theme, word};
use crate::value::Text;
use crate::words::{ClusterConfigSave, EndpointType};

const I64_MIN: i128 = i64::MIN as i128;

theme! {
    after replication::END;
    CLUSTER_ENABLED: bool = boolean("cluster-enabled", false).immutable().works();
    CLUSTER_CONFIG_FILE: Text =
        text("cluster-config-file", "nodes.conf").immutable().checked(checks::cluster_config_file).works();
    CLUSTER_CONFIG_SAVE_BEHAVIOR: ClusterConfigSave =
        word("cluster-config-save-behavior", ClusterConfigSave::Sync as u8).works();
    CLUSTER_PORT: u16 = integer("cluster-port", 0, 65535, 0).immutable().works();
    CLUSTER_DATABASES: u32 = integer("cluster-databases", 1, I32_MAX, 1).immutable().works();
    CLUSTER_NODE_TIMEOUT: u64 = integer("cluster-node-timeout", 0, I64_MAX, 15000).works();
    CLUSTER_PING_INTERVAL: u64 = integer("cluster-ping-interval", 0, I64_MAX, 0).hidden().works();
    CLUSTER_MESSAGE_GOSSIP_PERC: u32 = integer("cluster-message-gossip-perc", 1, 100, 10).hidden().works();
    CLUSTER_REPLICA_VALIDITY_FACTOR: u32 =
        integer("cluster-replica-validity-factor", 0, I32_MAX, 10).alias("cluster-slave-validity-factor").works();
    CLUSTER_REPLICA_NO_FAILOVER: bool =
        boolean("cluster-replica-no-failover", false).alias("cluster-slave-no-failover").works();
    CLUSTER_MANUAL_FAILOVER_TIMEOUT: u32 = integer("cluster-manual-failover-timeout", 1, I32_MAX, 5000).works();
    CLUSTER_MIGRATION_BARRIER: u32 = integer("cluster-migration-barrier", 0, I32_MAX, 1).works();
    CLUSTER_ALLOW_REPLICA_MIGRATION: bool = boolean("cluster-allow-replica-migration", true).works();
    CLUSTER_REQUIRE_FULL_COVERAGE: bool = boolean("cluster-require-full-coverage", true).works();
    CLUSTER_ALLOW_READS_WHEN_DOWN: bool = boolean("cluster-allow-reads-when-down", false).works();
    CLUSTER_ALLOW_PUBSUBSHARD_WHEN_DOWN: bool = boolean("cluster-allow-pubsubshard-when-down", true).works();
    CLUSTER_EMPTY_PRIMARY_WAIT: u64 = integer("cluster-empty-primary-wait", 0, I64_MAX, 0).works();
    CLUSTER_FENCE_MINORITY_PRIMARY: bool = boolean("cluster-fence-minority-primary", false).works();
    CLUSTER_RESOLVE_HOSTNAMES: bool = boolean("cluster-resolve-hostnames", false).works();
    CLUSTER_SLOT_TAKEOVER_REPLICAS: u64 = integer("cluster-slot-takeover-replicas", 0, 1000, 0).works();
    CLUSTER_FORWARD: bool = boolean("cluster-forward", false).works();
    CLUSTER_FORWARD_PORT: u16 = integer("cluster-forward-port", 0, 65535, 0).immutable().works();
    CLUSTER_FORWARD_TLS_PORT: u16 = integer("cluster-forward-tls-port", 0, 65535, 0).immutable().works();
    CLUSTER_FORWARD_USER: Option<Text> = optional("cluster-forward-user").sensitive().works();
    CLUSTER_FORWARD_PASSWORD: Option<Text> = optional("cluster-forward-password").sensitive().works();
    CLUSTER_FORWARD_LINK_LIMIT: u64 = memory("cluster-forward-link-limit", 65536, U64_MAX, 16 << 20).works();
    CLUSTER_LINK_SENDBUF_LIMIT: u64 = memory("cluster-link-sendbuf-limit", 0, U64_MAX, 0).works();
    CLUSTER_BLACKLIST_TTL: i64 = integer("cluster-blacklist-ttl", I64_MIN, I64_MAX, 60).works();
    CLUSTER_SLOT_STATS_ENABLED: bool = boolean("cluster-slot-stats-enabled", false).works();
    CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN: u64 = integer("cluster-slot-migration-log-max-len", 0, I64_MAX, 1000).works();
    SLOT_MIGRATION_MAX_FAILOVER_REPL_BYTES: i64 =
        number("slot-migration-max-failover-repl-bytes", -1, I64_MAX, 0, Form::SignedMemory).works();

    CLUSTER_PREFERRED_ENDPOINT_TYPE: EndpointType =
        word("cluster-preferred-endpoint-type", EndpointType::Ip as u8).works();
    CLUSTER_ANNOUNCE_HOSTNAME: Option<Text> =
        optional("cluster-announce-hostname").checked(checks::announced_hostname).works();
    CLUSTER_ANNOUNCE_HUMAN_NODENAME: Option<Text> =
        optional("cluster-announce-human-nodename").checked(checks::announced_nodename).works();
    CLUSTER_ANNOUNCE_IP: Option<Text> = optional("cluster-announce-ip").checked(checks::announced_ip).works();
    CLUSTER_ANNOUNCE_PORT: u16 = integer("cluster-announce-port", 0, 65535, 0).works();
    CLUSTER_ANNOUNCE_TLS_PORT: u16 = integer("cluster-announce-tls-port", 0, 65535, 0).works();
    CLUSTER_ANNOUNCE_BUS_PORT: u16 = integer("cluster-announce-bus-port", 0, 65535, 0).works();
    CLUSTER_ANNOUNCE_CLIENT_IPV4: Option<Text> = optional("cluster-announce-client-ipv4").checked(checks::ipv4).works();
    CLUSTER_ANNOUNCE_CLIENT_IPV6: Option<Text> = optional("cluster-announce-client-ipv6").checked(checks::ipv6).works();
    CLUSTER_ANNOUNCE_CLIENT_PORT: u16 = integer("cluster-announce-client-port", 0, 65535, 0).works();
    CLUSTER_ANNOUNCE_CLIENT_TLS_PORT: u16 = integer("cluster-announce-client-tls-port", 0, 65535, 0).works();
    AVAILABILITY_ZONE: Text = text("availability-zone", "").works();
}
