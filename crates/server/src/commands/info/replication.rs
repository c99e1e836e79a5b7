//! The sections on replication and the cluster.

use super::Context;
use super::page::Page;
use crate::server::Server;
use kvick_config::tables::replication as settings;
use kvick_metrics::{Exposition, Metric, Value, fields};
use kvick_replication::upstream::{LinkStage, Target};
use kvick_runtime::clock;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// The state of replication at one moment.
pub struct Facts {
    server: &'static Server,
    now_ms: i64,
    primary: Option<Target>,
    stage: LinkStage,
    offset: u64,
    replicas: Vec<ReplicaFacts>,
    /// IDs of the present and previous history, and where the previous one ended.
    ids: [String; 2],
    previous_end: i64,
    has_backlog: bool,
    backlog: Range<u64>,
}

/// A connected replica.
struct ReplicaFacts {
    address: String,
    port: String,
    state: &'static str,
    offset: u64,
    lag_s: i64,
    kind: &'static str,
}

fields! {
    /// Whether it is a replica.
    pub static ROLE: Facts;
    role: info = |facts| facts.role();
}

fields! {
    /// The link of a replica to its primary.
    pub static UPSTREAM: Facts;
    master_host: info = |facts| facts.primary.as_ref().map(|primary| primary.host.clone());
    master_port: info = |facts| facts.primary.as_ref().map(|primary| primary.port);
    master_link_status: info = |facts| facts.of_link(|link| if link.is_up() { "up" } else { "down" }.into());
    master_last_io_seconds_ago: info = |facts| facts.of_link(|link| link.silent_s().into());
    master_sync_in_progress: info = |facts| facts.of_link(|link| link.receives().into());
    slave_read_repl_offset: gauge kvick_replica_read_offset "Offset up to which a replica has received the log."
        = |facts| facts.of_link(|link| link.read_offset().into());
    slave_repl_offset: info = |facts| facts.of_link(|link| link.offset.into());
    replicas_repl_buffer_size: gauge kvick_replica_buffered_bytes
        "Bytes of the primary's log that a replica keeps while it loads a dump."
        = |facts| facts.of_link(|link| link.server.replication.upstream.buffered_bytes.load(Relaxed).into());
    replicas_repl_buffer_peak: info
        = |facts| facts.of_link(|link| link.server.replication.upstream.buffered_peak.load(Relaxed).into());
    master_sync_total_bytes: gauge kvick_full_sync_bytes "Bytes of the dump that a replica receives; absent otherwise."
        = |facts| facts.of_dump(|total, _| total.into());
    master_sync_read_bytes: gauge kvick_full_sync_received_bytes
        "Received bytes of the dump; absent unless a replica receives one."
        = |facts| facts.of_dump(|_, read| read.into());
    master_sync_left_bytes: info = |facts| facts.of_dump(|total, read| (total as i64 - read as i64).into());
    master_sync_perc: info = |facts| facts.of_dump(|total, read| {
        Value::Hundredths(if total > 0 { read as f64 / total as f64 * 100.0 } else { 0.0 })
    });
    master_sync_last_io_seconds_ago: info = |facts| facts.of_dump(|_, _| facts.since_io_s().into());
    master_link_down_since_seconds: gauge kvick_replica_link_down_seconds
        "Time since the link to the primary ended; -1 if it never existed. Absent while it is up."
        = |facts| facts.of_link(|link| (!link.is_up()).then(|| link.down_s()).into());
    slave_priority: gauge redis_slave_priority "Priority of a replica for failover by Sentinel."
        = |facts| facts.of_link(|link| link.server.config.read(settings::REPLICA_PRIORITY).into());
    slave_read_only: info = |facts| facts.of_link(|link| link.is_read_only().into());
    replica_announced: info = |facts| facts.of_link(|link| link.server.config.read(settings::REPLICA_ANNOUNCED).into());
}

fields! {
    /// The number of replicas.
    pub static REPLICAS: Facts;
    connected_slaves: gauge redis_connected_slaves "Connected replicas."
        = |facts| facts.server.replication.replicas.count();
    min_slaves_good_slaves: gauge kvick_good_replicas
        "Replicas that count for min-replicas-to-write; absent without it."
        = |facts| facts.good_replicas();
}

