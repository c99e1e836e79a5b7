//! The append-only file, end to end: acknowledged writes survive a crash at any moment; rewrites lose nothing; a
//! truncated file is repaired and a damaged one is refused; a full disk stops writes but no reads.
//!
//! `KVICK_CRASHES` sets the number of crashes (default: 10).

mod common;

use common::line::{digest, ok, persistence as info, refusal, run};
use common::{Server, journal, wait_until};
use kvick_testing::{SetOnDrop, output};
use redis::{Commands, Connection, Value, cmd};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Clients that write at a time.
const WRITERS: usize = 4;

/// A directory that outlives servers.
struct DataDir(TempDir);

impl DataDir {
    fn new() -> Self {
        DataDir(tempfile::tempdir().expect("a temporary directory"))
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let dir = self.0.path().to_str().expect("a plain path");
        [&["--dir", dir, "--enable-debug-command", "yes", "--appendonly", "yes"], args].concat()
    }

    fn start(&self, args: &[&str]) -> Server {
        Server::start(&self.args(args))
    }

    /// Runs the server until it exits; returns its exit code and output.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvick-server"));
        command.args(self.args(&["--port", "0", "--unixsocket", "socket", "--save", ""])).args(args);
        let output = output(&mut command);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn part(&self, name: &str) -> PathBuf {
        self.0.path().join("appendonlydir").join(name)
    }

    fn manifest(&self) -> String {
        fs::read_to_string(self.part("appendonly.aof.manifest")).expect("a manifest")
    }

    /// The names of the parts that the manifest lists as one of these types.
    fn parts(&self, kind: &str) -> Vec<String> {
        let manifest = self.manifest();
        let lines = manifest.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines.filter(|words| words[5] == kind).map(|words| words[1].to_string()).collect()
    }

    fn last_increment(&self) -> PathBuf {
        self.part(self.parts("i").last().expect("an increment"))
    }
}

fn wait_for_rewrite(client: &mut Connection) {
    wait_until("the rewrite is over", || {
        info(client, "aof_rewrite_in_progress") == "0" && info(client, "aof_rewrite_scheduled") == "0"
    });
}

/// Values of every type, in two databases.
fn fill(client: &mut Connection) {
    for line in [
        "SET text hello",
        "SET number 42",
        "SET bounded soon PXAT 99999999999999",
        "HSET hash a 1 b 2",
        "HSETEX hash PXAT 99999999999999 FIELDS 1 c 3",
        "XADD stream 5-1 a 1",
        "XADD stream 6-1 b 2 c 3",
        "XDEL stream 5-1",
        "XGROUP CREATE stream readers 0",
        "XGROUP CREATE stream idle $ ENTRIESREAD 2",
        "XGROUP CREATECONSUMER stream readers nobody",
        "XREADGROUP GROUP readers somebody COUNT 1 STREAMS stream >",
        "XADD empty 1-1 a 1",
        "XDEL empty 1-1",
        "ZADD scores 1.5 a -inf b 3e300 c",
        "SELECT 3",
        "SET elsewhere 1",
        "SELECT 0",
    ] {
        ok(client, line);
    }
    let words: Vec<String> = (0..700).map(|n| format!("word-{n}")).collect();
    ok(client, &format!("RPUSH list {}", words.join(" ")));
    ok(client, &format!("SADD set {}", words.join(" ")));
    ok(client, &format!("HSET large {}", words.join(" ")));
    let scored: Vec<String> = words.iter().enumerate().map(|(n, word)| format!("{} {word}", n % 5)).collect();
    ok(client, &format!("ZADD sorted {}", scored.join(" ")));
    ok(client, "SADD integers 1 2 300 70000");
}

