//! The guarantees that clients rely on, tested with a common client library: values of every kind and size, both
//! protocols, deep pipelines, and atomic commands.

mod common;

use common::{Server, for_workers};
use kvick_testing::SetOnDrop;
use redis::{Connection, FromRedisValue, Value, cmd, pipe};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

const MB: usize = 1024 * 1024;

/// Sends a command and returns what it answers.
fn ask<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    cmd(words[0]).arg(&words[1..]).query(connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Sends a command and checks the answer.
#[track_caller]
fn check<T: FromRedisValue + PartialEq + Debug>(connection: &mut Connection, words: &[&str], expected: T) {
    assert_eq!(ask::<T>(connection, words), expected, "{words:?}");
}

/// All bytes that there are.
fn all_bytes() -> Vec<u8> {
    (0..=255).collect()
}

/// Runs a test with connections of both protocols.
fn for_protocols(test: impl Fn(&Server, &mut Connection)) {
    for_workers(&[], |server| {
        test(server, &mut server.client());
        let mut connection = server.client_resp3();
        check(&mut connection, &["FLUSHALL"], "OK".to_string());
        test(server, &mut connection);
    });
}

#[test]
fn string_commands_work() {
    for_protocols(|_, connection| {
        check(connection, &["SET", "k", "value", "NX"], "OK".to_string());
        check(connection, &["SET", "k", "other", "NX"], None::<String>);
        check(connection, &["SET", "k", "newer", "GET"], "value".to_string());
        check(connection, &["APPEND", "k", "!"], 6);
        check(connection, &["GETRANGE", "k", "-3", "-1"], "er!".to_string());
        check(connection, &["SETRANGE", "k", "8", "x"], 9);
        check(connection, &["GET", "k"], b"newer!\0\0x".to_vec());
        check(connection, &["STRLEN", "k"], 9);
        check(connection, &["GETDEL", "k"], b"newer!\0\0x".to_vec());
        check(connection, &["INCRBY", "n", "40"], 40);
        check(connection, &["DECR", "n"], 39);
        check(connection, &["INCRBYFLOAT", "n", "0.5"], "39.5".to_string());
        check(connection, &["MSET", "a", "1", "b", "2"], "OK".to_string());
        check(connection, &["MGET", "a", "nothing", "b"], (Some(1), None::<i32>, Some(2)));
        check(connection, &["LCS", "a", "a", "LEN"], 1);
    });
}

#[test]
fn bitmap_and_hyperloglog_commands_work() {
    for_protocols(|_, connection| {
        check(connection, &["SETBIT", "bits", "100", "1"], 0);
        check(connection, &["SETBIT", "bits", "7", "1"], 0);
        check(connection, &["GETBIT", "bits", "100"], 1);
        check(connection, &["BITCOUNT", "bits"], 2);
        check(connection, &["BITPOS", "bits", "1"], 7);
        check(connection, &["BITOP", "NOT", "inverse", "bits"], 13);
        check(connection, &["BITCOUNT", "inverse"], 102);
        check(connection, &["BITFIELD", "bits", "SET", "u8", "0", "255", "GET", "i8", "0"], vec![1, -1]);
        let elements: Vec<String> = (0..1000).map(|n| format!("element {n}")).collect();
        let (first, second) = elements.split_at(700);
        for (key, part) in [("one", first), ("other", second)] {
            let changed: i32 = cmd("PFADD").arg(key).arg(part).query(connection).expect("a number");
            assert_eq!(changed, 1);
        }
        check(connection, &["PFMERGE", "both", "one", "other"], "OK".to_string());
        let counted: i64 = ask(connection, &["PFCOUNT", "both"]);
        assert!((counted - 1000).abs() < 30, "{counted}");
        check(connection, &["PFCOUNT", "one", "other"], counted);
    });
}

#[test]
fn key_commands_work() {
    for_protocols(|_, connection| {
        check(connection, &["SET", "k", "v", "EX", "100"], "OK".to_string());
        let ttl: i64 = ask(connection, &["PTTL", "k"]);
        assert!((90_000..=100_000).contains(&ttl), "{ttl}");
        check(connection, &["PERSIST", "k"], 1);
        check(connection, &["TTL", "k"], -1);
        check(connection, &["PEXPIRE", "k", "1"], 1);
        common::wait_until("the key is gone", || ask::<i32>(connection, &["EXISTS", "k"]) == 0);
        check(connection, &["TTL", "k"], -2);
        let mut pairs = pipe();
        (0..500).for_each(|n| {
            pairs.cmd("SET").arg(format!("key:{n}")).arg(n).ignore();
        });
        let () = pairs.query(connection).expect("all set");
        let mut seen: Vec<String> = Vec::new();
        let mut cursor = "0".to_string();
        loop {
            let (next, part): (String, Vec<String>) = ask(connection, &["SCAN", &cursor, "MATCH", "key:*"]);
            seen.extend(part);
            if next == "0" {
                break;
            }
            cursor = next;
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 500);
        check(connection, &["RENAME", "key:7", "seven"], "OK".to_string());
        check(connection, &["COPY", "seven", "again", "DB", "3"], 1);
        check(connection, &["EXISTS", "key:7", "seven", "seven"], 2);
        check(connection, &["TYPE", "seven"], "string".to_string());
        check(connection, &["OBJECT", "ENCODING", "seven"], "int".to_string());
        check(connection, &["DBSIZE"], 500);
    });
}

#[test]
fn resp3_has_maps_and_nulls() {
    for_workers(&[], |server| {
        let mut connection = server.client_resp3();
        assert_eq!(ask::<Value>(&mut connection, &["GET", "nothing"]), Value::Nil);
        assert!(
            matches!(ask::<Value>(&mut connection, &["CONFIG", "GET", "port"]), Value::Map(pairs) if pairs.len() == 1)
        );
        assert!(matches!(ask::<Value>(&mut connection, &["INFO", "server"]), Value::VerbatimString { .. }));
        let mut old = server.client();
        assert!(matches!(ask::<Value>(&mut old, &["CONFIG", "GET", "port"]), Value::Array(pair) if pair.len() == 2));
        assert!(matches!(ask::<Value>(&mut old, &["INFO", "server"]), Value::BulkString(_)));
    });
}

#[test]
fn a_pipeline_of_10_000_is_answered_in_order() {
    const COMMANDS: usize = 10_000;
    for_protocols(|_, connection| {
        let mut pipeline = pipe();
        for n in 0..COMMANDS {
            match n % 2 {
                0 => pipeline.cmd("SET").arg(format!("key:{}", n % 100)).arg(n).arg("GET"),
                _ => pipeline.cmd("ECHO").arg(n),
            };
        }
        let replies: Vec<Option<usize>> = pipeline.query(connection).expect("all replies");
        let expected = (0..COMMANDS).map(|n| match n % 2 {
            0 => n.checked_sub(100),
            _ => Some(n),
        });
        assert!(replies.into_iter().eq(expected));
    });
}

#[test]
fn a_value_of_64_mb_round_trips() {
    for_workers(&[], |server| {
        let mut connection = server.client();
        let value: Vec<u8> = (0..64 * MB).map(|n| (n % 251) as u8).collect();
        let () = cmd("SET").arg("large").arg(&value).query(&mut connection).expect("set");
        let received: Vec<u8> = ask(&mut connection, &["GET", "large"]);
        assert!(received == value, "GET gives something else");
        let appended: usize = cmd("APPEND").arg("large").arg(&value[..MB]).query(&mut connection).expect("a length");
        assert_eq!(appended, 65 * MB);
        let edges = [(0, 10), (32 * MB - 3, 32 * MB + 3), (64 * MB - 100, 64 * MB + 99), (63 * MB, 65 * MB - 1)];
        for (first, last) in edges {
            let part: Vec<u8> = ask(&mut connection, &["GETRANGE", "large", &first.to_string(), &last.to_string()]);
            let expected = (first..=last).map(|n| if n < 64 * MB { n % 251 } else { (n - 64 * MB) % 251 } as u8);
            assert!(part.into_iter().eq(expected), "{first} to {last}");
        }
        check(&mut connection, &["STRLEN", "large"], 65 * MB);
        check(&mut connection, &["DEL", "large"], 1);
    });
}

#[test]
fn keys_and_values_are_binary_safe() {
    for_protocols(|_, connection| {
        let bytes = all_bytes();
        for byte in 0..=255u8 {
            let (key, value) = ([b'k', byte, byte], [byte, b'\r', b'\n', byte]);
            let () = cmd("SET").arg(&key).arg(&value).query(connection).expect("set");
        }
        for byte in 0..=255u8 {
            let received: Vec<u8> = cmd("GET").arg(&[b'k', byte, byte]).query(connection).expect("a value");
            assert_eq!(received, [byte, b'\r', b'\n', byte]);
        }
        let () = cmd("SET").arg(&bytes).arg(&bytes).query(connection).expect("set");
        assert_eq!(cmd("GET").arg(&bytes).query(connection), Ok(bytes.clone()));
        let () = cmd("SET").arg(b"").arg(b"").query(connection).expect("set");
        assert_eq!(cmd("GET").arg(b"").query(connection), Ok(Vec::<u8>::new()));
        let names: Vec<Vec<u8>> = ask(connection, &["KEYS", "*"]);
        assert!(names.contains(&bytes) && names.len() == 258);
    });
}

#[test]
fn databases_have_separate_keys() {
    for_protocols(|_, connection| {
        for db in 0..16 {
            check(connection, &["SELECT", &db.to_string()], "OK".to_string());
            check(connection, &["SET", "k", &format!("of {db}")], "OK".to_string());
        }
        for db in (0..16).rev() {
            check(connection, &["SELECT", &db.to_string()], "OK".to_string());
            check(connection, &["GET", "k"], format!("of {db}"));
        }
        check(connection, &["MOVE", "k", "5"], 0);
        check(connection, &["SWAPDB", "0", "9"], "OK".to_string());
        check(connection, &["GET", "k"], "of 9".to_string());
        check(connection, &["FLUSHDB"], "OK".to_string());
        check(connection, &["SELECT", "9"], "OK".to_string());
        check(connection, &["GET", "k"], "of 0".to_string());
    });
}

/// Every writer sets all keys to its own value; a reader of all keys must find equal values.
#[test]
fn mset_is_atomic() {
    // A prime, so that every step visits all of them.
    const KEYS: usize = 41;
    const WRITERS: usize = 4;
    const READERS: usize = 2;
    const ROUNDS: usize = 150;
    for_workers(&[], |server| {
        let done = AtomicBool::new(false);
        // Each client names the keys in an order of its own, so that locks taken in that order would block one another.
        let key = |client: usize, n: usize| format!("key:{}", (n * (2 * client + 1) + client) % KEYS);
        let set = |connection: &mut Connection, client: usize, value: &str| {
            let mut command = cmd("MSET");
            (0..KEYS).for_each(|n| {
                command.arg(key(client, n)).arg(value);
            });
            command.query::<()>(connection).expect("set");
        };
        set(&mut server.client(), 0, "first");
        let different = std::thread::scope(|scope| {
            let writing = SetOnDrop(&done);
            let write = |writer: usize| {
                let mut connection = server.client();
                (0..ROUNDS).for_each(|round| set(&mut connection, writer, &format!("{round} by {writer}")));
            };
            let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            let read = |reader: usize| {
                let mut connection = server.client();
                let mut seen = std::collections::HashSet::new();
                while !done.load(Ordering::Relaxed) {
                    let mut command = cmd("MGET");
                    (0..KEYS).for_each(|n| {
                        command.arg(key(reader, n));
                    });
                    let values: Vec<String> = command.query(&mut connection).expect("values");
                    assert!(values.iter().all(|value| *value == values[0]), "a torn MSET: {values:?}");
                    seen.insert(values[0].clone());
                }
                seen.len()
            };
            let readers: Vec<_> = (0..READERS).map(|reader| scope.spawn(move || read(reader + 3))).collect();
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
            drop(writing);
            readers.into_iter().map(|reader| reader.join().expect("no torn MSET")).sum::<usize>()
        });
        println!("readers saw {different} different states");
        assert!(different > READERS, "the readers did not read while others wrote");
    });
}

#[test]
fn concurrent_increments_add_up() {
    const CLIENTS: usize = 8;
    const TIMES: usize = 500;
    for_workers(&[], |server| {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    let mut connection = server.client();
                    if client % 2 == 0 {
                        let counts: Vec<i64> = (0..TIMES).map(|_| ask(&mut connection, &["INCR", "n"])).collect();
                        assert!(counts.is_sorted());
                    } else {
                        let mut pipeline = pipe();
                        for _ in 0..TIMES {
                            pipeline.cmd("INCR").arg("n");
                        }
                        let counts: Vec<i64> = pipeline.query(&mut connection).expect("counts");
                        assert!(counts.is_sorted());
                    }
                });
            }
        });
        check(&mut server.client(), &["GET", "n"], CLIENTS * TIMES);
    });
}
