//! Atomic slot migration between nodes of Kvick: under writes, cancelled, and with nodes that are killed.

use crate::nodes::{Node, bus_port, form, kvick, wait_for};
use crate::with_workers;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The slots that move: half of those of the first of two nodes, which would become a replica without slots.
const SLOTS: std::ops::RangeInclusive<u16> = 0..=4095;

/// Keys of the writers, in slots that move.
const KEYS: u32 = 200;

/// Two nodes with half of the slots each, and files that survive a crash.
fn pair(args: &[&str]) -> [Node; 2] {
    let durable = ["--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes"];
    let nodes = [0, 1].map(|_| Node::start(&kvick(), &[args, &durable].concat()));
    form(&[&nodes[0], &nodes[1]], &[]);
    nodes
}

/// The names of `KEYS` keys in slots that move.
fn keys() -> Vec<String> {
    let slot = |key: &str| kvick_store::slot::slot(key.as_bytes());
    (0..).map(|n| format!("key{n}")).filter(|key| SLOTS.contains(&slot(key))).take(KEYS as usize).collect()
}

fn migrate(source: &Node, target: &Node) {
    let command = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {} {} NODE {}", SLOTS.start(), SLOTS.end(), target.id());
    wait_for("the migration may start", || source.call(&command) == "OK");
}

/// The state and the message of the newest job.
fn job(node: &Node) -> (String, String) {
    let jobs: redis::Value = redis::cmd("CLUSTER").arg("GETSLOTMIGRATIONS").query(&mut node.client()).expect("a list");
    let redis::Value::Array(jobs) = jobs else { return Default::default() };
    let Some(redis::Value::Array(fields)) = jobs.first() else { return Default::default() };
    let text = |value: &redis::Value| match value {
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    };
    let field = |name: &str| {
        let at = fields.iter().step_by(2).position(|field| text(field) == name);
        at.and_then(|at| fields.get(2 * at + 1)).map(text).unwrap_or_default()
    };
    (field("state"), field("message"))
}

fn wait_for_state(node: &Node, state: &str) {
    wait_for(&format!("the job is {state}"), || {
        let (present, message) = job(node);
        assert!(present != "failed" || state == "failed", "{message}");
        present == state
    });
}

/// A client of both nodes that follows redirections.
struct Writer<'a> {
    nodes: &'a [Node; 2],
    connections: [Option<redis::Connection>; 2],
    at: usize,
}

impl<'a> Writer<'a> {
    fn new(nodes: &'a [Node; 2]) -> Writer<'a> {
        Writer { nodes, connections: [None, None], at: 0 }
    }

    /// Increments the key; an error that is not a redirection counts as no answer.
    fn increment(&mut self, key: &str) -> Option<u64> {
        loop {
            let connection = self.connections[self.at].get_or_insert_with(|| self.nodes[self.at].client());
            match redis::cmd("INCR").arg(key).query(connection) {
                Ok(number) => return Some(number),
                Err(error) if error.code() == Some("MOVED") => self.at = 1 - self.at,
                Err(_) => {
                    self.connections[self.at] = None;
                    return None;
                }
            }
        }
    }
}

/// Increments all keys in turn until `stops`; each reply must be one more than the one before. Returns the last ones.
fn count_until(nodes: &[Node; 2], keys: &[String], stops: &AtomicBool) -> Vec<u64> {
    let mut writer = Writer::new(nodes);
    let mut last = vec![0; keys.len()];
    while !stops.load(Ordering::Relaxed) {
        for (key, last) in keys.iter().zip(&mut last) {
            let number = writer.increment(key).expect("writes wait and are redirected, but not refused");
            assert_eq!(number, *last + 1, "a write of {key} was lost or repeated");
            *last = number;
        }
    }
    last
}

/// Checks that `owner` has all keys with these values, and `other` none.
fn check(owner: &Node, other: &Node, keys: &[String], values: &[u64]) {
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(owner.call(&format!("GET {key}")), value.to_string(), "{key}");
    }
    assert_eq!(owner.call("DBSIZE"), keys.len().to_string());
    wait_for("the other has none of the keys", || other.call("DBSIZE") == "0" && count_in_slots(other, keys) == 0);
}

