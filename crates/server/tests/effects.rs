//! Propagation of the effects of scripts, script flags, and DEBUG subcommands about connections.

mod common;

use common::{Server, for_workers, wait_until};
use redis::{Connection, RedisResult, Value, cmd};
use std::time::Duration;

fn run(client: &mut Connection, words: &[&str]) -> RedisResult<Value> {
    cmd(words[0]).arg(&words[1..]).query(client)
}

fn ask<T: redis::FromRedisValue>(client: &mut Connection, words: &[&str]) -> T {
    cmd(words[0]).arg(&words[1..]).query(client).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn info(client: &mut Connection, field: &str) -> String {
    let all: String = ask(client, &["INFO", "everything"]);
    let found = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no field {field} in INFO")).to_string()
}

fn refusal(client: &mut Connection, words: &[&str]) -> String {
    run(client, words).expect_err("refused").to_string()
}

/// A replica of a server.
fn replica_of(primary: &Server, args: &[&str]) -> Server {
    let replica = Server::start(args);
    let mut client = replica.client();
    let _: () = ask(&mut client, &["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    wait_until("the link is up", || info(&mut client, "master_link_status") == "up");
    replica
}

#[test]
fn scripts_choose_where_their_writes_are_propagated() {
    const SCRIPT: &str = "redis.call('set', 'all', 1) redis.set_repl(redis.REPL_NONE) redis.call('set', 'none', 1)
        redis.call('get', 'gone')
        redis.set_repl(redis.REPL_AOF) redis.call('set', 'file', 1) redis.call('publish', 'channel', 'message')
        redis.call('select', 1) redis.call('set', 'file', 1) redis.call('select', 0)
        redis.set_repl(redis.REPL_REPLICA) redis.call('set', 'replica', 1)
        redis.set_repl(redis.REPL_ALL) redis.call('set', 'last', 1)";
    const KEYS: [&str; 6] = ["MGET", "all", "none", "file", "replica", "last"];
    let settings = ["--appendonly", "yes", "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"];
    for_workers(&settings, |server| {
        let mut client = server.client();
        let replica = replica_of(server, &[]);
        let _: () = ask(&mut client, &["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        let _: () = ask(&mut client, &["SET", "gone", "1", "PX", "1"]);
        std::thread::sleep(Duration::from_millis(5));
        let _: Value = ask(&mut client, &["EVAL", SCRIPT, "0"]);
        // One that only the file gets, and nothing comes behind it.
        let alone = "redis.set_repl(redis.REPL_AOF) return redis.call('set', 'alone', 1)";
        let _: Value = ask(&mut client, &["EVAL", alone, "0"]);
        let known = |client: &mut Connection| -> Vec<bool> {
            ask::<Vec<Option<String>>>(client, &KEYS).iter().map(Option::is_some).collect()
        };
        assert_eq!(known(&mut client), [true; 5]);
        let mut follower = replica.client();
        wait_until("the replica has all that it gets", || {
            info(&mut follower, "master_repl_offset") == info(&mut client, "master_repl_offset")
        });
        assert_eq!(known(&mut follower), [true, false, false, true, true]);
        // Expired keys are deleted on every receiver of the script's effects.
        assert_eq!(info(&mut follower, "db0"), "keys=3,expires=0,avg_ttl=0,keys_with_volatile_items=0");
        let _: () = ask(&mut client, &["DEBUG", "LOADAOF"]);
        assert_eq!(known(&mut client), [true, false, true, false, true]);
        assert_eq!(ask::<i64>(&mut client, &["EXISTS", "alone"]), 1);
        assert_eq!(ask::<i64>(&mut client, &["DBSIZE"]), 4);
        let _: () = ask(&mut client, &["SELECT", "1"]);
        assert_eq!(ask::<i64>(&mut client, &["EXISTS", "file"]), 1);
    });
}

#[test]
fn script_flags_apply_to_queued_scripts() {
    const READS: &str = "#!lua flags=no-writes\nreturn redis.call('GET', KEYS[1])";
    const WRITES: &str = "#!lua\nreturn 1";
    for_workers(&[], |server| {
        let (mut client, mut control) = (server.client(), server.client());
        let _: () = ask(&mut client, &["SET", "key", "value"]);
        let queue = |client: &mut Connection, script: &str| {
            let _: () = ask(client, &["MULTI"]);
            let _: String = ask(client, &["EVAL", script, "1", "key"]);
        };
        queue(&mut client, READS);
        let _: () = ask(&mut control, &["CLIENT", "PAUSE", "100000", "WRITE"]);
        assert_eq!(ask::<Vec<String>>(&mut client, &["EXEC"]), ["value"]);
        let _: () = ask(&mut control, &["CLIENT", "UNPAUSE"]);
        queue(&mut client, WRITES);
        // Nobody listens there.
        let port = common::free_port().to_string();
        let _: () = ask(&mut control, &["REPLICAOF", "127.0.0.1", &port]);
        let refused = refusal(&mut client, &["EXEC"]);
        assert!(refused.contains("read only replica"), "{refused}");
        let _: () = ask(&mut client, &["MULTI"]);
        assert!(refusal(&mut client, &["EVAL", WRITES, "1", "key"]).contains("read only replica"));
        let _: () = ask(&mut client, &["DISCARD"]);
        queue(&mut client, READS);
        assert_eq!(ask::<Vec<String>>(&mut client, &["EXEC"]), ["value"]);
    });
}

#[test]
fn time_is_constant_within_a_script_in_microseconds() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let script = "local first = redis.call('TIME') for i = 1, 100000 do end return {first, redis.call('TIME')}";
    let mut fractions = Vec::new();
    for _ in 0..20 {
        let times: Vec<Vec<u64>> = ask(&mut client, &["EVAL", script, "0"]);
        assert_eq!(times[0], times[1]);
        let (us, now): (u64, Vec<u64>) = (times[0][0] * 1_000_000 + times[0][1], ask(&mut client, &["TIME"]));
        let now_us = now[0] * 1_000_000 + now[1];
        assert!(us <= now_us && now_us - us < 60_000_000, "{us} is not just before {now_us}");
        fractions.push(times[0][1] % 1000);
    }
    assert!(fractions.iter().any(|us| *us != 0), "no script began amid a millisecond");
}

#[test]
fn evicted_scripts_are_counted() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for number in 0..503 {
        let _: i64 = ask(&mut client, &["EVAL", &format!("return {number}"), "0"]);
    }
    assert_eq!(
        (info(&mut client, "number_of_cached_scripts"), info(&mut client, "evicted_scripts")),
        ("500".into(), "3".into())
    );
    let engine = info(&mut client, "engine_0");
    assert!(engine.starts_with("name=LUA,") && info(&mut client, "engines_count") == "1", "{engine}");
}

#[test]
fn module_commands_report_no_modules() {
    let server = Server::start(&[]);
    let mut client = server.client();
    assert_eq!(ask::<Vec<String>>(&mut client, &["MODULE", "LIST"]), Vec::<String>::new());
    assert!(refusal(&mut client, &["MODULE", "LOAD", "/x.so"]).contains("MODULE command not allowed"));
    let server = Server::start(&["--enable-module-command", "local"]);
    let mut client = server.client();
    assert!(refusal(&mut client, &["MODULE", "LOAD", "/x.so"]).contains("Error loading the extension"));
    assert!(refusal(&mut client, &["MODULE", "LOADEX", "/x.so", "ARGS", "1"]).contains("Error loading the extension"));
    assert!(refusal(&mut client, &["MODULE", "UNLOAD", "x"]).contains("no such module with that name"));
    assert!(server.log().contains("Module /x.so failed to load"));
}

#[test]
fn cluster_commands_report_disabled_cluster_mode() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for request in [&["CLUSTER", "NODES"][..], &["CLUSTER", "HELP"], &["ASKING"], &["CLUSTERSCAN", "0"]] {
        assert!(refusal(&mut client, request).contains("This instance has cluster support disabled"), "{request:?}");
    }
    assert_eq!(ask::<u16>(&mut client, &["CLUSTER", "KEYSLOT", "{foo}bar"]), 12_182);
    assert!(refusal(&mut client, &["CLUSTER", "NOSUCH"]).contains("unknown subcommand 'NOSUCH'"));
}

#[test]
fn min_replicas_allows_writes_once_a_replica_attaches() {
    let server = Server::start(&["--repl-diskless-sync-delay", "0", "--min-replicas-to-write", "1"]);
    let mut client = server.client();
    wait_until("there is no replica", || run(&mut client, &["SET", "key", "value"]).is_err());
    let _replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", server.port())]);
    wait_until("it is online", || {
        let page: String = ask(&mut client, &["INFO", "replication"]);
        page.contains("state=online")
    });
    assert_eq!(ask::<String>(&mut client, &["SET", "key", "value"]), "OK");
}

#[test]
fn a_protected_client_is_listed_after_its_disconnect() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let (mut client, mut other) = (server.client(), server.raw());
        other.ask(&["CLIENT", "SETNAME", "other"], "+OK\r\n");
        let list: String = ask(&mut client, &["CLIENT", "LIST", "NAME", "other"]);
        let id = list.strip_prefix("id=").and_then(|rest| rest.split(' ').next()).expect("an id").to_string();
        let _: () = ask(&mut client, &["DEBUG", "PROTECT-CLIENT", &id]);
        assert_eq!(ask::<i64>(&mut client, &["CLIENT", "KILL", "ID", &id]), 1);
        let list: String = ask(&mut client, &["CLIENT", "LIST", "NAME", "other"]);
        assert!(list.starts_with(&format!("id={id} ")), "{list}");
        assert!(refusal(&mut client, &["DEBUG", "PROTECT-CLIENT", "1000000"]).contains("No such client"));
        assert!(refusal(&mut client, &["DEBUG", "PROTECT-CLIENT", "x"]).contains("Invalid client id"));
    });
}

