//! Configuration of the state machine: directives with their defaults.

use super::Level;
use crate::BUS_PORT_OFFSET;
use crate::bus::MessageType;

/// Directives that the state machine reads. Texts that are not set are empty, ports 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `cluster-node-timeout`.
    pub node_timeout_ms: u64,
    /// `cluster-ping-interval`; 0 for half of the node timeout.
    pub ping_interval_ms: u64,
    /// `cluster-message-gossip-perc`.
    pub gossip_percent: u32,
    /// `cluster-manual-failover-timeout`.
    pub manual_failover_timeout_ms: u64,
    /// `cluster-replica-validity-factor`; 0 to ignore the age of a replica's data.
    pub replica_validity_factor: u64,
    /// `cluster-replica-no-failover`.
    pub replica_no_failover: bool,
    /// `repl-ping-replica-period`, in milliseconds.
    pub repl_ping_period_ms: u64,
    /// `cluster-migration-barrier`.
    pub migration_barrier: u32,
    /// `cluster-allow-replica-migration`.
    pub allow_replica_migration: bool,
    /// `cluster-require-full-coverage`.
    pub require_full_coverage: bool,
    /// `cluster-blacklist-ttl`.
    pub blacklist_ttl_seconds: u64,
    /// `cluster-link-sendbuf-limit` in bytes; 0 for none.
    pub link_send_buffer_limit: u64,

    /// `port`.
    pub port: u16,
    /// `tls-port`.
    pub tls_port: u16,
    /// `cluster-port`; 0 for 10,000 above the client port.
    pub bus_port: u16,
    /// `tls-cluster`.
    pub tls_bus: bool,
    /// `tls-replication`.
    pub tls_replication: bool,
    /// The `cluster-announce-*` directives.
    pub announce: Announce,
    /// `availability-zone`.
    pub availability_zone: String,

    /// `loglevel`: lines below it are not produced.
    pub log_level: Level,
    /// A module forbids failovers.
    pub module_no_failover: bool,
    /// A module forbids redirections: the owner of slots has no effect on data and roles.
    pub module_no_redirection: bool,
    /// What DEBUG has changed.
    pub debug: DebugSettings,
    /// What goes beyond Valkey.
    pub safety: Safety,
    /// A rule that is broken on purpose.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub mutation: Option<super::Mutation>,
}

/// The `cluster-announce-*` directives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Announce {
    /// `cluster-announce-ip`.
    pub ip: String,
    /// `cluster-announce-port`.
    pub port: u16,
    /// `cluster-announce-tls-port`.
    pub tls_port: u16,
    /// `cluster-announce-bus-port`.
    pub bus_port: u16,
    /// `cluster-announce-hostname`.
    pub hostname: String,
    /// `cluster-announce-human-nodename`.
    pub human_name: String,
    /// `cluster-announce-client-ipv4`.
    pub client_ipv4: String,
    /// `cluster-announce-client-ipv6`.
    pub client_ipv6: String,
    /// `cluster-announce-client-port`.
    pub client_port: u16,
    /// `cluster-announce-client-tls-port`.
    pub client_tls_port: u16,
}

/// Switches of the DEBUG command, for tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DebugSettings {
    /// DROP-CLUSTER-PACKET-FILTER.
    pub drop: DropFilter,
    /// CLOSE-CLUSTER-LINK-ON-PACKET-DROP.
    pub close_link_on_drop: bool,
    /// DISABLE-CLUSTER-RANDOM-PING.
    pub no_random_ping: bool,
    /// DISABLE-CLUSTER-RECONNECTION.
    pub no_reconnection: bool,
}

/// Which received messages are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DropFilter {
    /// None.
    #[default]
    None,
    /// Those of a type.
    Type(MessageType),
    /// All.
    All,
}

/// Rules that are stricter than Valkey's. All are off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Safety {
    /// A primary that starts without data, but has slots and replicas, stays silent until a replica has taken over,
    /// or until this many milliseconds have passed. 0 to serve at once. The environment must not let replicas
    /// synchronize in this time: see `Cluster::waits_for_takeover`.
    pub empty_primary_wait_ms: u64,
    /// A primary stops serving as soon as a majority of primaries has not answered its PINGs for the node timeout,
    /// less a tenth. These cannot have agreed on its failure yet.
    pub fence_minority_primary: bool,
    /// The announced host name of a node is resolved again when its known address does not answer, or when another
    /// node answers there.
    pub resolve_hostnames: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            node_timeout_ms: 15_000,
            ping_interval_ms: 0,
            gossip_percent: 10,
            manual_failover_timeout_ms: 5_000,
            replica_validity_factor: 10,
            replica_no_failover: false,
            repl_ping_period_ms: 10_000,
            migration_barrier: 1,
            allow_replica_migration: true,
            require_full_coverage: true,
            blacklist_ttl_seconds: 60,
            link_send_buffer_limit: 0,
            port: 6379,
            tls_port: 0,
            bus_port: 0,
            tls_bus: false,
            tls_replication: false,
            announce: Announce::default(),
            availability_zone: String::new(),
            log_level: Level::Notice,
            module_no_failover: false,
            module_no_redirection: false,
            debug: DebugSettings::default(),
            safety: Safety::default(),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

impl Settings {
    /// The TCP port that other nodes learn.
    pub(super) fn announced_tcp_port(&self) -> u16 {
        or(self.announce.port, self.port)
    }

    /// The TLS port that other nodes learn.
    pub(super) fn announced_tls_port(&self) -> u16 {
        or(self.announce.tls_port, self.tls_port)
    }

    /// The bus port that other nodes learn.
    pub(super) fn announced_bus_port(&self) -> u16 {
        or(self.announce.bus_port, self.listening_bus_port())
    }

    /// The bus port that this node listens on.
    pub fn listening_bus_port(&self) -> u16 {
        let client_port = if self.tls_bus { self.tls_port } else { self.port };
        or(self.bus_port, client_port.saturating_add(BUS_PORT_OFFSET))
    }
}

/// The first port that is set.
fn or(first: u16, second: u16) -> u16 {
    if first != 0 { first } else { second }
}
