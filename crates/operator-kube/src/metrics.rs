//! Metrics and probes of the operator itself, over HTTP.

use crate::status::reason;
use kvick_http::router::{PLAIN_TEXT, full, reply, text};
use kvick_http::{Access, Endpoint, Guard, Limits, Router, StatusCode};
use kvick_metrics::exposition::CONTENT_TYPE;
use kvick_metrics::{Exposition, Kind, Metric};
use kvick_operator::reconcile::Operation;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time without a sign of life of the main loop after which the operator is not healthy.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// The phases of clusters. Each has a sample, also without clusters.
const PHASES: &[&str] = &["Creating", "Running", "Scaling", "Healing", "Upgrading"];

const LEADER: Metric =
    Metric::gauge("kvick_operator_leader", "Whether this operator acts: 1, or 0 while another one does.");
const CLUSTERS: Metric = labeled(Kind::Gauge, "kvick_operator_clusters", "Clusters by phase.", &["phase"]);
const RECONCILES: Metric =
    labeled(Kind::Counter, "kvick_operator_reconciles_total", "Steps of the loop of a cluster.", &["cluster"]);
const ERRORS: Metric = labeled(
    Kind::Counter,
    "kvick_operator_reconcile_errors_total",
    "Steps that ended with an error, such as an API server that does not answer.",
    &["cluster"],
);
const SECONDS: Metric =
    labeled(Kind::Gauge, "kvick_operator_reconcile_seconds", "Duration of the last step.", &["cluster"]);
const OPERATIONS: Metric = labeled(
    Kind::Counter,
    "kvick_operator_operations_total",
    "Operations by kind, as events name them, and by outcome: ok or error.",
    &["cluster", "operation", "outcome"],
);
const WANTED: Metric = labeled(
    Kind::Gauge,
    "kvick_operator_shards_wanted",
    "Shards that the load or shards.count asks for.",
    &["cluster"],
);
const SHARDS: Metric = labeled(Kind::Gauge, "kvick_operator_shards", "Shards that exist.", &["cluster"]);
const PODS: Metric = labeled(Kind::Gauge, "kvick_operator_pods", "Nodes that have pods, or should have.", &["cluster"]);
const ANSWERING: Metric =
    labeled(Kind::Gauge, "kvick_operator_pods_answering", "Nodes that answer the operator.", &["cluster"]);
const SPARES: Metric =
    labeled(Kind::Gauge, "kvick_operator_warm_spares", "Nodes that wait for a new shard.", &["cluster"]);
const UNSERVED: Metric =
    labeled(Kind::Gauge, "kvick_operator_slots_unserved", "Slots without a primary that answers.", &["cluster"]);
const MIGRATIONS: Metric =
    labeled(Kind::Gauge, "kvick_operator_migrations", "Migrations of slots that are under way.", &["cluster"]);

const fn labeled(kind: Kind, name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Metric {
    Metric { name, kind, help, labels }
}

/// What the last step of a cluster has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauges {
    /// The phase of the status.
    pub phase: String,
    /// Shards that the load or `shards.count` asks for.
    pub shards_wanted: u32,
    /// Shards that exist.
    pub shards: u32,
    /// Nodes that have pods, or should have.
    pub pods: u32,
    /// Nodes that answer.
    pub pods_answering: u32,
    /// Nodes that wait for a new shard.
    pub spares: u32,
    /// Slots without a primary that answers.
    pub slots_unserved: u32,
    /// Migrations under way.
    pub migrations: u32,
}

