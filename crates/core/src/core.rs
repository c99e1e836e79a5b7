//! [`Core`], the state that all subsystems share, and the ways to reach a worker from another thread.

use crate::admission::{Admission, Reasons};
use crate::big_keys::BigKeys;
use crate::clients::Clients;
use crate::commandlog::{CommandLog, bytes_of_words};
use crate::eviction::Eviction;
use crate::executor::Executor;
use crate::hot_keys::HotKeys;
use crate::inbox::{Delivery, Inboxes, Served};
use crate::latency::LatencyMonitor;
use crate::message::Message;
use crate::pause::Pause;
use crate::pubsub::PubSub;
use crate::pubsub::publication::{Address, Publication};
use crate::rates::Rates;
use crate::routing::Routing;
use crate::routing::slot_stats::SlotUsage;
use crate::runtime_config::RuntimeConfig;
use crate::stats::{Totals, WorkerStats};
use crate::tracking::Tracking;
use kvick_commands::table::Catalogue;
use kvick_config::tables::cluster::{CLUSTER_DATABASES, CLUSTER_ENABLED, CLUSTER_SLOT_STATS_ENABLED};
use kvick_config::tables::{network, process};
use kvick_config::{Config, Values};
use kvick_runtime::mailbox::Mailbox;
use kvick_runtime::{clock, memory};
use kvick_store::hash::KeyHasher;
use kvick_store::slot::{SLOTS, slot};
use kvick_store::{EventClass, Keyspace};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Partitions per database with one worker.
const PARTITIONS_ONE_WORKER: usize = 256;
/// Partitions per database for each of several workers. With this many, another worker seldom locks a partition of a
/// prefetched batch before the worker that prefetched it does.
const PARTITIONS_PER_WORKER: usize = 1024;
const PARTITIONS_MAX: usize = 16384;

/// The state that every subsystem may read. There is one instance, which lives as long as the process.
pub struct Core {
    /// The data.
    pub keyspace: &'static Keyspace,
    /// The settings.
    pub config: Config,
    /// All commands.
    pub catalogue: &'static Catalogue,
    /// The admission word: why commands may not run now.
    pub admission: Admission,
    /// All connections.
    pub clients: Clients,
    /// Which node serves which slot, in cluster mode.
    pub routing: Option<Routing>,
    /// CLIENT PAUSE.
    pub pause: Pause,
    /// Channels and their subscribers.
    pub pubsub: PubSub,
    /// Clients that cache keys.
    pub tracking: Tracking,
    /// What each worker has yet to write to its connections.
    pub inboxes: Inboxes,
    /// COMMANDLOG and SLOWLOG.
    pub commandlog: CommandLog,
    /// LATENCY.
    pub latency: LatencyMonitor,
    /// HOTKEYS.
    pub hot_keys: HotKeys,
    /// The largest keys.
    pub big_keys: BigKeys,
    /// Memory limits.
    pub eviction: Eviction,
    /// Peak and initial memory use.
    pub memory: memory::Monitor,
    /// Bytes that snapshots have captured but not yet written.
    pub snapshot_bytes: AtomicUsize,
    /// Counters by worker number, and last those of the thread that executes the primary's commands.
    pub stats: Vec<Arc<WorkerStats>>,
    /// Operations per second.
    pub rates: Mutex<Rates>,
    /// When the server started.
    pub started: Instant,
    /// Unix time in ms when the server started.
    pub started_ms: i64,
    /// Forty hexadecimal digits that identify this run.
    pub run_id: String,
    /// Connections refused because `maxclients` was reached.
    pub rejected_connections: AtomicU64,
    /// Whether active expiry runs (DEBUG SET-ACTIVE-EXPIRE).
    pub active_expire: AtomicBool,
    /// Whether periodic work is suspended (DEBUG PAUSE-CRON).
    pub timers_stopped: AtomicBool,
    /// The counters of each worker at the last CONFIG RESETSTAT.
    baseline: Mutex<Vec<Totals>>,
    runtime_config: RwLock<Arc<RuntimeConfig>>,
    /// The workers' mailboxes, by worker number.
    mailboxes: OnceLock<Vec<Arc<Mailbox<Message>>>>,
    /// Interrupts the connection to the primary.
    interrupt_primary: OnceLock<Box<dyn Fn() + Send + Sync>>,
    workers: usize,
    shutting_down: AtomicBool,
}

