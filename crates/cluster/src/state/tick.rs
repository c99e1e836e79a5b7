//! Timers: everything that is due because of time, ten times a second.

use super::facts::elapsed;
use super::replica_migration::ReplicaCounts;
use super::settle::Todo;
use super::{Cluster, Facts, NodeKey, log};
use crate::bus::{ClusterState, MessageType};
use crate::flags::NodeFlags;

/// Milliseconds between two calls of [`Cluster::tick`].
pub(super) const TICK_MS: u64 = 100;

/// A random node is pinged once in so many ticks.
const RANDOM_PING_TICKS: u64 = 10;

/// The random node is the one, of this many, whose PONG is the oldest.
const RANDOM_PING_CHOICES: usize = 5;

/// Connections to a node are attempted this often in half of the node timeout.
const CONNECTS_PER_TIMEOUT: u64 = 10;

impl Cluster {
    /// Does what is due. Call it every 100 milliseconds, and [`Cluster::settle`] after it.
    pub fn tick(&mut self, facts: &Facts<'_>) {
        self.ticks += 1;
        self.check_takeover(facts);
        if self.waits_for_takeover() {
            return;
        }
        self.maintain_links(facts);
        if self.ticks.is_multiple_of(RANDOM_PING_TICKS) && !self.settings.debug.no_random_ping {
            self.ping_random_node(facts);
        }
        let mut counts = ReplicaCounts::default();
        let mut suspected = false;
        for key in self.nodes.keys() {
            suspected |= self.check_node(key, &mut counts, facts);
        }
        if self.me().is_replica() && !self.replicating {
            let known = self
                .me()
                .replica_of
                .filter(|primary| self.nodes[*primary].has_address() && !self.nodes[*primary].ip.is_empty());
            if let Some(primary) = known {
                self.replicate_from(primary, false, false);
            }
        }
        self.check_manual_timeout(facts.ms());
        if self.me().is_replica() {
            self.check_manual_failover(facts);
            self.check_election(facts);
            if counts.suggest_migration() && self.settings.allow_replica_migration && self.me().is_replica() {
                self.migrate_if_needed(counts, facts);
            }
        }
        if suspected || self.state() == ClusterState::Fail || self.settings.safety.fence_minority_primary {
            self.todo(Todo::STATE);
        }
    }

    /// Time after which a handshake is given up.
    pub(super) fn handshake_timeout_ms(&self) -> u64 {
        self.settings.node_timeout_ms.max(1_000)
    }

    /// Closes links that hold too much, opens missing ones, and ends handshakes that took too long.
    fn maintain_links(&mut self, facts: &Facts<'_>) {
        self.suspected_nodes = 0;
        let half_ms = self.settings.node_timeout_ms / 2;
        // As many attempts in a tick as it takes to try each node ten times in half of the node timeout.
        let mut attempts = (self.nodes.len() as u64 * TICK_MS).checked_div(half_ms).unwrap_or(0) * CONNECTS_PER_TIMEOUT;
        for key in self.nodes.keys() {
            self.enforce_send_buffer_limit(key, facts.ms());
            if self.settings.debug.no_reconnection {
                continue;
            }
            let node = &self.nodes[key];
            if node.is(NodeFlags::MYSELF | NodeFlags::NO_ADDRESS) {
                continue;
            }
            self.suspected_nodes += usize::from(node.is_suspected());
            let timeout_ms = self.handshake_timeout_ms();
            if node.in_handshake() && facts.ms().saturating_sub(node.created_ms) > timeout_ms {
                log!(self, Warning, "Clusterbus handshake timeout {}:{}", node.ip, node.bus_port);
                self.remove_node(key, facts);
                continue;
            }
            self.meet_again_if_unknown(key, facts);
            let node = &self.nodes[key];
            if node.link.is_some() || node.ip.is_empty() {
                continue;
            }
            let is_recent = elapsed(facts.ms(), node.connect_attempt) < half_ms / CONNECTS_PER_TIMEOUT;
            if node.inbound.is_none() && is_recent && attempts == 0 {
                continue;
            }
            attempts = attempts.saturating_sub(1);
            self.nodes[key].connect_attempt = Some(facts.ms());
            self.connect(key, facts);
        }
    }

