//! Messages to be sent.

use super::{Action, Cluster, Facts, LinkId, NodeKey, log};
use crate::bus::{
    ADDRESS_BYTES, Body, Extension, Gossip, Header, LightBody, Message, MessageFlags, MessageType, ModuleMessage, Ping,
    Publish, Update,
};
use crate::field;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::Slots;
use std::borrow::Cow;
use std::sync::Arc;

impl Cluster {
    /// PUBLISH (to all nodes) or SPUBLISH (to the nodes of this shard) for subscribers of other nodes.
    pub fn publish(&mut self, channel: &[u8], message: &[u8], sharded: bool, facts: &Facts<'_>) {
        let publish = Publish { channel, message };
        let kind = if sharded { MessageType::PublishShard } else { MessageType::Publish };
        let (full, light) = if sharded {
            (Body::PublishShard(publish), LightBody::PublishShard(publish))
        } else {
            (Body::Publish(publish), LightBody::Publish(publish))
        };
        let targets = if sharded {
            self.nodes.shards().get(&self.me().shard_id).cloned().unwrap_or_default()
        } else {
            self.nodes.keys()
        };
        self.send_light_or_full(&targets, kind, NodeFlags::LIGHT_PUBLISH, full, light, facts);
    }

    /// Sends a message of a module to a node, or to all. Returns whether the node is known and has a link.
    pub fn send_module_message(
        &mut self,
        target: Option<&[u8]>,
        module_id: [u8; 8],
        kind: u8,
        payload: &[u8],
        facts: &Facts<'_>,
    ) -> bool {
        let targets = match target {
            Some(name) => match self.find_by_name(name).filter(|key| self.nodes[*key].link.is_some()) {
                Some(key) => vec![key],
                None => return false,
            },
            None => self.nodes.keys(),
        };
        let message = ModuleMessage { module_id, kind, payload };
        self.send_light_or_full(
            &targets,
            MessageType::Module,
            NodeFlags::LIGHT_MODULE,
            Body::Module(message),
            LightBody::Module(message),
            facts,
        );
        true
    }

    /// CLUSTER commands and slot migrations that changed what this node announces: sends a PONG to all nodes when the
    /// inputs are settled.
    pub fn announce(&mut self) {
        self.todo(super::settle::Todo::BROADCAST);
    }

    /// Sends PING, PONG or MEET with gossip on a link.
    pub(super) fn send_ping(&mut self, id: LinkId, kind: MessageType, facts: &Facts<'_>) {
        let Some(link) = self.links.get(&id) else { return };
        let (inbound, receiver) = (link.inbound, link.node);
        let direction = if inbound { "inbound" } else { "outbound" };
        log!(self, Debug, "Sending {} packet to node {} on {direction} link", kind.name(), self.peer_label(receiver));
        let understood = link.extensions || receiver.is_some_and(|key| self.nodes[key].is(NodeFlags::EXTENSIONS));
        if let Some(key) = receiver.filter(|_| !inbound) {
            match kind {
                MessageType::Ping => self.nodes.set_ping_sent(key, Some(facts.ms())),
                MessageType::Meet => self.nodes.quiet_mut(key).meet_sent = Some(facts.ms()).into(),
                _ => {}
            }
        }
        if let Some(frame) = self.encode_ping(kind, receiver, understood, facts) {
            self.push_frame(id, kind, frame);
        }
    }

    /// Sends a PONG to all connected nodes, or only to the other replicas of this node's primary and to its own.
    pub(super) fn broadcast_pong(&mut self, only_replicas: bool, facts: &Facts<'_>) {
        // All receivers get the same gossip. What it says about themselves, they ignore.
        let mut frames: [Option<Arc<[u8]>>; 2] = [None, None];
        for key in self.nodes.keys() {
            let node = &self.nodes[key];
            let Some(id) = node.link.filter(|_| key != self.myself && !node.in_handshake()) else { continue };
            if only_replicas {
                let is_sibling = node
                    .replica_of
                    .is_some_and(|primary| primary == self.myself || self.me().replica_of == Some(primary));
                if !node.is_replica() || !is_sibling {
                    continue;
                }
            }
            let extensions = self.links.get(&id).is_some_and(|link| link.extensions) || node.is(NodeFlags::EXTENSIONS);
            if frames[usize::from(extensions)].is_none() {
                frames[usize::from(extensions)] = self.encode_ping(MessageType::Pong, None, extensions, facts);
            }
            if let Some(frame) = frames[usize::from(extensions)].clone() {
                self.push_frame(id, MessageType::Pong, frame);
            }
        }
    }

