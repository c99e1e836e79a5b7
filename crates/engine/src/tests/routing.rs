//! Cluster mode: which requests this node executes, and what happens to the others.

use super::*;
use kvick_config::tables::cluster;
use kvick_config::words::EndpointType;
use kvick_core::routing::{ClusterState, DownReason, NodeAddress, RouteNode, SlotMap};
use kvick_store::slot::{SLOTS, slot};

const AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
const CROSS: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
const DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";

/// The map of node 0, which owns all slots; node 1 exists.
fn owner_of_all() -> SlotMap {
    let node = |name| {
        let address = NodeAddress { ip: "10.0.0.".to_owned() + name, tcp_port: 1, tls_port: 2, ..Default::default() };
        RouteNode::new([b'a'; 40], address, EndpointType::Ip)
    };
    let mut map = SlotMap::unassigned();
    map.state = ClusterState::Ok;
    map.nodes = vec![node("0"), node("1")];
    map.myself = 0;
    (0..SLOTS).for_each(|slot| map.set_owner(slot, 0));
    map
}

/// A map in which the slot of `key` belongs to node 1.
fn without(key: &str) -> SlotMap {
    let mut map = owner_of_all();
    map.set_owner(slot(key.as_bytes()), 1);
    map
}

/// A map in which the slot of `key` moves from node 0 to node 1.
fn migrating(key: &str) -> SlotMap {
    let mut map = owner_of_all();
    map.migrating.insert(slot(key.as_bytes()), 1);
    map
}

/// A map in which the slot of `key` moves from node 1 to node 0.
fn importing(key: &str) -> SlotMap {
    let mut map = without(key);
    map.importing.insert(slot(key.as_bytes()), 1);
    map
}

/// The map of a replica of node 1, which owns all slots.
fn replica() -> SlotMap {
    let mut map = owner_of_all();
    (map.myself, map.primary) = (0, Some(1));
    (0..SLOTS).for_each(|slot| map.set_owner(slot, 1));
    map
}

fn down() -> SlotMap {
    SlotMap { state: ClusterState::Down(DownReason::Coverage), ..owner_of_all() }
}

fn moved(key: &str) -> String {
    format!("-MOVED {} 10.0.0.1:1\r\n", slot(key.as_bytes()))
}

fn ask(key: &str) -> String {
    format!("-ASK {} 10.0.0.1:1\r\n", slot(key.as_bytes()))
}

impl Harness {
    fn publish(&mut self, map: SlotMap) {
        let mut global = self.services.keyspace.lock_global();
        crate::routing::publish(self.services, map, &mut global, &self.services.stats[0]);
    }

    /// What ASKING does.
    fn asking(&mut self, client: usize) {
        let client = &mut self.clients[client].client;
        client.ask_next();
        client.end_asking();
    }

    fn set_flag(&mut self, client: usize, flag: ClientFlags) {
        self.clients[client].client.info.set_flags(flag, true);
    }
}

fn in_cluster(clients: usize, test: impl Fn(Harness, usize)) {
    for executors in [1, 2] {
        let mut harness = Harness::with_settings(executors, clients, |config| {
            config.put(cluster::CLUSTER_ENABLED, true);
            config.put(cluster::CLUSTER_DATABASES, 2);
        });
        harness.publish(owner_of_all());
        test(harness.after_select(), executors - 1);
    }
}

#[test]
fn requests_are_executed_by_the_owner_of_their_slot() {
    in_cluster(2, |mut harness, other| {
        harness.publish(without("b"));
        harness.ask(0, 0, "SET a 1", OK);
        harness.ask(other, 1, "GET a", &bulk("1"));
        harness.ask(other, 1, "GET b", &moved("b"));
        harness.ask(0, 0, "SET {b}x 1", &moved("b"));
        harness.ask(0, 0, "MSET a 1 {a}b 2", OK);
        harness.ask(0, 0, "MGET {b}1 {b}2", &moved("b"));
        harness.ask(0, 0, "MGET a b", CROSS);
        harness.ask(0, 0, "MSET a 1 c 2", CROSS);
        harness.ask(0, 0, "EVAL \"return 1\" 2 a c", CROSS);
        harness.ask(0, 0, "EVAL \"return 1\" 1 b", &moved("b"));
        harness.ask(0, 0, "WATCH b", &moved("b"));
        harness.ask(0, 0, "DBSIZE", ":2\r\n");
        harness.ask(0, 0, "GET", "-ERR wrong number of arguments for 'get' command\r\n");
        harness.set_flag(0, ClientFlags::TLS);
        harness.ask(0, 0, "GET b", &moved("b").replace(":1\r", ":2\r"));
        assert_eq!(harness.services.stats[0].commands.len(), harness.services.catalogue.all().len());
    });
}