#[test]
fn all_writes_survive_a_restart_in_every_file_format() {
    for (workers, preamble) in [("1", "yes"), ("4", "no")] {
        let data_dir = DataDir::new();
        let args = ["--io-threads", workers, "--aof-use-rdb-preamble", preamble];
        let server = data_dir.start(&args);
        let mut client = server.client();
        fill(&mut client);
        let before = digest(&mut client);
        ok(&mut client, "DEBUG LOADAOF");
        assert_eq!(digest(&mut client), before, "as commands");
        ok(&mut client, "BGREWRITEAOF");
        wait_for_rewrite(&mut client);
        ok(&mut client, "INCR number");
        let before = digest(&mut client);
        assert_eq!(
            data_dir.parts("b"),
            [format!("appendonly.aof.2.base.{}", if preamble == "yes" { "rdb" } else { "aof" })]
        );
        ok(&mut client, "DEBUG LOADAOF");
        assert_eq!(digest(&mut client), before, "behind a base");
        let summary =
            cmd("XINFO").arg("STREAM").arg("stream").arg("FULL").query::<Value>(&mut client).expect("a stream");
        drop(server);
        let server = data_dir.start(&args);
        let mut client = server.client();
        assert_eq!(digest(&mut client), before, "after the end");
        let again = cmd("XINFO").arg("STREAM").arg("stream").arg("FULL").query::<Value>(&mut client).expect("a stream");
        let counted = |value: &Value| format!("{value:?}").matches("pending").count();
        assert_eq!(counted(&summary), counted(&again));
    }
}

/// The acknowledged writes of each writer, by its number: the last counter and the last transaction.
type Acknowledged = BTreeMap<usize, (i64, i64)>;

/// Changes two keys at once.
const PAIR: &str = "redis.call('set', KEYS[1], ARGV[1]) redis.call('rpush', KEYS[2], ARGV[1])";

/// Writes until the server is gone: a counter, and two keys that must stay the same, by a transaction and by a script
/// in turn. The server has done at least what is returned.
fn write(server: &Server, number: usize, acknowledged: (i64, i64), stop: &AtomicBool) -> (i64, i64) {
    let Some(mut client) = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port()))
        .and_then(|client| client.get_connection())
        .ok()
    else {
        return acknowledged;
    };
    let (mut counted, mut paired) = acknowledged;
    for n in counted + 1.. {
        if stop.load(Ordering::Relaxed) || client.set::<_, _, ()>(format!("counter:{number}"), n).is_err() {
            break;
        }
        counted = n;
        let (left, right) = (format!("left:{number}"), format!("right:{number}"));
        let written = if n % 2 == 0 {
            redis::pipe().atomic().set(left, n).ignore().rpush(right, n).ignore().query::<()>(&mut client)
        } else {
            cmd("EVAL").arg(PAIR).arg(2).arg(left).arg(right).arg(n).query::<()>(&mut client)
        };
        if written.is_err() {
            break;
        }
        paired = n;
    }
    (counted, paired)
}

/// Lets clients write until the server is killed after this time; returns the acknowledged writes.
fn crash(
    server: &mut Server,
    acknowledged: &Acknowledged,
    after: Duration,
    meanwhile: impl FnOnce(&Server),
) -> Acknowledged {
    let stop = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        let shared: &Server = server;
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (stop, acknowledged) = (&stop, acknowledged.get(&number).copied().unwrap_or_default());
                scope.spawn(move || (number, write(shared, number, acknowledged, stop)))
            })
            .collect();
        meanwhile(shared);
        std::thread::sleep(after.saturating_sub(began.elapsed()));
        shared.signal(libc::SIGKILL);
        writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
    })
}

/// Checks that no acknowledged write is missing, and that transactions and scripts are atomic.
fn check(server: &Server, acknowledged: &Acknowledged) {
    let mut client = server.client();
    for (number, (counted, paired)) in acknowledged {
        let counter: i64 = client.get(format!("counter:{number}")).unwrap_or(0);
        assert!(counter >= *counted, "writer {number} was told of {counted}, and {counter} is there");
        let left: i64 = client.get(format!("left:{number}")).unwrap_or(0);
        let right: i64 = client.lindex(format!("right:{number}"), -1).unwrap_or(0);
        assert!(left >= *paired, "writer {number} was told of the pair {paired}, and {left} is there");
        assert_eq!(left, right, "half of a transaction or script of writer {number}");
    }
}

