//! The context of a session command: its connection, the server, and the keyspace under the locks that the command's
//! lock rule requires.

use crate::dispatch::of_client;
use crate::feed::Feed;
use crate::pending::PendingCommand;
use crate::queued::{Transaction, Watching};
use crate::services::Services;
use kvick_acl::identity::Identity;
use kvick_commands::context::{Error, Settings};
use kvick_core::Core;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::commandlog::Executed;
use kvick_core::executor::Executor;
use kvick_core::pubsub::subscriptions::Subscriptions;
use kvick_core::pubsub::{Kind, PubSub};
use kvick_core::stats::WorkerStats;
use kvick_core::tracking::{ClientTracking, Mode as TrackingMode};
use kvick_replication::replicas::Replica;
use kvick_resp::{Args, Reply, Version};
use kvick_scripting::debugging::Mode;
use kvick_store::{Access, Db, Effects, Env, Locked, Waiter, WhenExpired};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A handler of a session command. Like a data command, it must not have written a reply if it returns an error.
pub type SessionHandler = fn(&mut Session<'_>, Args<'_>) -> Result<(), Error>;

/// The context of a session command.
pub struct Session<'a> {
    /// The server.
    pub server: &'static Services,
    /// The connection.
    pub client: &'a mut Client,
    /// Receives the reply.
    pub reply: Reply<'a>,
    /// The locks held for the command.
    pub locked: &'a mut Locked,
    /// Effects of the command on the keyspace.
    pub effects: &'a mut Effects,
    /// Current Unix time in milliseconds.
    pub now_ms: i64,
    /// How key accesses are recorded.
    pub access: &'a Access,
    /// How expired keys are treated.
    pub when_expired: WhenExpired,
    /// Settings used by commands.
    pub settings: &'a Settings,
    /// Whether the command belongs to a transaction being executed, or to a script.
    pub in_transaction: bool,
    /// The script's Unix time in microseconds, if a script calls the command.
    pub script_us: Option<i64>,
    /// The executor that runs the command.
    pub executor: Executor,
    /// The worker's statistics.
    pub stats: &'a WorkerStats,
    /// Set by a command that has written no reply and will be answered later: the waiter on which its client blocks.
    pub waits: &'a mut Option<Arc<Waiter>>,
}

impl Session<'_> {
    /// A database, under the command's locks.
    pub fn db(&mut self, number: usize) -> Db<'_> {
        let env = Env::command(self.now_ms, self.access, &self.stats.keyspace, self.effects);
        Db::new(self.locked, number, of_client(env, self.client.info.flags(), self.settings, self.when_expired))
    }
}

/// Connection state that commands read and change. Only the connection's worker accesses it.
pub struct Client {
    /// The part visible to other threads.
    pub info: Arc<ClientInfo>,
    /// Selected database.
    pub db: usize,
    /// Protocol version of replies.
    pub version: Version,
    /// Its user and authentication state.
    pub identity: Identity,
    /// CLIENT REPLY.
    pub reply_mode: ReplyMode,
    /// Whether the connection stays open after the current command.
    pub fate: Fate,
    /// Its subscriptions, if any.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// Set by a command that is answered with pushes instead of a reply.
    pub answered_by_pushes: bool,
    /// CLUSTER ASKING.
    asking: Asking,
    /// Index in the command table of the last command; `u32::MAX` before the first.
    pub last_command: u32,
    /// Number of commands executed.
    pub commands: u64,
    /// The open transaction, if any.
    pub transaction: Option<Box<Transaction>>,
    /// Whether RESET was just executed: the engine completes the part that needs locks.
    pub is_reset: bool,
    /// The keys it watches.
    pub watching: Option<Box<Watching>>,
    /// CLIENT TRACKING, while it is on.
    pub tracking: Option<Box<ClientTracking>>,
    /// Bit mask of the current command's arguments that logs must not show.
    pub redacted: u32,
    /// Its state as a replica, if it is one.
    pub replica: Option<Arc<Replica>>,
    /// Its feed as a replica.
    pub feed: Option<Box<Feed>>,
    /// An upper bound of the log offset at the end of its last write.
    pub write_offset: u64,
    /// SCRIPT DEBUG, while it is on.
    pub debugging: Option<Mode>,
    /// What other nodes have to do with it, if its requests are forwarded to them. Such a client is never admitted by
    /// the admission word alone.
    pub forwarding: Option<Box<Elsewhere>>,
    /// The session command that it waits for, if any.
    pub(crate) pending: Option<Box<PendingCommand>>,
}

