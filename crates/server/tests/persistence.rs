//! Dumps, end to end: Kvick and Valkey load what was saved; a save is a point-in-time snapshot and never harms the
//! existing dump; a damaged dump is refused.

mod common;

use common::line::{digest, ok, refusal as error, run as ask};
use common::{Server, for_workers, wait_until};
use kvick_testing::{Deadline, SetOnDrop, output};
use redis::{Commands, Connection, Value, cmd};
use std::collections::HashMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A directory that outlives servers.
struct DataDir(TempDir);

impl DataDir {
    fn new() -> Self {
        DataDir(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn start(&self, args: &[&str]) -> Server {
        Server::start(&self.args(args))
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--dir", self.0.path().to_str().expect("a plain path"), "--enable-debug-command", "yes"], args].concat()
    }

    /// The names of the files in it.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("a directory");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Runs the server until it exits; returns its exit code and output.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvick-server"));
        command.args(self.args(&["--port", "0", "--unixsocket", "socket", "--save", ""])).args(args);
        let output = output(&mut command);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn info(client: &mut Connection) -> HashMap<String, String> {
    let text: String = cmd("INFO").query(client).expect("INFO");
    text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.into(), value.into())).collect()
}

fn wait_for_background_save(client: &mut Connection) {
    wait_until("the background save is over", || info(client)["rdb_bgsave_in_progress"] == "0");
}

/// Keys of several kinds in several databases.
fn fill(client: &mut Connection) {
    for (number, key, value) in [(0, "text", "hello"), (0, "number", "-123456789012"), (9, "text", "elsewhere")] {
        ok(client, &format!("SELECT {number}"));
        ok(client, &format!("SET {key} {value}"));
    }
    ok(client, "SELECT 0");
    ok(client, "SET empty x");
    ok(client, "SETRANGE large 300000 end");
    ok(client, "SET bounded soon PXAT 99999999999999");
    ok(client, "DEBUG POPULATE 2000 many 40");
}

/// Collections of every kind, small and large.
fn fill_collections(client: &mut Connection) {
    let words = |n: usize| (0..n).map(|i| format!("word-{i}")).collect::<Vec<_>>().join(" ");
    let numbers = |n: usize| (0..n).map(|i| (i * i).to_string()).collect::<Vec<_>>().join(" ");
    for (size, n) in [("small", 20), ("large", 3000)] {
        ok(client, &format!("RPUSH list:{size} {}", words(n)));
        ok(client, &format!("SADD numbers:{size} {}", numbers(n)));
        ok(client, &format!("SADD set:{size} {}", words(n)));
        ok(client, &format!("HSET hash:{size} {}", words(2 * n)));
        let scored = (0..n).map(|i| format!("{} member-{i}", i % 7)).collect::<Vec<_>>().join(" ");
        ok(client, &format!("ZADD sorted:{size} {scored}"));
        (0..n / 10).for_each(|i| ok(client, &format!("XADD stream:{size} {}-1 number {i}", i + 1)));
    }
    ok(client, "XGROUP CREATE stream:small readers 0");
    ok(client, "XREADGROUP GROUP readers somebody COUNT 1 STREAMS stream:small >");
}

/// The contents and encodings of the collections.
fn collection_summaries(client: &mut Connection) -> Vec<String> {
    let mut seen = Vec::new();
    for size in ["small", "large"] {
        for (line, in_order) in [
            ("LRANGE list:{} 0 -1", true),
            ("SMEMBERS numbers:{}", false),
            ("SMEMBERS set:{}", false),
            ("HGETALL hash:{}", false),
            ("ZRANGE sorted:{} 0 -1 WITHSCORES", true),
            ("XRANGE stream:{} - +", true),
            ("XINFO GROUPS stream:{}", true),
            ("OBJECT ENCODING list:{}", true),
            ("OBJECT ENCODING numbers:{}", true),
            ("OBJECT ENCODING set:{}", true),
            ("OBJECT ENCODING hash:{}", true),
            ("OBJECT ENCODING sorted:{}", true),
        ] {
            let mut value = ask(client, &line.replace("{}", size)).unwrap_or_else(|error| panic!("{line}: {error}"));
            if let (Value::Array(elements), false) = (&mut value, in_order) {
                elements.sort_by_key(|element| format!("{element:?}"));
            }
            seen.push(format!("{value:?}"));
        }
    }
    seen
}

#[test]
fn saved_data_survive_a_restart() {
    for workers in ["1", "4"] {
        let data_dir = DataDir::new();
        let mut server = data_dir.start(&["--io-threads", workers]);
        let mut client = server.client();
        fill(&mut client);
        fill_collections(&mut client);
        let (before, collections) = (digest(&mut client), collection_summaries(&mut client));
        ok(&mut client, "SAVE");
        assert_eq!(info(&mut client)["rdb_changes_since_last_save"], "0");
        ok(&mut client, "SET unsaved lost");
        assert_eq!(info(&mut client)["rdb_changes_since_last_save"], "1");
        let _ = ask(&mut client, "SHUTDOWN NOSAVE");
        assert_eq!(server.end(), Some(0));
        assert_eq!(data_dir.files(), ["dump.rdb"]);

        let server = data_dir.start(&["--io-threads", workers]);
        let mut client = server.client();
        assert_eq!(digest(&mut client), before);
        assert_eq!(collection_summaries(&mut client), collections);
        assert_eq!(client.pexpire_time::<_, i64>("bounded").ok(), Some(99999999999999));
        let info = info(&mut client);
        assert_eq!((&*info["loading"], &*info["rdb_last_load_keys_loaded"]), ("0", "2018"));
        let log = server.log();
        for words in [
            "Loading RDB produced by Valkey version 9.1.",
            "Done loading RDB, keys loaded: 2018,",
            "DB loaded from disk: ",
        ] {
            assert!(log.contains(words), "{words}");
        }
    }
}

#[test]
fn expired_keys_are_skipped_when_a_dump_is_loaded() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&[]);
    let mut client = server.client();
    ok(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    ok(&mut client, "SET lasting 1");
    for n in 0..100 {
        ok(&mut client, &format!("SET passing:{n} 1 PX 1"));
    }
    ok(&mut client, "SAVE");
    let _ = ask(&mut client, "SHUTDOWN NOSAVE");
    server.end();
    let server = data_dir.start(&[]);
    let mut client = server.client();
    assert_eq!(cmd("DBSIZE").query::<i64>(&mut client).ok(), Some(1));
    let info = info(&mut client);
    assert_eq!((&*info["rdb_last_load_keys_expired"], &*info["rdb_last_load_keys_loaded"]), ("100", "1"));
}

