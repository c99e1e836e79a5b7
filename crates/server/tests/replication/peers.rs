//! Replication with Valkey and Redis servers as primaries and as replicas. Variables name their programs:
//! `KVICK_TEST_VALKEY` (Valkey 9), `KVICK_TEST_VALKEY_8` (Valkey 8.1), `KVICK_TEST_REDIS` (Redis 8) and
//! `KVICK_TEST_REDIS_7` (Redis 7.0). If one is not set, its tests print so and pass.

use super::common::peer::Running;
use super::common::wait_until;
use super::{
    Load, ask, assert_same_data, counted, follow, info, number, settle, start, text, wait_for_link, with_workers, write,
};
use redis::{Connection, Value};
use tempfile::TempDir;

/// The program of the other server, if available.
fn valkey() -> Option<String> {
    let found = std::env::var("KVICK_TEST_VALKEY").ok();
    if found.is_none() {
        println!("KVICK_TEST_VALKEY is not set: nothing is tried with the server that others wrote");
    }
    found
}

#[test]
fn replication_works_with_valkey_and_redis() {
    let Some(program) = valkey() else { return };
    with_workers(|workers| {
        let data_dir = TempDir::new().expect("a directory");
        let theirs = Running::start(&program, data_dir.path(), &["--repl-diskless-sync-delay", "0"]);
        let ours = start(workers, &[]);
        let (mut t, mut o) = (theirs.client(), ours.client());
        ask(&mut t, "DEBUG POPULATE 3000 theirs 100");
        (0..50).for_each(|n| write(&mut t, n).expect("changes"));
        // This one moves over to theirs, and becomes the primary; then theirs follows it, and takes over again.
        follow(&mut o, theirs.port());
        wait_for_link(&mut o);
        (50..100).for_each(|n| write(&mut t, n).expect("changes"));
        settle(&mut t);
        assert_same_data(&mut t, &mut o);
        wait_until("it is online", || text(&mut t, "INFO replication").contains("state=online"));
        ask(&mut t, "FAILOVER");
        wait_until("this one is the primary", || info(&mut o, "role") == "master");
        wait_for_link(&mut t);
        (100..150).for_each(|n| write(&mut o, n).expect("changes"));
        settle(&mut o);
        assert_same_data(&mut o, &mut t);
        assert_eq!((counted(&mut o, "sync_full"), counted(&mut o, "sync_partial_ok")), (0, 1));
        ask(&mut o, &format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 10000", theirs.port()));
        wait_until("theirs is the primary", || info(&mut t, "role") == "master");
        wait_for_link(&mut o);
        write(&mut t, 200).expect("changes");
        settle(&mut t);
        assert_same_data(&mut t, &mut o);
        // And from the beginning, this one being the primary.
        let data_dir = TempDir::new().expect("a directory");
        let fresh = Running::start(&program, data_dir.path(), &[]);
        let mut f = fresh.client();
        ask(&mut o, "REPLICAOF NO ONE");
        follow(&mut f, ours.port());
        wait_for_link(&mut f);
        assert_same_data(&mut o, &mut f);
    });
}

/// Primaries of other versions, each named by a variable: their dumps and replication streams differ from Valkey 9's.
const PRIMARIES: [&str; 3] = ["KVICK_TEST_VALKEY_8", "KVICK_TEST_REDIS_7", "KVICK_TEST_REDIS"];

/// Replicas of other versions. Redis 7.0 cannot be one: it reads dumps up to version 10 of the format, and the oldest
/// version that is written here is 11, for Redis 7.2 and Valkey 8.
const REPLICAS: [&str; 2] = ["KVICK_TEST_VALKEY_8", "KVICK_TEST_REDIS"];

/// The data as clients see them, in a defined order: other servers compute other digests.
fn seen(client: &mut Connection) -> Vec<String> {
    let mut all = Vec::new();
    for database in 0..3 {
        ask(client, &format!("SELECT {database}"));
        let mut keys: Vec<String> = redis::from_redis_value(ask(client, "KEYS *")).expect("keys");
        keys.sort();
        for key in keys {
            let sorted = |value: Value| {
                let mut elements: Vec<String> = redis::from_redis_value(value).expect("elements");
                elements.sort();
                format!("{elements:?}")
            };
            let value = match text(client, &format!("TYPE {key}")).as_str() {
                "string" => text(client, &format!("GET {key}")),
                "list" => format!("{:?}", ask(client, &format!("LRANGE {key} 0 -1"))),
                "set" => sorted(ask(client, &format!("SMEMBERS {key}"))),
                "zset" => {
                    // As numbers: Redis 7.0 prints scores with more digits.
                    let members = ask(client, &format!("ZRANGE {key} 0 -1 WITHSCORES"));
                    let scores: Vec<(String, f64)> = redis::from_redis_value(members).expect("members with scores");
                    format!("{scores:?}")
                }
                "hash" => {
                    let fields: std::collections::BTreeMap<String, String> =
                        redis::from_redis_value(ask(client, &format!("HGETALL {key}"))).expect("fields");
                    format!("{fields:?}")
                }
                kind => format!("{kind} {:?}", ask(client, &format!("XRANGE {key} - +"))),
            };
            let expiry = number(client, &format!("PEXPIRETIME {key}"));
            all.push(format!("{database} {key} {expiry} {value}"));
        }
    }
    ask(client, "SELECT 0");
    all
}

/// Breaks the link under load, and checks that the replica continues with a partial sync and has all data at the end.
fn assert_continues_and_matches(primary: &mut Connection, replica: &mut Connection, load: Load, variable: &str) {
    wait_for_link(replica);
    let before = counted(primary, "master_repl_offset");
    wait_until("some more is written", || counted(primary, "master_repl_offset") > before + 200_000);
    ask(primary, "CLIENT KILL TYPE replica");
    wait_until("the replica goes on", || counted(primary, "sync_partial_ok") == 1);
    load.end();
    settle(primary);
    wait_until("the replica has all", || info(primary, "master_repl_offset") == info(replica, "master_repl_offset"));
    if variable.starts_with("KVICK_TEST_REDIS") {
        // Redis computes other digests.
        assert_eq!(seen(primary), seen(replica));
    } else {
        assert_same_data(primary, replica);
    }
}

#[test]
fn a_replica_follows_primaries_of_other_versions_under_load() {
    for variable in PRIMARIES {
        let Ok(program) = std::env::var(variable) else {
            println!("{variable} is not set: nothing is tried with that server");
            continue;
        };
        with_workers(|workers| {
            let data_dir = TempDir::new().expect("a directory");
            let theirs = Running::start(
                &program,
                data_dir.path(),
                &["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "200mb"],
            );
            // Redis writes a version of the format that is not Valkey's.
            let ours = start(workers, &["--repl-diskless-load", "swapdb", "--rdb-version-check", "relaxed"]);
            let (mut t, mut o) = (theirs.client(), ours.client());
            (0..100).for_each(|n| write(&mut t, n).expect("changes"));
            let load = Load::with(|| theirs.client());
            follow(&mut o, theirs.port());
            assert_continues_and_matches(&mut t, &mut o, load, variable);
            assert_eq!(counted(&mut o, "unexpected_error_replies"), 0);
        });
    }
}

#[test]
fn replicas_of_other_versions_follow_this_one_under_load() {
    for variable in REPLICAS {
        let Ok(program) = std::env::var(variable) else {
            println!("{variable} is not set: nothing is tried with that server");
            continue;
        };
        with_workers(|workers| {
            let data_dir = TempDir::new().expect("a directory");
            let theirs = Running::start(&program, data_dir.path(), &[]);
            let ours = start(workers, &["--repl-backlog-size", "200mb"]);
            let (mut t, mut o) = (theirs.client(), ours.client());
            (0..100).for_each(|n| write(&mut o, n).expect("changes"));
            let load = Load::begin(&ours);
            follow(&mut t, ours.port());
            assert_continues_and_matches(&mut o, &mut t, load, variable);
        });
    }
}

#[test]
fn dual_channel_sync_works_with_other_servers() {
    for variable in ["KVICK_TEST_VALKEY", "KVICK_TEST_VALKEY_8"] {
        let Ok(program) = std::env::var(variable) else {
            println!("{variable} is not set: nothing is tried with that server");
            continue;
        };
        with_workers(|workers| {
            let two = [
                "--dual-channel-replication-enabled",
                "yes",
                "--repl-diskless-sync-delay",
                "0",
                "--repl-backlog-size",
                "64mb",
            ];
            let data_dirs = [(); 2].map(|()| TempDir::new().expect("a directory"));
            let [primary, replica] = [0, 1].map(|n| Running::start(&program, data_dirs[n].path(), &two));
            let ours = start(workers, &two);
            // From theirs to this one, and on to another of theirs.
            let (mut p, mut o, mut r) = (primary.client(), ours.client(), replica.client());
            ask(&mut p, "DEBUG POPULATE 5000 before 100");
            let load = Load::with(|| primary.client());
            follow(&mut o, primary.port());
            wait_for_link(&mut o);
            follow(&mut r, ours.port());
            wait_for_link(&mut r);
            load.end();
            settle(&mut p);
            assert_same_data(&mut p, &mut o);
            assert_same_data(&mut o, &mut r);
            for client in [&mut p, &mut o] {
                assert_eq!((counted(client, "sync_full"), counted(client, "sync_partial_ok")), (1, 1));
            }
        });
    }
}

#[test]
fn other_servers_sync_via_a_file() {
    let Some(program) = valkey() else { return };
    with_workers(|workers| {
        let ours = start(workers, &["--repl-diskless-sync", "no"]);
        let mut o = ours.client();
        ask(&mut o, "DEBUG POPULATE 3000 ours 100");
        let data_dir = TempDir::new().expect("a directory");
        let theirs = Running::start(&program, data_dir.path(), &[]);
        let mut t = theirs.client();
        follow(&mut t, ours.port());
        wait_for_link(&mut t);
        write(&mut o, 1).expect("changes");
        settle(&mut o);
        assert_same_data(&mut o, &mut t);
    });
}

#[test]
fn a_dump_in_the_old_format_round_trips_through_an_old_server() {
    let variable = "KVICK_TEST_VALKEY_8";
    let Ok(program) = std::env::var(variable) else {
        return println!("{variable} is not set: nothing is tried with that server");
    };
    with_workers(|workers| {
        let data_dir = TempDir::new().expect("a directory");
        let ours = start(workers, &["--rdb-save-version", "11"]);
        let mut o = ours.client();
        (0..300).for_each(|n| write(&mut o, n).expect("changes"));
        settle(&mut o);
        ask(&mut o, "SAVE");
        std::fs::copy(ours.dir().join("dump.rdb"), data_dir.path().join("dump.rdb")).expect("a copy");
        let theirs = Running::start(&program, data_dir.path(), &[]);
        let mut t = theirs.client();
        assert_eq!(text(&mut t, "DEBUG DIGEST"), text(&mut o, "DEBUG DIGEST"));
        write(&mut t, 300).expect("changes");
        settle(&mut t);
        ask(&mut t, "SAVE");
        let path = data_dir.path().to_str().expect("a plain path");
        let back = start(workers, &["--dir", path]);
        assert_eq!(text(&mut back.client(), "DEBUG DIGEST"), text(&mut t, "DEBUG DIGEST"));
    });
}