fields! {
    /// The log.
    pub static LOG: Facts;
    replicas_waiting_psync: info = |facts| facts.server.replication.replicas.pinned();
    master_failover_state: info = |facts| facts.server.replication.failover.state().name();
    master_replid: info = |facts| facts.ids[0].clone();
    master_replid2: info = |facts| facts.ids[1].clone();
    master_repl_offset: gauge redis_master_repl_offset "Offset of the replication log." = |facts| facts.offset;
    second_repl_offset: gauge redis_second_repl_offset "Offset up to which the previous replication ID is valid; or -1."
        = |facts| facts.previous_end;
    repl_backlog_active: gauge redis_repl_backlog_is_active "1 if there is a replication backlog."
        = |facts| facts.has_backlog;
    repl_backlog_size: gauge redis_replication_backlog_bytes "Size of the replication backlog."
        = |facts| facts.server.config.read(settings::REPL_BACKLOG_SIZE);
    repl_backlog_first_byte_offset: gauge redis_repl_backlog_first_byte_offset "First offset in the backlog."
        = |facts| if facts.has_backlog { facts.backlog.start + 1 } else { 0 };
    repl_backlog_histlen: gauge redis_repl_backlog_history_bytes "Bytes in the backlog."
        = |facts| facts.backlog.end - facts.backlog.start;
}

const PRIMARY_LABELS: &[&str] = &["master_host", "master_port"];
const REPLICA_LABELS: &[&str] = &["slave_ip", "slave_port", "slave_state"];

/// The metrics with labels: of the link to the primary, then of connected replicas.
pub static METRICS: [Metric; 7] = [
    Metric::gauge("redis_master_link_up", "1 if a replica is connected to its primary.").labels(PRIMARY_LABELS),
    Metric::gauge("redis_master_last_io_seconds_ago", "Seconds since the primary sent something; -1 if it is down.")
        .labels(PRIMARY_LABELS),
    Metric::gauge("redis_master_sync_in_progress", "1 while a replica receives a dump.").labels(PRIMARY_LABELS),
    Metric::gauge("redis_slave_repl_offset", "Offset up to which a replica has executed the log.")
        .labels(PRIMARY_LABELS),
    Metric::gauge("redis_slave_info", "1 on a replica.").labels(&["master_host", "master_port", "read_only"]),
    Metric::gauge("redis_connected_slave_offset_bytes", "Offset that a replica has acknowledged.")
        .labels(REPLICA_LABELS),
    Metric::gauge("redis_connected_slave_lag_seconds", "Seconds since a replica's last acknowledgement.")
        .labels(REPLICA_LABELS),
];

impl Facts {
    /// Collects them.
    pub fn of(context: &Context) -> Facts {
        let (server, now_ms) = (context.server, clock::unix_ms());
        let (replication, log) = (&server.replication, &server.keyspace.log);
        let replicas = replication.replicas.all();
        let replicas = replicas.iter().map(|replica| ReplicaFacts {
            address: replica.address(),
            port: replica.port.load(Relaxed).to_string(),
            state: replica.stage().name(),
            offset: replica.applied.load(Relaxed),
            lag_s: replica.since_ack_ms(now_ms) / 1000,
            kind: replica.kind(),
        });
        let replicas = replicas.collect();
        let primary = replication.upstream.target();
        let stage = replication.upstream.stage();
        let history = replication.history.lock();
        let has_backlog = replication.has_backlog.load(Relaxed);
        Facts {
            server,
            now_ms,
            primary,
            stage,
            offset: log.offset(),
            replicas,
            ids: [history.id.clone(), history.previous_id().to_owned()],
            previous_end: history.previous_end(),
            has_backlog,
            backlog: if has_backlog { log.backlog() } else { 0..0 },
        }
    }

