//! Random messages and commands: nothing panics, and the tables agree with each other.

use super::*;
use crate::bus::{Body, Extension, GossipEntry, Header, LightBody, Message, MessageFlags, Ping, Publish, Update};
use crate::slots::Slots;
use crate::state::random::Random;
use crate::state::{FailoverMode, LinkDirections, SetSlot};

/// What holds whenever the inputs are settled.
fn check(cluster: &Cluster) {
    let owned = cluster.owners.iter().filter(|owner| owner.is_some()).count();
    let claimed: usize = cluster.nodes.iter().map(|(_, node)| node.slots.len()).sum();
    assert_eq!((owned, claimed), (usize::from(cluster.assigned), usize::from(cluster.assigned)));
    for (key, node) in cluster.nodes.iter() {
        assert_eq!(usize::from(node.slot_count), node.slots.len());
        assert!(node.slots.iter().all(|slot| cluster.owner(slot) == Some(key)));
        assert_eq!(cluster.nodes.find(&node.id), Some(key));
        if let Some(primary) = node.replica_of {
            assert!(cluster.nodes[primary].replicas.contains(&key), "a primary knows its replicas");
        }
        for replica in &node.replicas {
            assert_eq!(cluster.nodes[*replica].replica_of, Some(key));
        }
        for id in [node.link, node.inbound].into_iter().flatten() {
            assert_eq!(cluster.links.get(&id).and_then(|link| link.node), Some(key), "a link knows its node");
        }
        assert!(node.config_epoch <= cluster.current_epoch, "no epoch is above the current one");
        let members = cluster.nodes.shards().get(&node.shard_id);
        let is_member = members.is_some_and(|members| members.contains(&key));
        assert!(is_member || node.in_handshake(), "a shard knows its nodes");
    }
    for link in cluster.links.values() {
        assert!(link.node.is_none_or(|key| cluster.nodes.get(key).is_some()), "links have no removed nodes");
    }
    for key in cluster.migrating.values().chain(cluster.importing.values()) {
        assert!(cluster.nodes.get(*key).is_some());
    }
    assert!(cluster.nodes.shards().values().flatten().all(|key| cluster.nodes.get(*key).is_some()));
    let me = &cluster.nodes[cluster.myself];
    assert!(me.is_primary() != me.is_replica());
    assert!(me.is_primary() || me.slot_count == 0, "a replica owns no slots");
}

/// A source of random parts of messages.
struct Source {
    random: Random,
    ids: Vec<NodeId>,
}

impl Source {
    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn id(&mut self) -> NodeId {
        let index = self.below(self.ids.len());
        self.ids[index]
    }

    fn slots(&mut self) -> Slots {
        let mut slots = Slots::EMPTY;
        for _ in 0..self.below(4) {
            let first = self.below(usize::from(SLOT_COUNT)) as u16;
            for slot in first..first.saturating_add(self.below(2_000) as u16) {
                slots.insert(slot);
            }
        }
        slots
    }

    fn flags(&mut self) -> NodeFlags {
        NodeFlags::from_bits_retain(self.random.next() as u16)
    }

    fn frame(&mut self) -> Vec<u8> {
        let (slots, others) = (self.slots(), self.slots());
        let ips = ["", "10.0.0.1", "10.0.0.2", "no-address"];
        let mut header = Header {
            current_epoch: self.below(20) as u64,
            config_epoch: self.below(20) as u64,
            replication_offset: self.below(3) as u64,
            sender: self.id(),
            slots: slots.view(),
            primary: None,
            ip: ips[self.below(ips.len())],
            port: self.below(3) as u16,
            secondary_port: 0,
            bus_port: self.below(3) as u16,
            flags: self.flags(),
            state: ClusterState::Ok,
            message_flags: MessageFlags::from_bits_retain(self.random.next() as u8) | MessageFlags::EXTENSIONS,
        };
        if self.below(2) == 0 {
            header.primary = Some(self.id());
        }
        let mut gossip = Vec::new();
        for _ in 0..self.below(4) {
            gossip.push(GossipEntry {
                node: self.id(),
                ping_sent: self.random.next() as u32,
                pong_received: (EPOCH_MS / 1000) as u32 + self.below(100) as u32,
                ip: ips[self.below(3)],
                port: self.below(3) as u16,
                bus_port: 1,
                flags: self.flags(),
                secondary_port: 0,
            });
        }
        let mut extensions = vec![Extension::ShardId(self.id())];
        if self.below(20) == 0 {
            extensions.push(Extension::ForgottenNode { node: self.id(), ttl_seconds: self.below(3) as u64 });
        }
        let ping = Ping { gossip: gossip.as_slice().into(), extensions: extensions.as_slice().into() };
        let publish = Publish { channel: b"c", message: b"m" };
        let update = Update { node: self.id(), config_epoch: self.below(20) as u64, slots: others.view() };
        let body = match self.below(14) {
            0..3 => Body::Ping(ping),
            3..6 => Body::Pong(ping),
            6..8 => Body::Meet(ping),
            8 => Body::Fail(self.id()),
            9 => Body::FailoverAuthRequest,
            10 => Body::FailoverAuthAck,
            11 => Body::ManualFailoverStart,
            12 => Body::Update(update),
            _ => Body::Publish(publish),
        };
        let message = if self.below(30) == 0 {
            Message::Light(LightBody::Publish(publish))
        } else {
            Message::Full { header, body }
        };
        let mut frame = Vec::new();
        message.encode(&mut frame).expect("a valid message");
        if self.below(50) == 0 {
            let place = self.below(frame.len());
            frame[place] ^= 1 << self.below(8);
        }
        frame
    }
}

