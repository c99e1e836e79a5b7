//! Runs a loop for each `KvickCluster` of a namespace.

use crate::cluster::{self, Target};
use crate::lease;
use crate::pods::Connection;
use crate::spec::KvickCluster;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::collections::HashMap;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at which clusters exist.
const LIST_EVERY: Duration = Duration::from_secs(2);

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
}

/// Connects to the API server that the environment names: the file of `KUBECONFIG`, or that of the pod. Requests run on
/// a thread of their own.
///
/// # Errors
/// If there is no configuration, or if it is not valid.
pub fn connect() -> io::Result<Connection> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let client = handle.block_on(async {
        let mut config = kube::Config::infer().await.map_err(io::Error::other)?;
        config.connect_timeout = Some(Duration::from_secs(5));
        config.read_timeout = Some(Duration::from_secs(20));
        Client::try_from(config).map_err(io::Error::other)
    })?;
    Ok(Connection { client, runtime: handle })
}

/// Runs all clusters of the namespace, until the process is killed. Servers go on without it.
///
/// # Errors
/// If there is no configuration, or if another operator took over.
pub fn run(settings: &Settings) -> io::Result<()> {
    let connection = connect()?;
    let namespace = settings.namespace.clone().unwrap_or_else(|| connection.client.default_namespace().to_owned());
    if settings.leader_election {
        lease::acquire(&connection, &namespace, settings.lease)?;
    }
    println!("running the clusters of namespace {namespace}");
    let api: Api<KvickCluster> = Api::namespaced(connection.client.clone(), &namespace);
    let mut threads: HashMap<String, JoinHandle<()>> = HashMap::new();
    loop {
        match connection.wait(api.list(&ListParams::default())) {
            Ok(clusters) => {
                threads.retain(|_, thread| !thread.is_finished());
                for cluster in clusters.items.iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) {
                    let name = cluster.name_any();
                    threads.entry(name.clone()).or_insert_with(|| {
                        let (connection, namespace) = (connection.clone(), namespace.clone());
                        let target = Target { connection, namespace, name, interval: settings.interval };
                        std::thread::spawn(move || cluster::run(&target))
                    });
                }
            }
            Err(error) => eprintln!("cannot list clusters: {error}"),
        }
        std::thread::sleep(LIST_EVERY);
    }
}