#[test]
fn a_background_save_is_a_point_in_time_snapshot() {
    const PAIRS: usize = 2000;
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--io-threads", "4"]);
    let mut client = server.client();
    for n in 0..PAIRS {
        ok(&mut client, &format!("MSET left:{n} 0 right:{n} 0"));
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = SetOnDrop(&ended);
        for writer in 0..3 {
            let (mut client, ended) = (server.client(), &ended);
            scope.spawn(move || {
                let mut round = writer;
                while !ended.load(Ordering::Relaxed) {
                    let n = round * 7919 % PAIRS;
                    match round % 5 {
                        // Recreated at once: both keys of the pair exist, or neither.
                        0 => ok(&mut client, &format!("DEL left:{n} right:{n}")),
                        _ => ok(&mut client, &format!("MSET left:{n} {round} right:{n} {round}")),
                    }
                    round += 3;
                }
            });
        }
        // Slow enough for writers to be ahead of the walk.
        ok(&mut client, "CONFIG SET rdb-key-save-delay 50");
        for round in 0..3 {
            assert_eq!(ask(&mut client, "BGSAVE"), Ok(Value::SimpleString("Background saving started".into())));
            wait_until("writers were ahead of the walk", || {
                let info = info(&mut client);
                info["rdb_bgsave_in_progress"] == "0" || info["current_cow_size"] != "0"
            });
            wait_for_background_save(&mut client);
            let info = info(&mut client);
            assert_eq!((&*info["rdb_last_bgsave_status"], &*info["rdb_saves"]), ("ok", &*(round + 1).to_string()));
            assert_ne!(info["rdb_last_cow_size"], "0");
            assert_consistent(&data_dir.path("dump.rdb"), PAIRS);
        }
    });
}

