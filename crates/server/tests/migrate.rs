//! MIGRATE between two servers, and to Valkey if `KVICK_TEST_VALKEY` names its program.

mod common;

use common::{Server, for_workers, wait_until};
use kvick_testing::{Deadline, accept, programs, servers};
use redis::{Connection, RedisResult, Value, cmd};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn ask<T: redis::FromRedisValue>(client: &mut Connection, words: &[&str]) -> RedisResult<T> {
    let mut request = cmd(words[0]);
    words[1..].iter().for_each(|word| _ = request.arg(*word));
    request.query(client)
}

fn reply(client: &mut Connection, words: &[&str]) -> String {
    match ask::<Value>(client, words) {
        Ok(Value::Okay) => "OK".into(),
        Ok(Value::SimpleString(text)) => text,
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default()),
    }
}

/// MIGRATE to this port, with these words behind the port.
fn migrate(client: &mut Connection, port: u16, words: &[&str]) -> String {
    let port = port.to_string();
    reply(client, &[&["MIGRATE", "127.0.0.1", &port][..], words].concat())
}

fn get(client: &mut Connection, key: &str) -> Option<String> {
    ask(client, &["GET", key]).expect("a string")
}

/// A key of every type, large and small, and one that expires.
fn fill(client: &mut Connection) -> Vec<String> {
    let mut pipe = redis::pipe();
    pipe.cmd("SET").arg("string").arg("x".repeat(300_000));
    pipe.cmd("SET").arg("volatile").arg("12345").arg("PX").arg(60_000);
    for number in 0..5000 {
        pipe.cmd("RPUSH").arg("list").arg(format!("element {number}"));
        pipe.cmd("SADD").arg("set").arg(format!("member {number}"));
        pipe.cmd("ZADD").arg("zset").arg(number % 70).arg(format!("member {number}"));
        pipe.cmd("HSET").arg("hash").arg(format!("field {number}")).arg(number);
        pipe.cmd("XADD").arg("stream").arg(format!("{}-1", number + 1)).arg("field").arg(number);
    }
    pipe.cmd("SADD").arg("integers").arg(&[1, 2, 3][..]);
    pipe.cmd("HSET").arg("small").arg(&["a", "1", "b", "2"][..]);
    pipe.cmd("XGROUP").arg(&["CREATE", "stream", "group", "0"][..]);
    pipe.cmd("XREADGROUP").arg(&["GROUP", "group", "me", "COUNT", "5", "STREAMS", "stream", ">"][..]);
    pipe.exec(client).expect("writes");
    ["string", "volatile", "list", "set", "zset", "hash", "stream", "integers", "small"].map(String::from).into()
}

/// A description of a key that does not depend on the order of a table.
fn content(client: &mut Connection, key: &str) -> String {
    let kind: String = ask(client, &["TYPE", key]).expect("a type");
    let words: &[&str] = match &*kind {
        "string" => &["GET", key],
        "list" => &["LRANGE", key, "0", "-1"],
        "set" => &["SORT", key, "ALPHA"],
        "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
        "hash" => &["HGETALL", key],
        "stream" => &["XINFO", "STREAM", key],
        _ => return kind,
    };
    let mut text = format!("{kind} {:?}", ask::<Value>(client, words).expect("a value"));
    if kind == "hash" {
        let mut pairs: Vec<(String, String)> = ask(client, words).expect("pairs");
        pairs.sort();
        text = format!("{pairs:?}");
    }
    text
}

