//! Full syncs, in each of their variants.

use super::common::{Raw, Server, wait_until};
use super::{
    Load, ask, assert_same_data, counted, follow, info, number, settle, start, text, try_ask, wait_for_link,
    with_workers,
};
use redis::Value;

#[test]
fn full_syncs_work_via_a_file_and_without_streaming_support() {
    with_workers(|workers| {
        let (primary, replica) = (start(workers, &["--repl-diskless-sync", "no"]), start(workers, &[]));
        let (mut p, mut r) = (primary.client(), replica.client());
        ask(&mut p, "DEBUG POPULATE 5000 before 100");
        let load = Load::begin(&primary);
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        load.end();
        settle(&mut p);
        assert_same_data(&mut p, &mut r);
        assert!(primary.dir().join("dump.rdb").exists());
        // One that says nothing of itself, and never does.
        ask(&mut p, "CONFIG SET repl-diskless-sync yes");
        let mut old = primary.raw();
        old.request(&["SYNC"]);
        let length = loop {
            // The primary sends line feeds as keepalives.
            let line = old.line().trim_start().to_owned();
            if let Some(length) = line.strip_prefix('$') {
                break length.parse::<usize>().expect("a length");
            }
            assert_eq!(line, "");
        };
        assert!(old.bytes(length).starts_with(b"REDIS0011"));
        ask(&mut p, "SET after sync");
        old.skip_to("after");
    });
}

#[test]
fn dual_channel_sync_works_with_every_load_mode() {
    with_workers(|workers| {
        let two = ["--dual-channel-replication-enabled", "yes"];
        let primary = start(workers, &two);
        let mut p = primary.client();
        ask(&mut p, "DEBUG POPULATE 20000 before 100");
        let load = Load::begin(&primary);
        let servers = ["disabled", "on-empty-db", "flush-before-load", "swapdb"].map(|way| {
            let replica = start(workers, &[&two[..], &["--repl-diskless-load", way]].concat());
            let mut r = replica.client();
            ask(&mut r, "SET of-its-own goes");
            follow(&mut r, primary.port());
            (replica, r)
        });
        let mut replicas = servers.map(|(server, mut r)| {
            wait_for_link(&mut r);
            (server, r)
        });
        load.end();
        settle(&mut p);
        for (_, r) in &mut replicas {
            assert_same_data(&mut p, r);
            assert_eq!(ask(r, "GET of-its-own"), Value::Nil);
        }
        // The connections for the dumps are gone.
        wait_until("four replicas are left", || counted(&mut p, "connected_slaves") == 4);
        assert_eq!((counted(&mut p, "sync_full"), counted(&mut p, "sync_partial_ok")), (4, 4));
        assert_eq!(counted(&mut p, "replicas_waiting_psync"), 0);
    });
}

/// The state of a process, as a letter.
fn process_state(server: &Server) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("a process");
    stat.rsplit(") ").next().and_then(|fields| fields.get(..1)).expect("a state").to_owned()
}

#[test]
fn pause_after_fork_stops_a_primary_once_it_has_sent_its_dump() {
    with_workers(|workers| {
        let two = ["--dual-channel-replication-enabled", "yes"];
        // More than a transfer buffers at once, and a limit that the load exceeds within moments.
        let limits = ["--rdbcompression", "no", "--repl-backlog-size", "16384"];
        let limit = ["--client-output-buffer-limit", "replica 20000 0 0"];
        let (primary, replica) = (start(workers, &[&two[..], &limits, &limit].concat()), start(workers, &two));
        let (mut p, mut r) = (primary.client(), replica.client());
        ask(&mut p, "DEBUG POPULATE 2000 key 10000");
        ask(&mut p, "DEBUG PAUSE-AFTER-FORK 1");
        let load = Load::begin(&primary);
        wait_until("the load writes", || number(&mut p, "DBSIZE") > 2000);
        follow(&mut r, primary.port());
        wait_until("the primary stops", || process_state(&primary) == "T");
        wait_until("the replica has loaded the dump", || replica.log().contains("Done loading RDB"));
        primary.signal(libc::SIGCONT);
        // Commands resume. The load may exceed the limit again and again before the replica has its log.
        ask(&mut p, "DEBUG PAUSE-AFTER-FORK 0");
        load.end();
        wait_for_link(&mut r);
        settle(&mut p);
        assert_same_data(&mut p, &mut r);
        let log = primary.log();
        let sent = log.find("RDB transfer completed").expect("a dump");
        let stopped = log.find("Process is about to stop.").expect("a stop");
        assert!(sent < stopped);
        assert!(!log[..stopped].contains("overcoming of output buffer limits"), "commands ran before the stop");
    });
}

