//! The state machine is a member of a cluster of real Valkey nodes: it joins, claims slots, votes, and takes over.

use super::{PATIENCE, Server, free_ports, valkey};
use kvick_cluster::bus::{ClusterState, Frame, split_frame};
use kvick_cluster::state::{Accepted, Action, Cluster, Facts, FailoverMode, LinkId, Now, Settings};
use kvick_cluster::{NodeFlags, SLOT_COUNT};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const NODE_TIMEOUT_MS: u64 = 2_000;

/// The state machine with sockets, and without data.
struct Member {
    cluster: Cluster,
    listener: TcpListener,
    connections: BTreeMap<LinkId, Connection>,
    start: Instant,
    ticked: Instant,
    /// What it tells others about its data.
    offset: u64,
    log: Vec<String>,
}

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
}

impl Member {
    fn start() -> Member {
        let ports = free_ports();
        let listener = TcpListener::bind(("127.0.0.1", ports[1])).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let settings =
            Settings { node_timeout_ms: NODE_TIMEOUT_MS, port: ports[0], bus_port: ports[1], ..Settings::default() };
        let start = Instant::now();
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
        let cluster = Cluster::new(None, settings, seed, now(start));
        let (connections, log) = (BTreeMap::new(), Vec::new());
        Member { cluster, listener, connections, start, ticked: start, offset: 0, log }
    }

    /// Calls the state machine, and does what it wants done.
    fn call<R>(&mut self, call: impl FnOnce(&mut Cluster, &Facts<'_>) -> R) -> R {
        let facts = Facts { replication_offset: self.offset, ..Facts::without_data(now(self.start)) };
        let result = call(&mut self.cluster, &facts);
        let mut actions = Vec::new();
        self.cluster.settle(&facts, &mut actions);
        for action in actions {
            match action {
                Action::Log(_, line) => self.log.push(line),
                Action::Connect { link, ip, port, .. } => self.connect(link, &ip, port),
                Action::Disconnect(link) => {
                    self.connections.remove(&link);
                }
                Action::Send { link, frame } => {
                    if let Some(connection) = self.connections.get_mut(&link) {
                        connection.unsent.extend_from_slice(&frame);
                    }
                }
                _ => {}
            }
        }
        result
    }

    fn connect(&mut self, link: LinkId, ip: &str, port: u16) {
        match TcpStream::connect((ip, port)) {
            Ok(stream) => {
                self.add(link, stream);
                let addresses = Accepted { peer_ip: ip, peer_port: port, local_ip: "127.0.0.1" };
                self.call(|cluster, facts| cluster.link_connected(link, addresses, facts));
            }
            Err(error) => self.call(|cluster, facts| cluster.link_closed(link, &error.to_string(), facts)),
        }
    }

    fn add(&mut self, link: LinkId, stream: TcpStream) {
        stream.set_nonblocking(true).expect("a socket");
        self.connections.insert(link, Connection { stream, received: Vec::new(), unsent: Vec::new() });
    }

    /// Handles what has arrived and what is due.
    fn turn(&mut self) {
        while let Ok((stream, peer)) = self.listener.accept() {
            let ip = peer.ip().to_string();
            let addresses = Accepted { peer_ip: &ip, peer_port: peer.port(), local_ip: "127.0.0.1" };
            let link = self.call(|cluster, facts| cluster.link_accepted(addresses, facts));
            self.add(link, stream);
        }
        let links: Vec<LinkId> = self.connections.keys().copied().collect();
        for link in links {
            self.transfer(link);
        }
        if self.ticked.elapsed() >= Duration::from_millis(100) {
            self.ticked = Instant::now();
            self.call(|cluster, facts| cluster.tick(facts));
        }
        thread::sleep(Duration::from_millis(1));
    }

    /// Reads and writes a connection.
    fn transfer(&mut self, link: LinkId) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        let mut buffer = [0; 1 << 16];
        let closed = match connection.stream.read(&mut buffer) {
            Ok(0) => true,
            Ok(count) => {
                connection.received.extend_from_slice(&buffer[..count]);
                false
            }
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        while let Some(connection) = self.connections.get_mut(&link) {
            let frame = match split_frame(&connection.received).expect("valid frames") {
                Frame::Complete(frame) => frame.to_vec(),
                Frame::Incomplete(_) => break,
            };
            connection.received.drain(..frame.len());
            self.call(|cluster, facts| cluster.received(link, &frame, facts));
        }
        let Some(connection) = self.connections.get_mut(&link) else { return };
        let written = if connection.unsent.is_empty() { Ok(0) } else { connection.stream.write(&connection.unsent) };
        match written {
            Ok(count) => drop(connection.unsent.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => {}
        }
        if closed {
            self.connections.remove(&link);
            self.call(|cluster, facts| cluster.link_closed(link, "closed", facts));
        }
    }

    fn run_until(&mut self, what: &str, mut condition: impl FnMut(&Cluster) -> bool) {
        let start = Instant::now();
        while !condition(&self.cluster) {
            if start.elapsed() > PATIENCE {
                let text = self.cluster.nodes_text(Default::default(), &Facts::without_data(now(self.start)));
                panic!("not in time: {what}\n{text}{}", self.log.join("\n"));
            }
            self.turn();
        }
    }

    /// Runs until a server's CLUSTER NODES fulfils a condition.
    fn run_until_seen(&mut self, server: &Server, what: &str, condition: impl Fn(&str) -> bool) {
        self.run_until_replied(server, "CLUSTER NODES", what, condition);
    }

    /// Runs until a server's reply fulfils a condition.
    fn run_until_replied(&mut self, server: &Server, command: &str, what: &str, condition: impl Fn(&str) -> bool) {
        let mut checked = Instant::now();
        let mut seen = false;
        self.run_until(what, |_| {
            if checked.elapsed() > Duration::from_millis(50) {
                seen = condition(&server.call(command));
                checked = Instant::now();
            }
            seen
        });
    }
}

fn now(start: Instant) -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    Now { mono_ms: start.elapsed().as_millis() as u64 + 1, unix_ms: unix as i64 }
}

/// The line of a node in CLUSTER NODES.
fn line<'a>(nodes: &'a str, id: &str) -> &'a str {
    nodes.lines().find(|line| line.starts_with(id)).unwrap_or_default()
}

