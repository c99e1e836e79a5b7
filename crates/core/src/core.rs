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
use crate::scaling::{Bounds, Decision, Scaling};
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
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Partitions per database with one worker.
const PARTITIONS_ONE_WORKER: usize = 256;
/// Partitions per database for each of several workers. With this many, another worker seldom locks a partition of a
/// prefetched batch before the worker that prefetched it does.
const PARTITIONS_PER_WORKER: usize = 1024;
const PARTITIONS_MAX: usize = 16384;
/// Least number of workers that a running server can have.
const WORKERS_MAX_LEAST: usize = 8;

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
    /// The mailboxes of the workers that have been started, by worker number.
    mailboxes: Box<[OnceLock<Arc<Mailbox<Message>>>]>,
    /// Starts a worker.
    start_worker: OnceLock<StartWorker>,
    /// How many workers are active: those with the lowest numbers.
    active_workers: AtomicUsize,
    /// Number of connections of each worker.
    pub connection_counts: Box<[AtomicUsize]>,
    /// Connections that have moved from one worker to another.
    pub moved_connections: AtomicU64,
    /// Decides how many are, and what INFO tells about that.
    scaling: Mutex<ScalingState>,
    /// Interrupts the connection to the primary.
    interrupt_primary: OnceLock<Box<dyn Fn() + Send + Sync>>,
    shutting_down: AtomicBool,
}

/// Starts the worker with a number.
type StartWorker = Box<dyn Fn(usize) -> io::Result<()> + Send + Sync>;

#[derive(Default)]
struct ScalingState {
    scaling: Scaling,
    /// Why the number of active workers last changed; empty if it never has.
    reason: String,
    /// How often it has changed.
    changes: u64,
}

/// What INFO tells about the number of workers.
#[derive(Clone, Debug, Default)]
pub struct ScalingReport {
    /// Busy fraction of each worker over the last moments, from 0 to 1.
    pub busy: Vec<f64>,
    /// Why the number of active workers last changed; empty if it never has.
    pub reason: String,
    /// How often it has changed.
    pub changes: u64,
}