/// What a client whose requests are forwarded has at other nodes.
#[derive(Default, Debug)]
pub struct Elsewhere {
    /// Whether it waits for replies of theirs.
    pub outstanding: bool,
    /// The keys that it watches there.
    pub watched: Option<Box<WatchedElsewhere>>,
    /// Whether this node executes its SSUBSCRIBE, because it has subscribed there itself.
    pub subscribes: bool,
    /// Whether this node has executed writes of it.
    pub wrote_here: bool,
    /// What they have acknowledged, while this node executes its WAIT or WAITAOF.
    pub acknowledged: Option<Acknowledged>,
}

/// The keys that a client watches at another node. They have one slot.
#[derive(Debug)]
pub struct WatchedElsewhere {
    /// Their slot.
    pub slot: u16,
    keys: HashSet<Box<[u8]>>,
    /// Total length of their names in bytes.
    key_bytes: usize,
}

impl WatchedElsewhere {
    /// No keys of a slot yet.
    pub(crate) fn new(slot: u16) -> WatchedElsewhere {
        WatchedElsewhere { slot, keys: HashSet::new(), key_bytes: 0 }
    }

    /// Adds a key, unless it is watched already.
    pub(crate) fn add(&mut self, key: &[u8]) {
        if self.keys.insert(key.into()) {
            self.key_bytes += key.len();
        }
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Memory that they use, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.key_bytes + self.keys.capacity() * size_of::<Box<[u8]>>()
    }
}

/// What has been acknowledged of the writes of a client at other nodes: the minimum of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledged {
    /// How many of the nodes' own disks have them, 0 or 1.
    pub local: u64,
    /// How many replicas have them.
    pub replicas: u64,
    /// Whether writes at this node count as well.
    pub here: bool,
    /// Until when the client waits at most, as Unix time in ms.
    pub until_ms: Option<i64>,
}

impl Acknowledged {
    /// Nothing was written at other nodes.
    pub const NOTHING: Acknowledged = Acknowledged { local: 1, replicas: u64::MAX, here: true, until_ms: None };
}

/// CLIENT REPLY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyMode {
    /// Replies are sent.
    On,
    /// Replies are not sent.
    Off,
    /// The current command's reply is not sent; set from `SkipNext` when the command began.
    Skip,
    /// The next command's reply will not be sent.
    SkipNext,
}

/// ASKING: whether the client was sent here by an ASK redirection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asking {
    No,
    /// It has just sent ASKING, so its next request may access slots that this node imports.
    Next,
    /// So may the current one.
    Now,
}

/// Whether a connection stays open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It stays open.
    Open,
    /// It is closed after its replies are written.
    CloseAfterReply,
    /// It is closed at once.
    Close,
}

impl Client {
    /// State of a new connection.
    pub fn new(info: Arc<ClientInfo>, identity: Identity) -> Self {
        info.set_flags(ClientFlags::AUTHENTICATED, identity.authenticated);
        info.names.lock().user = identity.user.name.clone();
        let mut client = Client::placeholder(info, identity);
        if client.info.flags().contains(ClientFlags::FORWARD) {
            client.forwarding = Some(Box::default());
            client.check_every_request();
        }
        client
    }

    /// A placeholder for a client that is moved out of its connection.
    pub fn placeholder(info: Arc<ClientInfo>, identity: Identity) -> Self {
        Client {
            info,
            identity,
            db: 0,
            version: Version::Resp2,
            reply_mode: ReplyMode::On,
            fate: Fate::Open,
            subscriptions: None,
            answered_by_pushes: false,
            asking: Asking::No,
            last_command: u32::MAX,
            commands: 0,
            transaction: None,
            is_reset: false,
            watching: None,
            tracking: None,
            redacted: 0,
            replica: None,
            feed: None,
            write_offset: 0,
            debugging: None,
            forwarding: None,
            pending: None,
        }
    }

    /// How many bytes of a reply it receives: none if its requests come from a log.
    #[inline]
    pub(super) fn sent_bytes(&self, reply_bytes: usize) -> usize {
        if self.info.is_from_log() { 0 } else { reply_bytes }
    }

    /// ASKING: lets its next request, or transaction, access slots that this node imports.
    pub fn ask_next(&mut self) {
        self.asking = Asking::Next;
    }