#[test]
fn replies_forced_into_lists_are_unchanged() {
    for_workers(&["--enable-debug-command", "yes", "--requirepass", "secret"], |server| {
        let mut client = server.raw();
        client.ask(&["AUTH", "secret"], "+OK\r\n");
        client.ask(&["DEBUG", "CLIENT-ENFORCE-REPLY-LIST", "1"], "+OK\r\n");
        let value = "v".repeat(20_000);
        client.ask(&["SET", "key", &value], "+OK\r\n");
        let mut pipeline = Vec::new();
        for _ in 0..20 {
            pipeline.extend_from_slice(b"GET key\r\nPING\r\n");
        }
        client.send(&pipeline);
        for _ in 0..20 {
            client.expect(&format!("$20000\r\n{value}\r\n+PONG\r\n"));
        }
        // A list exceeds the output limit of unauthenticated clients.
        let mut unauthenticated = server.raw();
        unauthenticated.request(&["PING"]);
        unauthenticated.expect_end();
        client.ask(&["DEBUG", "CLIENT-ENFORCE-REPLY-LIST", "0"], "+OK\r\n");
        server.raw().ask(&["PING"], "-NOAUTH Authentication required.\r\n");
    });
}

#[test]
fn a_replica_applies_nothing_while_its_writes_are_paused() {
    for_workers(&["--repl-diskless-sync-delay", "0"], |server| {
        let mut client = server.client();
        let _: () = ask(&mut client, &["SET", "key", "before"]);
        let replica = replica_of(server, &[]);
        let mut follower = replica.client();
        let offset = |client: &mut Connection, field: &str| info(client, field).parse::<u64>().expect("a number");
        wait_until("all is applied", || {
            offset(&mut follower, "slave_repl_offset") == offset(&mut client, "master_repl_offset")
        });
        let _: () = ask(&mut follower, &["CLIENT", "PAUSE", "100000", "WRITE"]);
        let before = offset(&mut follower, "slave_repl_offset");
        let _: () = ask(&mut client, &["SET", "key", "after"]);
        wait_until("it has come", || {
            offset(&mut follower, "slave_read_repl_offset") == offset(&mut client, "master_repl_offset")
        });
        assert_eq!(offset(&mut follower, "slave_repl_offset"), before);
        assert_eq!(ask::<String>(&mut follower, &["GET", "key"]), "before");
        let _: () = ask(&mut follower, &["CLIENT", "UNPAUSE"]);
        wait_until("it is applied", || ask::<String>(&mut follower, &["GET", "key"]) == "after");
        assert_eq!(info(&mut follower, "master_link_status"), "up");
    });
}
