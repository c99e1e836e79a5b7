//! Large collections that change while they are captured, end to end: a dump, the base of an append-only file and a
//! full sync contain them as of one moment.

mod common;

use common::line::{digest, ok, persistence, run as ask};
use common::{Server, wait_until};
use kvick_testing::SetOnDrop;
use redis::{Connection, Value};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::TempDir;

const COUNT: usize = 6000;

fn start(data_dir: &Path, args: &[&str]) -> Server {
    let base =
        ["--dir", data_dir.to_str().expect("a plain path"), "--enable-debug-command", "yes", "--io-threads", "3"];
    Server::start(&[&base[..], args].concat())
}

fn words(from: usize, to: usize, word: impl Fn(usize) -> String) -> String {
    (from..to).map(word).collect::<Vec<_>>().join(" ")
}

/// Two large collections of each kind, behind which the walk of a snapshot finds many small keys.
fn fill(client: &mut Connection) {
    for name in ["one", "two"] {
        for at in (0..COUNT).step_by(500) {
            let end = at + 500;
            ok(client, &format!("SADD set:{name} {}", words(at, end, |n| format!("member:{n}"))));
            ok(client, &format!("HSET hash:{name} {}", words(at, end, |n| format!("field:{n} value:{n}"))));
            ok(client, &format!("ZADD zset:{name} {}", words(at, end, |n| format!("{} member:{n}", n % 97))));
            ok(client, &format!("RPUSH list:{name} {}", words(at, end, |n| format!("an-element-of-a-list:{n}"))));
        }
        (1..=COUNT).for_each(|n| ok(client, &format!("XADD stream:{name} {n}-1 name value:{n}")));
        ok(client, &format!("HPEXPIREAT hash:{name} 99999999999999 FIELDS 3 field:1 field:77 field:4000"));
        ok(client, &format!("XGROUP CREATE stream:{name} readers 0"));
        ok(client, &format!("XREADGROUP GROUP readers somebody COUNT 10 STREAMS stream:{name} >"));
    }
    ok(client, "DEBUG POPULATE 1000 many 40");
}

/// A number below `end`, without much ado.
fn draw(state: &mut u64, end: usize) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as usize % end
}

/// Writes to the collections until stopped, and counts the writes.
fn write(server: &Server, seed: u64, stop: &AtomicBool, written: &AtomicU64) {
    let (mut client, mut state) = (server.client(), seed);
    while !stop.load(Ordering::Relaxed) {
        let (n, what) = (draw(&mut state, COUNT), draw(&mut state, 1000));
        let name = ["one", "two", "three"][draw(&mut state, 3)];
        let other = ["one", "two", "three"][draw(&mut state, 3)];
        let kind = ["set", "hash", "zset", "list", "stream"][draw(&mut state, 5)];
        let line = match what {
            0..4 => format!("RENAME {kind}:{name} {kind}:{other}"),
            4..6 => format!("MOVE {kind}:{name} 1"),
            6..8 => format!("COPY {kind}:{name} {kind}:{other} REPLACE"),
            8..10 => format!("UNLINK {kind}:{name}"),
            10..12 => format!("DEL {kind}:{name}"),
            12..16 => format!("PEXPIREAT {kind}:{name} 99999999999999"),
            16..18 => format!("LTRIM list:{name} 100 -200"),
            18..20 => format!("SPOP set:{name} 700"),
            20..22 => format!("ZREMRANGEBYRANK zset:{name} 10 400"),
            22..24 => format!("XTRIM stream:{name} MAXLEN 3000"),
            24..100 => format!("HSET hash:{name} field:{n} other:{n}"),
            100..200 => format!("HDEL hash:{name} field:{n}"),
            200..250 => format!("HPEXPIREAT hash:{name} 99999999999999 FIELDS 1 field:{n}"),
            250..300 => format!("HSET hash:{name} new:{n} {n}"),
            300..350 => format!("SADD set:{name} new:{n}"),
            350..430 => format!("SREM set:{name} member:{n}"),
            430..460 => format!("SPOP set:{name}"),
            460..530 => format!("ZADD zset:{name} {n} member:{n}"),
            530..580 => format!("ZREM zset:{name} member:{n}"),
            580..600 => format!("ZINCRBY zset:{name} 3 member:{n}"),
            600..640 => format!("LPUSH list:{name} pushed:{n}"),
            640..690 => format!("RPOP list:{name}"),
            690..740 => format!("LPOP list:{name}"),
            740..770 => format!("LSET list:{name} {} set:{n}", n / 10),
            770..800 => format!("LREM list:{name} 1 an-element-of-a-list:{n}"),
            800..860 => format!("XADD stream:{name} * name added:{n}"),
            860..930 => format!("XDEL stream:{name} {n}-1"),
            930..950 => format!("XACK stream:{name} readers {}-1", n % 10),
            _ => format!("SET key:{} {n}", n % 500),
        };
        // Keys come and go: what refuses a write is as good as what takes it.
        let _ = ask(&mut client, &line);
        written.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lets clients write to a server while `meanwhile` runs, which starts after the first writes.
fn with_writers(server: &Server, seed: u64, meanwhile: impl FnOnce()) {
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for writer in 0..3 {
            let (stop, written) = (&stop, &written);
            scope.spawn(move || write(server, seed * 10 + writer, stop, written));
        }
        meanwhile();
        let before = written.load(Ordering::Relaxed);
        wait_until("writers have gone on", || written.load(Ordering::Relaxed) > before + 50);
    });
}

