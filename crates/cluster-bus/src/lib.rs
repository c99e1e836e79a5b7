//! The cluster bus: a thread that owns the links to all other nodes and drives the state machine of
//! [`kvick_cluster::state`].
//!
//! ```text
//! sockets --> link: bytes to messages --> state machine --> actions, in order --> link: messages to bytes --> sockets
//!                                             ^                 |
//! commands: [`Bus::with`] --------------------+                 +--> file: nodes.conf, on a thread of its own
//!                                                               +--> [`Host`]: changes of the server
//! ```
//!
//! - `socket`: TCP, plain or with TLS.
//! - `link`: the receive and send buffers of a link.
//! - [`nodes_file`]: the file `nodes.conf`.
//! - `journal`: makes its next content durable before it is replaced.
//! - `saver`: the thread that writes it.
//! - `resolver`: the thread that resolves host names.
//! - `event_loop`: the thread of the bus.
//!
//! The thread of the bus never waits for a worker, the disk, DNS or the global lock, so other nodes do not take a busy
//! server for a dead one. Actions behind a durable save wait until the file is on disk: after a crash, the node must
//! still know its votes.

mod event_loop;
mod journal;
mod link;
pub mod nodes_file;
mod resolver;
mod saver;

use event_loop::EventLoop;
use kvick_cluster::state::{Action, Cluster, Facts, Level, LinkId, Now};
use kvick_net::tls::Tls;
use kvick_runtime::logging;
use kvick_runtime::mailbox::Mailbox;
use mio::net::TcpListener;
use mio::{Poll, Waker};
use nodes_file::NodesFile;
use parking_lot::Mutex;
use resolver::Resolved;
use saver::Saver;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The rest of the server, as the bus needs it. No method may wait for a lock that is held while the bus is used,
/// except for short moments.
pub trait Host: Send + Sync + 'static {
    /// Calls `use_facts` with the facts of this moment.
    fn with_facts(&self, now: Now, use_facts: &mut dyn FnMut(&Facts<'_>));

    /// Called ten times a second, before the timers of the state machine.
    fn before_tick(&self);

    /// Makes the changes of the server that follow from one input: now or later, but in the order of the calls. All of
    /// one call become visible to clients together, since a role and the slot map that belongs to it do.
    fn perform(&self, changes: Vec<Action>);

    /// Whether a worker has been in one turn of its loop for longer than this time, in milliseconds. A node whose
    /// workers hang does not answer others, so that it is failed over.
    fn hangs_for_ms(&self, ms: u64) -> bool;

    /// `nodes.conf` cannot be written, although it must be. Ends the process.
    fn must_exit(&self);
}

/// What the bus needs at start.
pub struct Start {
    /// The state machine.
    pub cluster: Cluster,
    /// The file that it was read from.
    pub file: NodesFile,
    /// Listening sockets of the bus port.
    pub listeners: Vec<std::net::TcpListener>,
    /// Source address of outgoing connections (`bind-source-addr`).
    pub source: Option<IpAddr>,
    /// Whether links use TLS.
    pub tls: Option<&'static Tls>,
    /// Whether a failure to write the file is tolerated.
    pub tolerates_failed_saves: bool,
}

/// See the module's documentation.
pub struct Bus {
    shared: Mutex<Shared>,
    mailbox: Mailbox<Resolved>,
    saver: Saver,
    host: OnceHost,
    started: Instant,
    /// Whether failed saves are tolerated.
    tolerates_failed_saves: AtomicBool,
    /// Whether a save failed after its content was durable: the journal has it, but `nodes.conf` could not be replaced.
    replacement_failed: AtomicBool,
}

type OnceHost = std::sync::OnceLock<&'static dyn Host>;

/// What the thread of the bus shares with commands.
struct Shared {
    cluster: Cluster,
    /// Actions for the thread of the bus.
    actions: VecDeque<Action>,
    /// Bytes that wait to be sent and memory of buffers, by link.
    links: HashMap<LinkId, usize>,
}

impl Shared {
    /// The content of `nodes.conf`.
    fn content(&self, now: Now) -> Vec<u8> {
        // Texts that cannot be written are refused when they are set.
        self.cluster.config_content(now).unwrap_or_default().into()
    }

    /// Removes all saves from the queue. Returns the content that covers them, and whether one of them must be durable.
    /// If each was synced on its own, frames behind many of them would wait for so long that other nodes took this one
    /// for dead.
    fn take_saves(&mut self, now: Now) -> (Vec<u8>, bool) {
        let mut is_durable = false;
        self.actions.retain(|action| {
            let Action::Save { sync } = action else { return true };
            is_durable |= *sync;
            false
        });
        (self.content(now), is_durable)
    }
}

impl Bus {
    /// Creates the bus; its thread begins with [`Bus::run`]. Lives as long as the process.
    pub fn leak(start: Start) -> io::Result<(&'static Bus, Thread)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), event_loop::WAKER)?;
        let bus: &'static Bus = Box::leak(Box::new(Bus {
            shared: Mutex::new(Shared { cluster: start.cluster, actions: VecDeque::new(), links: HashMap::new() }),
            mailbox: Mailbox::new(waker),
            saver: Saver::start(start.file)?,
            host: OnceHost::new(),
            started: Instant::now(),
            tolerates_failed_saves: AtomicBool::new(start.tolerates_failed_saves),
            replacement_failed: AtomicBool::new(false),
        }));
        let listeners = start.listeners.into_iter().map(TcpListener::from_std).collect();
        Ok((bus, Thread { poll, listeners, source: start.source, tls: start.tls }))
    }

    /// Starts the thread of the bus.
    pub fn run(&'static self, host: &'static dyn Host, thread: Thread) -> io::Result<()> {
        // A second call would be a mistake of the process's start alone.
        let _ = self.host.set(host);
        let event_loop = EventLoop::new(self, host, thread)?;
        let builder = std::thread::Builder::new().name("cluster-bus".into());
        builder.spawn(move || {
            kvick_runtime::memory::register_thread();
            kvick_runtime::time_slice::shorten();
            event_loop.run();
        })?;
        Ok(())
    }

    /// Gives `use_cluster` access to the state machine; any thread may call this. The actions that follow are performed
    /// by the thread of the bus if they concern links or `nodes.conf`, and by [`Host::perform`] otherwise.
    pub fn with<T>(&self, use_cluster: impl FnOnce(&mut Cluster, &Facts<'_>) -> T) -> T {
        let (mut result, mut use_cluster) = (None, Some(use_cluster));
        self.step(&mut |cluster, facts| {
            if let Some(use_cluster) = use_cluster.take() {
                result = Some(use_cluster(cluster, facts));
            }
        });
        if !self.shared.lock().actions.is_empty() {
            self.mailbox.wake();
        }
        result.expect("the host calls back exactly once")
    }

    /// Looks at the state machine. Nothing follows from that.
    pub fn view<T>(&self, look: impl FnOnce(&Cluster) -> T) -> T {
        look(&self.shared.lock().cluster)
    }

    /// One input of the state machine, and what follows from it.
    fn step(&self, input: &mut dyn FnMut(&mut Cluster, &Facts<'_>)) {
        let Some(host) = self.host.get() else { return };
        let mut shared = self.shared.lock();
        let mut actions = Vec::new();
        host.with_facts(self.now(), &mut |facts| {
            input(&mut shared.cluster, facts);
            shared.cluster.settle(facts, &mut actions);
        });
        let mut changes = Vec::new();
        for action in actions {
            match action {
                Action::Connect { .. } | Action::Disconnect(_) | Action::Send { .. } | Action::Save { .. } => {
                    shared.actions.push_back(action);
                }
                Action::Log(level, line) => log(level, &line),
                change => changes.push(change),
            }
        }
        if !changes.is_empty() {
            host.perform(changes);
        }
    }

    /// Writes `nodes.conf`, and calls `done` on another thread when it is on disk, or with false if that failed.
    pub fn save(&self, done: impl FnOnce(bool) + Send + 'static) {
        self.saver.save(self.content(), true, || (), move |result| done(result.is_ok()));
    }

    fn content(&self) -> Vec<u8> {
        self.shared.lock().content(self.now())
    }

    /// Bytes of memory that the buffers of all links take.
    pub fn links_memory(&self) -> usize {
        self.shared.lock().links.values().sum()
    }

    /// Whether failed saves are tolerated (`cluster-config-save-behavior`).
    pub fn tolerate_failed_saves(&self, tolerates: bool) {
        self.tolerates_failed_saves.store(tolerates, Ordering::Relaxed);
    }

    /// The time for the state machine.
    pub fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono_ms: self.started.elapsed().as_millis() as u64, unix_ms: unix.as_millis() as i64 }
    }
}