fn crashes() -> u64 {
    std::env::var("KVICK_CRASHES").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

#[test]
fn acknowledged_writes_survive_a_crash() {
    let data_dir = DataDir::new();
    let (mut acknowledged, mut seed) = (Acknowledged::new(), 12345u64);
    for round in 0..crashes() {
        let args = ["--appendfsync", "always", "--io-threads", if round % 2 == 0 { "4" } else { "1" }];
        let mut server = data_dir.start(&args);
        check(&server, &acknowledged);
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let after = Duration::from_millis(30 + (seed >> 33) % 170);
        acknowledged = crash(&mut server, &acknowledged, after, |server| {
            // A base and a manifest may just be about to be swapped.
            if round % 3 == 1 {
                std::thread::sleep(after / 2);
                ok(&mut server.client(), "BGREWRITEAOF");
            }
        });
        assert!(acknowledged.values().any(|(counted, _)| *counted > 0), "nobody could write");
    }
    let server = data_dir.start(&["--appendfsync", "always"]);
    check(&server, &acknowledged);
}

/// The offset in the last increment at which the journal's frames begin, if a journal with frames of it exists.
fn journaled_from(data_dir: &DataDir) -> Option<u64> {
    journal::begins_at(&data_dir.part("appendonly.aof.journal"), &data_dir.last_increment())
}

/// Simulates a crash of the machine: the increment loses what was not synced. Marks the journal for recovery, which the
/// server otherwise skips because the machine was not restarted.
fn truncate_to_journal_start(data_dir: &DataDir) {
    let from = journaled_from(data_dir).expect("a journal of the last increment");
    let increment = OpenOptions::new().write(true).open(data_dir.last_increment()).expect("the increment");
    increment.set_len(from).expect("a shorter file");
    let journal = OpenOptions::new().write(true).open(data_dir.part("appendonly.aof.journal")).expect("the journal");
    journal.write_all_at(b"KVDEMAND", 0).expect("a journal that is to be used");
}

#[test]
fn acknowledged_writes_are_recovered_from_the_journal() {
    let (data_dir, mut acknowledged) = (DataDir::new(), Acknowledged::new());
    for (workers, rewrites) in [("4", false), ("1", true)] {
        let mut server = data_dir.start(&["--appendfsync", "always", "--io-threads", workers]);
        check(&server, &acknowledged);
        acknowledged = crash(&mut server, &acknowledged, Duration::ZERO, |server| {
            wait_until("commits go to the journal", || journaled_from(&data_dir).is_some());
            if rewrites {
                let increment = data_dir.last_increment();
                ok(&mut server.client(), "BGREWRITEAOF");
                wait_until("there is another increment", || data_dir.last_increment() != increment);
                wait_until("its commits go to the journal", || journaled_from(&data_dir).is_some());
            }
            std::thread::sleep(Duration::from_millis(50));
        });
        truncate_to_journal_start(&data_dir);
    }
    let server = data_dir.start(&["--appendfsync", "always"]);
    check(&server, &acknowledged);
    assert!(server.log().contains("were put back from the AOF journal"), "{}", server.log());
    assert!(!data_dir.part("appendonly.aof.journal").exists());
}

#[test]
fn a_disabled_journal_leaves_all_writes_in_the_file() {
    for line in ["CONFIG SET aof-journal no", "CONFIG SET appendfsync everysec", "SHUTDOWN"] {
        let (data_dir, mut last) = (DataDir::new(), 0);
        let mut server = data_dir.start(&["--appendfsync", "always"]);
        let mut client = server.client();
        wait_until("commits go to the journal", || {
            last = client.incr("counter", 1).expect("a reply");
            journaled_from(&data_dir).is_some()
        });
        // The reply to the last one is the connection's end.
        let _ = run(&mut client, line);
        wait_until("the journal is deleted", || !data_dir.part("appendonly.aof.journal").exists());
        server.signal(libc::SIGKILL);
        server.end();
        let server = data_dir.start(&["--appendfsync", "always"]);
        assert_eq!(server.client().get("counter"), Ok(last), "{line}");
    }
}

#[test]
fn a_killed_rewrite_leaves_the_old_files() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&["--appendfsync", "always"]);
    let mut client = server.client();
    ok(&mut client, "DEBUG POPULATE 2000 many 50");
    ok(&mut client, "BGREWRITEAOF");
    wait_for_rewrite(&mut client);
    ok(&mut client, "CONFIG SET rdb-key-save-delay 1000");
    ok(&mut client, "BGREWRITEAOF");
    ok(&mut client, "SET during 1");
    let before = digest(&mut client);
    wait_until("there is a second increment", || data_dir.parts("i").len() == 2);
    server.signal(libc::SIGKILL);
    server.end();
    let server = data_dir.start(&[]);
    let mut client = server.client();
    assert_eq!(digest(&mut client), before);
    ok(&mut client, "BGREWRITEAOF");
    wait_for_rewrite(&mut client);
    assert_eq!((data_dir.parts("i").len(), data_dir.parts("h").len()), (1, 0));
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(digest(&mut client), before);
}

