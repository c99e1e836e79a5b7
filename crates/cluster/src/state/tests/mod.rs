//! Tests of the state machine: small clusters in virtual time.
//!
//! [`Net`] is a network of nodes that delivers every frame after a millisecond, in order. Nodes can be stopped,
//! isolated from each other, and started again from what they have saved.

mod commands;
mod epoch;
mod failover;
mod handed_over;
mod membership;
mod random;
mod slots;

use super::{Accepted, Action, Cluster, Facts, LinkId, Now, Settings, SlotJobs};
use crate::bus::ClusterState;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::nodes_conf::NodesConf;
use crate::slots::{SLOT_COUNT, Slots};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Unix time when the virtual clock starts.
const EPOCH_MS: i64 = 1_700_000_000_000;

/// Node timeout of the test clusters.
const NODE_TIMEOUT_MS: u64 = 2_000;

/// A server in the network. Its address is `10.0.0.N`.
struct Host {
    cluster: Cluster,
    ip: String,
    /// Whether the process runs.
    up: bool,
    /// The content of `nodes.conf`.
    conf: String,
    /// The other end of each open link.
    peers: BTreeMap<LinkId, (usize, LinkId)>,
    /// Keys by slot.
    keys: BTreeMap<u16, u64>,
    offset: u64,
    /// The address that it replicates from.
    primary_ip: Option<String>,
    /// When it last heard its primary.
    heard_ms: u64,
    writes_paused: bool,
    log: Vec<String>,
    published: Vec<(Vec<u8>, bool)>,
    /// Slots in which it was told to delete keys.
    deleted: BTreeSet<u16>,
    /// Slots whose keys it was told to hide.
    hidden: Slots,
    full_syncs: usize,
    /// Slots that it allowed another node to take over.
    granted: Vec<(NodeId, Slots)>,
}

/// Something on its way to a host.
enum Event {
    Connect { from: usize, link: LinkId, ip: String },
    Frame { to: usize, link: LinkId, frame: Arc<[u8]> },
    Close { to: usize, link: LinkId },
}

struct Net {
    hosts: Vec<Host>,
    now_ms: u64,
    queue: VecDeque<(u64, Event)>,
    /// Pairs of hosts that cannot reach each other.
    cut: BTreeSet<(usize, usize)>,
}

fn settings() -> Settings {
    Settings { node_timeout_ms: NODE_TIMEOUT_MS, ..Settings::default() }
}

impl Net {
    /// A network of hosts that do not know each other.
    fn new(count: usize) -> Net {
        Net::with_settings(count, &settings())
    }

    fn with_settings(count: usize, settings: &Settings) -> Net {
        let mut net = Net { hosts: Vec::new(), now_ms: 1_000, queue: VecDeque::new(), cut: BTreeSet::new() };
        for index in 0..count {
            let cluster = Cluster::new(None, settings.clone(), index as u64 + 1, net.now());
            net.hosts.push(Host {
                cluster,
                ip: format!("10.0.0.{index}"),
                up: true,
                conf: String::new(),
                peers: BTreeMap::new(),
                keys: BTreeMap::new(),
                offset: 0,
                primary_ip: None,
                heard_ms: net.now_ms,
                writes_paused: false,
                log: Vec::new(),
                published: Vec::new(),
                deleted: BTreeSet::new(),
                hidden: Slots::EMPTY,
                full_syncs: 0,
                granted: Vec::new(),
            });
            net.settle(index);
        }
        net
    }

    /// A cluster of primaries that share all slots, with this many replicas for each. Host `n` is a replica of host
    /// `n % primaries`.
    fn cluster(primaries: usize, replicas: usize) -> Net {
        Net::cluster_with_settings(primaries, replicas, &settings())
    }

    fn cluster_with_settings(primaries: usize, replicas: usize, settings: &Settings) -> Net {
        let count = primaries * (replicas + 1);
        let mut net = Net::with_settings(count, settings);
        for index in 1..count {
            net.meet(0, index);
        }
        for index in 0..primaries {
            let share = slot_share(index, primaries);
            net.command(index, |cluster, _| cluster.add_slots(&[share])).expect("the slots are free");
        }
        net.run_until("all nodes know all", 30_000, |net| {
            net.hosts.iter().all(|host| host.cluster.node_count() == count && host.no_handshakes())
        });
        for index in primaries..count {
            let primary = net.id(index % primaries);
            net.command(index, |cluster, facts| cluster.replicate(primary.as_bytes(), facts)).expect("it is empty");
        }
        for host in &mut net.hosts {
            host.offset = 1_000;
        }
        net.run_until("the cluster is up", 30_000, |net| {
            net.all_ok() && net.hosts[..primaries].iter().all(|host| host.cluster.replica_count() == replicas)
        });
        net.run_until("all know all replicas", 30_000, |net| {
            (0..count).all(|index| {
                (primaries..count).all(|replica| {
                    let flags = net.flags_at(index, replica);
                    flags.contains(NodeFlags::REPLICA)
                })
            })
        });
        net.run(5_000);
        net
    }

