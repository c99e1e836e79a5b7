//! Joining, names, addresses, forgetting, and strangers.

use super::*;
use crate::bus::{Body, Gossip, GossipEntry, Header, Message, MessageFlags, Ping, Update};
use crate::bus::{Extension, ModuleMessage, Publish};
use crate::slots::Slots;
use crate::state::Announce;

#[test]
fn three_nodes_join_and_agree_on_slots() {
    let net = Net::cluster(3, 0);
    assert!(net.all_ok() && net.agrees());
    for index in 0..3 {
        assert_eq!(net.hosts[index].cluster.node_count(), 3);
        assert_eq!(net.hosts[index].cluster.size(), 3);
        assert_eq!(net.hosts[index].cluster.slot_owner(*slot_share(index, 3).start()), Some(net.id(index)));
        assert!(net.hosts[index].cluster.known_nodes().all(|(_, flags)| flags.contains(NodeFlags::PRIMARY)));
    }
}

#[test]
fn config_epochs_of_new_primaries_become_different() {
    let net = Net::cluster(5, 0);
    let epochs: BTreeSet<u64> = net.hosts.iter().map(|host| host.cluster.my_config_epoch()).collect();
    assert_eq!(epochs.len(), 5);
    for host in &net.hosts {
        assert!(epochs.iter().all(|epoch| *epoch <= host.cluster.current_epoch()));
        for other in &net.hosts {
            let known = host.cluster.config_epoch_of(&other.cluster.my_id());
            assert_eq!(known, Some(other.cluster.my_config_epoch()));
        }
    }
}

#[test]
fn meeting_an_address_twice_or_oneself_adds_nothing() {
    let mut net = Net::cluster(2, 0);
    net.meet(0, 1);
    net.meet(0, 0);
    net.meet(1, 1);
    net.run(NODE_TIMEOUT_MS * 3);
    for host in &net.hosts {
        assert_eq!(host.cluster.node_count(), 2);
        assert!(host.no_handshakes());
    }
    assert!(net.all_ok());
}

#[test]
fn a_handshake_without_answer_ends() {
    let mut net = Net::new(1);
    net.command(0, |cluster, facts| cluster.meet("10.0.0.99", 6379, 16379, "test", facts)).expect("an address");
    net.run(500);
    assert_eq!(net.hosts[0].cluster.node_count(), 2);
    net.run(NODE_TIMEOUT_MS + 200);
    assert_eq!(net.hosts[0].cluster.node_count(), 1);
    assert!(net.logged(0, "Clusterbus handshake timeout 10.0.0.99:16379"));
}

#[test]
fn announced_properties_reach_all_nodes() {
    let mut net = Net::cluster(2, 0);
    let announce = Announce {
        hostname: "host-0.example".to_owned(),
        human_name: "zero".to_owned(),
        client_ipv4: "1.2.3.4".to_owned(),
        client_ipv6: "::5".to_owned(),
        client_port: 7000,
        client_tls_port: 7001,
        ..Announce::default()
    };
    let settings = Settings { announce, availability_zone: "zone-a".to_owned(), ..settings() };
    net.command(0, |cluster, _| cluster.set_settings(settings.clone()));
    net.run(NODE_TIMEOUT_MS * 2);
    let id = net.id(0);
    let topology = net.hosts[1].cluster.topology(&Facts::without_data(net.now()));
    let node = topology.nodes.iter().find(|node| node.id == id).expect("a member");
    assert_eq!(node.hostname, "host-0.example");
    assert_eq!(node.human_name, "zero");
    assert_eq!((node.client_ipv4.as_str(), node.client_ipv6.as_str()), ("1.2.3.4", "::5"));
    assert_eq!((node.client_tcp_port, node.client_tls_port), (7000, 7001));
    assert_eq!(node.availability_zone, "zone-a");
    assert!(net.hosts[1].conf.contains("host-0.example"), "{}", net.hosts[1].conf);
    assert_eq!(node.shard_id, net.hosts[0].cluster.my_shard_id());
    // Without them, they are gone elsewhere, too.
    net.command(0, |cluster, _| cluster.set_settings(super::settings()));
    net.run(NODE_TIMEOUT_MS * 2);
    let topology = net.hosts[1].cluster.topology(&Facts::without_data(net.now()));
    let node = topology.nodes.iter().find(|node| node.id == id).expect("a member");
    assert_eq!((node.hostname.as_str(), node.client_tcp_port), ("", 0));
}

#[test]
fn a_node_that_moved_is_found_again() {
    let mut net = Net::cluster(3, 1);
    net.kill(0);
    net.run(200);
    net.hosts[0].ip = "10.0.1.0".to_owned();
    net.restart(0);
    net.run_until("the cluster is up", 30_000, |net| net.all_ok());
    net.run_until("the replica follows", 10_000, |net| net.hosts[3].primary_ip.as_deref() == Some("10.0.1.0"));
    assert!(net.hosts[3].cluster.my_primary() == Some(net.id(0)));
    assert!(net.logged(1, "Address updated for node"));
}

