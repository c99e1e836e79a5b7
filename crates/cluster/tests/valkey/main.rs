//! A real Valkey accepts what this crate writes, and this crate reads what Valkey writes.
//!
//! The program is `KVICK_TEST_VALKEY`, or `valkey-server` in `VALKEY_BIN_DIR` or in `PATH`. If there is none, or if it
//! is older than 9.1, the tests print so and pass.

mod member;

use kvick_cluster::bus::{
    Body, ClusterState, Extension, Frame, Gossip, Header, LightBody, Message, MessageFlags, MessageType, ModuleMessage,
    Ping, Publish, Update, split_frame,
};
use kvick_cluster::nodes_conf::{Node, NodesConf};
use kvick_cluster::{NodeFlags, NodeId, Slots};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program of Valkey 9.1 or later.
fn valkey() -> Option<PathBuf> {
    kvick_testing::programs::valkey_server((9, 1))
}

/// A running Valkey in cluster mode.
struct Server {
    child: Child,
    port: u16,
    bus_port: u16,
    dir: tempfile::TempDir,
}

impl Server {
    /// Starts it with this `nodes.conf`, and waits until it answers.
    fn start(program: &Path, ports: [u16; 2], nodes_conf: Option<&str>) -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        if let Some(content) = nodes_conf {
            std::fs::write(dir.path().join("nodes.conf"), content).expect("nodes.conf");
        }
        let [port, bus_port] = ports;
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--cluster-port", &bus_port.to_string(), "--bind", "127.0.0.1"])
            .args(["--cluster-enabled", "yes", "--cluster-node-timeout", "60000", "--save", "", "--dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("the server's program");
        let server = Server { child, port, bus_port, dir };
        wait_until("the server answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        server
    }

    /// The reply to a command, which is a string.
    fn call(&self, command: &str) -> String {
        Client::connect(self).call(command)
    }

    /// Waits until CLUSTER NODES contains this text.
    fn wait_for_nodes(&self, text: &str) {
        wait_until(text, || self.call("CLUSTER NODES").contains(text));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that sends inline commands.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(server: &Server) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Client(BufReader::new(stream))
    }

    fn call(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("it was sent");
        self.reply()
    }

    /// The next reply as text: the parts of an array are separated by spaces.
    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a reply");
        let rest = line[1..].trim_end();
        match line.as_bytes()[0] {
            b'$' => {
                let mut bulk = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bulk).expect("a string");
                bulk.truncate(bulk.len() - 2);
                String::from_utf8(bulk).expect("text")
            }
            b'*' => {
                let parts: Vec<_> = (0..rest.parse().expect("a length")).map(|_| self.reply()).collect();
                parts.join(" ")
            }
            _ => rest.to_owned(),
        }
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn free_ports() -> [u16; 2] {
    [0; 2].map(|_| kvick_testing::free_port())
}

/// Calls `receive` with each message that arrives, until the connection ends.
fn read_messages(mut stream: TcpStream, mut receive: impl FnMut(&mut TcpStream, &Message<'_>)) {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        while let Frame::Complete(frame) = split_frame(&received).expect("messages") {
            receive(&mut stream, &Message::decode(frame).expect("a message"));
            let length = frame.len();
            received.drain(..length);
        }
        match stream.read(&mut chunk) {
            Ok(length) if length > 0 => received.extend_from_slice(&chunk[..length]),
            _ => return,
        }
    }
}

/// What the test says of itself as a node.
#[derive(Clone)]
struct Myself {
    id: NodeId,
    bus_port: u16,
    epoch: u64,
    slots: Slots,
}

impl Myself {
    fn encode(&self, body: Body<'_>) -> Vec<u8> {
        let header = Header {
            current_epoch: self.epoch,
            config_epoch: self.epoch,
            replication_offset: 0,
            sender: self.id,
            slots: self.slots.view(),
            primary: None,
            ip: "",
            port: 1,
            secondary_port: 0,
            bus_port: self.bus_port,
            flags: NodeFlags::MYSELF
                | NodeFlags::PRIMARY
                | NodeFlags::EXTENSIONS
                | NodeFlags::LIGHT_PUBLISH
                | NodeFlags::LIGHT_MODULE,
            state: ClusterState::Ok,
            message_flags: MessageFlags::EXTENSIONS,
        };
        let mut out = Vec::new();
        Message::Full { header, body }.encode(&mut out).expect("a message");
        out
    }