/// Real nodes that own these slots, in one cluster with the member.
fn cluster(program: &Path, member: &mut Member, slots: &[&str]) -> Vec<Server> {
    let servers: Vec<Server> = slots.iter().map(|_| Server::start(program, free_ports(), None)).collect();
    for (server, slots) in servers.iter().zip(slots) {
        assert_eq!(server.call(&format!("CONFIG SET cluster-node-timeout {NODE_TIMEOUT_MS}")), "OK");
        assert_eq!(server.call("CONFIG SET repl-diskless-sync-delay 0"), "OK");
        if !slots.is_empty() {
            assert_eq!(server.call(&format!("CLUSTER ADDSLOTSRANGE {slots}")), "OK");
        }
        let (port, bus_port) = (server.port, server.bus_port);
        member.call(|cluster, facts| cluster.meet("127.0.0.1", port, bus_port, "test", facts)).expect("an address");
    }
    let count = servers.len() + 1;
    for server in &servers {
        member.run_until_seen(server, "it knows all nodes", |nodes| {
            let known = nodes.lines().filter(|line| !line.contains("handshake") && line.contains(" connected"));
            known.count() == count
        });
    }
    servers
}

#[test]
fn a_member_claims_slots_and_votes_for_a_replica() {
    let Some(program) = valkey() else { return };
    let mut member = Member::start();
    let mut servers = cluster(&program, &mut member, &["0 5460", "5461 10922", ""]);
    member.call(|cluster, _| cluster.add_slots(&[10_923..=SLOT_COUNT - 1])).expect("they are free");
    let ids: Vec<String> = servers.iter().map(|server| server.call("CLUSTER MYID")).collect();
    assert_eq!(servers[2].call(&format!("CLUSTER REPLICATE {}", ids[0])), "OK");
    member.run_until("the cluster is up", |cluster| cluster.state() == ClusterState::Ok && cluster.size() == 3);
    let me = member.cluster.my_id();
    for server in &servers {
        member.run_until_seen(server, "it knows the slots", |nodes| line(nodes, me.as_str()).ends_with("10923-16383"));
    }
    member.call(|cluster, facts| cluster.take_over_slots(&[5_461..=5_470], facts));
    for server in &servers {
        member.run_until_seen(server, "the claim is accepted", |nodes| {
            line(nodes, me.as_str()).ends_with("5461-5470 10923-16383")
        });
    }
    member.run_until("the replica is known", |cluster| {
        cluster.node_flags(ids[2].as_bytes()).is_some_and(|flags| flags.contains(NodeFlags::REPLICA))
    });
    member.run_until_replied(&servers[2], "INFO replication", "the replica has data", |info| {
        info.contains("master_link_status:up")
    });
    // The failed primary's replica needs both remaining votes.
    drop(servers.remove(0));
    member.run_until("the replica took over", |cluster| {
        cluster.slot_owner(0).is_some_and(|owner| owner.as_str() == ids[2])
    });
    assert!(member.log.iter().any(|line| line.contains("Failover auth granted to")), "{:#?}", member.log);
    member.run_until("the cluster is up", |cluster| cluster.state() == ClusterState::Ok);
    assert_eq!(member.cluster.known_nodes().filter(|(_, flags)| flags.contains(NodeFlags::FAIL)).count(), 1);
}

