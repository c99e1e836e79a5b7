//! The section on connections.

use super::Context;
use super::page::Page;
use crate::memory::Connections;
use crate::server::Server;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::pause::PauseReason;
use kvick_engine::blocking::Blocked;
use kvick_metrics::fields;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Figures on all clients.
#[derive(Default)]
pub struct Facts {
    /// All but replicas.
    connected: usize,
    maxclients: usize,
    input_max: usize,
    output_max: usize,
    blocked: usize,
    tracking: usize,
    subscribed: usize,
    watching: usize,
    watched_keys: usize,
    /// Blocked clients with a timeout.
    limited: usize,
    /// The keys of blocked clients with their databases, and whether a client must be notified of their deletion.
    blocking_keys: HashMap<(usize, Vec<u8>), bool>,
    pause: Pause,
    /// Memory of all connections.
    pub memory: Connections,
}

/// Why clients are paused, what they may not do, and for how long.
#[derive(Default)]
struct Pause {
    reason: &'static str,
    actions: &'static str,
    left_ms: i64,
}

fields! {
    /// All fields of the section.
    pub static FIELDS: Facts;
    connected_clients: gauge redis_connected_clients "Client connections, without those of replicas."
        = |facts| facts.connected;
    cluster_connections: gauge redis_cluster_connections "Always 0: links between nodes are not client connections."
        = |_facts| 0u64;
    maxclients: gauge redis_max_clients "Limit of client connections." = |facts| facts.maxclients;
    client_recent_max_input_buffer: gauge redis_client_recent_max_input_buffer_bytes
        "Largest input buffer of a client." = |facts| facts.input_max;
    client_recent_max_output_buffer: gauge redis_client_recent_max_output_buffer_bytes
        "Largest output of a client that waits to be sent." = |facts| facts.output_max;
    blocked_clients: gauge redis_blocked_clients "Clients that wait in a blocking command." = |facts| facts.blocked;
    tracking_clients: gauge redis_tracking_clients "Clients that cache keys (CLIENT TRACKING)."
        = |facts| facts.tracking;
    pubsub_clients: gauge redis_pubsub_clients "Clients with subscriptions." = |facts| facts.subscribed;
    watching_clients: gauge redis_watching_clients "Clients that watch keys (WATCH)." = |facts| facts.watching;
    clients_in_timeout_table: gauge redis_clients_in_timeout_table "Blocked clients with a timeout."
        = |facts| facts.limited;
    total_watched_keys: gauge redis_total_watched_keys "Keys that clients watch." = |facts| facts.watched_keys;
    total_blocking_keys: gauge redis_total_blocking_keys "Keys that blocked clients wait for."
        = |facts| facts.blocking_keys.len();
    total_blocking_keys_on_nokey: gauge redis_total_blocking_keys_on_nokey
        "Keys whose deletion wakes a blocked client."
        = |facts| facts.blocking_keys.values().filter(|wakes_on_deletion| **wakes_on_deletion).count();
    paused_reason: info = |facts| facts.pause.reason;
    paused_actions: info = |facts| facts.pause.actions;
    paused_timeout_milliseconds: info = |facts| facts.pause.left_ms;
}

impl Facts {
    /// Collects them, once for a context.
    pub fn of(context: &Context) -> &Facts {
        context.clients.get_or_init(|| Facts::collect(context))
    }

    fn collect(context: &Context) -> Facts {
        let server = context.server;
        let mut facts = Facts {
            maxclients: server.runtime_config().maxclients,
            tracking: server.tracking.clients(),
            pause: Pause::of(server, context.now_ms),
            ..Facts::default()
        };
        // Most of the time is spent waiting for memory, so all sums are made in one visit.
        server.clients.visit(|client| {
            facts.count(client);
            facts.memory.add(client);
        });
        facts
    }

    fn count(&mut self, client: &ClientInfo) {
        let flags = client.flags();
        let watched = client.watched.load(Ordering::Relaxed);
        self.connected += usize::from(!flags.contains(ClientFlags::REPLICA));
        self.input_max = self.input_max.max(client.input_memory.load(Ordering::Relaxed));
        self.output_max = self.output_max.max(client.output.load(Ordering::Relaxed));
        self.subscribed += usize::from(flags.contains(ClientFlags::PUBSUB));
        self.watching += usize::from(watched > 0);
        self.watched_keys += watched;
        if !flags.contains(ClientFlags::BLOCKED) {
            return;
        }
        self.blocked += 1;
        let waiter = client.waiter.lock().clone();
        if let Some(waiter) = waiter
            && let Some(blocked) = Blocked::of(&waiter)
        {
            self.limited += usize::from(blocked.is_limited());
            for key in blocked.key_names() {
                *self.blocking_keys.entry((blocked.db, key.to_vec())).or_default() |= waiter.wakes_on_deletion;
            }
        }
    }
}

impl Pause {
    fn of(server: &Server, now_ms: i64) -> Pause {
        match server.pause.state(now_ms) {
            None => match server.slot_migration.pause_left_ms() {
                None => Pause { reason: "none", actions: "none", left_ms: 0 },
                Some(left_ms) => {
                    let left_ms = i64::try_from(left_ms).unwrap_or(i64::MAX);
                    Pause { reason: "slot_migration_in_progress", actions: "write", left_ms }
                }
            },
            Some(pause) => {
                let reason = match server.pause.internal_reason() {
                    None => "client_pause",
                    Some(PauseReason::Shutdown) => "shutdown_in_progress",
                    Some(PauseReason::Failover | PauseReason::ClusterFailover) => "failover_in_progress",
                };
                let actions = if pause.pauses_all { "all" } else { "write" };
                Pause { reason, actions, left_ms: pause.until_ms.saturating_sub(now_ms) }
            }
        }
    }
}

/// Writes the section.
pub fn write(context: &Context, page: &mut Page) {
    page.section("Clients");
    page.write(FIELDS, Facts::of(context));
}
