//! Starts the cluster node: reads `nodes.conf`, opens the bus port, starts the threads.

use super::slot_migration::Member;
use super::turns::Turns;
use super::{ClusterNode, Published, Queue, settings};
use crate::server::Server;
use kvick_cluster::nodes_conf::NodesConf;
use kvick_cluster::state::{Cluster, Facts, Now};
use kvick_cluster_bus::nodes_file::NodesFile;
use kvick_cluster_bus::{Bus, Start};
use kvick_config::Values;
use kvick_config::tables::cluster::{CLUSTER_CONFIG_FILE, CLUSTER_PORT, CLUSTER_PREFERRED_ENDPOINT_TYPE};
use kvick_config::tables::network::{BIND, BIND_SOURCE_ADDR, PORT};
use kvick_config::tables::process::DIR;
use kvick_config::tables::tls::{TLS_CLUSTER, TLS_PORT};
use kvick_core::routing;
use kvick_durability::open_slots::OpenSlots;
use kvick_net::listen;
use kvick_replication::slot_migration;
use kvick_runtime::{clock, logging};
use parking_lot::{Condvar, Mutex, RwLock};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Why the cluster node cannot start.
#[derive(Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

fn failed(error: impl fmt::Display) -> StartError {
    StartError(error.to_string())
}

/// Starts the node. Its data are not loaded yet; clients are refused until the state machine knows the cluster.
pub fn start(server: &'static Server) -> Result<&'static ClusterNode, StartError> {
    let values = server.config.values();
    check_ports(&values)?;
    let path = values.read(DIR).resolve(&values.read(CLUSTER_CONFIG_FILE));
    let (file, content) = NodesFile::open(&path).map_err(failed)?;
    let conf = read_config(&content, values.read(TLS_CLUSTER))?;
    let settings = settings::of(&values);
    let port = settings.listening_bus_port();
    let listeners = listen::open_bus(&values, port).map_err(|error| {
        logging::warning(format_args!("Warning: {error}"));
        failed(format_args!("Failed listening on port {port} (cluster), aborting."))
    })?;
    let now = Now { mono_ms: 0, unix_ms: clock::unix_ms() };
    let seed = random_seed();
    let cluster = Cluster::new(conf.as_ref(), settings, seed, now);
    let topology = cluster.topology(&Facts::without_data(now));
    let source = values.read(BIND_SOURCE_ADDR).and_then(|source| source.to_string().parse().ok());
    let tls = values.read(TLS_CLUSTER).then_some(&server.tls);
    let tolerates_failed_saves = settings::tolerates_failed_saves(&values);
    let start = Start { cluster, file, listeners, source, tls, tolerates_failed_saves };
    let (bus, thread) = Bus::leak(start).map_err(failed)?;
    let preferred = values.read(CLUSTER_PREFERRED_ENDPOINT_TYPE);
    let node: &'static ClusterNode = Box::leak(Box::new(ClusterNode {
        server,
        bus,
        published: RwLock::new(Arc::new(Published::new(topology, preferred))),
        queue: Mutex::new(Queue::default()),
        queued: Condvar::new(),
        had_keys: AtomicBool::new(false),
        is_loaded: AtomicBool::new(false),
        full_sync_generation: AtomicU64::new(0),
        turns: Turns::new(server.workers_max()),
        debug: Mutex::default(),
    }));
    bus.run(node, thread).map_err(failed)?;
    server.slot_migration.set_membership(Box::new(Member { server, node }));
    slot_migration::start(server).map_err(failed)?;
    server.set_open_slots(Box::new(DumpedSlots(bus)));
    if let Some(routing) = &server.routing {
        routing.set_bus(Box::new(Publisher(bus)));
    }
    std::thread::Builder::new()
        .name("cluster".into())
        .spawn(move || {
            kvick_runtime::memory::register_thread();
            kvick_runtime::time_slice::shorten();
            node.run();
        })
        .map_err(failed)?;
    // Settles what reading the file has begun, and publishes the first topology.
    node.reconfigure(&mut server.keyspace.lock_global());
    Ok(node)
}

/// Open slots in dumps.
struct DumpedSlots(&'static Bus);

impl OpenSlots for DumpedSlots {
    fn field(&self) -> Option<String> {
        self.0.with(|cluster, _| cluster.open_slots_field())
    }

    fn loaded(&self, field: &str) {
        if !self.0.with(|cluster, facts| cluster.restore_open_slots(field, facts)) {
            logging::warning(format_args!("The dump has invalid open slots: {field}"));
        }
    }
}

/// Publishes messages to other nodes.
struct Publisher(&'static Bus);

impl routing::Bus for Publisher {
    fn publish(&self, to_shard: bool, channel: &[u8], message: &[u8]) {
        self.0.with(|cluster, facts| cluster.publish(channel, message, to_shard, facts));
    }
}

fn check_ports(values: &Values) -> Result<(), StartError> {
    let port = if values.read(TLS_CLUSTER) { values.read(TLS_PORT) } else { values.read(PORT) };
    if values.read(CLUSTER_PORT) == 0 && port > u16::MAX - kvick_cluster::BUS_PORT_OFFSET {
        return Err(failed(
            "Kvick port number too high. Cluster communication port is 10,000 port numbers higher than your Kvick \
             port. Your Kvick port number must be 55535 or less.",
        ));
    }
    if values.read(BIND).list().is_empty() {
        return Err(failed("No bind address is configured, but it is required for the Cluster bus."));
    }
    Ok(())
}

/// The content of the file; `None` if it is new.
fn read_config(content: &[u8], tls_bus: bool) -> Result<Option<NodesConf>, StartError> {
    if content.is_empty() {
        return Ok(None);
    }
    let (conf, repairs) = NodesConf::parse(content, tls_bus)
        .map_err(|error| failed(format_args!("Unrecoverable error: corrupted cluster config file: {error}")))?;
    for repair in repairs {
        logging::warning(format_args!("Cluster config file: {repair}"));
    }
    if let Some(myself) = conf.myself() {
        logging::notice(format_args!("Node configuration loaded, I'm {}", myself.id));
    }
    Ok(Some(conf))
}

/// A seed from the system's random source: it decides about the names of new nodes.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