/// Keys in the slots of these keys, hidden ones included.
fn count_in_slots(node: &Node, keys: &[String]) -> u64 {
    let slots: std::collections::BTreeSet<u16> =
        keys.iter().map(|key| kvick_store::slot::slot(key.as_bytes())).collect();
    let count = |slot: &u16| node.call(&format!("CLUSTER COUNTKEYSINSLOT {slot}")).parse::<u64>().expect("a number");
    slots.iter().map(count).sum()
}

/// Writes each key some times, through the first node, which owns the slots.
fn fill(nodes: &[Node; 2], keys: &[String]) -> Vec<u64> {
    let mut writer = Writer::new(nodes);
    let fill = |(index, key): (usize, &String)| {
        (0..=index % 3).map(|_| writer.increment(key).expect("the owner answers")).last().expect("at least one")
    };
    keys.iter().enumerate().map(fill).collect()
}

/// Starts a migration that waits before the hand-over, with the snapshot sent, as long as the source prevents it.
fn migrate_halfway(source: &Node, target: &Node) {
    assert_eq!(source.call("DEBUG SLOTMIGRATION PREVENT-PAUSE 1"), "OK");
    migrate(source, target);
    wait_for_state(source, "waiting-to-pause");
}

#[test]
fn slots_move_to_and_fro_under_writes() {
    with_workers(|args| {
        let nodes = pair(args);
        let (keys, stops) = (keys(), AtomicBool::new(false));
        let halves: Vec<&[String]> = keys.chunks(keys.len() / 2).collect();
        let values: Vec<u64> = std::thread::scope(|scope| {
            let writers: Vec<_> = halves.iter().map(|keys| scope.spawn(|| count_until(&nodes, keys, &stops))).collect();
            for round in 0..4 {
                let (source, target) = (&nodes[round % 2], &nodes[1 - round % 2]);
                migrate(source, target);
                wait_for_state(source, "success");
                wait_for_state(target, "success");
                assert!(target.has_info("cluster_state:ok"));
            }
            stops.store(true, Ordering::Relaxed);
            writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect()
        });
        assert!(values.iter().all(|value| *value > 0));
        check(&nodes[0], &nodes[1], &keys, &values);
    });
}

#[test]
fn a_cancelled_migration_leaves_the_keys_with_the_source() {
    let nodes = pair(&["--io-threads", "4"]);
    let [source, target] = &nodes;
    let keys = keys();
    let values = fill(&nodes, &keys);
    migrate_halfway(source, target);
    assert_eq!(source.call("CLUSTER CANCELSLOTMIGRATIONS"), "OK");
    wait_for_state(source, "cancelled");
    assert_eq!(source.call("DEBUG SLOTMIGRATION PREVENT-PAUSE 0"), "OK");
    wait_for("the target gives up", || job(target).0 == "failed");
    check(source, target, &keys, &values);
    migrate(source, target);
    wait_for_state(source, "success");
    check(target, source, &keys, &values);
}

#[test]
fn a_killed_target_comes_back_without_the_keys() {
    with_workers(|args| {
        let mut nodes = pair(args);
        let keys = keys();
        let values = fill(&nodes, &keys);
        migrate_halfway(&nodes[0], &nodes[1]);
        assert_eq!(count_in_slots(&nodes[1], &keys), KEYS.into());
        nodes[1].kill();
        wait_for("the source gives up", || job(&nodes[0]).0 == "failed");
        nodes[1].restart();
        wait_for("the cluster is up", || nodes.iter().all(|node| node.has_info("cluster_state:ok")));
        check(&nodes[0], &nodes[1], &keys, &values);
        assert_eq!(nodes[0].call("DEBUG SLOTMIGRATION PREVENT-PAUSE 0"), "OK");
        migrate(&nodes[0], &nodes[1]);
        wait_for_state(&nodes[0], "success");
        check(&nodes[1], &nodes[0], &keys, &values);
    });
}