    /// Whether it has sent ASKING before the current request.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.asking != Asking::No
    }

    /// Updates [`is_asking`](Self::is_asking) after a request.
    #[inline]
    pub(super) fn end_asking(&mut self) {
        if self.asking != Asking::No {
            self.asking = match self.asking {
                Asking::Next => Asking::Now,
                // A transaction is asked for as a whole.
                Asking::Now if self.transaction.is_some() => Asking::Now,
                _ => Asking::No,
            };
        }
    }

    /// Redacts argument `index` of the current command in logs, which show "(redacted)" instead. Logs never show
    /// arguments beyond the thirty-second.
    pub fn redact(&mut self, index: usize) {
        if let Some(bit) = u32::try_from(index).ok().and_then(|index| 1u32.checked_shl(index)) {
            self.redacted |= bit;
        }
    }

    /// State without a connection, for benchmarks and tests.
    pub fn detached() -> Self {
        let address = |port: u16| format!("127.0.0.1:{port}");
        Client::new(Arc::new(ClientInfo::new(1, 0, -1, address(1), address(2), true, 0)), Identity::superuser())
    }

    /// Publishes changed state to other threads.
    pub fn publish(&self) {
        self.info.command.store(self.last_command, Ordering::Relaxed);
        self.info.commands.store(self.commands, Ordering::Relaxed);
    }

    /// Selects a database, which must exist.
    pub fn select(&mut self, db: usize) {
        self.db = db;
        self.info.db.store(db, Ordering::Relaxed);
    }

    /// Changes the protocol version, starting with the next reply.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
        let number = if version == Version::Resp3 { 3 } else { 2 };
        self.info.protocol.store(number, Ordering::Relaxed);
    }

    /// Whether it may run only subscription commands: it is subscribed, and its protocol has no pushes.
    #[inline]
    pub fn is_confined_to_subscriptions(&self) -> bool {
        self.subscriptions.is_some() & (self.version == Version::Resp2)
    }

    /// Replaces its subscriptions and publishes them.
    pub fn set_subscriptions(&mut self, subscriptions: Box<Subscriptions>) {
        for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
            self.info.subscriptions[kind as usize].store(subscriptions.count(kind), Ordering::Relaxed);
        }
        self.info.subscription_memory.store(subscriptions.memory(), Ordering::Relaxed);
        self.info.set_flags(ClientFlags::PUBSUB, !subscriptions.is_empty());
        self.subscriptions = (!subscriptions.is_empty()).then_some(subscriptions);
    }

    /// Ends all subscriptions.
    pub fn unsubscribe_all(&mut self, pubsub: &PubSub) {
        if let Some(mut subscriptions) = self.subscriptions.take() {
            pubsub.unsubscribe_all(self.info.place(), &mut subscriptions);
            self.set_subscriptions(subscriptions);
        }
    }

    /// Starts tracking: see [`Tracking::start`](kvick_core::tracking::Tracking::start).
    pub fn start_tracking(&mut self, core: &Core, mode: &TrackingMode, prefixes: &[&[u8]]) {
        core.tracking.start(core, &self.info, &mut self.tracking, mode, prefixes);
    }

    /// Stops tracking.
    pub fn stop_tracking(&mut self, core: &Core) {
        core.tracking.stop(core, &self.info, &mut self.tracking);
    }

    /// A command that it just sent, as logs record it.
    #[inline]
    pub fn executed<'a>(&'a self, args: Args<'a>) -> Executed<'a> {
        Executed { args, client: &self.info, redacted: self.redacted, db: self.db, error: None }
    }

    /// Whether it represents a primary.
    #[inline]
    pub fn is_primary(&self) -> bool {
        self.info.flags().contains(ClientFlags::PRIMARY)
    }

    /// Whether it represents the source of a slot import.
    #[inline]
    pub fn is_slot_import(&self) -> bool {
        self.info.flags().contains(ClientFlags::SLOT_IMPORT)
    }

    /// Whether it represents a primary or the source of a slot import, whose requests repeat what that server has
    /// already executed.
    #[inline]
    pub fn is_obeyed(&self) -> bool {
        self.info.flags().intersects(ClientFlags::PRIMARY | ClientFlags::SLOT_IMPORT)
    }

    /// Whether it is a monitor.
    #[inline]
    pub fn is_monitor(&self) -> bool {
        self.info.flags().contains(ClientFlags::MONITOR)
    }

    /// Makes it a monitor.
    pub fn begin_monitor(&self, server: &Services) {
        self.info.set_flags(ClientFlags::MONITOR, true);
        server.pubsub.begin_monitor(self.info.place(), &server.admission);
    }

    /// Stops monitoring, if it is a monitor.
    pub fn end_monitor(&self, server: &Services) {
        if self.is_monitor() {
            self.info.set_flags(ClientFlags::MONITOR, false);
            server.pubsub.end_monitor(self.info.place(), &server.admission);
        }
    }

    /// Whether it connects from this machine.
    pub fn is_local(&self) -> bool {
        self.info.loopback
    }

    /// Whether reading a key updates the key's access clock.
    #[inline]
    pub fn touches(&self) -> bool {
        self.info.touches()
    }
}