#[test]
fn a_replicas_files_begin_with_the_primarys_selected_database() {
    for workers in ["1", "4"] {
        let primary = Server::start(&["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"]);
        let mut client = primary.client();
        ok(&mut client, "SELECT 3");
        ok(&mut client, "SET before 1");
        let data_dir = DataDir::new();
        let of = format!("127.0.0.1 {}", primary.port());
        let mut replica = data_dir.start(&["--io-threads", workers, "--replicaof", &of]);
        let mut other = replica.client();
        // The first files begin when the dump has been loaded, the next ones by somebody's wish.
        wait_until("there are files", || data_dir.part("appendonly.aof.2.base.rdb").exists());
        wait_for_rewrite(&mut other);
        let mut digests = Vec::new();
        for key in ["first", "second"] {
            ok(&mut client, &format!("SET {key} 1"));
            ok(&mut client, "WAIT 1 0");
            digests.push(digest(&mut client));
            ok(&mut other, "DEBUG LOADAOF");
            assert_eq!(Some(&digest(&mut other)), digests.last(), "{key}");
            ok(&mut other, "BGREWRITEAOF");
            wait_for_rewrite(&mut other);
        }
        ok(&mut client, "SET third 1");
        ok(&mut client, "WAIT 1 0");
        replica.signal(libc::SIGTERM);
        replica.end();
        let alone = data_dir.start(&["--io-threads", workers]);
        assert_eq!(digest(&mut alone.client()), digest(&mut client));
    }
}

#[test]
fn a_file_truncated_in_its_last_record_is_repaired() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&[]);
    let mut client = server.client();
    ok(&mut client, "SET a 1");
    let file = data_dir.last_increment();
    wait_until("the record is written", || fs::metadata(&file).is_ok_and(|file| file.len() > 30));
    let whole = fs::metadata(&file).expect("a file").len();
    ok(&mut client, "SET b 2");
    server.signal(libc::SIGTERM);
    server.end();
    let bytes = fs::read(&file).expect("a file");
    for len in whole + 1..bytes.len() as u64 {
        fs::write(&file, &bytes[..len as usize]).expect("a file");
        if len == whole + 3 {
            let (code, acknowledged) = data_dir.run(&["--aof-load-truncated", "no"]);
            assert_eq!(code, Some(1));
            assert!(acknowledged.contains("Unexpected end of file reading the append only file"), "{acknowledged}");
        }
        let server = data_dir.start(&[]);
        let mut client = server.client();
        let found: (Option<i32>, Option<i32>) = (client.get("a").expect("a"), client.get("b").expect("b"));
        assert_eq!(found, (Some(1), None), "cut at {len}");
        assert_eq!(fs::metadata(&file).expect("a file").len(), whole, "cut at {len}");
    }
}

