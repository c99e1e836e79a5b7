//! One endpoint: nodes that forward what others own, for clients that know nothing of the cluster.

mod caching;
mod channels;
mod pressure;
mod replicas;
mod views;
mod waits;

use crate::nodes::{Node, form, kvick, valkey, wait_for};
use crate::with_workers;
use redis::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// Three primaries, and a node without slots that forwards.
struct Cluster {
    primaries: [Node; 3],
    proxy: Node,
}

impl Cluster {
    fn start(args: &[&str]) -> Cluster {
        let cluster = Cluster::of(&kvick(), args);
        wait_until_served(&cluster.proxy);
        cluster
    }

    /// Primaries of another program. Nothing has been forwarded yet.
    fn of(program: &Path, args: &[&str]) -> Cluster {
        let primaries = [0, 1, 2].map(|_| Node::start(program, args));
        let proxy = Node::start(&kvick(), &[args, &["--cluster-forward", "yes"]].concat());
        let [one, two, three] = &primaries;
        form(&[one, two, three], &[]);
        join(one, &proxy);
        wait_for("the proxy knows all", || {
            proxy.has_info("cluster_known_nodes:4") && proxy.has_info("cluster_state:ok")
        });
        Cluster { primaries, proxy }
    }

    /// Keys on the primaries together.
    fn keys(&self) -> usize {
        self.primaries.iter().map(|node| node.call("DBSIZE").parse::<usize>().expect("a number")).sum()
    }
}

/// Waits until a node forwards requests for keys of three primaries: it routes by a slot map that it has made from what
/// CLUSTER INFO shows.
fn wait_until_served(proxy: &Node) {
    wait_for("the proxy forwards", || {
        ["foo", "bar", "hello"].iter().all(|key| proxy.call(&format!("EXISTS {key}")) == "0")
    });
}

/// Joins a node to a cluster. A handshake that takes longer than the node timeout is given up, and begins again.
fn join(member: &Node, node: &Node) {
    let (id, bus_port) = (node.id(), crate::nodes::bus_port(node));
    let mut asked = std::time::Instant::now();
    assert_eq!(member.call(&format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", node.port)), "OK");
    wait_for("the cluster knows the node", || {
        if asked.elapsed() > std::time::Duration::from_secs(3) {
            asked = std::time::Instant::now();
            member.call(&format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", node.port));
        }
        member.known_nodes().contains(&id)
    });
}

fn query(client: &mut redis::Connection, words: &[&str]) -> redis::RedisResult<Value> {
    redis::cmd(words[0]).arg(&words[1..]).query(client)
}

/// Sends requests in one piece, and returns everything that comes back until the node closes the connection.
fn raw(node: &Node, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", node.port)).expect("a connection");
    stream.set_read_timeout(Some(kvick_testing::WAIT_LIMIT)).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("open");
    stream.shutdown(std::net::Shutdown::Write).expect("open");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("replies");
    String::from_utf8_lossy(&reply).into_owned()
}

#[test]
fn any_node_answers_for_every_slot_in_order() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        for n in 0..100 {
            assert_eq!(cluster.proxy.call(&format!("SET key{n} {n}")), "OK");
        }
        assert!(cluster.primaries.iter().all(|node| node.call("DBSIZE").parse::<usize>().expect("a number") > 10));
        assert_eq!(cluster.keys(), 100);
        let mut client = cluster.proxy.client();
        let mut pipe = redis::pipe();
        for n in 0..10_000 {
            // Requests that this node answers itself are between those for all three others.
            match n % 5 {
                0 => pipe.cmd("ECHO").arg(n),
                1 => pipe.cmd("INCRBY").arg(format!("key{}", n % 100)).arg(0),
                _ => pipe.cmd("GET").arg(format!("key{}", n % 100)),
            };
        }
        let replies: Vec<usize> = pipe.query(&mut client).expect("replies");
        let expected = (0..10_000).map(|n| if n % 5 == 0 { n } else { n % 100 });
        assert!(replies.into_iter().eq(expected));
    });
}

