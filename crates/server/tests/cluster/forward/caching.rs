//! Client-side caching.

use super::{Cluster, config_epoch, raw};
use crate::nodes::{Node, form, kvick, wait_for};
use crate::with_workers;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// A client that shows the bytes of the protocol.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn new(node: &Node) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", node.port)).expect("a connection");
        stream.set_read_timeout(Some(kvick_testing::WAIT_LIMIT)).expect("a timeout");
        Client { stream: BufReader::new(stream) }
    }

    /// With RESP3.
    pub fn resp3(node: &Node) -> Client {
        let mut client = Client::new(node);
        client.send("HELLO 3");
        client.read();
        client
    }

    pub fn send(&mut self, request: &str) {
        self.stream.get_mut().write_all(format!("{request}\r\n").as_bytes()).expect("open");
    }

    /// The next reply or push, its elements separated by spaces.
    pub fn read(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a reply");
        let line = line.trim_end();
        let (kind, text) = line.split_at(1);
        let count = |text: &str| text.parse::<isize>().expect("a number");
        match kind {
            "$" | "=" if count(text) >= 0 => {
                let mut bytes = vec![0; count(text) as usize + 2];
                self.stream.read_exact(&mut bytes).expect("a reply");
                bytes.truncate(bytes.len() - 2);
                String::from_utf8_lossy(&bytes).into_owned()
            }
            "*" | ">" | "~" | "%" if count(text) >= 0 => {
                let elements = count(text) * if kind == "%" { 2 } else { 1 };
                let parts: Vec<String> = (0..elements).map(|_| self.read()).collect();
                let prefix = if kind == ">" { "push: " } else { "" };
                format!("{prefix}{}", parts.join(" "))
            }
            ":" => text.to_owned(),
            _ => line.to_owned(),
        }
    }

    /// Sends a request, and returns the next thing that arrives.
    pub fn call(&mut self, request: &str) -> String {
        self.send(request);
        self.read()
    }
}

/// Reads keys of all nodes, and hears of their changes by whomever.
#[test]
fn clients_hear_of_changes_of_keys_that_other_nodes_own() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let mut client = Client::resp3(proxy);
        assert_eq!(client.call("CLIENT TRACKING ON"), "+OK");
        // These keys are on three nodes.
        for key in ["foo", "bar", "hello"] {
            assert_eq!(client.call(&format!("GET {key}")), "_");
            assert_eq!(proxy.call(&format!("SET {key} 1")), "OK");
            assert_eq!(client.read(), format!("push: invalidate {key}"));
            // Once per read.
            assert_eq!(proxy.call(&format!("SET {key} 2")), "OK");
            assert_eq!(client.call(&format!("GET {key}")), "2");
        }
        // By another way to the node, and by the client itself, behind its own reply.
        let owner = cluster.primaries.iter().find(|node| node.call("SET bar 3") == "OK").expect("an owner");
        assert_eq!(client.read(), "push: invalidate bar");
        assert_eq!(client.call("GET bar"), "3");
        assert_eq!(client.call("SET bar 4"), "+OK");
        assert_eq!(client.read(), "push: invalidate bar");
        // Keys of a divided request, of a transaction and of a script.
        assert_eq!(client.call("MGET bar missing"), "4 _");
        assert_eq!(proxy.call("SET missing 1"), "OK");
        assert_eq!(client.read(), "push: invalidate missing");
        for request in ["MULTI", "GET {bar}1", "EXEC"] {
            client.call(request);
        }
        assert_eq!(proxy.call("SET {bar}1 x"), "OK");
        assert_eq!(client.read(), "push: invalidate {bar}1");
        client.send("*4\r\n$4\r\nEVAL\r\n$33\r\nreturn redis.call('GET', KEYS[1])\r\n$1\r\n1\r\n$6\r\n{bar}2");
        assert_eq!(client.read(), "_");
        assert_eq!(proxy.call("SET {bar}2 x"), "OK");
        assert_eq!(client.read(), "push: invalidate {bar}2");
        // Everything of a node is deleted, or the node is gone.
        assert_eq!(owner.call("FLUSHALL"), "OK");
        assert_eq!(client.read(), "push: invalidate _");
        assert_eq!(client.call("CLIENT TRACKING OFF"), "+OK");
        assert_eq!(client.call("GET bar"), "_");
        assert_eq!(proxy.call("SET bar 5"), "OK");
        assert_eq!(client.call("PING"), "+PONG");
    });
}

