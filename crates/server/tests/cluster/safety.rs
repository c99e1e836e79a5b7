//! Directives that make a cluster safer than Valkey's.

use crate::nodes::{Node, form, kvick, wait_for, wait_for_data};

#[test]
fn a_primary_that_restarts_empty_lets_its_replica_take_over() {
    let start = || Node::start(&kvick(), &["--cluster-empty-primary-wait", "60000", "--io-threads", "2"]);
    let (mut primary, two, three, replica) = (start(), start(), start(), start());
    form(&[&primary, &two, &three], &[&replica]);
    assert_eq!(primary.call("SET bar 1"), "OK");
    wait_for_data(&primary, &replica);
    // Without persistence it comes back empty, before anyone has noticed.
    primary.kill();
    primary.restart();
    assert!(primary.call("GET bar").starts_with("CLUSTERDOWN"));
    wait_for("the replica takes over", || replica.role() == "master" && replica.call("INCR bar") == "2");
    wait_for("the empty node copies the data", || primary.role() == "slave" && replica.call("WAIT 1 100") == "1");
    wait_for("it has the key", || primary.call("DBSIZE") == "1");
}

#[test]
fn nodes_that_all_got_new_addresses_find_each_other_by_their_host_names() {
    let args = ["--cluster-announce-hostname", "localhost", "--cluster-resolve-hostnames", "yes"];
    let old = ["--bind", "127.0.0.1 127.0.0.2", "--cluster-announce-ip", "127.0.0.2"];
    let mut nodes: [Node; 3] = std::array::from_fn(|_| Node::start(&kvick(), &[&args[..], &old[..]].concat()));
    form(&nodes.each_ref(), &[]);
    let lists_only = |node: &Node, ip: &str| {
        let known = node.call("CLUSTER NODES");
        let others: Vec<&str> = known.lines().filter(|line| !line.contains("myself")).collect();
        others.len() == 2 && others.iter().all(|line| line.contains(&format!(" {ip}:")))
    };
    wait_for("all know the old addresses", || nodes.iter().all(|node| lists_only(node, "127.0.0.2")));
    nodes.iter_mut().for_each(Node::kill);
    for node in &mut nodes {
        node.set("--bind", "127.0.0.1");
        node.set("--cluster-announce-ip", "");
        node.restart();
    }
    wait_for("the cluster is up again", || nodes.iter().all(|node| node.has_info("cluster_state:ok")));
    wait_for("all know the new addresses", || nodes.iter().all(|node| lists_only(node, "127.0.0.1")));
}