#[test]
fn a_primary_that_forwards_mixes_its_own_keys_with_those_of_others() {
    with_workers(|args| {
        let [one, two] = [0, 1].map(|_| Node::start(&kvick(), &[args, &["--cluster-forward", "yes"]].concat()));
        form(&[&one, &two], &[]);
        for node in [&one, &two] {
            let mut client = node.client();
            let mut pipe = redis::pipe();
            for n in 0..5_000 {
                pipe.cmd("SET").arg(format!("key{}", n % 50)).arg(n).ignore();
                pipe.cmd("GET").arg(format!("key{}", n % 50));
            }
            let replies: Vec<usize> = pipe.query(&mut client).expect("replies");
            assert!(replies.into_iter().eq(0..5_000));
        }
        // The peer of a half-closed connection still gets everything.
        let request = "SET key1 a\r\nGET key1\r\nSET key2 b\r\nGET key2\r\nPING\r\nGET key1\r\n";
        assert_eq!(raw(&one, request), "+OK\r\n$1\r\na\r\n+OK\r\n$1\r\nb\r\n+PONG\r\n$1\r\na\r\n");
        assert_eq!(
            raw(&one, "CLIENT REPLY OFF\r\nSET key1 c\r\nCLIENT REPLY ON\r\nGET key1\r\n"),
            "+OK\r\n$1\r\nc\r\n"
        );
        let skipped = "CLIENT REPLY SKIP\r\nSET key1 d\r\nCLIENT REPLY SKIP\r\nSET key2 e\r\nGET key1\r\nGET key2\r\n";
        assert_eq!(raw(&two, skipped), "$1\r\nd\r\n$1\r\ne\r\n");
    });
}

#[test]
fn rights_are_those_of_the_client_where_it_is_connected() {
    let cluster = Cluster::start(&[]);
    assert_eq!(cluster.proxy.call("ACL SETUSER reader on >secret ~key* +get"), "OK");
    let mut client = cluster.proxy.client();
    query(&mut client, &["AUTH", "reader", "secret"]).expect("a login");
    assert_eq!(query(&mut client, &["GET", "key1"]).expect("allowed"), Value::Nil);
    for words in [&["SET", "key1", "x"][..], &["GET", "other"], &["MGET", "key1", "key2"], &["KEYS", "*"]] {
        let error = query(&mut client, words).expect_err("refused");
        assert_eq!(error.code(), Some("NOPERM"), "{words:?}");
    }
}

#[test]
fn only_the_listener_for_it_forwards() {
    let (one, two) = (Node::start(&kvick(), &[]), Node::start(&kvick(), &[]));
    let port = kvick_testing::free_port();
    let edge = Node::start(&kvick(), &["--cluster-forward-port", &port.to_string()]);
    form(&[&one, &two, &edge], &[]);
    assert_eq!(edge.call("SET bar 1"), format!("MOVED 5061 127.0.0.1:{}", one.port));
    let forwarding = redis::Client::open(format!("redis://127.0.0.1:{port}/")).and_then(|c| c.get_connection());
    let mut forwarding = forwarding.expect("a connection");
    assert_eq!(query(&mut forwarding, &["SET", "bar", "1"]).expect("forwarded"), Value::Okay);
    assert_eq!(one.call("GET bar"), "1");
}

