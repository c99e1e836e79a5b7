//! Failing syncs and renames: acknowledged writes are durable, writes are refused until the disk recovers, and existing
//! files are kept. [`common::disk`] injects the failures, which needs a kernel with seccomp.

mod common;

use common::disk::{Disk, Failing};
use common::line::{digest, ok, persistence as info, refusal, run};
use common::{Server, journal, wait_until};
use kvick_testing::Deadline;
use redis::{Commands, Connection, Value, cmd};
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Clients that write at a time.
const WRITERS: usize = 4;

/// A server in a directory that outlives it.
fn start(data_dir: &Path, args: &[&str]) -> Option<(Server, Disk)> {
    let dir = data_dir.to_str().expect("a plain path");
    Disk::start(&[&["--dir", dir, "--enable-debug-command", "yes"], args].concat())
}

fn is_increment(path: &str) -> bool {
    path.ends_with(".incr.aof")
}

/// Writes until the server is gone. A reply to what was sent when syncs had begun to fail would be a lie.
fn write(server: &Server, number: usize, fails: &AtomicBool) {
    let (mut client, deadline) = (server.client(), Deadline::of("the server is gone"));
    for n in 0u64.. {
        deadline.check();
        let has_failed = fails.load(Ordering::SeqCst);
        let value = if has_failed { "unsynced".to_owned() } else { n.to_string() };
        match cmd("SET").arg(format!("key-{number}")).arg(value).query::<()>(&mut client) {
            Ok(()) => assert!(!has_failed, "a write that no sync has kept was acknowledged"),
            Err(_) => return,
        }
    }
}

/// Reads until the server has exited. No client may see a write that was not synced.
fn read(server: &Server, number: usize) {
    let (mut client, deadline) = (server.client(), Deadline::of("the server is gone"));
    while let Ok(value) = cmd("GET").arg(format!("key-{number}")).query::<Option<String>>(&mut client) {
        assert_ne!(value.as_deref(), Some("unsynced"));
        deadline.check();
    }
}

#[test]
fn a_failed_fsync_with_always_ends_the_server_without_false_replies() {
    for workers in ["1", "4"] {
        let data_dir = tempfile::tempdir().expect("a directory");
        // With a journal, replies may continue for a moment, because it makes them durable.
        let args = ["--io-threads", workers, "--appendonly", "yes", "--appendfsync", "always", "--aof-journal", "no"];
        let Some((mut server, disk)) = start(data_dir.path(), &args) else { return };
        let fails = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..WRITERS {
                let (server, fails) = (&server, &fails);
                scope.spawn(move || write(server, number, fails));
                scope.spawn(move || read(server, number));
            }
            std::thread::sleep(Duration::from_millis(200));
            disk.fail(Failing::NextSync(is_increment));
            wait_until("a sync has failed", || disk.failures() > 0);
            fails.store(true, Ordering::SeqCst);
        });
        assert_eq!(server.end(), Some(1));
        assert!(server.log().contains("Can't persist AOF for fsync error"));
    }
}

#[test]
fn any_failed_fsync_with_always_ends_the_server() {
    for cause in ["BGREWRITEAOF", "CONFIG SET appendonly no", "DEBUG LOADAOF"] {
        let data_dir = tempfile::tempdir().expect("a directory");
        let args = ["--io-threads", "1", "--appendonly", "yes", "--appendfsync", "always"];
        let Some((mut server, disk)) = start(data_dir.path(), &args) else { return };
        let mut client = server.raw();
        client.ask(&["SET", "key", "value"], "+OK\r\n");
        disk.fail(Failing::NextSync(is_increment));
        // In one turn, so that the write is synced for the sake of the other command.
        client.send(format!("SET key unsynced\r\n{cause}\r\n"));
        client.expect_end();
        assert_eq!(server.end(), Some(1), "{cause}");
        assert!(server.log().contains("Can't persist AOF for fsync error"), "{cause}");
    }
}