    /// A PING, PONG or MEET with all properties of a node.
    fn ping(&self, kind: MessageType) -> Vec<u8> {
        let extensions = [
            Extension::Hostname("kvick.example.org"),
            Extension::HumanNodeName("Kvick"),
            Extension::ClientIpv6("2001:db8::1"),
            Extension::ClientPort(7001),
            Extension::ClientTlsPort(7002),
            Extension::AvailabilityZone("zone-1"),
            Extension::ShardId(self.id),
            Extension::Unknown { number: 9999, data: &[7; 24] },
        ];
        let ping = Ping { gossip: Gossip::NONE, extensions: extensions.as_slice().into() };
        self.encode(match kind {
            MessageType::Meet => Body::Meet(ping),
            MessageType::Pong => Body::Pong(ping),
            _ => Body::Ping(ping),
        })
    }
}

/// Accepts connections from the server, and answers each PING and MEET with a PONG. Published messages are passed on.
fn serve_bus(listener: TcpListener, myself: Myself) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (sender, myself) = (sender.clone(), myself.clone());
            thread::spawn(move || {
                read_messages(stream.expect("a connection"), |stream, message| match message {
                    Message::Full { body: Body::Ping(_) | Body::Meet(_), .. } => {
                        let _ = stream.write_all(&myself.ping(MessageType::Pong));
                    }
                    Message::Light(LightBody::Publish(publish)) => {
                        let text = [publish.channel, publish.message].concat();
                        let _ = sender.send(String::from_utf8(text).expect("text"));
                    }
                    other => panic!("unexpected: {other:?}"),
                });
            });
        }
    });
    receiver
}

#[test]
fn valkey_accepts_a_node_that_speaks_like_this() {
    let Some(program) = valkey() else { return };
    let server = Server::start(&program, free_ports(), None);
    let server_id: NodeId = server.call("CLUSTER MYID").parse().expect("its name");

    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let bus_port = listener.local_addr().expect("its address").port();
    let id = NodeId::from_random([0xab; 20]);
    let myself = Myself { id, bus_port, epoch: 3, slots: (100..200).collect() };
    let published = serve_bus(listener, myself.clone());

    // MEET is answered with PONG.
    let mut stream = TcpStream::connect(("127.0.0.1", server.bus_port)).expect("a connection");
    stream.write_all(&myself.ping(MessageType::Meet)).expect("it was sent");
    let (pongs, receiver) = channel();
    let reading = stream.try_clone().expect("a second handle");
    thread::spawn(move || {
        read_messages(reading, |_, message| {
            let Message::Full { header, body: Body::Pong(ping) } = message else { panic!("unexpected: {message:?}") };
            let shard = ping.extensions.iter().find(|extension| matches!(extension, Extension::ShardId(_)));
            let _ = pongs.send((header.sender, header.port, header.bus_port, shard.is_some()));
        });
    });
    let pong = receiver.recv_timeout(PATIENCE).expect("a PONG");
    assert_eq!((pong.0, pong.1, pong.2), (server_id, server.port, server.bus_port));

    // The server connects to this node, which confirms its name, properties and slots.
    server.wait_for_nodes(&format!("{id} 127.0.0.1:7001@{bus_port},kvick.example.org master - 0 "));
    server.wait_for_nodes(" 3 connected 100-199");
    stream.write_all(&myself.ping(MessageType::Ping)).expect("it was sent");
    let pong = receiver.recv_timeout(PATIENCE).expect("a PONG");
    assert_eq!((pong.0, pong.3), (server_id, true));
    let stored = std::fs::read_to_string(server.dir.path().join("nodes.conf")).expect("nodes.conf");
    let (conf, _) = NodesConf::parse(stored.as_bytes(), false).expect("a right file");
    assert_eq!(conf.write().as_deref(), Ok(stored.as_str()));
    let node = conf.nodes.iter().find(|node| node.id == id).expect("this node");
    assert_eq!((node.human_name.as_str(), node.availability_zone.as_str()), ("Kvick", "zone-1"));
    assert_eq!((node.client_tcp_port, node.client_tls_port, node.client_ipv6.as_str()), (7001, 7002, "2001:db8::1"));
    assert_eq!(node.shard_id, Some(id));

    // Published messages in both forms and directions. A message of a module without receivers is ignored.
    let mut subscriber = Client::connect(&server);
    assert_eq!(subscriber.call("SUBSCRIBE news"), "subscribe news 1");
    let module = ModuleMessage { module_id: [1; 8], kind: 7, payload: b"payload" };
    stream.write_all(&myself.encode(Body::Module(module))).expect("it was sent");
    let full = Publish { channel: b"news", message: b"full" };
    stream.write_all(&myself.encode(Body::Publish(full))).expect("it was sent");
    assert_eq!(subscriber.reply(), "message news full");
    let mut light = Vec::new();
    let body = LightBody::Publish(Publish { channel: b"news", message: b"light" });
    Message::Light(LightBody::Module(module)).encode(&mut light).expect("a message");
    Message::Light(body).encode(&mut light).expect("a message");
    stream.write_all(&light).expect("it was sent");
    assert_eq!(subscriber.reply(), "message news light");
    server.call("PUBLISH to-kvick hello");
    assert_eq!(published.recv_timeout(PATIENCE).as_deref(), Ok("to-kvickhello"));

    // UPDATE adds to the slots of a node. A message of an unknown type changes nothing.
    stream.write_all(&myself.encode(Body::Unknown { number: 77, data: b"data" })).expect("it was sent");
    let slots: Slots = (300..=399).collect();
    let update = Update { node: id, config_epoch: 5, slots: slots.view() };
    stream.write_all(&myself.encode(Body::Update(update))).expect("it was sent");
    server.wait_for_nodes(" 5 connected 100-199 300-399");
    for (kind, count) in [("meet", 1), ("module", 2), ("publish", 2), ("update", 1)] {
        let line = format!("cluster_stats_messages_{kind}_received:{count}");
        assert!(server.call("CLUSTER INFO").contains(&line), "{line}");
    }
}

