//! What clients of an endpoint see of the cluster: one node that has everything.

use super::caching::Client;
use super::{Cluster, query};
use crate::nodes::{Node, form, kvick, wait_for};
use crate::with_workers;
use redis::Value;

/// The fields of a node in the reply to CLUSTER NODES.
fn fields(line: &str) -> Vec<&str> {
    line.trim_end().split(' ').collect()
}

#[test]
fn the_endpoint_is_the_only_node_and_owns_all_slots() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let (id, address) = (proxy.id(), format!("127.0.0.1:{}", proxy.port));

        let nodes = proxy.call("CLUSTER NODES");
        let line = fields(&nodes);
        assert_eq!(nodes.lines().count(), 1, "{nodes}");
        assert_eq!(
            (line[0], line[2], line[3], line[7], line[8]),
            (&id[..], "myself,master", "-", "connected", "0-16383")
        );
        let bus = crate::nodes::bus_port(proxy);
        assert!(line[1].starts_with(&format!("{address}@{bus}")), "{nodes}");
        assert!(proxy.known_nodes().lines().count() == 4, "CLIENT CAPA direct shows the cluster as it is");

        let mut client = proxy.client();
        type Owner = (String, u16, String, Value);
        let all: Vec<(u16, u16, Owner)> = redis::cmd("CLUSTER").arg("SLOTS").query(&mut client).expect("slots");
        let [(first, last, (host, port, owner, _))] = &all[..] else { panic!("{all:?}") };
        assert_eq!((*first, *last, &host[..], *port, owner), (0, 16_383, "127.0.0.1", proxy.port, &id));
        let shards = proxy.call("CLUSTER SHARDS");
        for part in ["int(16383)", &format!("int({})", proxy.port), &id, &proxy.call("CLUSTER MYSHARDID")] {
            assert!(shards.contains(part), "{part} in {shards}");
        }
        assert_eq!(proxy.call(&format!("CLUSTER REPLICAS {id}")), "array([])");
        let other = cluster.primaries[0].id();
        assert_eq!(proxy.call(&format!("CLUSTER REPLICAS {other}")), format!("ERR Unknown node {other}"));
        assert!(cluster.primaries[0].call("CLUSTER SLOTS").contains("int(5460)"), "others see the cluster as it is");

        // The host as configured.
        assert_eq!(proxy.call("CONFIG SET cluster-announce-hostname endpoint.example"), "OK");
        let slots = |kind: &str| {
            assert_eq!(proxy.call(&format!("CONFIG SET cluster-preferred-endpoint-type {kind}")), "OK");
            proxy.call("CLUSTER SLOTS")
        };
        assert!(slots("hostname").contains("\"endpoint.example\""));
        assert!(slots("unknown-endpoint").contains("[nil, "), "{}", slots("unknown-endpoint"));
    });
}

#[test]
fn a_client_may_treat_the_endpoint_as_a_server_alone_and_write() {
    let primaries = [0, 1].map(|_| Node::start(&kvick(), &[]));
    let replica = Node::start(&kvick(), &["--cluster-forward", "yes"]);
    form(&[&primaries[0], &primaries[1]], &[&replica]);
    wait_for("it forwards", || replica.call("SET bar 0") == "OK");
    let mut direct = Client::new(&primaries[0]);
    assert!(direct.call("HELLO").contains("mode cluster role master"));
    let mut client = Client::new(&replica);
    assert!(client.call("HELLO 3").contains("mode standalone role master"));
    assert_eq!(client.call("SET bar 1"), "+OK");
    assert_eq!(client.call("CLIENT CAPA direct"), "+OK");
    assert!(client.call("HELLO").contains("mode cluster role replica"));
    assert!(replica.call("CLUSTER NODES").contains("myself,master - "));
}

#[test]
fn subcommands_about_a_slot_are_executed_by_its_owner() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        for key in ["foo", "bar", "hello"] {
            let slot = proxy.call(&format!("CLUSTER KEYSLOT {key}"));
            assert_eq!(proxy.call(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), "0");
            assert_eq!(proxy.call(&format!("MSET {key} 1 {{{key}}}2 2")), "OK");
            assert_eq!(proxy.call(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), "2");
            let keys = proxy.call(&format!("CLUSTER GETKEYSINSLOT {slot} 10"));
            assert!(keys.contains(&format!("\"{key}\"")) && keys.contains(&format!("\"{{{key}}}2\"")), "{keys}");
            assert_eq!(proxy.call(&format!("CLUSTER FLUSHSLOT {slot}")), "OK");
            assert_eq!(proxy.call(&format!("EXISTS {key} {{{key}}}2")), "0");
        }
        assert_eq!(proxy.call("CLUSTER COUNTKEYSINSLOT 16384"), "ERR Invalid slot");
        assert_eq!(proxy.call("CLUSTER GETKEYSINSLOT x 1"), "ERR value is not an integer or out of range");
        let refused = proxy.call("CLUSTER SLOT-STATS SLOTSRANGE 0 1");
        assert!(refused.contains("is about a single node"), "{refused}");
        let mut client = proxy.client();
        for words in [&["MULTI"][..], &["CLUSTER", "COUNTKEYSINSLOT", "0"]] {
            query(&mut client, words).expect("accepted");
        }
        assert!(query(&mut client, &["EXEC"]).expect_err("refused").to_string().contains("cannot be part of"));
        // The cluster as the node itself sees it.
        assert!(proxy.call("CLUSTER INFO").contains("cluster_known_nodes:4"));
        assert!(proxy.call("CLUSTER LINKS").contains("\"create-time\""));
    });
}

#[test]
fn client_list_shows_who_is_forwarded_and_who_forwards() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let mut client = Client::new(proxy);
        assert!(client.call("CLIENT INFO").contains(" flags=f capa= "));
        assert_eq!(client.call("SET bar 1"), "+OK");
        let own = client.call("CLIENT ID");
        assert!(client.call("CLIENT LIST FLAGS f").contains(&format!("id={own} ")));
        assert!(!client.call("CLIENT LIST NOT-FLAGS f").contains(&format!("id={own} ")));
        let links = cluster.primaries[0].call("CLIENT LIST CAPA d");
        assert!(links.contains(" flags=N capa=d ") && links.contains(" lib-name=kvick-forward "), "{links}");
        // Keys that it watches, here none of which is the node's own.
        let watches = |client: &mut Client, count| client.call("CLIENT INFO").contains(&format!(" watch={count} "));
        for end in [&["UNWATCH"][..], &["MULTI", "DISCARD"], &["MULTI", "PING", "EXEC"]] {
            assert_eq!(client.call("WATCH bar {bar}2 bar"), "+OK");
            assert_eq!(client.call("WATCH {bar}3"), "+OK");
            assert!(watches(&mut client, 3), "{end:?}");
            end.iter().for_each(|request| _ = client.call(request));
            assert!(watches(&mut client, 0), "{end:?}");
        }
        assert_eq!(client.call("CLIENT CAPA redirect direct"), "+OK");
        assert!(client.call("CLIENT INFO").contains(" flags=N capa=rd "));
        assert!(Client::new(&cluster.primaries[0]).call("CLIENT INFO").contains(" flags=N capa= "));
    });
}
