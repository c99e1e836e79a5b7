//! The server: the engine's services, and the process around them.

use crate::cluster::ClusterNode;
use crate::http::HttpEndpoint;
use crate::process::shutdown;
use crate::tracing::Tracing;
use crate::watchdog::Watchdog;
use kvick_commands::table::CommandTable;
use kvick_config::Values;
use kvick_core::Core;
use kvick_core::message::Message;
use kvick_durability::{aof, persistence};
use kvick_engine::handlers::Handler;
use kvick_engine::services::{Process, Services};
use kvick_engine::session::Session;
use kvick_net::listen::{Listeners, Transport};
use kvick_process::cpu_limit;
use kvick_replication::history;
use parking_lot::RwLock;
use std::any::Any;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;

/// The server. There is one, and it lives as long as the process.
pub struct Server {
    /// The engine's services.
    pub services: &'static Services,
    /// The configuration file, for CONFIG REWRITE.
    pub config_file: Option<PathBuf>,
    /// The path of the executable.
    pub executable: PathBuf,
    /// The software watchdog.
    pub watchdog: Watchdog,
    /// The cluster node that it is, in cluster mode.
    cluster: OnceLock<&'static ClusterNode>,
    /// The listening sockets.
    listeners: OnceLock<Listeners>,
    /// The HTTP endpoint with metrics.
    pub endpoint: HttpEndpoint,
    /// The export of slow commands as traces.
    pub tracing: Tracing,
    /// A signal's shutdown request.
    pub shutdown: shutdown::Request,
    /// Listening addresses, for the banner and INFO.
    pub listening: RwLock<Vec<String>>,
}

impl Deref for Server {
    type Target = Services;

    fn deref(&self) -> &Services {
        self.services
    }
}

impl Process for Server {
    fn tick(&'static self) {
        shutdown::poll(self);
        persistence::schedule::tick(self.services);
        self.services.tick_replication();
        aof::rewrite::tick(self.services);
        self.migration.sockets.close_idle();
        self.defrag.tick(self);
        self.tls.reload_if_due(&self.config.values());
        self.hot_keys.end_window_if_due(Instant::now());
        self.sample();
        // A part of a core is one more.
        self.scale_workers(|| cpu_limit::cores().ceil() as usize);
    }

    /// Closes the listeners first, so that nobody can connect while connections are being closed.
    fn end(&self) {
        if let Some(listeners) = self.listeners.get() {
            listeners.close();
        }
        self.mark_shutting_down();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Access to the server that a session command runs on.
pub trait HasServer {
    /// The server.
    fn server(&self) -> &'static Server;
}

impl HasServer for Session<'_> {
    fn server(&self) -> &'static Server {
        Server::of(self.server)
    }
}

impl Server {
    /// A server with these settings and commands, not yet listening.
    pub fn leak(
        values: Values,
        config_file: Option<PathBuf>,
        executable: PathBuf,
        table: CommandTable<Handler>,
    ) -> &'static Server {
        let table: &'static CommandTable<Handler> = Box::leak(Box::new(table));
        let core = Core::new(values, table.catalogue(), history::random_id());
        let server: &'static Server = Box::leak(Box::new(Server {
            services: Services::leak(core, table),
            config_file,
            executable,
            watchdog: Watchdog::default(),
            cluster: OnceLock::new(),
            listeners: OnceLock::new(),
            endpoint: HttpEndpoint::default(),
            tracing: Tracing::default(),
            shutdown: shutdown::Request::default(),
            listening: RwLock::default(),
        }));
        kvick_engine::attach(server.services);
        server.services.set_process(server);
        server
    }

    /// The server around these services.
    ///
    /// # Panics
    /// If none exists: session commands of this crate require a server.
    pub fn of(services: &'static Services) -> &'static Server {
        let process = services.process().and_then(|process| process.as_any().downcast_ref());
        process.expect("the services of a server")
    }

    /// Sets the cluster node, once.
    pub fn set_cluster(&self, node: &'static ClusterNode) {
        // As below.
        let _ = self.cluster.set(node);
    }

    /// The cluster node that this server is, in cluster mode.
    pub fn cluster(&self) -> Option<&'static ClusterNode> {
        self.cluster.get().copied()
    }

    /// Sets the listening sockets, once.
    pub fn set_listeners(&self, listeners: Listeners) {
        *self.listening.write() = listeners.describe();
        // A second call would be a mistake of the process's start alone; the first stays.
        let _ = self.listeners.set(listeners);
    }

    /// Reopens a transport's sockets with the addresses and port in `values`. After an error none may be open.
    pub fn relisten(&self, values: &Values, transport: Transport) -> std::io::Result<()> {
        let Some(listeners) = self.listeners.get() else { return Ok(()) };
        let reopened = listeners.reopen(values, transport);
        *self.listening.write() = listeners.describe();
        self.send(0, Message::Listen);
        reopened
    }

    /// Resets the counters that CONFIG RESETSTAT resets. The caller holds the global lock, so that no command runs.
    pub fn reset_stats(&self) {
        self.reset_counters();
        self.acl.log.reset_counts();
        self.persistence.reset_stats();
        self.scripting.reset_stats();
        aof::reset_stats(&self.aof);
        self.defrag.reset();
        self.replication.counts.reset();
        if let Some(cluster) = self.cluster() {
            cluster.read(|cluster, _| cluster.reset_statistics());
        }
    }
}
