//! Runs a loop for each `KvickCluster` of a namespace.

use crate::cluster::{self, Target};
use crate::lease;
use crate::metrics::{self, Metrics};
use crate::pods::Connection;
use crate::watch::Watched;
use kube::{Client, ResourceExt};
use std::collections::HashMap;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Time between two looks at which clusters have been seen. It takes no request.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How the operator runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace; without one, that of the configuration.
    pub namespace: Option<String>,
    /// Time between two observations of a cluster.
    pub interval: Duration,
    /// Whether only one of several operators acts.
    pub leader_election: bool,
    /// Time after which another operator acts if this one does not say that it lives.
    pub lease: Duration,
    /// Port of metrics and probes, if they are wanted.
    pub metrics_port: Option<u16>,
}

/// Connects to the API server that the environment names: the file of `KUBECONFIG`, or that of the pod. Requests run on
/// a thread of their own. The second client is for watches, which say nothing for a long time.
///
/// # Errors
/// If there is no configuration, or if it is not valid.
pub fn connect() -> io::Result<(Connection, Client)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let (client, patient) = handle.block_on(async {
        let mut config = kube::Config::infer().await.map_err(io::Error::other)?;
        config.connect_timeout = Some(Duration::from_secs(5));
        let patient = Client::try_from(config.clone()).map_err(io::Error::other)?;
        config.read_timeout = Some(Duration::from_secs(20));
        io::Result::Ok((Client::try_from(config).map_err(io::Error::other)?, patient))
    })?;
    Ok((Connection { client, runtime: handle }, patient))
}

/// Ends the process at SIGTERM and SIGINT, which the first process of a container ignores by default: its pod would be
/// killed only after the grace period. At any moment an operator may end and another one go on.
fn end_when_asked(connection: &Connection) -> io::Result<()> {
    let _runtime = connection.runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind)?;
        connection.runtime.spawn(async move {
            if signals.recv().await.is_some() {
                std::process::exit(0);
            }
        });
    }
    Ok(())
}

/// Runs all clusters of the namespace, until the process is ended. Servers go on without it.
///
/// # Errors
/// If there is no configuration, or if another operator took over.
pub fn run(settings: &Settings) -> io::Result<()> {
    let (connection, patient) = connect()?;
    end_when_asked(&connection)?;
    let metrics = Metrics::default();
    let _endpoint = settings.metrics_port.map(|port| metrics::serve(&metrics, port)).transpose()?;
    let namespace = settings.namespace.clone().unwrap_or_else(|| connection.client.default_namespace().to_owned());
    if settings.leader_election {
        lease::acquire(&connection, &namespace, settings.lease, &metrics)?;
    }
    metrics.note_leader();
    let watched = Watched::start(&connection, &patient, &namespace)?;
    metrics.note_connected();
    println!("running the clusters of namespace {namespace}");
    let mut threads: HashMap<String, JoinHandle<()>> = HashMap::new();
    loop {
        metrics.note_alive();
        threads.retain(|_, thread| !thread.is_finished());
        for cluster in watched.clusters().iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) {
            let name = cluster.name_any();
            threads.entry(name.clone()).or_insert_with(|| {
                let target = Target {
                    connection: connection.clone(),
                    watched: watched.clone(),
                    metrics: metrics.clone(),
                    namespace: namespace.clone(),
                    name,
                    interval: settings.interval,
                };
                std::thread::spawn(move || cluster::run(&target))
            });
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