#[test]
fn swapdb_serves_old_data_during_a_full_sync() {
    with_workers(|workers| {
        let primary = start(workers, &["--rdbcompression", "no"]);
        let replica = start(workers, &["--repl-diskless-load", "swapdb", "--replica-read-only", "no"]);
        let (mut p, mut r) = (primary.client(), replica.client());
        ask(&mut p, "DEBUG POPULATE 2000 key 10000");
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        ask(&mut r, "SET of-its-own stays");
        let mut watcher = replica.raw();
        watcher.ask(&["WATCH", "of-its-own"], "+OK\r\n");
        // It has to begin anew, in the same history, and slowly.
        ask(&mut p, "CONFIG SET rdb-key-save-delay 2000 repl-backlog-size 16384");
        redis::pipe()
            .atomic()
            .cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("replica")
            .ignore()
            .cmd("SET")
            .arg("big")
            .arg("x".repeat(200_000))
            .ignore()
            .query::<()>(&mut p)
            .expect("a transaction");
        wait_until("it takes its dump", || info(&mut r, "async_loading") == "1");
        assert_eq!((text(&mut r, "GET of-its-own").as_str(), info(&mut r, "loading").as_str()), ("stays", "0"));
        assert_eq!(number(&mut r, "DBSIZE"), 2001);
        let refused = try_ask(&mut r, "REPLICAOF NO ONE").expect_err("a refusal");
        assert_eq!(refused.code(), Some("LOADING"));
        // A dump that breaks off costs it nothing.
        ask(&mut p, "CLIENT KILL TYPE replica");
        wait_until("it has noticed", || info(&mut r, "async_loading") == "0");
        assert_eq!((text(&mut r, "GET of-its-own").as_str(), number(&mut r, "DBSIZE")), ("stays", 2001));
        ask(&mut p, "CONFIG SET rdb-key-save-delay 0");
        wait_for_link(&mut r);
        assert_same_data(&mut p, &mut r);
        assert_eq!(ask(&mut r, "GET of-its-own"), Value::Nil);
        // Clients that watch deleted keys notice.
        watcher.ask(&["MULTI"], "+OK\r\n");
        watcher.ask(&["PING"], "+QUEUED\r\n");
        watcher.ask(&["EXEC"], "*-1\r\n");
    });
}

#[test]
fn replicas_share_a_dump_to_a_file_and_an_unneeded_dump_is_cancelled() {
    with_workers(|workers| {
        let primary = start(workers, &["--repl-diskless-sync", "no", "--rdb-key-save-delay", "20000"]);
        let servers = [(); 2].map(|()| start(workers, &[]));
        let mut p = primary.client();
        ask(&mut p, "DEBUG POPULATE 1000 before 100");
        let [mut one, mut two] = [servers[0].client(), servers[1].client()];
        follow(&mut one, primary.port());
        wait_until("a dump is written", || info(&mut p, "rdb_bgsave_in_progress") == "1");
        ask(&mut p, "SET behind the-dump");
        follow(&mut two, primary.port());
        wait_until("the other one has come", || counted(&mut p, "connected_slaves") == 2);
        ask(&mut p, "CONFIG SET rdb-key-save-delay 0");
        for r in [&mut one, &mut two] {
            wait_for_link(r);
            assert_same_data(&mut p, r);
        }
        assert_eq!(counted(&mut p, "total_forks"), 1);
        ask(&mut p, "CONFIG SET rdb-key-save-delay 100000");
        ask(&mut p, "DEBUG CHANGE-REPL-ID");
        for r in [&mut one, &mut two] {
            ask(r, "REPLICAOF NO ONE");
        }
        follow(&mut one, primary.port());
        wait_until("a dump is written", || info(&mut p, "rdb_bgsave_in_progress") == "1");
        ask(&mut one, "REPLICAOF NO ONE");
        wait_until("it ends", || info(&mut p, "rdb_bgsave_in_progress") == "0");
    });
}

