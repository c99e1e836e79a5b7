//! Timers: everything that is due because of time, ten times a second.

use super::facts::elapsed;
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
        self.note_tick(facts.ms());
        self.check_takeover(facts);
        if self.waits_for_takeover() {
            return;
        }
        let mut due = std::mem::take(&mut self.due);
        due.clear();
        self.collect_due(facts, &mut due);
        self.maintain_links(&due, facts);
        if self.ticks.is_multiple_of(RANDOM_PING_TICKS) && !self.settings.debug.no_random_ping {
            self.ping_random_node(facts);
        }
        let mut suspected = false;
        due.retain(|key| self.nodes.get(*key).is_some());
        for key in &due {
            suspected |= self.check_node(*key, facts);
        }
        for key in &due {
            self.nodes.set_due(*key, self.next_check_ms(*key));
        }
        self.due = due;
        if self.me().is_replica() && !self.replicating {
            let known = self
                .me()
                .replica_of
                .filter(|primary| self.nodes[*primary].has_address() && !self.nodes[*primary].ip.is_empty());
            if let Some(primary) = known {
                self.replicate_from(primary, false, false);
            }
        }
        self.check_handed_over(facts);
        self.check_manual_timeout(facts.ms());
        self.announce_pause(facts);
        if self.me().is_replica() {
            self.check_manual_failover(facts);
            self.check_election(facts);
            if self.settings.allow_replica_migration && self.me().is_replica() {
                self.migrate_if_needed(facts);
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
    fn maintain_links(&mut self, due: &[NodeKey], facts: &Facts<'_>) {
        self.suspected_nodes = 0;
        let half_ms = self.settings.node_timeout_ms / 2;
        // As many attempts in a tick as it takes to try each node ten times in half of the node timeout.
        let mut attempts = (self.nodes.len() as u64 * TICK_MS).checked_div(half_ms).unwrap_or(0) * CONNECTS_PER_TIMEOUT;
        for key in due.iter().copied() {
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
            let is_recent = elapsed(facts.ms(), node.connect_attempt.get()) < half_ms / CONNECTS_PER_TIMEOUT;
            if node.inbound.is_none() && is_recent && attempts == 0 {
                continue;
            }
            attempts = attempts.saturating_sub(1);
            self.nodes.link_mut(key).connect_attempt = Some(facts.ms()).into();
            self.connect(key, facts);
        }
    }

    /// A node that has not opened a link for long does not seem to know this one: sends MEET.
    fn meet_again_if_unknown(&mut self, key: NodeKey, facts: &Facts<'_>) {
        let node = &self.nodes[key];
        let Some(link) = node.link.filter(|_| node.is_normal() && node.inbound.is_none()) else { return };
        let timeout_ms = self.handshake_timeout_ms();
        let is_due = facts.ms().saturating_sub(node.inbound_lost_ms) > timeout_ms
            && elapsed(facts.ms(), node.meet_sent.get()) > timeout_ms;
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
            let Some(key) = self.nodes.random(start) else { continue };
            let node = &self.nodes[key];
            let is_pinged = self.nodes.ping_sent(key).is_some();
            if node.link.is_none() || is_pinged || node.is(NodeFlags::MYSELF | NodeFlags::HANDSHAKE) {
                continue;
            }
            let pong = self.nodes.pong_received(key);
            if oldest.is_none_or(|oldest| self.nodes.pong_received(oldest) > pong) {
                oldest = Some(key);
            }
        }
        if let Some((key, link)) = oldest.and_then(|key| Some((key, self.nodes[key].link?))) {
            log!(self, Debug, "Pinging node {}", self.label(key));
            self.send_ping(link, MessageType::Ping, facts);
        }
    }

    /// Pings a node if it is time, and suspects it if it does not answer. Returns whether that is new.
    fn check_node(&mut self, key: NodeKey, facts: &Facts<'_>) -> bool {
        let now_ms = facts.ms();
        let timeout_ms = self.settings.node_timeout_ms;
        let node = &self.nodes[key];
        if node.is(NodeFlags::MYSELF | NodeFlags::NO_ADDRESS | NodeFlags::HANDSHAKE) {
            return false;
        }

        // Nothing was received for half of the timeout although a PONG is due: maybe only the connection is broken.
        let ping_age_ms = elapsed(now_ms, self.nodes.ping_sent(key));
        let data_age_ms = elapsed(now_ms, node.data_received.get());
        let link_age_ms =
            node.link.and_then(|id| self.links.get(&id)).map_or(0, |link| now_ms.saturating_sub(link.created_ms));
        let is_pinged = self.nodes.ping_sent(key).is_some();
        let is_silent = is_pinged && ping_age_ms > timeout_ms / 2 && data_age_ms > timeout_ms / 2;
        if link_age_ms > timeout_ms && is_silent {
            self.close_link(node.link, now_ms);
        }

        let node = &self.nodes[key];
        if let Some(link) = node.link {
            // What others say about its PONGs does not renew a lease.
            let pong_age_ms = elapsed(now_ms, self.nodes.pong_received(key));
            let is_due = !is_pinged && (pong_age_ms > self.ping_interval_ms() || self.is_lease_due(key, now_ms));
            if is_due || self.waiting_for_pause() == Some(key) {
                self.send_ping(link, MessageType::Ping, facts);
                return false;
            }
        }
        if !is_pinged || ping_age_ms.min(data_age_ms) <= timeout_ms {
            return false;
        }
        self.suspect(key, facts)
    }

    /// Time without a PONG, known directly or from others, after which a node is pinged.
    fn ping_interval_ms(&self) -> u64 {
        match self.settings.ping_interval_ms {
            0 => self.settings.node_timeout_ms / 2,
            interval_ms => interval_ms,
        }
    }

    /// The replica that waits to hear that writes are paused.
    fn waiting_for_pause(&self) -> Option<NodeKey> {
        self.manual.replica.filter(|_| self.manual.deadline_ms.is_some() && self.me().is_primary())
    }

    /// The nodes that this tick has to look at. A change of this node concerns all.
    fn collect_due(&mut self, facts: &Facts<'_>, due: &mut Vec<NodeKey>) {
        if let Some(replica) = self.waiting_for_pause() {
            self.nodes.set_due(replica, 0);
        }
        self.nodes.collect_due(facts.ms(), self.nodes.is_changed(self.myself), due);
        debug_assert!(
            self.nodes.keys().iter().all(|key| due.contains(key) || self.next_check_ms(*key) > facts.ms()),
            "a change that makes something due was not noted"
        );
    }

    /// When a tick has to look at a node again, unless it changes: not after anything that
    /// [`Cluster::maintain_links`] and [`Cluster::check_node`] do with it. A later PONG makes nothing due earlier.
    fn next_check_ms(&self, key: NodeKey) -> u64 {
        let Some(node) = self.nodes.get(key) else { return 0 };
        if node.is(NodeFlags::MYSELF) {
            return u64::MAX;
        }
        let has_links = node.link.is_some() && node.inbound.is_some();
        if !has_links || !node.is_normal() || node.is(NodeFlags::NO_ADDRESS) {
            return 0;
        }
        let timeout_ms = self.settings.node_timeout_ms;
        match self.nodes.ping_sent(key) {
            Some(sent_ms) => sent_ms.max(node.data_received.get().unwrap_or(0)).saturating_add(timeout_ms / 2),
            None => {
                let next = |since_ms: Option<u64>, ms| since_ms.map_or(0, |since_ms| since_ms.saturating_add(ms));
                let ping_ms = next(self.nodes.pong_received(key), self.ping_interval_ms());
                if self.needs_lease_of(key) {
                    ping_ms.min(next(node.acknowledged.get(), timeout_ms / 2))
                } else {
                    ping_ms
                }
            }
        }
    }

    /// Suspects a node that has not answered. Returns whether that is new.
    fn suspect(&mut self, key: NodeKey, facts: &Facts<'_>) -> bool {
        if self.nodes[key].is(NodeFlags::PFAIL | NodeFlags::FAIL) {
            return false;
        }
        self.nodes.set_suspected(key, true);
        self.text_changes += 1;
        if self.me().votes() {
            self.mark_failed_if_agreed(key, facts);
        } else {
            log!(self, Notice, "NODE {} possibly failing.", self.label(key));
        }
        true
    }
}
