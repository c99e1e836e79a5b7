//! Rules that are stricter than Valkey's. They change nothing on the wire, and are off by default.

use super::facts::elapsed;
use super::{Cluster, Facts, LinkId, NodeKey, log};

impl Cluster {
    /// Whether a voter proves that it has heard this node so recently that it cannot suspect it yet. A PING that was
    /// answered proves that; what was merely received from the voter does not, since a connection may work in one
    /// direction only. Always true without [`super::Safety::fence_minority_primary`], and for replicas.
    pub(super) fn has_lease_of(&self, key: NodeKey, now_ms: u64) -> bool {
        if !self.settings.safety.fence_minority_primary || key == self.myself || !self.me().votes() {
            return true;
        }
        let timeout_ms = self.settings.node_timeout_ms;
        elapsed(now_ms, self.nodes[key].acknowledged.get()) < timeout_ms - timeout_ms / 10
    }

    /// Whether this node has to ping a voter, so that [`Cluster::has_lease_of`] stays true.
    pub(super) fn is_lease_due(&self, key: NodeKey, now_ms: u64) -> bool {
        let age_ms = elapsed(now_ms, self.nodes[key].acknowledged.get());
        self.needs_lease_of(key) && age_ms > self.settings.node_timeout_ms / 2
    }

    /// Whether this node's leases must include that of another one.
    pub(super) fn needs_lease_of(&self, key: NodeKey) -> bool {
        self.settings.safety.fence_minority_primary && self.me().votes() && self.nodes[key].votes()
    }

    /// When a voter that has just proved to have heard this node does not prove it any more.
    pub(super) fn lease_end_ms(&self, key: NodeKey) -> u64 {
        let timeout_ms = self.settings.node_timeout_ms;
        let is_needed = self.settings.safety.fence_minority_primary && key != self.myself && self.me().votes();
        match self.nodes[key].acknowledged.get().filter(|_| is_needed) {
            Some(since_ms) => since_ms.saturating_add(timeout_ms - timeout_ms / 10),
            None => u64::MAX,
        }
    }

    /// Decides at the start whether this node waits for a replica to take over. Call it when the data is loaded, or
    /// was found to be missing, and before the first tick.
    pub fn data_loaded(&mut self, facts: &Facts<'_>) {
        if self.me().slot_count > 0 {
            self.note_absence(facts.ms());
        }
        self.verify_data(facts);
        let wait_ms = self.settings.safety.empty_primary_wait_ms;
        let me = self.me();
        if wait_ms == 0 || facts.has_keys || !me.votes() || me.replicas.is_empty() {
            return;
        }
        log!(
            self,
            Warning,
            "This primary has slots and replicas but no data. Waiting up to {wait_ms} milliseconds for a replica to \
             take over."
        );
        self.takeover_deadline_ms = Some(facts.ms().saturating_add(wait_ms));
    }

    /// Ends the wait when a replica has taken over, or when the time is over.
    pub(super) fn check_takeover(&mut self, facts: &Facts<'_>) {
        let Some(deadline_ms) = self.takeover_deadline_ms else { return };
        if !self.me().votes() {
            log!(self, Notice, "A replica has taken over from this primary without data.");
        } else if facts.ms() >= deadline_ms {
            log!(self, Warning, "No replica has taken over. Serving without data.");
        } else {
            return;
        }
        self.takeover_deadline_ms = None;
        // PINGs of that time were not answered, and never will be. On new links all nodes send new ones.
        let mut links: Vec<LinkId> = self.links.keys().copied().collect();
        links.sort_unstable();
        for link in links {
            self.close_link(Some(link), facts.ms());
        }
    }
}
