//! The reader and the writer against files that Valkey wrote, and against arbitrary ones.

use super::*;
use crate::{SLOT_COUNT, Slots};
use proptest::prelude::*;

/// Files that Valkey wrote. `tests/nodes/README.md` says how.
const FILES: [&str; 3] = [
    include_str!("../../tests/nodes/primary-9.1.txt"),
    include_str!("../../tests/nodes/importing-9.1.txt"),
    include_str!("../../tests/nodes/primary-8.1.txt"),
];

fn id(character: char) -> NodeId {
    String::from(character).repeat(NodeId::LEN).parse().expect("a name")
}

/// Reads a file in which `{a}` stands for the name of forty `a`, and so on.
fn parse(text: &str) -> Result<(NodesConf, Vec<Repair>), ParseError> {
    let mut text = text.to_owned();
    for character in 'a'..='f' {
        text = text.replace(&format!("{{{character}}}"), id(character).as_str());
    }
    NodesConf::parse(text.as_bytes(), false)
}

fn error(text: &str) -> (usize, ParseErrorKind) {
    let error = parse(text).expect_err("an error");
    (error.line, error.kind)
}

#[test]
fn files_of_valkey_are_written_as_they_were_read() {
    for file in FILES {
        let (conf, repairs) = NodesConf::parse(file.as_bytes(), false).expect("a right file");
        assert_eq!(repairs, []);
        assert_eq!(conf.write().as_deref(), Ok(file));
    }
}

#[test]
fn lines_describe_nodes() {
    let (conf, _) = NodesConf::parse(FILES[0].as_bytes(), false).expect("a right file");
    assert_eq!((conf.nodes.len(), conf.current_epoch, conf.last_vote_epoch), (5, 4, 0));
    let other: NodeId = "4c73826bd100b46c0427c23a07950d1f935be26a".parse().expect("a name");
    assert_eq!(conf.migrating, [(100, other)].into());
    assert_eq!(conf.importing, [(5500, other)].into());
    let myself = conf.myself().expect("the node itself");
    assert_eq!(myself.slots.ranges().collect::<Vec<_>>(), [0..=5460]);
    let expected = Node {
        ip: "127.0.0.1".into(),
        tcp_port: 24200,
        bus_port: 24202,
        hostname: "node-a.example.org".into(),
        human_name: "Alpha-1".into(),
        shard_id: "05f0924bd2d1d11041b1f67dabb1dc10b4344080".parse().ok(),
        client_ipv4: "10.1.2.3".into(),
        client_ipv6: "2001:db8::7".into(),
        client_tcp_port: 7001,
        client_tls_port: 7002,
        availability_zone: "eu-west-1a".into(),
        flags: NodeFlags::MYSELF | NodeFlags::PRIMARY,
        config_epoch: 1,
        connected: true,
        slots: (0..=5460).collect(),
        ..Node::unknown("54864db64b3375163477bee318b41a3aac841ce6".parse().expect("a name"))
    };
    assert_eq!(*myself, expected);
    let replica = conf.nodes.iter().find(|node| node.primary.is_some()).expect("a replica");
    assert_eq!((replica.primary, replica.config_epoch), (Some(myself.id), 0));
    assert_eq!(replica.pong_received_ms, 1_795_379_284_000);
}

#[test]
fn repairs_are_those_of_valkey() {
    let (conf, repairs) = parse(
        "\n{a} 127.0.0.1:7000@17000,,tls-port=0,shard-id={d} myself,master - 0 0 3 connected 0-10 5 12-11 20 \
             [7->-{c}]\n\
         {b} 127.0.0.1:7001,h.example slave,noaddr {a} 0 5 9 disconnected 5-6\n  \n\
         {e} :0@0,,shard-id={f} replica {a} 0 0 0 disconnected\n\
         vars currentEpoch 1 lastVoteEpoch 2 other 7",
    )
    .expect("a file that can be repaired");
    let [a, b, e, c] = conf.nodes.as_slice() else { panic!("{conf:?}") };
    assert_eq!((a.id, b.id, e.id, c), (id('a'), id('b'), id('e'), &Node::unknown(id('c'))));
    assert_eq!(a.slots.ranges().collect::<Vec<_>>(), [0..=10, 20..=20]);
    assert!(b.slots.is_empty());
    assert_eq!((b.hostname.as_str(), b.tcp_port, b.bus_port), ("h.example", 7001, 17001));
    assert_eq!(b.flags, NodeFlags::REPLICA | NodeFlags::NO_ADDRESS | NodeFlags::FAIL);
    assert_eq!([b.shard_id, e.shard_id], [Some(id('d')); 2]);
    assert_eq!((conf.current_epoch, conf.last_vote_epoch), (3, 2));
    let expected = [
        Repair::SlotsTaken(id('b')),
        Repair::UnknownVariable("other".into()),
        Repair::MissingNode(id('c')),
        Repair::ShardId { node: id('e'), from: id('f') },
        Repair::CurrentEpoch(3),
    ];
    assert_eq!(repairs, expected);
    let text = conf.write().expect("it can be written");
    assert_eq!(NodesConf::parse(text.as_bytes(), false), Ok((conf, vec![])));
}