/// Without what changes by itself: times and connections.
fn settled(mut conf: NodesConf) -> NodesConf {
    for node in &mut conf.nodes {
        (node.ping_sent_ms, node.pong_received_ms, node.connected) = (0, 0, false);
    }
    conf.nodes.sort_by_key(|node| node.id);
    conf
}

#[test]
fn valkey_loads_the_nodes_conf_that_this_writes() {
    let Some(program) = valkey() else { return };
    let ports = free_ports();
    let [id, other, replica] = [1, 2, 3].map(|byte| NodeId::from_random([byte; 20]));
    let conf = NodesConf {
        nodes: vec![
            Node {
                ip: "127.0.0.1".into(),
                tcp_port: ports[0],
                bus_port: ports[1],
                shard_id: Some(id),
                flags: NodeFlags::MYSELF | NodeFlags::PRIMARY,
                config_epoch: 7,
                slots: (0..=99).chain([200]).chain(300..=16_000).collect(),
                ..Node::unknown(id)
            },
            Node {
                ip: "127.0.0.1".into(),
                tcp_port: 2,
                tls_port: 3,
                bus_port: 4,
                hostname: "other.example.org".into(),
                human_name: "Other".into(),
                shard_id: Some(other),
                client_ipv4: "10.0.0.1".into(),
                client_ipv6: "2001:db8::2".into(),
                client_tcp_port: 7001,
                client_tls_port: 7002,
                availability_zone: "zone-2".into(),
                flags: NodeFlags::PRIMARY,
                config_epoch: 8,
                slots: (100..=199).chain(16_001..=16_383).collect(),
                ..Node::unknown(other)
            },
            Node {
                ip: "::1".into(),
                tcp_port: 5,
                bus_port: 6,
                shard_id: Some(other),
                flags: NodeFlags::REPLICA | NodeFlags::NO_FAILOVER,
                primary: Some(other),
                ..Node::unknown(replica)
            },
        ],
        current_epoch: 9,
        last_vote_epoch: 6,
        migrating: [(200, other)].into(),
        importing: [(100, other), (16_383, other)].into(),
    };
    let server = Server::start(&program, ports, Some(&conf.write().expect("it can be written")));

    // CLUSTER NODES shows the addresses for clients, and no fields after the host name.
    let shown = server.call("CLUSTER NODES");
    let (shown, repairs) = NodesConf::parse(shown.as_bytes(), false).expect("lines as in nodes.conf");
    assert_eq!(repairs.len(), 1, "the current epoch is not shown: {repairs:?}");
    let mut expected = conf.clone();
    (expected.current_epoch, expected.last_vote_epoch) = (8, 0);
    for node in &mut expected.nodes {
        if node.id == other {
            (node.ip, node.tcp_port) = (node.client_ipv4.clone(), node.client_tcp_port);
        }
        *node = Node {
            ip: node.ip.clone(),
            tcp_port: node.tcp_port,
            bus_port: node.bus_port,
            hostname: node.hostname.clone(),
            flags: node.flags,
            primary: node.primary,
            config_epoch: node.config_epoch,
            slots: node.slots.clone(),
            ..Node::unknown(node.id)
        };
    }
    assert_eq!(settled(shown), settled(expected));

    // The file as the server writes it is the same, and so is what this crate writes when it has read that.
    assert_eq!(server.call("CLUSTER SAVECONFIG"), "OK");
    let stored = std::fs::read_to_string(server.dir.path().join("nodes.conf")).expect("nodes.conf");
    let (loaded, repairs) = NodesConf::parse(stored.as_bytes(), false).expect("a right file");
    assert_eq!(repairs, []);
    assert_eq!(loaded.write().as_deref(), Ok(stored.as_str()));
    assert_eq!(settled(loaded), settled(conf));
}