#[test]
fn a_killed_source_comes_back_with_the_keys() {
    with_workers(|args| {
        let mut nodes = pair(args);
        let keys = keys();
        let values = fill(&nodes, &keys);
        migrate_halfway(&nodes[0], &nodes[1]);
        nodes[0].kill();
        wait_for("the target gives up", || job(&nodes[1]).0 == "failed");
        nodes[0].restart();
        wait_for("the cluster is up", || nodes.iter().all(|node| node.has_info("cluster_state:ok")));
        check(&nodes[0], &nodes[1], &keys, &values);
        migrate(&nodes[0], &nodes[1]);
        wait_for_state(&nodes[0], "success");
        check(&nodes[1], &nodes[0], &keys, &values);
    });
}

#[test]
fn nodes_killed_after_a_migration_agree_on_its_result() {
    let mut nodes = pair(&["--io-threads", "4"]);
    let keys = keys();
    let values = fill(&nodes, &keys);
    migrate(&nodes[0], &nodes[1]);
    wait_for_state(&nodes[0], "success");
    nodes.iter_mut().for_each(Node::kill);
    nodes.iter_mut().for_each(Node::restart);
    wait_for("the cluster is up", || nodes.iter().all(|node| node.has_info("cluster_state:ok")));
    check(&nodes[1], &nodes[0], &keys, &values);
}

#[test]
fn nodes_that_are_killed_at_any_moment_of_a_migration_lose_nothing() {
    // The victim and the time after the start of the migration differ in each round; the outcome may be either.
    let mut nodes = pair(&["--io-threads", "4"]);
    let keys = keys();
    let mut values = fill(&nodes, &keys);
    let (mut owner, mut moved) = (0, 0);
    for round in 0..8u64 {
        let victim = (round % 2) as usize;
        migrate(&nodes[owner], &nodes[1 - owner]);
        std::thread::sleep(std::time::Duration::from_millis(3 * round));
        nodes[victim].kill();
        nodes[victim].restart();
        wait_for("the cluster is up", || nodes.iter().all(|node| node.has_info("cluster_state:ok")));
        wait_for("no job is under way", || {
            nodes.iter().all(|node| ["", "success", "failed"].contains(&job(node).0.as_str()))
        });
        wait_for("one node owns the slots", || {
            let answers = nodes.each_ref().map(|node| node.call(&format!("EXISTS {}", keys[0])));
            let owners = [0, 1].map(|index: usize| !answers[index].starts_with("MOVED"));
            if owners[0] != owners[1] {
                moved += usize::from(!owners[owner]);
                owner = usize::from(owners[1]);
            }
            owners[0] != owners[1]
        });
        check(&nodes[owner], &nodes[1 - owner], &keys, &values);
        let mut writer = Writer::new(&nodes);
        for (key, value) in keys.iter().zip(&mut values) {
            *value += 1;
            assert_eq!(writer.increment(key), Some(*value), "{key}");
        }
    }
    println!("{moved} of 8 migrations were complete before a node was killed");
}