#[test]
fn a_damaged_file_is_refused_with_the_offset() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&[]);
    let mut client = server.client();
    ok(&mut client, "SET a 1");
    ok(&mut client, "SET b 2");
    server.signal(libc::SIGTERM);
    server.end();
    let file = data_dir.last_increment();
    let mut bytes = fs::read(&file).expect("a file");
    let at = bytes.windows(5).position(|window| window == b"*3\r\n$").expect("a request");
    bytes[at] = b'!';
    fs::write(&file, &bytes).expect("a file");
    let (code, acknowledged) = data_dir.run(&[]);
    assert_eq!(code, Some(1));
    assert!(acknowledged.contains("Bad file format reading the append only file"), "{acknowledged}");
    assert!(acknowledged.contains(&format!("{at:x}: Expected prefix")), "{acknowledged}");
    assert_eq!(fs::read(&file).expect("a file"), bytes, "nothing is cut away");
}

#[test]
fn an_incomplete_transaction_is_discarded() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&[]);
    let mut client = server.client();
    ok(&mut client, "SET a 1");
    let mut pair = redis::pipe();
    pair.atomic().set("b", 1).ignore().set("c", 1).ignore();
    pair.query::<()>(&mut client).expect("a transaction");
    server.signal(libc::SIGTERM);
    server.end();
    let file = data_dir.last_increment();
    let bytes = fs::read(&file).expect("a file");
    let end = b"*1\r\n$4\r\nEXEC\r\n".len();
    fs::write(&file, &bytes[..bytes.len() - end]).expect("a file");
    let server = data_dir.start(&[]);
    let mut client = server.client();
    assert_eq!(client.exists::<_, i32>(&["a", "b", "c"][..]).expect("a count"), 1);
    assert!(server.log().contains("Revert incomplete MULTI/EXEC transaction"));
}

#[test]
fn an_old_single_file_is_migrated() {
    let data_dir = DataDir::new();
    let old = data_dir.0.path().join("appendonly.aof");
    fs::write(&old, "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n").expect("a file");
    let server = data_dir.start(&[]);
    assert_eq!(server.client().get::<_, i32>("a").expect("a"), 1);
    assert!(!old.exists());
    let expected = "file appendonly.aof seq 1 type b\nfile appendonly.aof.1.incr.aof seq 1 type i\n";
    assert_eq!(data_dir.manifest(), expected);
}

#[test]
fn appendonly_can_be_switched_at_runtime() {
    let data_dir = DataDir::new();
    let dir = data_dir.0.path().to_str().expect("a plain path");
    let server = Server::start(&["--dir", dir, "--enable-debug-command", "yes"]);
    let mut client = server.client();
    fill(&mut client);
    ok(&mut client, "CONFIG SET appendonly yes");
    wait_for_rewrite(&mut client);
    ok(&mut client, "SET later 1");
    let before = digest(&mut client);
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(digest(&mut client), before);
    ok(&mut client, "CONFIG SET appendonly no");
    let manifest = data_dir.manifest();
    ok(&mut client, "SET unseen 1");
    assert_eq!(info(&mut client, "aof_enabled"), "0");
    assert!(refusal(&mut client, "WAITAOF 1 0 10").contains("appendonly is disabled"));
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(digest(&mut client), before, "what was written without files is in none");
    assert_eq!(data_dir.manifest(), manifest);
}

#[test]
fn debug_loadaof_excludes_other_clients() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--io-threads", "4"]);
    let (mut client, mut other) = (server.raw(), server.client());
    (0..500).for_each(|n| ok(&mut other, &format!("SET key:{n} {n}")));
    let before = digest(&mut other);
    ok(&mut other, "CONFIG SET key-load-delay 1000");
    client.request(&["DEBUG", "LOADAOF"]);
    wait_until("it loads", || info(&mut other, "loading") == "1");
    for line in ["DEBUG LOADAOF", "DEBUG RELOAD", "DEBUG POPULATE 1"] {
        assert!(refusal(&mut other, line).starts_with("LOADING "), "{line}");
    }
    ok(&mut other, "CONFIG SET key-load-delay 0");
    client.expect("+OK\r\n");
    assert_eq!(digest(&mut other), before);
}