#[test]
fn a_forgotten_node_stays_forgotten_everywhere() {
    let mut net = Net::cluster(3, 1);
    let forgotten = net.id(5);
    net.command(0, |cluster, facts| cluster.forget(forgotten.as_bytes(), "test", facts)).expect("a member");
    net.run_until("all have forgotten it", 10_000, |net| {
        [0, 1, 3, 4].iter().all(|index| net.hosts[*index].cluster.node_flags(forgotten.as_bytes()).is_none())
    });
    // Its primary too; the node itself does not know.
    net.run(20_000);
    assert!(net.hosts[0].cluster.node_flags(forgotten.as_bytes()).is_none());
    net.command(1, |cluster, facts| cluster.forget(forgotten.as_bytes(), "test", facts)).expect("it is forgotten");
}

#[test]
fn a_reset_node_forgets_all_others() {
    for hard in [false, true] {
        let mut net = Net::cluster(3, 1);
        let (id, shard) = (net.id(3), net.hosts[3].cluster.my_shard_id());
        net.hosts[3].keys.insert(1, 1);
        net.command(3, |cluster, facts| cluster.reset(hard, "test", facts)).expect("a replica may be reset");
        let host = &net.hosts[3];
        assert_eq!(host.cluster.node_count(), 1);
        assert!(host.cluster.is_primary() && host.keys.is_empty() && host.primary_ip.is_none());
        assert_ne!(host.cluster.my_shard_id(), shard);
        assert_eq!(host.cluster.my_id() != id, hard);
        assert_eq!(host.cluster.current_epoch() == 0, hard);
        net.run(NODE_TIMEOUT_MS * 3);
        // With its old name, the others meet it again. Without, they find that name gone.
        assert_eq!(net.hosts[3].cluster.node_count(), if hard { 1 } else { 6 });
        if hard {
            let flags = net.hosts[0].cluster.node_flags(id.as_bytes()).expect("still listed");
            assert!(flags.contains(NodeFlags::NO_ADDRESS | NodeFlags::FAIL), "{flags:?}");
        }
    }
}

#[test]
fn nodes_continue_from_what_they_saved() {
    let mut net = Net::cluster(3, 1);
    let before: Vec<_> = net.hosts.iter().map(|host| (host.cluster.my_id(), host.cluster.my_shard_id())).collect();
    let epochs: Vec<_> = net.hosts.iter().map(|host| host.cluster.my_epoch()).collect();
    for index in 0..6 {
        net.kill(index);
    }
    net.run(500);
    for index in 0..6 {
        net.restart(index);
    }
    assert!(net.hosts.iter().all(|host| host.cluster.node_count() == 6));
    net.run_until("the cluster is up", 30_000, |net| net.all_ok());
    let after: Vec<_> = net.hosts.iter().map(|host| (host.cluster.my_id(), host.cluster.my_shard_id())).collect();
    assert_eq!(before, after);
    assert_eq!(epochs, net.hosts.iter().map(|host| host.cluster.my_epoch()).collect::<Vec<_>>());
    assert!(net.agrees());
    assert!((3..6).all(|index| net.hosts[index].cluster.my_primary() == Some(net.id(index - 3))));
    assert!((3..6).all(|index| net.hosts[index].primary_ip == Some(net.hosts[index - 3].ip.clone())));
}

