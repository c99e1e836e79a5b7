//! The cost of gossip to a node of a large cluster: received and sent heartbeats, ticks, and the text of `nodes.conf`.
//! And that of slots which change their owner, since clients wait meanwhile.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvick_cluster::bus::{
    Body, ClusterState, Extensions, Gossip, GossipEntry, Header, Message, MessageFlags, MessageType, Ping,
};
use kvick_cluster::nodes_conf::{self, NodesConf};
use kvick_cluster::state::{Accepted, Action, Cluster, Facts, LinkId, Now, Settings};
use kvick_cluster::{BUS_PORT_OFFSET, NodeFlags, NodeId, SLOT_COUNT, Slots};
use std::hint::black_box;
use std::sync::Arc;

/// Time at the start.
const START: Now = Now { mono_ms: 1_000_000, unix_ms: 1_700_000_000_000 };

/// Share of the nodes that a message tells about.
const GOSSIP_PERCENT: usize = 10;

/// Frames that take turns, so that each tells about other nodes.
const FRAMES: usize = 64;

/// One node of a cluster of which all links are open, and what the other nodes send to it.
struct Member {
    cluster: Cluster,
    now: Now,
    /// The link that the sender of all frames has opened.
    inbound: LinkId,
    actions: Vec<Action>,
}

fn id(index: usize) -> NodeId {
    let mut bytes = [0; NodeId::LEN / 2];
    // Names have no order that helps a search.
    let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    for chunk in bytes.chunks_mut(mixed.len()) {
        chunk.copy_from_slice(&mixed[..chunk.len()]);
    }
    NodeId::from_random(bytes)
}

fn ip(index: usize) -> String {
    format!("10.20.{}.{}", index / 250, index % 250)
}

/// The slots of a node: half of the nodes are primaries.
fn slots(index: usize, nodes: usize) -> Slots {
    let primaries = nodes / 2;
    let bound = |index: usize| (index * usize::from(SLOT_COUNT) / primaries) as u16;
    if index < primaries { (bound(index)..bound(index + 1)).collect() } else { Slots::EMPTY }
}

/// The content of `nodes.conf` of the first node.
fn conf(nodes: usize) -> NodesConf {
    let primaries = nodes / 2;
    let describe = |index: usize| {
        let mut node = nodes_conf::Node::unknown(id(index));
        node.ip = ip(index);
        node.tcp_port = 6379;
        node.bus_port = 6379 + BUS_PORT_OFFSET;
        node.shard_id = Some(id(1_000_000 + index % primaries));
        node.flags = if index < primaries { NodeFlags::PRIMARY } else { NodeFlags::REPLICA };
        node.flags.set(NodeFlags::MYSELF, index == 0);
        node.primary = (index >= primaries).then(|| id(index % primaries));
        node.config_epoch = if index < primaries { index as u64 + 1 } else { 0 };
        node.slots = slots(index, nodes);
        node
    };
    NodesConf { nodes: (0..nodes).map(describe).collect(), current_epoch: primaries as u64, ..NodesConf::default() }
}

impl Member {
    fn new(nodes: usize) -> Member {
        let settings = Settings { node_timeout_ms: 15_000, ..Settings::default() };
        let mut cluster = Cluster::new(Some(&conf(nodes)), settings, 1, START);
        let (mut now, mut actions) = (START, Vec::new());
        cluster.data_loaded(&Facts::without_data(now));
        // All nodes answer.
        for _ in 0..100 {
            now = later(now, 100);
            cluster.tick(&Facts::without_data(now));
            cluster.settle(&Facts::without_data(now), &mut actions);
            for action in std::mem::take(&mut actions) {
                let Action::Connect { link, node, ip, port, .. } = action else { continue };
                let accepted = Accepted { peer_ip: &ip, peer_port: port, local_ip: "10.20.0.0" };
                cluster.link_connected(link, accepted, &Facts::without_data(now));
                let index = (0..nodes).find(|index| id(*index) == node).expect("a member");
                cluster.received(link, &frame(index, nodes, MessageType::Pong, &[], now), &Facts::without_data(now));
                let accepted = Accepted { peer_ip: &ip, peer_port: 40_000, local_ip: "10.20.0.0" };
                let inbound = cluster.link_accepted(accepted, &Facts::without_data(now));
                cluster.received(inbound, &frame(index, nodes, MessageType::Pong, &[], now), &Facts::without_data(now));
            }
        }
        let inbound = cluster.links().into_iter().find(|link| link.inbound && link.node == id(1));
        let mut member = Member { cluster, now, inbound: inbound.expect("a link").link, actions };
        member.settle();
        member
    }

    fn receive(&mut self, frame: &[u8]) {
        self.cluster.received(self.inbound, frame, &Facts::without_data(self.now));
    }

    fn settle(&mut self) {
        self.actions.clear();
        self.cluster.settle(&Facts::without_data(self.now), &mut self.actions);
    }
}

fn later(now: Now, ms: u64) -> Now {
    Now { mono_ms: now.mono_ms + ms, unix_ms: now.unix_ms + ms as i64 }
}

/// A message of a node that tells about others.
fn frame(sender: usize, nodes: usize, kind: MessageType, told: &[usize], now: Now) -> Arc<[u8]> {
    let owner = sender % (nodes / 2);
    claim(sender, nodes, kind, told, now, (owner as u64 + 1, &slots(owner, nodes)))
}