    /// The word for the role.
    pub fn role(&self) -> &'static str {
        if self.server.replication.upstream.is_replica() { "slave" } else { "master" }
    }

    /// The replication ID.
    pub fn id(&self) -> &str {
        &self.ids[0]
    }

    /// A value that exists on replicas only.
    fn of_link(&self, value: impl FnOnce(&Facts) -> Value) -> Value {
        if self.primary.is_some() { value(self) } else { Value::Absent }
    }

    /// A value that exists only while a dump is received: computed from its bytes and those received.
    fn of_dump(&self, value: impl FnOnce(u64, u64) -> Value) -> Value {
        let upstream = &self.server.replication.upstream;
        match self.primary.is_some() && self.receives() {
            true => value(upstream.dump_bytes.load(Relaxed), upstream.dump_received.load(Relaxed)),
            false => Value::Absent,
        }
    }

    /// The offset up to which the log has been received.
    fn read_offset(&self) -> u64 {
        self.offset + self.server.replication.upstream.unapplied_bytes.load(Relaxed)
    }

    fn is_up(&self) -> bool {
        self.server.replication.upstream.is_connected()
    }

    fn receives(&self) -> bool {
        self.stage == LinkStage::Receiving
    }

    fn since_io_s(&self) -> i64 {
        (self.now_ms - self.server.replication.upstream.last_io_ms.load(Relaxed)) / 1000
    }

    fn silent_s(&self) -> i64 {
        if self.is_up() { self.since_io_s() } else { -1 }
    }

    fn down_s(&self) -> i64 {
        let since_ms = self.server.replication.upstream.down_since_ms.load(Relaxed);
        if since_ms > 0 { (self.now_ms - since_ms) / 1000 } else { -1 }
    }

    fn is_read_only(&self) -> bool {
        self.server.config.read(settings::REPLICA_READ_ONLY)
    }

    fn good_replicas(&self) -> Option<usize> {
        let values = self.server.config.values();
        let least = values.read(settings::MIN_REPLICAS_TO_WRITE);
        let lag_s = values.read(settings::MIN_REPLICAS_MAX_LAG);
        (least > 0 && lag_s > 0).then(|| self.server.replication.replicas.count_good(lag_s, self.now_ms))
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    let facts = Facts::of(context);
    page.section("Replication");
    page.write(ROLE, &facts);
    page.write(UPSTREAM, &facts);
    page.write(REPLICAS, &facts);
    for (number, replica) in facts.replicas.iter().enumerate() {
        let ReplicaFacts { address, port, state, offset, lag_s, kind } = replica;
        page.field(
            format_args!("slave{number}"),
            format_args!("ip={address},port={port},state={state},offset={offset},lag={lag_s},type={kind}"),
        );
    }
    page.write(LOG, &facts);
}

/// Writes the metrics with labels.
pub fn export_links(facts: &Facts, out: &mut Exposition) {
    let [up, silent, syncs, applied, info, offset, lag] = &METRICS;
    if let Some(primary) = &facts.primary {
        let (host, port) = (primary.host.as_str(), primary.port.to_string());
        out.family(up).sample(&[host, &port], facts.is_up());
        out.family(silent).sample(&[host, &port], facts.silent_s());
        out.family(syncs).sample(&[host, &port], facts.receives());
        out.family(applied).sample(&[host, &port], facts.offset);
        out.family(info).sample(&[host, &port, if facts.is_read_only() { "1" } else { "0" }], true);
    }
    let mut write = |metric, value: fn(&ReplicaFacts) -> i64| {
        let mut family = out.family(metric);
        for replica in &facts.replicas {
            family.sample(&[&replica.address, &replica.port, replica.state], value(replica));
        }
    };
    write(offset, |replica| replica.offset as i64);
    write(lag, |replica| replica.lag_s);
}

fields! {
    /// All fields of the section on the cluster.
    pub static CLUSTER: &'static Server;
    cluster_enabled: gauge redis_cluster_enabled "1 in cluster mode." = |server| server.routing.is_some();
}

/// Writes the section on the cluster.
pub fn write_cluster(context: &Context, page: &mut Page) {
    page.section("Cluster");
    page.write(CLUSTER, &context.server);
}

/// The text of CLUSTER INFO, in cluster mode.
pub fn cluster_info(server: &Server) -> Option<String> {
    server.cluster().map(|cluster| cluster.info_text())
}

/// The section `cluster_info`: the text of CLUSTER INFO.
pub fn write_cluster_info(context: &Context, page: &mut Page) {
    page.section("Cluster Info");
    if let Some(text) = cluster_info(context.server) {
        page.append(&text);
    }
}