impl Core {
    /// Creates a core with these settings and commands. `run_id` identifies this run.
    pub fn new(values: Values, catalogue: &'static Catalogue, run_id: String) -> Self {
        let workers = values.read(network::IO_THREADS).max(1) as usize;
        let is_cluster = values.read(CLUSTER_ENABLED);
        let databases = values.read(if is_cluster { CLUSTER_DATABASES } else { process::DATABASES }) as usize;
        let partitions = match workers {
            // One for each slot.
            _ if is_cluster => usize::from(SLOTS),
            1 => PARTITIONS_ONE_WORKER,
            _ => (workers * PARTITIONS_PER_WORKER).next_power_of_two().min(PARTITIONS_MAX),
        };
        let commands = catalogue.all().len();
        let runtime_config = RuntimeConfig::read(&values, 1);
        let core = Core {
            keyspace: Keyspace::leak(databases, partitions, hasher(&values)),
            config: Config::new(values),
            catalogue,
            admission: Admission::default(),
            clients: Clients::default(),
            routing: is_cluster.then(Routing::default),
            pause: Pause::default(),
            // The thread that executes the primary's commands publishes like a worker.
            pubsub: PubSub::new(workers + 1),
            tracking: Tracking::default(),
            inboxes: Inboxes::new(workers + 1),
            commandlog: CommandLog::default(),
            latency: LatencyMonitor::default(),
            hot_keys: HotKeys::new(workers),
            big_keys: BigKeys::new(workers),
            eviction: Eviction::default(),
            memory: memory::Monitor::default(),
            snapshot_bytes: AtomicUsize::new(0),
            stats: (0..=workers).map(|_| Arc::new(WorkerStats::new(commands))).collect(),
            rates: Mutex::default(),
            started: Instant::now(),
            started_ms: clock::unix_ms(),
            run_id,
            rejected_connections: AtomicU64::new(0),
            active_expire: AtomicBool::new(true),
            timers_stopped: AtomicBool::new(false),
            baseline: Mutex::new(vec![Totals::default(); workers + 1]),
            runtime_config: RwLock::new(Arc::new(runtime_config)),
            mailboxes: OnceLock::new(),
            interrupt_primary: OnceLock::new(),
            workers,
            shutting_down: AtomicBool::new(false),
        };
        core.apply_to_commands(&core.runtime_config());
        core.keyspace.lazy_free.run(memory::register_thread);
        core
    }

    /// Sets the workers' mailboxes. Later calls have no effect.
    pub fn set_mailboxes(&self, mailboxes: Vec<Arc<Mailbox<Message>>>) {
        // Only a bug in the startup code calls this twice; the first value stays.
        let _ = self.mailboxes.set(mailboxes);
        self.memory.record_startup();
    }

    /// Sets the function that interrupts the connection to the primary. Later calls have no effect.
    pub fn set_interrupt_primary(&self, interrupt: impl Fn() + Send + Sync + 'static) {
        // As above: the first value stays.
        let _ = self.interrupt_primary.set(Box::new(interrupt));
    }

    /// Marks the server as shutting down and wakes the workers, which check the mark at their next turn.
    pub fn mark_shutting_down(&self) {
        self.shutting_down.store(true, Ordering::SeqCst);
        (0..self.workers()).for_each(|worker| self.wake(worker));
    }

    /// Resets the counters that CONFIG RESETSTAT covers. The caller holds the global lock, so no command runs.
    pub fn reset_counters(&self) {
        *self.baseline.lock() = self.stats.iter().map(|stats| Totals::of(stats)).collect();
        self.stats.iter().for_each(|stats| stats.reset_commands());
        self.rates.lock().reset();
        self.rejected_connections.store(0, Ordering::Relaxed);
        self.routing.iter().for_each(|routing| routing.slot_stats.reset_all());
        self.keyspace.lazy_free.reset();
        self.eviction.reset();
    }