/// A message with this epoch and these slots.
fn claim(
    sender: usize,
    nodes: usize,
    kind: MessageType,
    told: &[usize],
    now: Now,
    (epoch, slots): (u64, &Slots),
) -> Arc<[u8]> {
    let primaries = nodes / 2;
    let owner = sender % primaries;
    let ips: Vec<String> = told.iter().map(|index| ip(*index)).collect();
    let entry = |(index, ip)| GossipEntry {
        node: id(index),
        ping_sent: 0,
        pong_received: (now.unix_ms / 1000) as u32,
        ip,
        port: 6379,
        bus_port: 6379 + BUS_PORT_OFFSET,
        flags: if index < primaries { NodeFlags::PRIMARY } else { NodeFlags::REPLICA },
        secondary_port: 0,
    };
    let entries: Vec<GossipEntry<'_>> = told.iter().zip(&ips).map(|(index, ip)| entry((*index, ip.as_str()))).collect();
    let shard = [kvick_cluster::bus::Extension::ShardId(id(1_000_000 + owner))];
    let ping = Ping { gossip: Gossip::from(entries.as_slice()), extensions: Extensions::from(shard.as_slice()) };
    let header = Header {
        current_epoch: epoch.max(primaries as u64),
        config_epoch: epoch,
        replication_offset: 0,
        sender: id(sender),
        slots: slots.view(),
        primary: (sender >= primaries).then(|| id(owner)),
        ip: "",
        port: 6379,
        secondary_port: 0,
        bus_port: 6379 + BUS_PORT_OFFSET,
        flags: if sender < primaries { NodeFlags::PRIMARY } else { NodeFlags::REPLICA },
        state: ClusterState::Ok,
        message_flags: MessageFlags::EXTENSIONS,
    };
    let body = if kind == MessageType::Ping { Body::Ping(ping) } else { Body::Pong(ping) };
    let mut bytes = Vec::new();
    Message::Full { header, body }.encode(&mut bytes).expect("it can be sent");
    bytes.into()
}

/// Messages of one node, each about other nodes. The sender's order of nodes is not that of the receiver.
fn frames(nodes: usize, kind: MessageType, now: Now) -> Vec<Arc<[u8]>> {
    let mut random = 1u64;
    let mut order: Vec<usize> = (2..nodes).collect();
    for place in (1..order.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(place, (random >> 33) as usize % (place + 1));
    }
    let share = (nodes * GOSSIP_PERCENT / 100).max(3);
    (0..FRAMES)
        .map(|number| {
            let told: Vec<usize> = (0..share).map(|place| order[(number * share + place) % order.len()]).collect();
            frame(1, nodes, kind, &told, now)
        })
        .collect()
}

fn receive(c: &mut Criterion) {
    for nodes in [100, 1000] {
        let mut member = Member::new(nodes);
        let mut group = c.benchmark_group(format!("gossip/{nodes}"));
        let entries = (nodes * GOSSIP_PERCENT / 100) as u64;
        group.throughput(Throughput::Elements(entries));
        let pongs = frames(nodes, MessageType::Pong, member.now);
        let mut turns = (0..FRAMES).cycle();
        group.bench_function("receive", |b| {
            b.iter(|| {
                let frame = &pongs[turns.next().unwrap_or(0)];
                member.receive(black_box(frame));
                member.settle();
            });
        });
        let pings = frames(nodes, MessageType::Ping, member.now);
        group.bench_function("receive_and_answer", |b| {
            b.iter(|| {
                let frame = &pings[turns.next().unwrap_or(0)];
                member.receive(black_box(frame));
                member.settle();
            });
        });
        group.finish();
    }
}

fn tick(c: &mut Criterion) {
    let mut group = c.benchmark_group("tick");
    for nodes in [100, 1000] {
        let mut member = Member::new(nodes);
        group.bench_function(format!("{nodes}"), |b| {
            b.iter(|| {
                member.cluster.tick(&Facts::without_data(member.now));
                member.settle();
            });
        });
    }
    group.finish();
}

fn save(c: &mut Criterion) {
    let member = Member::new(1000);
    c.bench_function("nodes_conf/1000", |b| {
        b.iter(|| member.cluster.config_content(black_box(member.now)).map(|content| content.len()));
    });
}

/// Half of all slots change hands: another node claims them, and this one takes them over.
fn hand_over(c: &mut Criterion) {
    const NODES: usize = 4;
    let mut member = Member::new(NODES);
    let moved = 1..=SLOT_COUNT / 2;
    let (everything, rest) = (Slots::from_iter(1..SLOT_COUNT), Slots::from_iter(SLOT_COUNT / 2 + 1..SLOT_COUNT));
    c.bench_function("hand_over/there_and_back", |b| {
        b.iter(|| {
            let epoch = member.cluster.current_epoch() + 1;
            member.receive(&claim(1, NODES, MessageType::Pong, &[], member.now, (epoch, &everything)));
            member.settle();
            let left = member.cluster.my_shard_slot_count();
            let facts = Facts::without_data(member.now);
            member.cluster.take_over_slots(std::slice::from_ref(&moved), &facts);
            member.settle();
            // The other node lets them go.
            let epoch = member.cluster.current_epoch();
            member.receive(&claim(1, NODES, MessageType::Pong, &[], member.now, (epoch, &rest)));
            assert_eq!((left, member.cluster.my_shard_slot_count()), (1, usize::from(SLOT_COUNT / 2) + 1));
        });
    });
}

criterion_group!(benches, receive, tick, save, hand_over);
criterion_main!(benches);
