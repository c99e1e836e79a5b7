//! Received messages.

use super::claims::Says;
use super::settle::Todo;
use super::{Action, Cluster, DropFilter, Facts, LinkId, NodeKey, log};
use crate::bus::{
    Body, DecodeError, Header, LightBody, Message, MessageFlags, MessageType, ModuleMessage, Ping, Publish, Update,
};
use crate::flags::NodeFlags;
use crate::node_id::NodeId;

/// The place of the type in a message, and its bit for a light header.
const TYPE_OFFSET: usize = 12;
const LIGHT: u16 = 0x8000;

/// What the sender says in its flags about what it understands, and about its primary.
const COPIED_FLAGS: NodeFlags =
    NodeFlags::LIGHT_PUBLISH.union(NodeFlags::LIGHT_MODULE).union(NodeFlags::PRIMARY_FAILED);

impl Cluster {
    /// Takes in a frame: one whole message, as `bus::split_frame` finds it. Frames of unknown links are ignored, and
    /// so are frames that are not messages.
    pub fn received(&mut self, id: LinkId, frame: &[u8], facts: &Facts<'_>) {
        if !self.links.contains_key(&id) {
            return;
        }
        let number =
            frame.get(TYPE_OFFSET..TYPE_OFFSET + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        let kind = MessageType::from_number(number & !LIGHT);
        if let Some(kind) = kind {
            self.statistics.count_received(kind, frame.len() as u64);
        }
        if self.is_dropped(id, kind, facts) {
            return;
        }
        match Message::decode(frame) {
            Ok(Message::Light(body)) => self.receive_light(id, body, facts),
            Ok(Message::Full { header, body }) => self.receive_full(id, &header, &body, facts),
            Err(error) => self.log_invalid(id, kind, frame.len(), error),
        }
    }

    /// Whether DEBUG has said to drop a message.
    fn is_dropped(&mut self, id: LinkId, kind: Option<MessageType>, facts: &Facts<'_>) -> bool {
        let drops = match self.settings.debug.drop {
            DropFilter::None => false,
            DropFilter::Type(dropped) => kind == Some(dropped),
            DropFilter::All => true,
        };
        if drops {
            let name = kind.map_or("unknown", MessageType::name);
            log!(self, Warning, "Dropping packet of type {name} that matches debug drop filter");
            if self.settings.debug.close_link_on_drop {
                self.close_link(Some(id), facts.ms());
                log!(self, Warning, "Closing link for matching packet type {name}");
            }
        }
        drops
    }

    fn log_invalid(&mut self, id: LinkId, kind: Option<MessageType>, bytes: usize, error: DecodeError) {
        let name = kind.map_or("unknown", MessageType::name);
        if let DecodeError::LightType(number) = error {
            log!(
                self,
                Notice,
                "Packet of type '{name}' ({number}) does not support light cluster header. Marking packet as invalid."
            );
            return;
        }
        let sender = self.peer_label(self.links.get(&id).and_then(|link| link.node));
        log!(self, Warning, "Received invalid {name} packet of length {bytes} from node {sender}: {error}");
    }

    /// A message with a light header: accepted only if the other end of the link is known.
    fn receive_light(&mut self, id: LinkId, body: LightBody<'_>, facts: &Facts<'_>) {
        let node = self.links.get(&id).and_then(|link| link.node);
        let Some(sender) = node.filter(|key| !self.nodes[*key].in_handshake()) else {
            log!(
                self,
                Notice,
                "Closing link for node {} that sent a lightweight message of type {} as its first message on the \
                 link",
                self.peer_label(node),
                body.message_type().name()
            );
            self.close_link(Some(id), facts.ms());
            return;
        };
        self.nodes.quiet_mut(sender).data_received = Some(facts.ms()).into();
        match body {
            LightBody::Publish(publish) => self.deliver(publish, false),
            LightBody::PublishShard(publish) => self.deliver(publish, true),
            LightBody::Module(message) => self.deliver_to_module(sender, message),
        }
    }

    fn receive_full(&mut self, id: LinkId, header: &Header<'_>, body: &Body<'_>, facts: &Facts<'_>) {
        if let Some(link) = self.links.get_mut(&id) {
            link.extensions |= header.message_flags.contains(MessageFlags::EXTENSIONS);
        }
        let sender = self.sender(id, header, facts);
        if sender == Some(self.myself) {
            self.receive_from_myself(id, body, facts);
            return;
        }
        let was_replica = sender.is_some_and(|key| self.nodes[key].is_replica());
        if let Some(sender) = sender {
            self.note_header(id, sender, header, facts);
        }
        match body {
            Body::Ping(ping) => self.receive_ping(id, sender, header, MessageType::Ping, ping, was_replica, facts),
            Body::Pong(ping) => self.receive_ping(id, sender, header, MessageType::Pong, ping, was_replica, facts),
            Body::Meet(ping) => self.receive_ping(id, sender, header, MessageType::Meet, ping, was_replica, facts),
            Body::Fail(failed) => self.receive_failure(sender, header.sender, failed, facts),
            Body::Unknown { number, .. } => log!(self, Warning, "Received unknown packet type: {number}"),
            _ => {
                if let Some(sender) = sender {
                    self.receive_from_member(id, sender, header, body, facts);
                }
            }
        }
    }

    /// Messages that only members may send.
    fn receive_from_member(
        &mut self,
        id: LinkId,
        sender: NodeKey,
        header: &Header<'_>,
        body: &Body<'_>,
        facts: &Facts<'_>,
    ) {
        match body {
            Body::Publish(publish) => self.deliver(*publish, false),
            Body::PublishShard(publish) => self.deliver(*publish, true),
            Body::Module(message) => self.deliver_to_module(sender, *message),
            Body::FailoverAuthRequest => self.consider_vote(sender, header, facts),
            Body::FailoverAuthAck => self.count_vote(sender, header.current_epoch),
            Body::ManualFailoverStart => self.pause_for(sender, id, facts),
            Body::Update(update) => self.receive_update(sender, update, facts),
            _ => {}
        }
    }

    /// The node that has sent a message, if it is known. Binds an inbound link to it.
    fn sender(&mut self, id: LinkId, header: &Header<'_>, facts: &Facts<'_>) -> Option<NodeKey> {
        let link = self.links.get(&id)?;
        let mut link_node = link.node;
        if let Some(node) = link_node.filter(|key| !self.nodes[*key].in_handshake()) {
            if self.nodes[node].id == header.sender {
                return Some(node);
            }
            if !link.inbound {
                // Another node answers at this address. What it says about itself must not be taken for the epoch or
                // the offset of the node that was there.
                return None;
            }
            self.unbind_inbound(node, id, facts.ms());
            link_node = None;
        }
        let sender = self.nodes.find(&header.sender).filter(|key| !self.nodes[*key].in_handshake())?;
        if link_node.is_none() && sender != self.myself {
            self.bind_inbound(sender, id, facts.ms());
        }
        Some(sender)
    }

    /// A message that this node has sent to its own address.
    fn receive_from_myself(&mut self, id: LinkId, body: &Body<'_>, facts: &Facts<'_>) {
        if matches!(body, Body::Ping(_) | Body::Meet(_)) {
            self.send_ping(id, MessageType::Pong, facts);
        }
        let handshake = self.links.get(&id).filter(|link| !link.inbound).and_then(|link| link.node);
        if let Some(key) = handshake.filter(|key| self.nodes[*key].in_handshake()) {
            self.remove_node(key, facts);
        }
    }

    /// Takes over what any message says in its header.
    fn note_header(&mut self, id: LinkId, sender: NodeKey, header: &Header<'_>, facts: &Facts<'_>) {
        let understands_extensions = self.links.get(&id).is_some_and(|link| link.extensions);
        let mut flags = (self.nodes[sender].flags - COPIED_FLAGS) | (header.flags & COPIED_FLAGS);
        if understands_extensions {
            flags |= NodeFlags::EXTENSIONS;
        }
        if self.nodes[sender].flags != flags {
            self.nodes[sender].flags = flags;
        }
        let node = self.nodes.quiet_mut(sender);
        node.data_received = Some(facts.ms()).into();
        let had_data = node.replication_offset != 0;
        node.replication_offset = header.replication_offset;
        if had_data != (header.replication_offset != 0) {
            self.change_topology();
        }
        self.current_epoch = self.current_epoch.max(header.current_epoch);
        if header.primary.is_none() && header.config_epoch > self.nodes[sender].config_epoch {
            self.nodes[sender].config_epoch = header.config_epoch;
            self.current_epoch = self.current_epoch.max(header.config_epoch);
            self.todo(Todo::SAVE | Todo::SYNC);
            self.abandon_overtaken_election(sender);
        }
        self.note_paused_offset(sender, header);
    }

    /// PING, PONG and MEET.
    #[allow(clippy::too_many_arguments)]
    fn receive_ping(
        &mut self,
        id: LinkId,
        sender: Option<NodeKey>,
        header: &Header<'_>,
        kind: MessageType,
        ping: &Ping<'_>,
        was_replica: bool,
        facts: &Facts<'_>,
    ) {
        if kind != MessageType::Pong {
            self.answer(id, sender, header, kind, ping, facts);
        }
        if let Some(sender) = sender.filter(|key| self.nodes[*key].is(NodeFlags::MEET)) {
            self.nodes[sender].flags -= NodeFlags::MEET;
            log!(self, Notice, "Successfully completed handshake with {}", self.label(sender));
        }
        if !self.check_outbound(id, sender, header, facts) {
            return;
        }
        if let Some(sender) = sender {
            self.note_no_failover(sender, header.flags);
            if kind == MessageType::Ping && self.update_address_if_needed(sender, id, header, facts) {
                self.todo(Todo::SAVE | Todo::STATE);
            }
        }
        if kind == MessageType::Pong {
            self.note_pong(id, facts);
        }
        let Some(sender) = sender else { return };
        if !self.process_role(sender, header) {
            return;
        }
        let is_claim = header.primary.is_none() && self.nodes[sender].is_primary();
        let (config_epoch, current_epoch) = (header.config_epoch, header.current_epoch);
        let says = Says { config_epoch, current_epoch, slots: header.slots };
        self.defend_taken_slots(sender, is_claim.then_some(says), facts);
        if is_claim && (was_replica || self.nodes[sender].slots.view() != header.slots) {
            log!(
                self,
                Notice,
                "Mismatch in topology information for sender node {} in shard {}",
                self.label(sender),
                self.nodes[sender].shard_id
            );
            self.process_claim(sender, says, facts);
            self.correct_stale_claim(sender, header.config_epoch, header.slots, facts);
        }
        if self.nodes[sender].is_primary() && header.config_epoch == self.me().config_epoch {
            self.resolve_collision(sender, facts.ms());
        }
        self.process_gossip(sender, ping.gossip, facts);
        self.process_extensions(sender, ping.extensions, facts);
    }

    /// Takes over whether the sender starts failovers. Ranks depend on it.
    fn note_no_failover(&mut self, sender: NodeKey, flags: NodeFlags) {
        let no_failover = flags.contains(NodeFlags::NO_FAILOVER);
        if self.nodes[sender].is(NodeFlags::NO_FAILOVER) != no_failover {
            self.nodes[sender].flags.set(NodeFlags::NO_FAILOVER, no_failover);
            self.todo(Todo::SAVE);
        }
    }

    /// A PONG on the link that this node has opened answers its PING: the node works.
    fn note_pong(&mut self, id: LinkId, facts: &Facts<'_>) {
        let Some(key) = self.links.get(&id).filter(|link| !link.inbound).and_then(|link| link.node) else { return };
        let had_lease = self.has_lease_of(key, facts.ms());
        let sent = self.nodes.ping_sent(key);
        let node = self.nodes.quiet_mut(key);
        node.is_address_dead = false;
        node.acknowledged = sent.or(node.acknowledged.get()).into();
        let (is_suspected, is_failed) = (node.is_suspected(), node.is_failed());
        self.nodes.set_pong_received(key, Some(facts.ms()));
        self.nodes.set_ping_sent(key, None);
        self.note_told(key, facts);
        if had_lease != self.has_lease_of(key, facts.ms()) {
            self.nodes.revise();
        }
        if is_suspected {
            self.nodes.set_suspected(key, false);
            self.todo(Todo::SAVE | Todo::STATE);
        } else if is_failed {
            self.clear_failure_if_allowed(key, facts);
        }
    }

    fn receive_failure(&mut self, sender: Option<NodeKey>, name: NodeId, failed: &NodeId, facts: &Facts<'_>) {
        let Some(sender) = sender else {
            log!(self, Notice, "Ignoring FAIL message from unknown node {name} about {failed}");
            return;
        };
        let Some(key) = self.nodes.find(failed) else { return };
        if !self.nodes[key].is(NodeFlags::FAIL | NodeFlags::MYSELF) {
            log!(self, Notice, "FAIL message received from {} about {}", self.label(sender), self.label(key));
            self.mark_failed(key, facts);
        }
    }

    fn receive_update(&mut self, sender: NodeKey, update: &Update<'_>, facts: &Facts<'_>) {
        let Some(key) = self.nodes.find(&update.node) else { return };
        let known = self.nodes[key].config_epoch;
        // With the same epoch it can still tell who owns a slot that its former owner has given up.
        let tells_owner = known == update.config_epoch && update.slots.intersects(self.unclaimed.view());
        if known >= update.config_epoch && !tells_owner {
            return;
        }
        if key == self.myself {
            log!(self, Notice, "Discarding UPDATE message about myself.");
            return;
        }
        log!(
            self,
            Notice,
            "Processing UPDATE message received from {} in shard {} about node {} in shard {}. old configEpoch \
             {known}, new configEpoch {}",
            self.label(sender),
            self.nodes[sender].shard_id,
            self.label(key),
            self.nodes[key].shard_id,
            update.config_epoch
        );
        if self.nodes[key].is_replica() {
            self.make_primary(key);
        }
        self.nodes[key].config_epoch = update.config_epoch;
        self.current_epoch = self.current_epoch.max(update.config_epoch);
        self.todo(Todo::SAVE | Todo::SYNC);
        let says = Says { config_epoch: update.config_epoch, current_epoch: 0, slots: update.slots };
        self.defend_taken_slots(key, Some(says), facts);
        self.process_claim(key, says, facts);
    }

    fn deliver(&mut self, publish: Publish<'_>, sharded: bool) {
        let (channel, message) = (publish.channel.to_vec(), publish.message.to_vec());
        self.out.push(Action::Publish { channel, message, sharded });
    }

    fn deliver_to_module(&mut self, sender: NodeKey, message: ModuleMessage<'_>) {
        let ModuleMessage { module_id, kind, payload } = message;
        let sender = self.nodes[sender].id;
        self.out.push(Action::ModuleMessage { sender, module_id, kind, payload: payload.to_vec() });
    }
}