    /// Samples rates and memory if a sample is due.
    pub fn sample(&self) {
        let now = Instant::now();
        let mut rates = self.rates.lock();
        if rates.is_due(now) {
            let workers: Vec<Totals> = self.stats.iter().map(|stats| Totals::of(stats)).collect();
            rates.sample(now, &workers);
            self.memory.sample();
        }
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Sends a message to a worker.
    pub fn send(&self, worker: usize, message: Message) {
        match self.mailboxes.get().and_then(|all| all.get(worker)) {
            Some(mailbox) => mailbox.send(message),
            // Not a worker: the connection to the primary.
            None if matches!(message, Message::Close(_)) => {
                if let Some(interrupt) = self.interrupt_primary.get() {
                    interrupt();
                }
            }
            None => {}
        }
    }

    /// Wakes a worker, so that it checks the server's state.
    pub fn wake(&self, worker: usize) {
        if let Some(mailbox) = self.mailboxes.get().and_then(|all| all.get(worker)) {
            mailbox.wake();
        }
    }

    /// Puts a delivery into the inbox of `worker` and wakes it, unless it is `from` itself: a worker makes the
    /// deliveries for its own connections before it blocks.
    pub fn deliver(&self, from: Executor, worker: usize, delivery: Delivery) {
        self.put_delivery(worker, delivery, from == Executor::Worker(worker));
    }

    /// Makes the workers unsubscribe clients from the shard channels of slots that this node's shard does not own.
    pub fn announce_lost_slots(&self) {
        (0..self.workers()).for_each(|worker| self.put_delivery(worker, Delivery::SlotsLost, false));
    }

    /// Answers a client that waited, from any thread.
    pub fn answer(&self, served: Served) {
        self.put_delivery(served.client.worker, Delivery::Served(served), false);
    }

    /// Puts a delivery into the inbox of `worker`, from a thread that is not one.
    pub fn put(&self, worker: usize, delivery: Delivery) {
        self.put_delivery(worker, delivery, false);
    }

    /// Puts a delivery into the inbox of `worker`, and wakes it unless it is known to be awake.
    fn put_delivery(&self, worker: usize, delivery: Delivery, is_awake: bool) {
        if self.inboxes.put(worker, delivery) && !is_awake {
            self.wake(worker);
        }
    }

    /// Publishes a message from a worker; returns the number of subscribers that receive it.
    pub fn publish(&self, from: Executor, address: Address, channel: &[u8], payload: &[u8]) -> usize {
        let receivers = self.put_messages(from, |put| self.pubsub.publish(address, channel, payload, put));
        if let Some(routing) = &self.routing
            && address == Address::Shard
            && routing.slot_stats.is_enabled()
        {
            let bytes = bytes_of_words([b"smessage", channel, payload].into_iter()) * receivers;
            routing.slot_stats.add(slot(channel), SlotUsage { bytes_out: bytes as u64, ..SlotUsage::default() });
        }
        receivers
    }

    /// Runs `publish`, which puts messages into inboxes, and then wakes the workers that need it, except `from`.
    fn put_messages<T>(&self, from: Executor, publish: impl FnOnce(&mut dyn FnMut(usize, Arc<Publication>)) -> T) -> T {
        let mut to_wake = SmallVec::<[usize; 8]>::new();
        let result = publish(&mut |worker, message| {
            if self.inboxes.put(worker, Delivery::Published(message)) && from != Executor::Worker(worker) {
                to_wake.push(worker);
            }
        });
        to_wake.into_iter().for_each(|worker| self.wake(worker));
        result
    }

    /// Sends lines to all monitors, from a worker. That worker delivers the lines for its own connections itself.
    pub fn feed_monitors(&self, from: Executor, lines: &[u8]) {
        self.put_messages(from, |put| self.pubsub.feed_monitors(lines, put));
    }

    /// Sends a message to every worker.
    pub fn send_all(&self, message: impl Fn() -> Message) {
        (0..self.workers()).for_each(|worker| self.send(worker, message()));
    }

    /// The classes of keyspace events to record: those among `named` (the configured classes) that may have a
    /// subscriber, and all changes while client-side caching needs them.
    #[inline]
    pub fn notified_classes(&self, named: EventClass) -> EventClass {
        let no_events = named.is_empty() || !self.pubsub.directory().has_listeners();
        let notified_classes = if no_events { EventClass::empty() } else { named };
        notified_classes | self.keyspace.tracking.event_mask()
    }

    /// The configuration generation, which changes with every change of a setting.
    #[inline]
    pub fn config_generation(&self) -> u64 {
        self.config.generation()
    }

    /// The current runtime config. It is rebuilt if settings have changed.
    pub fn runtime_config(&self) -> Arc<RuntimeConfig> {
        let generation = self.config.generation();
        let current = self.runtime_config.read().clone();
        if current.generation == generation {
            return current;
        }
        let mut current = self.runtime_config.write();
        if current.generation < generation {
            *current = Arc::new(RuntimeConfig::read(&self.config.values(), generation));
            self.apply_to_commands(&current);
        }
        current.clone()
    }

    /// Applies settings that are read with each command: makes the dispatcher check memory if a memory limit is set,
    /// and counts the use of slots and samples that of keys if that is enabled.
    fn apply_to_commands(&self, runtime_config: &RuntimeConfig) {
        let limits = &runtime_config.eviction;
        if let Some(routing) = &self.routing {
            routing.slot_stats.enable(self.config.read(CLUSTER_SLOT_STATS_ENABLED));
        }
        self.hot_keys.configure(runtime_config.hot_keys);
        self.admission.set(Reasons::LIMITED, limits.bytes > 0 || limits.clients_bytes > 0);
    }

    /// The counters of each worker since the last CONFIG RESETSTAT.
    pub fn totals(&self) -> Vec<Totals> {
        let baseline = self.baseline.lock();
        self.stats.iter().zip(baseline.iter()).map(|(stats, before)| Totals::of(stats).since(before)).collect()
    }

    /// Whether the server is shutting down.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }
}

/// The hash function of the keyspace: seeded from `hash-seed` if it is set, otherwise from a random secret.
/// In cluster mode it hashes by slot.
fn hasher(values: &Values) -> KeyHasher {
    let hasher = match values.read(process::HASH_SEED) {
        None => KeyHasher::random(),
        Some(seed) => {
            let word = |half| KeyHasher::with_secret(half, 0).hash(&seed);
            KeyHasher::with_secret(word(0), word(1))
        }
    };
    if values.read(CLUSTER_ENABLED) { hasher.by_slot() } else { hasher }
}