impl Core {
    /// Creates a core with these settings and commands. `run_id` identifies this run.
    pub fn new(values: Values, catalogue: &'static Catalogue, run_id: String) -> Self {
        let workers = values.read(network::IO_THREADS).max(1) as usize;
        let active = bounds(&values).min;
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let workers_max = workers.max(2 * cores).max(WORKERS_MAX_LEAST);
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
            pubsub: PubSub::new(workers_max + 1),
            tracking: Tracking::default(),
            inboxes: Inboxes::new(workers_max + 1),
            commandlog: CommandLog::default(),
            latency: LatencyMonitor::default(),
            hot_keys: HotKeys::new(workers_max),
            big_keys: BigKeys::new(workers_max),
            eviction: Eviction::default(),
            memory: memory::Monitor::default(),
            snapshot_bytes: AtomicUsize::new(0),
            stats: (0..=workers_max).map(|_| Arc::new(WorkerStats::new(commands))).collect(),
            rates: Mutex::default(),
            started: Instant::now(),
            started_ms: clock::unix_ms(),
            run_id,
            rejected_connections: AtomicU64::new(0),
            active_expire: AtomicBool::new(true),
            timers_stopped: AtomicBool::new(false),
            baseline: Mutex::new(vec![Totals::default(); workers_max + 1]),
            runtime_config: RwLock::new(Arc::new(runtime_config)),
            mailboxes: (0..workers_max).map(|_| OnceLock::new()).collect(),
            start_worker: OnceLock::new(),
            active_workers: AtomicUsize::new(active),
            connection_counts: (0..workers_max).map(|_| AtomicUsize::new(0)).collect(),
            moved_connections: AtomicU64::new(0),
            scaling: Mutex::default(),
            interrupt_primary: OnceLock::new(),
            shutting_down: AtomicBool::new(false),
        };
        core.apply_to_commands(&core.runtime_config());
        core.keyspace.lazy_free.run(memory::register_thread);
        core
    }

    /// Sets a worker's mailbox. Later calls have no effect.
    pub fn set_mailbox(&self, worker: usize, mailbox: Arc<Mailbox<Message>>) {
        // Only a bug in the code that starts workers calls this twice; the first value stays.
        let _ = self.mailboxes[worker].set(mailbox);
    }

    /// Sets the function that starts a worker. Later calls have no effect.
    pub fn set_start_worker(&self, start: impl Fn(usize) -> io::Result<()> + Send + Sync + 'static) {
        // As above: the first value stays.
        let _ = self.start_worker.set(Box::new(start));
    }

    /// Sets the function that interrupts the connection to the primary. Later calls have no effect.
    pub fn set_interrupt_primary(&self, interrupt: impl Fn() + Send + Sync + 'static) {
        // As above: the first value stays.
        let _ = self.interrupt_primary.set(Box::new(interrupt));
    }

    /// Marks the server as shutting down and wakes the workers, which check the mark at their next turn.
    pub fn mark_shutting_down(&self) {
        self.shutting_down.store(true, Ordering::SeqCst);
        (0..self.workers_max()).for_each(|worker| self.wake(worker));
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

    /// Number of workers that there can be while the process runs.
    #[inline]
    pub fn workers_max(&self) -> usize {
        self.mailboxes.len()
    }

    /// Number of active workers, at least 1: those with the lowest numbers. Others have no connections, or are about to
    /// give them away.
    #[inline]
    pub fn active_workers(&self) -> usize {
        self.active_workers.load(Ordering::Relaxed)
    }

    /// Whether the worker has ever been active.
    pub fn has_started(&self, worker: usize) -> bool {
        self.mailboxes.get(worker).is_some_and(|mailbox| mailbox.get().is_some())
    }

    /// Makes this number of workers active, at least 1 and at most [`workers_max`](Self::workers_max). Connections of
    /// others move to them, and to new ones their share of the connections.
    ///
    /// # Errors
    /// If a worker cannot be started; then the number does not change.
    pub fn activate_workers(&self, workers: usize, reason: &str) -> io::Result<()> {
        let mut state = self.scaling.lock();
        let (workers, before) = (workers.clamp(1, self.workers_max()), self.active_workers());
        if workers == before {
            return Ok(());
        }
        for worker in 0..workers {
            if !self.has_started(worker)
                && let Some(start) = self.start_worker.get()
            {
                start(worker)?;
            }
        }
        self.active_workers.store(workers, Ordering::SeqCst);
        state.changes += 1;
        state.reason = reason.to_owned();
        drop(state);
        kvick_runtime::logging::notice(format_args!("{workers} workers are active, {before} before ({reason})"));
        (0..self.workers_max()).for_each(|worker| self.wake(worker));
        if workers > before {
            self.spread_connections(before, workers);
        }
        Ok(())
    }

    /// Tells the workers below `before` to give their share of connections to those from `before` to `after`.
    fn spread_connections(&self, before: usize, after: usize) {
        let counts: Vec<usize> =
            self.connection_counts.iter().take(after).map(|count| count.load(Ordering::Relaxed)).collect();
        let share = counts.iter().sum::<usize>() / after;
        let mut givers = (0..before).map(|worker| (worker, counts[worker].saturating_sub(share)));
        let mut giver = givers.next();
        for to in before..after {
            let mut wanted = share;
            while wanted > 0
                && let Some((from, spare)) = &mut giver
            {
                let count = wanted.min(*spare);
                if count > 0 {
                    self.send(*from, Message::Give { to, count });
                }
                (wanted, *spare) = (wanted - count, *spare - count);
                if *spare == 0 {
                    giver = givers.next();
                }
            }
        }
    }

    /// Lets the number of active workers and their load follow the configuration and the load. One thread calls this
    /// some times per second. `cores` tells how many cores the workers may use.
    pub fn scale_workers(&self, cores: impl FnOnce() -> usize) {
        let bounds = bounds(&self.config.values());
        let bounds = Bounds { min: bounds.min.min(self.workers_max()), max: bounds.max.min(self.workers_max()) };
        let busy_us: Vec<u64> = self.stats[..self.workers_max()].iter().map(|stats| stats.busy_us.get()).collect();
        let (now, active) = (self.started.elapsed(), self.active_workers());
        let decision = self.scaling.lock().scaling.observe(now, &busy_us, active, bounds, cores);
        match decision {
            None => {}
            Some(Decision::Activate { workers, reason }) => {
                if let Err(error) = self.activate_workers(workers, &reason) {
                    kvick_runtime::logging::warning(format_args!("A worker cannot be started: {error}"));
                }
            }
            Some(Decision::Shed { from, to, share }) => self.send(from, Message::Shed { to, share }),
        }
    }

    /// Makes the number of active workers conform to changed settings.
    ///
    /// # Errors
    /// If a worker cannot be started; then the number does not change.
    pub fn conform_workers(&self, values: &Values) -> io::Result<()> {
        let Bounds { min, max } = bounds(values);
        self.activate_workers(self.active_workers().clamp(min, max), "configuration")
    }

    /// What INFO tells about the number of workers.
    pub fn scaling_report(&self) -> ScalingReport {
        let state = self.scaling.lock();
        let busy = (0..self.workers_max()).map(|worker| state.scaling.busy(worker)).collect();
        ScalingReport { busy, reason: state.reason.clone(), changes: state.changes }
    }

    /// Sends a message to a worker.
    pub fn send(&self, worker: usize, message: Message) {
        match self.mailboxes.get(worker).map(OnceLock::get) {
            Some(Some(mailbox)) => mailbox.send(message),
            // It has not started, and has no connections.
            Some(None) => {}
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
        if let Some(mailbox) = self.mailboxes.get(worker).and_then(OnceLock::get) {
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
        let started = (0..self.workers_max()).filter(|worker| self.has_started(*worker));
        started.for_each(|worker| self.put_delivery(worker, Delivery::SlotsLost, false));
    }

    /// Answers a client that waited, from any thread.
    pub fn answer(&self, served: Served) {
        self.put_delivery(served.client.worker(), Delivery::Served(served), false);
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
        (0..self.workers_max()).for_each(|worker| self.send(worker, message()));
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

/// The bounds of the number of active workers, by the settings.
fn bounds(values: &Values) -> Bounds {
    let max = values.read(network::IO_THREADS).max(1) as usize;
    let min = match values.read(network::IO_THREADS_MIN) as usize {
        0 => max,
        min => min.min(max),
    };
    Bounds { min, max }
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
