//! The state in `nodes.conf`, and the check of the data against it.

use super::info::NOT_STORED;
use super::node::{Announced, Node};
use super::{Action, Cluster, Facts, Now, log};
use crate::flags::NodeFlags;
use crate::nodes_conf::{self, Line, NodesConf, WriteError};
use crate::slots::{SLOT_COUNT, Slots};
use crate::text::slots_text;

/// Usual bytes of a line.
const LINE_BYTES: usize = 256;

impl Cluster {
    /// Continues from the content of `nodes.conf`. Only the node itself is known yet, by its name.
    pub(super) fn load(&mut self, conf: &NodesConf, now: Now) {
        for stored in &conf.nodes {
            let shard_id = stored.shard_id.unwrap_or_else(|| self.random.node_id());
            let flags = stored.flags & NodeFlags::PERSISTED;
            let key = match self.nodes.find(&stored.id) {
                Some(key) => key,
                None => self.nodes.insert(Node::new(stored.id, shard_id, flags, now.mono_ms)),
            };
            let node = &mut self.nodes[key];
            node.shard_id = shard_id;
            load_node(node, stored, now);
            self.nodes.set_ping_sent(key, (stored.ping_sent_ms != 0).then_some(now.mono_ms));
            self.nodes.set_pong_received(key, (stored.pong_received_ms != 0).then_some(now.mono_ms));
            let node = &self.nodes[key];
            // A node that is only mentioned by others has no role, and is in no shard.
            if node.is(NodeFlags::PRIMARY | NodeFlags::REPLICA) {
                self.nodes.join_shard(key);
            }
        }
        for stored in &conf.nodes {
            let Some(key) = self.nodes.find(&stored.id) else { continue };
            if let Some(primary) = stored.primary.and_then(|id| self.nodes.find(&id)).filter(|primary| *primary != key)
            {
                self.nodes[key].replica_of = Some(primary);
                self.add_replica(primary, key);
            }
            for slot in stored.slots.iter() {
                self.assign_slot(key, slot);
            }
        }
        for (slot, id) in &conf.migrating {
            self.migrating.extend(self.nodes.find(id).map(|key| (*slot, key)));
        }
        for (slot, id) in &conf.importing {
            self.importing.extend(self.nodes.find(id).map(|key| (*slot, key)));
        }
        self.reset_stats = Slots::EMPTY;
        let highest = conf.nodes.iter().map(|node| node.config_epoch).max().unwrap_or(0);
        self.current_epoch = conf.current_epoch.max(highest);
        self.last_vote_epoch = conf.last_vote_epoch;
        log!(self, Notice, "Node configuration loaded, I'm {}", self.my_id());
    }

    /// The content of `nodes.conf`. Fails if a configured text cannot be stored.
    pub fn config_content(&self, now: Now) -> Result<String, WriteError> {
        let mut out = String::with_capacity(self.nodes.len() * LINE_BYTES);
        for (key, node) in self.nodes.iter().filter(|(_, node)| !node.is(NOT_STORED)) {
            let known_slots = node.slots_text.get_or_init(|| slots_text(node.slots.view()).into_boxed_str());
            let other_slots = if node.slots.view().intersects(self.unclaimed.view()) {
                // After a restart, they would count as claimed by the node. If another one owns them, unknown to this
                // node, it would be told that it has lost them.
                let mut claimed = node.slots.clone();
                claimed.remove_all(self.unclaimed.view());
                Some(slots_text(claimed.view()))
            } else if key == self.myself && !(self.migrating.is_empty() && self.importing.is_empty()) {
                let mut with_open = known_slots.to_string();
                // Writing to a String does not fail.
                let _ = self.write_open_slots(&mut with_open);
                Some(with_open)
            } else {
                None
            };
            let announced = node.announced();
            let line = Line {
                id: &node.id,
                ip: &node.ip,
                tcp_port: node.tcp_port,
                tls_port: node.tls_port,
                bus_port: node.bus_port,
                hostname: &announced.hostname,
                human_name: &announced.human_name,
                shard_id: Some(&node.shard_id),
                client_ipv4: &announced.client_ipv4,
                client_ipv6: &announced.client_ipv6,
                client_tcp_port: announced.client_tcp_port,
                client_tls_port: announced.client_tls_port,
                availability_zone: &announced.availability_zone,
                flags: node.flags & NodeFlags::PERSISTED,
                primary: node.replica_of.map(|primary| &self.nodes[primary].id),
                ping_sent_ms: now.unix_of(self.nodes.ping_sent(key)),
                pong_received_ms: now.unix_of(self.nodes.pong_received(key)),
                config_epoch: self.epoch_of(key),
                connected: node.link.is_some(),
                slots: other_slots.as_deref().unwrap_or(known_slots),
            };
            line.write(&mut out)?;
        }
        nodes_conf::write_epochs(&mut out, self.current_epoch, self.last_vote_epoch);
        Ok(out)
    }

    /// Whether this node imports a slot, in one way or the other.
    pub(super) fn imports(&self, slot: u16, facts: &Facts<'_>) -> bool {
        self.importing.contains_key(&slot) || facts.jobs.importing.contains(slot)
    }

    /// Compares the data of a primary with its slots: takes over slots without owner for which there are keys, and
    /// has keys deleted whose slots other nodes own.
    pub(super) fn verify_data(&mut self, facts: &Facts<'_>) {
        if self.settings.module_no_redirection || self.me().is_replica() {
            return;
        }
        let mut foreign = Slots::EMPTY;
        let mut changed = false;
        for slot in 0..SLOT_COUNT {
            let owner = self.owner(slot);
            // The keys in a slot that its owner has given up are kept until another node claims it.
            let is_expected = owner == Some(self.myself) || self.unclaimed.contains(slot) || self.imports(slot, facts);
            if is_expected || (facts.keys_in_slot)(slot) == 0 {
                continue;
            }
            changed = true;
            if owner.is_none() {
                log!(self, Notice, "I have keys for unassigned slot {slot}. Taking responsibility for it.");
                self.assign_slot(self.myself, slot);
            } else {
                log!(
                    self,
                    Notice,
                    "I have keys for slot {slot}, but the slot is assigned to another node. Deleting keys in the slot."
                );
                foreign.insert(slot);
            }
        }
        if !foreign.is_empty() {
            self.out.push(Action::DeleteKeys(Box::new(foreign)));
        }
        if changed {
            self.todo(super::settle::Todo::SAVE | super::settle::Todo::SYNC | super::settle::Todo::STATE);
        }
    }
}

/// Copies the description of a node.
fn load_node(node: &mut Node, stored: &nodes_conf::Node, now: Now) {
    node.config_epoch = stored.config_epoch;
    node.ip = stored.ip.as_str().into();
    node.tcp_port = stored.tcp_port;
    node.tls_port = stored.tls_port;
    node.bus_port = stored.bus_port;
    node.set_announced(Announced {
        hostname: stored.hostname.clone(),
        human_name: stored.human_name.clone(),
        availability_zone: stored.availability_zone.clone(),
        client_ipv4: stored.client_ipv4.clone(),
        client_ipv6: stored.client_ipv6.clone(),
        client_tcp_port: stored.client_tcp_port,
        client_tls_port: stored.client_tls_port,
    });
    node.failed_since = node.is_failed().then_some(now.mono_ms).into();
}