/// Sends frames to a host on a new connection, as a stranger or as whoever the header names.
fn send_from_outside(net: &mut Net, to: usize, messages: &[Message<'_>]) {
    let link = net.command(to, |cluster, facts| {
        let addresses = Accepted { peer_ip: "192.0.2.1", peer_port: 1, local_ip: "10.9.9.9" };
        cluster.link_accepted(addresses, facts)
    });
    for message in messages {
        let mut frame = Vec::new();
        message.encode(&mut frame).expect("a valid message");
        net.command(to, |cluster, facts| cluster.received(link, &frame, facts));
    }
}

fn stored_state(cluster: &Cluster) -> NodesConf {
    let content = cluster.config_content(Now { mono_ms: 0, unix_ms: 0 }).expect("it can be stored");
    NodesConf::parse(content.as_bytes(), false).expect("it can be read").0
}

#[test]
fn a_stranger_changes_nothing() {
    let mut net = Net::cluster(3, 1);
    let before = stored_state(&net.hosts[0].cluster);
    let stranger: NodeId = "b".repeat(40).parse().expect("a name");
    let slots = Slots::all();
    let header = Header {
        current_epoch: 1_000,
        config_epoch: 1_000,
        replication_offset: 5,
        sender: stranger,
        slots: slots.view(),
        primary: None,
        ip: "192.0.2.1",
        port: 1,
        secondary_port: 0,
        bus_port: 2,
        flags: NodeFlags::PRIMARY | NodeFlags::EXTENSIONS,
        state: ClusterState::Ok,
        message_flags: MessageFlags::EXTENSIONS | MessageFlags::FORCE_ACK | MessageFlags::PAUSED,
    };
    let entry = GossipEntry {
        node: "c".repeat(40).parse().expect("a name"),
        ping_sent: 0,
        pong_received: 0,
        ip: "192.0.2.2",
        port: 1,
        bus_port: 2,
        flags: NodeFlags::PRIMARY,
        secondary_port: 0,
    };
    let failing = GossipEntry { node: net.id(1), flags: NodeFlags::PRIMARY | NodeFlags::FAIL, ..entry };
    let gossip = [entry, failing];
    let extensions = [Extension::ForgottenNode { node: net.id(2), ttl_seconds: 1_000 }];
    let ping = Ping { gossip: Gossip::from(gossip.as_slice()), extensions: extensions.as_slice().into() };
    let publish = Publish { channel: b"c", message: b"m" };
    let module = ModuleMessage { module_id: [0; 8], kind: 0, payload: b"p" };
    let update = Update { node: net.id(1), config_epoch: 1_000, slots: slots.view() };
    let bodies = [
        Body::Ping(ping),
        Body::Pong(ping),
        Body::Fail(net.id(1)),
        Body::Publish(publish),
        Body::PublishShard(publish),
        Body::FailoverAuthRequest,
        Body::FailoverAuthAck,
        Body::Update(update),
        Body::ManualFailoverStart,
        Body::Module(module),
        Body::Unknown { number: 77, data: b"data" },
    ];
    for body in bodies {
        send_from_outside(&mut net, 0, &[Message::Full { header: header.clone(), body }]);
        let after = stored_state(&net.hosts[0].cluster);
        let strip = |conf: &NodesConf| {
            let mut conf = conf.clone();
            for node in &mut conf.nodes {
                (node.ping_sent_ms, node.pong_received_ms) = (0, 0);
            }
            conf
        };
        assert_eq!(strip(&before), strip(&after), "{body:?}");
        assert!(net.hosts[0].published.is_empty() && !net.hosts[0].writes_paused, "{body:?}");
    }
    assert!(net.hosts[0].cluster.is_primary());
}

#[test]
fn a_stranger_that_meets_is_only_connected_to() {
    let mut net = Net::cluster(3, 0);
    let slots = Slots::all();
    let header = Header {
        current_epoch: 1_000,
        config_epoch: 1_000,
        replication_offset: 5,
        sender: "b".repeat(40).parse().expect("a name"),
        slots: slots.view(),
        primary: None,
        ip: "",
        port: 1,
        secondary_port: 0,
        bus_port: 2,
        flags: NodeFlags::PRIMARY,
        state: ClusterState::Ok,
        message_flags: MessageFlags::empty(),
    };
    let ping = Ping { gossip: Gossip::from([].as_slice()), extensions: [].as_slice().into() };
    let epoch = net.hosts[0].cluster.current_epoch();
    send_from_outside(&mut net, 0, &[Message::Full { header, body: Body::Meet(ping) }]);
    assert_eq!(net.hosts[0].cluster.node_count(), 4);
    assert_eq!(net.hosts[0].cluster.current_epoch(), epoch);
    assert_eq!(net.hosts[0].cluster.slot_owner(0), Some(net.id(0)));
    net.run(NODE_TIMEOUT_MS + 500);
    assert_eq!(net.hosts[0].cluster.node_count(), 3);
}

#[test]
fn bytes_that_are_no_message_are_ignored() {
    let mut net = Net::cluster(2, 0);
    let link = net.command(0, |cluster, facts| cluster.link_accepted(Accepted::default(), facts));
    for frame in [&b""[..], b"RCmb", &[0; 16], &[0xff; 3000]] {
        net.command(0, |cluster, facts| cluster.received(link, frame, facts));
    }
    net.run(1_000);
    assert!(net.all_ok());
}

#[test]
fn published_messages_reach_the_nodes_they_are_for() {
    let mut net = Net::cluster(3, 1);
    net.command(0, |cluster, facts| cluster.publish(b"channel", b"all", false, facts));
    net.command(0, |cluster, facts| cluster.publish(b"channel", b"shard", true, facts));
    net.run(10);
    for index in 1..6 {
        let expected: Vec<(Vec<u8>, bool)> = match index {
            3 => vec![(b"all".to_vec(), false), (b"shard".to_vec(), true)],
            _ => vec![(b"all".to_vec(), false)],
        };
        assert_eq!(net.hosts[index].published, expected, "host {index}");
    }
    let sent = net.hosts[0].cluster.statistics();
    assert_eq!((sent.sent[4], sent.sent[10]), (5, 1));
    // Five light messages of 16 + 8 + 7 + 3 bytes, and one with two bytes more.
    assert_eq!(sent.pubsub_bytes_sent, 5 * 34 + 36);
}