/// Moves keys of all types to a target.
fn assert_all_types_migrate(source: &Server, target: &mut Connection, port: u16) {
    let mut client = source.client();
    let keys = fill(&mut client);
    let before: Vec<String> = keys.iter().map(|key| content(&mut client, key)).collect();
    let mut words = vec!["", "3", "5000", "KEYS", "nothing"];
    words.extend(keys.iter().map(String::as_str));
    assert_eq!(migrate(&mut client, port, &words), "OK");
    assert_eq!(ask::<i64>(&mut client, &["DBSIZE"]).expect("a number"), 0);
    ask::<()>(target, &["SELECT", "3"]).expect("a database");
    for (key, before) in keys.iter().zip(before) {
        assert_eq!(content(target, key), before, "{key}");
    }
    let left: i64 = ask(target, &["PTTL", "volatile"]).expect("a time");
    assert!((1..=60_000).contains(&left));
    assert_eq!(ask::<i64>(target, &["TTL", "set"]).expect("a time"), -1);
    assert_eq!(migrate(&mut client, port, &["set", "3", "1000"]), "NOKEY");
}

#[test]
fn keys_of_all_types_migrate() {
    for_workers(&[], |source| {
        let target = Server::start(&[]);
        assert_all_types_migrate(source, &mut target.client(), target.port());
    });
}

#[test]
fn replies_match_valkeys() {
    for_workers(&[], |source| {
        let target = Server::start(&[]);
        let (mut source_client, mut target_client) = (source.client(), target.client());
        let port = target.port();
        ask::<()>(&mut source_client, &["MSET", "a", "1", "b", "2", "c", "3"]).expect("writes");
        assert_eq!(migrate(&mut source_client, port, &["a", "0", "1000", "COPY"]), "OK");
        assert_eq!((get(&mut source_client, "a"), get(&mut target_client, "a")), (Some("1".into()), Some("1".into())));
        let busy = "ERR Target instance replied with error: BUSYKEY Target key name already exists.";
        assert_eq!(migrate(&mut source_client, port, &["a", "0", "1000"]), busy);
        assert_eq!(migrate(&mut source_client, port, &["", "0", "1000", "KEYS", "a", "b"]), busy);
        assert_eq!((get(&mut source_client, "a"), get(&mut source_client, "b")), (Some("1".into()), None));
        assert_eq!(migrate(&mut source_client, port, &["a", "0", "0", "replace"]), "OK");
        let syntax = "ERR syntax error";
        assert_eq!(migrate(&mut source_client, port, &["c", "0", "10", "AUTH"]), syntax);
        assert_eq!(migrate(&mut source_client, port, &["c", "0", "10", "AUTH2", "x"]), syntax);
        assert_eq!(migrate(&mut source_client, port, &["c", "0", "10", "what"]), syntax);
        let number = "ERR value is not an integer or out of range";
        assert_eq!(migrate(&mut source_client, port, &["c", "zero", "10"]), number);
        assert_eq!(migrate(&mut source_client, port, &["c", "0", "x"]), number);
        let empty = "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string";
        assert_eq!(migrate(&mut source_client, port, &["c", "0", "10", "KEYS", "a"]), empty);
        let range = "ERR Target instance replied with error: ERR DB index is out of range";
        assert_eq!(migrate(&mut source_client, port, &["c", "99", "1000"]), range);
        ask::<()>(&mut target_client, &["CONFIG", "SET", "requirepass", "secret"]).expect("a setting");
        let wrong =
            "ERR Target instance replied with error: WRONGPASS invalid username-password pair or user is disabled.";
        assert_eq!(migrate(&mut source_client, port, &["c", "0", "1000", "AUTH", "public"]), wrong);
        assert_eq!(migrate(&mut source_client, port, &["c", "0", "1000", "AUTH2", "default", "secret"]), "OK");
        ask::<()>(&mut source_client, &["SET", "d", "4"]).expect("a write");
        let refused = "IOERR error or timeout writing to target instance";
        assert_eq!(migrate(&mut source_client, 1, &["d", "0", "1000"]), refused);
        assert_eq!(reply(&mut source_client, &["MIGRATE", "127.0.0.1", "port", "d", "0", "1000"]), refused);
        let info: String = ask(&mut source_client, &["INFO", "stats"]).expect("a page");
        assert!(info.contains("migrate_cached_sockets:1\r\n"), "{info}");
    });
}

