//! Dumps exchanged with Valkey and Redis in both directions, without loss; and a chain of servers in which Kvick
//! replicates from one of them and to another.
//!
//! Variables name the programs of the servers: `KVICK_TEST_VALKEY` (Valkey 9), `KVICK_TEST_VALKEY_8` (Valkey 8.1),
//! `KVICK_TEST_REDIS` (Redis 8) and `KVICK_TEST_REDIS_7` (Redis 7.0). If one is not set, its tests print so and pass.
//! `.ci/peers` downloads them all. `KVICK_STRESS_SECONDS` sets the duration of the chain test; the other variables of
//! `random.rs` apply here too.

mod common;

use common::compare::{self, assert_same as assert_same_data, contents as all_contents, info};
use common::peer::Running;
use common::vocabulary::{Random, Request, Vocabulary};
use common::wire::{Reply, Wire};
use common::{Server, wait_until};
use redis::{Connection, Value, cmd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server that somebody else wrote.
struct Peer {
    /// The variable that names its program.
    variable: &'static str,
    /// Whether its hashes know fields that expire.
    field_expiry: bool,
    /// Whether it computes DEBUG DIGEST-VALUE as Valkey does.
    same_digest: bool,
    /// Whether small lists and small sets of words are listpacks there, as of Redis 7.2.
    small_listpacks: bool,
    /// The newest dump format that it reads of those that this server writes, if any: a value of `rdb-save-version`.
    reads: Option<&'static str>,
}

const PEERS: [Peer; 4] = [
    Peer {
        variable: "KVICK_TEST_VALKEY",
        field_expiry: true,
        same_digest: true,
        small_listpacks: true,
        reads: Some("80"),
    },
    Peer {
        variable: "KVICK_TEST_VALKEY_8",
        field_expiry: false,
        same_digest: true,
        small_listpacks: true,
        reads: Some("11"),
    },
    Peer {
        variable: "KVICK_TEST_REDIS",
        field_expiry: true,
        same_digest: false,
        small_listpacks: true,
        reads: Some("11"),
    },
    // Writes version 10 of the format, and reads nothing newer.
    Peer {
        variable: "KVICK_TEST_REDIS_7",
        field_expiry: false,
        same_digest: false,
        small_listpacks: false,
        reads: None,
    },
];

fn ask(client: &mut Connection, line: &str) -> Value {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(client).unwrap_or_else(|error| panic!("{}: {error}", &line[..line.len().min(100)]))
}

/// A value of every type in every encoding. What expires does so long after the test.
fn fill(client: &mut Connection, field_expiry: bool) {
    let list = |of: &dyn Fn(usize) -> String, n| (0..n).map(of).collect::<Vec<_>>().join(" ");
    let word: &dyn Fn(usize) -> String = &|i| format!("word-{i}");
    let number: &dyn Fn(usize) -> String = &|i| (i * i * 7919).to_string();
    ask(client, "SET string:text text");
    for (n, integer) in ["0", "-1", "127", "32767", "-32769", "2147483648", "-9223372036854775808"].iter().enumerate() {
        ask(client, &format!("SET string:int:{n} {integer}"));
    }
    ask(client, &format!("SET string:compressible {}", "abc".repeat(20_000)));
    ask(client, "SETBIT string:bits 1000 1");
    ask(client, "SET string:expiring soon PXAT 4000000000123");
    ask(client, &format!("PFADD hyperloglog:sparse {}", list(word, 50)));
    ask(client, &format!("PFADD hyperloglog:dense {}", list(word, 5000)));
    for (size, n) in [("small", 20), ("large", 3000)] {
        ask(client, &format!("RPUSH list:{size} {} {}", list(word, n), list(number, n)));
        ask(client, &format!("SADD set:integers:{size} {}", list(number, n)));
        ask(client, &format!("SADD set:words:{size} {}", list(word, n)));
        ask(client, &format!("HSET hash:{size} {}", list(word, 2 * n)));
        let scored = list(&|i| format!("{} member-{i}", (i as f64 - 10.0) / 3.0), n);
        ask(client, &format!("ZADD sorted:{size} {scored} -inf first inf last 1e300 far"));
        for i in 0..n / 10 {
            ask(client, &format!("XADD stream:{size} {}-{} number {i} other {}", i / 3 + 1, i % 3, i * i));
        }
        ask(client, &format!("XDEL stream:{size} 1-1"));
        ask(client, &format!("XGROUP CREATE stream:{size} readers 0"));
        ask(client, &format!("XREADGROUP GROUP readers somebody COUNT 1 STREAMS stream:{size} >"));
        ask(client, &format!("XGROUP CREATECONSUMER stream:{size} readers idle"));
    }
    ask(client, &format!("RPUSH list:plain {} short", "x".repeat(100_000)));
    ask(client, "SADD set:integers:wide 1 70000 9000000000");
    ask(client, "GEOADD places 13.361389 38.115556 Palermo 15.087269 37.502669 Catania");
    ask(client, "SELECT 3");
    ask(client, "SET elsewhere value");
    ask(client, "SELECT 0");
    if field_expiry {
        ask(client, "HSET hash:expiring lasting 1 passing 2 later 3");
        ask(client, "HPEXPIREAT hash:expiring 4000000000456 FIELDS 1 passing");
        ask(client, "HPEXPIREAT hash:expiring 4000000000789 FIELDS 1 later");
    }
}

/// The contents and encodings of all keys, in an order that does not depend on the server.
fn contents(client: &mut Connection, peer: &Peer) -> Vec<String> {
    let mut keys: Vec<String> = cmd("KEYS").arg("*").query(client).expect("keys");
    keys.sort();
    let mut seen = vec![format!("{:?}", ask(client, "DBSIZE"))];
    for key in keys {
        let kind: String = cmd("TYPE").arg(&key).query(client).expect("a type");
        let (command, in_order) = match &*kind {
            "string" => ("GET {}", true),
            "list" => ("LRANGE {} 0 -1", true),
            "set" => ("SMEMBERS {}", false),
            "hash" => ("HGETALL {}", false),
            "zset" => ("ZRANGE {} 0 -1 WITHSCORES", true),
            "stream" => ("XRANGE {} - +", true),
            other => panic!("{key} is of type {other}"),
        };
        let mut value = ask(client, &command.replace("{}", &key));
        if let (Value::Array(elements), false) = (&mut value, in_order) {
            elements.sort_by_key(|element| format!("{element:?}"));
        }
        if kind == "zset" {
            // Redis 7.0 prints scores with 17 digits, later versions with as few as tell them apart.
            let scores: Vec<(String, f64)> = redis::from_redis_value(value).expect("members with scores");
            seen.push(format!("{key}: {scores:?}"));
        } else {
            seen.push(format!("{key}: {value:?}"));
        }
        seen.push(format!("{key}: {:?}", ask(client, &format!("PEXPIRETIME {key}"))));
        // How strings are held may differ: one that was compressed in a dump is raw in some servers afterwards. So may
        // hashes with fields that expire, for which Redis has encodings of its own.
        let is_other = matches!(&*kind, "list" | "set") && !peer.small_listpacks;
        if kind != "string" && key != "hash:expiring" && !is_other {
            seen.push(format!("{key}: {:?}", ask(client, &format!("OBJECT ENCODING {key}"))));
        }
        if kind == "stream" {
            seen.push(format!("{key}: {:?}", ask(client, &format!("XINFO GROUPS {key}"))));
            seen.push(format!("{key}: {:?}", ask(client, &format!("XPENDING {key} readers"))));
        }
        if key == "hash:expiring" {
            let line = "HPEXPIRETIME hash:expiring FIELDS 3 lasting passing later";
            seen.push(format!("{key}: {:?}", ask(client, line)));
        }
        if peer.same_digest {
            seen.push(format!("{key}: {:?}", ask(client, &format!("DEBUG DIGEST-VALUE {key}"))));
        }
    }
    seen
}

/// The first line that differs, if any, cut to what a person reads.
fn assert_same(peer_server: &[String], own_server: &[String], what: &str) {
    assert_eq!(peer_server.len(), own_server.len(), "{what}");
    let cut = |text: &str| text.chars().take(300).collect::<String>();
    for (their, our) in peer_server.iter().zip(own_server) {
        assert!(their == our, "{what}: they say {}\nwe say {}", cut(their), cut(our));
    }
}

fn start(data_dir: &Path, args: &[&str]) -> Server {
    let data_dir = data_dir.to_str().expect("a plain name");
    let debug = ["--enable-debug-command", "yes", "--rdb-version-check", "relaxed", "--dir", data_dir];
    Server::start(&[&debug[..], args].concat())
}

#[test]
fn dumps_are_exchanged_with_other_servers() {
    for peer in PEERS {
        let Ok(program) = std::env::var(peer.variable) else {
            println!("{} is not set: no dumps are exchanged with that server", peer.variable);
            continue;
        };
        for workers in ["1", "4"] {
            let data_dir = TempDir::new().expect("a directory");
            let peer_server = Running::start(&program, data_dir.path(), &[]);
            let mut client = peer_server.client();
            fill(&mut client, peer.field_expiry);
            let expected = contents(&mut client, &peer);
            ask(&mut client, "SAVE");
            drop(peer_server);

            let own_server = start(data_dir.path(), &["--io-threads", workers]);
            let mut client = own_server.client();
            assert_same(&expected, &contents(&mut client, &peer), peer.variable);
            assert_eq!(ask(&mut client, "SELECT 3"), Value::Okay);
            assert_eq!(cmd("GET").arg("elsewhere").query::<String>(&mut client).as_deref(), Ok("value"));
            ask(&mut client, "SELECT 0");
            let Some(version) = peer.reads else { continue };
            if version != "80" {
                // Older formats have no form for fields that expire.
                ask(&mut client, "DEL hash:expiring");
            }
            ask(&mut client, &format!("CONFIG SET rdb-save-version {version}"));
            let expected = contents(&mut client, &peer);
            ask(&mut client, "SAVE");
            drop(own_server);

            let peer_server = Running::start(&program, data_dir.path(), &[]);
            assert_same(&contents(&mut peer_server.client(), &peer), &expected, peer.variable);
        }
    }
}

#[test]
fn function_libraries_are_exchanged_with_other_servers() {
    const LIBRARY: &str = "#!lua name=greetings\nserver.register_function('greet', function() return 'hello' end)";
    let Ok(program) = std::env::var(PEERS[0].variable) else {
        println!("{} is not set: no functions are exchanged with that server", PEERS[0].variable);
        return;
    };
    let data_dir = TempDir::new().expect("a directory");
    let peer_server = Running::start(&program, data_dir.path(), &[]);
    let mut client = peer_server.client();
    let name: String = cmd("FUNCTION").arg("LOAD").arg(LIBRARY).query(&mut client).expect("a library");
    assert_eq!(name, "greetings");
    ask(&mut client, "SET key value");
    ask(&mut client, "SAVE");
    drop(peer_server);

    let own_server = start(data_dir.path(), &[]);
    let mut client = own_server.client();
    ask(&mut client, "DEBUG RELOAD");
    ask(&mut client, "DEBUG RELOAD NOFLUSH MERGE");
    assert_eq!(cmd("FCALL").arg("greet").arg(0).query::<String>(&mut client).as_deref(), Ok("hello"));
    ask(&mut client, "SET key changed");
    ask(&mut client, "SAVE");
    drop(own_server);

    let peer_server = Running::start(&program, data_dir.path(), &[]);
    let mut client = peer_server.client();
    assert_eq!(cmd("FCALL").arg("greet").arg(0).query::<String>(&mut client).as_deref(), Ok("hello"));
    assert_eq!(cmd("GET").arg("key").query::<String>(&mut client).as_deref(), Ok("changed"));
}

/// Duration of the changes before data are compared.
const ROUND: Duration = Duration::from_secs(15);
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Runs a command, the words of which are its arguments.
const SCRIPT: &str = "return redis.pcall(unpack(ARGV))";

/// Sends changes to a server, some of them in transactions and scripts, until the time has come; how many.
fn change(port: u16, vocabulary: &Vocabulary, mut random: Random, stop: &AtomicBool) -> u64 {
    let mut wire = Wire::connect(port, WAIT_LIMIT).expect("a connection");
    let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Request>();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut requests = Vec::new();
        for _ in 0..1 + random.below(10) {
            let (shape, request) = vocabulary.command(&mut random);
            // What Valkey finds in a polygon around a pole is left to chance.
            let polygon = request.iter().any(|word| word.eq_ignore_ascii_case(b"BYPOLYGON"));
            if polygon || shape.name.starts_with("flush") && !random.percent(1) {
                continue;
            }
            match random.below(20) {
                0 => requests.extend([words("MULTI"), request]),
                1 => requests.push(words("EXEC")),
                2 => {
                    let mut script = vec![b"EVAL".to_vec(), SCRIPT.into(), b"0".to_vec()];
                    script.extend(request);
                    requests.push(script);
                }
                _ => requests.push(request),
            }
        }
        let token = random.word().to_string();
        requests.extend([words("EXEC"), words(&format!("ECHO {token}"))]);
        wire.send(&requests).expect("a connection that takes bytes");
        while wire.read().unwrap_or_else(|error| panic!("{error} after {requests:?}"))
            != Reply::Bulk(token.clone().into())
        {}
        sent += requests.len() as u64;
    }
    sent
}

