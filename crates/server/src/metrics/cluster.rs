//! Metrics of CLUSTER INFO: its numbers, and the state as 1 (`ok`) or 0.

use crate::commands::info::replication::cluster_info;
use crate::server::Server;
use kvick_metrics::{Exposition, Metric};

/// A field of CLUSTER INFO and its metric, which redis_exporter takes for a gauge.
macro_rules! metrics {
    ($($field:literal $metric:literal $help:literal,)+) => {
        /// Names in CLUSTER INFO and metrics. Messages of a kind have a field once there was one.
        pub static METRICS: &[(&str, Metric)] = &[$(($field, Metric::gauge($metric, $help))),+];
    };
}

metrics! {
    "cluster_state" "redis_cluster_state" "1 if the cluster serves requests.",
    "cluster_slots_assigned" "redis_cluster_slots_assigned" "Slots that a node owns.",
    "cluster_slots_ok" "redis_cluster_slots_ok" "Slots whose node is not suspected to have failed.",
    "cluster_slots_pfail" "redis_cluster_slots_pfail" "Slots whose node is suspected to have failed.",
    "cluster_slots_fail" "redis_cluster_slots_fail" "Slots whose node has failed.",
    "cluster_nodes_pfail" "redis_cluster_nodes_pfail" "Nodes that are suspected to have failed.",
    "cluster_nodes_fail" "redis_cluster_nodes_fail" "Nodes that have failed.",
    "cluster_voting_nodes_pfail" "redis_cluster_voting_nodes_pfail" "Voting nodes that are suspected to have failed.",
    "cluster_voting_nodes_fail" "redis_cluster_voting_nodes_fail" "Voting nodes that have failed.",
    "cluster_known_nodes" "redis_cluster_known_nodes" "Known nodes.",
    "cluster_size" "redis_cluster_size" "Primaries with slots.",
    "cluster_current_epoch" "redis_cluster_current_epoch" "Greatest known epoch.",
    "cluster_my_epoch" "redis_cluster_my_epoch" "Epoch of this node's slots.",
    "cluster_stats_messages_ping_sent" "redis_cluster_stats_messages_ping_sent" "PING messages sent.",
    "cluster_stats_messages_pong_sent" "redis_cluster_stats_messages_pong_sent" "PONG messages sent.",
    "cluster_stats_messages_meet_sent" "redis_cluster_stats_messages_meet_sent" "MEET messages sent.",
    "cluster_stats_messages_fail_sent" "redis_cluster_stats_messages_fail_sent" "FAIL messages sent.",
    "cluster_stats_messages_publish_sent" "redis_cluster_stats_messages_publish_sent" "PUBLISH messages sent.",
    "cluster_stats_messages_auth-req_sent" "redis_cluster_stats_messages_auth_req_sent" "Requests for votes sent.",
    "cluster_stats_messages_auth-ack_sent" "redis_cluster_stats_messages_auth_ack_sent" "Votes sent.",
    "cluster_stats_messages_update_sent" "redis_cluster_stats_messages_update_sent" "UPDATE messages sent.",
    "cluster_stats_messages_mfstart_sent" "redis_cluster_stats_messages_mfstart_sent"
        "Requests for a manual failover sent.",
    "cluster_stats_messages_module_sent" "redis_cluster_stats_messages_module_sent" "Messages of modules sent.",
    "cluster_stats_messages_publishshard_sent" "redis_cluster_stats_messages_publishshard_sent"
        "SPUBLISH messages sent.",
    "cluster_stats_messages_sent" "redis_cluster_messages_sent_total" "Messages sent.",
    "cluster_stats_messages_ping_received" "redis_cluster_stats_messages_ping_received" "PING messages received.",
    "cluster_stats_messages_pong_received" "redis_cluster_stats_messages_pong_received" "PONG messages received.",
    "cluster_stats_messages_meet_received" "redis_cluster_stats_messages_meet_received" "MEET messages received.",
    "cluster_stats_messages_fail_received" "redis_cluster_stats_messages_fail_received" "FAIL messages received.",
    "cluster_stats_messages_publish_received" "redis_cluster_stats_messages_publish_received"
        "PUBLISH messages received.",
    "cluster_stats_messages_auth-req_received" "redis_cluster_stats_messages_auth_req_received"
        "Requests for votes received.",
    "cluster_stats_messages_auth-ack_received" "redis_cluster_stats_messages_auth_ack_received" "Votes received.",
    "cluster_stats_messages_update_received" "redis_cluster_stats_messages_update_received"
        "UPDATE messages received.",
    "cluster_stats_messages_mfstart_received" "redis_cluster_stats_messages_mfstart_received"
        "Requests for a manual failover received.",
    "cluster_stats_messages_module_received" "redis_cluster_stats_messages_module_received"
        "Messages of modules received.",
    "cluster_stats_messages_publishshard_received" "redis_cluster_stats_messages_publishshard_received"
        "SPUBLISH messages received.",
    "cluster_stats_messages_received" "redis_cluster_messages_received_total" "Messages received.",
    "cluster_stats_bytes_sent" "redis_cluster_stats_bytes_sent" "Bytes sent to other nodes.",
    "cluster_stats_bytes_received" "redis_cluster_stats_bytes_received" "Bytes received from other nodes.",
    "cluster_stats_pubsub_bytes_sent" "redis_cluster_stats_pubsub_bytes_sent" "Bytes of published messages sent.",
    "cluster_stats_pubsub_bytes_received" "redis_cluster_stats_pubsub_bytes_received"
        "Bytes of published messages received.",
    "cluster_stats_module_bytes_sent" "redis_cluster_stats_module_bytes_sent" "Bytes of messages of modules sent.",
    "cluster_stats_module_bytes_received" "redis_cluster_stats_module_bytes_received"
        "Bytes of messages of modules received.",
    "total_cluster_links_buffer_limit_exceeded" "kvick_cluster_links_over_limit"
        "Links closed because of cluster-link-sendbuf-limit.",
}

/// Writes them, in cluster mode.
pub fn write(server: &Server, out: &mut Exposition) {
    let Some(text) = cluster_info(server) else { return };
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let Some((_, metric)) = METRICS.iter().find(|(field, _)| *field == name) else { continue };
        match value {
            "ok" => out.family(metric).sample(&[], true),
            "fail" => out.family(metric).sample(&[], false),
            number => number.parse::<u64>().into_iter().for_each(|number| out.family(metric).sample(&[], number)),
        }
    }
}