#[test]
fn clients_choose_what_they_cache() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        for (mode, word, first, second) in [("OPTIN", "YES", "foo", "bar"), ("OPTOUT", "NO", "bar", "foo")] {
            let mut client = Client::resp3(proxy);
            assert_eq!(client.call(&format!("CLIENT TRACKING ON {mode}")), "+OK");
            assert_eq!(client.call(&format!("CLIENT CACHING {word}")), "+OK");
            client.call("GET foo");
            client.call("GET bar");
            assert_eq!(proxy.call(&format!("SET {second} 1")), "OK");
            assert_eq!(proxy.call(&format!("SET {first} 1")), "OK");
            assert_eq!(client.read(), format!("push: invalidate {first}"), "{mode}");
            assert_eq!(client.call("PING"), "+PONG");
        }
    });
}

#[test]
fn resp2_clients_get_invalidations_on_another_connection() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let (mut receiver, mut client) = (Client::new(proxy), Client::new(proxy));
        let id = receiver.call("CLIENT ID");
        assert!(receiver.call("SUBSCRIBE __redis__:invalidate").contains("subscribe"));
        assert_eq!(client.call(&format!("CLIENT TRACKING ON REDIRECT {}", id)), "+OK");
        for key in ["foo", "bar", "hello"] {
            assert_eq!(client.call(&format!("GET {key}")), "$-1");
            assert_eq!(proxy.call(&format!("SET {key} 1")), "OK");
            assert_eq!(receiver.read(), format!("message __redis__:invalidate {key}"));
        }
    });
}

#[test]
fn clients_in_broadcasting_mode_hear_of_changes_on_all_nodes() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let mut client = Client::resp3(proxy);
        assert_eq!(client.call("CLIENT TRACKING ON BCAST PREFIX user: PREFIX {bar}"), "+OK");
        // What changed before the nodes were asked is not known.
        (0..3).for_each(|_| assert_eq!(client.read(), "push: invalidate _"));
        for key in ["user:1", "user:2", "user:3", "{bar}1"] {
            assert_eq!(proxy.call(&format!("SET other:{key} 1")), "OK");
            assert_eq!(proxy.call(&format!("SET {key} 1")), "OK");
            assert_eq!(client.read(), format!("push: invalidate {key}"));
        }
        assert_eq!(client.call("CLIENT TRACKING OFF"), "+OK");
        wait_for("no node reports changes", || {
            cluster.primaries.iter().all(|node| node.call("INFO clients").contains("tracking_clients:0"))
        });
    });
}

/// After a link is lost, or the key has moved, what a client has cached is never out of date without its knowledge.
#[test]
fn the_loss_of_a_node_invalidates_everything() {
    with_workers(|args| {
        let mut cluster = Cluster::start(args);
        let [one, two, _] = &cluster.primaries;
        let mut client = Client::resp3(&cluster.proxy);
        assert_eq!(client.call("CLIENT TRACKING ON"), "+OK");
        // Slot 5061 has the key bar.
        assert_eq!(cluster.proxy.call("SET bar 1"), "OK");
        assert_eq!(client.call("GET bar"), "1");
        let migrate = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 5061 5061 NODE {}", two.id());
        assert_eq!(one.call(&migrate), "OK");
        assert!(client.read().starts_with("push: invalidate"), "it has moved");
        wait_for("the new owner has it", || two.call("GET bar") == "1");
        let epoch = |of: &Node, by: &Node| config_epoch(&by.known_nodes(), &of.id());
        wait_for("the epoch is known", || epoch(two, &cluster.proxy) == epoch(two, two));
        assert_eq!(client.call("GET bar"), "1");
        assert_eq!(two.call("SET bar 2"), "OK");
        assert_eq!(client.read(), "push: invalidate bar");
        assert_eq!(client.call("GET bar"), "2");
        cluster.primaries[1].kill();
        assert_eq!(client.read(), "push: invalidate _");
    });
}