/// A random command. Whether it is refused does not matter.
fn command(cluster: &mut Cluster, source: &mut Source, facts: &Facts<'_>) {
    let id = source.id();
    let name = id.as_bytes();
    let slot = source.below(usize::from(SLOT_COUNT)) as u16;
    let range = [slot..=slot.saturating_add(source.below(500) as u16).min(SLOT_COUNT - 1)];
    let mode = [FailoverMode::Coordinated, FailoverMode::Force, FailoverMode::Takeover][source.below(3)];
    let _ = match source.below(16) {
        0 => cluster.meet("10.0.0.1", source.below(3) as u16, 1, "test", facts),
        1 => cluster.forget(name, "test", facts),
        2..4 => cluster.replicate(name, facts),
        4 => cluster.failover(mode, None, false, "test", facts),
        5 if cluster.is_primary() => cluster.add_slots(&range),
        6 => cluster.del_slots(&range),
        7 => cluster.flush_slots(facts),
        8 => cluster.set_slot(slot, SetSlot::Migrating(name), true, facts),
        9 => cluster.set_slot(slot, SetSlot::Importing(name), false, facts),
        10 => cluster.set_slot(slot, SetSlot::Node(name), true, facts),
        11 => cluster.kill_links(name, LinkDirections::All, facts),
        12 if source.below(10) == 0 => cluster.reset(source.below(2) == 0, "test", facts),
        13 if cluster.is_primary() => {
            cluster.take_over_slots(&range, facts);
            Ok(())
        }
        14 => {
            cluster.replicate_no_one("test");
            Ok(())
        }
        _ => {
            cluster.bump_epoch();
            Ok(())
        }
    };
}

fn run(seed: u64) {
    let mut source = Source { random: Random::new(seed), ids: Vec::new() };
    for _ in 0..8 {
        let id = source.random.node_id();
        source.ids.push(id);
    }
    let mut now = Now { mono_ms: 1_000, unix_ms: EPOCH_MS };
    let mut cluster = Cluster::new(None, settings(), seed + 1_000_000, now);
    source.ids.push(cluster.my_id());
    let mut links: Vec<LinkId> = Vec::new();
    let mut actions = Vec::new();
    let mut last_vote = 0;
    for step in 0..600 {
        now.mono_ms += source.below(60) as u64;
        now.unix_ms = EPOCH_MS + now.mono_ms as i64;
        let keys = source.below(2) as u64;
        let keys_in_slot = |slot: u16| if slot.is_multiple_of(97) { keys } else { 0 };
        let facts = Facts {
            replication_offset: source.below(3) as u64,
            has_keys: keys > 0,
            keys_in_slot: &keys_in_slot,
            ..Facts::without_data(now)
        };
        match source.below(20) {
            0 => links.push(
                cluster.link_accepted(Accepted { peer_ip: "10.0.0.2", peer_port: 5, local_ip: "10.0.0.9" }, &facts),
            ),
            1 if !links.is_empty() => {
                let link = links.swap_remove(source.below(links.len()));
                cluster.link_closed(link, "closed", &facts);
            }
            2..4 => cluster.tick(&facts),
            4 if step > 20 => command(&mut cluster, &mut source, &facts),
            _ if !links.is_empty() => {
                let link = links[source.below(links.len())];
                let frame = source.frame();
                cluster.received(link, &frame, &facts);
            }
            _ => cluster.publish(b"c", b"m", source.below(2) == 0, &facts),
        }
        cluster.settle(&facts, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Connect { link, .. } => {
                    links.push(link);
                    if source.below(3) > 0 {
                        let addresses = Accepted { peer_ip: "10.0.0.1", peer_port: 1, local_ip: "10.0.0.9" };
                        cluster.link_connected(link, addresses, &facts);
                    }
                }
                Action::Disconnect(link) => links.retain(|open| *open != link),
                Action::Send { frame, .. } => {
                    Message::decode(&frame).expect("only valid messages are sent");
                }
                Action::Save { .. } => {
                    let content = cluster.config_content(now).expect("it can be stored");
                    let (conf, _) = NodesConf::parse(content.as_bytes(), false).expect("it can be read");
                    assert_eq!(conf.last_vote_epoch, cluster.last_vote_epoch());
                }
                _ => {}
            }
        }
        if step % 8 == 0 {
            check(&cluster);
            let _ = (cluster.info_text(true), cluster.links());
            // In a time that stands still, the kept text never expires.
            let frozen = Facts { now: Now { mono_ms: 0, ..now }, ..facts };
            let kept = cluster.shared_nodes_text(Default::default(), &frozen);
            assert_eq!(without_times(&kept), without_times(&cluster.nodes_text(Default::default(), &frozen)));
            assert_eq!(cluster.topology(&facts).nodes.len(), cluster.node_count());
        }
        if cluster.current_epoch() >= last_vote {
            assert!(cluster.last_vote_epoch() >= last_vote || cluster.last_vote_epoch() == 0);
        }
        last_vote = cluster.last_vote_epoch();
        if !source.ids.contains(&cluster.my_id()) {
            source.ids.push(cluster.my_id());
        }
    }
}

/// The text of CLUSTER NODES without the times of the last PING and PONG.
fn without_times(text: &str) -> Vec<Vec<&str>> {
    let is_time = |index: &usize| matches!(index, 4 | 5);
    let fields = |line| str::split(line, ' ').enumerate().filter(|(index, _)| !is_time(index)).map(|(_, field)| field);
    text.lines().map(|line| fields(line).collect()).collect()
}

#[test]
fn random_inputs_leave_a_consistent_state() {
    for seed in 0..12 {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