#[test]
fn partitions_are_slots() {
    in_cluster(1, |mut harness, _| {
        for n in 0..100 {
            harness.ask(0, 0, &format!("SET {{tag}}{n} 1"), OK);
        }
        harness.ask(0, 0, "SET other 1", OK);
        let keyspace = harness.services.keyspace;
        assert_eq!(keyspace.partitions(), usize::from(SLOTS));
        assert_eq!(keyspace.slot_len(0, slot(b"tag")), 100);
        assert_eq!(keyspace.slot_len(0, slot(b"other")), 1);
        assert_eq!((keyspace.len(0), keyspace.len(1), keyspace.databases()), (101, 0, 2));
    });
}

#[test]
fn requests_of_a_down_cluster_are_refused() {
    in_cluster(1, |mut harness, other| {
        harness.ask(0, 0, "SET a 1", OK);
        harness.publish(down());
        harness.ask(other, 0, "GET a", DOWN);
        harness.ask(other, 0, "DBSIZE", ":1\r\n");
        harness.publish(SlotMap { allow_reads_when_down: true, ..down() });
        harness.ask(other, 0, "GET a", &bulk("1"));
        harness.ask(other, 0, "EVAL_RO \"return server.call('get', KEYS[1])\" 1 a", &bulk("1"));
        harness.ask(other, 0, "SET a 1", "-CLUSTERDOWN The cluster is down and only accepts read commands\r\n");
        harness.publish(SlotMap::unassigned());
        harness.ask(other, 0, "GET a", "-CLUSTERDOWN Hash slot not served\r\n");
    });
}

#[test]
fn missing_keys_of_a_migrating_slot_are_asked_for_elsewhere() {
    in_cluster(2, |mut harness, other| {
        harness.ask(0, 0, "MSET {a}1 1 {a}2 2", OK);
        harness.publish(migrating("a"));
        harness.ask(0, 0, "GET {a}1", &bulk("1"));
        harness.ask(other, 1, "SET {a}1 2", OK);
        harness.ask(other, 1, "SET {a}3 3", &ask("a"));
        harness.ask(0, 0, "GET {a}3", &ask("a"));
        harness.ask(0, 0, "MGET {a}1 {a}2", &bulks(&["2", "2"]));
        harness.ask(0, 0, "MGET {a}1 {a}3", AGAIN);
        harness.ask(0, 0, "MGET {a}3 {a}4", &ask("a"));
        harness.ask(0, 0, "MOVE {a}1 1", AGAIN);
        harness.ask(0, 0, "COPY {a}1 {a}2 DB 1", AGAIN);
        harness.ask(0, 0, "COPY {a}1 {a}2 REPLACE", ":1\r\n");
        harness.ask(0, 0, "EVAL \"return server.call('get', KEYS[1])\" 1 {a}3", &ask("a"));
        harness.ask(0, 0, "DEL {a}1", ":1\r\n");
        harness.ask(0, 0, "GET {a}1", &ask("a"));
        // Expired keys are missing.
        harness.ask(0, 0, "PEXPIRE {a}2 1", ":1\r\n");
        harness.advance(5);
        harness.ask(0, 0, "APPEND {a}2 x", &ask("a"));
        assert!(!harness.logged().contains("APPEND"));
    });
}

#[test]
fn importing_slots_serve_requests_after_asking() {
    in_cluster(2, |mut harness, other| {
        harness.publish(importing("a"));
        harness.ask(0, 0, "SET {a}1 1", &moved("a"));
        harness.asking(0);
        harness.ask(0, 0, "SET {a}1 1", OK);
        harness.ask(0, 0, "GET {a}1", &moved("a"));
        harness.asking(0);
        harness.ask(other, 0, "MGET {a}1 {a}2", AGAIN);
        harness.asking(0);
        harness.ask(other, 0, "MGET {a}1 {a}1", &bulks(&["1", "1"]));
        harness.asking(0);
        harness.ask(0, 0, "DBSIZE", ":1\r\n");
        harness.ask(0, 0, "GET {a}1", &moved("a"));
        // It lasts for a transaction.
        harness.asking(0);
        assert_eq!(harness.exec(0, 0, &["SET {a}1 2", "GET {a}1"]), "*2\r\n".to_owned() + OK + &bulk("2"));
        harness.ask(0, 0, "GET {a}1", &moved("a"));
        // RESTORE-ASKING needs no ASKING.
        harness.ask(0, 0, "RESTORE-ASKING {a}1 0 x", "-BUSYKEY Target key name already exists.\r\n");
    });
}