#[test]
fn a_key_that_expires_during_a_reload_is_deleted_in_the_files() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&["--appendfsync", "always"]);
    let mut client = server.client();
    ok(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    ok(&mut client, "SET key old PX 20");
    let began = Instant::now();
    wait_until("its time has come", || began.elapsed() > Duration::from_millis(30));
    ok(&mut client, "DEBUG RELOAD");
    assert_eq!(run(&mut client, "SETNX key new"), Ok(Value::Int(1)));
    server.signal(libc::SIGKILL);
    server.end();
    let server = data_dir.start(&[]);
    assert_eq!(server.client().get::<_, String>("key").as_deref(), Ok("new"));
}

#[test]
fn waitaof_returns_once_the_writes_are_synced() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--appendfsync", "everysec"]);
    let mut client = server.client();
    ok(&mut client, "SET a 1");
    let ask = |client: &mut Connection, line: &str| match run(client, line) {
        Ok(Value::Array(counts)) => counts,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), [Value::Int(1), Value::Int(0)]);
    ok(&mut client, "CONFIG SET appendfsync no");
    ok(&mut client, "SET a 2");
    assert_eq!(ask(&mut client, "WAITAOF 1 0 20"), [Value::Int(0), Value::Int(0)]);
    ok(&mut client, "CONFIG SET appendfsync always");
    assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), [Value::Int(1), Value::Int(0)]);
    assert_eq!(ask(&mut client, "WAITAOF 1 1 20"), [Value::Int(1), Value::Int(0)]);
}

#[test]
fn waitaof_after_enabling_waits_for_the_first_rewrite() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--io-threads", "4"]);
    let mut client = server.client();
    for n in 0..50 {
        ok(&mut client, "CONFIG SET appendonly no");
        ok(&mut client, &format!("SET a {n}"));
        ok(&mut client, "CONFIG SET appendonly yes");
        ok(&mut client, &format!("SET b {n}"));
        ok(&mut client, "WAITAOF 1 0 0");
        assert_eq!(info(&mut client, "aof_rewrite_in_progress"), "0", "{n}");
    }
}

#[test]
fn a_cancelled_rewrite_ends_at_once_and_the_next_one_starts() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--rdb-key-save-delay", "100000"]);
    let mut client = server.client();
    ok(&mut client, "DEBUG POPULATE 10000");
    ok(&mut client, "BGREWRITEAOF");
    assert_eq!(info(&mut client, "aof_rewrite_in_progress"), "1");
    ok(&mut client, "CONFIG SET appendonly no");
    assert_eq!(info(&mut client, "aof_rewrite_in_progress"), "0");
    // It begins as soon as what was cancelled has ended, and counts as under way until then.
    ok(&mut client, "BGREWRITEAOF");
    assert_eq!(info(&mut client, "aof_rewrite_in_progress"), "1");
    ok(&mut client, "CONFIG SET appendonly yes");
    ok(&mut client, "CONFIG SET appendonly no");
    ok(&mut client, "CONFIG SET rdb-key-save-delay 0");
    ok(&mut client, "BGSAVE");
    wait_until("the save is over", || info(&mut client, "rdb_bgsave_in_progress") == "0");
    assert_eq!(info(&mut client, "rdb_changes_since_last_save"), "0");
}

/// Starts a server that may not write files beyond this size.
fn start_with_file_limit(data_dir: &DataDir, args: &[&str], bytes: u64) -> Server {
    Server::start_prepared(&data_dir.args(args), &mut |command| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: only async-signal-safe calls, on memory of their own.
        unsafe {
            command.pre_exec(move || {
                // A write that goes too far is an error then, not a signal that ends the process.
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                Ok(())
            });
        }
    })
}