#[test]
fn the_port_of_old_files_is_that_of_the_bus() {
    let line = format!("{} 1.2.3.4:7000 myself,master - 0 0 0 connected\n", id('a'));
    let ports = |text: &str, tls_bus| {
        let (conf, _) = NodesConf::parse(text.as_bytes(), tls_bus).expect("a right file");
        (conf.nodes[0].tcp_port, conf.nodes[0].tls_port, conf.nodes[0].bus_port)
    };
    assert_eq!(ports(&line, false), (7000, 0, 17000));
    assert_eq!(ports(&line, true), (0, 7000, 17000));
    let line = line.replace("7000", "7000@7009,,tcp-port=7001");
    assert_eq!(ports(&line, true), (7001, 7000, 7009));
    let line = line.replace("tcp-port", "tls-port");
    assert_eq!(ports(&line, true), (7000, 7001, 7009));
}

#[test]
fn errors_name_their_line() {
    let myself = "{a} 1.2.3.4:1@2 myself,master - 0 0 0 connected";
    assert_eq!(error(""), (1, ParseErrorKind::NoMyself));
    assert_eq!(error("vars currentEpoch 1\n"), (2, ParseErrorKind::NoMyself));
    let second = |line: &str| error(&format!("{myself}\n{line}"));
    assert_eq!(second(myself), (2, ParseErrorKind::DuplicateNode));
    assert_eq!(second(&myself.replace("{a}", "{b}")), (2, ParseErrorKind::SecondMyself));
    assert_eq!(second("vars currentEpoch"), (2, ParseErrorKind::Fields));
    assert_eq!(second("vars currentEpoch x"), (2, ParseErrorKind::Number));
    let other = "{b} 1.2.3.4:1@2 master - 0 0 0 connected";
    assert_eq!(second(&other.replace(" connected", "")), (2, ParseErrorKind::Fields));
    for (from, to, kind) in [
        ("{b}", "bb", ParseErrorKind::NodeId),
        ("1.2.3.4:1@2", "1.2.3.4", ParseErrorKind::Address),
        (":1@", ":x@", ParseErrorKind::Address),
        ("@2", "@65536", ParseErrorKind::Address),
        ("1@2", "60000", ParseErrorKind::Address),
        ("@2", "@2,h,shard-id", ParseErrorKind::AuxField),
        ("@2", "@2,h,shard-id=x", ParseErrorKind::NodeId),
        ("@2", "@2,h,colour=red", ParseErrorKind::AuxField),
        ("@2", "@2,h,nodename=(x)", ParseErrorKind::AuxField),
        ("@2", "@2,h,client-ipv4=1.2.3", ParseErrorKind::AuxField),
        ("@2", "@2,h,tls-port=65536", ParseErrorKind::AuxField),
        (" - ", " c ", ParseErrorKind::NodeId),
        ("master", "leader", ParseErrorKind::Flag),
        ("0 0 0", "0 0 -1", ParseErrorKind::Number),
        ("connected", "connected 16384", ParseErrorKind::Slot),
        ("connected", "connected 0-16384", ParseErrorKind::Slot),
        ("connected", "connected [5->-x]", ParseErrorKind::NodeId),
        ("connected", "connected [5-{b}]", ParseErrorKind::Slot),
        ("connected", "connected [16384->-{b}]", ParseErrorKind::Slot),
        ("connected", "connected [5->-{b}", ParseErrorKind::Slot),
    ] {
        let line = other.replacen(from, to, 1);
        assert_eq!(second(&line), (2, kind), "{line}");
    }
    let error = NodesConf::parse(b"\xff", false).expect_err("an error");
    assert_eq!(error.to_string(), "line 1: not UTF-8");
}

#[test]
fn what_would_not_read_back_is_not_written() {
    let (conf, _) = NodesConf::parse(FILES[0].as_bytes(), false).expect("a right file");
    let refused = |change: fn(&mut Node)| {
        let mut conf = conf.clone();
        change(&mut conf.nodes[1]);
        conf.write().expect_err("an error").field
    };
    assert_eq!(refused(|node| node.ip = "a b".into()), TextField::Ip);
    assert_eq!(refused(|node| node.hostname = "a\nb".into()), TextField::Hostname);
    assert_eq!(refused(|node| node.human_name = "a,b".into()), TextField::HumanName);
    assert_eq!(refused(|node| node.client_ipv4 = "a".into()), TextField::ClientIpv4);
    assert_eq!(refused(|node| node.client_ipv6 = "1.2.3.4".into()), TextField::ClientIpv6);
    assert_eq!(refused(|node| node.availability_zone = "a=b".into()), TextField::AvailabilityZone);
}

#[test]
fn nodes_in_handshake_are_not_written() {
    let (mut conf, _) = NodesConf::parse(FILES[0].as_bytes(), false).expect("a right file");
    conf.nodes.push(Node { flags: NodeFlags::HANDSHAKE, ..Node::unknown(id('a')) });
    assert_eq!(conf.write().as_deref(), Ok(FILES[0]));
}

