//! The sections on replication and the cluster.

use super::Context;
use super::page::Page;
use crate::server::Server;
use kvick_config::tables::replication as settings;
use kvick_replication::Replication;
use kvick_replication::upstream::LinkStage;
use std::sync::atomic::Ordering;

pub fn write(context: &Context, page: &mut Page) {
    let (server, values) = (context.server, context.server.config.values());
    let replication = &server.replication;
    page.section("Replication");
    page.field("role", if replication.upstream.is_replica() { "slave" } else { "master" });
    write_upstream(server, page);
    let now_ms = kvick_runtime::clock::unix_ms();
    page.field("connected_slaves", replication.replicas.count());
    let (least, lag_s) = (values.read(settings::MIN_REPLICAS_TO_WRITE), values.read(settings::MIN_REPLICAS_MAX_LAG));
    if least > 0 && lag_s > 0 {
        page.field("min_slaves_good_slaves", replication.replicas.count_good(lag_s, now_ms));
    }
    for (number, replica) in replication.replicas.all().iter().enumerate() {
        page.field(
            format!("slave{number}"),
            format_args!(
                "ip={},port={},state={},offset={},lag={},type={}",
                replica.address(),
                replica.port.load(Ordering::Relaxed),
                replica.stage().name(),
                replica.applied.load(Ordering::Relaxed),
                replica.since_ack_ms(now_ms) / 1000,
                replica.kind()
            ),
        );
    }
    page.field("replicas_waiting_psync", replication.replicas.pinned());
    page.field("master_failover_state", replication.failover.state().name());
    write_history(server, replication, page);
}

fn write_upstream(server: &Server, page: &mut Page) {
    let (upstream, values) = (&server.replication.upstream, server.config.values());
    let Some(primary) = upstream.target() else { return };
    let (stage, now_ms) = (upstream.stage(), kvick_runtime::clock::unix_ms());
    page.field("master_host", &primary.host);
    page.field("master_port", primary.port);
    page.field("master_link_status", if upstream.is_connected() { "up" } else { "down" });
    let last_io_ms = upstream.last_io_ms.load(Ordering::Relaxed);
    let silent_s = if upstream.is_connected() { (now_ms - last_io_ms) / 1000 } else { -1 };
    page.field("master_last_io_seconds_ago", silent_s);
    page.field("master_sync_in_progress", u8::from(stage == LinkStage::Receiving));
    let offset = server.keyspace.log.offset();
    page.field("slave_read_repl_offset", offset + upstream.unapplied_bytes.load(Ordering::Relaxed));
    page.field("slave_repl_offset", offset);
    page.field("replicas_repl_buffer_size", upstream.buffered_bytes.load(Ordering::Relaxed));
    page.field("replicas_repl_buffer_peak", upstream.buffered_peak.load(Ordering::Relaxed));
    if stage == LinkStage::Receiving {
        let (total, read) =
            (upstream.dump_bytes.load(Ordering::Relaxed), upstream.dump_received.load(Ordering::Relaxed));
        page.field("master_sync_total_bytes", total);
        page.field("master_sync_read_bytes", read);
        page.field("master_sync_left_bytes", total as i64 - read as i64);
        let part = if total > 0 { read as f64 / total as f64 * 100.0 } else { 0.0 };
        page.field("master_sync_perc", format_args!("{part:.2}"));
        page.field("master_sync_last_io_seconds_ago", (now_ms - last_io_ms) / 1000);
    }
    if !upstream.is_connected() {
        let since = upstream.down_since_ms.load(Ordering::Relaxed);
        page.field("master_link_down_since_seconds", if since > 0 { (now_ms - since) / 1000 } else { -1 });
    }
    page.field("slave_priority", values.read(settings::REPLICA_PRIORITY));
    page.field("slave_read_only", u8::from(values.read(settings::REPLICA_READ_ONLY)));
    page.field("replica_announced", u8::from(values.read(settings::REPLICA_ANNOUNCED)));
}

fn write_history(server: &Server, replication: &Replication, page: &mut Page) {
    let history = replication.history.lock();
    let (log, active) = (&server.keyspace.log, replication.has_backlog.load(Ordering::Relaxed));
    let backlog = if active { log.backlog() } else { 0..0 };
    page.field("master_replid", &history.id);
    page.field("master_replid2", history.previous_id());
    page.field("master_repl_offset", log.offset());
    page.field("second_repl_offset", history.previous_end());
    page.field("repl_backlog_active", u8::from(active));
    page.field("repl_backlog_size", server.config.read(settings::REPL_BACKLOG_SIZE));
    page.field("repl_backlog_first_byte_offset", if active { backlog.start + 1 } else { 0 });
    page.field("repl_backlog_histlen", backlog.end - backlog.start);
}

pub fn write_cluster(context: &Context, page: &mut Page) {
    page.section("Cluster");
    page.field("cluster_enabled", u8::from(context.server.routing.is_some()));
}

/// The section `cluster_info`: the text of CLUSTER INFO.
pub fn write_cluster_info(context: &Context, page: &mut Page) {
    page.section("Cluster Info");
    if let Some(cluster) = context.server.cluster() {
        page.append(&cluster.read(|cluster, _| cluster.info_text()));
    }
}
