//! What all threads of the server share.

use crate::acl::Acl;
use crate::aof::{self, Aof};
use crate::clients::Clients;
use crate::commandlog::CommandLog;
use crate::config::tables::persistence::APPENDFSYNC;
use crate::config::tables::{network, security};
use crate::config::words::ProtectedAction;
use crate::config::{Config, Values};
use crate::defrag::Defrag;
use crate::eviction::Eviction;
use crate::inbox::{Delivery, Inboxes};
use crate::latency::LatencyMonitor;
use crate::listen::{Listeners, Transport};
use crate::mailbox::Mailbox;
use crate::migration::Migration;
use crate::pause::Pause;
use crate::persistence::{self, Persistence, admission};
use crate::process::shutdown;
use crate::pubsub::PubSub;
use crate::pubsub::publication::{Address, Publication};
use crate::rates::Rates;
use crate::replication::{Replication, history};
use crate::runtime_config::RuntimeConfig as Snapshot;
use crate::scripting::Scripting;
use crate::session::Client;
use crate::stats::{Totals, WorkerStats};
use crate::worker::handlers::Handler;
use kvick_commands::table::{Catalogue, CommandInfo, CommandTable};
use crate::tls::Tls;
use crate::tracking::Tracking;
use crate::watchdog::Watchdog;
use crate::worker::blocking::Served;
use crate::worker::{Message, output};
use kvick_commands::context::Error;
use kvick_store::hash::KeyHasher;
use kvick_store::{EventClass, Keyspace};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

pub use crate::runtime_config::RuntimeConfig;

/// Partitions of a database if one worker has it to itself.
const PARTITIONS_ALONE: usize = 256;
/// Partitions of a database for each of several workers: so many that those which one asks for in advance, a batch of keys,
/// are seldom taken away by another before it locks them.
const PARTITIONS_PER_WORKER: usize = 1024;
const PARTITIONS_MAX: usize = 16384;

/// The server. There is one, and it lives as long as the process.
pub struct Server {
    /// The data.
    pub keyspace: &'static Keyspace,
    /// The settings.
    pub config: Config,
    /// Where the settings were read from, for CONFIG REWRITE.
    pub config_file: Option<PathBuf>,
    /// How the process was started.
    pub executable: PathBuf,
    /// All commands.
    pub table: &'static CommandTable<Handler>,
    /// What is known about them.
    pub catalogue: &'static Catalogue,
    /// Who may do what.
    pub acl: Acl,
    /// All connections.
    pub clients: Clients,
    /// CLIENT PAUSE.
    pub pause: Pause,
    /// Channels and who is subscribed to them.
    pub pubsub: PubSub,
    /// Clients that cache keys.
    pub tracking: Tracking,
    /// What workers have yet to write to their connections.
    pub inboxes: Inboxes,
    /// COMMANDLOG and SLOWLOG.
    pub commandlog: CommandLog,
    /// LATENCY.
    pub latency: LatencyMonitor,
    /// The workers' mailboxes, by number.
    mailboxes: OnceLock<Vec<Arc<Mailbox<Message>>>>,
    workers: usize,
    /// The workers' counters, by number, and those of whoever executes what a primary sends.
    pub stats: Vec<Arc<WorkerStats>>,
    /// The software watchdog.
    pub watchdog: Watchdog,
    /// What each worker had counted at the last CONFIG RESETSTAT.
    baseline: Mutex<Vec<Totals>>,
    /// How much happens in a second.
    pub rates: Mutex<Rates>,
    /// What is remembered about memory.
    pub memory: kvick_runtime::memory::Monitor,
    /// Active defragmentation.
    pub defrag: Defrag,
    /// What is done about limits of memory.
    pub eviction: Eviction,
    /// Dumps.
    pub persistence: Persistence,
    /// The append-only file.
    pub aof: Aof,
    /// MIGRATE.
    pub migration: Migration,
    /// TLS.
    pub tls: Tls,
    /// Scripts and functions.
    pub scripting: Scripting,
    /// The sockets that are listened on.
    listeners: OnceLock<Listeners>,
    runtime_config: RwLock<Arc<Snapshot>>,
    /// When it started.
    pub started: Instant,
    /// Unix time in ms when it started.
    pub started_ms: i64,
    /// Forty hexadecimal digits that tell this run from others.
    pub run_id: String,
    /// Replicas, and the primary.
    pub replication: Replication,
    /// Connections refused because there were too many.
    pub rejected_connections: AtomicU64,
    /// Whether active expiry runs: DEBUG SET-ACTIVE-EXPIRE.
    pub active_expire: AtomicBool,
    /// DEBUG PAUSE-CRON: whether nothing is done that is done from time to time.
    pub timers_stopped: AtomicBool,
    /// Bytes that a worker writes to a connection at once; none when replies are to be [listed](output::list_replies).
    pub written_at_once: AtomicUsize,
    /// A signal's request that the server end.
    pub shutdown: shutdown::Request,
    /// Set when the server is to end.
    ending: AtomicBool,
    /// Addresses that are listened on, for the banner and INFO.
    pub listening: RwLock<Vec<String>>,
}

