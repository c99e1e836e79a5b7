//! The endpoint next to redis_exporter, read by promtool and Prometheus. Tests say so and pass if a program is absent.

use crate::common::{Server, free_port, wait_until};
use crate::page::{Page, get};
use crate::{ask, start, try_ask};
use kvick_testing::programs;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &Path, args: &[String]) -> Running {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().expect("a program"))
}

/// What redis_exporter tells of a server.
fn exported(program: &Path, server: &Server) -> Page {
    let port = free_port();
    let args = [
        format!("-web.listen-address=127.0.0.1:{port}"),
        format!("-redis.addr=redis://127.0.0.1:{}", server.port()),
        "-redis-only-metrics".into(),
        "-check-single-streams=db0=stream".into(),
        "-export-client-list".into(),
    ];
    let _exporter = run(program, &args);
    wait_until("the exporter listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    // The first scrape makes requests that the next one tells of.
    Page::scrape(port)
}

/// Metrics that change from moment to moment, and with the exporter's own requests.
fn is_moving(name: &str) -> bool {
    const WORDS: [&str; 22] = [
        "memory",
        "allocator",
        "cpu",
        "active_time",
        "eventloop",
        "net_",
        "latenc",
        "commands",
        "total_reads",
        "total_writes",
        "processed",
        "exporter",
        "connections_received",
        "mem_clients",
        "mem_fragmentation",
        "keyspace",
        "client_recent",
        "connected_client",
        "messages",
        "bytes_sent",
        "bytes_received",
        "idle_seconds",
    ];
    WORDS.iter().any(|word| name.contains(word))
}

/// The name of `redis_connected_client_info` in older versions of the exporter.
const FORMER_NAME: &str = "redis_connected_clients_details";

/// Every metric of the exporter exists here, with its type, its labels, and about its value.
fn compare(exported: &Page, own: &Page) {
    for (name, kind) in exported.types.iter().filter(|(name, _)| *name != FORMER_NAME) {
        // Older versions of the exporter took some counters for gauges.
        let found = own.types.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(found == kind || (kind, found.as_str()) == (&"gauge".to_owned(), "counter"), "{name}: {found}, {kind}");
    }
    let mut compared = 0;
    for ((name, labels), expected) in &exported.samples {
        let mut labels: BTreeMap<&str, &str> =
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        // A client that the exporter opens for each scrape; and labels that versions of the exporter lack.
        if name.starts_with("redis_connected_client_") || name == FORMER_NAME || name.ends_with("_bucket") {
            continue;
        }
        let same_name = own.samples.iter().filter(|((own_name, _), _)| own_name == name);
        let contains = |own: &BTreeMap<String, String>| {
            labels.iter().all(|(label, value)| own.get(*label).is_some_and(|found| found == value))
        };
        let found = same_name.filter(|((_, own), _)| contains(own)).collect::<Vec<_>>();
        let [((_, own_labels), value)] = found[..] else { panic!("{} samples of {name} {labels:?}", found.len()) };
        assert!(name == "redis_instance_info" || own_labels.len() == labels.len(), "{name}: {own_labels:?}");
        if !is_moving(name) {
            assert!((value - expected).abs() <= 2.0, "{name} {labels:?} is {value}, the exporter says {expected}");
            compared += 1;
        }
        labels.clear();
    }
    assert!(compared > 60, "{compared} values compared");
}

fn fill(server: &Server) {
    let mut client = server.client();
    for line in ["SET a b EX 1000", "SADD set x", "XADD stream 5-1 f v", "XGROUP CREATE stream group 0", "GET nosuch"] {
        ask::<redis::Value>(&mut client, line);
    }
    ask::<redis::Value>(&mut client, "XREADGROUP GROUP group consumer STREAMS stream >");
    ask::<()>(&mut client, "CONFIG SET latency-monitor-threshold 1");
    ask::<()>(&mut client, "DEBUG SLEEP 0.01");
    assert!(try_ask::<()>(&mut client, "NOSUCH").is_err());
}

const ARGS: [&str; 6] =
    ["--metrics-streams", "stream", "--metrics-clients-max", "100", "--enable-debug-command", "yes"];

#[test]
fn a_primary_and_its_replica_have_the_metrics_of_the_exporter() {
    let Some(exporter) = programs::find("KVICK_TEST_REDIS_EXPORTER", &["redis_exporter", "prometheus-redis-exporter"])
    else {
        return;
    };
    // A PING between two scrapes would change the offsets. Only the first one is sent, which tells the replica them.
    let options = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"];
    let (primary, primary_port) = start(&[&ARGS[..], &options].concat());
    let (replica, replica_port) = start(&ARGS);
    fill(&primary);
    ask::<()>(&mut replica.client(), &format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    wait_until("the replica is in sync", || get(replica_port, "/readyz", "").status == 200);
    wait_until("the replica has acknowledged the first PING", || {
        ask::<String>(&mut primary.client(), "INFO replication").contains(",offset=14,")
    });
    let _clients = [primary.client(), replica.client()];
    for (server, port) in [(&primary, primary_port), (&replica, replica_port)] {
        let exported = exported(&exporter, server);
        compare(&exported, &Page::scrape(port));
    }
    let (primary_page, replica_page) = (Page::scrape(primary_port), Page::scrape(replica_port));
    assert!(primary_page.types.contains_key("redis_connected_slave_lag_seconds"));
    assert!(primary_page.types.contains_key("redis_latency_spike_last"));
    assert!(replica_page.types.contains_key("redis_master_link_up"));
}

#[test]
fn a_cluster_node_has_the_metrics_of_the_exporter() {
    let Some(exporter) = programs::find("KVICK_TEST_REDIS_EXPORTER", &["redis_exporter", "prometheus-redis-exporter"])
    else {
        return;
    };
    let bus = free_port().to_string();
    let (node, port) = start(&[&ARGS[..], &["--cluster-enabled", "yes", "--cluster-port", &bus]].concat());
    ask::<()>(&mut node.client(), "CLUSTER ADDSLOTSRANGE 0 16383");
    wait_until("the cluster is up", || get(port, "/readyz", "").status == 200);
    fill(&node);
    let _client = node.client();
    let exported = exported(&exporter, &node);
    assert_eq!(exported.value("redis_cluster_slots_ok", &[]), 16384.0);
    compare(&exported, &Page::scrape(port));
}

#[test]
fn promtool_accepts_the_metrics() {
    let Some(promtool) = programs::find("KVICK_TEST_PROMTOOL", &["promtool"]) else { return };
    let (server, port) = start(&ARGS);
    fill(&server);
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool");
    let page = get(port, "/metrics", "").body;
    child.stdin.take().expect("its input").write_all(page.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // Names of redis_exporter do not keep all conventions, which is the exit code 3; errors of the format are 1.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{text}");
    for line in text.lines() {
        assert!(line.starts_with("redis_"), "{line}");
    }
}

#[test]
fn prometheus_scrapes_the_endpoint() {
    let Some(prometheus) = programs::find("KVICK_TEST_PROMETHEUS", &["prometheus"]) else { return };
    let (server, port) = start(&["--metrics-token", "s3cret"]);
    fill_plain(&server);
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("prometheus.yml");
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/prometheus/alerts.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{rules}']\n\
         scrape_configs:\n- job_name: \
         kvick\n  authorization: {{credentials: s3cret}}\n  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    );
    std::fs::write(&config, text).expect("a file");
    let web = free_port();
    let args = [
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", dir.path().join("data").display()),
        format!("--web.listen-address=127.0.0.1:{web}"),
    ];
    let _prometheus = run(&prometheus, &args);
    wait_until("Prometheus listens", || std::net::TcpStream::connect(("127.0.0.1", web)).is_ok());
    let query = |expression: &str| get(web, &format!("/api/v1/query?query={expression}"), "").body;
    wait_until("Prometheus has scraped", || query("redis_commands_total%7Bcmd%3D%22set%22%7D").contains("\"10\"]"));
    assert!(query("up").contains("\"1\"]"), "{}", query("up"));
    let rate = "histogram_quantile(0.5,kvick_command_duration_seconds_bucket%7Bcmd%3D%22set%22%7D)";
    assert!(query(rate).contains("\"cmd\":\"set\""), "{}", query(rate));
    assert!(get(web, "/api/v1/rules", "").body.contains("\"health\":\"ok\""));
}

fn fill_plain(server: &Server) {
    let mut client = server.client();
    (0..10).for_each(|_| ask::<()>(&mut client, "SET a b"));
}