#[test]
fn replicas_serve_reads_after_readonly() {
    in_cluster(1, |mut harness, other| {
        harness.ask(0, 0, "SET a 1", OK);
        harness.publish(replica());
        harness.ask(other, 0, "GET a", &moved("a"));
        harness.set_flag(0, ClientFlags::READONLY);
        harness.ask(other, 0, "GET a", &bulk("1"));
        harness.ask(other, 0, "SET a 1", &moved("a"));
        // Without a first line, whether a script writes is seen when it does.
        harness.ask(other, 0, "EVAL \"return 1\" 1 a", ":1\r\n");
        harness.ask(other, 0, "EVAL \"#!lua\nreturn 1\" 1 a", &moved("a"));
        harness.ask(other, 0, "EVAL_RO \"return 1\" 1 a", ":1\r\n");
        assert_eq!(harness.exec(0, 0, &["GET a"]), "*1\r\n".to_owned() + &bulk("1"));
    });
}

#[test]
fn transactions_are_checked_when_they_are_queued_and_executed() {
    in_cluster(1, |mut harness, other| {
        let discarded = "-EXECABORT Transaction discarded because of previous errors.\r\n";
        harness.publish(without("b"));
        harness.ask(0, 0, "MULTI", OK);
        harness.ask(0, 0, "SET b 1", &moved("b"));
        harness.ask(other, 0, "EXEC", discarded);
        assert_eq!(harness.exec(0, 0, &["SET a 1", "SET c 1"]), CROSS);
        harness.ask(0, 0, "EXEC", "-ERR EXEC without MULTI\r\n");
        assert_eq!(harness.exec(0, 0, &["PING", "SET a 1"]), "*2\r\n+PONG\r\n".to_owned() + OK);
        // The slot leaves between.
        harness.ask(0, 0, "MULTI", OK);
        harness.ask(0, 0, "SET a 2", QUEUED);
        harness.publish(without("a"));
        harness.ask(other, 0, "EXEC", &moved("a"));
        harness.ask(0, 0, "EXEC", "-ERR EXEC without MULTI\r\n");
        // Keys of an open slot are looked for by EXEC.
        harness.publish(migrating("a"));
        assert_eq!(harness.exec(0, 0, &["GET a", "SET {a}1 1"]), AGAIN);
        assert_eq!(harness.exec(0, 0, &["SET {a}1 1"]), ask("a"));
        assert_eq!(harness.exec(other, 0, &["GET a"]), "*1\r\n".to_owned() + &bulk("1"));
        harness.ask(0, 0, "WATCH a", OK);
        assert_eq!(harness.exec(0, 0, &["SET {a}1 1"]), ask("a"));
        assert_eq!(harness.services.keyspace.slot_len(0, slot(b"a")), 1);
    });
}

#[test]
fn scripts_access_the_slots_that_they_may() {
    in_cluster(1, |mut harness, other| {
        harness.publish(without("b"));
        let error = |text: &str| format!("-ERR {text}");
        let refuses = |harness: &mut Harness, line: &str, text: &str| {
            let reply = harness.run(other, 0, line);
            assert!(reply.starts_with(&error(text)), "{line}: {reply}");
        };
        let same = "Script attempted to access keys that do not hash to the same slot";
        let set = |keys: &[&str]| keys.iter().map(|key| format!("server.call('set','{key}','1');")).collect::<String>();
        harness.ask(0, 0, &format!("EVAL \"{}\" 0", set(&["a", "c"])), "$-1\r\n");
        refuses(&mut harness, &format!("EVAL \"{}\" 0", set(&["b"])), "Attempted to access a non local key in a");
        refuses(&mut harness, &format!("EVAL \"#!lua\n{}\" 0", set(&["a", "c"])), same);
        refuses(&mut harness, &format!("EVAL \"#!lua\n{}\" 1 a", set(&["c"])), same);
        harness.ask(0, 0, &format!("EVAL \"#!lua\n{}\" 1 a", set(&["a", "{a}1"])), "$-1\r\n");
        let flags = "#!lua flags=allow-cross-slot-keys";
        harness.ask(0, 0, &format!("EVAL \"{flags}\n{}\" 1 a", set(&["a", "c"])), "$-1\r\n");
        let refused = "Can not run script on cluster, 'no-cluster' flag is set.";
        refuses(&mut harness, "EVAL \"#!lua flags=no-cluster\nreturn 1\" 0", refused);
        harness.publish(migrating("a"));
        refuses(&mut harness, &format!("EVAL \"{}\" 0", set(&["{a}9"])), "Attempted to access a non local key in a");
        harness.ask(0, 0, &format!("EVAL \"{}\" 0", set(&["a"])), "$-1\r\n");
        harness.publish(down());
        refuses(
            &mut harness,
            "EVAL \"return server.call('set', 'a', '1')\" 0",
            "Can not execute a command 'set' while",
        );
    });
}