#[derive(Default)]
struct Figures {
    reconciles: u64,
    errors: u64,
    last: Duration,
    operations: BTreeMap<(&'static str, bool), u64>,
    gauges: Option<Gauges>,
}

/// A metric, and its value for a cluster.
type Column<F, T> = (&'static Metric, fn(&F) -> T);

struct Inner {
    is_leader: bool,
    is_connected: bool,
    alive_at: Instant,
    clusters: BTreeMap<String, Figures>,
}

/// The figures of an operator. Clones are the same figures.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<Inner>>);

impl Default for Metrics {
    fn default() -> Metrics {
        let inner =
            Inner { is_leader: false, is_connected: false, alive_at: Instant::now(), clusters: BTreeMap::new() };
        Metrics(Arc::new(Mutex::new(inner)))
    }
}

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the main loop goes on: it waits for the lease, or runs clusters.
    pub fn note_alive(&self) {
        self.lock().alive_at = Instant::now();
    }

    /// Notes that the API server has answered.
    pub fn note_connected(&self) {
        self.lock().is_connected = true;
    }

    /// Notes that this operator acts.
    pub fn note_leader(&self) {
        self.lock().is_leader = true;
    }

    /// Counts a step of a cluster.
    pub fn note_reconcile(&self, cluster: &str, duration: Duration, is_error: bool) {
        let mut inner = self.lock();
        let figures = inner.clusters.entry(cluster.to_owned()).or_default();
        figures.reconciles += 1;
        figures.errors += u64::from(is_error);
        figures.last = duration;
    }

    /// Counts an operation.
    pub fn note_operation(&self, cluster: &str, operation: &Operation, is_error: bool) {
        let mut inner = self.lock();
        let figures = inner.clusters.entry(cluster.to_owned()).or_default();
        *figures.operations.entry((reason(operation), is_error)).or_default() += 1;
    }

    /// Notes what the last step of a cluster has found.
    pub fn set_gauges(&self, cluster: &str, gauges: Gauges) {
        self.lock().clusters.entry(cluster.to_owned()).or_default().gauges = Some(gauges);
    }

    /// Forgets a cluster that was deleted.
    pub fn remove(&self, cluster: &str) {
        self.lock().clusters.remove(cluster);
    }

    /// All of them, in the text format of Prometheus.
    pub fn text(&self) -> String {
        let inner = self.lock();
        let mut out = Exposition::default();
        out.family(&LEADER).sample(&[], u64::from(inner.is_leader));
        let mut family = out.family(&CLUSTERS);
        for phase in PHASES {
            let of_phase = |figures: &&Figures| figures.gauges.as_ref().is_some_and(|gauges| gauges.phase == *phase);
            family.sample(&[phase], inner.clusters.values().filter(of_phase).count() as u64);
        }
        let counters: [Column<Figures, u64>; 2] =
            [(&RECONCILES, |figures| figures.reconciles), (&ERRORS, |figures| figures.errors)];
        for (metric, value) in counters {
            let mut family = out.family(metric);
            inner.clusters.iter().for_each(|(name, figures)| family.sample(&[name], value(figures)));
        }
        let mut family = out.family(&SECONDS);
        inner.clusters.iter().for_each(|(name, figures)| family.sample(&[name], figures.last.as_secs_f64()));
        let mut family = out.family(&OPERATIONS);
        for (name, figures) in &inner.clusters {
            for ((operation, is_error), count) in &figures.operations {
                family.sample(&[name, operation, if *is_error { "error" } else { "ok" }], *count);
            }
        }
        let gauges: [Column<Gauges, u32>; 7] = [
            (&WANTED, |gauges| gauges.shards_wanted),
            (&SHARDS, |gauges| gauges.shards),
            (&PODS, |gauges| gauges.pods),
            (&ANSWERING, |gauges| gauges.pods_answering),
            (&SPARES, |gauges| gauges.spares),
            (&UNSERVED, |gauges| gauges.slots_unserved),
            (&MIGRATIONS, |gauges| gauges.migrations),
        ];
        for (metric, value) in gauges {
            let mut family = out.family(metric);
            for (name, figures) in &inner.clusters {
                if let Some(gauges) = &figures.gauges {
                    family.sample(&[name], u64::from(value(gauges)));
                }
            }
        }
        out.into_text()
    }

    fn is_alive(&self) -> bool {
        self.lock().alive_at.elapsed() < SILENCE_MAX
    }

    fn is_connected(&self) -> bool {
        self.lock().is_connected
    }
}

fn router(metrics: &Metrics) -> Router {
    let probe = |is_good: fn(&Metrics) -> bool, problem: &'static str| {
        let metrics = metrics.clone();
        move |_: &kvick_http::Request| match is_good(&metrics) {
            true => text(StatusCode::OK, "ok\n"),
            false => text(StatusCode::SERVICE_UNAVAILABLE, problem),
        }
    };
    let own = metrics.clone();
    Router::new(Access::default)
        .get("/metrics", Guard::Open, move |_| reply(StatusCode::OK, CONTENT_TYPE, full(own.text())))
        .get("/healthz", Guard::Open, probe(Metrics::is_alive, "The main loop hangs.\n"))
        .get("/readyz", Guard::Open, probe(Metrics::is_connected, "The API server has not answered yet.\n"))
        .get("/", Guard::Open, |_| reply(StatusCode::OK, PLAIN_TEXT, full("/metrics /healthz /readyz\n")))
}

/// Serves metrics and probes on a port of all addresses, until the process ends.
///
/// # Errors
/// If the port cannot be used.
pub fn serve(metrics: &Metrics, port: u16) -> io::Result<Endpoint> {
    let bind = |address: SocketAddr| TcpListener::bind(address);
    // Machines without IPv6 have only the second one.
    let listener =
        bind((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|_| bind((Ipv4Addr::UNSPECIFIED, port).into()))?;
    listener.set_nonblocking(true)?;
    let endpoint = Endpoint::start(router(metrics), Limits::default())?;
    endpoint.listen(vec![listener], None)?;
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn get(port: u16, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        reply
    }

    #[test]
    fn figures_are_served_in_the_text_format() {
        let (metrics, port) = (Metrics::default(), kvick_testing::free_port());
        let _endpoint = serve(&metrics, port).expect("a port");
        assert!(get(port, "/readyz").starts_with("HTTP/1.1 503"));
        assert!(get(port, "/healthz").starts_with("HTTP/1.1 200"));
        metrics.note_connected();
        metrics.note_leader();
        metrics.note_reconcile("c", Duration::from_millis(250), true);
        metrics.note_operation("c", &Operation::StartShard, false);
        metrics.set_gauges("c", Gauges { phase: "Scaling".into(), shards_wanted: 3, shards: 2, ..Gauges::default() });
        assert!(get(port, "/readyz").starts_with("HTTP/1.1 200"));
        let text = get(port, "/metrics");
        for line in [
            "kvick_operator_leader 1\n",
            "kvick_operator_clusters{phase=\"Scaling\"} 1\n",
            "kvick_operator_clusters{phase=\"Running\"} 0\n",
            "kvick_operator_reconciles_total{cluster=\"c\"} 1\n",
            "kvick_operator_reconcile_errors_total{cluster=\"c\"} 1\n",
            "kvick_operator_reconcile_seconds{cluster=\"c\"} 0.25\n",
            "kvick_operator_operations_total{cluster=\"c\",operation=\"StartShard\",outcome=\"ok\"} 1\n",
            "kvick_operator_shards_wanted{cluster=\"c\"} 3\n",
            "kvick_operator_shards{cluster=\"c\"} 2\n",
        ] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
        metrics.remove("c");
        assert!(!metrics.text().contains("cluster=\"c\""));
    }
}