fn release(server: &Server) {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the process is a child, and the call reads the limit alone.
    let result = unsafe { libc::prlimit(server.pid() as i32, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

#[test]
fn a_full_disk_stops_writes_until_space_is_free() {
    let data_dir = DataDir::new();
    let mut server = start_with_file_limit(&data_dir, &["--appendfsync", "everysec"], 100_000);
    let mut client = server.client();
    let large = "x".repeat(1000);
    let mut accepted = 0;
    wait_until("writes are refused", || {
        let result = client.rpush::<_, _, ()>("list", &large);
        accepted += u64::from(result.is_ok());
        result.is_err()
    });
    let why = refusal(&mut client, "SET a 1");
    assert!(why.starts_with("MISCONF Errors writing to the AOF file"), "{why}");
    assert_eq!(client.llen::<_, u64>("list").expect("reads go on"), accepted);
    assert_eq!(info(&mut client, "aof_last_write_status"), "err");
    release(&server);
    wait_until("writes are taken again", || client.set::<_, _, ()>("a", 1).is_ok());
    assert!(server.log().contains("AOF write error looks solved"));
    let before = digest(&mut client);
    server.signal(libc::SIGTERM);
    server.end();
    let server = data_dir.start(&[]);
    assert_eq!(digest(&mut server.client()), before);
}

/// A file system of its own, taken away when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// A file system of this many bytes. If it cannot be mounted, prints the reason and returns `None`.
    fn mount(bytes: u64) -> Option<SmallDisk> {
        let data_dir = tempfile::tempdir().expect("a temporary directory");
        let mounted = SmallDisk::run(
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(data_dir.path()),
        );
        match mounted {
            Ok(()) => Some(SmallDisk(data_dir)),
            Err(why) => {
                println!("Not run: no file system can be mounted here ({why})");
                None
            }
        }
    }

    fn grow(&self, bytes: u64) {
        let options = format!("remount,size={bytes}");
        SmallDisk::run(Command::new("mount").args(["-o", &options]).arg(self.0.path())).expect("a larger disk");
    }

    fn run(command: &mut Command) -> Result<(), String> {
        let output = command.output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        if output.status.success() { Ok(()) } else { Err(said) }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = SmallDisk::run(Command::new("umount").arg("--lazy").arg(self.0.path()));
        if let Err(why) = unmounted {
            println!("{why}");
        }
    }
}

#[test]
fn a_full_file_system_stops_writes_until_it_grows() {
    let Some(disk) = SmallDisk::mount(256 * 1024) else { return };
    let dir = disk.0.path().to_str().expect("a plain path");
    let args = ["--dir", dir, "--enable-debug-command", "yes", "--appendonly", "yes", "--io-threads", "4"];
    let mut server = Server::start(&args);
    let mut client = server.client();
    // A piece that is no multiple of a page, so that a write ends in its middle.
    let large = "x".repeat(3001);
    let mut accepted = 0;
    wait_until("writes are refused", || {
        let result = client.rpush::<_, _, ()>("list", &large);
        accepted += u64::from(result.is_ok());
        result.is_err()
    });
    assert!(refusal(&mut client, "SET a 1").contains("No space left on device"));
    assert_eq!(client.llen::<_, u64>("list").expect("reads go on"), accepted);
    disk.grow(4 << 20);
    wait_until("writes are taken again", || client.set::<_, _, ()>("a", 1).is_ok());
    let before = digest(&mut client);
    server.signal(libc::SIGTERM);
    server.end();
    let server = Server::start(&args);
    assert_eq!(digest(&mut server.client()), before);
}

#[test]
fn a_rewrite_that_cannot_write_its_base_leaves_the_old_files() {
    let data_dir = DataDir::new();
    let mut server = start_with_file_limit(&data_dir, &["--appendfsync", "always", "--rdbcompression", "no"], 100_000);
    let mut client = server.client();
    // A small command that makes a large value, which has no room in a base.
    ok(&mut client, "SETRANGE large 300000 end");
    ok(&mut client, "SET small 1");
    ok(&mut client, "BGREWRITEAOF");
    wait_for_rewrite(&mut client);
    assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "err");
    ok(&mut client, "SET small 2");
    let before = digest(&mut client);
    server.signal(libc::SIGKILL);
    server.end();
    let server = data_dir.start(&["--appendfsync", "always"]);
    let mut client = server.client();
    assert_eq!(digest(&mut client), before);
    ok(&mut client, "BGREWRITEAOF");
    wait_for_rewrite(&mut client);
    assert_eq!((info(&mut client, "aof_last_bgrewrite_status"), data_dir.parts("i").len()), ("ok".to_string(), 1));
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(digest(&mut client), before);
}

#[test]
fn a_full_disk_with_always_ends_the_server_without_false_replies() {
    let data_dir = DataDir::new();
    let mut server = start_with_file_limit(&data_dir, &["--appendfsync", "always"], 100_000);
    let mut client = server.client();
    let (large, mut accepted) = ("x".repeat(1000), 0u64);
    while client.rpush::<_, _, ()>("list", &large).is_ok() {
        accepted += 1;
        assert!(accepted < 1000, "the disk is not full");
    }
    assert_eq!(server.end(), Some(1));
    assert!(server.log().contains("Can't recover from AOF write error"));
    let server = data_dir.start(&[]);
    let length: u64 = server.client().llen("list").expect("a length");
    assert!(length >= accepted, "{length} of {accepted}");
}

#[test]
fn the_file_is_rewritten_after_it_grew() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--auto-aof-rewrite-min-size", "20kb", "--auto-aof-rewrite-percentage", "100"]);
    let mut client = server.client();
    let large = "x".repeat(1000);
    wait_until("the file is rewritten", || {
        (0..10).for_each(|_| client.set("a", &large).expect("a reply"));
        info(&mut client, "aof_rewrites") != "0"
    });
    wait_for_rewrite(&mut client);
    assert!(server.log().contains("Starting automatic rewriting of AOF on"));
    assert_eq!(data_dir.parts("b"), ["appendonly.aof.2.base.rdb"]);
}

