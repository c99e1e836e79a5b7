//! WAIT and WAITAOF of clients whose writes are at other nodes.

use super::caching::Client;
use super::{join, query, raw, wait_until_served};
use crate::nodes::{Node, form, kvick, valkey, wait_for};
use crate::with_workers;
use redis::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// Two primaries with a replica each, and a node without slots that forwards.
struct Shards {
    primaries: [Node; 2],
    replicas: [Node; 2],
    proxy: Node,
}

impl Shards {
    fn start(program: &Path, args: &[&str], more: &[&str]) -> Shards {
        let all = [args, more].concat();
        let primaries = [0, 1].map(|_| Node::start(program, &all));
        let replicas = [0, 1].map(|_| Node::start(program, &all));
        let proxy = Node::start(&kvick(), &[args, &["--cluster-forward", "yes"]].concat());
        form(&[&primaries[0], &primaries[1]], &[&replicas[0], &replicas[1]]);
        join(&primaries[0], &proxy);
        wait_for("the proxy knows all", || {
            proxy.has_info("cluster_known_nodes:5") && proxy.has_info("cluster_state:ok")
        });
        wait_until_served(&proxy);
        Shards { primaries, replicas, proxy }
    }
}

fn int(client: &mut redis::Connection, words: &[&str]) -> i64 {
    redis::cmd(words[0]).arg(&words[1..]).query(client).expect("a number")
}

/// Slot 5061 has the key bar, which is at the first primary, and slot 12182 foo, at the second.
fn check_wait(shards: &Shards) {
    let Shards { replicas, proxy, .. } = shards;
    let mut client = proxy.client();
    // Without writes: what each shard has.
    assert_eq!(int(&mut client, &["WAIT", "1", "5000"]), 1);
    for value in 0..20 {
        assert_eq!(query(&mut client, &["SET", "bar", &value.to_string()]), Ok(Value::Okay));
        assert_eq!(int(&mut client, &["WAIT", "1", "0"]), 1);
        let found = raw(&replicas[0], "READONLY\r\nGETRANGE bar 0 -1\r\n");
        assert!(found.ends_with(&format!("\r\n{value}\r\n")), "the replica has it: {found}");
    }
    assert_eq!(query(&mut client, &["MSET", "bar", "1", "foo", "1"]), Ok(Value::Okay));
    assert_eq!(int(&mut client, &["WAIT", "1", "5000"]), 1);
    let began = Instant::now();
    assert_eq!(int(&mut client, &["WAIT", "2", "200"]), 1, "no shard has two replicas");
    assert!(began.elapsed() >= Duration::from_millis(200));

    // A replica that does not answer concerns those that have written to its primary.
    replicas[0].freeze();
    let mut other = proxy.client();
    assert_eq!(query(&mut other, &["SET", "foo", "2"]), Ok(Value::Okay));
    assert_eq!(query(&mut client, &["SET", "bar", "2"]), Ok(Value::Okay));
    assert_eq!(int(&mut other, &["WAIT", "1", "5000"]), 1);
    let began = Instant::now();
    assert_eq!(int(&mut client, &["WAIT", "1", "150"]), 0);
    assert!(began.elapsed() >= Duration::from_millis(150));
    assert_eq!(int(&mut client, &["WAIT", "0", "0"]), 0);
    // Several clients wait for what went over the same link, and hold up no other client.
    let waiting: Vec<_> = (0..8)
        .map(|number| {
            let mut client = proxy.client();
            let key = format!("{{bar}}{number}");
            std::thread::spawn(move || {
                assert_eq!(query(&mut client, &["SET", &key, "x"]), Ok(Value::Okay));
                int(&mut client, &["WAIT", if number % 2 == 0 { "1" } else { "2" }, "0"])
            })
        })
        .collect();
    let mut pipe = redis::pipe();
    (0..1000).for_each(|number| _ = pipe.cmd("SET").arg("{bar}busy").arg(number).cmd("INCR").arg("{bar}count"));
    let counts: Vec<Value> = pipe.query(&mut other).expect("replies");
    let numbers = counts.into_iter().skip(1).step_by(2);
    assert!(numbers.eq((1..=1000).map(Value::Int)), "in order, although links change");
    wait_for("they wait", || proxy.call("INFO clients").contains("blocked_clients:8"));
    replicas[0].signal(libc::SIGCONT);
    let mut waiting = waiting.into_iter().enumerate();
    for (number, thread) in &mut waiting {
        if number % 2 == 0 {
            assert_eq!(thread.join().expect("ends"), 1);
        }
    }
    assert_eq!(int(&mut client, &["WAIT", "1", "0"]), 1);

    // Errors are those of the command.
    for (request, error) in [
        ("WAIT x 0", "ERR value is not an integer or out of range"),
        ("WAIT 1 -1", "ERR timeout is negative"),
        ("WAIT 2 9223372036854775807", "ERR timeout is out of range"),
        ("WAITAOF 2 0 0", "ERR value is out of range, value must between 0 and 1"),
    ] {
        assert_eq!(proxy.call(request), error, "{request}");
    }
    let mut pipeline = Client::new(proxy);
    pipeline.send("SET bar 9\r\nWAIT 1 0\r\nGET bar");
    assert_eq!([0; 3].map(|_| pipeline.read()), ["+OK", "1", "9"]);
    // In a transaction it does not wait.
    let transaction = raw(proxy, "MULTI\r\nSET bar 9\r\nWAIT 9 0\r\nEXEC\r\n");
    assert!(transaction.contains("*2\r\n+OK\r\n:"), "{transaction}");
    assert!(raw(proxy, "MULTI\r\nWAIT 9 0\r\nEXEC\r\n").contains("'wait' cannot be part of this transaction"));
    assert!(proxy.call("INFO clients").contains("blocked_clients:4"), "four wait for two replicas");
}