#[test]
fn requests_for_many_slots_are_divided_and_merged() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let mut client = proxy.client();
        let keys: Vec<String> = (0..300).map(|n| format!("key{n}")).collect();
        let values: Vec<(String, usize)> = keys.iter().cloned().zip(0..).collect();
        redis::cmd("MSET").arg(&values).exec(&mut client).expect("all set");
        let mut asked = keys.clone();
        asked.push("missing".into());
        let found: Vec<Option<usize>> = redis::cmd("MGET").arg(&asked).query(&mut client).expect("values");
        assert!(found.into_iter().eq((0..300).map(Some).chain([None])));
        for command in ["EXISTS", "TOUCH"] {
            assert_eq!(redis::cmd(command).arg(&asked).query::<usize>(&mut client).expect("a number"), 300);
        }
        assert_eq!(proxy.call("DBSIZE"), "300");
        let all: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut client).expect("keys");
        assert_eq!(all.len(), 300);
        assert!(keys.contains(&proxy.call("RANDOMKEY")));
        let (mut cursor, mut scanned) = (0u64, std::collections::BTreeSet::new());
        loop {
            let (next, part): (u64, Vec<String>) =
                redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(7).query(&mut client).expect("a part");
            scanned.extend(part);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(scanned.len(), 300);
        // Many keys in one slot: the cursor has a position in it.
        let many: Vec<(String, usize)> = (0..2_000).map(|n| (format!("{{t}}{n}"), n)).collect();
        redis::cmd("MSET").arg(&many).exec(&mut client).expect("all set");
        let (mut cursor, mut found) = (0u64, std::collections::BTreeSet::new());
        loop {
            let (next, part): (u64, Vec<String>) = redis::cmd("SCAN").arg(cursor).query(&mut client).expect("a part");
            found.extend(part);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(found.len(), 2_300);
        let names: Vec<&String> = many.iter().map(|(name, _)| name).collect();
        assert_eq!(redis::cmd("DEL").arg(&names).query::<usize>(&mut client).expect("a number"), 2_000);
        assert_eq!(proxy.call("SCAN 1x"), "ERR invalid cursor");
        assert_eq!(redis::cmd("DEL").arg(&asked[..100]).query::<usize>(&mut client).expect("a number"), 100);
        assert_eq!(redis::cmd("UNLINK").arg(&asked[..101]).query::<usize>(&mut client).expect("a number"), 1);
        assert_eq!(cluster.keys(), 199);
        assert_eq!(proxy.call("RENAME key150 key151"), "CROSSSLOT Keys in request don't hash to the same slot");
        assert_eq!(proxy.call("MSETNX a 1 b 2"), "CROSSSLOT Keys in request don't hash to the same slot");
        assert_eq!(proxy.call("FLUSHALL"), "OK");
        assert_eq!(cluster.keys(), 0);
        assert_eq!(proxy.call("RANDOMKEY"), "");
        // A pipeline of them stays in order.
        let pipeline = "MSET a 1 b 2 c 3\r\nGET a\r\nMGET c b a\r\nDEL a b\r\nEXISTS a b c\r\nDBSIZE\r\n";
        assert_eq!(raw(proxy, pipeline), "+OK\r\n$1\r\n1\r\n*3\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n1\r\n:2\r\n:1\r\n:1\r\n");
    });
}

#[test]
fn scripts_and_functions_are_known_to_all_nodes() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let mut client = cluster.proxy.client();
        let code = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
        let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(code).query(&mut client).expect("loaded");
        for (n, key) in ["a", "b", "c", "d", "e"].iter().enumerate() {
            let sum: usize = redis::cmd("EVALSHA").arg(&hash).arg(1).arg(key).arg(n).query(&mut client).expect("runs");
            assert_eq!(sum, n);
        }
        let exist: Vec<usize> =
            redis::cmd("SCRIPT").arg("EXISTS").arg(&hash).arg("0".repeat(40)).query(&mut client).expect("a list");
        assert_eq!(exist, [1, 0]);
        let both = query(&mut client, &["EVAL", code, "2", "a", "b", "1"]).expect_err("two slots");
        assert_eq!(both.code(), Some("CROSSSLOT"));
        assert_eq!(
            cluster.proxy.call("EVAL return({KEYS[1],ARGV[1]}) 1 a 5"),
            cluster.primaries[2].call("EVAL return({'a','5'}) 0")
        );
        let library = "#!lua name=lib\nredis.register_function('put', \
                       function(keys, args) return redis.call('SET', keys[1], args[1]) end)";
        redis::cmd("FUNCTION").arg("LOAD").arg(library).exec(&mut client).expect("loaded");
        for key in ["a", "b", "c", "d"] {
            assert_eq!(cluster.proxy.call(&format!("FCALL put 1 {key} new")), "OK");
            assert_eq!(cluster.proxy.call(&format!("GET {key}")), "new");
        }
        assert_eq!(query(&mut client, &["SCRIPT", "FLUSH"]).expect("flushed"), Value::Okay);
        let gone = redis::cmd("EVALSHA").arg(&hash).arg(1).arg("a").arg(1).exec(&mut client).expect_err("forgotten");
        assert_eq!(gone.kind(), redis::ErrorKind::Server(redis::ServerErrorKind::NoScript));
    });
}