/// What only the thread of the bus has.
pub struct Thread {
    poll: Poll,
    listeners: Vec<TcpListener>,
    source: Option<IpAddr>,
    tls: Option<&'static Tls>,
}

fn log(level: Level, line: &str) {
    match level {
        Level::Debug => logging::debug(format_args!("{line}")),
        Level::Verbose => logging::verbose(format_args!("{line}")),
        Level::Notice => logging::notice(format_args!("{line}")),
        Level::Warning => logging::warning(format_args!("{line}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_cluster::nodes_conf::NodesConf;
    use kvick_cluster::state::Settings;
    use std::sync::Arc;

    /// A replica of a primary that is not there.
    const REPLICA: &str = "\
        1111111111111111111111111111111111111111 127.0.0.1:1@2 myself,slave 2222222222222222222222222222222222222222 \
        0 0 1 connected\n\
        2222222222222222222222222222222222222222 127.0.0.1:3@4 master - 0 0 1 connected 0-16383\n\
        vars currentEpoch 1 lastVoteEpoch 0\n";

    /// Keeps the changes of each call.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<Vec<Action>>>);

    impl Host for Recorder {
        fn with_facts(&self, now: Now, use_facts: &mut dyn FnMut(&Facts<'_>)) {
            use_facts(&Facts::without_data(now));
        }

        fn before_tick(&self) {}

        fn perform(&self, changes: Vec<Action>) {
            self.0.lock().push(changes);
        }

        fn hangs_for_ms(&self, _: u64) -> bool {
            false
        }

        fn must_exit(&self) {
            unreachable!("nothing is saved");
        }
    }

    fn bus() -> &'static Bus {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, _) = NodesFile::open(&dir.path().join("nodes.conf")).expect("a new file");
        let (conf, _) = NodesConf::parse(REPLICA.as_bytes(), false).expect("a valid file");
        let cluster = Cluster::new(Some(&conf), Settings::default(), 1, Now { mono_ms: 0, unix_ms: 0 });
        let start = Start { cluster, file, listeners: vec![], source: None, tls: None, tolerates_failed_saves: false };
        Bus::leak(start).expect("a bus").0
    }

    #[test]
    fn saves_that_wait_are_one() {
        let bus = bus();
        let mut shared = bus.shared.lock();
        let send = |number| Action::Send { link: LinkId(number), frame: Arc::from([0; 4]) };
        let (first, last) = (Action::Save { sync: false }, Action::Save { sync: true });
        shared.actions.extend([first.clone(), send(1), last, send(2), first]);
        let (content, is_durable) = shared.take_saves(bus.now());
        assert!(is_durable && content.starts_with(b"1111"));
        assert_eq!(shared.actions, [send(1), send(2)]);
        assert!(!shared.take_saves(bus.now()).1);
    }

    #[test]
    fn a_role_changes_together_with_the_slot_map() {
        let bus = bus();
        let host: &'static Recorder = Box::leak(Box::default());
        assert!(bus.host.set(host).is_ok());
        bus.with(|_, _| {});
        host.0.lock().clear();
        bus.with(|cluster, _| cluster.replicate_no_one("a test"));
        let calls = host.0.lock();
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert!(calls[0].contains(&Action::BecomePrimary), "{calls:?}");
        assert!(calls[0].contains(&Action::TopologyChanged), "{calls:?}");
    }
}