#[test]
fn slots_move_over_tls() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = |path: &Path| path.display().to_string();
    let [authority, certificate, key] = ["ca.crt", "node.crt", "node.key"].map(|name| text(&dir.path().join(name)));
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))];
    let pair_key = KeyPair::generate().expect("a key");
    let signed = params.signed_by(&pair_key, &issuer).expect("a certificate");
    let files = [(&authority, issuer.pem()), (&certificate, signed.pem()), (&key, pair_key.serialize_pem())];
    files.iter().for_each(|(path, content)| std::fs::write(path, content).expect("a file"));
    let ports = [0, 1].map(|_| crate::common::free_port().to_string());
    let nodes = ports.each_ref().map(|port| {
        let mut args = vec!["--tls-port", port, "--tls-cluster", "yes", "--tls-replication", "yes"];
        args.extend(["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &authority]);
        Node::start(&kvick(), &args)
    });
    form(&[&nodes[0], &nodes[1]], &[]);
    let keys = keys();
    let values = fill(&nodes, &keys);
    migrate(&nodes[0], &nodes[1]);
    wait_for_state(&nodes[0], "success");
    check(&nodes[1], &nodes[0], &keys, &values);
}

#[test]
fn slots_are_taken_over_only_when_a_replica_has_them() {
    with_workers(|args| {
        let args = [args, &["--cluster-slot-takeover-replicas", "1"]].concat();
        let start = || Node::start(&kvick(), &args);
        let (mut target, source, third, replica) = (start(), start(), start(), start());
        form(&[&target, &source, &third], &[]);
        let keys: Vec<String> = (0..100).map(|n| format!("{{abc}}{n}")).collect();
        let slot = kvick_store::slot::slot(keys[0].as_bytes());
        let owner = [&target, &source, &third][usize::from(slot) * 3 / 16_384];
        assert_eq!(owner.port, source.port, "the second node owns the slot");
        keys.iter().for_each(|key| assert_eq!(source.call(&format!("SET {key} {key}")), "OK"));
        let migrate = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id());
        assert_eq!(source.call(&migrate), "OK");
        wait_for_state(&target, "waiting-for-paused");
        // Writes go on as long as the target has no replica.
        assert_eq!(source.call(&format!("SET {} last", keys[0])), "OK");
        assert_eq!(job(&source).0, "replicating");
        let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", target.port, bus_port(&target));
        assert_eq!(replica.call(&meet), "OK");
        let follow = format!("CLUSTER REPLICATE {}", target.id());
        wait_for("the replica may follow", || replica.call(&follow) == "OK");
        wait_for_state(&source, "success");
        target.kill();
        wait_for("the replica takes over", || replica.role() == "master" && replica.has_info("cluster_state:ok"));
        assert_eq!(replica.call(&format!("GET {}", keys[0])), "last");
        keys[1..].iter().for_each(|key| assert_eq!(&replica.call(&format!("GET {key}")), key));
    });
}

#[test]
fn a_slot_that_comes_back_at_once_has_no_old_keys() {
    with_workers(|args| {
        // The third node stands still, so the source keeps the old keys, hidden, until it hears of it again.
        let args = [args, &["--cluster-node-timeout", "60000"]].concat();
        let [source, target, third] = [0, 1, 2].map(|_| Node::start(&kvick(), &args));
        form(&[&source, &target, &third], &[]);
        // bar has slot 5061.
        assert_eq!(source.call("SET bar old"), "OK");
        assert_eq!(source.call("SET {bar}2 old"), "OK");
        third.signal(libc::SIGSTOP);
        let migrate = |to: &Node| format!("CLUSTER MIGRATESLOTS SLOTSRANGE 5061 5061 NODE {}", to.id());
        assert_eq!(source.call(&migrate(&target)), "OK");
        wait_for_state(&source, "success");
        assert_eq!([source.call("DBSIZE"), source.call("CLUSTER COUNTKEYSINSLOT 5061")], ["0", "0"]);
        assert_eq!(target.call("SET bar new"), "OK");
        assert_eq!(target.call("DEL {bar}2"), "1");
        assert_eq!(target.call(&migrate(&source)), "OK");
        // It waits for the end of the old keys.
        wait_for_state(&target, "reading-establish-response");
        assert_eq!(target.call("CLUSTER CANCELSLOTMIGRATIONS"), "OK");
        wait_for_state(&target, "cancelled");
        assert_eq!(source.call(&format!("CLUSTER SETSLOT 5061 IMPORTING {}", target.id())), "OK");
        assert_eq!(target.call(&format!("CLUSTER SETSLOT 5061 MIGRATING {}", source.id())), "OK");
        assert_eq!(target.call(&format!("MIGRATE 127.0.0.1 {} bar 0 30000", source.port)), "OK");
        for node in [&source, &target] {
            assert_eq!(node.call(&format!("CLUSTER SETSLOT 5061 NODE {}", source.id())), "OK");
        }
        third.signal(libc::SIGCONT);
        wait_for("the third node knows the owner", || third.call("GET bar").ends_with(&source.port.to_string()));
        assert_eq!([source.call("GET bar"), source.call("DBSIZE")], ["new", "1"]);
        assert_eq!(target.call("DBSIZE"), "0");
    });
}
