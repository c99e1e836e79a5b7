//! The HTTP endpoint: its pages, its settings, and the metrics.
//!
//! - `abuse`: slow readers, half requests, garbage.
//! - `clients`: the number of time series with many clients.
//! - `peers`: redis_exporter, promtool and Prometheus, if they are found.

mod abuse;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod page;
mod peers;

use common::{Server, free_port, wait_until};
use page::{Page, connect, exchange, get};
use redis::{Connection, RedisResult, cmd};
use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TABLE: &str = include_str!("../../../../docs/metrics.md");

/// Starts a server with the endpoint on a free port, and returns that port.
fn start(args: &[&str]) -> (Server, u16) {
    let port = free_port();
    (Server::start(&[&["--metrics-port", &port.to_string()], args].concat()), port)
}

fn ask<T: redis::FromRedisValue>(client: &mut Connection, line: &str) -> T {
    try_ask(client, line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn try_ask<T: redis::FromRedisValue>(client: &mut Connection, line: &str) -> RedisResult<T> {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(client)
}

#[test]
fn endpoint_is_off_until_it_has_a_port() {
    let (server, port, other) = (Server::start(&[]), free_port(), free_port());
    let mut client = server.client();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    for port in [port, other] {
        ask::<()>(&mut client, &format!("CONFIG SET metrics-port {port}"));
        assert_eq!(get(port, "/healthz", "").body, "ok\n");
    }
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the former port is closed");
    // The address that it has already is opened again.
    ask::<()>(&mut client, "CONFIG SET metrics-bind 127.0.0.1");
    assert_eq!(get(other, "/healthz", "").status, 200);
    let mut open = connect(other);
    let taken = server.port();
    assert!(try_ask::<()>(&mut client, &format!("CONFIG SET metrics-port {taken}")).is_err());
    assert_eq!(get(other, "/healthz", "").status, 200, "an error changes nothing");
    ask::<()>(&mut client, "CONFIG SET metrics-port 0");
    assert!(TcpStream::connect(("127.0.0.1", other)).is_err());
    let mut rest = Vec::new();
    let ended = std::io::Read::read_to_end(&mut open, &mut rest);
    assert!(ended.is_err() || rest.is_empty(), "open connections are closed");
}

#[test]
fn pages_are_found_by_path_and_method() {
    let (_server, port) = start(&[]);
    let page = get(port, "/metrics?x=1", "");
    assert_eq!(page.status, 200);
    assert!(page.headers.contains("content-type: text/plain; version=0.0.4"), "{}", page.headers);
    assert_eq!(get(port, "/", "").status, 200);
    assert_eq!(get(port, "/nosuch", "").status, 404);
    let head = "HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(&mut connect(port), head).body, "");
    let post = "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let refused = exchange(&mut connect(port), post);
    assert!(refused.status == 405 && refused.headers.contains("allow: get"), "{}", refused.headers);
}

#[test]
fn token_protects_the_metrics_and_stays_out_of_the_log() {
    let (server, port) = start(&["--metrics-token", "s3cret-token", "--loglevel", "debug"]);
    let with = |token: &str| get(port, "/metrics", &format!("Authorization: Bearer {token}\r\n")).status;
    assert_eq!(with("s3cret-token"), 200);
    assert_eq!([with("s3cret"), with("")], [401, 401]);
    let refused = get(port, "/metrics", "");
    assert!(refused.status == 401 && refused.headers.contains("www-authenticate: bearer"), "{}", refused.headers);
    assert_eq!(get(port, "/healthz", "").status, 200, "probes need no token");
    let mut client = server.client();
    ask::<()>(&mut client, "CONFIG SET slowlog-log-slower-than 0");
    ask::<()>(&mut client, "CONFIG SET metrics-token an0ther-token");
    assert_eq!([with("s3cret-token"), with("an0ther-token")], [401, 200]);
    let log: redis::Value = ask(&mut client, "SLOWLOG GET 10");
    for text in [server.log(), format!("{log:?}")] {
        assert!(!text.contains("s3cret-token") && !text.contains("an0ther-token"), "{text}");
    }
}

/// An address of this machine that is not a loopback address.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing, but selects the address that packets would come from.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[test]
fn protected_mode_serves_local_clients_only() {
    let Some(outer) = outer_address() else {
        println!("Not run: this machine has only loopback addresses");
        return;
    };
    let (server, port) = start(&["--metrics-bind", &format!("{outer} 127.0.0.1")]);
    let request = |path: &str| {
        let mut stream = TcpStream::connect((outer, port)).expect("the endpoint");
        exchange(&mut stream, &format!("GET {path} HTTP/1.0\r\n\r\n"))
    };
    let refused = request("/metrics");
    assert!(refused.status == 403 && refused.body.contains("metrics-token"), "{}", refused.body);
    assert_eq!(request("/readyz").status, 200);
    assert_eq!(get(port, "/metrics", "").status, 200);
    ask::<()>(&mut server.client(), "CONFIG SET protected-mode no");
    assert_eq!(request("/metrics").status, 200);
}

#[test]
fn readiness_names_what_is_missing() {
    let (server, port) = start(&[]);
    assert_eq!(get(port, "/readyz", "").body, "ok\n");
    let mut client = server.client();
    ask::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", free_port()));
    let reply = get(port, "/readyz", "");
    assert_eq!((reply.status, &*reply.body), (503, "the replica is not in sync with its primary\n"));
    assert_eq!(Page::scrape(port).value("kvick_ready", &[]), 0.0);
    assert_eq!(get(port, "/healthz", "").status, 200);
    let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
    ask::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    wait_until("the replica is in sync", || get(port, "/readyz", "").status == 200);

    let bus = free_port().to_string();
    let (_node, port) = start(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    let reply = get(port, "/readyz", "");
    assert_eq!((reply.status, &*reply.body), (503, "the cluster is down\n"));
}

/// The fields of INFO, except those of one line for several values.
fn info(client: &mut Connection) -> BTreeMap<String, String> {
    let text: String = ask(client, "INFO everything debug");
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.into(), value.trim().into()))
        .collect()
}

#[test]
fn metrics_have_the_values_of_info() {
    let (server, port) = start(&["--appendonly", "yes"]);
    let mut client = server.client();
    for n in 0..100 {
        ask::<()>(&mut client, &format!("SET key:{n} value"));
        ask::<()>(&mut client, &format!("GET key:{}", n / 2));
    }
    assert!(try_ask::<()>(&mut client, "NOSUCH").is_err());
    wait_until("all writes are in the append-only file", || info(&mut client)["aof_buffer_length"] == "0");
    let (fields, page) = (info(&mut client), Page::scrape(port));
    let mut compared = 0;
    for row in TABLE.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, name, kind, "", field, ..] = cells[..] else { continue };
        let Some(text) = fields.get(field) else { continue };
        let expected = match text.as_str() {
            "ok" => 1.0,
            "err" => 0.0,
            number => number.parse::<f64>().unwrap_or_else(|_| panic!("{field}: {number}")),
        };
        let expected = if field == "latest_fork_usec" { expected / 1e6 } else { expected };
        assert_eq!(page.types.get(name).map(String::as_str), Some(kind), "{name}");
        let value = page.value(name, &[]);
        // Time passes, and the page was written to a socket meanwhile.
        let is_moving = ["memory", "allocator", "cpu", "time", "turn", "event", "net_", "write", "read", "frag", "hz"];
        let tolerance = if is_moving.iter().any(|word| name.contains(word)) { expected.abs() * 0.5 + 5e6 } else { 2.0 };
        assert!((value - expected).abs() <= tolerance, "{name} is {value}, {field} is {expected}");
        compared += 1;
    }
    assert!(compared > 120, "{compared} compared");
    let command = |name, command| page.value(name, &[("cmd", command)]);
    assert_eq!(command("redis_commands_total", "set"), 100.0);
    assert_eq!(page.value("redis_db_keys", &[("db", "db0")]), 100.0);
    assert_eq!(page.value("redis_db_keys", &[("db", "db1")]), 0.0);
    assert_eq!(page.value("redis_errors_total", &[("err", "ERR")]), 1.0);
    assert_eq!(page.value("redis_keyspace_hits_total", &[]), 100.0);
}