/// Checks that in a dump both halves of each pair are the same.
#[track_caller]
fn assert_consistent(dump: &Path, pairs: usize) {
    let copy = DataDir::new();
    fs::copy(dump, copy.path("dump.rdb")).expect("a dump");
    let server = copy.start(&[]);
    let mut client = server.client();
    for n in 0..pairs {
        let (left, right): (Option<String>, Option<String>) =
            client.mget(&[format!("left:{n}"), format!("right:{n}")]).expect("strings");
        assert_eq!(left, right, "pair {n}");
    }
    assert!(cmd("DBSIZE").query::<usize>(&mut client).expect("a number") > pairs);
}

#[test]
fn flushdb_and_swapdb_do_not_affect_a_running_save() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--io-threads", "4"]);
    let mut client = server.client();
    fill(&mut client);
    let before = digest(&mut client);
    ok(&mut client, "CONFIG SET rdb-key-save-delay 100");
    ok(&mut client, "BGSAVE");
    ok(&mut client, "SWAPDB 0 9");
    ok(&mut client, "FLUSHDB");
    ok(&mut client, "SELECT 9");
    ok(&mut client, "FLUSHDB ASYNC");
    wait_for_background_save(&mut client);
    assert_eq!(digest(&mut client), "0".repeat(40));
    ok(&mut client, "DEBUG RELOAD NOSAVE");
    assert_eq!(digest(&mut client), before);
}

#[test]
fn one_background_save_runs_at_a_time_and_can_be_cancelled() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let mut client = server.client();
        let error = |client: &mut Connection, line| error(client, line);
        ok(&mut client, "DEBUG POPULATE 1000");
        ok(&mut client, "CONFIG SET rdb-key-save-delay 1000000");
        assert!(error(&mut client, "BGSAVE CANCEL").contains("not in progress or scheduled"));
        assert_eq!(error(&mut client, "BGSAVE SOON"), "ERR syntax error");
        ok(&mut client, "BGSAVE SCHEDULE");
        for line in ["BGSAVE", "SAVE"] {
            assert_eq!(error(&mut client, line), "ERR Background save already in progress");
        }
        let temporary = server.dir().join(format!("temp-bg-{}.rdb", server.pid()));
        wait_until("the file is begun", || temporary.exists());
        let before = info(&mut client);
        assert_eq!(before["current_save_keys_total"], "1000");
        // -1 if none is running.
        assert!(before["rdb_current_bgsave_time_sec"].parse::<i64>().is_ok_and(|seconds| seconds >= 0));
        ok(&mut client, "SET x y");
        ok(&mut client, "BGSAVE CANCEL");
        wait_for_background_save(&mut client);
        assert!(!temporary.exists() && !server.dir().join("dump.rdb").exists());
        let after = info(&mut client);
        assert_eq!((&*after["rdb_last_bgsave_status"], &*after["rdb_changes_since_last_save"]), ("ok", "1"));
    });
}