#[test]
fn transactions_are_executed_in_one_slot_or_not_at_all() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        assert_eq!(
            raw(proxy, "MULTI\r\nSET {t}a 1\r\nINCR {t}a\r\nLPUSH {t}a x\r\nPING\r\nEXEC\r\nGET {t}a\r\n")
                .replace("\r\n", " "),
            "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 +OK :2 -WRONGTYPE Operation against a key holding the wrong kind \
             of value +PONG $1 2 "
        );
        assert_eq!(
            raw(proxy, "MULTI\r\nSET a 1\r\nSET b 1\r\nEXEC\r\nEXISTS a b\r\n").replace("\r\n", " "),
            "+OK +QUEUED +QUEUED -CROSSSLOT Keys in request don't hash to the same slot :0 "
        );
        assert_eq!(
            raw(proxy, "SET x 1\r\nMULTI\r\nFLUSHALL\r\nEXEC\r\nGET x\r\n").replace("\r\n", " "),
            "+OK +OK +QUEUED -ERR 'flushall' cannot be part of this transaction, because requests are forwarded $1 1 "
        );
        assert_eq!(raw(proxy, "MULTI\r\nSET x 2\r\nDISCARD\r\nGET x\r\n"), "+OK\r\n+QUEUED\r\n+OK\r\n$1\r\n1\r\n");
        assert_eq!(raw(proxy, "MULTI\r\nPING\r\nEXEC\r\n"), "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n");

        let mut client = proxy.client();
        let mut run = |words: &str| query(&mut client, &words.split(' ').collect::<Vec<_>>());
        for (meanwhile, executed) in [("GET {w}", true), ("SET {w} other", false)] {
            assert_eq!(run("SET {w} 1"), Ok(Value::Okay));
            assert_eq!(run("WATCH {w} {w}2"), Ok(Value::Okay));
            assert_eq!(run("GET {w}"), Ok(Value::BulkString(b"1".to_vec())));
            proxy.call(meanwhile);
            assert_eq!(run("MULTI"), Ok(Value::Okay));
            assert_eq!(run("SET {w} 2"), Ok(Value::SimpleString("QUEUED".into())));
            let result = if executed { Value::Array(vec![Value::Okay]) } else { Value::Nil };
            assert_eq!(run("EXEC"), Ok(result), "after {meanwhile}");
        }
        // Keys of two slots cannot be watched, and after UNWATCH nothing is.
        assert_eq!(run("WATCH {w}"), Ok(Value::Okay));
        assert_eq!(run("WATCH a").expect_err("another slot").code(), Some("CROSSSLOT"));
        assert_eq!(run("UNWATCH"), Ok(Value::Okay));
        proxy.call("SET {w} third");
        assert_eq!(run("WATCH a"), Ok(Value::Okay));
        assert_eq!(run("MULTI"), Ok(Value::Okay));
        assert_eq!(run("SET a 7"), Ok(Value::SimpleString("QUEUED".into())));
        assert_eq!(run("EXEC"), Ok(Value::Array(vec![Value::Okay])));
        assert_eq!(run("GET a"), Ok(Value::BulkString(b"7".to_vec())));
    });
}