    /// Tells all nodes that a node has failed.
    pub(super) fn broadcast_failure(&mut self, id: NodeId, facts: &Facts<'_>) {
        self.broadcast(MessageType::Fail, Body::Fail(id), MessageFlags::empty(), facts);
    }

    /// Asks all nodes for their vote.
    pub(super) fn broadcast_vote_request(&mut self, force: bool, facts: &Facts<'_>) {
        let flags = if force { MessageFlags::FORCE_ACK } else { MessageFlags::empty() };
        self.broadcast(MessageType::FailoverAuthRequest, Body::FailoverAuthRequest, flags, facts);
    }

    /// Votes for a node.
    pub(super) fn send_vote(&mut self, key: NodeKey, facts: &Facts<'_>) {
        self.send_to(key, MessageType::FailoverAuthAck, Body::FailoverAuthAck, facts);
    }

    /// Asks the primary to pause its clients.
    pub(super) fn send_failover_start(&mut self, key: NodeKey, facts: &Facts<'_>) {
        self.send_to(key, MessageType::ManualFailoverStart, Body::ManualFailoverStart, facts);
    }

    /// Tells a node which slots another one owns.
    pub(super) fn send_update(&mut self, key: NodeKey, about: NodeKey, facts: &Facts<'_>) {
        let node = &self.nodes[about];
        let mut slots = node.slots.clone();
        slots.remove_all(self.unclaimed.view());
        let update = Update { node: node.id, config_epoch: node.config_epoch, slots: slots.view() };
        self.send_to(key, MessageType::Update, Body::Update(update), facts);
    }

    /// Sends a message to a node, if there is a link to it. The link that the other node has opened will do if there
    /// is no other: a vote must not get lost because this node is still connecting.
    fn send_to(&mut self, key: NodeKey, kind: MessageType, body: Body<'_>, facts: &Facts<'_>) {
        let node = &self.nodes[key];
        let open = node.link.filter(|id| self.links.get(id).is_some_and(|link| link.connected));
        let Some(id) = open.or(node.inbound).or(node.link) else { return };
        if let Some(frame) = self.encode_full(body, MessageFlags::empty(), facts) {
            self.push_frame(id, kind, frame);
        }
    }

    /// Sends a message to all nodes to which there is a link.
    fn broadcast(&mut self, kind: MessageType, body: Body<'_>, flags: MessageFlags, facts: &Facts<'_>) {
        let Some(frame) = self.encode_full(body, flags, facts) else { return };
        for key in self.nodes.keys() {
            let node = &self.nodes[key];
            if let Some(id) = node.link.filter(|_| !node.is(NodeFlags::MYSELF | NodeFlags::HANDSHAKE)) {
                self.push_frame(id, kind, frame.clone());
            }
        }
    }

    fn send_light_or_full(
        &mut self,
        targets: &[NodeKey],
        kind: MessageType,
        capability: NodeFlags,
        full: Body<'_>,
        light: LightBody<'_>,
        facts: &Facts<'_>,
    ) {
        let mut frames: [Option<Arc<[u8]>>; 2] = [None, None];
        for key in targets {
            let node = &self.nodes[*key];
            let Some(id) = node.link.filter(|_| !node.is(NodeFlags::MYSELF | NodeFlags::HANDSHAKE)) else { continue };
            let created_ms = self.links.get(&id).map_or(u64::MAX, |link| link.created_ms);
            // A light message is understood only after a full one on the same link. A PONG proves that one arrived.
            let is_light = node.is(capability) && self.nodes.pong_received(*key).is_some_and(|ms| ms >= created_ms);
            if frames[usize::from(is_light)].is_none() {
                frames[usize::from(is_light)] = if is_light {
                    encode(&Message::Light(light), &mut Vec::new()).ok()
                } else {
                    self.encode_full(full, MessageFlags::empty(), facts)
                };
            }
            if let Some(frame) = frames[usize::from(is_light)].clone() {
                self.push_frame(id, kind, frame);
            }
        }
    }