#[test]
fn a_transaction_is_saved_completely_or_not_at_all() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--io-threads", "4"]);
    let mut client = server.client();
    let transaction = |client: &mut Connection| -> Vec<Value> {
        ok(client, "MULTI");
        ["SET left 1", "BGSAVE", "SET right 1"].iter().for_each(|line| ok(client, line));
        cmd("EXEC").query(client).expect("replies")
    };
    assert_eq!(transaction(&mut client)[1], Value::SimpleString("Background saving scheduled".into()));
    wait_until("it is saved", || server.log().contains("Background saving terminated with success"));
    ok(&mut client, "DEBUG RELOAD NOSAVE");
    assert_eq!(cmd("DBSIZE").query::<i64>(&mut client).ok(), Some(2));
    // Held up, it can be withdrawn.
    ok(&mut client, "DEBUG PAUSE-CRON 1");
    transaction(&mut client);
    assert_eq!(
        ask(&mut client, "BGSAVE CANCEL"),
        Ok(Value::SimpleString("Scheduled background saving cancelled".into()))
    );
    assert!(error(&mut client, "BGSAVE CANCEL").contains("not in progress or scheduled"));
}

#[test]
fn flushall_cancels_a_background_save() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&[]);
    let mut client = server.client();
    ok(&mut client, "DEBUG POPULATE 1000");
    ok(&mut client, "CONFIG SET rdb-key-save-delay 1000000");
    ok(&mut client, "BGSAVE");
    ok(&mut client, "FLUSHALL");
    wait_for_background_save(&mut client);
    assert!(data_dir.files().is_empty(), "without save points, nothing is saved");
    ok(&mut client, "CONFIG SET rdb-key-save-delay 0");
    ok(&mut client, "DEBUG POPULATE 10");
    ok(&mut client, "SAVE");
    cmd("CONFIG").arg("SET").arg("save").arg("900 1").exec(&mut client).expect("a setting");
    ok(&mut client, "FLUSHALL");
    assert_eq!(info(&mut client)["rdb_changes_since_last_save"], "0");
    ok(&mut client, "DEBUG RELOAD NOSAVE");
    assert_eq!(cmd("DBSIZE").query::<i64>(&mut client).ok(), Some(0));
}

/// Maximum file size, so that a save fails while it writes.
fn limit_files(command: &mut Command, bytes: u64) {
    let limit = move || {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: both calls are allowed between fork and exec, and the pointer is valid.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
        }
        Ok(())
    };
    // SAFETY: the closure does nothing but these two calls.
    unsafe { command.pre_exec(limit) };
}

#[test]
fn a_full_disk_keeps_the_old_dump_and_stops_writes() {
    let data_dir = DataDir::new();
    let server = Server::start_prepared(&data_dir.args(&["--rdbcompression", "no"]), &mut |command| {
        limit_files(command, 100_000);
    });
    let mut client = server.client();
    ok(&mut client, "SET small value");
    ok(&mut client, "SAVE");
    let old = fs::read(data_dir.path("dump.rdb")).expect("a dump");
    ok(&mut client, "SETRANGE large 200000 x");
    assert_eq!(error(&mut client, "SAVE").trim(), "ERR");
    assert_eq!(info(&mut client)["rdb_last_bgsave_status"], "ok");
    ok(&mut client, "BGSAVE");
    wait_for_background_save(&mut client);
    assert_eq!(info(&mut client)["rdb_last_bgsave_status"], "err");
    wait_until("it is told", || {
        server.log().contains("Write error while saving DB to the disk(rdbSaveRio): File too large")
    });
    assert!(fs::read(data_dir.path("dump.rdb")).expect("a dump") == old);
    assert_eq!(data_dir.files(), ["dump.rdb"]);

    ok(&mut client, "SET without save-points");
    cmd("CONFIG").arg("SET").arg("save").arg("3600 100000").exec(&mut client).expect("a setting");
    for line in ["SET small other", "PING", "DEL small"] {
        assert!(error(&mut client, line).starts_with("MISCONF Valkey is configured to save RDB snapshots,"), "{line}");
    }
    assert_eq!(client.get::<_, String>("small").as_deref(), Ok("value"));
    ok(&mut client, "CONFIG SET stop-writes-on-bgsave-error no");
    ok(&mut client, "DEL large");
    ok(&mut client, "CONFIG SET stop-writes-on-bgsave-error yes");
    ok(&mut client, "BGSAVE");
    wait_for_background_save(&mut client);
    ok(&mut client, "SET small other");
    assert_eq!(info(&mut client)["rdb_last_bgsave_status"], "ok");
}