#[test]
fn commands_that_wait_hold_up_nobody() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let mut waiting = proxy.client();
        let waits = std::thread::spawn(move || query(&mut waiting, &["BLPOP", "list", "0"]));
        let owner = cluster.primaries.iter().find(|node| node.call("EXISTS list") == "0").expect("an owner");
        wait_for("it waits", || owner.call("INFO clients").contains("blocked_clients:1"));
        assert_eq!(raw(proxy, "GET list\r\nLPUSH list x\r\n"), "$-1\r\n:1\r\n");
        let popped = waits.join().expect("ends").expect("an element");
        assert_eq!(popped, Value::Array(["list", "x"].map(|text| Value::BulkString(text.into())).into()));
        // A pipeline goes on behind it, and a client that leaves waits no more.
        let mut pipe = redis::pipe();
        pipe.cmd("LPUSH").arg(&["list", "y"]).cmd("BLPOP").arg(&["list", "1"]);
        pipe.cmd("BLPOP").arg(&["list", "0.05"]).cmd("GET").arg("other");
        let replies: Vec<Value> = pipe.query(&mut proxy.client()).expect("replies");
        let popped = Value::Array(["list", "y"].map(|text| Value::BulkString(text.into())).into());
        assert_eq!(replies, [Value::Int(1), popped, Value::Nil, Value::Nil]);
        let mut leaving = TcpStream::connect(("127.0.0.1", proxy.port)).expect("a connection");
        leaving.write_all(b"BLPOP list 0\r\n").expect("open");
        wait_for("it waits", || owner.call("INFO clients").contains("blocked_clients:1"));
        drop(leaving);
        wait_for("it waits no more", || owner.call("INFO clients").contains("blocked_clients:0"));
        // CLIENT UNBLOCK, in both ways, also at once.
        for (reason, reply) in [("TIMEOUT", "*-1"), ("ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK")] {
            let mut waiting = caching::Client::new(proxy);
            let id = waiting.call("CLIENT ID");
            assert_eq!(proxy.call(&format!("CLIENT UNBLOCK {id} {reason}")), "0");
            for _ in 0..10 {
                waiting.send("BLPOP list 0");
                wait_for("it waits", || proxy.call("INFO clients").contains("blocked_clients:1"));
                assert_eq!(proxy.call(&format!("CLIENT UNBLOCK {id} {reason}")), "1");
                assert_eq!(waiting.read(), reply);
            }
            assert_eq!(waiting.call("GET list"), "$-1");
        }
    });
}

/// A client is unblocked even if its request has not reached the node yet.
#[test]
fn unblocked_clients_of_a_node_that_does_not_answer_go_on_when_it_does() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        let owner = cluster.primaries.iter().find(|node| node.call("EXISTS list") == "0").expect("an owner");
        owner.freeze();
        for (reason, reply) in [("TIMEOUT", "*-1"), ("ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK")] {
            let mut waiting = caching::Client::new(proxy);
            let id = waiting.call("CLIENT ID");
            waiting.send("BLPOP list 0");
            wait_for("it waits", || proxy.call("INFO clients").contains("blocked_clients:1"));
            assert_eq!(proxy.call(&format!("CLIENT UNBLOCK {id} {reason}")), "1");
            owner.signal(libc::SIGCONT);
            assert_eq!(waiting.read(), reply);
            assert_eq!(waiting.call("PING"), "+PONG");
            owner.freeze();
        }
        owner.signal(libc::SIGCONT);
    });
}

/// Consumers of a group that wait, each with its connection, and others that poll over one connection.
#[test]
fn consumers_of_a_stream_get_every_entry_once() {
    with_workers(|args| {
        let cluster = Cluster::start(args);
        let proxy = &cluster.proxy;
        assert_eq!(proxy.call("XGROUP CREATE stream group 0 MKSTREAM"), "OK");
        let (consumers, entries) = (32, 3_200);
        let seen = std::sync::Mutex::new(std::collections::BTreeMap::<String, usize>::new());
        let note = |value: &Value| {
            let Value::Array(streams) = value else { return 0 };
            let Some(Value::Array(stream)) = streams.first() else { return 0 };
            let Some(Value::Array(found)) = stream.get(1) else { return 0 };
            let mut seen = seen.lock().expect("a lock");
            for entry in found {
                let Value::Array(parts) = entry else { continue };
                let Value::BulkString(id) = &parts[0] else { continue };
                *seen.entry(String::from_utf8_lossy(id).into_owned()).or_default() += 1;
            }
            found.len()
        };
        let is_done = || seen.lock().expect("a lock").len() >= entries;
        std::thread::scope(|scope| {
            for number in 0..consumers {
                let note = &note;
                let is_done = &is_done;
                scope.spawn(move || {
                    let (mut client, name) = (proxy.client(), format!("waits{number}"));
                    while !is_done() {
                        let words = ["XREADGROUP", "GROUP", "group", &name, "COUNT", "5", "BLOCK", "50", "STREAMS"];
                        note(&query(&mut client, &[&words[..], &["stream", ">"]].concat()).expect("a reply"));
                    }
                });
            }
            let (note, is_done) = (&note, &is_done);
            scope.spawn(move || {
                let mut client = proxy.client();
                while !is_done() {
                    let mut pipe = redis::pipe();
                    for number in 0..consumers {
                        let name = format!("polls{number}");
                        pipe.cmd("XREADGROUP").arg(&["GROUP", "group", &name, "COUNT", "1", "STREAMS", "stream", ">"]);
                    }
                    pipe.query::<Vec<Value>>(&mut client).expect("replies").iter().for_each(|reply| _ = note(reply));
                }
            });
            scope.spawn(move || {
                let mut client = proxy.client();
                for chunk in 0..entries / 10 {
                    let mut pipe = redis::pipe();
                    (0..10).for_each(|n| _ = pipe.cmd("XADD").arg(&["stream", "*", "n"]).arg(chunk * 10 + n).ignore());
                    pipe.exec(&mut client).expect("added");
                }
            });
        });
        let seen = seen.into_inner().expect("a lock");
        assert_eq!(seen.len(), entries);
        assert!(seen.values().all(|times| *times == 1));
    });
}