#[test]
fn replies_of_transactions_and_blocked_clients_wait_for_fsync_in_order() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--appendfsync", "always", "--io-threads", "4"]);
    let (mut waiting, mut pushing) = (server.raw(), server.raw());
    waiting.request(&["BLPOP", "list", "0"]);
    pushing.send(
        b"*1\r\n$5\r\nMULTI\r\n*3\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n$1\r\na\r\n*1\r\n$4\r\nEXEC\r\n*1\r\n$4\r\nPING\r\n",
    );
    pushing.expect("+OK\r\n+QUEUED\r\n*1\r\n:1\r\n+PONG\r\n");
    waiting.expect("*2\r\n$4\r\nlist\r\n$1\r\na\r\n");
    // A client that sends no more gets what it asked for all the same.
    let mut last = server.raw();
    last.request(&["SET", "last", "1"]);
    last.end();
    last.expect("+OK\r\n");
    last.expect_end();
    let mut quitting = server.raw();
    quitting.send(b"*3\r\n$3\r\nSET\r\n$1\r\nq\r\n$1\r\n1\r\n*1\r\n$4\r\nQUIT\r\n");
    quitting.expect("+OK\r\n+OK\r\n");
    quitting.expect_end();
}

#[test]
fn an_inconsistent_manifest_is_refused() {
    let data_dir = DataDir::new();
    drop(data_dir.start(&[]));
    let path: &Path = &data_dir.part("appendonly.aof.manifest");
    let mut manifest = OpenOptions::new().append(true).open(path).expect("a manifest");
    std::io::Write::write_all(&mut manifest, b"!!!\n").expect("a manifest");
    let (code, acknowledged) = data_dir.run(&[]);
    assert_eq!(code, Some(1));
    assert!(
        acknowledged.contains("FATAL AOF MANIFEST FILE ERROR") && acknowledged.contains(">>> '!!!'"),
        "{acknowledged}"
    );
}