#[test]
fn wait_is_about_the_nodes_that_have_executed_writes() {
    with_workers(|args| check_wait(&Shards::start(&kvick(), args, &[])));
}

#[test]
fn nodes_of_valkey_acknowledge_as_well() {
    let Some(valkey) = valkey() else { return };
    check_wait(&Shards::start(&valkey, &[], &[]));
}

#[test]
fn waitaof_is_about_the_disks_of_these_nodes() {
    with_workers(|args| {
        let shards = Shards::start(&kvick(), args, &["--appendonly", "yes", "--appendfsync", "everysec"]);
        let proxy = &shards.proxy;
        let mut client = proxy.client();
        let pair = |local, replicas| Ok(Value::Array(vec![Value::Int(local), Value::Int(replicas)]));
        assert_eq!(query(&mut client, &["MSET", "bar", "1", "foo", "1"]), Ok(Value::Okay));
        assert_eq!(query(&mut client, &["WAITAOF", "1", "1", "0"]), pair(1, 1));
        assert_eq!(shards.replicas[1].call("CONFIG SET appendfsync no"), "OK");
        assert_eq!(query(&mut client, &["SET", "foo", "2"]), Ok(Value::Okay));
        assert_eq!(query(&mut client, &["WAITAOF", "1", "0", "0"]).map(|reply| reply != Value::Nil), Ok(true));
        assert_eq!(shards.primaries[1].call("CONFIG SET appendonly no"), "OK");
        assert_eq!(query(&mut client, &["SET", "foo", "3"]), Ok(Value::Okay));
        let error = query(&mut client, &["WAITAOF", "1", "0", "0"]).expect_err("refused");
        assert!(error.to_string().contains("appendonly is disabled"), "{error}");
        let mut other = proxy.client();
        assert_eq!(query(&mut other, &["SET", "bar", "3"]), Ok(Value::Okay));
        assert_eq!(query(&mut other, &["WAITAOF", "1", "1", "0"]), pair(1, 1));
    });
}

/// A node with slots: the minimum is that of its own replicas and those of others.
#[test]
fn writes_at_the_node_itself_count() {
    with_workers(|args| {
        let [one, two] = [0, 1].map(|_| Node::start(&kvick(), &[args, &["--cluster-forward", "yes"]].concat()));
        let replica = Node::start(&kvick(), args);
        form(&[&one, &two], &[&replica]);
        for (key, node, replicas) in [("bar", &one, 1), ("foo", &one, 0), ("bar", &two, 1), ("foo", &two, 0)] {
            let mut client = node.client();
            assert_eq!(query(&mut client, &["SET", key, "1"]), Ok(Value::Okay));
            assert_eq!(int(&mut client, &["WAIT", "1", "400"]), replicas, "{key}");
        }
        let mut client = one.client();
        assert_eq!(query(&mut client, &["MSET", "bar", "1", "foo", "1"]), Ok(Value::Okay));
        assert_eq!(int(&mut client, &["WAIT", "1", "100"]), 0, "one of them has no replica");
        assert_eq!(int(&mut one.client(), &["WAIT", "1", "100"]), 0);
    });
}

#[test]
fn a_lost_node_is_not_taken_for_acknowledgement() {
    with_workers(|args| {
        let mut shards = Shards::start(&kvick(), args, &[]);
        let mut client = shards.proxy.client();
        assert_eq!(query(&mut client, &["SET", "bar", "1"]), Ok(Value::Okay));
        let mut waiting = shards.proxy.client();
        assert_eq!(query(&mut waiting, &["SET", "bar", "2"]), Ok(Value::Okay));
        let thread = std::thread::spawn(move || query(&mut waiting, &["WAIT", "2", "0"]));
        wait_for("it waits", || shards.proxy.call("INFO clients").contains("blocked_clients:1"));
        shards.primaries[0].kill();
        let error = thread.join().expect("ends").expect_err("unknown");
        assert!(error.to_string().contains("It is unknown whether replicas have what was written"), "{error}");
        let error = query(&mut client, &["WAIT", "1", "0"]).expect_err("unknown");
        assert!(error.to_string().contains("It is unknown whether replicas have what was written"), "{error}");
        // It was said once; what is written from now on counts.
        // One of two primaries is no majority, which could elect the replica.
        assert_eq!(shards.replicas[0].call("CLUSTER FAILOVER TAKEOVER"), "OK");
        wait_for("the replica takes over", || shards.replicas[0].role() == "master");
        wait_for("its slots are served again", || ["0", "1"].contains(&&*shards.proxy.call("EXISTS bar")));
        assert_eq!(query(&mut client, &["SET", "foo", "1"]), Ok(Value::Okay));
        assert_eq!(int(&mut client, &["WAIT", "1", "5000"]), 1);
    });
}