fn ids() -> impl Strategy<Value = NodeId> {
    any::<[u8; 20]>().prop_map(NodeId::from_random)
}

fn nodes() -> impl Strategy<Value = Node> {
    let texts = ("[0-9a-f.:]{0,45}", "[a-z0-9.-]{0,60}", "[a-zA-Z0-9 -]{0,20}", "[a-z0-9-]{0,10}");
    let addresses = (prop::option::of(any::<[u8; 4]>()), prop::option::of(any::<[u8; 16]>()));
    let numbers = (any::<[u16; 5]>(), any::<[i64; 2]>(), any::<u64>(), any::<u16>(), any::<bool>());
    (ids(), prop::option::of(ids()), texts, addresses, numbers).prop_map(
        |(id, shard_id, (ip, hostname, human_name, availability_zone), (ipv4, ipv6), numbers)| {
            let ([tcp_port, tls_port, bus_port, client_tcp_port, client_tls_port], times, epoch, flags, up) = numbers;
            let mut flags = NodeFlags::from_bits_retain(flags) & NodeFlags::PERSISTED;
            flags.remove(NodeFlags::MYSELF | NodeFlags::HANDSHAKE);
            flags.set(NodeFlags::FAIL, flags.intersects(NodeFlags::FAIL | NodeFlags::NO_ADDRESS));
            Node {
                ip,
                tcp_port,
                tls_port,
                bus_port,
                hostname,
                human_name: human_name.replace(' ', ""),
                shard_id,
                client_ipv4: ipv4.map_or_else(String::new, |ip| std::net::Ipv4Addr::from(ip).to_string()),
                client_ipv6: ipv6.map_or_else(String::new, |ip| std::net::Ipv6Addr::from(ip).to_string()),
                client_tcp_port,
                client_tls_port,
                availability_zone,
                flags,
                ping_sent_ms: times[0],
                pong_received_ms: times[1],
                config_epoch: epoch,
                connected: up,
                ..Node::unknown(id)
            }
        },
    )
}

/// A file of several nodes: the first is the node itself, the last a replica of the first.
fn confs() -> impl Strategy<Value = NodesConf> {
    let ranges = prop::collection::vec((0..SLOT_COUNT, 1..500u16, any::<prop::sample::Index>()), 0..8);
    let open = prop::collection::btree_map(0..SLOT_COUNT, any::<bool>(), 0..5);
    (prop::collection::vec(nodes(), 2..6), ranges, open, any::<u64>()).prop_map(|(nodes, ranges, open, vote)| {
        let mut conf = NodesConf { nodes, last_vote_epoch: vote, ..NodesConf::default() };
        let mut owned = Slots::EMPTY;
        for (first, length, owner) in ranges {
            let owner = owner.get(&conf.nodes).id;
            for slot in first..(first + length).min(SLOT_COUNT) {
                if owned.insert(slot) {
                    let node = conf.nodes.iter_mut().find(|node| node.id == owner);
                    node.expect("an owner").slots.insert(slot);
                }
            }
        }
        let (myself, last) = (conf.nodes[0].id, conf.nodes.len() - 1);
        conf.nodes[0].flags |= NodeFlags::MYSELF;
        conf.nodes[0].connected = true;
        let shard_id = conf.nodes[0].shard_id;
        let replica = &mut conf.nodes[last];
        replica.flags.remove(NodeFlags::PRIMARY);
        replica.flags.insert(NodeFlags::REPLICA);
        (replica.primary, replica.shard_id, replica.config_epoch) = (Some(myself), shard_id, 0);
        let replica = replica.id;
        conf.current_epoch = conf.nodes.iter().map(|node| node.config_epoch).max().unwrap_or(0);
        for (slot, migrating) in open {
            let slots = if migrating { &mut conf.migrating } else { &mut conf.importing };
            slots.insert(slot, replica);
        }
        conf
    })
}

proptest! {
    #[test]
    fn files_read_back(conf in confs()) {
        let text = conf.write().expect("it can be written");
        prop_assert_eq!(NodesConf::parse(text.as_bytes(), false), Ok((conf, vec![])));
    }

    #[test]
    fn arbitrary_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = NodesConf::parse(&bytes, false);
    }

    #[test]
    fn mutated_files_are_harmless(
        which in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\n]"), 1..6),
        tls_bus in any::<bool>(),
    ) {
        let mut bytes = FILES[which].as_bytes().to_vec();
        for (at, character) in changes {
            let at = at.index(bytes.len());
            bytes[at] = character.as_bytes()[0];
        }
        if let Ok((conf, _)) = NodesConf::parse(&bytes, tls_bus) {
            let text = conf.write().expect("what was read can be written");
            // Nodes in handshake are not written, but others may refer to them.
            prop_assume!(conf.nodes.iter().all(|node| !node.flags.contains(NodeFlags::HANDSHAKE)));
            let (again, repairs) = NodesConf::parse(text.as_bytes(), tls_bus).expect("what was written can be read");
            prop_assert_eq!(repairs, []);
            prop_assert_eq!(again.write(), Ok(text));
        }
    }
}