#[test]
fn a_migrated_slot_is_followed_without_an_error() {
    with_workers(|args| check_moves(&Cluster::start(args)));
}

/// Moves a slot while a client of the proxy uses it.
fn check_moves(cluster: &Cluster) {
    let [one, two, _] = &cluster.primaries;
    // Slot 5061 has the key bar.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut client, mut count) = (cluster.proxy.client(), 0usize);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut pipe = redis::pipe();
                (0..20).for_each(|_| _ = pipe.cmd("INCR").arg("bar"));
                pipe.cmd("MGET").arg(&["{bar}1", "{bar}2", "foo"]).ignore();
                let numbers: Vec<usize> = pipe.query(&mut client).expect("no error");
                assert!(numbers.into_iter().eq(count + 1..count + 21), "each once and in order");
                count += 20;
            }
            count
        });
        for round in 0..6 {
            let (from, to) = if round % 2 == 0 { (one, two) } else { (two, one) };
            if round < 4 {
                assert_eq!(to.call(&format!("CLUSTER SETSLOT 5061 IMPORTING {}", from.id())), "OK");
                assert_eq!(from.call(&format!("CLUSTER SETSLOT 5061 MIGRATING {}", to.id())), "OK");
                let migrate = format!("MIGRATE 127.0.0.1 {} bar 0 5000", to.port);
                wait_for("the key has moved", || matches!(&from.call(&migrate)[..], "OK" | "NOKEY"));
                for node in [to, from] {
                    assert_eq!(node.call(&format!("CLUSTER SETSLOT 5061 NODE {}", to.id())), "OK");
                }
            } else {
                let migrate = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 5061 5061 NODE {}", to.id());
                assert_eq!(from.call(&migrate), "OK");
            }
            wait_for("it has moved", || to.call("GET bar").parse::<usize>().is_ok());
            // SETSLOT takes an epoch above those that the node knows: it has to know that of the last owner.
            let epoch = |of: &Node, by: &Node| config_epoch(&by.known_nodes(), &of.id());
            wait_for("the epoch is known", || epoch(to, from) == epoch(to, to));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let count = writer.join().expect("no error");
        assert_eq!(cluster.proxy.call("GET bar"), count.to_string());
    });
}

/// The config epoch of a node in the reply to CLUSTER NODES.
fn config_epoch(nodes: &str, id: &str) -> Option<String> {
    let line = nodes.lines().find(|line| line.starts_with(id))?;
    line.split(' ').nth(6).map(str::to_owned)
}

#[test]
fn nodes_of_valkey_need_no_settings() {
    let Some(valkey) = valkey() else { return };
    let cluster = Cluster::of(&valkey, &["--cluster-databases", "16"]);
    wait_until_served(&cluster.proxy);
    check_moves(&cluster);
    // Links of their own carry another version of the protocol, and other databases.
    let mut client = cluster.proxy.client_resp3();
    for n in 0..20 {
        let key = format!("hash{n}");
        assert_eq!(query(&mut client, &["HSET", &key, "field", "value"]), Ok(Value::Int(1)));
        let field = (Value::BulkString(b"field".into()), Value::BulkString(b"value".into()));
        assert_eq!(query(&mut client, &["HGETALL", &key]), Ok(Value::Map(vec![field])));
    }
    let mut client = cluster.proxy.client();
    assert_eq!(query(&mut client, &["SELECT", "3"]), Ok(Value::Okay));
    assert_eq!(query(&mut client, &["DBSIZE"]), Ok(Value::Int(0)));
    for n in 0..20 {
        assert_eq!(query(&mut client, &["SET", &format!("key{n}"), "3"]), Ok(Value::Okay));
    }
    assert_eq!(query(&mut client, &["DBSIZE"]), Ok(Value::Int(20)));
    assert_eq!(query(&mut cluster.proxy.client(), &["GET", "key1"]), Ok(Value::Nil));
}