#[test]
fn a_dump_has_large_collections_as_of_its_start() {
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let server = start(data_dir.path(), &["--save", ""]);
    let mut client = server.client();
    for round in 0..3 {
        ok(&mut client, "FLUSHALL");
        fill(&mut client);
        // Slow enough for writers to be ahead of the walk.
        ok(&mut client, "CONFIG SET rdb-key-save-delay 300");
        let before = digest(&mut client);
        ok(&mut client, "BGSAVE");
        with_writers(&server, round, || {
            wait_until("the save is over", || persistence(&mut client, "rdb_bgsave_in_progress") == "0");
        });
        assert_eq!(persistence(&mut client, "rdb_last_bgsave_status"), "ok");
        assert_ne!(digest(&mut client), before);
        let copy = TempDir::new().expect("a temporary directory");
        fs::copy(data_dir.path().join("dump.rdb"), copy.path().join("dump.rdb")).expect("a dump");
        let loaded = start(copy.path(), &["--save", ""]);
        assert_eq!(digest(&mut loaded.client()), before, "round {round}");
    }
}

#[test]
fn a_rewrite_includes_large_collections_changed_meanwhile() {
    for preamble in ["yes", "no"] {
        let data_dir = tempfile::tempdir().expect("a temporary directory");
        let args = ["--save", "", "--appendonly", "yes", "--appendfsync", "no", "--aof-use-rdb-preamble", preamble];
        let server = start(data_dir.path(), &args);
        let mut client = server.client();
        fill(&mut client);
        ok(&mut client, "CONFIG SET rdb-key-save-delay 300");
        ok(&mut client, "BGREWRITEAOF");
        with_writers(&server, 7, || {
            wait_until("the rewrite is over", || persistence(&mut client, "aof_rewrite_in_progress") == "0");
        });
        assert_eq!(persistence(&mut client, "aof_last_bgrewrite_status"), "ok");
        let before = digest(&mut client);
        ok(&mut client, "DEBUG LOADAOF");
        assert_eq!(digest(&mut client), before, "preamble: {preamble}");
    }
}

#[test]
fn a_replica_syncs_large_collections_changed_meanwhile() {
    let (data_dir, copy) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let primary = start(data_dir.path(), &["--save", "", "--repl-diskless-sync-delay", "0"]);
    let mut client = primary.client();
    fill(&mut client);
    ok(&mut client, "CONFIG SET rdb-key-save-delay 300");
    let replica = start(copy.path(), &["--save", ""]);
    let mut copied = replica.client();
    let info = |client: &mut Connection, line: &str| match ask(client, "INFO replication") {
        Ok(Value::BulkString(text)) => String::from_utf8_lossy(&text).lines().any(|found| found == line),
        _ => false,
    };
    ok(&mut copied, &format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    with_writers(&primary, 9, || {
        wait_until("the replica is in touch", || info(&mut copied, "master_link_status:up"));
    });
    wait_until("the replica has all", || digest(&mut copied) == digest(&mut client));
}