#[test]
fn a_chained_replica_between_other_servers_forwards_all_changes() {
    let Ok(program) = std::env::var(PEERS[0].variable) else {
        println!("{} is not set: no changes are exchanged with that server", PEERS[0].variable);
        return;
    };
    let data_dirs = [(); 3].map(|()| compare::data_dir());
    let options = ["--proto-max-bulk-len", "1mb", "--repl-diskless-sync-delay", "0", "--appendonly", "yes"];
    let first = Running::start(&program, data_dirs[0].path(), &options);
    first.client();
    let follow = |port: u16| {
        [&options[..], &["--replicaof", "127.0.0.1"]]
            .concat()
            .into_iter()
            .map(str::to_string)
            .chain([port.to_string()])
            .collect::<Vec<_>>()
    };
    let args = follow(first.port());
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--io-threads", "4"]).collect();
    let own_server = start(data_dirs[1].path(), &args);
    let args = follow(own_server.port());
    let last = Running::start(&program, data_dirs[2].path(), &args.iter().map(String::as_str).collect::<Vec<_>>());
    last.client();
    for port in [own_server.port(), last.port()] {
        wait_until("it follows", || info(port, "replication", "master_link_status") == "up");
    }

    let mut wire = Wire::connect(first.port(), WAIT_LIMIT).expect("a connection");
    let vocabulary = Vocabulary::load(&mut wire).expect("a table");
    let vocabulary =
        vocabulary.filtered(|shape| shape.is_about_data() && !["pfselftest", "keys"].contains(&&*shape.name));
    assert!(vocabulary.len() > 180, "the table has only {} commands", vocabulary.len());
    let seconds = std::env::var("KVICK_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    let (began, time) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(3)));
    let seed = std::env::var("KVICK_RANDOM_SEED").ok().and_then(|text| text.parse().ok());
    let (mut seed, sent) = (seed.unwrap_or(u64::from(std::process::id()) << 20), AtomicU64::new(0));
    while began.elapsed() < time {
        println!("KVICK_RANDOM_SEED={seed}");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (vocabulary, stop, sent, port) = (&vocabulary, &stop, &sent, first.port());
                scope.spawn(move || {
                    sent.fetch_add(change(port, vocabulary, Random(seed + number), stop), Ordering::Relaxed)
                });
            }
            std::thread::sleep(ROUND.min(time.saturating_sub(began.elapsed())));
            stop.store(true, Ordering::Relaxed);
        });
        seed += 1000;
        compare::settle(first.port());
        let expected = all_contents(first.port());
        for (what, port) in [("the server between", own_server.port()), ("the last server", last.port())] {
            let offset = |port| info(port, "replication", "master_repl_offset");
            wait_until("all has arrived", || offset(port) == offset(first.port()));
            assert_same_data(what, &expected, port);
        }
    }
    println!("{sent:?} changes");
    assert!(sent.into_inner() > 100);
    assert_eq!(info(own_server.port(), "stats", "sync_full"), "1", "the last server began once");
}