/// How many clients of a node have it track what they read.
fn tracking_links(node: &Node) -> usize {
    let list = raw(node, "CLIENT LIST\r\n");
    let fields = list.lines().filter_map(|line| line.split(' ').find_map(|field| field.strip_prefix("flags=")));
    fields.filter(|flags| flags.contains('t')).count()
}

/// With NOLOOP, a client does not hear of its own changes, but of those of everybody else, also if they come right
/// behind its own or go the same way.
#[test]
fn clients_do_not_hear_of_their_own_changes_if_they_want() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let mut client = Client::resp3(proxy);
        assert_eq!(client.call("CLIENT TRACKING ON NOLOOP"), "+OK");
        let mut other = Client::resp3(proxy);
        assert_eq!(other.call("CLIENT TRACKING ON"), "+OK");
        for key in ["foo", "bar", "hello"] {
            // Its own change, which the other one hears of.
            assert_eq!(
                (client.call(&format!("GET {key}")), other.call(&format!("GET {key}"))),
                ("_".into(), "_".into())
            );
            assert_eq!(client.call(&format!("SET {key} 1")), "+OK");
            assert_eq!(other.read(), format!("push: invalidate {key}"));
            // The other one's.
            assert_eq!(
                (client.call(&format!("GET {key}")), other.call(&format!("GET {key}"))),
                ("1".into(), "1".into())
            );
            assert_eq!(other.call(&format!("SET {key} 2")), "+OK");
            assert_eq!(other.read(), format!("push: invalidate {key}"));
            assert_eq!(client.read(), format!("push: invalidate {key}"));
            // A write that changes nothing hides no change of another.
            assert_eq!(client.call(&format!("GET {key}")), "2");
            assert_eq!(client.call(&format!("SET {key} 3 NX")), "_");
            assert_eq!(proxy.call(&format!("SET {key} 4")), "OK");
            assert_eq!(client.read(), format!("push: invalidate {key}"));
            // Its transactions and what it waits for.
            assert_eq!(client.call(&format!("GET {key}")), "4");
            assert_eq!(client.call(&format!("WATCH {key}")), "+OK");
            for (request, reply) in [("MULTI", "+OK"), (&format!("SET {key} 5"), "+QUEUED"), ("EXEC", "+OK")] {
                assert_eq!(client.call(request), reply);
            }
            assert_eq!(client.call(&format!("LPUSH {{{key}}}list x")), "1");
            assert_eq!(client.call(&format!("LRANGE {{{key}}}list 0 -1")), "x");
            assert_eq!(client.call(&format!("BLPOP {{{key}}}list 0")), format!("{{{key}}}list x"));
            assert_eq!(client.call("PING"), "+PONG");
        }
        drop(client);
        // With RESP2, on another connection.
        let (mut receiver, mut client) = (Client::new(proxy), Client::new(proxy));
        let id = receiver.call("CLIENT ID");
        assert!(receiver.call("SUBSCRIBE __redis__:invalidate").contains("subscribe"));
        assert_eq!(client.call(&format!("CLIENT TRACKING ON REDIRECT {id} NOLOOP")), "+OK");
        for key in ["foo", "bar", "hello"] {
            assert_eq!(client.call(&format!("GET {key}")), "5");
            assert_eq!(client.call(&format!("SET {key} 6")), "+OK");
            assert_eq!(client.call(&format!("GET {key}")), "6");
            assert_eq!(proxy.call(&format!("SET {key} 5")), "OK");
            assert_eq!(receiver.read(), format!("message __redis__:invalidate {key}"));
        }
        // The other one shares its link, which stays.
        let has_own = |node: &Node| tracking_links(node) > 1;
        let with_own = || cluster.primaries.iter().filter(|node| has_own(node)).count();
        assert_eq!(with_own(), 2, "the nodes that own the keys");
        drop((receiver, client));
        wait_for("its links are closed", || with_own() == 0);
    });
}