#[test]
fn a_failover_is_survived_and_no_write_is_executed_twice() {
    with_workers(|args| {
        let mut primaries = [0, 1, 2].map(|_| Node::start(&kvick(), args));
        let (replica, proxy) =
            (Node::start(&kvick(), args), Node::start(&kvick(), &[args, &["--cluster-forward", "yes"]].concat()));
        let [one, two, three] = &primaries;
        form(&[one, two, three], &[&replica]);
        join(one, &proxy);
        wait_for("the proxy is ready", || {
            proxy.has_info("cluster_known_nodes:5") && proxy.has_info("cluster_state:ok")
        });
        wait_until_served(&proxy);
        let mut client = proxy.client();
        let mut waiting = proxy.client();
        assert_eq!(query(&mut client, &["INCR", "bar"]), Ok(Value::Int(1)));
        let waits = std::thread::spawn(move || query(&mut waiting, &["BLPOP", "{bar}list", "0"]));
        wait_for("it waits", || primaries[0].call("INFO clients").contains("blocked_clients:1"));
        let (mut lost, mut reading) = (proxy.client(), proxy.client());
        assert_eq!(query(&mut lost, &["GET", "bar"]), query(&mut reading, &["GET", "bar"]), "their links are open");
        // Stopped, not killed: the request arrives but is not answered before the link breaks.
        primaries[0].freeze();
        let write = std::thread::spawn(move || query(&mut lost, &["INCR", "bar"]));
        let read = std::thread::spawn(move || query(&mut reading, &["GET", "other{bar}"]));
        assert_eq!(query(&mut client, &["SET", "foo", "1"]), Ok(Value::Okay), "other nodes answer");
        wait_for("the replica takes over", || replica.role() == "master");
        wait_for("the proxy knows it", || proxy.known_nodes().contains("master,fail"));
        primaries[0].kill();
        let error = write.join().expect("ends").expect_err("unknown whether it was executed");
        assert!(error.to_string().contains("may have been executed"), "{error}");
        assert_eq!(read.join().expect("ends"), Ok(Value::Nil), "reads are repeated");
        let error = waits.join().expect("ends").expect_err("unknown whether an element was taken");
        assert!(error.to_string().contains("may have been executed"), "{error}");
        assert_eq!(query(&mut client, &["INCR", "bar"]), Ok(Value::Int(2)));
    });
}

#[test]
fn the_node_logs_in_at_others() {
    let cluster = Cluster::of(&kvick(), &[]);
    for node in &cluster.primaries {
        assert_eq!(node.call("ACL SETUSER edge on >word ~* &* +@all"), "OK");
        assert_eq!(node.call("ACL SETUSER default -set"), "OK");
    }
    let proxy = &cluster.proxy;
    for (name, value) in [("user", "edge"), ("password", "wrong")] {
        assert_eq!(proxy.call(&format!("CONFIG SET cluster-forward-{name} {value}")), "OK");
    }
    wait_for("the login is refused", || {
        proxy.call("SET foo 1").contains("refuses to execute forwarded requests: WRONGPASS")
    });
    assert_eq!(proxy.call("CONFIG SET cluster-forward-password word"), "OK");
    let forwarded = || {
        let stats = proxy.call("INFO stats");
        let count = stats.lines().find_map(|line| line.strip_prefix("forwarded_requests:")).expect("a figure");
        count.parse::<usize>().expect("a number")
    };
    let before = forwarded();
    assert_eq!(proxy.call("SET foo 1"), "OK");
    assert!(cluster.primaries[2].call("CLIENT LIST").contains("user=edge"));
    assert_eq!(forwarded(), before + 1);
}