#[test]
fn a_cached_connection_that_was_closed_is_reopened() {
    for_workers(&[], |source| {
        let target = Server::start(&[]);
        let (mut source_client, mut target_client) = (source.client(), target.client());
        for key in ["a", "b"] {
            ask::<()>(&mut source_client, &["SET", key, "1"]).expect("a write");
            assert_eq!(migrate(&mut source_client, target.port(), &[key, "0", "5000"]), "OK");
            ask::<i64>(&mut target_client, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect("a number");
        }
        assert_eq!(get(&mut target_client, "b").as_deref(), Some("1"));
    });
}

#[test]
fn a_transaction_may_contain_migrate() {
    for_workers(&[], |source| {
        let target = Server::start(&[]);
        let (mut source_client, mut target_client) = (source.client(), target.client());
        let port = target.port().to_string();
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("SET").arg("a").arg("1");
        pipe.cmd("MIGRATE").arg(&["127.0.0.1", &port, "a", "0", "5000"][..]).cmd("EXISTS").arg("a");
        let replies: (String, String, i64) = pipe.query(&mut source_client).expect("replies");
        assert_eq!(replies, ("OK".into(), "OK".into(), 0));
        assert_eq!(get(&mut target_client, "a").as_deref(), Some("1"));
    });
}

#[test]
fn migrating_to_the_same_server_keeps_the_keys() {
    for_workers(&[], |server| {
        let mut client = server.client();
        ask::<()>(&mut client, &["SET", "a", "1"]).expect("a write");
        let reply = migrate(&mut client, server.port(), &["a", "0", "5000", "REPLACE"]);
        assert_eq!(reply, "IOERR the target instance is this one");
        assert_eq!(get(&mut client, "a").as_deref(), Some("1"));
        // Into another database is another matter.
        assert_eq!(migrate(&mut client, server.port(), &["a", "2", "5000"]), "OK");
        assert_eq!(get(&mut client, "a"), None);
        ask::<()>(&mut client, &["SELECT", "2"]).expect("a database");
        assert_eq!(get(&mut client, "a").as_deref(), Some("1"));
    });
}

/// A target that lets `during` run between what it was sent and its answers.
struct Slow {
    listener: TcpListener,
}

impl Slow {
    fn new() -> Slow {
        Slow { listener: TcpListener::bind(("127.0.0.1", 0)).expect("a free port") }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }

    /// Answers each of `rounds` RESTOREs or DELs after the next run of `during`; the requests' beginnings.
    fn serve(&self, rounds: usize, mut during: impl FnMut(usize)) -> Vec<String> {
        let mut stream = accept(&self.listener).expect("a connection");
        let mut seen = Vec::new();
        let read = |stream: &mut TcpStream, wanted: &[&str]| {
            let mut bytes = vec![0; 65536];
            let n = stream.read(&mut bytes).expect("a request");
            let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
            assert!(wanted.iter().any(|word| text.contains(word)), "{text}");
            text
        };
        read(&mut stream, &["SELECT"]);
        stream.write_all(b"+OK\r\n").expect("an open connection");
        for round in 0..rounds {
            seen.push(read(&mut stream, &["RESTORE", "DEL"]));
            during(round);
            stream.write_all(b"+OK\r\n").expect("an open connection");
        }
        seen
    }
}

#[test]
fn values_are_compressed_unless_rdbcompression_is_off() {
    for_workers(&[], |source| {
        let (mut client, value) = (source.client(), "x".repeat(2000));
        for (setting, is_plain) in [("no", true), ("yes", false)] {
            let slow = Slow::new();
            let port = slow.port();
            ask::<()>(&mut client, &["CONFIG", "SET", "rdbcompression", setting]).expect("a setting");
            ask::<()>(&mut client, &["SET", "a", &value]).expect("a write");
            std::thread::scope(|scope| {
                let target = scope.spawn(|| slow.serve(1, |_| ()));
                assert_eq!(migrate(&mut client, port, &["a", "0", "10000"]), "OK");
                let seen = target.join().expect("the target");
                assert_eq!(seen[0].contains(&value), is_plain, "{seen:?}");
            });
        }
    });
}

#[test]
fn keys_changed_during_migration_are_resent_and_deleted_ones_removed() {
    for_workers(&[], |source| {
        let (slow, mut source_client) = (Slow::new(), source.client());
        ask::<()>(&mut source_client, &["SET", "a", "1"]).expect("a write");
        let port = slow.port();
        let migrating =
            |mut client: Connection| std::thread::spawn(move || migrate(&mut client, port, &["a", "0", "9000"]));
        let waiting = migrating(source.client());
        let requests = slow.serve(3, |round| match round {
            0 => ask::<()>(&mut source_client, &["SET", "a", "2"]).expect("a write"),
            1 => ask::<()>(&mut source_client, &["DEL", "a"]).expect("a write"),
            _ => {}
        });
        assert_eq!(waiting.join().expect("no panic"), "OK");
        assert!(!requests[0].contains("REPLACE") && requests[1].contains("REPLACE") && requests[2].contains("DEL"));
        assert_eq!(get(&mut source_client, "a"), None);
    });
}

#[test]
fn a_constantly_changing_key_is_not_migrated() {
    for_workers(&[], |source| {
        let (slow, mut source_client) = (Slow::new(), source.client());
        ask::<()>(&mut source_client, &["SET", "a", "0"]).expect("a write");
        let (port, mut client) = (slow.port(), source.client());
        let waiting = std::thread::spawn(move || migrate(&mut client, port, &["a", "0", "9000"]));
        let requests = slow.serve(9, |_| ask::<()>(&mut source_client, &["INCR", "a"]).expect("a write"));
        let reply = waiting.join().expect("no panic");
        assert!(reply.starts_with("ERR Keys changed again and again"), "{reply}");
        assert!(requests[7].contains("RESTORE") && requests[8].contains("DEL"), "the target keeps no old value");
        assert_eq!(get(&mut source_client, "a").as_deref(), Some("9"));
    });
}

#[test]
fn an_outdated_value_does_not_stay_on_a_target_that_fails() {
    for_workers(&[], |source| {
        let (slow, mut source_client) = (Slow::new(), source.client());
        for change in [&["SET", "a", "2"][..], &["DEL", "a"]] {
            ask::<()>(&mut source_client, &["SET", "a", "1"]).expect("a write");
            let (port, mut client) = (slow.port(), source.client());
            let waiting = std::thread::spawn(move || migrate(&mut client, port, &["a", "0", "9000"]));
            // The connection breaks after the first answer, and the next one before an answer.
            slow.serve(1, |_| ask::<()>(&mut source_client, change).expect("a write"));
            slow.serve(0, |_| ());
            let requests = slow.serve(1, |_| ());
            assert!(requests[0].contains("DEL") && !requests[0].contains("RESTORE"), "{requests:?}");
            let reply = waiting.join().expect("no panic");
            assert!(reply.starts_with("IOERR error or timeout "), "{reply}");
            assert_eq!(get(&mut source_client, "a").as_deref(), change.get(2).copied());
        }
    });
}

#[test]
fn a_silent_target_blocks_only_the_migrating_client() {
    for_workers(&[], |source| {
        let (slow, mut source_client) = (Slow::new(), source.client());
        ask::<()>(&mut source_client, &["SET", "a", "1"]).expect("a write");
        let (port, mut leaving) = (slow.port().to_string(), source.raw());
        leaving.request(&["MIGRATE", "127.0.0.1", &port, "a", "0", "9000"]);
        let mut leaving = Some(leaving);
        slow.serve(1, |_| {
            let began = Instant::now();
            let mut waits =
                || ask::<String>(&mut source_client, &["CLIENT", "LIST"]).expect("a list").contains("cmd=migrate");
            wait_until("the client is seen to wait", &mut waits);
            drop(leaving.take());
            wait_until("it is gone", || !waits());
            assert_eq!(get(&mut source_client, "a").as_deref(), Some("1"));
            assert!(began.elapsed() < Duration::from_secs(5));
        });
        // The key has arrived, whichever client requested it.
        wait_until("the key is gone", || get(&mut source_client, "a").is_none());
        // The silence of a target ends the wait.
        ask::<()>(&mut source_client, &["SET", "b", "1"]).expect("a write");
        let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = silent.local_addr().expect("an address").port();
        assert_eq!(
            migrate(&mut source_client, port, &["b", "0", "50"]),
            "IOERR error or timeout reading to target instance"
        );
        assert_eq!(get(&mut source_client, "b").as_deref(), Some("1"));
    });
}

#[test]
fn no_write_is_lost_during_migration() {
    const KEYS: usize = 64;
    const WRITES_MAX: usize = 4000;
    for_workers(&[], |source| {
        let target = Server::start(&["--io-threads", "2"]);
        let mut client = source.client();
        (0..KEYS).for_each(|n| ask::<()>(&mut client, &["RPUSH", &format!("k{n}"), "x"]).expect("a write"));
        let written: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(1)).collect();
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (written, mut client) = (&written, source.client());
                scope.spawn(move || {
                    for n in (0..WRITES_MAX).map(|n| (n * (1 + 2 * writer)) % KEYS) {
                        // Nothing is made anew where a key has gone.
                        let len: usize = ask(&mut client, &["LPUSHX", &format!("k{n}"), "x"]).expect("a number");
                        written[n].fetch_add(usize::from(len > 0), Ordering::Relaxed);
                    }
                });
            }
            for n in 0..KEYS {
                // Those that change too often are tried again.
                let deadline = Deadline::of("the key has moved");
                while migrate(&mut client, target.port(), &[&format!("k{n}"), "0", "5000", "REPLACE"]) != "OK" {
                    deadline.check();
                }
            }
        });
        assert_eq!(ask::<usize>(&mut client, &["DBSIZE"]).expect("a number"), 0);
        let mut target_client = target.client();
        for (n, written) in written.iter().enumerate() {
            let len: usize = ask(&mut target_client, &["LLEN", &format!("k{n}")]).expect("a number");
            assert_eq!(len, written.load(Ordering::Relaxed), "key {n}");
        }
    });
}