#[test]
fn keys_have_metrics_only_if_they_are_wanted() {
    let (server, port) = start(&["--hotkeys-top-k", "5", "--hotkeys-sampling-percentage", "100"]);
    let mut client = server.client();
    let big = "b".repeat(10_000);
    ask::<()>(&mut client, &format!("SET big\"key {big}"));
    ask::<()>(&mut client, "SADD set 1 2 3");
    let use_keys = |client: &mut Connection| (0..50).for_each(|_| ask::<()>(client, "GET hot"));
    wait_until("hot and big keys are known", || {
        use_keys(&mut client);
        let is_hot = format!("{:?}", ask::<redis::Value>(&mut client, "HOTKEYS GET")).contains("hot");
        is_hot && format!("{:?}", ask::<redis::Value>(&mut client, "MEMORY BIGKEYS TYPE set")).contains("set")
    });
    let page = Page::scrape(port);
    assert!(!page.types.contains_key("kvick_hot_key_cpu_ratio") && !page.types.contains_key("kvick_big_key_bytes"));
    ask::<()>(&mut client, "CONFIG SET metrics-keys-max 1");
    wait_until("hot keys have metrics", || {
        use_keys(&mut client);
        let page = Page::scrape(port);
        let accesses = page.samples.iter().filter(|((name, _), _)| name == "kvick_hot_key_accesses_per_second");
        let found: Vec<_> = accesses.map(|((_, labels), rate)| (labels["key"].clone(), *rate > 0.0)).collect();
        found == [("hot".to_owned(), true)] && page.value("kvick_hot_keys_window_samples", &[]) > 0.0
    });
    let page = Page::scrape(port);
    let usage: f64 = ask(&mut client, "MEMORY USAGE big\"key");
    assert_eq!(page.value("kvick_big_key_bytes", &[("db", "0"), ("key", "big\"key"), ("type", "string")]), usage);
    assert_eq!(page.value("kvick_big_key_elements", &[("db", "0"), ("key", "set"), ("type", "set")]), 3.0);
    assert_eq!(page.samples.keys().filter(|(name, _)| name.starts_with("kvick_big_key_")).count(), 2);
}