#[test]
fn a_member_is_elected_when_its_primary_dies() {
    let Some(program) = valkey() else { return };
    let mut member = Member::start();
    let mut servers = cluster(&program, &mut member, &["0 5460", "5461 10922", "10923 16383"]);
    member.run_until("the cluster is up", |cluster| cluster.state() == ClusterState::Ok && cluster.size() == 3);
    let primary = servers[0].call("CLUSTER MYID");
    member.call(|cluster, facts| cluster.replicate(primary.as_bytes(), facts)).expect("it is empty");
    let me = member.cluster.my_id();
    member.offset = 100;
    for server in &servers {
        member.run_until_seen(server, "it is a replica", |nodes| line(nodes, me.as_str()).contains(" slave "));
    }
    drop(servers.remove(0));
    member.run_until("it was elected", |cluster| cluster.is_primary());
    for server in &servers {
        member.run_until_seen(server, "it owns the slots", |nodes| line(nodes, me.as_str()).ends_with(" 0-5460"));
    }
    let won = "Failover election won: I'm the new primary.";
    assert!(member.log.iter().any(|line| line == won), "{:#?}", member.log);
}

#[test]
fn a_primary_hands_over_to_a_member() {
    let Some(program) = valkey() else { return };
    let mut member = Member::start();
    let servers = cluster(&program, &mut member, &["0 5460", "5461 10922", "10923 16383"]);
    member.run_until("the cluster is up", |cluster| cluster.state() == ClusterState::Ok && cluster.size() == 3);
    let primary = servers[0].call("CLUSTER MYID");
    member.call(|cluster, facts| cluster.replicate(primary.as_bytes(), facts)).expect("it is empty");
    let me = member.cluster.my_id();
    for server in &servers {
        member.run_until_seen(server, "it is a replica", |nodes| line(nodes, me.as_str()).contains(" slave "));
    }
    let failover = |cluster: &mut Cluster, facts: &Facts<'_>| {
        cluster.failover(FailoverMode::Coordinated, None, false, "test", facts)
    };
    member.call(failover).expect("it is a replica");
    member.run_until("it was elected", |cluster| cluster.is_primary());
    let paused = "Received replication offset for paused primary manual failover: 0";
    assert!(member.log.iter().any(|line| line == paused), "{:#?}", member.log);
    for server in &servers {
        member.run_until_seen(server, "roles have changed", |nodes| {
            line(nodes, me.as_str()).ends_with(" 0-5460") && line(nodes, &primary).contains(me.as_str())
        });
    }
    member.run_until("it knows its replica", |cluster| cluster.replica_count() == 1);
}