#[test]
fn a_missing_directory_and_an_occupied_path_are_reported() {
    let data_dir = DataDir::new();
    fs::create_dir(data_dir.path("inner")).expect("a directory");
    let inner = data_dir.path("inner");
    let server = Server::start(&["--dir", inner.to_str().expect("a plain path")]);
    let mut client = server.client();
    ok(&mut client, "SET a b");
    fs::create_dir(inner.join("dump.rdb")).expect("a directory");
    assert_eq!(error(&mut client, "SAVE").trim(), "ERR");
    wait_until("it is told", || server.log().contains("Error moving temp DB file temp-"));
    fs::remove_dir_all(&inner).expect("removed");
    ok(&mut client, "BGSAVE");
    wait_for_background_save(&mut client);
    assert_eq!(info(&mut client)["rdb_last_bgsave_status"], "err");
    wait_until("it is told", || server.log().contains("Failed opening the temp RDB file temp-"));
}

#[test]
fn an_unreadable_dump_prevents_startup() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&[]);
    let mut client = server.client();
    ok(&mut client, "DEBUG POPULATE 100");
    ok(&mut client, "SAVE");
    drop(client);
    server.signal(libc::SIGKILL);
    server.end();
    let valid = fs::read(data_dir.path("dump.rdb")).expect("a dump");
    let with = |at: usize, bytes: &[u8]| {
        let mut dump = valid.clone();
        dump[at..at + bytes.len()].copy_from_slice(bytes);
        dump
    };
    let end = valid.len();
    let cases = [
        (
            valid[..end / 2].to_vec(),
            format!(
                "Short read or OOM loading DB. Unrecoverable error, aborting now. Internal error in RDB reading offset \
                 {}",
                end / 2
            ),
        ),
        (with(end - 8, b"foobar00"), format!("offset {end} -> RDB CRC error")),
        (with(0, b"VALKEY987"), "Can't handle RDB format version 987 (at offset 9)".into()),
        (with(0, b"REDIS0075"), "Can't handle RDB format version 75 (at offset 9)".into()),
        (with(0, b"NOTADUMP!"), "Wrong signature trying to load DB from file".into()),
        (
            with(end - 9, &[222]),
            format!(
                "Unknown type or opcode when loading DB. Unrecoverable error, aborting now. Unknown RDB encoding type \
                 222 (at offset {})",
                end - 8
            ),
        ),
    ];
    for (dump, words) in cases {
        fs::write(data_dir.path("dump.rdb"), &dump).expect("written");
        let (code, log) = data_dir.run(&[]);
        assert_eq!(code, Some(1), "{log}");
        assert!(log.contains(&words), "{words}: {log}");
        // What is damaged is looked into; the reason is found again.
        let damaged = words.contains("Internal error") || words.contains("CRC");
        for text in ["--- RDB ERROR DETECTED ---", "Terminating server after rdb file reading failure."] {
            assert_eq!(log.contains(text), damaged, "{words}: {log}");
        }
        assert!(!log.contains("Reading key '"), "user data is hidden: {log}");
        assert!(log.trim_end().ends_with("Fatal error loading the DB, check server logs. Exiting."), "{log}");
        assert!(fs::read(data_dir.path("dump.rdb")).expect("a dump") == dump);
    }
    assert_eq!(data_dir.files(), ["dump.rdb"]);
}