#[test]
fn writes_lost_by_a_background_sync_are_restored_from_the_journal() {
    for workers in ["1", "4"] {
        let data_dir = tempfile::tempdir().expect("a directory");
        let args = ["--io-threads", workers, "--appendonly", "yes", "--appendfsync", "always"];
        let files = data_dir.path().join("appendonlydir");
        let (kept, increment) = (files.join("appendonly.aof.journal"), files.join("appendonly.aof.1.incr.aof"));
        let Some((mut server, disk)) = start(data_dir.path(), &args) else { return };
        let (mut client, mut last) = (server.client(), 0);
        wait_until("commits go to the journal", || {
            last = client.incr("counter", 1).expect("a reply");
            journal::begins_at(&kept, &increment).is_some()
        });
        disk.fail(Failing::NextSync(is_increment));
        let deadline = Deadline::of("the server is gone");
        while let Ok(counter) = client.incr("counter", 1) {
            last = counter;
            deadline.check();
        }
        assert_eq!(server.end(), Some(1));
        assert!(server.log().contains("Can't persist AOF for fsync error"));
        // A kernel drops what it could not write.
        let from = journal::begins_at(&kept, &increment).expect("a journal of the increment");
        let file = OpenOptions::new().write(true).open(&increment).expect("the increment");
        file.set_len(from).expect("a shorter file");
        let Some((server, _disk)) = start(data_dir.path(), &args) else { return };
        let counter: i64 = server.client().get("counter").expect("a number");
        // The last one may have been kept before the server could say so.
        assert!((last..=last + 1).contains(&counter), "{counter} is there of {last}");
        assert!(server.log().contains("were put back from the AOF journal"), "{}", server.log());
    }
}

#[test]
fn everysec_refuses_writes_until_an_fsync_succeeds() {
    for workers in ["1", "4"] {
        let data_dir = tempfile::tempdir().expect("a directory");
        let args = ["--io-threads", workers, "--appendonly", "yes", "--appendfsync", "everysec"];
        let Some((mut server, disk)) = start(data_dir.path(), &args) else { return };
        let mut client = server.client();
        ok(&mut client, "SET key 1");
        assert_eq!(waitaof(&mut client, 5000), 1);
        disk.fail(Failing::Syncs(is_increment));
        ok(&mut client, "SET key 2");
        assert_eq!(waitaof(&mut client, 100), 0);
        wait_until("writes are refused", || run(&mut client, "SET other 3").is_err());
        let why = refusal(&mut client, "SET key 3");
        assert_eq!(why, "MISCONF Errors writing to the AOF file: Input/output error");
        assert_eq!(run(&mut client, "GET key").expect("reads go on"), Value::BulkString(b"2".to_vec()));
        assert_eq!(waitaof(&mut client, 100), 0);
        assert_eq!(info(&mut client, "aof_last_write_status"), "err");
        // Files that are not whole are followed by no others.
        ok(&mut client, "BGREWRITEAOF");
        wait_until("the rewrite has failed", || info(&mut client, "aof_last_bgrewrite_status") == "err");
        disk.fail(Failing::Nothing);
        wait_until("writes are taken again", || run(&mut client, "SET key 4").is_ok());
        assert_eq!(waitaof(&mut client, 5000), 1);
        assert_eq!(info(&mut client, "aof_last_write_status"), "ok");
        let before = digest(&mut client);
        server.signal(libc::SIGKILL);
        server.end();
        let Some((server, _disk)) = start(data_dir.path(), &args) else { return };
        assert_eq!(digest(&mut server.client()), before);
    }
}

/// Whether what the client wrote is on the disk, waiting so long for it.
fn waitaof(client: &mut Connection, ms: u64) -> i64 {
    let (here, _): (i64, i64) = cmd("WAITAOF").arg(1).arg(0).arg(ms).query(client).expect("two counts");
    here
}

#[test]
fn a_failed_dump_stops_writes_until_one_succeeds() {
    let is_dump = |path: &str| path.contains("/temp-");
    let is_folder = |path: &str| !path.rsplit('/').next().unwrap_or_default().contains('.');
    for failing in [Failing::Syncs(is_dump), Failing::Renames, Failing::Syncs(is_folder)] {
        let data_dir = tempfile::Builder::new().prefix("folder").tempdir().expect("a directory");
        let args = ["--save", "3600 100000", "--dbfilename", "dump.rdb"];
        let Some((mut server, disk)) = start(data_dir.path(), &args) else { return };
        let mut client = server.client();
        ok(&mut client, "SET key 1");
        ok(&mut client, "SAVE");
        ok(&mut client, "SET key 2");
        disk.fail(failing);
        ok(&mut client, "BGSAVE");
        wait_until("the save has failed", || info(&mut client, "rdb_last_bgsave_status") == "err");
        assert!(disk.failures() > 0);
        let why = refusal(&mut client, "SET key 3");
        assert!(why.starts_with("MISCONF Valkey is configured to save RDB snapshots"), "{why}");
        assert_eq!(run(&mut client, "GET key").expect("reads go on"), Value::BulkString(b"2".to_vec()));
        assert!(run(&mut client, "SAVE").is_err());
        let names = std::fs::read_dir(data_dir.path()).expect("the directory");
        let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
        assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("temp-")), "{names:?}");
        ok(&mut client, "CONFIG SET stop-writes-on-bgsave-error no");
        ok(&mut client, "SET key 4");
        ok(&mut client, "CONFIG SET stop-writes-on-bgsave-error yes");
        disk.fail(Failing::Nothing);
        ok(&mut client, "BGSAVE");
        wait_until("a save has gone well", || info(&mut client, "rdb_last_bgsave_status") == "ok");
        ok(&mut client, "SET key 5");
        server.signal(libc::SIGKILL);
        server.end();
        let Some((server, _disk)) = start(data_dir.path(), &args) else { return };
        let kept = run(&mut server.client(), "GET key").expect("a value");
        assert_eq!(kept, Value::BulkString(b"4".to_vec()));
    }
}