/// A dump of unknown length, as it was sent.
fn streamed_dump(replica: &mut Raw) -> Vec<u8> {
    let mark = loop {
        let line = replica.line().trim_start().to_owned();
        if let Some(mark) = line.strip_prefix("$EOF:") {
            break mark.to_owned();
        }
        assert_eq!(line, "");
    };
    let mut dump = Vec::new();
    while !dump.ends_with(mark.as_bytes()) {
        dump.extend(replica.bytes(1));
    }
    dump.truncate(dump.len() - mark.len());
    dump
}

#[test]
fn a_replica_of_an_old_version_does_not_delay_others() {
    with_workers(|workers| {
        let primary = start(workers, &["--repl-diskless-sync-delay", "1", "--hide-user-data-from-log", "no"]);
        let replica = start(workers, &[]);
        let (mut p, mut r) = (primary.client(), replica.client());
        ask(&mut p, "HSETEX sessions EX 1000 FIELDS 1 one 1");
        let mut old = primary.raw();
        old.ask(&["REPLCONF", "capa", "eof", "version", "8.1.0"], "+OK\r\n");
        old.request(&["PSYNC", "?", "-1"]);
        // While it waits, the primary may send line feeds as keepalives.
        assert!(old.line().trim_start().starts_with("+FULLRESYNC"));
        follow(&mut r, primary.port());
        wait_for_link(&mut r);
        assert_same_data(&mut p, &mut r);
        // It has begun with what there is no form for.
        while !old.line().is_empty() {}
        wait_until("the log says why", || {
            primary.log().contains("Can't store key 'sessions' (db 0) in RDB version 11")
        });
        // What an old format has a form for goes to both, and never into the server's own file.
        ask(&mut p, "DEL sessions");
        ask(&mut p, "SET plain 1");
        ask(&mut p, "CONFIG SET repl-diskless-sync no");
        let mut old = primary.raw();
        old.ask(&["REPLCONF", "capa", "eof", "version", "8.1.0"], "+OK\r\n");
        old.request(&["SYNC"]);
        assert!(streamed_dump(&mut old).starts_with(b"REDIS0011"));
        assert!(!primary.dir().join("dump.rdb").exists());
    });
}

#[test]
fn a_dump_may_contain_only_functions_or_nothing() {
    with_workers(|workers| {
        let primary = start(workers, &["--repl-diskless-sync-delay", "0"]);
        let mut p = primary.client();
        ask(&mut p, "SET a-key a-value");
        redis::cmd("FUNCTION")
            .arg("LOAD")
            .arg("#!lua name=a_library\nserver.register_function('f', function() return 1 end)")
            .query::<()>(&mut p)
            .expect("a library");
        let holds = |dump: &[u8], text: &str| dump.windows(text.len()).any(|window| window == text.as_bytes());
        for (parts, has_functions) in [("functions", true), ("", false)] {
            let mut reader = primary.raw();
            reader.ask(&["REPLCONF", "rdb-only", "1", "rdb-filter-only", parts], "+OK\r\n");
            reader.ask(&["SYNC"], "-ERR Filtered replica requires EOF capability\r\n");
            reader.ask(&["REPLCONF", "capa", "eof", "version", "9.1.0"], "+OK\r\n");
            reader.request(&["SYNC"]);
            let dump = streamed_dump(&mut reader);
            assert!(dump.starts_with(b"VALKEY080"));
            assert_eq!((holds(&dump, "a_library"), holds(&dump, "a-key")), (has_functions, false));
        }
        let mut reader = primary.raw();
        let unknown = ["REPLCONF", "rdb-filter-only", "functions keys"];
        reader.ask(&unknown, "-ERR Unsupported rdb-filter-only option: keys\r\n");
        reader.ask(&["REPLCONF", "rdb-filter-only", "\"functions"], "-ERR Missing rdb-filter-only values\r\n");
    });
}