#[test]
fn a_loading_server_replies_loading() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&[]);
    let mut client = server.client();
    ok(&mut client, "DEBUG POPULATE 20000 key 100");
    ok(&mut client, "SAVE");
    drop(client);
    server.signal(libc::SIGKILL);
    server.end();
    let old = fs::read(data_dir.path("dump.rdb")).expect("a dump");
    for workers in ["1", "4"] {
        let args = data_dir.args(&["--key-load-delay", "500", "--io-threads", workers]);
        let server = Server::start_loading(&args);
        let mut client = server.client();
        for line in ["PING", "GET key:1", "SET a b", "SAVE", "BGSAVE", "FLUSHALL"] {
            assert_eq!(error(&mut client, line), "LOADING Valkey is loading the dataset in memory", "{line}");
        }
        for line in ["LASTSAVE", "CLIENT LIST", "DEBUG LOG x", "CONFIG GET save"] {
            ok(&mut client, line);
        }
        let info = info(&mut client);
        assert_eq!((&*info["loading"], &*info["loading_total_bytes"]), ("1", &*old.len().to_string()));
        assert!(info.contains_key("loading_eta_seconds") && info.contains_key("loading_loaded_perc"));
        ok(&mut client, "CONFIG SET key-load-delay 0");
        wait_until("the load is over", || ask(&mut client, "PING").is_ok());
        assert_eq!(cmd("DBSIZE").query::<i64>(&mut client).ok(), Some(20000));
    }
    // Whoever ends the server now does not lose the dump.
    let mut server = Server::start_loading(&data_dir.args(&["--key-load-delay", "500", "--save", "1 1"]));
    server.signal(libc::SIGTERM);
    assert_eq!(server.end(), Some(0));
    assert!(!server.log().contains("Ready to accept connections"));
    assert!(fs::read(data_dir.path("dump.rdb")).expect("a dump") == old);
}

#[test]
fn commands_wait_for_a_short_load() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&[]);
    let mut client = server.client();
    ok(&mut client, "DEBUG POPULATE 30 key 100");
    ok(&mut client, "SAVE");
    drop(client);
    server.signal(libc::SIGKILL);
    server.end();
    for workers in ["1", "4"] {
        // The server lets commands wait for a tenth of a second. On a busy machine the load can take longer.
        let served = (0..20).any(|_| {
            let started = Instant::now();
            let server = Server::start_loading(&data_dir.args(&["--key-load-delay", "1500", "--io-threads", workers]));
            let clients: Vec<_> = (0..5).map(|_| server.client()).collect();
            clients.into_iter().all(|mut client| match cmd("GET").arg("key:7").query::<Option<String>>(&mut client) {
                Err(error) if error.code() == Some("LOADING") && started.elapsed() >= Duration::from_millis(100) => {
                    false
                }
                reply => {
                    assert_eq!(reply.map(|value| value.is_some()), Ok(true));
                    assert_eq!(cmd("DBSIZE").query::<i64>(&mut client), Ok(30));
                    true
                }
            })
        });
        assert!(served, "every load took longer than commands wait");
    }
}

#[test]
fn save_points_trigger_saves() {
    for_workers(&["--save", "3600 1000000", "--save", "1 2"], |server| {
        let mut client = server.client();
        ok(&mut client, "MSET a 1 b 2");
        wait_until("a save point was reached", || server.log().contains("Background saving terminated with success"));
        assert!(server.log().contains("2 changes in 1 seconds. Saving..."));
        assert!(server.dir().join("dump.rdb").exists());
        let info = info(&mut client);
        assert_eq!((&*info["rdb_changes_since_last_save"], &*info["rdb_saves"]), ("0", "1"));
    });
}

