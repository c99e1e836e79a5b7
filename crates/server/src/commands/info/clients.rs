//! The section on connections.

use super::Context;
use super::page::Page;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::pause::PauseReason;
use kvick_engine::blocking::Blocked;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keys and timeouts of blocked clients.
#[derive(Default)]
struct Waits {
    /// Clients with a timeout.
    limited: usize,
    /// The keys, with their databases, and whether a client must be notified of their deletion.
    keys: HashMap<(usize, Vec<u8>), bool>,
}

impl Waits {
    fn of(clients: &[Arc<ClientInfo>]) -> Waits {
        let mut waits = Waits::default();
        for waiter in clients.iter().filter_map(|client| client.waiter.lock().clone()) {
            let Some(blocked) = Blocked::of(&waiter) else { continue };
            waits.limited += usize::from(blocked.is_limited());
            for key in blocked.key_names() {
                *waits.keys.entry((blocked.db, key.to_vec())).or_default() |= waiter.wakes_on_deletion;
            }
        }
        waits
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    let server = context.server;
    let clients = server.clients.all();
    let input_max = clients.iter().map(|client| client.input_memory.load(Ordering::Relaxed)).max();
    let output_max = clients.iter().map(|client| client.output.load(Ordering::Relaxed)).max();
    let blocked = clients.iter().filter(|client| client.flags().contains(ClientFlags::BLOCKED));
    page.section("Clients");
    let replicas = clients.iter().filter(|client| client.flags().contains(ClientFlags::REPLICA)).count();
    page.field("connected_clients", clients.len() - replicas);
    page.field("cluster_connections", 0);
    page.field("maxclients", server.runtime_config().maxclients);
    page.field("client_recent_max_input_buffer", input_max.unwrap_or(0));
    page.field("client_recent_max_output_buffer", output_max.unwrap_or(0));
    page.field("blocked_clients", blocked.count());
    let waits = Waits::of(&clients);
    page.field("tracking_clients", server.tracking.clients());
    let subscribed = clients.iter().filter(|client| client.flags().contains(ClientFlags::PUBSUB));
    page.field("pubsub_clients", subscribed.count());
    let watched = || clients.iter().map(|client| client.watched.load(Ordering::Relaxed));
    page.field("watching_clients", watched().filter(|keys| *keys > 0).count());
    page.field("clients_in_timeout_table", waits.limited);
    page.field("total_watched_keys", watched().sum::<usize>());
    page.field("total_blocking_keys", waits.keys.len());
    page.field(
        "total_blocking_keys_on_nokey",
        waits.keys.values().filter(|wakes_on_deletion| **wakes_on_deletion).count(),
    );
    let (reason, actions, left_ms) = match server.pause.state(context.now_ms) {
        None => match server.slot_migration.view(|jobs| jobs.pause_end_ms()) {
            None => ("none", "none", 0),
            Some(end_ms) => ("slot_migration_in_progress", "write", end_ms as i64 - context.now_ms),
        },
        Some(pause) => {
            let reason = match server.pause.internal_reason() {
                None => "client_pause",
                Some(PauseReason::Shutdown) => "shutdown_in_progress",
                Some(PauseReason::Failover | PauseReason::ClusterFailover) => "failover_in_progress",
            };
            let actions = if pause.pauses_all { "all" } else { "write" };
            (reason, actions, pause.until_ms.saturating_sub(context.now_ms))
        }
    };
    page.field("paused_reason", reason);
    page.field("paused_actions", actions);
    page.field("paused_timeout_milliseconds", left_ms);
}
