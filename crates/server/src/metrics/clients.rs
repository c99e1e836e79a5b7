//! Metrics of single clients, for `metrics-clients-max` of them.

use crate::commands::info::Context;
use kvick_config::tables::metrics::METRICS_CLIENTS_MAX;
use kvick_core::clients::ClientInfo;
use kvick_core::clients::line::flag_letters;
use kvick_metrics::{Exposition, Metric};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const NAMES: &[&str] = &["id", "name"];

/// See the module's documentation.
pub static METRICS: [Metric; 13] = [
    Metric::gauge("redis_connected_client_info", "Always 1, with what identifies a client.")
        .labels(&["id", "name", "flags", "db", "host", "user", "resp"]),
    Metric::gauge("redis_connected_client_output_buffer_memory_usage_bytes", "Output of a client that waits.")
        .labels(NAMES),
    Metric::gauge("redis_connected_client_total_memory_consumed_bytes", "Memory of a client.").labels(NAMES),
    Metric::gauge("redis_connected_client_created_at_timestamp", "Unix time when a client connected.").labels(NAMES),
    Metric::gauge("redis_connected_client_idle_since_timestamp", "Unix time of a client's last request.").labels(NAMES),
    Metric::gauge("redis_connected_client_channel_subscriptions_count", "Channels of a client.").labels(NAMES),
    Metric::gauge("redis_connected_client_pattern_matching_subscriptions_count", "Patterns of a client.").labels(NAMES),
    Metric::gauge("redis_connected_client_query_buffer_length_bytes", "Unexecuted input of a client.").labels(NAMES),
    Metric::gauge("redis_connected_client_query_buffer_free_space_bytes", "Free bytes of a client's input buffer.")
        .labels(NAMES),
    Metric::gauge("redis_connected_client_output_buffer_length_bytes", "Always 0: clients have no reply buffers.")
        .labels(NAMES),
    Metric::gauge("redis_connected_client_output_list_length", "Blocks of a client's output.").labels(NAMES),
    Metric::gauge("redis_connected_client_shard_channel_subscriptions_count", "Shard channels of a client.")
        .labels(NAMES),
    Metric::gauge("redis_connected_client_shard_channel_watched_keys", "Keys that a client watches.").labels(NAMES),
];

/// Writes them.
pub fn write(context: &Context, out: &mut Exposition) {
    let count_max = context.server.config.read(METRICS_CLIENTS_MAX) as usize;
    if count_max == 0 {
        return;
    }
    let clients: Vec<(Arc<ClientInfo>, String, String)> = context
        .server
        .clients
        .first(count_max)
        .into_iter()
        .map(|client| {
            let (id, name) = (client.id.to_string(), client.names.lock().name.clone());
            (client, id, String::from_utf8_lossy(&name).into_owned())
        })
        .collect();
    let [info, numbers @ ..] = &METRICS;
    let mut family = out.family(info);
    for (client, id, name) in &clients {
        let letters: String = flag_letters(client.shown_flags()).map(char::from).collect();
        let db = client.db.load(Ordering::Relaxed).to_string();
        let user = String::from_utf8_lossy(&client.names.lock().user).into_owned();
        let host = client.peer.rsplit_once(':').map_or(&*client.peer, |(host, _)| host);
        let protocol = client.protocol.load(Ordering::Relaxed).to_string();
        family.sample(&[id, name, &letters, &db, host, &user, &protocol], true);
    }
    let values: [fn(&ClientInfo) -> i64; 12] = [
        |client| number(&client.output),
        |client| client.memory() as i64,
        |client| client.connected_ms / 1000,
        |client| client.active_ms.load(Ordering::Relaxed) / 1000,
        |client| number(&client.subscriptions[0]),
        |client| number(&client.subscriptions[1]),
        |client| number(&client.input),
        |client| (number(&client.input_memory) - number(&client.input)).max(0),
        |_| 0,
        |client| number(&client.output_blocks),
        |client| number(&client.subscriptions[2]),
        |client| number(&client.watched),
    ];
    for (metric, value) in numbers.iter().zip(values) {
        let mut family = out.family(metric);
        clients.iter().for_each(|(client, id, name)| family.sample(&[id, name], value(client)));
    }
}

fn number(counter: &AtomicUsize) -> i64 {
    counter.load(Ordering::Relaxed) as i64
}