#[test]
fn the_data_set_is_saved_at_shutdown_if_configured() {
    for (save, end, saved) in [
        ("900 1", "SIGTERM", true),
        ("900 1", "SIGINT", true),
        ("900 1", "SHUTDOWN", true),
        ("900 1", "SHUTDOWN NOSAVE", false),
        ("", "SIGTERM", false),
        ("", "SHUTDOWN", false),
        ("", "SHUTDOWN SAVE", true),
    ] {
        let data_dir = DataDir::new();
        let mut server = data_dir.start(&["--save", save, "--io-threads", "4"]);
        let mut client = server.client();
        fill(&mut client);
        let before = digest(&mut client);
        match end {
            "SIGTERM" => server.signal(libc::SIGTERM),
            "SIGINT" => server.signal(libc::SIGINT),
            line => assert!(ask(&mut client, line).is_err()),
        }
        assert_eq!(server.end(), Some(0), "{}", server.log());
        assert_eq!(data_dir.files() == ["dump.rdb"], saved, "{save} {end}");
        assert_eq!(server.log().contains("Saving the final RDB snapshot before exiting."), saved);
        if saved {
            let server = data_dir.start(&[]);
            assert_eq!(digest(&mut server.client()), before, "{save} {end}");
        }
    }
}

#[test]
fn acknowledged_writes_are_in_the_final_save() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&["--save", "900 1", "--io-threads", "4"]);
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let mut client = server.client();
                scope.spawn(move || {
                    let (mut acknowledged, deadline) = (0, Deadline::of("the server is gone"));
                    while let Ok(count) = client.incr::<_, _, u64>(format!("counter:{writer}"), 1) {
                        acknowledged = count;
                        deadline.check();
                    }
                    acknowledged
                })
            })
            .collect();
        let mut client = server.client();
        wait_until("they are under way", || client.get::<_, u64>("counter:3").is_ok_and(|count| count > 100));
        server.signal(libc::SIGTERM);
        writers.into_iter().map(|writer| writer.join().expect("a count")).collect()
    });
    assert_eq!(server.end(), Some(0));
    let server = data_dir.start(&[]);
    let mut client = server.client();
    for (writer, acknowledged) in counts.into_iter().enumerate() {
        let saved: u64 = client.get(format!("counter:{writer}")).expect("a counter");
        assert!(saved >= acknowledged, "{saved} saved, {acknowledged} acknowledged");
    }
}

#[test]
fn a_failed_final_save_prevents_shutdown_unless_forced() {
    let data_dir = DataDir::new();
    let mut server = data_dir.start(&["--save", "900 1"]);
    let mut client = server.client();
    ok(&mut client, "SET a b");
    fs::create_dir(data_dir.path("dump.rdb")).expect("a directory");
    server.signal(libc::SIGTERM);
    wait_until("it refuses", || server.log().contains("Error trying to save the DB, can't exit."));
    assert_eq!(error(&mut client, "SHUTDOWN"), "ERR Errors trying to SHUTDOWN. Check logs.");
    assert_eq!(client.get::<_, String>("a").as_deref(), Ok("b"));
    assert!(ask(&mut client, "SHUTDOWN FORCE").is_err());
    assert_eq!(server.end(), Some(0));
    assert_eq!(data_dir.files(), ["dump.rdb"]);
}

#[test]
fn incomplete_files_are_deleted_at_shutdown() {
    for end in ["SHUTDOWN NOSAVE", "SHUTDOWN SAVE", "SIGINT twice"] {
        let data_dir = DataDir::new();
        let mut server = data_dir.start(&["--save", "900 1"]);
        let mut client = server.client();
        ok(&mut client, "DEBUG POPULATE 20");
        ok(&mut client, "CONFIG SET rdb-key-save-delay 100000");
        if end == "SIGINT twice" {
            server.signal(libc::SIGINT);
            wait_until("the last save has begun", || data_dir.path(&format!("temp-{}.rdb", server.pid())).exists());
            server.signal(libc::SIGINT);
            assert_eq!(server.end(), Some(1));
            assert!(data_dir.files().is_empty(), "{:?}", data_dir.files());
            continue;
        }
        ok(&mut client, "BGSAVE");
        wait_until("a save has begun", || !data_dir.files().is_empty());
        ok(&mut client, "CONFIG SET rdb-key-save-delay 1");
        assert!(ask(&mut client, end).is_err());
        // Already when the client has seen that it is gone.
        let expected: &[&str] = if end == "SHUTDOWN SAVE" { &["dump.rdb"] } else { &[] };
        assert_eq!(data_dir.files(), expected, "{end}");
        assert_eq!(server.end(), Some(0));
        assert_eq!(data_dir.files(), expected, "{end}");
    }
}

