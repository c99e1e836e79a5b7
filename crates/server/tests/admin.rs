//! Commands about the server as operators and monitoring tools use them: INFO, CONFIG, the logs, MEMORY and DEBUG.

mod common;

use common::{Server, for_workers, free_port, wait_until};
use redis::{Connection, FromRedisValue, RedisResult, cmd};
use std::collections::HashMap;

const DEBUG: &[&str] = &["--enable-debug-command", "yes"];

fn run<T: FromRedisValue>(connection: &mut Connection, line: &str) -> RedisResult<T> {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(connection)
}

#[track_caller]
fn ok<T: FromRedisValue>(connection: &mut Connection, line: &str) -> T {
    run(connection, line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[track_caller]
fn fails(connection: &mut Connection, line: &str, with: &str) {
    let error = run::<redis::Value>(connection, line).expect_err(line).to_string();
    assert!(error.contains(with), "{line}: {error}");
}

/// The fields of INFO.
fn info(connection: &mut Connection, sections: &str) -> HashMap<String, String> {
    let text: String = ok(connection, &format!("INFO {sections}"));
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

#[test]
fn info_reports_activity() {
    for_workers(&[], |server| {
        let mut client = server.client();
        for line in ["SET a 1", "SET b 2 EX 1000", "GET a", "GET nosuch"] {
            let _: redis::Value = ok(&mut client, line);
        }
        fails(&mut client, "INCR", "wrong number of arguments");
        let all = info(&mut client, "everything");
        let field = |name: &str| all.get(name).map(String::as_str).unwrap_or_else(|| panic!("no field {name}"));
        assert_eq!((field("redis_version"), field("server_name"), field("role")), ("7.2.4", "valkey", "master"));
        assert_eq!((field("keyspace_hits"), field("keyspace_misses")), ("1", "1"));
        assert!(field("cmdstat_set").starts_with("calls=2,usec="));
        assert!(field("cmdstat_incr").starts_with("calls=0,") && field("cmdstat_incr").contains("rejected_calls=1"));
        assert_eq!(field("errorstat_ERR"), "count=1");
        assert!(field("latency_percentiles_usec_get").starts_with("p50="));
        let ttl = field("db0").strip_prefix("keys=2,expires=1,avg_ttl=").and_then(|rest| rest.split(',').next());
        let ttl_ms: Option<u64> = ttl.and_then(|ttl| ttl.parse().ok());
        assert!(ttl_ms.is_some_and(|ms| (980_000..=1_000_000).contains(&ms)), "{}", field("db0"));
        assert_eq!(field("rdb_changes_since_last_save"), "2");
        assert_eq!(field("run_id").len(), 40);
        assert_eq!(field("tcp_port"), server.port().to_string());
    });
}

#[test]
fn used_memory_follows_the_data() {
    for_workers(DEBUG, |server| {
        let mut client = server.client();
        let used =
            |client: &mut Connection| -> u64 { info(client, "memory")["used_memory"].parse().expect("a number") };
        let before = used(&mut client);
        let () = ok(&mut client, "DEBUG POPULATE 20000 key 200");
        let after = used(&mut client);
        assert!((200..400).contains(&((after - before) / 20_000)), "{before} to {after}");
        let key: u64 = ok(&mut client, "MEMORY USAGE key:7");
        assert!((200..300).contains(&key), "{key}");
        let stats: HashMap<String, redis::Value> = ok(&mut client, "MEMORY STATS");
        assert_eq!(stats["keys.count"], redis::Value::Int(20_000));
        let () = ok(&mut client, "FLUSHALL SYNC");
        assert!(used(&mut client) < before + 4_000_000);
        assert!(info(&mut client, "memory")["used_memory_peak"].parse::<u64>().is_ok_and(|peak| peak >= after));
    });
}

#[test]
fn resetstat_resets_all_workers() {
    for_workers(&[], |server| {
        let mut clients: Vec<Connection> = (0..8).map(|_| server.client()).collect();
        for client in &mut clients {
            let () = ok(client, "SET a 1");
            fails(client, "NOSUCH", "unknown command");
        }
        let () = ok(&mut clients[0], "CONFIG RESETSTAT");
        let after = info(&mut clients[3], "everything");
        assert!(!after.contains_key("cmdstat_set") && !after.contains_key("errorstat_ERR"));
        assert!(!after.contains_key("latency_percentiles_usec_set"));
        assert_eq!(after["total_error_replies"], "0");
        assert!(after["cmdstat_config|resetstat"].starts_with("calls=1,"));
    });
}

#[test]
fn config_set_is_atomic_and_immediate() {
    for_workers(&[], |server| {
        let (mut client, mut other) = (server.client(), server.client());
        let () = ok(&mut client, "CONFIG SET timeout 100 maxclients 500");
        let both: HashMap<String, String> = ok(&mut other, "CONFIG GET timeout maxcl*");
        assert_eq!((both["timeout"].as_str(), both["maxclients"].as_str()), ("100", "500"));
        fails(
            &mut client,
            "CONFIG SET timeout 5 maxclients x",
            "CONFIG SET failed (possibly related to argument 'maxclients')",
        );
        fails(&mut client, "CONFIG SET timeout", "wrong number of arguments for 'config|set' command");
        assert_eq!(ok::<HashMap<String, String>>(&mut other, "CONFIG GET timeout")["timeout"], "100");
        let () = ok(&mut client, "CONFIG SET requirepass secret");
        let () = ok(&mut other, "SET still 1");
        fails(&mut server.client(), "GET still", "Authentication required");
        let () = ok(&mut client, "CONFIG SET requirepass ");
        let () = ok(&mut server.client(), "SET again 1");
    });
}

#[test]
fn the_port_can_change_and_stays_if_the_new_one_is_taken() {
    for_workers(&[], |server| {
        let mut client = server.client();
        let port = free_port();
        let taken = std::net::TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        fails(&mut client, &format!("CONFIG SET port {port}"), "Unable to listen on this port");
        let () = ok(&mut server.client(), "SET here 1");
        drop(taken);
        // A process that another test starts has a copy of that socket until it runs its program.
        let set = format!("CONFIG SET port {port}");
        wait_until("the port is free", || run::<()>(&mut client, &set).is_ok());
        wait_until("it listens there", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(std::net::TcpStream::connect(("127.0.0.1", server.port())).is_err());
        assert_eq!(info(&mut client, "server")["tcp_port"], port.to_string());
        let () = ok(&mut client, &format!("CONFIG SET port {}", server.port()));
        let () = ok(&mut server.client(), "SET back 1");
    });
}

#[test]
fn config_rewrite_needs_a_configuration_file() {
    let server = Server::start(&[]);
    fails(&mut server.client(), "CONFIG REWRITE", "running without a config file");
    let data_dir = tempfile::tempdir().expect("a directory");
    let file = data_dir.path().join("kvick.conf");
    std::fs::write(&file, "# mine\ntimeout 7\n").expect("a file");
    // The file's name comes before all options.
    let server = Server::start_with_file(&file, &[]);
    let mut client = server.client();
    let () = ok(&mut client, "CONFIG SET timeout 9 hz 20");
    let () = ok(&mut client, "CONFIG REWRITE");
    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(text.starts_with("# mine\ntimeout 9\n") && text.contains("\nhz 20\n"), "{text}");
}

#[test]
fn command_logs_record_slow_and_large_commands_without_secrets() {
    for_workers(DEBUG, |server| {
        type Entry = (i64, i64, i64, Vec<String>, String, String);
        let mut client = server.client();
        let () = ok(&mut client, "CONFIG SET slowlog-log-slower-than 50000 commandlog-request-larger-than 100000");
        let () = ok(&mut client, "DEBUG SLEEP 0.06");
        let slow: Vec<Entry> = ok(&mut client, "SLOWLOG GET");
        assert_eq!(slow.len(), 1);
        assert!(slow[0].2 >= 60_000 && slow[0].3 == ["DEBUG", "SLEEP", "0.06"] && slow[0].4.starts_with("127.0.0.1:"));
        // Long enough to be read into a buffer of its own, which the key then keeps.
        let () = cmd("SET").arg("big").arg("x".repeat(200_000)).query(&mut client).expect("OK");
        let large: Vec<Entry> = ok(&mut client, "COMMANDLOG GET -1 large-request");
        assert_eq!((large.len(), large[0].2), (1, 200_000 + 33));
        assert!(large[0].3[2].starts_with("xxxx") && large[0].3[2].ends_with("... (199872 more bytes)"));
        let () = ok(&mut client, "CONFIG SET slowlog-log-slower-than 0");
        let () = ok(&mut client, "CONFIG SET requirepass secret");
        let () = ok(&mut client, "CONFIG SET requirepass ");
        fails(&mut client, "AUTH secret", "AUTH");
        let () = ok(&mut client, "CONFIG SET slowlog-log-slower-than -1");
        let slow: Vec<Entry> = ok(&mut client, "SLOWLOG GET 3");
        let args: Vec<String> = slow.iter().map(|entry| entry.3.join(" ")).collect();
        assert_eq!(args, ["AUTH (redacted)", "CONFIG SET requirepass (redacted)", "CONFIG SET requirepass (redacted)"]);
    });
}

#[test]
fn latency_is_monitored_and_counted() {
    for_workers(DEBUG, |server| {
        let mut client = server.client();
        let () = ok(&mut client, "CONFIG SET latency-monitor-threshold 20");
        let () = ok(&mut client, "DEBUG SLEEP 0.03");
        let mut latest: Vec<(String, i64, u64, u64, u64, u64)> = ok(&mut client, "LATENCY LATEST");
        // On a busy machine other events may take long as well.
        latest.retain(|(event, ..)| event == "command");
        assert!(latest[0].0 == "command" && latest[0].2 >= 30 && latest[0].5 == 1, "{latest:?}");
        assert!(ok::<String>(&mut client, "LATENCY GRAPH command").starts_with("command - high "));
        assert!(ok::<String>(&mut client, "LATENCY DOCTOR").contains(". command: 1 latency spikes"));
        assert_eq!(ok::<u64>(&mut client, "LATENCY RESET command nosuch"), 1);
        let () = ok(&mut client, "SET a 1");
        let () = ok(&mut client, "SET a 2");
        let histogram: HashMap<String, HashMap<String, redis::Value>> = ok(&mut client, "LATENCY HISTOGRAM set nosuch");
        assert_eq!((histogram.len(), &histogram["set"]["calls"]), (1, &redis::Value::Int(2)));
    });
}

#[test]
fn the_memory_report_is_about_the_server() {
    let server = Server::start(DEBUG);
    let mut client = server.client();
    assert!(ok::<String>(&mut client, "MEMORY DOCTOR").contains("too small"));
    let () = ok(&mut client, "DEBUG POPULATE 200000 key 100");
    (0..1_000).for_each(|n| _ = ok::<String>(&mut client, &format!("SCRIPT LOAD return({n})")));
    assert!(!ok::<String>(&mut client, "MEMORY DOCTOR").contains("Scripts"));
    let _: String = ok(&mut client, "SCRIPT LOAD return(1000)");
    let report: String = ok(&mut client, "MEMORY DOCTOR");
    assert!(report.contains(" * Scripts: more than 1000 scripts are cached."), "{report}");
    let () = ok(&mut client, "FLUSHALL SYNC");
    let () = ok(&mut client, "DEBUG POPULATE 100000 key 100");
    assert!(ok::<String>(&mut client, "MEMORY DOCTOR").contains(" * Peak: "));
}

#[test]
fn debug_sleep_delays_commands_without_logging_them_as_slow() {
    for_workers(DEBUG, |server| {
        let (mut sleeper, mut others) = (server.raw(), (0..4).map(|_| server.client()).collect::<Vec<_>>());
        let () = ok(&mut others[0], "CONFIG SET slowlog-log-slower-than 250000");
        sleeper.request(&["DEBUG", "SLEEP", "0.3"]);
        for client in &mut others {
            let () = ok(client, "SET a 1");
        }
        sleeper.expect("+OK\r\n");
        assert_eq!(ok::<u64>(&mut others[0], "SLOWLOG LEN"), 1);
    });
}

#[test]
fn digests_equal_valkeys() {
    let server = Server::start(DEBUG);
    let mut client = server.client();
    assert_eq!(ok::<String>(&mut client, "DEBUG DIGEST"), "0".repeat(40));
    let digest = |client: &mut Connection, key: &str| ok::<Vec<String>>(client, &format!("DEBUG DIGEST-VALUE {key}"));
    for line in ["SET a 1", "SET b hello", "SETEX d 1000 v"] {
        let _: redis::Value = ok(&mut client, line);
    }
    // As Valkey 9.1.2 computes them.
    assert_eq!(digest(&mut client, "a b d nosuch"), REFERENCE_VALUES);
    assert_eq!(ok::<String>(&mut client, "DEBUG DIGEST"), REFERENCE_ALL);
    let _: i64 = ok(&mut client, "ZADD z 1e16 a 1e17 b 1.5 c 1e20 d -1e16 e 123456789012345678 f");
    assert_eq!(digest(&mut client, "z"), ["70e5adccfeaeb125f5ac25909fefff7ed5c9df49"]);
    let _: redis::Value = ok(&mut client, "DEL z");
}

const REFERENCE_VALUES: [&str; 4] = [
    "b4fc66738120fba0b5aa500ab5c2bf89cea1c5da",
    "36b23a1456b2dce2c3ed252c456761301dba8060",
    "311b17018163335616e089f6b951c82c477335ac",
    "0000000000000000000000000000000000000000",
];
const REFERENCE_ALL: &str = "1bf7495127484d655f467eb1fb1c6940107834d6";

#[test]
fn debug_object_matches_valkey() {
    let server = Server::start(DEBUG);
    let mut client = server.client();
    let _: redis::Value = ok(&mut client, "CONFIG SET list-max-listpack-size -1 list-compress-depth 1");
    let numbers: Vec<_> = (1..=3000).map(|n| n.to_string()).collect();
    for line in [&format!("RPUSH big {}", numbers.join(" ")), "SET n 12345", "SADD s a b c", "HSET h f v g w"] {
        let _: redis::Value = ok(&mut client, line);
    }
    let () = ok(&mut client, "SET t hello");
    let mut object = |line: &str| {
        let text: String = ok(&mut client, &format!("DEBUG OBJECT {line}"));
        let output: Vec<_> =
            text.split(' ').filter(|word| !word.starts_with("at:") && !word.starts_with("lru")).collect();
        output.join(" ")
    };
    // As Valkey 9.1.2 does.
    assert_eq!(object("n"), "Value refcount:1 encoding:int serializedlength:3");
    assert_eq!(object("t"), "Value refcount:1 encoding:embstr serializedlength:6");
    assert_eq!(object("s"), "Value refcount:1 encoding:listpack serializedlength:17");
    assert_eq!(object("h"), "Value refcount:1 encoding:listpack serializedlength:20");
    let blocks = "ql_nodes:3 ql_avg_node:1000.00 ql_listpack_max:-1 ql_compressed:1";
    assert_eq!(
        object("big"),
        format!("Value refcount:1 encoding:quicklist serializedlength:8904 {blocks} ql_uncompressed_size:8894")
    );
    assert_eq!(object("big fast"), format!("Value refcount:1 encoding:quicklist {blocks}"));
}

#[test]
fn debug_subcommands_show_values() {
    let server = Server::start(DEBUG);
    let mut client = server.client();
    let members: Vec<_> = (0..1000).map(|n| format!("member:{n}")).collect();
    let _: i64 = ok(&mut client, &format!("SADD large {}", members.join(" ")));
    let _: i64 = ok(&mut client, "SADD small a b");
    let _: i64 = ok(&mut client, "SADD numbers 1 2");
    let table: String = ok(&mut client, "DEBUG HTSTATS-KEY large");
    assert!(table.contains(" number of elements: 1000\n"), "{table}");
    let printed: String = ok(&mut client, "DEBUG LISTPACK small");
    assert_eq!(printed, "Listpack structure printed on stdout");
    let mut raw = server.raw();
    let no_table = "-ERR The value stored at the specified key is not represented using an hash table\r\n";
    raw.ask(&["DEBUG", "HTSTATS-KEY", "small"], no_table);
    raw.ask(&["DEBUG", "HTSTATS-KEY", "numbers"], no_table);
    raw.ask(&["DEBUG", "HTSTATS-KEY", "nothing"], "-ERR no such key\r\n");
    raw.ask(&["DEBUG", "LISTPACK", "large"], "-ERR Not a listpack encoded object.\r\n");
    raw.ask(&["DEBUG", "LISTPACK", "nothing"], "-ERR no such key\r\n");
}

#[test]
fn the_listpack_threshold_of_lists_can_be_set() {
    let server = Server::start(DEBUG);
    let mut client = server.client();
    let () = ok(&mut client, "CONFIG SET list-max-listpack-size 2");
    // Two elements fit into a block, unless one of them is large.
    for (size, blocks) in [("10b", " ql_nodes:3 "), ("0", " ql_nodes:2 ")] {
        let () = ok(&mut client, &format!("DEBUG QUICKLIST-PACKED-THRESHOLD {size}"));
        let _: i64 = ok(&mut client, &format!("RPUSH {size} small x 0123456789 tiny"));
        let output: String = ok(&mut client, &format!("DEBUG OBJECT {size}"));
        assert!(output.contains(blocks), "{output}");
    }
    let mut raw = server.raw();
    for size in ["4gb", "many"] {
        raw.ask(
            &["DEBUG", "QUICKLIST-PACKED-THRESHOLD", size],
            "-ERR argument must be a memory value bigger than 1 and smaller than 4gb\r\n",
        );
    }
}

#[test]
fn debug_protocol_sends_every_type() {
    let server = Server::start(DEBUG);
    let mut raw = server.raw();
    raw.ask(&["DEBUG", "PROTOCOL", "map"], "*6\r\n:0\r\n:0\r\n:1\r\n:1\r\n:2\r\n:0\r\n");
    raw.ask(&["DEBUG", "PROTOCOL", "push"], "-ERR RESP2 is not supported by this command\r\n");
    raw.request(&["HELLO", "3"]);
    raw.skip_to("*0");
    raw.ask(&["DEBUG", "PROTOCOL", "verbatim"], "=29\r\ntxt:This is a verbatim\nstring\r\n");
    raw.ask(&["DEBUG", "PROTOCOL", "true"], "#t\r\n");
    raw.ask(&["DEBUG", "ERROR", "CODE a\r\nb"], "-CODE a  b\r\n");
    raw.ask(
        &["DEBUG", "NOSUCH"],
        "-ERR unknown subcommand or wrong number of arguments for 'NOSUCH'. Try DEBUG HELP.\r\n",
    );
}

#[test]
fn a_request_beyond_the_query_buffer_limit_closes_its_connection() {
    for_workers(&[], |server| {
        let mut client = server.client();
        let () = ok(&mut client, "CONFIG SET client-query-buffer-limit 1mb");
        let _ = cmd("SET").arg("k").arg("x".repeat(2_000_000)).query::<()>(&mut server.client()).expect_err("closed");
        assert_eq!(info(&mut client, "stats")["client_query_buffer_limit_disconnections"], "1");
        assert_eq!(ok::<u64>(&mut client, "EXISTS k"), 0);
    });
}

#[test]
fn renamed_commands_use_their_configured_names() {
    for_workers(&["--rename-command", "GET", "fetch", "--rename-command", "FLUSHALL", ""], |server| {
        let mut raw = server.raw();
        raw.ask(&["SET", "k", "v"], "+OK\r\n");
        raw.ask(&["fetch", "k"], "$1\r\nv\r\n");
        raw.ask(&["get", "k"], "-ERR unknown command 'get', with args beginning with: 'k' \r\n");
        raw.ask(&["flushall"], "-ERR unknown command 'flushall', with args beginning with: \r\n");
    });
}

#[test]
fn sort_compares_by_the_locale() {
    let dir = tempfile::tempdir().expect("a directory");
    let locale = dir.path().join("en_US.utf8");
    let made = std::process::Command::new("localedef").args(["-i", "en_US", "-f", "UTF-8"]).arg(&locale).output();
    if !made.is_ok_and(|output| output.status.success()) {
        return println!("this machine cannot make a locale");
    }
    for workers in ["1", "4"] {
        let args = ["--io-threads", workers];
        let start = |variables: &[(&str, &str)]| {
            Server::start_prepared(&args, &mut |command| {
                command.env("LOCPATH", dir.path()).env_remove("LC_ALL").env_remove("LC_COLLATE").env_remove("LANG");
                command.envs(variables.iter().copied());
            })
        };
        let server = start(&[]);
        let run = |words: &str| {
            let mut words = words.split(' ');
            let mut command = redis::cmd(words.next().expect("a name"));
            words.for_each(|word| _ = command.arg(word));
            command.query::<redis::Value>(&mut server.client())
        };
        let sorted = |server: &Server| {
            let mut client = server.client();
            let () = redis::cmd("DEL").arg("l").query(&mut client).expect("a reply");
            let () =
                redis::cmd("RPUSH").arg("l").arg(&["b", "C", "A", "é", "f", "a"]).query(&mut client).expect("a list");
            let words: Vec<String> = redis::cmd("SORT").arg("l").arg("ALPHA").query(&mut client).expect("a list");
            words.join(" ")
        };
        assert_eq!(sorted(&server), "A C a b f é");
        run("CONFIG SET locale-collate en_US.utf8").expect("a locale");
        assert_eq!(sorted(&server), "a A b C é f");
        let error = run("CONFIG SET locale-collate no_SUCH").expect_err("no locale").to_string();
        assert!(error.contains("Invalid locale name"), "{error}");
        assert_eq!(sorted(&server), "a A b C é f");
        run("CONFIG SET locale-collate C").expect("a locale");
        assert_eq!(sorted(&server), "A C a b f é");
        assert_eq!(sorted(&start(&[("LANG", "C"), ("LC_COLLATE", "en_US.utf8")])), "a A b C é f");
        let without = start(&[("LC_ALL", "no_SUCH")]);
        assert_eq!(sorted(&without), "A C a b f é");
        assert!(without.log().contains("Failed to configure LOCALE derived from the environment variables"));
    }
}