    fn now(&self) -> Now {
        Now { mono_ms: self.now_ms, unix_ms: EPOCH_MS + self.now_ms as i64 }
    }

    fn id(&self, host: usize) -> NodeId {
        self.hosts[host].cluster.my_id()
    }

    /// Calls the state machine of a host, and does what it wants done.
    fn command<R>(&mut self, index: usize, call: impl FnOnce(&mut Cluster, &Facts<'_>) -> R) -> R {
        let now = self.now();
        let host = &mut self.hosts[index];
        let (keys, granted) = (host.keys.clone(), host.granted.clone());
        let keys_in_slot = |slot: u16| keys.get(&slot).copied().unwrap_or(0);
        let facts = Facts {
            now,
            replication_offset: host.offset,
            data_age_ms: now.mono_ms - host.heard_ms,
            has_keys: !keys.is_empty(),
            keys_in_slot: &keys_in_slot,
            jobs: SlotJobs { granted: &granted, ..SlotJobs::none() },
        };
        let result = call(&mut host.cluster, &facts);
        let mut actions = Vec::new();
        host.cluster.settle(&facts, &mut actions);
        self.carry_out(index, actions);
        result
    }

    fn settle(&mut self, index: usize) {
        self.command(index, |_, _| ());
    }

    fn meet(&mut self, from: usize, to: usize) {
        let ip = self.hosts[to].ip.clone();
        self.command(from, |cluster, facts| cluster.meet(&ip, 6379, 16379, "test", facts)).expect("a valid address");
    }

    fn carry_out(&mut self, index: usize, actions: Vec<Action>) {
        let now = self.now();
        let later = self.now_ms + 1;
        for action in actions {
            let host = &mut self.hosts[index];
            match action {
                Action::Log(_, line) => host.log.push(line),
                Action::Connect { link, ip, .. } => {
                    self.queue.push_back((later, Event::Connect { from: index, link, ip }));
                }
                Action::Disconnect(link) => {
                    if let Some((peer, link)) = host.peers.remove(&link) {
                        self.queue.push_back((later, Event::Close { to: peer, link }));
                    }
                }
                Action::Send { link, frame } => {
                    let Some((peer, link)) = host.peers.get(&link).copied() else { continue };
                    if !self.cut.contains(&(index, peer)) {
                        self.queue.push_back((later, Event::Frame { to: peer, link, frame }));
                    }
                }
                Action::Save { .. } => host.conf = host.cluster.config_content(now).expect("it can be stored"),
                Action::BecomePrimary => host.primary_ip = None,
                Action::ReplicateFrom { ip, full_sync, .. } => {
                    host.primary_ip = Some(ip);
                    host.full_syncs += usize::from(full_sync);
                }
                Action::FlushData => host.keys.clear(),
                Action::DeleteKeys(slots) => {
                    for slot in slots.iter() {
                        host.keys.remove(&slot);
                        host.hidden.remove(slot);
                        host.deleted.insert(slot);
                    }
                }
                Action::HideKeys { slots, hidden: true } => host.hidden.insert_all(slots.view()),
                Action::HideKeys { slots, hidden: false } => host.hidden.remove_all(slots.view()),
                Action::PauseWrites { .. } => {
                    host.writes_paused = true;
                    self.command(index, |cluster, facts| cluster.writes_paused(facts));
                }
                Action::ResumeWrites => host.writes_paused = false,
                Action::Publish { message, sharded, .. } => host.published.push((message, sharded)),
                Action::TopologyChanged
                | Action::CheckSlotMigrations
                | Action::DropShardChannels(_)
                | Action::ResetSlotStats(_)
                | Action::ModuleMessage { .. } => {}
            }
        }
    }

    /// Lets time pass.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ms += 1;
            self.replicate();
            while let Some((due_ms, _)) = self.queue.front()
                && *due_ms <= self.now_ms
            {
                let Some((_, event)) = self.queue.pop_front() else { break };
                self.deliver(event);
            }
            for index in 0..self.hosts.len() {
                // Not all at the same time.
                if self.hosts[index].up && (self.now_ms + index as u64 * 7).is_multiple_of(100) {
                    self.command(index, |cluster, facts| cluster.tick(facts));
                }
            }
        }
    }

    /// Lets time pass until a condition holds.
    fn run_until(&mut self, what: &str, ms_max: u64, mut condition: impl FnMut(&Net) -> bool) {
        for _ in 0..ms_max / 10 {
            if condition(self) {
                return;
            }
            self.run(10);
        }
        let states: Vec<String> = self
            .hosts
            .iter()
            .map(|host| {
                let log = host.log.iter().rev().take(12).rev().cloned().collect::<Vec<_>>().join("\n  ");
                format!(
                    "{}:\n{}  {log}",
                    host.ip,
                    host.cluster.nodes_text(Default::default(), &Facts::without_data(self.now()))
                )
            })
            .collect();
        panic!("not within {ms_max} ms: {what}\n{}", states.join("\n"));
    }

    /// Replicas get what their primary has.
    fn replicate(&mut self) {
        for index in 0..self.hosts.len() {
            let Some(ip) = self.hosts[index].primary_ip.clone() else { continue };
            let Some(primary) = self.hosts.iter().position(|host| host.ip == ip) else { continue };
            if self.hosts[primary].up && self.hosts[index].up && !self.is_cut(index, primary) {
                self.hosts[index].offset = self.hosts[primary].offset;
                self.hosts[index].keys = self.hosts[primary].keys.clone();
                self.hosts[index].heard_ms = self.now_ms;
            }
        }
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one, other)) || self.cut.contains(&(other, one))
    }

    fn deliver(&mut self, event: Event) {
        match event {
            Event::Connect { from, link, ip } => {
                if !self.hosts[from].up || !self.hosts[from].cluster.has_link(link) {
                    return;
                }
                let to = self.hosts.iter().position(|host| host.ip == ip);
                let Some(to) = to.filter(|to| self.hosts[*to].up && !self.is_cut(from, *to)) else {
                    self.command(from, |cluster, facts| cluster.link_closed(link, "Connection refused", facts));
                    return;
                };
                let (from_ip, to_ip) = (self.hosts[from].ip.clone(), self.hosts[to].ip.clone());
                let inbound = self.command(to, |cluster, facts| {
                    let addresses = Accepted { peer_ip: &from_ip, peer_port: 40_000, local_ip: &to_ip };
                    cluster.link_accepted(addresses, facts)
                });
                self.hosts[to].peers.insert(inbound, (from, link));
                self.hosts[from].peers.insert(link, (to, inbound));
                self.command(from, |cluster, facts| {
                    let addresses = Accepted { peer_ip: &to_ip, peer_port: 16379, local_ip: &from_ip };
                    cluster.link_connected(link, addresses, facts);
                });
            }
            Event::Frame { to, link, frame } => {
                if self.hosts[to].up {
                    self.command(to, |cluster, facts| cluster.received(link, &frame, facts));
                }
            }
            Event::Close { to, link } => {
                self.hosts[to].peers.remove(&link);
                if self.hosts[to].up {
                    self.command(to, |cluster, facts| cluster.link_closed(link, "closed", facts));
                }
            }
        }
    }

    /// Ends a process. Its connections close.
    fn kill(&mut self, index: usize) {
        self.hosts[index].up = false;
        for (_, (peer, link)) in std::mem::take(&mut self.hosts[index].peers) {
            self.queue.push_back((self.now_ms + 1, Event::Close { to: peer, link }));
        }
    }

    /// Starts a process again, from what it has saved.
    fn restart(&mut self, index: usize) {
        self.restart_with(index, &settings());
    }

    fn restart_with(&mut self, index: usize, settings: &Settings) {
        let (conf, repairs) = NodesConf::parse(self.hosts[index].conf.as_bytes(), false).expect("it was written so");
        assert!(repairs.is_empty(), "{repairs:?}");
        let seed = 1_000 + index as u64 + self.now_ms;
        let cluster = Cluster::new(Some(&conf), settings.clone(), seed, self.now());
        let host = &mut self.hosts[index];
        host.cluster = cluster;
        host.up = true;
        host.primary_ip = None;
        self.command(index, |cluster, facts| cluster.data_loaded(facts));
    }

    /// Separates a host from all others.
    fn isolate(&mut self, index: usize) {
        for other in 0..self.hosts.len() {
            if other != index {
                self.cut.insert((index, other));
                self.cut.insert((other, index));
            }
        }
    }

    fn heal(&mut self) {
        self.cut.clear();
    }

    fn all_ok(&self) -> bool {
        self.hosts.iter().filter(|host| host.up).all(|host| host.cluster.state() == ClusterState::Ok)
    }

    /// The flags that one host has for another.
    fn flags_at(&self, index: usize, about: usize) -> NodeFlags {
        self.hosts[index].cluster.node_flags(self.id(about).as_bytes()).unwrap_or_default()
    }

    /// Whether all running hosts have the same owner for every slot.
    fn agrees(&self) -> bool {
        let mut running = self.hosts.iter().filter(|host| host.up);
        let Some(first) = running.next() else { return true };
        running.all(|host| (0..SLOT_COUNT).all(|slot| host.cluster.slot_owner(slot) == first.cluster.slot_owner(slot)))
    }

    fn logged(&self, index: usize, text: &str) -> bool {
        self.hosts[index].log.iter().any(|line| line.contains(text))
    }
}

impl Host {
    fn no_handshakes(&self) -> bool {
        self.cluster.known_nodes().all(|(_, flags)| !flags.intersects(NodeFlags::HANDSHAKE | NodeFlags::MEET))
    }
}

/// The slots of one of several primaries.
fn slot_share(index: usize, primaries: usize) -> RangeInclusive<u16> {
    let bound = |index: usize| (usize::from(SLOT_COUNT) * index / primaries) as u16;
    bound(index)..=bound(index + 1) - 1
}