/// Two clients of a node in broadcasting mode. `asked` are the other nodes with slots.
fn check_broadcasts_without_own_changes(node: &Node, asked: &[&Node]) {
    let (mut client, mut other) = (Client::resp3(node), Client::resp3(node));
    assert_eq!(client.call("CLIENT TRACKING ON BCAST NOLOOP PREFIX user: PREFIX {bar}"), "+OK");
    assert_eq!(other.call("CLIENT TRACKING ON BCAST NOLOOP"), "+OK");
    // What has changed before the nodes were asked is not known.
    for client in [&mut client, &mut other] {
        asked.iter().for_each(|_| assert_eq!(client.read(), "push: invalidate _"));
    }
    for key in ["user:1", "user:2", "user:3", "{bar}1"] {
        let invalidation = format!("push: invalidate {key}");
        assert_eq!(client.call(&format!("SET {key} 1")), "+OK");
        assert_eq!(other.read(), invalidation);
        assert_eq!(other.call(&format!("SET other:{key} 1")), "+OK");
        assert_eq!(other.call(&format!("SET {key} 2")), "+OK");
        assert_eq!(client.read(), invalidation);
        // A transaction, and what it waits for.
        for (request, reply) in [("MULTI", "+OK"), (&format!("DEL {key}"), "+QUEUED"), ("EXEC", "1")] {
            assert_eq!(client.call(request), reply);
        }
        assert_eq!(other.read(), invalidation);
        assert_eq!(client.call(&format!("LPUSH {key} x")), "1");
        assert_eq!(other.read(), invalidation);
        assert_eq!(client.call(&format!("BLPOP {key} 0")), format!("{key} x"));
        assert_eq!(other.read(), invalidation);
        assert_eq!(client.call("PING"), "+PONG");
    }
    // Another mode.
    assert_eq!(other.call("CLIENT TRACKING OFF"), "+OK");
    assert_eq!(other.call("CLIENT TRACKING ON NOLOOP"), "+OK");
    for key in ["user:1", "user:2", "user:3", "{bar}1"] {
        assert_eq!(client.call(&format!("SET {key} 1")), "+OK");
        assert_eq!(other.call(&format!("GET {key}")), "1");
        assert_eq!(other.call(&format!("SET {key} 2")), "+OK");
        assert_eq!(client.read(), format!("push: invalidate {key}"));
        assert_eq!(client.call(&format!("DEL {key}")), "1");
        assert_eq!(other.read(), format!("push: invalidate {key}"));
    }
    drop((client, other));
    wait_for("their links are closed", || asked.iter().all(|node| tracking_links(node) == 0));
}

#[test]
fn broadcasts_leave_out_own_changes_if_clients_want() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let [one, two, three] = &cluster.primaries;
        check_broadcasts_without_own_changes(&cluster.proxy, &[one, two, three]);
        // With RESP2, on another connection.
        let (mut receiver, mut client) = (Client::new(&cluster.proxy), Client::new(&cluster.proxy));
        let id = receiver.call("CLIENT ID");
        assert!(receiver.call("SUBSCRIBE __redis__:invalidate").contains("subscribe"));
        assert_eq!(client.call(&format!("CLIENT TRACKING ON REDIRECT {id} BCAST NOLOOP PREFIX key:")), "+OK");
        (0..3).for_each(|_| assert_eq!(receiver.read(), "message __redis__:invalidate $-1"));
        for key in ["key:1", "key:2", "key:3"] {
            assert_eq!(client.call(&format!("SET {key} 1")), "+OK");
            assert_eq!(cluster.proxy.call(&format!("SET other:{key} 2")), "OK");
            assert_eq!(cluster.proxy.call(&format!("SET {key} 2")), "OK");
            assert_eq!(receiver.read(), format!("message __redis__:invalidate {key}"));
        }
    });
}

#[test]
fn broadcasts_of_a_primary_that_forwards_leave_out_own_changes_if_clients_want() {
    with_workers(|args| {
        let [one, two] = [0, 1].map(|_| Node::start(&kvick(), &[args, &["--cluster-forward", "yes"]].concat()));
        form(&[&one, &two], &[]);
        check_broadcasts_without_own_changes(&one, &[&two]);
    });
}
