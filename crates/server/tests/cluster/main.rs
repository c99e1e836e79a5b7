//! Nodes of a cluster, among themselves and with Valkey.

mod checker;
mod client;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod forward;
mod identity;
mod migrate;
mod nodes;
mod operations;
mod safety;
mod slot_migration;
mod topology;
mod writers;

use nodes::{Node, form, kvick, valkey, wait_for, wait_for_data};

fn with_workers(test: impl Fn(&[&str])) {
    for workers in ["1", "4"] {
        println!("with {workers} workers");
        test(&["--io-threads", workers]);
    }
}

#[test]
fn nodes_share_slots_and_redirect_clients() {
    with_workers(|args| {
        let [one, two] = [0, 1].map(|_| Node::start(&kvick(), args));
        assert_eq!(one.call("SET foo bar"), "CLUSTERDOWN Hash slot not served");
        form(&[&one, &two], &[]);
        // foo has slot 12182, bar 5061.
        assert_eq!(one.call("SET foo bar"), format!("MOVED 12182 127.0.0.1:{}", two.port));
        assert_eq!(two.call("SET foo bar"), "OK");
        assert_eq!(one.call("SET bar 1"), "OK");
        assert_eq!(one.call("MGET bar foo"), "CROSSSLOT Keys in request don't hash to the same slot");
        assert_eq!(two.call("CLUSTER COUNTKEYSINSLOT 12182"), "1");
        assert_eq!(two.call("CLUSTER FLUSHSLOT 12182"), "OK");
        assert_eq!(two.call("EXISTS foo"), "0");
    });
}

#[test]
fn a_blocked_command_that_times_out_counts_for_its_slot() {
    with_workers(|args| {
        let [one, two] =
            [0, 1].map(|_| Node::start(&kvick(), &[args, &["--cluster-slot-stats-enabled", "yes"]].concat()));
        form(&[&one, &two], &[]);
        // Several, so that their time is not rounded to 0.
        (0..20).for_each(|_| _ = one.call("BLPOP bar 0.01"));
        let all = one.call("INFO commandstats");
        let (_, rest) = all.split_once("cmdstat_blpop:calls=20,usec=").expect("statistics");
        assert!(rest.split(',').next().is_some_and(|us| us.parse::<u64>().is_ok_and(|us| us > 0)), "{all}");
        let mut client = one.client();
        type Usage = (u64, std::collections::HashMap<String, u64>);
        let usage: Vec<Usage> = redis::cmd("CLUSTER")
            .arg(&["SLOT-STATS", "SLOTSRANGE", "5061", "5061"])
            .query(&mut client)
            .expect("statistics");
        assert!(usage[0].1["cpu-usec"] > 0, "{usage:?}");
    });
}

/// A killed primary is replaced; when it comes back, it is a replica with the data of the new primary.
fn fails_over(primary: &std::path::Path, replica: &std::path::Path, args: &[&str]) {
    let start = |program: &std::path::Path| Node::start(program, if *program == kvick() { args } else { &[] });
    let mut killed = start(primary);
    let (two, three, next) = (start(&kvick()), start(primary), start(replica));
    form(&[&killed, &two, &three], &[&next]);
    assert_eq!(killed.call("SET bar 1"), "OK");
    wait_for_data(&killed, &next);
    killed.kill();
    wait_for("the replica takes over", || next.role() == "master" && next.call("INCR bar") == "2");
    wait_for("all see it", || two.call("GET bar") == format!("MOVED 5061 127.0.0.1:{}", next.port));
    killed.restart();
    wait_for("it follows the new primary", || killed.role() == "slave" && next.call("WAIT 1 100") == "1");
    wait_for_data(&next, &killed);
    // Back again, without losing a write.
    assert_eq!(next.call("INCR bar"), "3");
    wait_for("it may take over", || killed.call("CLUSTER FAILOVER") == "OK");
    wait_for("it takes over", || killed.role() == "master" && killed.call("INCR bar") == "4");
    wait_for("the other follows", || next.role() == "slave" && killed.call("WAIT 1 100") == "1");
}

#[test]
fn a_replica_replaces_its_killed_primary_and_gives_the_role_back() {
    with_workers(|args| fails_over(&kvick(), &kvick(), args));
}

#[test]
fn roles_pass_between_kvick_and_valkey() {
    let Some(valkey) = valkey() else { return };
    fails_over(&valkey, &kvick(), &["--io-threads", "4"]);
    fails_over(&kvick(), &valkey, &["--io-threads", "4"]);
}

/// Topology replies omit replicas at offset 0, as in Valkey. A PING is therefore sent at once to the replica of a
/// primary that has not been written to.
#[test]
fn a_replica_of_an_empty_primary_is_listed_at_once() {
    with_workers(|args| {
        let args = [args, &["--repl-ping-replica-period", "3600", "--repl-diskless-sync-delay", "0"]].concat();
        let [primary, replica] = [0, 1].map(|_| Node::start(&kvick(), &args));
        form(&[&primary], &[&replica]);
        let lists = |node: &Node| node.call("CLUSTER SLOTS").contains(&replica.port.to_string());
        wait_for("both list the replica", || lists(&primary) && lists(&replica));
        // One PING is enough.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(primary.call("INFO replication").contains("\r\nmaster_repl_offset:14\r\n"));
    });
}

/// A replica that is away while a slot moves learns the end of it from the backlog.
#[test]
fn a_replica_that_was_away_closes_slots() {
    with_workers(|args| {
        let (one, two, mut replica) =
            (Node::start(&kvick(), args), Node::start(&kvick(), args), Node::start(&kvick(), args));
        form(&[&one, &two], &[&replica]);
        // The full synchronization has left a dump on the disk of the replica, from which it starts again.
        assert_eq!(one.call(&format!("CLUSTER SETSLOT 7 MIGRATING {}", two.id())), "OK");
        assert!(replica.call("CLUSTER NODES").contains("[7->-"), "the slot is open on the replica");
        replica.kill();
        wait_for("the replica is gone", || one.call("INFO replication").contains("connected_slaves:0"));
        for node in [&two, &one] {
            assert_eq!(node.call(&format!("CLUSTER SETSLOT 7 NODE {}", two.id())), "OK");
        }
        replica.restart();
        wait_for("the replica follows", || one.call("SET bar 1") == "OK" && one.call("WAIT 1 100") == "1");
        wait_for("the slot is closed", || !replica.call("CLUSTER NODES").contains("[7->-"));
    });
}

/// Frames for a node that does not read count as memory of links until they are read, or their link is gone.
#[test]
fn frames_that_wait_for_a_stopped_node_are_counted_as_memory_of_links() {
    with_workers(|args| {
        let args = [args, &["--cluster-node-timeout", "60000"]].concat();
        let [one, mut two] = [0, 1].map(|_| Node::start(&kvick(), &args));
        form(&[&one, &two], &[]);
        let memory = || -> usize {
            let info = one.call("INFO memory");
            let (_, value) = info.split_once("mem_cluster_links:").expect("the memory of links");
            value.lines().next().and_then(|bytes| bytes.parse().ok()).expect("a number")
        };
        let message = format!("PUBLISH channel {}", "x".repeat(500_000));
        let fill = || wait_for("frames wait", || one.call(&message) == "0" && memory() > 1_000_000);
        two.freeze();
        fill();
        two.signal(libc::SIGCONT);
        wait_for("they are read", || memory() < 100_000);
        two.freeze();
        fill();
        two.kill();
        wait_for("the link is gone", || memory() < 100_000);
    });
}