#[test]
fn blocked_clients_are_redirected_when_their_slot_leaves() {
    in_cluster(3, |mut harness, other| {
        for client in 0..3 {
            harness.ask(0, client, if client == 2 { "BLPOP c 0" } else { "BLPOP a 0" }, WAITS);
        }
        harness.publish(migrating("a"));
        assert_eq!(harness.delivered(), []);
        harness.publish(without("a"));
        assert_eq!(harness.delivered(), [(0, moved("a")), (1, moved("a"))]);
        harness.ask(other, 0, "RPUSH c x", ":1\r\n");
        assert_eq!(harness.delivered(), [(2, bulks(&["c", "x"]))]);
        harness.ask(0, 2, "BZPOPMIN c 0", WAITS);
        harness.publish(down());
        assert_eq!(harness.delivered(), [(2, DOWN.to_owned())]);
    });
}

#[test]
fn commands_of_the_primary_are_never_redirected() {
    in_cluster(1, |mut harness, _| {
        harness.publish(replica());
        harness.set_flag(0, ClientFlags::PRIMARY | ClientFlags::FROM_LOG);
        harness.ask(0, 0, "MSET a 1 b 2", OK);
        harness.ask(0, 0, "GET b", &bulk("2"));
    });
}

#[test]
fn requests_are_counted_for_their_slot() {
    in_cluster(2, |mut harness, other| {
        let services = harness.services;
        let usage = move |key: &str| {
            let usage = services.routing.as_ref().expect("in cluster mode").slot_stats.of(slot(key.as_bytes()));
            (usage.bytes_in, usage.bytes_out)
        };
        harness.ask(0, 0, "SET key value", OK);
        assert_eq!(usage("key"), (0, 0));
        harness.configure(cluster::CLUSTER_SLOT_STATS_ENABLED, true);
        harness.ask(0, 0, "PING", "+PONG\r\n");
        harness.ask(0, 0, "SET key value", OK);
        assert_eq!(usage("key"), (33, 5));
        harness.ask(other, 0, "MGET key {key}2", "*2\r\n$5\r\nvalue\r\n$-1\r\n");
        assert_eq!(usage("key"), (33 + 35, 5 + 20));
        // A transaction: its commands when they are queued, MULTI and EXEC at its end.
        harness.ask(0, 0, "MULTI", OK);
        harness.ask(0, 0, "SET tx value", QUEUED);
        assert_eq!(usage("tx"), (32, 0));
        harness.ask(0, 0, "EXEC", "*1\r\n+OK\r\n");
        assert_eq!(usage("tx"), (15 + 32 + 14, 9));
        // A blocked request when it is served.
        harness.ask(0, 1, "blpop list 0", WAITS);
        assert_eq!(usage("list"), (0, 0));
        harness.ask(other, 0, "lpush list value", ":1\r\n");
        assert_eq!(harness.delivered(), [(1, bulks(&["list", "value"]))]);
        assert_eq!(usage("list"), (36 + 32, 4 + 25));
        // Scripts for the slot that they access, unless they may access several.
        harness.ask(0, 0, "EVAL \"#!lua\nreturn server.call('get', 'script')\" 0", "$-1\r\n");
        assert_eq!(usage("script").1, 5);
        harness.ask(0, 0, "EVAL \"return server.call('get', 'free')\" 1 free", "$-1\r\n");
        assert_eq!(usage("free"), (0, 0));
        harness.publish(without("key"));
        assert_eq!(usage("key"), (0, 0));
    });
}