    /// A node that has not opened a link for long does not seem to know this one: sends MEET.
    fn meet_again_if_unknown(&mut self, key: NodeKey, facts: &Facts<'_>) {
        let node = &self.nodes[key];
        let Some(link) = node.link.filter(|_| node.is_normal() && node.inbound.is_none()) else { return };
        let timeout_ms = self.handshake_timeout_ms();
        let is_due = facts.ms().saturating_sub(node.inbound_lost_ms) > timeout_ms
            && elapsed(facts.ms(), node.meet_sent) > timeout_ms;
        // Nodes that understand light messages of modules accept MEET from nodes that they know.
        if !is_due || !node.is(NodeFlags::LIGHT_MODULE) {
            return;
        }
        self.nodes[key].flags |= NodeFlags::MEET;
        log!(self, Notice, "Sending MEET packet to node {} because there is no inbound link for it", self.label(key));
        self.send_ping(link, MessageType::Meet, facts);
    }

    /// Pings the node with the oldest PONG of a few random ones.
    fn ping_random_node(&mut self, facts: &Facts<'_>) {
        let mut oldest: Option<NodeKey> = None;
        for _ in 0..RANDOM_PING_CHOICES {
            let start = self.random.next();
            let Some((key, node)) = self.nodes.sample(start, 1).next() else { continue };
            if node.link.is_none() || node.ping_sent.is_some() || node.is(NodeFlags::MYSELF | NodeFlags::HANDSHAKE) {
                continue;
            }
            if oldest.is_none_or(|oldest| self.nodes[oldest].pong_received > node.pong_received) {
                oldest = Some(key);
            }
        }
        if let Some((key, link)) = oldest.and_then(|key| Some((key, self.nodes[key].link?))) {
            log!(self, Debug, "Pinging node {}", self.label(key));
            self.send_ping(link, MessageType::Ping, facts);
        }
    }

    /// Pings a node if it is time, and suspects it if it does not answer. Returns whether that is new.
    fn check_node(&mut self, key: NodeKey, counts: &mut ReplicaCounts, facts: &Facts<'_>) -> bool {
        let now_ms = facts.ms();
        let timeout_ms = self.settings.node_timeout_ms;
        let node = &self.nodes[key];
        if node.is(NodeFlags::MYSELF | NodeFlags::NO_ADDRESS | NodeFlags::HANDSHAKE) {
            return false;
        }
        if self.me().is_replica() && node.is_primary() && !node.is_failed() {
            let working = self.working_replicas(key);
            counts.orphaned += usize::from(working == 0 && node.slot_count > 0 && node.is(NodeFlags::MIGRATE_TO));
            counts.most = counts.most.max(working);
            if self.me().replica_of == Some(key) {
                counts.own = working;
            }
        }

        // Nothing was received for half of the timeout although a PONG is due: maybe only the connection is broken.
        let ping_age_ms = elapsed(now_ms, node.ping_sent);
        let data_age_ms = elapsed(now_ms, node.data_received);
        let link_age_ms =
            node.link.and_then(|id| self.links.get(&id)).map_or(0, |link| now_ms.saturating_sub(link.created_ms));
        let is_silent = node.ping_sent.is_some() && ping_age_ms > timeout_ms / 2 && data_age_ms > timeout_ms / 2;
        if link_age_ms > timeout_ms && is_silent {
            self.close_link(node.link, now_ms);
        }

        let node = &self.nodes[key];
        let interval_ms = match self.settings.ping_interval_ms {
            0 => timeout_ms / 2,
            interval_ms => interval_ms,
        };
        if let Some(link) = node.link {
            // What others say about its PONGs does not renew a lease.
            let is_due = node.ping_sent.is_none()
                && (elapsed(now_ms, node.pong_received) > interval_ms || self.is_lease_due(key, now_ms));
            let is_waiting_for_pause =
                self.manual.deadline_ms.is_some() && self.me().is_primary() && self.manual.replica == Some(key);
            if is_due || is_waiting_for_pause {
                self.send_ping(link, MessageType::Ping, facts);
                return false;
            }
        }
        let node = &self.nodes[key];
        if node.ping_sent.is_none() || ping_age_ms.min(data_age_ms) <= timeout_ms {
            return false;
        }
        self.suspect(key, facts)
    }

    /// Suspects a node that has not answered. Returns whether that is new.
    fn suspect(&mut self, key: NodeKey, facts: &Facts<'_>) -> bool {
        if self.nodes[key].is(NodeFlags::PFAIL | NodeFlags::FAIL) {
            return false;
        }
        self.nodes[key].flags |= NodeFlags::PFAIL;
        if self.me().votes() {
            self.mark_failed_if_agreed(key, facts);
        } else {
            log!(self, Notice, "NODE {} possibly failing.", self.label(key));
        }
        true
    }
}