#[test]
fn debug_reload_saves_and_loads() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let mut client = server.client();
        fill(&mut client);
        let before = digest(&mut client);
        ok(&mut client, "DEBUG RELOAD");
        assert_eq!(digest(&mut client), before);
        ok(&mut client, "SET text changed");
        ok(&mut client, "SET new 1");
        assert!(error(&mut client, "DEBUG RELOAD NOSAVE NOFLUSH").contains("Error trying to load the RDB dump"));
        ok(&mut client, "DEBUG RELOAD MERGE NOFLUSH NOSAVE");
        assert_eq!(client.get::<_, String>("text").as_deref(), Ok("hello"));
        ok(&mut client, "DEL new");
        assert_eq!(digest(&mut client), before);
        assert!(
            error(&mut client, "DEBUG RELOAD NOW").contains("only supports the MERGE, NOFLUSH and NOSAVE options.")
        );
        // A version that cannot be read costs nothing.
        fs::write(server.dir().join("dump.rdb"), "VALKEY987").expect("written");
        assert!(error(&mut client, "DEBUG RELOAD NOSAVE").contains("Error trying to load the RDB dump"));
        assert_eq!(digest(&mut client), before);
    });
}

#[test]
fn access_data_are_saved_if_eviction_uses_them() {
    for (policy, subcommand, pause) in [("allkeys-lfu", "FREQ", false), ("allkeys-lru", "IDLETIME", true)] {
        let data_dir = DataDir::new();
        let server = data_dir.start(&["--maxmemory-policy", policy, "--lfu-log-factor", "0"]);
        let mut client = server.client();
        ok(&mut client, "SET a b");
        (0..50).for_each(|_| ok(&mut client, "GET a"));
        // The clock of idle time counts seconds.
        if pause {
            std::thread::sleep(std::time::Duration::from_millis(1100));
        }
        let ask = |client: &mut Connection| -> i64 {
            cmd("OBJECT").arg(subcommand).arg("a").query(client).expect("a number")
        };
        let before = ask(&mut client);
        assert!(before >= 1);
        ok(&mut client, "DEBUG RELOAD");
        let after = ask(&mut client);
        assert!((before..=before + 5).contains(&after), "{policy}: {before}, then {after}");
    }
}

#[test]
fn a_dump_can_be_saved_for_older_servers() {
    let data_dir = DataDir::new();
    let server = data_dir.start(&["--rdb-save-version", "11"]);
    let mut client = server.client();
    fill(&mut client);
    let before = digest(&mut client);
    ok(&mut client, "SAVE");
    let old = fs::read(data_dir.path("dump.rdb")).expect("a dump");
    assert!(old.starts_with(b"REDIS0011"));
    // What the version has no form for makes a save fail, not lose it.
    ok(&mut client, "HSET passing field value");
    ok(&mut client, "HEXPIRE passing 1000 FIELDS 1 field");
    assert_eq!(error(&mut client, "SAVE").trim(), "ERR");
    ok(&mut client, "BGSAVE");
    wait_for_background_save(&mut client);
    assert_eq!(info(&mut client)["rdb_last_bgsave_status"], "err");
    assert!(fs::read(data_dir.path("dump.rdb")).expect("a dump") == old);
    ok(&mut client, "DEL passing");
    ok(&mut client, "CONFIG SET rdb-save-version 80");
    ok(&mut client, "DEBUG RELOAD NOSAVE");
    assert_eq!(digest(&mut client), before);
    ok(&mut client, "BGSAVE");
    wait_for_background_save(&mut client);
    assert!(fs::read(data_dir.path("dump.rdb")).expect("a dump").starts_with(b"VALKEY080"));
}