impl Server {
    /// A server with these settings and commands, not yet listening.
    pub fn leak(
        values: Values,
        config_file: Option<PathBuf>,
        executable: PathBuf,
        table: CommandTable<Handler>,
    ) -> &'static Server {
        let workers = values.read(network::IO_THREADS).max(1) as usize;
        let databases = values.read(crate::config::tables::process::DATABASES) as usize;
        let partitions = match workers {
            1 => PARTITIONS_ALONE,
            _ => (workers * PARTITIONS_PER_WORKER).next_power_of_two().min(PARTITIONS_MAX),
        };
        let table: &'static CommandTable<Handler> = Box::leak(Box::new(table));
        let commands = table.catalogue().all().len();
        let runtime_config = Snapshot::read(&values, 1);
        let keyspace = Keyspace::leak(databases, partitions, hasher(&values));
        let aof = Aof::new(workers, values.read(APPENDFSYNC));
        let server: &'static Server = Box::leak(Box::new(Server {
            keyspace,
            config: Config::new(values),
            config_file,
            executable,
            table,
            catalogue: table.catalogue(),
            acl: Acl::default(),
            clients: Clients::default(),
            pause: Pause::default(),
            // Whoever executes what a primary sends publishes like a worker.
            pubsub: PubSub::new(workers + 1),
            tracking: Tracking::default(),
            inboxes: Inboxes::new(workers + 1),
            commandlog: CommandLog::default(),
            latency: LatencyMonitor::default(),
            mailboxes: OnceLock::new(),
            workers,
            watchdog: Watchdog::default(),
            stats: (0..=workers).map(|_| Arc::new(WorkerStats::new(commands))).collect(),
            baseline: Mutex::new(vec![Totals::default(); workers + 1]),
            rates: Mutex::default(),
            memory: kvick_runtime::memory::Monitor::default(),
            defrag: Defrag::default(),
            eviction: Eviction::default(),
            persistence: Persistence::default(),
            aof,
            migration: Migration::default(),
            tls: Tls::default(),
            scripting: Scripting::new(keyspace),
            listeners: OnceLock::new(),
            runtime_config: RwLock::new(Arc::new(runtime_config)),
            started: Instant::now(),
            started_ms: crate::clock::unix_ms(),
            run_id: history::random_id(),
            replication: Replication::new(workers),
            rejected_connections: AtomicU64::new(0),
            active_expire: AtomicBool::new(true),
            timers_stopped: AtomicBool::new(false),
            written_at_once: AtomicUsize::new(output::WRITE),
            shutdown: shutdown::Request::default(),
            ending: AtomicBool::new(false),
            listening: RwLock::default(),
        }));
        server.guard_memory(&server.runtime_config());
        server.keyspace.lazy_free.run(kvick_runtime::memory::register_thread);
        server
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Tells the workers' addresses, once.
    pub fn set_mailboxes(&self, mailboxes: Vec<Arc<Mailbox<Message>>>) {
        // A second call would be a mistake of `main` alone; the first stays.
        let _ = self.mailboxes.set(mailboxes);
        self.memory.mark_startup();
    }

    /// Tells the sockets that are listened on, once.
    pub fn set_listeners(&self, listeners: Listeners) {
        *self.listening.write() = listeners.describe();
        // As above.
        let _ = self.listeners.set(listeners);
    }

    /// Listens on the addresses and the port that `values` give a transport from now on. On an error there may be none that
    /// is listened on.
    pub fn listen_anew(&self, values: &Values, transport: Transport) -> std::io::Result<()> {
        let Some(listeners) = self.listeners.get() else { return Ok(()) };
        let reopened = listeners.reopen(values, transport);
        *self.listening.write() = listeners.describe();
        self.send(0, Message::Listen);
        reopened
    }

    /// Sends a worker a message.
    pub fn send(&self, worker: usize, message: Message) {
        match self.mailboxes.get().and_then(|all| all.get(worker)) {
            Some(mailbox) => mailbox.send(message),
            // The connection to the primary is no worker's.
            None if matches!(message, Message::Close(_)) => self.replication.upstream.interrupt(),
            None => {}
        }
    }

    /// Has a worker look at the server's state.
    pub fn wake(&self, worker: usize) {
        if let Some(mailbox) = self.mailboxes.get().and_then(|all| all.get(worker)) {
            mailbox.wake();
        }
    }

    /// Has a worker deliver something, on behalf of a worker, which delivers what is for its own connections before it
    /// waits for anything.
    pub fn deliver(&self, from: usize, worker: usize, delivery: Delivery) {
        if self.inboxes.put(worker, delivery) && worker != from {
            self.wake(worker);
        }
    }

    /// Has a client that waited answered, on behalf of any thread.
    pub fn answer(&self, served: Served) {
        const NO_WORKER: usize = usize::MAX;
        self.deliver(NO_WORKER, served.client.worker, Delivery::Served(served));
    }

    /// Publishes a message from a worker; how many subscribers hear it.
    pub fn publish(&self, from: usize, address: Address, channel: &[u8], payload: &[u8]) -> usize {
        self.put_messages(from, |put| self.pubsub.publish(address, channel, payload, put))
    }

    /// Has `publish` put messages into inboxes, and then wakes the workers that have to be, but for the one it is.
    fn put_messages<T>(&self, from: usize, publish: impl FnOnce(&mut dyn FnMut(usize, Arc<Publication>)) -> T) -> T {
        let mut asleep = SmallVec::<[usize; 8]>::new();
        let result = publish(&mut |worker, message| {
            if self.inboxes.put(worker, Delivery::Published(message)) && worker != from {
                asleep.push(worker);
            }
        });
        asleep.into_iter().for_each(|worker| self.wake(worker));
        result
    }

    /// A worker has moved the write log: wakes those who follow it, but for that worker itself. True if replies do well to
    /// wait: see [`Aof::log_moved`].
    #[inline]
    pub fn log_moved(&self, worker: usize) -> bool {
        self.replication.wake_feeders(self, worker);
        self.aof.log_moved()
    }

    /// Shows lines to all monitors, from a worker that delivers those for its own connections as above.
    pub fn show_monitors(&self, from: usize, lines: &[u8]) {
        self.put_messages(from, |put| self.pubsub.show_monitors(lines, put));
    }

    /// Sends every worker a message.
    pub fn send_all(&self, message: impl Fn() -> Message) {
        (0..self.workers()).for_each(|worker| self.send(worker, message()));
    }

    /// The classes of keyspace events that somebody may hear of, of those that settings name, and whether all changes are
    /// noted.
    #[inline]
    pub fn heard(&self, named: EventClass) -> EventClass {
        let no_events = named.is_empty() || !self.pubsub.directory().has_listeners();
        let heard = if no_events { EventClass::empty() } else { named };
        heard | self.keyspace.tracking.heard()
    }

    /// Moves whenever settings change.
    #[inline]
    pub fn config_generation(&self) -> u64 {
        self.config.generation()
    }

    /// The settings that workers go by, as of now.
    pub fn runtime_config(&self) -> Arc<RuntimeConfig> {
        let generation = self.config.generation();
        let current = self.runtime_config.read().clone();
        if current.generation == generation {
            return current;
        }
        let mut current = self.runtime_config.write();
        if current.generation < generation {
            *current = Arc::new(Snapshot::read(&self.config.values(), generation));
            self.guard_memory(&current);
        }
        current.clone()
    }

    /// Has commands look whether memory is short, if there are limits.
    fn guard_memory(&self, runtime_config: &RuntimeConfig) {
        let limits = &runtime_config.eviction;
        self.persistence.admission.set(admission::LIMITED, limits.bytes > 0 || limits.clients_bytes > 0);
    }

    /// Why a protected command may not run for this client.
    pub fn protected_refusal(&self, client: &Client, command: &CommandInfo) -> Option<Error> {
        let (setting, directive) = match command.full_name.split('|').next() {
            Some("debug") => (self.config.read(security::ENABLE_DEBUG_COMMAND), "enable-debug-command"),
            _ => (self.config.read(security::ENABLE_MODULE_COMMAND), "enable-module-command"),
        };
        let allowed = match setting {
            ProtectedAction::Yes => true,
            ProtectedAction::No => false,
            ProtectedAction::Local => client.is_local(),
        };
        (!allowed).then(|| {
            let name = command.full_name.split('|').next().unwrap_or_default().to_uppercase();
            Error::new(format!(
                "ERR {name} command not allowed. If the {directive} option is set to \"local\", you can run it from a \
                 local connection, otherwise you need to set this option in the configuration file, and then restart \
                 the server."
            ))
        })
    }

    /// What the first worker does for all of them, several times a second.
    pub fn tick(&'static self) {
        shutdown::poll(self);
        persistence::schedule::tick(self);
        self.tick_replication();
        aof::rewrite::tick(self);
        self.migration.sockets.close_idle();
        self.defrag.tick(self);
        self.tls.reload_if_due(&self.config.values());
        let now = Instant::now();
        let mut rates = self.rates.lock();
        if rates.is_due(now) {
            let workers: Vec<Totals> = self.stats.iter().map(|stats| Totals::of(stats)).collect();
            rates.sample(now, &workers);
            self.memory.sample();
        }
    }

    /// What each worker counted since the last CONFIG RESETSTAT.
    pub fn totals(&self) -> Vec<Totals> {
        let baseline = self.baseline.lock();
        self.stats.iter().zip(baseline.iter()).map(|(stats, before)| Totals::of(stats).since(before)).collect()
    }

    /// Begins to count anew. No command may be running: the caller holds the world.
    pub fn reset_stats(&self) {
        *self.baseline.lock() = self.stats.iter().map(|stats| Totals::of(stats)).collect();
        self.stats.iter().for_each(|stats| stats.reset_commands());
        self.rates.lock().reset();
        self.rejected_connections.store(0, Ordering::Relaxed);
        self.acl.log.reset_counts();
        self.keyspace.lazy_free.reset();
        self.persistence.reset_stats();
        self.scripting.reset_stats();
        aof::reset_stats(&self.aof);
        self.eviction.reset();
        self.defrag.reset();
        self.replication.counts.reset();
    }

    /// Has the server end: workers notice at their next turn. Nobody can connect any more before a connection is closed:
    /// whose is takes the server to have ended.
    pub fn end(&self) {
        if let Some(listeners) = self.listeners.get() {
            listeners.close();
        }
        self.ending.store(true, Ordering::SeqCst);
        (0..self.workers()).for_each(|worker| self.wake(worker));
    }

    /// Whether the server is to end.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

/// The hash function of the keyspace: with a secret of its own, or the one that `hash-seed` stands for.
fn hasher(values: &Values) -> KeyHasher {
    match values.read(crate::config::tables::process::HASH_SEED) {
        None => KeyHasher::random(),
        Some(seed) => {
            let word = |half| KeyHasher::with_secret(half, 0).hash(&seed);
            KeyHasher::with_secret(word(0), word(1))
        }
    }
}
