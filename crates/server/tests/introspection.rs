//! INFO and CLIENT LIST while connections, commands and workers are active.

mod common;

use common::{Server, for_workers, wait_until};
use redis::{Connection, Value, cmd};
use std::collections::HashMap;

fn text(connection: &mut Connection, words: &[&str]) -> String {
    cmd(words[0]).arg(&words[1..]).query(connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// The fields of INFO's sections.
fn info(connection: &mut Connection, section: &str) -> HashMap<String, String> {
    let page = text(connection, &["INFO", section]);
    let fields = page.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The CLIENT LIST fields of the client with this name.
fn client(connection: &mut Connection, name: &str) -> HashMap<String, String> {
    let line = text(connection, &["CLIENT", "LIST", "NAME", name]);
    let fields = line.trim_end().split(' ').filter_map(|field| field.split_once('='));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn client_list_shows_the_state_of_each_client() {
    for_workers(&[], |server| {
        let (mut raw, mut control) = (server.raw(), server.client());
        let value = "x".repeat(1000);
        raw.ask(&["CLIENT", "SETNAME", "shown"], "+OK\r\n");
        assert_eq!(client(&mut control, "shown")["flags"], "N");
        raw.ask(&["WATCH", "a", "b"], "+OK\r\n");
        raw.ask(&["MULTI"], "+OK\r\n");
        raw.ask(&["SET", "c", &value], "+QUEUED\r\n");
        let shown = client(&mut control, "shown");
        assert_eq!(["flags", "watch", "multi"].map(|field| &*shown[field]), ["x", "2", "1"]);
        let bytes = |shown: &HashMap<String, String>, field: &str| shown[field].parse::<usize>().expect("a number");
        assert!((1000..2000).contains(&bytes(&shown, "multi-mem")), "{shown:?}");
        let before = bytes(&shown, "tot-mem");
        text(&mut control, &["SET", "b", "1"]);
        assert_eq!(client(&mut control, "shown")["flags"], "xd");
        let changed = text(&mut control, &["CLIENT", "LIST", "FLAGS", "xd"]);
        assert!(changed.lines().count() == 1 && changed.contains(" name=shown "), "{changed}");
        raw.ask(&["EXEC"], "*-1\r\n");
        let shown = client(&mut control, "shown");
        assert_eq!(["flags", "watch", "multi", "multi-mem"].map(|field| &*shown[field]), ["N", "0", "0", "0"]);
        assert!(bytes(&shown, "tot-mem") + 1000 <= before);
        raw.ask(&["WATCH", "a"], "+OK\r\n");
        raw.ask(&["MULTI"], "+OK\r\n");
        raw.ask(&["CLIENT", "INFO"], "+QUEUED\r\n");
        raw.request(&["EXEC"]);
        raw.expect("*1\r\n");
        raw.line();
        let within = raw.line();
        assert!(within.contains(" watch=0 ") && within.contains(" multi=1 "), "{within}");
        raw.line();
        raw.request(&["NOSUCH"]);
        assert!(raw.line().starts_with("-ERR unknown command"));
        assert_eq!(client(&mut control, "shown")["cmd"], "NULL");
        raw.request(&["BLPOP", &value, "0"]);
        wait_until("it waits", || client(&mut control, "shown")["flags"] == "b");
        let shown = client(&mut control, "shown");
        assert!((1000..2000).contains(&bytes(&shown, "argv-mem")) && shown["cmd"] == "blpop", "{shown:?}");
    });
}

#[test]
fn an_unblocked_command_counts_its_execution_time() {
    for_workers(&[], |server| {
        let (mut raw, mut control) = (server.raw(), server.client());
        raw.request(&["BLPOP", "list", "0"]);
        wait_until("it waits", || info(&mut control, "clients")["blocked_clients"] == "1");
        assert!(!info(&mut control, "commandstats").contains_key("cmdstat_blpop"));
        let _: Value = cmd("LPUSH").arg("list").arg("x").query(&mut control).expect("a number");
        raw.expect("*2\r\n$4\r\nlist\r\n$1\r\nx\r\n");
        assert!(info(&mut control, "commandstats")["cmdstat_blpop"].starts_with("calls=1,usec="));
        assert!(info(&mut control, "latencystats")["latency_percentiles_usec_blpop"].starts_with("p50="));
    });
}

#[test]
fn logs_include_commands_that_fail_or_block() {
    let logs = ["--slowlog-log-slower-than", "0", "--commandlog-request-larger-than", "30"];
    for_workers(&[&logs[..], &["--commandlog-reply-larger-than", "30"]].concat(), |server| {
        let (mut raw, mut control) = (server.raw(), server.client());
        let not_integer = "-ERR value is not an integer or out of range\r\n";
        raw.ask(&["SET", "k", "v"], "+OK\r\n");
        let requests: [(&[&str], &str); 6] = [
            (&["INCR", "k"], not_integer),
            (&["EXPIRE", "k", "x"], not_integer),
            (&["BLPOP", "none", "0.01"], "*-1\r\n"),
            (&["XREAD", "BLOCK", "10", "STREAMS", "none", "$"], "*-1\r\n"),
            (&["WAIT", "1", "10"], ":0\r\n"),
            (&["WAITAOF", "0", "1", "10"], "*2\r\n:0\r\n:0\r\n"),
        ];
        text(&mut control, &["CONFIG", "RESETSTAT"]);
        for kind in ["slow", "large-request", "large-reply"] {
            text(&mut control, &["COMMANDLOG", "RESET", kind]);
        }
        for (words, reply) in requests {
            raw.ask(words, reply);
        }
        let mut logged = |kind: &str| -> Vec<String> {
            let log: Vec<Vec<Value>> =
                cmd("COMMANDLOG").arg("GET").arg(-1).arg(kind).query(&mut control).expect("a log");
            let words = log.into_iter().map(|mut entry| redis::from_redis_value(entry.swap_remove(3)).expect("words"));
            words
                .map(|words: Vec<String>| words.join(" "))
                .filter(|line| !line.starts_with("COMMANDLOG"))
                .rev()
                .collect()
        };
        let all = requests.map(|(words, _)| words.join(" "));
        assert_eq!(logged("slow"), all);
        assert_eq!(logged("large-request"), [&all[1], &all[2], &all[3], &all[5]].map(String::clone));
        assert_eq!(logged("large-reply"), all[..2]);
        let stats = info(&mut control, "commandstats");
        for (words, _) in requests {
            let calls = &stats[&format!("cmdstat_{}", words[0].to_lowercase())];
            assert!(calls.starts_with("calls=1,"), "{words:?}: {calls}");
        }
    });
}

#[test]
fn exec_takes_as_long_as_its_commands_and_changes_nothing_itself() {
    const SLOW: &str = "local n = 0 for i = 1, 200000 do n = n + i end return n";
    for_workers(&[], |server| {
        let (mut raw, mut control) = (server.raw(), server.client());
        let changes = |control: &mut Connection| -> u64 {
            info(control, "persistence")["rdb_changes_since_last_save"].parse().expect("a number")
        };
        let duration_us = |control: &mut Connection, command: &str| -> u64 {
            let stats = &info(control, "commandstats")[command];
            let (_, rest) = stats.split_once("usec=").expect("a duration");
            rest.split(',').next().and_then(|us| us.parse().ok()).expect("a number")
        };
        let before = changes(&mut control);
        // The second transaction needs the global lock.
        for (last, reply) in [("SET b 1", "+OK"), ("KEYS nothing", "*0")] {
            text(&mut control, &["CONFIG", "RESETSTAT"]);
            raw.send(format!("MULTI\r\nSET a 1\r\nEVAL \"{SLOW}\" 0\r\n{last}\r\nEXEC\r\n"));
            raw.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n:20000100000\r\n");
            raw.expect(&format!("{reply}\r\n"));
            let (exec, eval) = (duration_us(&mut control, "cmdstat_exec"), duration_us(&mut control, "cmdstat_eval"));
            assert!(exec >= eval, "EXEC took {exec} us, its script {eval} us");
        }
        assert_eq!(changes(&mut control) - before, 3);
    });
}

#[test]
fn errors_in_the_result_of_a_script_are_counted() {
    let server = Server::start(&[]);
    let (mut raw, mut control) = (server.raw(), server.client());
    raw.ask(&["EVAL", "return {1, redis.error_reply('MY x'), {err='MY y'}}", "0"], "*3\r\n:1\r\n-MY x\r\n-MY y\r\n");
    let stats = info(&mut control, "all");
    assert!(stats["cmdstat_eval"].ends_with("failed_calls=1"), "{}", stats["cmdstat_eval"]);
    assert_eq!(stats["errorstat_MY"], "count=2");
}

#[test]
fn per_worker_figures_show_idle_workers() {
    let server = Server::start(&["--io-threads", "3"]);
    let mut control = server.client();
    let names = ["used_active_time_main_thread", "used_active_time_io_thread_1", "used_active_time_io_thread_2"];
    wait_until("all have done something", || {
        let shown = info(&mut control, "cpu");
        assert!(!shown.contains_key("used_active_time_io_thread_3"));
        names.iter().all(|name| shown[*name].parse::<f64>().is_ok_and(|seconds| seconds > 0.0))
    });
    // Connections are dealt out in turn, so these are on all workers.
    let mut others: Vec<Connection> = (0..3).map(|_| server.client()).collect();
    wait_until("workers are active", || {
        others.iter_mut().for_each(|other| _ = text(other, &["PING"]));
        info(&mut control, "server")["io_threads_active"] == "1"
    });
    wait_until("they are idle", || info(&mut control, "server")["io_threads_active"] == "0");
}

#[test]
fn batched_requests_are_prefetched() {
    let server = Server::start(&["--io-threads", "1"]);
    let (mut raw, mut control) = (server.raw(), server.client());
    let mut fetched = |control: &mut Connection| {
        raw.send("GET a\r\nGET b\r\nGET c\r\n");
        raw.expect("$-1\r\n$-1\r\n$-1\r\n");
        let stats = info(control, "stats");
        ["io_threaded_total_prefetch_batches", "io_threaded_total_prefetch_entries"].map(|name| stats[name].clone())
    };
    assert_eq!(fetched(&mut control), ["1", "3"]);
    text(&mut control, &["CONFIG", "SET", "prefetch-batch-max-size", "0"]);
    assert_eq!(fetched(&mut control), ["1", "3"]);
}

#[test]
fn the_oom_score_follows_the_settings() {
    let server = Server::start(&[]);
    let mut control = server.client();
    let score = || {
        let text = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", server.pid())).expect("a process");
        text.trim().parse::<i32>().expect("a number")
    };
    let mut set = |settings: &[&str]| text(&mut control, &[&["CONFIG", "SET"], settings].concat());
    let before = score();
    set(&["oom-score-adj-values", "7 200 800"]);
    assert_eq!(score(), before, "nothing is adjusted yet");
    set(&["oom-score-adj", "relative"]);
    assert_eq!(score(), before + 7);
    let absolute = (before + 20).min(1000).to_string();
    set(&["oom-score-adj-values", &format!("{absolute} 1000 1000"), "oom-score-adj", "absolute"]);
    assert_eq!(score().to_string(), absolute);
    set(&["oom-score-adj", "no"]);
    assert_eq!(score(), before);
}

#[test]
fn oversized_replies_are_not_built() {
    for_workers(
        &["--client-output-buffer-limit", "normal 1mb 0 0", "--client-output-buffer-limit", "pubsub 0 0 0"],
        |server| {
            let mut control = server.client();
            for words in [&["HSET", "hash", "f", "v"][..], &["SADD", "set", "m"], &["ZADD", "zset", "1", "m"]] {
                let _: Value = cmd(words[0]).arg(&words[1..]).query(&mut control).expect("a number");
            }
            for words in [["HRANDFIELD", "hash"], ["SRANDMEMBER", "set"], ["ZRANDMEMBER", "zset"]] {
                let mut greedy = server.raw();
                greedy.request(&[words[0], words[1], "-9999999999"]);
                greedy.expect_end();
            }
            assert_eq!(info(&mut control, "stats")["client_output_buffer_limit_disconnections"], "3");
            // Replies to commands of a script are not sent to a client.
            let count = "return #redis.call('SRANDMEMBER', KEYS[1], -300000)";
            assert_eq!(cmd("EVAL").arg(&[count, "1", "set"]).query(&mut control), Ok(300_000));
        },
    );
}

#[test]
fn some_settings_cannot_be_changed_while_data_is_loaded() {
    let mut server = Server::start(&["--save", "900 1"]);
    let mut control = server.client();
    let values: Vec<String> = (0..400).map(|n| n.to_string()).collect();
    values.iter().for_each(|n| _ = text(&mut control, &["SET", n, n]));
    text(&mut control, &["SAVE"]);
    let dump = std::fs::read(server.dir().join("dump.rdb")).expect("a dump");
    server.signal(libc::SIGKILL);
    server.end();
    let data_dir = tempfile::tempdir().expect("a directory");
    std::fs::write(data_dir.path().join("dump.rdb"), dump).expect("a file");
    let path = data_dir.path().to_str().expect("a name");
    let loading =
        Server::start_loading(&["--enable-protected-configs", "yes", "--key-load-delay", "20000", "--dir", path]);
    let mut control = loading.raw();
    control.ask(&["CONFIG", "SET", "loglevel", "verbose"], "+OK\r\n");
    control.ask(&["CONFIG", "SET", "dir", "/"], "-LOADING Valkey is loading the dataset in memory\r\n");
}