    /// The slots that this node claims. A replica describes those of its primary, but without slots that the primary
    /// has given up: they would count as claimed when this node replaces it.
    fn claimed_slots(&self) -> Cow<'_, Slots> {
        let me = self.me();
        let primary = if me.is_replica() { me.replica_of } else { None };
        let slots = &self.nodes[primary.unwrap_or(self.myself)].slots;
        match primary {
            Some(_) if slots.view().intersects(self.unclaimed.view()) => {
                let mut claimed = slots.clone();
                claimed.remove_all(self.unclaimed.view());
                Cow::Owned(claimed)
            }
            _ => Cow::Borrowed(slots),
        }
    }

    /// The header of all messages of this node.
    fn header<'a>(&'a self, slots: &'a Slots, message_flags: MessageFlags, facts: &Facts<'_>) -> Header<'a> {
        let settings = &self.settings;
        let me = self.me();
        let (tcp, tls) = (settings.announced_tcp_port(), settings.announced_tls_port());
        let mut flags = message_flags;
        flags.set(MessageFlags::PAUSED, me.is_primary() && self.manual.is_paused);
        Header {
            current_epoch: self.current_epoch,
            config_epoch: self.epoch_of(self.myself),
            replication_offset: facts.replication_offset,
            sender: me.id,
            slots: slots.view(),
            primary: me.replica_of.map(|primary| self.nodes[primary].id),
            ip: if is_sendable(&settings.announce.ip) { &settings.announce.ip } else { "" },
            port: if settings.tls_bus { tls } else { tcp },
            secondary_port: if settings.tls_bus { tcp } else { tls },
            bus_port: settings.announced_bus_port(),
            flags: me.flags,
            state: self.health.state,
            message_flags: flags,
        }
    }

    fn encode_ping(
        &mut self,
        kind: MessageType,
        receiver: Option<NodeKey>,
        extensions: bool,
        facts: &Facts<'_>,
    ) -> Option<Arc<[u8]>> {
        let start = self.random.next();
        self.choose_gossip(start, receiver, facts);
        let (gossip, mut buffer) = (std::mem::take(&mut self.gossip), std::mem::take(&mut self.frame));
        let extensions: Vec<Extension<'_>> = if extensions { self.extensions(facts.ms()) } else { Vec::new() };
        let ping = Ping { gossip: Gossip::encoded(&gossip), extensions: extensions.as_slice().into() };
        let body = match kind {
            MessageType::Ping => Body::Ping(ping),
            MessageType::Meet => Body::Meet(ping),
            _ => Body::Pong(ping),
        };
        let slots = self.claimed_slots();
        let header = self.header(&slots, MessageFlags::EXTENSIONS, facts);
        let frame = encode(&Message::Full { header, body }, &mut buffer);
        (self.gossip, self.frame) = (gossip, buffer);
        frame.ok()
    }

    /// Encodes a message with a full header. A message that cannot be encoded is not sent.
    fn encode_full(&self, body: Body<'_>, flags: MessageFlags, facts: &Facts<'_>) -> Option<Arc<[u8]>> {
        let slots = self.claimed_slots();
        encode(&Message::Full { header: self.header(&slots, flags, facts), body }, &mut Vec::new()).ok()
    }

    /// Notes a frame to be sent when the inputs are settled.
    fn push_frame(&mut self, link: LinkId, kind: MessageType, frame: Arc<[u8]>) {
        if self.waits_for_takeover() {
            return;
        }
        self.statistics.count_sent(kind, frame.len() as u64);
        self.frames.push(Action::Send { link, frame });
    }
}

/// Whether an IP address can be in a message.
pub(super) fn is_sendable(ip: &str) -> bool {
    ip.len() < ADDRESS_BYTES && field::is_address(ip)
}

/// Encodes a message. `buffer` saves the allocation of another one.
fn encode(message: &Message<'_>, buffer: &mut Vec<u8>) -> Result<Arc<[u8]>, crate::bus::EncodeError> {
    buffer.clear();
    message.encode(buffer)?;
    Ok(buffer.as_slice().into())
}