#[test]
fn a_rewrite_that_cannot_be_synced_or_renamed_leaves_the_old_files() {
    let is_base = |path: &str| path.contains("/temp-rewriteaof-");
    let is_manifest = |path: &str| path.contains("manifest");
    for failing in [Failing::Syncs(is_base), Failing::Renames, Failing::Syncs(is_manifest)] {
        let data_dir = tempfile::tempdir().expect("a directory");
        let args = ["--appendonly", "yes", "--appendfsync", "always"];
        let Some((mut server, disk)) = start(data_dir.path(), &args) else { return };
        let mut client = server.client();
        ok(&mut client, "SET key 1");
        disk.fail(failing);
        ok(&mut client, "BGREWRITEAOF");
        wait_until("the rewrite has failed", || info(&mut client, "aof_last_bgrewrite_status") == "err");
        assert!(disk.failures() > 0);
        ok(&mut client, "SET key 2");
        let before = digest(&mut client);
        server.signal(libc::SIGKILL);
        server.end();
        let Some((server, _disk)) = start(data_dir.path(), &args) else { return };
        let mut client = server.client();
        assert_eq!(digest(&mut client), before);
        ok(&mut client, "BGREWRITEAOF");
        wait_until("the rewrite is over", || info(&mut client, "aof_rewrite_in_progress") == "0");
        assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "ok");
        ok(&mut client, "DEBUG LOADAOF");
        assert_eq!(digest(&mut client), before);
    }
}

#[test]
fn no_file_is_deleted_while_an_unsynced_manifest_may_list_it() {
    let data_dir = tempfile::tempdir().expect("a directory");
    let args = ["--appendonly", "yes", "--appendfsync", "always", "--rdb-key-save-delay", "20000"];
    let Some((mut server, disk)) = start(data_dir.path(), &args) else { return };
    let mut client = server.client();
    (0..20).for_each(|n| ok(&mut client, &format!("SET key-{n} 1")));
    let files = data_dir.path().join("appendonlydir");
    let manifest = files.join("appendonly.aof.manifest");
    let read = || std::fs::read_to_string(&manifest).expect("a manifest");
    ok(&mut client, "BGREWRITEAOF");
    wait_until("there is a new increment", || read().contains("appendonly.aof.2.incr.aof"));
    let before = read();
    // The new base and the manifest are complete and renamed, but the renames may not be on disk.
    disk.fail(Failing::NextSync(|path| {
        path.ends_with("/appendonlydir")
            && std::fs::read_to_string(format!("{path}/appendonly.aof.manifest"))
                .is_ok_and(|text| text.contains(".2.base."))
    }));
    wait_until("the rewrite has failed", || info(&mut client, "aof_last_bgrewrite_status") == "err");
    assert_eq!(disk.failures(), 1);
    assert_eq!(read(), before);
    for name in ["appendonly.aof.1.base.rdb", "appendonly.aof.2.base.rdb", "appendonly.aof.1.incr.aof"] {
        assert!(files.join(name).exists(), "{name}");
    }
    ok(&mut client, "SET key-0 2");
    let before = digest(&mut client);
    server.signal(libc::SIGKILL);
    server.end();
    let Some((server, _disk)) = start(data_dir.path(), &args[..4]) else { return };
    let mut client = server.client();
    assert_eq!(digest(&mut client), before);
    ok(&mut client, "BGREWRITEAOF");
    wait_until("the rewrite is over", || info(&mut client, "aof_rewrite_in_progress") == "0");
    assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "ok");
    ok(&mut client, "DEBUG LOADAOF");
    assert_eq!(digest(&mut client), before);
}