#[test]
fn concurrent_migrations_move_a_key_once() {
    for_workers(&[], |source| {
        let target = Server::start(&[]);
        let (mut source_client, mut target_client) = (source.client(), target.client());
        for round in 0..50 {
            ask::<()>(&mut source_client, &["SET", "a", &round.to_string()]).expect("a write");
            let moves = |mut client: Connection| {
                let port = target.port();
                move || migrate(&mut client, port, &["a", "0", "5000", "REPLACE"])
            };
            let reply = std::thread::scope(|scope| {
                let both = [scope.spawn(moves(source.client())), scope.spawn(moves(source.client()))];
                both.map(|one| one.join().expect("no panic"))
            });
            assert!(
                reply.contains(&"OK".into()) && reply.iter().all(|reply| reply == "OK" || reply == "NOKEY"),
                "{reply:?}"
            );
            assert_eq!((get(&mut source_client, "a"), get(&mut target_client, "a")), (None, Some(round.to_string())));
        }
    });
}

#[test]
fn keys_migrate_to_valkey() {
    let Some(program) = programs::valkey_server((9, 0)) else { return };
    let valkey = servers::Server::start(&program, &[]);
    let client = redis::Client::open(format!("redis://{}/", valkey.endpoint())).expect("an address");
    for_workers(&[], |source| {
        let mut connection = client.get_connection().expect("a connection");
        assert_all_types_migrate(source, &mut connection, valkey.port());
        ask::<()>(&mut connection, &["FLUSHALL"]).expect("a flush");
    });
}
