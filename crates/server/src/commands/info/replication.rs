//! The sections on replication and the cluster, as a primary by itself shows them.

use super::Subject;
use super::page::Page;
use crate::config::tables::replication as settings;

pub fn write(subject: &Subject, page: &mut Page) {
    let (server, values) = (subject.server, subject.server.config.values());
    page.section("Replication");
    page.field("role", "master");
    page.field("connected_slaves", 0);
    if values.read(settings::MIN_REPLICAS_TO_WRITE) > 0 && values.read(settings::MIN_REPLICAS_MAX_LAG) > 0 {
        page.field("min_slaves_good_slaves", 0);
    }
    page.field("replicas_waiting_psync", 0);
    page.field("master_failover_state", "no-failover");
    page.field("master_replid", &server.replication_id);
    page.field("master_replid2", "0".repeat(server.replication_id.len()));
    page.field("master_repl_offset", server.keyspace.log.offset());
    page.field("second_repl_offset", -1);
    page.field("repl_backlog_active", 0);
    page.field("repl_backlog_size", values.read(settings::REPL_BACKLOG_SIZE));
    page.fields(["repl_backlog_first_byte_offset", "repl_backlog_histlen"].map(|name| (name, 0)));
}

pub fn write_cluster(_: &Subject, page: &mut Page) {
    page.section("Cluster");
    page.field("cluster_enabled", 0);
}
