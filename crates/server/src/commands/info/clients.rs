//! The section on connections.

use super::Subject;
use super::page::Page;
use crate::clients::ClientFlags;
use std::sync::atomic::Ordering;

pub fn write(subject: &Subject, page: &mut Page) {
    let server = subject.server;
    let clients = server.clients.all();
    let input_max = clients.iter().map(|client| client.input_memory.load(Ordering::Relaxed)).max();
    let output_max = clients.iter().map(|client| client.output.load(Ordering::Relaxed)).max();
    let blocked = clients.iter().filter(|client| {
        let flags = client.flags();
        flags.contains(ClientFlags::BLOCKED) && !flags.contains(ClientFlags::PAUSED)
    });
    page.section("Clients");
    page.field("connected_clients", clients.len());
    page.field("cluster_connections", 0);
    page.field("maxclients", server.tunables().maxclients);
    page.field("client_recent_max_input_buffer", input_max.unwrap_or(0));
    page.field("client_recent_max_output_buffer", output_max.unwrap_or(0));
    page.field("blocked_clients", blocked.count());
    for name in [
        "tracking_clients",
        "pubsub_clients",
        "watching_clients",
        "clients_in_timeout_table",
        "total_watched_keys",
        "total_blocking_keys",
        "total_blocking_keys_on_nokey",
    ] {
        page.field(name, 0);
    }
    let (reason, actions, left_ms) = match server.pause.state(subject.now_ms) {
        None => ("none", "none", 0),
        Some((until, all)) => ("client_pause", if all { "all" } else { "write" }, until - subject.now_ms),
    };
    page.field("paused_reason", reason);
    page.field("paused_actions", actions);
    page.field("paused_timeout_milliseconds", left_ms);
}
