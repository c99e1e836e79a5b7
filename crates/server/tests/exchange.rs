//! Dumps exchanged with the servers that others wrote: what they saved is read here, and what was saved here is read
//! there, with nothing lost on the way.
//!
//! The servers are found through variables, each naming a program: `KVICK_TEST_VALKEY` (Valkey 9), `KVICK_TEST_VALKEY_8`
//! (Valkey 8.1) and `KVICK_TEST_REDIS` (Redis 8). One that is not set is said to be absent, and left out. `.ci/peers`
//! fetches them all.

mod common;

use common::Server;
use common::peer::Running;
use redis::{Connection, Value, cmd};
use std::path::Path;
use tempfile::TempDir;

/// A server that somebody else wrote.
struct Peer {
    /// The variable that names its program.
    variable: &'static str,
    /// Whether its hashes know fields that expire.
    field_expiry: bool,
    /// Whether it computes DEBUG DIGEST-VALUE as Valkey does.
    same_digest: bool,
    /// Whether it reads the dumps of this server as they are written by default.
    reads_ours: bool,
}

const PEERS: [Peer; 3] = [
    Peer { variable: "KVICK_TEST_VALKEY", field_expiry: true, same_digest: true, reads_ours: true },
    Peer { variable: "KVICK_TEST_VALKEY_8", field_expiry: false, same_digest: true, reads_ours: false },
    Peer { variable: "KVICK_TEST_REDIS", field_expiry: true, same_digest: false, reads_ours: false },
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

/// What is in all keys, and how it is encoded, in an order that does not depend on the server.
fn contents(client: &mut Connection, digests: bool) -> Vec<String> {
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
        seen.push(format!("{key}: {value:?}"));
        seen.push(format!("{key}: {:?}", ask(client, &format!("PEXPIRETIME {key}"))));
        // How strings are held may differ: one that was compressed in a dump is raw in some servers afterwards. So may
        // hashes with fields that expire, for which Redis has encodings of its own.
        if kind != "string" && key != "hash:expiring" {
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
        if digests {
            seen.push(format!("{key}: {:?}", ask(client, &format!("DEBUG DIGEST-VALUE {key}"))));
        }
    }
    seen
}

/// The first line that differs, if any, cut to what a person reads.
fn assert_same(theirs: &[String], ours: &[String], what: &str) {
    assert_eq!(theirs.len(), ours.len(), "{what}");
    let cut = |text: &str| text.chars().take(300).collect::<String>();
    for (their, our) in theirs.iter().zip(ours) {
        assert!(their == our, "{what}: they say {}\nwe say {}", cut(their), cut(our));
    }
}

fn start(folder: &Path, args: &[&str]) -> Server {
    let folder = folder.to_str().expect("a plain name");
    let debug = ["--enable-debug-command", "yes", "--rdb-version-check", "relaxed", "--dir", folder];
    Server::start(&[&debug[..], args].concat())
}

#[test]
fn what_others_saved_is_read_and_what_is_saved_here_is_read_by_others() {
    for peer in PEERS {
        let Ok(program) = std::env::var(peer.variable) else {
            println!("{} is not set: no dumps are exchanged with that server", peer.variable);
            continue;
        };
        for workers in ["1", "4"] {
            let folder = TempDir::new().expect("a folder");
            let theirs = Running::start(&program, folder.path(), &[]);
            let mut client = theirs.client();
            fill(&mut client, peer.field_expiry);
            let expected = contents(&mut client, peer.same_digest);
            ask(&mut client, "SAVE");
            drop(theirs);

            let ours = start(folder.path(), &["--io-threads", workers]);
            let mut client = ours.client();
            assert_same(&expected, &contents(&mut client, peer.same_digest), peer.variable);
            assert_eq!(ask(&mut client, "SELECT 3"), Value::Okay);
            assert_eq!(cmd("GET").arg("elsewhere").query::<String>(&mut client).as_deref(), Ok("value"));
            ask(&mut client, "SELECT 0");
            if !peer.reads_ours {
                // These read what older servers wrote, which has no form for fields that expire.
                ask(&mut client, "DEL hash:expiring");
                ask(&mut client, "CONFIG SET rdb-save-version 11");
            }
            let expected = contents(&mut client, peer.same_digest);
            ask(&mut client, "SAVE");
            drop(ours);

            let theirs = Running::start(&program, folder.path(), &[]);
            assert_same(&contents(&mut theirs.client(), peer.same_digest), &expected, peer.variable);
        }
    }
}

#[test]
fn function_libraries_are_called_wherever_they_were_loaded() {
    const LIBRARY: &str = "#!lua name=greetings\nserver.register_function('greet', function() return 'hello' end)";
    let Ok(program) = std::env::var(PEERS[0].variable) else {
        println!("{} is not set: no functions are exchanged with that server", PEERS[0].variable);
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let theirs = Running::start(&program, folder.path(), &[]);
    let mut client = theirs.client();
    let name: String = cmd("FUNCTION").arg("LOAD").arg(LIBRARY).query(&mut client).expect("a library");
    assert_eq!(name, "greetings");
    ask(&mut client, "SET key value");
    ask(&mut client, "SAVE");
    drop(theirs);

    let ours = start(folder.path(), &[]);
    let mut client = ours.client();
    ask(&mut client, "DEBUG RELOAD");
    ask(&mut client, "DEBUG RELOAD NOFLUSH MERGE");
    assert_eq!(cmd("FCALL").arg("greet").arg(0).query::<String>(&mut client).as_deref(), Ok("hello"));
    ask(&mut client, "SET key changed");
    ask(&mut client, "SAVE");
    drop(ours);

    let theirs = Running::start(&program, folder.path(), &[]);
    let mut client = theirs.client();
    assert_eq!(cmd("FCALL").arg("greet").arg(0).query::<String>(&mut client).as_deref(), Ok("hello"));
    assert_eq!(cmd("GET").arg("key").query::<String>(&mut client).as_deref(), Ok("changed"));
}