#[test]
fn durations_of_commands_are_histograms() {
    let (server, port) = start(&[]);
    let mut client = server.client();
    (0..50).for_each(|_| ask::<()>(&mut client, "SET a b"));
    for metric in ["kvick_command_duration_seconds", "redis_commands_latencies_usec"] {
        let page = Page::scrape(port);
        assert_eq!(page.types[metric], "histogram");
        let buckets: BTreeMap<u64, f64> = page
            .samples
            .iter()
            .filter(|((name, labels), _)| name == &format!("{metric}_bucket") && labels["cmd"] == "set")
            .map(|((_, labels), count)| {
                let bound: f64 = labels["le"].replace("+Inf", "inf").parse().expect("a bound");
                (bound.to_bits(), *count)
            })
            .collect();
        let counts: Vec<f64> = buckets.values().copied().collect();
        assert!(counts.is_sorted() && counts.len() > 1, "{counts:?}");
        assert_eq!(counts.last(), Some(&50.0));
        assert_eq!(page.value(&format!("{metric}_count"), &[("cmd", "set")]), 50.0);
        assert!(page.value(&format!("{metric}_sum"), &[("cmd", "set")]) > 0.0);
        assert_eq!(page.find(&format!("{metric}_count"), &[("cmd", "lpush")]), None, "it was not called");
    }
    ask::<()>(&mut client, "CONFIG RESETSTAT");
    assert_eq!(Page::scrape(port).find("redis_commands_total", &[("cmd", "set")]), None);
}

#[test]
fn named_streams_and_clients_have_metrics() {
    let (server, port) = start(&["--metrics-streams", "s,db1=t,nosuch,text"]);
    let mut client = server.client();
    ask::<()>(&mut client, "CLIENT SETNAME quoted\"name");
    for line in ["SET text x", "XADD s 5-1 f v", "XADD s 7-1 f v", "XGROUP CREATE s g 0"] {
        ask::<redis::Value>(&mut client, line);
    }
    ask::<redis::Value>(&mut client, "XREADGROUP GROUP g alice COUNT 1 STREAMS s >");
    let page = Page::scrape(port);
    let (stream, group) = ([("db", "db0"), ("stream", "s")], [("db", "db0"), ("stream", "s"), ("group", "g")]);
    assert_eq!(page.value("redis_stream_length", &stream), 2.0);
    assert_eq!(page.value("redis_stream_first_entry_id", &stream), 5.0);
    assert_eq!(page.value("redis_stream_last_entry_id", &stream), 7.0);
    assert_eq!(page.value("redis_stream_group_messages_pending", &group), 1.0);
    assert_eq!(page.value("redis_stream_group_lag", &group), 1.0);
    let consumer = [&group[..], &[("consumer", "alice")]].concat();
    assert_eq!(page.value("redis_stream_group_consumer_messages_pending", &consumer), 1.0);
    assert_eq!(page.find("redis_stream_length", &[("db", "db0"), ("stream", "text")]), None);
    assert!(!page.types.contains_key("redis_connected_client_info"), "clients have none by default");
    assert!(try_ask::<()>(&mut client, "CONFIG SET metrics-streams a,,b").is_err());

    ask::<()>(&mut client, "CONFIG SET metrics-clients-max 1");
    let _second = server.client();
    let page = Page::scrape(port);
    let clients = page.samples.keys().filter(|(name, _)| name == "redis_connected_client_info");
    let names: Vec<&str> = clients.map(|(_, labels)| labels["name"].as_str()).collect();
    assert_eq!(names, ["quoted\"name"]);
}

#[test]
fn a_long_script_delays_no_scrape() {
    let names: Vec<String> = (0..100).map(|number| format!("s{number}")).collect();
    for workers in ["1", "2"] {
        let (server, port) = start(&["--io-threads", workers, "--metrics-streams", &names.join(",")]);
        ask::<()>(&mut server.client(), "SET a b");
        assert!(Page::scrape(port).types.contains_key("redis_db_avg_ttl_seconds"));
        let runs = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let script = "local now = redis.call('TIME') repeat local t = redis.call('TIME') \
                              redis.call('SET', 'k' .. t[2], 1) until tonumber(t[1]) >= now[1] + 3";
                let done = cmd("EVAL").arg(script).arg(0).query::<()>(&mut server.client());
                runs.store(false, Ordering::SeqCst);
                done.expect("it ends");
            });
            let mut slowest = Duration::ZERO;
            while runs.load(Ordering::SeqCst) {
                for path in ["/metrics", "/healthz", "/readyz"] {
                    let began = Instant::now();
                    assert_eq!(get(port, path, "").status, 200);
                    slowest = slowest.max(began.elapsed());
                }
            }
            println!("slowest page with {workers} workers: {slowest:?}");
            assert!(slowest < Duration::from_secs(1), "{slowest:?}");
        });
    }
}
